"""Output folder of a conversion, on local disk or in a store, whose files appear complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from halofeed.pipelines.lease import check_holder
from halofeed.schemas.file_layout import MANIFEST, TEMPORARY_FOLDER, UNCOMMITTED_MANIFEST, is_temporary_name
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import fsync_paths
from halofeed.storage.base import Files, ObjectWriter
from halofeed.storage.choose import store_of
from halofeed.storage.local import DirectFile
from halofeed.storage.paths import names_in
from halofeed.storage.retry import ChangedError
from halofeed.system.addresses import is_remote
from halofeed.system.errors import JobError, UsageError
from halofeed.system.resource_errors import FIXES

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
        # Other errors have the path in their text, and their cause is not the disk.
        if error.errno not in _DISK_ERRORS:
            raise
        raise JobError(
            f"{folder}: {os.strerror(error.errno)}; what is finished is kept. {FIXES[error.errno]}; --out names the "
            "folder"
        ) from error


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

    @property
    def _files(self) -> Files:
        return store_of(self.root)

    def exists(self, name: str) -> bool:
        """Return whether a regular file of this name exists; it is then complete."""
        return self._files.stat(name) is not None

    def open(self, name: str) -> Any:
        """Open a file for reading bytes."""
        return self._files.open(name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a small file, or those from `start` to `stop` of a large one."""
        return self._files.read(name, start, stop)

    def size(self, name: str) -> int:
        """Return the bytes of one file."""
        info = self._files.stat(name)
        if info is None:
            raise FileNotFoundError(self.path(name))
        return info.size

    def sizes(self, *, unfinished: bool = False) -> dict[str, int]:
        """Return the files directly in the folder and their bytes.

        Args:
            unfinished: include the files of the temporary folder, from the same listing.
        """
        if not is_remote(self.root):
            found = list(self._files.entries(deep=False))
            if unfinished:
                with contextlib.suppress(FileNotFoundError):
                    found += self._files.entries(TEMPORARY_FOLDER, deep=False)
        else:
            inside = (f"{TEMPORARY_FOLDER}/",) if unfinished else ()
            listed = self._files.entries()  # one listing is cheaper than two
            found = [one for one in listed if "/" not in one.path or one.path.startswith(inside)]
        return {path: size for path, size, _ in found if size is not None}

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
            if os.path.islink(folder) or (names_in(folder) and not owned_files.has_list(folder)):
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
        self, name: str, buffers: int = 8, *, temporary_name: str | None = None
    ) -> Iterator[TemporaryFile]:
        """Open a file that appears under its name at `keep`, and is deleted at the end otherwise.

        Args:
            buffers: number of buffers of a local `DirectFile`.
            temporary_name: its name until then in a local folder; default: a random one below `TEMPORARY_FOLDER`.

        Raises:
            JobError: the disk has no space or fails, or somebody else made the file.
        """
        if is_remote(self.root):
            writer = ObjectWriter(self._files, name)
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
            if not writer.matches_stored():
                raise
            writer.abort()

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
            # A replaced data set keeps its permissions.
            if like:
                file.stream.keep_mode(like)
            file.stream.write(manifest)
            fsync_paths([*map(self.path, after), self.root])
            if swept and self.is_begun():
                owned_files.delete_owned(self.path(TEMPORARY_FOLDER))
            file.keep(synced=True)
            fsync_paths([self.root])

    def take(self, name: str, other: OutputFolder, other_name: str = "") -> None:
        """Link or copy a file of another folder into this one; a store copies between its own folders by itself.

        Args:
            other_name: its name there, if that is another one.

        Raises:
            JobError: the disk has no space for a copy, or fails.
        """
        if is_remote(self.root) and _scheme(self.root) != _scheme(other.root):
            self._copy(name, other, other_name or name)
            return
        if is_remote(self.root):
            self._check_holder()
            self._files.copy_from(other._files, other_name or name, name)
            return
        linked = self.path(f"{TEMPORARY_FOLDER}/{uuid.uuid4().hex}")
        self.begin()
        try:
            os.link(other.path(other_name or name), linked)
            os.replace(linked, self.path(name))
        except OSError:  # another disk, or one without hard links
            self._copy(name, other, other_name or name)

    def _copy(self, name: str, other: OutputFolder, other_name: str) -> None:
        """Copy a file of another folder through this process."""
        with other.open(other_name) as stream, self.temporary(name) as file:
            shutil.copyfileobj(stream, file.stream, _COPIED_AT_ONCE)
            file.keep()

    def delete(self, names: list[str]) -> None:
        """Delete files of this folder; ignore missing ones."""
        self._files.delete(names)

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
        listed = (entry.path for entry in self._files.entries(TEMPORARY_FOLDER))
        start = len(TEMPORARY_FOLDER) + 1
        self._files.delete([path for path in listed if is_temporary_name(path[start:])])
        self._files.abort_uploads()

    def withdraw(self) -> None:
        """Delete the temporary files, and the folders that `make` made."""
        self.sweep()
        with contextlib.suppress(OSError):
            for folder in self._made[1:]:
                os.rmdir(folder)


def _scheme(root: str) -> str:
    return root.partition("://")[0] if is_remote(root) else ""


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
