"""The background thread prefetches items up to its limit and ends when it should."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from halofeed.trainer.ahead import Ahead
from tests.support import conversions


def wait_until(true: Callable[[], bool]) -> None:
    conversions.wait_until(true, 60, "a thread of Ahead")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


class Counting(Iterator[int]):
    """0, 1, 2, ... and how many were made."""

    def __init__(self, end: int = 1000) -> None:
        self.made, self.end = 0, end

    def __next__(self) -> int:
        if self.made == self.end:
            raise StopIteration
        self.made += 1
        return self.made - 1


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_items_come_in_order_and_the_thread_ends_with_them(depth: int) -> None:
    ahead = Ahead(Counting(100), depth)
    assert list(ahead) == list(range(100))
    wait_until(lambda: not threads())
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_at_most_depth_items_wait_and_making_begins_at_once(depth: int) -> None:
    with pytest.raises(ValueError, match="depth: expected 1 or more, got 0"):
        Ahead(Counting(), depth=0)
    source = Counting()
    with Ahead(source, depth) as ahead:
        wait_until(lambda: source.made == depth)
        time.sleep(0.05)
        assert source.made == depth
        for taken in range(1, 4):
            next(ahead)
            wait_until(lambda: source.made == depth + taken)  # noqa: B023
            time.sleep(0.02)
            assert source.made == depth + taken


def test_an_error_of_the_iterator_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    with Ahead(items(), depth=5) as ahead:
        wait_until(lambda: not threads())
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)
        with pytest.raises(StopIteration):
            next(ahead)


@pytest.mark.parametrize("taken", [0, 1])
def test_close_ends_a_thread_that_waits_for_room_and_closes_the_generator(taken: int) -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    source = items()
    ahead = Ahead(source)
    for _ in range(taken):
        next(ahead)
    time.sleep(0.05)
    ahead.close()
    assert not threads()
    assert closed == [True]
    ahead.close()
    assert list(ahead) == []


def test_close_drops_an_error_and_an_ahead_that_nobody_refers_to_ends_its_thread() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError

    ahead = Ahead(items())
    wait_until(lambda: not threads())
    ahead.close()
    assert list(ahead) == []
    ahead = Ahead(Counting())
    assert threads()
    del ahead
    gc.collect()
    wait_until(lambda: not threads())


def test_an_item_that_was_taken_is_not_kept_alive_while_the_next_is_made() -> None:
    class Item:
        pass

    release = threading.Event()

    def items() -> Iterator[Item]:
        yield Item()
        release.wait(60)

    with Ahead(items()) as ahead:
        reference = weakref.ref(next(ahead))
        wait_until(lambda: reference() is None)
        release.set()


@pytest.mark.parametrize("rest", ["next(ahead)", "pass", "raise SystemExit(3)"])
def test_the_interpreter_ends_while_a_thread_makes_and_waits(rest: str) -> None:
    program = "import itertools, time\nfrom halofeed.trainer.ahead import Ahead\n"
    program += "slow = (time.sleep(0.05) or number for number in itertools.count())\n"
    program += f"ahead = Ahead(slow)\n{rest}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == (3 if "3" in rest else 0)
    assert done.stderr == ""
