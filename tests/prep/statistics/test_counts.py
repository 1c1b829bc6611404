"""Do counts of small integers, which are made by their bits, say what the voxels say?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.statistics import counts
from halofeed.prep.statistics.counts import count_intensities
from halofeed.prep.voxels.intensity import STORES, IntensityPlan, as_numbers


@settings(deadline=None, max_examples=100)
@given(
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16", "int32", "float32"]),
    mask_dtype=st.sampled_from([None, "uint8", "uint16", "int32"]),
    above=st.sampled_from([None, -5, 0, 2.5, 30]),
    seed=st.integers(0, 99),
)
def test_what_is_counted_lies_in_the_mask_and_above_the_threshold(
    dtype: str, mask_dtype: str | None, above: float | None, seed: int
) -> None:
    random = np.random.default_rng(seed)
    ends = (0, 100) if dtype.startswith("u") else (-100, 100)
    array = random.integers(*ends, (5, 16, 7)).astype(dtype)[:, ::2, ::-1]
    mask = (
        None if mask_dtype is None else random.choice([0, 0, 1, 256], (5, 16, 7)).astype(mask_dtype)[:, ::2]
    )
    wanted = array if mask is None else array[mask != 0]
    wanted = wanted if above is None else wanted[wanted > above]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_SLAB_VOXELS", 100)
        patch.setattr(counts, "_MOST_COUNTED", 30)
        found = count_intensities(array, mask, above)
    values, numbers = np.unique(wanted, return_counts=True)
    assert found.values.tolist() == values.tolist() and found.counts.tolist() == numbers.tolist()


@pytest.mark.parametrize("store", STORES)
def test_stored_numbers_are_the_values_again(store: str) -> None:
    values: Any = np.array([[[0.0, 1.0, 128.0]]])
    if store != "uint8":
        assert as_numbers(IntensityPlan(store=store).apply(values), store).tolist() == values.tolist()
