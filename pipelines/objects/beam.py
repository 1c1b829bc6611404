"""Files of what Beam knows beside the two object stores, such as hdfs://; nothing there is written on condition."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from halofeed.pipelines.objects.base import ANY, Stored


class BeamObjects:
    """See `halofeed.pipelines.objects.base.ObjectStore`; a file has its name once it is whole."""

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        try:
            with FileSystems.open(address, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
                stream.seek(start)
                return bytes(stream.read(-1 if stop is None else stop - start))
        except Exception as error:
            if FileSystems.exists(address):
                raise
            raise FileNotFoundError(address) from error

    def stat(self, address: str) -> Stored | None:
        found = [entry for entry in self._match(address) if entry.path == address]
        return Stored(size=found[0].size_in_bytes, version=ANY, age_seconds=0) if found else None

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        parts = self.parts(address, expected)
        try:
            parts.finish(data)
        except BaseException:
            parts.abort()
            raise
        return ANY

    def parts(self, address: str, expected: str = ANY) -> _BeamParts:
        return _BeamParts(address)

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        for entry in self._match(prefix + "**"):
            yield entry.path, entry.size_in_bytes

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        for entry in self._match(prefix + "**"):
            yield entry.path, entry.size_in_bytes, str(entry.last_updated_in_seconds)

    def straight(self, prefix: str) -> None:
        """None: Beam goes through all that is below."""

    def copy(self, source: str, target: str) -> None:
        FileSystems.copy([source], [target])

    def delete(self, addresses: Iterable[str]) -> None:
        present = [address for address in addresses if FileSystems.exists(address)]
        if present:
            FileSystems.delete(present)

    def abort_uploads(self, prefix: str) -> None:
        """None: what was begun is a file, and listed."""

    def _match(self, pattern: str) -> list[Any]:
        return [entry for match in FileSystems.match([pattern]) for entry in match.metadata_list]


class _BeamParts:
    """See `halofeed.pipelines.objects.base.Parts`: a file of another name until it is whole."""

    def __init__(self, address: str) -> None:
        folder, _, name = address.rpartition("/")
        self._address, self._temporary = address, f"{folder}/.{name}.{uuid.uuid4().hex}"
        if not FileSystems.exists(folder):
            with contextlib.suppress(OSError):  # another has made it
                FileSystems.mkdirs(folder)
        self._stream = FileSystems.create(self._temporary, compression_type=CompressionTypes.UNCOMPRESSED)

    def send(self, data: bytes) -> None:
        self._stream.write(data)

    def finish(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.close()
        FileSystems.rename([self._temporary], [self._address])

    def abort(self) -> None:
        with contextlib.suppress(Exception):  # what led here is the error to be told
            self._stream.close()
        with contextlib.suppress(BeamIOError):
            FileSystems.delete([self._temporary])
