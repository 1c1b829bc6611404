"""Pixels of one tile: a window of a level is scaled exactly as the complete level would be, and padded.

level         ┌─────────────────────┐
              │   ┌─────────────┐   │    The window has a margin, since pixels near the rim of a scaled tile
              │   │  ┌───────┐  │   │    depend on pixels outside it.
              │   │  │ tile  │  │   │
              │   │  └───────┘  │   │
              │   └─────────────┘   │
              └─────────────────────┘
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.resize import ResizePlan, Size
from halofeed.prep.voxels.kernels import PILLOW_MODES, resize_by_pillow, triangle_taps

_PILLOW_CHANNELS = max(PILLOW_MODES)
_SHARE_BITS = 8
"""Bits of a weight of OpenCV's exact bilinear kernel (`ufixedpoint16` in its fixedpoint.inl.hpp)."""
_WHOLE = 1 - 1e-4
"""Sum of float32 weights from which all of them count as present."""


def scale_window(
    pixels: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    corner: tuple[int, int],
    plan: ResizePlan,
    level: Size,
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Scale the window of a level to a tile, without padding.

    Pixels are those of `resize_image` for the complete level, but for shrunk uint8: of these up to 3 in 1,000 differ
    by one level, because Pillow takes the window's position in float32 (`(ffff)` in its _imaging.c).

    Args:
        pixels: [height, width, channel] of the displayed window, in which `axis_window` fits each axis.
        valid: which pixels of the window exist; None for all.
        corner: first row and first column of the window in the level.
        plan: plan of the tile.
        level: displayed (height, width) of the level.

    Returns:
        Pixels [*plan.resized_size, channel] of the same dtype, and which of them exist. A scaled pixel is the mean of
        the existing pixels that it covers, and exists if they have at least half of its weight.
    """
    if level == plan.scaled_size:
        return pixels, valid
    if valid is None or valid.all():
        return _scale(pixels, corner, plan, level), None
    weights = _weigh(valid[..., None].astype(np.float32), corner, plan, level)
    known = np.where(valid[..., None], pixels, 0)
    means = _rounded(
        _weigh(known, corner, plan, level) / np.maximum(weights, np.finfo(np.float32).tiny), pixels.dtype
    )
    # Far from missing pixels, those of a tile without any.
    scaled = np.where(weights > _WHOLE, _scale(pixels, corner, plan, level), means)
    return scaled, weights[..., 0] >= 0.5


def scale_bytes(window: Size, size: Size, channels: int, sample_bytes: int) -> int:
    """Return the maximum memory of `scale_window` beside its window and its result, for pixels that all exist."""
    if window == size:
        return 0
    rows, columns = window
    if sample_bytes == 1:
        # Pillow's image of up to four bytes a pixel, the pixels that it copies, and its first pass; OpenCV's kernel has
        # three arrays of int32.
        enlarged = 12 * channels * max(rows, size[0]) * size[1] if size >= window else 0
        pixel_bytes = 1 if channels == 1 else _PILLOW_CHANNELS
        copies = min(channels, _PILLOW_CHANNELS) * rows * columns
        passes = pixel_bytes * rows * (columns + size[1])
        return copies + passes + (pixel_bytes + 2 * channels) * math.prod(size) + enlarged
    # Sums of each pass in float32, a product that is added to them, and the transposed copy.
    return 16 * channels * size[0] * columns + 16 * channels * math.prod(size)


def _scale(pixels: NDArray[Any], corner: tuple[int, int], plan: ResizePlan, level: Size) -> NDArray[Any]:
    """Scale a window whose pixels all exist, by the kernels of `resize_image`."""
    if pixels.dtype != np.uint8:
        return _rounded(_weigh(pixels, corner, plan, level), pixels.dtype)
    if all(scaled >= side for scaled, side in zip(plan.scaled_size, level, strict=True)):
        return _enlarge(pixels, corner, plan, level)
    (top, left), (down, across), (height, width) = corner, _ratios(plan, level), plan.resized_size
    # Clipped, because rounding may put an end beyond the pixels, which Pillow refuses.
    extent = (
        max(0.0, plan.origin[0] * down - top),
        max(0.0, plan.origin[1] * across - left),
        min(float(pixels.shape[0]), (plan.origin[0] + height) * down - top),
        min(float(pixels.shape[1]), (plan.origin[1] + width) * across - left),
    )
    return resize_by_pillow(pixels, (height, width), extent)


def _enlarge(
    pixels: NDArray[Any], corner: tuple[int, int], plan: ResizePlan, level: Size
) -> NDArray[np.uint8]:
    """Enlarge a window by the integers of OpenCV's INTER_LINEAR_EXACT, which resizes complete pictures only.

    Source: `resize_bitExact` of OpenCV 4, modules/imgproc/src/resize.cpp.
    """
    (tops, downs), (lefts, acrosses) = (
        _shares(side, scaled, start, part)
        for side, scaled, start, part in zip(
            level, plan.scaled_size, plan.origin, plan.resized_size, strict=True
        )
    )
    rows, columns = (
        [np.clip(low - first + more, 0, side - 1) for more in (0, 1)]
        for low, first, side in zip((tops, lefts), corner, pixels.shape, strict=False)
    )
    # 16 bits hold the sums of a row, 255 · 256 at most.
    across = acrosses.astype(np.uint16)[None, :, None]
    lines = pixels[:, columns[0]] * ((1 << _SHARE_BITS) - across)
    lines += pixels[:, columns[1]] * across
    down = downs.astype(np.uint32)[:, None, None]
    total = lines[rows[0]] * ((1 << _SHARE_BITS) - down)
    total += lines[rows[1]] * down
    total += 1 << 2 * _SHARE_BITS - 1
    return (total >> 2 * _SHARE_BITS).astype(np.uint8)


def _shares(side: int, scaled: int, start: int, part: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of the two pixels of each enlarged pixel, and the weight of the second in 256ths."""
    position = (np.arange(start, start + part) + 0.5) * (side / scaled) - 0.5
    low = np.floor(position).astype(np.int64)
    weight = np.rint((position - low) * (1 << _SHARE_BITS)).astype(np.int64)
    # Beyond the centers of the first and the last pixel there is nothing to mix.
    weight[(low < 0) | (low >= side - 1)] = 0
    return np.clip(low, 0, side - 1), weight


def _weigh(
    pixels: NDArray[Any], corner: tuple[int, int], plan: ResizePlan, level: Size
) -> NDArray[np.float32]:
    """Return the weighted sums of a window along rows, then along columns, in float32."""
    (rows, row_weights), (columns, column_weights) = (
        (indices[start : start + part] - first, weights[start : start + part])
        for (indices, weights), start, part, first in zip(
            (_taps(side, scaled) for side, scaled in zip(level, plan.scaled_size, strict=True)),
            plan.origin,
            plan.resized_size,
            corner,
            strict=True,
        )
    )
    tall = _sums(pixels, rows, row_weights)
    across = _sums(np.ascontiguousarray(tall.swapaxes(0, 1)), columns, column_weights)
    return np.ascontiguousarray(across.swapaxes(0, 1))


def _sums(lines: NDArray[Any], index: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    total = np.zeros((len(index), *lines.shape[1:]), np.float32)
    for at, weight in zip(index.T, weights.T, strict=True):
        # A tap without weight may lie outside of the window, where all taps are padded to the longest.
        total += lines[np.clip(at, 0, len(lines) - 1)] * weight[:, None, None]
    return total


@lru_cache(maxsize=16)
def _taps(source: int, out: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return triangle_taps(source, out)


def _ratios(plan: ResizePlan, level: Size) -> tuple[float, float]:
    down, across = (side / scaled for side, scaled in zip(level, plan.scaled_size, strict=True))
    return down, across


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(values), limits.min, limits.max).astype(dtype))


def pad_tile(pixels: NDArray[Any], size: Size, fill: tuple[int, ...]) -> NDArray[Any]:
    """Return a C-contiguous tile of `size`, with padding of one value per channel at the bottom and right."""
    if pixels.shape[:2] == size:
        return np.ascontiguousarray(pixels)
    output = np.empty((*size, pixels.shape[2]), pixels.dtype)
    output[:] = np.array(fill, pixels.dtype)
    output[: pixels.shape[0], : pixels.shape[1]] = pixels
    return output
