"""Small sources of each kind of image and label, to compare the encodings of their records."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from halofeed.inspection.stored_records import StoredShard
from halofeed.inspection.stored_values import stored_array
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.tfexample import Decoded
from tests.support.clip_mask_writer import write_masked_clips
from tests.support.clip_writer import HEIGHT, WIDTH, write_class_folders
from tests.support.conversions import draw_folders, run_convert
from tests.support.small_scans import AFFINE
from tests.support.volume_support import save_nifti

CT_SHAPE = (6, 40, 37)
SIZE = {"depth": 6, "height": 40, "width": 37}


def draw_folders_of_pictures(root: Path) -> None:
    draw_folders(root, 5)


def draw_pairs(root: Path) -> None:
    """Smooth pictures of 45 x 70 pixels with label images of four classes, of one without label."""
    generator = np.random.default_rng(3)
    for number in range(5):
        rows, columns = np.mgrid[0:45, 0:70]
        colors = [rows + columns, 3 * rows, 255 - 2 * columns]
        pixels = np.stack(colors, axis=-1) + generator.integers(0, 6, (45, 70, 3))
        label = ((rows // 20) + 2 * (columns // 40)).astype(np.uint8)
        label[generator.integers(0, 40) :, generator.integers(0, 60) :] = 1
        for folder, array in (("images", np.clip(pixels, 0, 255).astype(np.uint8)), ("labels", label)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / folder / f"p{number}.png")


def draw_scans(root: Path) -> None:
    """Scans with masks of three classes that overlap."""
    for number in range(3):
        generator = np.random.default_rng(number)
        depth, height, width = np.mgrid[tuple(slice(side) for side in CT_SHAPE)]
        image = 20 * depth + 3 * height - 5 * width + generator.integers(-20, 20, CT_SHAPE)
        save_nifti(root / f"s{number}" / "ct.nii", image.astype(np.int16), AFFINE)
        for name, first in (("a", 3), ("b", 10), ("c", 12)):
            mask = np.zeros(CT_SHAPE, np.uint8)
            mask[:, first : first + 12, first + number : first + 20] = 1
            save_nifti(root / f"s{number}" / "segmentations" / f"{name}.nii", mask, AFFINE)


@dataclass(frozen=True, kw_only=True)
class KindCase:
    """Sources of one kind, and the options that convert them."""

    draw: Callable[[Path], Any]
    options: Mapping[str, Any]


_SCANS = {"layout": "class-masks", **SIZE}
_CLIPS = {"frames": 5, "height": HEIGHT, "width": WIDTH}
CASES = {
    "pictures": KindCase(
        draw=draw_folders_of_pictures, options={"layout": "folders", "height": 50, "width": 41}
    ),
    "labeled pictures": KindCase(draw=draw_pairs, options={"layout": "pairs", "height": 45, "width": 70}),
    "16-bit gray pictures": KindCase(
        draw=draw_pairs,
        options={"layout": "pairs", "height": 45, "width": 70, "dtype": "uint16", "channels": 1},
    ),
    "tiles": KindCase(
        draw=draw_pairs, options={"layout": "pairs", "fit": "tiles", "height": 40, "width": 33}
    ),
    "scans": KindCase(draw=draw_scans, options={**_SCANS, "class_overlap": "last"}),
    "class sets": KindCase(
        draw=draw_scans, options={**_SCANS, "class_overlap": "channels", "dtype": "bfloat16"}
    ),
    "tiles of scans": KindCase(
        draw=draw_scans,
        options={**_SCANS, "class_overlap": "last", "fit": "tiles", "height": 35, "dtype": "float32"},
    ),
    "clips": KindCase(
        draw=lambda root: write_class_folders(root, each=1), options={"layout": "folders", **_CLIPS}
    ),
    "labeled clips": KindCase(draw=write_masked_clips, options={"layout": "pairs", **_CLIPS}),
}


def convert_case(name: str, folder: Path, **options: Any) -> Path:
    """Draw the sources of a case below a folder unless they are there, and convert them; the data set's folder."""
    source = folder / "source"
    if not source.exists():
        CASES[name].draw(source)
    out = folder / "_".join(map(str, options.values()))
    return Path(run_convert(source, out, **{**CASES[name].options, **options}).folder)


def records_of(folder: Path) -> Iterator[Decoded]:
    """The features of all records of a data set, by splits and shards."""
    for split in read_manifest(folder).splits.values():
        for shard in split.shards:
            stored = StoredShard(folder, shard)
            yield from (stored.features(row) for row in range(shard.records))


def arrays_of(folder: Path) -> list[dict[str, Any]]:
    """The stored image and label of each record, by field."""
    fields = [field for field in read_manifest(folder).fields if field.is_array]
    return [
        {field.name: stored_array(features[field.keys[0]][0], field) for field in fields}
        for features in records_of(folder)
    ]
