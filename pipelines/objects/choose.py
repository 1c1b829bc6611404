"""Choice of the object store for an address: one client of each store and process, with the settings of the job."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, S3Options

from halofeed.pipelines.objects.base import ANY, ObjectInfo, ObjectStore
from halofeed.pipelines.objects.gcs import GcsObjects
from halofeed.pipelines.objects.s3 import S3Objects
from halofeed.system.addresses import keep_secret

_ARGUMENTS = {
    "s3_access_key_id": "aws_access_key_id",
    "s3_secret_access_key": "aws_secret_access_key",
    "s3_session_token": "aws_session_token",
    "s3_endpoint_url": "endpoint_url",
    "s3_region_name": "region_name",
    "s3_api_version": "api_version",
    "s3_verify": "verify",
}
"""Arguments of boto3's client by Beam's options."""
_SECRET = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")

_lock = threading.RLock()  # a signal handler may need it too
_stores: dict[tuple[int, str], ObjectStore] = {}
_settings: dict[str, Any] = {}
_CLIENTS: dict[str, Callable[[], ObjectStore]] = {"s3": lambda: S3Objects(_settings), "gs": GcsObjects}
"""Clients by URL scheme; Beam serves other schemes."""


def use_options(options: PipelineOptions) -> dict[str, Any]:
    """Apply Beam's options to the stores of this process; return the settings for `use_settings` in other processes."""
    FileSystems.set_options(options)
    given = options.view_as(S3Options).get_all_options(drop_default=True)
    settings = {argument: given[name] for name, argument in _ARGUMENTS.items() if given.get(name) is not None}
    if given.get("s3_disable_ssl"):
        settings["use_ssl"] = False
    use_settings(settings)
    return settings


def use_settings(settings: Mapping[str, Any]) -> None:
    """Use these arguments of boto3's client for S3 in this process from now on."""
    for name in _SECRET:
        keep_secret(str(settings.get(name, "")))
    with _lock:
        if dict(settings) != _settings:
            _settings.clear()
            _settings.update(settings)
            _stores.clear()


def store_of(address: str) -> ObjectStore:
    """Return the store of an address: one client for each scheme and process."""
    scheme = address.partition("://")[0]
    with _lock:
        key = (os.getpid(), scheme)
        if key not in _stores:
            _stores[key] = _CLIENTS.get(scheme, BeamObjects)()
        return _stores[key]


class BeamObjects(ObjectStore):
    """Files of other file systems that Beam knows, such as hdfs://, without conditional writes; see `ObjectStore`."""

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        try:
            with FileSystems.open(address, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
                stream.seek(start)
                return bytes(stream.read(-1 if stop is None else stop - start))
        except Exception as error:
            if FileSystems.exists(address):
                raise
            raise FileNotFoundError(address) from error

    def stat(self, address: str) -> ObjectInfo | None:
        found = [entry for entry in self._match(address) if entry.path == address]
        return ObjectInfo(size=found[0].size_in_bytes, version=ANY, age_seconds=0) if found else None

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        parts = self.start_upload(address, expected)
        try:
            parts.finish(data)
        except BaseException:
            parts.abort()
            raise
        return ANY

    def start_upload(self, address: str, expected: str = ANY) -> _BeamUpload:
        return _BeamUpload(address)

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for entry in self._match(prefix + "**"):
            yield entry.path, entry.size_in_bytes, str(entry.last_updated_in_seconds)

    def list_dir(self, prefix: str) -> None:
        """Return None, because Beam can list only recursively."""

    def copy(self, source: str, target: str) -> None:
        FileSystems.copy([source], [target])

    def delete(self, addresses: Iterable[str]) -> None:
        present = [address for address in addresses if FileSystems.exists(address)]
        if present:
            FileSystems.delete(present)

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: an unfinished upload is a file, and listings show it."""

    def _match(self, pattern: str) -> list[Any]:
        return [entry for match in FileSystems.match([pattern]) for entry in match.metadata_list]


class _BeamUpload:
    """A file with a temporary name until it is complete; see `MultipartUpload`."""

    def __init__(self, address: str) -> None:
        folder, _, name = address.rpartition("/")
        self._address, self._temporary = address, f"{folder}/.{name}.{uuid.uuid4().hex}"
        if not FileSystems.exists(folder):
            with contextlib.suppress(OSError):  # another worker made it
                FileSystems.mkdirs(folder)
        self._stream = FileSystems.create(self._temporary, compression_type=CompressionTypes.UNCOMPRESSED)

    def send(self, data: bytes) -> None:
        self._stream.write(data)

    def finish(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.close()
        FileSystems.rename([self._temporary], [self._address])

    def abort(self) -> None:
        with contextlib.suppress(Exception):  # the caller reports the first error
            self._stream.close()
        with contextlib.suppress(BeamIOError):
            FileSystems.delete([self._temporary])
