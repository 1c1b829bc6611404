"""Classes that a run did not learn: a Dice or AP of 0, each with the likely reason, from what was measured.

A reason is one of three: the class is not in the split to train on, its objects are too small at the training size, or
the run was too short, so that its loss still fell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import EvaluationSource, TrainData
from halofeed.trainer.step import TrainingSetup
from halofeed.trainer.task import DataFacts, Host, valid_host
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.training_setup import build_training_setup

UNLEARNED_BELOW = 0.005
"""Dice or AP below which a class counts as not learned: 0.00 in two digits."""
_METRICS = {"AP": "AP", "dice_per_class": "Dice"}
"""Tables of metrics by class that are 0 for a class that was not learned, with their names for people."""
_LEAST_SIDE = 3.0
"""Voxels or pixels per side below which each one of a structure lies at its surface."""
_MAX_BATCHES = 32
"""Batches of the evaluation split whose objects are measured."""
_MIN_TREND_STEPS = 10
"""Steps below which a run is too short to see whether its loss falls."""


@dataclass(frozen=True, kw_only=True)
class SmallestSide:
    """Side below which objects are hard to learn.

    Args:
        side: the side, in pixels or voxels at the training size.
        reason: what it follows from, as the end of a sentence.
    """

    side: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class LossTrend:
    """Change of the loss at the end of a run, which compares its last fifth with the fifth before.

    Args:
        steps: number of steps in both fifths.
        before, last: mean loss of each.
        falls: whether the difference exceeds two standard errors.
    """

    steps: int
    before: float
    last: float
    falls: bool

    @classmethod
    def of(cls, losses: Sequence[float]) -> LossTrend | None:
        """Return the trend of the losses of a run; None with fewer than ten of them.

        >>> LossTrend.of([3.0] * 30 + [2.0, 2.2] * 5 + [1.0, 1.2] * 5)
        LossTrend(steps=20, before=2.1, last=1.1, falls=True)
        """
        if len(losses) < _MIN_TREND_STEPS:
            return None
        count = len(losses) // 5
        before, last = np.asarray(losses[-2 * count : -count]), np.asarray(losses[-count:])
        error = math.sqrt((before.var() + last.var()) / count)
        falls = bool(before.mean() - last.mean() > 2 * error)
        means = (round(float(values.mean()), 6) for values in (before, last))
        return cls(steps=2 * count, before=next(means), last=next(means), falls=falls)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Measurements of a run and its data; a mapping is by class.

    Args:
        split: split that was trained on.
        objects: word for what is counted, such as boxes.
        counts: number of these in that split; None if the data set does not state it.
        sides: median side of the objects in the evaluation split, in pixels or voxels at the training size.
        smallest: side below which objects are hard to learn; None if it is unknown.
        losses: loss of each step.
        shown: times that each record was shown.
    """

    split: str
    objects: str
    counts: Mapping[str, int] | None
    sides: Mapping[str, float]
    smallest: SmallestSide | None
    losses: Sequence[float]
    shown: float


def unlearned_classes(metrics: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Return the name and the value of the metric of each class that was not learned.

    >>> unlearned_classes({"AP": {"cat": 0.5, "dog": 0.0, "cow": None}})
    {'dog': ('AP', 0.0)}
    """
    return {
        label: (name, value)
        for table, name in _METRICS.items()
        if isinstance(values := metrics.get(table), Mapping)
        for label, value in values.items()
        if value is not None and value < UNLEARNED_BELOW
    }


def explain(label: str, metric: str, value: float, evidence: Evidence) -> str:
    """Return a line on a class that was not learned: its metric, and each likely reason with its numbers."""
    reasons = list(_reasons(label, evidence)) or [f"no likely reason was measured: {_facts(label, evidence)}"]
    return f"{metric} of {label} is {value:.4f}: {'; '.join(reasons)}"


def _reasons(label: str, evidence: Evidence) -> Iterator[str]:
    if evidence.counts is not None and not evidence.counts.get(label):
        total = sum(evidence.counts.values())
        yield f"split {evidence.split} has no {evidence.objects} of it, and {total:,} of other classes"
        return
    side, smallest = evidence.sides.get(label), evidence.smallest
    if side is not None and smallest is not None and side < smallest.side:
        yield f"it is too small at the training size: its median side is {side:.1f}, and {smallest.reason}"
    trend, steps = LossTrend.of(evidence.losses), len(evidence.losses)
    times = f"{evidence.shown:,.0f}" if evidence.shown >= 10 else f"{evidence.shown:.2g}"
    shown = f"each record was shown {times} times"
    if trend is None:
        yield f"too few steps: {steps}, and {shown}"
    elif trend.falls:
        yield (
            f"too few steps: the loss still fell from {trend.before:.4g} to {trend.last:.4g} in the last "
            f"{trend.steps:,} of {steps:,}, and {shown}"
        )


def _facts(label: str, evidence: Evidence) -> str:
    """Return what is known of a class for which no reason was found."""
    facts = []
    if evidence.counts is not None:
        facts.append(f"split {evidence.split} has {evidence.counts[label]:,} {evidence.objects} of it")
    if label in evidence.sides:
        facts.append(f"its median side is {evidence.sides[label]:.1f} at the training size")
    if (trend := LossTrend.of(evidence.losses)) is not None:
        facts.append(f"the loss no longer fell ({trend.before:.4g}, then {trend.last:.4g})")
    return ", ".join(facts)


def unlearned_lines(
    config: TrainConfig, data: TrainData, *, metrics: Mapping[str, Any], losses: Sequence[float], steps: int
) -> list[str]:
    """Return a line for each class that a run did not learn; nothing is read for a run that learned all.

    Args:
        config: options of the run.
        data: data of the run, from `open_data`.
        metrics: result of the last evaluation.
        losses: loss of each step that this process took.
        steps: number of steps of the run.
    """
    found = unlearned_classes(metrics)
    # Whole images have no objects to count or to measure, and chance alone gives a rare class a small AP.
    if not found or data.evaluation is None or data.facts.task == "classification":
        return []
    facts, split = data.facts, str(data.description["split"])
    manifest = read_manifest(data.description["data"])
    evidence = Evidence(
        split=split,
        objects=_object_word(facts),
        counts=objects_by_class(manifest, split, facts),
        sides=median_sides(data.evaluation, facts.names),
        smallest=smallest_side(build_training_setup(config, facts), facts),
        losses=losses,
        shown=steps * config.batch_size / max(1, manifest.split(split).records),
    )
    return [explain(label, metric, value, evidence) for label, (metric, value) in found.items()]


def objects_by_class(manifest: Manifest, split: str, facts: DataFacts) -> dict[str, int] | None:
    """Return the number of boxes of a detection data set, or of voxels or pixels of another, by class name.

    The background is no class here; None if the data set states no counts.
    """
    statistics = manifest.split(split).statistics
    counts = statistics.labels if facts.task == "detection" else statistics.label_voxels
    if counts is None:
        return None
    return {name: counts.get(str(label), 0) for label, name in facts.labels.items() if label}


def median_sides(source: EvaluationSource, names: Sequence[str]) -> dict[str, float]:
    """Return the median side of the objects of each class in the first batches of a split, in pixels or voxels.

    The side of a box is the root of its area; that of a class in a volume the cube root of its voxels.

    Args:
        source: batches with `boxes`, or with `label`.
        names: names of the classes, those of boxes from class 1, those of labels from 0.
    """
    found: dict[int, list[float]] = {}
    for batch in _first_batches(source):
        sides_of = _sides_of_boxes if "boxes" in batch else _sides_of_labels
        first = 1 if "boxes" in batch else 0
        for row in np.flatnonzero(valid_host(batch)).tolist():
            for label, side in sides_of(batch, row):
                found.setdefault(label - first, []).append(side)
    # The ignore label has no name.
    return {
        names[index]: float(np.median(sides)) for index, sides in found.items() if 0 <= index < len(names)
    }


def _first_batches(source: EvaluationSource) -> Iterator[Host]:
    batch = source.batch(0)
    yield batch
    for step in range(1, min(_MAX_BATCHES, -(-source.num_records // len(batch["image"])))):
        yield source.batch(step)


def _sides_of_boxes(batch: Host, row: int) -> Iterator[tuple[int, float]]:
    """Yield the class and the side of each box of a row, without crowds."""
    boxes = batch["boxes"][row, : int(batch["num_boxes"][row])]
    area = np.prod((boxes[:, 2:] - boxes[:, :2]) * batch["image"].shape[1:3], axis=1)
    crowds = batch["is_crowd"][row] if "is_crowd" in batch else np.zeros(len(boxes), bool)
    for label, side, is_crowd in zip(
        batch["classes"][row], np.sqrt(np.maximum(area, 0)), crowds, strict=False
    ):
        if not is_crowd:
            yield int(label), float(side)


def _sides_of_labels(batch: Host, row: int) -> Iterator[tuple[int, float]]:
    """Yield each class of a row's label, and the side of a square or cube with as many pixels or voxels."""
    label: NDArray[Any] = batch["label"][row]
    classes, counts = np.unique(label, return_counts=True)
    for number, count in zip(classes.tolist(), counts.tolist(), strict=True):
        yield int(number), float(count ** (1 / label.ndim))


def smallest_side(setup: TrainingSetup, facts: DataFacts) -> SmallestSide | None:
    """Return the side below which the objects of a data set are hard to learn for a model; None if it is unknown."""
    if facts.task == "segmentation":
        one = _object_word(facts).removesuffix("s")
        reason = f"below {_LEAST_SIDE:g} {one}s each {one} of it lies at its surface"
        return SmallestSide(side=_LEAST_SIDE, reason=reason)
    anchor_of = getattr(setup.abstract_model, "smallest_anchor", None)
    # Models and tasks of the user may have no anchors.
    if anchor_of is None or not isinstance(setup.task, Detection) or setup.task.ignore_thresholds:
        return None
    anchor, threshold = float(anchor_of(facts.image_shape)), setup.task.matched_threshold
    # The overlap of two squares with one center is the ratio of their areas.
    side = anchor * math.sqrt(threshold)
    reason = (
        f"the smallest anchor of {anchor:.0f} pixels matches boxes from {side:.0f} on (overlap {threshold:g})"
    )
    return SmallestSide(side=side, reason=reason)


def _object_word(facts: DataFacts) -> str:
    """Return the word for what is counted of a class."""
    if facts.task == "detection":
        return "boxes"
    return "voxels" if facts.kind == "volume" else "pixels"
