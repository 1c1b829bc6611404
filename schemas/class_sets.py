"""How the classes of a voxel that may be in several are one number: a set, with one bit for each class.

Of a manifest's classes but the background, in the order of their ids, the first has bit 0 (value 1), the second bit 1
(value 2), the third bit 2 (value 4): 5 is a voxel of the first and of the third. 0 is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.fields import Field

SETS: Final = "channels"
"""The value of --class-overlap with which records hold sets."""


def channel_ids(labels: Iterable[int]) -> tuple[int, ...]:
    """The class ids by channel, which is their bit: all but the background, in ascending order.

    >>> channel_ids({0: "background", 7: "liver", 2: "body"})
    (2, 7)
    """
    return tuple(sorted(identity for identity in labels if identity))


def ids_of_field(field: Field, labels: Iterable[int]) -> tuple[int, ...]:
    """The class ids by channel of a label that holds sets; () of one that holds a class index."""
    return channel_ids(labels) if field.holds_sets else ()


def members(values: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Write what sets hold: 1 where a class is in the set, else 0.

    Args:
        values: uint8 or uint16 [...], contiguous.
        out: uint8 [..., class].

    >>> out = np.empty((2, 3), np.uint8)
    >>> members(np.array([5, 0], np.uint8), out)
    >>> out.tolist()
    [[1, 0, 1], [0, 0, 0]]
    """
    for target, sets in zip(out, values, strict=True):  # a slice at a time: its bytes are made beside it
        little = np.ascontiguousarray(sets, sets.dtype.newbyteorder("<"))[..., None].view(np.uint8)
        target[...] = np.unpackbits(little, axis=-1, count=out.shape[-1], bitorder="little")


def count_members(counts: Mapping[int, Any], ids: Sequence[int]) -> dict[int, Any]:
    """From a count of each set the count of each class that occurs, by id; 0 counts the empty set.

    >>> count_members({0: 90, 1: 5, 3: 2}, (4, 6))
    {0: 90, 4: 7, 6: 2}
    """
    found = {0: counts[0]} if counts.get(0) else {}
    for bit, identity in enumerate(ids):
        if inside := [count for value, count in counts.items() if value >> bit & 1]:
            found[identity] = sum(inside)
    return found


def count_shared(counts: Mapping[int, int]) -> int:
    """From a count of each set how many are of several classes."""
    return sum(count for value, count in counts.items() if value.bit_count() > 1)


def top_classes(values: NDArray[Any], ids: Sequence[int]) -> NDArray[Any]:
    """Of each set the class of the highest id, 0 of an empty one: what is drawn where one alone can be shown.

    >>> top_classes(np.array([5, 1, 0], np.uint8), (2, 4, 9))
    array([9, 2, 0], dtype=uint8)
    """
    top = np.zeros(values.shape, np.min_scalar_type(max(ids, default=0)))
    for bit, identity in enumerate(ids):
        top[values >> bit & 1 != 0] = identity
    return top


def unknown_bits(counts: Mapping[int, int], classes: int) -> dict[int, int]:
    """Which bits of no class occur, and how often; none in sound data.

    >>> unknown_bits({0: 9, 9: 4, 8: 1}, 3)
    {3: 5}
    """
    highest = max(counts, default=0).bit_length()
    found = count_members(counts, range(1, highest + 1))
    return {number - 1: count for number, count in found.items() if number > classes}
