"""Verify, inspect and report name shards that are shortened, are no files or are of another version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from halofeed.inspection.html.report import write_report
from halofeed.inspection.text import describe_record
from halofeed.inspection.verify import verify
from halofeed.schemas.errors import CorruptFileError
from tests.support.allocations import traced
from tests.support.dataset_writer import draw_examples, write_dataset
from tests.support.scripts import run_script

STORM = """
import os, sys, time
from pathlib import Path
from halofeed.inspection.html.report import write_report
from halofeed.inspection.text import describe_record
from halofeed.inspection.verify import verify
from halofeed.schemas.errors import CorruptFileError
folder = Path({folder!r})
paths = sorted(folder.glob("*.tfrecord-*-of-00001"))
data = {{path: path.read_bytes() for path in paths}}
child = os.fork()
if child == 0:
    parent = os.getppid()
    while os.getppid() == parent:
        for path in paths:
            os.truncate(path, len(data[path]) // 3)
            time.sleep(0.001)
            path.write_bytes(data[path])
            time.sleep(0.005)
    os._exit(0)
def verified():
    found = verify(folder)
    if not found.ok:
        raise CorruptFileError(str(found))
def inspected(): describe_record(folder, "train:11")
def reported(): write_report(folder)
for look in (verified, inspected, reported):
    named = 0
    while named < 5:
        try:
            look()
        except CorruptFileError as error:
            assert any(path.name in str(error) for path in paths), error
            named += 1
    print(look.__name__, named)
os.kill(child, 9)
"""


def write(folder: Path, count: int = 12, side: int = 110, seed: int = 0) -> Path:
    """A data set of one shard."""
    examples = draw_examples("classification", {"train": count}, shape=(side, side, 3), seed=seed)
    return write_dataset(folder, examples, task="classification", shards=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "set")


def test_a_shard_shortened_while_it_is_looked_at_is_named(folder: Path) -> None:
    """Each attempt may end its process with SIGBUS; a shard that is whole again gives no error."""
    output = run_script(STORM.format(folder=str(folder)), seconds=300)
    assert output.splitlines() == ["verified 5", "inspected 5", "reported 5"]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    output = run_script(f"""
import os
from pathlib import Path
from halofeed.inspection.html.report import write_report
from halofeed.inspection.text import describe_record
from halofeed.inspection.verify import verify
from halofeed.schemas.errors import CorruptFileError
folder = Path({str(folder)!r})
for suffix in ("", ".index"):
    path = next(folder.glob(f"*-of-00001{{suffix}}"))
    kept = path.rename(folder.parent / "kept")
    os.mkfifo(path)
    for look in (verify, lambda folder: describe_record(folder, "train:0"), write_report):
        try:
            message = str(look(folder))
        except CorruptFileError as error:
            message = str(error)
        assert path.name in message and "named pipe" in message, message
        print("named")
    path.unlink()
    kept.rename(path)
""")
    assert output.split() == ["named"] * 6


@pytest.mark.parametrize("suffixes", [("",), ("", ".index")])
def test_a_stale_shard_is_found_by_all_that_look(
    folder: Path, tmp_path: Path, suffixes: tuple[str, ...]
) -> None:
    stale = write(tmp_path / "stale", seed=5)
    name = "tiny-train.tfrecord-00000-of-00001"
    for suffix in suffixes:
        shutil.copyfile(stale / f"{name}{suffix}", folder / f"{name}{suffix}")
    found = verify(folder).problems
    if suffixes == ("",):
        assert any("the index says" in problem.message for problem in found if problem.record is not None)
    assert any("the manifest says" in problem.message for problem in found)
    for look in (lambda: describe_record(folder, "train:0"), lambda: write_report(folder)):
        with pytest.raises(CorruptFileError, match="halofeed verify"):
            look()


def test_verify_holds_one_record_in_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", count=24, side=512)
    path = next(folder.glob("*-of-00001"))
    data = bytearray(path.read_bytes())
    data[6] ^= 1  # of the first length: 2**48 bytes are announced
    with traced() as memory:
        assert verify(folder).ok
        path.write_bytes(data)
        del data
        assert not verify(folder).ok
    assert memory.peak < 8 * 512 * 512 * 3
