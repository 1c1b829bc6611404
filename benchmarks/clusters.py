"""Compare real engines with the local run: equal bytes while workers are killed, and the cost per shard.

    python benchmarks/clusters.py same --engines flink,spark,prism
    python benchmarks/clusters.py kills --engines flink,spark,prism --kills 10
    python benchmarks/clusters.py shards --engines flink,spark,prism --shards 8,72 --rounds 3
    python benchmarks/clusters.py cost --engines here,flink,prism --pictures 20000

The engines (tests/support/engines) run on this machine, each for as long as it is needed. `kills` kills as many
workers, and on Flink as many task managers, at moments that take turns. Where an engine gives a job up, the same
command runs again. Prism retries nothing, so its command gets --job-restarts.
`shards` converts the same pictures into few and into many shards, here and there; the numbers take turns.
`cost` converts many pictures once here and once on each engine, and prints the processor time of the command and of the
engine with its workers, and the bytes that the command's summary states.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.conversions import all_bytes, draw_folders
from tests.support.engines.conversions import (
    CASES,
    ROOT,
    VERSION,
    begun,
    draw,
    kill_task_manager,
    kill_worker,
    moments,
    run,
    wait_for,
)
from tests.support.engines.processes import pid_of

SECONDS_TO_END = 400
PATIENCE = {"prism": "--job-restarts 3 --max-silence-minutes 1"}


@contextmanager
def running(engine: ModuleType, home: Path) -> Iterator[str]:
    """Beam's options of an engine that runs."""
    try:
        yield engine.start(home)["HALOFEED_BEAM_OPTIONS"]
    finally:
        engine.stop(home)


def print_row(*cells: object) -> None:
    """A row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def same(engines: list[ModuleType], root: Path, expected: dict[str, dict[str, bytes]]) -> None:
    """Print how long each conversion takes, and whether each of its files is the local run's."""
    print_row("engine", "case", "seconds", "files", "the local run's")
    print_row(*["---"] * 5)
    for engine in engines:
        with running(engine, root / "engine") as beam:
            for case in CASES:
                start = time.perf_counter()
                found = run(root, root / "out" / engine.__name__ / case, case, beam)
                seconds = f"{time.perf_counter() - start:.1f}"
                print_row(_name(engine), case, seconds, len(found), found == expected[case])


def kills(engines: list[ModuleType], count: int, root: Path, expected: dict[str, dict[str, bytes]]) -> None:
    """Print what became of each conversion in which something was killed."""
    print_row("engine", "killed", "when", "ended", "commands", "seconds", "the local run's")
    print_row(*["---"] * 7)
    for engine in engines:
        home = root / "engine"
        with running(engine, home) as beam:
            for number in range(count):
                for what in ("worker", "task manager") if _name(engine) == "flink" else ("worker",):
                    _kill(engine, home, what, number, beam, root, expected)


def _kill(
    engine: ModuleType,
    home: Path,
    what: str,
    number: int,
    beam: str,
    root: Path,
    expected: dict[str, dict[str, bytes]],
) -> None:
    out = root / "out" / f"{_name(engine)}-{what}-{number}".replace(" ", "-")
    case, when, reached = _moment(out, number)
    start = time.perf_counter()
    with begun(root, out, case, beam, PATIENCE.get(_name(engine), "")) as command:
        hit = wait_for(reached, command)
        if hit and what == "worker":
            hit = kill_worker(engine, home, number, command)
        elif hit:
            hit = wait_for(lambda: engine.worker_pids(home), command)
            kill_task_manager(home, number)
        _, said = command.communicate(timeout=SECONDS_TO_END)
    commands, ended = 1, "well" if command.returncode == 0 else said.splitlines()[-1][:100]
    if command.returncode:
        run(root, out, case, beam)
        commands = 2
    seconds = time.perf_counter() - start
    print_row(
        _name(engine),
        what if hit else f"no {what} there any more",
        when,
        ended,
        commands,
        f"{seconds:.0f}",
        all_bytes(out / VERSION) == expected[case],
    )


def _moment(out: Path, number: int) -> tuple[str, str, Callable[[], object]]:
    """Which conversion, and when in it."""
    found = [("pictures", when, reached) for when, reached in moments(out).items()]
    found.insert(1, ("volumes", "series are listed", lambda: True))
    return found[number % len(found)]


def shards(engines: list[ModuleType], numbers: list[int], rounds: int, root: Path) -> None:
    """Print what a shard more costs: the seconds that many take beyond few, for each of those between."""
    few, many = numbers
    print_row("engine", f"s for {few}", f"s for {many}", "ms a shard more", "of them local")
    print_row(*["---"] * 5)
    source = CASES["pictures"]
    ours: float | None = None
    for engine in (None, *engines):
        taken: dict[int, list[float]] = {few: [], many: []}
        with running(engine, root / "engine") if engine else _nothing() as beam:
            for again in range(rounds):
                for number in numbers:
                    CASES["pictures"] = (
                        f"--layout folders --height 64 --width 64 --shards {number} --threads 1"
                    )
                    start = time.perf_counter()
                    run(root, root / "out" / f"{engine and _name(engine)}-{number}-{again}", "pictures", beam)
                    taken[number].append(time.perf_counter() - start)
        each = median(m - f for f, m in zip(taken[few], taken[many], strict=True)) / (many - few) * 1e3
        ours = each if ours is None else ours
        name = _name(engine) if engine else "this machine"
        print_row(
            name, f"{median(taken[few]):.1f}", f"{median(taken[many]):.1f}", f"{each:.0f}", f"{ours:.0f}"
        )
    CASES["pictures"] = source


@contextmanager
def _nothing() -> Iterator[str]:
    yield ""


COST = "--layout folders --height 224 --width 224 --shards 16"
_KINDS = 200
"""Different pictures among those that `cost` converts; the others are links to them."""
_TICKS = os.sysconf("SC_CLK_TCK")


def draw_many(source: Path, pictures: int) -> int:
    """Draw class folders with so many pictures of 250 to 500 pixels a side; return their bytes."""
    draw_folders(source, _KINDS, side=500)
    first = sorted(source.glob("*/*.jpg"))
    for number in range(pictures - len(first)):
        path = first[number % len(first)]
        os.link(path, path.with_stem(f"{path.stem}-{number // len(first)}"))
    return sum(path.stat().st_size for path in source.glob("*/*.jpg"))


def cost(names: list[str], pictures: int, root: Path) -> None:
    """Print the time, the processor time and the bytes of one conversion on each engine; "here" is this machine."""
    print(f"{pictures:,} pictures, {draw_many(root / 'many', pictures):,} bytes: {COST}", flush=True)
    print_row(
        "engine", "s", "CPU-s of the command", "CPU-s of engine and workers", "summary", "digest of all files"
    )
    print_row(*["---"] * 6)
    home = root / "engine"
    for name in names:
        engine, out = None if name == "here" else _engine(name), root / "out" / name
        with running(engine, home) if engine else _nothing() as beam:
            command = [sys.executable, "-m", "halofeed", "convert", "--quiet", "--name", "set", *COST.split()]
            places = ["--source", str(root / "many"), "--out", str(out)]
            words = [*command, *places, *(["--", *beam.split()] if beam else [])]
            start = time.perf_counter()
            with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
                watch = _ProcessorTime({"command": [process.pid], "engine": _engine_pids(home)})
                said = process.communicate()[0]
                seconds, own, theirs = time.perf_counter() - start, *watch.stop()
            assert process.returncode == 0
        line = next(line.strip() for line in said.splitlines() if " records/s, " in line)
        print_row(name, f"{seconds:.1f}", f"{own:.1f}", f"{theirs:.1f}", line, _digest(out / VERSION))
        shutil.rmtree(out)


def _digest(folder: Path) -> str:
    """Return the beginning of the SHA-256 of all files of a folder, which may be larger than the memory."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _engine_pids(home: Path) -> list[int]:
    return [pid for file in home.glob("*.pid") if (pid := pid_of(home, file.stem)) is not None]


class _ProcessorTime:
    """Processor time of groups of processes with all that they start, read every 50 ms.

    The times of ended children are not used: a worker that is killed has no parent that waits for it.
    """

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._ticks: dict[str, dict[int, int]] = {name: {} for name in groups}
        self._read()
        self._before = self._sums()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> list[float]:
        """Return the seconds of each group since the watch was made."""
        self._ended.set()
        self._thread.join()
        return [(after - before) / _TICKS for after, before in zip(self._sums(), self._before, strict=True)]

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self._read()

    def _sums(self) -> list[int]:
        return [sum(ticks.values()) for ticks in self._ticks.values()]

    def _read(self) -> None:
        for name, pids in self._groups.items():
            pending = list(pids)
            while pending:
                pid = pending.pop()
                with suppress(FileNotFoundError, ProcessLookupError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._ticks[name][pid] = int(fields[11]) + int(fields[12])  # user and system
                    for thread in Path(f"/proc/{pid}/task").iterdir():
                        pending += map(int, (thread / "children").read_text().split())


def _engine(name: str) -> ModuleType:
    return importlib.import_module(f"tests.support.engines.{name}")


def _name(engine: ModuleType) -> str:
    return engine.__name__.rpartition(".")[2]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("same", "kills", "shards", "cost"))
    parser.add_argument("--engines", default="flink,spark,prism")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--copies", type=int, default=14, help="of each of 40 pictures")
    parser.add_argument("--shards", default="8,72")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=20_000, help="that `cost` converts")
    given = parser.parse_args()
    names = given.engines.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if given.what == "cost":
            cost(names, given.pictures, root)
            return
        engines = list(map(_engine, names))
        draw(root, given.copies)
        if given.what == "shards":
            shards(engines, [int(number) for number in given.shards.split(",")], given.rounds, root)
            return
        expected = {case: run(root, root / "out" / "here" / case, case) for case in CASES}
        if given.what == "same":
            same(engines, root, expected)
        else:
            kills(engines, given.kills, root, expected)


if __name__ == "__main__":
    main()
