"""The tf.data stream is the same stream, with static shapes and without a copy."""

import re
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop, stream
from halofeed.loader.batch import AHEAD
from halofeed.loader.stream import PREFETCH
from tests.support.batches import flip, same


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(11), masks=True)


OPTIONS = {"batch_size": 4, "seed": 3, "augment": [FlipLeftRight(), RandomCrop(16, 16)]}
EVERYTHING = ["source", "key", "masks", "size", "transform", "difficult"]


def check(element, batch):
    """That an element is a batch, its text in UTF-8."""
    text = [name for name, array in batch.items() if array.dtype.hasobject]
    decoded = {name: np.array([one.decode() for one in element[name]], object) for name in text}
    same({**element, **decoded}, batch)


@pytest.mark.parametrize("start", [0, 1, 5, 10**9])
def test_the_stream_is_the_batches_from_any_step(folder, start):
    loader = Loader(folder, **OPTIONS, include=EVERYTHING)
    for step, element in enumerate(loader.dataset(start).take(4).as_numpy_iterator(), start):
        check(element, loader.batch(step))


def test_a_finite_stream_ends_and_knows_its_length(folder):
    loader = Loader(folder, **OPTIONS, num_epochs=2)
    for start in range(7):
        dataset = loader.dataset(start)
        assert dataset.cardinality().numpy() == 6 - start
        assert len(list(dataset)) == 6 - start
    assert Loader(folder, **OPTIONS).dataset().cardinality() == tf.data.INFINITE_CARDINALITY
    with pytest.raises(UsageError, match="start_step 7: expected 0 to 6"):
        loader.dataset(7)


def test_a_damaged_record_stops_the_stream_with_file_place_and_cure(draw, write):
    folder = write(draw(4))
    path = next(folder.glob("*.tfrecord-00000-of-?????"))
    flip(path, -20)
    with pytest.raises(tf.errors.OpError) as caught:
        list(Loader(folder, batch_size=4, training=False).dataset())
    message = str(caught.value)
    assert str(path) in message and "halofeed convert` with --overwrite" in message
    assert re.search(r"byte [\d,]+: .*\(id \d+\)", message), message


def test_shapes_and_dtypes_are_static(folder):
    loader = Loader(folder, **OPTIONS, include=EVERYTHING, shard_count=2)
    element = loader.dataset().element_spec
    assert element == loader.element_spec
    assert list(element) and set(element) == set(loader.spec)
    for name, spec in element.items():
        expected = loader.spec[name]
        assert spec.shape == expected.shape
        assert spec.dtype == (tf.string if expected.dtype.hasobject else tf.as_dtype(expected.dtype))
    assert element["image"].shape == (2, 16, 16, 3)


def test_the_memory_is_adopted_and_returned(folder):
    loader = Loader(folder, **OPTIONS)
    made = set()
    original = loader._rows_in_order

    def noting(step, start, stop):
        batch = original(step, start, stop)
        made.add(batch["image"].ctypes.data)
        return batch

    loader._rows_in_order = noting
    batches = islice(loader.dataset().as_numpy_iterator(), 40)  # `take` holds one more
    assert {one["image"].ctypes.data for one in batches} <= made
    # AHEAD being made, PREFETCH waiting, one in use here, and two that change hands.
    assert len(made) <= AHEAD + PREFETCH + 3


def test_batches_that_fill_the_machine_are_made_one_by_one(folder, monkeypatch):
    monkeypatch.setattr(stream, "batches_ahead", lambda spec: 0)
    loader = Loader(folder, **OPTIONS)
    for step, element in enumerate(loader.dataset().take(4).as_numpy_iterator()):
        check(element, loader.batch(step))


def test_elements_that_are_kept_stay_as_they_are(folder):
    loader = Loader(folder, **OPTIONS)
    for step, element in enumerate(list(loader.dataset().take(30).as_numpy_iterator())):
        check(element, loader.batch(step))
