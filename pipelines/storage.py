"""Files of a conversion: source folders and the output folder, on local disk or in a store."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from apache_beam.io.filesystems import FileSystems

from halofeed.errors import JobError, MissingExtraError, Problem, SourceError, UsageError, install_command
from halofeed.pipelines.direct_file import DirectFile
from halofeed.pipelines.lease import check_holder
from halofeed.pipelines.objects.base import ChangedError, ObjectReader, ObjectWriter
from halofeed.pipelines.objects.choose import store_of
from halofeed.prep.sources.files import LocalFiles, SourceStream, Stamp, read_member
from halofeed.prep.sources.members import parse_member
from halofeed.prep.sources.walk import FILES_NEAR_TOP, FileSizes, PartialListing, is_hidden
from halofeed.schemas.files import MANIFEST, TEMPORARY_FOLDER, UNCOMMITTED_MANIFEST, is_temporary_name
from halofeed.system import owned_files
from halofeed.system.atomic_files import fsync_paths
from halofeed.system.resource_errors import FIXES


def is_remote(path: str) -> bool:
    """Return whether a path is an address such as gs://, s3:// or hdfs://."""
    return "://" in path


def for_workers(path: str) -> str:
    """Return a path that is valid in every working directory."""
    return path if is_remote(path) else os.path.abspath(path)


_EXTRAS = {"gs": ("gcp", "google.cloud.storage"), "s3": ("aws", "boto3")}


def check_reachable(flag: str, path: str) -> None:
    """Refuse an address whose scheme Beam does not know, or whose library is not installed.

    Raises:
        UsageError: names the known schemes, or the missing extra.
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return
    if scheme == "file":
        raise UsageError(f"{flag} {path}: expected a path, got an address; write {flag} {rest}")
    if scheme in ("http", "https"):
        raise UsageError(
            f"{flag} {path}: a conversion uses no web addresses; download the files and name their folder, or name "
            "a bucket as gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
        )
    if rest.startswith("/") and scheme in _EXTRAS:
        raise UsageError(f"{flag} {path}: names no bucket; write {scheme}://BUCKET/{rest.strip('/')}")
    extra, module = _EXTRAS.get(scheme, ("", ""))
    if module and not _is_installed(module):
        raise MissingExtraError(
            f"{flag} {path}: {module} is not installed, which {scheme}:// needs; {install_command(extra)}"
        )
    try:
        FileSystems.get_filesystem(path)
    except ValueError as error:
        raise UsageError(
            f"{flag} {path}: {scheme}:// is an unknown file system; expected a local path, or one of "
            f"{', '.join(f'{known}://' for known in _EXTRAS)}, hdfs://"
        ) from error


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's package
        return False


_Size = TypeVar("_Size", int, int | None)


class RemoteFiles:
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
        listed = store_of(self.root).list_dir(f"{self.root}/{_start(folder)}")
        if listed is None:
            return None
        folders: list[str] = []
        files: dict[str, int] = {}
        for path, size in self._visible(listed):
            if size is None:
                folders.append(path.rstrip("/"))
            elif not path.endswith("/"):
                files[path] = size
            if len(files) > FILES_NEAR_TOP:
                return None
        return PartialListing(files=files.items(), folders=tuple(folders))

    def below(self, folder: str) -> PartialListing:
        """Return the files below a folder, listed during the iteration."""
        return PartialListing(files=self._below(_start(folder)))

    def _all(self) -> Iterator[tuple[str, int]]:
        """Yield every file, and set `stamps` at the end."""
        total = 0

        def listed() -> Iterator[tuple[str, int]]:
            nonlocal total
            for address, size, version in store_of(self.root).versions(f"{self.root}/"):
                entry = f"{address} {size} {version}".encode("utf-8", "surrogateescape")
                total = (total + int.from_bytes(hashlib.sha256(entry).digest(), "big")) % 2**256
                yield address, size

        yield from ((path, size) for path, size in self._visible(listed()) if not path.endswith("/"))
        self.stamps = f"{total:064x}"

    def _below(self, start: str) -> Iterator[tuple[str, int]]:
        """Yield the files whose paths have this prefix."""
        listed = store_of(self.root).listed(f"{self.root}/{start}")
        return ((path, size) for path, size in self._visible(listed) if not path.endswith("/"))

    def _visible(self, listed: Iterable[tuple[str, _Size]]) -> Iterator[tuple[str, _Size]]:
        found = ((address[len(self.root) + 1 :], size) for address, size in listed)
        return ((path, size) for path, size in found if path and not is_hidden(path))

    def _set_sizes(self, files: Iterable[tuple[str, int]]) -> None:
        self._listing.add_files(files)
        if not self._listing:
            endpoint = getattr(store_of(self.root), "endpoint", None)
            where = f" (asked at {endpoint})" if endpoint else ""
            raise UsageError(
                f"{self.root}: no files there{where}; name the folder that holds the source files"
            )
        self._sizes = self._listing.quickest()

    def faults(self) -> Mapping[str, Problem]:
        return {}

    def size(self, path: str) -> int | None:
        if (member := parse_member(path)) is not None:
            return None if self.size(member.container) is None else member.size
        return self._adopted_sizes[path] if path in self._adopted_sizes else self.sizes().get(path)

    def stamp(self, path: str) -> Stamp | None:
        return None

    def refusal(self, path: str) -> str:
        return ""

    def files_in(self, folder: str) -> list[str]:
        self.sizes()
        return self._listing.in_folder(folder)

    def has_folder(self, folder: str) -> bool:
        return folder == "." or any(path.startswith(f"{folder}/") for path in self.sizes())

    def read(self, path: str) -> bytes:
        return self.head(path, None)

    def open(self, path: str) -> SourceStream:
        if (member := parse_member(path)) is not None:
            return io.BytesIO(read_member(self, member))
        address = f"{self.root}/{path}"
        return ObjectReader(store_of(address), address)

    def adopt(self, sizes: Mapping[str, int], faults: Mapping[str, Problem]) -> None:
        """Take over sizes that another process listed."""
        self._adopted_sizes.update(sizes)

    def head(self, path: str, size: int | None) -> bytes:
        if (member := parse_member(path)) is not None:
            return read_member(self, member, size)
        return self.read_range(path, 0, size)

    def read_range(self, path: str, start: int, stop: int | None) -> bytes:
        address = f"{self.root}/{path}"
        try:
            return store_of(address).read(address, start, stop)
        except FileNotFoundError as error:
            raise SourceError("read", "file cannot be read", "no such file") from error


def _start(folder: str) -> str:
    return f"{folder}/" if folder else ""


_COPIED_AT_ONCE = 4 << 20
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextmanager
def reporting_disk_errors(folder: str) -> Iterator[None]:
    """Turn a full or failing disk into an error with a fix.

    Raises:
        JobError: the disk, a quota or a limit on file sizes has no space, or the disk cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise JobError(
            f"{folder}: {os.strerror(error.errno)}; what is finished is kept. {FIXES[error.errno]}; --out names the "
            "folder"
        ) from error


def source_files(root: str) -> LocalFiles | RemoteFiles:
    """Return the files below a local folder or an address."""
    return RemoteFiles(root) if is_remote(root) else LocalFiles(root)


def _local_sizes(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the files directly in a folder with their sizes, without those deleted meanwhile."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    yield entry.name, entry.stat().st_size


class OutputFolder:
    """Folder of one version of a data set, whose files appear complete or not at all.

    Args:
        root: path or address.
        holder: token from `held` that must hold the lease of a folder in an object store when a file appears.
    """

    def __init__(self, root: str, holder: str | None = None) -> None:
        self.root = root.rstrip("/")
        self.holder = holder
        self._made: list[str] = []

    def path(self, name: str) -> str:
        """Return the full path of a file of this folder."""
        return f"{self.root}/{name}" if is_remote(self.root) else os.path.join(self.root, name)

    def exists(self, name: str) -> bool:
        """Return whether a regular file of this name exists; it is then complete."""
        if not is_remote(self.root):
            return os.path.isfile(self.path(name))
        return store_of(self.root).stat(self.path(name)) is not None

    def open(self, name: str) -> Any:
        """Open a file for reading bytes."""
        if is_remote(self.root):
            return ObjectReader(store_of(self.root), self.path(name))
        return open(self.path(name), "rb")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a small file, or those from `start` to `stop` of a large one."""
        if is_remote(self.root):
            return store_of(self.root).read(self.path(name), start, stop)
        with self.open(name) as stream:
            stream.seek(start)
            return bytes(stream.read(-1 if stop is None else stop - start))

    def size(self, name: str) -> int:
        """Return the bytes of one file."""
        if not is_remote(self.root):
            return os.path.getsize(self.path(name))
        info = store_of(self.root).stat(self.path(name))
        if info is None:
            raise FileNotFoundError(self.path(name))
        return info.size

    def sizes(self, *, unfinished: bool = False) -> dict[str, int]:
        """Return the files directly in the folder and their bytes.

        Args:
            unfinished: include the files of the temporary folder, from the same listing.
        """
        if is_remote(self.root):
            prefix = f"{self.root}/"
            listed = ((address[len(prefix) :], size) for address, size in store_of(self.root).listed(prefix))
            below = f"{TEMPORARY_FOLDER}/"
            return {
                name: size
                for name, size in listed
                if name and ("/" not in name or (unfinished and name.startswith(below)))
            }
        found = dict(_local_sizes(self.root))
        if unfinished:
            with contextlib.suppress(FileNotFoundError):
                inside = _local_sizes(self.path(TEMPORARY_FOLDER))
                found.update((f"{TEMPORARY_FOLDER}/{name}", size) for name, size in inside)
        return found

    def make(self, mode: int = 0o777) -> None:
        """Create the folder and its parents, with at most these permissions."""
        if is_remote(self.root):
            return
        above = self.path(TEMPORARY_FOLDER)
        while above and not os.path.exists(above):
            self._made.append(above)
            above = os.path.dirname(above)
        try:
            with reporting_disk_errors(self.root):
                os.makedirs(self.root, mode, exist_ok=True)
                self.begin()
        except OSError as error:
            path = error.filename or self.root
            file = next((one for one in Path(path).parents if one.is_file()), None)
            reason = f"{file} is a file" if file else error.strerror
            raise UsageError(
                f"{path}: cannot be made: {reason}; name another output folder, in which you may write"
            ) from error
        with reporting_disk_errors(self.root):
            fsync_paths(os.path.dirname(folder) or "." for folder in self._made[1:])

    def begin(self) -> None:
        """Create a local folder's temporary folder, with the list that marks it as halofeed's."""
        folder = self.path(TEMPORARY_FOLDER)
        if is_remote(folder) or (owned_files.has_list(folder) and not os.path.islink(folder)):
            return
        os.makedirs(self.root, exist_ok=True)
        is_shared = os.stat(self.root).st_mode & stat.S_IWGRP
        try:  # only the owner may read it: files of a failed job may name patients
            os.mkdir(folder, 0o770 if is_shared else 0o700)
        except FileExistsError as error:
            if os.path.islink(folder) or (os.listdir(folder) and not owned_files.has_list(folder)):
                raise JobError(
                    f"{folder}: halofeed keeps unfinished files there and did not make it; move it away, or "
                    "take another --out"
                ) from error
        with contextlib.suppress(FileExistsError):  # another thread or worker made it
            owned_files.begin_list(folder, whole=True)

    def is_begun(self) -> bool:
        """Return whether a conversion has started to write into the folder, by its temporary folder."""
        folder = self.path(TEMPORARY_FOLDER)
        return is_remote(folder) or (owned_files.has_list(folder) and not os.path.islink(folder))

    @contextmanager
    def temporary(
        self, name: str, buffers: int = 2, *, temporary_name: str | None = None
    ) -> Iterator[TemporaryFile]:
        """Open a file that appears under its name at `keep`, and is deleted at the end otherwise.

        Args:
            buffers: number of buffers of a local `DirectFile`.
            temporary_name: its name until then in a local folder; default: a random one below `TEMPORARY_FOLDER`.

        Raises:
            JobError: the disk has no space or fails, or somebody else made the file.
        """
        if is_remote(self.root):
            writer = ObjectWriter(store_of(self.root), self.path(name))
            with closing(TemporaryFile(name, writer, lambda _: self._keep(writer), writer.abort)) as file:
                yield file
            return
        path = self.path(temporary_name or f"{TEMPORARY_FOLDER}/{uuid.uuid4().hex}")
        with reporting_disk_errors(self.root):
            if temporary_name is None:
                self.begin()
            try:
                stream = DirectFile(path, buffers)
            except FileExistsError as error:
                raise JobError(
                    f"{path}: another program has created it meanwhile; check what writes into that folder, and run "
                    "the same command again"
                ) from error
            stream.keep_mode(self.path(name))
            file = TemporaryFile(
                name,
                stream,
                lambda synced: _rename(stream, path, self.path(name), synced=synced),
                lambda: _delete(stream, path),
            )
            with closing(file):
                yield file

    def _keep(self, writer: ObjectWriter) -> None:
        """Finish an object while this run holds the folder; accept an existing object only if it is the same."""
        self._check_holder()
        try:
            writer.finish()
        except ChangedError:
            self._check_holder()
            if not writer.is_there():
                raise

    def _check_holder(self) -> None:
        if self.holder is not None:
            check_holder(self.root, self.holder)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        with self.temporary(name) as file:
            file.stream.write(data)
            file.keep()

    def commit(self, manifest: bytes, after: Iterable[str], *, swept: bool = False, like: str = "") -> None:
        """Write the manifest, which appears only after all files that it names are on the disk.

        Args:
            after: names of these files.
            swept: delete a local folder's temporary files just before; until then they mark the folder as halofeed's.
            like: path of a local manifest with the permissions for this one.

        Raises:
            JobError: the disk has no space or fails.
        """
        if is_remote(self.root):  # finished objects are durable
            if swept:
                self.sweep()
            self.write(MANIFEST, manifest)
            return
        with self.temporary(MANIFEST, temporary_name=UNCOMMITTED_MANIFEST) as file:
            if like:
                file.stream.keep_mode(like)
            file.stream.write(manifest)
            fsync_paths([*map(self.path, after), self.root])
            if swept and self.is_begun():
                owned_files.delete_owned(self.path(TEMPORARY_FOLDER))
            file.keep(synced=True)
            fsync_paths([self.root])

    def take(self, name: str, other: OutputFolder, other_name: str = "") -> None:
        """Link or copy a file of another folder of the same file system into this one.

        Args:
            other_name: its name there, if that is another one.

        Raises:
            JobError: the disk has no space for a copy, or fails.
        """
        if is_remote(self.root):
            self._check_holder()
            store_of(self.root).copy(other.path(other_name or name), self.path(name))
            return
        linked = self.path(f"{TEMPORARY_FOLDER}/{uuid.uuid4().hex}")
        self.begin()
        try:
            os.link(other.path(other_name or name), linked)
            os.replace(linked, self.path(name))
        except OSError:  # another disk, or one without hard links
            with other.open(other_name or name) as stream, self.temporary(name) as file:
                shutil.copyfileobj(stream, file.stream, _COPIED_AT_ONCE)
                file.keep()

    def delete(self, names: list[str]) -> None:
        """Delete files of this folder; ignore missing ones."""
        if is_remote(self.root):
            store_of(self.root).delete(self.path(name) for name in names)
            return
        for name in names:
            if self.exists(name):
                _remove(self.path(name))

    def sweep(self) -> None:
        """Delete the temporary files of interrupted runs; in an object store, those whose names halofeed gives."""
        folder = self.path(TEMPORARY_FOLDER)
        if not is_remote(folder):
            if not os.path.isdir(self.root):  # its name may also be too long, or a circular link
                return
            with contextlib.suppress(NotADirectoryError):
                _remove(self.path(UNCOMMITTED_MANIFEST))
            if self.is_begun():
                owned_files.delete_owned(folder)
            return
        store = store_of(folder)
        listed = (address for address, _ in store.listed(f"{folder}/"))
        store.delete([address for address in listed if is_temporary_name(address[len(folder) + 1 :])])
        store.abort_uploads(f"{self.root}/")

    def withdraw(self) -> None:
        """Delete the temporary files, and the folders that `make` made."""
        self.sweep()
        with contextlib.suppress(OSError):
            for folder in self._made[1:]:
                os.rmdir(folder)


class TemporaryFile:
    """A file that is being written.

    Args:
        name: final name.
        stream: writable stream.
        keep: closes the stream and renames the file; its argument says whether to sync the content before.
        discard: closes the stream and deletes the file.
    """

    def __init__(
        self, name: str, stream: Any, keep: Callable[[bool], object], discard: Callable[[], object]
    ) -> None:
        self.name, self.stream = name, stream
        self._keep, self._discard = keep, discard
        self._is_open = True

    def keep(self, *, synced: bool = False) -> None:
        """Close the file and rename it, replacing an existing one; `synced` writes the content to the disk before.

        Raises:
            JobError: another run holds the folder of an object store.
            StoreError: another run wrote a different object meanwhile, or the store fails.
        """
        self._keep(synced)
        self._is_open = False

    def close(self) -> None:
        """Close and delete the file if it was not kept."""
        if self._is_open:
            self._is_open = False
            self._discard()


def _rename(stream: DirectFile, path: str, name: str, *, synced: bool) -> None:
    stream.close()
    if synced:
        fsync_paths([path])
    os.replace(path, name)


def _delete(stream: DirectFile, path: str) -> None:
    # A full disk may fail here again; the caller reports the first error.
    with contextlib.suppress(OSError):
        stream.close()
    _remove(path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
