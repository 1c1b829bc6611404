"""Normalization of stored pixels to a model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halofeed.errors import UsageError
from halofeed.loader.device.ops import DeviceArray, ops_of
from halofeed.prep.voxels.counts import ValueCounts, mean_and_deviation
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import PixelSums, Statistics
from halofeed.system.wording import plural

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
    if statistics.intensities is None:
        return (statistics.pixels or PixelSums()).mean_and_deviation()
    counted = ValueCounts.from_json(statistics.intensities.body)
    if not counted.total:
        return (), ()
    mean, deviation = mean_and_deviation(counted)
    return (mean,) * channels, (deviation,) * channels
