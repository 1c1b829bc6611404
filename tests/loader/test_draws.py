"""Each record is drawn as often as its weight, classes or foreground require, exactly and from any step."""

import math
import shutil
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader import Loader, Mixture
from halofeed.loader.batch import join_id
from halofeed.loader.sampler import Draws, RepeatFactor, Sampler
from tests.support.batches import flip, joined
from tests.support.volume_writer import draw_scans, write_scans


def epoch_of(draws, epoch, seed=0):
    return draws.at(np.arange(draws.slots), np.full(draws.slots, epoch), seed)


@given(
    weights=st.lists(st.one_of(st.integers(1, 50), st.floats(0.001, 100.0)), min_size=1, max_size=40),
    seed=st.integers(0, 2**64 - 1),
)
@settings(deadline=None, max_examples=60)
def test_an_epoch_draws_each_entry_its_share_rounded_down_or_up(weights, seed):
    weights, slots = np.array(weights, float), len(weights)
    draws = Draws.weighted(slots, np.arange(len(weights)), weights)
    share = weights / weights.sum() * slots
    for epoch in range(5):
        counts = np.bincount(epoch_of(draws, epoch, seed), minlength=len(weights))
        assert counts.sum() == slots
        assert (counts >= np.floor(share - 1e-6)).all() and (counts <= np.ceil(share + 1e-6)).all()


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=20)
def test_over_many_epochs_a_share_is_kept_within_a_few_draws(weights, seed):
    weights = np.array(weights)
    draws = Draws.weighted(len(weights), np.arange(len(weights)), weights)
    counts = sum(np.bincount(epoch_of(draws, epoch, seed), minlength=len(weights)) for epoch in range(1000))
    assert np.abs(counts - weights / weights.sum() * len(weights) * 1000).max() < 8


def classified(draw, counts):
    examples = draw(sum(counts), task="classification")
    for example, label in zip(examples, np.repeat(np.arange(len(counts)), counts), strict=True):
        example["label"] = int(label)
    return examples


def rows_of(loader, steps):
    return joined([loader.batch(step) for step in range(steps)])


def test_classes_are_equally_frequent_or_have_their_shares_and_so_are_the_records_of_one(draw, write):
    folder = write(classified(draw, [1, 3, 8]))
    rows = rows_of(Loader(folder, batch_size=4, seed=3, draw_by="class"), 30)
    for epoch in range(10):
        labels = rows["label"][12 * epoch : 12 * epoch + 12]
        assert Counter(labels.tolist()) == {0: 4, 1: 4, 2: 4}
    per_record = Counter(join_id(rows["id"]).tolist())
    for label, most in ((0, 40), (1, 14), (2, 5)):
        held = {int(i) for i in join_id(rows["id"])[rows["label"] == label]}
        assert all(abs(per_record[i] - 40 / len(held)) <= 4 for i in held) and most
    rows = rows_of(Loader(folder, batch_size=12, draw_by={0: 3, 2: 1}), 5)
    assert Counter(rows["label"].tolist()) == {0: 45, 2: 15}


def slow_repeat_factors(classes, threshold):
    """By the definition of LVIS: r(c) = max(1, sqrt(t / f(c))), and a record has the largest of its classes."""
    share = {
        label: sum(label in held for held in classes) / len(classes) for held in classes for label in held
    }
    factors = {label: max(1.0, math.sqrt(threshold / f)) for label, f in share.items()}
    return [max([1.0, *(factors[label] for label in held)]) for held in classes]


@given(st.lists(st.sets(st.integers(1, 5), max_size=4), min_size=1, max_size=12), st.floats(0.001, 1.0))
def test_repeat_factors_are_those_of_lvis(classes, threshold):
    pairs = np.array([(n, c) for n, held in enumerate(classes) for c in held], np.int64).reshape(-1, 2).T
    found = RepeatFactor(threshold=threshold).weights(*pairs, count=len(classes))
    np.testing.assert_allclose(found, slow_repeat_factors(classes, threshold), rtol=1e-12)


def test_records_of_rare_classes_are_drawn_by_their_repeat_factors_from_any_step(draw, write):
    folder = write(classified(draw, [1, 3, 16]))
    rule = RepeatFactor(threshold=0.8)
    loader = Loader(folder, batch_size=5, seed=3, draw_by=rule)
    rows = rows_of(loader, 40)
    counts = Counter(rows["label"].tolist())
    weights = np.array([4.0, 3 * math.sqrt(0.8 / 0.15), 16.0])
    for label, expected in enumerate(weights / weights.sum() * 200):
        assert abs(counts[label] - expected) <= 4
    again = Loader(folder, batch_size=5, seed=3, draw_by=rule)
    np.testing.assert_array_equal(join_id(again.batch(27)["id"]), join_id(rows["id"])[135:140])
    half = Loader(folder, batch_size=10, seed=3, draw_by=rule, shard_index=1, shard_count=2)
    np.testing.assert_array_equal(join_id(half.batch(3)["id"]), join_id(rows["id"])[35:40])
    with pytest.raises(UsageError, match=r"RepeatFactor: threshold: expected a share"):
        RepeatFactor(threshold=1.5)


def test_objects_decide_in_detection(draw, write):
    examples = draw(20)
    folder = write(examples)
    held = {example["id"]: set(example["classes"].tolist()) for example in examples}
    empty = {identity for identity, classes in held.items() if not classes}
    assert 0 < len(empty) < 15
    rows = rows_of(Loader(folder, batch_size=20, draw_by="foreground"), 10)
    assert sum(identity in empty for identity in join_id(rows["id"]).tolist()) == 100
    rows = rows_of(Loader(folder, batch_size=20, draw_by="class"), 40)
    assert not set(join_id(rows["id"]).tolist()) & empty
    # A record is drawn for each of its classes.
    holders = Counter(name for classes in held.values() for name in classes)
    share = {i: sum(1 / holders[name] for name in classes) for i, classes in held.items()}
    expected = {i: 800 * value / len(holders) for i, value in share.items()}
    found = Counter(join_id(rows["id"]).tolist())
    assert all(abs(found[i] - expected[i]) < 12 for i in expected)


@pytest.mark.parametrize(("shape", "dtype", "channels"), [((6, 8, 10), "int16", 1), ((20, 24), "uint8", 3)])
def test_the_label_decides_in_segmentation(tmp_path, shape, dtype, channels):
    scans = draw_scans({"train": 12}, shape=shape, dtype=dtype, channels=channels)
    for number, scan in enumerate(scans):
        scan.label[...] = np.where(scan.label > 0, scan.label, 0) if number % 4 == 0 else 0
    with_foreground = {scan.id for scan in scans if scan.label.any()}
    assert 0 < len(with_foreground) < 6
    folder = write_scans(tmp_path / "1.0.0", scans)
    rows = rows_of(Loader(folder, batch_size=12, draw_by="foreground"), 4)
    assert sum(identity in with_foreground for identity in join_id(rows["id"]).tolist()) == 24


def test_weights_come_by_record_or_from_ids_and_of_chosen_records(draw, write):
    folder = write(draw(10))
    ids = join_id(Loader(folder, batch_size=10, shuffle=False).batch(0)["id"])
    odd = Loader(folder, batch_size=5, where=lambda ids: ids % 2 == 1, draw_by=lambda ids: ids * 0 + 1.0)
    assert odd.num_records == 5 and sorted(join_id(odd.batch(0)["id"]).tolist()) == sorted(
        ids[ids % 2 == 1].tolist()
    )
    weights = np.arange(10) % 2
    rows = rows_of(Loader(folder, batch_size=10, draw_by=weights), 3)
    assert Counter(join_id(rows["id"]).tolist()) == dict.fromkeys(ids[1::2].tolist(), 6)


def test_a_mixture_draws_so_too_and_a_state_of_other_draws_is_refused(draw, write):
    folder = write(classified(draw, [1, 9]))
    with pytest.raises(UsageError, match="draw_by"):
        Loader(folder, batch_size=4).restore(Loader(folder, batch_size=4, draw_by="class").state(3))
    mixture = Mixture({folder: 1}, batch_size=10, draw_by="class")
    assert Counter(rows_of(mixture, 4)["label"].tolist()) == {0: 20, 1: 20}


def test_the_millionth_step_of_ten_million_records_is_as_quick_as_the_first():
    count = 10_000_000
    draws = Draws.weighted(count, np.arange(count), 1.0 + np.arange(count) % 7)
    sampler = Sampler(records=count, batch_size=1024, seed=1, draws=draws)
    sampler.rows(0, 0, 1024)
    seconds = []
    for step in (1, 1_000_000):
        start = time.process_time()
        sampler.rows(step, 0, 1024)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 20 * seconds[0] + 0.1


def test_what_cannot_be_drawn_is_refused(draw, write):
    for draw_by, words in (
        ("clas", "expected 'class'"),
        ({"dragon": 1}, "not known"),
        ({0: -1}, "0 and more"),
        ([1.0, 2.0], "each of 5 records"),
        ([0.0] * 5, "one of them above 0"),
        (lambda ids: ids[:2], "each of 5 records"),
    ):
        with pytest.raises(UsageError, match=words):
            Loader(write(draw(5)), batch_size=2, draw_by=draw_by)
    classes = write(draw(5, task="classification"))
    for training, draw_by, words in (
        (False, "class", "every record once"),
        (True, "foreground", "have a foreground"),
    ):
        with pytest.raises(UsageError, match=words):
            Loader(classes, batch_size=2, training=training, draw_by=draw_by)


def test_a_record_whose_classes_cannot_be_read_is_an_error_or_never_drawn(draw, write, tmp_path):
    folder = tmp_path / "1.0.0"
    shutil.copytree(write(classified(draw, [10, 10]), shards=1), folder)
    shard = next(folder.glob("*.tfrecord-*-of-*[0-9]"))
    data = shard.read_bytes()
    # The key is not a raw value, so that its bytes are summed with the classes'.
    flip(shard, data.index(b"image/key/source", len(data) // 2))
    with pytest.raises(CorruptFileError, match="checksum is wrong"):
        Loader(folder, batch_size=20, draw_by="class")
    loader = Loader(folder, batch_size=20, draw_by="class", on_corrupt="skip")
    rows = rows_of(loader, 20)
    assert (
        Counter(rows["label"].tolist()) == {0: 200, 1: 200} and len(set(join_id(rows["id"]).tolist())) == 19
    )
    assert not loader.skipped
    # A record without classes is drawn once, and one that cannot be read is not.
    loader = Loader(folder, batch_size=20, draw_by=RepeatFactor(), on_corrupt="skip")
    assert len(set(join_id(rows_of(loader, 20)["id"]).tolist())) == 19 and not loader.skipped
