"""How a loader's stream becomes a tf.data.Dataset, for programs that loop over it and for Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from halofeed.loader.batch import ID, LABELLED, LABELS, VALID, ArraySpec
from halofeed.loader.buffers import batches_ahead
from halofeed.loader.reading import IMAGE, LABEL
from halofeed.schemas.extras import needing

if TYPE_CHECKING:
    import tensorflow as tf

    from halofeed.loader.stream import Stream

PREFETCH = 1
"""Batches that wait to be taken, beside those that are being made."""


def element_spec(spec: Mapping[str, ArraySpec]) -> dict[str, tf.TensorSpec]:
    """The tf.TensorSpec of each array of a batch."""
    with needing("tf", "tensorflow"):
        import tensorflow as tf

    return {
        name: tf.TensorSpec(array.shape, tf.string if array.dtype.hasobject else tf.as_dtype(array.dtype))
        for name, array in spec.items()
    }


def dataset(loader: Stream, start_step: int, as_supervised: bool) -> tf.data.Dataset:
    """The stream from a step on; see `Stream.dataset`."""
    with needing("tf", "tensorflow"):
        import tensorflow as tf

    steps = loader.steps_from(start_step)
    spec = element_spec(loader.spec)

    def make(step: Any) -> tuple[Any, ...]:
        return tuple(_encoded(array) for array in loader.in_order(int(step)).values())

    def element(step: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = tf.numpy_function(make, [step], [one.dtype for one in spec.values()])
        for tensor, one in zip(tensors, spec.values(), strict=True):
            tensor.set_shape(one.shape)
        return dict(zip(spec, tensors, strict=True))

    def supervised(step: tf.Tensor) -> tuple[Any, ...]:
        batch = element(step)
        image, identity, valid = (batch.pop(name) for name in (IMAGE, ID, VALID))
        del identity
        labelled = batch.pop(LABELLED, None)
        target: Any = batch
        for name in (LABEL, LABELS):
            target = batch.get(name, target)
        if labelled is None and not loader.may_pad:
            return image, target
        weight = valid if labelled is None else tf.logical_and(valid, labelled)
        return image, target, tf.cast(weight, tf.float32)

    if isinstance(steps, range):
        numbers = tf.data.Dataset.range(steps.start, steps.stop)
    else:
        numbers = tf.data.Dataset.counter(start_step)
    at_once = max(1, batches_ahead(loader.spec))
    made = numbers.map(supervised if as_supervised else element, at_once, deterministic=True)
    return made.prefetch(PREFETCH)


def _encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text as the bytes that TensorFlow takes, file names that are not UTF-8 included."""
    if not array.dtype.hasobject:
        return array
    encoded = np.empty(array.shape, object)
    encoded[...] = [text.encode("utf-8", "surrogateescape") for text in array]
    return encoded
