"""Interrupts at any moment of a batch cost that batch alone: no crash, no hang, no wrong byte, no thread that stays."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from halofeed.loader import Loader
from halofeed.system import threads
from tests.support.picture_writer import draw_examples, write_splits

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["raw", "packed"])
def data(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("interrupts") / "1.0.0"
    examples = {"train": draw_examples(96, frame=(160, 192), vary=False)}
    write_splits(folder, examples, frame=(160, 192), shards=3, encoding=request.param)
    return folder


def interrupt(data: Path, count: int, how: str, *kernel: Path, **environment: str) -> None:
    words = [sys.executable, "-m", "tests.support.interrupts", data, str(count), "1", how, *kernel]
    given = {"cwd": ROOT, "env": os.environ | environment, "capture_output": True, "text": True}
    done = subprocess.run(words, timeout=3000, check=False, **given)
    assert done.returncode == 0, done.stderr
    assert "AddressSanitizer" not in done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == found["threads"] == 0
    assert count <= found["interrupts"] <= count + 1 and found["returned"] > count / 2


@pytest.mark.parametrize("how", ["async", pytest.param("signal", marks=pytest.mark.long)])
def test_an_interrupted_batch_leaves_no_copy_in_flight(data, how):
    interrupt(data, 100, how)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["async", "signal"])
def test_address_sanitizer_sees_no_copy_into_memory_that_nobody_owns(data, tmp_path, how):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    library = tmp_path / "kernel.so"
    flags = ["-O1", "-g", "-fsanitize=address", "-fPIC", "-shared", "-o", str(library)]
    subprocess.run([compiler, *flags, *map(str, (ROOT / "schemas/native").glob("*.c"))], check=True)
    found = subprocess.check_output([compiler, "-print-file-name=libasan.so"], text=True).strip()
    preload = {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    interrupt(data, 5000, how, library, **preload)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_batches_are_right_where_the_system_refuses_threads(data, monkeypatch, error):
    expected = [Loader(data, split="train", batch_size=16, seed=1).batch(step) for step in range(3)]
    start, allowed = threads._thread.start_new_thread, iter([True, False, True])

    def refuse(*arguments):
        if not next(allowed, False):
            raise error
        return start(*arguments)

    monkeypatch.setattr(threads._thread, "start_new_thread", refuse)
    loader = Loader(data, split="train", batch_size=16, seed=1)
    for step, batch in enumerate(expected):
        for name, value in loader.batch(step).items():
            np.testing.assert_array_equal(value, batch[name])
