"""Every awkward, damaged or hostile file gives the right picture or a SourceError."""

import csv
import io
import os
import re
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from halofeed.errors import SourceError
from halofeed.pipelines.summary import summary
from halofeed.prep.formats.picture import FORMATS, DecodedImage, ReadOptions, read_image, sniff
from halofeed.prep.formats.picture.jpeg import reduction
from halofeed.prep.formats.picture.tiff import read_tiff_directory
from tests.support.allocations import traced
from tests.support.conversions import run_convert
from tests.support.dicom_writer import file_bytes, image_dataset
from tests.support.memory_cases import png_of, saved

from .test_pictures_samples import PIXELS, png_of_samples, tiff_of_samples

OPTIONS = ReadOptions()


REFUSED = {
    "image has no pixels": "invalid-dimensions.jpg null_height.jpg",
    "not an image format that is read": (
        "xcrn0g04.png xlfn0g04.png xs1n0g01.png xs2n0g01.png xs4n0g01.png xs7n0g01.png"
    ),
    # Of xcsn0g01 the checksum of the pixels is wrong, hopper_bad_exif has noise in stripes; Pillow takes both.
    "file is damaged": (
        "xc1n0g08.png xc9n2c08.png xcsn0g01.png xd0n2c08.png xd3n2c08.png xd9n2c08.png xdtn0g01.png xhdn0g08.png "
        "broken_data_stream.png hopper_bad_exif.jpg derive-huffman-codes-overflow.jpg missing-sos.jpg"
    ),
    "file is truncated": (
        "broken.png truncated_end_chunk.png truncated_image.png truncated_jpeg.jpg ultrahdr.jpg missing-sof.jpg "
        "hippopotamus.regular.truncated.png peacock.default.truncated.jpeg peacock.progressive.truncated.jpeg"
    ),
}
"""By the reason that they are refused for; what is not here and was read by Pillow or TensorFlow is read."""


def expected_rows(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "EXPECTED.tsv", encoding="utf-8", newline="") as file:
        return {row["path"].rsplit("/", 1)[-1]: row for row in csv.DictReader(file, delimiter="\t")}


def image_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if re.search(r"\.(jpe?g|png|webp)$", path.name))


def pillow_rgb(data: bytes) -> NDArray[np.int64]:
    with Image.open(io.BytesIO(data)) as image:
        if image.mode.startswith("I;16"):
            return np.rint(np.asarray(image) / 257).astype(int)[..., None].repeat(3, 2)
        return np.asarray(image.convert("RGBA").convert("RGB")).astype(int)


def test_every_awkward_file_is_read_as_peers_read_it_or_refused_for_its_true_reason(test_data):
    folder = test_data / "odd/images"
    rows, refused, read = expected_rows(folder), {}, set()
    for path in image_files(folder):
        data = path.read_bytes()
        try:
            pixels = read_image(data, OPTIONS).pixels
        except SourceError as error:
            refused[path.name] = error.reason
            continue
        read.add(path.name)
        row = rows.get(path.name)
        if row and row["pil"] == "ok":
            # Pillow's CMYK conversion truncates where ours rounds; the rest is the same library, bit for bit.
            tolerance = 2 if row["pil_mode"] == "CMYK" else 0
            assert np.abs(pixels - pillow_rgb(data)).max() <= tolerance, path
    assert refused == {name: reason for reason in REFUSED for name in REFUSED[reason].split()}
    succeeded = {n for n, row in rows.items() if row["pil"] == "ok" or row["tf_decode(ch=3)"][0].isdigit()}
    assert succeeded - read == {"hopper_bad_exif.jpg", "xcsn0g01.png"}
    assert len(refused) + len(read) >= 50


@pytest.mark.parametrize("name", ["png_decompression_dos.png", "unknown_compression_method.png"])
def test_pngs_whose_metadata_pillow_refuses_equal_tensorflows_reading(test_data, name):
    tf = pytest.importorskip("tensorflow")
    data = (test_data / "odd/images/python-pillow__Pillow" / name).read_bytes()
    np.testing.assert_array_equal(read_image(data, OPTIONS).pixels, tf.io.decode_png(data, channels=3))


def orient_slowly(stored: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """EXIF 2.32, 4.6.5.1.6: the displayed side that the stored row 0 and column 0 are, pixel by pixel."""
    sides = ("top left", "top right", "bottom right", "bottom left")
    sides += ("left top", "right top", "right bottom", "left bottom")
    row_is, column_is = sides[orientation - 1].split()
    height, width = stored.shape[:2]
    shape = (height, width) if row_is in ("top", "bottom") else (width, height)
    shown = np.zeros((*shape, stored.shape[2]), stored.dtype)
    for row, column in np.ndindex(height, width):
        place = {row_is: row, column_is: column}
        y = place["top"] if "top" in place else shape[0] - 1 - place["bottom"]
        x = place["left"] if "left" in place else shape[1] - 1 - place["right"]
        shown[y, x] = stored[row, column]
    return shown


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "TIFF lzw", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied_exactly_once(kind, orientation):
    stored = PIXELS[..., :3]
    name, *compression = kind.split()
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    if compression:
        options["compression"] = "tiff_lzw"
    plain = saved(Image.fromarray(stored, "RGB"), name, **options)
    data = saved(Image.fromarray(stored, "RGB"), name, exif=exif, **options)
    result = read_image(data, OPTIONS)
    assert np.array_equal(result.pixels, orient_slowly(read_image(plain, OPTIONS).pixels, orientation))
    assert result.orientation == orientation and result.stored_size == stored.shape[:2]
    assert result.pixels.flags.c_contiguous
    assert ("orientation applied" in result.notes) == (orientation != 1)


@pytest.mark.parametrize("needed", [(1200, 1800), (601, 10), (600, 900), (299, 300), (150, 225), (1, 1)])
def test_a_reduced_jpeg_is_as_large_as_needed_and_near_the_full(test_data, needed):
    asked = []

    def wish(height, width):
        asked.append((height, width))
        return needed

    data = (test_data / "odd/images/exif_orient/Landscape_6.jpg").read_bytes()
    result = read_image(data, OPTIONS, wish)
    assert asked == [(1200, 1800)] and result.stored_size == (1800, 1200)
    height, width = result.pixels.shape[:2]
    assert height >= needed[0] and width >= needed[1]
    scale = 1200 // height
    assert (scale == 8 or 1200 // (2 * scale) < needed[0] or 1800 // (2 * scale) < needed[1]) and scale <= 8
    assert (f"decoded at 1/{scale}" in result.notes) == (scale > 1)
    full = read_image(data, OPTIONS).pixels.astype(float)
    boxes = full.reshape(height, scale, width, scale, 3).mean(axis=(1, 3))
    assert np.abs(boxes - result.pixels).mean() < 2


@given(st.tuples(*[st.integers(1, 3000)] * 4))
def test_the_reduction_is_the_largest_that_suffices(sides):
    stored, needed = sides[:2], sides[2:]
    if min(stored) < 16 or all(want >= have for want, have in zip(needed, stored, strict=True)):
        assert reduction(stored, needed) == 1
        return
    sufficient = [n for n in (2, 4, 8) if all((-(-s // n)) >= m for s, m in zip(stored, needed, strict=True))]
    assert reduction(stored, needed) == max(sufficient, default=1)


IMAGE, GRAY = Image.fromarray(PIXELS[..., :3], "RGB"), Image.fromarray(PIXELS[..., 0], "L")
EXIF = Image.Exif()
EXIF[274] = 6
SAMPLES = PIXELS.astype(np.uint16) * 251
SMALL = {
    "jpeg": saved(IMAGE, "JPEG", exif=EXIF),
    "progressive jpeg": saved(IMAGE, "JPEG", progressive=True),
    "cmyk jpeg": saved(IMAGE.convert("CMYK"), "JPEG", subsampling=2),
    "png": saved(IMAGE, "PNG", exif=EXIF),
    "palette png": saved(IMAGE.convert("P"), "PNG", transparency=3),
    "16-bit png": png_of_samples(SAMPLES),
    "lossless webp": saved(IMAGE, "WEBP", lossless=True, exif=EXIF),
    "lossy webp": saved(IMAGE, "WEBP"),
    "animated webp": saved(IMAGE, "WEBP", save_all=True, append_images=[GRAY.convert("RGB")]),
    "gif": saved(IMAGE, "GIF"),
    "animated gif": saved(GRAY, "GIF", save_all=True, append_images=[GRAY.rotate(180)], transparency=3),
    "bmp": saved(IMAGE, "BMP"),
    "palette bmp": saved(IMAGE.convert("P"), "BMP"),
    "tiff": saved(IMAGE, "TIFF", exif=EXIF),
    "lzw tiff": saved(GRAY, "TIFF", compression="tiff_lzw"),
    "jpeg tiff": saved(IMAGE, "TIFF", compression="jpeg"),
    "big tiff": saved(IMAGE, "TIFF", big_tiff=True),
    "16-bit tiff": tiff_of_samples(SAMPLES, ">", 2, compress=True),
}
# Whose last bytes do not matter: a BMP row's filling, what follows a GIF's first frame, a TIFF's metadata.
MAY_LACK_ITS_END = {"jpeg", *(name for name in SMALL if re.search("bmp|gif|tiff", name))}


def outcome(data: bytes) -> DecodedImage | None:
    """The picture, or None for a SourceError; anything else escapes."""
    try:
        return read_image(data, ReadOptions(channels=4, max_pixels=10**6))
    except SourceError as error:
        return None if (error.stage, bool(error.reason)) == ("decode", True) else pytest.fail(repr(error))


def refused(data: bytes) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read_image(data, OPTIONS)
    return caught.value


@pytest.mark.parametrize("name", SMALL)
def test_no_prefix_of_a_file_shows_another_picture(name):
    data = SMALL[name]
    whole = outcome(data)
    assert whole is not None
    for length in range(0, len(data), 1 + len(data) // 700):
        part = outcome(data[:length])
        assert part is None or name in MAY_LACK_ITS_END, length
        if part is not None:
            np.testing.assert_array_equal(part.pixels, whole.pixels)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(SMALL)),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4),
    near_the_start=st.booleans(),
    cut=st.floats(0.01, 1.0) | st.just(1.0),
)
def test_damaged_files_end_as_a_picture_or_as_a_source_error(name, changes, near_the_start, cut):
    data = bytearray(SMALL[name])
    for place, value in changes:
        data[int(place * (min(200, len(data)) if near_the_start else len(data)))] = value
    outcome(bytes(data[: max(1, int(cut * len(data)))]))


UNREAD_TIFF = "TIFF of other than unsigned integers is not supported"


def test_what_is_no_image_or_a_tiff_of_other_samples_is_named():
    for data, reason, detail in (
        (b"", "file is empty", ""),
        (b"\0" * 100, "not an image format that is read", "00 00"),
        (b"<!DOCTYPE html><html>", "not an image format that is read", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not an image format that is read", "git lfs pull"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "not an image format that is read", "JPEG 2000"),
        (b"\xff\xd8\xff", "file is truncated", "no start of scan"),
        (b"GIF89a", "file is truncated", "screen"),
        (b"BM", "file is damaged", ""),
        (b"II*\0", "file is truncated", "TIFF header"),
        (b"RIFF\x04\0\0\0WEBP", "file is truncated", "first chunk"),
        (saved(Image.fromarray(np.ones((4, 4), np.float32), "F"), "TIFF"), UNREAD_TIFF, "floating point"),
        (saved(Image.fromarray(np.ones((4, 4), np.int32), "I"), "TIFF"), UNREAD_TIFF, "signed integer"),
    ):
        assert refused(data).reason == reason and detail in refused(data).detail


@pytest.mark.parametrize("compression", ["jpeg", "tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", "raw"])
def test_a_tiff_whose_strip_ends_early_is_refused(compression):
    image = Image.fromarray(np.kron(PIXELS[..., :3], np.ones((4, 4, 1), np.uint8)), "RGB")
    data = saved(image, "TIFF", compression=compression)
    assert outcome(data) is not None
    fields = read_tiff_directory(data)
    (length,) = fields.integers(279)
    at = data.index(struct.pack("<HHI", 279, fields.fields[279].type, 1)) + 8
    assert refused(data[:at] + struct.pack("<I", length // 2) + data[at + 4 :])


def _of_size(data: bytes, box: bytes, side: int) -> bytes:
    """Write a size into the box of HEIF that has it; libavif itself refuses more than 16,384 x 16,384."""
    at = data.index(box) + 8
    return data[:at] + side.to_bytes(4, "big") * 2 + data[at + 8 :]


def bomb(kind: str) -> bytes:
    side = 60000
    if kind == "png":
        header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
        return png_of((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100_000)))
    if kind == "jpeg":
        data = bytearray(SMALL["jpeg"])
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = side.to_bytes(2, "big") * 2
        return bytes(data)
    if kind == "gif":
        return b"GIF89a" + side.to_bytes(2, "little") * 2 + SMALL["gif"][10:]
    if kind == "bmp":
        return SMALL["bmp"][:18] + side.to_bytes(4, "little") * 2 + SMALL["bmp"][26:]
    if kind == "webp":
        data = bytearray(SMALL["animated webp"])
        data[24:30] = (16000).to_bytes(3, "little") * 2
        return bytes(data)
    if kind == "avif":
        return _of_size(saved(Image.fromarray(PIXELS[..., :3], "RGB"), "AVIF"), b"ispe", 16000)
    if kind == "heic":
        stream = io.BytesIO()
        pytest.importorskip("pillow_heif").from_pillow(Image.new("RGB", (64, 64))).save(stream)
        return _of_size(stream.getvalue(), b"ispe", 16000)
    if kind == "jxl":
        # A size of 18 bits for each side, after a flag and two bits that choose them; then all defaults.
        return b"\xff\x0a" + (2 << 1 | (side - 1) << 3 | 2 << 24 | (side - 1) << 26 | 1 << 44).to_bytes(
            9, "little"
        )
    if kind == "dicom":
        dataset = image_dataset(np.zeros((1, 1), np.uint8), position=None, modality="CR", rescale=None)
        dataset.Rows = dataset.Columns = side
        return file_bytes(dataset)
    samples = np.zeros((1, 1, 3), np.uint16)
    data = bytearray(tiff_of_samples(samples, "<", 2))
    for tag in (256, 257):
        at = data.index(tag.to_bytes(2, "little") + b"\4\0")
        data[at + 8 : at + 12] = side.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_a_decompression_bomb_is_refused_before_memory_is_taken(kind):
    data = bomb(kind)
    assert sniff(data) == kind
    with traced() as memory, pytest.raises(SourceError, match="more pixels than allowed"):
        read_image(data, OPTIONS)
    assert memory.peak < 2**20


def test_hostile_and_damaged_jpegs_are_refused_and_stray_bytes_skipped(test_data):
    data = SMALL["progressive jpeg"]
    last = data.rindex(b"\xff\xda")
    assert refused(data[:-2] + data[last:-2] * 2000 + data[-2:]).reason == "more JPEG scans than allowed"
    image = Image.fromarray(np.kron(PIXELS[..., :3], np.ones((16, 16, 1), np.uint8)), "RGB")
    data = bytearray(saved(image, "JPEG", quality=90, restart_marker_blocks=4))
    at = data.index(b"\xff\xd3")
    del data[at - 20 : at - 10]
    with Image.open(io.BytesIO(bytes(data))) as lenient:
        lenient.load()
    assert refused(bytes(data)).reason == "file is damaged"
    data = SMALL["jpeg"]
    at = data.index(b"\xff\xdb")
    strayed = data[:at] + b"\0junk" + data[at:]
    np.testing.assert_array_equal(read_image(strayed, OPTIONS).pixels, read_image(data, OPTIONS).pixels)
    assert refused(strayed[:-30]).reason == "file is truncated"


def test_threads_read_the_same_pictures_as_one_does():
    expected = {name: outcome(data) for name, data in SMALL.items()}
    names = sorted(SMALL) * 20
    with ThreadPoolExecutor(8) as pool:
        for name, result in zip(names, pool.map(lambda name: outcome(SMALL[name]), names), strict=True):
            want = expected[name]
            assert want is not None and result is not None
            np.testing.assert_array_equal(result.pixels, want.pixels)


def test_decoders_write_nothing_to_standard_error(tmp_path):
    for index, (name, data) in enumerate(SMALL.items()):
        for cut in range(1, 40):
            damaged = bytearray(data)
            damaged[len(data) * cut // 40] ^= 0xFF
            (tmp_path / f"{index:02}-{cut:02}-{name.replace(' ', '-')}").write_bytes(damaged)
    program = (
        "import pathlib, sys\n"
        "from halofeed.prep.formats.picture import ReadOptions, read_image\n"
        "from halofeed.errors import SourceError\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    try: read_image(path.read_bytes(), ReadOptions(max_pixels=10**6))\n"
        "    except SourceError: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_decoders_own_slips_are_not_told_as_reasons():
    """Their texts are those of Python: a number alone, or how a struct is unpacked."""
    tiff = io.BytesIO()
    Image.new("P", (8, 8)).save(tiff, "TIFF")
    damaged = tiff.getvalue().replace(b"\x40\x01\x03\x00", b"\x41\x01\x03\x00")  # a palette no more
    for data in (b"BM" + bytes(8), damaged):
        assert refused(data).detail and not re.search(r"unpack_from|^\d+$", refused(data).detail)


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "PNG", "MPO"])
def test_the_first_picture_of_several_is_counted_as_such(tmp_path, kind):
    first, second = (Image.fromarray(np.full((16, 24, 3), value, np.uint8)) for value in (90, 10))
    for name, others in (("one", []), ("two", [second])):
        (tmp_path / "in" / name).mkdir(parents=True)
        first.save(tmp_path / "in" / name / "a.jpg", kind, save_all=True, append_images=others)
        read = read_image((tmp_path / "in" / name / "a.jpg").read_bytes(), OPTIONS)
        assert np.abs(read.pixels.astype(int) - 90).max() <= 2
        assert read.notes == ("first of several frames",) * len(others)
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="folders")
    assert "warning: 1 input: the file holds several pictures or frames" in summary(done)


def test_smaller_copies_and_masks_in_a_tiff_are_no_further_pictures():
    for kind, noted in ((1, False), (4, False), (0, True)):
        stored, page = io.BytesIO(), Image.new("RGB", (8, 8))
        page.encoderinfo = {"tiffinfo": {254: kind}}
        Image.new("RGB", (24, 16)).save(stored, "TIFF", save_all=True, append_images=[page])
        assert bool(read_image(stored.getvalue(), OPTIONS).notes) is noted
