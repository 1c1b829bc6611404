"""Masks of objects: COCO polygons and run lengths become one PNG of 0 and 1 per object.

A pixel belongs to a polygon if its center is inside. Run lengths go down the columns and start with zeros:

    [[0, 1],
     [1, 1]]  ->  size [2, 2], counts [1, 3]
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from halofeed.prep.formats.picture.image import MIRRORED, UPSIDE_DOWN
from halofeed.prep.geometry.resize import ResizePlan, Size, displayed_size
from halofeed.prep.voxels.kernels import plan_lines
from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

MaskPixels = npt.NDArray[np.uint8]
Lines = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Distinct rows (or columns) in ascending order."""
MASK_CHUNK = 1 << 18
"""Crossings of edges and rows, or pixels of run lengths, that are computed at a time."""
_RUN_PIXELS = 4
"""Run lengths are decoded completely up to this multiple of the requested pixels."""
MAX_CROSSINGS = 1 << 28
"""Maximum crossings of one polygon's edges and pixel rows: 2 million points that each cross 130 rows."""


def stored_mask(mask: Any, plan: ResizePlan, orientation: int = 1) -> MaskPixels:
    """Draw one annotated object on the stored grid: oriented, resized (nearest) and padded like its picture.

    Only the pixels that the resized mask contains are drawn.

    Args:
        mask: COCO polygons [[x, y, x, y, ...], ...] or {"size": [height, width], "counts": ...}.
        plan: sizes of the displayed picture.
        orientation: EXIF orientation if `mask` is in the grid of the file; 1 if it is in the displayed grid.

    Returns:
        uint8 [*plan.output_size], 0 or 1.

    Raises:
        SourceError: stage `annotation`: the mask is damaged, or its size differs from that of the picture.
    """
    return ParsedMask.of(mask, displayed_size(orientation, plan.source_size)).stored(plan, orientation)


@dataclass(frozen=True, kw_only=True, eq=False)
class ParsedMask:
    """Mask of one object, checked and converted to arrays once, of which any rows and columns are drawn.

    Args:
        size: (height, width) of the picture in the grid of the annotations.
        polygons: float64 [point, 2] of each polygon, x and y.
        ends: int64 [run], pixels down the columns that precede the end of each run; None for polygons.
    """

    size: Size
    polygons: tuple[npt.NDArray[np.float64], ...] = ()
    ends: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, mask: Any, size: Size) -> ParsedMask:
        """Check a mask, see `stored_mask`; raise SourceError if it is damaged."""
        # COCO stores outlines as polygons, and crowds or pixel-wise masks as run lengths.
        if isinstance(mask, Mapping):
            return cls(size=size, ends=np.cumsum(_checked_runs(mask, size)))
        if isinstance(mask, Sequence) and not isinstance(mask, str | bytes):
            return cls(size=size, polygons=tuple(map(_polygon_points, mask)))
        raise _damaged(
            "is neither polygons nor run lengths",
            f"expected a list or a dict with size and counts, got {mask!r:.80}",
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of its arrays."""
        arrays = self.polygons if self.ends is None else (self.ends,)
        return sum(array.nbytes + 128 for array in arrays)

    def draw(self, lines: Lines | None = None) -> MaskPixels:
        """Draw these rows and columns, all by default: uint8 [row, column], 0 or 1."""
        rows, columns = lines or (np.arange(self.size[0]), np.arange(self.size[1]))
        if self.ends is not None:
            return _draw_runs(self.ends, self.size, rows, columns)
        inside = np.zeros((len(rows), len(columns)), np.uint8)
        for polygon in self.polygons:
            _fill(polygon, self.size, rows, columns, inside)
        return inside

    def stored(self, plan: ResizePlan, orientation: int) -> MaskPixels:
        """Draw the mask on the stored grid of a plan, see `stored_mask`."""
        (rows, row_of), (columns, column_of) = lines_of_file(plan, orientation)
        resized = self.draw((rows, columns))[row_of][:, column_of]
        height, width = plan.resized_size
        output = np.zeros(plan.output_size, np.uint8)
        output[:height, :width] = resized.T if orientation >= 5 else resized
        return output

    def count(self, plan: ResizePlan, orientation: int) -> int:
        """Return the number of pixels of the mask within the part of the picture that a plan shows.

        Bands of rows are drawn one after the other, so the memory does not depend on the size of the picture.
        """
        lines = []
        for (line, times), (low, high) in zip(lines_of_file(plan, orientation), self.extent, strict=True):
            part = slice(*np.searchsorted(line, (low, high)))
            lines.append((line[part], np.bincount(times, minlength=len(line))[part]))
        (rows, row_times), (columns, column_times) = lines
        # Every pixel of run lengths is counted without drawing it, where each is stored once.
        if self.ends is not None and plan.source_size == plan.resized_size:
            return int(np.diff(self.ends, prepend=0)[1::2].sum())
        step = max(1, MASK_CHUNK // max(1, len(columns)))
        total = 0
        for top in range(0, len(rows) if len(columns) else 0, step):
            band = self.draw((rows[top : top + step], columns))
            total += int(row_times[top : top + step] @ (band @ column_times))
        return total

    @property
    def extent(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows, and the columns, that the mask may touch: (first, after the last) of each."""
        height, width = self.size
        if self.ends is not None:
            # The first run is of zeros, and so is the last one of an odd number of runs.
            last = self.ends[-1 - len(self.ends) % 2] if len(self.ends) > 1 else 0
            return (0, height), (int(self.ends[0]) // height, int(last - 1) // height + 1)
        if not self.polygons:
            return (0, 0), (0, 0)
        low = np.min([polygon.min(axis=0) for polygon in self.polygons], axis=0)
        high = np.max([polygon.max(axis=0) for polygon in self.polygons], axis=0)
        (left, top), (right, bottom) = (
            np.clip(np.floor(low), 0, (width, height)).astype(int).tolist(),
            np.clip(np.ceil(high), 0, (width, height)).astype(int).tolist(),
        )
        return (top, bottom), (left, right)


@lru_cache(maxsize=64)
def lines_of_file(plan: ResizePlan, orientation: int) -> tuple[Lines, Lines]:
    """Return, for rows and columns, the source lines that a resized mask copies, and the index of each target line."""
    lines = list(plan_lines(plan.source_size, plan))
    for axis, reversed_in in enumerate((UPSIDE_DOWN, MIRRORED)):
        if orientation in reversed_in:
            lines[axis] = plan.source_size[axis] - 1 - lines[axis]
    # The stored picture is transposed, so that rows of the record are columns of the file.
    if orientation >= 5:  # transposing maps 5 to 1, 6 to 2, 7 to 3, 8 to 4
        lines.reverse()
    (rows, row_of), (columns, column_of) = (np.unique(line, return_inverse=True) for line in lines)
    return (rows, row_of), (columns, column_of)


def mask_bytes(mask: Any, plan: ResizePlan) -> int:
    """Return the peak memory of drawing and encoding the mask of one object."""
    (height, width), (rows, columns) = plan.source_size, map(min, plan.source_size, plan.resized_size)
    drawn, output = rows * columns, plan.output_size[0] * plan.output_size[1]
    if isinstance(mask, Mapping):
        counts = mask.get("counts", ())
        numbers = len(counts) if isinstance(counts, Sequence | bytes) else 0
        # `decode_coco_run_lengths` decodes all pixels where most of them are drawn.
        if height * width <= _RUN_PIXELS * drawn:
            drawn = 2 * height * width
        return 100 * numbers + 2 * drawn + 3 * output + 40 * MASK_CHUNK
    polygons = mask if isinstance(mask, Sequence) else ()
    points = sum(len(polygon) for polygon in polygons if isinstance(polygon, Sequence))
    return 80 * points + 3 * drawn + 3 * output + 120 * MASK_CHUNK


def draw_mask(mask: Any, size: Size, lines: Lines | None = None) -> MaskPixels:
    """Draw COCO polygons or run lengths on a picture of (height, width): uint8, 0 or 1.

    Args:
        mask: see `stored_mask`.
        size: (height, width) of the picture.
        lines: rows and columns to draw; default: all.
    >>> draw_mask({"size": [2, 2], "counts": [1, 3]}, (2, 2)).tolist()
    [[0, 1], [1, 1]]
    """
    return ParsedMask.of(mask, size).draw(lines)


def fill_polygons(polygons: Sequence[Any], size: Size, lines: Lines | None = None) -> MaskPixels:
    """Draw the union of polygons, each a flat list x, y, x, y, ... in pixels, clipped to the picture.

    The inside follows the even-odd rule. Each edge is intersected with the center line of every pixel row. A crossing
    flips all pixels whose centers are to its right, so the running parity along the row is the inside.

    Args:
        polygons: coordinates of each polygon.
        size: (height, width) of the picture.
        lines: rows and columns to draw; default: all.

    Raises:
        SourceError: stage `annotation`: a polygon is damaged, or crosses more rows than an outline can.

    >>> fill_polygons([[1, 0, 3, 0, 3, 2, 1, 2]], (3, 4)).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    return ParsedMask.of(polygons, size).draw(lines)


def _fill(
    points: npt.NDArray[np.float64],
    size: Size,
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    inside: MaskPixels,
) -> None:
    """Add one polygon to `inside`."""
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
    # The polygon is between the center lines of two rows, or beyond the picture.
    if not total:
        return
    if total > MAX_CROSSINGS:
        detail = (
            f"its {plural(len(points), 'edge crosses', 'edges cross')} rows {plural(total, 'time')}; "
            f"allowed are {MAX_CROSSINGS}"
        )
        raise _damaged("has a polygon that crosses too many rows", detail)

    def crossed(start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the indices in `rows` and `columns` of a range of crossings."""
        low, high = np.searchsorted(begins, (start, stop - 1), "right") - (1, 0)
        counts = np.minimum(begins[low:high] + crossings[low:high], stop) - np.maximum(
            begins[low:high], start
        )
        edge = np.repeat(np.arange(low, high), counts)
        at = np.arange(start, stop) - begins[edge] + first[edge]
        share = (rows[at] + 0.5 - y[edge]) / (next_y - y)[edge]
        crossed_at = x[edge] + share * (next_x - x)[edge]
        return at, np.searchsorted(columns, np.clip(np.ceil(crossed_at - 0.5), 0, width))

    # Most polygons cross few rows: they are drawn at once in the rectangle around their crossings.
    if total <= MASK_CHUNK:
        row, column = crossed(0, total)
        top, left = int(row.min()), int(column.min())  # outside this rectangle the parity is even
        down, across = int(row.max()) - top + 1, int(column.max()) - left + 1
    else:
        top, left, across = int(first.min()), 0, len(columns) + 1
        down = int(last.max()) - top
    if total <= MASK_CHUNK and down * across <= MASK_CHUNK:
        flips = np.bincount((row - top) * across + column - left, minlength=down * across).astype(np.uint8)
    else:
        flips = np.zeros(down * across, np.uint8)
        for start in range(0, total, MASK_CHUNK):
            row, column = crossed(start, min(start + MASK_CHUNK, total))
            np.add.at(flips, (row - top) * across + column - left, np.uint8(1))  # 256 flips cancel out
    flips &= 1
    parity = np.bitwise_xor.accumulate(flips.reshape(down, across), axis=1)
    inside[top : top + down, left : left + across] |= parity[:, : len(columns) - left]


def decode_coco_run_lengths(mask: Mapping[str, Any], size: Size, lines: Lines | None = None) -> MaskPixels:
    """Decode COCO run lengths, a list of counts or a compressed string: uint8 [height, width], 0 or 1.

    Args:
        mask: {"size": [height, width], "counts": ...}.
        size: (height, width) of the picture.
        lines: rows and columns to decode; default: all.

    Raises:
        SourceError: stage `annotation`: size or counts are missing or damaged.
    """
    return ParsedMask.of(mask, size).draw(lines)


def _draw_runs(
    ends: npt.NDArray[np.int64], size: Size, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
) -> MaskPixels:
    """Draw rows and columns of run lengths that are given by the ends of their runs."""
    height, width = size
    # The format runs down the columns, zeros first.
    if height * width <= _RUN_PIXELS * len(rows) * len(columns):
        values = np.arange(len(ends), dtype=np.uint8) & 1
        decoded = np.repeat(values, np.diff(ends, prepend=0)).reshape(width, height).T
        is_complete = len(rows) == height and len(columns) == width
        return decoded if is_complete else decoded[rows][:, columns]
    # Of few pixels of a large mask, only the runs that end among them are looked at. Each end flips the pixels below.
    found = np.empty((len(columns), len(rows)), np.uint8)
    step = max(1, MASK_CHUNK // len(rows))
    for start in range(0, len(columns), step):
        starts = columns[start : start + step] * height
        before, after = (np.searchsorted(ends, starts + row, "right") for row in (rows[0], rows[-1]))
        counts = after - before
        column = np.repeat(np.arange(len(starts)), counts)
        run = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts - before, counts)
        row = np.searchsorted(rows, ends[run] - starts[column])
        flips = np.bincount(column * len(rows) + row, minlength=len(starts) * len(rows))
        flips = flips.reshape(len(starts), len(rows)).astype(np.uint8)  # 256 flips cancel out
        flips[:, 0] += (before & 1).astype(np.uint8)
        np.bitwise_xor.accumulate(flips & 1, axis=1, out=found[start : start + step])
    return found.T


def _checked_runs(mask: Mapping[str, Any], size: Size) -> npt.NDArray[np.int64]:
    """Return the run lengths of a mask of this (height, width), which add up to its pixels."""
    try:
        height, width = (int(side) for side in mask["size"])
        counts = mask["counts"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged("lacks a size or counts", f"got {dict(mask)!r:.80}") from error
    if (height, width) != tuple(size):
        raise _damaged(
            "is of another size than the picture", f"mask {height}×{width}, picture {size[0]}×{size[1]}"
        )
    runs = _uncompress(counts) if isinstance(counts, str | bytes) else _checked_counts(counts)
    if (runs < 0).any() or (runs > height * width).any() or runs.sum() != height * width:
        raise _damaged(
            "has run lengths that do not add up",
            f"{plural(runs.sum(), 'pixel')} in {plural(len(runs), 'run')}, {height}×{width} expected",
        )
    return runs


def mask_area(mask: Any) -> float:
    """Return the area of COCO polygons or run lengths in pixels².

    Raises:
        SourceError: see `draw_mask`.

    >>> mask_area([[0, 0, 4, 0, 4, 2, 0, 2]]), mask_area({"size": [2, 2], "counts": [1, 3]})
    (8.0, 3.0)
    """
    if isinstance(mask, Mapping):
        counts = mask.get("counts")
        runs = _uncompress(counts) if isinstance(counts, str | bytes) else _checked_counts(counts)
        return float(runs[1::2].sum())
    if not isinstance(mask, Sequence):
        raise _damaged("is neither polygons nor run lengths", f"got {mask!r:.80}")
    area = 0.0
    for polygon in mask:
        x, y = (_polygon_points(polygon) - _polygon_points(polygon)[0]).T
        area += abs(float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())) / 2
    return area


def run_length_box(mask: Mapping[str, Any]) -> list[int]:
    """Return the x, y, width and height of the pixels of COCO run lengths, as `rleToBbox` of the COCO API does.

    Raises:
        SourceError: as `decode_coco_run_lengths`.

    >>> run_length_box({"size": [2, 3], "counts": [2, 3, 1]})
    [1, 0, 2, 2]
    """
    size = mask.get("size")
    if not isinstance(size, Sequence) or len(size) != 2 or not all(isinstance(side, int) for side in size):
        raise _damaged("lacks a size or counts", f"got {dict(mask)!r:.80}")
    inside = np.argwhere(decode_coco_run_lengths(mask, (size[0], size[1])))
    if not len(inside):
        return [0, 0, 0, 0]
    (top, left), (bottom, right) = inside.min(axis=0).tolist(), inside.max(axis=0).tolist()
    return [left, top, right - left + 1, bottom - top + 1]


def encode_run_lengths(mask: npt.NDArray[Any]) -> dict[str, Any]:
    """Return a mask [height, width] as COCO's run lengths, down the columns and zeros first.

    >>> encode_run_lengths(np.array([[0, 1], [1, 1]], np.uint8))
    {'size': [2, 2], 'counts': [1, 3]}
    """
    pixels = np.concatenate([[False], mask.T.reshape(-1) > 0])
    changes = np.flatnonzero(pixels[1:] != pixels[:-1])
    return {"size": list(mask.shape), "counts": np.diff(changes, prepend=0, append=mask.size).tolist()}


def encode_mask_png(mask: npt.NDArray[Any]) -> bytes:
    """Encode a mask [h, w] of 0 and 1 (bool or uint8) as an 8-bit gray PNG, as the TF OD API expects."""
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
    # Fewer than three points enclose no area.
    if flat.ndim != 1 or flat.size % 2 or flat.size < 6 or not np.isfinite(flat).all():
        raise _damaged("has a polygon without three finite points", f"got {polygon!r:.80}")
    return flat.reshape(-1, 2)


def _checked_counts(counts: Any) -> npt.NDArray[np.int64]:
    are_integers = isinstance(counts, Sequence | np.ndarray) and all(
        isinstance(run, int | np.integer) for run in counts
    )
    # Floats would be cut to integers, and the runs would no longer add up.
    if not are_integers:
        raise _damaged("has run lengths that are not whole numbers", f"got {counts!r:.80}")
    return _as_int64(counts)


def _as_int64(runs: Iterable[int]) -> npt.NDArray[np.int64]:
    """Convert runs to int64; runs that are negative or too long for any picture stay invalid."""
    return np.array([min(max(run, -1), 2**40) for run in runs], np.int64)


def _uncompress(text: str | bytes) -> npt.NDArray[np.int64]:
    """Decode COCO's compressed counts, the format of `rleToString` in the COCO API.

    Each character holds five bits, lowest first, offset by "0". The sixth bit is set if the number continues. The
    fifth bit of the last character is the sign. From the fourth count on, a number is the difference to the count
    before the previous one.
    """
    try:
        data = text.encode("ascii") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise _unreadable(text) from error
    codes = np.frombuffer(data, np.uint8).astype(int) - 48
    # The last character cannot continue.
    if codes.size and (codes.min() < 0 or codes.max() > 63 or codes[-1] & 32):
        raise _unreadable(text)
    runs: list[int] = []
    value = shift = 0
    for code in codes.tolist():
        value |= (code & 31) << shift
        shift += 5
        # 2^60 pixels are no picture; a longer number would take memory without a limit.
        if shift > 60:
            raise _unreadable(text)
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            runs.append(value + runs[-2] if len(runs) > 2 else value)
            value = shift = 0
    return _as_int64(runs)


def _unreadable(text: str | bytes) -> SourceError:
    return _damaged("has unreadable compressed counts", f"got {text!r:.80}")


def _damaged(what: str, detail: str) -> SourceError:
    return SourceError("annotation", f"mask {what}", detail)
