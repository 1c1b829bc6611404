"""Conversion of color planes to RGB on the device, with the bits of `halofeed.schemas.color_planes`."""

from __future__ import annotations

import numpy as np

from halofeed.loader.device.ops import DeviceArray, ops_of
from halofeed.system.errors import UsageError


def to_rgb(luma: DeviceArray, chroma: DeviceArray) -> DeviceArray:
    """Return RGB pixels of the planes that `Loader(..., color="planes")` gives, also inside a compiled step.

    Valid rows have the bits of the loader's RGB pixels, because they are computed with whole numbers (ITU-T T.871). A
    core that has a part of the rows of both planes needs no other rows.

    Args:
        luma: uint8 [batch, height, width, 1], of JAX, TensorFlow or NumPy.
        chroma: uint8 [batch, height / 2, width / 2, 2].

    Returns:
        uint8 [batch, height, width, 3], of JAX for NumPy arrays.

    Raises:
        UsageError: the arrays have other dtypes or shapes.

    >>> to_rgb(np.full((1, 2, 2, 1), 200, np.uint8), np.full((1, 1, 1, 2), 128, np.uint8)).tolist()
    [[[[200, 200, 200], [200, 200, 200]], [[200, 200, 200], [200, 200, 200]]]]
    """
    sides, halves = tuple(luma.shape), tuple(chroma.shape)
    fits = len(sides) == len(halves) == 4 and sides[3] == 1 and halves[3] == 2
    fits = fits and sides[1:3] == (2 * halves[1], 2 * halves[2])
    if not fits or luma.dtype != np.uint8 or chroma.dtype != np.uint8:
        raise UsageError(
            f"to_rgb: expected uint8 [batch, height, width, 1] and [batch, height / 2, width / 2, 2], got "
            f"{luma.dtype} {list(sides)} and {chroma.dtype} {list(halves)}; take batch['luma'] and batch['chroma']"
        )
    ops = ops_of(luma)
    _, height, width, _ = sides
    # Four pixels have the chroma of their square. A broadcast along new axes keeps each core's rows on that core.
    squares = ops.reshape(ops.cast(chroma, np.int32), (-1, height // 2, 1, width // 2, 1, 2))
    wide = squares * ops.constant(np.ones((1, 1, 2, 1, 2, 1), np.int32), np.int32) - 128
    wide = ops.reshape(wide, (-1, height, width, 2))
    blue, red = wide[..., :1], wide[..., 1:]
    red_weights, blue_weights = (
        ops.constant(np.array(weights, np.int32), np.int32)
        for weights in ([91881, -46802, 0], [0, -22554, 116130])
    )
    added = (red * red_weights + blue * blue_weights + (1 << 15)) // (1 << 16)
    return ops.cast(ops.clip(ops.cast(luma, np.int32) + added, 0, 255), np.uint8)
