"""Errors name their cause and cross process borders, resources that lack are named, and a signal stops the program."""

import errno
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halofeed import errors
from halofeed.errors import JobError
from halofeed.pipelines.progress import WorkerProgress, job_error
from halofeed.system.resource_errors import FIXES, describe_error, error_context, resource_error

ERRORS = [errors.UsageError("a"), errors.PartitionError("b")]
ERRORS += [errors.SourceError("decode", "truncated", "8 bytes"), errors.AnnotationsError("c")]
ERRORS += [errors.ManifestError("m.json", [("a.b", "wrong"), ("c", "missing")]), errors.CorruptFileError("d")]
ERRORS += [errors.JobError("e")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_is_ours_and_survives_pickling(error: errors.HalofeedError) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error) and str(copied) == str(error) and vars(copied) == vars(error)
    assert isinstance(error, errors.HalofeedError)
    assert error.exit_code == (2 if isinstance(error, errors.UsageError) else 1)
    assert isinstance(error, ValueError) == isinstance(error, errors.UsageError)


def test_a_manifest_error_lists_every_problem_and_a_source_error_without_detail_has_no_brackets() -> None:
    error = errors.ManifestError("m.json", iter([("a.b", "wrong"), ("c", "missing")]))
    assert str(error) == "m.json: 2 problems\n  a.b: wrong\n  c: missing"
    assert str(errors.SourceError("read", "gone")) == "read: gone"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "too little memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "too little memory"),
        (RuntimeError("can't start new thread"), "no further thread could be started"),
        (BlockingIOError(errno.EAGAIN, "not now"), "no further process could be started"),
    ],
)
def test_a_shortage_is_named_with_its_cure(error, said, tmp_path):
    text = resource_error(error)
    assert text is not None and text.startswith(said) and "--workers" in text
    with pytest.raises(JobError), WorkerProgress(str(tmp_path)).reporting("shard train/0"):
        raise error
    assert job_error(str(tmp_path)) == f"shard train/0: {text}"


@pytest.mark.parametrize(("number", "fix"), FIXES.items())
def test_a_system_error_names_path_reason_and_fix(number, fix, tmp_path):
    with pytest.raises(OSError) as caught, error_context("cannot write the report"):
        raise OSError(number, os.strerror(number), str(tmp_path / "b"))
    text = f"cannot write the report {tmp_path / 'b'}: {os.strerror(number)}. {fix}"
    assert describe_error(caught.value) == text and fix[0].isupper() and "same command again" in fix
    match = re.escape(f"shard train/0: {text}")
    with pytest.raises(JobError, match=match), WorkerProgress(str(tmp_path)).reporting("shard train/0"):
        raise RuntimeError("of a runner") from caught.value


PROGRAM = """
import sys, time
from halofeed.system import signals

def undo():
    before = len(written)
    time.sleep(0.3)
    open(sys.argv[1], "w").write(f"{before} {len(written)}")

written = []
signals.install_handlers()
signals.handle_in_thread()
with signals.CleanupOnExit(undo):
    print("ready", flush=True)
    while True:
        written.append(0)
        time.sleep(0)
"""


def test_the_program_stands_still_while_what_it_began_is_undone(tmp_path: Path) -> None:
    for attempt in range(3):
        result = tmp_path / str(attempt)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(result)], **pipes) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 143 and errors == "halofeed: stopped (SIGTERM)\n"
        before, after = map(int, result.read_text().split())
        assert before == after
