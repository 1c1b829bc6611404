"""LitData from local chunks; it shuffles the chunks, and the samples within each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np

from peers.common import Case, Source, shown
from peers.torch_memmap import endless


class Streamed(litdata.StreamingDataset):
    """Samples as torch's collation takes them."""

    def __init__(self, folder: Path, case: Case) -> None:
        super().__init__(str(folder / "chunks"), shuffle=True, drop_last=True)
        self.case = case

    def __getitem__(self, number: Any) -> dict[str, Any]:
        return shown(super().__getitem__(number), self.case)


def sample(source: Path, number: int) -> dict[str, Any]:
    """An example as LitData serializes it."""
    example = Source(source)[number]
    return {
        key: value if isinstance(value, bytes | int) else np.array(value) for key, value in example.items()
    }


def write(source: Source, folder: Path) -> None:
    """Chunks of 64 MB, the default."""
    litdata.optimize(
        fn=partial(sample, source.folder),
        inputs=list(range(len(source))),
        output_dir=str(folder / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,
    )


def batches(folder: Path, case: Case, num_workers: int) -> Iterator[Any]:
    """One epoch after the other."""
    return endless(Streamed(folder, case), litdata.StreamingDataLoader, case, num_workers)
