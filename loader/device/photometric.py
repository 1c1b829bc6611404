"""Changes of pixel values on the device: normalization to a model's input; blur, color, noise, HU windows, MR bias."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halofeed.loader.device.augmentation import DeviceAugmentation, DeviceImages, Draw
from halofeed.loader.device.ops import DeviceArray, ops_of
from halofeed.prep.voxels.counts import ValueCounts, mean_and_deviation
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import PixelSums, Statistics
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_REACH = 3
"""Radius of the blur's kernel in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class GaussianBlur(DeviceAugmentation):
    """Averages around each pixel by a Gaussian of deviation `sigma_pixels`, cut off at three times the upper bound.

    Weights beyond the border of the source are omitted, and the others are scaled to the sum 1.

    Args:
        depth: also blur along the first axis; otherwise each slice of a volume or frame of a clip separately.
    """

    least: ClassVar = {"sigma_pixels": 0}
    sigma_pixels: tuple[float, float] = (0.5, 1.0)
    depth: bool = False

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        axes = range(1, len(pixels.sizes) + 1)
        image = pixels.image
        for axis in axes if self.depth else axes[-2:]:
            image = pixels.ops.if_any(draw.chosen, functools.partial(self._along, axis, pixels, draw), image)
        return image

    def _along(self, axis: int, pixels: DeviceImages, draw: Draw, image: DeviceArray) -> DeviceArray:
        ops = pixels.ops
        sigma = ops.maximum(ops.reshape(draw.between(self.sigma_pixels, 0), (-1, 1)), 1e-3)
        reach = math.ceil(_REACH * self.sigma_pixels[1])
        shifts = range(-reach, reach + 1)
        weights = [
            ops.exp(-(shift**2) / (2 * sigma**2)) * ops.cast(pixels.shows_source(axis, shift), image.dtype)
            for shift in shifts
        ]
        total = ops.maximum(sum(weights), 1e-12)
        return sum(
            pixels.along(axis, weight / total) * ops.shifted(image, axis, shift)
            for shift, weight in zip(shifts, weights, strict=True)
        )


_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Conversion of red, green and blue to YIQ, the brightness and two color axes of NTSC."""
_QUARTER_TURN = np.linalg.inv(_TO_YIQ) @ np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _TO_YIQ
"""Rotation of colors by 90° around gray."""


@dataclass(frozen=True, kw_only=True)
class Brightness(DeviceAugmentation):
    """Adds `shift` times the difference of white and black to every value."""

    least: ClassVar = {"shift": -math.inf}
    shift: tuple[float, float] = (-0.2, 0.2)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        return pixels.image + pixels.span * draw.between(self.shift, 0)


@dataclass(frozen=True, kw_only=True)
class Contrast(DeviceAugmentation):
    """Scales each channel around its mean over the source by `factor`."""

    least: ClassVar = {"factor": 0}
    factor: tuple[float, float] = (0.75, 1.25)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        return pixels.image + (pixels.image - pixels.mean()) * (draw.between(self.factor, 1) - 1)


class OfColor(DeviceAugmentation):
    """Base class of changes that need red, green and blue."""

    def check(self, channels: int, stored: str) -> None:
        if channels != 3:
            raise UsageError(
                f"device augmentation {type(self).__name__}: expected red, green and blue, the images have "
                f"{plural(channels, 'channel')}; leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Saturation(OfColor):
    """Scales the difference of each color from the gray of equal brightness by `factor`; 0 gives gray."""

    least: ClassVar = {"factor": 0}
    factor: tuple[float, float] = (0.7, 1.3)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        return pixels.image + (pixels.image - pixels.gray()) * (draw.between(self.factor, 1) - 1)


@dataclass(frozen=True, kw_only=True)
class Hue(OfColor):
    """Rotates colors around gray by an angle in degrees; brightness stays (in the YIQ color space)."""

    least: ClassVar = {"degrees": -math.inf}
    degrees: tuple[float, float] = (-18.0, 18.0)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        ops, image = pixels.ops, pixels.image
        angle = draw.between(self.degrees, 0) * (math.pi / 180)
        turned = sum(
            image[..., channel : channel + 1] * ops.constant(_QUARTER_TURN[:, channel], image.dtype)
            for channel in range(3)
        )
        return image + (image - pixels.gray()) * (ops.cos(angle) - 1) + turned * ops.sin(angle)


@dataclass(frozen=True, kw_only=True)
class Gamma(DeviceAugmentation):
    """Scales black to white to 0 .. 1 and raises values to the power `exponent`; exponents above 1 darken."""

    least: ClassVar = {"exponent": 0}
    exponent: tuple[float, float] = (0.7, 1.5)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        """Apply the power; values of black and below stay."""
        ops, image = pixels.ops, pixels.image
        exponent = draw.between(self.exponent, 1)
        share = (image - pixels.black) / pixels.span
        bent = pixels.black + pixels.span * ops.exp(exponent * ops.log(ops.maximum(share, 1e-12)))
        return ops.where((share > 0) & (exponent != 1), bent, image)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(DeviceAugmentation):
    """Adds independent normal noise to every value; `deviation` is relative to the difference of white and black."""

    least: ClassVar = {"deviation": 0}
    deviation: tuple[float, float] = (0.0, 0.05)

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        strength = pixels.span * draw.between(self.deviation, 0)
        return pixels.image + strength * draw.normal(tuple(pixels.image.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class HUWindow(DeviceAugmentation):
    """Applies a CT window of random center and width, scaled to black .. white.

    Values outside the window become black or white. The volume must be stored in Hounsfield units. Use it with
    `normalization = "foreground"`: its limits are black and white, so that evaluation sees the window between them.
    """

    least: ClassVar = {"center_hu": -math.inf, "width_hu": 1}
    center_hu: tuple[float, float] = (30.0, 60.0)
    width_hu: tuple[float, float] = (300.0, 500.0)

    def check(self, channels: int, stored: str) -> None:
        # Windowed to 8 bits, a scan has lost its Hounsfield units.
        if stored == "uint8":
            raise UsageError(
                "device augmentation HUWindow: expected Hounsfield units, the images are uint8; leave it out, or "
                "convert scans with --dtype int16"
            )

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        ops = pixels.ops
        center = draw.between(self.center_hu, (pixels.black + pixels.white) / 2)
        width = draw.between(self.width_hu, pixels.span, 2)
        low = center - width / 2
        seen = pixels.black + (ops.clip(pixels.image, low, low + width) - low) * (pixels.span / width)
        return ops.where(draw.spread(draw.chosen), seen, pixels.image)


_ORDER = 3
"""Largest sum of half waves over all axes in a bias field's patterns."""


@dataclass(frozen=True, kw_only=True)
class BiasField(DeviceAugmentation):
    """Multiplies an MR image by a smooth field between exp(-strength) and exp(strength).

    The field's logarithm is a sum of cosines of at most three half waves, each with a random factor from -1 to 1.

    Args:
        zero: the stored value of no signal.
    """

    least: ClassVar = {"strength": 0}
    strength: tuple[float, float] = (0.1, 0.4)
    zero: float = 0.0

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        ops, axes = pixels.ops, len(pixels.sizes)
        waves = [self._waves(pixels, axis) for axis in range(1, axes + 1)]
        orders = [
            each for each in itertools.product(range(_ORDER + 1), repeat=axes) if 0 < sum(each) <= _ORDER
        ]
        # The first two numbers choose the example and its strength.
        drawn = {each: draw.spread(2 * draw.uniform[:, 2 + place] - 1) for place, each in enumerate(orders)}

        def total(fixed: tuple[int, ...]) -> DeviceArray | None:
            """Return the sum of the patterns that begin with `fixed`; summing the last axes first keeps terms small."""
            if len(fixed) == axes:
                return drawn.get(fixed)
            parts = [(wave, total((*fixed, order))) for order, wave in enumerate(waves[len(fixed)])]
            terms = [wave * part for wave, part in parts if part is not None]
            return sum(terms[1:], terms[0]) if terms else None

        most = sum(ops.absolute(one) for one in drawn.values())
        share = draw.between(self.strength, 0) / ops.maximum(most, 1e-6)
        return pixels.image + (pixels.image - self.zero) * ops.expm1(share * total(()))

    def _waves(self, pixels: DeviceImages, axis: int) -> list[DeviceArray]:
        """Return cosines of 0, 1, 2, ... half waves along an axis, shaped to broadcast with the image."""
        ops, size = pixels.ops, pixels.sizes[axis - 1]
        place = (ops.cast(ops.numbers((size,)), pixels.image.dtype) + 0.5) * (math.pi / size)
        return [pixels.along(axis, ops.cos(place * float(order))) for order in range(_ORDER + 1)]


_USUAL_DEVIATIONS = 2
"""Standard deviations around the mean that define black and white, if there are no limits."""


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """Normalization of stored pixels: clipped to the limits, then (image - mean) / std per channel.

    Args:
        mean, std: values per channel, in the stored image's units.
        limits: minimum and maximum for all channels; None does not clip.
        reverse_channels: reverse red, green, blue to blue, green, red afterwards (weights from Caffe).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    reverse_channels: bool = False
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise UsageError(
                f"mean and std: expected one of each per channel, std above 0, got {self.mean} and {self.std}"
            )

    @classmethod
    def of(cls, manifest: Manifest, split: str = "train") -> Normalization:
        """Return the normalization by the mean and deviation of a split in the manifest.

        The manifest has only the first channel of volumes; its mean and deviation in the body apply to every channel.

        Raises:
            UsageError: the split is unknown, or has no records or pixels.
        """
        statistics = manifest.split(split).statistics
        channels = next(field.shape[-1] for field in manifest.fields if field.name == "image")
        mean, std = _mean_and_deviation(statistics, channels)
        if len(mean) != channels:
            raise UsageError(
                f"{manifest.name}: split {split!r}: expected the mean of each of "
                f"{plural(channels, 'channel')}, its statistics "
                f"hold {len(mean)}; convert it again"
            )
        return cls(mean=tuple(mean), std=tuple(value if value > 0 else 1.0 for value in std))

    def __call__(self, image: DeviceArray, dtype: str) -> DeviceArray:
        """Normalize pixels of any dtype [..., channel] to `dtype` on the device, by the library of the array.

        >>> to_units = Normalization(mean=(10.0, 30.0), std=(10.0, 5.0))
        >>> to_units(np.full((1, 1, 1, 2), 30, np.uint8), "float32").tolist()
        [[[[2.0, 0.0]]]]
        """
        ops = ops_of(image)
        wide = ops.wide(dtype)
        values = ops.cast(image, wide)
        if self.limits is not None:
            values = ops.clip(values, *self.limits)
        shifted = values - ops.constant(np.asarray(self.mean), wide)
        scaled = ops.cast(shifted * ops.constant(1 / np.asarray(self.std), wide), dtype)
        return scaled[..., ::-1] if self.reverse_channels else scaled

    def values(self) -> tuple[float, float]:
        """Return the values of black and white: the limits, or two deviations below and above the mean.

        >>> Normalization(mean=(100.0,), std=(50.0,)).values()
        (0.0, 200.0)
        """
        mean, reach = np.mean(self.mean), _USUAL_DEVIATIONS * np.mean(self.std)
        return self.limits or (float(mean - reach), float(mean + reach))


def _mean_and_deviation(statistics: Statistics, channels: int) -> tuple[Sequence[float], Sequence[float]]:
    if statistics.intensities is None:  # pictures and clips have sums of pixels, volumes counts of values
        return (statistics.pixels or PixelSums()).mean_and_deviation()
    counted = ValueCounts.from_json(statistics.intensities.body)
    if not counted.total:
        return (), ()
    mean, deviation = mean_and_deviation(counted)
    return (mean,) * channels, (deviation,) * channels
