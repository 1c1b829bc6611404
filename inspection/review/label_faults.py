"""Likely label faults of a data set, by the predictions of trained runs: one line per task in `TASK_FAULTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.evidence import CLEAR, LISTED
from halofeed.inspection.review.faulty_boxes import LEAST_SCORE, BoxFault, BoxRecord, FaultyBox, box_faults
from halofeed.inspection.review.faulty_classes import ClassFault, FaultyClass, class_faults
from halofeed.inspection.review.faulty_masks import FaultyObject, MaskFault, MaskFaults
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import Suspect
from halofeed.loader.batch import join_id
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import IGNORED_BOXES
from halofeed.system.errors import UsageError

Host = Mapping[str, NDArray[Any]]
PredictedBatches = Iterable[tuple[Host, Host]]
"""Predictions and ground truth of each batch, as `halofeed.trainer.predict.predict_batches` takes them; of the truth
also the labels, and where they are: `extent` of volumes and clips, `size` of pictures."""
PREDICTED_KINDS: Final = (ClassFault, BoxFault, MaskFault)
"""Kinds of suspects that are found by the predictions of a run."""
_SEED: Final = 0
_WEAK_SHARE: Final = 0.1
"""Share of the labels up to which a list goes on with weak evidence. Ten public test sets have 0.15 to 10 % faulty
labels (Northcutt et al. 2021, Pervasive Label Errors)."""


def label_faults(
    reviewed: ReviewedSet, batches: PredictedBatches, *, least_score: float | None = None
) -> list[Suspect]:
    """Return the likely label faults of the records that were predicted, of all kinds, best first.

    Scores are from 0 to 1 and comparable between kinds (`halofeed.inspection.review.evidence`).

    A list of few suspects goes on below `LISTED`, as far as a tenth of the labels and an evidence of `CLEAR`, because
    a run that learned little has little evidence even of real faults. Their words say that the evidence is weak.

    Args:
        reviewed: the data set.
        batches: predictions of its records by a run that was not trained on them, on the grid of the stored pictures;
            masks with `probabilities`.
        least_score: smallest score of a suspect; None for the rule above.

    Raises:
        UsageError: no search is for the task of the data set.
    """
    task = reviewed.manifest.task
    if task not in TASK_FAULTS:
        raise UsageError(f"{reviewed.files}: no label fault is known for the task {task!r}")
    rows = iterate_rows(reviewed, batches)
    labels, found = TASK_FAULTS[task](reviewed, rows, np.random.default_rng(_SEED))
    if least_score is not None:
        return [suspect for suspect in found if suspect.score >= least_score]
    return list(_listed(found, round(_WEAK_SHARE * labels)))


def _listed(found: Iterable[Suspect], most_weak: int) -> Iterator[Suspect]:
    """Yield suspects with evidence, best first, and weak ones while the list is shorter than `most_weak`."""
    for place, suspect in enumerate(found):
        if suspect.score >= LISTED:
            yield suspect
        elif suspect.score >= CLEAR and place < most_weak:
            yield replace(suspect, words=f"{suspect.words} (weak)")
        else:
            return


def iterate_rows(reviewed: ReviewedSet, batches: PredictedBatches) -> Iterator[tuple[int, Host, Host]]:
    """Yield the number of each predicted record, its predictions and its truth, without the batch axis."""
    order = np.argsort(reviewed.ids, kind="stable")
    for predictions, truth in batches:
        for row, one in enumerate(join_id(truth["id"]).tolist()):
            if not is_counted(truth, row):
                continue
            number = int(order[np.searchsorted(reviewed.ids, one, sorter=order)])
            predicted, true = (
                {name: values[row] for name, values in of.items()} for of in (predictions, truth)
            )
            yield number, predicted, true


def is_counted(truth: Host, row: int) -> bool:
    """Return whether a row of a batch is a record, and not one that fills the last batch."""
    return "valid" not in truth or bool(truth["valid"][row])


PredictedRows = Iterable[tuple[int, Host, Host]]
Faults = tuple[int, Iterator[Suspect]]
"""Number of labels that were searched, and their likely faults, best first."""
FindFaults = Callable[[ReviewedSet, PredictedRows, np.random.Generator], Faults]
"""Function that searches predicted rows of a data set."""


def _name(manifest: Manifest, label: int | None) -> str:
    return "background" if label is None else manifest.labels.get(label, f"class {label}")


# Classes -------------------------------------------------------------------------------------------------


def _wrong_classes(reviewed: ReviewedSet, rows: PredictedRows, random: np.random.Generator) -> Faults:
    numbers, labels, probabilities = [], [], []
    for number, predicted, truth in rows:
        numbers.append(number)
        labels.append(int(truth["label"]))
        probabilities.append(predicted["probabilities"].astype(np.float64))
    if not numbers:
        return 0, iter(())
    found = class_faults(np.array(labels, np.int64), np.stack(probabilities), random)
    suspects = (
        Suspect(
            kind=ClassFault.WRONG_CLASS,
            places=(reviewed.place(numbers[fault.row]),),
            score=fault.score,
            words=_class_words(reviewed.manifest, fault),
        )
        for fault in found
    )
    return len(labels), suspects


def _class_words(manifest: Manifest, fault: FaultyClass) -> str:
    seen, label = (_name(manifest, one) for one in (fault.seen, fault.label))
    return (
        f"labeled {label} (probability {fault.label_share:.2f}), seen as {seen} ({fault.seen_share:.2f}), "
        f"evidence {fault.score:.2f}"
    )


# Boxes ---------------------------------------------------------------------------------------------------


def _faulty_boxes(reviewed: ReviewedSet, rows: PredictedRows, random: np.random.Generator) -> Faults:
    records = [_box_record(number, predicted, truth) for number, predicted, truth in rows]
    suspects = (
        Suspect(
            kind=fault.kind,
            places=(reviewed.place(fault.record),),
            score=fault.score,
            words=_box_words(reviewed.manifest, fault),
            box=fault.box,
        )
        for fault in box_faults(records, random)
    )
    return sum(len(record.boxes) for record in records), suspects


def _box_record(number: int, predicted: Host, truth: Host) -> BoxRecord:
    count, found = int(truth["num_boxes"]), int(predicted["num_detections"])
    boxes = truth["boxes"][:count].astype(np.float64)
    crowd = truth["is_crowd"][:count].astype(bool)
    kept = predicted["scores"][:found] >= LEAST_SCORE
    ignored = truth.get(IGNORED_BOXES, np.zeros((0, 4))).astype(np.float64)
    return BoxRecord(
        number=number,
        boxes=boxes[~crowd],
        classes=truth["classes"][:count][~crowd].astype(np.int64),
        predicted=predicted["boxes"][:found][kept].astype(np.float64),
        predicted_classes=predicted["classes"][:found][kept].astype(np.int64),
        scores=predicted["scores"][:found][kept].astype(np.float64),
        unlabeled=np.concatenate([boxes[crowd], ignored]),
    )


def _box_words(manifest: Manifest, fault: FaultyBox) -> str:
    label, seen = _name(manifest, fault.label), _name(manifest, fault.seen)
    score = f"score {fault.seen_score:.2f}"
    words = {
        BoxFault.WRONG_CLASS: f"labeled {label}, seen as {seen} with {score}",
        BoxFault.MISSING: f"no box, seen as {seen} with {score}",
        BoxFault.EXTRA: f"labeled {label}, best prediction there {seen} with {score}"
        if fault.seen is not None
        else f"labeled {label}, no prediction there",
        BoxFault.MISPLACED: f"labeled {label}, seen beside the box with {score}",
    }
    return f"{words[fault.kind]}, evidence {fault.score:.2f}"


# Masks ---------------------------------------------------------------------------------------------------


def _faulty_masks(reviewed: ReviewedSet, rows: PredictedRows, random: np.random.Generator) -> Faults:
    shape = reviewed.manifest.field("label").shape
    ignored = reviewed.manifest.ignore_label
    collected: MaskFaults | None = None
    lows: dict[int, tuple[int, ...]] = {}
    for number, predicted, truth in rows:
        # The zeros of a record without a label would be background.
        if not truth.get("labelled", True):
            continue
        region = source_region(truth)
        labels, probabilities = (one[region] for one in (truth["label"], predicted["probabilities"]))
        counts = np.ones(labels.shape, bool) if ignored is None else labels != ignored
        if labels.ndim == 2:
            labels, probabilities, counts = labels[None], probabilities[None], counts[None]
        collected = collected or MaskFaults(probabilities.shape[-1], random)
        collected.add(number, labels, probabilities, counts)
        lows[number] = tuple(side.start or 0 for side in (*[slice(0)] * (3 - len(region)), *region))
    if collected is None:
        return 0, iter(())
    suspects = (_mask_suspect(reviewed, fault, lows[fault.record], shape) for fault in collected.faults())
    return collected.objects, suspects


def _mask_suspect(
    reviewed: ReviewedSet, fault: FaultyObject, low: tuple[int, ...], shape: tuple[int, ...]
) -> Suspect:
    """Return a fault of a mask; `low` is where the part without padding begins in a record of a shape."""
    depth, row, column = low
    (_, top, left), (_, bottom, right) = fault.box
    height, width = shape[-2:]
    return Suspect(
        kind=fault.kind,
        places=(reviewed.place(fault.record),),
        score=fault.score,
        words=_mask_words(reviewed.manifest, fault),
        box=(
            (top + row) / height,
            (left + column) / width,
            (bottom + row) / height,
            (right + column) / width,
        ),
        depth=depth + fault.depth if len(shape) > 2 else None,
    )


def source_region(truth: Host) -> tuple[slice, ...]:
    """Return the part of a record that shows the source, without padding, as the metrics of a run use it."""
    if "extent" in truth:
        return tuple(slice(max(0, start), stop) for start, stop in truth["extent"].T.tolist())
    if "size" in truth:
        return tuple(slice(0, stop) for stop in truth["size"].tolist())
    return (slice(None),) * truth["label"].ndim


def _mask_words(manifest: Manifest, fault: FaultyObject) -> str:
    label, seen = _name(manifest, fault.label), _name(manifest, fault.seen)
    share = f"mean probability {fault.seen_share:.2f}"
    words = {
        MaskFault.MISSING: f"not labeled, seen as {seen} with {share}",
        MaskFault.MISPLACED: f"labeled {label}, seen with another outline or place",
    }
    found = words.get(fault.kind, f"labeled {label}, seen as {seen} with {share}")
    return f"{found}, {fault.pixels:,} pixels, evidence {fault.score:.2f}"


TASK_FAULTS: Final[Mapping[str, FindFaults]] = {
    "classification": _wrong_classes,
    "detection": _faulty_boxes,
    "segmentation": _faulty_masks,
}
