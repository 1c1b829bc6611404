"""Does the same command finish what a kill interrupted, with the same bytes and nothing left over?"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clip_mask_writer import write_masked_clips
from tests.support.conversions import (
    DIE_AT,
    all_bytes,
    bytes_of,
    convert_words,
    draw_folders,
    halofeed,
    run_convert,
    start,
    wait_until,
)

OPTIONS = {"layout": "folders", "shards": 8, "interpolation": "tf2-lanczos5", "height": 96, "width": 96}
KILLS = 10
SHARD_FILES = ("-00002-of-00008", "-00002-of-00008.index")
CLIP_OPTIONS = {"layout": "pairs", "frames": 5, "shards": 8, "height": 96, "width": 128}


def arguments(source: Path, out: Path, workers: int, options: dict = OPTIONS) -> list[str]:
    return convert_words(source, out, workers=workers, **options)


def workers_of(driver: int) -> list[int]:
    """Process ids of the running worker processes of a driver: each has a name of its own."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if (folder / "comm").read_text().strip() == f"hfw-{driver}" and state != "Z":
                    found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return draw_folders(tmp_path_factory.mktemp("source"), 96, side=400, broken=3)


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> dict[str, bytes]:
    return bytes_of(source, tmp_path_factory.mktemp("undisturbed"), **OPTIONS)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")


def finished_shards(folder: Path) -> int:
    return len(list(folder.glob("*.tfrecord-*.index")))


@needs_proc
@pytest.mark.parametrize("workers", [1, 2])
def test_ten_kills_lose_nothing(source, undisturbed, tmp_path, workers):
    kill_ten_times(source, undisturbed, tmp_path, workers, OPTIONS)


@needs_proc
def test_ten_kills_lose_nothing_of_clips_with_masks(tmp_path):
    write_masked_clips(tmp_path / "in", each=8, frames=20)
    whole = (tmp_path / "in/images/mp40/png.mp4").read_bytes()
    (tmp_path / "in/images/mp40/png.mp4").write_bytes(whole[: len(whole) // 2])
    done = run_convert(tmp_path / "in", tmp_path / "undisturbed", **CLIP_OPTIONS)
    assert done.manifest.rejected == {"decode: file is truncated": 1}
    assert done.manifest.splits["train"].records == 4 * (3 * 4 * 8 - 1)
    kill_ten_times(tmp_path / "in", all_bytes(Path(done.folder)), tmp_path, 2, CLIP_OPTIONS)


def kill_ten_times(
    source: Path, undisturbed: dict[str, bytes], tmp_path: Path, workers: int, options: dict
) -> None:
    """Kill a conversion at ten random moments; the next run of the same command ends with the same bytes."""
    seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    story = [f"seed {seed}, {workers} workers"]
    began = time.monotonic()
    done = halofeed(*arguments(source, tmp_path / "first", workers, options))
    duration = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert all_bytes(tmp_path / "first/set/1.0.0") == undisturbed
    out = tmp_path / "out"
    folder = out / "set/1.0.0"
    for number in range(KILLS):
        if (folder / "manifest.json").exists():
            shutil.rmtree(out)
        before, process = finished_shards(folder), start(arguments(source, out, workers, options))
        began = time.monotonic()
        if number % 3:
            wanted = before + generator.randrange(4)
            while finished_shards(folder) <= wanted and process.poll() is None:
                time.sleep(0.005)
            time.sleep(0.1 * generator.random())
        else:
            time.sleep(duration * generator.random())
        moment = time.monotonic() - began
        process.kill()
        process.wait()
        if number % 2:  # else the next run begins while the workers of this one are still ending
            wait_until(lambda: not workers_of(process.pid), 3, f"orphans end: {story}")  # noqa: B023
        for stream in (process.stdout, process.stderr):
            stream.close()
        story.append(f"killed after {moment:.2f} s of {duration:.2f}: {finished_shards(folder)} shards")
    done = halofeed(*arguments(source, out, workers, options))
    assert done.returncode == 0, [*story, done.stderr]
    found = all_bytes(folder)
    assert sorted(found) == sorted(undisturbed), story
    assert [name for name in found if found[name] != undisturbed[name]] == [], story
    assert not (folder / ".incomplete").exists(), story
    again = halofeed(*arguments(source, out, workers, options))
    assert again.returncode == 0 and "already converted" in again.stdout, story


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "place", [*SHARD_FILES, ".jsonl", "rejected.jsonl", "features.json", "manifest.json"]
)
def test_a_kill_at_each_rename_loses_nothing(source, undisturbed, tmp_path, place, when):
    """The run dies just before or after a file takes its name, so between a shard and its index too."""
    command = [sys.executable, "-c", DIE_AT, place, when, "exchange", *arguments(source, tmp_path, 1)]
    died = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    folder = tmp_path / "set/1.0.0"
    committed = place == "manifest.json" and when == "after"
    assert (folder / "manifest.json").exists() == committed
    done = run_convert(source, tmp_path, **OPTIONS)
    assert done.was_there == committed
    assert all_bytes(folder) == undisturbed
    assert not (folder / ".incomplete").exists()


def kept_shards(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord-*")}


def test_finished_shards_are_not_made_again(source, undisturbed, tmp_path):
    folder = Path(run_convert(source, tmp_path, **OPTIONS).folder)
    (folder / "manifest.json").unlink()
    before = kept_shards(folder)
    assert not run_convert(source, tmp_path, **OPTIONS).was_there
    assert kept_shards(folder) == before
    assert all_bytes(folder) == undisturbed


def flip(path: Path, position: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)


SHARD = "set-train.tfrecord-00001-of-00008"
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no index": lambda folder, other: (folder / f"{SHARD}.index").unlink(),
    "no shard": lambda folder, other: (folder / SHARD).unlink(),
    "shard cut": lambda folder, other: os.truncate(folder / SHARD, 5000),
    "shard empty": lambda folder, other: os.truncate(folder / SHARD, 0),
    "shard flipped": lambda folder, other: flip(folder / SHARD, 0.5),
    "shard flipped at its end": lambda folder, other: flip(folder / SHARD, 1),
    "index cut": lambda folder, other: os.truncate(folder / f"{SHARD}.index", 300),
    "index empty": lambda folder, other: os.truncate(folder / f"{SHARD}.index", 0),
    "index flipped": lambda folder, other: flip(folder / f"{SHARD}.index", 0.7),
    "another recipe's shard of the same size": lambda folder, other: shutil.copy(other / SHARD, folder),
    "another recipe's index": lambda folder, other: shutil.copy(other / f"{SHARD}.index", folder),
    "another recipe's shard and index": lambda folder, other: [
        shutil.copy(other / name, folder) for name in (SHARD, f"{SHARD}.index")
    ],
    "leftovers": lambda folder, other: [
        (folder / ".incomplete").mkdir(),
        (folder / ".incomplete" / "abc").write_bytes(b"half"),
    ],
}


@pytest.fixture(scope="module")
def other_recipe(source, tmp_path_factory) -> Path:
    options = {**OPTIONS, "interpolation": "tf2-bilinear"}
    return Path(run_convert(source, tmp_path_factory.mktemp("other"), **options).folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_leftovers_are_rebuilt_and_not_trusted(source, undisturbed, other_recipe, tmp_path, damage):
    folder = tmp_path / "set/1.0.0"
    folder.mkdir(parents=True)
    for name, data in undisturbed.items():
        if name != "manifest.json":
            (folder / name).write_bytes(data)
    before = kept_shards(folder)
    DAMAGES[damage](folder, other_recipe)
    run_convert(source, tmp_path, **OPTIONS)
    assert all_bytes(folder) == undisturbed
    others = {name for name in before if not name.startswith(SHARD)}
    assert {name: kept_shards(folder)[name] for name in others} == {name: before[name] for name in others}


@needs_proc
def test_a_killed_worker_is_told_in_one_line_and_the_rerun_completes(source, undisturbed, tmp_path):
    process = start(arguments(source, tmp_path, 2))
    folder = tmp_path / "set/1.0.0"

    def working() -> bool:
        begun = [path for path in folder.glob(".incomplete/*") if not path.name.startswith("references")]
        return bool(begun and workers_of(process.pid))

    wait_until(working, 60, "a worker writes")
    for worker in workers_of(process.pid)[:1]:
        os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    _, errors = process.communicate(timeout=60)
    waited = time.monotonic() - killed
    assert process.returncode == 1, errors
    assert waited < 5, f"{waited:.1f} s, {errors}"
    assert "halofeed convert: a worker was killed, process" in errors
    assert "run the same command again" in errors and "too little memory" in errors
    assert "Traceback" not in errors, errors
    wait_until(lambda: not workers_of(process.pid), 5, "the other workers end")
    done = halofeed(*arguments(source, tmp_path, 2))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all_bytes(folder) == undisturbed


@needs_proc
def test_a_worker_that_dies_before_it_begins_is_told_and_not_waited_for(source, tmp_path):
    process = start(arguments(source, tmp_path, 2))
    wait_until(lambda: workers_of(process.pid), 60, "a worker starts")
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert errors.startswith("halofeed convert: a worker ") and len(errors.splitlines()) == 1, errors
    assert "run the same command again" in errors
    wait_until(lambda: not workers_of(process.pid), 5, "the other workers end")
