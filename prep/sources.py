"""Where source files come from: the one protocol through which prep sees a folder, and its local form."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from halofeed.schemas.errors import SourceError, UsageError


class SourceFiles(Protocol):
    """A folder of source files, local or remote."""

    @property
    def root(self) -> str:
        """The folder, as the user named it; for messages only."""

    def sizes(self) -> Mapping[str, int]:
        """Every file below the folder: relative path with '/' to size in bytes, in sorted order."""

    def size(self, path: str) -> int | None:
        """The bytes of one file, by its relative path, without going through the folder; None: no such file."""

    def files_in(self, folder: str) -> list[str]:
        """The files straight in one folder below the root ("" is the root), in sorted order, by relative path."""

    def has_folder(self, folder: str) -> bool:
        """Whether there is a folder of this relative path."""

    def read(self, path: str) -> bytes:
        """The bytes of one file, by its relative path; SourceError of stage `read` if that fails."""

    def head(self, path: str, size: int) -> bytes:
        """The first bytes of one file, all of them where it is shorter; SourceError as `read`."""


def is_hidden(path: str) -> bool:
    """Whether a relative path is one that tools leave behind: .git, .DS_Store, ._file, __MACOSX.

    >>> is_hidden("a/._b.jpg"), is_hidden("a/b.jpg")
    (True, False)
    """
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def path_below(root: str, written: str) -> str | None:
    """The path below the root that an absolute path means, or None where it is relative or lies elsewhere.

    >>> path_below("/data/images", "/data/images/a/b.jpg"), path_below("/data", "a.jpg"), path_below("/", "/a.jpg")
    ('a/b.jpg', None, 'a.jpg')
    """
    if "://" in root or "://" in written:
        start = root.rstrip("/") + "/"
        return written.removeprefix(start) if written.startswith(start) else None
    if not os.path.isabs(written):
        return None
    path, above = os.path.normpath(written), os.path.abspath(root)
    folder, name = os.path.split(path)
    for start, file in (
        (above, path),
        (_real(above), path),
        (_real(above), os.path.join(_real(folder), name)),
    ):
        if file.startswith(start.rstrip(os.sep) + os.sep):
            return file.removeprefix(start).lstrip(os.sep).replace(os.sep, "/")
    return None


def _same(path: str) -> str:
    return path


def lies_outside(file: str, root: str) -> str:
    """What to say of a file that is there, but not below the root.

    >>> lies_outside("/data/day1/a.jpg", "/data/day2")
    '/data/day1/a.jpg is not below /data/day2; --images /data holds both'
    """
    full = os.path.abspath(file)
    above = os.path.commonpath([full, os.path.abspath(root)])
    return f"{full} is not below {root}; --images {above} holds both"


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """An absolute folder without symbolic links; it is asked for with every file of a table."""
    return os.path.realpath(folder)


_DEVICES = ("/proc/", "/sys/", "/dev/")
"""Where a system shows itself as files that have no end: no folder of pictures, wherever a link leads."""


def _never_ends(folder: str) -> bool:
    """Whether a folder is a symbolic link to one in which it lies itself, or to the system's own files."""
    if not os.path.islink(folder):
        return False
    target, above = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.commonpath([target, above]) == target or f"{target}/".startswith(_DEVICES)


class LocalFiles:
    """The files below a local folder; symbolic links are followed, but not in circles."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root}: no such folder; name the folder that holds the source files")
        self._sizes: dict[str, int] | None = None

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            if os.path.realpath(self.root) == "/":
                raise UsageError(
                    f"{self.root}: every file of this machine would be listed; name the folder that holds the source "
                    "files, or a table that gives each file's whole path"
                )
            found = {}
            for folder, folders, names in os.walk(self.root, followlinks=True):
                folders[:] = [name for name in folders if not _never_ends(os.path.join(folder, name))]
                for name in names:
                    full = os.path.join(folder, name)
                    path = os.path.relpath(full, self.root).replace(os.sep, "/")
                    if is_hidden(path):
                        continue
                    size = _size_of(full)
                    if size is not None:
                        found[path] = size
                    elif os.path.islink(full):
                        found[path] = 0  # leads nowhere: reading it says so, and it is listed as rejected
            self._sizes = dict(sorted(found.items()))
        return self._sizes

    def size(self, path: str) -> int | None:
        if self._sizes is not None and path in self._sizes:
            return self._sizes[path]
        return _size_of(os.path.join(self.root, path))

    def has_folder(self, folder: str) -> bool:
        return os.path.isdir(os.path.join(self.root, folder))

    def files_in(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                found = [start + entry.name for entry in entries if entry.is_file() or entry.is_symlink()]
        except OSError:
            return []
        return sorted(
            path for path in found if not is_hidden(path) and not os.path.isdir(os.path.join(self.root, path))
        )

    def read(self, path: str) -> bytes:
        try:
            return Path(self.root, path).read_bytes()
        except OSError as error:
            raise SourceError("read", "file cannot be read", error.strerror or str(error)) from error

    def head(self, path: str, size: int) -> bytes:
        try:
            with Path(self.root, path).open("rb") as stream:
                return stream.read(size)
        except OSError as error:
            raise SourceError("read", "file cannot be read", error.strerror or str(error)) from error


def _size_of(file: str) -> int | None:
    """The bytes of a file; None where there is none, or none that may be looked at."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
