"""Compare real engines with the local run: equal bytes while workers are killed, and the cost per shard.

    python benchmarks/clusters.py same --engines flink,spark,prism
    python benchmarks/clusters.py kills --engines flink,spark,prism --kills 10
    python benchmarks/clusters.py shards --engines flink,spark,prism --shards 8,72 --rounds 3

The engines (tests/support/engines) run on this machine, each for as long as it is needed. `kills` kills as many
workers, and on Flink as many task managers, at moments that take turns. Where an engine gives a job up, the same
command runs again. Prism retries nothing, so its command gets --job-restarts.
`shards` converts the same pictures into few and into many shards, here and there; the numbers take turns.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.conversions import all_bytes
from tests.support.engines.conversions import (
    CASES,
    VERSION,
    begun,
    draw,
    kill_task_manager,
    kill_worker,
    moments,
    run,
    wait_for,
)

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


def _name(engine: ModuleType) -> str:
    return engine.__name__.rpartition(".")[2]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("same", "kills", "shards"))
    parser.add_argument("--engines", default="flink,spark,prism")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--copies", type=int, default=14, help="of each of 40 pictures")
    parser.add_argument("--shards", default="8,72")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    engines = [importlib.import_module(f"tests.support.engines.{name}") for name in given.engines.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
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
