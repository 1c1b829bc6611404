"""Random numbers of an example and epoch, equal on any device and for any split of the batch.

    (seed) ── id ──> (example) ── epoch, place in the list ──> (augmentation) ──┬── 2^32 - 1, number ──> strengths
                                                                                └── channel, pixel ────> noise

Each arrow is Threefry, a stateless cipher from a key and a counter of two 32-bit words each to two words. So a pixel's
noise depends only on its position in the image. JAX's own generator is the same cipher. Here it is written with
additions, rotations and exclusive ors, so that TensorFlow draws the same bits.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halofeed.loader.device.ops import DeviceArray, Ops

Pair = tuple[DeviceArray, DeviceArray]
"""Two uint32 arrays of one shape, or of shapes that broadcast."""
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_LAST = 0xFFFFFFFF
NUMBERS_PER_DRAW = 24
"""Count of random numbers per augmentation and example."""


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
