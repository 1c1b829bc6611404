"""Windows of TIFF files of every form, beside tifffile, rasterio, openslide and the decoders of pictures."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed.errors import SourceError
from halofeed.prep.formats.picture import picture_formats
from tests.support.drawn_tiffs import HEIGHT, check_windows, draw


def picture_pixels(path: Path) -> np.ndarray | None:
    """The pixels by the decoders of pictures; None if they refuse the file."""
    try:
        opened = picture_formats.FORMATS["tiff"][1](path.read_bytes())
        return opened.load(False, opened.stored_size).pixels
    except SourceError:
        return None


LAYOUTS = {
    "tiles": {"tile": (64, 48)},
    "strips of 7 rows": {"rowsperstrip": 7},
    "one strip": {"rowsperstrip": HEIGHT},
    "BigTIFF": {"tile": (32, 64), "bigtiff": True},
    "big-endian": {"tile": (64, 48), "byteorder": ">"},
    "big-endian strips": {"rowsperstrip": 50, "byteorder": ">"},
}
CODINGS = {
    "none": {},
    "LZW": {"compression": "lzw"},
    "LZW, differences": {"compression": "lzw", "predictor": 2},
    "Deflate": {"compression": "deflate", "predictor": 2},
    "Zstd": {"compression": "zstd"},
    "PackBits": {"compression": "packbits"},
    "LERC": {"compression": "lerc"},
}
SAMPLES = [
    (1, "uint8"),
    (3, "uint8"),
    (1, "uint16"),
    (3, "uint16"),
    (1, "int16"),
    (5, "float32"),
    (2, "uint32"),
    (1, "int8"),
    (1, "float64"),
]


PAIRS = [(layout, coding) for coding in CODINGS for layout in ("tiles", "strips of 7 rows")]
PAIRS += [
    (layout, coding) for coding in ("none", "Deflate") for layout in LAYOUTS if (layout, coding) not in PAIRS
]


@pytest.mark.parametrize(("layout", "coding"), PAIRS)
def test_windows_of_each_layout_and_coding_are_the_written_pixels(tmp_path, layout, coding):
    for number, (bands, dtype) in enumerate(SAMPLES):
        if coding == "LERC" and dtype == "int8":
            continue
        picture = draw(bands, dtype)
        options = {**LAYOUTS[layout], **CODINGS[coding]}
        if np.dtype(dtype).kind == "f" and "predictor" in options:
            options["predictor"] = 3
        for planar in ("contig", "separate") if bands > 1 else ("contig",):
            path = tmp_path / f"{number}_{planar}.tif"
            data = picture if planar == "contig" else np.moveaxis(picture, -1, 0)
            photometric = "rgb" if bands == 3 else "minisblack"
            tifffile.imwrite(
                path,
                data.squeeze(),
                photometric=photometric,
                planarconfig=planar if bands > 1 else None,
                metadata=None,
                **options,
            )
            check_windows(path, picture, count=4)
            decoded = picture_pixels(path)
            if decoded is not None:
                np.testing.assert_array_equal(decoded, picture)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lossy_pixels_are_those_of_tifffile_and_of_the_picture_decoders(tmp_path, layout):
    picture = draw(3)
    for name, options in {
        "YCbCr": {"compression": "jpeg"},
        "4:2:0": {"compression": "jpeg", "subsampling": (2, 2)},
        "RGB": {"compression": "jpeg", "compressionargs": {"outcolorspace": "rgb"}},
        "JPEG 2000": {"compression": "jpeg2000", "compressionargs": {"level": 40}},
        "JPEG 2000 of Aperio": {"compression": 33005, "compressionargs": {"level": 40}},
        "WebP": {"compression": "webp", "compressionargs": {"level": 60}},
        "JPEG XL": {"compression": "jpegxl", "compressionargs": {"level": 80}},
    }.items():
        path = tmp_path / f"{name}.tif"
        choice = LAYOUTS[layout]
        if "byteorder" in choice or ("tile" in choice and name in ("YCbCr", "4:2:0", "RGB")):
            choice = {"tile": (64, 48)} | {key: value for key, value in choice.items() if key == "bigtiff"}
        if "rowsperstrip" in choice and choice["rowsperstrip"] == 7:
            choice = {"rowsperstrip": 16}
        tifffile.imwrite(path, picture, photometric="rgb", metadata=None, **choice, **options)
        expected = tifffile.imread(path)
        check_windows(path, expected, count=4)
        decoded = picture_pixels(path)
        if decoded is not None:
            np.testing.assert_array_equal(decoded, expected)
        assert decoded is not None or "JPEG" not in name[:4] or name.startswith("JPEG ")


def save_by_pillow(path: Path, image: Image.Image, **options) -> np.ndarray:
    image.save(path, **options)
    return picture_formats.FORMATS["tiff"][1](path.read_bytes()).load(False, (1, 1)).pixels


def test_forms_that_pictures_convert_become_the_same_pixels(tmp_path):
    color, gray = draw(3), draw(1)[..., 0]
    alpha = np.dstack([color, draw(1, seed=5)])
    forms = {
        "bits": Image.fromarray(gray > 120),
        "palette": Image.fromarray(color).quantize(200),
        "cmyk": Image.fromarray(np.dstack([color, gray]), mode="CMYK"),
        "alpha": Image.fromarray(alpha),
        "gray and alpha": Image.fromarray(np.dstack([gray, gray[::-1]])),
    }
    for name, image in forms.items():
        for compression in (None, "tiff_lzw", "tiff_adobe_deflate"):
            path = tmp_path / f"{name}_{compression}.tif"
            expected = save_by_pillow(path, image, compression=compression)
            check_windows(path, expected)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_white_is_zero_and_few_bits_become_the_pixels_of_the_picture_decoders(tmp_path, bits):
    values = (draw(1, "uint16")[..., 0] >> (16 - bits)).astype(np.uint16 if bits == 16 else np.uint8)
    for photometric in ("minisblack", "miniswhite", "palette"):
        for layout in ({"tile": (64, 64)}, {"rowsperstrip": 9}):
            if photometric == "palette" and bits == 16:
                continue
            path = tmp_path / f"{photometric}_{len(layout)}.tif"
            write_packed(path, values, bits, photometric, "tile" in layout)
            expected = picture_formats.FORMATS["tiff"][1](path.read_bytes()).load(False, (1, 1)).pixels
            check_windows(path, expected)


def write_packed(path: Path, values: np.ndarray, bits: int, photometric: str, tiled: bool) -> None:
    """Write samples of some bits, packed by rows, which tifffile writes only for one bit."""
    shape = (64, 64) if tiled else (9, values.shape[1])
    padded = np.pad(values, ((0, -values.shape[0] % shape[0]), (0, -values.shape[1] % shape[1])))

    def pack(block: np.ndarray) -> bytes:
        if bits >= 8:
            return block.astype(f"<u{bits // 8}").tobytes()
        unpacked = (block[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        return np.packbits(unpacked.reshape(len(block), -1).astype(np.uint8), axis=1).tobytes()

    blocks = []
    for top in range(0, padded.shape[0], shape[0]):
        rows = min(shape[0], values.shape[0] - top) if not tiled else shape[0]
        blocks += [
            pack(padded[top : top + rows, left : left + shape[1]])
            for left in range(0, padded.shape[1], shape[1])
        ]
    entries = [(256, 4, [values.shape[1]]), (257, 4, [values.shape[0]]), (258, 3, [bits]), (259, 3, [1])]
    entries += [(262, 3, [{"minisblack": 1, "miniswhite": 0, "palette": 3}[photometric]]), (277, 3, [1])]
    if photometric == "palette":
        colors = np.random.default_rng(3).integers(0, 1 << 16, 3 << bits)
        entries.append((320, 3, colors.tolist()))
    sizes = [len(block) for block in blocks]
    starts = np.cumsum([8, *sizes])[:-1].tolist()
    if tiled:
        entries += [(322, 4, [shape[1]]), (323, 4, [shape[0]]), (324, 4, starts), (325, 4, sizes)]
    else:
        entries += [(273, 4, starts), (278, 4, [shape[0]]), (279, 4, sizes)]
    write_directory(path, b"".join(blocks), entries)


def write_directory(path: Path, pixels: bytes, entries: list[tuple[int, int, list[int]]]) -> None:
    """Write a little-endian TIFF of pixels at byte 8 and one directory."""
    pixels += b"\0" * (len(pixels) % 2)
    directory = 8 + len(pixels)
    extra_at = directory + 2 + 12 * len(entries) + 4
    table, extra = b"", b""
    for tag, kind, values in sorted(entries):
        packed = np.array(values, {3: "<u2", 4: "<u4"}[kind]).tobytes()
        if len(packed) > 4:
            place = (extra_at + len(extra)).to_bytes(4, "little")
            extra += packed + b"\0" * (len(packed) % 2)
        else:
            place = packed.ljust(4, b"\0")
        table += (
            tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + len(values).to_bytes(4, "little") + place
        )
    head = b"II*\0" + directory.to_bytes(4, "little")
    path.write_bytes(head + pixels + len(entries).to_bytes(2, "little") + table + bytes(4) + extra)
