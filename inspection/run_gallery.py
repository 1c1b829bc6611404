"""How do the examples of a run look: the truth on the left, what was predicted on the right, the worst first?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.gallery import mask_switch
from halofeed.inspection.layout import section
from halofeed.inspection.lines import percent, plural
from halofeed.inspection.markup import Markup, element
from halofeed.inspection.overlay import overlay
from halofeed.inspection.run_boxes import LEAST_OVERLAP, LEAST_SCORE, draw_boxes, meet
from halofeed.inspection.run_examples import Boxes, Example, load_example
from halofeed.inspection.run_facts import RunFacts
from halofeed.inspection.run_frames import chip, framed, picture_of
from halofeed.inspection.run_planes import display_of_run, planes_of
from halofeed.inspection.segmentation import count_classes

_MOST_PICTURES = 96
_LARGEST_SIDE, _SMALLEST_SIDE = 360, 130
_FULL_SIZE_PICTURES = 24
"""Up to so many pictures have the largest side, so that the file stays below 5 MB."""
_MOST_CHIPS, _MOST_CLASSES = 8, 5
_UNSURE = 0.5

_LOOK_FOR = {
    "detection": "Left the annotated boxes, right the predicted ones with their scores; a class has one color in "
    f"both. Dashed on the left is what was missed, dashed on the right what is not there (or meets "
    f"less than {LEAST_OVERLAP:.0%} of it): look for what the missed ones have in common, and "
    "for dashed boxes that the annotation forgot.",
    "classification": "The true class beside the most probable ones: look for mistakes that are sure of themselves, "
    "and for examples whose annotation is wrong.",
    "segmentation": "Left the annotated classes, right the predicted ones, each filled and outlined in its color: "
    "look for parts that are missing, islands, and outlines that leave the organ or object.",
}
_PLANES = (
    " Of a volume these are the planes with the most wrong voxels along each axis, one scale for all, seen as "
    "radiologists do: the patient's right is on the left."
)


def examples(facts: RunFacts) -> Markup:
    """The pictures of the examples that the last evaluation kept."""
    title = "Predictions beside the truth"
    if not facts.examples or facts.examples_of is None:
        words = "No examples are kept yet; an evaluation writes them."
        return section("examples", title, element("p", "notice", words))
    draw = _DRAWN.get(facts.task, _unknown)
    is_volume = len(facts.image_shape) == 4
    each = (3 if is_volume else 1) * (1 if facts.task == "classification" else 2)
    ordered = sorted(facts.examples, key=lambda entry: entry.reason != "worst")
    shown = ordered[: _MOST_PICTURES // each]
    side = round(_LARGEST_SIDE * math.sqrt(min(1.0, _FULL_SIZE_PICTURES / (each * len(shown)))))
    side = max(_SMALLEST_SIDE, side)
    cards, display_words = [], ""
    for entry in shown:
        example = load_example(entry)
        if example.is_volume:
            display_words = display_of_run(facts.document.get("recipe") or {}, example.image).words
        cards.append(_article(example, *draw(facts, example, side)))
    step, split = facts.examples_of
    lead = _LOOK_FOR.get(facts.task, "") + (_PLANES if is_volume else "")
    left_out = len(facts.examples) - len(shown)
    of = f"From split {split!r} at step {step:,}: the worst first, then some that are spread over the split."
    if left_out:
        of += f" {left_out:,} more {'is' if left_out == 1 else 'are'} in the run's folder."
    return section(
        "examples",
        title,
        element("p", "lead", of),
        mask_switch() if facts.task == "segmentation" else None,
        element("p", "notice", display_words) if display_words else None,
        element("div", "gallery" + (" scans" if is_volume else ""), cards),
        lead=lead,
    )


def _article(example: Example, pictures: Any, chips: Sequence[Markup], remarks: Sequence[str]) -> Markup:
    entry = example.entry
    score = None if entry.score is None else element("span", "remark", f"score {entry.score:.3f}")
    return element(
        "article",
        "sample",
        pictures,
        element("p", "chips", chips) if chips else None,
        element(
            "p",
            "where",
            element("span", "reason", entry.reason) if entry.reason else None,
            score,
            [element("span", "remark", words) for words in remarks],
            element("code", {"title": "the record's id"}, str(entry.id)) if entry.id >= 0 else None,
        ),
    )


Drawn = tuple[Any, list[Markup], list[str]]
"""The pictures, the classes under them, and remarks."""


def _pair(left: Markup, right: Markup) -> Markup:
    return element("div", "pair both", left, right)


def _detection(facts: RunFacts, example: Example, side: int) -> Drawn:
    truth, predicted = example.true_boxes(), example.predicted_boxes()
    meeting = meet(truth, predicted)
    uri, size = picture_of(_flat_image(example), side)
    kept = Boxes(
        corners=predicted.corners[: meeting.shown],
        classes=predicted.classes[: meeting.shown],
        scores=predicted.scores[: meeting.shown],
        crowd=predicted.crowd[: meeting.shown],
    )
    names = [facts.label_name(label) for label in truth.classes.tolist()]
    names = [f"{name} (crowd)" if crowd else name for name, crowd in zip(names, truth.crowd, strict=True)]
    scored = [
        f"{facts.label_name(label)} {score:.2f}"
        for label, score in zip(kept.classes.tolist(), kept.scores.tolist(), strict=True)
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
    caption = f"predicted, {plural(meeting.shown, 'box', 'boxes')}"
    caption += f" ({weaker:,} weaker left out)" if weaker else ""
    left = framed(
        uri,
        size,
        f"Example {example.entry.id} with its annotated boxes: {_counted(names)}",
        f"truth, {plural(len(names), 'box', 'boxes')}",
        draw_boxes(truth, names, (alone & ~meeting.found).tolist(), facts.ranks, size),
    )
    right = framed(
        uri,
        size,
        f"Example {example.entry.id} with the predicted boxes: {', '.join(scored) or 'none'}",
        caption,
        draw_boxes(kept, scored, (~meeting.right).tolist(), facts.ranks, size),
    )
    return _pair(left, right), [], remarks


def _classification(facts: RunFacts, example: Example, side: int) -> Drawn:
    true, predicted = example.scalar("truth_label"), example.scalar("predicted_label")
    true_name, predicted_name = facts.label_name(true), facts.label_name(predicted)
    words = f"Example {example.entry.id}: it is {true_name}, predicted as {predicted_name}"
    bars: Markup | None = None
    remarks = ["right" if true == predicted else "wrong"]
    if "predicted_probabilities" in example.arrays:
        shares = np.nan_to_num(example.array("predicted_probabilities", (None,)).astype(np.float64))
        order = np.argsort(-shares, kind="stable")[:_MOST_CLASSES].tolist()
        if 0 <= true < len(shares) and true not in order:
            order = [*order[: _MOST_CLASSES - 1], true]
        bars = element("div", "guesses", [_guess(facts, at, float(shares[at]), true) for at in order])
        if true != predicted and 0 <= predicted < len(shares) and shares[predicted] > _UNSURE:
            remarks.append("sure of it")
    chips = [
        element("span", "is", "it is ", chip(true_name, facts.ranks.get(true, 0))),
        element("span", "is", "predicted ", chip(predicted_name, facts.ranks.get(predicted, 0))),
    ]
    if example.is_volume:
        planes = planes_of(example, None, None, _display(facts, example), facts.ranks, side)
        grid = element("div", "beside", [first for _, first, _ in planes])
        return element("div", None, grid, bars), chips, remarks
    uri, size = picture_of(example.image, side)
    return element("div", "pair guess", framed(uri, size, words, "image"), bars), chips, remarks


def _guess(facts: RunFacts, label: int, share: float, true: int) -> Markup:
    width = f"width:{100 * min(1.0, max(0.0, share)):.1f}%"
    kind = "good" if label == true else "bad"
    mark = " (true)" if label == true else ""
    return element(
        "div",
        "guess-row",
        element("span", "name", facts.label_name(label) + mark),
        element("b", None, percent(share)),
        element("span", "meter", element("i", {"class": kind, "style": width})),
    )


def _segmentation(facts: RunFacts, example: Example, side: int) -> Drawn:
    predicted = example.label("predicted")
    labelled = bool(np.all(example.arrays.get("truth_labelled", True)))
    truth = example.label("truth") if labelled else None
    chips, remarks = _dice_chips(facts, truth, predicted)
    if example.is_volume:
        planes = planes_of(example, truth, predicted, _display(facts, example), facts.ranks, side)
        rows = [
            element("div", "plane-row", element("h4", None, caption), _pair(first, second or Markup("")))
            for caption, first, second in planes
        ]
        return rows, chips, remarks
    uri, size = picture_of(example.image, side)
    small = (max(1, round(size[0] * side / max(size))), max(1, round(size[1] * side / max(size))))
    words = f"Example {example.entry.id}"
    left = framed(
        uri,
        size,
        f"{words}, truth",
        "truth" if truth is not None else "image: it has no annotation",
        mask=None if truth is None else overlay(truth, facts.ranks, small),
    )
    mask = overlay(predicted, facts.ranks, small)
    return _pair(left, framed(uri, size, f"{words}, predicted", "predicted", mask=mask)), chips, remarks


def _dice_chips(
    facts: RunFacts, truth: NDArray[Any] | None, predicted: NDArray[Any]
) -> tuple[list[Markup], list[str]]:
    """Each class that is there or predicted, with its Dice in this example, the worst first."""
    counts = count_classes(predicted)
    if truth is None:
        found = [chip(facts.label_name(label), facts.ranks.get(label, 0)) for label in counts if label]
        return found[:_MOST_CHIPS], ["no annotation"]
    both = count_classes(truth)
    shared = count_classes(np.where(truth == predicted, truth, 0))
    dice = {
        label: 2 * shared.get(label, 0) / (both.get(label, 0) + counts.get(label, 0))
        for label in sorted(both.keys() | counts.keys())
        if label
    }
    order = sorted(dice, key=lambda label: (dice[label], label))
    chips = [
        chip(facts.label_name(label), facts.ranks.get(label, 0), f"Dice {dice[label]:.2f}")
        for label in order[:_MOST_CHIPS]
    ]
    if len(order) > _MOST_CHIPS:
        chips.append(chip(f"and {len(order) - _MOST_CHIPS} more", None))
    if not order:
        chips.append(chip("nothing but background", None))
    wrong = float((truth != predicted).mean())
    return chips, [f"{percent(wrong)} of the {'voxels' if truth.ndim == 3 else 'pixels'} are wrong"]


def _unknown(facts: RunFacts, example: Example, side: int) -> Drawn:
    """A task that this report has no drawing for: the image alone."""
    uri, size = picture_of(_flat_image(example), side)
    return element("div", "pair alone", framed(uri, size, f"Example {example.entry.id}", "image")), [], []


_DRAWN: dict[str, Callable[[RunFacts, Example, int], Drawn]] = {
    "detection": _detection,
    "classification": _classification,
    "segmentation": _segmentation,
}
"""How a task's examples are drawn."""


def _display(facts: RunFacts, example: Example) -> Any:
    return display_of_run(facts.document.get("recipe") or {}, example.image)


def _flat_image(example: Example) -> NDArray[Any]:
    """The image, or the middle plane of a volume."""
    return example.image[example.image.shape[0] // 2] if example.is_volume else example.image


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"
