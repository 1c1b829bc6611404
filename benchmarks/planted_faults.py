"""Measure what `halofeed review` finds of planted faults, and how often it is wrong about sets without them.

    python benchmarks/planted_faults.py --source ../shared/data --each 5 --clean 400

It draws a set of pictures with boxes, one of pictures with masks and one of scans with organs. Pictures are crops of
the photographs below --source. Faults of every kind in the tables are planted, `--each` of each kind. The sets are
converted and reviewed. A fault is found if a suspect of its kind names its file. A false alarm is a file without a
fault that any suspect names. For drift, whole sets are drawn whose test split differs in one way, and as many sets
without drift. --real names converted data sets, of which all suspects are listed, because only a person
can tell whether they are faults.

--cleanvision PYTHON names an interpreter with CleanVision, which reviews the pictures of the first set too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from convert import SOURCE, draw_pictures, is_photograph
from numpy.typing import NDArray

Pixels = NDArray[Any]
Random = np.random.Generator
Box = tuple[str, tuple[float, float, float, float]]
"""Class and x, y, width, height in pixels."""


@dataclass(kw_only=True)
class Drawn:
    """A picture or a scan with its annotation, which a fault changes.

    Args:
        pixels: uint8 [height, width, 3], or int16 [depth, height, width].
        boxes: class and place of each object.
        label: class indices; None for a picture with boxes.
        spacing_mm: of a scan.
    """

    pixels: Pixels
    boxes: list[Box] = field(default_factory=list)
    label: Pixels | None = None
    spacing_mm: tuple[float, float, float] = (3.0, 1.5, 1.5)


Fault = Callable[[Drawn, Random], None]


# Faults of pictures -----------------------------------------------------------------------------------------------


def _scale(factor: float, anchor: Callable[[Pixels], float]) -> Fault:
    """Return a fault that moves all values towards one."""

    def apply(drawn: Drawn, random: Random) -> None:
        middle = anchor(drawn.pixels)
        strength = factor * random.uniform(0.6, 1.2)
        drawn.pixels = (
            np.clip(middle + (drawn.pixels.astype(float) - middle) * strength, 0, 255)
            .round()
            .astype(np.uint8)
        )

    return apply


def _one_color(drawn: Drawn, random: Random) -> None:
    drawn.pixels[:] = random.integers(0, 256, 3) * (random.random() < 0.8)


def _few_tones(drawn: Drawn, random: Random) -> None:
    gray = drawn.pixels.mean(2)
    drawn.pixels = np.repeat((gray > np.median(gray)).astype(np.uint8)[..., None] * 255, 3, 2)


def _blurred(drawn: Drawn, random: Random) -> None:
    drawn.pixels = cv2.GaussianBlur(
        drawn.pixels, (0, 0), random.uniform(0.015, 0.03) * max(drawn.pixels.shape)
    )


def _noise(drawn: Drawn, random: Random) -> None:
    wide = random.normal(random.uniform(90, 160), random.uniform(30, 70), drawn.pixels.shape)
    drawn.pixels = np.clip(wide, 0, 255).astype(np.uint8)


def _resized(drawn: Drawn, width: float, height: float) -> None:
    size = max(8, round(drawn.pixels.shape[1] * width)), max(8, round(drawn.pixels.shape[0] * height))
    drawn.pixels = cv2.resize(drawn.pixels, size, interpolation=cv2.INTER_AREA)
    drawn.boxes = [
        (name, (x * width, y * height, w * width, h * height)) for name, (x, y, w, h) in drawn.boxes
    ]


def _odd_size(drawn: Drawn, random: Random) -> None:
    factor = random.choice([random.uniform(0.12, 0.2), random.uniform(4, 5)])
    _resized(drawn, factor, factor)


def _odd_aspect(drawn: Drawn, random: Random) -> None:
    squeeze = random.uniform(3, 4) ** 0.5
    _resized(drawn, *random.permutation([squeeze, 1 / squeeze]).tolist())


# Faults of boxes --------------------------------------------------------------------------------------------------


def _add_box(name: str, place: Callable[[float, float, Random], tuple[float, float, float, float]]) -> Fault:
    """Return a fault that adds a box; `place` gives it from the picture's height and width."""

    def apply(drawn: Drawn, random: Random) -> None:
        height, width = drawn.pixels.shape[:2]
        drawn.boxes.append((name, place(height, width, random)))

    return apply


def _rare_size(height: float, width: float, random: Random) -> tuple[float, float, float, float]:
    side = random.uniform(0.6, 0.8) * min(height, width)
    return width * 0.1, height * 0.1, side, side


def _rare_shape(height: float, width: float, random: Random) -> tuple[float, float, float, float]:
    side = 0.12 * min(height, width)
    return width * random.uniform(0.2, 0.4), height * random.uniform(0.4, 0.6), side * 2.6, side / 2.6


def _rare_place(height: float, width: float, random: Random) -> tuple[float, float, float, float]:
    side = random.uniform(0.1, 0.14) * min(height, width)
    return random.uniform(0.1, 0.8) * width, random.uniform(0.75, 0.85) * height, side, side


def _again(change_class: bool) -> Fault:
    """Return a fault that repeats a box a little off, perhaps with another class."""

    def apply(drawn: Drawn, random: Random) -> None:
        name, (x, y, width, height) = drawn.boxes[int(random.integers(len(drawn.boxes)))]
        name = "cup" if change_class and name == "ball" else "ball" if change_class else name
        moved = x + random.uniform(0, 0.02) * width, y + random.uniform(0, 0.02) * height
        drawn.boxes.append((name, (*moved, width, height)))

    return apply


def _whole_picture(height: float, width: float, random: Random) -> tuple[float, float, float, float]:
    margin = random.uniform(0, 0.01)
    return width * margin, height * margin, width * (1 - 2 * margin), height * (1 - 2 * margin)


# Faults of masks and scans ----------------------------------------------------------------------------------------


def _ball(shape: Sequence[int], center: Sequence[float], radii: Sequence[float]) -> NDArray[np.bool_]:
    grids = np.ogrid[tuple(slice(0, side) for side in shape)]
    terms = ((grid - at) ** 2 / radius**2 for grid, at, radius in zip(grids, center, radii, strict=True))
    return np.asarray(sum(terms) <= 1)


def _label_of(drawn: Drawn) -> Pixels:
    assert drawn.label is not None
    return drawn.label


def _center(mask: Pixels) -> list[float]:
    return [float(axis.mean()) for axis in np.nonzero(mask)]


def _speck(drawn: Drawn, random: Random) -> None:
    label = _label_of(drawn)
    wide = np.stack([cv2.dilate(plane, np.ones((5, 5), np.uint8)) for plane in label])
    free = np.argwhere(wide.max(0) == 0)
    inner = free[((free > 2) & (free < np.array(label.shape[1:]) - 3)).all(1)]
    inner = np.c_[random.integers(len(label), size=len(inner)), inner]
    place = tuple(inner[int(random.integers(len(inner)))].tolist())
    label[place] = 1


def _hole(drawn: Drawn, random: Random) -> None:
    label = _label_of(drawn)
    where = tuple(round(at) for at in _center(label == 1))
    label[tuple(slice(at, at + 2) for at in where)] = 0


def _border(drawn: Drawn, random: Random) -> None:
    """Draw an arm of the first class to the first row."""
    label = _label_of(drawn)
    *planes, row, column = (round(at) for at in _center(label == 1))
    label[(*(slice(at, at + 2) for at in planes), slice(0, row), slice(column, column + 3))] = 1


def _parts(drawn: Drawn, random: Random) -> None:
    """Cut the first class into two."""
    label = _label_of(drawn)
    column = round(_center(label == 1)[-1])
    part = label[..., column : column + 3]
    part[part == 1] = 0


def _missing(drawn: Drawn, random: Random) -> None:
    label = _label_of(drawn)
    label[label == 1] = 0


def _large(drawn: Drawn, random: Random) -> None:
    """Draw the first class as a ball of a third or twice the usual radius, which is 6.3 voxels."""
    label = _label_of(drawn)
    center, radius = _center(label == 1), random.choice([2.2, 12.6])
    label[label == 1] = 0
    label[_ball(label.shape, center, [radius] * 3) & (label == 0)] = 1


def _moved(drawn: Drawn, random: Random) -> None:
    """Give the first class other values, as where its label lies beside it."""
    inside = _label_of(drawn) == 1
    drawn.pixels[inside] += np.int16(random.choice([-150, 250]))


def _unit(drawn: Drawn, random: Random) -> None:
    """Store values with an offset of 1024, or as 0 to 255."""
    if random.random() < 0.5:
        drawn.pixels = (drawn.pixels + 1024).astype(np.int16)
    else:
        drawn.pixels = (np.clip((drawn.pixels + 1000) / 1400, 0, 1) * 255).astype(np.int16)


def _spacing(drawn: Drawn, random: Random) -> None:
    factor = float(random.choice([0.4, 2.5]))
    depth, height, width = drawn.spacing_mm
    drawn.spacing_mm = depth, height * factor, width * factor


BOX_FAULTS: Mapping[str, Fault] = {
    "dark picture": _scale(0.08, lambda pixels: 0),
    "bright picture": _scale(0.08, lambda pixels: 255),
    "picture of low contrast": _scale(0.08, lambda pixels: float(pixels.mean())),
    "picture of few tones": _few_tones,
    "picture of one color": _one_color,
    "blurred picture": _blurred,
    "noise-like picture": _noise,
    "odd size": _odd_size,
    "odd aspect ratio": _odd_aspect,
    "rare size of a box": _add_box("lamp", _rare_size),
    "rare shape of a box": _add_box("ball", _rare_shape),
    "rare place of a box": _add_box("lamp", _rare_place),
    "box of two classes": _again(True),
    "duplicate box": _again(False),
    "box of the whole picture": _add_box("cup", _whole_picture),
}
MASK_FAULTS: Mapping[str, Fault] = {
    "speck in a mask": _speck,
    "hole in a mask": _hole,
    "mask at the border": _border,
    "many parts of a mask": _parts,
    "missing class": _missing,
}
SCAN_FAULTS: Mapping[str, Fault] = {
    **MASK_FAULTS,
    "rare volume of a class": _large,
    "rare mean value of a class": _moved,
    "other intensity unit": _unit,
    "other spacing": _spacing,
}


# Clean sets -------------------------------------------------------------------------------------------------------


class Photographs:
    """Crops of photographs of most of their content."""

    def __init__(self, source: Path, scratch: Path) -> None:
        root = source if source.is_dir() else draw_pictures(scratch / "photographs")
        self._paths = sorted(path for path in root.rglob("*") if is_photograph(path))
        if not self._paths:
            raise SystemExit(f"{source}: no JPEG files there; name a folder of photographs with --source")

    def crop(self, random: Random) -> Pixels:
        """Return a crop of 240 to 420 pixels along its sides."""
        picture = None
        while picture is None or min(picture.shape[:2]) < 200:
            picture = cv2.imread(str(self._paths[int(random.integers(len(self._paths)))]))
        height, width = picture.shape[:2]
        tall, wide = (round(side * random.uniform(0.7, 1)) for side in (height, width))
        top, left = int(random.integers(height - tall + 1)), int(random.integers(width - wide + 1))
        side = round(random.uniform(300, 360))
        aspect = random.uniform(0.8, 1.25) ** 0.5
        size = round(side * aspect), round(side / aspect)
        return cv2.resize(picture[top : top + tall, left : left + wide], size, interpolation=cv2.INTER_AREA)


def draw_boxes(photographs: Photographs, random: Random) -> Drawn:
    """Draw a picture with balls anywhere, lamps in its upper part, and a cup of any size."""
    pixels = photographs.crop(random)
    height, width = pixels.shape[:2]
    boxes: list[Box] = []
    names = ["ball"] * int(random.integers(1, 4)) + ["lamp"] * int(random.integers(1, 3)) + ["cup"]
    for name in names:
        low, high = {"ball": (0.08, 0.2), "lamp": (0.08, 0.16), "cup": (0.1, 0.5)}[name]
        side = random.uniform(low, high) * min(height, width)
        tall = side * random.uniform(0.9, 1.1)
        x = random.uniform(0.02, 0.98) * (width - side)
        y = random.uniform(0.02, 0.25 if name == "lamp" else 0.98) * (height - tall)
        color = random.integers(0, 256, 3).tolist()
        center = round(x + side / 2), round(y + tall / 2)
        cv2.ellipse(pixels, center, (round(side / 2), round(tall / 2)), 0, 0, 360, color, -1)
        boxes.append((name, (x, y, side, tall)))
    return Drawn(pixels=pixels, boxes=boxes)


def draw_masks(photographs: Photographs, random: Random) -> Drawn:
    """Draw a picture with two structures and their mask."""
    pixels = cv2.resize(photographs.crop(random), (160, 128), interpolation=cv2.INTER_AREA)
    label = np.zeros((1, 128, 160), np.uint8)
    for value, column in ((1, 50), (2, 115)):
        center = (0, 64 + random.uniform(-12, 12), column + random.uniform(-8, 8))
        label[_ball(label.shape, center, (1, random.uniform(14, 26), random.uniform(12, 24)))] = value
    color = np.array([[0, 0, 0], random.integers(0, 256, 3), random.integers(0, 256, 3)])[label[0]]
    pixels = np.where(label[0, ..., None] > 0, (pixels + color) // 2, pixels).astype(np.uint8)
    return Drawn(pixels=pixels, label=label)


def draw_scan(photographs: Photographs, random: Random) -> Drawn:
    """Draw a CT of a body with three organs in Hounsfield units."""
    shape = (20, 56, 64)
    pixels = np.full(shape, -1000.0)
    pixels[_ball(shape, (10, 28, 32), (40, 25 + random.uniform(-1, 1), 29))] = random.uniform(-60, -20)
    label = np.zeros(shape, np.uint8)
    for value, column, usual in ((1, 19, 100), (2, 44, 130), (3, 32, 320)):
        radii = np.array((5.0, 7.0, 7.0) if value < 3 else (3.0, 3.0, 3.0)) * random.uniform(0.88, 1.12)
        center = (10, (26 if value < 3 else 44) + random.uniform(-1.5, 1.5), column + random.uniform(-1, 1))
        inside = _ball(shape, center, radii.tolist())
        pixels[inside], label[inside] = usual + random.normal(0, 12), value
    pixels += random.normal(0, 12, shape)
    side = random.uniform(1.4, 1.6)
    return Drawn(pixels=pixels.round().astype(np.int16), label=label, spacing_mm=(3.0, side, side))


# Files ------------------------------------------------------------------------------------------------------------


def write_boxes(folder: Path, named: Mapping[str, Drawn]) -> list[str]:
    """Write pictures and a COCO document; return the options of the conversion."""
    classes = ["ball", "cup", "lamp"]
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, drawn) in enumerate(named.items()):
        cv2.imwrite(str(folder / f"{name}.jpg"), drawn.pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])
        height, width = drawn.pixels.shape[:2]
        images.append({"id": number, "file_name": f"{name}.jpg", "height": height, "width": width})
        for cls, (x, y, wide, tall) in drawn.boxes:
            wide, tall = min(wide, width - x), min(tall, height - y)
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": number,
                    "category_id": classes.index(cls) + 1,
                    "bbox": [x, y, wide, tall],
                    "area": wide * tall,
                    "iscrowd": 0,
                }
            )
    categories = [{"id": at + 1, "name": name} for at, name in enumerate(classes)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(document))
    return ["--resize", "keep-aspect", "--min-dimension", "256", "--max-dimension", "256", "--pad"]


def write_masks(folder: Path, named: Mapping[str, Drawn]) -> list[str]:
    """Write pictures and masks in two folders; return the options of the conversion."""
    for part in ("images", "masks"):
        (folder / part).mkdir()
    for name, drawn in named.items():
        cv2.imwrite(str(folder / "images" / f"{name}.png"), drawn.pixels)
        cv2.imwrite(str(folder / "masks" / f"{name}.png"), _label_of(drawn)[0])
    return ["--height", "128", "--width", "160"]


def write_scans(folder: Path, named: Mapping[str, Drawn]) -> list[str]:
    """Write scans and labels in two folders; return the options of the conversion."""
    import nibabel

    for part in ("images", "labels"):
        (folder / part).mkdir()
    for name, drawn in named.items():
        affine = np.diag([*drawn.spacing_mm[::-1], 1.0])
        for part, voxels in (("images", drawn.pixels), ("labels", _label_of(drawn))):
            nibabel.save(nibabel.Nifti1Image(voxels.T, affine), folder / part / f"{name}.nii.gz")
    return ["--depth", "20", "--height", "56", "--width", "64"]


@dataclass(frozen=True, kw_only=True)
class DrawnSet:
    """A kind of set: how a clean example is drawn and written, and the faults that are planted."""

    draw: Callable[[Photographs, Random], Drawn]
    write: Callable[[Path, Mapping[str, Drawn]], list[str]]
    faults: Mapping[str, Fault]


SETS = {
    "boxes": DrawnSet(draw=draw_boxes, write=write_boxes, faults=BOX_FAULTS),
    "masks": DrawnSet(draw=draw_masks, write=write_masks, faults=MASK_FAULTS),
    "scans": DrawnSet(draw=draw_scan, write=write_scans, faults=SCAN_FAULTS),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Result for a drawn set.

    Args:
        recall: share of the planted faults that were found, by kind.
        alarms: words of the suspects in clean files.
        alarmed: number of clean files with a suspect.
        clean: number of clean files.
    """

    recall: Mapping[str, float]
    alarms: Sequence[str]
    alarmed: int
    clean: int


def plant(
    name: str, photographs: Photographs, folder: Path, each: int, clean: int, seed: int
) -> tuple[dict[str, list[str]], Path]:
    """Draw, plant and convert a set; return the file names of each kind of fault, and the converted set."""
    made, random = SETS[name], np.random.default_rng(seed)
    source = folder / name
    source.mkdir()
    kinds = [*[""] * clean, *(kind for kind in made.faults for _ in range(each))]
    random.shuffle(kinds)
    named, planted = {}, defaultdict(list)
    for number, kind in enumerate(kinds):
        drawn, stem = made.draw(photographs, random), f"{number:05d}"
        if kind:
            made.faults[kind](drawn, random)
            planted[kind].append(stem)
        named[stem] = drawn
    options = made.write(source, named)
    command = [sys.executable, "-m", "halofeed", "convert", "--source", str(source), "--name", name]
    command += ["--out", str(folder / "converted"), *options]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{name}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return dict(planted), folder / "converted" / name / "1.0.0"


def judge(planted: Mapping[str, Sequence[str]], converted: Path, clean: int) -> Found:
    """Review a converted set and compare the suspects with what was planted."""
    from halofeed.inspection.review.box_outliers import BoxKind
    from halofeed.inspection.review.drift import DriftKind
    from halofeed.inspection.review.mask_faults import MaskKind
    from halofeed.inspection.review.picture_outliers import PictureKind
    from halofeed.inspection.review.review import review_dataset
    from halofeed.inspection.review.scan_outliers import ScanKind

    # Crops of one photograph may be copies, which another search finds.
    kinds = {*BoxKind, *DriftKind, *MaskKind, *PictureKind, *ScanKind}
    by_kind, words = defaultdict(set), defaultdict(list)
    for suspect in review_dataset(converted).suspects:
        if suspect.kind not in kinds:
            continue
        for place in suspect.places:
            stem = Path(place.source).name.partition(".")[0]
            by_kind[str(suspect.kind)].add(stem)
            words[stem].append(f"{suspect.kind}: {suspect.words} ({stem})")
    faulty = {stem for stems in planted.values() for stem in stems}
    alarmed = sorted(words.keys() - faulty)
    return Found(
        recall={kind: len(by_kind[kind].intersection(stems)) / len(stems) for kind, stems in planted.items()},
        alarms=[text for stem in alarmed for text in words[stem]],
        alarmed=len(alarmed),
        clean=clean,
    )


# Drift ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Split:
    """How the pictures of a split are drawn.

    Args:
        first_class: share of the first of two classes.
        scale: factor of the sides.
        light: factor of the pixels.
        sources: folders of the pictures.
    """

    first_class: float = 0.5
    scale: float = 1.0
    light: float = 1.0
    sources: tuple[str, ...] = ("north", "south")


DRIFTS: Mapping[str, Split] = {
    "classes differ between splits": Split(first_class=0.85),
    "sizes differ between splits": Split(scale=1.3),
    "intensities differ between splits": Split(light=0.6),
    "sources differ between splits": Split(sources=("west",)),
    "": Split(),
}
_DRIFT_PICTURES = {"train": 120, "test": 60}


def drifts_of(kind: str, photographs: Photographs, folder: Path, seed: int) -> set[str]:
    """Draw a set of which the test split differs, convert it, and return the kinds of drift that a review names."""
    from halofeed.inspection.review.drift import DriftKind
    from halofeed.inspection.review.review import review_dataset

    random = np.random.default_rng(seed)
    source = folder / "in"
    for split, count in _DRIFT_PICTURES.items():
        drawn = DRIFTS[kind] if split == "test" else DRIFTS[""]
        for number in range(count):
            pixels = photographs.crop(random)
            side = 0.4 * drawn.scale
            pixels = cv2.resize(pixels, None, fx=side, fy=side, interpolation=cv2.INTER_AREA) * drawn.light
            cls = "cat" if random.random() < drawn.first_class else "dog"
            path = source / split / cls / str(random.choice(drawn.sources)) / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), pixels.astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 92])
    command = [sys.executable, "-m", "halofeed", "convert", "--layout", "folders", "--source", str(source)]
    command += ["--out", str(folder), "--name", "drift", "--height", "96", "--width", "96", "--workers", "1"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{kind}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    suspects = review_dataset(folder / "drift" / "1.0.0").suspects
    return {str(suspect.kind) for suspect in suspects if isinstance(suspect.kind, DriftKind)}


def print_drifts(photographs: Photographs, folder: Path, each: int, seed: int) -> None:
    """Print the recall of each kind of drift, and how often sets without it are called drifting."""
    for kind in DRIFTS:
        found = [
            drifts_of(kind, photographs, folder / f"drift{kind}{number}", seed + number)
            for number in range(each)
        ]
        if kind:
            others = sum(len(one - {kind}) for one in found)
            also = f"  (other kinds: {others})" if others else ""
            print(f"drift    {kind:<34} {np.mean([kind in one for one in found]):>6.2f}{also}")
        else:
            print(f"drift    false alarms: {sum(map(bool, found))} of {each} sets without drift")


# CleanVision ------------------------------------------------------------------------------------------------------

_CLEANVISION = """
import json, resource, sys, time
from cleanvision import Imagelab
start = time.perf_counter()
lab = Imagelab(data_path=sys.argv[1])
names = ["dark", "light", "blurry", "low_information", "odd_size", "odd_aspect_ratio"]
lab.find_issues({name: {} for name in names}, n_jobs=1, verbose=False)
found = {name: list(lab.issues.index[lab.issues[f"is_{name}_issue"]]) for name in names}
usage = resource.getrusage(resource.RUSAGE_SELF)
wall, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
print("\\n" + json.dumps({"found": found, "wall_s": wall, "cpu_s": cpu, "mib": usage.ru_maxrss / 1024}))
"""
_REVIEW = """
import json, resource, sys, time
start = time.perf_counter()
import halofeed
halofeed.review(sys.argv[1])
usage = resource.getrusage(resource.RUSAGE_SELF)
wall, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
print(json.dumps({"wall_s": wall, "cpu_s": cpu, "mib": usage.ru_maxrss / 1024}))
"""
_THEIR_KINDS = {
    "dark picture": "dark",
    "bright picture": "light",
    "blurred picture": "blurry",
    "picture of low contrast": "low_information",
    "picture of few tones": "low_information",
    "picture of one color": "low_information",
    "odd size": "odd_size",
    "odd aspect ratio": "odd_aspect_ratio",
}


def compare(python: str, source: Path, converted: Path, planted: Mapping[str, Sequence[str]]) -> None:
    """Print what CleanVision finds of the faults that it knows, beside the time and the memory of a review."""
    run = subprocess.run(
        [python, "-c", _CLEANVISION, str(source)], capture_output=True, text=True, check=True
    )
    theirs = json.loads(run.stdout.splitlines()[-1])
    stems = {kind: {Path(path).stem for path in paths} for kind, paths in theirs["found"].items()}
    faulty = {stem for one in planted.values() for stem in one}
    print(f"\n{'fault':<26} {'CleanVision':>12}")
    for kind, name in _THEIR_KINDS.items():
        recall = len(stems[name].intersection(planted[kind])) / len(planted[kind])
        print(f"{kind:<26} {recall:>12.2f}")
    alarmed = {stem for one in stems.values() for stem in one} - faulty
    print(f"false alarms: {len(alarmed)} of the clean files")
    print(
        f"CleanVision: {theirs['wall_s']:.1f} s, processor {theirs['cpu_s']:.1f} s, {theirs['mib']:.0f} MiB"
    )
    run = subprocess.run(
        [sys.executable, "-c", _REVIEW, str(converted)], capture_output=True, text=True, check=True
    )
    ours = json.loads(run.stdout)
    figures = f"{ours['wall_s']:.1f} s, processor {ours['cpu_s']:.1f} s, {ours['mib']:.0f} MiB"
    print(f"halofeed review: {figures}, after the conversion")


def print_found(name: str, found: Found) -> None:
    """Print the recall of each kind, and the false alarms."""
    for kind, recall in sorted(found.recall.items()):
        print(f"{name:<8} {kind:<28} {recall:>6.2f}")
    print(
        f"{name:<8} false alarms: {found.alarmed} of {found.clean} clean files ({found.alarmed / found.clean:.1%})"
    )
    for text in found.alarms:
        print(f"             {text}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of photographs")
    parser.add_argument("--each", type=int, default=5, help="faults of each kind")
    parser.add_argument("--clean", type=int, default=400, help="files without a fault in each set")
    parser.add_argument("--sets", nargs="*", choices=[*SETS, "drift"], default=[*SETS, "drift"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--real", nargs="*", type=Path, default=[], help="converted data sets to list suspects of"
    )
    parser.add_argument("--cleanvision", metavar="PYTHON", help="an interpreter with CleanVision")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        photographs = Photographs(given.source, folder)
        for name in given.sets:
            if name == "drift":
                print_drifts(photographs, folder, given.each, given.seed)
                continue
            planted, converted = plant(name, photographs, folder, given.each, given.clean, given.seed)
            print_found(name, judge(planted, converted, given.clean))
            if name == "boxes" and given.cleanvision:
                compare(given.cleanvision, folder / name, converted, planted)
    for path in given.real:
        found = judge({}, path, clean=1)
        print(f"{path}: {found.alarmed} files with a suspect")
        for text in found.alarms:
            print(f"             {text}")


if __name__ == "__main__":
    main()
