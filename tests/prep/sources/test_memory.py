"""Do inputs that are decoded at once keep to one budget, whichever threads decode them, and does none wait for ever?"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.system.memory import (
    MEBIBYTE,
    TOO_MUCH_MEMORY,
    MemoryBudget,
    RetryWhenMemoryFree,
    Share,
    is_out_of_memory,
    retry_when_memory_free,
)


def test_what_takes_more_than_the_budget_is_rejected_with_both_figures() -> None:
    share = MemoryBudget(2048 * MEBIBYTE).share()
    share.reserve(2048 * MEBIBYTE)
    with pytest.raises(SourceError) as caught:
        share.reserve(2048 * MEBIBYTE + 1)
    assert (caught.value.stage, caught.value.reason) == ("decode", TOO_MUCH_MEMORY)
    assert "2,049 MiB" in caught.value.detail and "--max-memory allows 2,048" in caught.value.detail


def test_the_sum_of_what_many_threads_hold_stays_below_the_budget() -> None:
    budget, held, most, lock = MemoryBudget(1000), 0, 0, threading.Lock()

    def work(sizes: tuple[int, int]) -> int:
        def convert(share: Share) -> int:
            nonlocal held, most
            mine = 0
            try:
                for size in sizes:  # the second, larger one is found out later, as of a mask beside its scan
                    share.reserve(size)
                    with lock:
                        held += size - mine
                        most = max(most, held)
                    mine = size
                    time.sleep(0.001)
                return sizes[1]
            finally:
                with lock:
                    held -= mine

        return retry_when_memory_free(budget, convert)

    generator = np.random.default_rng(0)
    sizes = [tuple(sorted(generator.integers(1, 1001, 2).tolist())) for _ in range(300)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(work, sizes))
    assert done == [second for _, second in sizes]
    assert 0 < most <= 1000
    assert budget.used == 0


def test_a_large_input_is_not_overtaken_for_ever_by_small_ones() -> None:
    budget, stop, finished = MemoryBudget(100), threading.Event(), threading.Event()

    def small() -> None:
        while not stop.is_set():
            retry_when_memory_free(budget, lambda share: (share.reserve(30), time.sleep(0.001)))

    threads = [threading.Thread(target=small) for _ in range(4)]
    for thread in threads:
        thread.start()
    large = threading.Thread(
        target=lambda: retry_when_memory_free(budget, lambda share: (share.reserve(100), finished.set()))
    )
    large.start()
    try:
        assert finished.wait(10)
    finally:
        stop.set()
        for thread in [*threads, large]:
            thread.join()
    assert budget.used == 0


def test_what_failed_beside_others_is_tried_once_more_alone() -> None:
    budget, beside = MemoryBudget(100), []

    def work(share: Share) -> str:
        share.reserve(10)
        beside.append(budget.used)
        try:
            raise MemoryError
        except MemoryError:
            return str(share.alone_or_never())

    assert retry_when_memory_free(budget, work).startswith("decode: takes too much memory (about 1 MiB; this")
    assert beside == [10, 100], "the second time nobody else holds anything"
    assert budget.used == 0


def test_an_input_that_has_to_wait_holds_nothing_meanwhile() -> None:
    budget = MemoryBudget(100)
    other, share = budget.share(), budget.share()
    other.reserve(60)
    share.reserve(30)
    with pytest.raises(RetryWhenMemoryFree):
        share.reserve(50)
    waiting = threading.Thread(target=share.wait)
    waiting.start()
    deadline = time.monotonic() + 120
    while budget.used != 60 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert budget.used == 60
    other.free()
    waiting.join(120)
    assert budget.used == 50


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8.00 EiB"),
        ValueError("std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("Insufficient memory (case 4)"),
    ],
)
def test_a_lack_of_memory_is_known_whoever_says_it(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("expected 8 bytes"))
