"""Small data sets of pictures with masks of objects, some of which overlap."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from halofeed.trainer.object_masks import encode_at
from tests.support.conversions import run_convert

SIZES = [(30, 40), (40, 30), (36, 36), (24, 40)]


def draw_objects(folder: Path, sizes: list[tuple[int, int]] = SIZES, seed: int = 2) -> Path:
    """Pictures of bright ellipses on noise with COCO's run lengths, without compression of the pictures."""
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number, (height, width) in enumerate(sizes, 1):
        picture = generator.integers(0, 60, (height, width, 3), np.uint8)
        for at in range(4):
            mask = np.zeros((height, width), np.uint8)
            radii = generator.integers(3, 8, 2)
            center = [int(generator.integers(8, side - 8)) for side in (width, height)]
            cv2.ellipse(mask, center, radii.tolist(), float(generator.integers(0, 180)), 0, 360, 1, -1)
            picture[mask > 0] = (200 - 30 * at, 120 + 40 * (at % 2), 90)
            rows, columns = np.nonzero(mask)
            left, top = int(columns.min()), int(rows.min())
            box = [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": 1 + at % 2, "bbox": box}
            entry |= {"iscrowd": 0, "area": int(mask.sum())}
            annotations.append({**entry, "segmentation": encode_at(0, 0, mask > 0, mask.shape)})
        name = f"{number}.png"
        cv2.imwrite(str(folder / name), picture)
        images.append({"id": number, "file_name": name, "height": height, "width": width})
    names = [{"id": 1, "name": "disc"}, {"id": 2, "name": "ring"}]
    document = {"images": images, "annotations": annotations, "categories": names}
    (folder / "annotations.json").write_text(json.dumps(document))
    return folder


def convert_objects(folder: Path, sizes: list[tuple[int, int]] = SIZES, **options: Any) -> Path:
    """Draw pictures below `folder` and convert them, 32 x 32 by default; return the version folder."""
    how = {"layout": "coco", "masks": True, "height": 32, "width": 32, **options}
    source = draw_objects(folder / "source", sizes)
    run_convert(source, folder / "data", **how)
    (version,) = (folder / "data").glob("*/*")
    return version
