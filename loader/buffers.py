"""Where a batch's memory comes from: recycled, 64-byte-aligned buffers that return when nobody looks at them.

A fresh batch is paid for in page faults, which cost more than the copy into it. TensorFlow and JAX adopt an
array without a copy if its data begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from halofeed.schemas.errors import UsageError
from halofeed.schemas.memory import process_memory

ALIGNMENT = 64
AHEAD = 2
"""Batches that are being made or wait to be taken while one is used."""
BATCHES_IN_FLIGHT = AHEAD + 2
"""Those, the one in use, and one that changes hands; so many unused buffers of one size are kept."""


def check_memory(spec: Mapping[str, Any], batch_size: int) -> None:
    """Refuse batches that this machine cannot hold, before the first is made.

    Args:
        spec: shape and dtype of each array of this host's batches.
        batch_size: of all hosts together; for the message only.

    Raises:
        UsageError: one batch takes more than the machine, or its control group, has.
    """
    rows, size, memory = next((array.shape[0] for array in spec.values()), 0), _size(spec), process_memory()
    if size > memory:
        most = memory // (BATCHES_IN_FLIGHT * (size // rows)) * (batch_size // rows)
        raise UsageError(
            f"batch_size {batch_size}: {size / 1e9:,.1f} GB a batch, and this machine has "
            f"{memory / 1e9:,.1f} GB; take {max(1, most):,} or less, of which {BATCHES_IN_FLIGHT} batches fit"
        )


def batches_ahead(spec: Mapping[str, Any]) -> int:
    """How many batches are made ahead: none where those in flight would take more than half of this machine's memory.

    Args:
        spec: shape and dtype of each array of this process's batches.
    """
    return AHEAD if 2 * BATCHES_IN_FLIGHT * _size(spec) <= process_memory() else 0


def _size(spec: Mapping[str, Any]) -> int:
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in spec.values())


class _Holder:
    """Owns one buffer while any view of it lives; NumPy keeps it as the base of every such view.

    A finalizer on an array would fire while a reshape of it still lives; an object behind
    `__array_interface__` dies with the last view, whoever made it.
    """

    def __init__(self, memory: NDArray[np.uint8], idle: deque[NDArray[np.uint8]]) -> None:
        address = memory.ctypes.data
        start = -address % ALIGNMENT
        self.__array_interface__ = {
            "shape": (len(memory) - ALIGNMENT,),
            "typestr": "|u1",
            "data": (address + start, False),
            "version": 3,
        }
        self._memory, self._idle = memory, idle

    def __del__(self, most: int = BATCHES_IN_FLIGHT) -> None:
        # Runs on any thread and at any moment, so no lock may be taken here; append is atomic.
        if len(self._idle) < most:
            self._idle.append(self._memory)


class BufferPool:
    """Hands out arrays over recycled memory; safe to use from several threads.

    >>> pool = BufferPool()
    >>> array = pool.empty((2, 3), np.float32)
    >>> array.ctypes.data % 64
    0
    """

    def __init__(self) -> None:
        self._idle: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """An array of undefined content whose data begins at a multiple of 64 bytes."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        idle = self._idle[size]
        try:
            memory = idle.pop()
        except IndexError:
            memory = np.empty(size + ALIGNMENT, np.uint8)
        return np.asarray(_Holder(memory, idle)).view(kind).reshape(shape)
