"""Write drawn large pictures as files of many formats, block by block, in the memory of some rows.

`WRITERS` has the function of each form. Small pictures serve the tests, and benchmarks/tiles.py writes large ones.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import imagecodecs
import numpy as np
import simplejpeg
import tifffile
from isal import isal_zlib
from numpy.typing import NDArray

from tests.support.large_pictures import PERIOD, LargePicture

TILE = 256
QUALITY = 90
NODATA = 0
BANDS = 13
MAP_CORNER, PIXEL_M, EPSG = (499980.0, 5300040.0), 10.0, 32633
MICROMETERS = 0.5
"""Side of a pixel of the OME-TIFF and of the slide."""
_THREADS = 2


def _encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    pixels = np.ascontiguousarray(pixels)
    return simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorspace="RGB", colorsubsampling="420")


def _jpeg_tiles(picture: LargePicture, side: int, factor: int = 1) -> Iterator[bytes]:
    """Encoded tiles in row order, padded by 0; tiles of the background alone are encoded once for each phase."""
    lefts = range(0, picture.width // factor, side)
    period = [length // factor for length in picture.texture.shape[:2]]
    known: dict[tuple[int, int], bytes] = {}

    def encode(band: NDArray[np.uint8], top: int, left: int) -> bytes:
        tile = band[:, left : left + side]
        full = np.zeros((side, side, 3), np.uint8)
        full[: tile.shape[0], : tile.shape[1]] = tile
        window = [factor * value for value in (top, left, top + side, left + side)]
        if tile.shape[:2] != (side, side) or len(picture.numbers_in(*window)) or PERIOD % factor:
            return _encode_jpeg(full)
        phase = (top % period[0], left % period[1])
        if phase not in known:
            known[phase] = _encode_jpeg(full)
        return known[phase]

    with ThreadPoolExecutor(_THREADS) as pool:
        for number, band in enumerate(picture.bands(side, factor)):
            yield from pool.map(functools.partial(encode, band, number * side), lefts)


def write_jpeg_tiles(file: Path, picture: LargePicture, *, side: int = TILE, big: bool = False) -> None:
    """TIFF of tiles in JPEG with half the colors' resolution; BigTIFF if `big`."""
    with tifffile.TiffWriter(file, bigtiff=big) as writer:
        writer.write(
            _jpeg_tiles(picture, side), shape=(picture.height, picture.width, 3), dtype=np.uint8, tile=(side, side),
            photometric="rgb", compression="jpeg", subsampling=(2, 2), metadata=None,
        )  # fmt: skip


def write_big(file: Path, picture: LargePicture) -> None:
    """BigTIFF of JPEG tiles of 512 pixels."""
    write_jpeg_tiles(file, picture, side=512, big=True)


def write_lzw_strips(file: Path, picture: LargePicture, *, rows: int = 16) -> None:
    """TIFF of strips in LZW with horizontal differences, as most programs write by default."""

    def encode(strip: NDArray[np.uint8]) -> bytes:
        return bytes(imagecodecs.lzw_encode(imagecodecs.delta_encode(strip, axis=1).tobytes()))

    def strips() -> Iterator[bytes]:
        with ThreadPoolExecutor(_THREADS) as pool:
            for band in picture.bands(64 * rows):
                yield from pool.map(encode, (band[top : top + rows] for top in range(0, len(band), rows)))

    with tifffile.TiffWriter(file) as writer:
        writer.write(
            strips(), shape=(picture.height, picture.width, 3), dtype=np.uint8, rowsperstrip=rows,
            photometric="rgb", compression="lzw", predictor=True, metadata=None,
        )  # fmt: skip


def _tiles(bands: Iterator[NDArray[Any]], side: int) -> Iterator[NDArray[Any]]:
    for band in bands:
        for left in range(0, band.shape[1], side):
            yield np.ascontiguousarray(band[:, left : left + side])


def _geo_tags(nodata: int | None = None) -> list[tuple[int, int, int, Any, bool]]:
    """Tags of GeoTIFF 1.1 (OGC 19-008r4) of a projected coordinate system with square pixels, and GDAL's of nodata."""
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, EPSG)
    tags: list[tuple[int, int, int, Any, bool]] = [
        (33550, 12, 3, (PIXEL_M, PIXEL_M, 0.0), True),  # ModelPixelScale
        (33922, 12, 6, (0.0, 0.0, 0.0, *MAP_CORNER, 0.0), True),  # ModelTiepoint
        (34735, 3, len(keys), keys, True),  # GeoKeyDirectory
    ]
    if nodata is not None:
        tags.append((42113, 2, 0, str(nodata), True))  # GDAL_NODATA
    return tags


def band_values(rgb: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return [rows, columns, BANDS]: reflectances times 10,000 that are made of red, green and blue."""
    numbers = np.arange(BANDS)
    return np.asarray(rgb[..., numbers % 3].astype(np.uint16) * (10 + numbers) + 1000, np.uint16)


def write_bands(file: Path, picture: LargePicture, *, side: int = TILE) -> None:
    """GeoTIFF of 13 bands of 16 bits as of Sentinel-2, in tiles in deflate, in UTM zone 33N."""
    bands = (band_values(rows) for rows in picture.bands(side))
    with tifffile.TiffWriter(file) as writer:
        writer.write(
            _tiles(bands, side), shape=(picture.height, picture.width, BANDS), dtype=np.uint16, tile=(side, side),
            photometric="minisblack", planarconfig="contig", compression="zlib", compressionargs={"level": 1},
            predictor=True, extratags=_geo_tags(), metadata=None,
        )  # fmt: skip


def valid_rows(picture: LargePicture, top: int, bottom: int) -> NDArray[np.bool_]:
    """Return [rows, width]: False in the slanted rim that a scene turned to the north has on all sides."""
    y, x = np.arange(top, bottom)[:, None], np.arange(picture.width)
    height, width = picture.height, picture.width
    slant = 0.1
    left, right = slant * (height - y), width - slant * y
    above, below = slant * x, height - slant * (width - x)
    return np.asarray((x >= left) & (x < right) & (y >= above) & (y < below))


def write_nodata(file: Path, picture: LargePicture, *, side: int = TILE) -> None:
    """GeoTIFF of which a rim of value 0 is declared as nodata."""

    def bands() -> Iterator[NDArray[np.uint8]]:
        for number, rows in enumerate(picture.bands(side)):
            top = number * side
            rows[~valid_rows(picture, top, top + len(rows))] = NODATA
            yield rows

    with tifffile.TiffWriter(file) as writer:
        writer.write(
            _tiles(bands(), side), shape=(picture.height, picture.width, 3), dtype=np.uint8, tile=(side, side),
            photometric="rgb", compression="lzw", predictor=True, extratags=_geo_tags(NODATA), metadata=None,
        )  # fmt: skip


def write_cog(file: Path, picture: LargePicture, *, side: int = 512) -> None:
    """Cloud-optimized GeoTIFF in deflate with overviews, by GDAL's driver from a file beside it, which is deleted."""
    import rasterio
    import rasterio.shutil

    plain = file.with_suffix(".plain.tif")
    with tifffile.TiffWriter(plain, bigtiff=True) as writer:
        writer.write(
            _tiles(picture.bands(side), side), shape=(picture.height, picture.width, 3), dtype=np.uint8,
            tile=(side, side), photometric="rgb", extratags=_geo_tags(), metadata=None,
        )  # fmt: skip
    with rasterio.Env(GDAL_CACHEMAX=128):  # MB; by default 5 % of the machine's memory
        rasterio.shutil.copy(
            plain,
            file,
            driver="COG",
            compress="DEFLATE",
            predictor="YES",
            level=1,
            blocksize=side,
            overview_resampling="average",
            num_threads=str(_THREADS),
        )
    plain.unlink()


def level_factors(picture: LargePicture, side: int) -> list[int]:
    """Return the factors of a pyramid: 1, 2, 4, ... until a level fits into one tile."""
    factors = [1]
    while max(picture.height, picture.width) // factors[-1] > side:
        factors.append(2 * factors[-1])
    return factors


def write_ome(file: Path, picture: LargePicture, *, side: int = TILE) -> None:
    """OME-TIFF of JPEG tiles, whose smaller levels are SubIFDs."""
    factors = level_factors(picture, side)
    size = {f"PhysicalSize{axis}": MICROMETERS for axis in "XY"}
    unit = {f"PhysicalSize{axis}Unit": "µm" for axis in "XY"}
    with tifffile.TiffWriter(file, ome=True, bigtiff=True) as writer:
        for factor in factors:
            shape = (picture.height // factor, picture.width // factor, 3)
            first = {"subifds": len(factors) - 1, "metadata": {"axes": "YXS", **size, **unit}}
            rest = {"subfiletype": 1, "metadata": None}
            writer.write(
                _jpeg_tiles(picture, side, factor), shape=shape, dtype=np.uint8, tile=(side, side),
                photometric="rgb", compression="jpeg", subsampling=(2, 2), **(first if factor == 1 else rest),
            )  # fmt: skip


def write_png(file: Path, picture: LargePicture) -> None:
    """PNG of 8-bit RGB; rows take the filters Sub, Up, Average and Paeth in turn (PNG specification, 9.2)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", isal_zlib.crc32(kind + data))

    with open(file, "wb") as stream:
        header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 0)
        stream.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header))
        compressor = isal_zlib.compressobj(1)
        above = np.zeros((1, picture.width, 3), np.uint8)
        for band in picture.bands(64):
            if data := compressor.compress(_filtered(above, band).tobytes()):
                stream.write(chunk(b"IDAT", data))
            above = band[-1:]
        stream.write(chunk(b"IDAT", compressor.flush()) + chunk(b"IEND", b""))


def _filtered(above: NDArray[np.uint8], band: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows, 1 + 3 * width]: the number of the filter of each row and its filtered bytes; bands have 4 n rows."""
    up = np.concatenate([above, band[:-1]]).astype(np.int16)
    left = np.pad(band[:, :-1], ((0, 0), (1, 0), (0, 0))).astype(np.int16)
    corner = np.pad(up[:, :-1], ((0, 0), (1, 0), (0, 0)))
    filtered = np.empty((len(band), 1 + 3 * band.shape[1]), np.uint8)
    for kind in range(1, 5):
        rows = slice(kind - 1, None, 4)
        a, b, c = left[rows], up[rows], corner[rows]
        if kind == 4:
            to_left, to_up, to_corner = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            predicted = np.where(to_up <= to_corner, b, c)
            predicted = np.where((to_left <= to_up) & (to_left <= to_corner), a, predicted)
        else:
            predicted = {1: a, 2: b, 3: (a + b) // 2}[kind]
        filtered[rows, 0] = kind
        filtered[rows, 1:] = (band[rows] - predicted).astype(np.uint8).reshape(len(a), -1)
    return filtered


def write_jpeg(file: Path, picture: LargePicture) -> None:
    """JPEG with half the colors' resolution: bands that are encoded alone are the restart intervals of one scan.

    The prediction begins anew after each restart marker (ITU-T T.81, F.1.1.5.1), so that the scans of the bands are
    put one after the other. The header is that of the first band with the number of all rows and a DRI segment.
    """
    rows = 64
    with open(file, "wb") as stream:
        for number, band in enumerate(picture.bands(rows)):
            header, scan = _split_scan(_encode_jpeg(band))
            if number == 0:
                _write_jpeg_header(stream, header, picture.height, -(-picture.width // 16) * (rows // 16))
            else:
                stream.write(bytes([0xFF, 0xD0 + (number - 1) % 8]))
            stream.write(scan)
        stream.write(b"\xff\xd9")


def _split_scan(encoded: bytes) -> tuple[bytes, bytes]:
    """Split a JPEG into its segments, up to SOS, and the coded data before EOI."""
    place = 2
    while encoded[place + 1] != 0xDA:
        place += 2 + int.from_bytes(encoded[place + 2 : place + 4], "big")
    begin = place + 2 + int.from_bytes(encoded[place + 2 : place + 4], "big")
    return encoded[:begin], encoded[begin:-2]


def _write_jpeg_header(stream: BinaryIO, header: bytes, height: int, interval: int) -> None:
    place = 2
    while header[place + 1] != 0xC0:  # SOF0: length, precision, number of rows
        place += 2 + int.from_bytes(header[place + 2 : place + 4], "big")
    patched = header[: place + 5] + struct.pack(">H", height) + header[place + 7 :]
    sos = patched.rindex(b"\xff\xda")
    stream.write(patched[:sos] + struct.pack(">HHH", 0xFFDD, 4, interval) + patched[sos:])


def write_slide(folder: Path, picture: LargePicture, *, side: int = TILE) -> None:
    """DICOM whole-slide image: one file per level, with all tiles in order (TILED_FULL), in JPEG."""
    from tests.support.slide_writer import SlideLevel, write_level

    folder.mkdir(parents=True, exist_ok=True)
    for number, factor in enumerate(level_factors(picture, side)[::2]):
        height, width = picture.height // factor, picture.width // factor
        spacing = MICROMETERS / 1000 * picture.width / width
        level = SlideLevel(height=height, width=width, side=side, spacing_mm=spacing, number=number)
        write_level(folder / f"level_{number}.dcm", level, _jpeg_tiles(picture, side, factor))


WRITERS: dict[str, tuple[str, Callable[[Path, LargePicture], None]]] = {
    "jpeg-tiles": ("jpeg_tiles.tif", write_jpeg_tiles),
    "lzw-strips": ("lzw_strips.tif", write_lzw_strips),
    "cog": ("cog.tif", write_cog),
    "png": ("rows.png", write_png),
    "jpeg": ("rows.jpg", write_jpeg),
    "big": ("big.tif", write_big),
    "bands": ("bands.tif", write_bands),
    "ome": ("levels.ome.tif", write_ome),
    "slide": ("slide", write_slide),
    "nodata": ("nodata.tif", write_nodata),
}
"""Name of the file (or folder) of each form, and the function that writes it."""
