"""How the job reaches files: source folders and the output folder, on any of Beam's file systems."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from halofeed.pipelines.direct_file import DirectFile
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.sources.walk import is_hidden
from halofeed.schemas.durable import sync
from halofeed.schemas.errors import (
    HalofeedError,
    JobError,
    MissingExtraError,
    Problem,
    SourceError,
    UsageError,
)
from halofeed.schemas.layout import MANIFEST, TEMPORARY_FOLDER, UNCOMMITTED_MANIFEST


def is_remote(path: str) -> bool:
    """Whether a path names another file system than the local one: gs://, s3://, hdfs://."""
    return "://" in path


_READ_AT_ONCE = 16 << 20
_EXTRAS = {"gs": ("gcp", "google.cloud.storage"), "s3": ("aws", "boto3")}


def check_reachable(flag: str, path: str) -> None:
    """Refuse a path whose file system Beam does not know, or whose library is not installed.

    Raises:
        UsageError: says what is known, or which extra is missing.
    """
    scheme, mark, _ = path.partition("://")
    if not mark:
        return
    extra, module = _EXTRAS.get(scheme, ("", ""))
    if module and not _is_installed(module):
        raise MissingExtraError(
            f"{flag} {path}: {module} is not installed, which {scheme}:// needs; pip install 'halofeed[{extra}]'"
        )
    try:
        FileSystems.get_filesystem(path)
    except ValueError as error:
        raise UsageError(
            f"{flag} {path}: {scheme}:// is no file system that is known here; expected a local path, or one of "
            f"{', '.join(f'{known}://' for known in _EXTRAS)}, hdfs://"
        ) from error


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that holds the module
        return False


class RemoteFiles:
    """The files below a folder of one of Beam's remote file systems."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._sizes: dict[str, int] | None = None
        self._known: dict[str, int] = {}
        self._folders: dict[str, list[str]] | None = None

    def sizes(self) -> Mapping[str, int]:
        if self._sizes is None:
            found = {}
            for match in FileSystems.match([self.root + "/**"]):
                for entry in match.metadata_list:
                    path = entry.path[len(self.root) + 1 :]
                    if path and not path.endswith("/") and not is_hidden(path):
                        found[path] = entry.size_in_bytes
            if not found:
                raise UsageError(f"{self.root}: no files there; name the folder that holds the source files")
            self._sizes = dict(sorted(found.items()))
        return self._sizes

    def faults(self) -> Mapping[str, Problem]:
        return {}

    def size(self, path: str) -> int | None:
        return self._known[path] if path in self._known else self.sizes().get(path)

    def refusal(self, path: str) -> str:
        return ""

    def files_in(self, folder: str) -> list[str]:
        if self._folders is None:
            self._folders = {}
            for path in self.sizes():
                self._folders.setdefault(path.rpartition("/")[0], []).append(path)
        return self._folders.get(folder, [])

    def has_folder(self, folder: str) -> bool:
        return folder == "." or any(path.startswith(f"{folder}/") for path in self.sizes())

    def read(self, path: str) -> bytes:
        with self._open(path) as stream:
            return bytes(stream.read())

    def head(self, path: str, size: int) -> bytes:
        pieces: list[bytes] = []
        with self._open(path) as stream:
            # Room is made at once for all that is asked for, which may be more than there is.
            while size and (piece := bytes(stream.read(min(size, _READ_AT_ONCE)))):
                pieces.append(piece)
                size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def adopt(self, sizes: Mapping[str, int], faults: Mapping[str, Problem]) -> None:
        """As of `LocalFiles`."""
        self._known.update(sizes)

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        """A file that is there, in one request; where that fails, a second one asks whether it is."""
        full = f"{self.root}/{path}"
        try:
            with FileSystems.open(full, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
                yield stream
        except Exception as error:
            if isinstance(error, HalofeedError) or FileSystems.exists(full):
                raise
            raise SourceError("read", "file cannot be read", "no such file") from error


_COPIED_AT_ONCE = 4 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def _naming_what_the_disk_lacks(folder: str) -> Iterator[None]:
    """Turn the lack of room, and a disk that fails, into errors that say so.

    Raises:
        JobError: the disk, a quota or a limit on a file's size has no room, or the disk cannot be written to.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            cure = "make room and run the same command again, or take another --out"
        elif error.errno in (errno.EIO, errno.EROFS):
            cure = "see to the disk and run the same command again, or take another --out"
        else:
            raise
        raise JobError(f"{folder}: {os.strerror(error.errno)}; what is finished is kept: {cure}") from error


def source_files(root: str) -> LocalFiles | RemoteFiles:
    """The files below a folder, wherever it is."""
    return RemoteFiles(root) if is_remote(root) else LocalFiles(root)


class OutputFolder:
    """The folder of one version of a data set: files appear in it whole or not at all."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._made: list[str] = []

    def path(self, name: str) -> str:
        """The full path of a file of this folder."""
        return str(FileSystems.join(self.root, name))

    def exists(self, name: str) -> bool:
        """Whether the file is there, and therefore whole; a pipe, a device or a folder of its name is none."""
        if not is_remote(self.root):
            return os.path.isfile(self.path(name))
        return bool(FileSystems.exists(self.path(name)))

    def open(self, name: str) -> Any:
        """A file as a stream of bytes."""
        return FileSystems.open(self.path(name), compression_type=CompressionTypes.UNCOMPRESSED)

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""
        with self.open(name) as stream:
            return bytes(stream.read())

    def size(self, name: str) -> int:
        """The bytes of one file."""
        if not is_remote(self.root):
            return os.path.getsize(self.path(name))
        return int(FileSystems.match([self.path(name)])[0].metadata_list[0].size_in_bytes)

    def sizes(self) -> dict[str, int]:
        """The files directly in the folder and their bytes."""
        if not is_remote(self.root):
            with os.scandir(self.root) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        found = {}
        for match in FileSystems.match([self.path("*")]):
            for entry in match.metadata_list:
                name = entry.path[len(self.root) + 1 :]
                if name and not name.endswith("/"):
                    found[name] = entry.size_in_bytes
        return found

    def make(self) -> None:
        """Make the folder where folders need making."""
        above = self.path(TEMPORARY_FOLDER)
        while not is_remote(self.root) and above and not os.path.exists(above):
            self._made.append(above)
            above = os.path.dirname(above)
        for folder in (self.root, self.path(TEMPORARY_FOLDER)):
            if not FileSystems.exists(folder):
                try:
                    FileSystems.mkdirs(folder)
                except OSError as error:
                    if not FileSystems.exists(folder):
                        raise UsageError(f"{folder}: cannot be made: {error}") from error
        with _naming_what_the_disk_lacks(self.root):
            sync(os.path.dirname(folder) or "." for folder in self._made[1:])

    @contextmanager
    def temporary(self, buffers: int = 2, name: str | None = None) -> Iterator[TemporaryFile]:
        """A file under a temporary name, gone at the end unless it was renamed by `keep_as`.

        Args:
            buffers: as of a `DirectFile`, where the folder is local.
            name: the temporary one, in this folder; default: one of its own below `TEMPORARY_FOLDER`.

        Raises:
            JobError: the disk, a quota or a limit on a file's size has no room for it, or the disk fails.
        """
        with _naming_what_the_disk_lacks(self.root):
            file = TemporaryFile(self, name or f"{TEMPORARY_FOLDER}/{uuid.uuid4().hex}", buffers)
            try:
                yield file
            finally:
                file.discard()

    def write(self, name: str, data: bytes) -> None:
        """Write a small file whole, by way of a temporary name; an empty one on s3:// is left out."""
        if not data and self.root.startswith("s3://"):
            self.delete([name])
            return
        with self.temporary() as file:
            file.stream.write(data)
            file.keep_as(name)

    def commit(self, manifest: bytes, after: Iterable[str]) -> None:
        """Write the manifest: it has its name only once all that it names is on the disk.

        Args:
            manifest: its text.
            after: the files of this folder that it names.

        Raises:
            JobError: the disk failed, or has no room.
        """
        if is_remote(self.root):  # where what is written is there for good
            self.write(MANIFEST, manifest)
            return
        with self.temporary(name=UNCOMMITTED_MANIFEST) as file:
            file.stream.write(manifest)
            sync([*map(self.path, after), self.root])
            file.keep_as(MANIFEST, synced=True)
            sync([self.root])

    def take(self, name: str, other: OutputFolder) -> None:
        """Have a file of another folder of the same file system here too, linked where that can be.

        Raises:
            JobError: the disk failed, or has no room for a copy.
        """
        if is_remote(self.root):
            FileSystems.copy([other.path(name)], [self.path(name)])
            return
        linked = self.path(f"{TEMPORARY_FOLDER}/{uuid.uuid4().hex}")
        try:
            os.link(other.path(name), linked)
            os.replace(linked, self.path(name))
        except OSError:  # another disk, or one without hard links
            with other.open(name) as stream, self.temporary() as file:
                shutil.copyfileobj(stream, file.stream, _COPIED_AT_ONCE)
                file.keep_as(name)

    def delete(self, names: list[str]) -> None:
        """Delete files of this folder; those that are not there are no error."""
        present = [self.path(name) for name in names if self.exists(name)]
        if not is_remote(self.root):
            for path in present:
                os.remove(path)
        elif present:
            FileSystems.delete(present)

    def sweep(self) -> None:
        """Delete what interrupted runs left behind."""
        folder = self.path(TEMPORARY_FOLDER)
        if not is_remote(folder):
            if not os.path.isdir(self.root):  # nor can it be where its name is too long or leads in a circle
                return
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.remove(self.path(UNCOMMITTED_MANIFEST))
            # Beam's own delete takes a path for a glob pattern, and finds nothing below `data[1]`.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                shutil.rmtree(folder)
            return
        with contextlib.suppress(BeamIOError):
            FileSystems.delete([folder + "/"])

    def withdraw(self) -> None:
        """Delete what was begun, and the folders that `make` made."""
        self.sweep()
        with contextlib.suppress(OSError):
            for folder in self._made[1:]:
                os.rmdir(folder)


class TemporaryFile:
    """A file of a folder that is being written under a temporary name."""

    def __init__(self, folder: OutputFolder, name: str, buffers: int) -> None:
        self._folder = folder
        self._path: str | None = folder.path(name)
        self.stream: Any = self._create(buffers)

    def _create(self, buffers: int) -> Any:
        if is_remote(self._folder.root):
            return FileSystems.create(self._path, compression_type=CompressionTypes.UNCOMPRESSED)
        assert self._path is not None
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        return DirectFile(self._path, buffers)

    def keep_as(self, name: str, *, synced: bool = False) -> None:
        """Close the file and give it its name, replacing what had it; `synced` has its content on the disk before.

        Raises:
            JobError: the file is empty and the folder on s3://, where Beam's client cannot make one.
        """
        target = self._folder.path(name)
        if target.startswith("s3://") and not self.stream.tell():
            raise JobError(f"{target} would be empty, which Beam cannot write to S3; take fewer --shards")
        self.stream.close()
        if is_remote(self._folder.root):
            FileSystems.rename([self._path], [target])
        else:
            assert self._path is not None
            if synced:
                sync([self._path])
            os.replace(self._path, target)
        self._path = None

    def discard(self) -> None:
        """Close and delete the file if it was not kept."""
        if self._path is not None:
            path, self._path = self._path, None
            if not is_remote(path):
                # A full disk fails here a second time, and the first error is the one to tell.
                with contextlib.suppress(OSError):
                    self.stream.close()
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
                return
            # Closing is what uploads, and may fail; what led here is the error to be told.
            with contextlib.suppress(Exception):
                self.stream.close()
            with contextlib.suppress(BeamIOError):
                FileSystems.delete([path])
