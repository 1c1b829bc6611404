"""Large arrays whose memory serves the next ones, because glibc keeps no block above 32 MiB.

New pages must be cleared: 4 ms of the 140 ms in which a CT of 52 MB is converted.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LEAST_BYTES: Final = 32 << 20
"""glibc keeps smaller blocks itself after `keep_freed_memory`."""
_MOST_BYTES: Final = 128 << 20
_kept: deque[mmap.mmap] = deque(maxlen=1)


def empty_array(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array like `np.empty`, in the memory of a freed one of the same size if there is one.

    One block of at most 128 MiB is kept, and freed before an array of another size is made, so that it does not add to
    the memory of a larger one.

    Args:
        count: number of values.
        dtype: dtype of the values.

    Returns:
        Array [count] with any values.

    >>> empty_array(3, "int16").shape
    (3,)
    """
    size = count * np.dtype(dtype).itemsize
    block = _take(size)
    if block is None:
        if not _LEAST_BYTES <= size <= _MOST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.empty(count, dtype)
        block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
    array: NDArray[Any] = np.frombuffer(block, dtype, count)
    # The views of an array keep it, so its end is that of all of them.
    weakref.finalize(array, _kept.append, block).atexit = False
    return array


def _take(size: int) -> mmap.mmap | None:
    """Return the kept block if it has this size; it is freed otherwise."""
    with contextlib.suppress(IndexError):
        block = _kept.pop()  # at once, because threads share it
        if len(block) == size:
            return block
    return None
