"""Where does a stored volume lie in the patient: spacing, extent, affine, orientation?"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas import keys
from halofeed.schemas.tfexample import Decoded

AXES = ("depth", "height", "width")
DIRECTIONS = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
"""Of the patient's axes x, y, z: where they come from, and where they grow to."""
CANONICAL = (2, 1, 0)
"""Which of the patient's axes depth, height and width run along."""


def triple_of(features: Decoded, key: str, kind: str = "f") -> NDArray[Any] | None:
    """The numbers of a key, or None where it is not there or of another kind."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) and value.dtype.kind == kind else None


def spacing_of(features: Decoded) -> NDArray[np.float32] | None:
    """Millimeters between voxels along each axis; None where it is not there, or no three finite numbers."""
    spacing = triple_of(features, keys.SPACING_MM)
    return spacing if spacing is not None and spacing.shape == (3,) and np.isfinite(spacing).all() else None


def extent_of(features: Decoded) -> NDArray[np.int64] | None:
    """[first and one after last, axis] of what shows the scan; None where it is not there."""
    extent = triple_of(features, keys.EXTENT, "i")
    return extent.reshape(2, 3) if extent is not None and extent.shape == (6,) else None


def affine_of(features: Decoded, key: str = keys.AFFINE) -> NDArray[np.float64] | None:
    """float64 [4, 4], or None where it is not there."""
    value = triple_of(features, key)
    return value.reshape(4, 4).astype(np.float64) if value is not None and value.shape == (16,) else None


def orientation_of(affine: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """For each axis, the patient's direction it comes from and the one it grows to.

    >>> orientation_of(np.array([[0, 0, 2], [0, 2, 0], [-3, 0, 0]]))[0]
    ('superior', 'inferior')
    """
    cosines = direction_cosines(affine[:3, :3])
    return tuple(
        DIRECTIONS[row] if cosines[row, axis] >= 0 else DIRECTIONS[row][::-1]
        for axis, row in enumerate(_nearest(cosines))
    )


def oblique_degrees(affine: NDArray[np.float64]) -> float:
    """The largest angle between an axis and the patient's axis that it lies nearest to."""
    cosines = np.abs(direction_cosines(affine[:3, :3]))
    least = min(float(cosines[row, axis]) for axis, row in enumerate(_nearest(cosines)))
    return math.degrees(math.acos(min(1.0, least)))


def direction_cosines(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(linear, axis=0)
    return np.asarray(linear / np.where(lengths, lengths, 1))


def _nearest(cosines: NDArray[np.float64]) -> tuple[int, ...]:
    """Which of the patient's axes each axis lies nearest to, all three together."""
    return max(permutations(range(3)), key=lambda rows: alignment(cosines, rows))


def alignment(cosines: NDArray[np.float64], rows: tuple[int, ...]) -> float:
    return sum(abs(float(cosines[row, axis])) for axis, row in enumerate(rows))
