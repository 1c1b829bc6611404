"""Which files of a folder halofeed wrote, so that it deletes no others: a list in the folder, and how it is used.

    folder/.halofeed    a line for each: {"file": "a.png", "bytes": 120, "crc32c": 7}   as it was when it was written
                                         {"grows": "log.jsonl"}                         written to at any time
                                         {"below": "checkpoints/00000200"}              a library's files, not yet known
                                         {"below": "checkpoints/00000200", "files": {"state/d/1": 5}}

    folder/.halofeed-temporary    in its place: all is halofeed's, which is of no use once its process has ended

Lines are added before what they speak of is there, so that a kill leaves nothing that they do not cover. A file of
other contents, a link and whatever no line names is somebody else's: it is listed, and never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from halofeed.errors import UsageError
from halofeed.system.checksum import crc32c

LIST: Final = ".halofeed"
_ALL: Final = ".halofeed-temporary"
TEMPORARY: Final = re.compile(r"\..+\.(\d+)\.[0-9a-f]{16}\.new")
"""How a file is called while it is made; with the number of the process that makes it."""
_MOST_BYTES: Final = 1 << 30
_READ_AT_ONCE: Final = 1 << 22
_SHOWN: Final = 10
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def begin(folder: str | os.PathLike[str], *, whole: bool = False) -> None:
    """Begin the list of a folder that halofeed has made, or found empty.

    Args:
        whole: all that will be in it is halofeed's, as in a temporary folder.
    """
    path = os.path.join(folder, _ALL if whole else LIST)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666))


def has_list(folder: str | os.PathLike[str]) -> bool:
    """Whether halofeed made a folder, by its list."""
    return _has(folder, LIST) or _has(folder, _ALL)


def _has(folder: str | os.PathLike[str], name: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)
    return False


def note(folder: str | os.PathLike[str], name: str, data: bytes) -> None:
    """Note that a file of a folder that has a list is to hold these bytes."""
    _add(folder, {"file": name, "bytes": len(data), "crc32c": crc32c(data)})


def note_growing(folder: str | os.PathLike[str], name: str) -> None:
    """Note that halofeed will write to a file of a folder at any time."""
    _add(folder, {"grows": name})


def note_files(folder: str | os.PathLike[str], name: str, made: str | os.PathLike[str]) -> None:
    """Note the files below a folder that is to have this name in one with a list."""
    if _has(folder, LIST):
        for place, size, checksum in _contents(made):
            _add(folder, {"file": f"{name}/{place}", "bytes": size, "crc32c": checksum})


def note_below(folder: str | os.PathLike[str], name: str, *, whole: bool) -> None:
    """Note a folder in a folder, into which a library writes.

    Args:
        whole: it has written all, which is taken for its files from now on.
    """
    if not _has(folder, LIST):
        return
    files = dict(_sizes(os.path.join(folder, name))) if whole else None
    _add(folder, {"below": name} | ({} if files is None else {"files": files}))


def finish(folder: str | os.PathLike[str]) -> None:
    """Make the list of what is in a folder that was begun as `whole`."""
    lines = [
        _line({"file": place, "bytes": size, "crc32c": checksum})
        for place, size, checksum in _contents(folder)
    ]
    path, new = os.path.join(folder, LIST), os.path.join(folder, f"{LIST}.{secrets.token_hex(8)}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666), "wb") as stream:
        stream.writelines(lines)
    os.replace(new, path)
    os.unlink(os.path.join(folder, _ALL))


@dataclass(kw_only=True)
class _Known:
    """What a list says.

    Args:
        is_whole: all is halofeed's, links too.
        files: the contents that each file may have, as (bytes, CRC32C).
        growing: files of any content.
        below: of a library's folders the files and their bytes; None where they are not known.
    """

    is_whole: bool
    files: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    growing: set[str] = field(default_factory=set)
    below: dict[str, Mapping[str, int] | None] = field(default_factory=dict)

    def problem(self, place: str, name: str, descriptor: int) -> str | None:
        """Why a file is not halofeed's; None where it is.

        Args:
            place: below the folder.
            name, descriptor: in the folder in which it lies.
        """
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if self.is_whole:
            return None
        if not stat.S_ISREG(found.st_mode):
            return "not a file that halofeed wrote"
        if place in self.growing or name == LIST or TEMPORARY.fullmatch(name):
            return None
        if place in self.files:
            known = {size for size, _ in self.files[place]}
            if found.st_size in known and _content(name, descriptor) in self.files[place]:
                return None
            return "changed since halofeed wrote it"
        for folder, files in self.below.items():
            inside = place.removeprefix(f"{folder}/")
            if inside == place:
                continue
            if files is None or files.get(inside) == found.st_size:
                return None
            if inside in files:
                return "changed since halofeed wrote it"
        return "not written by halofeed"

    def is_folder(self, place: str) -> bool:
        """Whether halofeed makes a folder of that name."""
        if self.is_whole or any(folder == place or place.startswith(f"{folder}/") for folder in self.below):
            return True
        return any(name.startswith(f"{place}/") for name in (*self.files, *self.growing, *self.below))


def others(folder: str | os.PathLike[str]) -> list[str]:
    """What halofeed did not write in a folder, or what was changed since: `notes.txt (not written by halofeed)`."""
    return [f"{place} ({problem})" for place, problem in _judged(folder) if problem is not None]


def check_own(folder: str | os.PathLike[str], flag: str) -> None:
    """Refuse to replace a folder in which something is not halofeed's.

    Args:
        flag: the option that names the folder.

    Raises:
        UsageError: it lists what that is.
    """
    if not has_list(folder):
        raise UsageError(
            f"{flag} {folder}: {LIST} is missing, which lists what halofeed wrote there, so that nothing is deleted; "
            "move the folder away, or name another one"
        )
    if found := others(folder):
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        listed = "".join(f"\n  {line}" for line in found[:_SHOWN])
        raise UsageError(
            f"{flag} {folder}: holds what halofeed did not write and does not delete; move it away, or name another "
            f"folder:{listed}{more}"
        )


def delete(folder: str | os.PathLike[str]) -> bool:
    """Delete what halofeed wrote in a folder, and the folder where nothing is left; whether it is gone.

    Nothing is deleted in a folder without a list, or by way of a link; an empty folder goes.
    """
    if has_list(folder):
        whole = _has(folder, _ALL)
        own = set() if whole else {place for place, problem in _judged(folder) if problem is None}
        for above, folders, files, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
            place = os.path.relpath(above, folder)
            for name in (*files, *folders):
                with contextlib.suppress(OSError):
                    is_folder = stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
                    path = _joined(place, name) + ("/" if is_folder else "")
                    if path not in (LIST, _ALL) and (whole or path in own):
                        (os.rmdir if is_folder else os.unlink)(name, dir_fd=descriptor)
        with contextlib.suppress(OSError):
            left = os.listdir(folder)
            if {LIST, _ALL}.issuperset(left):  # which say to the last what may be deleted
                for name in left:
                    os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):
            os.rmdir(folder)
    return not os.path.lexists(folder)


def _judged(folder: str | os.PathLike[str]) -> Iterator[tuple[str, str | None]]:
    """Each file and folder below a folder, a folder's name with a slash, and why it is not halofeed's."""
    known = _read(folder)
    for above, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        place = os.path.relpath(above, folder)
        for name in sorted(files):
            try:
                problem = known.problem(_joined(place, name), name, descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = f"cannot be read: {error.strerror}"
            yield _joined(place, name), problem
        for name in sorted(folders):
            inner = _joined(place, name)
            if os.path.islink(os.path.join(above, name)):
                yield inner, known.problem(inner, name, descriptor)
            elif known.is_folder(inner):
                yield f"{inner}/", None
            else:
                folders.remove(name)  # which is not looked into
                yield f"{inner}/", "not made by halofeed"


def _read(folder: str | os.PathLike[str]) -> _Known:
    known = _Known(is_whole=_has(folder, _ALL))
    if known.is_whole or not has_list(folder):
        return known
    descriptor = os.open(os.path.join(folder, LIST), os.O_RDONLY | _FLAGS)
    with open(descriptor, "rb") as stream:
        text = stream.read(_MOST_BYTES)
    for line in text.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):  # torn, or nobody's
            entry = json.loads(line)
            if "file" in entry:
                known.files.setdefault(entry["file"], set()).add((entry["bytes"], entry["crc32c"]))
            elif "grows" in entry:
                known.growing.add(entry["grows"])
            else:
                known.below[entry["below"]] = entry.get("files")
    return known


def _add(folder: str | os.PathLike[str], entry: Mapping[str, Any]) -> None:
    if not _has(folder, LIST):
        return
    with open(os.open(os.path.join(folder, LIST), os.O_WRONLY | os.O_APPEND | _FLAGS), "ab") as stream:
        stream.write(_line(entry))
        stream.flush()
        with contextlib.suppress(OSError):  # of file systems that know no syncing
            os.fsync(stream.fileno())


def _line(entry: Mapping[str, Any]) -> bytes:
    # A line of its own even behind one that a kill has torn.
    return b"\n" + json.dumps(entry).encode() + b"\n"


def _sizes(folder: str) -> Iterable[tuple[str, int]]:
    for above, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(above, name)
            yield os.path.relpath(path, folder), os.lstat(path).st_size


def _contents(folder: str | os.PathLike[str]) -> Iterator[tuple[str, int, int]]:
    """Each file below a folder, its bytes and their CRC32C, but for lists."""
    for above, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in sorted(set(files) - {LIST, _ALL}):
            yield _joined(os.path.relpath(above, folder), name), *_content(name, descriptor)


def _content(name: str, descriptor: int) -> tuple[int, int]:
    """The bytes of a file in a folder, and their CRC32C."""
    size, checksum = 0, 0
    with open(os.open(name, os.O_RDONLY | _FLAGS, dir_fd=descriptor), "rb", buffering=0) as stream:
        while block := stream.read(_READ_AT_ONCE):
            size, checksum = size + len(block), crc32c(block, checksum)
    return size, checksum


def _joined(above: str, name: str) -> str:
    return name if above == "." else f"{above}/{name}"


def real_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that a path means which may be a link: it is the folder that is written to, and the link stays."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
