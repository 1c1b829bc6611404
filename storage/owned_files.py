"""List of the files that halofeed wrote into a folder, so that it never deletes any other file.

    folder/.halofeed    one line per file: {"file": "a.png", "bytes": 120, "crc32c": 7}   its content when written
                                           {"grows": "log.jsonl"}                         its content may change
                                           {"below": "checkpoints/00000200"}              a library's files, unknown yet
                                           {"below": "checkpoints/00000200", "files": {"state/d/1": 5}}

    folder/.halofeed-temporary    marks a temporary folder: everything in it is halofeed's

halofeed adds a line before it writes the file, so a kill leaves no file without a line. A file with other content, a
link, and a file without a line belong to somebody else: halofeed reports them and never deletes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from halofeed.system.checksum import crc32c
from halofeed.system.errors import UsageError

LIST: Final = ".halofeed"
_TEMPORARY_MARK: Final = ".halofeed-temporary"
TEMPORARY: Final = re.compile(r"\..+\.(\d+)\.[0-9a-f]{16}\.new")
"""Name of a temporary file, with the id of the process that writes it."""
_MAX_LIST_BYTES: Final = 1 << 30
_READ_BYTES: Final = 1 << 22
_MAX_SHOWN: Final = 10
_SAFE_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def begin_list(folder: str | os.PathLike[str], *, whole: bool = False) -> None:
    """Begin the list of a folder that halofeed has made or found empty.

    Args:
        whole: mark it as a temporary folder, in which everything is halofeed's.
    """
    path = os.path.join(folder, _TEMPORARY_MARK if whole else LIST)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o666))


def has_list(folder: str | os.PathLike[str]) -> bool:
    """Return True if a folder has halofeed's list."""
    return _has(folder, LIST) or _has(folder, _TEMPORARY_MARK)


def _has(folder: str | os.PathLike[str], name: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)
    return False


def record_file(folder: str | os.PathLike[str], name: str, data: bytes) -> None:
    """Record a file that halofeed is about to write with these bytes, if the folder has a list."""
    _add(folder, {"file": name, "bytes": len(data), "crc32c": crc32c(data)})


def record_growing_file(folder: str | os.PathLike[str], name: str) -> None:
    """Record a file to which halofeed appends at any time."""
    _add(folder, {"grows": name})


def record_files_below(folder: str | os.PathLike[str], name: str, made: str | os.PathLike[str]) -> None:
    """Record the files below the temporary folder `made`, which will become `name` in a folder with a list."""
    if _has(folder, LIST):
        for path, size, checksum in _contents(made):
            _add(folder, {"file": f"{name}/{path}", "bytes": size, "crc32c": checksum})


def record_library_folder(folder: str | os.PathLike[str], name: str, *, whole: bool) -> None:
    """Record a subfolder into which a library writes.

    Args:
        whole: the library has written all of its files; record them too.
    """
    if not _has(folder, LIST):
        return
    files = dict(_sizes(os.path.join(folder, name))) if whole else None
    _add(folder, {"below": name} | ({} if files is None else {"files": files}))


def finish_list(folder: str | os.PathLike[str]) -> None:
    """Write the list of a temporary folder and remove its mark."""
    lines = [
        _line({"file": path, "bytes": size, "crc32c": checksum}) for path, size, checksum in _contents(folder)
    ]
    path, new = os.path.join(folder, LIST), os.path.join(folder, f"{LIST}.{os.urandom(8).hex()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o666), "wb") as stream:
        stream.writelines(lines)
    os.replace(new, path)
    os.unlink(os.path.join(folder, _TEMPORARY_MARK))


@dataclass(kw_only=True)
class _OwnedFiles:
    """Content of a list. Paths are relative to its folder.

    Args:
        is_temporary: everything in the folder is halofeed's, also links.
        files: the contents that each file may have, as (bytes, CRC32C).
        growing: files that may have any content.
        below: files of each library folder and their bytes; None where they are not known.
    """

    is_temporary: bool
    files: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    growing: set[str] = field(default_factory=set)
    below: dict[str, Mapping[str, int] | None] = field(default_factory=dict)

    def problem(self, path: str, name: str, descriptor: int) -> str | None:
        """Return the reason why a file is not halofeed's; None where it is.

        Args:
            path: path below the folder of the list.
            name: file name in its parent folder.
            descriptor: open parent folder.
        """
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if self.is_temporary:
            return None
        if not stat.S_ISREG(status.st_mode):
            return "not a file that halofeed wrote"
        # A temporary file was left by a kill; its name has the id of halofeed's process.
        if path in self.growing or name == LIST or TEMPORARY.fullmatch(name):
            return None
        if path not in self.files:
            return self._problem_below(path, status.st_size)
        # The checksum of a large file takes time, so its size is compared first.
        has_size = status.st_size in {size for size, _ in self.files[path]}
        is_same = has_size and _content(name, descriptor) in self.files[path]
        return None if is_same else "changed since halofeed wrote it"

    def _problem_below(self, path: str, size: int) -> str | None:
        """Return the reason why a file is not of a library that writes into a folder; None where it is."""
        for folder, files in self.below.items():
            inside = path.removeprefix(f"{folder}/")
            if inside == path:
                continue
            # Without a list the library was stopped while it wrote.
            if files is None or files.get(inside) == size:
                return None
            if inside in files:
                return "changed since halofeed wrote it"
        return "not written by halofeed"

    def is_folder(self, path: str) -> bool:
        """Return True if halofeed makes a folder of this path."""
        if self.is_temporary or any(folder == path or path.startswith(f"{folder}/") for folder in self.below):
            return True
        return any(name.startswith(f"{path}/") for name in (*self.files, *self.growing, *self.below))


def foreign_paths(folder: str | os.PathLike[str]) -> list[str]:
    """Return the paths in a folder that are not halofeed's, with the reason: `notes.txt (not written by halofeed)`."""
    return [f"{path} ({problem})" for path, problem in _check_paths(folder) if problem is not None]


def check_owned(folder: str | os.PathLike[str], flag: str) -> None:
    """Refuse to replace a folder in which something is not halofeed's.

    Args:
        folder: path of the folder.
        flag: the option that names the folder.

    Raises:
        UsageError: the folder has no list, or the message lists what is not halofeed's.
    """
    if not has_list(folder):
        raise UsageError(
            f"{flag} {folder}: {LIST} is missing, which lists what halofeed wrote there, so that nothing is deleted; "
            "move the folder away, or name another one"
        )
    if found := foreign_paths(folder):
        more = f"\n  and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        listed = "".join(f"\n  {line}" for line in found[:_MAX_SHOWN])
        raise UsageError(
            f"{flag} {folder}: holds what halofeed did not write and does not delete; move it away, or name another "
            f"folder:{listed}{more}"
        )


def delete_owned(folder: str | os.PathLike[str]) -> bool:
    """Delete what halofeed wrote in a folder, and the folder if it is then empty; return True if it is deleted.

    A folder without a list is only deleted if it is empty. Links are not followed.
    """
    if has_list(folder):
        _delete_inside(folder)
        with contextlib.suppress(OSError):
            left = os.listdir(folder)
            if {LIST, _TEMPORARY_MARK}.issuperset(left):  # last, since they say what may be deleted
                for name in left:
                    os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):
            os.rmdir(folder)
    return not os.path.lexists(folder)


def _delete_inside(folder: str | os.PathLike[str]) -> None:
    """Delete what is halofeed's below a folder, but for its list."""
    is_temporary = _has(folder, _TEMPORARY_MARK)
    own = set() if is_temporary else {path for path, problem in _check_paths(folder) if problem is None}
    for parent, folders, files, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in (*files, *folders):
            # Somebody else may use the folder meanwhile, or a file in it is not ours to delete.
            with contextlib.suppress(OSError):
                is_folder = stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
                path = _relative(parent, name, folder) + ("/" if is_folder else "")
                if path not in (LIST, _TEMPORARY_MARK) and (is_temporary or path in own):
                    (os.rmdir if is_folder else os.unlink)(name, dir_fd=descriptor)


def real_folder(path: str | os.PathLike[str]) -> Path:
    """Resolve a path that may be a link, so that halofeed replaces the folder and keeps the link."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _check_paths(folder: str | os.PathLike[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each path below a folder, with a slash for folders, and why it is not halofeed's; None where it is."""
    owned = _read(folder)
    for parent, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in sorted(files):
            path = _relative(parent, name, folder)
            try:
                problem = owned.problem(path, name, descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = f"cannot be read: {error.strerror}"
            yield path, problem
        for name in sorted(folders):
            path = _relative(parent, name, folder)
            if os.path.islink(os.path.join(parent, name)):
                yield path, owned.problem(path, name, descriptor)
            elif owned.is_folder(path):
                yield f"{path}/", None
            else:
                folders.remove(name)  # keeps fwalk out of it
                yield f"{path}/", "not made by halofeed"


def _read(folder: str | os.PathLike[str]) -> _OwnedFiles:
    owned = _OwnedFiles(is_temporary=_has(folder, _TEMPORARY_MARK))
    if owned.is_temporary or not has_list(folder):
        return owned
    descriptor = os.open(os.path.join(folder, LIST), os.O_RDONLY | _SAFE_FLAGS)
    with open(descriptor, "rb") as stream:
        text = stream.read(_MAX_LIST_BYTES)
    for line in text.split(b"\n"):
        # A line may be cut off by a kill, or written by another program.
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
            entry = json.loads(line)
            if "file" in entry:
                owned.files.setdefault(entry["file"], set()).add((entry["bytes"], entry["crc32c"]))
            elif "grows" in entry:
                owned.growing.add(entry["grows"])
            else:
                owned.below[entry["below"]] = entry.get("files")
    return owned


def _add(folder: str | os.PathLike[str], entry: Mapping[str, Any]) -> None:
    if not _has(folder, LIST):
        return
    with open(os.open(os.path.join(folder, LIST), os.O_WRONLY | os.O_APPEND | _SAFE_FLAGS), "ab") as stream:
        stream.write(_line(entry))
        stream.flush()
        with contextlib.suppress(OSError):  # a file system without fsync
            os.fsync(stream.fileno())


def _line(entry: Mapping[str, Any]) -> bytes:
    # The first line break separates it from a line that a kill has cut off.
    return b"\n" + json.dumps(entry).encode() + b"\n"


def _sizes(folder: str) -> Iterable[tuple[str, int]]:
    for parent, _, files in os.walk(folder):
        for name in files:
            yield _relative(parent, name, folder), os.lstat(os.path.join(parent, name)).st_size


def _contents(folder: str | os.PathLike[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the path, size and CRC32C of each file below a folder, except lists."""
    for parent, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in sorted(set(files) - {LIST, _TEMPORARY_MARK}):
            yield _relative(parent, name, folder), *_content(name, descriptor)


def _content(name: str, descriptor: int) -> tuple[int, int]:
    """Return the size of a file in an open folder, and the CRC32C of its bytes."""
    size, checksum = 0, 0
    with open(os.open(name, os.O_RDONLY | _SAFE_FLAGS, dir_fd=descriptor), "rb", buffering=0) as stream:
        while block := stream.read(_READ_BYTES):
            size, checksum = size + len(block), crc32c(block, checksum)
    return size, checksum


def _relative(parent: str, name: str, folder: str | os.PathLike[str]) -> str:
    return os.path.relpath(os.path.join(parent, name), folder)
