"""Examples of a training run: their arrays, and their section in the report, with truth beside prediction."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.planes import (
    Display,
    Plane,
    ShownVolume,
    cut_planes,
    display_of_run,
    find_worst_planes,
)
from halofeed.inspection.record_words import KIND_WORDS
from halofeed.inspection.run_facts import ExampleEntry, LabelFacts, RunFacts
from halofeed.inspection.stored_records import CANONICAL, DIRECTIONS, count_classes
from halofeed.inspection.thumbnails import (
    PlacedBox,
    image_thumbnail,
    lay_out_boxes,
    lay_out_regions,
    overlay,
    thumbnail_side,
)
from halofeed.inspection.words import percent
from halofeed.schemas.limits import ARRAY_BYTES
from halofeed.storage.atomic_files import open_regular
from halofeed.system.errors import CorruptFileError
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
_MAX_PICTURES = 96
_LARGEST_SIDE, _SMALLEST_SIDE = 360, 130
_MAX_CHIPS, _MAX_CLASSES = 8, 5
_CONFIDENT = 0.5
ClassChip = tuple[str, int | None, str]
"""Name of a class, its color number (None for a plain remark), and a figure such as its Dice."""


@dataclass(frozen=True, kw_only=True)
class ExampleBoxes:
    """Boxes of one image.

    Args:
        corners: normalized ymin, xmin, ymax, xmax, float64 [boxes, 4].
        classes: class ids, int64 [boxes].
        scores: float64 [boxes]; 1 for the truth.
        crowd: whether a box covers a group of objects, bool [boxes].
        regions: ignored regions, in which no prediction is wrong, float64 [region, 4].
        numbers: numbers of these boxes in the arrays of the example, from 1, int64 [boxes]; None if they are in order.
    """

    corners: NDArray[np.float64]
    classes: NDArray[np.int64]
    scores: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    regions: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    numbers: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class BoxMatches:
    """Matches between true boxes and the drawn predictions.

    Args:
        shown: number of predictions to draw, those with the highest scores.
        weak: whether all scores are below the smallest score to draw.
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
        recipe: options of the conversion of its data set.
        is_labelled: whether there is a truth.
        min_score: predictions with a lower score are not drawn, unless all are below.
    """

    entry: ExampleEntry
    image: NDArray[Any]
    arrays: Mapping[str, NDArray[Any]]
    spacing_mm: tuple[float, ...] | None
    recipe: Mapping[str, Any]
    is_labelled: bool = True
    min_score: float = MIN_SCORE

    @cached_property
    def display(self) -> Display:
        """Return the display of a volume."""
        return display_of_run(self.recipe, self.image)

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
        # The arrays may come from a stranger.
        count = min(len(corners), self.scalar("truth_num_boxes"))
        crowd = self.arrays.get("truth_is_crowd", np.zeros(len(corners), bool))
        classes = self.array("truth_classes", (len(corners),))
        return ExampleBoxes(
            corners=np.nan_to_num(corners[:count].astype(np.float64)),
            classes=classes[:count].astype(np.int64),
            scores=np.ones(count),
            crowd=crowd[:count].astype(bool),
            regions=self._regions(),
        )

    def _regions(self) -> NDArray[np.float64]:
        """Return the ignored regions, without padding."""
        if "truth_ignored_boxes" not in self.arrays:
            return np.zeros((0, 4))
        regions = np.nan_to_num(self.array("truth_ignored_boxes", (None, 4)).astype(np.float64))
        return regions[(regions[:, :2] < regions[:, 2:]).all(axis=1)]

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
            numbers=order + 1,
        )

    def objects(self, side: str, numbers: Sequence[int], ranks: Sequence[int]) -> str | None:
        """Draw the masks of objects of the "truth" or as "predicted"; None if the example has none.

        Args:
            side: "truth" or "predicted".
            numbers: numbers of the objects to draw, as the array `..._objects` [row, column] has them.
            ranks: color number of each of them.
        """
        if f"{side}_objects" not in self.arrays:
            return None
        shown = self.array(f"{side}_objects", (None, None)).astype(np.int64)
        drawn = np.where(np.isin(shown, list(numbers)), shown, 0)
        height, width = self.image.shape[-3:-1]
        return overlay(drawn, dict(zip(numbers, ranks, strict=True)), (height, width))


_NO_BOXES = ExampleBoxes(
    corners=np.zeros((0, 4)), classes=np.zeros(0, np.int64), scores=np.zeros(0), crowd=np.zeros(0, bool)
)


def match_predictions(
    truth: ExampleBoxes, predicted: ExampleBoxes, min_score: float = MIN_SCORE
) -> BoxMatches:
    """Match the drawn predictions, by descending score, each to the unmatched box of its class with the most overlap.

    A match needs an overlap of `MIN_OVERLAP`. Any number of predictions may match a crowd box. A prediction with that
    share of its area in an ignored region is not wrong.
    """
    sure = int((predicted.scores >= min_score).sum())
    weak = sure == 0
    shown = min(_WEAK_SHOWN, len(predicted.scores)) if weak else sure
    found, right = np.zeros(len(truth.classes), bool), np.zeros(shown, bool)
    for at in range(shown):
        overlaps = np.where(
            truth.classes == predicted.classes[at], _overlaps_with(predicted.corners[at], truth), 0
        )
        # As pycocotools: single boxes first, then crowds, which any number of predictions may match.
        for open_to_all in (False, True):
            free = np.where(truth.crowd if open_to_all else ~truth.crowd & ~found, overlaps, 0)
            if len(free) and free.max() >= MIN_OVERLAP:
                found[int(np.argmax(free))] = right[at] = True
                break
        right[at] |= _is_in_region(predicted.corners[at], truth.regions)
    return BoxMatches(shown=shown, weak=weak, found=found, right=right)


def _is_in_region(box: NDArray[np.float64], regions: NDArray[np.float64]) -> bool:
    """Return whether enough of a box's area is inside one of the ignored regions [region, 4]."""
    sides = np.minimum(box[2:], regions[:, 2:]) - np.maximum(box[:2], regions[:, :2])
    own = float(np.prod(np.clip(box[2:] - box[:2], 0, None)))
    return own > 0 and bool((np.prod(np.clip(sides, 0, None), axis=1) >= MIN_OVERLAP * own).any())


def _overlaps_with(box: NDArray[np.float64], truth: ExampleBoxes) -> NDArray[np.float64]:
    """Return the intersection over union with each true box; for a crowd, over the area of the prediction."""
    others = truth.corners
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.clip(sides, 0, None), axis=1)
    own = float(np.prod(np.clip(box[2:] - box[:2], 0, None)))
    areas = np.prod(np.clip(others[:, 2:] - others[:, :2], 0, None), axis=1)
    union = np.where(truth.crowd, own, own + areas - shared)
    return np.asarray(np.where(union > 0, shared / np.where(union > 0, union, 1), 0))


def load_example(entry: ExampleEntry, recipe: Mapping[str, Any]) -> RunExample:
    """Read the arrays of an example of a run whose data set was converted with `recipe`.

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
    return RunExample(entry=entry, image=image, arrays=arrays, spacing_mm=spacing_mm, recipe=recipe)


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
                # NumPy has public readers of these two headers only (numpy.lib.format).
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


@dataclass(frozen=True, kw_only=True)
class ExamplePicture:
    """A picture with its layers: boxes, classes, and the directions of a plane."""

    uri: str
    size: tuple[float, float]
    alt: str
    caption: str
    boxes: Sequence[PlacedBox] = ()
    mask: str | None = None
    plane: Plane | None = None


@dataclass(frozen=True, kw_only=True)
class DrawnExample:
    """An example as it is shown.

    Args:
        rows: rows of pictures, each with its heading ("" for none).
        kind: CSS classes of a row, which arrange its pictures.
        chips: classes with figures.
        remarks: short texts below the pictures.
        guesses: most probable classes of a classification: name, probability, whether it is the true one.
        verdicts: true and predicted class of a classification: text before it, name, color number.
    """

    rows: Sequence[tuple[str, Sequence[ExamplePicture]]]
    kind: str = "pair both"
    chips: Sequence[ClassChip] = ()
    remarks: Sequence[str] = ()
    guesses: Sequence[tuple[str, float, bool]] = ()
    verdicts: Sequence[tuple[str, str, int]] = ()


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """View of the examples of a task.

    Args:
        draw: function that draws an example with a longer side in pixels.
        pictures: number of pictures of each example (of each plane, for volumes).
    """

    draw: Callable[[LabelFacts, RunExample, int], DrawnExample]
    pictures: int = 2


def examples(facts: RunFacts) -> dict[str, Any]:
    """Show the examples of the last evaluation."""
    if not facts.examples or facts.examples_of is None:
        return {"shown": None}
    view = TASK_VIEWS.get(facts.task, UNKNOWN_VIEW)
    kind = KIND_WORDS[facts.kind]
    each = view.pictures * (len(DIRECTIONS) if kind.in_planes else 1)
    ordered = sorted(facts.examples, key=lambda entry: entry.reason != "worst")
    entries = ordered[: _MAX_PICTURES // each]
    side = thumbnail_side(each * len(entries), _LARGEST_SIDE, _SMALLEST_SIDE)
    shown, display_words = [], ""
    for entry in entries:
        example = load_example(entry, facts.document.get("recipe") or {})
        if kind.in_planes:
            display_words = example.display.words
        shown.append((entry, view.draw(facts, example, side)))
    return {
        "shown": shown,
        "look_for": facts.task_words.look_for.format(overlap=MIN_OVERLAP),
        "has_label_map": facts.task_words.has_label_map,
        "in_planes": kind.in_planes,
        "display_words": display_words,
        "left_out": len(facts.examples) - len(entries),
    }


def _detection(facts: LabelFacts, example: RunExample, side: int) -> DrawnExample:
    truth = example.true_boxes() if example.is_labelled else _NO_BOXES
    predicted = example.predicted_boxes()
    matches = match_predictions(truth, predicted, example.min_score)
    picture = _flat_picture(facts, example, side)
    names = [
        f"{facts.label_name(label)} (crowd)" if crowd else facts.label_name(label)
        for label, crowd in zip(truth.classes.tolist(), truth.crowd, strict=True)
    ]
    scored = [
        f"{facts.label_name(label)} {score:.2f}"
        for label, score in zip(predicted.classes.tolist(), predicted.scores.tolist(), strict=True)
    ][: matches.shown]
    # COCO neither requires nor counts predictions of a crowd, so none is missed.
    missed = ~truth.crowd & ~matches.found
    hidden = len(predicted.scores) - matches.shown
    left_out = f" ({hidden:,} with lower scores not shown)" if hidden else ""
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"
    alt = f"Example {example.entry.name} with"
    left = ExamplePicture(
        **picture,
        alt=f"{alt} its annotated boxes: {counted}",
        caption=f"truth, {plural(len(names), 'box', 'boxes')}",
        mask=_drawn_masks(facts, example, "truth", truth, len(names)),
        boxes=[
            *lay_out_regions(truth.regions, picture["size"]),
            *_placed_boxes(facts, truth, names, picture["size"], missed),
        ],
    )
    right = ExamplePicture(
        **picture,
        alt=f"{alt} the predicted boxes: {', '.join(scored) or 'none'}",
        caption=f"predicted, {plural(matches.shown, 'box', 'boxes')}{left_out}",
        mask=_drawn_masks(facts, example, "predicted", predicted, matches.shown),
        # Without a truth no box is wrong, and dashes mean wrong boxes.
        boxes=_placed_boxes(
            facts, predicted, scored, picture["size"], ~matches.right & np.bool_(example.is_labelled)
        ),
    )
    if not example.is_labelled:
        remarks = [f"all scores are below {example.min_score:g}"] if matches.weak and scored else []
        return DrawnExample(rows=[("", (right,))], kind="pair alone", remarks=remarks)
    return DrawnExample(rows=[("", (left, right))], remarks=_box_remarks(truth, matches, example.min_score))


def _drawn_masks(
    facts: LabelFacts, example: RunExample, side: str, boxes: ExampleBoxes, count: int
) -> str | None:
    """Draw the masks of the first boxes in the colors of their classes."""
    numbers = np.arange(1, count + 1) if boxes.numbers is None else boxes.numbers[:count]
    return example.objects(
        side, numbers.tolist(), [facts.rank(label) for label in boxes.classes[:count].tolist()]
    )


def _box_remarks(truth: ExampleBoxes, matches: BoxMatches, min_score: float) -> list[str]:
    """Return remarks on the boxes found, the boxes too many and the scores."""
    single = ~truth.crowd
    count, found = int(single.sum()), int((single & matches.found).sum())
    extra = int((~matches.right).sum())
    remarks = [f"{found} of {plural(count, 'box', 'boxes')} found" if count else "no boxes to find"]
    if extra:
        remarks.append(plural(extra, "extra box", "extra boxes"))
    if matches.weak:
        remarks.append(f"all scores are below {min_score:g}")
    return remarks


def _placed_boxes(
    facts: LabelFacts,
    boxes: ExampleBoxes,
    words: list[str],
    size: tuple[int, int],
    dashed: NDArray[np.bool_],
) -> list[PlacedBox]:
    """Lay out boxes in the colors of their classes, as many as there are words."""
    named = [(name, facts.rank(label)) for name, label in zip(words, boxes.classes.tolist(), strict=False)]
    return lay_out_boxes(boxes.corners, named, size, dashed=dashed.tolist())


def _several_classes(facts: LabelFacts, example: RunExample, side: int) -> DrawnExample:
    """Draw an image that may have several classes: those that it has, and those that were predicted."""
    chosen = example.array("predicted_labels", (None,)).astype(bool)
    shares = np.nan_to_num(example.array("predicted_probabilities", (len(chosen),)).astype(np.float64))
    true = example.array("truth_labels", (len(chosen),)).astype(bool) if example.is_labelled else None
    sides = [("predicted ", chosen)] if true is None else [("it has ", true), ("predicted ", chosen)]
    verdicts = [
        ("" if number else words, facts.label_name(label), facts.rank(label))
        for words, flags in sides
        for number, label in enumerate(np.flatnonzero(flags).tolist()[:_MAX_CLASSES])
    ]
    remarks = []
    if true is not None:
        missed, extra = int((true & ~chosen).sum()), int((chosen & ~true).sum())
        remarks = [f"{missed} missed, {extra} extra" if missed + extra else "right"]
    # The largest errors first, so that a missed class of a low probability is shown too.
    order = np.argsort(-shares if true is None else -np.abs(true - shares), kind="stable")[
        :_MAX_CLASSES
    ].tolist()
    guesses = [(facts.label_name(at), float(shares[at]), true is not None and bool(true[at])) for at in order]
    names = [[facts.label_name(at) for at in np.flatnonzero(flags).tolist()] for _, flags in sides]
    texts = [f"{words}{', '.join(of) or 'no class'}" for (words, _), of in zip(sides, names, strict=True)]
    frames, kind = _class_frames(facts, example, ", ".join(texts), side)
    return DrawnExample(rows=[("", frames)], kind=kind, remarks=remarks, guesses=guesses, verdicts=verdicts)


def _classification(facts: LabelFacts, example: RunExample, side: int) -> DrawnExample:
    if "predicted_labels" in example.arrays:
        return _several_classes(facts, example, side)
    predicted = example.scalar("predicted_label")
    true = example.scalar("truth_label") if example.is_labelled else -1
    remarks = ["right" if true == predicted else "wrong"] if example.is_labelled else []
    guesses: list[tuple[str, float, bool]] = []
    if "predicted_probabilities" in example.arrays:
        shares = np.nan_to_num(example.array("predicted_probabilities", (None,)).astype(np.float64))
        guesses = probable_classes(facts.label_name, shares, true)
        is_confident = 0 <= predicted < len(shares) and shares[predicted] > _CONFIDENT
        if example.is_labelled and true != predicted and is_confident:
            remarks.append("confident")
    verdicts = [
        (words, facts.label_name(label), facts.rank(label))
        for words, label in (("it is ", true), ("predicted ", predicted))
        if label != true or example.is_labelled
    ]
    of_truth = f"it is {facts.label_name(true)}, " if example.is_labelled else ""
    frames, kind = _class_frames(
        facts, example, f"{of_truth}predicted as {facts.label_name(predicted)}", side
    )
    return DrawnExample(rows=[("", frames)], kind=kind, remarks=remarks, guesses=guesses, verdicts=verdicts)


def _class_frames(
    facts: LabelFacts, example: RunExample, words: str, side: int
) -> tuple[list[ExamplePicture], str]:
    """Return the pictures of an image without classes over it, described by words, and their CSS classes."""
    if KIND_WORDS[facts.kind].in_planes:
        return [first for _, (first, *_) in _plane_rows(facts, example, None, None, side)], "beside"
    alt, caption = f"Example {example.entry.name}: {words}", KIND_WORDS[facts.kind].caption
    return [ExamplePicture(**_flat_picture(facts, example, side), alt=alt, caption=caption)], "pair guess"


def probable_classes(
    label_name: Callable[[int], str], shares: NDArray[np.float64], true: int
) -> list[tuple[str, float, bool]]:
    """Return the most probable classes, and the true one in place of the last if it is not among them.

    Args:
        label_name: function that returns the name of a class.
        shares: probability of each class, [class].
        true: the true class; -1 if it is unknown.

    Returns:
        name, probability, and whether it is the true class.

    >>> probable_classes("class {}".format, np.array([0.2, 0.7, 0.1]), 0)
    [('class 1', 0.7, False), ('class 0', 0.2, True), ('class 2', 0.1, False)]
    """
    order = np.argsort(-shares, kind="stable")[:_MAX_CLASSES].tolist()
    if 0 <= true < len(shares) and true not in order:
        order = [*order[: _MAX_CLASSES - 1], true]
    return [(label_name(at), float(shares[at]), at == true) for at in order]


def _segmentation(facts: LabelFacts, example: RunExample, side: int) -> DrawnExample:
    predicted = example.label("predicted")
    labelled = example.is_labelled and bool(np.all(example.arrays.get("truth_labelled", True)))
    truth = example.label("truth") if labelled else None
    chips, remarks = _dice_chips(facts, truth, predicted)
    if KIND_WORDS[facts.kind].in_planes:
        return DrawnExample(
            rows=_plane_rows(facts, example, truth, predicted, side), chips=chips, remarks=remarks
        )
    picture = _flat_picture(facts, example, side)
    height, width = (max(1, round(one * side / max(picture["size"]))) for one in picture["size"])
    frames = []
    for name, caption, label in (
        ("truth", "image: it has no annotation" if truth is None else "truth", truth),
        ("predicted", "predicted", predicted),
    ):
        classes = None if label is None else KIND_WORDS[facts.kind].flat_classes(label)
        mask = None if classes is None else overlay(classes, facts.ranks, (height, width))
        alt = f"Example {example.entry.name}, {name}"
        frames.append(ExamplePicture(**picture, alt=alt, caption=caption, mask=mask))
    return DrawnExample(rows=[("", frames)], chips=chips, remarks=remarks)


def _dice_chips(
    facts: LabelFacts, truth: NDArray[Any] | None, predicted: NDArray[Any]
) -> tuple[list[ClassChip], list[str]]:
    """Return each true or predicted class with its Dice in this example, the worst first, and remarks."""
    counts = count_classes(predicted)
    if truth is None:
        found = [(facts.label_name(label), facts.rank(label), "") for label in counts if label]
        return [*found[:_MAX_CHIPS]], ["no annotation"]
    true_counts = count_classes(truth)
    shared = count_classes(np.where(truth == predicted, truth, 0))
    dice = {
        label: 2 * shared.get(label, 0) / (true_counts.get(label, 0) + counts.get(label, 0))
        for label in (true_counts.keys() | counts.keys()) - {0}
    }
    order = sorted(dice, key=lambda label: (dice[label], label))
    chips: list[ClassChip] = [
        (facts.label_name(label), facts.rank(label), f"Dice {dice[label]:.2f}")
        for label in order[:_MAX_CHIPS]
    ]
    if len(order) > _MAX_CHIPS:
        chips.append((f"and {len(order) - _MAX_CHIPS} more", None, ""))
    if not order:
        chips.append(("nothing but background", None, ""))
    wrong = float((truth != predicted).mean())
    return chips, [f"{percent(wrong)} of the {KIND_WORDS[facts.kind].unit} are wrong"]


def _plane_rows(
    facts: LabelFacts,
    example: RunExample,
    truth: NDArray[Any] | None,
    predicted: NDArray[Any] | None,
    side: int,
) -> list[tuple[str, list[ExamplePicture]]]:
    """Draw three planes, each with the truth and, if there is one, with the prediction."""
    shape = example.image.shape[:3]
    shown = [(truth, "image" if truth is None else "truth")]
    if predicted is not None:
        shown.append((predicted, "predicted"))
    labels, captions = zip(*shown, strict=True)
    planes = cut_planes(
        ShownVolume(
            voxels=example.image,
            ranges=tuple(slice(0, length) for length in shape),
            # Without a spacing, the orientation of the volume is not known either.
            steps_mm=example.spacing_mm or (1.0, 1.0, 1.0),
            directions=[DIRECTIONS[row] for row in CANONICAL] if example.spacing_mm else (),
        ),
        [None if label is None else label.__getitem__ for label in labels],
        find_worst_planes(shape, truth, predicted),
        example.display,
        facts.ranks,
        side,
    )
    return [(plane.caption, _plane_pictures(plane, captions, example.entry.name)) for plane in planes]


def _plane_pictures(plane: Plane, captions: Sequence[str], example: str) -> list[ExamplePicture]:
    """Return a plane as one picture for each of its masks."""
    alt = f"{plane.caption} of example {example}"
    return [
        ExamplePicture(
            uri=plane.uri,
            size=plane.size_mm,
            plane=plane,
            alt=f"{alt}, {words}",
            caption=words,
            mask=mask,
        )
        for words, mask in zip(captions, plane.masks, strict=True)
    ]


def _image_alone(facts: LabelFacts, example: RunExample, side: int) -> DrawnExample:
    frame = ExamplePicture(
        **_flat_picture(facts, example, side), alt=f"Example {example.entry.name}", caption="image"
    )
    return DrawnExample(rows=[("", [frame])], kind="pair alone")


TASK_VIEWS = {
    "detection": TaskView(draw=_detection),
    "classification": TaskView(draw=_classification, pictures=1),
    "segmentation": TaskView(draw=_segmentation),
}
UNKNOWN_VIEW = TaskView(draw=_image_alone)
"""View for unknown tasks: the image alone."""


def _flat_picture(facts: LabelFacts, example: RunExample, side: int) -> dict[str, Any]:
    """Return the data: URI and the size of an image as one picture."""
    uri, size = image_thumbnail(KIND_WORDS[facts.kind].flat(example.image), side)
    return {"uri": uri, "size": size}
