"""Do real engines make the local run's bytes, also where their workers and machines are killed in the middle?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.demo import draw_data_set
from tests.dicom_writer import draw_series
from tests.engines import flink, prism, spark
from tests.engines.processes import MissingError
from tests.pipelines.support import all_bytes, draw_folders

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
CASES = {
    "pictures": "--layout folders --height 512 --width 512 --shards 12 --max-rejected 30",
    "masks": "--layout coco --masks --height 64 --width 64 --shards 2",
    "volumes": "--layout dicom --depth 4 --height 8 --width 8 --shards 2",
}


def words(source: Path, out: Path, case: str, beam: str) -> list[str]:
    """A conversion's command."""
    command = [sys.executable, "-m", "halofeed", "convert", "--name", "set", *CASES[case].split()]
    return [
        *command,
        "--source",
        str(source / case),
        "--out",
        str(out),
        *(["--", *beam.split()] if beam else []),
    ]


def run(source: Path, out: Path, case: str, beam: str = "") -> dict[str, bytes]:
    """Every file that a conversion leaves."""
    done = subprocess.run(
        words(source, out, case, beam), cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return all_bytes(out / "set" / "1.0.0")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("source")
    draw_folders(root / "pictures", 40, side=1500, broken=2)
    for path in list((root / "pictures").glob("*/*.jpg")):
        for copy in range(14):
            os.link(path, path.with_stem(f"{path.stem}-{copy}"))
    draw_data_set(root / "masks", 30)
    draw_series(root / "volumes", 6, 5)
    return root


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, dict[str, bytes]]:
    return {case: run(source, tmp_path_factory.mktemp(case), case) for case in CASES}


def running(engine, home: Path) -> Iterator[dict[str, str]]:
    """An engine for as long as tests need it; they are skipped where this machine lacks what it takes."""
    try:
        try:
            settings = engine.start(home)
        except MissingError as error:
            pytest.skip(str(error))
        yield settings
    finally:
        engine.stop(home)


@pytest.fixture(scope="module")
def cluster_home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("flink")


@pytest.fixture(scope="module")
def cluster(cluster_home) -> Iterator[dict[str, str]]:
    yield from running(flink, cluster_home)


@pytest.mark.parametrize("engine", [spark, prism], ids=["spark", "prism"])
def test_spark_and_prism_give_the_local_bytes(engine, source, expected, tmp_path):
    for settings in running(engine, tmp_path / "engine"):
        for case in ("masks", "volumes"):
            assert run(source, tmp_path, case, settings["HALOFEED_BEAM_OPTIONS"]) == expected[case]
            (tmp_path / "set").rename(tmp_path / case)


@pytest.mark.parametrize("case", ["masks", "volumes"])
def test_flink_workers_that_installed_the_sdist_give_the_local_bytes(
    case, cluster, source, expected, tmp_path
):
    assert run(source, tmp_path, case, cluster["HALOFEED_BEAM_OPTIONS"]) == expected[case]


@contextlib.contextmanager
def begun(source: Path, out: Path, beam: str) -> Iterator[subprocess.Popen[str]]:
    """The pictures' conversion, which is ended with the block."""
    command = subprocess.Popen(
        words(source, out, "pictures", beam), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        yield command
    finally:
        if command.returncode is None:
            command.terminate()
            command.communicate()


def wait_for_shards(out: Path, count: int, command: subprocess.Popen[str]) -> None:
    """Return once so many shards are there."""
    end = time.monotonic() + 300
    while len(list(out.glob("set/1.0.0/*.index"))) < count:
        assert command.poll() is None, command.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.05)


# HALOFEED_KILLS=10 kills ten of each, at other moments, which takes ten minutes.
@pytest.mark.parametrize("time_of_it", range(int(os.environ.get("HALOFEED_KILLS", "1"))))
def test_killed_workers_and_task_managers_cost_no_byte_and_count_no_input_twice(
    cluster, cluster_home, source, expected, tmp_path, time_of_it
):
    with begun(source, tmp_path, cluster["HALOFEED_BEAM_OPTIONS"]) as command:
        # Flink waits without end for a worker that is killed before it has said that it is there.
        wait_for_shards(tmp_path, 1 + time_of_it % 4, command)
        while len(workers := flink.worker_pids(cluster_home)) < len(flink.MACHINES):
            assert command.poll() is None, command.communicate()[1]
            time.sleep(0.05)
        os.kill(workers[time_of_it % 2], signal.SIGKILL)
        wait_for_shards(tmp_path, 5 + time_of_it % 7, command)
        flink.kill_task_manager(cluster_home, flink.MACHINES[time_of_it % 2])
        _, said = command.communicate(timeout=400)
    assert command.returncode == 0, said
    assert all_bytes(tmp_path / "set/1.0.0") == expected["pictures"]


def test_a_stopped_command_ends_its_job_on_flink(cluster, source, tmp_path):
    with begun(source, tmp_path, cluster["HALOFEED_BEAM_OPTIONS"]) as command:
        wait_for_shards(tmp_path, 1, command)
        command.send_signal(signal.SIGTERM)
        assert "its job is told to stop" in command.communicate(timeout=60)[1]
    end = time.monotonic() + 100
    while True:
        with urllib.request.urlopen(f"{cluster['FLINK_REST']}/jobs") as answer:
            states = {job["status"] for job in json.load(answer)["jobs"]}
        if states <= {"FINISHED", "FAILED", "CANCELED"}:
            break
        assert time.monotonic() < end, states
        time.sleep(0.5)
    assert not (tmp_path / "set/1.0.0/manifest.json").exists()
