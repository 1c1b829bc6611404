"""Do masks of one class each become one label volume, with every overlap refused or counted?"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.voxels.merge import Overlap, merge_class_masks
from halofeed.schemas.errors import SourceError, UsageError


def mask_of(*voxels: int, dtype: str = "uint8") -> NDArray[Any]:
    return np.array(voxels, dtype).reshape(1, 1, -1)


def oracle(masks: list[tuple[int, NDArray[Any]]], overlap: str) -> tuple[list[int], int]:
    """Voxel by voxel: the first or last class that claims it, and how many claims were one too many."""
    chosen, surplus = [], 0
    for voxel in range(masks[0][1].size):
        claims = [value for value, mask in masks if mask.flat[voxel]]
        surplus += max(0, len(claims) - 1)
        chosen.append((claims[-1] if overlap == "last" else claims[0]) if claims else 0)
    return chosen, surplus


@given(
    seed=st.integers(0, 9999),
    values=st.lists(st.integers(1, 65535), min_size=1, max_size=5, unique=True),
    overlap=st.sampled_from(["first", "last"]),
    dtype=st.sampled_from(["bool", "uint8", "int32"]),
)
def test_every_voxel_gets_its_first_or_last_class(
    seed: int, values: list[int], overlap: Overlap, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    masks = [(value, (rng.random((2, 3, 4)) < 0.4).astype(dtype)) for value in values]
    expected, surplus = oracle(masks, overlap)
    labels, overlapped = merge_class_masks(masks, overlap)
    assert labels.ravel().tolist() == expected and overlapped == surplus
    assert labels.dtype == (np.uint16 if max(values) > 255 else np.uint8)


def test_each_mask_of_a_class_adds_to_the_voxels_that_overlap() -> None:
    masks = [(1, mask_of(1, 1, 1, 1)), (2, mask_of(1, 0, 0, 0)), (2, mask_of(0, 1, 1, 0))]
    labels, overlapped = merge_class_masks(masks, "last", may_repeat=True)
    assert labels.tolist() == [[[2, 2, 2, 1]]] and overlapped == 3


def test_an_overlap_is_refused_with_its_classes_and_voxels() -> None:
    with pytest.raises(SourceError, match="2 voxels of class 2 are in class 1 too") as caught:
        merge_class_masks([(1, mask_of(1, 1, 1)), (2, mask_of(0, 1, 1))])
    assert (caught.value.stage, caught.value.reason) == ("annotation", "masks of one scan overlap")


@pytest.mark.parametrize("voxels", [(0, 1, 2), (-1, 0, 0), (3, 4, 4)])
def test_a_mask_of_several_values_is_refused(voxels: tuple[int, ...]) -> None:
    with pytest.raises(SourceError, match="mask of one class holds several values"):
        merge_class_masks([(1, mask_of(*voxels, dtype="int16"))])


def test_a_mask_of_another_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(SourceError, match="class 2: expected 1 x 1 x 3 voxels, got 1 x 1 x 2"):
        merge_class_masks([(1, mask_of(0, 1, 0)), (2, mask_of(1, 0))])


@pytest.mark.parametrize("masks", [[], [(0, mask_of(1))], [(65536, mask_of(1))], [(1, mask_of(1))] * 2])
def test_no_mask_and_impossible_class_values_are_usage_errors(masks: list[tuple[int, NDArray[Any]]]) -> None:
    with pytest.raises(UsageError):
        merge_class_masks(masks, "last")


def test_fractions_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="expected bool or integer"):
        merge_class_masks([(1, mask_of(1, dtype="float32"))])


def test_one_mask_is_alive_at_a_time() -> None:
    earlier: list[weakref.ref[NDArray[Any]]] = []

    def masks() -> Iterator[tuple[int, NDArray[Any]]]:
        for value in range(1, 5):
            assert all(reference() is None for reference in earlier)
            mask = np.zeros((4, 4, 4), np.bool_)
            mask[value - 1] = True
            earlier.append(weakref.ref(mask))
            pair = value, mask
            del mask
            yield pair
            del pair

    labels, _ = merge_class_masks(masks())
    assert labels[:, 0, 0].tolist() == [1, 2, 3, 4]
