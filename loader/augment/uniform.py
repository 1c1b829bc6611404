"""Which numbers augmentations are drawn from: a function of seed, epoch, example and place in the list alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Uniform = NDArray[np.float64]
"""float64 [8], each in 0 (inclusive) to 1 (exclusive)."""
Words = NDArray[np.uint64]

_WORD = (1 << 64) - 1
_ROUNDS = 10
_MULTIPLIERS = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)[:, None, None, None]
_KEY_STEPS = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)[:, None, None, None]
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_TIMES_LOW, _TIMES_HIGH = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF
_BLOCKS = np.array([1, 2], np.uint64)
"""The counters of the two blocks of four words, as NumPy's generator has them: it counts before it draws."""


def draw_uniform(seed: int, epoch: int, identity: int, number: int) -> Uniform:
    """Eight numbers for one augmentation of one example in one epoch; see `draw_uniforms`."""
    return np.asarray(
        draw_uniforms(seed, np.array([epoch]), np.array([identity]), number + 1)[0, number], np.float64
    )


def draw_uniforms(
    seed: int, epochs: NDArray[np.int64], ids: NDArray[np.int64], count: int, *, partner: int = 0
) -> NDArray[np.float64]:
    """Eight numbers for each augmentation of each example, whatever was drawn before.

    Philox4x64-10 is a generator whose state is a counter: key (seed, epoch), counter (block, partner, example,
    augmentation); the words are those of `np.random.Philox`. All examples of a batch at once take a fifth of the time
    of one generator each. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    Args:
        seed: 0 to 2**64 - 1.
        epochs, ids: int64 [example].
        count: of augmentations.
        partner: 0 for the example itself; else what is drawn for others that are shown with it.

    Returns:
        float64 [example, augmentation, 8].

    >>> generator = np.random.Philox(key=np.array([7, 3], np.uint64), counter=np.array([0, 0, 5, 1], np.uint64))
    >>> first = (int(generator.random_raw()) >> 11) * 2.0**-53
    >>> float(draw_uniforms(7, np.array([3]), np.array([5]), 2)[0, 1, 0]) == first
    True
    """
    if not count:
        return np.zeros((len(ids), 0, 8))
    shape = (len(ids), count, len(_BLOCKS))
    keys, first, second = (np.zeros((2, *shape), np.uint64) for _ in range(3))
    keys[0], keys[1] = seed & _WORD, epochs.astype(np.int64).view(np.uint64)[:, None, None]
    first[0], first[1] = _BLOCKS, ids.astype(np.int64).view(np.uint64)[:, None, None]
    second[0], second[1] = partner, np.arange(count, dtype=np.uint64)[:, None]
    raw = np.stack(_philox(keys, first, second), axis=-1).reshape(len(ids), count, 8)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


def _philox(keys: Words, first: Words, second: Words) -> tuple[Words, ...]:
    """Four words each of counters whose first and third, and second and fourth, words are given, uint64 [2, ...]."""
    for _ in range(_ROUNDS):
        first, second = _high(first)[::-1] ^ second ^ keys, (first * _MULTIPLIERS)[::-1]
        keys = keys + _KEY_STEPS
    return first[0], second[0], first[1], second[1]


def _high(words: Words) -> Words:
    """The upper 64 bits of each product with the multipliers."""
    low, high = words & _LOW, words >> _HALF
    crossed = low * _TIMES_HIGH
    middle = (low * _TIMES_LOW >> _HALF) + (crossed & _LOW) + high * _TIMES_LOW
    return np.asarray(high * _TIMES_HIGH + (crossed >> _HALF) + (middle >> _HALF), np.uint64)
