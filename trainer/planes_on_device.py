"""Batches of color planes for training: half as many bytes are copied to the devices, which compute the colors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from halofeed.loader import Loader
from halofeed.loader.device import to_rgb
from halofeed.loader.planes import CHROMA, LUMA
from halofeed.loader.reading import IMAGE
from halofeed.schemas.partition import Partition
from halofeed.system.errors import UsageError


class PlanesOnDevice:
    """The batches of a loader of RGB pixels, bit for bit, whose pixels are made on the devices.

    It is a `BatchSource`. Its states are those of the loader, so a run may resume with either.

    Args:
        loader: the loader of RGB pixels.
        planes: a loader with the same arguments and color="planes".
    """

    def __init__(self, loader: Loader, planes: Loader) -> None:
        self._loader, self._planes = loader, planes

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterator[Mapping[str, jax.Array]]:
        """Yield global batches from `start_step` on, split over the cores, as `Loader.on_mesh`."""
        color = None
        for batch in self._planes.on_mesh(mesh, partition, start_step):
            luma, chroma = batch.pop(LUMA), batch.pop(CHROMA)
            if color is None:  # pixels are split like the luma
                color = jax.jit(to_rgb, out_shardings=luma.sharding)
            yield {IMAGE: color(luma, chroma), **batch}

    def state(self, step: int) -> dict[str, Any]:
        """Return the loader's state."""
        return self._loader.state(step)

    def restore(self, state: Mapping[str, Any]) -> int:
        """Return the step to resume with, as `Loader.restore`."""
        return self._loader.restore(state)


def colored_on_device(
    loader: Loader, options: Mapping[str, Any], partition: Partition
) -> Loader | PlanesOnDevice:
    """Return the source of the same batches that copies planes to the devices, or the loader if that is impossible.

    It is impossible for pictures that are not stored as color planes, for augmentations whose windows may begin at an
    odd row or column, and for partitions into parts with odd sides.

    Args:
        loader: the loader of RGB pixels.
        options: the arguments that made it.
        partition: how batches are split.
    """
    if not loader.manifest.field(IMAGE).holds_planes:
        return loader
    # `Loader` refuses planes for augmentations and shapes that they cannot show.
    try:
        planes = Loader(**options, color="planes")
    except UsageError:
        return loader
    sides, parts = planes.row_spec[LUMA].shape, partition.dims.get(IMAGE) or (1,) * 4
    if any(side % (2 * count) for side, count in zip(sides[:2], parts[1:3], strict=False)):
        return loader
    return PlanesOnDevice(loader, planes)
