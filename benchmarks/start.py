"""Measure how soon a program or a command begins to work: a loader's first batch, and compiled programs.

    python benchmarks/start.py                          # first batches and commands; add --before CHECKOUT to compare
    python benchmarks/start.py --only programs          # training, evaluation and prediction with and without the cache

First batch: from before the import of halofeed to the first batch of 8, in a new process, for 300 raw pictures, the
same as JPEG, and volumes. NumPy's own import is a part of it, and has its own row. Files are in the page cache.

Programs: whole commands, the first with an empty cache of compiled programs and the second with what the first stored.
`train` takes two steps. Checkouts and variants take turns in each round; a figure is the smallest of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
IMPORTS = {"NumPy": "import numpy", "halofeed.loader": "import halofeed.loader"}
BATCH = "from halofeed.loader import Loader; next(Loader({!r}, batch_size=8, split='train').batches())"
TIMED = """\
import time
wall, processor = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - processor)
"""
MODELS = {"retinanet_small": "shapes", "unet3d_small": "phantom_2mm"}
Seconds = tuple[float, float]
"""Wall time and processor time."""


def environment(checkout: Path) -> dict[str, str]:
    """The environment of a process that imports a checkout, without a cache of the user's."""
    own = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    return {**own, "PYTHONPATH": str(checkout)}


def timed_program(program: str, checkout: Path) -> Seconds:
    """Run a program in a new process, which measures itself after the start of the interpreter."""
    command = [sys.executable, "-c", TIMED.format(program)]
    # Python imports from the working folder first.
    done = subprocess.run(
        command, env=environment(checkout), cwd=checkout, capture_output=True, text=True, check=True
    )
    wall, processor = map(float, done.stdout.split()[-2:])
    return wall, processor


def timed_command(words: Sequence[str], checkout: Path, folder: Path) -> Seconds:
    """Run a command of halofeed."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "halofeed", *words]
    subprocess.run(command, env=environment(checkout), cwd=folder, capture_output=True, check=True)
    wall, after = time.perf_counter() - began, os.times()
    used = (after.children_user + after.children_system) - (before.children_user + before.children_system)
    return wall, used


def convert(folder: Path, *words: str, checkout: Path = HERE) -> None:
    """Convert into `folder/data`; an earlier checkout reads only what it or an earlier one has written."""
    timed_command(["convert", "--out", "data", "--overwrite", *words], checkout, folder)


def draw_for_batches(folder: Path, checkout: Path) -> list[str]:
    """Draw the data sets of the first batches and convert them with a checkout; return their names."""
    import cv2
    import nibabel as nib
    import numpy as np

    generator = np.random.default_rng(0)
    pictures, volumes = folder / "pictures" / "all", folder / "volumes"
    pictures.mkdir(parents=True)
    for name in ("imagesTr", "labelsTr"):
        (volumes / name).mkdir(parents=True)
    for number in range(300):
        small = generator.integers(0, 255, (8, 8, 3), np.uint8)
        cv2.imwrite(
            str(pictures / f"{number}.jpg"), cv2.resize(small, (320, 320), interpolation=cv2.INTER_CUBIC)
        )
    pairs = []
    for number in range(100):
        voxels = generator.normal(0, 100, (48, 48, 32)).astype(np.int16)
        pair = {"image": f"./imagesTr/{number:03}.nii.gz", "label": f"./labelsTr/{number:03}.nii.gz"}
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), volumes / pair["image"])
        nib.save(nib.Nifti1Image((voxels > 100).astype(np.uint8), np.eye(4)), volumes / pair["label"])
        pairs.append(pair)
    labels = {"0": "background", "1": "organ"}
    (volumes / "dataset.json").write_text(json.dumps({"labels": labels, "training": pairs, "test": []}))
    sides = ["--height", "256", "--width", "256"]
    for encoding in ("raw", "jpeg"):
        words = ["--layout", "folders", "--source", "pictures", *sides]
        convert(folder, *words, "--name", encoding, "--encoding", encoding, checkout=checkout)
    sides = ["--depth", "32", "--height", "48", "--width", "48"]
    convert(folder, "--layout", "msd", "--source", "volumes", "--name", "volumes", *sides, checkout=checkout)
    return ["raw", "jpeg", "volumes"]


def draw_for_programs(folder: Path) -> None:
    """Draw the pictures and scans of `halofeed demo`, and convert them."""
    from halofeed.demo import SHAPES_OPTIONS, VOLUME_SETS, draw_data_set
    from halofeed.demo_volumes import draw_scans

    draw_data_set(folder / "shapes", 80)
    convert(folder, "--source", "shapes", "--name", "shapes", *SHAPES_OPTIONS)
    draw_scans(folder / "scans")
    words = [
        "--layout",
        "csv",
        "--task",
        "segmentation",
        "--source",
        "scans",
        "--label-map",
        "scans/labels.txt",
    ]
    convert(folder, *words, "--name", "phantom_2mm", *VOLUME_SETS["phantom_2mm"])


Measured = dict[tuple[str, str], list[Seconds]]
"""Times of each row and column."""


def measure_batches(folder: Path, checkouts: dict[str, Path], rounds: int) -> Measured:
    """Measure imports, first batches and two commands in each checkout."""
    sets = {
        name: str(folder / "data" / name / "1.0.0")
        for name in draw_for_batches(folder, next(iter(checkouts.values())))
    }
    programs = {f"import {name}": text for name, text in IMPORTS.items()}
    programs |= {f"first batch, {name}": BATCH.format(path) for name, path in sets.items()}
    commands = {"halofeed --help": ["--help"], "halofeed inspect": ["inspect", sets["raw"]]}
    found: Measured = {}
    for _ in range(rounds):
        for label, checkout in checkouts.items():
            for name, text in programs.items():
                found.setdefault((name, label), []).append(timed_program(text, checkout))
            for name, words in commands.items():
                found.setdefault((name, label), []).append(timed_command(words, checkout, folder))
    return found


def measure_programs(folder: Path, rounds: int) -> Measured:
    """Measure each command with an empty cache, and with what it stored there."""
    draw_for_programs(folder)
    found: Measured = {}
    for _ in range(rounds):
        for model, data in MODELS.items():
            run = ["--out", f"run-{model}", "--overwrite"]
            for command, words in {
                "train": ["train", f"data/{data}/1.0.0", "--config", model, "--steps", "2", *run],
                "evaluate": ["evaluate", f"run-{model}"],
                "predict": ["predict", f"run-{model}", "--out", f"predicted-{model}", "--overwrite"],
            }.items():
                shutil.rmtree(folder / "cache", ignore_errors=True)
                for label in ("first", "second"):
                    seconds = timed_command([*words, "--compile-cache", "cache"], HERE, folder)
                    found.setdefault((f"{model} {command}", label), []).append(seconds)
    return found


def table(found: Measured) -> str:
    """The smallest wall and processor time of each row and column, in seconds."""
    columns = list(dict.fromkeys(column for _, column in found))
    lines = [f"{'wall (processor), s':30}" + "".join(f"{column:>18}" for column in columns)]
    for row in dict.fromkeys(row for row, _ in found):
        cells = [tuple(map(min, zip(*found[row, column], strict=True))) for column in columns]
        lines.append(f"{row:30}" + "".join(f"{f'{wall:.3f} ({used:.3f})':>18}" for wall, used in cells))
    return "\n".join(lines)


def main() -> None:
    """Measure what the command line asks for, and print its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("batches", "programs"))
    parser.add_argument(
        "--before", type=Path, help="another checkout, with its kernel built, for first batches"
    )
    parser.add_argument("--rounds", type=int, help="rounds (default: 10 of first batches, 2 of programs)")
    given = parser.parse_args()
    checkouts = {**({"before": given.before.resolve()} if given.before else {}), "now": HERE}
    with tempfile.TemporaryDirectory(prefix="halofeed-start-") as scratch:
        if given.only != "programs":
            print(table(measure_batches(Path(scratch), checkouts, given.rounds or 10)), flush=True)
        if given.only != "batches":
            print(table(measure_programs(Path(scratch), given.rounds or 2)))


if __name__ == "__main__":
    main()
