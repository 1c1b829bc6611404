"""Tiles of turned or mirrored files: `verify` accepts their order and finds a tile that comes twice."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed.inspection.verify import _TileOrder, verify
from halofeed.loader import Loader
from halofeed.prep.formats.picture.image import apply_orientation
from tests.support.conversions import run_convert

TILE = 32
SIZES = [(70, 110), (110, 40), (20, 90)]


def write_turned(path: Path, pixels: np.ndarray, orientation: int) -> None:
    if path.suffix == ".tif":
        # Pixel scale and tie point of GeoTIFF, and the orientation.
        place = [(33550, 12, 3, (0.5, 0.5, 0.0), True), (33922, 12, 6, (0.0, 0, 0, 5e5, 6e6, 0), True)]
        tifffile.imwrite(
            path,
            pixels,
            photometric="rgb",
            rowsperstrip=7,
            extratags=[(274, 3, 1, orientation, True), *place],
        )
    else:
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_tiles_of_turned_pictures_verify_and_show_the_displayed_picture(tmp_path, suffix, orientation):
    source, random = tmp_path / "source", np.random.default_rng(orientation)
    source.mkdir()
    shown, rows = {}, ["image,xmin,ymin,xmax,ymax,label"]
    for number, size in enumerate(SIZES):
        pixels = cv2.resize(random.integers(0, 256, (5, 5, 3), np.uint8), size[::-1])
        name = f"{number}.{suffix}"
        write_turned(source / name, pixels, orientation)
        shown[name] = apply_orientation(pixels, orientation)
        rows.append(f"{name},3,2,12,17,ship")
    (source / "boxes.csv").write_text("\n".join(rows) + "\n")
    options = {"layout": "csv", "annotation_grid": "stored", "fit": "tiles", "tile_overlap": (4, 4)}
    done = run_convert(source, tmp_path / "out", **options, height=TILE, width=TILE, encoding="raw", shards=1)
    checked = verify(done.folder)
    assert not checked.problems, str(checked)

    loader = Loader(done.folder, batch_size=4, training=False, include=["tile_origin", "key"])
    built = {name: np.zeros_like(pixels) for name, pixels in shown.items()}
    for batch in (loader.batch(step) for step in range(loader.steps_per_epoch)):
        for row in np.flatnonzero(batch["valid"]):
            (top, left), whole = batch["tile_origin"][row], built[batch["key"][row]]
            part = whole[top : top + TILE, left : left + TILE]
            part[:] = batch["image"][row][: part.shape[0], : part.shape[1]]
    for name, pixels in shown.items():
        np.testing.assert_array_equal(built[name], pixels, err_msg=name)


def problems(numbers: list[tuple[int, int]], *, is_flat: bool) -> list[str]:
    order = _TileOrder()
    return [text for position in numbers for text in order.problems(position, is_flat=is_flat)]


def test_numbers_of_tiles_may_fall_in_pictures_only_and_none_may_come_twice():
    falling = [(3, 2), (3, 5), (3, 0), (7, 1)]
    assert not problems(falling, is_flat=True)
    assert problems(falling, is_flat=False) == [
        "tile 0 comes after tile 5; expected the tiles of a source by rising number"
    ]
    for is_flat in (True, False):
        assert problems([(3, 0), (3, 1), (3, 1)], is_flat=is_flat) == [
            "tile 1 of its source is there a second time"
        ]
        parted = [(3, 0), (7, 0), (3, 1)]
        assert problems(parted, is_flat=is_flat) == [
            "expected sources by rising id, and the tiles of each together"
        ]
