"""Section of a run's report with its examples: truth on the left, prediction on the right, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.display import Display, display_of_run
from halofeed.inspection.overlay import PlacedBox, lay_out_boxes, overlay
from halofeed.inspection.planes import Plane, cut_planes, find_worst_planes
from halofeed.inspection.record_words import KIND_WORDS
from halofeed.inspection.run_examples import (
    MIN_OVERLAP,
    MIN_SCORE,
    ExampleBoxes,
    RunExample,
    load_example,
    match_predictions,
)
from halofeed.inspection.run_facts import RunFacts
from halofeed.inspection.samples import image_thumbnail, thumbnail_side
from halofeed.inspection.stored_records import CANONICAL, DIRECTIONS, count_classes
from halofeed.inspection.words import percent
from halofeed.system.wording import plural

_MAX_PICTURES = 96
_LARGEST_SIDE, _SMALLEST_SIDE = 360, 130
_MAX_CHIPS, _MAX_CLASSES = 8, 5
_CONFIDENT = 0.5

ClassChip = tuple[str, int | None, str]
"""Name of a class, its color number (None for a plain remark), and a figure such as its Dice."""


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
        look_for: sentence that explains the pictures.
    """

    draw: Callable[[RunFacts, RunExample, int], DrawnExample]
    pictures: int = 2
    has_label_map: bool = False
    look_for: str = ""


def examples(facts: RunFacts) -> dict[str, Any]:
    """Show the examples of the last evaluation."""
    if not facts.examples or facts.examples_of is None:
        return {"shown": None}
    task = TASK_VIEWS.get(facts.task, _UNKNOWN)
    kind = KIND_WORDS[facts.kind]
    each = task.pictures * (len(DIRECTIONS) if kind.in_planes else 1)
    ordered = sorted(facts.examples, key=lambda entry: entry.reason != "worst")
    entries = ordered[: _MAX_PICTURES // each]
    side = thumbnail_side(each * len(entries), _LARGEST_SIDE, _SMALLEST_SIDE)
    shown, display_words = [], ""
    for entry in entries:
        example = load_example(entry)
        if kind.in_planes:
            display_words = _display_of(facts, example).words
        shown.append((entry, task.draw(facts, example, side)))
    return {
        "shown": shown,
        "task": task,
        "in_planes": kind.in_planes,
        "display_words": display_words,
        "left_out": len(facts.examples) - len(entries),
    }


def _detection(facts: RunFacts, example: RunExample, side: int) -> DrawnExample:
    truth, predicted = example.true_boxes(), example.predicted_boxes()
    matches = match_predictions(truth, predicted)
    picture = _flat_picture(facts, example, side)
    names = [
        f"{facts.label_name(label)} (crowd)" if crowd else facts.label_name(label)
        for label, crowd in zip(truth.classes.tolist(), truth.crowd, strict=True)
    ]
    scored = [
        f"{facts.label_name(label)} {score:.2f}"
        for label, score in zip(predicted.classes.tolist(), predicted.scores.tolist(), strict=True)
    ][: matches.shown]
    single = ~truth.crowd
    missed, extra = int((single & ~matches.found).sum()), int((~matches.right).sum())
    count = int(single.sum())
    remarks = [
        f"{count - missed} of {plural(count, 'box', 'boxes')} found" if count else "no boxes to find",
        *([plural(extra, "extra box", "extra boxes")] if extra else []),
        *([f"all scores are below {MIN_SCORE:g}"] if matches.weak else []),
    ]
    hidden = len(predicted.scores) - matches.shown
    left_out = f" ({hidden:,} with lower scores not shown)" if hidden else ""
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"

    def frame(
        boxes: ExampleBoxes, words: list[str], dashed: NDArray[np.bool_], alt: str, caption: str
    ) -> ExamplePicture:
        named = [
            (name, facts.rank(label)) for name, label in zip(words, boxes.classes.tolist(), strict=False)
        ]
        placed = lay_out_boxes(boxes.corners, named, picture["size"], dashed=dashed.tolist())
        return ExamplePicture(
            **picture, alt=f"Example {example.entry.id} with {alt}", caption=caption, boxes=placed
        )

    caption = f"truth, {plural(len(names), 'box', 'boxes')}"
    left = frame(truth, names, single & ~matches.found, f"its annotated boxes: {counted}", caption)
    alt = f"the predicted boxes: {', '.join(scored) or 'none'}"
    caption = f"predicted, {plural(matches.shown, 'box', 'boxes')}{left_out}"
    right = frame(predicted, scored, ~matches.right, alt, caption)
    return DrawnExample(rows=[("", (left, right))], remarks=remarks)


def _classification(facts: RunFacts, example: RunExample, side: int) -> DrawnExample:
    true, predicted = example.scalar("truth_label"), example.scalar("predicted_label")
    remarks = ["right" if true == predicted else "wrong"]
    guesses = []
    if "predicted_probabilities" in example.arrays:
        shares = np.nan_to_num(example.array("predicted_probabilities", (None,)).astype(np.float64))
        order = np.argsort(-shares, kind="stable")[:_MAX_CLASSES].tolist()
        if 0 <= true < len(shares) and true not in order:
            order = [*order[: _MAX_CLASSES - 1], true]
        guesses = [(facts.label_name(at), float(shares[at]), at == true) for at in order]
        if true != predicted and 0 <= predicted < len(shares) and shares[predicted] > _CONFIDENT:
            remarks.append("confident")
    verdicts = [
        (words, facts.label_name(label), facts.rank(label))
        for words, label in (("it is ", true), ("predicted ", predicted))
    ]
    if KIND_WORDS[facts.kind].in_planes:
        frames, kind = [first for _, (first, *_) in _plane_rows(facts, example, None, None, side)], "beside"
    else:
        alt = f"it is {facts.label_name(true)}, predicted as {facts.label_name(predicted)}"
        alt, caption = f"Example {example.entry.id}: {alt}", KIND_WORDS[facts.kind].caption
        frames, kind = (
            [ExamplePicture(**_flat_picture(facts, example, side), alt=alt, caption=caption)],
            "pair guess",
        )
    return DrawnExample(rows=[("", frames)], kind=kind, remarks=remarks, guesses=guesses, verdicts=verdicts)


def _segmentation(facts: RunFacts, example: RunExample, side: int) -> DrawnExample:
    predicted = example.label("predicted")
    labelled = bool(np.all(example.arrays.get("truth_labelled", True)))
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
        alt = f"Example {example.entry.id}, {name}"
        frames.append(ExamplePicture(**picture, alt=alt, caption=caption, mask=mask))
    return DrawnExample(rows=[("", frames)], chips=chips, remarks=remarks)


def _dice_chips(
    facts: RunFacts, truth: NDArray[Any] | None, predicted: NDArray[Any]
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
    facts: RunFacts,
    example: RunExample,
    truth: NDArray[Any] | None,
    predicted: NDArray[Any] | None,
    side: int,
) -> list[tuple[str, list[ExamplePicture]]]:
    """Draw three planes, each with the truth and, if there is one, with the prediction."""
    shape = example.image.shape[:3]
    shown = [(truth, "image" if truth is None else "truth")]
    shown += [(predicted, "predicted")] if predicted is not None else []
    planes = cut_planes(
        example.image,
        [None if label is None else label.__getitem__ for label, _ in shown],
        find_worst_planes(shape, truth, predicted),
        tuple(slice(0, length) for length in shape),
        example.spacing_mm or (1.0, 1.0, 1.0),
        [DIRECTIONS[row] for row in CANONICAL] if example.spacing_mm else (),
        _display_of(facts, example),
        facts.ranks,
        side,
    )
    rows = []
    for plane in planes:
        alt = f"{plane.caption} of example {example.entry.id}"
        of_plane: dict[str, Any] = {"uri": plane.uri, "size": plane.size_mm, "plane": plane}
        frames = [
            ExamplePicture(**of_plane, alt=f"{alt}, {words}", caption=words, mask=mask)
            for (_, words), mask in zip(shown, plane.masks, strict=True)
        ]
        rows.append((plane.caption, frames))
    return rows


def _image_alone(facts: RunFacts, example: RunExample, side: int) -> DrawnExample:
    frame = ExamplePicture(
        **_flat_picture(facts, example, side), alt=f"Example {example.entry.id}", caption="image"
    )
    return DrawnExample(rows=[("", [frame])], kind="pair alone")


TASK_VIEWS = {
    "detection": TaskView(
        draw=_detection,
        look_for="Left: annotated boxes. Right: predicted boxes with their scores. A class has the same color in both. "
        "Dashed boxes on the left were missed. Dashed boxes on the right match no annotated box with an IoU of "
        f"{MIN_OVERLAP:.0%} or more. Look for what missed objects have in common, and for objects that the annotation "
        "missed.",
    ),
    "classification": TaskView(
        draw=_classification,
        pictures=1,
        look_for="The true class and the most probable classes. Look for mistakes with a high probability, and for "
        "examples with a wrong annotation.",
    ),
    "segmentation": TaskView(
        draw=_segmentation,
        has_label_map=True,
        look_for="Left: annotated classes. Right: predicted classes. Each class has its own color. Look for missing "
        "parts, islands, and outlines outside of the organ or object.",
    ),
}
_UNKNOWN = TaskView(draw=_image_alone)
"""View for unknown tasks: the image alone."""


def _display_of(facts: RunFacts, example: RunExample) -> Display:
    return display_of_run(facts.document.get("recipe") or {}, example.image)


def _flat_picture(facts: RunFacts, example: RunExample, side: int) -> dict[str, Any]:
    """Return the data: URI and the size of an image as one picture."""
    uri, size = image_thumbnail(KIND_WORDS[facts.kind].flat(example.image), side)
    return {"uri": uri, "size": size}
