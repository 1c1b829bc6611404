"""Grain over ArrayRecord files of bytes, one record a group, so that each can be read alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter

from peers.common import Case, Source, pack, shown, unpack

SHARDS = 8


def write(source: Source, folder: Path) -> None:
    """Eight files, not compressed."""
    for shard in range(SHARDS):
        writer = ArrayRecordWriter(str(folder / f"{shard}.array_record"), "group_size:1,uncompressed")
        for number in range(shard, len(source), SHARDS):
            writer.write(pack(source[number]))
        writer.close()


def batches(folder: Path, case: Case, threads: int, processes: int = 0) -> Iterator[Any]:
    """Shuffled over all records, read by threads, or by threads in each of several processes."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["loading"])
    files = sorted(map(str, folder.glob("*.array_record")))
    data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).shuffle(seed=0).repeat()
    data = data.map(lambda record: shown(unpack(record, case), case))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * case.batch_size)
    stream = data.to_iter_dataset(options).batch(case.batch_size)
    if processes:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    return iter(stream)
