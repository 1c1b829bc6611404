"""Data sets that go to a framework are one epoch per iteration, in another order each time, with every record once."""

import itertools
import json
import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import halofeed
from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, Mixture
from tests.support.batches import same
from tests.support.scripts import run_script

RECORDS = 27


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set with a class for each of its records, so that a record's label is its number."""
    made = tmp_path_factory.mktemp("numbered")
    for number in range(RECORDS):
        path = made / "photos" / f"class{number:02}" / "one.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), 9 * number, np.uint8)).save(path)
    return halofeed.convert(made / "photos", made / "data", layout="folders", height=8, width=8).path


def labels(batches) -> list[int]:
    return [label for batch in batches for label in np.asarray(batch["label"]).tolist()]


def is_complete(numbers) -> bool:
    return sorted(numbers) == list(range(RECORDS))


@pytest.mark.parametrize("batch_size", [1, 4, 9, 27, 40])
def test_each_iteration_of_tf_data_has_every_record_once_in_another_order(folder, batch_size):
    loader = Loader(folder, batch_size=batch_size, seed=3, augment=[FlipLeftRight()])
    dataset = loader.dataset()
    assert len(dataset) == loader.steps_per_epoch == -(-RECORDS // batch_size)
    epochs = [list(dataset.as_numpy_iterator()) for _ in range(5)]
    assert all(is_complete(labels(epoch)) and len(epoch) == len(dataset) for epoch in epochs)
    assert len({tuple(labels(epoch)) for epoch in epochs}) == 5
    # Each is an epoch of the loader, as a stream of its own has it.
    stream = Loader(folder, batch_size=1, seed=3, augment=[FlipLeftRight()])
    for number, epoch in enumerate(epochs):
        one_by_one = [stream.batch(number * RECORDS + place) for place in range(RECORDS)]
        for name in ("image", "label", "id"):
            found = np.concatenate([batch[name] for batch in epoch])
            np.testing.assert_array_equal(found, np.concatenate([one[name] for one in one_by_one]))


def test_epochs_of_complete_batches_are_the_batches_of_the_loader(folder):
    for options in ({"batch_size": 9}, {"batch_size": 4, "drop_remainder": True}):
        loader = Loader(folder, **options, seed=1)
        for start in (0, 2, 3, 31):
            steps = itertools.count(start)
            dataset = loader.dataset(start)
            for _ in range(3):
                for batch in dataset.as_numpy_iterator():
                    same(batch, loader.batch(next(steps)))
            assert next(steps) == start + 3 * loader.steps_per_epoch


def test_repeat_gives_the_batches_without_end(folder):
    loader = Loader(folder, batch_size=4, seed=3)
    dataset = loader.dataset(5, repeat=True)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    for step, batch in zip(range(5, 30), dataset.as_numpy_iterator(), strict=False):
        same(batch, loader.batch(step))


def test_an_iteration_that_ends_early_begins_again_so_that_nothing_is_lost(folder):
    # Keras takes a batch to find the shapes, and makes iterators that it does not use.
    whole = list(Loader(folder, batch_size=4, seed=3).dataset().as_numpy_iterator())
    dataset = Loader(folder, batch_size=4, seed=3).dataset()
    for count in (0, 1, 6):
        list(dataset.take(count))
    iter(dataset)
    for batch, expected in zip(dataset.as_numpy_iterator(), whole, strict=True):
        same(batch, expected)
    assert labels(dataset.take(7)) != labels(whole)


def test_an_iteration_is_complete_with_its_last_batch_even_if_none_is_asked_for_after_it(folder):
    dataset = Loader(folder, batch_size=4, seed=3).dataset()
    epochs = [labels(dataset.take(7)) for _ in range(3)]
    assert all(map(is_complete, epochs)) and len(set(map(tuple, epochs))) == 3


def test_operations_of_tf_data_keep_the_epochs(folder):
    dataset = Loader(folder, batch_size=4, seed=3).dataset(as_supervised=True)
    changed = dataset.map(lambda image, label: label).unbatch().batch(2).prefetch(3)
    epochs = [np.concatenate(list(changed.as_numpy_iterator())).tolist() for _ in range(3)]
    repeated = np.concatenate(list(dataset.repeat(2).map(lambda image, label: label).as_numpy_iterator()))
    epochs += [repeated[:RECORDS].tolist(), repeated[RECORDS:].tolist()]
    assert all(map(is_complete, epochs)) and len(set(map(tuple, epochs))) == 5


@pytest.mark.parametrize("start", [0, 3, 7, 17])
def test_a_data_set_that_is_resumed_gives_the_same_batches(folder, start):
    loader = Loader(folder, batch_size=4, seed=3)
    first = loader.dataset()
    expected = [batch for _ in range(6) for batch in first.as_numpy_iterator()]
    step = Loader(folder, batch_size=4, seed=3).restore(loader.state(start))
    resumed = loader.dataset(step)
    found = [batch for _ in range(3) for batch in resumed.as_numpy_iterator()]
    assert len(found) == 3 * loader.steps_per_epoch
    for batch, other in zip(found, expected[start:], strict=False):
        same(batch, other)


def test_shapes_stay_the_same_on_request_and_padding_is_not_valid(folder):
    loader = Loader(folder, batch_size=4, seed=3)
    dataset = loader.dataset(static_shapes=True)
    assert dataset.element_spec == loader.element_spec
    *_, last = dataset.as_numpy_iterator()
    assert last["image"].shape[0] == 4 and last["valid"].tolist() == [True, True, True, False]
    *_, (_, _, weights) = loader.dataset(as_supervised=True, static_shapes=True).as_numpy_iterator()
    assert weights.tolist() == [1, 1, 1, 0]
    *_, shorter = loader.dataset().as_numpy_iterator()
    assert shorter["image"].shape[0] == 3 and shorter["valid"].all()


def test_hosts_share_each_epoch_and_uneven_last_batches_are_refused(folder):
    def hosts(**options):
        return [
            Loader(folder, batch_size=4, seed=3, shard_index=at, shard_count=2, **options) for at in (0, 1)
        ]

    datasets = [loader.dataset(static_shapes=True) for loader in hosts()]
    for _ in range(3):
        rows = [batch for dataset in datasets for batch in dataset.as_numpy_iterator()]
        assert is_complete(np.concatenate([batch["label"][batch["valid"]] for batch in rows]))
    for ask in (Loader.dataset, Loader.by_step, lambda one: one.dataset(as_supervised=True)):
        with pytest.raises(UsageError, match=r"batch_size 4 .* drop_remainder=True to the loader"):
            ask(hosts()[0])
    for fixed in (hosts(drop_remainder=True)[0].dataset(), hosts()[0].dataset(repeat=True)):
        assert next(iter(fixed))["label"].shape == (2,)


def test_a_stream_that_ends_stays_one_iteration_and_is_not_repeated(folder):
    for options in ({"num_epochs": 2}, {"training": False}):
        loader = Loader(folder, batch_size=4, **options)
        dataset = loader.dataset()
        for _ in range(2):
            for step, batch in enumerate(dataset.as_numpy_iterator()):
                same(batch, loader.batch(step))
        for ask in (loader.dataset, loader.by_step):
            with pytest.raises(
                UsageError, match=r"repeat: this stream ends after [0-9]+ batches; leave num_epochs"
            ):
                ask(repeat=True)


def test_an_iteration_of_a_mixture_has_as_many_rows_as_there_are_records(folder):
    mixed = Mixture({folder: 2, f"{folder}/": 1}, batch_size=5)
    assert mixed.steps_per_epoch == -(-2 * RECORDS // 5) == len(mixed.dataset())
    steps, dataset = itertools.count(), mixed.dataset()
    for _ in range(2):
        for batch in dataset.as_numpy_iterator():
            same(batch, mixed.batch(next(steps)))


def test_the_replicas_of_a_strategy_get_each_record_once_per_epoch(folder):
    strategy = tf.distribute.get_strategy()
    dataset = Loader(folder, batch_size=4, seed=3).distributed(strategy)
    epochs = [[batch["label"][batch["valid"]].numpy().tolist() for batch in dataset] for _ in range(3)]
    found = [list(itertools.chain(*epoch)) for epoch in epochs]
    assert all(map(is_complete, found)) and len(set(map(tuple, found))) == 3


def test_steps_for_torch_are_epochs_and_batches_by_step_are_those_of_the_data_set(folder):
    loader = Loader(folder, batch_size=4, seed=3)
    batches = pickle.loads(pickle.dumps(loader.by_step()))
    sampler, dataset = batches.sampler(), loader.dataset()
    for _ in range(3):
        expected = list(dataset.as_numpy_iterator())
        for step, batch in zip(sampler, expected, strict=True):
            same(batches[step], batch)
    next(iter(sampler))
    assert len(sampler) == 7 and list(sampler) == list(range(21, 28))
    sampler.set_epoch(1)
    assert list(sampler) == list(range(7, 14)) == list(batches.sampler(start_step=7))
    with pytest.raises(TypeError, match=r"sampler=batches.sampler\(\)"):
        len(batches)
    for step in (0, 6, 7, 40):
        same(loader.by_step(repeat=True)[step], loader.batch(step))


KERAS = f"""
import json, sys, warnings
import keras
from halofeed.loader import Loader
RECORDS = {RECORDS}

class Records(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="records")
        self.counts = self.add_variable((RECORDS,), "zeros", name="counts")
    def update_state(self, label, scores, sample_weight=None):
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(label, RECORDS), axis=0))
    def result(self):
        return keras.ops.sum(self.counts)

class Epochs(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.found = []
    def on_epoch_end(self, epoch, logs=None):
        self.found.append(keras.ops.convert_to_numpy(records.counts).tolist())

found = []
for options in json.loads(sys.argv[2]):
    records, epochs = Records(), Epochs()
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(RECORDS)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[records], steps_per_execution=options["steps_per_execution"])
    dataset = Loader(sys.argv[1], batch_size=4, seed=3).dataset(as_supervised=True, repeat=options["repeat"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(
            dataset, epochs=5, steps_per_epoch=options["steps_per_epoch"], shuffle=False, verbose=0,
            callbacks=[epochs],
        )
    warned = [str(one.message) for one in caught if "ran out of data" in str(one.message)]
    found.append([epochs.found, warned])
print(json.dumps([keras.backend.backend(), found]))
"""
FITS = [
    {"steps_per_execution": at_once, "steps_per_epoch": steps, "repeat": False}
    for at_once in (1, 3)
    for steps in (None, 7)
]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras_counts_every_record_once_in_each_of_five_epochs(folder, backend, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # An epoch of 7 batches is no multiple of 3 steps per execution.
    endless = {"steps_per_execution": 1, "steps_per_epoch": 5, "repeat": True}
    name, found = json.loads(run_script(KERAS, folder, json.dumps([*FITS, endless])).splitlines()[-1])
    assert name == backend
    *fits, (endless_epochs, _) = found
    for options, (epochs, warned) in zip(FITS, fits, strict=True):
        assert epochs == [[1.0] * RECORDS] * 5, options
        assert not warned, options
    # A pass of the endless stream goes over several of Keras' epochs.
    assert [sum(epoch) for epoch in endless_epochs] == [20] * 5
    assert set(np.sum(endless_epochs, axis=0)) == {3, 4}


TORCH = """
import json, sys
from torch.utils.data import DataLoader
from halofeed.loader import FlipLeftRight, Loader
loader = Loader(sys.argv[1], batch_size=4, seed=3, augment=[FlipLeftRight()])
batches = loader.by_step()
complete = DataLoader(batches, batch_size=None, sampler=batches.sampler(), num_workers=2)
records = DataLoader(loader.records, batch_size=4, shuffle=True)
epochs = lambda data: [[label for batch in data for label in batch["label"].tolist()] for _ in range(5)]
print(json.dumps([len(complete), epochs(complete), epochs(records)]))
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_counts_every_record_once_in_each_of_five_epochs(folder):
    steps, *ways = json.loads(run_script(TORCH, folder).splitlines()[-1])
    assert steps == 7
    for epochs in ways:
        assert all(map(is_complete, epochs)) and len(set(map(tuple, epochs))) == 5


GRAIN = """
import json, sys
import grain
from halofeed.loader import FlipLeftRight, Loader
loader = Loader(sys.argv[1], batch_size=4, seed=3, augment=[FlipLeftRight()])
steps, batches = loader.steps_per_epoch, loader.by_step()
records = grain.MapDataset.source(loader.records).shuffle(seed=7).batch(4).repeat(5)
complete = grain.MapDataset.range(5 * steps).map(batches.__getitem__)
labels = lambda data: [batch["label"].tolist() for batch in data]
print(json.dumps([labels(data) for data in (records, complete, complete.to_iter_dataset())]))
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("grain") is None, reason="grain is not installed")
def test_grain_counts_every_record_once_in_each_of_five_epochs(folder):
    for batches in json.loads(run_script(GRAIN, folder).splitlines()[-1]):
        assert len(batches) == 35
        epochs = [list(itertools.chain(*batches[7 * number : 7 * number + 7])) for number in range(5)]
        assert all(map(is_complete, epochs)) and len(set(map(tuple, epochs))) == 5
