"""How do the objects of records fill rows of a batch, each list padded to the same length?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Shape
from halofeed.loader.augment.windows import Windows
from halofeed.loader.batch import COUNT, Batch
from halofeed.loader.columns import KeptLists
from halofeed.loader.reading import AREA, BOXES
from halofeed.schemas.fields import Field


def write_objects(
    batch: Batch,
    rows: NDArray[np.int64],
    fields: Sequence[Field],
    lists: KeptLists,
    windows: Windows,
    frame: Shape,
) -> None:
    """Write the objects of several rows.

    Args:
        batch: arrays [row, ...].
        rows: int64 [row], which.
        fields: the lists.
        lists: [object, ...] of all rows, as stored.
        windows: what each row shows, and which of the objects.
        frame: to which boxes are relative in the batch.
    """
    objects, of_row = windows.objects, windows.object_rows
    counts = np.bincount(of_row, minlength=len(rows))
    number = np.arange(len(of_row)) - np.repeat(np.cumsum(counts) - counts, counts)
    for field in fields:
        if field.name == BOXES:
            values: NDArray[Any] = scaled(objects.boxes, windows.shape[of_row], frame)
            batch[COUNT][rows] = np.minimum(counts, field.shape[0])
        else:
            values = objects.areas if field.name == AREA else lists[field.name][objects.kept]
        out = batch[field.name]
        out[rows] = _fill(field)
        fits = number < field.shape[0]
        out[rows[of_row[fits]], number[fits]] = values[fits]


def scaled(boxes: NDArray[Any], shown: NDArray[np.int64], frame: Shape) -> NDArray[np.float32]:
    """Boxes, [object, 4] relative to what is `shown`, [2] or [object, 2], as float32 relative to a frame."""
    scale = np.concatenate([shown, shown], axis=-1) / np.array(frame * 2)
    return np.asarray(boxes * scale, np.float32)


def pad(values: NDArray[Any], out: NDArray[Any], field: Field) -> None:
    """The first of `values` that fit, then the field's fill."""
    count = min(len(values), len(out))
    out[:count] = values[:count]
    out[count:] = _fill(field)


def _fill(field: Field) -> Any:
    return field.fill if len(field.fill) > 1 else field.fill[0]
