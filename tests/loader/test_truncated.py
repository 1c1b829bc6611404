"""A loader names files that are shortened, replaced or unreadable, and its process survives.

Each attempt is a process of its own: before, the kernel ended it with SIGBUS.
"""

import errno
import itertools
import os
import re
import shutil

import numpy as np
import pytest

from halofeed.errors import CorruptFileError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.schemas import shard_file
from halofeed.schemas.file_layout import index_file
from tests.support.level_rows import levels, others
from tests.support.scripts import run_script
from tests.support.volume_writer import draw_scans, write_scans

VERIFY = ("first", "always", "never")
AUGMENT = {
    "whole": "[]",
    "flipped": "[FlipLeftRight(1.0)]",
    "cropped": "[RandomCrop(40, 56), FlipUpDown(1.0)]",
}
FRAME = (96, 128)


@pytest.fixture
def folder(draw, write):
    return write(draw(12, frame=FRAME, vary=False, task="classification"), frame=FRAME, shards=2)


BEGIN = """
import itertools, os
from pathlib import Path
from halofeed.schemas.file_layout import index_file
from halofeed.loader import *
from halofeed.errors import CorruptFileError
folder = Path({folder!r})
"""
CUTS = "1, 5000, len(data) // 2, len(data) - 3"
ENCODINGS = levels(
    ("raw", "1, len(data) // 2"),
    long=[(name, CUTS) for name in ("raw", "packed", "yuv420", "png", "volumes")],
)


@pytest.mark.parametrize(("encoding", "cuts"), ENCODINGS)
def test_a_shard_shortened_after_opening_is_an_error_that_names_it(draw, write, tmp_path, encoding, cuts):
    frame, augment = {"frame": FRAME, "vary": False, "task": "classification"}, ", ".join(AUGMENT.values())
    if encoding == "volumes":
        augment = augment.replace("RandomCrop(", "RandomCrop(4, ")
        folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 12}, shape=(8, 40, 56)), shards=2)
    else:
        folder = write(draw(12, **frame), frame=FRAME, shards=2, encoding=encoding, pad=encoding != "png")
    output = run_script(
        f"""{BEGIN.format(folder=str(folder))}
import tensorflow as tf
path = sorted(folder.glob("*-of-00002"))[0]
data = path.read_bytes()
augmentations = ({augment})
for augment, verify, cut in itertools.product(augmentations, {VERIFY!r}, ({cuts})):
    loader = Loader(folder, batch_size=12, training=False, augment=augment, verify=verify)
    loader.batch(0)
    os.truncate(path, len(data) - cut)
    try:
        loader.batch(0)
        raise SystemExit(f"no error: {{augment}} {{verify}} {{cut}}")
    except CorruptFileError as error:
        print(error)
    if cut == 1 and verify == "first" and not augment:
        try:
            list(loader.dataset())
            raise SystemExit(f"no error of tf.data: {{augment}} {{verify}}")
        except tf.errors.UnknownError as error:
            assert str(path) in str(error), error
    path.write_bytes(data)
    loader.batch(0)
""",
        seconds=300,
    )
    lines = output.splitlines()
    assert len(lines) == len(AUGMENT) * len(VERIFY) * len(cuts.split(","))
    name = f"{min(folder.glob('*-of-00002'))}: it ends at byte "
    assert all(line.startswith(name) and "it was shortened; run the same" in line for line in lines)


STORM = (
    BEGIN
    + """
import sys, threading, time
import numpy as np
paths = sorted(folder.glob("*.tfrecord-*-of-?????"))
data = {{path: path.read_bytes() for path in paths}}
options = dict(batch_size=4, training=False, augment={augment})
expected = list(Loader(folder, **options).batches())
child = os.fork()
if child == 0:
    # Shortens the files and writes the same bytes again, in place: some times in a row, then not for a while.
    rng = np.random.default_rng({seed})
    parent = os.getppid()
    while os.getppid() == parent:
        path = paths[int(rng.integers(len(paths)))]
        whole = data[path]
        at = int(rng.integers(len(whole)))
        with open(path, "r+b") as stream:
            stream.truncate(at)
            stream.seek(at)
            stream.write(whole[at:])
        if rng.random() < 0.2:
            time.sleep(rng.random() / 5)
    os._exit(0)
came, errors, wrong = [], [], []
def read():
    start, loader = time.monotonic(), None
    while (passed := time.monotonic() - start) < {seconds} or (passed < 200 and not (came and errors)):
        for step, right in enumerate(expected):
            try:
                loader = loader or Loader(folder, verify={verify!r}, **options)
                batch = loader.batch(step)
                came.append(all(np.array_equal(batch[key], right[key]) for key in right))
            except CorruptFileError as error:
                errors.append(str(error))
            except BaseException as error:
                wrong.append(repr(error))
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.kill(child, 9)
os.waitpid(child, 0)
unnamed = [error for error in errors if not any(str(path) in error for path in paths)]
print(len(came), len(errors), came.count(False), wrong[:3], unnamed[:3])
sys.exit(not came or not errors or not all(came) or bool(wrong) or bool(unnamed))
"""
)


@pytest.mark.parametrize(
    ("augment", "verify"),
    others(itertools.product(AUGMENT, VERIFY), [("cropped", "first")], pytest.mark.exhaustive),
)
def test_shards_shortened_while_read_give_right_batches_or_errors_that_name_them(folder, augment, verify):
    script = STORM.format(folder=str(folder), augment=AUGMENT[augment], verify=verify, seed=1, seconds=1)
    run_script(script, seconds=300)


def test_what_is_no_file_in_place_of_one_is_refused_at_once(folder):
    output = run_script(f"""{BEGIN.format(folder=str(folder))}
shard = sorted(folder.glob("*-of-00002"))[0]
def spoil(path, what):
    path.rename(path.with_suffix(".kept"))
    if what == "pipe": os.mkfifo(path)
    if what == "folder": path.mkdir()
    if what == "link to a device": path.symlink_to("/dev/zero")
def restore(path):
    if path.is_dir(): path.rmdir()
    path.with_suffix(".kept").rename(path)
kinds = ("pipe", "folder", "link to a device", "nothing")
for what, of, when in itertools.product(kinds, (str, index_file), ("before", "after")):
    path = shard.with_name(of(shard.name))
    try:
        if when == "before": spoil(path, what)
        loader = Loader(folder, batch_size=12, training=False)
        if when == "after": spoil(path, what)
        loader.batch(0)
        raise SystemExit(f"no error: {{path}}: {{what}} {{when}}")
    except CorruptFileError as error:
        assert str(error).startswith(f"{{path}}: ") and "run the same `halofeed convert`" in str(error), error
        print(what, when)
    restore(path)
""")
    assert len(output.splitlines()) == 16


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read everything")
@pytest.mark.parametrize("of", [str, index_file])
def test_a_file_that_may_not_be_read_is_named(folder, of):
    path = folder / of("tiny-train.tfrecord-00000-of-00002")
    path.chmod(0)
    script = f"""{BEGIN.format(folder=str(folder))}
try:
    Loader(folder, batch_size=12, training=False).batch(0)
except CorruptFileError as error:
    print(error)
"""
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    found = run_script(script, without=without)
    assert re.match(rf"{re.escape(str(path))}: cannot be .*: Permission denied; run the same", found)


def test_a_disk_that_fails_is_named(folder, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shard_file, "map_file", lambda descriptor, size: None)
    loader = Loader(folder, batch_size=12, training=False)
    loader.batch(0)
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CorruptFileError, match=r"-of-00002: cannot be read at byte [\d,]+: Input/output err"):
        loader.batch(0)


def test_a_file_system_that_gives_less_at_once_gives_the_same(folder, monkeypatch):
    whole = os.preadv

    def less(descriptor, buffers, offset):
        first = memoryview(next(buffer for buffer in buffers if len(buffer))).cast("B")
        return whole(descriptor, [first[: max(1, min(len(first), 1000))]], offset)

    options = {"batch_size": 12, "training": False, "augment": [RandomCrop(40, 56), FlipLeftRight()]}
    for chosen in (options, {**options, "augment": []}):
        expected = Loader(folder, **chosen).batch(0)
        with monkeypatch.context() as patched:
            patched.setattr(shard_file, "map_file", lambda descriptor, size: None)
            patched.setattr(os, "preadv", less)
            found = Loader(folder, verify="always", **chosen).batch(0)
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
