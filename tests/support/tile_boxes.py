"""Find the objects of a large picture again from the tiles of its data set, in pixels of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.conversions import boxes_in_source

_SIDES = ("ymin", "xmin", "ymax", "xmax")


@dataclass(frozen=True, kw_only=True)
class FoundBoxes:
    """What the tiles of one picture show of its objects.

    Args:
        records: number of tiles.
        cut: number of objects of which some tile shows a part only.
        whole: number of objects that some tile shows completely.
        missing: numbers of objects that no tile holds.
        worst: largest distance in source pixels of three: of the complete box that a record states from the drawn one,
            of a tile's box from the drawn one clipped to the tile, and of the box around all pieces from the drawn one.
    """

    records: int
    cut: int
    whole: int
    missing: tuple[int, ...]
    worst: float


def find_boxes(records: Iterable[Mapping[str, Any]], drawn: NDArray[np.float64]) -> FoundBoxes:
    """Compare all tiles of one picture with its drawn boxes.

    Args:
        records: features of each tile.
        drawn: [objects, 4] as ymin, xmin, ymax, xmax in pixels of the source, in the order of the annotations.
    """
    around = np.tile([np.inf, np.inf, -np.inf, -np.inf], (len(drawn), 1))
    cut, whole = np.zeros(len(drawn), bool), np.zeros(len(drawn), bool)
    count, worst = 0, 0.0
    for features in records:
        count += 1
        numbers = np.asarray(features["image/object/index"], int)
        pieces = boxes_in_source(features)
        stated = np.stack([features[f"image/object/source/bbox/{side}"] for side in _SIDES], 1)
        expected = np.clip(drawn[numbers], *(np.tile(corner, 2) for corner in _window(features)))
        for one, other in ((stated, drawn[numbers]), (pieces, expected)):
            worst = max(worst, float(np.abs(one - other).max(initial=0)))
        is_whole = np.asarray(features["image/object/visible"]) > 1 - 1e-6
        whole[numbers[is_whole]], cut[numbers[~is_whole]] = True, True
        np.minimum.at(around[:, :2], numbers, pieces[:, :2])
        np.maximum.at(around[:, 2:], numbers, pieces[:, 2:])
    found = np.isfinite(around).all(1)
    worst = max(worst, float(np.abs(around[found] - drawn[found]).max(initial=0)))
    missing = tuple(int(number) for number in np.flatnonzero(~found))
    return FoundBoxes(records=count, cut=int(cut.sum()), whole=int(whole.sum()), missing=missing, worst=worst)


def _window(features: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """First and last corner (y, x) of a tile in the source, by way of image/transform."""
    matrix = np.asarray(features["image/transform"], np.float64).reshape(2, 3)
    height, width = (float(features[f"image/{side}"][0]) for side in ("height", "width"))
    first, last = matrix @ [0, 0, 1], matrix @ [height, width, 1]
    return np.minimum(first, last), np.maximum(first, last)
