"""Which stored pixels an object covers: COCO polygons and run lengths as one PNG of 0 and 1 per object.

A pixel belongs to a polygon if its center lies inside. Run lengths go down the columns, first the zeros:

    [[0, 1],
     [1, 1]]  ->  size [2, 2], counts [1, 3]
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from halofeed.errors import SourceError, UsageError
from halofeed.prep.formats.picture.image import MIRRORED, UPSIDE_DOWN
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size
from halofeed.prep.voxels.kernels import nearest_lines

Mask = npt.NDArray[np.uint8]


def stored_mask(mask: Any, plan: ResizePlan, orientation: int = 1) -> Mask:
    """Draws one annotated object as it is once turned, resized (nearest) and padded as its picture.

    Only the pixels are drawn that the resized mask takes over.

    Args:
        mask: COCO's: polygons [[x, y, x, y, ...], ...] or {"size": [height, width], "counts": ...}.
        plan: of the displayed picture.
        orientation: the EXIF orientation if `mask` is in the file's grid; 1 if it is in the displayed one.

    Returns:
        uint8 [*plan.output_size], 0 or 1.

    Raises:
        SourceError: of stage `annotation`, where the mask is damaged or of another size than the picture.
    """
    (rows, row_of), (columns, column_of) = _taken(plan, orientation)
    drawn = draw_mask(mask, displayed_size(orientation, plan.source_size), (rows, columns))
    taken = drawn[row_of][:, column_of]
    height, width = plan.resized_size
    output = np.zeros(plan.output_size, np.uint8)
    output[:height, :width] = taken.T if orientation >= 5 else taken
    return output


Lines = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Rows (or columns) in ascending order, each once."""


@lru_cache(maxsize=64)
def _taken(plan: ResizePlan, orientation: int) -> tuple[Lines, Lines]:
    """The rows and the columns of a mask in its own grid that a resized one takes over, and the place of each there."""
    lines = list(nearest_lines(plan.source_size, plan.resized_size))
    for axis, reversed_in in enumerate((UPSIDE_DOWN, MIRRORED)):
        if orientation in reversed_in:
            lines[axis] = plan.source_size[axis] - 1 - lines[axis]
    if orientation >= 5:  # transposing takes 5 to 1, 6 to 2, 7 to 3, 8 to 4
        lines.reverse()
    (rows, row_of), (columns, column_of) = (np.unique(line, return_inverse=True) for line in lines)
    return (rows, row_of), (columns, column_of)


def mask_bytes(mask: Any, plan: ResizePlan) -> int:
    """What drawing one object's mask, and encoding it, takes at most."""
    (height, width), (rows, columns) = plan.source_size, map(min, plan.source_size, plan.resized_size)
    drawn, output = rows * columns, plan.output_size[0] * plan.output_size[1]
    if isinstance(mask, Mapping):
        counts = mask.get("counts", ())
        numbers = len(counts) if isinstance(counts, Sequence | bytes) else 0
        if height * width <= _RUN_PIXELS * drawn:
            drawn = 2 * height * width
        return 100 * numbers + 2 * drawn + 3 * output + 40 * _CHUNK
    polygons = mask if isinstance(mask, Sequence) else ()
    points = sum(len(polygon) for polygon in polygons if isinstance(polygon, Sequence))
    return 80 * points + 3 * drawn + 3 * output + 120 * _CHUNK


def draw_mask(mask: Any, size: Size, lines: Lines | None = None) -> Mask:
    """Draws COCO polygons or run lengths on a picture of (height, width): uint8, 0 or 1.

    Args:
        lines: the rows and columns to draw; left out: all.

    >>> draw_mask({"size": [2, 2], "counts": [1, 3]}, (2, 2)).tolist()
    [[0, 1], [1, 1]]
    """
    if isinstance(mask, Mapping):
        return decode_run_lengths(mask, size, lines)
    if isinstance(mask, Sequence) and not isinstance(mask, str | bytes):
        return fill_polygons(mask, size, lines)
    raise _damaged(
        "is neither polygons nor run lengths",
        f"expected a list or a dict with size and counts, got {mask!r:.80}",
    )


_CHUNK = 1 << 18
"""So many crossings of edges and rows, or pixels of run lengths, are worked out at a time."""
_RUN_PIXELS = 4
"""Run lengths are written out as a whole where that is at most so many times the pixels that are wanted."""
MOST_CROSSINGS = 1 << 28
"""More edges and rows of one polygon that cross are no outline: 2 million points that each pass 130 rows."""


def fill_polygons(polygons: Sequence[Any], size: Size, lines: Lines | None = None) -> Mask:
    """Draws the union of polygons, each a flat list x, y, x, y, ... in pixels, cut at the picture's edges.

    Inside is by the even-odd rule. A row of pixels is crossed at its center line; every crossing of an edge
    flips all pixels whose centers lie right of it, so that a running parity along the row is the inside.

    Args:
        size: (height, width) of the picture.
        lines: the rows and columns to draw; left out: all.

    Raises:
        SourceError: of stage `annotation`, where a polygon is damaged, or crosses more rows than an outline does.

    >>> fill_polygons([[1, 0, 3, 0, 3, 2, 1, 2]], (3, 4)).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    rows, columns = lines or (np.arange(size[0]), np.arange(size[1]))
    inside = np.zeros((len(rows), len(columns)), np.uint8)
    for polygon in polygons:
        _fill(_polygon_points(polygon), size, rows, columns, inside)
    return inside


def _fill(
    points: npt.NDArray[np.float64],
    size: Size,
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    inside: Mask,
) -> None:
    """Adds one polygon to what is inside."""
    height, width = size
    x, y = points[:, 0], points[:, 1]
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    first, last = (
        np.searchsorted(rows, np.clip(np.ceil(ends(y, next_y) - 0.5), 0, height))
        for ends in (np.minimum, np.maximum)
    )
    crossings = last - first
    begins = np.cumsum(crossings) - crossings
    total = int(crossings.sum())
    if not total:
        return
    if total > MOST_CROSSINGS:
        detail = f"its {len(points)} edges cross rows {total} times; allowed are {MOST_CROSSINGS}"
        raise _damaged("has a polygon that goes to and fro", detail)

    def crossed(start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The places among `rows` and `columns` of some of the crossings."""
        low, high = np.searchsorted(begins, (start, stop - 1), "right") - (1, 0)
        counts = np.minimum(begins[low:high] + crossings[low:high], stop) - np.maximum(
            begins[low:high], start
        )
        edge = np.repeat(np.arange(low, high), counts)
        at = np.arange(start, stop) - begins[edge] + first[edge]
        share = (rows[at] + 0.5 - y[edge]) / (next_y - y)[edge]
        crossed_at = x[edge] + share * (next_x - x)[edge]
        return at, np.searchsorted(columns, np.clip(np.ceil(crossed_at - 0.5), 0, width))

    if total <= _CHUNK:
        row, column = crossed(0, total)
        top, left = int(row.min()), int(column.min())  # outside this rectangle nothing is flipped an odd time
        down, across = int(row.max()) - top + 1, int(column.max()) - left + 1
    else:
        top, left, across = int(first.min()), 0, len(columns) + 1
        down = int(last.max()) - top
    if total <= _CHUNK and down * across <= _CHUNK:
        flips = np.bincount((row - top) * across + column - left, minlength=down * across).astype(np.uint8)
    else:
        flips = np.zeros(down * across, np.uint8)
        for start in range(0, total, _CHUNK):
            row, column = crossed(start, min(start + _CHUNK, total))
            np.add.at(flips, (row - top) * across + column - left, np.uint8(1))  # 256 flips are none
    flips &= 1
    parity = np.bitwise_xor.accumulate(flips.reshape(down, across), axis=1)
    inside[top : top + down, left : left + across] |= parity[:, : len(columns) - left]


def decode_run_lengths(mask: Mapping[str, Any], size: Size, lines: Lines | None = None) -> Mask:
    """Decodes COCO run lengths, as a list of counts or compressed to a string: uint8 [height, width], 0 or 1.

    Args:
        lines: the rows and columns to decode; left out: all.

    Raises:
        SourceError: of stage `annotation`, where size or counts are missing or damaged.
    """
    try:
        height, width = (int(side) for side in mask["size"])
        counts = mask["counts"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
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
    rows, columns = lines or (np.arange(height), np.arange(width))
    if height * width <= _RUN_PIXELS * len(rows) * len(columns):
        values = np.arange(len(runs), dtype=np.uint8) & 1
        whole = np.repeat(values, runs).reshape(width, height).T
        return whole if lines is None else whole[rows][:, columns]
    ends = np.cumsum(runs)
    found = np.empty((len(columns), len(rows)), np.uint8)
    step = max(1, _CHUNK // len(rows))
    for start in range(0, len(columns), step):
        pixel = columns[start : start + step, None] * height + rows
        found[start : start + step] = np.searchsorted(ends, pixel, "right") & 1
    return found.T


def encode_mask_png(mask: npt.NDArray[Any]) -> bytes:
    """Encodes a mask [h, w] of 0 and 1 (bool or uint8) as an 8-bit gray PNG, as the TF OD API reads them."""
    if mask.ndim != 2 or mask.dtype not in (np.bool_, np.uint8) or (mask.size and mask.max() > 1):
        raise UsageError(f"mask: expected bool or uint8 [h, w] of 0 and 1, got {mask.dtype} {mask.shape}")
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def _polygon_points(polygon: Any) -> npt.NDArray[np.float64]:
    try:
        flat = np.asarray(polygon, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
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
