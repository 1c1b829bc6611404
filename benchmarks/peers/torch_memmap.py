"""torch's DataLoader over one NumPy file in memory-mapped form; of JPEG over a file with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from peers.common import Case, Source, shown


class Mapped(Dataset):
    """Rows of the map, each as torch's collation takes it."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.source, self.case = Source(folder / "source"), case

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return shown(self.source[number], self.case)


def write(source: Source, folder: Path) -> None:
    """The source is such a file."""
    (folder / "source").symlink_to(source.folder)


def batches(folder: Path, case: Case, num_workers: int) -> Iterator[Any]:
    """One epoch after the other."""
    return endless(Mapped(folder, case), DataLoader, case, num_workers, shuffle=True)


def endless(data: Any, kind: Any, case: Case, num_workers: int, **options: Any) -> Iterator[Any]:
    """Whole batches of a torch loader, one epoch after the other, as NumPy arrays."""
    torch.set_num_threads(1)
    loader = kind(
        data,
        batch_size=case.batch_size,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
        **options,
    )
    while True:
        for batch in loader:
            yield {key: value.numpy() for key, value in batch.items()}
