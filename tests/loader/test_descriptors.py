"""A process with loaders keeps few files open under any limit and closes them."""

import multiprocessing
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from halofeed.loader import Loader
from halofeed.schemas import shard_file
from tests.support.forks import forks
from tests.support.level_rows import others
from tests.support.scripts import run_script

SHARDS = 300


@pytest.fixture(scope="module")
def many(draw, write):
    return write(draw(SHARDS, frame=(12, 16), task="classification"), frame=(12, 16), shards=SHARDS)


def run(script, limit):
    """What a script prints under `ulimit -n`, which must end well."""
    return run_script(script, without=["bash", "-c", f'ulimit -n {limit}; exec "$0" "$@"'])


READ_ALL = """
import os, threading
from halofeed.loader import Loader
loaders = [Loader({folder!r}, batch_size=20, seed=seed) for seed in range({count})]
most = 0
errors = []
def read(loader):
    global most
    try:
        for step in range(15):
            loader.batch(step)
            most = max(most, len(os.listdir("/proc/self/fd")))
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=read, args=(loader,)) for loader in loaders]
for thread in threads: thread.start()
for thread in threads: thread.join()
before = len(os.listdir("/proc/self/fd"))
assert not errors, errors
del loaders, threads
print(most, before, len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize(("limit", "count"), others([(64, 8), (64, 1), (1024, 6), (20_000, 3)], [(64, 1)]))
def test_loaders_of_many_shards_read_under_any_limit(many, limit, count):
    if limit > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip("the hard limit here is lower")
    most, at_rest, after = map(int, run(READ_ALL.format(folder=str(many), count=count), limit).split())
    kept = min(shard_file.MAX_OPEN, limit // 8)
    # Standard streams and the listing itself, and what is read at this moment.
    assert most <= kept + 16 + 8 * count
    assert at_rest <= kept + 16
    assert after <= 16


def test_files_that_others_hold_open_leave_room_by_giving_up_idle_shards(many):
    output = run(
        f"""
import os
from halofeed.loader import Loader
loader = Loader({str(many)!r}, batch_size=20)
for step in range(5): loader.batch(step)
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
for step in range(5, 15): loader.batch(step)
print("read")
""",
        100,
    )
    assert output == "read\n"


def test_a_process_without_a_free_descriptor_is_told_how_to_allow_more(many):
    output = run(
        f"""
import os
from halofeed.loader import Loader
from halofeed.schemas import shard_file
from halofeed.errors import CorruptFileError, SystemLimitError
loader = Loader({str(many)!r}, batch_size=20)
loader.batch(0)
shard_file.close_idle()
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
for make in (lambda: loader.batch(0), lambda: loader.batch(7)):
    try:
        make()
    except SystemLimitError as error:
        assert not isinstance(error, CorruptFileError)
        print(error)
os.close(held.pop()); os.close(held.pop())
loader.batch(0), loader.batch(7)
""",
        100,
    )
    lines = output.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith((f"{many}/tiny-train.tfrecord-", f"{many}/_index-"))
        assert "(100)" in line and "ulimit -n 4096" in line


def test_a_file_is_never_closed_while_it_is_read(many, monkeypatch):
    monkeypatch.setattr(shard_file, "MAX_OPEN", 1)
    expected = [Loader(many, batch_size=20, seed=3).batch(step) for step in range(15)]
    loaders = [Loader(many, batch_size=20, seed=3, verify=verify) for verify in ("first", "never")]
    wrong = []

    def work(loader):
        for step, right in enumerate(expected):
            found = loader.batch(step)
            if not all(np.array_equal(found[key], right[key]) for key in right):
                wrong.append(step)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, loaders * 3))
    assert not wrong


def test_no_program_that_is_started_inherits_a_shard(many):
    loader = Loader(many, batch_size=20)
    loader.batch(0)
    listing = ["ls", "-l", "/proc/self/fd"]
    done = subprocess.run(listing, capture_output=True, text=True, check=False, close_fds=False)
    assert "->" in done.stdout and "tfrecord" not in done.stdout


def read_hash(loader, steps, results):
    results.put([hash(loader.batch(step)["image"].tobytes()) for step in steps])


@forks
def test_forked_workers_and_their_parent_read_at_the_same_time(many):
    # As torch's DataLoader does: the workers get the loader by fork, with threads and files that the parent uses too.
    loader = Loader(many, batch_size=20, seed=5)
    steps = range(15)
    expected = [hash(loader.batch(step)["image"].tobytes()) for step in steps]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = [context.Process(target=read_hash, args=(loader, steps, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [hash(loader.batch(step)["image"].tobytes()) for step in steps] == expected
    assert [results.get() for _ in workers] == [expected] * 3
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
