"""Measure what the columns for `halofeed review` add to a conversion: signatures and measures of records.

    python benchmarks/review_cost.py --images 400,2000 --rounds 5

400, 2000     photographs below --source at 640 x 640 as in benchmarks/convert.py
coarse, fine  one CT of 40 slices of 256 x 256, and one of 200 slices of 512 x 512, as in benchmarks/volumes.py

`without` is the same conversion with functions in the place of `sign_picture`, `sign_stack`, `picture_measures` and
`scan_measures` that return nothing, so that the indexes have no such columns either. Figures are processor time of the
complete command with one worker. The rounds are interleaved; `added` is the median of the ratios of neighboring runs.
`inside` is the time that the functions took in a further run, by a clock of the thread. It varies less than `added`,
and lacks what the columns cost elsewhere: the functions evict others' data from the caches, and the indexes grow.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import convert
import volumes

_NOTHING: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "sign_picture": (("picture_records", "tile_records"), ()),
    "sign_stack": (("volume_records", "clip_records"), ()),
    "picture_measures": (("picture_records", "tile_records", "clip_records"), {}),
    "scan_measures": (("volume_records",), {}),
}
"""By function: the modules of `halofeed.prep.convert` that call it, and a result without content."""
_SCANS = {"coarse": (40, 256, 16), "fine": (200, 512, 4)}
"""Slices, sides and number of scans."""


def replace_functions(new: Callable[[str, Callable[..., Any], Any], Callable[..., Any]]) -> None:
    """Give each function of `_NOTHING` another one in the modules that call it."""
    import importlib

    for name, (modules, nothing) in _NOTHING.items():
        for module_name in modules:
            module = importlib.import_module(f"halofeed.prep.convert.{module_name}")
            setattr(module, name, new(name, getattr(module, name), nothing))


def run_one(mode: str, words: list[str]) -> None:
    """Run a conversion in this process; print its processor seconds, and those inside the functions."""
    inside: dict[str, float] = dict.fromkeys(_NOTHING, 0.0)

    def timed(name: str, function: Callable[..., Any], _: object) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                inside[name] += time.thread_time() - began

        return call

    if mode == "without":
        replace_functions(lambda name, function, nothing: lambda *arguments: nothing)
    elif mode == "inside":
        replace_functions(timed)
    from halofeed.cli import main as run_command

    run_command(words)
    print(time.process_time(), *inside.values(), file=sys.stderr)


def measure(mode: str, words: list[str], scratch: Path) -> tuple[float, ...]:
    """Return the processor seconds of one run in a process, and those inside each function."""
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        command = [sys.executable, __file__, "--run", mode, *words, "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{mode} failed:\n{done.stderr[-2000:]}")
    return tuple(map(float, done.stderr.splitlines()[-1].split()))


def picture_words(source: Path, count: int, folder: Path) -> list[str]:
    """Return the words of a conversion of `count` photographs."""
    convert.collect(source, count, folder)
    side = str(convert.SIZE)
    return [
        "convert", "--layout", "folders", "--source", str(folder), "--name", "bench", "--workers", "1",
        "--resize", "keep-aspect", "--min-dimension", side, "--max-dimension", side, "--pad", "--encoding", "raw",
        "--shards", "4",
    ]  # fmt: skip


def scan_words(name: str, folder: Path) -> list[str]:
    """Return the words of a conversion of scans with masks."""
    import gzip

    import nibabel
    import numpy as np

    depth, side, count = _SCANS[name]
    folder.mkdir()
    scan = volumes.draw_volume((depth, side, side))
    mask = np.zeros(scan.shape, np.uint8)
    mask[depth // 5 : depth // 2, side // 4 : side // 2, side // 4 : side // 2] = 1
    for part, array in (("ct", scan), ("mask", mask)):
        image = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([-0.8, -0.8, 2.5, 1.0]))
        image.header.set_xyzt_units("mm")
        (folder / f"{part}.nii.gz").write_bytes(gzip.compress(image.to_bytes(), 1))
        for number in range(count):
            os.link(folder / f"{part}.nii.gz", folder / f"{part}_{number:04d}.nii.gz")
    rows = [f"{number},ct_{number:04d}.nii.gz,mask_{number:04d}.nii.gz" for number in range(count)]
    table = folder / "scans.csv"
    table.write_text("\n".join(["id,image,label", *rows]) + "\n")
    return [
        "convert", "--layout", "csv", "--task", "segmentation", "--source", str(table), "--name", "bench",
        "--workers", "1", "--depth", str(depth), "--height", str(side), "--width", str(side), "--encoding", "raw",
        "--shards", "2",
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--run"]:
        run_one(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=convert.SOURCE, help="folder of photographs")
    parser.add_argument("--images", default="400,2000", help="numbers of photographs (default 400,2000)")
    parser.add_argument("--scans", default=",".join(_SCANS), help="coarse, fine or both (default)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the output, some GB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        root = Path(scratch)
        counts = [int(count) for count in given.images.split(",") if count]
        cases = {str(count): picture_words(given.source, count, root / str(count)) for count in counts}
        cases |= {name: scan_words(name, root / name) for name in given.scans.split(",") if name}
        print(
            f"{'records':<8} {'with, s':>8} {'without, s':>11} {'added':>6}  {'by round':<36} {'inside':>6}"
        )
        for name, words in cases.items():
            measure("with", words, root)  # fills the page cache
            seconds: dict[str, list[float]] = {"with": [], "without": []}
            for number in range(given.rounds):
                for mode in list(seconds) if number % 2 == 0 else reversed(seconds):
                    seconds[mode].append(measure(mode, words, root)[0])
            added = [a / b - 1 for a, b in zip(seconds["with"], seconds["without"], strict=True)]
            whole, *inside = measure("inside", words, root)
            parts = ", ".join(
                f"{part} {value / whole:.2%}" for part, value in zip(_NOTHING, inside, strict=True) if value
            )
            middle = {mode: statistics.median(values) for mode, values in seconds.items()}
            print(
                f"{name:<8} {middle['with']:>8.2f} {middle['without']:>11.2f} {statistics.median(added):>6.1%}  "
                f"{' '.join(f'{one:.1%}' for one in added):<36} {sum(inside) / whole:>6.2%}: {parts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
