"""Where do the pixels of planned rows come from and go to, as a table for the kernel?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges, Shape
from halofeed.loader.augment.windows import Windows
from halofeed.loader.in_memory import InMemory
from halofeed.loader.native.kernel import (
    FRAME,
    MOST_AXES,
    PIXEL_BYTES,
    SHAPE,
    SOURCE,
    SOURCE_STRIDES,
    TARGET,
    TARGET_STRIDES,
    Moves,
    no_moves,
)

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """One array of a batch that is filled by moves.

    Args:
        key: of the raw value that it comes from.
        stored: the value's shape, the channel last or none.
        out: the batch's array [row, axis ..., channel, or none], in one piece.
        padding: what a row is filled with where it shows nothing, of a row's shape; None where it shows all.
    """

    key: str
    stored: Shape
    out: NDArray[Any]
    padding: NDArray[Any] | None


def moves_of(
    arrays: Sequence[Moved], rows: Integers, windows: Windows, slab: Ranges | None, memory: InMemory
) -> Moves:
    """The moves that fill rows of a batch, those of all rows for one array after the other; then those of padding.

    Args:
        arrays: what is filled.
        rows: int64 [row], of the batch.
        windows: what each row shows.
        slab: which part of that, along the axes of what is shown, is in the batch; None is all.
        memory: where each row's record lies.
    """
    count, axes = windows.start.shape
    unpadded = MOST_AXES - axes
    first, shown = windows.start, windows.shape
    if slab is not None:
        low, high = (np.minimum([side[end] for side in slab], windows.shape) for end in (0, 1))
        first, shown = first + np.where(windows.backwards, windows.shape - high, low), high - low
    begin = first + windows.backwards * (shown - 1)
    signs = 1 - 2 * windows.backwards.astype(np.int64)
    moves = no_moves(len(arrays) * count)
    tables = moves.reshape(len(arrays), count, -1)
    tables[:, :, FRAME] = memory.frames()
    tables[:, :, SHAPE][:, :, unpadded:] = shown
    for array, table in zip(arrays, tables, strict=True):
        pixel = math.prod(array.stored[axes:]) * array.out.itemsize
        strides = np.array([pixel * math.prod(array.stored[axis + 1 : axes]) for axis in range(axes)])
        table[:, SOURCE] = memory.addresses(array.key) + begin @ strides
        table[:, TARGET] = array.out.ctypes.data + rows * array.out.strides[0]
        table[:, SOURCE_STRIDES][:, unpadded:] = signs * strides
        table[:, TARGET_STRIDES][:, unpadded:] = array.out.strides[1 : axes + 1]
        table[:, PIXEL_BYTES] = pixel
    padding = [
        _padding(array, table, shown, axis)
        for array, table in zip(arrays, tables, strict=True)
        if array.padding is not None
        for axis in range(axes)
    ]
    return np.concatenate([moves, *padding]) if padding else moves


def _padding(array: Moved, moves: Moves, shown: Integers, axis: int) -> Moves:
    """What follows along one axis upon all that is shown along the axes before it."""
    assert array.padding is not None
    axes = shown.shape[1]
    size, strides = array.padding.shape[axis], array.padding.strides[:axes]
    (short,) = np.nonzero(shown[:, axis] < size)
    padding, unpadded = moves[short], MOST_AXES - axes
    offset = shown[short, axis] * strides[axis]
    padding[:, SOURCE] = array.padding.ctypes.data + offset
    padding[:, TARGET] += offset
    # All along the axes after it; along those before it no more than what is shown, for the rest has its own.
    padding[:, SHAPE][:, unpadded + axis + 1 :] = array.padding.shape[axis + 1 : axes]
    padding[:, SHAPE][:, unpadded + axis] = size - shown[short, axis]
    padding[:, SOURCE_STRIDES][:, unpadded:] = strides
    padding[:, FRAME] = 0
    return padding
