"""Facts of the data set and the interface of a task, shared by models, tasks and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.device.mixing import OWN_SHARE, PARTNER
from halofeed.loader.device.photometric import Normalization
from halofeed.prep.convert.normalize_like import foreground_scheme
from halofeed.schemas.kinds import KIND_BY_RANK
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import task_named
from halofeed.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts of a data set that the trainer needs.

    Args:
        task: key of `halofeed.schemas.tasks.TASKS`.
        kind: kind of image, a key of `halofeed.schemas.kinds.KINDS`.
        labels: class names by id. Ids of detection begin at 1; segmentation includes the background, 0.
        image_shape: shape of one image of a training batch, channel last.
        mean: mean of each channel, in units of the stored image.
        std: standard deviation of each channel, in the same units.
        ignore_label: label of voxels without ground truth (segmentation); None if there is none.
        multi_label: an image may have several classes or none (classification); its ground truth is `labels`, not
            `label`.
        foreground: percentiles 0.5 and 99.5, mean and deviation of labeled voxels; None without these statistics.
        label_voxels: number of voxels of each class in the split to train on (segmentation); None without counts.
    """

    task: str
    kind: str
    labels: Mapping[int, str]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    foreground: tuple[float, float, float, float] | None = None
    ignore_label: int | None = None
    multi_label: bool = False
    label_voxels: tuple[int, ...] | None = None

    @property
    def classes(self) -> int:
        """Number of classes that a model distinguishes; detection does not count the background.

        >>> DataFacts(
        ...     task="detection", kind="picture", labels={1: "a", 3: "c"}, image_shape=(8, 8, 1), mean=(0,), std=(1,)
        ... ).classes
        3
        """
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of every class in order of the ids; an unnamed id 2 is `class 2`."""
        first = task_named(self.task).first_label_id
        return tuple(self.labels.get(label, f"class {label}") for label in range(first, max(self.labels) + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return {**lists, "labels": {str(label): name for label, name in self.labels.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataFacts:
        """Read the output of `to_json`, also of versions without `kind`."""
        return cls(
            task=document["task"],
            kind=document.get("kind") or KIND_BY_RANK[len(document["image_shape"])],
            labels={int(label): name for label, name in document["labels"].items()},
            image_shape=tuple(document["image_shape"]),
            mean=tuple(document["mean"]),
            std=tuple(document["std"]),
            foreground=tuple(document["foreground"]) if document.get("foreground") else None,
            ignore_label=document.get("ignore_label"),
            # Runs before multi-label training have no such member.
            multi_label=bool(document.get("multi_label")),
            # Runs before class weights have no such member.
            label_voxels=tuple(document["label_voxels"]) if document.get("label_voxels") else None,
        )


def data_facts(manifest: Manifest, split: str, image_shape: tuple[int, ...] | None = None) -> DataFacts:
    """Return the facts of a manifest.

    Args:
        manifest: manifest of the data set.
        split: split to train on; the mean and deviation are its own.
        image_shape: shape of the loader's images, if augmentation changes it.

    Raises:
        UsageError: the split is unknown, empty or without labels, or a voxel has several classes.
    """
    check_no_class_overlap(manifest)
    if not manifest.labels:
        raise UsageError(f"{manifest.name}: no labels to learn from; convert it with annotations")
    if not manifest.split(split).records:
        raise UsageError(f"{manifest.name}: split {split!r} holds no records; train on another")
    check_has_labels(manifest, split)
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
        multi_label=is_multi_label(manifest),
        label_voxels=_label_voxels(manifest, split),
    )


def check_has_labels(manifest: Manifest, split: str, option: str = "--split ") -> None:
    """Raise UsageError for a split for prediction: no row of it counts in a loss or a metric."""
    # Such a split has zeros in place of labels.
    if not manifest.is_for_prediction(split):
        return
    labeled = [
        name
        for name, stored in manifest.splits.items()
        if stored.records and not manifest.is_for_prediction(name)
    ]
    fix = f"take {option}{labeled[0]}" if labeled else "convert the set with its labels"
    raise UsageError(
        f"{manifest.name}: split {split!r} has no labels, so that it is for `halofeed predict` only; {fix}"
    )


def is_multi_label(manifest: Manifest) -> bool:
    """Return whether an image of a data set may have several classes: batches have `labels` in place of `label`."""
    return any(field.encoding == "classes" for field in manifest.fields)


def check_no_class_overlap(manifest: Manifest) -> None:
    """Raise UsageError for a data set whose voxels may have several classes: no task of the trainer supports it."""
    if any(field.holds_sets for field in manifest.fields):
        raise UsageError(
            f"{manifest.name}: its classes overlap, a channel each, and the trainer learns one class a voxel; convert "
            "it with --class-overlap last or first, or train a model of your own with halofeed.loader"
        )


def _label_voxels(manifest: Manifest, split: str) -> tuple[int, ...] | None:
    """Return the voxels of each class from 0 on; None for other tasks and for older manifests."""
    counted = manifest.split(split).statistics.label_voxels
    if manifest.task != "segmentation" or not counted:
        return None
    of = {int(label): count for label, count in counted.items() if int(label) != manifest.ignore_label}
    return tuple(of.get(label, 0) for label in range(max(manifest.labels) + 1))


def _foreground(manifest: Manifest, split: str) -> tuple[float, float, float, float] | None:
    try:
        window, standard = foreground_scheme(manifest, split)
    except UsageError:
        return None
    return window.low, window.high, standard.mean, standard.deviation


DeviceBatch = Mapping[str, jax.Array]
Host = Mapping[str, NDArray[Any]]


class Metrics(Protocol):
    """Metrics accumulated over an evaluation, on the host. Every valid row counts once."""

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add one batch.

        Args:
            predictions: output of `Task.predict`, [batch, ...] each.
            truth: the batch's `Task.truth` and `Task.include` keys and `valid`, [batch, ...] each; `id` is uint32
                [batch, 2].

        Returns:
            Score of each row, float64 [batch], from 0 (worst) to 1; NaN for rows that are not valid or have no score.
        """

    def result(self) -> dict[str, Any]:
        """Return numbers by name; nested dictionaries hold numbers per class."""


class TrainingTask(Protocol):
    """Interface of a task: it turns outputs of a model into a loss, predictions and metrics.

    Attributes:
        keys: keys of a batch that the loss needs besides `image`.
        on_grid: those of `keys` that are on the image's grid and are split like it.
        truth: keys of a batch that the metrics need besides `valid` and `id`.
        include: optional fields of the data set that the loader must add for evaluation and prediction.
        best: name of the metric that selects the best checkpoint; higher is better.
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def on_grid(self) -> tuple[str, ...]: ...

    @property
    def truth(self) -> tuple[str, ...]: ...

    @property
    def include(self) -> tuple[str, ...]: ...

    @property
    def best(self) -> str: ...

    def loss(self, outputs: Any, batch: DeviceBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the scalar to minimize, and its parts by name.

        Args:
            outputs: outputs of the model, in the precision of its parameters.
            batch: global arrays. Rows whose `valid` is False must not count.
        """

    def predict(self, outputs: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return the predictions by name, in static shapes [batch, ...]."""

    def metrics(self) -> Metrics:
        """Return empty metrics for one evaluation."""


def valid_rows(batch: DeviceBatch) -> jax.Array:
    """Return `valid` of a batch, bool [batch]; all True if the batch does not have it."""
    valid = batch.get("valid")
    return valid if valid is not None else jnp.ones(batch["image"].shape[:1], bool)


def mixed_targets(batch: DeviceBatch, key: str, target_of: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return the targets of a batch's images [batch, class], mixed with those of their partners after `BatchMix`.

    Args:
        batch: batch with the classes, and with `own_share` if images were mixed.
        key: key of the classes, `label` or `labels`.
        target_of: function that returns the targets [batch, class] of classes.
    """
    own = target_of(batch[key])
    if OWN_SHARE not in batch:
        return own
    share = batch[OWN_SHARE][:, None].astype(own.dtype)
    return share * own + (1 - share) * target_of(batch[PARTNER + key])


def mean_over_valid(losses: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the mean of losses [batch] over valid rows [batch]; 0 if there is none."""
    total = jnp.sum(jnp.where(valid, losses, 0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(losses.dtype)


def valid_host(truth: Host) -> NDArray[np.bool_]:
    """Return `valid_rows` of a batch on the host."""
    valid = truth.get("valid")
    return np.ones(len(next(iter(truth.values()))), bool) if valid is None else np.asarray(valid, bool)
