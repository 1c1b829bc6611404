"""Are values stored as they were promised, and do counts add up to what the voxels say?"""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halofeed.errors import SourceError
from halofeed.prep.voxels.counts import (
    ValueCounts,
    count_intensities,
    mean_and_deviation,
    merge_counts,
    percentile,
    percentile_window,
)
from halofeed.prep.voxels.intensity import STORES, WINDOWS, IntensityPlan, IntensityWindow, to_bfloat16
from halofeed.schemas.statistics import Statistics
from tests.support.allocations import traced

ABDOMEN = WINDOWS["abdomen"]
IN_BYTES = IntensityPlan(store="uint8", window=ABDOMEN)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))


def store_as(values: Any, window: IntensityWindow | None, store: str) -> Any:
    return IntensityPlan(store=store, window=window).apply(values)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_uint8_runs_from_the_windows_low_to_its_high_rounded_half_to_even(dtype):
    values = np.arange(-2000, 3000, dtype=dtype).reshape(5, 10, 100)
    stored = IN_BYTES.apply(values)
    assert stored.dtype == np.uint8
    for value, ours in zip(values.ravel().tolist(), stored.ravel().tolist(), strict=True):
        exact = Fraction(int(min(max(value, -160), 240)) + 160) * 255 / 400
        assert ours == round(exact)  # Python rounds a fraction half to even
    assert stored.ravel()[[2000 - 160, 2000 + 240]].tolist() == [0, 255]
    known = {"abdomen": (-160, 240), "bone": (-500, 1300), "brain": (0, 80), "liver": (-45, 105)}
    known |= {"lung": (-1350, 150), "mediastinum": (-125, 225)}
    assert {name: (window.low, window.high) for name, window in WINDOWS.items()} == known


def test_whole_and_fractional_values_become_int16_hu_and_stored_numbers_lead_back():
    values = np.array([[[-1024.0, -0.5, 0.5, 1.5, 2.4]]])
    assert store_as(values, None, "int16").ravel().tolist() == [-1024, 0, 0, 2, 2]
    assert store_as(values, IntensityWindow(low=-3, high=1), "int16").ravel().tolist() == [-3, 0, 0, 1, 1]
    assert store_as(values.astype(np.float32), ABDOMEN, "float32").ravel().tolist() == pytest.approx(
        [-160, -0.5, 0.5, 1.5, 2.4]
    )
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    assert store_as(values, None, "int16") is values
    values = np.arange(-160, 241, dtype=np.int16).reshape(1, 1, -1)
    slope, intercept = IN_BYTES.scale
    back = slope * IN_BYTES.apply(values).astype(float) + intercept
    assert np.abs(back - values).max() <= slope / 2 + 1e-9
    for plan in (IntensityPlan(store="int16", window=ABDOMEN), IntensityPlan(store="float32")):
        assert plan.scale == (1, 0)


@pytest.mark.parametrize("dtype", ["int32", "uint16", "float32", "float64"])
@pytest.mark.parametrize("value", [40000, 32768])
def test_a_value_beyond_int16_refuses_the_scan_unless_a_window_cuts_it(dtype, value):
    values = np.array([[[0, value]]], dtype)
    with pytest.raises(SourceError, match=rf"intensity: values do not fit int16 \(.*{value}"):
        store_as(values, None, "int16")
    assert store_as(values, ABDOMEN, "int16").tolist() == [[[0, 240]]]
    assert store_as(values, None, "float32").tolist() == [[[0, value]]]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_refuses_the_scan(store, value):
    values = np.zeros((3, 2, 2), np.float32)
    values[2, 1, 1] = value
    with pytest.raises(SourceError, match="voxels are not numbers"):
        store_as(values, ABDOMEN, store)
    with pytest.raises(SourceError, match="voxels are not numbers"):
        count_intensities(values)


@settings(deadline=None)
@given(values=arrays.arrays(np.float32, SHAPES, elements=st.floats(-(2.0**126), 2.0**126, width=32)))
def test_bfloat16_is_rounded_half_to_even(values):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(to_bfloat16(values), expected)
    assert np.array_equal(store_as(values, None, "bfloat16"), expected)


@settings(deadline=None)
@given(
    store=st.sampled_from(STORES),
    dtype=st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "float32", "float64"]),
    seed=st.integers(0, 99),
)
def test_every_type_of_array_is_stored_alike(store, dtype, seed):
    values = np.random.default_rng(seed).integers(-300, 300, (3, 4, 5))
    if dtype.startswith("u"):
        values = abs(values)
    values = (values // 4 if dtype in ("int8", "uint8") else values).astype(dtype)
    expected = store_as(values.astype(np.float64), ABDOMEN, store)
    ours = store_as(values, ABDOMEN, store)
    assert ours.dtype == expected.dtype and np.array_equal(ours, expected)
    # With channels, and with any strides.
    assert np.array_equal(store_as(values[..., None], ABDOMEN, store)[..., 0], expected)
    assert np.array_equal(store_as(values[::-1, :, ::2], ABDOMEN, store), expected[::-1, :, ::2])


VOLUMES = st.one_of(
    arrays.arrays(np.int16, SHAPES, elements=st.integers(-4096, 4096)),
    arrays.arrays(np.int32, SHAPES, elements=st.integers(-4096, 4096)),
    arrays.arrays(np.float32, SHAPES, elements=st.integers(-4096, 4096)),
)


@settings(deadline=None, max_examples=40)
@given(volumes=st.lists(VOLUMES, min_size=1, max_size=4), data=st.data())
def test_counts_of_whole_values_are_exact_and_add_up_in_any_order(volumes, data):
    counts = [count_intensities(volume) for volume in volumes]
    everything = np.concatenate([volume.ravel() for volume in volumes]).astype(np.float64)
    order = data.draw(st.permutations(range(len(volumes))))
    cut = data.draw(st.integers(0, len(volumes)))
    shuffled = [counts[index] for index in order]
    total = merge_counts([merge_counts(shuffled[:cut]), merge_counts(shuffled[cut:])])
    values, numbers = np.unique(everything, return_counts=True)
    assert np.array_equal(total.values, values) and np.array_equal(total.counts, numbers)
    mean, deviation = mean_and_deviation(total)
    assert (mean, deviation) == pytest.approx((everything.mean(), everything.std()), rel=1e-9, abs=1e-9)
    assert (mean, deviation) == mean_and_deviation(merge_counts(counts)), "bit for bit"
    for percent in (0, 0.5, 10, 50, 99.5, 100):
        assert percentile(total, percent) == np.percentile(everything, percent, method="inverted_cdf")
    documents = [json.loads(json.dumps(part.to_json())) for part in counts]
    again = ValueCounts.from_json(Statistics.total(Statistics(notes=part) for part in documents).notes or {})
    assert np.array_equal(again.values, values) and np.array_equal(again.counts, numbers)


@settings(deadline=None)
@given(values=arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e6, 1e6, width=32)))
def test_fractional_values_are_counted_to_12_binary_digits(values):
    counts = count_intensities(values)
    assert counts.total == values.size
    ours, exact = np.repeat(counts.values, counts.counts), np.sort(values.ravel().astype(np.float64))
    assert (np.abs(ours - exact) <= np.abs(exact) / 4096 + 1e-40).all()


def test_foreground_is_what_the_mask_or_a_threshold_says_also_for_a_window():
    values = np.array([[[-1000, 40, 50]], [[60, 70, 3000]]], np.int16)
    mask = np.array([[[0, 1, 0]], [[2, 0, 0]]], np.uint8)
    assert count_intensities(values, mask).to_json() == {"40": 1, "60": 1}
    assert count_intensities(values, above=-500).to_json() == {"40": 1, "50": 1, "60": 1, "70": 1, "3000": 1}
    assert mean_and_deviation(count_intensities(values, mask)) == (50, 10)
    with pytest.raises(SourceError, match="no foreground found"):
        mean_and_deviation(count_intensities(values, np.zeros_like(mask)))
    values = np.zeros((10, 10, 20), np.float32)
    values[5:] = np.arange(1, 1001).reshape(5, 10, 20)
    assert percentile_window(values, 0.5, 99.5, above=0) == IntensityWindow(low=5, high=995)
    with pytest.raises(SourceError, match="values do not differ"):
        percentile_window(values[:5], 0.5, 99.5)


def test_storing_and_counting_hold_a_slab_at_a_time():
    for dtype in ("int16", "float32"):
        values = np.zeros((96, 256, 256), dtype)
        mask = np.ones(values.shape, np.uint8)
        for job, bound in (
            (lambda values=values: IN_BYTES.apply(values).nbytes, 6e6),
            (lambda values=values, mask=mask: count_intensities(values, mask) and 0, 50e6),
        ):
            with traced() as memory:
                result = job()
            assert memory.peak - result < bound
