"""What is converted on real engines by tests and by benchmarks/clusters.py, and how a worker is killed meanwhile."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from halofeed.demo import draw_data_set
from tests.support.conversions import all_bytes, draw_folders
from tests.support.dicom_writer import draw_series
from tests.support.engines import flink

ROOT = Path(__file__).parents[3]
VERSION = "set/1.0.0"
PICTURES_SHARDS = 12
CASES = {
    "pictures": f"--layout folders --height 512 --width 512 --shards {PICTURES_SHARDS} --max-rejected 30",
    "masks": "--layout coco --masks --height 64 --width 64 --shards 2",
    "volumes": "--layout dicom --depth 4 --height 8 --width 8 --shards 2",
}


def draw(root: Path, copies: int = 14) -> None:
    """Draw a source for each case, the pictures' with 40 and so many copies of each; a twentieth is broken."""
    draw_folders(root / "pictures", 40, side=1500, broken=2)
    for path in list((root / "pictures").glob("*/*.jpg")):
        for copy in range(copies):
            os.link(path, path.with_stem(f"{path.stem}-{copy}"))
    draw_data_set(root / "masks", 30)
    draw_series(root / "volumes", 6, 5)


def words(source: Path, out: Path, case: str, beam: str, more: str = "") -> list[str]:
    command = [sys.executable, "-m", "halofeed", "convert", "--name", "set", *f"{CASES[case]} {more}".split()]
    places = ["--source", str(source / case), "--out", str(out)]
    return [*command, *places, *(["--", *beam.split()] if beam else [])]


def run(source: Path, out: Path, case: str, beam: str = "", more: str = "") -> dict[str, bytes]:
    with begun(source, out, case, beam, more) as command:
        _, said = command.communicate(timeout=500)
    assert command.returncode == 0, said
    return all_bytes(out / VERSION)


@contextlib.contextmanager
def begun(source: Path, out: Path, case: str, beam: str, more: str = "") -> Iterator[subprocess.Popen[str]]:
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    command = subprocess.Popen(words(source, out, case, beam, more), cwd=ROOT, **streams)
    try:
        yield command
    finally:
        if command.returncode is None:
            command.terminate()
            command.communicate()


def wait_for(condition: Callable[[], object], command: subprocess.Popen[str], seconds: float = 300) -> bool:
    """Return once this holds, or the command has ended; whether it held."""
    end = time.monotonic() + seconds
    while not condition():
        if command.poll() is not None:
            return False
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)
    return True


def shards_there(out: Path, count: int) -> Callable[[], bool]:
    return lambda: len(list(out.glob(f"{VERSION}/_index*"))) >= count


def moments(out: Path) -> dict[str, Callable[[], bool]]:
    """Moments of the pictures' conversion at which something can be killed."""
    return {
        "a worker starts": lambda: True,
        "shards are written": shards_there(out, 4),
        "all shards are written": shards_there(out, PICTURES_SHARDS),
        "the manifest is there": lambda: (out / VERSION / "manifest.json").exists(),
    }


def kill_worker(engine: ModuleType, home: Path, which: int, command: subprocess.Popen[str]) -> bool:
    """Kill one of the engine's workers, as soon as there is one; False where the command has ended first."""
    killed = []

    def kill() -> bool:
        for pid in (workers := engine.worker_pids(home)) and [workers[which % len(workers)]]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return bool(killed)

    return wait_for(kill, command)


def kill_task_manager(home: Path, which: int) -> None:
    flink.kill_task_manager(home, flink.MACHINES[which % len(flink.MACHINES)])
