"""What is a batch: arrays by name, their shapes and dtypes, and memory for them?

Where a batch's memory comes from: recycled, 64-byte-aligned buffers that return when nobody looks at them.

A fresh batch is paid for in page faults, which cost more than the copy into it. TensorFlow and JAX adopt an
array without a copy if its data begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from halofeed.errors import UsageError
from halofeed.loader.augment.view import Shape
from halofeed.loader.decode import array_dtype
from halofeed.loader.reading import BOXES, IMAGE, is_grid
from halofeed.schemas.fields import Field
from halofeed.system.memory import process_memory

ID, SIZE, COUNT, VALID = "id", "size", "num_boxes", "valid"
LABELS, LABELLED, EPOCH = "labels", "labelled", "epoch"
_PADDING_ID = -1
Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """What one array of a batch is: its static shape, its dtype, and what fills rows that are not valid."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: tuple[Any, ...] = (0,)


def specify(
    fields: Sequence[Field], include: Sequence[str], *, shown: Shape, frame: Shape
) -> dict[str, ArraySpec]:
    """The arrays of a batch, without their first axis.

    Args:
        fields: what a batch has of each record, the image among them.
        include: what it has besides, by name.
        shown: the part of each image that is in the batch.
        frame: what is shown of each image altogether.
    """
    spec = {}
    image = next(field for field in fields if field.name == IMAGE)
    most_boxes = next((field.shape[0] for field in fields if field.name == BOXES), 0)
    for field in fields:
        dtype = array_dtype(field)
        shape = field.shape
        fill: tuple[Any, ...] = field.fill if field.encoding != "value" else (0,)
        if field.name == IMAGE:
            shape = (*shown, field.shape[-1])
        elif is_grid(field):
            shape = (*shown, field.shape[-1]) if field.holds_sets else shown
        elif field.encoding == "png_list":
            shape = (most_boxes, *frame)
        elif field.axes == image.axes[:1]:
            shape = frame[:1]
        elif field.encoding == "text":
            fill = (_PADDING_ID,) if field.name == ID else (0,) if dtype.kind == "i" else ("",)
        spec[field.name] = ArraySpec(shape=shape, dtype=dtype, fill=fill)
        if field.name == BOXES:
            spec[COUNT] = ArraySpec(shape=(), dtype=np.dtype(np.int32))
    if EPOCH in include:
        spec[EPOCH] = ArraySpec(shape=(), dtype=np.dtype(np.int32))
    if SIZE in include:
        spec[SIZE] = ArraySpec(shape=(2,), dtype=np.dtype(np.int32))
    spec[VALID] = ArraySpec(shape=(), dtype=np.dtype(np.bool_))
    return spec


def allocate(spec: Mapping[str, ArraySpec], rows: int, pool: BufferPool) -> Batch:
    """Arrays [row, ...] of undefined content, from the pool; text has none to offer."""
    return {
        name: np.empty((rows, *array.shape), object)
        if array.dtype.hasobject
        else pool.empty((rows, *array.shape), array.dtype)
        for name, array in spec.items()
    }


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
