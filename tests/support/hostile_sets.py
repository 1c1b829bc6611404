"""Which sound data sets do tests make hostile: each task, encoding and kind of label once, converted, and small."""

from pathlib import Path

import numpy as np
from PIL import Image

from halofeed.demo import draw_data_set
from tests.support.conversions import run_convert
from tests.support.layout_sources import COUNT, LAYOUT_SOURCES, draw_pictures
from tests.support.volume_support import write_table

VOLUMES = {"layout": "csv", "task": "segmentation", "depth": 5, "height": 8, "width": 9}


def write_sound_sets(root: Path) -> list[Path]:
    """Convert one data set of each kind below `root`/NAME; returns the folders of the versions.

    A picture of `root`/sources/coco is truncated, and a scan of the table is missing.
    """
    source = root / "sources"
    draw_data_set(source / "coco", 6)
    pictures = sorted(f"images/{path.name}" for path in (source / "coco/images").iterdir())
    rows = [(name, ("hat", "shirt")[number % 2]) for number, name in enumerate(pictures)]
    write_table(source / "classes", rows, "filename,class")
    write_table(source / "several", [*rows, (pictures[-1], "coat")], "filename,class")
    LAYOUT_SOURCES["scan table"](source / "scans")
    scans = [(n, f"ct/{n}.nii", f"seg/{n}.nii" if n % 3 else "") for n in range(COUNT)]
    write_table(source / "scans", [*scans, ("gone", "ct/gone.nii", "")])
    labels = [(n, f"images/{n}.png", f"masks/{n}.png") for n in range(COUNT)]
    draw_pictures(source / "labels", *(image for _, image, _ in labels))
    (source / "labels/masks").mkdir()
    for number, _, label in labels:
        values = np.random.default_rng(number).integers(0, 3, (16, 24)).astype(np.uint8)
        Image.fromarray(values).save(source / "labels" / label)
    write_table(source / "labels", labels)
    shares = {"split_shares": ("train=0.7", "test=0.3"), "shards": 2}
    fit = {"resize": "keep-aspect", "min_dimension": 16, "max_dimension": 24, "height": 300, "width": 300}
    table = {"layout": "csv", "images": str(source / "coco")}
    kinds = {
        "boxes": ("coco", {"layout": "coco", **shares}),
        "masks": ("coco", {"layout": "coco", "masks": True, "encoding": "png", **fit}),
        "photos": ("classes", {**table, "encoding": "jpeg", **fit}),
        "gray": ("classes", {**table, "channels": 1, "dtype": "uint16", **shares}),
        "several": ("several", {**table, "several_classes": "keep"}),
        "labels": ("labels", {"layout": "csv", "task": "segmentation", "encoding": "png"}),
        "scans": ("scans", {**VOLUMES, **shares}),
        "packed labels": (
            "labels",
            {"layout": "csv", "task": "segmentation", "encoding": "packed", **shares},
        ),
        "packed scans": ("scans", {**VOLUMES, "encoding": "packed"}),
        "tiles": ("scans", {**VOLUMES, "fit": "tiles", "depth": 2, "dtype": "float32"}),
    }
    converted = (run_convert(source / drawn, root / name, **given) for name, (drawn, given) in kinds.items())
    return [Path(done.folder) for done in converted]
