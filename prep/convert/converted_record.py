"""Records of a converter: encoded examples with checksums, and facts for the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halofeed.prep.sources.example import SourceExample
from halofeed.schemas import keys
from halofeed.schemas.identity import example_id
from halofeed.schemas.tfexample import EncodedExample, Value, encode_example
from halofeed.system.checksum import block_checksums, combine_blocks

HELD_BYTES = 64 << 20
"""Bytes of the records of a streamed input that are held before the first of them are written."""


@dataclass(frozen=True, kw_only=True)
class RawValue:
    """Bytes of a raw field, with the CRC32C of each block and of all bytes."""

    data: memoryview
    blocks: list[int]
    checksum: int

    @classmethod
    def of(cls, data: memoryview) -> RawValue:
        """Compute the checksums of a field."""
        blocks = block_checksums(data)
        return cls(data=data, blocks=blocks, checksum=combine_blocks(blocks, len(data)))


@dataclass(frozen=True, kw_only=True)
class Record:
    """An encoded example, its facts, and (reason, detail) of each dropped object."""

    id: int
    example: EncodedExample
    raw: Mapping[str, RawValue]
    facts: Any
    bad_objects: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        reference: SourceExample,
        features: Mapping[str, Value],
        facts: Any,
        bad_objects: tuple[tuple[str, str], ...] = (),
        number: int = 0,
    ) -> Record:
        """Return the record of these features and its source's names; `number` counts the records of the source."""
        identity = example_id(reference.key, number)
        named: dict[str, Value] = {
            **features,
            keys.FILENAME: reference.source.encode("utf-8", "surrogateescape"),
            keys.KEY_SOURCE: str(reference.key).encode("utf-8", "surrogateescape"),
            keys.SOURCE_ID: str(identity).encode(),
        }
        raw = {key: RawValue.of(value) for key, value in features.items() if isinstance(value, memoryview)}
        return cls(id=identity, example=encode_example(named), raw=raw, facts=facts, bad_objects=bad_objects)
