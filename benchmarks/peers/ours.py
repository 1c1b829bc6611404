"""halofeed's own loader, in each of its ways; its data sets are that of the source, and a packed one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from peers.common import Case, Source


def write(source: Source, folder: Path) -> None:
    """The data sets that were converted for the source."""
    for name in ("set", "packed"):
        if (source.folder / name).exists():
            (folder / name).symlink_to((source.folder / name).resolve())


def batches(folder: Path, case: Case, way: str) -> Iterator[dict[str, Any]]:
    """With verify="first" once everything is verified, or ("first", "packed_first") while it is."""
    place = folder / ("packed" if way.startswith("packed") else "set")
    if way in ("first", "packed_first"):
        loader, numbers = opened(place, case, 1)
        return ours(loader.batches(), numbers)
    loader, numbers = loader_after_epochs(place, case, "fast" if way == "fast" else "accurate")
    if way == "dataset":
        return ours(loader.dataset(repeat=True).as_numpy_iterator(), numbers)
    if way == "on_mesh":
        return on_mesh(loader, numbers)
    return ours(loader.batches(), numbers)


def opened(folder: Path, case: Case, epochs: int | None, decode: str = "accurate") -> tuple[Any, Any]:
    """The case's loader, and the ids of all records by number."""
    from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop

    flips = [FlipLeftRight(), FlipUpDown(), FlipDepth()] if case.has_labels else [FlipLeftRight()]
    augment = [*flips, RandomCrop(*case.crop)] if case.crop else []
    loader = Loader(folder, batch_size=case.batch_size, augment=augment, num_epochs=epochs, decode=decode)
    ids = [loader.stored(number).id for number in range(loader.num_records)]
    return loader, {identity: number for number, identity in enumerate(ids)}


@cache
def loader_after_epochs(folder: Path, case: Case, decode: str) -> tuple[Any, Any]:
    """The case's loader, once it has verified every record; crops show all of one only in several epochs."""
    loader, numbers = opened(folder, case, None, decode)
    for _ in zip(range(loader.steps_per_epoch * (4 if case.crop else 1)), loader.batches(), strict=False):
        pass
    return loader, numbers


def ours(stream: Iterator[dict[str, Any]], numbers: dict[int, int]) -> Iterator[dict[str, Any]]:
    """The batches, with the records' numbers for their ids."""
    from halofeed.loader import join_id

    for batch in stream:
        yield {**batch, "number": np.array([numbers[identity] for identity in join_id(batch["id"]).tolist()])}


def on_mesh(loader: Any, numbers: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Batches as arrays on one device, each waited for."""
    import jax

    from halofeed.loader import join_id
    from halofeed.schemas.partition import Partition
    from halofeed.trainer.mesh import make_mesh

    for placed in loader.on_mesh(make_mesh(1), Partition()):
        jax.block_until_ready(placed)
        ids = join_id(placed["id"]).tolist()
        yield {**placed, "number": np.array([numbers.get(identity, 0) for identity in ids])}
