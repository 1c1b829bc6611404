"""Batches as MONAI's trainers take them: a dict of `image` and `label` with the channel first, and their affines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import ID, LABELLED, LABELS, Batch, BufferPool, join_id
from halofeed.loader.forms.epoch_batches import EpochBatches, with_fields
from halofeed.loader.reading import IMAGE, LABEL
from halofeed.loader.stream import Stream
from halofeed.system.errors import UsageError

if TYPE_CHECKING:
    import torch

_AFFINE = "affine"


def monai(
    loader: Stream,
    *,
    scale_range: tuple[float, float] | None = None,
    meta: bool = False,
    start_step: int = 0,
) -> EpochBatches[dict[str, Any]]:
    """Return epochs of the dicts that MONAI's networks, losses and `SupervisedTrainer` take.

    A batch has `image` float32 [row, channel, depth, height, width]; for segmentation `label` [row, 1, depth, height,
    width], or one channel for each class if classes overlap, and `labelled` bool [row]; for classification `label`
    int64 [row], or `labels` [row, class]; `id` int64 [row]; and for volumes `affine` float64 [row, 4, 4], which maps
    indices (depth, height, width) to millimeters in RAS orientation, as MONAI has affines. MONAI's own readers have the
    axes in another order, x first; their affines differ by the same order. Pictures have no depth and no affine.

    Args:
        loader: with its augmentations.
        scale_range: (low, high) of the stored values that become 0 and 1; others are clipped, as by MONAI's
            `ScaleIntensityRange(low, high, 0, 1, clip=True)`. None keeps the stored values.
        meta: return `image` and `label` as MONAI's MetaTensor with these affines.
        start_step: number of batches that an earlier process took.

    Raises:
        UsageError: `scale_range` is not a range.

    >>> data = halofeed.open("data/spleen/1.0.0")  # doctest: +SKIP
    >>> batches = halofeed.torch.monai(data.loader(batch_size=2), scale_range=(-160, 240))  # doctest: +SKIP
    """
    if scale_range is not None and not (len(scale_range) == 2 and scale_range[0] < scale_range[1]):
        raise UsageError(f"scale_range: expected a low and a higher value, got {scale_range!r}")
    stream = with_fields(loader, "torch.monai", [IMAGE], [_AFFINE])
    form = _Form(scale_range=scale_range, meta=meta, pool=BufferPool())
    return EpochBatches(stream, form, start_step=start_step)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Function from a batch to MONAI's dict."""

    scale_range: tuple[float, float] | None
    meta: bool
    pool: BufferPool

    def __call__(self, batch: Batch) -> dict[str, Any]:
        import torch

        found: dict[str, Any] = {
            IMAGE: channels_first(self.scaled(batch[IMAGE])),
            ID: torch.from_numpy(join_id(batch[ID])),
        }
        if LABEL in batch:
            found[LABEL] = label_tensor(batch[LABEL], batch[IMAGE].ndim)
        for name in (LABELS, LABELLED, _AFFINE):
            if name in batch:
                found[name] = torch.from_numpy(batch[name])
        if _AFFINE in batch:
            found[_AFFINE] = found[_AFFINE].double()
        if self.meta:
            self._add_meta(found)
        return found

    def scaled(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return float32 values, with 0 and 1 at the ends of the range if there is one."""
        if self.scale_range is None and images.dtype == np.float32:
            return images
        scaled = self.pool.empty(images.shape, np.float32)
        for source, target in zip(images, scaled, strict=True):  # a row stays in the cache for all steps
            target[...] = source
            if self.scale_range is not None:
                low, high = self.scale_range
                # The order of MONAI's ScaleIntensityRange, so that values are equal.
                target -= low
                target /= high - low
                np.clip(target, 0, 1, out=target)
        return scaled

    def _add_meta(self, found: dict[str, Any]) -> None:
        from monai.data import MetaTensor

        for name in (IMAGE, LABEL):
            if name in found and found[name].ndim > 2:
                found[name] = MetaTensor(found[name], affine=found.get(_AFFINE))
                found[name].is_batch = True


def channels_first(images: NDArray[Any]) -> torch.Tensor:
    """Return [row, channel, ...] of images whose channel is last, without a copy."""
    import torch

    return torch.from_numpy(images).movedim(-1, 1)


def label_tensor(label: NDArray[Any], image_axes: int) -> torch.Tensor:
    """Return labels on the image's grid as [row, 1 or class, ...], and labels of whole images as int64 [row]."""
    import torch

    # PyTorch computes little with uint16.
    values = label.astype(np.int32) if label.dtype == np.uint16 else label
    if label.ndim == 1:
        return torch.from_numpy(values.astype(np.int64))
    if label.ndim == image_axes:  # a channel for each class
        return channels_first(values)
    return torch.from_numpy(values)[:, None]
