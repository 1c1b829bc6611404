"""Compare the time of `halofeed convert` and of `--help` with another checkout, on the same files, in one run.

    git worktree add ../before HEAD~1
    python benchmarks/beside.py ../before

The rounds are interleaved, and each pair of runs gives one ratio: machines that others use too are slow at times, and
then so are both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import convert
import volumes

HERE = Path(__file__).resolve().parents[1]


def start_up(checkout: Path) -> float:
    """Return the seconds that `halofeed convert --help` takes; the compiled files are kept, as for a user."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "halofeed", "convert", "--help"]
    began = time.perf_counter()
    subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--source", type=Path, default=convert.SOURCE, help="photographs")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--volumes", type=int, default=48)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the files, some 10 GB")
    given = parser.parse_args()
    checkouts = {"before": given.before.resolve(), "now": HERE}
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        pictures, scans = Path(scratch) / "pictures", Path(scratch) / "scans"
        convert.collect(given.source, given.images, pictures)
        scans.mkdir()
        volumes.draw(scans, given.volumes, given.depth, 1)
        benchmarks = {
            "start-up": start_up,
            "pictures": lambda checkout: (
                given.images / convert.measure("convert", pictures, given.images, checkout)[0]
            ),
            "volumes": lambda checkout: volumes.measure("plain", scans, given.depth, checkout).seconds,
        }
        print(f"{'':<9} {'before, s':>10} {'now, s':>10}  before / now by round")
        for name, run in benchmarks.items():
            for checkout in checkouts.values():  # fills the page cache and compiles
                run(checkout)
            seconds: dict[str, list[float]] = {checkout: [] for checkout in checkouts}
            for number in range(given.rounds):
                for checkout in list(checkouts) if number % 2 == 0 else reversed(checkouts):
                    seconds[checkout].append(run(checkouts[checkout]))
            ratios = [old / new for old, new in zip(seconds["before"], seconds["now"], strict=True)]
            middle = {checkout: statistics.median(values) for checkout, values in seconds.items()}
            print(
                f"{name:<9} {middle['before']:>10.2f} {middle['now']:>10.2f}  "
                f"{' '.join(f'{ratio:.2f}' for ratio in ratios)}; median {statistics.median(ratios):.3f}"
            )


if __name__ == "__main__":
    main()
