"""Batches made ahead come in order, no more of them than is said, with their errors in their turn."""

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from halofeed.loader import batch
from halofeed.loader.batch import AHEAD, batches_ahead
from halofeed.loader.prefetcher import Prefetcher
from tests.support.conversions import wait_until
from tests.support.forks import forks


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_items_come_in_order_and_end(ahead):
    def make(step):
        time.sleep(random.random() / 200)
        return step * step

    items = Prefetcher(make, range(40), ahead)
    assert list(items) == [step * step for step in range(40)]
    assert list(items) == []


def test_no_more_are_in_flight_than_said():
    made = []
    items = Prefetcher(made.append, itertools.count(), 2)
    next(items)
    time.sleep(0.05)
    assert made == [0], "one item alone pays for no other"
    for taken in range(2, 30):
        next(items)
        deadline = time.monotonic() + 120
        while len(made) < taken + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.002)
        assert sorted(made) == list(range(taken + 2))


def test_two_are_made_at_the_same_time():
    both = threading.Barrier(2, timeout=120)

    def make(step):
        if step:
            both.wait()
        return step

    assert list(itertools.islice(Prefetcher(make, itertools.count(), 2), 5)) == [0, 1, 2, 3, 4]


def test_an_error_comes_in_its_turn_and_the_next_item_follows():
    def make(step):
        if step in (0, 3, 4):
            raise ValueError(str(step))
        return step

    items, seen = Prefetcher(make, range(7), 2), []
    while True:
        try:
            seen.append(next(items))
        except ValueError as error:
            seen.append(f"error {error}")
        except StopIteration:
            break
    assert seen == ["error 0", 1, 2, "error 3", "error 4", 5, 6]


@pytest.mark.parametrize("of_iterator", [False, True])
def test_an_interrupt_while_waiting_loses_nothing(of_iterator):
    goes = threading.Event()

    def make(step):
        if step == 1:
            goes.wait(20)
        return step

    items = Prefetcher.of(map(make, range(4))) if of_iterator else Prefetcher(make, range(4), 2)
    assert next(items) == 0
    interrupt = threading.Timer(0.05, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the workers of xdist ignore it
    try:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            next(items)
    finally:
        signal.signal(signal.SIGINT, before)
    goes.set()
    assert list(items) == [1, 2, 3]


def test_several_threads_share_the_items_and_a_closed_iterator_ends():
    items, taken = Prefetcher(lambda step: step, range(200), 2), [[], []]
    threads = [threading.Thread(target=lambda own=own: own.extend(items)) for own in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken[0] + taken[1]) == list(range(200))
    items = Prefetcher(lambda step: step, itertools.count(), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    items.close()
    assert list(items) == []


@pytest.mark.parametrize("ahead", [1, 2, 7])
def test_items_of_an_iterator_come_in_order_from_the_beginning_of_a_block_on(ahead):
    made = []
    source = (made.append(number) or number for number in range(100))
    with Prefetcher.of(source, ahead) as items:
        for taken in range(4):
            wait_until(lambda: len(made) == ahead + taken, 60, "items are made")  # noqa: B023
            time.sleep(0.02)
            assert made == list(range(ahead + taken))
            assert next(items) == taken
        began, waited = time.perf_counter(), items.waited_seconds
        assert list(items) == list(range(4, 100))
        assert 0 < items.waited_seconds - waited < time.perf_counter() - began
        running = items._workers
    assert running is None and list(items) == []


def test_an_error_of_an_iterator_comes_after_the_items_before_it():
    def numbers():
        yield 1
        yield 2
        raise OSError("the disk is gone")

    with Prefetcher.of(numbers(), 5) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(items)
        assert list(items) == []


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("end", [Prefetcher.close, lambda items: None])
def test_a_closed_or_lost_prefetcher_ends_its_threads_and_closes_a_generator(taken, end):
    begun, closed = threading.Event(), []

    def numbers():
        begun.set()
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    items = Prefetcher.of(numbers()).__enter__()
    running = items._workers.running
    assert begun.wait(60) and [next(items) for _ in range(taken)] == list(range(taken))
    end(items)
    if end is Prefetcher.close:
        assert not running and closed == [True]
        items.close()
        assert list(items) == []
    del items
    gc.collect()
    wait_until(lambda: not running and closed == [True], 60, "the threads end")


def test_an_item_that_was_taken_is_not_kept_alive_while_the_next_is_made():
    class Item:
        pass

    release = threading.Event()

    def numbers():
        yield Item()
        release.wait(60)

    with Prefetcher.of(numbers()) as items:
        reference = weakref.ref(next(items))
        wait_until(lambda: reference() is None, 60, "the item is freed")
        release.set()


@pytest.mark.parametrize("rest", ["next(items)", "pass", "raise SystemExit(3)"])
def test_the_interpreter_ends_after_the_items_and_before_handlers_that_were_registered_earlier(rest):
    program = (
        "import atexit, itertools, time\nfrom halofeed.loader.prefetcher import Prefetcher\n"
        "made = []\natexit.register(lambda: (time.sleep(0.2), print(len(made) == 2 + (len(made) > 2))))\n"
        "slow = (time.sleep(0.05) or made.append(number) for number in itertools.count())\n"
        f"items = Prefetcher.of(slow).__enter__()\n{rest}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == (3 if "3" in rest else 0)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_threads_end_with_the_iterator():
    running = []
    for _ in range(20):
        items = Prefetcher(lambda step: step, itertools.count(), 2)
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        running.append(items._workers.running)
        del items
    wait_until(lambda: not any(running), 60, "the threads end")


@forks
def test_a_child_of_a_fork_goes_on_as_its_parent_does():
    items = Prefetcher(lambda step: step, range(20), 2)
    taken = [next(items) for _ in range(3)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(items))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        assert list(told.read()) == list(range(3, 20))
    assert os.waitpid(child, 0)[1] == 0
    assert [*taken, *items] == list(range(20))


def test_none_are_made_ahead_of_batches_that_fill_the_machine(monkeypatch):
    spec = {"image": SimpleNamespace(shape=(4, 1000, 1000), dtype=np.dtype(np.int16))}
    monkeypatch.setattr(batch, "process_memory", lambda: 64_000_000)
    assert batches_ahead(spec) == AHEAD
    monkeypatch.setattr(batch, "process_memory", lambda: 63_999_999)
    assert batches_ahead(spec) == 0
