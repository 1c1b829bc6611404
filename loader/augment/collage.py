"""Several pictures on one grid: beside each other, or one shining through another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.source import Array, Made, copy_view
from halofeed.loader.augment.view import Ranges, Shape, View, common, slices_within

_DIRECT = ("uint8", "uint16", "int16", "float32")
"""What OpenCV adds as it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One picture of a collage.

    Args:
        source: where it comes from.
        view: what is seen of that.
        top, left: where that begins on the grid.
    """

    source: Array
    view: View
    top: int = 0
    left: int = 0


class Collage(Made):
    """Pieces that do not overlap; see `LabelSource`.

    Args:
        shape: (height, width) of the grid.
        pieces: on it, one or more.
        fill: what lies between, one number or one a channel.
    """

    def __init__(self, shape: Shape, pieces: Sequence[Piece], fill: Sequence[float]) -> None:
        super().__init__(shape, pieces[0].source)
        self._pieces, self._fill = pieces, fill

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        parts = []
        for piece in self._pieces:
            begins = (piece.top, piece.left)
            held = tuple((at, at + size) for at, size in zip(begins, piece.view.shape, strict=True))
            inside = common(box, held)
            shape = [high - low for low, high in inside]
            if min(shape) > 0:
                start = [low - at for (low, _), at in zip(inside, begins, strict=True)]
                view = piece.view.crop(start, shape)
                parts.append((piece, view, slices_within(inside, box), shape[0] * shape[1]))
        if sum(area for *_, area in parts) < out.shape[0] * out.shape[1]:
            out[...] = self._fill
        for piece, view, region, _ in parts:
            copy_view(view, piece.source, out[region])


class Blend(Made):
    """One picture shining through another of the same shape; see `Source`.

    Args:
        shape: (height, width) of both.
        first, second: the pictures.
        share: the first one's, 0 to 1.
    """

    def __init__(self, shape: Shape, first: Made, second: Made, share: float) -> None:
        super().__init__(shape, first)
        self._first, self._second, self._share = first, second, share

    def make(self, box: Ranges, out: NDArray[Any]) -> None:
        """As of `Made`."""
        first, second = self._first.part(box), self._second.part(box)
        if first.dtype.name not in _DIRECT:
            first, second = first.astype(np.float32), second.astype(np.float32)
        mixed = cv2.addWeighted(first, self._share, second, 1 - self._share, 0)
        out[...] = mixed.reshape(out.shape)
