"""A command that is asked to stop says so in one line, with the signal's status, and leaves nothing behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import (
    SETTINGS,
    STOPPED,
    convert,
    is_pythons_own,
    left_of,
    light_entries,
    living,
    start,
    wait_until,
)
from tests.support.conversions import all_bytes, run_convert
from tests.support.conversions import wait_until as wait
from tests.support.level_rows import levels

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENTRIES = (*light_entries(Path(), Path()), "convert", "convert with 2 workers")
SOURCE = {"images": 96, "side": 400, "broken": 3}


def assert_stopped(process: subprocess.Popen[str], number: int, temporary: Path, out: Path, how: str) -> bool:
    """Whether it was stopped; False where it was done before, or had not begun.

    `how` is told where something is wrong.
    """
    _, errors = process.communicate(timeout=120)
    if process.returncode == 0:
        # Python's importer passes over an interrupt that comes before the command's own handler stands.
        assert errors == "" or errors.startswith("Exception ignored in: <function _get_module_lock"), how
    elif (process.returncode == -number and not errors) or is_pythons_own(errors):
        return False
    else:
        assert process.returncode == 128 + number, f"{how}: {process.returncode}, {errors}"
        lines = errors.splitlines()
        assert len(lines) == 1 and STOPPED + signal.Signals(number).name in lines[0], f"{how}: {errors}"
    assert living(temporary) == [] and left_of(temporary, out) == [], how
    return process.returncode != 0


@pytest.mark.parametrize(
    ("number", "workers"),
    levels(
        (signal.SIGINT, 2),
        long=[(signal.SIGTERM, 1)],
        exhaustive=[(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 1), (signal.SIGHUP, 2)],
    ),
)
def test_a_conversion_at_work_stops_and_the_same_command_goes_on(source, data, tmp_path, number, workers):
    words, temporary = convert(source, tmp_path / "out", workers), tmp_path / "tmp"
    process = start(words, temporary)
    wait_until(lambda: list(tmp_path.glob("out/set/1.0.0/_index*")), process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    name = signal.Signals(number).name
    assert errors == f"halofeed convert: stopped ({name}); the same command resumes where this one ended\n"
    assert living(temporary) == [] and left_of(temporary, tmp_path / "out") == []
    run_convert(source, tmp_path / "out", **SETTINGS)
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)
    assert left_of(temporary, tmp_path / "out") == []


@pytest.mark.long
def test_a_conversion_that_is_stopped_while_it_plans_leaves_no_folder(source, tmp_path):
    for out in (tmp_path / str(number) for number in range(3)):  # a moment before it plans, the folder stays
        process = start(convert(source, out, 2), tmp_path / "tmp")
        wait_until((out / "set/1.0.0/.incomplete").exists, process)
        process.send_signal(signal.SIGINT)
        if not assert_stopped(process, signal.SIGINT, tmp_path / "tmp", out, ""):
            return
        if not out.exists() or not all_bytes(out) or list(out.rglob("references*")):
            return
    raise AssertionError("a folder stays")


@pytest.mark.long
@pytest.mark.parametrize("number", levels(signal.SIGINT, exhaustive=[signal.SIGTERM]))
def test_a_whole_group_that_is_asked_to_stop_says_it_once(source, tmp_path, number):
    """As a terminal does with Ctrl-C, and a service manager with SIGTERM."""
    process = start(convert(source, tmp_path / "out", 2), tmp_path / "tmp", start_new_session=True)
    wait_until(lambda: list(tmp_path.glob("out/set/1.0.0/_index*")), process)
    os.killpg(process.pid, number)
    assert assert_stopped(process, number, tmp_path / "tmp", tmp_path / "out", "")


@pytest.mark.long
def test_signals_that_are_ignored_stay_ignored(source, data, tmp_path):
    """By nohup, or a shell's & in a script."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, sys.executable, "-m", "halofeed"]
    with subprocess.Popen([*words, *convert(source, tmp_path, 2)], stderr=subprocess.PIPE) as process:
        wait_until(lambda: list(tmp_path.glob("set/1.0.0/_index*")), process)
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors == b""
    assert all_bytes(tmp_path / "set/1.0.0") == all_bytes(data)


def test_of_a_killed_driver_nothing_is_left_in_a_moment(source, tmp_path):
    process = start(convert(source, tmp_path / "out", 2), tmp_path / "tmp")
    wait_until(lambda: list(tmp_path.glob("out/set/1.0.0/_index*")), process)
    assert len(living(tmp_path / "tmp")) == 4, "driver, fork server and two workers"
    process.kill()
    process.communicate()
    wait(lambda: not living(tmp_path / "tmp"), 60, "its workers end")
    wait(lambda: not left_of(tmp_path / "tmp", tmp_path / "out"), 60, "its temporary files go")


@pytest.mark.long
def test_where_all_were_killed_the_next_run_deletes_what_they_left(source, data, tmp_path):
    temporary = tmp_path / "tmp"
    process = start(convert(source, tmp_path / "out", 2), temporary)
    wait_until(lambda: list(tmp_path.glob("out/set/1.0.0/_index*")), process)
    for one in living(temporary):
        os.kill(int(one.split()[0]), signal.SIGKILL)
    process.communicate()
    assert left_of(temporary, tmp_path / "out")
    again = start(convert(source, tmp_path / "out", 2), temporary)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0 and errors == ""
    assert all_bytes(tmp_path / "out/set/1.0.0") == all_bytes(data)
    assert left_of(temporary, tmp_path / "out") == []


@pytest.mark.parametrize("entry", levels("verify", long=["report", "package"]))
def test_a_light_command_stops_at_any_moment(data, tmp_path, entry):
    generator = random.Random(entry)
    for number in SIGNALS:
        process = start(light_entries(data, tmp_path)[entry], tmp_path / "tmp")
        time.sleep(0.1 + 0.6 * generator.random())
        process.send_signal(number)
        assert_stopped(process, number, tmp_path / "tmp", tmp_path, signal.Signals(number).name)


@pytest.mark.parametrize(
    ("entry", "attempts"),
    levels(long=[("convert with 2 workers", 4)], exhaustive=[(entry, 15) for entry in ENTRIES]),
)
def test_every_entry_stops_at_random_moments(source, data, tmp_path, entry, attempts):
    seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)
    for attempt in range(attempts):
        out = tmp_path / str(attempt)
        out.mkdir()
        entries = light_entries(data, out)
        entries |= {"convert": convert(source, out, 1), "convert with 2 workers": convert(source, out, 2)}
        number = generator.choice(SIGNALS)
        process = start(entries[entry], tmp_path / "tmp")
        moment = 3 * generator.random() ** 2
        time.sleep(moment)
        for _ in range(generator.randrange(1, 4)):
            process.send_signal(number)
            time.sleep(0.1 * generator.random())
        how = f"seed {seed}, {signal.Signals(number).name} after {moment:.3f} s"
        assert_stopped(process, number, tmp_path / "tmp", out, how)
