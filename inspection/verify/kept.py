"""Do the features that `--keep` asked for agree with a record's boxes?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from halofeed.inspection.facts.kinds import task_of
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import KEPT
from halofeed.schemas.tfexample import Decoded

_KEYPOINT_PARTS = ("x", "y", "visibility", "text")


def kept_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Everything that is wrong with the features that are no field of the manifest: the view and the keypoints."""
    kept = manifest.recipe.get("keep", ())
    if not task_of(manifest).has_boxes:
        return
    boxes = len(features.get(keys.OBJECT_CLASS_LABEL, ()))
    if "view" in kept:
        key = KEPT["view"]
        if key not in features:
            yield f"{key} is missing"
        elif len(features[key]) != boxes:
            yield f"{key}: expected one for each of {boxes} boxes, got {len(features[key])}"
    if "keypoints" in kept:
        yield from _keypoint_problems(features, boxes)


def _keypoint_problems(features: Decoded, boxes: int) -> Iterator[str]:
    key = KEPT["keypoints"]
    names = [f"{key}/{part}" for part in (*_KEYPOINT_PARTS, "num")]
    if missing := [name for name in names if name not in features]:
        yield from (f"{name} is missing" for name in missing)
        return
    x, y, visibility, text, labeled = (features[name] for name in names)
    kinds = (
        ("x", x, "float32"),
        ("y", y, "float32"),
        ("visibility", visibility, "int64"),
        ("num", labeled, "int64"),
    )
    # An empty list has lost its type in some writers.
    wrong = [(part, kind) for part, value, kind in kinds if len(value) and not _is_of(value, kind)]
    wrong += [("text", "bytes")] if len(text) and not isinstance(text, list) else []
    if wrong:
        yield from (f"{key}/{part}: expected {kind} values" for part, kind in wrong)
        return
    lengths = {part: len(features[f"{key}/{part}"]) for part in _KEYPOINT_PARTS}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{part} {length}" for part, length in lengths.items())
        yield f"{key}: expected lists of one length, got {counts}"
        return
    if len(labeled) != boxes:
        yield f"{key}/num: expected one for each of {boxes} boxes, got {len(labeled)}"
        return
    if len(x) % boxes if boxes else len(x):
        yield f"{key}: expected as many points for each of {boxes} boxes, got {len(x)} in all"
        return
    for part, values in (("x", x), ("y", y)):
        for point in np.flatnonzero(~np.isfinite(np.asarray(values, np.float32))):
            yield f"{key}/{part}: point {point} is {values[point]}"
    flags = np.asarray(visibility, np.int64)
    for point in np.flatnonzero((flags < 0) | (flags > 2)):
        yield f"{key}/visibility: point {point}: expected 0, 1 or 2, got {flags[point]}"
    each = len(x) // boxes if boxes else 0
    found = (flags.reshape(boxes, each) > 0).sum(axis=1) if boxes else flags
    for box, (stated, counted) in enumerate(zip(labeled, found, strict=True)):
        if stated != counted:
            yield f"{key}/num: box {box}: {stated}, but {counted} of its points are labeled"
    spelled = [bytes(name) for name in text]
    for box in range(1, boxes):
        if spelled[box * each : (box + 1) * each] != spelled[:each]:
            yield f"{key}/text: box {box} has other names than box 0"


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == kind
