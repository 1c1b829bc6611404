"""Faults of label maps: specks, holes, open borders, and more parts than usual, by class; and what organs are like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.regions import Regions, find_regions
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.robust import Limits, unusual
from halofeed.inspection.review.suspects import Suspect, SuspectKind
from halofeed.inspection.stored_records import (
    class_channels,
    extent_of,
    integer_of,
    is_volumetric,
    label_map,
)
from halofeed.schemas import keys
from halofeed.schemas.tasks import task_named
from halofeed.schemas.tfexample import Decoded

_SPECK: Final = 0.02
"""Largest size of a speck as a share of the largest part of its class in the record."""
_RARE: Final = 0.05
"""Share of the records of a class above which specks, holes and parts are usual, as for cells."""
_MARGIN: Final = 4
"""Pixels around a speck or a hole in the box that a report draws."""
FACES: Final = ("first slice", "last slice", "first row", "last row", "first column", "last column")


class MaskKind(SuspectKind):
    """Kinds of faulty masks."""

    # fmt: off
    SPECK = ("speck in a mask", "Small parts of a class, apart from the rest of it, are rare for the class.",
        "Remove all but the largest parts of the class.")
    HOLE = ("hole in a mask", "The class encloses background, which is rare for the class.",
        "Fill the hole, unless the structure has one.")
    BORDER = ("mask at the border", "The class reaches an edge of the picture or the scan that it usually does not.",
        "Look whether the scan is cut or moved, or the mask is drawn too large.")
    PARTS = ("many parts of a mask", "The class has more separate parts than usual.",
        "Look whether the mask is broken, or another structure has its class.")
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class _ClassRow:
    """What one record has of one class.

    Args:
        size: pixels or voxels.
        specks, holes, parts: numbers of small parts, of enclosed background, and of larger parts.
        faces: which faces it touches, see `Regions.faces`.
        speck, hole: depth, row and column of the first of them; None without one.
    """

    record: int
    identity: int
    size: int
    specks: int
    holes: int
    parts: int
    faces: tuple[bool, ...]
    speck: tuple[int, int, int] | None
    hole: tuple[int, int, int] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskTable:
    """Classes in the label maps of a data set.

    Args:
        labeled: records with a label map, int64 [record].
        rows: what each record has of each class.
    """

    labeled: NDArray[np.int64]
    rows: tuple[_ClassRow, ...]

    @classmethod
    def read(cls, reviewed: ReviewedSet) -> MaskTable:
        """Read the label maps of all records, one at a time."""
        names = frozenset((keys.LABEL, keys.LABELLED, keys.EXTENT, *keys.UNPADDED_SIDES))
        labeled, rows = [], list[_ClassRow]()
        for record in range(len(reviewed)):
            features = reviewed.small_features(record, names)
            if integer_of(features, keys.LABELLED) != 1:
                continue
            label = _shown_label(features, reviewed)
            if label is None or not label.size:
                continue
            labeled.append(record)
            for identity, regions in _regions_of(label, reviewed):
                rows.append(_row(record, identity, regions))
        return cls(labeled=np.array(labeled, np.int64), rows=tuple(rows))

    @cached_property
    def of_class(self) -> dict[int, list[_ClassRow]]:
        """Return the rows of each class."""
        found: dict[int, list[_ClassRow]] = {}
        for row in self.rows:
            found.setdefault(row.identity, []).append(row)
        return dict(sorted(found.items()))


def _shown_label(features: Decoded, reviewed: ReviewedSet) -> NDArray[Any] | None:
    """Return the label of a record without padding, [depth, height, width], with 0 for ignored pixels."""
    manifest = reviewed.manifest
    label = label_map(features, manifest)
    if label is None:
        return None
    if is_volumetric(manifest):
        extent = extent_of(features)
        if extent is not None:
            label = label[tuple(slice(low, high) for low, high in extent.T.tolist())]
    else:
        height, width = (integer_of(features, name) for name in keys.UNPADDED_SIDES)
        label = label[None, :height, :width]
    if manifest.ignore_label is not None:
        label = np.where(label == manifest.ignore_label, 0, label)
    return label


def _regions_of(label: NDArray[Any], reviewed: ReviewedSet) -> Iterator[tuple[int, Regions]]:
    """Yield the classes of a label, each with regions among which are its own."""
    if channels := class_channels(reviewed.manifest):
        for bit, identity in enumerate(channels):
            regions = find_regions(label >> bit & 1)
            if (regions.values == 1).any():
                own = np.where(regions.values == 1, identity, 0)
                around = np.where(regions.around == 1, identity, -1)
                yield (
                    identity,
                    Regions(
                        values=own,
                        sizes=regions.sizes,
                        faces=regions.faces,
                        places=regions.places,
                        around=around,
                    ),
                )
        return
    regions = find_regions(label)
    for identity in np.unique(regions.values[regions.values > 0]).tolist():
        yield identity, regions


def _row(record: int, identity: int, regions: Regions) -> _ClassRow:
    own = np.flatnonzero(regions.values == identity)
    sizes = regions.sizes[own]
    specks, holes = own[sizes <= _SPECK * sizes.max()], np.flatnonzero(regions.around == identity)
    first = (tuple(regions.places[found[0]].tolist()) if len(found) else None for found in (specks, holes))
    speck, hole = first
    return _ClassRow(
        record=record,
        identity=identity,
        size=int(sizes.sum()),
        specks=len(specks),
        holes=len(holes),
        parts=len(own) - len(specks),
        faces=tuple(regions.faces[own].any(0).tolist()),
        speck=speck,
        hole=hole,
    )


def has_label_maps(reviewed: ReviewedSet) -> bool:
    """Return whether each record shows all of its source and has a label map; tiles cut structures anywhere."""
    tiles = sum(split.statistics.tiles or 0 for split in reviewed.manifest.splits.values())
    return task_named(reviewed.manifest.task).has_label_image and not tiles and _is_still(reviewed)


def _is_still(reviewed: ReviewedSet) -> bool:
    return "frame" not in reviewed.manifest.kind.axes


def mask_faults(reviewed: ReviewedSet, table: MaskTable) -> Iterator[Suspect]:
    """Yield the masks with parts, holes or borders that are rare for their class."""
    for identity, rows in table.of_class.items():
        named = repr(reviewed.manifest.labels.get(identity, str(identity)))
        yield from _rare_counts(reviewed, rows, named)
        yield from _rare_borders(reviewed, rows, named)


_COUNTED: Final = Limits(least=0.3, below=False, largest_share=_RARE)
"""Limits of logarithms: a third more than usual, which is any increase of up to 3."""


def _rare_counts(reviewed: ReviewedSet, rows: list[_ClassRow], named: str) -> Iterator[Suspect]:
    """Yield the rows with more specks, holes or parts than usual."""
    for kind, counts, words in (
        (MaskKind.SPECK, [row.specks for row in rows], "small parts"),
        (MaskKind.HOLE, [row.holes for row in rows], "enclosed parts of the background"),
        (MaskKind.PARTS, [row.parts for row in rows], "separate parts"),
    ):
        values = np.array(counts, np.float64)
        scores = unusual(np.log1p(values), _COUNTED)
        for at in np.flatnonzero(scores > 1).tolist():
            row, usual = rows[at], np.median(values)
            place = {MaskKind.SPECK: row.speck, MaskKind.HOLE: row.hole}.get(kind)
            text = f"{named} has {counts[at]:,} {words}, usual {usual:.0f}"
            yield _suspect(reviewed, kind, row.record, float(scores[at]), text, place)


def _rare_borders(reviewed: ReviewedSet, rows: list[_ClassRow], named: str) -> Iterator[Suspect]:
    """Yield the rows that touch a face that their class rarely touches."""
    faces = np.array([row.faces for row in rows], bool).reshape(-1, len(FACES))
    # The limits need a number of records; 0 and 1 are as far apart as any.
    scores = np.stack(
        [unusual(faces[:, face].astype(np.float64), _TOUCHED) for face in range(len(FACES))], axis=1
    )
    for at in np.flatnonzero((scores > 1).any(1)).tolist():
        touched = " and ".join(FACES[face] for face in np.flatnonzero(scores[at] > 1).tolist())
        yield _suspect(
            reviewed, MaskKind.BORDER, rows[at].record, 1.0, f"{named} reaches the {touched}", None
        )


_TOUCHED: Final = Limits(least=0.5, below=False, largest_share=_RARE)


def _suspect(
    reviewed: ReviewedSet,
    kind: MaskKind,
    record: int,
    score: float,
    words: str,
    at: tuple[int, int, int] | None,
) -> Suspect:
    where: dict[str, Any] = {}
    if at is not None:
        where = _where(reviewed, record, at)
    return Suspect(kind=kind, places=(reviewed.place(record),), score=score, words=words, **where)


def _where(reviewed: ReviewedSet, record: int, at: tuple[int, int, int]) -> dict[str, Any]:
    """Return the box around a pixel of the part without padding, as fractions of the stored image, and its slice."""
    names = frozenset((keys.EXTENT, keys.HEIGHT, keys.WIDTH))
    features = reviewed.small_features(record, names)
    extent, is_solid = extent_of(features), is_volumetric(reviewed.manifest)
    first = extent[0].tolist() if extent is not None and is_solid else [0, 0, 0]
    depth, row, column = (start + place for start, place in zip(first, at, strict=True))
    height, width = (integer_of(features, name) or 1 for name in keys.SIDES)
    box = (
        max(0.0, (row - _MARGIN) / height),
        max(0.0, (column - _MARGIN) / width),
        min(1.0, (row + 1 + _MARGIN) / height),
        min(1.0, (column + 1 + _MARGIN) / width),
    )
    return {"box": box, "depth": depth} if is_solid else {"box": box}
