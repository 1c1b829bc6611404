"""What does a command do with a job on another runner: end with it, bear what is done twice, say why it failed?"""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from halofeed import __version__
from halofeed.errors import JobError, NotRunError, UsageError
from halofeed.pipelines import heartbeat, run_on_beam
from halofeed.pipelines import remote_job as remote
from halofeed.pipelines.beam_options import choose_runner
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.remote_job import _in_brief, _pause_after, _SilenceWatch
from halofeed.prep.options.recipe import Recipe
from tests.support import far_runner
from tests.support.conversions import all_bytes, convert_words, run_convert, start, wait_until
from tests.support.dicom_writer import draw_series
from tests.support.far_runner import JobServer

FAR = "--runner=tests.support.far_runner.FarRunner"
DATAFLOW = ["--runner=DataflowRunner", "--project=none", "--region=none", "--no_auth"]
SOURCE = {"images": 12, "broken": 2}


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, bytes]:
    done = run_convert(source, tmp_path_factory.mktemp("here"), layout="folders", shards=2)
    return all_bytes(Path(done.folder))


def convert_far(source: Path, out: Path, *beam: str, **options: object):
    job = JobOptions(source=str(source), out=str(out), name="set", **options)
    return convert(job, Recipe(layout="folders", height=16, width=24, shards=2), list(beam) or [FAR])


def test_a_job_repeated_after_its_commit_gives_the_same_bytes(source, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("FAR_TIMES", "2")
    done = convert_far(source, tmp_path, max_rejected=2)
    assert all_bytes(Path(done.folder)) == expected
    assert sum(done.manifest.rejected.values()) == 2
    assert JobServer.running == 0, "those that Beam started are stopped"


def test_a_job_that_fails_after_its_commit_made_the_data_set(source, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAR_ERROR", "1")
    assert all_bytes(Path(convert_far(source, tmp_path).folder)) == expected
    assert "the data set is complete" in capsys.readouterr().err


def test_a_failure_is_told_in_one_line_with_what_to_do(source, tmp_path, monkeypatch):
    monkeypatch.setenv("FAR_TIMES", "0")
    with pytest.raises(JobError, match="run the same command again"):  # it ends without a data set
        convert_far(source, tmp_path)
    monkeypatch.setenv("FAR_ERROR", "1")
    kept = "What is finished is kept: run the same command again"
    told = f"the job failed: ValueError: no such colour. {kept}; --debug shows all output of the runner"
    with pytest.raises(JobError, match=f"^{told}$"):
        convert_far(source, tmp_path)


def test_what_a_worker_lacks_is_named_with_its_cure():
    java, cure = "java.lang.X: Traceback\n{}\n\tat", f"Install halofeed {__version__}"
    for text, error in (
        (java, "ModuleNotFoundError: No module named 'cv2'"),
        (java, "AttributeError: Can't get attribute 'X' on <module 'halofeed.x'>"),
        ("{}", "Pipeline job failed in state FAILED: java.lang.X: Process died with exit code 1"),
    ):
        told = _in_brief(RuntimeError(text.format(error)), None)
        assert told.startswith(f"a worker's environment lacks what the job needs: {error}. {cure}")
    told = _in_brief(RuntimeError(java.format("ModuleNotFoundError: No module named 'boto3'")), None)
    assert f"{cure} with its extras convert and aws where workers run" in told


def test_a_worker_of_another_version_stops_and_names_both(source, tmp_path, heartbeat_path, monkeypatch):
    given = {"folder": str(tmp_path), "name": "", "heartbeat_path": heartbeat_path, "allowed_classes": ()}
    with pytest.raises(JobError, match=r"that submitted the job 9\.9: install the same"):
        run_on_beam._Call(len, run_on_beam._Calls(**given, software="9.9")).setup()
    submitted = ShardJob.to_json

    def elsewhere(job: ShardJob) -> str:
        return submitted(job).replace(f'"software": "{__version__}"', '"software": "9.9", "new": 1')

    monkeypatch.setattr(ShardJob, "to_json", elsewhere)
    words = rf"^a worker has halofeed {__version__}, and the command that submitted the job 9\.9: install"
    with pytest.raises(JobError, match=words):
        convert_far(source, tmp_path)


def test_a_stopped_command_withdraws_and_cancels_its_job(source, tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("FAR_HANGS", str(hangs))
    words = convert_words(source, tmp_path / "out", shards=2)
    command = start([*words, "--", FAR], cwd=Path(__file__).parents[2])
    wait_until(hangs.exists, 60, "the job runs")
    incomplete = tmp_path / "out/set/1.0.0/.incomplete"
    assert list(incomplete.glob("wanted-*"))
    command.send_signal(signal.SIGTERM)
    assert "the job is being canceled" in command.communicate(timeout=60)[1]
    assert command.returncode == 143
    assert not hangs.exists()
    assert not list(incomplete.glob("wanted-*"))


@pytest.fixture
def heartbeat_path(tmp_path) -> str:
    return heartbeat.start_heartbeat(OutputFolder(str(tmp_path)))


def called_by_job(folder: Path, call: Callable[[int], int]) -> list[int]:
    """What a job's workers give of the numbers 0 and 1; what it needs lies below the folder."""
    choice = choose_runner(JobOptions(source="-", out="-", name="set"), 1, [FAR], 1 << 30)
    return list(run_on_beam.run_on_beam(choice, str(folder), (), {})(call, range(2)))


def test_workers_send_heartbeats_while_a_call_lasts(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.01)

    def given() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob(".incomplete/alive-*"))

    def waiting(number: int) -> int:
        before = given()
        wait_until(lambda: given() >= before + 3, 60, "heartbeats")
        return 10 * number

    assert called_by_job(tmp_path, waiting) == [0, 10]


def test_a_job_of_calls_goes_no_further_once_its_command_is_gone(tmp_path):
    def stopping(number: int) -> int:
        for file in tmp_path.glob(".incomplete/wanted-*"):
            file.unlink()
        return number

    with pytest.raises(JobError, match="was stopped, or another command replaced it"):
        called_by_job(tmp_path, stopping)
    assert not list(tmp_path.glob(".incomplete/calls-*-0"))


def test_a_job_that_waits_is_told_of_and_given_up_at_its_limit_alone(source, tmp_path, monkeypatch, capsys):
    assert [_pause_after(seconds) for seconds in (0.01, 0.5, 2, 30)] == [5, 5, 20, 60]
    for wrong in (0.5, float("nan")):
        with pytest.raises(UsageError, match=r"--max-silence-minutes .*: expected 1 or more"):
            convert_far(source, tmp_path, max_silence_minutes=wrong)
    monkeypatch.setattr(remote, "_SECONDS_TO_WARN", 0)
    monkeypatch.setattr(remote, "_SECONDS_TO_GIVE_UP", 0)
    watch = _SilenceWatch({})
    for _ in range(3):
        watch.update({})
    assert capsys.readouterr().err.count("check the cluster's free slots") == 1
    watch = _SilenceWatch({}, 0.1)
    watch.update({})
    assert "cannot start; this command gives the job up after" in capsys.readouterr().err
    time.sleep(0.1)
    with pytest.raises(JobError, match=r"no worker has sent a heartbeat.*or cannot start workers"):
        watch.update({})


@pytest.mark.parametrize("listing", ["command", "job"])
def test_a_lost_job_is_restarted_as_often_as_asked(source, expected, tmp_path, monkeypatch, capsys, listing):
    monkeypatch.setattr(remote, "_POLL_SECONDS", 0.05)
    lost = tmp_path / "lost"
    monkeypatch.setenv("FAR_LOST", str(lost))
    lost.write_text("3")
    with pytest.raises(JobError, match="worker 2 was lost"):
        convert_far(source, tmp_path, job_restarts=2, listing=listing)
    assert capsys.readouterr().err.count("started again") == 2
    lost.write_text("2")
    assert all_bytes(Path(convert_far(source, tmp_path, job_restarts=2, listing=listing).folder)) == expected


def test_a_job_failing_for_its_input_or_its_workers_is_not_restarted(source, tmp_path, monkeypatch, capsys):
    words = r"^inputs rejected: more than --max-rejected 1 allows(?!.*while running)"
    with pytest.raises(JobError, match=words):
        convert_far(source, tmp_path, max_rejected=1, job_restarts=2)
    monkeypatch.setenv("FAR_TIMES", "0")
    monkeypatch.setenv("FAR_ERROR", "1")
    monkeypatch.setattr(far_runner, "LONG_ERROR", "ModuleNotFoundError: No module named 'cv2'")
    with pytest.raises(JobError, match="environment lacks what the job needs"):
        convert_far(source, tmp_path, job_restarts=1)
    assert "started again" not in capsys.readouterr().err


def test_a_job_whose_workers_are_all_silent_is_ended_and_named(source, tmp_path, monkeypatch, capsys):
    for name, seconds in (("_POLL_SECONDS", 0.05), ("_SECONDS_TO_WARN", 0.2), ("_SECONDS_TO_GIVE_UP", 0.5)):
        monkeypatch.setattr(remote, name, seconds)
    hangs, version = tmp_path / "hangs", tmp_path / "set/1.0.0"
    monkeypatch.setenv("FAR_HANGS", str(hangs))

    def begin() -> None:
        while not hangs.exists():
            time.sleep(0.01)
        (version / ".incomplete/alive-1").write_text(".")

    threading.Thread(target=begin, daemon=True).start()
    with pytest.raises(JobError, match=r"no worker has sent a heartbeat.*run the same command again"):
        convert_far(source, tmp_path)
    assert "the job's workers have sent no heartbeat" in capsys.readouterr().err
    assert not hangs.exists()
    assert not list(version.glob(".incomplete/wanted-*"))


def test_a_job_server_that_does_not_answer_leaves_the_committed_version(source, expected, tmp_path):
    convert_far(source, tmp_path)
    beam = ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--job_server_timeout=1"]
    with pytest.raises(JobError, match="--job_endpoint=localhost:1: no job server answers there"):
        convert_far(source, tmp_path, *beam, "--environment_type=LOOPBACK", overwrite=True)
    assert all_bytes(tmp_path / "set/1.0.0") == expected


def test_a_dry_run_of_series_lists_them_in_this_process(tmp_path):
    pytest.importorskip("google.cloud.dataflow")
    source = draw_series(tmp_path / "source", 2, 3)
    job = JobOptions(source=str(source), out=str(tmp_path / "out"), name="set")
    beam = [*DATAFLOW, "--temp_location=gs://none/temporary", "--dry_run=True"]
    with pytest.raises(NotRunError, match="the job was built and not submitted"):
        convert(job, Recipe(layout="dicom", depth=3, height=6, width=7), beam)


@pytest.mark.parametrize("stands", [False, True])
def test_a_dry_run_for_dataflow_needs_no_network_and_leaves_nothing(source, expected, tmp_path, stands):
    pytest.importorskip("google.cloud.dataflow")
    if stands:
        convert_far(source, tmp_path / "out")
    beam = [*DATAFLOW, "--temp_location=gs://none/temporary", "--dry_run=True", "--machine_type=n2-highmem-4"]
    beam += ["--sdk_container_image=example/halofeed:1", "--sdk_location=container"]
    file = tmp_path / "job.json"
    with pytest.raises(NotRunError, match=r"not submitted; it is in .*job\.json"):
        convert_far(source, tmp_path / "out", *beam, f"--dataflow_job_file={file}", overwrite=True)
    job = json.loads(file.read_text())
    (pool,), staged = job["environment"]["workerPools"], job["environment"]["sdkPipelineOptions"]["options"]
    assert pool["machineType"] == "n2-highmem-4" and staged["project"] == "none"
    assert [image["containerImage"] for image in pool["sdkHarnessContainerImages"]] == ["example/halofeed:1"]
    steps = {step["uniqueName"] for step in job["pipeline"]["components"]["transforms"].values()}
    assert {"read references", "write shards", "gather", "commit"} <= steps
    version = tmp_path / "out/set/1.0.0"
    assert (all_bytes(version) if version.exists() else {}) == (expected if stands else {})
    assert not (tmp_path / "out/set/.1.0.0.replacement").exists()
