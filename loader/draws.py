"""How often each record is drawn where that is not once an epoch: by weights, by classes, by foreground.

    epoch of 6 slots     0      1      2      3      4      5        each as wide as the others
                      ├──x───┼──x───┼──x───┼──x───┼──x───┼──x───┤  one point in each, as far in for all
    entries           ├────── a ──────┼── b ──┼────── c ───────────┤  as wide as their weights

An epoch has as many slots as there are records, and a slot's point says which entry it draws: each entry as often as
its share of the slots, rounded down or up; how far in the points are is drawn anew each epoch, so that over the epochs
its share is exact. The slots are shuffled as records are. All is arithmetic on whole numbers: the millionth step is as
quick as the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.identity import mix

Integers = NDArray[np.int64]
SLOT_BITS = 32
_SLOT = 1 << SLOT_BITS
_WORD = (1 << 64) - 1


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
            seed: decides with the epoch how far in the points are.
        """
        far = {epoch: mix((seed + mix(epoch + 1)) & _WORD) % _SLOT for epoch in np.unique(epochs).tolist()}
        points = slots * _SLOT + np.array([far[epoch] for epoch in epochs.tolist()], np.int64)
        return self.records[np.searchsorted(self.ends, points, side="right")]
