"""Listing of the files below a local folder, and a compact table of their sizes.

A listing may hold tens of millions of files, so `FileSizes` stores arrays instead of objects. Each file is listed once,
and each folder that was not listed has a reason.
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

from halofeed.schemas.file_layout import SELECTION
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import decode_name, encode_name
from halofeed.storage.paths import scan_folder
from halofeed.system.errors import Problem

DICT_MAX_FILES = 200_000
"""Up to this number of files a dict is used, which is faster; above it the compact table saves memory."""
_DECODED_NAMES = 4096
_FILES_PER_BATCH = 100_000


class FileSizes(Mapping[str, int]):
    """Sorted relative paths and their sizes in bytes; a path takes about 12 bytes plus its last component.

    >>> sizes = FileSizes()
    >>> sizes.add_folder("a", [("2.jpg", 20), ("1.jpg", 10)])
    >>> sizes.add_folder("a/1", [("x.jpg", 5)])
    >>> list(sizes.items()), sizes.get("a/3.jpg")
    ([('a/1.jpg', 10), ('a/1/x.jpg', 5), ('a/2.jpg', 20)], None)
    """

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}
        self._inside: dict[str, set[str]] = {}

    def add_files(self, files: Iterable[tuple[str, int]]) -> None:
        """Add (path, bytes) in any order, as a store lists them; sorted order is fastest."""
        remaining = iter(files)
        while batch := list(islice(remaining, _FILES_PER_BATCH)):
            by_folder: dict[str, list[tuple[str, int]]] = {}
            for path, size in batch:
                folder, _, name = path.rpartition("/")
                by_folder.setdefault(folder, []).append((name, size))
            for folder, inside in by_folder.items():
                self.add_folder(folder, inside)

    def add_folder(self, folder: str, files: Iterable[tuple[str, int]]) -> None:
        """Add the files directly in one folder ("" is the root), as (name, bytes)."""
        self._folders.setdefault(folder, _Folder()).add(sorted(files))
        while folder and (entry := folder.rpartition("/"))[2] not in self._inside.get(entry[0], ()):
            folder = entry[0]
            self._inside.setdefault(folder, set()).add(entry[2])

    def quickest(self) -> Mapping[str, int]:
        """Return the same mapping as a dict if it is small, else itself."""
        return dict(self) if len(self) <= DICT_MAX_FILES else self

    def in_folder(self, folder: str) -> list[str]:
        """Return the files directly in one folder, in sorted order."""
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
        # A folder is sorted by its paths, which continue with a slash.
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
    """Names of the files of one folder in one byte string, with the end of each name."""

    def __init__(self) -> None:
        self._text = b""
        self._ends = np.zeros(1, np.uint32)
        self._sizes = array("q")
        self._next = 0

    def add(self, files: list[tuple[str, int]]) -> None:
        """Add sorted files that are not in the table yet."""
        # A store lists a folder in several pages, perhaps not in order.
        if len(self) and files and files[0][0] < self._name(len(self) - 1):
            files = sorted([*zip(self, self._sizes, strict=True), *files])
            self._text, self._ends, self._sizes = b"", self._ends[:1], array("q")
        # Names that are not valid UTF-8 contain lone surrogates; "surrogatepass" keeps them.
        encoded = [name.encode("utf-8", "surrogatepass") for name, _ in files]
        ends = len(self._text) + np.cumsum([0, *map(len, encoded)])
        self._text += b"".join(encoded)
        # Ends take four bytes each, and eight beyond 4 GiB of names.
        wide = np.uint32 if len(self._text) < 1 << 32 else np.uint64
        self._ends = np.concatenate([self._ends.astype(wide), ends[1:].astype(wide)])
        self._sizes.extend(size for _, size in files)

    def __len__(self) -> int:
        return len(self._sizes)

    def _name(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for first in range(1, len(self._sizes) + 1, _DECODED_NAMES):
            for end in self._ends[first : first + _DECODED_NAMES].tolist():
                yield self._text[start:end].decode("utf-8", "surrogatepass")
                start = end

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, or None if it is absent. Lookups in sorted order are fastest."""
        number = self._next
        if number >= len(self) or self._name(number) != name:
            number = bisect_left(range(len(self)), name, key=self._name)
            if number == len(self) or self._name(number) != name:
                return None
        self._next = number + 1
        return self._sizes[number]


_SYSTEM = ("/proc/", "/sys/", "/dev/")
"""Folders of the operating system's own files, which a link must not lead to."""
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - may hold user files
ACCESS_ERRORS = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors that do not say whether the file exists."""
_FILE_SYSTEM_FOLDER = "lost+found"
"""Folder that a file system creates at its top level; only the administrator may read it."""


HIDDEN_FILE: Problem = (SELECTION, "hidden, or left behind by a system or a tool", "")
EMPTY_FOLDER: Problem = (SELECTION, "folder holds no files", "")
_LEFT_BEHIND = frozenset(
    (
        *("__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp"),
        *("@sharebin", "$recycle.bin", "system volume information", "recycler", "network trash folder"),
        *("temporary items", "_vti_cnf", "__pycache__", "thumbs.db", "desktop.ini"),
    )
)
"""Lower-case names of files that systems, network drives and tools create; they are not part of a data set."""


def is_hidden(path: str) -> bool:
    """Return whether a path has a part that tools leave behind: .git, .DS_Store, ._file, __MACOSX, @eaDir.

    >>> is_hidden("a/._b.jpg"), is_hidden("a/@eaDir/b.jpg"), is_hidden("a/b.jpg")
    (True, True, False)
    """
    return any(part.startswith(".") or part.lower() in _LEFT_BEHIND for part in path.split("/"))


def list_below(root: str) -> tuple[Mapping[str, int], dict[str, Problem]]:
    """List every file below a local folder; hidden files are among the faults.

    The function follows links and lists each folder once. If several paths lead to a folder, it takes the path
    without links, then the path with the fewest links, then the first in sorted order. So the result does not
    depend on the order in which the system lists a folder.

    Returns:
        The bytes of every file by relative path, sorted; 0 if it is not a regular file or is not accessible, which
        reading it reports. And (stage, reason, detail) of every folder whose files are missing or have another path.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    walk = _Walk()
    walk.list_all([("", root)])
    # Round by round, in order of the number of links in a path, so that the path with the fewest links comes first.
    while walk.links:
        links, walk.links = sorted(walk.links), []
        for path, full in links:
            if (fault := _link_fault(full)) is None:
                walk.list_all([(path, full)])
            else:
                walk.faults[path] = fault
    return walk.sizes.quickest(), dict(sorted(walk.faults.items()))


FILES_NEAR_TOP = 1000
"""A folder with more files than this is not searched for subfolders."""


def has_many_files(root: str, folder: str) -> bool:
    """Return whether more than `FILES_NEAR_TOP` files are directly in a local folder below the root."""
    with contextlib.suppress(OSError), scan_folder(_full(root, folder)) as entries:
        files = (entry for entry in entries if not entry.is_dir(follow_symlinks=False))
        return len(list(islice(files, FILES_NEAR_TOP + 1))) > FILES_NEAR_TOP
    return False


def _full(root: str, folder: str) -> str:
    return os.path.join(root, encode_name(folder)) if folder else root


def list_part(root: str, folder: str, *, deep: bool) -> PartialListing:
    """List the files below one folder, or only those directly in it, with the rules of `list_below`.

    Args:
        root: folder that paths are relative to.
        folder: path of the folder, relative to the root; "" is the root itself.
        deep: whether to list subfolders too.
    """
    walk = _Walk()
    inside = walk.list_one(folder, _full(root, folder))
    if deep:
        walk.list_all(inside)
    return PartialListing(
        files=walk.sizes.items(),
        folders=() if deep else tuple(path for path, _ in inside),
        faults=walk.faults,
        seen=tuple(walk.seen),
        has_links=bool(walk.links),
    )


def folder_fault(path: str, error: OSError) -> Problem:
    """Return the fault of a folder that cannot be listed."""
    stage = SELECTION if path == _FILE_SYSTEM_FOLDER else "read"
    return (stage, "folder cannot be listed", error.strerror or str(error))


@dataclass(frozen=True, kw_only=True)
class PartialListing:
    """Files below one folder of a source, or only those directly in it.

    Args:
        files: relative path and bytes of each file.
        folders: subfolders that were not listed.
        faults: (stage, reason, detail) of every folder whose files are missing or have another path.
        seen: device and inode of each listed folder, to detect folders that are listed twice.
        has_links: whether there are links to folders, which were not followed.
    """

    files: Iterable[tuple[str, int]]
    folders: tuple[str, ...] = ()
    faults: Mapping[str, Problem] = field(default_factory=dict)
    seen: tuple[tuple[int, int], ...] = ()
    has_links: bool = False


@dataclass(kw_only=True)
class _Walk:
    """State of a listing: `seen` has the path of each folder by device and inode, `links` are still to follow."""

    sizes: FileSizes = field(default_factory=FileSizes)
    faults: dict[str, Problem] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[tuple[int, int], str] = field(default_factory=dict)

    def list_all(self, folders: Sequence[tuple[str, str]]) -> None:
        """List everything below folders; collect links instead of following them."""
        remaining = list(reversed(folders))
        while remaining:
            remaining += reversed(self.list_one(*remaining.pop()))

    def list_one(self, path: str, full: str) -> list[tuple[str, str]]:
        """List the files directly in a folder, and return its subfolders in sorted order."""
        inside: list[tuple[str, str]] = []
        files: list[tuple[str, int]] = []
        links = len(self.links)
        try:
            if self._is_seen(path, full):
                return []
            with scan_folder(full) as entries:
                for entry in entries:
                    self._add_entry(path, entry, files, inside)
        except OSError as error:
            if not path:
                raise
            # What was listed before the fault is kept: the fault says that the rest is missing.
            self.faults[path] = folder_fault(path, error)
        if files:
            self.sizes.add_folder(path, files)
        elif path and not inside and len(self.links) == links:
            self.faults.setdefault(path, EMPTY_FOLDER)
        return sorted(inside)

    def _is_seen(self, path: str, full: str) -> bool:
        """Return whether the folder was listed under another path, which is then its fault."""
        found = os.stat(full)
        first = self.seen.setdefault((found.st_dev, found.st_ino), path)
        if first != path:
            self.faults[path] = (SELECTION, "folder is listed under another path", first or ".")
        return first != path

    def _add_entry(
        self,
        folder: str,
        entry: os.DirEntry[str],
        files: list[tuple[str, int]],
        inside: list[tuple[str, str]],
    ) -> None:
        name = decode_name(entry.name)
        if name == owned_files.LIST:
            return  # halofeed's own list of an exported folder
        if is_hidden(name):
            self.faults[_joined(folder, name)] = HIDDEN_FILE
            return
        may_be_folder = True
        try:
            # Known from the listing; `stat` asks the system once more, which is slow on network drives.
            if entry.is_dir(follow_symlinks=False):
                inside.append((_joined(folder, name), entry.path))
                return
            may_be_folder = entry.is_symlink()
            found = entry.stat()
        except OSError as error:
            # A broken link, or one to a folder that nobody may enter. Reading it as a file reports the reason.
            files.append((name, 0))
            if may_be_folder and error.errno in ACCESS_ERRORS:
                detail = error.strerror or str(error)
                self.faults[_joined(folder, name)] = ("read", "entry cannot be looked at", detail)
            return
        if stat.S_ISDIR(found.st_mode):
            self.links.append((_joined(folder, name), entry.path))
        else:
            files.append((name, found.st_size if stat.S_ISREG(found.st_mode) else 0))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _link_fault(link: str) -> Problem | None:
    """Return the fault of a link to one of its parent folders or to the system's own files, else None."""
    target, above = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    # A listing through it would not end.
    if os.path.commonpath([target, above]) == target:
        return (SELECTION, "link to a folder in which it lies", "")
    system = next((start for start in _SYSTEM if f"{target}/".startswith(start)), None)
    if system is not None and not f"{target}/".startswith(_SHARED_MEMORY):
        return (SELECTION, "link to the system's own files", system)
    return None
