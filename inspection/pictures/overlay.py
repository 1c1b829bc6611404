"""How do classes look that are laid over a picture: a transparent fill and an outline, in the classes' colors?"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.colors import rgb_of
from halofeed.prep.voxels.encode import encode_png

_FILL = 80
"""Opacity of 255 inside a class; its outline has all."""
_LEAST_SIDE = 240


def overlay(label: NDArray[Any], ranks: Mapping[int, int], size: tuple[int, int]) -> str | None:
    """Class indices [height, width] as a data: URI of a PNG with alpha; None where all is background.

    Args:
        ranks: which color each class has.
        size: (height, width) of the picture; the nearest index is taken. Of a tiny picture it is a multiple, so that
            outlines stay thin.
    """
    enlarged = math.ceil(_LEAST_SIDE / max(size))
    size = (size[0] * enlarged, size[1] * enlarged)
    rows, columns = (
        np.minimum(((np.arange(to) + 0.5) * have / to).astype(np.int64), have - 1)
        for have, to in zip(label.shape, size, strict=True)
    )
    shown = label[rows[:, None], columns]
    if not shown.any():
        return None
    pixels = np.zeros((*size, 4), np.uint8)
    inside = shown > 0
    for value in np.unique(shown[inside]).tolist():
        pixels[shown == value, :3] = rgb_of(ranks.get(int(value), 0))
    pixels[inside, 3] = _FILL
    pixels[inside & _borders(shown), 3] = 255
    return f"data:image/png;base64,{base64.b64encode(bytes(encode_png(pixels, 0))).decode()}"


def _borders(shown: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a neighbor above, below or beside is of another class."""
    edges = np.zeros(shown.shape, bool)
    across, down = shown[:, 1:] != shown[:, :-1], shown[1:] != shown[:-1]
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges
