"""What does training need to know of a data set beside its batches?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halofeed.loader.device.normalize import Normalization
from halofeed.prep.convert.normalize_like import foreground_scheme
from halofeed.schemas.errors import UsageError
from halofeed.schemas.kinds import EARLY_KINDS
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import task_named


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """A data set as the trainer sees it.

    Args:
        task: a key of `halofeed.schemas.tasks.TASKS`.
        kind: of the images, a key of `halofeed.schemas.kinds.KINDS`.
        labels: class names by id. Detection's begin at 1; segmentation's hold the background, 0.
        image_shape: of one image of a training batch, the channel last.
        mean, std: per channel, in the stored image's units.
        ignore_label: segmentation: the value of labels where nothing is known; None: there is none.
        foreground: of labeled voxels the percentiles 0.5 and 99.5, mean and deviation; None where none are counted.
    """

    task: str
    kind: str
    labels: Mapping[int, str]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    foreground: tuple[float, float, float, float] | None = None
    ignore_label: int | None = None

    @property
    def classes(self) -> int:
        """How many classes a model tells apart; a detection set's without the background.

        >>> DataFacts(
        ...     task="detection", kind="picture", labels={1: "a", 3: "c"}, image_shape=(8, 8, 1), mean=(0,), std=(1,)
        ... ).classes
        3
        """
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every class in order, `class 2` where an id has none."""
        first = task_named(self.task).first_label_id
        return tuple(self.labels.get(label, f"class {label}") for label in range(first, max(self.labels) + 1))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return {**lists, "labels": {str(label): name for label, name in self.labels.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataFacts:
        """What `to_json` gave."""
        return cls(
            task=document["task"],
            kind=document.get("kind") or EARLY_KINDS[len(document["image_shape"])],
            labels={int(label): name for label, name in document["labels"].items()},
            image_shape=tuple(document["image_shape"]),
            mean=tuple(document["mean"]),
            std=tuple(document["std"]),
            foreground=tuple(document["foreground"]) if document.get("foreground") else None,
            ignore_label=document.get("ignore_label"),
        )


def data_facts(manifest: Manifest, split: str, image_shape: tuple[int, ...] | None = None) -> DataFacts:
    """The facts that a manifest holds; mean and deviation are those of `split`.

    Args:
        image_shape: of what the loader gives, where augmentation changes it.

    Raises:
        UsageError: an unknown split, no labels, classes that overlap, or a split without records or pixels.
    """
    check_one_class_each(manifest)
    if not manifest.labels:
        raise UsageError(f"{manifest.name}: no labels to learn; convert it with annotations")
    refuse_several_classes(manifest)
    if not manifest.split(split).records:
        raise UsageError(f"{manifest.name}: split {split!r} holds no records; train on another")
    normalization = Normalization.of(manifest, split)
    return DataFacts(
        task=manifest.task,
        kind=manifest.kind.name,
        labels=dict(sorted(manifest.labels.items())),
        image_shape=image_shape or manifest.field("image").shape,
        mean=normalization.mean,
        std=normalization.std,
        foreground=_foreground(manifest, split),
        ignore_label=manifest.ignore_label,
    )


def refuse_several_classes(manifest: Manifest) -> None:
    """Refuse a data set whose pictures may have several classes: no task of the trainer learns or counts them."""
    if any(field.encoding == "classes" for field in manifest.fields):
        raise UsageError(
            f"{manifest.name}: its pictures may have several classes, and halofeed's trainer learns one a picture; "
            "train on the loader's `labels` by a program of your own, or give each picture one class in the table and "
            "convert it again"
        )


def check_one_class_each(manifest: Manifest) -> None:
    """Refuse a data set whose voxels may be in several classes: no task of the trainer learns or evaluates that."""
    if any(field.holds_sets for field in manifest.fields):
        raise UsageError(
            f"{manifest.name}: its classes overlap, a channel each, and the trainer learns one class a voxel; convert "
            "it with --class-overlap last or first, or train a model of your own with halofeed.loader"
        )


def _foreground(manifest: Manifest, split: str) -> tuple[float, float, float, float] | None:
    try:
        window, standard = foreground_scheme(manifest, split)
    except UsageError:
        return None
    return window.low, window.high, standard.mean, standard.deviation
