"""Predictions of single records, kept in a temporary file while a search for label faults reads all of them.

A report draws the predictions of few records, and which ones is known only after the search has read all. To predict
them a second time would need the model again; in memory, label maps of many scans would not fit.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.review.label_faults import (
    Host,
    PredictedBatches,
    is_counted,
    source_region,
)
from halofeed.loader.batch import join_id
from halofeed.storage.paths import temporary_stream

_LEAST_SCORE: Final = 0.05
"""Smallest score of a box that is kept; a detector gives 100 boxes to each picture, most of scores near 0."""
_FASTEST: Final = 1
"""Level of zlib: label maps are regions of one value, so that a higher level saves little."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordPrediction:
    """Prediction of one record, on the grid of its stored image; what its task does not predict is None.

    Args:
        boxes: ymin, xmin, ymax, xmax as shares of the stored picture, float64 [box, 4].
        classes: class of each box, int64 [box].
        scores: score of each box, float64 [box].
        label: class of each pixel, 0 in the padding, [height, width] or [depth, height, width].
        probabilities: probability of each class of the record, float64 [class].
    """

    boxes: NDArray[np.float64] | None = None
    classes: NDArray[np.int64] | None = None
    scores: NDArray[np.float64] | None = None
    label: NDArray[Any] | None = None
    probabilities: NDArray[np.float64] | None = None

    @staticmethod
    def of(predicted: Host, truth: Host) -> RecordPrediction:
        """Return what a report shows of the predictions of one row of a batch.

        >>> RecordPrediction.of({"probabilities": np.array([0.25, 0.75])}, {"label": np.array(1)}).probabilities
        array([0.25, 0.75])
        """
        if "boxes" in predicted:
            kept = np.flatnonzero(predicted["scores"][: int(predicted["num_detections"])] >= _LEAST_SCORE)
            return RecordPrediction(
                boxes=predicted["boxes"][kept].astype(np.float64),
                classes=predicted["classes"][kept].astype(np.int64),
                scores=predicted["scores"][kept].astype(np.float64),
            )
        if np.ndim(truth.get("label", 0)) > 1:
            classes = predicted["label"] if "label" in predicted else predicted["probabilities"].argmax(-1)
            label = np.zeros(classes.shape, np.uint16 if classes.max(initial=0) > 255 else np.uint8)
            region = source_region(truth)
            label[region] = classes[region]
            return RecordPrediction(label=label)
        return RecordPrediction(probabilities=predicted["probabilities"].astype(np.float64))


class KeptPredictions:
    """Batches of predictions, which pass unchanged and leave what a report shows of each record.

    Args:
        batches: predictions and truth of each batch.
    """

    def __init__(self, batches: PredictedBatches) -> None:
        self._batches = batches
        self._stream = temporary_stream()
        self._places: dict[int, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[tuple[Host, Host]]:
        """Yield each batch after its records were kept."""
        for predictions, truth in self._batches:
            for row, one in enumerate(join_id(truth["id"]).tolist()):
                if is_counted(truth, row):
                    values = ({name: value[row] for name, value in of.items()} for of in (predictions, truth))
                    self._keep(int(one), RecordPrediction.of(*values))
            yield predictions, truth

    def _keep(self, identity: int, prediction: RecordPrediction) -> None:
        packed = io.BytesIO()
        np.savez(packed, **{name: value for name, value in vars(prediction).items() if value is not None})
        begin = self._stream.seek(0, io.SEEK_END)
        self._stream.write(zlib.compress(packed.getvalue(), _FASTEST))
        self._places[identity] = begin, self._stream.tell() - begin

    def of(self, identity: int) -> RecordPrediction | None:
        """Return the prediction of a record by its example id; None if it was not predicted."""
        if identity not in self._places:
            return None
        begin, size = self._places[identity]
        self._stream.seek(begin)
        with np.load(io.BytesIO(zlib.decompress(self._stream.read(size)))) as found:
            return RecordPrediction(**{name: found[name] for name in found.files})

    def close(self) -> None:
        """Delete the temporary file."""
        self._stream.close()
