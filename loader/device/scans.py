"""What differs between scans: the window that a CT is seen through, and how evenly an MR coil receives?"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from halofeed.loader.device.augmentation import DeviceAugmentation, Pixels
from halofeed.loader.device.draws import Draw
from halofeed.loader.device.ops import Array
from halofeed.schemas.errors import UsageError

_ORDER = 3
"""Half waves along all axes together, of the finest pattern of a bias field."""


@dataclass(frozen=True, kw_only=True)
class HUWindow(DeviceAugmentation):
    """Shows a CT through a window of random center and width, stretched to reach from black to white.

    What lies outside is black or white. The volume must be stored in Hounsfield units. `normalization = "foreground"`
    goes with it: its limits are black and white, so that evaluation sees the window between them.
    """

    least: ClassVar = {"center_hu": -math.inf, "width_hu": 1}
    center_hu: tuple[float, float] = (30.0, 60.0)
    width_hu: tuple[float, float] = (300.0, 500.0)

    def check(self, channels: int, stored: str) -> None:
        """Only what is wider than eight bits."""
        if stored == "uint8":
            raise UsageError(
                "device augmentation HUWindow: expected Hounsfield units, the images are uint8; leave it out, or "
                "convert scans as int16"
            )

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Through the window."""
        ops = pixels.ops
        center = draw.between(self.center_hu, (pixels.black + pixels.white) / 2)
        width = draw.between(self.width_hu, pixels.span, 2)
        low = center - width / 2
        seen = pixels.black + (ops.clip(pixels.image, low, low + width) - low) * (pixels.span / width)
        return ops.where(draw.spread(draw.chosen), seen, pixels.image)


@dataclass(frozen=True, kw_only=True)
class BiasField(DeviceAugmentation):
    """Multiplies an MR image by a field that is smooth over all of it, from exp(-strength) to exp(strength).

    The field's logarithm is a sum of cosines of at most three half waves, drawn from -1 to 1 each.

    Args:
        zero: the stored value that stands for no signal.
    """

    least: ClassVar = {"strength": 0}
    strength: tuple[float, float] = (0.1, 0.4)
    zero: float = 0.0

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Brighter here and darker there."""
        ops, axes = pixels.ops, len(pixels.sizes)
        waves = [self._waves(pixels, axis) for axis in range(1, axes + 1)]
        orders = [
            each for each in itertools.product(range(_ORDER + 1), repeat=axes) if 0 < sum(each) <= _ORDER
        ]
        drawn = {each: draw.spread(2 * draw.uniform[:, 2 + place] - 1) for place, each in enumerate(orders)}

        def total(fixed: tuple[int, ...]) -> Array | None:
            """The sum of all patterns that begin so, the last axes first: few terms are as large as the image."""
            if len(fixed) == axes:
                return drawn.get(fixed)
            parts = [(wave, total((*fixed, order))) for order, wave in enumerate(waves[len(fixed)])]
            terms = [wave * part for wave, part in parts if part is not None]
            return sum(terms[1:], terms[0]) if terms else None

        most = sum(ops.absolute(one) for one in drawn.values())
        share = draw.between(self.strength, 0) / ops.maximum(most, 1e-6)
        return pixels.image + (pixels.image - self.zero) * ops.expm1(share * total(()))

    def _waves(self, pixels: Pixels, axis: int) -> list[Array]:
        """Cosines of 0, 1, 2, ... half waves along an axis, as they go with the image."""
        ops, size = pixels.ops, pixels.sizes[axis - 1]
        place = (ops.cast(ops.numbers((size,)), pixels.image.dtype) + 0.5) * (math.pi / size)
        return [pixels.along(axis, ops.cos(place * float(order))) for order in range(_ORDER + 1)]
