"""Facts that sources of pictures state beside the pixels, for exports: spacing, laterality, view and body part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from halofeed.inspection.export_grid import PictureGrid
from halofeed.inspection.stored_records import array_of, text_of
from halofeed.prep.geometry.resize import invert_affine
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import SPACING
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded


def stated_fields(manifest: Manifest) -> tuple[Field, ...]:
    """Return the fields of what sources state that a data set has."""
    return tuple(field for field in manifest.fields if field.may_be_absent)


def stated_facts(features: Decoded, fields: Sequence[Field], grid: PictureGrid) -> dict[str, Any]:
    """Return what a record's source states, by the name of the field; None for what it does not state.

    Args:
        features: features of the record.
        fields: the result of `stated_fields`.
        grid: grid of the exported picture, to whose pixels the spacing belongs.

    >>> half = PictureGrid(size=(2, 4), stored_size=(4, 8), from_stored=np.array([0.5, 0, 0, 0, 0.5, 0]))
    >>> from halofeed.schemas.kinds import STATED_FIELDS
    >>> features = {"image/spacing_mm": np.array([0.25, 0.5], np.float32)}
    >>> stated_facts(features, [STATED_FIELDS["spacing_mm"], STATED_FIELDS["view"]], half)
    {'spacing_mm': [0.5, 1.0], 'view': None}
    """
    return {
        field.name: _spacing_on(features, field, grid)
        if field.name == SPACING
        else text_of(features, field.keys[0])
        for field in fields
    }


def _spacing_on(features: Decoded, field: Field, grid: PictureGrid) -> list[float] | None:
    stored_mm = array_of(features, field.keys[0])
    if stored_mm is None:
        return None
    # A step along the rows or columns of the grid, in stored pixels; an EXIF orientation may exchange them.
    steps = invert_affine(grid.from_stored).reshape(2, 3)[:, :2]
    sides = np.linalg.norm(stored_mm[:, None].astype(np.float64) * steps, axis=0)
    return [float(side) for side in sides]


def gsd_of(spacing_mm: Sequence[float] | None) -> float | None:
    """Return the side of a square pixel in meters, to six digits; None if it is not stated, or no square.

    >>> gsd_of([300.0, 300.0]), gsd_of([300.0, 150.0])
    (0.3, None)
    """
    if spacing_mm is None or not np.isclose(spacing_mm[0], spacing_mm[1], rtol=1e-3):
        return None
    return float(f"{spacing_mm[0] / 1000:.6g}")
