"""The files of a listing and their bytes, of which there may be tens of millions: arrays in place of objects.

What lies below a folder: every file once, and each folder that was not gone through with its reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from halofeed.errors import Problem
from halofeed.schemas.files import SELECTION
from halofeed.system.atomic_files import system_name, text_of_name

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


_SYSTEM = ("/proc/", "/sys/", "/dev/")
"""Where a system shows itself as files: no folder of pictures, wherever a link leads."""
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where users' own files lie nevertheless
REFUSED = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors after which it is not known what there is."""
_OF_FILE_SYSTEMS = "lost+found"
"""A folder that a file system makes for itself at its top, for its administrator alone."""


HIDDEN: Problem = (SELECTION, "hidden, or left behind by a system or a tool", "")
EMPTY: Problem = (SELECTION, "folder holds no files", "")
_LEFT_BEHIND = frozenset(
    (
        *(
            "__macosx",
            "@eadir",
            "#recycle",
            "#snapshot",
            "@recycle",
            "@recently-snapshot",
            "@tmp",
            "@sharebin",
        ),
        *("$recycle.bin", "system volume information", "recycler", "network trash folder", "temporary items"),
        *("_vti_cnf", "__pycache__", "thumbs.db", "desktop.ini"),
    )
)
"""Names, in small letters, that systems, network drives and tools give to what is no part of a data set."""


def is_hidden(path: str) -> bool:
    """Whether a relative path is one that tools leave behind: .git, .DS_Store, ._file, __MACOSX, @eaDir.

    >>> is_hidden("a/._b.jpg"), is_hidden("a/@eaDir/b.jpg"), is_hidden("a/b.jpg")
    (True, True, False)
    """
    return any(part.startswith(".") or part.lower() in _LEFT_BEHIND for part in path.split("/"))


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a folder holds, by relative path, in sorted order.

    Args:
        sizes: the bytes of every file; 0 of what is no regular file, or cannot be looked at: reading it says so.
        faults: (stage, reason, detail) of every folder whose files are not in `sizes`, or not under its own path.
    """

    sizes: Mapping[str, int]
    faults: dict[str, Problem]


def list_below(root: str) -> Listing:
    """Every file below a folder of this machine; hidden ones are named among the faults.

    Links are followed, and each folder is gone through once, however many ways lead to it: the way without links first,
    then those with the fewest, then the first by its path. So the paths do not depend on the order of the system's
    lists.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    walk = _Walk()
    walk.go_through([("", root)])
    while walk.links:
        links, walk.links = sorted(walk.links), []
        for path, full in links:
            if (away := _leads_away(full)) is None:
                walk.go_through([(path, full)])
            else:
                walk.faults[path] = away
    return Listing(sizes=walk.sizes.quickest(), faults=dict(sorted(walk.faults.items())))


FILES_NEAR_TOP = 1000
"""Where more lie straight in a folder, it is a folder of files, and nobody looks for further folders in it."""


def holds_many(root: str, folder: str) -> bool:
    """Whether more than `FILES_NEAR_TOP` files lie straight in a folder of a folder of this machine."""
    with contextlib.suppress(OSError), os.scandir(_full(root, folder)) as entries:
        files = (entry for entry in entries if not entry.is_dir(follow_symlinks=False))
        return len(list(islice(files, FILES_NEAR_TOP + 1))) > FILES_NEAR_TOP
    return False


def _full(root: str, folder: str) -> str:
    return os.path.join(root, system_name(folder)) if folder else root


def list_part(root: str, folder: str, *, deep: bool) -> Part:
    """The files below one folder of a folder of this machine, or straight in it, as `list_below` would list them.

    Args:
        root: the folder to which paths are relative.
        folder: its relative path; "" is the root itself.
        deep: whether what lies in folders inside is listed too.
    """
    walk = _Walk()
    inside = walk.enter(folder, _full(root, folder))
    if deep:
        walk.go_through(inside)
    return Part(
        files=walk.sizes.items(),
        folders=() if deep else tuple(path for path, _ in inside),
        faults=walk.faults,
        seen=tuple(walk.seen),
        has_links=bool(walk.links),
    )


def unlisted(path: str, error: OSError) -> Problem:
    """The fault of a folder that cannot be listed."""
    stage = SELECTION if path == _OF_FILE_SYSTEMS else "read"
    return (stage, "folder cannot be listed", error.strerror or str(error))


@dataclass(frozen=True, kw_only=True)
class Part:
    """What lies below one folder of a source, or straight in it.

    Args:
        files: relative path and bytes of each.
        folders: inside, that are not listed.
        faults: as of a `Listing`.
        seen: what proves that no folder is listed twice: device and inode of each.
        has_links: whether links to folders were found and not followed.
    """

    files: Iterable[tuple[str, int]]
    folders: tuple[str, ...] = ()
    faults: Mapping[str, Problem] = field(default_factory=dict)
    seen: tuple[tuple[int, int], ...] = ()
    has_links: bool = False


@dataclass(kw_only=True)
class _Walk:
    """What was found; `seen` is the path of each folder by device and inode, `links` are those yet to follow."""

    sizes: Sizes = field(default_factory=Sizes)
    faults: dict[str, Problem] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def go_through(self, folders: Sequence[tuple[str, str]]) -> None:
        """Everything below folders but what further links lead to."""
        left = list(reversed(folders))
        while left:
            left += reversed(self.enter(*left.pop()))

    def enter(self, path: str, full: str) -> list[tuple[str, str]]:
        """What lies straight in a folder; the folders in it, in sorted order."""
        inside: list[tuple[str, str]] = []
        files: list[tuple[str, int]] = []
        links = len(self.links)
        try:
            found = os.stat(full)
            first = self.seen.setdefault((found.st_dev, found.st_ino), path)
            if first != path:
                self.faults[path] = (SELECTION, "folder is listed under another path", first or ".")
                return []
            with os.scandir(full) as entries:
                for entry in entries:
                    self._take(path, entry, files, inside)
        except OSError as error:
            if not path:
                raise
            self.faults[path] = unlisted(path, error)
        if files:
            self.sizes.add_folder(path, files)
        elif path and not inside and path not in self.faults and len(self.links) == links:
            self.faults[path] = EMPTY
        return sorted(inside)

    def _take(
        self,
        folder: str,
        entry: os.DirEntry[str],
        files: list[tuple[str, int]],
        inside: list[tuple[str, str]],
    ) -> None:
        name = text_of_name(entry.name)
        if is_hidden(name):
            self.faults[_joined(folder, name)] = HIDDEN
            return
        may_be_folder = True
        try:
            if entry.is_dir(follow_symlinks=False):
                inside.append((_joined(folder, name), entry.path))
                return
            may_be_folder = entry.is_symlink()
            found = entry.stat()
        except OSError as error:
            files.append((name, 0))
            if may_be_folder and error.errno in REFUSED:
                said = error.strerror or str(error)
                self.faults[_joined(folder, name)] = ("read", "entry cannot be looked at", said)
            return
        if stat.S_ISDIR(found.st_mode):
            self.links.append((_joined(folder, name), entry.path))
        else:
            files.append((name, found.st_size if stat.S_ISREG(found.st_mode) else 0))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _leads_away(link: str) -> Problem | None:
    """The fault of a link to a folder in which it lies itself, or to the system's own files."""
    target, above = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    if os.path.commonpath([target, above]) == target:
        return (SELECTION, "link to a folder in which it lies", "")
    system = next((start for start in _SYSTEM if f"{target}/".startswith(start)), None)
    if system is not None and not f"{target}/".startswith(_SHARED_MEMORY):
        return (SELECTION, "link to the system's own files", system)
    return None
