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


def is_hidden(path: str) -> bool:
    """Whether a relative path is one that tools leave behind: .git, .DS_Store, ._file, __MACOSX.

    >>> is_hidden("a/._b.jpg"), is_hidden("a/b.jpg")
    (True, False)
    """
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


class LocalFiles:
    """The files below a local folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root}: no such folder; name the folder that holds the source files")
        self._sizes: dict[str, int] | None = None

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            found = {}
            for folder, _, names in os.walk(self.root, followlinks=True):
                for name in names:
                    full = os.path.join(folder, name)
                    path = os.path.relpath(full, self.root).replace(os.sep, "/")
                    if not is_hidden(path) and os.path.isfile(full):
                        found[path] = os.path.getsize(full)
            self._sizes = dict(sorted(found.items()))
        return self._sizes

    def read(self, path: str) -> bytes:
        try:
            return Path(self.root, path).read_bytes()
        except OSError as error:
            raise SourceError("read", "file cannot be read", error.strerror or str(error)) from error
