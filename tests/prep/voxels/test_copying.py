"""Are voxels the same, wherever they are moved to, and whoever's memory they end in?"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Shape
from halofeed.prep.voxels.copying import copy_voxels, in_order
from halofeed.prep.voxels.phantom import stored
from tests.support.phantom import ORIENTATIONS

DTYPES = st.sampled_from(["uint8", "int16", "int32", "float32", "float64"])
SIDES = st.tuples(*[st.integers(1, 20)] * 3)
FLIPS = st.sets(st.integers(0, 2)).map(lambda axes: tuple(sorted(axes)))


def numbered(shape: tuple[int, ...], dtype: str) -> Any:
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


@settings(deadline=None, max_examples=200)
@given(
    shape=SIDES, dtype=DTYPES, flips=FLIPS, order=st.permutations(range(3)), cut=st.booleans(), data=st.data()
)
def test_put_in_order_every_voxel_keeps_its_place(
    shape: tuple[int, ...], dtype: str, flips: tuple[int, ...], order: list[int], cut: bool, data: Any
) -> None:
    seen = np.flip(numbered(shape, dtype), flips).transpose(order)
    if cut:
        seen = seen[:, 1:] if seen.shape[1] > 1 else seen
    expected = seen.tolist()
    result = in_order(seen, spare=data.draw(st.booleans()))
    assert result.flags.c_contiguous and result.dtype == dtype
    assert result.tolist() == expected


@given(shape=SIDES, dtype=DTYPES, flips=FLIPS)
@settings(deadline=None)
def test_a_spare_reversed_volume_is_turned_in_its_own_memory(
    shape: tuple[int, ...], dtype: str, flips: tuple[int, ...]
) -> None:
    stored = numbered(shape, dtype)
    expected = np.flip(stored, flips).copy()
    turned = in_order(np.flip(stored, flips), spare=True)
    assert np.shares_memory(turned, stored)
    assert np.array_equal(turned, expected)


def test_what_is_not_spare_or_cannot_be_written_stays_as_it_was() -> None:
    stored = numbered((3, 4, 5), "int16")
    before = stored.copy()
    in_order(stored[::-1, ::-1])
    stored.flags.writeable = False
    turned = in_order(stored[::-1, ::-1], spare=True)
    assert np.array_equal(stored, before) and np.array_equal(turned, before[::-1, ::-1])


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    first=st.sampled_from(ORIENTATIONS),
    second=st.sampled_from(ORIENTATIONS),
    dtype=st.sampled_from(["uint8", "int16", "uint32", "float32", "int64"]),
    crop=st.integers(0, 2),
)
def test_copying_is_assignment_in_any_order(
    shape: Shape, first: Any, second: Any, dtype: str, crop: int
) -> None:
    numbers = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)

    def held(orientation: Any) -> NDArray[Any]:
        """The same voxels, held in memory in another order."""
        order, direction = orientation
        kept = stored(numbers, orientation)
        return kept[tuple(slice(None, None, step) for step in direction)].transpose(np.argsort(order))

    source, target = held(first), np.zeros_like(numbers)
    order, direction = second
    target = target.transpose(order).copy()[tuple(slice(None, None, step) for step in direction)]
    target = target.transpose(np.argsort(order))
    copy_voxels(source[crop:, :, crop:], target[crop:, :, crop:])
    assert np.array_equal(target[crop:, :, crop:], numbers[crop:, :, crop:])
    assert not target[:crop].any() and not target[:, :, :crop].any()
