"""AVIF, HEIC, JPEG XL, 12-bit and lossless JPEG give the pixels of the file, upright, or a reason."""

import base64
import io
import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from halofeed.errors import SourceError
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.formats.picture.picture_formats import open_header, size_and_orientation

codecs = pytest.importorskip("imagecodecs")
COLORS = np.zeros((40, 60, 3), np.uint8)
COLORS[:20, :30], COLORS[:20, 30:], COLORS[20:, :30] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
DEEP = np.stack([np.add.outer(np.linspace(0, 2000, 48), np.linspace(0, 2095, 64)).astype(np.uint16)] * 3, -1)
DEEP[..., 1] = DEEP[::-1, :, 1]
TURNS = range(1, 9)


def as_displayed(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def avif_of(pixels: NDArray[np.uint8], orientation: int = 1) -> bytes:
    stream = io.BytesIO()
    options = {"exif": exif_of(orientation)} if orientation > 1 else {}
    Image.fromarray(pixels).save(stream, "AVIF", quality=100, subsampling="4:4:4", **options)
    return stream.getvalue()


def heic_of(pixels: NDArray[np.uint8], orientation: int = 1, **options: object) -> bytes:
    library = pytest.importorskip("pillow_heif")
    image = library.from_pillow(Image.fromarray(pixels))
    if orientation > 1:
        image.info["exif"] = exif_of(orientation)
    stream = io.BytesIO()
    image.save(stream, **{"quality": -1, "chroma": 444, **options})
    return stream.getvalue()


# A JPEG of four colors, 16 x 24 pixels, turned, as libjxl 0.11 stores it without loss: its codestream.
TURNED_JXL = base64.b64decode(
    "/woDLRAT4FsCEADwAw5uDGwObv7/DoBoDwCFxsZuAAAABQAA8AMAAAAAAAAAELAkcYq4m9cDyuYcfoBCYUYKCrORA5mKjYwxKopljFEM4HQKY3Ip"
    "m8ilwJwPjOHH+gHUYGdyAoiZjiAAoLIUqUGb6CQ7UJ0g/cO6SiVVW37AHdiXWKVV1nL9ih+LFsJs47YPvv7wxNAwfMHPoC3SRhDM8ktB0n0DgqWK"
    "g6IIcBMAAAAAAEAhBVLhyndkPF5kPEby7siLjB8VA0icM8dJ+JdV2U7WwNh/DwlPkwwnBf0G2roUmxi7WQXhhVCiK58pQs6o1tdCKY+yypS5qz94"
    "ABOn69rizCrWBYAVAQ=="
)


def jxl_of(pixels: NDArray[np.uint8]) -> bytes:
    return bytes(codecs.jpegxl_encode(pixels, lossless=True))


def turned_jxl(_: NDArray[np.uint8], orientation: int) -> bytes:
    """The codestream in which three bits say how the picture is turned (ISO 18181-1, D.3)."""
    assert TURNED_JXL[3] == 5 | 5 << 3
    return TURNED_JXL[:3] + bytes([5 | (orientation - 1) << 3]) + TURNED_JXL[4:]


WRITERS = {"avif": avif_of, "heic": heic_of, "jxl": jxl_of}


TURNERS = {"avif": (avif_of, COLORS), "heic": (heic_of, COLORS), "jxl": (turned_jxl, COLORS[4:36:2, 6:54:2])}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("kind", TURNERS)
def test_pictures_turned_in_each_way_are_upright(kind, turn):
    write, stored = TURNERS[kind]
    data = write(stored, turn)
    image = read_image(data, ReadOptions())
    expected = as_displayed(stored, turn)
    assert image.pixels.shape == expected.shape
    # The JPEG has a quarter of the colors' samples, so that colors blur where they meet; a wrong turn differs by 60.
    difference = np.abs(image.pixels.astype(int) - expected)
    assert difference.mean() <= 12 and (kind == "jxl" or difference.max() <= 2)
    opened = open_header(data)
    assert opened is not None
    # libheif turns the pixels by itself; the other formats are turned here, and boxes may refer to what is stored.
    assert opened.orientation == (1 if kind == "heic" else turn)
    assert opened.stored_size == (expected.shape[:2] if kind == "heic" else stored.shape[:2])
    assert size_and_orientation(data) == (opened.stored_size, opened.orientation)


def test_the_exif_orientation_beside_the_turn_of_the_format_has_no_effect():
    """ISO 23008-12, 6.5.10, and ISO 18181-2: the boxes and the codestream are what counts."""
    heic = heic_of(COLORS, 6)
    assert b"irot" in heic
    # The box becomes a free one of the same length: the picture is not turned, whatever EXIF says.
    plain = heic.replace(b"irot\x03", b"irot\x00").replace(b"irot\x01", b"irot\x00")
    assert exif_of(6)[6:20] in plain and plain != heic
    assert read_image(plain, ReadOptions()).pixels.shape == COLORS.shape
    avif = avif_of(COLORS, 6)
    plain = avif.replace(b"irot\x03", b"irot\x00").replace(b"irot\x01", b"irot\x00")
    assert plain != avif and read_image(plain, ReadOptions()).pixels.shape == COLORS.shape
    exif = b"\0\0\0\0" + exif_of(6)[6:]
    container = codecs.jpegxl_encode(COLORS, lossless=True, usecontainer=True)
    boxed = container + (len(exif) + 8).to_bytes(4, "big") + b"Exif" + exif
    assert np.array_equal(read_image(boxed, ReadOptions()).pixels, COLORS)


@pytest.mark.parametrize(
    "size", [(1, 1), (8, 8), (256, 256), (40, 30), (9, 16), (100, 80), (513, 7), (300, 1), (64, 8)]
)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_header_of_jpeg_xl_is_read_for_sizes_channels_and_containers(size, channels):
    pixels = (
        np.arange(size[0] * size[1] * channels, dtype=np.uint32).astype(np.uint8).reshape(*size, channels)
    )
    for container in (False, True):
        data = codecs.jpegxl_encode(
            pixels[..., 0] if channels == 1 else pixels, lossless=True, usecontainer=container
        )
        opened = open_header(data)
        assert opened is not None and opened.stored_size == size and opened.orientation == 1
        raster = opened.load(False, size)
        assert np.array_equal(raster.pixels, pixels)
        assert opened.estimate(False, size).channels >= channels


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_deep_samples_keep_all_their_bits(bits):
    peak = (1 << bits) - 1
    samples = (DEEP.astype(np.int64) * peak // 4095).astype(np.uint16)
    expected = (samples.astype(np.int64) * 65535 + peak // 2) // peak
    files = {"jxl": codecs.jpegxl_encode(samples, lossless=True, bitspersample=bits)}
    if bits < 16:
        files["avif"] = codecs.avif_encode(samples, bitspersample=bits, level=100)
    for kind, data in files.items():
        image = read_image(data, ReadOptions(dtype="uint16"))
        assert np.array_equal(image.pixels, expected), kind
        assert any("scaled to 16" in note for note in image.notes) is (bits < 16)
        # 8 bits of the same samples are those of the full range, and not nearly black.
        assert abs(int(read_image(data, ReadOptions(sample_bits=16)).pixels.max()) - 255) <= 1


def test_deep_heic_has_the_values_of_its_samples():
    library = pytest.importorskip("pillow_heif")
    image = library.from_bytes(mode="RGB;16", size=(64, 48), data=np.ascontiguousarray(DEEP * 16).tobytes())
    stream = io.BytesIO()
    image.save(stream, quality=-1, chroma=444)
    pixels = read_image(stream.getvalue(), ReadOptions(dtype="uint16")).pixels
    # 10 bits, by way of YCbCr: 64 levels of 16 bits are one of 10.
    assert np.abs(pixels.astype(int) - DEEP.astype(int) * 65535 // 4095).max() <= 4 * 64
    assert pixels.max() > 65000


GRAY = np.ascontiguousarray(DEEP[..., 0])
JPEGS = {
    "12 bits, gray": (GRAY, 12, {"bitspersample": 12, "level": 99}),
    "12 bits, color": (DEEP, 12, {"bitspersample": 12, "level": 99}),
    "lossless, 8 bits": ((GRAY >> 4).astype(np.uint8), 8, {"lossless": True}),
    "lossless, 8 bits, color": ((DEEP >> 4).astype(np.uint8), 8, {"lossless": True}),
    "lossless, 12 bits": (GRAY, 12, {"lossless": True, "bitspersample": 12}),
    "lossless, 16 bits": (GRAY * 16, 16, {"lossless": True, "bitspersample": 16}),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_deep_and_lossless_jpeg_are_exact_and_truncation_is_seen(kind):
    samples, bits, options = JPEGS[kind]
    data = codecs.jpeg8_encode(samples, **options)
    dtype, channels = "uint16" if bits > 8 else "uint8", 1 if samples.ndim == 2 else 3
    image = read_image(data, ReadOptions(dtype=dtype, channels=channels))
    peak = (1 << bits) - 1
    full = 65535 if bits > 8 else 255
    scaled = (codecs.jpeg8_decode(data).astype(np.int64) * full + peak // 2) // peak
    assert np.array_equal(image.pixels.squeeze(), scaled.squeeze())
    if "lossless" in kind:
        assert np.array_equal(scaled, (samples.astype(np.int64) * full + peak // 2) // peak)
        # A second decoder, written independently of libjpeg.
        assert samples.ndim == 3 or np.array_equal(codecs.ljpeg_decode(data), samples)
    start = data.index(b"\xff\xda") + 20
    for cut in np.linspace(start, len(data) - 6, 25).astype(int):
        for end in (b"", b"\xff\xd9"):
            with pytest.raises(SourceError, match="file is truncated"):
                read_image(data[:cut] + end, ReadOptions())


def test_real_files_of_twelve_bits_and_without_loss_are_read(test_data):
    folder = test_data / "odd/images"
    found = {path.name: path for path in folder.rglob("*") if path.suffix in (".jpg", ".png")}
    options = ReadOptions(dtype="uint16", channels=1)
    lossless, decoded = (
        read_image(found[f"jpeg_lossless_sel1.{ending}"].read_bytes(), options).pixels
        for ending in ("jpg", "png")
    )
    assert np.array_equal(lossless, decoded)
    monkey = read_image(found["monkey12.jpg"].read_bytes(), ReadOptions())
    assert monkey.pixels.shape == (227, 149, 3) and 60 < monkey.pixels.mean() < 160


@pytest.mark.parametrize("kind", WRITERS)
def test_truncated_and_changed_files_are_refused_or_a_picture_of_their_size(kind):
    pixels = (np.add.outer(np.arange(40), np.arange(60))[..., None] * (1, 2, 3) % 251).astype(np.uint8)
    data = WRITERS[kind](pixels)
    for cut in np.linspace(0, len(data) - 2, 60).astype(int):
        with pytest.raises(SourceError, match="decode"):
            read_image(data[:cut], ReadOptions())
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(data), 150):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        try:
            found = read_image(bytes(changed), ReadOptions(max_pixels=100_000)).pixels
        except SourceError:
            continue
        assert found.shape[2] == 3


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        ("jxl", "imagecodecs", "pictures"),
        ("heic", "pillow_heif", "heic"),
        ("12 bits, gray", "imagecodecs", "pictures"),
    ],
)
def test_without_its_library_a_file_is_refused_with_the_command(monkeypatch, kind, module, extra):
    data = WRITERS[kind](COLORS) if kind in WRITERS else codecs.jpeg8_encode(JPEGS[kind][0], **JPEGS[kind][2])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SourceError, match=rf"need {module.replace('_', '-')}.*pip install .*\[{extra}\]"):
        read_image(data, ReadOptions())


def test_floating_point_jpeg_xl_and_other_kinds_are_named():
    data = codecs.jpegxl_encode((DEEP / 4096).astype(np.float32), lossless=True)
    with pytest.raises(SourceError, match=r"pixel type is not supported.*32 bits, floating-point"):
        read_image(data, ReadOptions())
    with pytest.raises(SourceError, match=r"file is truncated.*no codestream"):
        read_image(b"\0\0\0\x0cJXL \r\n\x87\n", ReadOptions())


def test_only_the_first_frame_of_an_animation_is_read():
    stream = io.BytesIO()
    frames = [Image.fromarray(COLORS), Image.fromarray(COLORS[::-1])]
    frames[0].save(stream, "AVIF", quality=100, subsampling="4:4:4", save_all=True, append_images=frames[1:])
    image = read_image(stream.getvalue(), ReadOptions())
    assert np.abs(image.pixels.astype(int) - COLORS).max() <= 2 and "first of several frames" in image.notes
