"""Which stored pixels an object covers: COCO polygons and run lengths as one PNG of 0 and 1 per object.

A pixel belongs to a polygon if its centre lies inside. Run lengths go down the columns, first the zeros:

    [[0, 1],
     [1, 1]]  ->  size [2, 2], counts [1, 3]
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from halofeed.prep.kernels import resize_mask
from halofeed.prep.resize import ResizePlan, Size, displayed_size
from halofeed.schemas.errors import SourceError, UsageError

Mask = npt.NDArray[np.uint8]


def stored_mask(mask: Any, plan: ResizePlan, orientation: int = 1) -> Mask:
    """Draws one annotated object, then turns, resizes (nearest) and pads it as its picture.

    Args:
        mask: COCO's: polygons [[x, y, x, y, ...], ...] or {"size": [height, width], "counts": ...}.
        plan: of the displayed picture.
        orientation: the EXIF orientation if `mask` is in the file's grid; 1 if it is in the displayed one.

    Returns:
        uint8 [*plan.output_size], 0 or 1.

    Raises:
        SourceError: of stage `annotation`, where the mask is damaged or of another size than the picture.
    """
    drawn = draw_mask(mask, displayed_size(orientation, plan.source_size))
    return resize_mask(_displayed(drawn, orientation), plan).astype(np.uint8)


def draw_mask(mask: Any, size: Size) -> Mask:
    """Draws COCO polygons or run lengths on a picture of (height, width): uint8, 0 or 1.

    >>> draw_mask({"size": [2, 2], "counts": [1, 3]}, (2, 2)).tolist()
    [[0, 1], [1, 1]]
    """
    if isinstance(mask, Mapping):
        return decode_run_lengths(mask, size)
    if isinstance(mask, Sequence) and not isinstance(mask, str | bytes):
        return fill_polygons(mask, size)
    raise _damaged(
        "is neither polygons nor run lengths",
        f"expected a list or a dict with size and counts, got {mask!r:.80}",
    )


def fill_polygons(polygons: Sequence[Any], size: Size) -> Mask:
    """Draws the union of polygons, each a flat list x, y, x, y, ... in pixels, cut at the picture's edges.

    Inside is by the even-odd rule. A row of pixels is crossed at its centre line; every crossing of an edge
    flips all pixels whose centres lie right of it, so that a running parity along the row is the inside.

    >>> fill_polygons([[1, 0, 3, 0, 3, 2, 1, 2]], (3, 4)).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    height, width = size
    inside = np.zeros(size, np.uint8)
    for polygon in polygons:
        points = _polygon_points(polygon)
        x, y = points[:, 0], points[:, 1]
        next_x, next_y = np.roll(x, -1), np.roll(y, -1)
        first = np.clip(np.ceil(np.minimum(y, next_y) - 0.5), 0, height).astype(np.int64)
        last = np.clip(np.ceil(np.maximum(y, next_y) - 0.5), 0, height).astype(np.int64)
        crossings = last - first
        edge = np.repeat(np.arange(len(points)), crossings)
        row = np.arange(len(edge)) - np.repeat(np.cumsum(crossings) - crossings, crossings) + first[edge]
        share = (row + 0.5 - y[edge]) / (next_y - y)[edge]
        crossed_at = x[edge] + share * (next_x - x)[edge]
        column = np.clip(np.ceil(crossed_at - 0.5), 0, width).astype(np.int64)
        if not len(row):
            continue
        top, left = int(row.min()), int(column.min())  # outside this rectangle nothing is flipped an odd time
        rows, columns = int(row.max()) - top + 1, int(column.max()) - left + 1
        flips = np.bincount((row - top) * columns + column - left, minlength=rows * columns)
        parity = np.bitwise_xor.accumulate(flips.astype(np.uint8).reshape(rows, columns) & 1, axis=1)
        inside[top : top + rows, left : left + columns] |= parity[:, : width - left]
    return inside


def decode_run_lengths(mask: Mapping[str, Any], size: Size) -> Mask:
    """Decodes COCO run lengths, as a list of counts or compressed to a string: uint8 [height, width], 0 or 1.

    Raises:
        SourceError: of stage `annotation`, where size or counts are missing or damaged.
    """
    try:
        height, width = (int(side) for side in mask["size"])
        counts = mask["counts"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged("lacks a size or counts", f"got {dict(mask)!r:.80}") from error
    if (height, width) != tuple(size):
        raise _damaged(
            "is of another size than the picture", f"mask {height}×{width}, picture {size[0]}×{size[1]}"
        )
    runs = _uncompress(counts) if isinstance(counts, str | bytes) else _whole_numbers(counts)
    if (runs < 0).any() or (runs > height * width).any() or runs.sum() != height * width:
        raise _damaged(
            "has run lengths that do not add up",
            f"{runs.sum()} pixels in {len(runs)} runs, {height}×{width} expected",
        )
    values = np.arange(len(runs)) & 1
    return np.repeat(values.astype(np.uint8), runs).reshape(width, height).T


def encode_mask_png(mask: npt.NDArray[Any]) -> bytes:
    """Encodes a mask [h, w] of 0 and 1 (bool or uint8) as an 8-bit grey PNG, as the TF OD API reads them."""
    if mask.ndim != 2 or mask.dtype not in (np.bool_, np.uint8) or (mask.size and mask.max() > 1):
        raise UsageError(f"mask: expected bool or uint8 [h, w] of 0 and 1, got {mask.dtype} {mask.shape}")
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def _displayed(mask: Mask, orientation: int) -> Mask:
    upright = mask.T if orientation >= 5 else mask  # transposing takes 5 to 1, 6 to 2, 7 to 3, 8 to 4
    down, across = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1)}[(orientation - 1) % 4 + 1]
    return upright[::down, ::across]


def _polygon_points(polygon: Any) -> npt.NDArray[np.float64]:
    try:
        flat = np.asarray(polygon, np.float64)
    except (TypeError, ValueError) as error:
        raise _damaged("has a polygon that is not numbers", f"got {polygon!r:.80}") from error
    if flat.ndim != 1 or flat.size % 2 or flat.size < 6 or not np.isfinite(flat).all():
        raise _damaged("has a polygon without three finite points", f"got {polygon!r:.80}")
    return flat.reshape(-1, 2)


def _whole_numbers(counts: Any) -> npt.NDArray[np.int64]:
    whole = isinstance(counts, Sequence | np.ndarray) and all(
        isinstance(run, int | np.integer) for run in counts
    )
    if not whole:
        raise _damaged("has run lengths that are not whole numbers", f"got {counts!r:.80}")
    return _as_int64(counts)


def _as_int64(runs: Iterable[int]) -> npt.NDArray[np.int64]:
    """Runs longer than any picture, or negative, stay so, but within int64."""
    return np.array([min(max(run, -1), 2**40) for run in runs], np.int64)


def _uncompress(text: str | bytes) -> npt.NDArray[np.int64]:
    """Reads COCO's compressed counts, the format of `rleToString` in the COCO API.

    Five bits a character, lowest first, from "0" on; the sixth bit says that the number goes on, and the
    fifth bit of its last character is its sign. From the fourth count on, a number is the difference to the last
    count but one.
    """
    try:
        codes = (
            np.frombuffer(text.encode("ascii") if isinstance(text, str) else text, np.uint8).astype(int) - 48
        )
    except UnicodeEncodeError as error:
        raise _damaged("has unreadable compressed counts", f"got {text!r:.80}") from error
    if codes.size and (codes.min() < 0 or codes.max() > 63 or codes[-1] & 32):
        raise _damaged("has unreadable compressed counts", f"got {text!r:.80}")
    runs: list[int] = []
    value = shift = 0
    for code in codes.tolist():
        value |= (code & 31) << shift
        shift += 5
        if shift > 60:
            raise _damaged("has unreadable compressed counts", f"got {text!r:.80}")
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            runs.append(value + runs[-2] if len(runs) > 2 else value)
            value = shift = 0
    return _as_int64(runs)


def _damaged(what: str, detail: str) -> SourceError:
    return SourceError("annotation", f"mask {what}", detail)
