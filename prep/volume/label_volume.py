"""How the label of a scan, of one file or of several, becomes class indices on the scan's canonical grid.

file ──> canonical ──> the scan's grid ──> ids of the label map
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.reference import Reference
from halofeed.prep.labels import LabelMap
from halofeed.prep.recipe import Recipe
from halofeed.prep.sources import SourceFiles
from halofeed.prep.statistics import count_labels
from halofeed.prep.volume.apply import apply_mask, view_of
from halofeed.prep.volume.merge import merge_class_masks
from halofeed.prep.volume.scan import Finding, Grid, Mask
from halofeed.prep.volume.space import check_same_space, plan_canonical, plan_onto
from halofeed.prep.volume_readers.table import open_mask
from halofeed.schemas.errors import SourceError

Voxels = NDArray[Any]
_NOTED_VOXELS = 0.01
"""A mask off its scan's grid by more than this share of a voxel is worth a note."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The class indices of a scan on its canonical grid, and what was found out about the mask."""

    values: Voxels
    findings: tuple[Finding, ...]


def read_labels(
    recipe: Recipe, labels: LabelMap, reference: Reference, files: SourceFiles, grid: Grid, canonical: Grid
) -> Labels | None:
    """The classes of a scan; None where it has no label.

    Args:
        recipe: the options.
        labels: the classes.
        reference: the scan and its label's files.
        files: where they are.
        grid: of the scan as it is stored.
        canonical: the same, turned.

    Raises:
        SourceError: the label cannot be read, lies elsewhere than the scan, or holds unknown classes.
    """
    options = recipe.scan_options()
    if reference.class_masks:
        found: list[Finding] = []

        def each() -> Iterator[tuple[int, Voxels]]:
            for name, path in reference.class_masks:
                values, findings = _aligned(open_mask(files, path, grid, options), canonical, recipe)
                found.extend(findings)
                yield labels.id_of(name), values

        merged = merge_class_masks(each(), recipe.class_overlap)  # type: ignore[arg-type]
        if merged.overlapped:
            voxels = sum(merged.overlapped.values())
            found.append(
                Finding(name="class masks overlap", treatment="corrected", detail=f"{voxels} voxels")
            )
        return Labels(values=merged.labels, findings=tuple(found))
    if reference.mask is None:
        return None
    mask = open_mask(files, reference.mask, grid, options)
    values, findings = _aligned(mask, canonical, recipe)
    return Labels(values=_known(values, mask, labels), findings=(*mask.findings, *findings))


def _aligned(mask: Mask, canonical: Grid, recipe: Recipe) -> tuple[Voxels, tuple[Finding, ...]]:
    """A mask's values on the scan's canonical grid."""
    turned = plan_canonical(mask.grid)
    values = view_of(turned, mask.read())
    try:
        offset = check_same_space(canonical, turned.target, recipe.mask_grid_tolerance)
    except SourceError:
        if recipe.mask_grid == "refuse":
            raise
        finding = Finding(
            name="mask on another grid", treatment="corrected", detail="resampled, nearest voxel"
        )
        on_scan = apply_mask(plan_onto(turned.target, canonical), values)
        if values.any() and not on_scan.any():
            raise SourceError("geometry", "mask lies outside of its image") from None
        return on_scan, (finding,)
    if offset <= _NOTED_VOXELS:
        return values, ()
    detail = f"up to {offset:.2g} voxels, taken as it lies"
    return values, (Finding(name="mask slightly off its image's grid", treatment="noted", detail=detail),)


def _known(values: Voxels, mask: Mask, labels: LabelMap) -> Voxels:
    """The values as ids of the label map."""
    present = [value for value in _present(values) if value]
    if not mask.names:
        labels.check_values(present)
        return values
    names = [mask.names.get(value, str(value)) for value in present]
    if labels.is_open:
        raise SourceError(
            "annotation",
            "mask names its classes and no label map gives their ids",
            f"{', '.join(map(repr, names))}; list them in a file and name it with --label-map",
        )
    if unknown := [name for name in names if name not in labels.ids]:
        known = ", ".join(map(repr, labels.names.values()))
        raise SourceError(
            "annotation", "mask has unknown labels", f"{', '.join(map(repr, unknown))}; known are {known}"
        )
    if lost := [name for name in names if not labels.ids[name] and name.lower() != "background"]:
        raise SourceError(
            "annotation",
            "class of the mask has the background's id",
            f"{', '.join(map(repr, lost))} is 0",
        )
    table = np.zeros(max(present, default=0) + 1, labels.dtype)
    for value, name in zip(present, names, strict=True):
        table[value] = labels.ids[name]
    ids = np.empty(values.shape, table.dtype)
    for at, plane in enumerate(values):  # an index takes 8 bytes a voxel
        ids[at] = table[plane]
    return ids


def _present(values: Voxels) -> list[int]:
    if values.dtype.itemsize <= 2:
        return list(count_labels(values))
    return sorted({int(value) for plane in values for value in np.unique(plane)})
