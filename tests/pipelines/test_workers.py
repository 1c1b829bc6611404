"""Does a job of several workers on this machine stay on this machine, and among processes of this user alone?

Is no process copied that has threads, whose locks nobody would ever release in the copy?
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halofeed.cli import main
from halofeed.pipelines import workers
from tests.support.conversions import all_bytes, bytes_of, convert_words, draw_folders

pytestmark = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc to see sockets")

OPTIONS = {"layout": "folders", "shards": 6, "interpolation": "tf2-lanczos5", "height": 96, "width": 96}
PROGRAM = """
import sys
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.prep.options.recipe import Recipe
if __name__ == "__main__":
    recipe = Recipe(layout="folders", shards=6, interpolation="tf2-lanczos5", height=96, width=96)
    convert(JobOptions(source=sys.argv[1], out=sys.argv[2], name="set", workers=2), recipe)
"""
_LISTENING = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
SOURCE = {"images": 96, "side": 400}


def family(process: int) -> list[int]:
    """A process and everything that it started, and what those started."""
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                below.setdefault(parent, []).append(int(folder.name))
    found = [process]
    for member in found:
        found.extend(below.get(member, []))
    return found


def sockets_of(process: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # the process or the descriptor has gone
        for link in Path(f"/proc/{process}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def open_to_the_network(inodes: set[str]) -> Iterator[str]:
    """The listening or connected TCP sockets of these whose own address is not this machine's loopback."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].partition(":")
            if words[9] in inodes and address not in _LOOPBACK:
                state = "listens" if words[3] == _LISTENING else "is connected"
                yield f"{name} {address} {state} on port {int(port, 16)}"


@pytest.mark.parametrize("starts", ["the command line", pytest.param("a program", marks=pytest.mark.long)])
def test_no_socket_of_driver_or_workers_is_open_to_the_network(source, tmp_path, starts):
    if starts == "the command line":
        command = ["-m", "halofeed", *convert_words(source, tmp_path / "out", workers=2, **OPTIONS)]
    else:
        (tmp_path / "program.py").write_text(PROGRAM)
        command = [tmp_path / "program.py", source, tmp_path / "out"]
    found, most = set(), 0
    words = [sys.executable, *map(str, command)]
    where = tmp_path / "where it is started"
    where.mkdir()
    if starts != "the command line":  # started by -m, which looks there for modules
        (where / "queue.py").write_text("raise ImportError('a file of the user')")
    threads, servers = set(), set()
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=where,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        while process.poll() is None:
            members = family(process.pid)
            most = max(most, len(members))
            if len(members) > 3:
                with contextlib.suppress(OSError):  # it has ended
                    threads.add(len(os.listdir(f"/proc/{members[1]}/task")))
                    servers.add(Path(f"/proc/{members[1]}/cmdline").read_bytes())
            found.update(open_to_the_network(set().union(*map(sockets_of, members))))
            time.sleep(0.01)
        assert process.stdout is not None and process.stderr is not None
        assert process.returncode == 0, process.stderr.read()
    assert most == 4, "the driver, its fork server and two workers were seen"
    assert threads <= {1}, "the fork server has none beside its own"
    copied = "\0".join([*words, ""]).encode() in servers
    assert copied == (starts == "the command line"), "a copy starts at once"
    assert found == set()
    undisturbed = bytes_of(source, tmp_path / "in this process", **OPTIONS)
    assert all_bytes(tmp_path / "out/set/1.0.0") == undisturbed


def test_a_program_whose_interpreter_is_busy_converts_in_a_process_of_its_own(tmp_path, monkeypatch):
    """Each picture would wait several times for the lock of the interpreter otherwise."""
    source, started = draw_folders(tmp_path / "source", 4), []
    one = {"layout": "folders", "shards": 1, "workers": None}

    def noted(folder: str, count: int, *more: object) -> contextlib.AbstractContextManager[workers.Workers]:
        started.append(count)
        return workers.workers_in(folder, count, *more)

    monkeypatch.setattr("halofeed.pipelines.convert.workers_in", noted)
    monkeypatch.setattr("halofeed.pipelines.convert.is_interpreter_busy", lambda: False)
    expected = bytes_of(source, tmp_path / "quiet", **one)
    assert not started
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        # A single check may miss the thread on a machine that others keep busy, see `is_interpreter_busy`.
        assert any(workers.is_interpreter_busy() for _ in range(10))
        monkeypatch.setattr("halofeed.pipelines.convert.is_interpreter_busy", lambda: True)
        assert bytes_of(source, tmp_path / "busy", **one) == expected
        assert started == [1]
        assert bytes_of(source, tmp_path / "by choice", **one | {"workers": 1}) == expected
        assert started == [1]
    finally:
        ended.set()
        thread.join()
    assert not all(workers.is_interpreter_busy() for _ in range(10))


@pytest.mark.parametrize("layout", ["folders", "coco"])
def test_conversions_in_one_program_leave_no_file_open(tmp_path, layout):
    """A program that converts several hundred data sets must not meet its limit of open files."""
    draw_folders(tmp_path / "photos", 4)
    found = []
    for number in range(4):
        words = convert_words(
            tmp_path / "photos", tmp_path / f"{number}", layout=layout, height=16, width=16, workers=1
        )
        # The layout coco fails, because the source has no COCO file: a failed conversion must close its files too.
        assert main(words) == (0 if layout == "folders" else 1)
        found.append(len(os.listdir("/proc/self/fd")))
    assert found[1:] == found[:-1], found
