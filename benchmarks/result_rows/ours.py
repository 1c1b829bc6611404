"""Our side of a row: `halofeed convert`, `train` for the budget, and `predict`, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from PIL import Image

from result_rows.public_sets import Task

SHORT_RUNS = (20, 60)
"""Steps of two short runs, whose difference gives the processor time of a step, and their start the rest."""


def run(*words: object) -> float:
    """Run a command of halofeed; return its processor time, with its workers, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("   halofeed", *words, flush=True)
    command = [sys.executable, "-m", "halofeed", *map(str, words), "-q"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def convert(task: Task, source: Path, options: Sequence[str], out: Path) -> Path:
    """Convert the sources with the split of the task; return the version's folder."""
    version = out / "data/row/1.0.0"
    if (version / "manifest.json").is_file():
        return version
    out.mkdir(parents=True, exist_ok=True)
    lists = []
    for split in ("train", "test"):
        file = out / f"{split}.txt"
        names = [os.path.relpath(one.picture, source) for one in task.of(split)]
        file.write_text("".join(f"{name}\n" for name in names))
        lists.append(f"{split}={file}")
    given = ("--source", source, "--out", out / "data", "--name", "row", "--split-lists", ",".join(lists))
    run("convert", *given, *options)
    return version


def train(version: Path, options: Sequence[str], minutes: float, seed: int, out: Path) -> dict[str, Any]:
    """Train for the processor time, all of the command counted; return what the row says about it.

    The learning rate falls over a number of steps, so that this number must be known before. A run that took more than
    2 % over the budget is repeated with fewer steps; its cost of a step serves the next seeds.
    """
    fixed = (version, *options, "--evaluate-every", 0, "--seed", seed, "--compile-cache", "none")

    def processor_s(steps: int, folder: Path) -> float:
        return run("train", *fixed, "--steps", steps, "--out", folder, "--overwrite")

    costs_file = out.parent / "costs.json"
    if not costs_file.is_file():
        few, many = (processor_s(steps, out.parent / f"short{steps}") for steps in SHORT_RUNS)
        step_s = max((many - few) / (SHORT_RUNS[1] - SHORT_RUNS[0]), 1e-3)
        costs_file.write_text(json.dumps({"start_s": few - SHORT_RUNS[0] * step_s, "step_s": step_s}))
    costs = json.loads(costs_file.read_text())
    while True:
        steps = max(int((minutes * 60 - costs["start_s"]) / costs["step_s"]), 1)
        used = processor_s(steps, out)
        if used <= minutes * 60 * 1.02 or steps == 1:
            return {"steps": steps, "processor_s": used}
        costs["step_s"] = (used - costs["start_s"]) / steps
        costs_file.write_text(json.dumps(costs))


def train_epochs(
    version: Path, options: Sequence[str], epochs: int, records: int, batch: int, seed: int, out: Path
) -> dict[str, Any]:
    """Train for a number of epochs."""
    steps = epochs * (records // batch)
    used = run(
        "train", version, *options, "--evaluate-every", 0, "--seed", seed, "--steps", steps, "--batch-size", batch,
        "--out", out, "--overwrite",
    )  # fmt: skip
    return {"steps": steps, "processor_s": used}


def predict(task: Task, run_folder: Path, out: Path) -> None:
    """Predict the test, and write it in the form of the scores."""
    raw = out / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    options = ("--min-score", 0) if task.kind in ("boxes", "instances") else ()
    run("predict", run_folder, "--split", "test", "--checkpoint", "last", "--out", raw, *options)
    if task.kind in ("boxes", "instances"):
        _copy_objects(task, raw, out)
    elif task.kind == "classes":
        _copy_classes(task, raw, out)
    else:
        _copy_labels(task, raw, out)


def _copy_objects(task: Task, raw: Path, out: Path) -> None:
    names = {Path(one.picture).name: one.name for one in task.of("test")}
    ids = {name: number for number, name in enumerate(task.class_names, start=1)}
    classes = {one["id"]: one["name"] for one in json.loads((raw / "categories.json").read_text())}
    rows = []
    for one in json.loads((raw / "detections.json").read_text()):
        file = Path(one["file_name"]).name
        rows.append(
            {
                **{key: one[key] for key in ("bbox", "score", "segmentation") if key in one},
                "image": names[file],
                "category_id": ids[classes[one["category_id"]]],
            }
        )
    (out / "detections.json").write_text(json.dumps(rows))


def _copy_classes(task: Task, raw: Path, out: Path) -> None:
    numbers = {name: number for number, name in enumerate(task.class_names)}
    names = {one.name: one.name for one in task.of("test")}
    with (raw / "classes.csv").open() as stream:
        found = {
            names[str(Path(row["source"]).with_suffix(""))]: numbers[row["class"]]
            for row in csv.DictReader(stream)
        }
    (out / "classes.json").write_text(json.dumps(found))


def _copy_labels(task: Task, raw: Path, out: Path) -> None:
    """Copy label images and scans under the examples' names; scans keep the grid of the source."""
    files = [path for path in sorted(raw.rglob("*")) if path.name.endswith((".png", ".nii.gz"))]
    for one in task.of("test"):
        stem = Path(one.picture).name.removesuffix(".gz").rpartition(".")[0]
        # Names of predictions begin with the folders of the source.
        match = [path for path in files if path.name.removesuffix(".gz").rpartition(".")[0].endswith(stem)]
        if len(match) != 1:
            raise SystemExit(f"{raw}: expected one file for {one.picture}, found {len(match)}")
        if match[0].suffix == ".png":
            Image.fromarray(np.asarray(Image.open(match[0])).astype(np.uint8)).save(out / f"{one.name}.png")
        else:
            scan = nibabel.load(match[0])
            nibabel.save(scan, out / f"{one.name}.nii.gz")
