"""In which order are the tiles of scans predicted? Scan by scan, so that one scan at a time is gathered.

Records are stored in the order of their ids, which mixes the tiles of all scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from halofeed.loader import Loader
from halofeed.loader.mesh import mesh_specs, place_batch
from halofeed.schemas.errors import UsageError
from halofeed.schemas.partition import Partition
from halofeed.trainer.origins import Origins
from halofeed.trainer.shared.task import Host


def tiles_in_order(origins: Origins) -> list[int]:
    """The records' numbers, sorted by scan and tile."""
    places = [(origin.key, int(origin.numbers["tile"]), number) for number, origin in enumerate(origins)]
    return [number for _, _, number in sorted(places)]


class OrderedRecords:
    """The records of a split once each in an order of one's own, in batches, the last one padded.

    It stands for a `Loader` in `halofeed.trainer.evaluate.Predictor`.

    Args:
        loader: of the split, with training=False and batch_size=1.
        order: the records' numbers.
        batch_size: rows of a batch.
    """

    def __init__(self, loader: Loader, order: Sequence[int], batch_size: int) -> None:
        if loader.batch_size != 1 or loader.steps != loader.num_records:
            raise UsageError("loader: expected one with training=False and batch_size=1")
        self._loader, self._order = loader, list(order)
        self.num_records, self.batch_size = len(self._order), batch_size

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return -(-self.num_records // self.batch_size)

    def batch(self, step: int) -> Host:
        """One batch [row, ...]; rows past the last record repeat it, with `valid` False and id -1."""
        return self._rows(step, 0, self.batch_size)

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterator[Mapping[str, jax.Array]]:
        """The batches as global arrays, as `Loader.on_mesh` gives them."""
        shapes = {
            name: (self.batch_size, *spec.shape[1:])
            for name, spec in self._loader.spec.items()
            if not spec.dtype.hasobject
        }
        specs = mesh_specs(mesh, partition, shapes)
        for step in range(start_step, self.steps):
            yield place_batch(mesh, specs, shapes, partial(self._rows, step))

    def _rows(self, step: int, start: int, stop: int) -> dict[str, NDArray[Any]]:
        places = range(step * self.batch_size + start, step * self.batch_size + stop)
        rows = [self._loader.batch(self._order[min(place, self.num_records - 1)]) for place in places]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in self._loader.spec}
        past_last = np.array([place >= self.num_records for place in places])
        batch["valid"] = batch["valid"] & ~past_last
        batch["id"] = np.where(past_last, -1, batch["id"])
        return batch
