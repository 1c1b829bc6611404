"""Where source files come from: the one protocol through which prep sees a folder, and its local form."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from halofeed.errors import Problem, SourceError, UsageError
from halofeed.prep.sources.walk import REFUSED, Part, holds_many, is_hidden, list_below, list_part, unlisted
from halofeed.system.atomic_files import file_type, open_regular, read_regular, system_name, text_of_name
from halofeed.system.memory import machine_memory

UNREAD = "file cannot be read"
"""The reason of `SourceError` where there is a file, and its bytes are not to be had."""
CHANGED = "file has changed since it was listed"
"""The reason of `SourceError` where what was read of a file before is not what it holds now."""
Stamp = tuple[int, ...]
"""Inode, bytes, and the times of the last change of the content and of the inode in ns; or a store's version."""
_SETTLED_NS = 2_000_000_000
"""Times on FAT count in steps of 2 s, elsewhere in steps of a few ms: a second change within one leaves no trace."""


class ByteStream(Protocol):
    """What is read in order, piece by piece."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, at most so many; none at the end."""

    def close(self) -> None:
        """Let go of it."""


class SourceFiles(Protocol):
    """A folder of source files, local or remote."""

    @property
    def root(self) -> str:
        """The folder, as the user named it; for messages only."""

    def sizes(self) -> Mapping[str, int]:
        """Every file below the folder: relative path with '/' to size in bytes, in sorted order.

        What is no regular file, or cannot be looked at, has 0 bytes: reading it says why it cannot be read.
        """

    def faults(self) -> Mapping[str, Problem]:
        """What the folder's listings, as far as they were asked for, do not hold: by relative path the reason."""

    def size(self, path: str) -> int | None:
        """The bytes of one file, by its relative path, without going through the folder; None: no such file."""

    def stamp(self, path: str) -> Stamp | None:
        """What is another once a file has changed; None where there is none, or nobody knows."""

    def refusal(self, path: str) -> str:
        """Why it cannot be told whether there is a file of this relative path; "" where it can."""

    def files_in(self, folder: str) -> list[str]:
        """The files straight in one folder below the root ("" is the root), in sorted order, by relative path."""

    def has_folder(self, folder: str) -> bool:
        """Whether there is a folder of this relative path."""

    def read(self, path: str) -> bytes:
        """The bytes of one file, by its relative path; SourceError of stage `read` if that fails."""

    def open(self, path: str) -> ByteStream:
        """One file as a stream that does not hold it; SourceError as `read`, and OSError while it is read."""

    def head(self, path: str, size: int) -> bytes:
        """The first bytes of one file, all of them where it is shorter; SourceError as `read`."""


def settled_stamp(files: SourceFiles, path: str) -> Stamp | None:
    """A file's stamp; None where the file may change now and keep it, as it was changed a moment ago."""
    stamp, latest = files.stamp(path), time.time_ns() - _SETTLED_NS
    return stamp if stamp is not None and max(stamp[2:], default=0) < latest else None


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
    path, above = os.path.normpath(written), whole_path(root)
    folder, name = os.path.split(path)
    for start, file in (
        (above, path),
        (_real(above), path),
        (_real(above), os.path.join(_real(folder), name)),
    ):
        if file.startswith(start.rstrip(os.sep) + os.sep):
            return file.removeprefix(start).lstrip(os.sep).replace(os.sep, "/")
    return None


def whole_path(root: str) -> str:
    """The absolute path of a folder as the text of names."""
    return text_of_name(os.path.abspath(root))


def is_there(path: str, *, regular: bool = False) -> bool:
    """Whether there is a file or a folder, or a regular file, of this path, in the text of names."""
    try:
        return (os.path.isfile if regular else os.path.exists)(system_name(path))
    except UnicodeEncodeError:
        return False


def check_source(flag: str, path: str) -> bool:
    """Whether a path that a user typed is a regular file; False where it is a folder.

    Raises:
        UsageError: there is none, it may not be looked at, or it is a pipe, a device or a socket.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            cause = "no such folder or file"
        raise UsageError(f"{flag} {path}: {cause}") from error
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"{flag} {path}: it is {file_type(found.st_mode)}; expected a folder or a regular file: write what it "
            "gives to a file first"
        )
    return stat.S_ISREG(found.st_mode)


def path_from(folder: str, written: str, root: str) -> str:
    """The path from the root of a file that is written from another local folder; outside of the root it begins with ..

    Where a folder was named through a symbolic link, `..` leads to what is above the folder itself, as for every other
    program, and only else to what is above the link.

    >>> path_from("/data/tables", "../images/a.jpg", "/data/images")
    'a.jpg'
    >>> path_from("/data/tables", "../b.jpg", "/data/images")
    '../b.jpg'
    """
    named, above = whole_path(folder), whole_path(root)
    ways = [os.path.normpath(os.path.join(start, written)) for start in (_real(named), named)]
    found = [below for way in ways if (below := path_below(root, way)) is not None]
    there = [below for below in found if is_there(os.path.join(above, below))]
    outside = os.path.relpath(ways[0], _real(above)).replace(os.sep, "/")
    return next(iter([*there, *found]), outside)


BELOW = "below the images' folder"
"""What is said of a file that is not there. Where that folder lies is no part of a data set."""


def lies_outside(written: str) -> str:
    """What to say of a file that is there, but not below the images' folder."""
    return f"{written!r} is not {BELOW}; say --images with a folder that holds both"


def unlisted_folders(files: SourceFiles) -> list[str]:
    """The folders that were to be listed and could not be, in sorted order: nobody knows what lies in them."""
    return sorted(path for path, (stage, _, _) in files.faults().items() if stage == "read")


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """An absolute folder without symbolic links; it is asked for with every file of a table."""
    try:
        return text_of_name(os.path.realpath(system_name(folder)))
    except ValueError:  # a NUL character, or half a character: no folder is called so
        return folder


class LocalFiles:
    """The files below a folder of this machine; symbolic links are followed, and regular files alone are read.

    Args:
        root: the folder, as Python got it from the system. Paths below it are the text of names, see
            `halofeed.system.atomic_files`.

    Raises:
        UsageError: there is no such folder, or it may not be looked at.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root}: {_why_no_folder(self.root)}")
        self._sizes: Mapping[str, int] | None = None
        self._known: dict[str, int] = {}
        self._faults: dict[str, Problem] = {}

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            with self._listed():
                listing = list_below(self.root)
            self._sizes = listing.sizes
            self._faults |= listing.faults
        return self._sizes

    @contextmanager
    def _listed(self) -> Iterator[None]:
        if os.path.realpath(self.root) == "/":
            raise UsageError(
                f"{self.root}: every file of this machine would be listed; name the folder that holds the source "
                "files; where annotations give the whole path of each file, leave --images out"
            )
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"{self.root}: cannot be listed: {error.strerror or error}; give yourself the right to read it "
                "(chmod u+rx), or name another folder"
            ) from error

    def faults(self) -> Mapping[str, Problem]:
        return self._faults

    def size(self, path: str) -> int | None:
        if path in (known := self._known if self._sizes is None else self._sizes):
            return known[path]
        try:
            return _size_of(self._full(path))
        except ValueError:  # a NUL character, or half a character: no file is called so
            return None

    def stamp(self, path: str) -> Stamp | None:
        try:
            found = os.stat(self._full(path))
        except (OSError, ValueError):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def refusal(self, path: str) -> str:
        try:
            os.stat(self._full(path))
        except OSError as error:
            return os.strerror(error.errno) if error.errno in REFUSED else ""
        except ValueError:
            return ""
        return ""

    def has_folder(self, folder: str) -> bool:
        try:
            return os.path.isdir(self._full(folder))
        except ValueError:
            return False

    def files_in(self, folder: str) -> list[str]:
        start = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._full(folder)) as entries:
                found = [start + text_of_name(entry.name) for entry in entries if not _is_folder(entry)]
        except OSError as error:
            if error.errno not in _NO_SUCH_FOLDER:
                self._faults[folder or "."] = unlisted(folder, error)
            return []
        except ValueError:
            return []
        return sorted(path for path in found if not is_hidden(path))

    def read(self, path: str) -> bytes:
        try:
            return read_regular(self._full(path), machine_memory())
        except (OSError, ValueError, MemoryError) as error:
            raise _unread(error) from error

    def open(self, path: str) -> ByteStream:
        try:
            return open_regular(self._full(path), machine_memory())
        except (OSError, ValueError) as error:
            raise _unread(error) from error

    def head(self, path: str, size: int) -> bytes:
        try:
            with open_regular(self._full(path)) as stream:
                return stream.read(size) or b""
        except (OSError, ValueError, MemoryError) as error:
            raise _unread(error) from error

    def adopt(self, sizes: Mapping[str, int], faults: Mapping[str, Problem]) -> None:
        """Take over what another process found of the folder; `size` of these files asks nobody again."""
        self._known.update(sizes)
        self._faults.update(faults)

    def lists_within(self, count: int) -> bool:
        """Whether there are at most so many files; where there are more, they are not listed."""
        if self._sizes is None:
            found = 0
            with self._listed():
                for _, _, names in os.walk(self.root):
                    found += len(names)
                    if found > count:
                        return False
        return len(self.sizes()) <= count

    def straight(self, folder: str) -> Part | None:
        """What lies straight in a folder; None where that is very many files, or takes as long as `below`."""
        with self._listed():
            return None if holds_many(self.root, folder) else list_part(self.root, folder, deep=False)

    def below(self, folder: str) -> Part:
        """What lies below a folder, without a look at the rest; links to folders are not followed."""
        with self._listed():
            return list_part(self.root, folder, deep=True)

    def _full(self, path: str) -> str:
        return os.path.join(self.root, system_name(path))


_NO_SUCH_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def _why_no_folder(path: str) -> str:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:
        return f"{error.strerror or error}; name a folder that you may read"
    return "no such folder; name the folder that holds the source files"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _unread(error: OSError | ValueError | MemoryError) -> SourceError:
    reason = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        reason = "there is not enough memory to hold it"
    return SourceError("read", UNREAD, reason or str(error))


def _size_of(file: str) -> int | None:
    """The bytes of a file; 0 of a link that leads nowhere, and of what is no regular file; None where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return 0 if os.path.islink(file) else None
    if stat.S_ISDIR(found.st_mode):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
