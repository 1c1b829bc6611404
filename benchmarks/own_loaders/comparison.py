"""What the modules of own_loaders share: a case of two loaders, the drawn pictures, and how a round is measured."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from volumes import tree_processor_seconds

SIDE = 640
SIZES = ((480, 640), (640, 480), (427, 640), (640, 640))
"""Height and width of the drawn pictures, whose longer side needs no resize."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A trainer's own loader and ours, for one kind of batch.

    Args:
        title: what is loaded and which augmentations are applied.
        own, ours: return an iterable of one epoch's batches.
        rows: number of examples of a batch.
        close: ends what `own` has started, such as workers.
    """

    title: str
    own: Callable[[], Iterable[Any]]
    ours: Callable[[], Iterable[Any]]
    rows: Callable[[Any], int]
    close: Callable[[Any], None] = lambda loader: None


@dataclass(frozen=True)
class Round:
    """Examples a second of wall time, and processor milliseconds of an example."""

    rate: float
    processor_ms: float


def endless(epochs: Iterable[Any]) -> Iterator[Any]:
    """Batches of one epoch after the other."""
    while True:
        yield from epochs


def measure(make: Callable[[], Iterable[Any]], compared: Compared, seconds: float, warm: int) -> Round:
    """Load for so many seconds after `warm` batches; the time of all child processes counts, as far as they live."""
    loader = make()
    batches = endless(loader)
    for _ in range(warm):
        next(batches)
    before: dict[int, float] = {}
    tree_processor_seconds(os.getpid(), before)
    began, rows = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        rows += compared.rows(next(batches))
    elapsed = time.perf_counter() - began
    after: dict[int, float] = {}
    tree_processor_seconds(os.getpid(), after)
    used = sum(after.values()) - sum(before.values())
    batches.close()
    compared.close(loader)
    del loader, batches
    gc.collect()
    return Round(rows / elapsed, 1000 * used / max(rows, 1))


def draw_pictures(folder: Path, count: int) -> None:
    """Draw JPEG files below images/train, with COCO's and YOLO's annotations of the same boxes."""
    from halofeed.demo import SHAPES, draw_picture

    generator = np.random.default_rng(0)
    for part in ("images", "labels"):
        (folder / part / "train").mkdir(parents=True, exist_ok=True)
    document: dict[str, list[Any]] = {"images": [], "annotations": []}
    for number in range(1, count + 1):
        height, width = SIZES[number % len(SIZES)]
        picture, objects = draw_picture(generator, width, height)
        picture.save(folder / "images/train" / f"{number:05d}.jpg", quality=90)
        document["images"].append(
            {"id": number, "file_name": f"train/{number:05d}.jpg", "width": width, "height": height}
        )
        lines = []
        for one in objects:
            corners = np.clip(one["corners"], 0, [width, height])
            (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
            label = SHAPES.index(one["shape"])
            box = [left, top, right - left, bottom - top]
            document["annotations"].append(
                {
                    "id": len(document["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 1 + label,
                    "bbox": box,
                }
                | {"area": box[2] * box[3], "iscrowd": 0, "segmentation": [corners.ravel().tolist()]}
            )
            shares = [
                (left + right) / 2 / width,
                (top + bottom) / 2 / height,
                box[2] / width,
                box[3] / height,
            ]
            lines.append(" ".join([str(label), *(f"{share:.9f}" for share in shares)]))
        (folder / "labels/train" / f"{number:05d}.txt").write_text("\n".join(lines) + "\n")
    categories = [{"id": 1 + number, "name": name} for number, name in enumerate(SHAPES)]
    (folder / "coco.json").write_text(json.dumps({**document, "categories": categories}))


def converted_pictures(folder: Path, count: int) -> Any:
    """Draw and convert the pictures, if they are not there yet; return the open data set."""
    import halofeed

    if not (folder / "coco.json").exists():
        draw_pictures(folder, count)
    if not (folder / "data").exists():
        # The longer side is 640, and the rest is padding; no picture is resized.
        halofeed.convert(
            folder / "coco.json",
            folder / "data",
            layout="coco",
            images=folder / "images",
            name="pictures",
            resize="keep-aspect",
            min_dimension=SIDE,
            max_dimension=SIDE,
            pad=True,
            encoding="raw",
            split_shares={"train": 1},
        )
    return halofeed.open(folder / "data" / "pictures")


def largest_difference(own: dict[Any, Any], ours: dict[Any, Any]) -> float:
    """Return the largest difference of arrays by key, after a sort of their rows; raise where keys or shapes differ."""
    if own.keys() != ours.keys():
        raise SystemExit(f"other examples: {sorted(own.keys() ^ ours.keys())[:5]}")
    worst = 0.0
    for key, expected in own.items():
        first, second = (np.asarray(array, np.float64) for array in (expected, ours[key]))
        if first.shape != second.shape:
            raise SystemExit(f"{key}: {first.shape} by the trainer's own loader, {second.shape} by ours")
        first, second = (
            array[np.lexsort(array.round(1).T)] if array.ndim == 2 else array for array in (first, second)
        )
        worst = max(worst, float(np.abs(first - second).max(initial=0)))
    return worst


def draw_volumes(folder: Path, count: int, shape: tuple[int, int, int]) -> None:
    """Draw scans like those of CT with noise, and a label of two organs, as compressed NIfTI."""
    import nibabel
    from volumes import draw_volume

    folder.mkdir(parents=True, exist_ok=True)
    base = draw_volume(shape)
    generator = np.random.default_rng(0)
    rows = ["id,image,label"]
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    for number in range(count):
        label = np.zeros(shape, np.uint8)
        for organ in (1, 2):
            center = generator.uniform(0.3, 0.7, 3) * shape
            label[np.linalg.norm(grid - center, axis=-1) < min(shape) / 6] = organ
        scan = np.roll(base, tuple(generator.integers(0, 8, 3)), (0, 1, 2)) + 60 * (label > 0)
        for name, array in (("image", scan.astype(np.int16)), ("label", label)):
            picture = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([1.0, 1.0, 1.0, 1.0]))
            picture.header.set_xyzt_units("mm")
            nibabel.save(picture, folder / f"{name}_{number:03d}.nii.gz")
        rows.append(f"{number},image_{number:03d}.nii.gz,label_{number:03d}.nii.gz")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def converted_volumes(folder: Path, count: int, shape: tuple[int, int, int]) -> Any:
    """Draw and convert the scans, if they are not there yet; return the open data set."""
    import halofeed

    if not (folder / "scans" / "table.csv").exists():
        draw_volumes(folder / "scans", count, shape)
    if not (folder / "scan_data").exists():
        depth, height, width = shape
        halofeed.convert(
            folder / "scans" / "table.csv",
            folder / "scan_data",
            layout="csv",
            name="scans",
            task="segmentation",
            depth=depth,
            height=height,
            width=width,
            encoding="raw",
        )
    return halofeed.open(folder / "scan_data" / "scans")
