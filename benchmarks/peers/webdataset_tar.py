"""webdataset: tar files of the arrays' bytes, read in order, shuffled in a buffer of all records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from peers.common import Case, Source, pack, shown, unpack

SHARDS = 8


def write(source: Source, folder: Path) -> None:
    """Eight tar files."""
    (folder / "count").write_text(str(len(source)))
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for number in range(shard, len(source), SHARDS):
                writer.write({"__key__": f"{number:08d}", "record": pack(source[number])})


def batches(folder: Path, case: Case, num_workers: int) -> Iterator[Any]:
    """Shards in random order, each worker with a buffer of all of its records."""
    files = sorted(map(str, folder.glob("*.tar")))
    count = int((folder / "count").read_text()) // max(1, num_workers)

    def collated(examples: list[dict[str, Any]]) -> dict[str, Any]:
        return {key: np.stack([example[key] for example in examples]) for key in examples[0]}

    data = webdataset.WebDataset(files, shardshuffle=SHARDS, empty_check=False)
    data = data.shuffle(count, initial=count).map(lambda sample: shown(unpack(sample["record"], case), case))
    data = data.batched(case.batch_size, collation_fn=collated, partial=False)
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=num_workers)
    while True:
        yield from loader
