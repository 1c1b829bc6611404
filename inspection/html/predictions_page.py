"""HTML page of predictions, and a picture file of each drawn source, the worst first where labels exist.

OUT/predictions.html      one page that loads nothing
OUT/drawn/0001-NAME.jpg   the same pictures, larger; the number is the place on the page
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.inspection.example_picture import example_jpeg
from halofeed.inspection.html.page import write_page
from halofeed.inspection.html.run_gallery import (
    MIN_OVERLAP,
    MIN_SCORE,
    TASK_VIEWS,
    UNKNOWN_VIEW,
    DrawnExample,
    RunExample,
    match_predictions,
)
from halofeed.inspection.predicted_sources import (
    PredictedSource,
    PredictedSplit,
    PredictionFacts,
    read_prediction_facts,
)
from halofeed.inspection.record_words import KIND_WORDS
from halofeed.inspection.run_facts import ExampleEntry
from halofeed.inspection.stored_records import DIRECTIONS, count_classes
from halofeed.inspection.thumbnails import thumbnail_side
from halofeed.prep.sources.file_names import safe_name
from halofeed.storage.atomic_files import atomic_write, temporary_folder
from halofeed.system.console import StatusLine
from halofeed.system.wording import plural

PAGE, DRAWN = "predictions.html", "drawn"
_LARGEST_SIDE, _SMALLEST_SIDE = 640, 220
_FILE_SIDE, _PLANE_SIDE = 1280, 640
"""Longer side of a picture in a file, and of a plane of a scan, of which a file has six."""


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """Score of one source.

    Args:
        score: 1 for a perfect prediction, 0 for the worst; None without a label.
        count: number of mistakes, which orders equal scores.
    """

    score: float | None
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measure that orders sources.

    Args:
        name: short name.
        words: sentence that defines it.
        of: function that returns the score of a source.
    """

    name: str
    words: str
    of: Callable[[RunExample], Mistakes]


def box_mistakes(example: RunExample) -> Mistakes:
    """Return F1 of the drawn boxes; crowds, and boxes inside of them, do not count. It is 1 without any box."""
    truth, predicted = example.true_boxes(), example.predicted_boxes()
    matches = match_predictions(truth, predicted, example.min_score)
    single = ~truth.crowd
    found = int((matches.found & single).sum())
    missed = int(single.sum()) - found
    # Boxes of too low scores are drawn where there are no others, and do not count.
    extra = 0 if matches.weak else int((~matches.right).sum())
    counted = 2 * found + missed + extra
    return Mistakes(score=2 * found / counted if counted else 1.0, count=missed + extra)


def class_mistakes(example: RunExample) -> Mistakes:
    """Return the probability of the true class; with several classes, that of the least probable right answer."""
    if "truth_labels" in example.arrays:
        has = example.array("truth_labels", (None,)).astype(bool)
        right = np.abs(example.array("predicted_probabilities", (len(has),)) - ~has)
        differs = has != example.array("predicted_labels", (len(has),)).astype(bool)
        return Mistakes(score=float(right.min()), count=int(differs.sum()))
    true = example.scalar("truth_label")
    shares = example.array("predicted_probabilities", (None,))
    wrong = true != example.scalar("predicted_label")
    return Mistakes(score=float(shares[true]) if 0 <= true < len(shares) else 0.0, count=int(wrong))


def mask_mistakes(example: RunExample) -> Mistakes:
    """Return the mean Dice of the classes that are true or predicted; 1 where all is background."""
    if not bool(example.arrays.get("truth_labelled", True)):
        return Mistakes(score=None)
    truth, predicted = example.label("truth"), example.label("predicted")
    of_truth, of_predicted = count_classes(truth), count_classes(predicted)
    shared = count_classes(np.where(truth == predicted, truth, 0))
    dice = [
        2 * shared.get(label, 0) / (of_truth.get(label, 0) + of_predicted.get(label, 0))
        for label in (of_truth.keys() | of_predicted.keys()) - {0}
    ]
    return Mistakes(score=float(np.mean(dice)) if dice else 1.0, count=int((truth != predicted).sum()))


MEASURES: Mapping[str, Measure] = {
    "detection": Measure(
        name="F1",
        words="F1 of the drawn boxes: 2 × found / (2 × found + missed + extra). A box is found if a drawn box of its "
        f"class overlaps it with an IoU of {MIN_OVERLAP:.0%} or more",
        of=box_mistakes,
    ),
    "classification": Measure(
        name="p(true)",
        words="the predicted probability of the true class; where an image may have several, the lowest probability of "
        "a right answer, yes or no, over the classes",
        of=class_mistakes,
    ),
    "segmentation": Measure(
        name="mean Dice",
        words="the mean Dice of the classes that are annotated or predicted in it, on the drawn grid",
        of=mask_mistakes,
    ),
}
"""Measure by task; sources of other tasks are in the order of their names."""


def write_predictions_page(
    folder: str | os.PathLike[str],
    data: str | Path,
    split: str,
    *,
    count: int = 50,
    min_score: float = MIN_SCORE,
) -> Path:
    """Draw the predictions of a folder: a file for each source, and one self-contained page.

    Equal predictions give equal bytes.

    Args:
        folder: folder that `halofeed predict --out` made.
        data: version folder of the data set that was predicted.
        split: name of the split.
        count: most sources to draw: the worst ones, or without labels some spread evenly over their names.
        min_score: boxes with a lower score are not drawn, unless all are lower.

    Returns:
        the path of the page.

    Raises:
        UsageError: the folder holds no predictions, or the page cannot be written.
        CorruptFileError, SourceError: a record or a file of predictions cannot be read.
    """
    facts = read_prediction_facts(Path(folder))
    found = PredictedSplit(facts, data, split, min_score=min_score)
    measure = MEASURES.get(facts.task) if found.is_labelled else None
    view = TASK_VIEWS.get(facts.task, UNKNOWN_VIEW)
    kind = KIND_WORDS[facts.kind]
    chosen = _chosen(found, measure, count)
    each = view.pictures * (len(DIRECTIONS) if kind.in_planes else 1)
    side = thumbnail_side(each * len(chosen), _LARGEST_SIDE, _SMALLEST_SIDE)
    shown: list[tuple[ExampleEntry, DrawnExample, str]] = []
    display_words = ""
    with temporary_folder(facts.folder / DRAWN) as temporary, closing(StatusLine()) as line:
        for number, (source, mistakes) in enumerate(chosen, 1):
            line.update(f"{number:,} of {plural(len(chosen), kind.noun[0])} drawn".format)
            example = found.example(source)
            entry = replace(example.entry, score=mistakes.score)
            name = f"{number:04d}-{safe_name(source.source)}.jpg"
            large = view.draw(facts, example, _PLANE_SIDE if kind.in_planes else _FILE_SIDE)
            lines = [entry.name]
            if measure is not None and entry.score is not None:
                lines.append(f"{measure.name} {entry.score:.3f}")
            atomic_write(temporary / name, example_jpeg(large, lines))
            shown.append((entry, view.draw(facts, example, side), f"{DRAWN}/{name}"))
            display_words = example.display.words if kind.in_planes else ""
    return write_page(
        facts.folder / PAGE,
        "predictions.html",
        "report.css",
        "run_report.css",
        facts=facts,
        shown=shown,
        measure=measure,
        min_score=min_score,
        in_planes=kind.in_planes,
        display_words=display_words,
        total=len(found.sources),
        **_origin(facts),
    )


def _chosen(
    found: PredictedSplit, measure: Measure | None, count: int
) -> list[tuple[PredictedSource, Mistakes]]:
    """Return the sources to draw: the worst first, those without a label last; without a measure spread evenly."""
    sources = found.sources
    if measure is None:
        places = np.unique(np.linspace(0, len(sources) - 1, min(count, len(sources))).astype(int))
        return [(sources[place], Mistakes(score=None)) for place in places.tolist()]
    scored = []
    with closing(StatusLine()) as line:
        for number, source in enumerate(sources, 1):
            line.update(f"{number:,} of {len(sources):,} compared with their labels".format)
            scored.append((source, measure.of(found.example(source, with_pixels=False))))
    # The sort keeps the order of names where score and mistakes are equal.
    scored.sort(key=lambda one: (one[1].score is None, one[1].score or 0.0, -one[1].count))
    return scored[:count]


def _origin(facts: PredictionFacts) -> dict[str, Any]:
    """Return the words for the model and for what was predicted."""
    document = facts.document
    data = f"{document.get('data_name', '')} {document.get('data_version', '')}".strip()
    return {
        "run": str(document.get("run", "")),
        "step": document.get("checkpoint"),
        "data": str(document.get("source") or data or document.get("data", "")),
        "split": document.get("split"),
        "tiles_dropped": int(document.get("tiles_dropped", 0)),
        "left_out": int(document.get("boxes_left_out", 0)),
        "highest": document.get("highest_score_left_out"),
        "written_score": document.get("min_score"),
    }
