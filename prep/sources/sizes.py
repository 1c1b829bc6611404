"""The files of a listing and their bytes, of which there may be tens of millions: arrays in place of objects."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

AS_A_DICT = 200_000
"""So many files at most, where looking one up shall be quick; more shall take little memory."""
_AT_ONCE = 4096
_ADDED_AT_ONCE = 100_000


class Sizes(Mapping[str, int]):
    """Relative paths in sorted order, and the bytes of each; a path takes some 12 bytes and its last part.

    >>> sizes = Sizes()
    >>> sizes.add_folder("a", [("2.jpg", 20), ("1.jpg", 10)])
    >>> sizes.add_folder("a/1", [("x.jpg", 5)])
    >>> list(sizes.items()), sizes.get("a/3.jpg")
    ([('a/1.jpg', 10), ('a/1/x.jpg', 5), ('a/2.jpg', 20)], None)
    """

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}
        self._inside: dict[str, set[str]] = {}

    def add_files(self, files: Iterable[tuple[str, int]]) -> None:
        """Add (path, bytes) as a store lists them: in any order, though those in sorted order take the least time."""
        left = iter(files)
        while some := list(islice(left, _ADDED_AT_ONCE)):
            by_folder: dict[str, list[tuple[str, int]]] = {}
            for path, size in some:
                folder, _, name = path.rpartition("/")
                by_folder.setdefault(folder, []).append((name, size))
            for folder, inside in by_folder.items():
                self.add_folder(folder, inside)

    def add_folder(self, folder: str, files: Iterable[tuple[str, int]]) -> None:
        """Add what lies straight in one folder ("" is the root), as (name, bytes)."""
        self._folders.setdefault(folder, _Folder()).add(sorted(files))
        while folder and (entry := folder.rpartition("/"))[2] not in self._inside.get(entry[0], ()):
            folder = entry[0]
            self._inside.setdefault(folder, set()).add(entry[2])

    def quickest(self) -> Mapping[str, int]:
        """The same as a dict, where they are few."""
        return dict(self) if len(self) <= AS_A_DICT else self

    def in_folder(self, folder: str) -> list[str]:
        """The files straight in one folder, in sorted order."""
        start = f"{folder}/" if folder else ""
        return [start + name for name in self._folders.get(folder, ())]

    def __len__(self) -> int:
        return sum(map(len, self._folders.values()))

    def __iter__(self) -> Iterator[str]:
        return self._below("")

    def _below(self, folder: str) -> Iterator[str]:
        start = f"{folder}/" if folder else ""
        names = iter(self._folders.get(folder, ()))
        name = next(names, None)
        # A folder's place is that of its paths, which go on with a slash.
        for inside in sorted(f"{one}/" for one in self._inside.get(folder, ())):
            while name is not None and name < inside:
                yield start + name
                name = next(names, None)
            yield from self._below(start + inside[:-1])
        if name is not None:
            yield start + name
            for name in names:
                yield start + name

    def __getitem__(self, path: str) -> int:
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder)
        if found is None or (size := found.size(name)) is None:
            raise KeyError(path)
        return size


class _Folder:
    """The names of a folder's files, one after the other, and where each ends."""

    def __init__(self) -> None:
        self._text = b""
        self._ends = np.zeros(1, np.uint32)
        self._sizes = array("q")
        self._next = 0

    def add(self, files: list[tuple[str, int]]) -> None:
        """Take sorted files that are not there yet."""
        if len(self) and files and files[0][0] < self._name(len(self) - 1):
            files = sorted([*zip(self, self._sizes, strict=True), *files])
            self._text, self._ends, self._sizes = b"", self._ends[:1], array("q")
        # Lone surrogates are in names that are no UTF-8, and stand here for themselves.
        encoded = [name.encode("utf-8", "surrogatepass") for name, _ in files]
        ends = len(self._text) + np.cumsum([0, *map(len, encoded)])
        self._text += b"".join(encoded)
        wide = np.uint32 if len(self._text) < 1 << 32 else np.uint64
        self._ends = np.concatenate([self._ends.astype(wide), ends[1:].astype(wide)])
        self._sizes.extend(size for _, size in files)

    def __len__(self) -> int:
        return len(self._sizes)

    def _name(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for first in range(1, len(self._sizes) + 1, _AT_ONCE):
            for end in self._ends[first : first + _AT_ONCE].tolist():
                yield self._text[start:end].decode("utf-8", "surrogatepass")
                start = end

    def size(self, name: str) -> int | None:
        """The bytes of a file; None where there is none. Files are mostly asked for in their order."""
        number = self._next
        if number >= len(self) or self._name(number) != name:
            number = bisect_left(range(len(self)), name, key=self._name)
            if number == len(self) or self._name(number) != name:
                return None
        self._next = number + 1
        return self._sizes[number]
