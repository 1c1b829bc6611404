"""Measure resuming at step 10**6 of a data set of 10**7 records: time, size of the state, and the sampler.

    python benchmarks/far_step.py

One shard of 10,000 small pictures is linked under a thousand names, with its index, and a manifest names them all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

from halofeed.schemas.file_layout import MANIFEST, index_file, shard_file
from halofeed.schemas.manifest import Split, read_manifest
from halofeed.schemas.statistics import Statistics

RECORDS, STEP, BATCH = 10**7, 10**6, 64


def link_shards(one: Path, folder: Path, count: int, split: str = "train") -> Path:
    """A data set that holds the one shard of another so many times; it takes no room. Returns its folder."""
    manifest = read_manifest(one)
    (shard,) = manifest.split(split).shards
    folder.mkdir(parents=True)
    shards = []
    for number in range(count):
        name = shard_file(manifest.name, split, number, count)
        for stored, linked in ((shard.file, name), (index_file(shard.file), index_file(name))):
            os.link(one / stored, folder / linked)
        shards.append(dataclasses.replace(shard, file=name, index=index_file(name)))
    splits = {split: Split(shards=tuple(shards), statistics=Statistics())}
    (folder / MANIFEST).write_text(dataclasses.replace(manifest, splits=splits).to_json())
    return folder


def resumed(folder: Path, step: int) -> tuple[float, int, int]:
    """Seconds from the state to the first batch, bytes of the state, and the most that the sampler allocates."""
    from halofeed.loader import Loader
    from halofeed.loader.sampler import Sampler

    state = json.dumps(Loader(folder, batch_size=BATCH).state(step))
    started = time.perf_counter()
    loader = Loader(folder, batch_size=BATCH)
    next(loader.batches(loader.restore(json.loads(state))))
    seconds = time.perf_counter() - started
    tracemalloc.start()
    Sampler(records=loader.num_records, batch_size=BATCH).rows(step, 0, BATCH)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, len(state), most


def report(scratch: Path, rounds: int) -> str:
    """The line of the table."""
    import cv2
    import gather
    import numpy as np

    count = 10_000
    (scratch / "drawn/all").mkdir(parents=True)
    cv2.imwrite(str(scratch / "drawn/all/0.png"), np.zeros((8, 8, 3), np.uint8))
    for number in range(1, count):
        os.link(scratch / "drawn/all/0.png", scratch / f"drawn/all/{number}.png")
    gather.convert_one("tiny", scratch / "drawn", scratch, Path(__file__).resolve().parents[1], shards=1)
    folder = link_shards(scratch / "tiny/1.0.0", scratch / "far", RECORDS // count)
    found = [resumed(folder, STEP) for _ in range(rounds)]
    seconds = statistics.median(one[0] for one in found)
    return (
        f"resume at step {STEP:,} of {RECORDS:,} records, batches of {BATCH}: {seconds:.3f} s to the first batch, "
        f"the state is {found[0][1]:,} bytes, the sampler takes {found[0][2]:,} bytes"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(report(Path(place), 5))
