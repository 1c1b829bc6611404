"""What does a noisy sensor add?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from halofeed.loader.device.augmentation import DeviceAugmentation, Pixels
from halofeed.loader.device.draws import Draw
from halofeed.loader.device.ops import Array


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(DeviceAugmentation):
    """Adds to every value of every channel a normal number of its own; `deviation` is a share of black to white."""

    least: ClassVar = {"deviation": 0}
    deviation: tuple[float, float] = (0.0, 0.05)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """With noise."""
        strength = pixels.span * draw.between(self.deviation, 0)
        return pixels.image + strength * draw.normal(tuple(pixels.image.shape[1:]))
