"""A conversion that the disk cannot hold is refused before it begins, and one that fills it stops without a loss."""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from glob import glob
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import UsageError
from halofeed.pipelines.disk_space import ExpectedSize, check_disk_space, size_of_record
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.opened_sources import open_sources
from halofeed.pipelines.plan import make_plan
from halofeed.prep.options.recipe import Recipe
from halofeed.storage import local
from halofeed.storage.local import BUFFER_BYTES, DirectFile
from tests.support.conversions import (
    convert_words,
    draw_folders,
    halofeed_here,
    read_all,
    run_convert,
    shard_bytes,
)

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from halofeed.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_estimate_is_what_is_written(tmp_path):
    draw_folders(tmp_path / "s", 20)
    done = run_convert(tmp_path / "s", tmp_path / "out", layout="folders", height=200, width=300)
    written = sum(shard.bytes for split in done.manifest.splits.values() for shard in split.shards)
    each = size_of_record(Recipe(height=200, width=300), "classification", "uint8")
    assert each is not None and 20 * each.bytes <= written < 1.02 * 20 * each.bytes and not each.is_limit


def test_the_limit_of_packed_records_is_reached_by_noise_and_never_passed(tmp_path):
    generator = np.random.default_rng(0)
    for name, high in (("noise", 256), ("black", 1)):
        (tmp_path / name / "hat").mkdir(parents=True)
        pixels = generator.integers(0, high, (70, 50, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / name / "hat/1.png")
        recipe = {"height": 70, "width": 50, "encoding": "packed"}
        done = run_convert(tmp_path / name, tmp_path / "out", name=name, layout="folders", **recipe)
        (record,) = read_all(Path(done.folder), ["train"]).values()
        stored = len(record["image/encoded"][0])
        most = size_of_record(Recipe(**recipe), "classification", "uint8")
        assert most is not None and most.is_limit and stored <= most.bytes
        assert (stored == most.bytes) == (name == "noise")


def test_packed_records_that_may_not_fit_are_warned_of_and_not_refused(tmp_path, capsys):
    free = shutil.disk_usage(tmp_path).free
    check_disk_space(str(tmp_path), 10, ExpectedSize(bytes=free // 9, is_limit=True), {}, refuse=True)
    said = capsys.readouterr().err
    assert "warning: 10 records of at most" in said and "usually take about half" in said


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_what_does_not_fit_is_refused_before_a_byte_is_written_unless_somebody_insists(
    tmp_path, capsys, version
):
    free = shutil.disk_usage(tmp_path).free
    words = r"10 records of .* free; take smaller records .*--disk-check ignore"
    with pytest.raises(UsageError, match=words):
        check_disk_space(str(tmp_path / "no" / version), 10, ExpectedSize(bytes=free // 9), {}, refuse=True)
    assert list(tmp_path.iterdir()) == []
    check_disk_space(str(tmp_path), 10, ExpectedSize(bytes=free // 9), {}, refuse=False)
    assert "warning" in capsys.readouterr().err
    check_disk_space(
        str(tmp_path),
        10,
        ExpectedSize(bytes=free // 9),
        {"a-all.tfrecord-00000-of-00001": free // 2},
        refuse=True,
    )
    assert "10 records of" in capsys.readouterr().err, "what is there already needs no room"
    check_disk_space("gs://bucket/x", 10, ExpectedSize(bytes=free), {}, refuse=True)


@pytest.mark.long
def test_a_full_disk_ends_in_one_line_keeps_what_is_finished_and_the_same_command_finishes(tmp_path):
    """A limit on a file's size fails a write as a full disk does, and needs no disk of its own."""
    draw_folders(tmp_path / "s", 60)
    words = convert_words(tmp_path / "s", tmp_path / "out", shards=6, height=100, width=100, workers=1)
    command = [sys.executable, "-c", PROGRAM, *words]
    stopped = subprocess.run(command, capture_output=True, text=True, check=False)
    assert stopped.returncode == 1, stopped.stderr
    assert "what is finished is kept. Raise the limit of file sizes" in stopped.stderr
    assert len(stopped.stderr.strip().splitlines()) == 1
    folder = tmp_path / "out/set/1.0.0"
    assert not (folder / "manifest.json").exists()
    assert all(path.name.startswith("references") for path in folder.glob(".incomplete/[!.]*"))
    again = halofeed_here(*words)
    assert again.returncode == 0, again.stderr
    whole = run_convert(tmp_path / "s", tmp_path / "other", layout="folders", shards=6, height=100, width=100)
    assert shard_bytes(folder) == shard_bytes(Path(whole.folder))


def test_what_is_left_out_on_purpose_needs_no_room(tmp_path):
    draw_folders(tmp_path / "s", 20)
    (tmp_path / "train.txt").write_text("hat/0000.jpg\nhat/0002.jpg\n")
    lists = (f"train={tmp_path / 'train.txt'}",)
    job = JobOptions(source=str(tmp_path / "s"), out=str(tmp_path / "out"), name="set", split_lists=lists)
    plan = make_plan(job, Recipe(layout="folders"), open_sources(job), None)
    assert (plan.totals.count, plan.totals.convertible) == (20, 2)


LENGTHS = [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 12_345]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("direct", [True, False])
def test_what_is_read_is_what_was_written(tmp_path: Path, monkeypatch, length: int, direct: bool) -> None:
    if not direct:
        monkeypatch.setattr(local, "fcntl", None)
    cached, begun, write = [], [], os.write

    def note_write(file: int, piece: memoryview) -> int:
        if not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            cached.append(len(piece))
        return write(file, piece)

    monkeypatch.setattr(os, "write", note_write)
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *_: begun.append(os.lseek(file, 0, os.SEEK_CUR)))
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    file = DirectFile(str(tmp_path / "file"))
    cuts = [0, *sorted(np.random.default_rng(1).integers(0, length + 1, 9).tolist()), length]
    for start, end in pairwise(cuts):
        given = bytearray(data[start:end])
        file.write(given)
        given[:] = bytes(end - start)  # data may change after it was given
        assert file.tell() == end
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == data
    if length >= BUFFER_BYTES:
        assert length in begun, "what is cached is on its way to the disk"
        assert sum(cached) == length % 4096 or not direct, "only the end of the file is cached"


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BUFFER_BYTES // 2, old[1]))
    try:
        for length in (BUFFER_BYTES - 1, 3 * BUFFER_BYTES):
            with pytest.raises(OSError, match="File too large"), closing(DirectFile(path)) as file:
                file.write(bytes(length))
        assert path not in map(os.path.realpath, glob("/proc/self/fd/*")), "it is closed"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
