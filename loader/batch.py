"""What is a batch: arrays by name, their shapes and dtypes, and memory for them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Shape
from halofeed.loader.buffers import BufferPool
from halofeed.loader.decode import array_dtype
from halofeed.loader.reading import BOXES, IMAGE, is_grid
from halofeed.schemas.fields import Field

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
