"""Does a second run stay away from a folder in use, and is nothing left of a run that was killed?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from halofeed.pipelines.lock import held
from halofeed.pipelines.scratch import scratch_folder
from halofeed.schemas.errors import JobError
from tests.support.conversions import (
    all_bytes,
    bytes_of,
    convert_words,
    draw_folders,
    halofeed_here,
    run_convert,
)

pytest.importorskip("fcntl")

HOLD = """
import os, sys, time
from halofeed.pipelines.lock import held
from halofeed.pipelines.scratch import scratch_folder
with held(sys.argv[1]), scratch_folder() as scratch:
    print(scratch, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def source(tmp_path) -> Path:
    return draw_folders(tmp_path / "src", 6)


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A process that holds the version's folder as a run does, and its scratch folder."""
    folder = tmp_path / "out/set/1.0.0"
    folder.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, folder, Path(process.stdout.readline().strip())
        process.kill()
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_second_run_ends_with_1_names_the_first_and_touches_nothing(source, tmp_path, holder):
    process, folder, _ = holder
    (folder / ".incomplete").mkdir()
    (folder / ".incomplete/references").write_text("the first run's")
    done = halofeed_here(*convert_words(source, tmp_path / "out"))
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    said = f"process {process.pid}" if Path("/proc/locks").exists() else "another process"
    assert said in done.stderr and "is converting into it" in done.stderr
    assert all_bytes(folder) == {".incomplete/references": b"the first run's"}


def test_after_a_kill_the_next_run_goes_on_at_once_and_leaves_no_scratch_folder(source, tmp_path, holder):
    process, folder, scratch = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert scratch.is_dir()
    assert run_convert(source, tmp_path / "out", layout="folders").manifest
    assert not list((tmp_path / "tmp").iterdir())
    assert all_bytes(folder) == bytes_of(source, tmp_path / "fresh", layout="folders")


def test_scratch_folders_of_the_living_and_what_others_own_stay(tmp_path, holder):
    _, _, scratch = holder
    begun = tmp_path / "tmp/.halofeed-scratch-begun"
    others = [tmp_path / "tmp" / name for name in ("halofeed-mine", "someone-elses", "beam-pipeline-temp1")]
    for folder in (scratch, begun, *others):
        folder.mkdir(exist_ok=True)
        os.utime(folder, (time.time() - 3600,) * 2)
    young = tmp_path / "tmp/.halofeed-scratch-young"
    young.mkdir()
    with scratch_folder() as ours:
        assert all(folder.is_dir() for folder in (scratch, young, Path(ours), *others))
        assert not begun.exists()
    assert not Path(ours).exists() and scratch.is_dir()


@pytest.mark.parametrize("more", [{}, {"overwrite": True}])
def test_a_committed_version_that_another_run_holds_is_left_alone(source, tmp_path, more):
    folder = Path(run_convert(source, tmp_path / "out", layout="folders").folder)
    before = all_bytes(folder)
    said = f"(process {os.getpid()}|another process) is converting into it"
    with held(str(folder)), pytest.raises(JobError, match=said):
        run_convert(source, tmp_path / "out", layout="folders", **more)
    assert all_bytes(folder) == before and os.listdir(folder.parent) == ["1.0.0"]
    assert run_convert(source, tmp_path / "out", layout="folders").was_there
