"""Options of the training batches that `halofeed show` draws and `halofeed bench` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """Batches of a data set as a training run takes them.

    Args:
        split, batch_size: parameters of `Loader`.
        augment, device_augment: tables of augmentations, as in a training recipe.
        values: parameter of `augment_on_device`.
    """

    split: str = "train"
    batch_size: int = 8
    augment: Sequence[Mapping[str, object]] = ()
    device_augment: Sequence[Mapping[str, object]] = ()
    values: tuple[float, float] | None = None
