"""Train on a public set beside what people would use instead, and print a row of the table of results.

    python benchmarks/results.py vessels --data DRIVE --peers /tmp/peers/bin/python --minutes 20 --out /tmp/results

The data are the user's: docs/results.md says where each public set is, and under which terms. Nothing is fetched.
`--peers` names a Python with the peers' packages, and without halofeed.

Both sides have the same files, the same split, and the same minutes of processor time (the sum over cores: 20 minutes
are 10 minutes of two busy cores). Other work on the machine changes processor time little (13 % at worst so far). All
of a training process counts: imports, compilation and training; conversion and nnU-Net's preprocessing do not.
Predictions of both sides, in pixels of the source, are scored by the same code (result_rows/scores.py), on the last
weights. The row is the mean and the range of `--seeds` seeds. `classes` compares the same number of epochs.

What is in the folder of `--out` is kept, so that the command resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from result_rows import ours, public_sets
from result_rows.public_sets import Task
from result_rows.scores import SCORES, Scores

PEERS = Path(__file__).resolve().parent / "result_peers"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table.

    Args:
        read: function that reads the set.
        convert: options of `halofeed convert`.
        train: options of `halofeed train`.
        peers: names and scripts of the peers.
        score: the score that the row compares.
        epochs: whether the sides have the same epochs in place of the same time.
    """

    read: Callable[[Path], Task]
    convert: tuple[str, ...]
    train: tuple[str, ...]
    peers: Mapping[str, str]
    score: str
    epochs: bool = False


BOXES = {"YOLO11n": "ultralytics_boxes.py", "torchvision RetinaNet": "torchvision_objects.py"}
PADDED_320 = ("--resize", "keep-aspect", "--min-dimension", "320", "--max-dimension", "320", "--pad")


def settings(**values: str) -> tuple[str, ...]:
    """Return the words of --set for settings; `model__depth` is model.depth."""
    return tuple(
        word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")
    )


def row_of_boxes(read: Callable[[Path], Task], **values: str) -> Row:
    """Return the row of a set of pictures with boxes."""
    train = ("--config", "retinanet_small", *settings(**FLOAT32, **values))
    return Row(read=read, convert=PADDED_320, train=train, peers=BOXES, score="AP@0.5")


FLOAT32 = {"compute_dtype": "float32"}
"""The precision of the peers. Processors compute with bfloat16 no faster, most of them slower."""
MIRRORED = '{ name = "FlipLeftRight" }'
ANY_SHAPE = {"model__anchor_scale": "4", "model__aspect_ratios": "[1.0,2.0,0.5]", "augment": f"[{MIRRORED}]"}
"""Anchors for animals of any shape in photographs; `retinanet_small` has squares."""


def crops(height: int, width: int) -> str:
    """Return the augmentations of label images: a crop and mirrors."""
    return f'[{{ name = "RandomCrop", sides = [{height}, {width}] }}, {MIRRORED}]'


ROWS: Mapping[str, Row] = {
    "hippocampus": Row(
        read=public_sets.hippocampi,
        convert=(
            "--layout", "pairs", "--depth", "40", "--height", "64", "--width", "40",
            "--window-percentiles", "0.5,99.5",
        ),
        train=("--config", "unet3d_small", *settings(**FLOAT32)),
        peers={"nnU-Net": "nnunet_scans.py"},
        score="Dice",
    ),
    "nuclei": Row(
        read=public_sets.nuclei,
        convert=(
            "--layout", "object-masks", "--masks", "--one-class", "nucleus", "--max-boxes", "384",
            "--height", "256", "--width", "256",
        ),
        train=("--config", "retinanet_masks_small", *settings(**FLOAT32)),
        peers={"StarDist": "stardist_nuclei.py", "torchvision Mask R-CNN": "torchvision_objects.py"},
        score="AP@0.5",
    ),
    "blood-cells": row_of_boxes(
        public_sets.blood_cells, augment=f'[{MIRRORED}, {{ name = "FlipUpDown" }}]'
    ),
    "raccoons": row_of_boxes(public_sets.raccoons, **ANY_SHAPE),
    "kangaroos": row_of_boxes(public_sets.kangaroos, **ANY_SHAPE),
    "streets": Row(
        read=public_sets.streets,
        convert=(
            "--layout", "pairs", "--image-pattern", "CamVid/{split}/{id}.png",
            "--label-pattern", "CamVid/{split}annot/{id}.png", "--height", "368", "--width", "480",
            "--ignore-label", "11",
        ),
        # Sky is the first class here, and no background, so that all classes count in the loss.
        train=(
            "--config", "unet2d_small",
            *settings(
                **FLOAT32, model__depth="5", task__losses="{cross_entropy=1.0}", augment=crops(192, 256)
            ),
        ),
        peers={"torch U-Net": "torch_unet.py"},
        score="mIoU",
    ),
    "vessels": Row(
        read=public_sets.vessels,
        convert=(
            "--layout", "pairs", "--image-pattern", "{split}/images/{id}_{split}.tif",
            "--label-pattern", "{split}/1st_manual/{id}_manual1.gif", "--height", "592", "--width", "576",
        ),
        train=(
            "--config", "unet2d_small", "--batch-size", "4",
            *settings(**FLOAT32, model__depth="3", augment=crops(192, 192)),
        ),
        peers={"MONAI U-Net": "torch_unet.py"},
        score="F1",
    ),
    "classes": Row(
        read=public_sets.small_pictures,
        convert=("--height", "32", "--width", "32"),
        train=("--config", "classifier_resnet20_cifar", *settings(**FLOAT32, schedule="cosine")),
        peers={"torch ResNet-20": "torch_resnet20.py"},
        score="accuracy",
        epochs=True,
    ),
}  # fmt: skip


def peer_scores(row: Row, task: Task, name: str, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train a peer with a seed, where that was not done, and score it."""
    out = given.out / name.replace(" ", "-") / f"seed{seed}"
    if not (out / "log.json").is_file():
        script = PEERS / row.peers[name]
        words = [
            str(given.peers),
            str(script),
            str(given.out / "task.json"),
            str(out),
            "--minutes",
            str(given.minutes),
        ]
        out.mkdir(parents=True, exist_ok=True)
        with (out / "output.txt").open("w") as stream:
            done = subprocess.run(
                [*words, "--seed", str(seed)], check=False, stdout=stream, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: exit status {done.returncode}; see {out}/output.txt")
    return {**json.loads((out / "log.json").read_text()), "scores": SCORES[task.kind](task, out)}


def our_scores(row: Row, task: Task, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Convert, train with a seed and score, where that was not done."""
    out = given.out / "halofeed"
    version = ours.convert(task, given.data, row.convert, out)
    folder, predicted = out / f"run{seed}", out / f"seed{seed}"
    log_file = predicted / "log.json"
    if not log_file.is_file():
        predicted.mkdir(parents=True, exist_ok=True)
        options = (*row.train, *given.train)
        if row.epochs:
            log = ours.train_epochs(
                version, options, int(given.minutes), len(task.of("train")), 128, seed, folder
            )
        else:
            log = ours.train(version, options, given.minutes, seed, folder)
        ours.predict(task, folder, predicted)
        log_file.write_text(json.dumps(log))
    return {**json.loads(log_file.read_text()), "scores": SCORES[task.kind](task, predicted)}


def line_of(name: str, key: str, found: list[dict[str, Any]]) -> str:
    """Return a line of the table: mean and range of the score over seeds, other scores, time and steps."""
    scores: list[Scores] = [one["scores"] for one in found]
    values = [one[key] for one in scores]
    spread = f"{min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
    others = ", ".join(
        f"{other} {statistics.mean(one[other] for one in scores):.3f}" for other in scores[0] if other != key
    )
    minutes = statistics.mean(one["processor_s"] for one in found) / 60
    steps = statistics.mean(one["steps"] for one in found)
    return f"{name:<24} {statistics.mean(values):>7.3f}  {spread:<15} {minutes:>7.1f} {steps:>7.0f}  {others}"


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=ROWS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public set")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs, kept for the next command")
    parser.add_argument("--peers", type=Path, help="Python of the peers; without it ours alone")
    parser.add_argument("--only", help="names of peers, or halofeed, separated by commas")
    parser.add_argument(
        "--minutes", type=float, required=True, help="processor time of a run, or epochs for classes"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("train", nargs="*", help="after --: more options of `halofeed train`")
    given = parser.parse_args()
    given.out, given.data = given.out.resolve(), given.data.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    row = ROWS[given.name]
    task = row.read(given.data)
    task.write(given.out / "task.json")
    counts = ", ".join(f"{len(task.of(split))} {split}" for split in ("train", "test"))
    print(
        f"{given.name}: {counts}; {given.minutes:g} {'epochs' if row.epochs else 'minutes of processor time'}"
    )
    sides: dict[str, Callable[[int], dict[str, Any]]] = {"halofeed": partial(our_scores, row, task, given)}
    if given.peers:
        sides.update({name: partial(peer_scores, row, task, name, given) for name in row.peers})
    chosen = given.only.split(",") if given.only else list(sides)
    # Seeds in the outer loop, so that an ended command has as many seeds of one side as of the other.
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for seed in range(given.seeds):
        for name in chosen:
            found[name].append(sides[name](seed))
            print(f"   seed {seed}: {name}: {found[name][-1]['scores']}", flush=True)
    print(f"{'':<24} {row.score:>7}  {'range':<15} {'minutes':>7} {'steps':>7}")
    for name in chosen:
        print(line_of(name, row.score, found[name]))


if __name__ == "__main__":
    main()
