"""A JPEG that needs no change keeps its bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.schemas.errors import SourceError
from tests.support.conversions import read_all, run_convert
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


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": exif(1)}, {"subsampling": 0}, {"icc_profile": b"x" * 300}]
)
def test_a_jpeg_to_which_nothing_is_done_keeps_its_bytes(tmp_path, options):
    data = draw(**options)
    assert stored(tmp_path, data) == data


def test_a_jpeg_of_the_size_that_is_asked_for_keeps_its_bytes(tmp_path):
    same_size = {"resize": "fixed-shape", "height": SIZE[0], "width": SIZE[1]}
    assert stored(tmp_path, data := draw(), **same_size) == data


def test_a_gray_one_too_where_records_are_gray(tmp_path):
    data = draw("L")
    assert stored(tmp_path, data, channels=1) == data
    assert stored(tmp_path, data) != data


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (draw(exif=exif(6)), {}),
        (draw("CMYK"), {}),
        (draw(), {"resize": "fixed-shape", "height": 20, "width": 28}),
        (draw(), {"resize": "keep-aspect", "min_dimension": 40, "max_dimension": 64, "pad": True}),
        (draw(), {"jpeg_quality": 50}),
        (draw(), {"channels": 1}),
    ],
    ids=["turned", "CMYK", "resized", "padded", "quality", "gray"],
)
def test_a_jpeg_to_which_anything_is_done_is_written_again(tmp_path, data, how):
    again = stored(tmp_path, data, **how)
    assert again != data and Image.open(io.BytesIO(again)).mode in ("RGB", "L")


# A missing end -----------------------------------------------------------------------------------------


def test_a_jpeg_that_lacks_its_end_marker_alone_is_whole():
    data = draw()
    image = read_image(data[:-2], ReadOptions())
    assert image.notes == ("end marker of the JPEG is missing",) and image.plain_jpeg_channels == 0
    assert np.array_equal(image.pixels, read_image(data, ReadOptions()).pixels)


def test_a_progressive_jpeg_that_lacks_its_last_scans_is_truncated():
    """Every scan that is there is whole, and yet it is not the picture."""
    data = draw(progressive=True)
    last = data.rindex(b"\xff\xda")
    for cut in (data[:last], data[:-2]):
        with pytest.raises(SourceError, match="file is truncated"):
            read_image(cut, ReadOptions())
