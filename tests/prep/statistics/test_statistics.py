"""Are the voxels of every class counted, whatever the mask looks like and however it lies in memory?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.statistics import pictures as statistics
from halofeed.prep.statistics.pictures import count_labels
from tests.support.allocations import traced


def counted(labels: Any) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@settings(deadline=None, max_examples=100)
@given(
    dtype=st.sampled_from(["uint8", "uint16"]),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 40)),
    block=st.integers(1, 40),
    flips=st.sets(st.integers(0, 2)),
    seed=st.integers(0, 99),
)
def test_labels_are_counted_in_pieces_of_any_size_and_order(
    dtype: str, shape: tuple[int, ...], block: int, flips: set[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, np.iinfo(dtype).max, np.prod(shape), dtype, endpoint=True)
    labels = np.repeat(values, block)[: values.size].reshape(shape)
    seen = np.flip(labels, tuple(flips))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_CHUNK_LABELS", 64)  # chunks end within a piece
        for view in (seen, seen.transpose(2, 0, 1), seen[:, ::2, 1:]):
            if view.size:
                assert count_labels(view) == counted(view)


def test_counting_labels_that_are_seen_reversed_copies_none() -> None:
    labels = np.zeros((40, 512, 512), np.uint16)
    labels[10:20, 100:300, 200:400] = 7
    with traced() as memory:
        found = count_labels(labels[:, ::-1, ::-1])
    assert found == {0: labels.size - 400_000, 7: 400_000}
    assert memory.peak < labels.nbytes / 4
