"""How much may a data set or a run hold that someone else has made? Beyond it a reader refuses, and so does a writer.

Each bounds what reading costs before anything is believed: seconds, and about a gigabyte at the very worst. What has a
size on disk is bounded by that besides: a shard of B bytes holds at most B / 16 records, an index of B bytes B / 24.
"""

from __future__ import annotations

from typing import Final

MANIFEST_BYTES: Final = 128 << 20
MANIFEST_VALUES: Final = 4_000_000
"""JSON values of a manifest: room for 300,000 shards, or for a million classes in three splits."""
SHARDS: Final = 300_000
"""Of all splits together."""
LABELS: Final = 1_000_000
LABEL_LENGTH: Final = 10_000
"""Characters of a class's name."""
SPLITS: Final = 1_000
NAMES: Final = 100_000
"""Of notes, findings, reasons or sizes that are counted by name; of classes as many as `LABELS`."""
CELLS: Final = 20_000_000
"""Counted names times splits: what a table of them has."""
FIELDS: Final = 1_000
SIDE: Final = (1 << 31) - 1
"""Along one axis of a field."""
FIELD_BYTES: Final = 1 << 42
"""Of a field as the loader gives it. One that is stored as it is must fit into a record, which is less than 2 GiB."""

INDEX_BYTES: Final = 1 << 30
INDEX_VALUES: Final = 20_000_000
"""JSON values of an index's header: room for three million rejected inputs in one shard."""

RECORD_VALUES: Final = 1 << 22
"""Texts, pictures and numbers of one record, of which a raw image is one."""

RUN_BYTES: Final = 1 << 28
"""Of one document of a training run."""
RUN_VALUES: Final = 4_000_000
RUN_LINES: Final = 10_000_000
"""Of a run's log."""
LINE_BYTES: Final = 16 << 20
"""Of one line of rejected.jsonl, or of a run's log."""
ARRAY_BYTES: Final = 1 << 30
"""Of the arrays of one example of a run, unpacked."""

NESTING: Final = 32
"""Of any JSON document."""
DIGITS: Final = 60
"""Of a whole number in any JSON document: sums of squares pass 64 bits."""
PROBLEMS: Final = 1_000
"""Named of one manifest."""
