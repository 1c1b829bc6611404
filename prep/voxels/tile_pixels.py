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
from PIL import Image

from halofeed.prep.geometry.resize import ResizePlan, Size
from halofeed.prep.voxels.kernels import PILLOW_MODES, triangle_taps

_MARGIN = 2
"""Pixels beyond the reach of the triangle filter, for rounding."""


def source_window(plan: ResizePlan, level: Size) -> tuple[int, int, int, int]:
    """Return the window of a level that a tile needs: top, left, height, width.

    Args:
        plan: plan of the tile.
        level: (height, width) of the level.

    >>> plan = ResizePlan(
    ...     source_size=(80, 80), resized_size=(10, 10), output_size=(10, 10), scaled_size=(40, 40), origin=(0, 20)
    ... )
    >>> source_window(plan, (80, 80))
    (0, 36, 24, 28)
    """
    starts, sides = [], []
    for side, scaled, start, part in zip(
        level, plan.scaled_size, plan.origin, plan.resized_size, strict=True
    ):
        ratio = side / scaled
        reach = 0 if ratio == 1 else math.ceil(max(ratio, 1.0)) + _MARGIN
        low = max(0, math.floor(start * ratio) - reach)
        high = min(side, math.ceil((start + part) * ratio) + reach)
        starts.append(low)
        sides.append(high - low)
    return starts[0], starts[1], sides[0], sides[1]


def scale_window(
    pixels: NDArray[Any],
    valid: NDArray[np.bool_] | None,
    window: tuple[int, int, int, int],
    plan: ResizePlan,
    level: Size,
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Scale the window of a level to a tile, without padding.

    Args:
        pixels: [height, width, channel] of the window.
        valid: which pixels of the window exist; None for all.
        window: `source_window(plan, level)`.
        plan: plan of the tile.
        level: (height, width) of the level.

    Returns:
        Pixels [*plan.resized_size, channel] of the same dtype, and which of them exist. A scaled pixel is the mean of
        the existing pixels that it covers, and exists if they have at least half of its weight.
    """
    if level == plan.scaled_size:
        return pixels, valid
    if valid is not None and not valid.all():
        return _scale_existing(pixels, valid, window, plan, level)
    # Pillow's integers are the pixels of `resize_image`; for one window they are those of the complete picture.
    if pixels.dtype == np.uint8 and pixels.shape[2] in PILLOW_MODES:
        return _pillow(pixels, window, plan, level), None
    scaled = _weigh(pixels, window, plan, level)
    return _rounded(scaled, pixels.dtype), None


def _scale_existing(
    pixels: NDArray[Any],
    valid: NDArray[np.bool_],
    window: tuple[int, int, int, int],
    plan: ResizePlan,
    level: Size,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    weights = _weigh(valid[..., None].astype(np.float32), window, plan, level)
    # Missing pixels may be NaN, which a weight of 0 would not remove.
    known = np.where(valid[..., None], pixels, 0)
    sums = _weigh(known, window, plan, level)
    exists = weights[..., 0] >= 0.5
    return _rounded(sums / np.maximum(weights, np.finfo(np.float32).tiny), pixels.dtype), exists


def _pillow(
    pixels: NDArray[Any], window: tuple[int, int, int, int], plan: ResizePlan, level: Size
) -> NDArray[Any]:
    top, left, _, _ = window
    (down, across), (height, width) = _ratios(plan, level), plan.resized_size
    # Clipped, because rounding may put an end beyond the pixels, which Pillow refuses.
    box = (
        max(0.0, plan.origin[1] * across - left),
        max(0.0, plan.origin[0] * down - top),
        min(float(pixels.shape[1]), (plan.origin[1] + width) * across - left),
        min(float(pixels.shape[0]), (plan.origin[0] + height) * down - top),
    )
    contiguous = np.ascontiguousarray(pixels)
    mode = PILLOW_MODES[pixels.shape[2]]
    image = Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), contiguous.data.cast("B"))
    resized = image.resize((width, height), Image.Resampling.BILINEAR, box)
    return np.asarray(resized).reshape(height, width, pixels.shape[2])


def _weigh(
    pixels: NDArray[Any], window: tuple[int, int, int, int], plan: ResizePlan, level: Size
) -> NDArray[np.float32]:
    """Return the weighted sums of a window along rows, then along columns, in float32."""
    top, left, _, _ = window
    (rows, row_weights), (columns, column_weights) = (
        (indices[start : start + part] - first, weights[start : start + part])
        for (indices, weights), start, part, first in zip(
            (_taps(side, scaled) for side, scaled in zip(level, plan.scaled_size, strict=True)),
            plan.origin,
            plan.resized_size,
            (top, left),
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
