"""Are the samples of every format read bit for bit, at the file's own depth and the depth asked for?"""

import io
import re
import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.picture import DecodedImage, ReadOptions, read_image, sniff
from halofeed.prep.formats.picture.image import FEWER_BITS, GRAY_BANDS, LUMA, MORE_BANDS, blend, luma
from tests.support.memory_cases import png_of, saved

RANDOM = np.random.default_rng(20260101)


def read(data: bytes, **options: object) -> DecodedImage:
    return read_image(data, ReadOptions(**options))


def filtered_rows(rows: NDArray[np.uint8], bytes_per_pixel: int) -> bytes:
    """PNG filtering by the book, one byte at a time, filter types 0 to 4 in turn."""
    out = bytearray()
    for y in range(rows.shape[0]):
        kind = y % 5
        out.append(kind)
        for x in range(rows.shape[1]):
            left = int(rows[y, x - bytes_per_pixel]) if x >= bytes_per_pixel else 0
            above = int(rows[y - 1, x]) if y else 0
            corner = int(rows[y - 1, x - bytes_per_pixel]) if y and x >= bytes_per_pixel else 0
            guess = left + above - corner
            nearest = min((left, above, corner), key=lambda value: abs(guess - value))
            predicted = (0, left, above, (left + above) // 2, nearest)[kind]
            out.append((int(rows[y, x]) - predicted) % 256)
    return bytes(out)


def png_of_samples(samples: NDArray[np.uint16], *extra: tuple[bytes, bytes]) -> bytes:
    height, width, channels = samples.shape
    color_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = samples.astype(">u2").view(np.uint8).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    body = zlib.compress(filtered_rows(rows, 2 * channels))
    half = len(body) // 2
    return png_of((b"IHDR", header), *extra, (b"IDAT", body[:half]), (b"IDAT", body[half:]))


def tiff_of_samples(samples, order, photometric, compress=False):
    """An uncompressed or deflated 16-bit TIFF, written by the specification's tables."""
    height, width, channels = samples.shape
    body = samples.astype(f"{order}u2").tobytes()
    body = zlib.compress(body) if compress else body
    entries = [
        *((256, width), (257, height), (258, 16), (259, 8 if compress else 1), (262, photometric)),
        *((273, 8), (277, channels), (278, height), (279, len(body))),
        *[(338, 2)] * (channels == 4),
    ]
    packed = b""
    bits_at = 8 + len(body) + len(body) % 2 + 2 + 12 * len(entries) + 4
    for tag, value in entries:
        if tag == 258 and channels > 2:
            packed += struct.pack(f"{order}HHII", tag, 3, channels, bits_at)
        else:
            packed += struct.pack(f"{order}HHII", tag, 4, 1, value)
    start = 8 + len(body) + len(body) % 2
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start)
    directory = struct.pack(f"{order}H", len(entries)) + packed + b"\0" * 4
    bits = struct.pack(f"{order}{channels}H", *[16] * channels)
    return header + body + b"\0" * (len(body) % 2) + directory + bits


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_16_bit_png_keeps_every_bit_or_is_scaled_to_8_by_rounding_and_counted(channels):
    samples = RANDOM.integers(0, 65536, (13, 11, channels), np.uint16)
    result = read(png_of_samples(samples), channels=4, dtype="uint16")
    colors = samples[..., :1].repeat(3, 2) if channels < 3 else samples[..., :3]
    alpha = samples[..., -1] if channels in (2, 4) else 65535
    np.testing.assert_array_equal(result.pixels[..., :3], colors)
    np.testing.assert_array_equal(result.pixels[..., 3], alpha)
    samples = RANDOM.integers(0, 65536, (9, 300, channels), np.uint16)
    result = read(png_of_samples(samples))
    exact = np.rint(samples.astype(np.float64) * 255 / 65535).astype(np.uint8)
    colors = exact[..., :1].repeat(3, 2) if channels < 3 else exact[..., :3]
    np.testing.assert_array_equal(result.pixels, colors)
    assert "16 bit scaled to 8" in result.notes
    assert ("alpha dropped" in result.notes) == (channels in (2, 4))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [8, 10, 12, 14])
@pytest.mark.parametrize("form", ["png", "tiff"])
def test_samples_of_fewer_bits_than_16_are_asked_for_and_scaled_by_the_option_but_black_ones(
    bits, channels, form
):
    samples = RANDOM.integers(0, 1 << bits, (9, 30, channels), np.uint16)
    samples[0, 0, 0] = peak = (1 << bits) - 1
    if channels in (2, 4):
        samples[..., -1] = 65535
    if form == "png":
        data = png_of_samples(samples)
    else:
        samples = samples[..., :1] if channels < 3 else samples
        data = tiff_of_samples(samples, "<", 1 if channels < 3 else 2)
    if bits <= 12:
        words = rf"largest value .* is {peak}.*--sample-bits {bits} .*--dtype uint16"
        with pytest.raises(SourceError, match="nearly black") as caught:
            read(data, sample_bits=0)
        assert re.search(words, caught.value.detail)
    else:
        assert FEWER_BITS in read(data, sample_bits=0).notes
    colors = samples[..., :1].repeat(3, 2) if channels < 3 else samples[..., :3]
    found = read(data, sample_bits=bits).pixels
    assert np.abs(found - colors * (255 / peak)).max() <= 0.51 and found.max() == 255
    with pytest.raises(SourceError, match="samples use more bits"):
        read(data if bits > 8 else png_of_samples(samples | 256), sample_bits=8)
    np.testing.assert_array_equal(read(data, sample_bits=0, dtype="uint16").pixels, colors)
    for value in (0, 65535, 16384):
        assert (
            FEWER_BITS not in read(png_of_samples(np.full((5, 6, 1), value, np.uint16)), sample_bits=0).notes
        )


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("channels", "photometric"), [(1, 0), (1, 1), (3, 2), (4, 2), (3, 1)])
def test_a_16_bit_tiff_keeps_every_bit(order, compress, channels, photometric):
    samples = RANDOM.integers(0, 65536, (7, 12, channels), np.uint16)
    result = read(tiff_of_samples(samples, order, photometric, compress), channels=4, dtype="uint16")
    shown = 65535 - samples if photometric == 0 else samples
    assert np.array_equal(result.pixels[..., :3], shown[..., :3] if channels > 1 else shown.repeat(3, 2))
    np.testing.assert_array_equal(result.pixels[..., 3], samples[..., 3] if channels == 4 else 65535)


def test_transparent_colors_need_all_bits_palettes_are_blended_and_8_bits_scaled_to_16():
    samples = np.array([[[1000, 2, 3], [1001, 2, 3]]], np.uint16)
    data = png_of_samples(samples, (b"tRNS", struct.pack(">3H", 1001, 2, 3)))
    assert read(data, channels=4, dtype="uint16").pixels[0, :, 3].tolist() == [65535, 0]
    image = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    image.putpalette([200, 100, 50, 10, 20, 30])
    data = saved(image, "PNG", transparency=bytes([128, 255]))
    result = read(data, alpha="blend", background=(0, 255, 255))
    assert result.pixels[0].tolist() == [[100, 177, 152], [10, 20, 30]]
    assert result.notes == ("alpha blended",)
    assert read(data).pixels[0].tolist() == [[200, 100, 50], [10, 20, 30]]
    result = read(saved(Image.fromarray(PIXELS[..., 0], "L"), "PNG"), channels=1, dtype="uint16")
    np.testing.assert_array_equal(result.pixels[..., 0], PIXELS[..., 0].astype(np.uint16) * 257)
    assert result.notes == ("8 bit scaled to 16",)


PIXELS = RANDOM.integers(0, 256, (10, 17, 4), np.uint8)
LOSSLESS = {
    "png": ("L", "LA", "RGB", "RGBA", "1", "P"),
    "tiff": ("L", "LA", "RGB", "RGBA", "1", "P", "CMYK"),
    "bmp": ("L", "RGB", "1", "P"),
    "gif": ("L", "1", "P"),
    "webp": ("RGB", "RGBA"),
}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind in LOSSLESS for mode in LOSSLESS[kind]])
def test_every_lossless_mode_equals_pillows_own_conversion(kind, mode):
    image = (
        Image.fromarray(PIXELS, "RGBA").convert("RGB" if mode in ("P", "1", "CMYK") else mode).convert(mode)
    )
    options = {"lossless": True, "exact": True} if kind == "webp" else {}
    data = saved(image, kind, **options)
    result = read(data, channels=4)
    expected = np.asarray(image.convert("RGB").convert("RGBA") if mode == "CMYK" else image.convert("RGBA"))
    # Ours rounds to nearest, Pillow's CMYK conversion is off by up to 1.
    assert np.abs(result.pixels.astype(int) - expected).max() <= (mode == "CMYK")
    assert (sniff(data), str(result.pixels.dtype)) == (kind, "uint8") and result.pixels.flags.c_contiguous
    assert result.stored_size == (10, 17)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "zstd", None])
@pytest.mark.parametrize("big", [False, True])
def test_compressed_and_big_tiffs_equal_pillows_reading(compression, big):
    data = saved(Image.fromarray(PIXELS[..., :3], "RGB"), "TIFF", compression=compression, big_tiff=big)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(read(data).pixels, np.asarray(image))


@pytest.mark.parametrize("photometric", [1, 2])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_16_bit_tiff_with_a_strip_per_color_keeps_every_bit(order, photometric):
    """Pillow 12.3 returns the high byte twice."""
    samples = RANDOM.integers(0, 65536, (7, 12, 3), np.uint16)
    planes = [zlib.compress(samples[..., channel].astype(f"{order}u2").tobytes()) for channel in range(3)]
    starts = np.cumsum([8, *map(len, planes)]).tolist()
    body = b"".join(planes) + b"\0" * (starts[3] % 2)
    start = 8 + len(body)
    single = {256: 12, 257: 7, 259: 8, 262: photometric, 277: 3, 278: 7, 284: 2}
    lists = {258: [16] * 3, 273: starts[:3], 279: [*map(len, planes)]}
    after, packed, extra = start + 2 + 12 * (len(single) + len(lists)) + 4, b"", b""
    for tag in sorted(single | lists):
        value = single.get(tag, after + len(extra))
        packed += struct.pack(f"{order}HHII", tag, 4, 1 if tag in single else 3, value)
        extra += struct.pack(f"{order}3I", *lists[tag]) if tag in lists else b""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start)
    directory = struct.pack(f"{order}H", len(single) + len(lists)) + packed + b"\0" * 4
    np.testing.assert_array_equal(read(head + body + directory + extra, dtype="uint16").pixels, samples)


def test_bands_that_are_no_transparency_are_noted_and_two_gray_bands_refused():
    color = saved(Image.fromarray(PIXELS, "RGBA"), "TIFF")
    gray = saved(Image.fromarray(np.ascontiguousarray(PIXELS[..., :2]), "LA"), "TIFF")
    unnamed = [
        data.replace(struct.pack("<HHIHH", 338, 3, 1, 2, 0), struct.pack("<HHIHH", 338, 3, 1, 0, 0))
        for data in (color, gray)
    ]
    result = read(unnamed[0])
    np.testing.assert_array_equal(result.pixels, PIXELS[..., :3])
    assert MORE_BANDS in result.notes and MORE_BANDS not in read(color).notes
    with pytest.raises(SourceError, match=r"several gray bands.*gdal_translate -b 1 "):
        read(unnamed[1])


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd", None])
def test_three_gray_bands_are_red_green_and_blue_with_a_note(compression):
    data = saved(Image.fromarray(PIXELS[..., :3], "RGB"), "TIFF", compression=compression)
    gray = data.replace(struct.pack("<HHIHH", 262, 3, 1, 2, 0), struct.pack("<HHIHH", 262, 3, 1, 1, 0))
    result = read(gray)
    np.testing.assert_array_equal(result.pixels, PIXELS[..., :3])
    assert result.notes == (GRAY_BANDS,) and not read(data).notes


def test_more_gray_bands_are_refused_with_the_command_of_gdal():
    with pytest.raises(SourceError, match="gdal_translate -b 1 -b 2 -b 3 -co PHOTOMETRIC=RGB"):
        read(tiff_of_samples(RANDOM.integers(0, 65536, (7, 12, 4), np.uint16), "<", 1))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_gray_of_few_bits_is_spread_over_the_full_range_and_so_is_its_transparent_value(depth):
    peak = 2**depth - 1
    packed = int("".join(f"{n:0{depth}b}" for n in range(peak + 1)).ljust(64, "0"), 2).to_bytes(8, "big")
    row = b"\0" + packed[: (depth * (peak + 1) + 7) // 8]
    header = struct.pack(">IIBBBBB", peak + 1, 1, depth, 0, 0, 0, 0)
    transparent = (b"tRNS", struct.pack(">H", 1))
    result = read(png_of((b"IHDR", header), transparent, (b"IDAT", zlib.compress(row))), channels=4)
    assert result.pixels[0, :, 0].tolist() == [value * 255 // peak for value in range(peak + 1)]
    assert [index for index, alpha in enumerate(result.pixels[0, :, 3]) if not alpha] == [1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_blending_rounds_to_nearest_at_either_depth(dtype):
    peak = int(np.iinfo(dtype).max)
    pixels = RANDOM.integers(0, peak + 1, (40, 40, 4)).astype(dtype)
    share = pixels[..., 3:] / peak
    exact = pixels[..., :3] * share + np.array((10, 128, 255)) * (peak / 255) * (1 - share)
    assert np.abs(blend(pixels, (10, 128, 255)) - exact).max() <= 0.5 + 1e-6


def test_luma_is_bt_601_at_either_depth_and_leaves_gray_alone():
    assert sum(LUMA) == 65536
    for dtype in (np.uint8, np.uint16):
        peak = int(np.iinfo(dtype).max)
        colors = RANDOM.integers(0, peak + 1, (50, 50, 3)).astype(dtype)
        exact = colors @ np.array([0.299, 0.587, 0.114])
        assert np.abs(luma(colors)[..., 0] - exact).max() <= 0.5 + 1e-5 * peak
        grays = np.arange(0, peak + 1, dtype=np.int64).astype(dtype)[:, None, None].repeat(3, 2)
        np.testing.assert_array_equal(luma(grays)[..., 0], grays[..., 0])
