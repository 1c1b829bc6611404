"""Every record comes exactly once per epoch, at a place that only seed and epoch decide."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.loader.sampler import Sampler, permute
from tests.support.level_rows import others

SIZES = [1, 2, 3, *(2**k + d for k in (2, 3, 4, 8, 10, 16, 18) for d in (-1, 0, 1))]


@pytest.mark.parametrize("count", others(SIZES, SIZES[:-3]))
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_record_has_exactly_one_place(count, seed):
    for epoch in (0, 1, 12_345):
        image = permute(np.arange(count), count=count, seed=seed, epoch=epoch)
        assert np.array_equal(np.sort(image), np.arange(count))


@given(count=st.integers(1, 2**50), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_a_place_of_a_huge_set_is_found_alone(count, seed, data):
    place = data.draw(st.integers(0, count - 1))
    together = permute(np.array([place, count - 1, 0]), count=count, seed=seed, epoch=np.array([5, 6, 7]))
    assert ((together >= 0) & (together < count)).all()
    assert permute(np.array([place]), count=count, seed=seed, epoch=5)[0] == together[0]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_small_sets_take_every_order_about_equally_often(count):
    draws = 12_000
    epochs = np.repeat(np.arange(draws), count)
    orders = permute(np.tile(np.arange(count), draws), count=count, seed=3, epoch=epochs)
    found = Counter(map(tuple, orders.reshape(draws, count).tolist()))
    possible = int(np.prod(np.arange(1, count + 1)))
    expected = draws / possible
    chi_squared = sum((times - expected) ** 2 / expected for times in found.values())
    assert len(found) == possible
    # The statistic has mean `possible - 1` and variance twice that; 6 deviations leave no room for chance.
    assert chi_squared < possible + 6 * np.sqrt(2 * possible)


def test_neighbors_do_not_stay_neighbors():
    count = 65_537
    image = permute(np.arange(count), count=count, seed=0, epoch=0)
    gaps = np.diff(image)
    assert (np.abs(gaps) == 1).sum() < 20  # 2 expected
    assert Counter(gaps.tolist()).most_common(1)[0][1] < 20
    assert abs(np.corrcoef(np.arange(count), image)[0, 1]) < 0.02
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02


def test_each_place_sees_all_parts_of_the_set_over_the_epochs():
    count, epochs = 1000, 20_000
    seen = permute(np.full(epochs, 17), count=count, seed=9, epoch=np.arange(epochs)) * 10 // count
    counts = np.bincount(seen, minlength=10)
    assert (np.abs(counts - epochs / 10) < 6 * np.sqrt(epochs / 10)).all()


def test_every_seed_and_epoch_has_an_order_of_its_own():
    pairs = itertools.product([*range(19), 2**63], range(20))
    orders = {permute(np.arange(50), count=50, seed=seed, epoch=epoch).tobytes() for seed, epoch in pairs}
    assert len(orders) == 400


def stream(sampler, steps):
    rows = [sampler.rows(step, 0, sampler.batch_size) for step in range(steps)]
    valid = np.concatenate([r.valid for r in rows])
    return np.concatenate([r.records for r in rows])[valid], np.concatenate([r.epochs for r in rows])[valid]


@settings(max_examples=100, deadline=None)
@given(records=st.integers(1, 60), batch=st.integers(1, 70), epochs=st.integers(1, 4), shuffle=st.booleans())
def test_a_finite_stream_holds_every_record_once_an_epoch(records, batch, epochs, shuffle):
    sampler = Sampler(records=records, batch_size=batch, num_epochs=epochs, shuffle=shuffle, seed=4)
    seen, number = stream(sampler, sampler.steps)
    assert len(seen) == records * epochs
    for epoch in range(epochs):
        assert sorted(seen[number == epoch]) == list(range(records))
        if not shuffle:
            assert seen[number == epoch].tolist() == list(range(records))


@settings(max_examples=100, deadline=None)
@given(records=st.integers(1, 60), batch=st.integers(1, 60), epochs=st.integers(1, 4))
def test_drop_remainder_cuts_every_epoch_to_whole_batches(records, batch, epochs):
    if batch > records:
        with pytest.raises(UsageError, match=f"at most {records}"):
            Sampler(records=records, batch_size=batch, drop_remainder=True)
        return
    sampler = Sampler(records=records, batch_size=batch, num_epochs=epochs, drop_remainder=True)
    assert sampler.steps == records // batch * epochs
    for step in range(sampler.steps):
        rows = sampler.rows(step, 0, batch)
        assert rows.valid.all() and len(set(rows.epochs)) == 1 and len(set(rows.records)) == batch


def test_an_endless_stream_straddles_epochs():
    sampler = Sampler(records=7, batch_size=4, seed=1)
    seen, number = stream(sampler, 7)
    assert number.tolist() == [epoch for epoch in range(4) for _ in range(7)]
    assert all(sorted(seen[number == epoch]) == list(range(7)) for epoch in range(4))
    assert sampler.steps is None
    assert sampler.rows(10**12, 0, 4).valid.all()


def test_the_last_batch_of_a_finite_stream_is_padded_and_a_range_of_rows_is_that_of_its_batch():
    rows = Sampler(records=5, batch_size=4, num_epochs=1, shuffle=False).rows(1, 0, 4)
    assert rows.records.tolist() == [4, 0, 0, 0]
    assert rows.valid.tolist() == [True, False, False, False]
    sampler = Sampler(records=11, batch_size=8, seed=2)
    whole, part = sampler.rows(5, 0, 8), sampler.rows(5, 3, 6)
    assert np.array_equal(whole.records[3:6], part.records) and np.array_equal(whole.epochs[3:6], part.epochs)


def test_impossible_values_are_refused():
    for change, message in (
        ({"records": 0}, "at least one record"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"num_epochs": 0}, "num_epochs"),
    ):
        with pytest.raises(UsageError, match=message):
            Sampler(**{"records": 5, "batch_size": 2, **change})
