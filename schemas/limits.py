"""Size limits of data sets and runs that somebody else may have made; readers and writers refuse larger ones.

The limits bound the cost of reading untrusted files: seconds, and about one gigabyte of memory in the worst case. File
sizes are a further bound: a shard of B bytes has at most B / 16 records, and an index of B bytes at most B / 24.
"""

from __future__ import annotations

from typing import Final

MANIFEST_BYTES: Final = 128 << 20
MANIFEST_VALUES: Final = 4_000_000
"""JSON values of a manifest: enough for 300,000 shards, or for a million classes in three splits."""
SHARDS: Final = 300_000
"""Shards of all splits together."""
LABELS: Final = 1_000_000
LABEL_LENGTH: Final = 10_000
"""Characters of a class's name."""
SPLITS: Final = 1_000
NAMES: Final = 100_000
"""Counted notes, findings, reasons or sizes of one figure; classes are limited by `LABELS`."""
CELLS: Final = 20_000_000
"""Counted names times splits, the cells of a table."""
FIELDS: Final = 1_000
SIDE: Final = (1 << 31) - 1
"""Size of a field along one axis."""
FIELD_BYTES: Final = 1 << 42
"""Bytes of a field in the loader's batches. A raw field must also fit into a record of less than 2 GiB."""

INDEX_BYTES: Final = 1 << 30
INDEX_VALUES: Final = 20_000_000
"""JSON values of an index's header: enough for three million rejected inputs in one shard."""

RECORD_VALUES: Final = 1 << 22
"""Texts, pictures and numbers of one record; a raw image counts as one."""

RUN_BYTES: Final = 1 << 28
"""Bytes of one document of a training run."""
RUN_VALUES: Final = 4_000_000
RUN_LINES: Final = 10_000_000
"""Lines of a run's log."""
LINE_BYTES: Final = 16 << 20
"""Bytes of one line of rejected.jsonl or of a run's log."""
ARRAY_BYTES: Final = 1 << 30
"""Bytes of the uncompressed arrays of one example of a run."""

NESTING: Final = 32
"""Levels of any JSON document."""
DIGITS: Final = 60
"""Digits of an integer in any JSON document; sums of squares exceed 64 bits."""
PROBLEMS: Final = 1_000
"""Problems that one error reports about a manifest."""
