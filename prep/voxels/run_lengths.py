"""Run lengths of Kaggle's tables: which rule their numbers follow, and their masks in COCO's form.

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
        starts, ends = _down_columns(starts, ends, size)
    starts, ends = _joined(starts, ends)
    edges = np.stack([starts, ends], axis=1).reshape(-1)
    counts = np.diff(edges, prepend=0)
    rest = height * width - int(ends[-1])
    code = compress_counts([*counts.tolist(), *([rest] if rest else [])])
    return RunMask(
        code={"size": [height, width], "counts": code},
        box=_box(starts, ends, height),
        area=int((ends - starts).sum()),
    )


def _down_columns(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: Size
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return runs along the rows as runs down the columns."""
    lengths = ends - starts
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    row, column = np.divmod(np.repeat(starts, lengths) + offsets, size[1])
    pixels = np.sort(column * size[0] + row)
    first = np.flatnonzero(np.diff(pixels, prepend=-2) != 1)
    return pixels[first], pixels[np.append(first[1:], len(pixels)) - 1] + 1


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
