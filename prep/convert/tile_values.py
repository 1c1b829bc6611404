"""Values of tiles: the bands that become channels, and the range of values that becomes 0 to 255."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import (
    ReadOptions,
    check_sample_bits,
    convert_pixels,
    is_converted,
    iterate_blocks,
)
from halofeed.prep.formats.region.region_reader import RegionFacts, RegionReader
from halofeed.prep.options.option import copy_options
from halofeed.prep.options.recipe import Recipe
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory
from halofeed.system.wording import plural

_SAMPLES = 1 << 22
"""Most pixels by which the percentiles of a picture are found. A picture of 16 M pixels has all rows read."""
_WINDOWS = 16
"""Windows along each side of a picture without smaller levels, in which its values are sampled."""
_PIECE = 256
_PICTURE_CHANNELS = 4
_CONVERTED = ("uint8", "uint16")
"""Types that the options of pictures convert."""


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """Range of values of each channel that becomes 0 to 255.

    Args:
        low, high: per channel; `low` becomes 0 and `high` becomes 255.

    >>> ValueRange(low=(0.0,), high=(510.0,)).apply(np.array([[[255]]], np.uint16)).tolist()
    [[[128]]]
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def apply(self, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        """Return pixels [height, width, channel] as uint8, rounded and clipped."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bytes_of_pixels = np.empty(pixels.shape, np.uint8)
        # In blocks, because float32 takes four times the memory of the result.
        for block in iterate_blocks((pixels.shape[0], pixels.shape[1])):
            shares = (pixels[block].astype(np.float32) - low) * (255 / (high - low))
            # NaN, which a file may hold for missing pixels, has no place among bytes.
            bytes_of_pixels[block] = np.clip(np.rint(np.nan_to_num(shares)), 0, 255)
        return bytes_of_pixels

    @property
    def scale(self) -> tuple[list[float], list[float]]:
        """Scale and offset per channel: value of the file = scale · stored + offset."""
        scales = [(high - low) / 255 for low, high in zip(self.low, self.high, strict=True)]
        return scales, list(self.low)


@dataclass(frozen=True, kw_only=True)
class TileValues:
    """Conversion of the stored bands of a file to the channels of a record.

    Args:
        bands: numbers of the bands that are kept, from 0; None for all.
        range: range that becomes 0 to 255; None keeps values, or converts them as those of other pictures.
        options: conversion of the values of pictures of gray or color; None for bands.
        finds_missing: whether pixels may be missing. A transparent pixel counts as missing where alpha is dropped, as
            in GDAL; where alpha is stored or blended, it is a pixel like any other.
    """

    bands: tuple[int, ...] | None
    range: ValueRange | None
    options: ReadOptions | None
    finds_missing: bool

    def converts(self, facts: RegionFacts) -> bool:
        """Return whether values of the file change, which takes working memory."""
        if self.range is not None:
            return True
        return self.options is not None and not is_converted(
            facts.bands, np.dtype(facts.dtype).itemsize, self.options
        )

    def apply(self, pixels: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return the channels of pixels [height, width, band], and notes of conversions."""
        ranged = pixels if self.range is None else self.range.apply(pixels)
        if self.options is None:
            return ranged, ()
        notes = check_sample_bits(ranged, self.options)
        converted, more = convert_pixels(ranged, self.options)
        return converted, notes + more


def plan_values(
    recipe: Recipe, facts: RegionFacts, open_again: Callable[[], RegionReader], reserve: ReserveMemory
) -> TileValues:
    """Plan the conversion of a file's values.

    Args:
        facts: facts of the file.
        open_again: function that opens the file once more, for a pass over its values.
        reserve: called with the bytes of that pass.

    Raises:
        SourceError: the file has other bands than the options say, or its values do not fit the stored type.
    """
    bands = _chosen_bands(recipe, facts)
    count = facts.bands if bands is None else len(bands)
    as_picture = bands is None and facts.color != "bands" and recipe.channels <= _PICTURE_CHANNELS
    if not as_picture and count != recipe.channels:
        raise SourceError(
            "decode",
            "number of bands",
            f"the file has {plural(facts.bands, 'band')} and --channels is {recipe.channels}; take --channels {count}, "
            f"or choose with --bands, such as --bands {_example_bands(recipe.channels, facts.bands)}",
        )
    values = None
    if recipe.value_range:
        low, high = recipe.value_range
        values = ValueRange(low=(low,) * count, high=(high,) * count)
    elif recipe.window_percentiles:
        values = _percentile_range(open_again, bands, recipe.window_percentiles, reserve)
    else:
        _check_type(recipe, facts, as_picture)
    options = (
        copy_options(ReadOptions, recipe, background=recipe.backdrop(), may_be_uint16=True)
        if as_picture
        else None
    )
    # --sample-bits is for files that do not state it.
    if options is not None and facts.fills_depth:
        options = replace(options, sample_bits=16)
    uses_alpha = options is not None and (options.channels == 4 or options.alpha == "blend")
    has_alpha = facts.color in ("gray-alpha", "rgba")
    finds_missing = not (has_alpha and uses_alpha and facts.nodata is None)
    return TileValues(bands=bands, range=values, options=options, finds_missing=finds_missing)


def _chosen_bands(recipe: Recipe, facts: RegionFacts) -> tuple[int, ...] | None:
    if not recipe.bands:
        return None
    if max(recipe.bands) > facts.bands:
        raise SourceError(
            "decode",
            "number of bands",
            f"--bands {','.join(map(str, recipe.bands))}: the file has {plural(facts.bands, 'band')}",
        )
    return tuple(band - 1 for band in recipe.bands)


def _example_bands(channels: int, bands: int) -> str:
    return ",".join(str(number + 1) for number in range(min(channels, bands)))


def _check_type(recipe: Recipe, facts: RegionFacts, as_picture: bool) -> None:
    """Refuse values that the stored type cannot hold, or of which 8 bits would show nothing."""
    fix = "take --value-range LOW,HIGH (such as 0,3000), or --window-percentiles 2,98"
    if facts.dtype not in _CONVERTED:
        raise SourceError("decode", "values need a range", f"the file holds {facts.dtype}; {fix}")
    if facts.dtype == recipe.dtype:
        return
    # Sensors of 10 to 14 bits leave the high bits of 16 empty, and scaling 16 bits would make them dark.
    if facts.dtype == "uint16" and not (as_picture and (recipe.sample_bits or facts.fills_depth)):
        all_bits = ", or --sample-bits 16 if all bits are used" if as_picture else ""
        raise SourceError(
            "decode",
            "values need a range",
            f"the file holds 16 bits; {fix}, or --dtype uint16 to keep them{all_bits}",
        )
    if not as_picture:
        raise SourceError(
            "decode",
            "values need another type",
            f"the file holds {facts.dtype} and --dtype is {recipe.dtype}; take --dtype {facts.dtype}",
        )


def _percentile_range(
    open_again: Callable[[], RegionReader],
    bands: Sequence[int] | None,
    percentiles: Sequence[float],
    reserve: ReserveMemory,
) -> ValueRange:
    """Return the range between two percentiles of each band, over the pixels that exist."""
    reader = open_again()
    try:
        samples = _samples(reader, bands, reserve)
    finally:
        reader.close()
    if not len(samples):
        raise SourceError("decode", "no pixel exists", "all are nodata, so that there are no percentiles")
    # One band after the other, because percentiles are found in a copy in float64.
    ends = [
        np.percentile(samples[:, band].astype(np.float64), percentiles) for band in range(samples.shape[1])
    ]
    low, high = np.transpose(ends).tolist()
    # A band of one value, such as an empty one, becomes 0 everywhere.
    high = [top if top > bottom else bottom + 1 for bottom, top in zip(low, high, strict=True)]
    return ValueRange(low=tuple(low), high=tuple(high))


def _samples(reader: RegionReader, bands: Sequence[int] | None, reserve: ReserveMemory) -> NDArray[Any]:
    """Return sampled values [pixel, band] of the pixels that exist and are finite.

    A smaller level shows the complete picture. Without one, windows are spread evenly over it; of a file that is read
    in order, all rows are read.
    """
    facts = reader.facts
    level = max(
        (number for number, size in enumerate(facts.levels) if min(size) >= _PIECE or number == 0), default=0
    )
    height, width = facts.levels[level]
    windows = _sampled_windows(
        (height, width),
        max(_PIECE, facts.row_steps[level]),
        whole=facts.in_order or height * width <= 4 * _SAMPLES,
    )
    pixels = sum(rows * columns for _, _, rows, columns in windows)
    step = math.ceil(math.sqrt(pixels / _SAMPLES))
    _reserve_samples(reader, level, min(pixels, _SAMPLES), windows, reserve)
    parts = []
    for window in windows:
        thin = reader.read(level, *window)[::step, ::step]
        valid = reader.read_valid(level, *window)
        values = thin.reshape(-1, facts.bands) if valid is None else thin[valid[::step, ::step]]
        # Without the copy, the thinned view would keep the complete window.
        parts.append(values.copy() if bands is None else values[:, list(bands)])
    samples = np.concatenate(parts)
    finite = np.isfinite(samples).all(axis=1)
    return samples if finite.all() else samples[finite]


def _reserve_samples(
    reader: RegionReader,
    level: int,
    pixels: int,
    windows: Sequence[tuple[int, int, int, int]],
    reserve: ReserveMemory,
) -> None:
    """Reserve the memory of the largest window, and of the samples: their parts, one array, and a band in float64."""
    facts = reader.facts
    pixel_bytes = np.dtype(facts.dtype).itemsize * facts.bands
    height, width = max(window[2] for window in windows), max(window[3] for window in windows)
    window_bytes = reader.read_bytes(level, height, width) + height * width * (pixel_bytes + 1)
    reserve(window_bytes + pixels * (2 * pixel_bytes + 3 * np.dtype(np.float64).itemsize))


def _sampled_windows(size: tuple[int, int], piece: int, *, whole: bool) -> list[tuple[int, int, int, int]]:
    """Return windows (top, left, height, width) from top to bottom: all rows in bands, or pieces spread evenly."""
    height, width = size
    if whole:
        return [(top, 0, min(piece, height - top), width) for top in range(0, height, piece)]
    sides = [min(_PIECE, side) for side in size]
    tops, lefts = (
        sorted({round(at * (side - part) / (_WINDOWS - 1)) for at in range(_WINDOWS)})
        for side, part in zip(size, sides, strict=True)
    )
    return [(top, left, sides[0], sides[1]) for top in tops for left in lefts]
