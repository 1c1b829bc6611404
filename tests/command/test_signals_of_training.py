"""Training, and what comes after it, stops when asked to, also while XLA compiles, and says truly what was saved."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.commands import STOPPED, is_pythons_own, left_of, living, start
from tests.support.conversions import all_bytes, halofeed

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
CONFIG = ["--config", "classifier_small", "--set", "augment=[]", "--set", "batch_size=8"]
SOURCE = {"images": 32}


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    done = halofeed("train", data, *CONFIG, "--steps", 2, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def lines_until(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """What it writes to standard error, up to a line that begins so."""
    assert process.stderr is not None
    lines = [""]
    while not lines[-1].startswith(beginning):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    return lines


@pytest.mark.long
def test_training_that_is_stopped_says_what_was_saved(data, tmp_path):
    words = ["train", str(data), *CONFIG, "--steps", "100000", "--out", str(tmp_path / "run")]
    with start(words, tmp_path / "tmp") as process:
        while not (tmp_path / "run/run.json").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 143 and not list(tmp_path.glob("run/checkpoints/0*")), errors
    assert errors.splitlines()[-1] == (
        "halofeed train: stopped (SIGTERM); no step of this run was saved: the same command starts it again"
    )

    with start(words, tmp_path / "tmp") as process:
        lines = lines_until(process, "step ")
        process.send_signal(signal.SIGINT)
        lines += process.communicate(timeout=120)[1].splitlines()
    assert process.returncode == 130, lines
    (saved,) = [int(path.name) for path in tmp_path.glob("run/checkpoints/0*")]
    assert lines[-1] == f"stopped after step {saved}; the same command resumes there"
    assert living(tmp_path / "tmp") == [] and left_of(tmp_path / "tmp", tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("later_s", [0.0, 0.01, 0.02, 0.04])
def test_a_run_to_be_replaced_stands_after_a_stop_before_a_checkpoint(data, trained, tmp_path, later_s):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = all_bytes(run)
    words = ["train", str(data), *CONFIG, "--steps", "9", "--out", str(run), "--overwrite"]
    with start(words, tmp_path / "tmp") as process:
        while not run.with_name(".run.replaced").exists():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(later_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert f"{run} holds the earlier run again" in errors
    assert all_bytes(run) == before
    assert left_of(tmp_path / "tmp", tmp_path) == [] and sorted(tmp_path.glob(".*")) == []


def later(data: Path, source: Path, trained: Path, out: Path) -> dict[str, list[str]]:
    return {
        "train": ["train", str(data), *CONFIG, "--steps", "9", "--out", str(out / "run")],
        "evaluate": ["evaluate", str(trained)],
        "predict": ["predict", str(trained), "--out", str(out / "found")],
        "predict new files": ["predict", str(trained), "--source", str(source), "--out", str(out / "found")],
        "export": ["export", str(trained), "--out", str(out / "exported")],
        "export to TensorFlow": [
            *("export", str(trained), "--out", str(out / "exported"), "--format", "savedmodel")
        ],
        "demo": ["demo", "--folder", str(out / "demo"), "--images", "32"],
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", later(Path(), Path(), Path(), Path()))
def test_every_entry_stops_at_random_moments(data, source, trained, tmp_path, entry):
    seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    for attempt in range(2):
        out, temporary = tmp_path / str(attempt), tmp_path / "tmp"
        out.mkdir()
        number = generator.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        process = start(later(data, source, trained, out)[entry], temporary, start_new_session=True)
        moment = 15 * generator.random()
        send = generator.choice([os.kill, os.killpg])
        timer = threading.Timer(moment, lambda: send(process.pid, number) if process.poll() is None else None)  # noqa: B023
        timer.start()
        _, errors = process.communicate(timeout=300)
        timer.cancel()
        how = f"seed {seed}, attempt {attempt}: {send.__name__} {number} after {moment:.3f} s: {errors}"
        if process.returncode == -number or is_pythons_own(errors):
            continue
        assert process.returncode in (0, 128 + number) and "Traceback" not in errors, how
        said = [line for line in errors.splitlines() if STOPPED in line or "stopped after" in line]
        assert len(said) == (process.returncode != 0), how
        assert living(temporary) == [] and left_of(temporary, out) == [], how
