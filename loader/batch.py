"""Arrays of a batch: their shapes and dtypes, and recycled, 64-byte-aligned memory for them.

Page faults of fresh memory cost more than the copy into it, so buffers are recycled when no view of them is left.
TensorFlow and JAX adopt an array without a copy if its data begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from halofeed.loader.augment.view import ImageShape
from halofeed.loader.decode import array_dtype
from halofeed.loader.planes import ColorPlane, scaled_shape
from halofeed.loader.reading import BOXES, IMAGE, is_label_map
from halofeed.schemas.fields import Field
from halofeed.system.errors import UsageError
from halofeed.system.memory import process_memory

ID, SIZE, COUNT, VALID = "id", "size", "num_boxes", "valid"
OBJECT_MAP = "object_map"
"""Array that is made of `masks`: uint16 [height, width], the number of the box that a pixel shows, from 1."""
LABELS, LABELLED, EPOCH = "labels", "labelled", "epoch"
PADDING_ID = -1
"""The id of a row that is not valid."""
Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Static shape and dtype of one array of a batch, and the fill value of rows that are not valid."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: tuple[Any, ...] = (0,)


def array_specs(
    fields: Sequence[Field], include: Sequence[str], *, shown: ImageShape, frame: ImageShape
) -> dict[str, ArraySpec]:
    """Return the arrays of a batch, without their first axis.

    Args:
        fields: the stored fields of a batch, including the image.
        include: names of further arrays.
        shown: shape of the part of each image that the batch holds.
        frame: shape of what is shown of each image.
    """
    spec = {}
    for field in fields:
        if field.name == ID:
            # Two halves, because JAX cuts int64 to 32 bits; see `split_id`.
            fill = tuple(split_id(PADDING_ID).tolist())
            spec[ID] = ArraySpec(shape=(2,), dtype=np.dtype(np.uint32), fill=fill)
            continue
        spec[field.name] = ArraySpec(
            shape=_shape_of(field, fields, shown, frame), dtype=array_dtype(field), fill=_fill_of(field)
        )
        if field.name == BOXES:
            spec[COUNT] = ArraySpec(shape=(), dtype=np.dtype(np.int32))
    if EPOCH in include:
        spec[EPOCH] = ArraySpec(shape=(), dtype=np.dtype(np.int32))
    if SIZE in include:
        spec[SIZE] = ArraySpec(shape=(2,), dtype=np.dtype(np.int32))
    if OBJECT_MAP in include:
        spec[OBJECT_MAP] = ArraySpec(shape=frame, dtype=np.dtype(np.uint16))
    spec[VALID] = ArraySpec(shape=(), dtype=np.dtype(np.bool_))
    return spec


def _shape_of(field: Field, fields: Sequence[Field], shown: ImageShape, frame: ImageShape) -> tuple[int, ...]:
    """Return the shape of a field's array; arrays on the image's grid follow crops, and those of a slab its part."""
    if field.name == IMAGE:
        return (*shown, field.shape[-1])
    if isinstance(field, ColorPlane):
        return (*scaled_shape(shown, field.scale), field.shape[-1])
    if is_label_map(field):
        return (*shown, field.shape[-1]) if field.holds_sets else shown
    if field.encoding == "png_list":
        return (next((one.shape[0] for one in fields if one.name == BOXES), 0), *frame)
    image = next(one for one in fields if one.name == IMAGE)
    if field.axes == image.axes[:1]:  # such as the time of each frame
        return frame[:1]
    return field.shape


def _fill_of(field: Field) -> tuple[Any, ...]:
    """Return the fill value of rows that are not valid."""
    if field.encoding == "text":
        return (0,) if array_dtype(field).kind == "i" else ("",)
    return field.fill if field.encoding != "value" else (0,)


def split_id(ids: ArrayLike) -> NDArray[np.uint32]:
    """Return ids as a batch holds them: their high and low halves, since JAX would cut int64 to 32 bits.

    Args:
        ids: int64 [...].

    Returns:
        uint32 [..., 2].

    >>> split_id([2**40 + 7])
    array([[256,   7]], dtype=uint32)
    """
    unsigned = np.asarray(ids, np.int64).view(np.uint64)
    return np.stack([unsigned >> np.uint64(32), unsigned & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def join_id(halves: ArrayLike) -> NDArray[np.int64]:
    """Return the ids, as the source and predictions have them, of a batch's `id`.

    Args:
        halves: uint32 [..., 2] of NumPy, JAX, TensorFlow or PyTorch.

    Returns:
        int64 [...].

    Raises:
        UsageError: these are no halves of ids.

    >>> join_id(split_id([-1, 2**40 + 7]))
    array([           -1, 1099511627783])
    """
    if isinstance(halves, Mapping):  # join_id(batch) is a likely mistake
        raise UsageError("join_id: expected a batch's ids, got the batch; write join_id(batch['id'])")
    given = np.asarray(halves)
    if given.dtype.kind not in "iu" or given.shape[-1:] != (2,):
        joined = "; they are joined already" if given.dtype == np.int64 else ""
        raise UsageError(
            f"join_id: expected uint32 [..., 2], as batch['id'] is, got {given.dtype} {list(given.shape)}{joined}"
        )
    high, low = np.moveaxis(given.astype(np.uint64), -1, 0)
    ids: NDArray[np.int64] = (high << np.uint64(32) | low).astype(np.int64)
    return ids


def allocate(spec: Mapping[str, ArraySpec], rows: int, pool: BufferPool) -> Batch:
    """Return arrays [row, ...] of undefined content from the pool; text arrays hold None."""
    return {
        name: np.empty((rows, *array.shape), object)
        if array.dtype.hasobject
        else pool.empty((rows, *array.shape), array.dtype)
        for name, array in spec.items()
    }


ALIGNMENT = 64
AHEAD = 2
"""Batches that are made or ready while one is used."""
BATCHES_IN_FLIGHT = AHEAD + 2
"""Those, the batch in use and one that is handed over; the pool keeps this many unused buffers per size."""


def check_memory(spec: Mapping[str, Any], batch_size: int) -> None:
    """Refuse batches that do not fit into this machine's memory, before the first is made.

    Args:
        spec: shape and dtype of each array of this host's batches.
        batch_size: rows over all hosts, for the message.

    Raises:
        UsageError: one batch takes more memory than the machine or its control group has.
    """
    rows, size, memory = next((array.shape[0] for array in spec.values()), 0), _size(spec), process_memory()
    if size > memory:  # the allocation would succeed, and the kernel end the process when it is filled
        most = memory // (BATCHES_IN_FLIGHT * (size // rows)) * (batch_size // rows)
        raise UsageError(
            f"batch_size {batch_size}: {size / 1e9:,.1f} GB a batch, and this machine has "
            f"{memory / 1e9:,.1f} GB; take {max(1, most):,} or less, of which {BATCHES_IN_FLIGHT} batches fit"
        )


def batches_ahead(spec: Mapping[str, Any]) -> int:
    """Return how many batches are made ahead: 0 if those in flight would take over half of this machine's memory.

    Args:
        spec: shape and dtype of each array of this process's batches.
    """
    return AHEAD if 2 * BATCHES_IN_FLIGHT * _size(spec) <= process_memory() else 0


def _size(spec: Mapping[str, Any]) -> int:
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in spec.values())


class _Holder:
    """Owner of one buffer while any view of it exists; NumPy keeps it as the base of each view.

    A finalizer on an array would run while a reshaped view still exists. The object behind `__array_interface__`
    exists until the last view is gone.
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
        # Runs on any thread at any time, so it must not take a lock; append is atomic.
        # More buffers than batches in flight would never be used again.
        if len(self._idle) < most:
            self._idle.append(self._memory)


class BufferPool:
    """Pool of recycled memory for arrays; safe to use from several threads.

    >>> pool = BufferPool()
    >>> array = pool.empty((2, 3), np.float32)
    >>> array.ctypes.data % 64
    0
    """

    def __init__(self) -> None:
        self._idle: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of undefined content whose data begins at a multiple of 64 bytes."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        idle = self._idle[size]
        try:
            memory = idle.pop()
        except IndexError:
            memory = np.empty(size + ALIGNMENT, np.uint8)
        return np.asarray(_Holder(memory, idle)).view(kind).reshape(shape)
