"""How do images look under another light or camera: brighter, flatter, grayer, of another tint, noisier?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halofeed.loader.device.augmentation import DeviceAugmentation, Pixels
from halofeed.loader.device.draws import Draw
from halofeed.loader.device.ops import Array
from halofeed.schemas.errors import UsageError

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Red, green and blue as brightness and two axes of color, as NTSC has them."""
_QUARTER_TURN = np.linalg.inv(_TO_YIQ) @ np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _TO_YIQ
"""Colors turned by 90° about gray."""


@dataclass(frozen=True, kw_only=True)
class Brightness(DeviceAugmentation):
    """Adds the same to every value: `shift` of the way from black to white."""

    least: ClassVar = {"shift": -math.inf}
    shift: tuple[float, float] = (-0.2, 0.2)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Shifted."""
        return pixels.image + pixels.span * draw.between(self.shift, 0)


@dataclass(frozen=True, kw_only=True)
class Contrast(DeviceAugmentation):
    """Stretches each channel about its mean over the whole source by `factor`."""

    least: ClassVar = {"factor": 0}
    factor: tuple[float, float] = (0.75, 1.25)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Stretched."""
        return pixels.image + (pixels.image - pixels.mean()) * (draw.between(self.factor, 1) - 1)


class _OfColor(DeviceAugmentation):
    """A change of images that are red, green and blue."""

    def check(self, channels: int, stored: str) -> None:
        """Only color."""
        if channels != 3:
            raise UsageError(
                f"device augmentation {type(self).__name__}: expected red, green and blue, the images have {channels} "
                "channel(s); leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Saturation(_OfColor):
    """Stretches colors away from the gray that is as bright by `factor`; 0 leaves gray."""

    least: ClassVar = {"factor": 0}
    factor: tuple[float, float] = (0.7, 1.3)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Stretched."""
        return pixels.image + (pixels.image - pixels.gray()) * (draw.between(self.factor, 1) - 1)


@dataclass(frozen=True, kw_only=True)
class Hue(_OfColor):
    """Turns colors about gray by an angle, 360 once around; brightness stays (in YIQ, as analog television has it)."""

    least: ClassVar = {"degrees": -math.inf}
    degrees: tuple[float, float] = (-18.0, 18.0)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Turned."""
        ops, image = pixels.ops, pixels.image
        angle = draw.between(self.degrees, 0) * (math.pi / 180)
        turned = sum(
            image[..., channel : channel + 1] * ops.constant(_QUARTER_TURN[:, channel], image.dtype)
            for channel in range(3)
        )
        return image + (image - pixels.gray()) * (ops.cos(angle) - 1) + turned * ops.sin(angle)


@dataclass(frozen=True, kw_only=True)
class Gamma(DeviceAugmentation):
    """Raises what lies above black, as a share of the way to white, to the power `exponent`; above 1 darkens."""

    least: ClassVar = {"exponent": 0}
    exponent: tuple[float, float] = (0.7, 1.5)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """Bent; values of black and below stay."""
        ops, image = pixels.ops, pixels.image
        exponent = draw.between(self.exponent, 1)
        share = (image - pixels.black) / pixels.span
        bent = pixels.black + pixels.span * ops.exp(exponent * ops.log(ops.maximum(share, 1e-12)))
        return ops.where((share > 0) & (exponent != 1), bent, image)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(DeviceAugmentation):
    """Adds to every value of every channel a normal number of its own; `deviation` is a share of black to white."""

    least: ClassVar = {"deviation": 0}
    deviation: tuple[float, float] = (0.0, 0.05)

    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """With noise."""
        strength = pixels.span * draw.between(self.deviation, 0)
        return pixels.image + strength * draw.normal(tuple(pixels.image.shape[1:]))
