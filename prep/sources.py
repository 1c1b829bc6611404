"""Where source files come from: the one protocol through which prep sees a folder, and its local form."""

from __future__ import annotations

import os
from collections.abc import Mapping
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


def _leads_back(folder: str) -> bool:
    """Whether a folder is a symbolic link to one in which it lies itself: following it would never end."""
    if not os.path.islink(folder):
        return False
    target, above = os.path.realpath(folder), os.path.realpath(os.path.dirname(folder))
    return os.path.commonpath([target, above]) == target


class LocalFiles:
    """The files below a local folder; symbolic links are followed, but not in circles."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root}: no such folder; name the folder that holds the source files")
        self._sizes: dict[str, int] | None = None

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            found = {}
            for folder, folders, names in os.walk(self.root, followlinks=True):
                folders[:] = [name for name in folders if not _leads_back(os.path.join(folder, name))]
                for name in names:
                    full = os.path.join(folder, name)
                    path = os.path.relpath(full, self.root).replace(os.sep, "/")
                    if is_hidden(path):
                        continue
                    if os.path.isfile(full):
                        found[path] = os.path.getsize(full)
                    elif os.path.islink(full):
                        found[path] = 0  # leads nowhere: reading it says so, and it is listed as rejected
            self._sizes = dict(sorted(found.items()))
        return self._sizes

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
