"""Rule that a class keeps its largest connected component alone, where the validation split proves that it helps.

Source: Isensee et al., "nnU-Net", 2021: it removes all but the largest component of a class if that raises the Dice of
the cross-validation. Here it must also raise it in more examples than it lowers, so that one example decides nothing.
Components touch at their faces, edges or corners, as in nnU-Net (acvl_utils' `remove_all_but_largest_component`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.trainer.metrics import SegmentationMetrics, confusion_table, dice_of_table
from halofeed.trainer.task import Host

KEPT = "largest_component"
"""Member of run.json and predictions.json."""
COMPONENT_KINDS = ("picture", "volume")
"""Kinds of images with the rule: the frames of a clip have no common space."""


@dataclass(frozen=True, kw_only=True)
class ComponentRule:
    """Effect of keeping only the largest component of a class on the validation split.

    Args:
        label: id of the class.
        name: name of the class.
        before: mean Dice with all components.
        after: mean Dice with the largest one.
        better: number of examples whose Dice rises.
        worse: number of examples whose Dice falls.
    """

    label: int
    name: str
    before: float
    after: float
    better: int
    worse: int

    @property
    def is_proved(self) -> bool:
        """True if the mean rises, and more examples rise than fall."""
        return self.after > self.before and self.better > self.worse

    def text(self) -> str:
        """Return a sentence on the effect.

        >>> ComponentRule(label=1, name="liver", before=0.9, after=0.95, better=8, worse=1).text()
        'liver: Dice 0.9000 -> 0.9500 with the largest component alone (better in 8, worse in 1)'
        """
        return (
            f"{self.name}: Dice {self.before:.4f} -> {self.after:.4f} with the largest component alone (better in "
            f"{self.better}, worse in {self.worse})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain JSON values."""
        return dict(vars(self))


def keep_largest(label: NDArray[Any], classes: Collection[int]) -> NDArray[Any]:
    """Return class indices with all but the largest connected component of some classes as background.

    Of components of one size the first stays, in the order of the axes.

    Args:
        label: class indices [(depth,) height, width].
        classes: ids of the classes, without the background.

    Returns:
        The same array if nothing changes, else a copy.

    >>> keep_largest(np.array([[1, 1, 0, 1], [2, 0, 0, 2]]), [1]).tolist()
    [[1, 1, 0, 0], [2, 0, 0, 2]]
    """
    if not classes:
        return label
    # scipy.ndimage takes 0.1 s to import, which detectors and classifiers do not need.
    from scipy import ndimage

    found = label
    touching = np.ones((3,) * label.ndim, bool)
    boxes = ndimage.find_objects(label.astype(np.int32), max(classes))
    for number in sorted(classes):
        box = boxes[number - 1]
        if box is None:
            continue
        parts, count = ndimage.label(label[box] == number, touching)
        if count > 1:
            largest = int(np.bincount(parts.ravel())[1:].argmax()) + 1
            found = label.copy() if found is label else found
            found[box][(parts > 0) & (parts != largest)] = 0
    return found


class ComponentMetrics:
    """Metrics of segmentation with the rule, and the effect that the rule would have on each other class.

    Args:
        metrics: empty metrics of the task.
        kept: ids of the classes of which only the largest component counts.
        ignore_label: true label of voxels that do not count; None if there is none.
    """

    def __init__(
        self, metrics: SegmentationMetrics, kept: Collection[int] = (), ignore_label: int | None = None
    ) -> None:
        self._metrics, self._kept, self._ignore_label = metrics, frozenset(kept), ignore_label
        self._before: list[NDArray[np.float64]] = []
        self._after: list[NDArray[np.float64]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid, labelled rows of a batch and return the mean Dice of each row, with the rule."""
        labels = np.array(predictions["label"])
        for row in self._metrics.counted_rows(truth):
            region = self._metrics.source_region(truth, row)
            # Padding is no part of the source, where `predict` looks for components.
            whole = labels[row][region]
            self._compare(whole, truth["label"][row][region])
            if self._kept:
                labels[row][region] = keep_largest(whole, self._kept)
        return self._metrics.update({**predictions, "label": labels}, truth)

    def _compare(self, predicted: NDArray[Any], true: NDArray[Any]) -> None:
        classes = len(self._metrics.labels)
        known: Any = slice(None) if self._ignore_label is None else true != self._ignore_label
        largest = keep_largest(predicted, range(1, classes))
        for found, dice in ((predicted, self._before), (largest, self._after)):
            dice.append(dice_of_table(confusion_table(found[known], true[known], classes)))

    def result(self) -> dict[str, Any]:
        """Return the task's metrics, with the rule."""
        return self._metrics.result()

    def rules(self) -> list[ComponentRule]:
        """Return the effect on each class that some example shows."""
        return component_rules(self._metrics.labels, self._before, self._after)


def component_rules(
    names: Sequence[str], before: Sequence[NDArray[np.float64]], after: Sequence[NDArray[np.float64]]
) -> list[ComponentRule]:
    """Return the effect of the rule on each class.

    Args:
        names: names of the classes, background first.
        before: Dice of each example, float64 [classes - 1]; NaN for a class that is neither predicted nor true.
        after: the same with the largest components alone.
    """
    rules = []
    columns = [np.array(rows).reshape(-1, len(names) - 1).T for rows in (before, after)]
    for label, (old, new) in enumerate(zip(*columns, strict=True), 1):
        known = ~np.isnan(old) & ~np.isnan(new)
        if known.any():
            rules.append(
                ComponentRule(
                    label=label,
                    name=names[label],
                    before=float(old[known].mean()),
                    after=float(new[known].mean()),
                    better=int((new[known] > old[known]).sum()),
                    worse=int((new[known] < old[known]).sum()),
                )
            )
    return rules


def kept_classes(document: Mapping[str, Any], step: int) -> frozenset[int]:
    """Return the classes of a run's proved rules, if they were proved for this checkpoint.

    Args:
        document: run.json.
        step: step of the checkpoint.
    """
    stored = document.get(KEPT, {})
    # Other weights predict other components.
    if stored.get("step") != step:
        return frozenset()
    return frozenset(int(entry["label"]) for entry in stored["classes"])
