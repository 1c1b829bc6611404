"""What is an augmentation on the device, and what is it given?"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from halofeed.loader.device.draws import Draw
from halofeed.loader.device.ops import Array, Ops
from halofeed.schemas.errors import UsageError

_LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are, ITU-R BT.601."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The images of a batch, as far as augmentations have come.

    Args:
        ops: in which they are computed.
        image: float32 [batch, ..., channel], in stored units.
        black, white: the values that count as such.
        extent: of each axis between batch and channel, what shows the source, [low, high) each int32 [batch]; the
            rest is padding. None where the batch does not say it.
    """

    ops: Ops
    image: Array
    black: float
    white: float
    extent: tuple[tuple[Array, Array], ...] | None

    @property
    def span(self) -> float:
        """From black to white."""
        return self.white - self.black

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the axes between batch and channel."""
        return tuple(int(size) for size in self.image.shape[1:-1])

    def along(self, axis: int, values: Array) -> Array:
        """Values [batch or 1, size of the axis] as they go with the image; axis 1 is the first after the batch."""
        shape = [1] * len(self.image.shape)
        shape[0], shape[axis] = -1, self.sizes[axis - 1]
        return self.ops.reshape(values, shape)

    def shows_source(self, axis: int, shift: int = 0) -> Array:
        """Whether the place `shift` further along an axis lies within the source, bool [batch or 1, size]."""
        ops, size = self.ops, self.sizes[axis - 1]
        place = ops.reshape(ops.cast(ops.numbers((size,)), "int32"), (1, size)) + shift
        low, high = (
            (0, size)
            if self.extent is None
            else (ops.reshape(ops.cast(bound, "int32"), (-1, 1)) for bound in self.extent[axis - 1])
        )
        return (place >= low) & (place < high)

    def inside(self) -> Array:
        """Which pixels show the source, bool [batch, ..., 1]."""
        masks = [self.along(axis, self.shows_source(axis)) for axis in range(1, len(self.sizes) + 1)]
        whole = masks[0]
        for mask in masks[1:]:
            whole = whole & mask
        return whole

    def mean(self) -> Array:
        """Of the whole source, each channel by itself, float32 [batch, 1, ..., channel].

        Axis by axis: one sum of millions of values would lose what float32 cannot hold.
        """
        ops, mean = self.ops, self.image
        for axis in reversed(range(1, len(self.sizes) + 1)):
            weight = self.along(axis, ops.cast(self.shows_source(axis), mean.dtype))
            mean = ops.sum(mean * weight, axis) / ops.maximum(ops.sum(weight, axis), 1.0)
        return mean

    def gray(self) -> Array:
        """How bright each pixel is, float32 [batch, ..., 1]."""
        parts = [weight * self.image[..., channel : channel + 1] for channel, weight in enumerate(_LUMA)]
        return parts[0] + parts[1] + parts[2]


@dataclass(frozen=True, kw_only=True)
class DeviceAugmentation(abc.ABC):
    """One change of the pixels' values, drawn for each example; where its strength is zero nothing changes.

    A new one is a subclass with its bounds as fields, and a line in `halofeed.loader.device.AUGMENTATIONS`.

    Args:
        probability: with which an example is changed, 0 to 1.

    Raises:
        UsageError: a bound that cannot be.
    """

    least: ClassVar[dict[str, float]] = {}
    """The fields that are bounds [low, high], each with the least value that it may have."""

    probability: float = field(default=0.5)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 <= self.probability <= 1:
            raise UsageError(f"{name}: probability: expected 0 to 1, got {self.probability}")
        for bounds, least in self.least.items():
            given = getattr(self, bounds)
            if not _are_bounds(given, least):
                from_least = f", from {least:g} on" if math.isfinite(least) else ""
                raise UsageError(
                    f"{name}: {bounds}: expected a lower and an upper bound{from_least}, such as "
                    f"{list(getattr(type(self), bounds))}, got {given!r}"
                )
            object.__setattr__(self, bounds, (float(given[0]), float(given[1])))

    def check(self, channels: int, stored: str) -> None:  # noqa: B027
        """UsageError where images of so many channels, stored in this dtype, cannot be changed so."""

    @abc.abstractmethod
    def apply(self, pixels: Pixels, draw: Draw) -> Array:
        """The new image, float32 of the same shape."""


def _are_bounds(given: object, least: float) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(isinstance(one, int | float) and math.isfinite(one) for one in given)
        and least <= given[0] <= given[1]
    )
