"""Real engines make the local run's bytes, also where their workers and machines are killed in the middle.

`--all` converts on Flink and kills a worker and a machine; the other engines and combinations are tried by hand.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conversions import all_bytes, wait_until
from tests.support.engines import flink, prism, spark
from tests.support.engines.conversions import (
    VERSION,
    begun,
    draw,
    kill_task_manager,
    kill_worker,
    moments,
    run,
    shards_there,
    wait_for,
)
from tests.support.engines.processes import MissingError
from tests.support.engines.worker_environment import pool_options


class LocalBytes(dict[str, dict[str, bytes]]):
    """Every file that a local conversion of a case leaves; it is converted at the first time."""

    def __init__(self, source: Path, out: Path) -> None:
        super().__init__()
        self.source, self.out = source, out

    def __missing__(self, case: str) -> dict[str, bytes]:
        self[case] = run(self.source, self.out / case, case)
        return self[case]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source")
    draw(root)
    return root


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    return LocalBytes(source, tmp_path_factory.mktemp("local"))


def running(engine, home: Path) -> Iterator[str]:
    """Beam's options of an engine that lives as long as tests need it; they are skipped where it cannot be had."""
    try:
        try:
            settings = engine.start(home)
        except MissingError as error:
            pytest.skip(str(error))
        yield settings["HALOFEED_BEAM_OPTIONS"]
    finally:
        engine.stop(home)


@pytest.fixture(scope="module")
def cluster_home(tmp_path_factory):
    return tmp_path_factory.mktemp("flink")


@pytest.fixture(scope="module")
def cluster(cluster_home):
    yield from running(flink, cluster_home)


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", [spark, prism], ids=["spark", "prism"])
def test_spark_and_prism_with_workers_of_the_sdist_give_local_bytes(engine, source, expected, tmp_path):
    home = tmp_path / "engine"
    for beam in running(engine, home):
        for case in ("masks", "volumes"):
            assert run(source, tmp_path / case, case, beam) == expected[case]
        out = tmp_path / "pictures"
        with begun(source, out, "pictures", beam) as command:
            assert wait_for(shards_there(out, 3), command)
            assert kill_worker(engine, home, 0, command)
            _, said = command.communicate(timeout=300)
        if engine is spark:
            assert command.returncode == 0, said
        else:  # which tries nothing again
            assert command.returncode == 1
            assert "run the same command again" in said
        assert run(source, out, "pictures", beam) == expected["pictures"]
        listed_in_job = run(source, tmp_path / "listed", "pictures", beam, "--listing job")
        assert listed_in_job == expected["pictures"]


@pytest.mark.exhaustive
def test_a_pool_gives_local_bytes_and_a_job_without_a_worker_ends_at_its_limit(source, expected, tmp_path):
    home = tmp_path / "engine"
    for beam in running(prism, home):
        pool = " ".join([beam, *pool_options(home)])
        assert run(source, tmp_path / "masks", "masks", pool) == expected["masks"]
        out = tmp_path / "pictures"
        with begun(source, out, "pictures", pool, "--max-silence-minutes 1") as command:
            # For which Prism waits a minute, or without end where it had connected.
            assert kill_worker(prism, home, 0, command)
            _, said = command.communicate(timeout=120)
        assert command.returncode == 1
        assert "no worker has sent a heartbeat for 1 min" in said or "after 1m0s" in said
        assert "run the same command again" in said
        assert run(source, out, "pictures", pool) == expected["pictures"]


@pytest.mark.exhaustive
def test_what_is_wrong_on_a_worker_is_told_with_its_cure(source, tmp_path):
    home = tmp_path / "engine"
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "cv2.py").write_text("raise ModuleNotFoundError(\"No module named 'cv2'\")")
    told = {
        f"PYTHONPATH={lacking} exec": "No module named 'cv2'. Install halofeed",
        "ulimit -f 200; PYTHONPATH= exec": "File too large; what is finished is kept. Raise the limit",
    }
    for beam in running(prism, home):
        script = (home / "worker").read_text()
        for beginning, expected in told.items():
            (home / "worker").write_text(script.replace("PYTHONPATH= exec", beginning))
            with begun(source, tmp_path / "out", "pictures", beam) as command:
                _, said = command.communicate(timeout=100)
            assert command.returncode == 1
            assert expected in said


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["masks", "volumes"])
def test_flink_workers_that_installed_the_sdist_give_local_bytes(case, cluster, source, expected, tmp_path):
    assert run(source, tmp_path, case, cluster) == expected[case]


@pytest.mark.long
def test_a_killed_worker_and_a_killed_task_manager_cost_no_byte_and_count_no_input_twice(
    cluster, cluster_home, source, expected, tmp_path
):
    """The worker's while it lists the source. At other moments, ten of each: python benchmarks/clusters.py kills."""
    with begun(source, tmp_path, "pictures", cluster, "--listing job") as command:
        assert kill_worker(flink, cluster_home, 0, command)
        assert wait_for(moments(tmp_path)["shards are written"], command)
        kill_task_manager(cluster_home, 0)
        _, said = command.communicate(timeout=400)
    assert command.returncode == 0, said
    assert all_bytes(tmp_path / VERSION) == expected["pictures"]


@pytest.mark.exhaustive
def test_a_stopped_command_ends_its_job_on_flink(cluster, cluster_home, source, tmp_path):
    with begun(source, tmp_path, "pictures", cluster) as command:
        assert wait_for(shards_there(tmp_path, 1), command)
        command.send_signal(signal.SIGTERM)
        assert "the job is being canceled" in command.communicate(timeout=60)[1]
    ended = {"FINISHED", "FAILED", "CANCELED"}
    wait_until(lambda: not flink.states(cluster_home) - ended, 200, "its job ends")
    assert not (tmp_path / VERSION / "manifest.json").exists()
