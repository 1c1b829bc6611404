"""Run lengths of Kaggle's tables, CVAT and Label Studio: the rule that their numbers follow, and masks in COCO's form.

A cell such as `4 2 9 1` has pairs of a start and a length. Kaggle counts pixels from 1 and down the columns:

    1 4 7         . . .
    2 5 8    ->   . # .        "5 2 9 1": pixels 5, 6 and 9
    3 6 9         . # #

Other competitions count along the rows, from 0, or give the distance from the end of the run before in place of a
start. The masks of all pictures show the rule: a run of an object covers pixels beside those of the run before it, one
column (or row) further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from halofeed.prep.geometry.resize import Size
from halofeed.system.errors import SourceError

Runs = npt.NDArray[np.int64]
"""[run, 2]: starts and lengths, as written."""
COLUMNS, ROWS = "columns", "rows"
_LEAST_LEAD = 0.2
"""Share of runs by which another rule must do better than Kaggle's to be taken (an estimate)."""
_LEAST_CROSSING = 3
"""Runs that must end with their line for another origin to be taken (an estimate)."""
_MAX_DIGITS = 18
"""Digits of an int64 that cannot overflow."""


@dataclass(frozen=True, kw_only=True)
class RunRule:
    """Meaning of the numbers of a table.

    Args:
        order: COLUMNS if pixels count down the columns, ROWS if they count along the rows.
        origin: number of the first pixel.
        relative: whether a start is the distance from the end of the run before it.
    """

    order: str = COLUMNS
    origin: int = 1
    relative: bool = False

    def extents(self, runs: Runs) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first pixel of each run, counted from 0 in the order of the rule, and that after its last one.

        >>> starts, ends = RunRule().extents(np.array([[5, 2], [9, 1]]))
        >>> starts.tolist(), ends.tolist()
        ([4, 8], [6, 9])
        >>> starts, ends = RunRule(origin=0, relative=True).extents(np.array([[4, 2], [2, 1]]))
        >>> starts.tolist(), ends.tolist()
        ([4, 8], [6, 9])
        """
        starts, lengths = runs[:, 0], runs[:, 1]
        if self.relative:
            ends = np.cumsum(starts + lengths) - self.origin
            return ends - lengths, ends
        return starts - self.origin, starts - self.origin + lengths


def parse_runs(text: str) -> Runs:
    """Return the pairs of a cell; raise SourceError if it holds anything but pairs of whole numbers.

    >>> parse_runs("5 2 9 1").tolist()
    [[5, 2], [9, 1]]
    """
    words = text.replace(",", " ").split()
    whole = all(word.isdecimal() and len(word) <= _MAX_DIGITS for word in words)
    if not words or len(words) % 2 or not whole:
        raise SourceError("annotation", "run lengths are no pairs of whole numbers", f"{text!r:.60}")
    return np.array(words, np.int64).reshape(-1, 2)


def settle_rule(masks: Iterable[tuple[Runs, Size]], order: str | None = None) -> tuple[RunRule, bool]:
    """Return the rule that fits all masks of a table best, and whether the order was measured.

    Args:
        masks: runs of each object with the (height, width) of its picture.
        order: COLUMNS or ROWS if the user states it.

    Raises:
        SourceError: the runs leave the pictures by every rule.
    """
    held = list(masks)
    if not held:
        return RunRule(order=order or COLUMNS), True
    least = min(int(runs[:, 0].min()) for runs, _ in held)
    rules = [
        RunRule(order=one, origin=min(least, 1), relative=False)
        for one in (COLUMNS, ROWS)
        if order in (None, one)
    ]
    rules += [RunRule(order=one.order, origin=0, relative=True) for one in rules]
    scores = [_score(rule, held) for rule in rules]
    possible = [at for at, (fits, _) in enumerate(scores) if fits]
    if not possible:
        raise SourceError("annotation", "run lengths leave their pictures", "by every way of counting")
    best = possible[0]
    # Kaggle's rule is taken unless another one does clearly better.
    for at in possible[1:]:
        if scores[at][1] > scores[best][1] + _LEAST_LEAD:
            best = at
    rules[best] = _with_origin(rules[best], held)
    alike = {
        score for rule, score in zip(rules, scores, strict=True) if rule.relative == rules[best].relative
    }
    return rules[best], order is not None or len(alike) > 1


def _with_origin(rule: RunRule, masks: Sequence[tuple[Runs, Size]]) -> RunRule:
    """Return a rule that counts from 0 if objects at the rims of pictures show it, where no run begins at 0.

    A run of an object at the rim ends with its line. Counted from another origin, its last pixel is on the next line.
    """
    if rule.relative or not rule.origin:
        return rule
    from_zero = replace(rule, origin=0)
    crossing = [sum(_count_crossing(one, *mask) for mask in masks) for one in (rule, from_zero)]
    return from_zero if crossing[0] - crossing[1] >= max(_LEAST_CROSSING, crossing[1]) else rule


def _count_crossing(rule: RunRule, runs: Runs, size: Size) -> int:
    """Return the number of runs that end in another line than they begin."""
    starts, ends = rule.extents(runs[runs[:, 1] > 0])
    line = size[0 if rule.order == COLUMNS else 1]
    return int((starts // line != (ends - 1) // line).sum())


def _score(rule: RunRule, masks: Sequence[tuple[Runs, Size]]) -> tuple[bool, float]:
    """Return whether most masks can follow a rule, and the share of runs with a neighbor one line further."""
    possible = beside = count = 0
    for runs, size in masks:
        if not _is_possible(rule, runs, size):
            continue
        possible += 1
        if len(runs) < 2:
            continue
        starts, ends = rule.extents(_ordered(runs, rule))
        middles = (starts + ends) // 2 + size[0 if rule.order == COLUMNS else 1]
        at = np.searchsorted(starts, middles, "right") - 1
        beside += int((ends[at] > middles).sum())
        count += len(runs)
    return 2 * possible > len(masks), beside / count if count else 0.0


def _is_possible(rule: RunRule, runs: Runs, size: Size) -> bool:
    """Return whether runs are within a picture, and apart."""
    starts, ends = rule.extents(_ordered(runs, rule))
    inside = len(runs) > 0 and starts[0] >= 0 and ends[-1] <= size[0] * size[1]
    return bool(inside and (starts[1:] >= ends[:-1]).all())


def _ordered(runs: Runs, rule: RunRule) -> Runs:
    """Return runs by their starts, since some tools write them in any order."""
    return runs if rule.relative else runs[np.argsort(runs[:, 0], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class RunMask:
    """Mask of an object in COCO's form, with the box around it: ymin, xmin, ymax, xmax and its area in pixels."""

    code: dict[str, Any]
    box: tuple[int, int, int, int]
    area: int


def mask_of_runs(runs: Runs, rule: RunRule, size: Size) -> RunMask | None:
    """Return the mask of the runs of one object; None if it has no pixel.

    Raises:
        SourceError: a run leaves the picture or begins within the run before it.

    >>> found = mask_of_runs(np.array([[5, 2], [9, 1]]), RunRule(), (3, 3))
    >>> found.code, found.box, found.area
    ({'size': [3, 3], 'counts': '422O'}, (1, 1, 3, 3), 3)
    """
    height, width = size
    runs = runs[runs[:, 1] > 0]
    if not len(runs):
        return None
    runs = _ordered(runs, rule)
    if not _is_possible(rule, runs, size):
        starts, ends = rule.extents(runs)
        detail = f"they run to pixel {int(ends.max())} of {height * width} ({width} wide and {height} high)"
        if starts.min() >= 0 and ends.max() <= height * width:
            detail = "a run begins within the run before it"
        raise SourceError("annotation", "run lengths do not fit the picture", detail)
    starts, ends = rule.extents(runs)
    if rule.order == ROWS:
        return _mask_of_rows(starts, ends, size)
    return _mask_of_columns(starts, ends, size)


def mask_in_rectangle(
    counts: Sequence[int], rectangle: tuple[int, int, int, int], size: Size
) -> RunMask | None:
    """Return the mask that CVAT stores: runs along the rows of a rectangle, those outside of the object first.

    Source: `MaskConverter` of CVAT (cvat/apps/dataset_manager/formats/transformations.py).

    Args:
        counts: lengths of the runs; zeros at the end may be left out.
        rectangle: left, top, width and height.
        size: (height, width) of the picture.

    Returns:
        The mask, or None if it has no pixel.

    Raises:
        SourceError: the runs leave the rectangle, or the rectangle leaves the picture.

    >>> mask_in_rectangle([1, 3], (1, 0, 2, 2), (3, 3)).code
    {'size': [3, 3], 'counts': '41110'}
    """
    left, top, width, height = rectangle
    inside = min(left, top) >= 0 and left + width <= size[1] and top + height <= size[0]
    if not inside or min(counts, default=0) < 0 or sum(counts) > width * height:
        detail = f"{sum(counts)} pixels in a rectangle of {width} x {height} at {left}, {top}"
        raise SourceError("annotation", "run lengths do not fit the picture", detail)
    ends = np.cumsum(np.array(counts, np.int64))
    lengths = np.array(counts, np.int64)[1::2]
    pixels = _pixels((ends[1::2] - lengths)[lengths > 0], ends[1::2][lengths > 0])
    if not len(pixels):
        return None
    row, column = np.divmod(pixels, width)
    return _mask_of_pixels(row + top, column + left, size)


def mask_of_brush(packed: bytes, size: Size) -> RunMask | None:
    """Return the mask that Label Studio stores for a brush: packed red, green, blue and alpha of all pixels.

    A pixel with any alpha belongs to the object, as in Label Studio's converter to COCO. The form is that of the
    package rle-pack of thi.ng/umbrella: the number of values (32 bits), the bits of a value less one (5), the bits less
    one of four kinds of lengths (4 each); then for each run a bit that says whether its values are equal, the kind of
    its length (2 bits), its length less one, and its value or its values.

    Raises:
        SourceError: the bytes are damaged, or hold another number of pixels.
    """
    bits = _Bits(packed)
    values, word = bits.read(32), bits.read(5) + 1
    kinds = [bits.read(4) + 1 for _ in range(4)]
    if values != 4 * size[0] * size[1] or word != 8:
        detail = f"{values} values of {word} bits for {size[1]} x {size[0]} pixels; expected four of 8 bits for each"
        raise SourceError("annotation", "brush is not of the size of the picture", detail)
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    while at < values:
        is_equal = bits.read(1)
        length = min(bits.read(kinds[bits.read(2)]) + 1, values - at)
        if is_equal:
            value = bits.read(word)
            found = [(_alpha(at), _alpha(at + length))] if value else []
        else:
            # The alpha of a pixel is the last of its four values.
            alpha = bits.read(word * length).to_bytes(length, "big")[(3 - at) % 4 :: 4]
            found = (
                [(_alpha(at), _alpha(at + length))]
                if all(alpha)
                else [(first, first + 1) for first, value in enumerate(alpha, start=_alpha(at)) if value]
            )
        for first, last in found:
            if first < last:
                starts.append(first)
                ends.append(last)
        at += length
    if not starts:
        return None
    return _mask_of_rows(np.array(starts, np.int64), np.array(ends, np.int64), size)


def _alpha(place: int) -> int:
    """Return the first pixel whose alpha is at a place or after it."""
    return place // 4


class _Bits:
    """Numbers of any number of bits, the highest bit first."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read(self, bits: int) -> int:
        """Return the next number; raise SourceError at the end of the data."""
        end = self._at + bits
        if end > 8 * len(self._data):
            raise SourceError("annotation", "brush ends early", f"{len(self._data)} bytes")
        last = -(-end // 8)
        found = int.from_bytes(self._data[self._at // 8 : last], "big") >> (8 * last - end)
        self._at = end
        return found & ((1 << bits) - 1)


def _pixels(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of each pixel of some runs."""
    lengths = ends - starts
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(starts, lengths) + offsets)


def _mask_of_rows(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: Size) -> RunMask:
    """Return the mask of runs along the rows of a picture."""
    row, column = np.divmod(_pixels(starts, ends), size[1])
    return _mask_of_pixels(row, column, size)


def _mask_of_pixels(row: npt.NDArray[np.int64], column: npt.NDArray[np.int64], size: Size) -> RunMask:
    pixels = np.sort(column * size[0] + row)
    first = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)
    ends = pixels[np.append(first[1:], len(pixels)) - 1] + 1
    return _mask_of_columns(pixels[first], ends, size)


def _mask_of_columns(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: Size) -> RunMask:
    """Return the mask of runs down the columns of a picture."""
    height, width = size
    starts, ends = _joined(starts, ends)
    counts = np.diff(np.stack([starts, ends], axis=1).reshape(-1), prepend=0).tolist()
    rest = height * width - int(ends[-1])
    return RunMask(
        code={"size": [height, width], "counts": compress_counts([*counts, *([rest] if rest else [])])},
        box=_box(starts, ends, height),
        area=int((ends - starts).sum()),
    )


def _joined(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return runs in which those that touch are one, as COCO's form has no run of 0 pixels inside of a mask."""
    apart = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)]


def _box(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], height: int
) -> tuple[int, int, int, int]:
    """Return ymin, xmin, ymax and xmax of the pixels of runs down the columns."""
    first, last = starts // height, (ends - 1) // height
    # A run that goes on in the next column touches both rims of the picture.
    if (first != last).any():
        top, bottom = 0, height
    else:
        top, bottom = int((starts % height).min()), int(((ends - 1) % height).max()) + 1
    return top, int(first.min()), bottom, int(last.max()) + 1


def compress_counts(counts: Sequence[int]) -> str:
    """Return COCO's compressed counts, the format of `rleToString` in the COCO API, which `masks` decodes.

    Each character holds five bits, lowest first, and a sixth one if the number continues, offset by "0". From the
    fourth count on, a number is the difference to the count before the previous one.

    >>> compress_counts([4, 2, 2, 1])
    '422O'
    """
    codes = bytearray()
    for place, count in enumerate(counts):
        value = count - counts[place - 2] if place > 2 else count
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            codes.append(48 + bits + 32 * more)
            if not more:
                break
    return codes.decode("ascii")
