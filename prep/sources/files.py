"""Source files: the protocol through which prep reads a folder, for local folders and for stores."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from halofeed.prep.sources.array_records import is_array_record, read_in_record
from halofeed.prep.sources.members import Member, parse_member
from halofeed.prep.sources.parquet import RangeFiles, read_cell
from halofeed.prep.sources.walk import (
    ACCESS_ERRORS,
    FILES_NEAR_TOP,
    FileSizes,
    PartialListing,
    folder_fault,
    has_many_files,
    is_hidden,
    list_below,
    list_part,
)
from halofeed.storage.atomic_files import decode_name, encode_name, file_type, open_regular
from halofeed.storage.local import LocalDisk
from halofeed.storage.paths import names_in, scan_folder, walk_folders
from halofeed.system.addresses import is_remote
from halofeed.system.errors import Problem, SourceError, UsageError
from halofeed.system.memory import machine_memory
from halofeed.system.wording import nearest_name

if TYPE_CHECKING:
    from halofeed.storage.base import Entry, Files

UNREADABLE_FILE = "file cannot be read"
"""Reason of the `SourceError` for a file that exists but is not readable."""
CHANGED_FILE = "file has changed since it was listed"
"""Reason of the `SourceError` for a file whose content differs from what was read before."""
Stamp = tuple[int, ...]
"""Inode, bytes, and the times of the last change of content and inode in ns; or the version in a store."""
_SETTLED_NS = 2_000_000_000
"""Time stamps have steps of 2 s on FAT and a few ms elsewhere; two changes within one step are indistinguishable."""


class SourceStream(Protocol):
    """Stream that is read in order."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` next bytes; b"" at the end."""

    def close(self) -> None:
        """Close the stream."""


class SourceFiles(Protocol):
    """Folder of source files, local or remote; every path is relative to it.

    The path of a member (`halofeed.prep.sources.members`) has the size, the bytes and the head of the member, and the
    stamp and the refusal of its container.
    """

    @property
    def root(self) -> str:
        """Folder as the user wrote it; for messages only."""

    def sizes(self) -> Mapping[str, int]:
        """Return every file below the folder: relative path with '/' to size in bytes, in sorted order.

        A file that is not regular or not accessible has 0 bytes; reading it reports the reason.
        """

    def faults(self) -> Mapping[str, Problem]:
        """Return the reasons, by relative path, why the listings so far lack files."""

    def size(self, path: str) -> int | None:
        """Return the bytes of one file without listing the folder; None if there is no such file."""

    def stamp(self, path: str) -> Stamp | None:
        """Return a value that changes when the file changes; None if there is no file or no such value."""

    def refusal(self, path: str) -> str:
        """Return the error that hides whether this path exists; "" if there is no such error."""

    def files_in(self, folder: str) -> list[str]:
        """Return the files directly in one folder ("" is the root), in sorted order."""

    def has_folder(self, folder: str) -> bool:
        """Return whether there is a folder at this path."""

    def read(self, path: str) -> bytes:
        """Return the bytes of one file; SourceError of stage `read` if that fails."""

    def open(self, path: str) -> SourceStream:
        """Return a stream of one file; SourceError as in `read`, and OSError while the stream is read."""

    def head(self, path: str, size: int) -> bytes:
        """Return the first bytes of one file, at most `size`; SourceError as in `read`."""

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of one file from `start` to `stop`, fewer at its end; SourceError as in `read`."""

    def open_ranges(self, path: str) -> SourceRanges:
        """Return a reader of ranges of one file, which stays open; SourceError as in `read`."""


class RangesOfFile(Protocol):
    """Ranges of one file, as `halofeed.storage.base.FileRanges` reads them."""

    size: int | None

    def read(self, start: int, stop: int) -> bytes: ...
    def is_unchanged(self) -> bool: ...
    def close(self) -> None: ...


class SourceRanges:
    """Reader of ranges of one source file, from several threads.

    Args:
        ranges: the file as storage reads it.
        size: bytes of the file, where the store does not tell.

    Attributes:
        size: bytes of the file.
    """

    def __init__(self, ranges: RangesOfFile, size: int | None = None) -> None:
        self._ranges = ranges
        found = size if ranges.size is None else ranges.size
        if found is None:
            raise SourceError("read", UNREADABLE_FILE, "its size is unknown; copy it to a local folder")
        self.size = found

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the end of the file; SourceError if that fails."""
        try:
            return self._ranges.read(start, stop)
        except (OSError, ValueError, MemoryError) as error:
            raise _unread(error) from error

    def check_unchanged(self) -> None:
        """Raise SourceError if the file has changed since it was opened."""
        try:
            is_unchanged = self._ranges.is_unchanged()
        except (OSError, ValueError) as error:
            raise _unread(error) from error
        if not is_unchanged:
            raise SourceError("read", CHANGED_FILE, "it was written while it was read")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._ranges.close()


class _BytesInMemory:
    """Ranges of bytes that were read before; see `halofeed.storage.base.FileRanges`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size: int | None = len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def is_unchanged(self) -> bool:
        return True

    def close(self) -> None:
        self._data = b""


def read_member(files: RangeFiles, member: Member, size: int | None = None) -> bytes:
    """Return the bytes of a member, or its first `size` bytes.

    Raises:
        SourceError: the container cannot be read, or has changed since it was listed.
    """
    if member.column is not None and is_array_record(member.container):
        data = read_in_record(files, member.container, member.start, member.column, member.size)
    elif member.column is not None:
        data = read_cell(files, member.container, member.start, member.column)
        if not member.matches(data):
            data = read_cell(files, member.container, member.start, member.column, anew=True)
    else:
        length = member.size if size is None else min(size, member.size)
        data = files.read_range(member.container, member.start, member.start + length)
        if length < member.size:
            return data
    if not member.matches(data):
        raise SourceError("read", CHANGED_FILE, f"{member.container} holds other bytes at {member.start:,}")
    return data[:size]


POINTERS = {
    "a Git LFS pointer; run `git lfs pull`": b"version https://git-lfs",
    "a git-annex pointer; run `git annex get .`": b"/annex/objects/",
    "a page of a web server; log in there, and download the file itself": b"<!doctype html",
    "a page of a web server; download the file itself": b"<html",
}
"""Files that stand for others which were not downloaded: what they are, and their first bytes."""


def pointer_kind(start: bytes) -> str | None:
    """Return what stands in place of a file that was not downloaded; None for any other file.

    >>> pointer_kind(b"version https://git-lfs.github.com/spec/v1")
    'a Git LFS pointer; run `git lfs pull`'
    """
    folded = start.lstrip().lower()
    return next((kind for kind, begin in POINTERS.items() if folded.startswith(begin)), None)


def settled_stamp(files: SourceFiles, path: str) -> Stamp | None:
    """Return the stamp of a file; None if the file changed so recently that a new change may keep the stamp."""
    stamp, latest = files.stamp(path), time.time_ns() - _SETTLED_NS
    return stamp if stamp is not None and max(stamp[2:], default=0) < latest else None


def path_below(root: str, written: str) -> str | None:
    """Return the path below the root of an absolute path; None if the path is relative or outside the root.

    >>> path_below("/data/images", "/data/images/a/b.jpg"), path_below("/data", "a.jpg"), path_below("/", "/a.jpg")
    ('a/b.jpg', None, 'a.jpg')
    """
    if is_remote(root) or is_remote(written):
        start = root.rstrip("/") + "/"
        return written.removeprefix(start) if written.startswith(start) else None
    if not os.path.isabs(written):
        return None
    path, above = os.path.normpath(written), absolute_path(root)
    folder, name = os.path.split(path)
    # Tried as written, with the links of the root resolved, and with those of the file's folder too. A link to a
    # file stays a name below the root.
    for start, file in (
        (above, path),
        (_real(above), path),
        (_real(above), os.path.join(_real(folder), name)),
    ):
        if file.startswith(start.rstrip(os.sep) + os.sep):
            return file.removeprefix(start).lstrip(os.sep).replace(os.sep, "/")
    return None


def absolute_path(root: str) -> str:
    """Return the absolute path of a folder, decoded as in `halofeed.storage.atomic_files`."""
    return decode_name(os.path.abspath(root))


def path_exists(path: str, *, regular: bool = False) -> bool:
    """Return whether a file or folder (or a regular file) exists; the path is decoded like all paths here."""
    try:
        return (os.path.isfile if regular else os.path.exists)(encode_name(path))
    except UnicodeEncodeError:
        return False


def check_source_path(flag: str, path: str) -> bool:
    """Return whether a path that the user typed is a regular file; False for a folder.

    Raises:
        UsageError: the path does not exist, is not accessible, or is a pipe, a device or a socket.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            cause = f"no such folder or file; {meant_path(path)}"
        raise UsageError(f"{flag} {path}: {cause}") from error
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"{flag} {path}: it is {file_type(found.st_mode)}; expected a folder or a regular file: write its "
            "output to a file first"
        )
    return stat.S_ISREG(found.st_mode)


def meant_path(path: str) -> str:
    """Return what to write in place of a local path that does not exist, as a clause."""
    above, name = os.path.split(os.path.normpath(path))
    while above and not os.path.isdir(above):
        above, name = os.path.split(above)
    # The shell leaves a pattern as it is if nothing matches it.
    if any(character in name for character in "*?["):
        return f"{name} is taken as it is written: name the folder above, {above or '.'}"
    with contextlib.suppress(OSError):
        if near := nearest_name(name, names_in(above or ".")):
            return f"did you mean {os.path.join(above, near)}?"
    return (
        f"{above or 'the working directory'} holds no {name}; name an existing path, and download a data set from a "
        "hub first"
    )


def path_from(folder: str, written: str, root: str) -> str:
    """Return the path, relative to the root, of a file that is written relative to another local folder.

    The result begins with ".." if the file is outside the root. If the folder was named through a symbolic link,
    `..` means the parent of the target, as in other programs. If no such file exists, it means the parent of the link.

    >>> path_from("/data/tables", "../images/a.jpg", "/data/images")
    'a.jpg'
    >>> path_from("/data/tables", "../b.jpg", "/data/images")
    '../b.jpg'
    """
    named, above = absolute_path(folder), absolute_path(root)
    candidates = [os.path.normpath(os.path.join(start, written)) for start in (_real(named), named)]
    found = [below for path in candidates if (below := path_below(root, path)) is not None]
    existing = [below for below in found if path_exists(os.path.join(above, below))]
    outside = os.path.relpath(candidates[0], _real(above)).replace(os.sep, "/")
    return next(iter([*existing, *found]), outside)


BELOW_IMAGES_FOLDER = "below the images' folder"
"""Part of the message about a missing file. It omits the folder, which is not part of the data set."""


def outside_message(written: str) -> str:
    """Return the message about a file that exists outside the images' folder."""
    return f"{written!r} is not {BELOW_IMAGES_FOLDER}; use --images with a folder that holds both"


def unlisted_folders(files: SourceFiles) -> list[str]:
    """Return the folders whose listing failed, in sorted order; their content is unknown."""
    return sorted(path for path, (stage, _, _) in files.faults().items() if stage == "read")


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """Return an absolute folder without symbolic links; cached, because each file of a table needs it."""
    try:
        return decode_name(os.path.realpath(encode_name(folder)))
    except ValueError:  # a NUL character or a lone surrogate: no folder has such a name
        return folder


class _StoredFiles:
    """Reading of source files, and of members of container files, by `halofeed.storage`."""

    root: str

    def _files(self) -> Files:
        """Return the files below the root in this process; each process has its own client of a store."""
        raise NotImplementedError

    def size(self, path: str) -> int | None:
        raise NotImplementedError

    def stamp(self, path: str) -> Stamp | None:
        return None

    def read(self, path: str) -> bytes:
        return self._start(path, None)

    def head(self, path: str, size: int | None) -> bytes:
        return self._start(path, size)

    def _start(self, path: str, size: int | None) -> bytes:
        if (member := parse_member(path)) is not None:
            return read_member(self, member, size)
        return self.read_range(path, 0, size)

    def read_range(self, path: str, start: int, stop: int | None) -> bytes:
        try:
            return self._files().read(self._stored(path), start, stop)
        except (OSError, ValueError, MemoryError) as error:
            raise _unread(error) from error

    def open(self, path: str) -> SourceStream:
        if (member := parse_member(path)) is not None:
            return io.BytesIO(read_member(self, member))
        stream: SourceStream = self._files().open(path)
        return stream

    def open_ranges(self, path: str) -> SourceRanges:
        if (member := parse_member(path)) is not None:
            return SourceRanges(_BytesInMemory(read_member(self, member)))
        try:
            return SourceRanges(self._files().open_ranges(self._stored(path)), self.size(path))
        except (OSError, ValueError) as error:
            raise _unread(error) from error

    def _stored(self, path: str) -> str:
        """Return the name by which storage knows a file."""
        return path

    def _member_size(self, member: Member) -> int | None:
        return None if self.size(member.container) is None else member.size


class LocalFiles(_StoredFiles):
    """Files below a local folder. Symbolic links are followed; only regular files are read.

    Args:
        root: folder, as Python received it from the system. Paths below it are decoded as in
            `halofeed.storage.atomic_files`.

    Raises:
        UsageError: there is no such folder, or it is not accessible.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)
        if not os.path.isdir(self.root):
            raise UsageError(f"{self.root}: {_why_no_folder(self.root)}")
        self._disk = LocalDisk().at(self.root)
        self._sizes: Mapping[str, int] | None = None
        self._known: dict[str, int] = {}
        self._faults: dict[str, Problem] = {}

    def _files(self) -> LocalDisk:
        return self._disk

    def _stored(self, path: str) -> str:
        return encode_name(path)

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            with self._listed():
                self._sizes, faults = list_below(self.root)
            self._faults |= faults
        return self._sizes

    @contextmanager
    def _listed(self) -> Iterator[None]:
        # Users of tables with absolute paths may name the root.
        if os.path.realpath(self.root) == "/":
            raise UsageError(
                f"{self.root}: every file of this machine would be listed; name the folder that holds the source "
                "files; if annotations have the complete path of each file, leave --images out"
            )
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"{self.root}: cannot be listed: {error.strerror or error}; allow yourself to read it "
                "(chmod u+rx), or name another folder"
            ) from error

    def faults(self) -> Mapping[str, Problem]:
        return self._faults

    def size(self, path: str) -> int | None:
        if (member := parse_member(path)) is not None:
            return self._member_size(member)
        if path in (known := self._known if self._sizes is None else self._sizes):
            return known[path]
        try:
            return _size_of(self._full(path))
        except ValueError:  # a NUL character or a lone surrogate: no file has such a name
            return None

    def stamp(self, path: str) -> Stamp | None:
        try:
            found = os.stat(self._full(path))
        except (OSError, ValueError):
            return None
        # The inode changes if a file is replaced by one with the same size and times, as `cp -p` and `mv` do.
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def refusal(self, path: str) -> str:
        try:
            os.stat(self._full(path))
        except OSError as error:
            # Without access to its folder, it is unknown whether the path exists.
            return os.strerror(error.errno) if error.errno in ACCESS_ERRORS else ""
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
            with scan_folder(self._full(folder)) as entries:
                found = [start + decode_name(entry.name) for entry in entries if not _is_folder(entry)]
        except OSError as error:
            # Layouts ask for folders that may be absent.
            if error.errno not in _NO_SUCH_FOLDER:
                self._faults[folder or "."] = folder_fault(folder, error)
            return []
        except ValueError:
            return []
        return sorted(path for path in found if not is_hidden(path))

    def open(self, path: str) -> SourceStream:
        if parse_member(path) is not None:
            return super().open(path)
        try:
            return open_regular(self._full(path), machine_memory())
        except (OSError, ValueError) as error:
            raise _unread(error) from error

    def adopt(self, sizes: Mapping[str, int], faults: Mapping[str, Problem]) -> None:
        """Add the listing of another process; `size` then answers for these files without a system call."""
        self._known.update(sizes)
        self._faults.update(faults)

    def lists_within(self, count: int) -> bool:
        """Return whether there are at most `count` files; list them only then."""
        if self._sizes is None:
            found = 0
            # Counting is faster than a listing, which follows links and reads sizes.
            with self._listed():
                for _, _, names in walk_folders(self.root):
                    found += len(names)
                    if found > count:
                        return False
        return len(self.sizes()) <= count

    def list_folder(self, folder: str) -> PartialListing | None:
        """List the files directly in a folder; None if there are very many, or if `below` takes the same time."""
        with self._listed():
            return None if has_many_files(self.root, folder) else list_part(self.root, folder, deep=False)

    def below(self, folder: str) -> PartialListing:
        """List the files below a folder, and nothing else; links to folders are not followed."""
        with self._listed():
            return list_part(self.root, folder, deep=True)

    def _full(self, path: str) -> str:
        member = parse_member(path)
        return os.path.join(self.root, encode_name(path if member is None else member.container))


_NO_SUCH_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def _why_no_folder(path: str) -> str:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:
        return f"{error.strerror or error}; name a folder that you may read"
    if os.path.exists(path):
        return "it is a file; name the folder that holds the source files, and unpack an archive first"
    return f"no such folder; {meant_path(path)}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _unread(error: OSError | ValueError | MemoryError) -> SourceError:
    reason = error.strerror if isinstance(error, OSError) else None
    # A store's error has the address alone.
    if isinstance(error, FileNotFoundError) and reason is None:
        reason = "no such file"
    if isinstance(error, MemoryError):
        reason = "there is not enough memory to hold it"
    return SourceError("read", UNREADABLE_FILE, reason or str(error))


def _size_of(file: str) -> int | None:
    """Return the bytes of a file; 0 for a broken link and for a file that is not regular; None if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return 0 if os.path.islink(file) else None
    if stat.S_ISDIR(found.st_mode):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


class RemoteFiles(_StoredFiles):
    """Source files below an address; see `LocalFiles` for the methods.

    Attributes:
        stamps: digest of all versions once all files were listed; "" before.
    """

    stamps = ""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._listing = FileSizes()
        self._sizes: Mapping[str, int] | None = None
        self._adopted_sizes: dict[str, int] = {}

    def _files(self) -> Files:
        # Only a source at an address imports the stores, which takes 5 ms.
        from halofeed.storage.choose import store_of

        return store_of(self.root)

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            self._set_sizes(self._all())
            assert self._sizes is not None
        return self._sizes

    def lists_within(self, count: int) -> bool:
        """Return whether there are at most `count` files."""
        if self._sizes is None:
            found = list(islice(self._all(), count + 1))
            if len(found) > count:
                return False
            self._set_sizes(found)
        return len(self.sizes()) <= count

    def list_folder(self, folder: str) -> PartialListing | None:
        """Return the files and folders directly in a folder; None for too many, or if the store lists recursively."""
        if not (stored := self._files()).lists_folders:
            return None
        folders: list[str] = []
        files: dict[str, int] = {}
        for path, size, _ in _visible(stored.entries(folder, deep=False)):
            if size is None:
                folders.append(path)
            else:
                files[path] = size
            if len(files) > FILES_NEAR_TOP:
                return None
        return PartialListing(files=files.items(), folders=tuple(folders))

    def below(self, folder: str) -> PartialListing:
        """Return the files below a folder, listed during the iteration."""
        return PartialListing(files=_sizes_of(self._files().entries(folder)))

    def _all(self) -> Iterator[tuple[str, int]]:
        """Yield every file, and set `stamps` at the end."""
        total = 0

        def listed() -> Iterator[Entry]:
            nonlocal total
            for entry in self._files().entries():
                text = f"{self.root}/{entry.path} {entry.size} {entry.version}"
                digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
                # A sum, because not every store lists in the same order each time.
                total = (total + int.from_bytes(digest, "big")) % 2**256
                yield entry

        yield from _sizes_of(listed())
        self.stamps = f"{total:064x}"

    def _set_sizes(self, files: Iterable[tuple[str, int]]) -> None:
        self._listing.add_files(files)
        # A store has no folders, so a wrong address looks like an empty one.
        if not self._listing:
            endpoint = self._files().endpoint
            where = f" (asked at {endpoint})" if endpoint else ""
            raise UsageError(
                f"{self.root}: no files there{where}; name the folder that holds the source files"
            )
        self._sizes = self._listing.quickest()

    def faults(self) -> Mapping[str, Problem]:
        return {}

    def size(self, path: str) -> int | None:
        if (member := parse_member(path)) is not None:
            return self._member_size(member)
        return self._adopted_sizes[path] if path in self._adopted_sizes else self.sizes().get(path)

    def refusal(self, path: str) -> str:
        return ""

    def files_in(self, folder: str) -> list[str]:
        self.sizes()
        return self._listing.in_folder(folder)

    def has_folder(self, folder: str) -> bool:
        return folder == "." or any(path.startswith(f"{folder}/") for path in self.sizes())

    def adopt(self, sizes: Mapping[str, int], faults: Mapping[str, Problem]) -> None:
        """Take over sizes that another process listed."""
        self._adopted_sizes.update(sizes)


def _visible(entries: Iterable[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if not is_hidden(entry.path))


def _sizes_of(entries: Iterable[Entry]) -> Iterator[tuple[str, int]]:
    """Yield path and bytes of the files that are not hidden."""
    return ((path, size) for path, size, _ in _visible(entries) if size is not None)


def source_files(root: str) -> LocalFiles | RemoteFiles:
    """Return the files below a local folder or an address."""
    return RemoteFiles(root) if is_remote(root) else LocalFiles(root)
