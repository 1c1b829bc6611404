"""Command `demo`: all steps from conversion to training on synthetic data sets.

It draws pictures of discs, squares and triangles on a noisy background and compares the boxes in the records with the
drawn ones. Some files are unusual on purpose: rotated by EXIF, CMYK, gray, with an alpha channel, and one truncated.
Then `demo_volumes` draws CT scans and compares them.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from halofeed import demo_volumes
from halofeed.storage.paths import load_bytes, load_text, paths_in, save_bytes, save_text
from halofeed.system import signals
from halofeed.system.errors import JobError, UsageError
from halofeed.system.wording import plural

_SECONDS_TO_END = 10.0
SHAPES = ("disc", "square", "triangle")
_MovePoint = Callable[[float, float, int, int], tuple[float, float]]
_ORIENTATIONS: dict[int, tuple[Image.Transpose, _MovePoint]] = {
    3: (Image.Transpose.ROTATE_180, lambda x, y, width, height: (width - x, height - y)),
    6: (Image.Transpose.ROTATE_90, lambda x, y, width, height: (y, width - x)),
    8: (Image.Transpose.ROTATE_270, lambda x, y, width, height: (height - y, x)),
}
"""Per EXIF orientation, the rotation of the stored picture and the function that moves a point (x, y) with it."""
_FORMS = (
    "plain",
    "orientation 3",
    "plain",
    "orientation 6",
    "gray",
    "orientation 8",
    "cmyk",
    "png with alpha",
)

SHAPES_OPTIONS = shlex.split(
    "--layout coco --resize keep-aspect --min-dimension 128 --max-dimension 128 --pad --encoding raw --shards 2 "
    "--max-boxes 8"
)
"""Options with which the pictures are converted."""
VOLUME_SETS = {
    "phantom": ("--depth", "80", "--height", "72", "--width", "96"),
    "phantom_2mm": ("--depth", "64", "--height", "56", "--width", "64", "--spacing-mm", "2,2,2"),
}
"""Options of the two data sets of CT scans: each scan at its own spacing, and all at 2 mm."""


def draw_picture(
    generator: np.random.Generator, width: int, height: int
) -> tuple[Image.Image, list[dict[str, Any]]]:
    """Draw a picture of objects that do not overlap and are also dark or light in gray.

    Returns:
        the picture, and for each object the name of its `shape`, `center` (x, y), `radius`, and `corners` [n, 2] as
        x, y in pixels.
    """
    background = generator.integers(90, 150, 3)
    noise = generator.normal(0, 12, (height, width, 3))
    slope = np.linspace(-25, 25, width)[None, :, None] * generator.choice([-1, 1])
    picture = Image.fromarray(np.clip(background + noise + slope, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    objects: list[dict[str, Any]] = []
    for _ in range(int(generator.integers(3, 9))):
        shape = SHAPES[int(generator.integers(len(SHAPES)))]
        radius = float(generator.uniform(0.12, 0.22)) * min(width, height)
        x, y = generator.uniform(radius, width - radius), generator.uniform(radius, height - radius)
        if any(
            math.hypot(x - other["center"][0], y - other["center"][1]) < radius + other["radius"]
            for other in objects
        ):
            continue
        corners = {"disc": 48, "square": 4, "triangle": 3}[shape]
        turns = np.arange(corners) / corners * 2 * math.pi + generator.uniform(0, 2 * math.pi)
        points = np.stack([x + radius * np.cos(turns), y + radius * np.sin(turns)], 1)
        red_and_green, blue = (int(value) for value in generator.choice([30, 225], 2))
        pen.polygon([tuple(point) for point in points], fill=(red_and_green, red_and_green, blue))
        objects.append({"shape": shape, "center": (x, y), "radius": radius, "corners": points})
    return picture, objects


def draw_data_set(folder: Path, images: int, seed: int = 0) -> None:
    """Draw pictures below `folder`, with COCO annotations; one file is truncated."""
    generator = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    listed: dict[str, dict[str, list[Any]]] = {
        split: {"images": [], "annotations": []} for split in ("train", "test")
    }
    for number in range(1, images + 1):
        width, height = (int(side) for side in generator.integers(180, 420, 2))
        picture, objects = draw_picture(generator, width, height)
        name, size = _save(folder / "images", number, picture, objects)
        document = listed["test" if number % 5 == 0 else "train"]
        document["images"].append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        for drawn in objects:
            (left, top), (right, bottom) = drawn["corners"].min(0).tolist(), drawn["corners"].max(0).tolist()
            document["annotations"].append(
                {
                    "id": sum(len(part["annotations"]) for part in listed.values()) + 1,
                    "image_id": number,
                    "category_id": 1 + SHAPES.index(drawn["shape"]),
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                    "segmentation": [drawn["corners"].ravel().tolist()],
                }
            )
    # 900 bytes keep the header, so that the file is listed as a picture and only its decoding fails.
    truncated = folder / "images" / listed["train"]["images"][0]["file_name"]
    save_bytes(truncated, load_bytes(truncated)[:900])
    categories = [{"id": 1 + number, "name": shape} for number, shape in enumerate(SHAPES)]
    (folder / "annotations").mkdir(exist_ok=True)
    for split, document in listed.items():
        text = json.dumps({**document, "categories": categories})
        save_text(folder / "annotations" / f"instances_{split}.json", text)


def _save(
    folder: Path, number: int, upright: Image.Image, objects: list[dict[str, Any]]
) -> tuple[str, tuple[int, int]]:
    """Write a picture in one of several forms, and rotate the objects' corners with the stored pixels."""
    form = _FORMS[number % len(_FORMS)]
    name = f"shapes_{number:04d}.{'png' if form.startswith('png') else 'jpg'}"
    if form.startswith("orientation"):
        orientation = int(form.split()[1])
        rotation, move = _ORIENTATIONS[orientation]
        exif = Image.Exif()
        exif[0x0112] = orientation  # Exif 2.3, 4.6.4 A: Orientation, tag 274
        stored = upright.transpose(rotation)
        stored.save(folder / name, quality=92, exif=exif)
        for drawn in objects:
            drawn["corners"] = np.array([move(x, y, *upright.size) for x, y in drawn["corners"]])
        return name, stored.size
    if form == "png with alpha":
        upright.convert("RGBA").save(folder / name)
    else:
        upright.convert({"gray": "L", "cmyk": "CMYK"}.get(form, "RGB")).save(folder / name, quality=92)
    return name, upright.size


def run_demo(folder: str, *, images: int = 400) -> int:
    """Draw, convert, verify, inspect, load, train and report, and print every command that runs."""
    if images < 16:
        raise UsageError(f"--images {images}: expected 16 or more, so that both splits fill a batch")
    from halofeed.storage import owned_files

    root = Path(folder)
    # The demo overwrites its files; a folder that it did not make may hold others of the same names.
    if root.exists() and any(paths_in(root)) and not owned_files.has_list(root):
        raise UsageError(f"--folder {folder}: is not empty and not a demo's; name another")
    root.mkdir(parents=True, exist_ok=True)
    if not owned_files.has_list(root):
        owned_files.begin_list(root)
    began = time.monotonic()
    _say(
        f"drawing {plural(images, 'picture')} with known boxes into {root / 'source'} (one file is "
        "truncated on purpose)"
    )
    draw_data_set(root / "source", images)
    data = str(root / "data" / "shapes" / "1.0.0")
    _command(
        "convert", "--source", str(root / "source"), "--out", str(root / "data"), "--name", "shapes",
        *SHAPES_OPTIONS, "--overwrite",
    )  # fmt: skip
    _command("verify", data)
    _command("inspect", data, "--record", "train:0")
    _say("loading: comparing every box of the records with what was drawn")
    count, worst = compare_with_truth(root / "source", data)
    print(f"  {plural(count, 'box', 'boxes')}, mapped back to their source: at most {worst:.4f} pixels away")
    if worst > 0.5:
        raise JobError(f"a box of {data} is {worst:.2f} pixels from where it was drawn")
    detector = root / "runs" / "detector"
    _command(
        "train", data, "--config", "retinanet_small", "--steps", "100", "--out", str(detector), "--overwrite",
        "--cores-per-replica", "4", "--partition", "image=1,4,1,1",
    )  # fmt: skip
    _command("report", data, "--output", str(root / "report.html"))
    reports = [root / "report.html", detector / "report.html", _run_volumes(root), _train_segmenter(root)]
    _say(f"done in {time.monotonic() - began:.0f} s. Open these in a browser:")
    print(*(f"  {report.resolve()}" for report in reports), sep="\n")
    return 0


def _run_volumes(root: Path) -> Path:
    """Draw CT scans, convert them at their own spacing and at a common one, verify, compare, and return the report."""
    source, report = root / "volumes", root / "report-volumes.html"
    scans = demo_volumes.SCANS
    _say(
        f"drawing {len(scans)} CT scans of {len({scan.patient for scan in scans})} patients with known organs into "
        f"{source}\n# (spacing to superior, anterior and right; one mask lacks a slice on purpose)"
    )
    demo_volumes.draw_scans(source)
    print(*(f"  {scan.describe()}" for scan in scans), sep="\n")
    for name, options in VOLUME_SETS.items():
        data = str(root / "data" / name / "1.0.0")
        _command(
            "convert", "--layout", "csv", "--task", "segmentation", "--source", str(source),
            "--label-map", str(source / "labels.txt"), "--out", str(root / "data"), "--name", name,
            *options, "--overwrite",
        )  # fmt: skip
        _command("verify", data)
        _say(
            "loading: comparing every organ of the records with what was drawn, in millimeters of the patient"
        )
        print(*(f"  {found}" for found in demo_volumes.compare_scans(data)), sep="\n")
        print(f"  {demo_volumes.compare_twins(data)}", flush=True)
    _command("report", data, "--output", str(report))
    return report


def _train_segmenter(root: Path) -> Path:
    """Train a U-Net on the CT scans of one spacing, and return the run's report."""
    data = str(root / "data" / "phantom_2mm" / "1.0.0")
    segmenter = root / "runs" / "segmenter"
    _command(
        "train", data, "--config", "unet3d_small", "--steps", "200", "--set", "learning_rate=1e-2",
        "--out", str(segmenter), "--overwrite", "--cores-per-replica", "4", "--partition", "image=1,4,1,1,1",
    )  # fmt: skip
    return segmenter / "report.html"


def compare_with_truth(source: Path, data: str) -> tuple[int, float]:
    """Return the number of boxes in a converted demo, and the largest distance from an annotation in pixels.

    Raises:
        JobError: the number of boxes in a record differs from its picture.
    """
    from halofeed.loader import Loader, join_id
    from halofeed.prep.geometry.resize import apply_to_boxes

    count, worst = 0, 0.0
    for split in ("train", "test"):
        document = json.loads(load_text(source / "annotations" / f"instances_{split}.json"))
        truth: dict[int, list[list[float]]] = {entry["id"]: [] for entry in document["images"]}
        for entry in document["annotations"]:
            x, y, width, height = entry["bbox"]
            truth[entry["image_id"]].append([y, x, y + height, x + width])
        loader = Loader(data, split=split, batch_size=8, training=False, include=("transform", "key"))
        height, width = loader.spec["image"].shape[1:3]
        for batch in loader.batches():
            for row in np.flatnonzero(batch["valid"]):
                boxes = batch["boxes"][row, : batch["num_boxes"][row]] * [height, width, height, width]
                expected = np.array(truth[int(join_id(batch["id"][row]))]).reshape(-1, 4)
                # A box without its partner would be compared with another one.
                if len(boxes) != len(expected):
                    raise JobError(
                        f"{data}: picture {join_id(batch['id'][row])} has {plural(len(boxes), 'box', 'boxes')}, drew "
                        f"{len(expected)}"
                    )
                count += len(boxes)
                mapped = apply_to_boxes(batch["transform"][row].ravel(), boxes)
                worst = max(worst, float(np.abs(mapped - expected).max(initial=0)))
    return count, worst


def _say(text: str) -> None:
    # Flushed, because the commands write to the same descriptor.
    print(f"\n# {text}", flush=True)


def _command(*arguments: str) -> None:
    print(f"\n$ halofeed {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "halofeed", *arguments]
    with signals.block_signals():  # inherited by the command until it calls `install_handlers`
        process = subprocess.Popen(command, env={**os.environ, signals.SILENT: "1"})  # noqa: S603
        cleanup = signals.CleanupOnExit(lambda: _end_process(process.pid))
        cleanup.__enter__()
    code = process.wait()
    cleanup.keep()
    if code:
        raise JobError(f"`halofeed {arguments[0]}` ended with exit code {code}")


def _end_process(process: int) -> None:
    """Terminate a child process, and kill it if it does not end in time."""
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + _SECONDS_TO_END
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)
