"""Files of other file systems that Beam knows, such as hdfs://, without conditional writes and leases."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from halofeed.storage.base import ANY, Entry, FileInfo, Files
from halofeed.system.addresses import Address, printable_cause
from halofeed.system.errors import UsageError

_CLIENT_ARGUMENTS = {
    "s3_access_key_id": "aws_access_key_id",
    "s3_secret_access_key": "aws_secret_access_key",
    "s3_session_token": "aws_session_token",
    "s3_endpoint_url": "endpoint_url",
    "s3_region_name": "region_name",
    "s3_api_version": "api_version",
    "s3_verify": "verify",
}
"""Arguments of boto3's client by Beam's options."""


def apply_options(options: Any) -> dict[str, Any]:
    """Apply Beam's `PipelineOptions` to its file systems; return the same settings as arguments of boto3's client."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import S3Options

    FileSystems.set_options(options)
    given = options.view_as(S3Options).get_all_options(drop_default=True)
    settings = {
        argument: given[name] for name, argument in _CLIENT_ARGUMENTS.items() if given.get(name) is not None
    }
    # Beam's option is the opposite of boto3's argument.
    if given.get("s3_disable_ssl"):
        settings["use_ssl"] = False
    return settings


class BeamFiles(Files):
    """Files of Beam's file systems; a subclass of Beam's `FileSystem` is found by its scheme. See `Files`."""

    lists_folders = False

    def __init__(self) -> None:
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        self.systems = FileSystems
        self.as_they_are = {"compression_type": CompressionTypes.UNCOMPRESSED}

    def knows(self, address: str) -> bool:
        """Return whether Beam has a file system for a scheme.

        Raises:
            UsageError: Beam has one, and it cannot start here: a package or a setting is missing.
        """
        try:
            self.systems.get_filesystem(address)
        except ValueError:
            return False
        except Exception as error:
            # BeamIOError holds the addresses, in its text and in the details by address, which has the reason.
            reasons = getattr(error, "exception_details", None) or {address: error}
            scheme = address.partition("://")[0]
            raise UsageError(
                f"{Address(address)}: Beam's file system for {scheme}:// cannot start: "
                f"{next(iter(reasons.values()))}"
            ) from printable_cause(error)
        return True

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        address = self.address(path)
        try:
            with self.systems.open(address, **self.as_they_are) as stream:
                stream.seek(start)
                return bytes(stream.read(-1 if stop is None else stop - start))
        except Exception as error:
            # Each file system has its own error for a missing file.
            if self.systems.exists(address):
                raise
            raise FileNotFoundError(address) from error

    def stat(self, path: str) -> FileInfo | None:
        address = self.address(path)
        found = [entry for entry in self._match(address) if entry.path == address]
        return FileInfo(size=found[0].size_in_bytes, version=ANY, age_seconds=0) if found else None

    def write(self, path: str, data: bytes, expected: str = ANY) -> str:
        parts = self.start_upload(path, expected)
        try:
            parts.finish(data)
        except BaseException:
            parts.abort()
            raise
        return ANY

    def start_upload(self, path: str, expected: str = ANY) -> _BeamUpload:
        return _BeamUpload(self, self.address(path))

    def entries(self, folder: str = "", *, deep: bool = True) -> Iterator[Entry]:
        for found in self._match(f"{self.address(folder)}/**"):
            path = found.path[len(self.root) + 1 :]
            yield Entry(path, found.size_in_bytes, str(found.last_updated_in_seconds))

    def copy_from(self, source: Files, source_path: str, path: str) -> None:
        self.systems.copy([source.address(source_path)], [self.address(path)])

    def delete(self, paths: Iterable[str]) -> None:
        present = [address for address in map(self.address, paths) if self.systems.exists(address)]
        if present:
            self.systems.delete(present)

    def abort_uploads(self) -> None:
        """Do nothing: an unfinished upload is a file, and listings show it."""

    def _match(self, pattern: str) -> list[Any]:
        return [entry for match in self.systems.match([pattern]) for entry in match.metadata_list]


class _BeamUpload:
    """A file with a temporary name until it is complete; see `MultipartUpload`."""

    def __init__(self, files: BeamFiles, address: str) -> None:
        folder, _, name = address.rpartition("/")
        self._systems = files.systems
        self._address, self._temporary = address, f"{folder}/.{name}.{uuid.uuid4().hex}"
        # File systems with folders may require that the parent exists.
        if not self._systems.exists(folder):
            with contextlib.suppress(OSError):  # another worker made it
                self._systems.mkdirs(folder)
        self._stream = self._systems.create(self._temporary, **files.as_they_are)

    def send(self, data: bytes) -> None:
        self._stream.write(data)

    def finish(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.close()
        self._systems.rename([self._temporary], [self._address])

    def abort(self) -> None:
        with contextlib.suppress(Exception):  # the caller reports the first error
            self._stream.close()
        with contextlib.suppress(OSError):  # BeamIOError is one
            self._systems.delete([self._temporary])
