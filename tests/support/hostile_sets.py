"""Which sound data sets do tests make hostile: each task, encoding and kind of label once, converted, and small."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.conversions import run_convert
from tests.support.volume_support import save_nifti, write_table

AFFINE = np.diag([2.0, 2.0, 3.0, 1.0])
VOLUMES = {"layout": "csv", "task": "segmentation", "depth": 5, "height": 8, "width": 9}


def _pictures(root: Path, count: int) -> list[str]:
    names = []
    for number in range(count):
        generator = np.random.default_rng(number)
        path = root / f"images/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (20 + 3 * number, 30 - 2 * number, 3)
        Image.fromarray(generator.integers(0, 256, size).astype(np.uint8)).save(path)
        names.append(path.name)
    (root / "images/broken.png").write_bytes(b"no picture")
    return [*names, "broken.png"]


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def _coco(root: Path, count: int) -> None:
    names = _pictures(root, count)
    corners = [(2, 3, 6, 7), (1, 1, 9, 12), (4, 0, 3, 3)]
    objects = []
    for image in range(len(names)):
        for at, (x, y, width, height) in enumerate(corners[: image % 4]):
            ids = {"id": 10 * image + at, "image_id": image, "category_id": at + 1, "iscrowd": 0}
            outline = [x, y, x + width, y, x, y + height]
            shape = {"bbox": [x, y, width, height], "area": width * height, "segmentation": [outline]}
            objects.append(ids | shape)
    document = {
        "images": [{"id": n, "file_name": name, "width": 30, "height": 20} for n, name in enumerate(names)],
        "annotations": objects,
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(("hat", "shirt", "shoe"))],
    }
    for entry, name in zip(document["images"], names, strict=True):
        if name != "broken.png":
            entry["width"], entry["height"] = _size(root / "images" / name)
    (root / "annotations").mkdir()
    (root / "annotations/instances_train.json").write_text(json.dumps(document))


def _scans(root: Path, count: int) -> None:
    rows = []
    for number in range(count):
        voxels = np.random.default_rng(number).integers(-900, 900, (5, 8, 9)).astype(np.int16)
        save_nifti(root / f"ct/{number}.nii.gz", voxels, AFFINE)
        save_nifti(root / f"masks/{number}.nii.gz", (voxels > 0).astype(np.uint8) + (voxels > 600), AFFINE)
        rows.append((number, f"ct/{number}.nii.gz", f"masks/{number}.nii.gz" if number % 3 else ""))
    write_table(root, [*rows, ("gone", "ct/gone.nii.gz", "")])


def _labels(root: Path, count: int) -> None:
    rows = []
    for number, name in enumerate(_pictures(root, count)[:-1]):
        width, height = _size(root / "images" / name)
        label = np.random.default_rng(number).integers(0, 3, (height, width)).astype(np.uint8)
        (root / "masks").mkdir(exist_ok=True)
        Image.fromarray(label).save(root / "masks" / name)
        rows.append((number, f"images/{name}", f"masks/{name}"))
    write_table(root, rows)


def write_sound_sets(root: Path, count: int = 6) -> list[Path]:
    """Convert one data set of each kind below `root`/NAME; returns the folders of the versions."""
    source = root / "sources"
    for name, draw in (("coco", _coco), ("scans", _scans), ("labels", _labels)):
        (source / name).mkdir(parents=True)
        draw(source / name, count)
    table = [f"images/{number}.png,{'hat' if number % 2 else 'shirt'}" for number in range(count)]
    many = [f"images/0.png,{name}" for name in ("hat", "shirt")]
    for name, lines in (("classes", table), ("several", [*table[1:], *many])):
        (source / name).mkdir()
        _pictures(source / name, count)
        rows = ["filename,class", *lines, "images/broken.png,hat", ""]
        (source / name / "table.csv").write_text("\n".join(rows))
    shares = {"split_shares": ("train=0.7", "test=0.3"), "shards": 2}
    fit = {"resize": "keep-aspect", "min_dimension": 16, "max_dimension": 24, "height": 300, "width": 300}
    kinds = {
        "boxes": ("coco", {"layout": "coco", **shares}),
        "masks": ("coco", {"layout": "coco", "masks": True, "encoding": "png", **fit}),
        "photos": ("classes", {"layout": "csv", "encoding": "jpeg", **fit}),
        "gray": ("classes", {"layout": "csv", "channels": 1, "dtype": "uint16", **shares}),
        "several": ("several", {"layout": "csv", "several_classes": "keep"}),
        "labels": ("labels", {"layout": "csv", "task": "segmentation", "encoding": "png"}),
        "scans": ("scans", {**VOLUMES, **shares}),
        "tiles": ("scans", {**VOLUMES, "fit": "tiles", "depth": 3, "dtype": "float32"}),
    }
    converted = (run_convert(source / drawn, root / name, **given) for name, (drawn, given) in kinds.items())
    return [Path(done.folder) for done in converted]
