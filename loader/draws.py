"""How often each record is drawn where that is not once an epoch: by weights, by classes, by foreground.

    epoch of 6 slots     0      1      2      3      4      5        each as wide as the others
                      ├──x───┼──x───┼──x───┼──x───┼──x───┼──x───┤  one point in each, as far in for all
    entries           ├────── a ──────┼── b ──┼────── c ───────────┤  as wide as their weights

An epoch has as many slots as there are records, and a slot's point says which entry it draws: each entry as often as
its share of the slots, rounded down or up. How far in the points are moves on evenly from epoch to epoch, so that over
many an entry is within a few draws of its share. The slots are shuffled as records are. All is arithmetic on whole
numbers: the millionth step is as quick as the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.identity import mix

Integers = NDArray[np.int64]
SLOT_BITS = 32
_SLOT = 1 << SLOT_BITS
_GOLDEN = 0x9E3779B9
"""2**32 over the golden ratio: steps of it are spread evenly over a slot, however many are taken."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """What an epoch draws.

    Args:
        slots: of an epoch.
        records: int64 [entry], of each entry its record; a record may have several.
        ends: int64 [entry], where each ends if a slot is 2**32 wide.
    """

    slots: int
    records: Integers
    ends: Integers

    @classmethod
    def weighted(cls, slots: int, records: Integers, weights: NDArray[np.float64]) -> Draws:
        """Entries by their weights, float64 [entry], 0 and more.

        >>> draws = Draws.weighted(6, np.arange(3), np.array([3.0, 1.0, 2.0]))
        >>> draws.at(np.arange(6), np.zeros(6, np.int64), seed=0).tolist()
        [0, 0, 0, 1, 2, 2]
        """
        ends = np.cumsum(weights)
        # Multiplied first: of equal weights, or whole ones, no end is off by a rounding.
        places = np.rint(ends * slots / ends[-1] * _SLOT).astype(np.int64)
        places[-1] = slots * _SLOT
        return cls(slots=slots, records=records, ends=places)

    @property
    def numbers(self) -> Integers:
        """What tells them from others."""
        return np.concatenate([self.records, self.ends])

    def at(self, slots: Integers, epochs: Integers, seed: int) -> Integers:
        """Which record each slot of an epoch draws, int64 [row].

        Args:
            slots: int64 [row], 0 to `slots` - 1.
            epochs: int64 [row].
            seed: decides how far in the points of the first epoch are.
        """
        far = (mix(seed) % _SLOT + epochs * _GOLDEN) & (_SLOT - 1)
        points = slots * _SLOT + far
        return self.records[np.searchsorted(self.ends, points, side="right")]
