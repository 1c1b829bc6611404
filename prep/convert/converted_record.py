"""Records of a converter: encoded examples with checksums, and facts for the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halofeed.prep.sources.example import SourceExample
from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.identity import example_id
from halofeed.schemas.tasks import LABEL_ENCODINGS
from halofeed.schemas.tfexample import EncodedExample, Value, encode_example
from halofeed.system.checksum import block_checksums, combine_blocks, crc32c

HELD_BYTES = 64 << 20
"""Bytes of the records of a streamed input that are held before the first of them are written."""


@dataclass(frozen=True, kw_only=True)
class ArrayValue:
    """Bytes of an array's field, with the CRC32C of all bytes and those that the index holds.

    Args:
        data: the value.
        checksums: CRC32C of each block of a value of a fixed size; they are in the index. A value of another size holds
            the checksums of its parts itself, so the index has only that of all bytes.
        checksum: CRC32C of all bytes.
        is_fixed_size: True if the field has as many bytes in every record.
    """

    data: memoryview
    checksums: list[int]
    checksum: int
    is_fixed_size: bool

    @classmethod
    def of(cls, data: memoryview, *, is_fixed_size: bool) -> ArrayValue:
        """Compute the checksums of a field."""
        checksums = block_checksums(data) if is_fixed_size else [crc32c(data)]
        checksum = combine_blocks(checksums, len(data)) if is_fixed_size else checksums[0]
        return cls(data=data, checksums=checksums, checksum=checksum, is_fixed_size=is_fixed_size)


@dataclass(frozen=True, kw_only=True)
class Record:
    """An encoded example, and what its index and the statistics hold of it.

    Args:
        arrays: its arrays by key.
        facts: what the statistics count.
        bad_objects: (reason, detail) of each dropped object.
        signature: words of its `ShardIndex.signatures`; () without one.
        measures: figures of `ShardIndex.measures` by name.
    """

    id: int
    example: EncodedExample
    arrays: Mapping[str, ArrayValue]
    facts: Any
    bad_objects: tuple[tuple[str, str], ...] = ()
    signature: tuple[int, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        reference: SourceExample,
        features: Mapping[str, Value],
        facts: Any,
        bad_objects: tuple[tuple[str, str], ...] = (),
        number: int = 0,
        *,
        encoding: str,
        signature: tuple[int, ...] = (),
        measures: Mapping[str, float] | None = None,
    ) -> Record:
        """Return the record of these features and its source's names.

        Args:
            number: counts the records of the source.
            encoding: encoding of the image. Encoders of arrays return a memoryview, and those of files bytes.
            signature: words of its `ShardIndex.signatures`.
            measures: figures for the index, see `halofeed.prep.convert.record_measures`.
        """
        identity = example_id(reference.key, number)
        named: dict[str, Value] = {
            **features,
            keys.FILENAME: reference.source.encode("utf-8", "surrogateescape"),
            keys.KEY_SOURCE: str(reference.key).encode("utf-8", "surrogateescape"),
            keys.SOURCE_ID: str(identity).encode(),
        }
        encodings = {keys.ENCODED: encoding, keys.LABEL: LABEL_ENCODINGS[encoding][0]}
        arrays = {
            key: ArrayValue.of(value, is_fixed_size=ENCODINGS[encodings[key]].is_fixed_size)
            for key, value in features.items()
            if isinstance(value, memoryview)
        }
        return cls(
            id=identity,
            example=encode_example(named),
            arrays=arrays,
            facts=facts,
            bad_objects=bad_objects,
            signature=signature,
            measures=measures or {},
        )
