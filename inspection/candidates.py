"""Selection of the records that a report shows: typical ones, and unusual ones such as rotated or padded pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.stored_records import extent_of, integer_of, spacing_of
from halofeed.inspection.stored_shard import StoredShard
from halofeed.prep.geometry.resize import displayed_to_file
from halofeed.schemas import keys
from halofeed.schemas.limits import SIDE
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.tfexample import Decoded

CANDIDATES_PER_SPLIT = 1000
"""Records per split whose labels and sizes are read to choose from; evenly spaced over the split."""
MAX_OBJECTS = 10_000
"""Most boxes of one record that are counted and drawn."""
_CHOICE_KEYS = frozenset(
    {
        keys.CLASS_LABEL,
        keys.OBJECT_CLASS_LABEL,
        keys.TRANSFORM,
        keys.LABELLED,
        keys.DEPTH,
        keys.EXTENT,
        keys.SPACING_MM,
        *keys.SIDES,
        *keys.UNPADDED_SIDES,
        *keys.SOURCE_SIDES,
    }
)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Properties of a record that need no decoding of its picture.

    Args:
        split, number: position in the data set, as in `split:number`.
        shard, row: the shard and the number of the record within it.
        labels: classes of its first `MAX_OBJECTS` boxes, or its class or classes.
        padding: share of the stored pixels that is padding.
        elongation: |log2(width / height)| of the source.
        orientation: EXIF orientation between the annotations and the picture, 1 to 8.
        labelled: False if a segmentation record has no label.
        anisotropy: largest spacing of a volume over its smallest.
    """

    split: str
    number: int
    shard: Shard
    row: int
    labels: tuple[int, ...]
    padding: float
    elongation: float
    orientation: int
    labelled: bool = True
    anisotropy: float = 1.0


def find_candidates(folder: Path | DatasetFiles, manifest: Manifest) -> list[Candidate]:
    """Read the small features of evenly spaced records of each split."""
    found = []
    for split, content in manifest.splits.items():
        step = max(1, math.ceil(content.records / CANDIDATES_PER_SPLIT))
        first = 0
        for shard in content.shards:
            rows = range(-first % step, shard.records, step)
            if rows:
                stored = StoredShard(folder, shard)
                for row in rows:
                    features = stored.small_features(row, _CHOICE_KEYS)
                    found.append(_candidate(features, split, first + row, shard, row))
            first += shard.records
    return found


def choose_samples(
    candidates: Sequence[Candidate], count: int, *, detection: bool
) -> list[tuple[Candidate, str | None]]:
    """Choose the records to show: typical ones, spread over splits and classes, then unusual ones.

    Up to half of the records are unusual. The same candidates always give the same choice.

    Args:
        candidates: records in the data set's order.
        count: most records to choose.
        detection: whether records have boxes, so that a record with the most and one without are shown.

    Returns:
        each record with the reason why it is unusual; None for a typical one.
    """
    unusual: dict[tuple[str, int], tuple[Candidate, str]] = {}
    for candidate, reason in _unusual(candidates, detection):
        if len(unusual) < count // 2:
            unusual.setdefault((candidate.split, candidate.number), (candidate, reason))
    left = [item for item in candidates if (item.split, item.number) not in unusual]
    splits: Counter[str] = Counter()
    labels: Counter[int] = Counter()
    typical: list[tuple[Candidate, str | None]] = []
    while left and len(typical) < count - len(unusual):
        best = min(
            range(len(left)),
            key=lambda at: (
                splits[left[at].split],
                min((labels[label] for label in left[at].labels), default=len(typical)),
                -len(set(left[at].labels) - set(labels)),
                at,
            ),
        )
        chosen = left.pop(best)
        splits[chosen.split] += 1
        labels.update(set(chosen.labels))
        typical.append((chosen, None))
    return [*typical, *unusual.values()]


def _unusual(candidates: Sequence[Candidate], detection: bool) -> Iterator[tuple[Candidate, str]]:
    """Yield unusual records with the reason, the most interesting first; a record may occur several times."""
    if not candidates:
        return
    if detection:
        most = max(candidates, key=lambda item: len(item.labels))
        yield most, f"most boxes: {len(most.labels)}"
    for candidate in candidates:
        if candidate.orientation != 1:
            yield candidate, f"EXIF orientation {candidate.orientation}"
            break
    padded = max(candidates, key=lambda item: item.padding)
    if padded.padding >= 0.05:
        yield padded, f"most padding: {100 * padded.padding:.0f} %"
    longest = max(candidates, key=lambda item: item.elongation)
    if longest.elongation >= 1:
        yield longest, f"longest sides: {2**longest.elongation:.1f} to 1"
    if unlabelled := next((item for item in candidates if not item.labelled), None):
        yield unlabelled, "no label: for prediction"
    flattest = max(candidates, key=lambda item: item.anisotropy)
    if flattest.anisotropy >= 3:
        yield flattest, f"thickest slices: {flattest.anisotropy:.1f} times the spacing within"
    if detection and (empty := next((item for item in candidates if not item.labels), None)):
        yield empty, "no boxes"
    seen = {1}
    for candidate in candidates:
        if candidate.orientation not in seen:
            seen.add(candidate.orientation)
            yield candidate, f"EXIF orientation {candidate.orientation}"


def clamped_side(features: Decoded, key: str) -> int:
    """Return the integer of a key, limited to a valid side length."""
    return min(max(1, integer_of(features, key) or 1), SIDE)


def _candidate(features: Decoded, split: str, number: int, shard: Shard, row: int) -> Candidate:
    stored, unpadded, source = (
        [clamped_side(features, key) for key in sides]
        for sides in (keys.SIDES, keys.UNPADDED_SIDES, keys.SOURCE_SIDES)
    )
    objects = features.get(keys.OBJECT_CLASS_LABEL)
    labels = features.get(keys.CLASS_LABEL, []) if objects is None else objects
    padding = 1 - math.prod(unpadded) / math.prod(stored)
    elongation = abs(math.log2(source[1] / source[0]))
    extent, spacing = extent_of(features), spacing_of(features)
    if extent is not None:
        depth = clamped_side(features, keys.DEPTH)
        padding = 1 - math.prod((extent[1] - extent[0]).tolist()) / (depth * math.prod(stored))
    return Candidate(
        split=split,
        number=number,
        shard=shard,
        row=row,
        labels=tuple(labels[:MAX_OBJECTS].tolist()) if isinstance(labels, np.ndarray) else (),
        padding=padding,
        elongation=elongation,
        orientation=_orientation_of(features.get(keys.TRANSFORM)),
        labelled=integer_of(features, keys.LABELLED) != 0,
        anisotropy=float(spacing.max() / spacing.min())
        if spacing is not None and (spacing > 0).all()
        else 1.0,
    )


def _orientation_of(transform: Any) -> int:
    """Return the EXIF orientation of a stored transform; each orientation has its own signs in the matrix."""
    if isinstance(transform, np.ndarray) and transform.shape == (6,):
        for orientation in range(1, 9):
            turn = displayed_to_file(orientation, (1, 1))
            if (np.sign(transform.reshape(2, 3)[:, :2]) == turn.reshape(2, 3)[:, :2]).all():
                return orientation
    return 1
