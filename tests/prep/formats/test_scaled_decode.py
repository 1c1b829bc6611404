"""A JPEG decoded at a smaller scale shows everything where the whole one shows it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image

from halofeed.prep.convert.picture import PictureConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.reference import Reference
from halofeed.prep.tasks.labels import from_data
from halofeed.schemas.tfexample import decode_example
from tests.support.level_rows import others
from tests.support.memory_cases import saved

HEIGHT, WIDTH = 1601, 1407


def photograph(orientation: int, height: int, width: int) -> bytes:
    """A JPEG of soft waves, of which a shift by a pixel would show everywhere."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [np.sin(x / 23 + y / 71), np.sin(y / 19 - x / 83), np.sin((x + y) / 31)]
    pixels = np.stack([128 + 120 * wave for wave in waves], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(Image.fromarray(pixels), "JPEG", quality=95, subsampling=0, exif=exif)


def stored(data: bytes, **options: object) -> np.ndarray:
    recipe = Recipe(layout="folders", resize="keep-aspect", pad=True, **options)
    converter = PictureConverter(recipe=recipe, task="classification", labels=from_data(["wave"], 0))
    record = converter.convert(Reference(source="a.jpg", key="a.jpg", label="wave"), data)
    features = decode_example(b"".join(bytes(chunk) for chunk in record.example.chunks))
    side = recipe.max_dimension
    pixels = np.frombuffer(bytes(features["image/encoded"][0]), np.uint8).reshape(side, side, 3)
    height, width = (int(features[f"image/unpadded/{name}"][0]) for name in ("height", "width"))
    return pixels[:height, :width].astype(int)


@pytest.mark.parametrize(
    ("orientation", "side"),
    others(itertools.product(range(1, 9), (100, 190, 350)), [(1, 100), (6, 190), (4, 350)]),
)
def test_a_scaled_decode_equals_the_whole_one_to_the_last_row_and_column(orientation, side):
    data = photograph(orientation, HEIGHT, WIDTH)
    size = {"min_dimension": side, "max_dimension": side}
    scaled = stored(data, **size)
    whole = stored(data, **size, interpolation="tf2-bilinear-antialias")
    difference = np.abs(scaled - whole)
    assert difference.mean() < 1.2
    # Beyond the last row and column lies what the writer of the file put there.
    assert difference[2:-2, 2:-2].max() <= 4 and difference.max() <= 12
