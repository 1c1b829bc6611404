"""How is a batch augmented where it lies?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from halofeed.loader.batch import EPOCH, ID, SIZE
from halofeed.loader.device.augmentation import DeviceAugmentation, Pixels
from halofeed.loader.device.draws import draw_all
from halofeed.loader.device.ops import Array, ops_of
from halofeed.loader.reading import EXTENT, IMAGE
from halofeed.schemas.errors import UsageError
from halofeed.schemas.manifest import Manifest

_EIGHT_BITS = (0.0, 255.0)


def augment_on_device(
    batch: Mapping[str, Array],
    augmentations: Sequence[DeviceAugmentation],
    *,
    seed: int,
    epoch: Any = None,
    values: tuple[float, float] | None = None,
) -> dict[str, Array]:
    """A batch whose images are changed in order, to be called within a jitted step; all else stays.

    What becomes of an example is a function of seed, epoch and its id: the same in any batch, on any number of hosts,
    and split over any cores. Give seeds below 2**64. TensorFlow's tensors are changed by TensorFlow, with the same
    numbers drawn.

    Padding stays as it is, where the batch says what that is: of pictures `size`, of volumes `extent`
    (`Loader(include=device_keys(manifest))`). Means are those of the source, and a blur takes nothing from beyond it.
    Without these keys all of an image counts as source.

    Args:
        batch: `image` [batch, ..., channel] of any dtype, in stored units; `id` uint32 [batch, 2] as on a mesh, of
            TensorFlow int64 [batch]; `epoch` int32 [batch] (`Loader(include=["epoch"])`).
        augmentations: of `halofeed.loader.device`.
        seed: 0 to 2**64 - 1.
        epoch: in place of the batch's, int32 [batch] or one number for all.
        values: which values count as black and white; of uint8 0 and 255, of all others needed.
            `Normalization.values` gives them.

    Returns:
        The batch with `image` float32, in the same units; what was uint8 is clipped to 0 to 255.

    Raises:
        UsageError: a key or `values` is missing, or an augmentation does not go with the images.

    >>> from halofeed.loader.device import Brightness
    >>> batch = {"image": np.zeros((1, 2, 2, 1), np.uint8), "id": np.array([7]), "epoch": np.array([0])}
    >>> brighter = [Brightness(shift=(0.2, 0.2), probability=1.0)]
    >>> augment_on_device(batch, brighter, seed=3)["image"][0, 0, 0].tolist()
    [51.0]
    """
    image = batch[IMAGE]
    ops = ops_of(image)
    stored = np.dtype(getattr(image.dtype, "as_numpy_dtype", image.dtype)).name
    if values is None and stored != "uint8":
        raise UsageError(
            f"values: images of {stored} do not say which values count as black and white; pass values=(low, high), "
            "such as Normalization.of(loader.manifest).values()"
        )
    for key, given, cure in (
        (ID, ID in batch, "give the batch as the loader does"),
        (EPOCH, EPOCH in batch or epoch is not None, 'say Loader(include=["epoch"]), or pass epoch='),
    ):
        if not given:
            raise UsageError(f"batch: expected {key!r}, from which augmentations are drawn; {cure}")
    check_device_augmentations(augmentations, int(image.shape[-1]), stored)
    black, white = values if values is not None else _EIGHT_BITS
    before = ops.cast(image, ops.wide(image.dtype))
    pixels = Pixels(ops=ops, image=before, black=black, white=white, extent=_extent(batch))
    epochs = batch[EPOCH] if epoch is None else epoch
    probabilities = [one.probability for one in augmentations]
    draws = draw_all(ops, seed, batch[ID], epochs, probabilities, len(image.shape))
    for augmentation, draw in zip(augmentations, draws, strict=True):
        pixels = replace(pixels, image=augmentation.apply(pixels, draw))
    after = pixels.image
    if stored == "uint8":
        after = ops.clip(after, *_EIGHT_BITS)
    if pixels.extent is not None:
        after = ops.where(pixels.inside(), after, before)
    return {**batch, IMAGE: after}


def check_device_augmentations(augmentations: Sequence[Any], channels: int, stored: str) -> None:
    """Refuse what is no augmentation of images of so many channels, stored in this dtype.

    Raises:
        UsageError: it says which, and why.
    """
    for one in augmentations:
        if not isinstance(one, DeviceAugmentation):
            raise UsageError(
                f"expected augmentations of halofeed.loader.device, such as Brightness(), got {one!r}"
            )
        one.check(channels, stored)


def device_keys(manifest: Manifest) -> tuple[str, ...]:
    """What `Loader(include=...)` takes for `augment_on_device`: epochs, and where padding begins."""
    where = [EXTENT] if any(field.name == EXTENT for field in manifest.fields) else []
    return (EPOCH, *where, *([] if manifest.kind.pads_around else [SIZE]))


def _extent(batch: Mapping[str, Array]) -> tuple[tuple[Array, Array], ...] | None:
    """Of each axis between batch and channel, what shows the source; None where the batch does not say it."""
    if EXTENT in batch:
        return tuple((batch[EXTENT][:, 0, axis], batch[EXTENT][:, 1, axis]) for axis in range(3))
    if SIZE in batch:
        return tuple((batch[SIZE][:, axis] * 0, batch[SIZE][:, axis]) for axis in range(2))
    return None
