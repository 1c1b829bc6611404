"""What a converter makes of one source: records ready to be written, and what is counted of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halofeed.prep.sources.reference import SourceExample
from halofeed.schemas import keys
from halofeed.schemas.identity import example_id
from halofeed.schemas.tfexample import EncodedExample, Value, encode_example
from halofeed.system.checksum import block_checksums, combine_blocks


@dataclass(frozen=True, kw_only=True)
class RawValue:
    """A raw field's bytes, with the CRC32C of each block and of the whole."""

    data: memoryview
    blocks: list[int]
    checksum: int

    @classmethod
    def of(cls, data: memoryview) -> RawValue:
        """Compute the checksums."""
        blocks = block_checksums(data)
        return cls(data=data, blocks=blocks, checksum=combine_blocks(blocks, len(data)))


@dataclass(frozen=True, kw_only=True)
class Record:
    """One example ready to be written, what is counted of it, and (reason, detail) of each object it had to drop."""

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
        """The record of these features, and of the names that its source goes by; `number`: of its source's records."""
        identity = example_id(reference.key, number)
        named: dict[str, Value] = {
            **features,
            keys.FILENAME: reference.source.encode("utf-8", "surrogateescape"),
            keys.KEY_SOURCE: str(reference.key).encode("utf-8", "surrogateescape"),
            keys.SOURCE_ID: str(identity).encode(),
        }
        raw = {key: RawValue.of(value) for key, value in features.items() if isinstance(value, memoryview)}
        return cls(id=identity, example=encode_example(named), raw=raw, facts=facts, bad_objects=bad_objects)
