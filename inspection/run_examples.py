"""Examples of a training run: image, ground truth and prediction, and the matching of true and predicted boxes."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError
from halofeed.inspection.run_facts import ExampleEntry
from halofeed.schemas.limits import ARRAY_BYTES
from halofeed.system.atomic_files import open_regular
from halofeed.system.wording import plural

MIN_SCORE = 0.3
"""Predictions below this score are not drawn, unless all are below."""
MIN_OVERLAP = 0.5
"""Intersection over union from which a prediction matches a true box."""
_WEAK_SHOWN = 3
"""Predictions drawn if all are below `MIN_SCORE`."""
_IMAGE_NDIMS = (3, 4)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MAX_ARRAYS = 1000
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, kw_only=True)
class ExampleBoxes:
    """Boxes of one image.

    Args:
        corners: normalized ymin, xmin, ymax, xmax, float64 [boxes, 4].
        classes: class ids, int64 [boxes].
        scores: float64 [boxes]; 1 for the truth.
        crowd: whether a box covers a group of objects, bool [boxes].
    """

    corners: NDArray[np.float64]
    classes: NDArray[np.int64]
    scores: NDArray[np.float64]
    crowd: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class BoxMatches:
    """Matches between true boxes and the drawn predictions.

    Args:
        shown: number of predictions to draw, those with the highest scores.
        weak: whether all scores are below `MIN_SCORE`.
        found: whether a drawn prediction of the same class matches a true box, bool [truth].
        right: whether a drawn prediction matches a true box, bool [shown].
    """

    shown: int
    weak: bool
    found: NDArray[np.bool_]
    right: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class RunExample:
    """The arrays of one example.

    Args:
        entry: its entry in examples.json.
        image: image as stored, [height, width, channel] or [depth, height, width, channel].
        arrays: arrays of the truth (`truth_...`) and of the prediction (`predicted_...`), by name.
        spacing_mm: distance of voxels along depth, height, width; None if unknown.
    """

    entry: ExampleEntry
    image: NDArray[Any]
    arrays: Mapping[str, NDArray[Any]]
    spacing_mm: tuple[float, ...] | None

    def array(self, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return a numeric array by name; CorruptFileError if its shape differs (None allows any length)."""
        found = self.arrays.get(name)
        if found is None:
            raise _corrupt(self.entry, f"{name} is missing")
        fits = len(found.shape) == len(shape) and all(
            wanted is None or wanted == side for wanted, side in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.kind not in "biuf":
            expected = f"{name}: expected numbers of shape {shape}"
            raise _corrupt(self.entry, f"{expected}, got {found.dtype} {found.shape}")
        return found

    def scalar(self, name: str) -> int:
        """Return an integer by name."""
        return int(self.array(name, ()))

    def label(self, side: str) -> NDArray[Any]:
        """Return the class indices of the "truth" or as "predicted", uint16, in the image's shape."""
        found = self.array(f"{side}_label", self.image.shape[:-1])
        indices = found.astype(np.uint16)
        if not np.array_equal(indices, found):
            expected = f"{side}_label: expected class indices"
            raise _corrupt(self.entry, f"{expected}, got {found.min()} to {found.max()}")
        return indices

    def true_boxes(self) -> ExampleBoxes:
        """Return the true boxes, without padding."""
        corners = self.array("truth_boxes", (None, 4))
        count = min(len(corners), self.scalar("truth_num_boxes"))
        crowd = self.arrays.get("truth_is_crowd", np.zeros(len(corners), bool))
        classes = self.array("truth_classes", (len(corners),))
        return ExampleBoxes(
            corners=np.nan_to_num(corners[:count].astype(np.float64)),
            classes=classes[:count].astype(np.int64),
            scores=np.ones(count),
            crowd=crowd[:count].astype(bool),
        )

    def predicted_boxes(self) -> ExampleBoxes:
        """Return the predicted boxes by descending score."""
        corners = self.array("predicted_boxes", (None, 4))
        scores = self.array("predicted_scores", (len(corners),)).astype(np.float64)
        classes = self.array("predicted_classes", (len(corners),))
        has_count = "predicted_num_detections" in self.arrays
        count = min(len(corners), self.scalar("predicted_num_detections")) if has_count else len(corners)
        order = np.argsort(-np.nan_to_num(scores[:count]), kind="stable")
        return ExampleBoxes(
            corners=np.nan_to_num(corners[order].astype(np.float64)),
            classes=classes[order].astype(np.int64),
            scores=np.nan_to_num(scores[order]),
            crowd=np.zeros(count, bool),
        )


def match_predictions(truth: ExampleBoxes, predicted: ExampleBoxes) -> BoxMatches:
    """Match the drawn predictions, by descending score, each to the unmatched box of its class with the most overlap.

    A match needs an overlap of `MIN_OVERLAP`. Any number of predictions may match a crowd box.
    """
    sure = int((predicted.scores >= MIN_SCORE).sum())
    weak = sure == 0
    shown = min(_WEAK_SHOWN, len(predicted.scores)) if weak else sure
    found, right = np.zeros(len(truth.classes), bool), np.zeros(shown, bool)
    for at in range(shown):
        overlaps = np.where(
            truth.classes == predicted.classes[at], _overlaps_with(predicted.corners[at], truth), 0
        )
        for open_to_all in (False, True):
            free = np.where(truth.crowd if open_to_all else ~truth.crowd & ~found, overlaps, 0)
            if len(free) and free.max() >= MIN_OVERLAP:
                found[int(np.argmax(free))] = right[at] = True
                break
    return BoxMatches(shown=shown, weak=weak, found=found, right=right)


def _overlaps_with(box: NDArray[np.float64], truth: ExampleBoxes) -> NDArray[np.float64]:
    """Return the intersection over union with each true box; for a crowd, over the area of the prediction."""
    others = truth.corners
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.clip(sides, 0, None), axis=1)
    own = float(np.prod(np.clip(box[2:] - box[:2], 0, None)))
    areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
    union = np.where(truth.crowd, own, own + areas - shared)
    return np.asarray(np.where(union > 0, shared / np.where(union > 0, union, 1), 0))


def load_example(entry: ExampleEntry) -> RunExample:
    """Read the arrays of an example.

    Raises:
        CorruptFileError: the file is missing or damaged, or its image does not have three or four axes.
    """
    try:
        with open_regular(entry.file) as stream:
            _check_sizes(stream)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
    except _UNREADABLE as error:
        raise _corrupt(entry, f"cannot be read: {error}") from error
    image = arrays.pop("image", np.zeros(0))
    if image.ndim not in _IMAGE_NDIMS or image.dtype.kind not in "biuf" or not image.size:
        expected = "image: expected [height, width, channel], optionally after depth or frames"
        raise _corrupt(entry, f"{expected}, got {image.dtype} {image.shape}")
    spacing = arrays.pop("spacing_mm", np.zeros(0))
    known = spacing.shape == (3,) and np.isfinite(spacing).all() and (spacing > 0).all()
    spacing_mm = tuple(spacing.tolist()) if known else None
    return RunExample(entry=entry, image=image, arrays=arrays, spacing_mm=spacing_mm)


def _check_sizes(stream: FileIO) -> None:
    """Raise ValueError if arrays are larger than allowed or than their data, before any of them is allocated."""
    with zipfile.ZipFile(stream) as packed:
        members = packed.infolist()
        if (size := sum(member.file_size for member in members)) > ARRAY_BYTES or len(members) > _MAX_ARRAYS:
            raise ValueError(
                f"{len(members):,} arrays of {size:,} bytes, and at most {ARRAY_BYTES:,} are read"
            )
        for member in members:
            with packed.open(member) as array:
                version = np.lib.format.read_magic(array)
                if version not in _HEADERS:
                    raise ValueError(f"{member.filename!r:.60} is an array of version {version}")
                shape, _, dtype = _HEADERS[version](array)
                if math.prod(shape) * max(1, dtype.itemsize) > member.file_size:
                    raise ValueError(
                        f"{member.filename!r:.60} has {plural(member.file_size, 'byte')} for {dtype} {shape}"
                    )


def _corrupt(entry: ExampleEntry, what: str) -> CorruptFileError:
    fix = f"evaluate again, or remove {entry.file.parent} to do without examples"
    return CorruptFileError(f"{entry.file}: {what}; {fix}")
