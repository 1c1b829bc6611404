"""What lies below a folder: every file once, and each folder that was not gone through with its reason."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from halofeed.prep.sources.sizes import Sizes
from halofeed.schemas.errors import Problem
from halofeed.schemas.file_names import system_name, text_of_name
from halofeed.schemas.layout import SELECTION

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
