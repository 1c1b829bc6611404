"""Rows of JPEG and PNG files equal those of the decoders of whole pictures, and damage is refused alike."""

import io
import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.picture.picture_formats import FORMATS, sniff
from halofeed.prep.formats.picture.png import png_chunk
from halofeed.prep.formats.region import jpeg_rows, png_rows
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE

HEIGHT, WIDTH = 141, 203
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _every_picture_is_large(monkeypatch):
    for module in (jpeg_rows, png_rows):
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    monkeypatch.setattr(png_rows, "_BAND_BYTES", 4000)


def drawn(bands: int) -> np.ndarray:
    small = RANDOM.integers(0, 256, (HEIGHT // 8 + 1, WIDTH // 8 + 1, bands), dtype=np.uint8)
    smooth = small.repeat(8, 0).repeat(8, 1)[:HEIGHT, :WIDTH]
    return np.ascontiguousarray(smooth ^ RANDOM.integers(0, 16, smooth.shape, dtype=np.uint8))


def jpeg(mode: str = "RGB", **options) -> bytes:
    pixels = drawn({"L": 1, "RGB": 3, "CMYK": 4}[mode])
    target = io.BytesIO()
    Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode).save(target, "jpeg", **options)
    return target.getvalue()


def png(color_type: int, depth: int, extra: tuple = (), pieces: int = 3, interlace: int = 0) -> bytes:
    """Return a PNG of random bytes with every filter, by the specification alone."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
    row_bytes = -(-WIDTH * samples * depth // 8)
    rows = RANDOM.integers(0, 256, (HEIGHT, row_bytes + 1), dtype=np.uint8)
    rows[:, 0] = np.arange(HEIGHT) % 5
    packed = zlib.compress(rows.tobytes(), 1)
    cuts = np.linspace(0, len(packed), pieces + 1).astype(int)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color_type, 0, 0, interlace)),
        *extra,
        *((b"IDAT", packed[start:stop]) for start, stop in pairwise(cuts)),
        (b"IEND", b""),
    ]
    return PNG_SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks)


PALETTE = ((b"PLTE", bytes(RANDOM.integers(0, 256, 48, dtype=np.uint8))),)
JPEGS = {
    "gray": lambda: jpeg("L"),
    "4:4:4": lambda: jpeg(subsampling=0),
    "4:2:0": lambda: jpeg(subsampling=2),
    "progressive": lambda: jpeg(progressive=True),
    "restart markers": lambda: jpeg(restart_marker_blocks=7),
    "CMYK": lambda: jpeg("CMYK"),
    "RGB": lambda: jpeg(keep_rgb=True),
}
PNGS = {
    **{f"{color} {depth}": (color, depth) for color in (2, 4, 6) for depth in (8, 16)},
    **{f"gray {depth}": (0, depth) for depth in (1, 2, 4, 8, 16)},
    **{f"palette {depth}": (3, depth, PALETTE) for depth in (1, 2, 4, 8)},
    "palette with alpha": (3, 4, (*PALETTE, (b"tRNS", bytes(range(9))))),
    "gray with a transparent value": (0, 2, ((b"tRNS", b"\0\2"),)),
    "16-bit color with a transparent one": (2, 16, ((b"tRNS", bytes(6)),)),
    "one chunk": (2, 8, (), 1),
}
FILES = {
    **{f"JPEG {name}": make for name, make in JPEGS.items()},
    **{f"PNG {name}": (lambda form=form: png(*form)) for name, form in PNGS.items()},
}


def written(folder, data: bytes):
    (folder / "a").write_bytes(data)
    return open_regions(LocalFiles(folder), "a")


def decoded_whole(data: bytes) -> np.ndarray:
    opened = FORMATS[sniff(data)][1](data)
    return opened.load(False, opened.stored_size).pixels


def all_rows(reader) -> np.ndarray:
    height, width = reader.facts.size
    cuts = [0, *sorted({*RANDOM.integers(1, height, 6).tolist()}), height]
    return np.concatenate([reader.read(0, top, 0, stop - top, width) for top, stop in pairwise(cuts)])


@pytest.mark.parametrize("name", FILES)
def test_rows_equal_those_of_the_whole_picture(tmp_path, name):
    data = FILES[name]()
    reader = written(tmp_path, data)
    assert reader.facts.in_order
    rows, whole = all_rows(reader), decoded_whole(data)
    assert (rows.dtype, rows.shape) == (reader.facts.dtype, (*reader.facts.size, reader.facts.bands))
    np.testing.assert_array_equal(rows, whole)


@pytest.mark.parametrize("name", ["JPEG 4:2:0", "PNG 2 8"])
def test_a_window_leaves_out_rows_and_columns_and_rows_above_it_are_refused(tmp_path, name):
    data = FILES[name]()
    reader, whole = written(tmp_path, data), decoded_whole(data)
    np.testing.assert_array_equal(reader.read(0, 37, 11, 50, 90), whole[37:87, 11:101])
    with pytest.raises(RuntimeError, match="row 86 was asked for after row 86"):
        reader.read(0, 86, 0, 10, 10)


def outcome(read) -> str:
    try:
        return f"read {zlib.crc32(read().tobytes())}"
    except SourceError:
        return "refused"


@pytest.mark.parametrize(
    "name", ["JPEG gray", "JPEG 4:4:4", "JPEG 4:2:0", "JPEG progressive", "JPEG restart markers"]
)
def test_damage_of_a_jpeg_is_refused_as_in_a_whole_picture(tmp_path, name):
    data = FILES[name]()
    start = data.rfind(b"\xff\xda") if name == "JPEG progressive" else data.find(b"\xff\xda")
    # The last 60 bytes are those of the last strip of rows.
    places = [
        *RANDOM.integers(start + 20, len(data) - 2, 25),
        *RANDOM.integers(len(data) - 60, len(data) - 2, 15),
    ]
    for at in places:
        damaged = data[:at] + bytes([data[at] ^ 1 << int(RANDOM.integers(8))]) + data[at + 1 :]
        assert outcome(lambda d=damaged: all_rows(written(tmp_path, d))) == outcome(
            lambda d=damaged: decoded_whole(d)
        )


@pytest.mark.parametrize("name", ["JPEG 4:2:0", "JPEG progressive", "PNG 2 8", "PNG palette 4"])
@pytest.mark.parametrize("lost", [1, 3, 17, 200])
def test_truncated_files_are_refused_as_whole_pictures_are(tmp_path, name, lost):
    data = FILES[name]()[:-lost]
    assert outcome(lambda: all_rows(written(tmp_path, data))) == outcome(lambda: decoded_whole(data))


def test_a_wrong_checksum_of_pixels_is_refused(tmp_path):
    data = bytearray(FILES["PNG 2 8"]())
    data[data.rfind(b"IDAT") + 20] ^= 1
    with pytest.raises(SourceError, match=r"decode: file is (damaged|truncated)"):
        all_rows(written(tmp_path, bytes(data)))


def test_a_filter_that_does_not_exist_is_refused(tmp_path):
    bad = np.zeros((HEIGHT, WIDTH * 3 + 1), np.uint8)
    bad[70, 0] = 5
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bad.tobytes())),
        (b"IEND", b""),
    ]
    data = PNG_SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks)
    with pytest.raises(SourceError, match="decode"):
        all_rows(written(tmp_path, data))


@pytest.mark.parametrize(
    ("format", "options"), [("webp", {}), ("webp", {"lossless": True}), ("gif", {}), ("bmp", {}), ("png", {})]
)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_other_formats_are_decoded_whole(tmp_path, monkeypatch, format, options, mode):
    monkeypatch.setattr(png_rows, "WHOLE_BYTES", 1 << 28)
    pixels = drawn(len(mode))
    target = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)
    image.save(target, format, **options)
    reader, whole = written(tmp_path, target.getvalue()), decoded_whole(target.getvalue())
    assert not reader.facts.in_order
    rows = reader.read(0, 20, 30, 100, 150)
    assert rows.shape == (100, 150, reader.facts.bands)
    expected = whole[20:120, 30:180]
    colors = rows[..., :3]
    np.testing.assert_array_equal(colors, np.broadcast_to(expected[..., :3], colors.shape))
    if rows.shape[2] == 4:
        np.testing.assert_array_equal(rows[..., 3], expected[..., 3] if expected.shape[2] == 4 else 255)
    np.testing.assert_array_equal(reader.read(0, 0, 0, 5, 5), reader.read(0, 0, 0, 5, 5))


def test_an_interlaced_png_is_decoded_whole(tmp_path):
    small = RANDOM.integers(0, 256, (1, 4), dtype=np.uint8)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 1)),
        (b"IDAT", zlib.compress(b"\0" + small.tobytes()[:3])),
        (b"IEND", b""),
    ]
    reader = written(tmp_path, PNG_SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks))
    assert not reader.facts.in_order
    assert reader.read(0, 0, 0, 1, 1).ravel().tolist() == small[0, :3].tolist()


def test_the_decoder_of_libvips_equals_that_of_simplejpeg(tmp_path):
    data = FILES["JPEG 4:2:0"]()
    np.testing.assert_array_equal(all_rows(written(tmp_path, data)), simplejpeg.decode_jpeg(data))
