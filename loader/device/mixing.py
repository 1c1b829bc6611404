"""Mixing of a batch's images and their classes on the device, for classification: mixup and CutMix."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.device.augmentation import BatchAugmentation, Draw
from halofeed.loader.device.ops import DeviceArray, Ops
from halofeed.loader.reading import IMAGE
from halofeed.system.errors import UsageError

OWN_SHARE = "own_share"
"""Key of the share of an image's own classes in its target, float32 [batch]; the rest is for those of its partner."""
PARTNER = "partner_"
"""Prefix of the key of a partner's classes: `partner_label`, `partner_labels`."""
_CLASS_KEYS = {"label": 1, "labels": 2}
"""Keys of classes of whole images, with their number of axes."""
_SHARE_NUMBER, _KIND_NUMBER, _TOP_NUMBER, _LEFT_NUMBER = 1, 2, 3, 4
"""Indices of the random numbers for the share, for mixup or CutMix, and for the center of CutMix's box."""
_KNOTS = 1 << 12
_CELLS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class BatchMix(BatchAugmentation):
    """Mixes each image with the one before it in the batch, and their classes with the same weights.

    Mixup takes the weighted mean of both images, CutMix a box of the other one. The weight of the image itself is drawn
    from Beta(alpha, alpha); in CutMix it is the share of pixels outside of the box. With both alphas above 0, each
    example has either one with equal probability.

    Batches are shuffled, so that the image before is a random one. It is at hand on almost any core, whereas a random
    partner would move whole images between all hosts. The result for a batch is a function of seed, ids and epochs:
    the same on any number of hosts, if the batch is a global array of JAX. Padding is mixed as any pixel.

    It is for classification, and must be the last in the list. The batch has `partner_label` (or `partner_labels`) and
    `own_share` afterwards, from which the loss makes its targets.

    Args:
        mixup_alpha: parameter of the distribution of weights in mixup; 0 is without mixup.
        cutmix_alpha: the same for CutMix; 1 draws all areas of a box equally often.

    Raises:
        UsageError: an alpha is below 0, or both are 0.

    Source: Zhang et al., "mixup: Beyond empirical risk minimization" (arXiv 1710.09412); Yun et al., "CutMix" (arXiv
    1905.04899), algorithm 1.

    >>> BatchMix(mixup_alpha=0.2).probability
    1.0
    """

    probability: float = 1.0
    mixup_alpha: float = 0.2
    cutmix_alpha: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mixup_alpha", "cutmix_alpha"):
            alpha = getattr(self, name)
            if not isinstance(alpha, int | float) or not 0 <= alpha < float("inf"):
                raise UsageError(f"BatchMix: {name}: expected a number of 0 or more, got {alpha!r}")
        if not self.mixup_alpha and not self.cutmix_alpha:
            raise UsageError(
                "BatchMix: expected mixup_alpha or cutmix_alpha above 0; to mix nothing, leave BatchMix out"
            )

    def combine(self, batch: Mapping[str, DeviceArray], draw: Draw) -> dict[str, DeviceArray]:
        """Return the batch with mixed images, the classes of the partners and the shares of the images themselves."""
        ops, image = draw.ops, batch[IMAGE]
        key = class_key(batch)
        partner = ops.rolled(image)
        chosen = draw.chosen
        if "valid" in batch:
            # A row that does not count has no image to mix.
            chosen = chosen & batch["valid"] & ops.rolled(batch["valid"])
        number = draw.uniform[:, _SHARE_NUMBER]
        is_cut = self._is_cut(draw)
        mixup, cutmix = (
            ops.where(chosen, _beta(ops, alpha, number), 1.0)
            for alpha in (self.mixup_alpha, self.cutmix_alpha)
        )
        box, outside = _box(draw, cutmix, image.shape)
        weight = draw.spread(ops.cast(mixup, image.dtype))
        blended = image * weight + partner * (1 - weight)
        cut = ops.where(box, partner, image)
        mixed = ops.where(draw.spread(is_cut), cut, blended)
        return {
            **batch,
            IMAGE: mixed,
            PARTNER + key: ops.rolled(batch[key]),
            OWN_SHARE: ops.where(is_cut, outside, mixup),
        }

    def _is_cut(self, draw: Draw) -> DeviceArray:
        """Return which examples are mixed by CutMix, bool [batch]."""
        share = 0.5 if self.mixup_alpha and self.cutmix_alpha else float(self.cutmix_alpha > 0)
        return draw.uniform[:, _KIND_NUMBER] < share


def class_key(batch: Mapping[str, DeviceArray]) -> str:
    """Return the key of the classes of a batch's images, `label` or `labels`.

    Raises:
        UsageError: the batch has no classes of whole images, but boxes or label maps.
    """
    for key, axes in _CLASS_KEYS.items():
        if key in batch and len(batch[key].shape) == axes:
            return key
    raise UsageError(
        "BatchMix: expected classes of whole images, `label` [batch] or `labels` [batch, class], which boxes and label "
        "maps are not; leave BatchMix out, or for boxes use Loader(augment=[MixUp()])"
    )


def _box(draw: Draw, share: DeviceArray, shape: Any) -> tuple[DeviceArray, DeviceArray]:
    """Return the box of CutMix over height and width, bool [batch, 1, ..., 1], and the share of pixels outside of it.

    The box has the sides of the image times sqrt(1 - share), and its center anywhere; it is cut off at the border.
    """
    cut = draw.ops.sqrt(1 - share)
    sides = [
        _side(draw, cut, axis, int(shape[axis]), number, len(shape))
        for axis, number in ((len(shape) - 3, _TOP_NUMBER), (len(shape) - 2, _LEFT_NUMBER))
    ]
    (rows, height), (columns, width) = sides
    return rows & columns, 1 - height * width


def _side(
    draw: Draw, cut: DeviceArray, axis: int, size: int, number: int, axes: int
) -> tuple[DeviceArray, DeviceArray]:
    """Return which places of an axis a box covers, to broadcast with the image, and their share of the axis."""
    ops = draw.ops
    center = ops.cast(draw.uniform[:, number] * float(size), "int32")
    half = ops.cast(cut * float(size), "int32") // 2
    low, high = ops.clip(center - half, 0, size), ops.clip(center + half, 0, size)
    place = ops.reshape(
        ops.cast(ops.numbers((size,)), "int32"), [size if at == axis else 1 for at in range(axes)]
    )
    covered = ops.cast(high - low, np.float32) / float(size)
    return (place >= draw.spread(low)) & (place < draw.spread(high)), covered


def _beta(ops: Ops, alpha: float, uniform: DeviceArray) -> DeviceArray:
    """Return numbers of the distribution Beta(alpha, alpha), float32 [batch], for evenly distributed ones."""
    if not alpha:
        return uniform * 0 + 1
    table = ops.constant(beta_quantiles(alpha).astype(np.float32), np.float32)
    position = uniform * float(_KNOTS)
    low = ops.cast(position, "int32")
    below, above = ops.taken(table, low), ops.taken(table, low + 1)
    return below + (above - below) * (position - ops.cast(low, np.float32))


@functools.cache
def beta_quantiles(alpha: float) -> NDArray[np.float64]:
    """Return the quantiles of Beta(alpha, alpha) at 0, 1 / 4096, ..., 1.

    Between them, values are interpolated linearly, so that the distribution function differs by at most 1 / 4096.

    Args:
        alpha: parameter above 0.

    >>> beta_quantiles(1.0)[[0, 1024, 4096]].round(6).tolist()
    [0.0, 0.25, 1.0]
    """
    # Below 1 the density has no bound at 0. With v = s ** alpha, the integral of (s (1 - s)) ** (alpha - 1) ds becomes
    # one of a bounded function up to 1/2. Above 1 nearly all of these v would be next to 1/2.
    power = min(alpha, 1.0)
    v = np.linspace(0, 0.5**power, _CELLS + 1)
    s = v ** (1 / power)
    # 4 s (1 - s) is 1 at the maximum, so that no height there becomes 0.
    height = (1 - s) ** (alpha - 1) if alpha <= 1 else (4 * s * (1 - s)) ** (alpha - 1)
    area = np.concatenate([[0], np.cumsum((height[1:] + height[:-1]) / 2)])
    half = np.interp(np.arange(_KNOTS // 2 + 1) / _KNOTS, 0.5 * area / area[-1], v) ** (1 / power)
    # Heights next to 0 may round to 0, and then many v have the area 0.
    half[0] = 0
    return np.concatenate([half, 1 - half[-2::-1]])
