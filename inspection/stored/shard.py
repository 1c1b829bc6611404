"""How are the records of a shard read to be looked at: one of them whole, or the small values of many?"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from halofeed.inspection.stored.place import Place, open_place
from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import index_file
from halofeed.schemas.limits import INDEX_BYTES
from halofeed.schemas.manifest import Shard
from halofeed.schemas.tfexample import Decoded, decode_example, decode_small
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record, footer_of


class StoredShard:
    """A shard of a data set, read by place with the index that the manifest names.

    Raises:
        CorruptFileError: the index is missing, damaged or another one.
    """

    def __init__(self, folder: Path | Place, shard: Shard) -> None:
        self._place, self._shard = open_place(folder), shard
        name = index_file(shard.file)
        path = self._place.path(name)
        data = self._place.index(name, min(shard.index_bytes, INDEX_BYTES))
        if crc32c(data) != shard.index_crc32c:
            raise CorruptFileError(f"{path}: its checksum is not the manifest's; {self._cure}")
        self.index = ShardIndex.from_bytes(data, path)
        if len(self.index) != shard.records:
            raise CorruptFileError(
                f"{path}: holds {len(self.index)} records, the manifest says {shard.records}; {self._cure}"
            )
        self._file = self._place.source(shard)

    @property
    def _cure(self) -> str:
        return f"run `halofeed verify {self._place}`"

    def place(self, row: int) -> tuple[int, int]:
        """At which byte of the file a record begins, and how many bytes of data it has.

        Raises:
            CorruptFileError: it does not lie in the file.
        """
        offset, length = int(self.index.offsets[row]), int(self.index.lengths[row])
        if (
            offset < 0
            or length < 0
            or offset + HEADER_BYTES + length + FOOTER_BYTES > self._file.open().bytes
        ):
            raise self._wrong(row, "the file ends inside the record, or before it")
        return offset, length

    def features(self, row: int) -> Decoded:
        """All values of a record, after its checksums were compared; bytes are views of memory of its own.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        offset, length = self.place(row)
        data = self._file.open().read(offset, HEADER_BYTES + length + FOOTER_BYTES)
        try:
            record = check_record(data, self._shard.file)
            if len(record) != length or footer_of(data) != self.index.checksums[row]:
                raise self._wrong(row, "it is another record than the index says")
            return decode_example(record)
        except CorruptFileError as error:
            raise self._wrong(
                row, str(error).removeprefix(f"{self._shard.file}: record at byte 0: ")
            ) from error

    def small_features(self, row: int, keys: Collection[str]) -> Decoded:
        """The values of those keys, which are small; of others no more is read than it takes to pass over them.

        Raises:
            CorruptFileError: the record is no Example; its checksum is not compared.
        """
        offset, length = self.place(row)
        opened = self._file.open()
        try:
            return decode_small(lambda at, size: opened.read(offset + HEADER_BYTES + at, size), length, keys)
        except CorruptFileError as error:
            raise self._wrong(row, str(error)) from error

    def _wrong(self, row: int, what: str) -> CorruptFileError:
        path = self._place.path(self._shard.file)
        place = f"{path}: record {row} at byte {int(self.index.offsets[row]):,}: "
        return CorruptFileError(what if what.startswith(path) else f"{place}{what}; {self._cure}")
