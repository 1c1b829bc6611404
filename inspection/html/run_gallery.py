"""How do the examples of a run look: the truth on the left, what was predicted on the right, the worst first?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.facts.display import Display, display_of_run
from halofeed.inspection.facts.kinds import KINDS
from halofeed.inspection.facts.words import percent, plural
from halofeed.inspection.pictures.boxes import Placed, place_boxes
from halofeed.inspection.pictures.overlay import overlay
from halofeed.inspection.pictures.planes import Plane, cut_planes, telling_planes
from halofeed.inspection.pictures.samples import picture_of
from halofeed.inspection.run.boxes import LEAST_OVERLAP, LEAST_SCORE, meet
from halofeed.inspection.run.examples import Example, load_example
from halofeed.inspection.run.facts import RunFacts
from halofeed.inspection.stored.geometry import CANONICAL, DIRECTIONS
from halofeed.inspection.stored.labels import count_classes
from halofeed.loader.sheet import sheet_of_classes, sheet_of_frames

_MOST_PICTURES = 96
_LARGEST_SIDE, _SMALLEST_SIDE = 360, 130
_FULL_SIZE_PICTURES = 24
"""Up to so many pictures have the largest side, so that the file stays below 5 MB."""
_MOST_CHIPS, _MOST_CLASSES = 8, 5
_UNSURE = 0.5

Chip = tuple[str, int | None, str]
"""A class's name, the rank that gives its color (None: a plain remark), and what is said of it."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A picture with what lies over it: boxes, classes, the letters of a plane."""

    uri: str
    size: tuple[float, float]
    alt: str
    caption: str
    boxes: Sequence[Placed] = ()
    mask: str | None = None
    plane: Plane | None = None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An example as it is shown.

    Args:
        rows: of pictures, each with its heading, "" for none.
        kind: how the pictures of a row stand.
        guesses: classification's most probable classes: name, share, whether it is the true one.
        verdicts: classification's true and predicted class.
    """

    rows: Sequence[tuple[str, Sequence[Frame]]]
    kind: str = "pair both"
    chips: Sequence[Chip] = ()
    remarks: Sequence[str] = ()
    guesses: Sequence[tuple[str, float, bool]] = ()
    verdicts: Sequence[tuple[str, str, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """How the examples of a task are shown, how many pictures each image has, and what to look for."""

    draw: Callable[[RunFacts, Example, int], Drawn]
    pictures: int = 2
    has_label_map: bool = False
    look_for: str = ""


@dataclass(frozen=True, kw_only=True)
class View:
    """How images of one kind are shown: as planes along each axis, or as one picture that is made of them."""

    in_planes: bool = False
    picture: Callable[[NDArray[Any]], NDArray[Any]] = lambda image: image
    classes: Callable[[NDArray[Any]], NDArray[Any]] = lambda label: label
    caption: str = "image"


VIEWS = {
    "picture": View(),
    "volume": View(in_planes=True, picture=lambda image: image[len(image) // 2]),
    "clip": View(picture=sheet_of_frames, classes=sheet_of_classes, caption="frames"),
}


def examples(facts: RunFacts) -> dict[str, Any]:
    """The pictures of the examples that the last evaluation kept."""
    if not facts.examples or facts.examples_of is None:
        return {"shown": None}
    task = TASKS.get(facts.task, _UNKNOWN)
    view = VIEWS[facts.kind]
    each = task.pictures * (len(DIRECTIONS) if view.in_planes else 1)
    ordered = sorted(facts.examples, key=lambda entry: entry.reason != "worst")
    entries = ordered[: _MOST_PICTURES // each]
    side = round(_LARGEST_SIDE * math.sqrt(min(1.0, _FULL_SIZE_PICTURES / (each * len(entries)))))
    shown, display_words = [], ""
    for entry in entries:
        example = load_example(entry)
        if view.in_planes:
            display_words = _display(facts, example).words
        shown.append((entry, task.draw(facts, example, max(_SMALLEST_SIDE, side))))
    return {
        "shown": shown,
        "task": task,
        "view": view,
        "display_words": display_words,
        "left_out": len(facts.examples) - len(entries),
    }


def _detection(facts: RunFacts, example: Example, side: int) -> Drawn:
    truth, predicted = example.true_boxes(), example.predicted_boxes()
    meeting = meet(truth, predicted)
    uri, size = picture_of(_flat_image(facts, example), side)
    names = [
        f"{facts.label_name(label)} (crowd)" if crowd else facts.label_name(label)
        for label, crowd in zip(truth.classes.tolist(), truth.crowd, strict=True)
    ]
    kept = predicted.classes[: meeting.shown].tolist()
    scored = [
        f"{facts.label_name(label)} {score:.2f}"
        for label, score in zip(kept, predicted.scores[: meeting.shown].tolist(), strict=True)
    ]
    alone = ~truth.crowd
    missed, extra = int((alone & ~meeting.found).sum()), int((~meeting.right).sum())
    count = int(alone.sum())
    remarks = [
        f"{count - missed} of {plural(count, 'box', 'boxes')} found" if count else "no boxes to find",
        *([plural(extra, "extra box", "extra boxes")] if extra else []),
        *([f"none reaches a score of {LEAST_SCORE:g}"] if meeting.weak else []),
    ]
    weaker = len(predicted.scores) - meeting.shown
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"

    def frame(
        alt: str,
        caption: str,
        corners: NDArray[Any],
        labels: list[int],
        words: list[str],
        dashed: NDArray[np.bool_],
    ) -> Frame:
        named = [(name, facts.ranks.get(label, 0)) for name, label in zip(words, labels, strict=True)]
        boxes = place_boxes(corners, named, size, dashed=dashed.tolist())
        alt = f"Example {example.entry.id} with {alt}"
        return Frame(uri=uri, size=size, alt=alt, caption=caption, boxes=boxes)

    left = frame(
        f"its annotated boxes: {counted}",
        f"truth, {plural(len(names), 'box', 'boxes')}",
        truth.corners,
        truth.classes.tolist(),
        names,
        alone & ~meeting.found,
    )
    right = frame(
        f"the predicted boxes: {', '.join(scored) or 'none'}",
        f"predicted, {plural(meeting.shown, 'box', 'boxes')}"
        + (f" ({weaker:,} weaker left out)" if weaker else ""),
        predicted.corners[: meeting.shown],
        kept,
        scored,
        ~meeting.right,
    )
    return Drawn(rows=[("", (left, right))], remarks=remarks)


def _classification(facts: RunFacts, example: Example, side: int) -> Drawn:
    true, predicted = example.scalar("truth_label"), example.scalar("predicted_label")
    true_name, predicted_name = facts.label_name(true), facts.label_name(predicted)
    remarks = ["right" if true == predicted else "wrong"]
    guesses = []
    if "predicted_probabilities" in example.arrays:
        shares = np.nan_to_num(example.array("predicted_probabilities", (None,)).astype(np.float64))
        order = np.argsort(-shares, kind="stable")[:_MOST_CLASSES].tolist()
        if 0 <= true < len(shares) and true not in order:
            order = [*order[: _MOST_CLASSES - 1], true]
        guesses = [(facts.label_name(at), float(shares[at]), at == true) for at in order]
        if true != predicted and 0 <= predicted < len(shares) and shares[predicted] > _UNSURE:
            remarks.append("sure of it")
    verdicts = [
        ("it is ", true_name, facts.ranks.get(true, 0)),
        ("predicted ", predicted_name, facts.ranks.get(predicted, 0)),
    ]
    if VIEWS[facts.kind].in_planes:
        frames, kind = [first for _, (first, *_) in _plane_rows(facts, example, None, None, side)], "beside"
    else:
        uri, size = picture_of(_flat_image(facts, example), side)
        alt = f"Example {example.entry.id}: it is {true_name}, predicted as {predicted_name}"
        frames, kind = [Frame(uri=uri, size=size, alt=alt, caption=VIEWS[facts.kind].caption)], "pair guess"
    return Drawn(rows=[("", frames)], kind=kind, remarks=remarks, guesses=guesses, verdicts=verdicts)


def _segmentation(facts: RunFacts, example: Example, side: int) -> Drawn:
    predicted = example.label("predicted")
    labelled = bool(np.all(example.arrays.get("truth_labelled", True)))
    truth = example.label("truth") if labelled else None
    chips, remarks = _dice_chips(facts, truth, predicted)
    if VIEWS[facts.kind].in_planes:
        return Drawn(rows=_plane_rows(facts, example, truth, predicted, side), chips=chips, remarks=remarks)
    uri, size = picture_of(_flat_image(facts, example), side)
    small = (max(1, round(size[0] * side / max(size))), max(1, round(size[1] * side / max(size))))
    frames = [
        Frame(
            uri=uri,
            size=size,
            alt=f"Example {example.entry.id}, {name}",
            caption=caption,
            mask=None if label is None else overlay(VIEWS[facts.kind].classes(label), facts.ranks, small),
        )
        for name, caption, label in (
            ("truth", "image: it has no annotation" if truth is None else "truth", truth),
            ("predicted", "predicted", predicted),
        )
    ]
    return Drawn(rows=[("", frames)], chips=chips, remarks=remarks)


def _dice_chips(
    facts: RunFacts, truth: NDArray[Any] | None, predicted: NDArray[Any]
) -> tuple[list[Chip], list[str]]:
    """Each class that is there or predicted, with its Dice in this example, the worst first."""
    counts = count_classes(predicted)
    if truth is None:
        found = [(facts.label_name(label), facts.ranks.get(label, 0), "") for label in counts if label]
        return [*found[:_MOST_CHIPS]], ["no annotation"]
    both = count_classes(truth)
    shared = count_classes(np.where(truth == predicted, truth, 0))
    dice = {
        label: 2 * shared.get(label, 0) / (both.get(label, 0) + counts.get(label, 0))
        for label in sorted(both.keys() | counts.keys())
        if label
    }
    order = sorted(dice, key=lambda label: (dice[label], label))
    chips: list[Chip] = [
        (facts.label_name(label), facts.ranks.get(label, 0), f"Dice {dice[label]:.2f}")
        for label in order[:_MOST_CHIPS]
    ]
    if len(order) > _MOST_CHIPS:
        chips.append((f"and {len(order) - _MOST_CHIPS} more", None, ""))
    if not order:
        chips.append(("nothing but background", None, ""))
    wrong = float((truth != predicted).mean())
    return chips, [f"{percent(wrong)} of the {KINDS[facts.kind].unit} are wrong"]


def _plane_rows(
    facts: RunFacts, example: Example, truth: NDArray[Any] | None, predicted: NDArray[Any] | None, side: int
) -> list[tuple[str, list[Frame]]]:
    """Three planes: the picture with the truth, and where there is a prediction that with it."""
    shape = example.image.shape[:3]
    shown = [(truth, "image" if truth is None else "truth")]
    shown += [(predicted, "predicted")] if predicted is not None else []
    planes = cut_planes(
        example.image,
        [None if label is None else label.__getitem__ for label, _ in shown],
        telling_planes(shape, truth, predicted),
        tuple(slice(0, length) for length in shape),
        example.spacing_mm or (1.0, 1.0, 1.0),
        [DIRECTIONS[row] for row in CANONICAL] if example.spacing_mm else (),
        _display(facts, example),
        facts.ranks,
        side,
    )
    rows = []
    for plane in planes:
        alt = f"{plane.caption} of example {example.entry.id}"
        frames = [
            Frame(
                uri=plane.uri,
                size=plane.size_mm,
                alt=f"{alt}, {words}",
                caption=words,
                mask=mask,
                plane=plane,
            )
            for (_, words), mask in zip(shown, plane.masks, strict=True)
        ]
        rows.append((plane.caption, frames))
    return rows


def _image_alone(facts: RunFacts, example: Example, side: int) -> Drawn:
    uri, size = picture_of(_flat_image(facts, example), side)
    frame = Frame(uri=uri, size=size, alt=f"Example {example.entry.id}", caption="image")
    return Drawn(rows=[("", [frame])], kind="pair alone")


TASKS = {
    "detection": Task(
        draw=_detection,
        look_for="Left the annotated boxes, right the predicted ones with their scores; a class has one color in both. "
        "Dashed on the left is what was missed, dashed on the right what is not there (or meets less than "
        f"{LEAST_OVERLAP:.0%} of it): look for what the missed ones have in common, and for dashed boxes that the "
        "annotation forgot.",
    ),
    "classification": Task(
        draw=_classification,
        pictures=1,
        look_for="The true class beside the most probable ones: look for mistakes that are sure of themselves, and for "
        "examples whose annotation is wrong.",
    ),
    "segmentation": Task(
        draw=_segmentation,
        has_label_map=True,
        look_for="Left the annotated classes, right the predicted ones, each filled and outlined in its color: look "
        "for parts that are missing, islands, and outlines that leave the organ or object.",
    ),
}
_UNKNOWN = Task(draw=_image_alone)
"""Of a task that this report has no drawing for: the image alone."""


def _display(facts: RunFacts, example: Example) -> Display:
    return display_of_run(facts.document.get("recipe") or {}, example.image)


def _flat_image(facts: RunFacts, example: Example) -> NDArray[Any]:
    """The image as one picture."""
    return VIEWS[facts.kind].picture(example.image)
