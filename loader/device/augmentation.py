"""Augmentation of a batch on the device: the base class, its images and random numbers, and `augment_on_device`.

The random numbers of an example and epoch are equal on any device and for any split of the batch:

    (seed) ── id ──> (example) ── epoch, place in the list ──> (augmentation) ──┬── 2^32 - 1, number ──> strengths
                                                                                └── channel, pixel ────> noise

Each arrow is Threefry, a stateless cipher from a key and a counter of two 32-bit words each to two words. So a pixel's
noise depends only on its position in the image. JAX's own generator is the same cipher. Here it is written with
additions, rotations and exclusive ors, so that TensorFlow draws the same bits.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from halofeed.loader.batch import EPOCH, ID, SIZE
from halofeed.loader.device.ops import DeviceArray, Ops, ops_of
from halofeed.loader.reading import EXTENT, IMAGE
from halofeed.schemas.manifest import Manifest
from halofeed.system.errors import UsageError

Pair = tuple[DeviceArray, DeviceArray]
"""Two uint32 arrays of one shape, or of shapes that broadcast."""
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_LAST = 0xFFFFFFFF
NUMBERS_PER_DRAW = 24
"""Count of random numbers per augmentation and example."""
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue for brightness, ITU-R BT.601."""


@dataclass(frozen=True, kw_only=True)
class DeviceImages:
    """The images of a batch during augmentation.

    Args:
        ops: operations of the array library.
        image: float32 [batch, ..., channel], in stored units.
        black, white: the values of black and white.
        extent: per axis between batch and channel, the part that shows the source, [low, high), each int32 [batch]; the
            rest is padding. None if the batch does not include it.
    """

    ops: Ops
    image: DeviceArray
    black: float
    white: float
    extent: tuple[tuple[DeviceArray, DeviceArray], ...] | None

    @property
    def span(self) -> float:
        """Difference of white and black."""
        return self.white - self.black

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes between batch and channel."""
        return tuple(int(size) for size in self.image.shape[1:-1])

    def along(self, axis: int, values: DeviceArray) -> DeviceArray:
        """Reshape values [batch or 1, size of the axis] to broadcast with the image; axis 1 follows the batch."""
        shape = [1] * len(self.image.shape)
        shape[0], shape[axis] = -1, self.sizes[axis - 1]
        return self.ops.reshape(values, shape)

    def shows_source(self, axis: int, shift: int = 0) -> DeviceArray:
        """Return whether the pixel `shift` further along an axis shows the source, bool [batch or 1, size]."""
        ops, size = self.ops, self.sizes[axis - 1]
        place = ops.reshape(ops.cast(ops.numbers((size,)), "int32"), (1, size)) + shift
        low, high = (
            (0, size)
            if self.extent is None
            else (ops.reshape(ops.cast(bound, "int32"), (-1, 1)) for bound in self.extent[axis - 1])
        )
        return (place >= low) & (place < high)

    def inside(self) -> DeviceArray:
        """Return which pixels show the source, bool [batch, ..., 1]."""
        masks = [self.along(axis, self.shows_source(axis)) for axis in range(1, len(self.sizes) + 1)]
        return functools.reduce(operator.and_, masks)

    def mean(self) -> DeviceArray:
        """Return the mean of each channel over the source, float32 [batch, 1, ..., channel].

        It is computed axis by axis, because one float32 sum of millions of values would be inaccurate.
        """
        ops, mean = self.ops, self.image
        for axis in reversed(range(1, len(self.sizes) + 1)):
            weight = self.along(axis, ops.cast(self.shows_source(axis), mean.dtype))
            mean = ops.sum(mean * weight, axis) / ops.maximum(ops.sum(weight, axis), 1.0)
        return mean

    def gray(self) -> DeviceArray:
        """Return each pixel's brightness, float32 [batch, ..., 1]."""
        parts = [weight * self.image[..., channel : channel + 1] for channel, weight in enumerate(_LUMA)]
        return parts[0] + parts[1] + parts[2]


@dataclass(frozen=True, kw_only=True)
class DeviceAugmentation(abc.ABC):
    """Base class of random changes of pixel values, with a strength per example; strength 0 changes nothing.

    A new one is a subclass with its bounds as fields, and a line in `halofeed.loader.device.AUGMENTATIONS`.

    Args:
        probability: probability of changing an example, 0 to 1.

    Raises:
        UsageError: a bound is invalid.
    """

    least: ClassVar[dict[str, float]] = {}
    """Fields that are bounds [low, high], each with its smallest permitted value."""

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
        """Raise UsageError if images with these channels and this stored dtype cannot be changed."""

    @abc.abstractmethod
    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        """Return the changed image, float32 of the same shape."""


@dataclass(frozen=True, kw_only=True)
class BatchAugmentation(DeviceAugmentation):
    """Base class of changes that combine several images of a batch, and their classes; it is the last of a list."""

    def apply(self, pixels: DeviceImages, draw: Draw) -> DeviceArray:
        """Return the images as they are; `combine` follows after the changes of single images."""
        return pixels.image

    @abc.abstractmethod
    def combine(self, batch: Mapping[str, DeviceArray], draw: Draw) -> dict[str, DeviceArray]:
        """Return the changed batch, with further keys for the loss."""


def _are_bounds(given: object, least: float) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(isinstance(one, int | float) and math.isfinite(one) for one in given)
        and least <= given[0] <= given[1]
    )


_EIGHT_BITS = (0.0, 255.0)


def augment_on_device(
    batch: Mapping[str, DeviceArray],
    augmentations: Sequence[DeviceAugmentation],
    *,
    seed: int,
    epoch: Any = None,
    values: tuple[float, float] | None = None,
) -> dict[str, DeviceArray]:
    """Apply augmentations in order to a batch's images, within a jitted step; everything else stays.

    The result for an example is a function of seed, epoch and its id. It is the same in any batch, on any number of
    hosts, and split over any cores. TensorFlow's tensors are changed by TensorFlow, with the same random numbers.

    Padding stays unchanged if the batch includes its position: `size` for pictures, `extent` for volumes
    (`Loader(include=device_keys(manifest))`). Then means are those of the source, and a blur does not include padding.
    Without these keys the complete image counts as source.

    Args:
        batch: `image` [batch, ..., channel] of any dtype, in stored units; `id` uint32 [batch, 2] as on a mesh, for
            TensorFlow int64 [batch]; `epoch` int32 [batch] (`Loader(include=["epoch"])`).
        augmentations: augmentations of `halofeed.loader.device`.
        seed: 0 to 2**64 - 1.
        epoch: replaces the batch's epoch, int32 [batch] or one number for all.
        values: the values of black and white; by default 0 and 255 for uint8, required for other dtypes.
            `Normalization.values` returns them.

    Returns:
        The batch with `image` float32, in the same units; images that were uint8 are clipped to 0 to 255. A
        `BatchAugmentation` adds keys.

    Raises:
        UsageError: a key or `values` is missing, or an augmentation does not fit the images.

    >>> from halofeed.loader.device import Brightness, augment_on_device
    >>> batch = {"image": np.zeros((1, 2, 2, 1), np.uint8), "id": np.array([[0, 7]], np.uint32), "epoch": np.array([0])}
    >>> brighter = [Brightness(shift=(0.2, 0.2), probability=1.0)]
    >>> augment_on_device(batch, brighter, seed=3)["image"][0, 0, 0].tolist()
    [51.0]
    """
    if IMAGE not in batch:
        raise UsageError(
            f"batch: expected {IMAGE!r}, got {', '.join(batch)}; of luma and chroma make it by "
            "halofeed.loader.device.to_rgb(batch['luma'], batch['chroma'])"
        )
    image = batch[IMAGE]
    ops = ops_of(image)
    stored = np.dtype(getattr(image.dtype, "as_numpy_dtype", image.dtype)).name
    # The range of int16 or float32 is not that of the image: CT has -1024 to about 3000, MR any.
    if values is None and stored != "uint8":
        raise UsageError(
            f"values: images of {stored} do not say which values count as black and white; pass values=(low, high), "
            "such as Normalization.of(loader.manifest).values()"
        )
    _check_keys(batch, epoch)
    check_device_augmentations(augmentations, int(image.shape[-1]), stored)
    black, white = values if values is not None else _EIGHT_BITS
    before = ops.cast(image, ops.wide(image.dtype))
    pixels = DeviceImages(ops=ops, image=before, black=black, white=white, extent=_extent(batch))
    epochs = batch[EPOCH] if epoch is None else epoch
    probabilities = [one.probability for one in augmentations]
    draws = draw_all(ops, seed, batch[ID], epochs, probabilities, len(image.shape))
    for augmentation, draw in zip(augmentations, draws, strict=True):
        pixels = replace(pixels, image=augmentation.apply(pixels, draw))
    after = pixels.image
    # Other units, such as HU, have no fixed bounds.
    if stored == "uint8":
        after = ops.clip(after, *_EIGHT_BITS)
    if pixels.extent is not None:
        after = ops.where(pixels.inside(), after, before)
    changed = {**batch, IMAGE: after}
    for augmentation, draw in zip(augmentations, draws, strict=True):
        if isinstance(augmentation, BatchAugmentation):
            changed = augmentation.combine(changed, draw)
    return changed


def _check_keys(batch: Mapping[str, DeviceArray], epoch: Any) -> None:
    """Refuse a batch without what augmentations are drawn from."""
    for key, given, cure in (
        (ID, ID in batch, "give the batch as the loader does"),
        (EPOCH, EPOCH in batch or epoch is not None, 'say Loader(include=["epoch"]), or pass epoch='),
    ):
        if not given:
            raise UsageError(f"batch: expected {key!r}, from which augmentations are drawn; {cure}")


def check_device_augmentations(augmentations: Sequence[Any], channels: int, stored: str) -> None:
    """Check that all items are augmentations for images with these channels and this stored dtype.

    Raises:
        UsageError: names the item that is not, and the reason.
    """
    if not isinstance(augmentations, Sequence):
        raise UsageError(f"augmentations: expected a list such as [Brightness()], got {augmentations!r}")
    for one in augmentations:
        if not isinstance(one, DeviceAugmentation):
            cure = f"; it moves pixels: Loader(augment=[{one!r}]) applies it" if hasattr(one, "frame") else ""
            raise UsageError(
                f"expected augmentations of halofeed.loader.device, such as Brightness(), got {one!r}{cure}"
            )
        one.check(channels, stored)
        # Changes of single images would come after it in the list and be made before it.
        if isinstance(one, BatchAugmentation) and one is not augmentations[-1]:
            raise UsageError(
                f"device augmentation {type(one).__name__}: combines finished images; list it last"
            )


def device_keys(manifest: Manifest) -> tuple[str, ...]:
    """Return the names for `Loader(include=...)` that `augment_on_device` uses: epoch and position of padding."""
    where = [EXTENT] if any(field.name == EXTENT for field in manifest.fields) else []
    return (EPOCH, *where, *([] if manifest.kind.pads_around else [SIZE]))


def _extent(batch: Mapping[str, DeviceArray]) -> tuple[tuple[DeviceArray, DeviceArray], ...] | None:
    """Return the part that shows the source, per axis; None if the batch does not include it; see `DeviceImages`."""
    if EXTENT in batch:  # volumes and clips are padded on all sides
        return tuple((batch[EXTENT][:, 0, axis], batch[EXTENT][:, 1, axis]) for axis in range(3))
    if SIZE in batch:  # pictures begin at the top left
        return tuple((batch[SIZE][:, axis] * 0, batch[SIZE][:, axis]) for axis in range(2))
    return None


def threefry(ops: Ops, key: Pair, counter: Pair) -> Pair:
    """Compute Threefry-2x32 with 20 rounds: two pseudorandom words for each counter.

    >>> from halofeed.loader.device.ops import jax_ops
    >>> zero = jax_ops().constant(0, np.uint32)
    >>> [hex(word) for word in threefry(jax_ops(), (zero, zero), (zero, zero))]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (*key, ops.xor(ops.xor(key[0], key[1]), ops.constant(np.uint32(_PARITY), np.uint32)))
    left, right = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            left = left + right
            right = ops.xor(ops.rotate(right, bits), left)
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + ops.constant(np.uint32(group + 1), np.uint32)
    return left, right


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Random numbers of one augmentation for each example of a batch.

    Args:
        ops: operations of the array library.
        key: the augmentation's key, two of uint32 [batch].
        uniform: float32 [batch, NUMBERS_PER_DRAW], 0 (inclusive) to 1 (exclusive); the first decides whether to change.
        chosen: which examples change, bool [batch].
        axes: number of the image's axes, including batch and channel.
    """

    ops: Ops
    key: Pair
    uniform: DeviceArray
    chosen: DeviceArray
    axes: int

    def between(self, bounds: Sequence[float], neutral: float, number: int = 1) -> DeviceArray:
        """Return a random number per example, float32 [batch, 1, ..., 1].

        Args:
            bounds: smallest and largest number.
            neutral: the number for examples that do not change.
            number: index of the random number to use, 1 to NUMBERS_PER_DRAW - 1.
        """
        low, high = bounds
        drawn = low + (high - low) * self.uniform[:, number]
        return self.spread(self.ops.where(self.chosen, drawn, self.ops.constant(neutral, np.float32)))

    def spread(self, values: DeviceArray) -> DeviceArray:
        """Reshape values [batch] to [batch, 1, ..., 1], which broadcasts with images."""
        return self.ops.reshape(values, (-1, *[1] * (self.axes - 1)))

    def normal(self, shape: Sequence[int]) -> DeviceArray:
        """Return independent normal numbers of mean 0 and deviation 1, float32 [batch, *shape].

        Source: the Box-Muller transform.

        Args:
            shape: shape of one image, the channel last.
        """
        ops = self.ops
        *sizes, channels = shape
        places = ops.reshape(ops.numbers(sizes), (1, *sizes, 1))
        channel = ops.reshape(ops.numbers((channels,)), (*[1] * (self.axes - 1), channels))
        key = self.spread(self.key[0]), self.spread(self.key[1])
        first, second = threefry(ops, key, (channel, places))
        radius = ops.sqrt(-2.0 * ops.log(_to_unit_interval(ops, first) + 2.0**-25))
        return radius * ops.cos(_to_unit_interval(ops, second) * (2 * math.pi))


def draw_all(
    ops: Ops, seed: int, ids: DeviceArray, epochs: DeviceArray, probabilities: Sequence[float], axes: int
) -> list[Draw]:
    """Return the random numbers of each augmentation.

    Args:
        ops: operations of the array library.
        seed: 0 to 2**64 - 1.
        ids: the examples' ids, as `Ops.words` takes them.
        epochs: epoch of each example, or one for all.
        probabilities: probability of each augmentation.
        axes: number of the image's axes, including batch and channel.
    """
    words = [ops.constant(np.uint32(word), np.uint32) for word in divmod(seed, 1 << 32)]
    example = threefry(ops, (words[0], words[1]), ops.words(ids))
    count = len(probabilities)
    # One call for all augmentations, because each call adds a hundred operations to compile.
    places = ops.reshape(ops.numbers((count,)), (1, count))
    epoch = ops.reshape(ops.cast(epochs, np.uint32), (-1, 1))
    keys = threefry(
        ops, (ops.reshape(example[0], (-1, 1)), ops.reshape(example[1], (-1, 1))), (epoch, places)
    )
    numbers = ops.reshape(ops.numbers((NUMBERS_PER_DRAW,)), (1, 1, NUMBERS_PER_DRAW))
    wide = (ops.reshape(keys[0], (-1, count, 1)), ops.reshape(keys[1], (-1, count, 1)))
    uniform = _to_unit_interval(
        ops, threefry(ops, wide, (ops.constant(np.uint32(_LAST), np.uint32), numbers))[0]
    )
    return [
        Draw(
            ops=ops,
            key=(keys[0][:, place], keys[1][:, place]),
            uniform=uniform[:, place],
            chosen=uniform[:, place, 0] < probability,
            axes=axes,
        )
        for place, probability in enumerate(probabilities)
    ]


def _to_unit_interval(ops: Ops, words: DeviceArray) -> DeviceArray:
    """Return the upper 24 bits as a number in [0, 1), which float32 holds exactly."""
    return ops.cast(ops.top(words, 24), np.float32) * 2.0**-24
