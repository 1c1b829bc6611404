"""Interrupt a loader many times at random moments, in a process of its own.

    python -m tests.support.interrupts DATA COUNT SEED async|signal [KERNEL]

An exception arrives through PyThreadState_SetAsyncExc or through a real SIGINT, in batch() and in batches() by turns.
Every batch that is returned is compared with the one of an undisturbed loader. KERNEL is a library to load in place of
the built one, for example one with AddressSanitizer. Prints one JSON line.
"""

import ctypes
import functools
import gc
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.schemas.native import kernel
from halofeed.system import threads as workers_module

STEPS = 6


class Interrupted(BaseException):
    """What is raised from outside."""


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)


class Interrupter(threading.Thread):
    """Raises in the main thread at a random moment after `arm`, once each time."""

    def __init__(self, seed: int, how: str, longest_seconds: float) -> None:
        super().__init__(daemon=True)
        self._draw, self._how, self._longest = random.Random(seed), how, longest_seconds
        # An Event has a lock in Python's own code, where an exception may leave it held for ever.
        self._armed: SimpleQueue[None] = SimpleQueue()
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._is_wanted = False
        self.fired = 0

    def arm(self) -> None:
        self._is_wanted = True
        self._armed.put(None)

    def disarm(self) -> None:
        with self._lock:
            self._is_wanted = False

    def run(self) -> None:
        while True:
            self._armed.get()
            time.sleep(self._draw.random() * self._longest)
            with self._lock:
                if self._is_wanted:
                    self._is_wanted = False
                    self.fired += 1
                    if self._how == "signal":
                        signal.pthread_kill(self._main, signal.SIGINT)
                    else:
                        thread, what = ctypes.c_ulong(self._main), ctypes.py_object(Interrupted)
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, what)


def attempt(interrupter: Interrupter, act: Callable[[], Any]) -> Any:
    """Return what `act` returns, None where it was interrupted."""
    result = None
    try:
        interrupter.arm()
        result = act()
        for _ in range(20):  # where a late exception still arrives
            pass
    except (Interrupted, KeyboardInterrupt):
        result = None
    while True:
        try:
            interrupter.disarm()
            time.sleep(0)
            for _ in range(100):
                pass
            return result
        except (Interrupted, KeyboardInterrupt):
            result = None


def main(data: str, count: int, seed: int, how: str) -> None:
    def new_loader() -> Loader:
        return Loader(data, batch_size=16, seed=3, augment=[RandomCrop(150, 180), FlipLeftRight()])

    def raise_interrupted(number: int, frame: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGINT, raise_interrupted)
    expected = [{k: value.copy() for k, value in new_loader().batch(step).items()} for step in range(STEPS)]
    loader = new_loader()
    loader.batch(0)
    began = time.perf_counter()
    for step in range(STEPS):
        loader.batch(step)
    interrupter = Interrupter(seed, how, 1.2 * (time.perf_counter() - began) / STEPS)
    interrupter.start()
    wrong = returned = 0
    stream, following = loader.batches(), 0
    while interrupter.fired < count:
        step = interrupter.fired % STEPS
        batch = attempt(interrupter, functools.partial(loader.batch, step))
        if batch is not None:
            returned += 1
            wrong += not same(batch, expected[step])
        batch = attempt(interrupter, functools.partial(next, stream))
        if batch is None:  # the item may have been on its way to the caller
            stream, following = loader.batches(), 0
        else:
            returned += 1
            wrong += not same(batch, expected[following])
            following += 1
            if following == STEPS:
                stream, following = loader.batches(), 0
        del batch
    stream.close()
    gc.collect()
    end = time.monotonic() + 30
    others = [workers for workers in list(workers_module._all) if workers is not loader._filler._workers]
    running = [workers.running for workers in others]
    while any(running) and time.monotonic() < end:
        time.sleep(0.01)
    counted = {"interrupts": interrupter.fired, "returned": returned, "wrong": wrong}
    print(json.dumps({**counted, "threads": sum(map(len, running))}))


if __name__ == "__main__":
    if len(sys.argv) > 5:
        kernel._library = kernel._Library(sys.argv[5])
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
