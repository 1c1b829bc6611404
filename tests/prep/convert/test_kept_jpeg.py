"""A JPEG that needs no change keeps its bytes, and one decoded at a smaller scale its places."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms
from PIL.JpegImagePlugin import JpegImageFile

from halofeed.errors import SourceError
from halofeed.prep.annotations.labels import from_data
from halofeed.prep.convert.picture_records import PictureConverter
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.voxels.encoded_image import START_OF_IMAGE
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
WAYS: list[dict[str, Any]] = [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"subsampling": 0}]
UNTOUCHED = [*((draw(**way), {}) for way in WAYS), (draw(), SAME_SIZE), (draw("L"), {"channels": 1})]


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


# What a picture says of people and places ---------------------------------------------------------------

SECRET = b"XqWv7"
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def named_tags() -> bytes:
    tags = Image.Exif()
    tags[0x0112], tags[0x013B], tags[0x8298] = 1, SECRET.decode(), SECRET.decode()
    tags.get_ifd(0x8825)[29] = SECRET.decode()
    tags.get_ifd(0x8769)[0x927C] = SECRET
    return tags.tobytes()


def swapped_profile() -> bytes:
    """A profile that exchanges red and blue, is named after its owner and says when and on which device it was made."""
    named = SRGB.replace("sRGB".encode("utf-16-be"), SECRET[:4].decode().encode("utf-16-be"))
    assert named != SRGB
    named = named[:24] + SECRET + named[29:48] + SECRET + named[53:]
    return named.replace(b"rXYZ", b"____").replace(b"bXYZ", b"rXYZ").replace(b"____", b"bXYZ")


def full_of_secrets(mode: str = "RGB", **options: Any) -> bytes:
    """A picture with each kind of metadata, and with segments that no decoder needs."""
    data = draw(mode, exif=named_tags(), comment=SECRET, icc_profile=swapped_profile(), **options)
    thumbnail = b"JFIF\0\1\1\0\0\1\0\1\2\1" + SECRET + b"!"
    data = START_OF_IMAGE + segment(0xE0, thumbnail) + data[data.index(b"JFIF") + 14 :]
    more = [(0xE1, b"http://ns.adobe.com/xap/1.0/\0"), (0xED, b"Photoshop 3.0\0"), (0xE0, b"JFXX\0\x10")]
    more += [(0xE2, b"MPF\0"), (0xEB, b"JP\0\0"), (0xFE, b""), (0xE1, b"Exif\0\0"), (0xDC, b"")]
    front = b"\xff\xff".join(segment(marker, name + SECRET) for marker, name in more)
    between = data.rindex(segment(0xC4, b"")[:2]) if options else data.rindex(b"\xff\xd9")
    data = data[:between] + segment(0xFE, SECRET) + data[between:]
    return START_OF_IMAGE + front + data[2:] + draw(exif=named_tags()) + SECRET


@pytest.mark.parametrize(("mode", "options"), [("RGB", {}), ("RGB", {"progressive": True}), ("L", {})])
def test_a_kept_jpeg_loses_what_names_people_and_places_and_nothing_of_its_picture(tmp_path, mode, options):
    secret, plain = full_of_secrets(mode, **options), draw(mode, **options)
    kept = stored(tmp_path, secret, channels=len(mode))
    assert SECRET in secret and SECRET not in kept and SECRET.decode().encode("utf-16-be")[:8] not in kept
    before, after, bare = (JpegImageFile(io.BytesIO(data)) for data in (secret, kept, plain))
    profile = after.info.pop("icc_profile")
    assert after.info == bare.info and after.getexif() == {}
    start = kept.index(b"ICC_PROFILE") - 4
    end = start + 2 + int.from_bytes(kept[start + 2 : start + 4], "big")
    assert kept[:start] + kept[end:] == plain, "the compressed data are those of the picture without metadata"
    if mode == "RGB":
        target = ImageCms.createProfile("sRGB")
        seen = [
            np.asarray(ImageCms.profileToProfile(image, ImageCms.ImageCmsProfile(io.BytesIO(icc)), target))
            for image, icc in ((before, swapped_profile()), (after, profile), (after, SRGB))
        ]
        assert np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[2])


@pytest.mark.parametrize(
    "change", [slice(0, 100), slice(36, 40), slice(128, 132)], ids=["size", "mark", "tags"]
)
def test_a_profile_that_cannot_be_read_is_left_out(tmp_path, change):
    damaged = bytearray(SRGB)
    damaged[change] = b"\xff" * (change.stop - change.start) if change.start else b""
    assert stored(tmp_path, draw(icc_profile=bytes(damaged))) == draw()


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
    record = converter.convert(SourceExample(source="a.jpg", key="a.jpg", label="wave"), data)
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
