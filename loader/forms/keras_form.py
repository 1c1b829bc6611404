"""Batches as Keras' `fit` takes them without TensorFlow: a keras.utils.PyDataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import COUNT, ID, LABELLED, LABELS, SIZE, VALID, Batch
from halofeed.loader.epochs import only_valid
from halofeed.loader.forms.epoch_batches import EpochBatches, with_fields
from halofeed.loader.forms.ignored_regions import tell_of_regions
from halofeed.loader.forms.pixel_boxes import CLASSES, CROWD, class_numbers, labels_of
from halofeed.loader.reading import BOXES, IMAGE, LABEL
from halofeed.loader.stream import Stream
from halofeed.system.errors import UsageError, require_extra

if TYPE_CHECKING:
    from keras.utils import PyDataset

BoxFormat = Literal["xyxy", "yxyx", "xywh", "rel_xyxy", "rel_yxyx"]
BOX_FORMATS: dict[str, Callable[[NDArray[np.float32], int, int], NDArray[np.float32]]] = {
    "xyxy": lambda boxes, height, width: boxes[..., [1, 0, 3, 2]] * _sides(width, height),
    "yxyx": lambda boxes, height, width: boxes * _sides(height, width),
    "xywh": lambda boxes, height, width: _corner_and_size(boxes[..., [1, 0, 3, 2]] * _sides(width, height)),
    "rel_xyxy": lambda boxes, height, width: boxes[..., [1, 0, 3, 2]],
    "rel_yxyx": lambda boxes, height, width: boxes,
}
"""Forms of boxes by the names that Keras' bounding boxes have; xywh begins at the top left, as in COCO."""


def keras_batches(
    loader: Stream, *, bounding_box_format: BoxFormat = "xyxy", start_step: int = 0
) -> PyDataset:
    """Return epochs of batches as a keras.utils.PyDataset, for any backend, without TensorFlow.

    `fit`, `evaluate` and `predict` take it. Each epoch of `fit` is the next one of the loader, in another order. The
    batches are (image, target), as of `Loader.dataset(as_supervised=True)`: `label` or `labels`; for segmentation also
    weights, which are 0 for records without a label. For detection the target is {"boxes": float32 [row, max_boxes, 4],
    "labels": int32 [row, max_boxes]}, from 0, with -1 and boxes of 0 where there is no object, as Keras' layers have
    them. The boxes of crowds and ignored regions are left out.

    Threads of this process make the next batches, so leave `workers` and `use_multiprocessing` as they are.

    Args:
        loader: the stream of batches, with its augmentations.
        bounding_box_format: "xyxy", "yxyx", "xywh", "rel_xyxy" or "rel_yxyx".
        start_step: number of batches that an earlier process took: the first epoch begins after them.

    Raises:
        UsageError: `bounding_box_format` is none of these.
        MissingExtraError: Keras is not installed.

    >>> data = halofeed.open("data/photos/1.0.0")  # doctest: +SKIP
    >>> model.fit(halofeed.keras_batches(data.loader(batch_size=32)), epochs=5)  # doctest: +SKIP
    """
    if bounding_box_format not in BOX_FORMATS:
        raise UsageError(
            f"bounding_box_format: expected one of {', '.join(BOX_FORMATS)}, got {bounding_box_format!r}"
        )
    stream = with_fields(loader, "keras_batches", [IMAGE])
    tell_of_regions(stream, "keras_batches", "A loader's batches have them as `ignored_boxes`")
    numbers, _ = class_numbers(labels_of(stream))
    convert = BOX_FORMATS[bounding_box_format]
    batches = EpochBatches(stream, lambda batch: supervised(batch, numbers, convert), start_step=start_step)
    with require_extra("train", "keras"):
        from keras.utils import PyDataset

    class EpochDataset(PyDataset):  # type: ignore[misc]
        """One epoch after the other.

        `fit` asks for the batches of an epoch in random order by default, although their records are shuffled already.
        So within an epoch any number gives the next batch, which threads have made.
        """

        def __init__(self) -> None:
            super().__init__()
            self._epoch: Iterator[tuple[Any, ...]] | None = None

        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, number: int) -> tuple[Any, ...]:
            if self._epoch is not None and (batch := next(self._epoch, None)) is not None:
                return batch
            return batches.batch_of_epoch(number)

        def on_epoch_begin(self) -> None:
            """Begin at the first batch of the epoch, which Keras may have taken once to find the shapes."""
            self._epoch = iter(batches)

        def on_epoch_end(self) -> None:
            """End the iteration."""
            self._epoch = None

    return EpochDataset()


def supervised(
    batch: Batch,
    numbers: NDArray[np.int64],
    convert: Callable[[NDArray[np.float32], int, int], NDArray[np.float32]],
) -> tuple[Any, ...]:
    """Return (image, target) of a batch, and weights where records may have no label."""
    batch = only_valid(batch)
    if BOXES in batch:
        return batch[IMAGE], padded_objects(batch, numbers, convert)
    target = batch.get(LABELS, batch.get(LABEL))
    if target is None:
        others = {name: array for name, array in batch.items() if name not in (IMAGE, ID, VALID, SIZE)}
        return batch[IMAGE], others
    if LABELLED in batch:
        return batch[IMAGE], target, batch[LABELLED].astype(np.float32)
    return batch[IMAGE], target


def padded_objects(
    batch: Batch,
    numbers: NDArray[np.int64],
    convert: Callable[[NDArray[np.float32], int, int], NDArray[np.float32]],
) -> dict[str, NDArray[Any]]:
    """Return boxes and labels as Keras' layers have them, with -1 where there is no object."""
    height, width = batch[IMAGE].shape[1:3]
    places = np.arange(batch[BOXES].shape[1])
    used = (places < batch[COUNT][:, None]) & ~batch[CROWD]
    # Objects come first, then the padding.
    order = np.argsort(~used, axis=1, kind="stable")
    used = np.take_along_axis(used, order, 1)
    boxes = np.take_along_axis(convert(batch[BOXES], height, width), order[..., None], 1)
    labels = numbers[np.take_along_axis(batch[CLASSES], order, 1) * used]
    return {
        "boxes": np.where(used[..., None], boxes, 0).astype(np.float32),
        "labels": np.where(used, labels, -1).astype(np.int32),
    }


def _sides(*sides: int) -> NDArray[np.float32]:
    return np.array([*sides, *sides], np.float32)


def _corner_and_size(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], axis=-1)
