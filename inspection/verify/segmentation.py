"""Do the label map and the geometry of a segmentation record hold what they must? Every fault in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored.features import bytes_of, integer_of
from halofeed.inspection.stored.geometry import (
    AXES,
    CANONICAL,
    DIRECTIONS,
    affine_of,
    alignment,
    direction_cosines,
    extent_of,
    orientation_of,
    triple_of,
)
from halofeed.inspection.stored.labels import CHUNK_VALUES, ClassCounts, is_volumetric, label_field
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

_SPACING_TOLERANCE = 1e-6
"""Relative: what rounding the affine and the spacing to float32 leaves between them is within 3e-7."""
_FLATTEST = 1e-6
"""A voxel's volume over that of a brick with the same sides, below which an affine maps to a plane."""
_NOT_NEAREST = 1e-3
"""By so much may another order of axes lie closer to the patient's, which at 45 degrees is rounding."""


def segmentation_problems(features: Decoded, manifest: Manifest, counts: ClassCounts | None) -> Iterator[str]:
    """What is wrong with the label map, the geometry and the values of a record.

    Args:
        counts: of `class_counts`; None where the label map cannot be read, which is told elsewhere.
    """
    field = label_field(manifest)
    if field is None:
        return
    for what, count in (counts.unknown if counts else {}).items():
        yield f"{keys.LABEL}: {count:,} {what}, which is not in the manifest's labels"
    marked = counts.foreground if counts else 0
    if integer_of(features, keys.LABELLED) == 0 and marked:
        yield f"{keys.LABEL}: expected 0 throughout, as image/labelled is 0; {marked:,} are not"
    if not is_volumetric(manifest):
        return
    yield from _value_problems(bytes_of(features, keys.ENCODED), manifest.field("image").dtype)
    shape, stored = field.stored_shape, tuple(integer_of(features, f"image/{axis}") for axis in AXES)
    if stored != shape:
        yield f"image/depth, image/height, image/width: expected {list(shape)} of a volume, got {list(stored)}"
    yield from _extent_problems(features, shape)
    yield from _affine_problems(features)
    source = triple_of(features, keys.SOURCE_SHAPE, "i")
    if source is not None and (source < 1).any():
        yield f"image/source/shape: expected 1 or more along each axis, got {source.tolist()}"
    tile = integer_of(features, keys.TILE)
    if tile is not None and tile < 0:
        yield f"image/tile: expected 0 or more, got {tile}"


def _value_problems(data: memoryview | None, dtype: str) -> Iterator[str]:
    """Values of a raw image that are no numbers; integers always are."""
    if data is None or dtype not in ("float32", "float64", "bfloat16"):
        return
    kind = np.dtype({"bfloat16": np.uint16}.get(dtype, dtype)).newbyteorder("<")
    if len(data) % kind.itemsize:
        return
    values = np.frombuffer(data, kind)
    parts = (values[start : start + CHUNK_VALUES] for start in range(0, len(values), CHUNK_VALUES))
    if wrong := sum(np.count_nonzero(~np.isfinite(as_numbers(part, dtype))) for part in parts):
        yield f"{keys.ENCODED}: {wrong:,} of {len(values):,} values are infinite or no number"


def _extent_problems(features: Decoded, shape: tuple[int, ...]) -> Iterator[str]:
    extent = extent_of(features)
    if extent is None:
        return
    for axis, size, first, last in zip(AXES, shape, *extent.tolist(), strict=True):
        if not 0 <= first < last <= size:
            yield f"image/extent: {axis}: expected a part of 0 to {size}, got {first} to {last}"


def _affine_problems(features: Decoded) -> Iterator[str]:
    for key in (keys.AFFINE, keys.SOURCE_AFFINE):
        affine = affine_of(features, key)
        if affine is None or not np.isfinite(affine).all():
            continue  # told by the check of its values
        lengths = np.linalg.norm(affine[:3, :3], axis=0)
        if affine[3].tolist() != [0, 0, 0, 1]:
            yield f"{key}: expected a last row of 0, 0, 0, 1, got {affine[3].tolist()}"
        if not lengths.all() or abs(np.linalg.det(direction_cosines(affine[:3, :3]))) < _FLATTEST:
            yield f"{key}: it cannot be inverted: voxels of a volume lie on one plane of the patient"
        elif key == keys.AFFINE:
            yield from _spacing_problems(features, lengths)
            yield from _direction_problems(affine)


def _spacing_problems(features: Decoded, lengths: NDArray[np.float64]) -> Iterator[str]:
    spacing = triple_of(features, keys.SPACING_MM)
    if spacing is None or spacing.shape != (3,):
        return
    for axis, stated, length in zip(AXES, spacing.tolist(), lengths.tolist(), strict=True):
        # Written so that NaN is wrong too.
        if not abs(stated - length) <= _SPACING_TOLERANCE * length:
            yield f"image/spacing_mm: {axis}: {stated:.9g}, but a step of image/affine is {length:.9g} mm"


def _direction_problems(affine: NDArray[np.float64]) -> Iterator[str]:
    cosines = direction_cosines(affine[:3, :3])
    best = max(alignment(cosines, rows) for rows in permutations(range(3)))
    nearest = orientation_of(affine)
    if alignment(cosines, CANONICAL) >= best - _NOT_NEAREST:
        nearest = tuple(
            DIRECTIONS[row] if cosines[row, axis] > 0 else DIRECTIONS[row][::-1]
            for axis, row in enumerate(CANONICAL)
        )
    for axis, row, (_, towards) in zip(AXES, CANONICAL, nearest, strict=True):
        if towards != DIRECTIONS[row][1]:
            yield f"image/affine: {axis}: expected it to grow to {DIRECTIONS[row][1]}, it grows to {towards}"
