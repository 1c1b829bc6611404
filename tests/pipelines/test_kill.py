"""The same command finishes what a kill interrupted, with the same bytes and nothing left over."""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from halofeed.pipelines.output_folder import OutputFolder
from halofeed.schemas.file_layout import index_file
from tests.support.conversions import (
    all_bytes,
    bytes_of,
    convert_words,
    die_at,
    draw_folders,
    halofeed,
    halofeed_here,
    run_convert,
    start,
    wait_until,
)
from tests.support.level_rows import levels

OPTIONS = {"layout": "folders", "shards": 8, "interpolation": "tf2-lanczos5", "height": 96, "width": 96}
SHARD_FILES = ("-00002-of-00008", index_file("set-train.tfrecord-00002-of-00008"))
SOURCE = {"images": 96, "side": 400, "broken": 3}


def arguments(source: Path, out: Path, workers: int) -> list[str]:
    return convert_words(source, out, workers=workers, **OPTIONS)


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


def writers_of(driver: int, folder: Path) -> list[int]:
    """Those workers that have a file open below the folder."""

    def opened(worker: int) -> bool:
        with contextlib.suppress(OSError):
            return any(str(folder) in os.readlink(file) for file in Path(f"/proc/{worker}/fd").iterdir())
        return False

    return list(filter(opened, workers_of(driver)))


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> dict[str, bytes]:
    return bytes_of(source, tmp_path_factory.mktemp("undisturbed"), **OPTIONS)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return draw_folders(tmp_path_factory.mktemp("small"), 24, broken=3)


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> dict[str, bytes]:
    return bytes_of(small, tmp_path_factory.mktemp("whole"), **OPTIONS)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")


def finished_shards(folder: Path) -> int:
    return len(list(folder.glob("_index*")))


@needs_proc
@pytest.mark.parametrize(("kills", "workers"), levels(long=[(3, 2)], exhaustive=[(10, 1), (10, 2)]))
def test_kills_at_random_moments_lose_nothing(source, undisturbed, tmp_path, kills, workers):
    """Kill a conversion at random moments; the next run of the same command ends with the same bytes."""
    seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    story = [f"seed {seed}, {workers} workers"]
    out = tmp_path / "out"
    folder = out / "set/1.0.0"
    for number in range(kills):
        if (folder / "manifest.json").exists():
            shutil.rmtree(out)
        before, process = finished_shards(folder), start(arguments(source, out, workers))
        wanted = before + generator.randrange(-1, 4)  # -1: also before a shard is finished
        while finished_shards(folder) <= wanted and process.poll() is None:
            time.sleep(0.005)
        time.sleep((1 if wanted < before else 0.1) * generator.random())
        process.kill()
        process.wait()
        if number % 2:  # else the next run begins while the workers of this one are still ending
            wait_until(lambda: not workers_of(process.pid), 60, f"orphans end: {story}")  # noqa: B023
        for stream in (process.stdout, process.stderr):
            stream.close()
        story.append(f"killed after {finished_shards(folder)} shards, {before} of them earlier")
    done = halofeed(*arguments(source, out, workers))
    assert done.returncode == 0, [*story, done.stderr]
    found = all_bytes(folder)
    assert sorted(found) == sorted(undisturbed), story
    assert [name for name in found if found[name] != undisturbed[name]] == [], story
    assert not (folder / ".incomplete").exists(), story
    again = halofeed_here(*arguments(source, out, workers))
    assert again.returncode == 0 and "already converted" in again.stdout, story


@pytest.mark.long
def test_a_kill_at_each_rename_loses_nothing(small, whole, tmp_path):
    """The run dies just before or after a file takes its name, so between a shard and its index too."""
    places = [*SHARD_FILES, ".jsonl", "rejected.jsonl", "features.json", "manifest.json"]
    cases = [(place, when) for place in places for when in ("before", "after")]
    outs = {case: tmp_path / " ".join(case) for case in cases}
    die_at(*((*case, "exchange", arguments(small, outs[case], 1)) for case in cases))
    for case, out in outs.items():
        folder = out / "set/1.0.0"
        committed = case == ("manifest.json", "after")
        assert (folder / "manifest.json").exists() == committed, case
        assert run_convert(small, out, **OPTIONS).was_there == committed, case
        assert all_bytes(folder) == whole, case
        assert not (folder / ".incomplete").exists(), case


def kept_shards(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord-*")}


def flip(path: Path, position: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)


SHARD = "set-train.tfrecord-00001-of-00008"
DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "no index": lambda folder, other: (folder / index_file(SHARD)).unlink(),
    "no shard": lambda folder, other: (folder / SHARD).unlink(),
    "shard cut": lambda folder, other: os.truncate(folder / SHARD, 5000),
    "shard flipped": lambda folder, other: flip(folder / SHARD, 0.5),
    "shard flipped at its end": lambda folder, other: flip(folder / SHARD, 1),
    "index cut": lambda folder, other: os.truncate(folder / index_file(SHARD), 300),
    "index flipped": lambda folder, other: flip(folder / index_file(SHARD), 0.7),
    "another recipe's shard of the same size": lambda folder, other: shutil.copy(other / SHARD, folder),
    "another recipe's index": lambda folder, other: shutil.copy(other / index_file(SHARD), folder),
    "another recipe's shard and index": lambda folder, other: [
        shutil.copy(other / name, folder) for name in (SHARD, index_file(SHARD))
    ],
    "leftovers": lambda folder, other: [
        OutputFolder(str(folder)).begin(),
        (folder / ".incomplete" / "abc").write_bytes(b"half"),
    ],
}


@pytest.fixture(scope="module")
def other_recipe(small, tmp_path_factory) -> Path:
    options = {**OPTIONS, "interpolation": "tf2-bilinear"}
    return Path(run_convert(small, tmp_path_factory.mktemp("other"), **options).folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_leftovers_are_rebuilt_and_not_trusted(small, whole, other_recipe, tmp_path, damage):
    folder = tmp_path / "set/1.0.0"
    folder.mkdir(parents=True)
    for name, data in whole.items():
        if name != "manifest.json":
            (folder / name).write_bytes(data)
    before = kept_shards(folder)
    DAMAGES[damage](folder, other_recipe)
    run_convert(small, tmp_path, **OPTIONS)
    assert all_bytes(folder) == whole
    others = {name for name in before if not name.startswith(SHARD)}
    assert {name: kept_shards(folder)[name] for name in others} == {name: before[name] for name in others}


@needs_proc
@pytest.mark.parametrize("moment", levels("it writes", long=["it begins"]))
def test_a_killed_worker_is_told_in_one_line_and_the_rerun_completes(source, undisturbed, tmp_path, moment):
    process = start(arguments(source, tmp_path, 2))
    folder = tmp_path / "set/1.0.0"

    def workers() -> list[int]:
        return writers_of(process.pid, folder) if moment == "it writes" else workers_of(process.pid)

    # A worker that writes now may have finished a moment later.
    found: list[int] = []
    wait_until(lambda: found.extend(workers()) or found, 60, f"a worker is there: {moment}")
    os.kill(found[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert errors.startswith("halofeed convert: a worker ") and len(errors.splitlines()) == 1, errors
    assert "run the same command again" in errors
    if moment == "it writes":
        assert "a worker was killed, process" in errors and "too little memory" in errors
    wait_until(lambda: not workers_of(process.pid), 60, "the other workers end")
    run_convert(source, tmp_path, **OPTIONS)
    assert all_bytes(folder) == undisturbed
