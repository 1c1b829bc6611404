"""MosaicML Streaming from a local folder of MDS shards, not compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streaming
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from peers.common import Case, Source, shown
from peers.torch_memmap import endless


class Streamed(streaming.StreamingDataset):
    """Samples as torch's collation takes them."""

    def __init__(self, folder: Path, case: Case) -> None:
        # One block of shuffling holds all records.
        super().__init__(
            local=str(folder), shuffle=True, batch_size=case.batch_size, shuffle_block_size=1 << 18
        )
        self.case = case

    def __getitem__(self, number: int) -> dict[str, Any]:
        return shown(super().__getitem__(number), self.case)


def write(source: Source, folder: Path) -> None:
    """Shards of 64 MiB, the default."""
    columns = {"number": "int"}
    for key in ("image", "label"):
        if (value := source[0].get(key)) is not None:
            shape = "" if isinstance(value, bytes) else ",".join(map(str, value.shape))
            columns[key] = f"ndarray:{value.dtype}:{shape}" if shape else "bytes"
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for number in range(len(source)):
            writer.write(source[number])


def batches(folder: Path, case: Case, num_workers: int) -> Iterator[Any]:
    """One epoch after the other."""
    clean_stale_shared_memory()
    return endless(Streamed(folder, case), DataLoader, case, num_workers)
