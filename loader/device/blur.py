"""How does an image look out of focus?"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

from halofeed.loader.device.augmentation import DeviceAugmentation, Pixels
from halofeed.loader.device.draws import Draw
from halofeed.loader.device.ops import Array

_REACH = 3
"""Deviations at which the kernel ends."""


@dataclass(frozen=True, kw_only=True)
class GaussianBlur(DeviceAugmentation):
    """Averages about each pixel by a Gaussian of deviation `sigma_pixels`, cut off at three times the upper bound.

    Weights beyond the border of the source are left out, and the others sum to 1.

    Args:
        depth: along the first axis of volumes too; else each slice (of clips each frame) by itself.
    """

    least: ClassVar = {"sigma_pixels": 0}
    sigma_pixels: tuple[float, float] = (0.5, 1.0)
    depth: bool = False

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Blurred along one axis after the other."""
        axes = range(1, len(pixels.sizes) + 1)
        image = pixels.image
        for axis in axes if self.depth else axes[-2:]:
            image = pixels.ops.if_any(draw.chosen, functools.partial(self._along, axis, pixels, draw), image)
        return image

    def _along(self, axis: int, pixels: Pixels, draw: Draw, image: Array) -> Array:
        """Blurred along one axis."""
        ops = pixels.ops
        sigma = ops.maximum(ops.reshape(draw.between(self.sigma_pixels, 0), (-1, 1)), 1e-3)
        reach = math.ceil(_REACH * self.sigma_pixels[1])
        shifts = range(-reach, reach + 1)
        weights = [
            ops.exp(-(shift**2) / (2 * sigma**2)) * ops.cast(pixels.shows_source(axis, shift), image.dtype)
            for shift in shifts
        ]
        whole = ops.maximum(sum(weights), 1e-12)
        return sum(
            pixels.along(axis, weight / whole) * ops.shifted(image, axis, shift)
            for shift, weight in zip(shifts, weights, strict=True)
        )
