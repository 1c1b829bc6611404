"""Those operations of RandAugment that change colors, on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from halofeed.loader.device.augmentation import DeviceImages, Draw
from halofeed.loader.device.ops import DeviceArray
from halofeed.loader.device.photometric import OfColor
from halofeed.system.errors import UsageError

_OPERATIONS = 14
"""Operations of RandAugment: identity, five that move pixels, and those of this file."""
_MAX_OPERATIONS, _MAX_MAGNITUDE = 8, 10
_FIRST_NUMBER = 1
_LEVELS = 256
_MAX_CHANGE = 0.9
"""Change of the factor of brightness, contrast, color and sharpness at magnitude 10."""
_MAX_LOST_BITS = 4
_SMOOTH_CENTER, _SMOOTH_SUM = 5, 13
"""Pillow's `ImageFilter.SMOOTH`: the pixel five times and its eight neighbors once, divided by 13."""
Change = Callable[[DeviceImages, float, DeviceArray], DeviceArray]
"""Function of images, magnitude (0 to 1) and factors (around 1, float32 [batch, 1, 1, 1]) that returns images."""


@dataclass(frozen=True, kw_only=True)
class RandAugmentColors(OfColor):
    """Changes colors by the operations of RandAugment, for classification of 8-bit pictures.

    Each of `operations` draws is one of RandAugment's 14 with equal probability, and here eight of them apply:
    auto contrast, equalize, solarize, color, posterize, contrast, brightness and sharpness. `RandAugmentMoves` of the
    loader has the five that move pixels; both draw by themselves, so that the number of changes of an image varies
    around the paper's. Results are Pillow's up to rounding.

    Args:
        operations: number of draws, 1 to 8; N of the paper.
        magnitude: strength of every operation, 0 to 10; M of the paper.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation" (arXiv 1909.13719), with the strengths of
    AutoAugment's table.

    >>> RandAugmentColors(magnitude=5).operations
    2
    """

    probability: float = 1.0
    operations: int = 2
    magnitude: float = 9.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.operations, "__index__") or not 1 <= self.operations <= _MAX_OPERATIONS:
            raise UsageError(
                f"RandAugmentColors: operations: expected 1 to {_MAX_OPERATIONS}, got {self.operations!r}"
            )
        if not 0 <= self.magnitude <= _MAX_MAGNITUDE:
            raise UsageError(
                f"RandAugmentColors: magnitude: expected 0 to {_MAX_MAGNITUDE}, got {self.magnitude!r}"
            )

    def check(self, channels: int, stored: str) -> None:
        super().check(channels, stored)
        # Solarize and posterize are defined by the 256 levels.
        if stored != "uint8":
            raise UsageError(
                f"device augmentation RandAugmentColors: expected 8-bit pictures, the images are {stored}; leave it out"
            )

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        ops, image = pixels.ops, pixels.image
        share = self.magnitude / _MAX_MAGNITUDE
        for slot in range(self.operations):
            drawn = ops.cast(draw.uniform[:, _FIRST_NUMBER + slot] * float(2 * _OPERATIONS), "int32")
            factor = draw.spread(1 + _MAX_CHANGE * share * (2 * ops.cast(drawn % 2, image.dtype) - 1))
            for place, change in enumerate(CHANGES.values()):
                chosen = draw.chosen & (drawn // 2 == place)
                changed = functools.partial(_changed, change, pixels, draw, chosen, share, factor)
                image = ops.if_any(chosen, changed, image)
        return image


def _changed(
    change: Change,
    pixels: DeviceImages,
    draw: Draw,
    chosen: DeviceArray,
    share: float,
    factor: DeviceArray,
    image: DeviceArray,
) -> DeviceArray:
    """Return the image with one change of the chosen examples, within black and white."""
    changed = change(replace(pixels, image=image), share, factor)
    return pixels.ops.where(draw.spread(chosen), pixels.ops.clip(changed, pixels.black, pixels.white), image)


def _auto_contrast(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Stretch each channel so that its extremes over the source become black and white."""
    ops, inside = pixels.ops, pixels.inside()
    low = ops.least(ops.where(inside, pixels.image, pixels.white))
    high = ops.greatest(ops.where(inside, pixels.image, pixels.black))
    stretched = pixels.black + (pixels.image - low) * (pixels.span / ops.maximum(high - low, 1e-6))
    # A channel of one value stays.
    return ops.where(high > low, stretched, pixels.image)


def _solarize(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Invert values from a threshold on."""
    threshold = pixels.black + (1 - share) * _LEVELS
    return pixels.ops.where(
        pixels.image >= threshold, pixels.black + pixels.white - pixels.image, pixels.image
    )


def _posterize(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Keep the upper bits of each value."""
    step = float(2 ** round(_MAX_LOST_BITS * share))
    whole = pixels.ops.cast((pixels.image - pixels.black) / step, "int32")
    return pixels.black + pixels.ops.cast(whole, pixels.image.dtype) * step


def _brightness(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    return pixels.black + (pixels.image - pixels.black) * factor


def _color(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    gray = pixels.gray()
    return gray + (pixels.image - gray) * factor


def _contrast(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Scale differences from the mean brightness of the source."""
    mean = replace(pixels, image=pixels.gray()).mean()
    return mean + (pixels.image - mean) * factor


def _sharpness(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Scale differences from the smoothed image; the border of each picture or frame stays."""
    ops, image = pixels.ops, pixels.image
    total, axes = image, range(len(pixels.sizes) - 1, len(pixels.sizes) + 1)
    for axis in axes:
        total = total + ops.shifted(total, axis, 1) + ops.shifted(total, axis, -1)
    smooth = (total + (_SMOOTH_CENTER - 1) * image) / _SMOOTH_SUM
    sharper = smooth + (image - smooth) * factor
    whole = [
        pixels.along(axis, pixels.shows_source(axis, 1) & pixels.shows_source(axis, -1)) for axis in axes
    ]
    return ops.where(whole[0] & whole[1], sharper, image)


def _equalize(pixels: DeviceImages, share: float, factor: DeviceArray) -> DeviceArray:
    """Spread the levels of each channel so that all are about equally frequent over the source.

    In integers, as Pillow's `ImageOps.equalize`. Of an image that is split, cores exchange counts alone.
    """
    ops = pixels.ops
    level = ops.cast(ops.clip(pixels.image - pixels.black, 0.0, float(_LEVELS - 1)), "int32")
    counts = ops.counts(ops.where(pixels.inside(), level, _LEVELS), _LEVELS)
    total, sums = ops.sum(counts, 1), ops.cumulated(counts, 1)
    # Pillow's step leaves out the pixels of the highest level.
    is_highest = (sums == total) & (counts > 0)
    step = (total - ops.sum(ops.where(is_highest, counts, 0), 1)) // (_LEVELS - 1)
    table = ops.clip((step // 2 + sums - counts) // ops.maximum(step, 1), 0, _LEVELS - 1)
    # A channel of one value, or of too few pixels, stays.
    own = ops.reshape(ops.cast(ops.numbers((_LEVELS,)), "int32"), (1, _LEVELS, 1))
    changed = ops.mapped(ops.where(step > 0, table, own), level)
    return pixels.black + ops.cast(changed, pixels.image.dtype)


CHANGES: dict[str, Change] = {
    "auto contrast": _auto_contrast,
    "solarize": _solarize,
    "posterize": _posterize,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "equalize": _equalize,
}
"""Changes by name, in the order in which `RandAugmentColors` numbers them."""
