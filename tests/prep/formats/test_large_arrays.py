"""The memory of a large array that was freed serves the next one of its size."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.system import large_arrays
from halofeed.system.large_arrays import empty_array

COUNT = 4096


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat arrays of a few pages as large ones."""
    monkeypatch.setattr(large_arrays, "_LEAST_BYTES", 2 * COUNT)
    monkeypatch.setattr(large_arrays, "_MOST_BYTES", 8 * COUNT)
    large_arrays._kept.clear()


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_freed_array_serves_the_next_one_of_its_size() -> None:
    first = empty_array(COUNT, np.int16)
    place = address_of(first)
    del first
    second = empty_array(COUNT // 2, np.float32)
    assert (address_of(second), second.dtype, second.shape) == (place, np.float32, (COUNT // 2,))


def test_no_memory_is_shared_while_a_view_of_it_lives() -> None:
    view = empty_array(COUNT, np.int16).reshape(64, 64)[::-1, 3:].T
    view[...] = 7
    other = empty_array(COUNT, np.int16)
    other[...] = 9
    assert (view == 7).all()


def test_a_kept_block_is_freed_before_an_array_of_another_size() -> None:
    del_me = empty_array(COUNT, np.int16)
    del del_me
    assert len(large_arrays._kept) == 1
    larger = empty_array(2 * COUNT, np.int16)
    assert not large_arrays._kept
    assert larger.nbytes == 4 * COUNT


@pytest.mark.parametrize("count", [0, 1, COUNT - 1, 4 * COUNT + 1])
def test_small_and_huge_arrays_are_not_kept(count: int) -> None:
    array = empty_array(count, np.int16)
    assert array.shape == (count,)
    del array
    assert not large_arrays._kept


def test_threads_never_get_the_same_memory() -> None:
    wrong: list[int] = []

    def fill(number: int) -> None:
        for _ in range(200):
            array = empty_array(COUNT, np.int16)
            array[...] = number
            if (array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
