"""A JPEG that needs no change keeps its bytes, and one decoded at a smaller scale its places."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.prep.convert.picture import PictureConverter
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.reference import Reference
from halofeed.prep.tasks.labels import from_data
from halofeed.schemas.errors import SourceError
from halofeed.schemas.tfexample import decode_example
from tests.support.conversions import read_all, run_convert
from tests.support.level_rows import others
from tests.support.memory_cases import saved

SIZE = (40, 56)


def draw(mode: str = "RGB", **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).resize((SIZE[1], SIZE[0])).convert(mode)
    return saved(image, "JPEG", quality=70, **options)


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112], tags[0x010F] = orientation, "maker"
    return tags.tobytes()


def stored(folder: Path, data: bytes, **options: Any) -> bytes:
    (folder / "s/a").mkdir(parents=True, exist_ok=True)
    (folder / "s/a/1.jpg").write_bytes(data)
    given = {"layout": "folders", "resize": "none", "encoding": "jpeg"} | options
    done = run_convert(folder / "s", folder / f"out{len(list(folder.iterdir()))}", **given)
    return bytes(read_all(Path(done.folder), ["train"])["a/1.jpg"]["image/encoded"][0])


SAME_SIZE = {"resize": "fixed-shape", "height": SIZE[0], "width": SIZE[1]}
UNTOUCHED = [
    *((draw(), {}), (draw(progressive=True), {}), (draw(exif=exif(1)), {}), (draw(subsampling=0), {})),
    *((draw(icc_profile=b"x" * 300), {}), (draw(), SAME_SIZE), (draw("L"), {"channels": 1})),
]


@pytest.mark.parametrize(("data", "how"), UNTOUCHED)
def test_a_jpeg_to_which_nothing_is_done_keeps_its_bytes(tmp_path, data, how):
    assert stored(tmp_path, data, **how) == data


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (draw(exif=exif(6)), {}),
        *((draw("CMYK"), {}), (draw("L"), {})),
        (draw(), {"resize": "fixed-shape", "height": 20, "width": 28}),
        (draw(), {"resize": "keep-aspect", "min_dimension": 40, "max_dimension": 64, "pad": True}),
        (draw(), {"jpeg_quality": 50}),
        (draw(), {"channels": 1}),
    ],
    ids=["turned", "CMYK", "gray to RGB", "resized", "padded", "quality", "gray"],
)
def test_a_jpeg_to_which_anything_is_done_is_written_again(tmp_path, data, how):
    again = stored(tmp_path, data, **how)
    assert again != data and Image.open(io.BytesIO(again)).mode in ("RGB", "L")


def test_a_jpeg_without_its_end_marker_is_whole_and_a_progressive_one_without_its_last_scans_truncated():
    """Every scan that is there is whole, and yet it is not the picture."""
    data = draw()
    image = read_image(data[:-2], ReadOptions())
    assert image.notes == ("end marker of the JPEG is missing",) and image.plain_jpeg_channels == 0
    assert np.array_equal(image.pixels, read_image(data, ReadOptions()).pixels)
    data = draw(progressive=True)
    last = data.rindex(b"\xff\xda")
    for cut in (data[:last], data[:-2]):
        with pytest.raises(SourceError, match="file is truncated"):
            read_image(cut, ReadOptions())


HEIGHT, WIDTH = 1601, 1407


def photograph(orientation: int, height: int, width: int) -> bytes:
    """A JPEG of soft waves, of which a shift by a pixel would show everywhere."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [np.sin(x / 23 + y / 71), np.sin(y / 19 - x / 83), np.sin((x + y) / 31)]
    pixels = np.stack([128 + 120 * wave for wave in waves], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(Image.fromarray(pixels), "JPEG", quality=95, subsampling=0, exif=exif)


def scaled_to(data: bytes, **options: object) -> np.ndarray:
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
    scaled = scaled_to(data, **size)
    whole = scaled_to(data, **size, interpolation="tf2-bilinear-antialias")
    difference = np.abs(scaled - whole)
    assert difference.mean() < 1.2
    # Beyond the last row and column lies what the writer of the file put there.
    assert difference[2:-2, 2:-2].max() <= 4 and difference.max() <= 12
