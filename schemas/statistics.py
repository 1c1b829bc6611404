"""What do the statistics of a shard or a split look like? Each name, and the kind of its value.

`halofeed.prep` counts them and `merge_statistics` adds them up, so that those of all shards and splits have one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from halofeed.schemas.limits import LABELS, NAMES

Problems = Iterator[tuple[str, str]]
Kind = Callable[[Any, str, int], Problems]
"""Takes a value, its path and the image's channels; gives every (path, what is wrong)."""

_HISTOGRAM_BINS = 256
_BINS = 1 << 20
"""Of values of volumes, see `halofeed.prep.statistics.counts`."""
_LARGEST_VALUE = 3.5e38
_COUNT_BITS, _SUM_BITS = 63, 127
_PIXEL_SUMS = ("sum", "sum_squares", "histogram")


def statistics_problems(statistics: Mapping[str, Any], path: str, channels: int | None = None) -> Problems:
    """Every (path, what is wrong) of the statistics of a shard or a split.

    Args:
        channels: of the image; None where it is not known, and any number will do.
    """
    for name, value in statistics.items():
        if name not in STATISTICS:
            yield f"{path}.{name}"[:200], "unknown; a newer halofeed may know it"
        else:
            yield from STATISTICS[name](value, f"{path}.{name}", -1 if channels is None else channels)


def counted_names(statistics: Mapping[str, Any]) -> int:
    """How many names are counted in statistics that have no problem."""
    inside = [value for value in statistics.values() if isinstance(value, dict)]
    inside += statistics.get("intensities", {}).values()
    return sum(map(len, inside))


def _is_count(value: Any, bits: int = _COUNT_BITS) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def _count(value: Any, path: str, channels: int) -> Problems:
    if not _is_count(value):
        yield path, f"expected a count, got {value!r:.60}"


def _counts(names: str, words: str, most: int = NAMES) -> Kind:
    """Counts by at most so many names of one form, whose sum is a count too."""
    pattern = re.compile(names, re.DOTALL)

    def kind(value: Any, path: str, channels: int) -> Problems:
        if not isinstance(value, dict):
            yield path, f"expected counts by {words}, got {value!r:.60}"
            return
        if len(value) > most:
            yield path, f"expected at most {most:,} {words}, got {len(value):,}"
            return
        for name, count in value.items():
            if not _is_count(count):
                yield f"{path}.{name}"[:200], f"expected a count, got {count!r:.60}"
                return
            if not pattern.fullmatch(name):
                yield path, f"expected {words}, got {name!r:.60}"
                return
        if not _is_count(sum(value.values())):
            yield path, f"expected a sum below 2**{_COUNT_BITS}, got {sum(value.values())}"

    return kind


def _members(*names: str) -> Kind:
    def kind(value: Any, path: str, channels: int) -> Problems:
        if (
            not isinstance(value, dict)
            or sorted(value) != sorted(names)
            or not all(map(_is_count, value.values()))
        ):
            yield path, f"expected the counts {' and '.join(names)}, got {value!r:.60}"

    return kind


def _padding(value: Any, path: str, channels: int) -> Problems:
    yield from (problems := list(_members("stored_pixels", "padded_pixels")(value, path, channels)))
    if not problems and value["padded_pixels"] > value["stored_pixels"]:
        yield path, f"expected at most the stored pixels to be padding, got {value!r:.100}"


def _sides(count: int) -> Kind:
    def kind(value: Any, path: str, channels: int) -> Problems:
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(_is_count(side, 31) for side in value)
        ):
            yield path, f"expected {count} sides, got {value!r:.60}"

    return kind


def _pixels(value: Any, path: str, channels: int) -> Problems:
    """The count, and of each channel the sums and the histogram; no channel where nothing is counted."""
    if not isinstance(value, dict) or sorted(value) != sorted(("count", *_PIXEL_SUMS)):
        yield path, f"expected count, {', '.join(_PIXEL_SUMS)}, got {value!r:.60}"
        return
    yield from _count(value["count"], f"{path}.count", channels)
    lists = [value[name] for name in _PIXEL_SUMS]
    if not all(isinstance(one, list) for one in lists) or len(set(map(len, lists))) != 1:
        yield path, f"expected {', '.join(_PIXEL_SUMS)} of every channel"
        return
    expected = (0, channels) if value["count"] == 0 or channels < 0 else (channels,)
    if (channels >= 0 and len(lists[0]) not in expected) or (value["count"] and not lists[0]):
        yield path, f"expected the sums of {max(channels, 1)} channels, got {len(lists[0])}"
    elif not all(_is_count(number, _SUM_BITS) for one in lists[:2] for number in one):
        yield path, f"expected sums of whole numbers below 2**{_SUM_BITS}"
    elif not all(
        isinstance(bins, list) and len(bins) == _HISTOGRAM_BINS and all(map(_is_count, bins))
        for bins in lists[2]
    ):
        yield f"{path}.histogram", f"expected {_HISTOGRAM_BINS} counts of every channel"


def _intensities(value: Any, path: str, channels: int) -> Problems:
    if not isinstance(value, dict) or not set(value) <= {"body", "foreground"}:
        yield path, f"expected body and foreground, got {value!r:.60}"
        return
    for name, counts in value.items():
        problems = list(_VALUES(counts, f"{path}.{name}", channels))
        yield from problems
        if not problems and not all(abs(float(number)) < _LARGEST_VALUE for number in counts):
            yield f"{path}.{name}", "expected numbers that float32 holds"


_SIDE = "[1-9][0-9]{0,8}"
_MILLIMETERS = r"[0-9]{1,9}\.[0-9]{2}"
_NUMBERED = _counts("0|[1-9][0-9]{0,17}", "whole numbers", LABELS)
_NAMED = _counts(".{0,10000}", "names")
_VALUES = _counts(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-][0-9]{1,3})?", "numbers", _BINS)
STATISTICS: Mapping[str, Kind] = {
    "records": _count,
    "pixels": _pixels,
    "padding": _padding,
    "labels": _NUMBERED,
    "boxes_per_image": _NUMBERED,
    "boxes": _NAMED,
    "cut": _members("images", "boxes"),
    "notes": _NAMED,
    "warnings": _NAMED,
    "source_sizes": _counts(f"{_SIDE}x{_SIDE}", "sizes such as 480x640"),
    "aspect_ratios": _counts(r"[0-9]{1,9}\.[0-9]{2}", "ratios such as 1.35"),
    "largest": _sides(2),
    "labelled": _count,
    "label_voxels": _NUMBERED,
    "foreground_voxels": _count,
    "intensities": _intensities,
    "findings": _NAMED,
    "modalities": _NAMED,
    "spacings_mm": _counts("x".join([_MILLIMETERS] * 3), "spacings such as 2.00x1.50x1.50", LABELS),
    "source_shapes": _counts("x".join([_SIDE] * 3), "shapes such as 90x512x512", LABELS),
    "tiles": _count,
    "scan_mm3": _count,
    "scan_cut_mm3": _count,
    "label_mm3": _NUMBERED,
    "label_cut_mm3": _NUMBERED,
    "largest_scan": _sides(3),
}
"""Every name, none of which must be there."""
