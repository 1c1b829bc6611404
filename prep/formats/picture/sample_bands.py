"""Stored samples of PNG and TIFF files in bands of rows, so that a large label image is never decoded as a whole.

    file ──> bands of rows [rows, width, sample], as stored: palette indices stay indices, 4 bits stay 0 to 15
         ──> sample_file(samples): a small file of the same form with these samples, for rules about complete files

A band of a PNG is a PNG of its own, because a filter only needs the row above (PNG, third edition, 9.2):

    row above     filter 0
    rows          as in the file
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import PngImagePlugin, TiffImagePlugin

from halofeed.prep.formats.picture.image import Size, damaged_error, truncated_error
from halofeed.prep.formats.picture.pillow import decoder_failures, open_with_plugin
from halofeed.prep.formats.picture.png import (
    COLOR,
    COLOR_ALPHA,
    GRAY,
    GRAY_ALPHA,
    PALETTE,
    PngHeader,
    has_passes,
    pixel_chunks,
    png_file,
    read_png_header,
)
from halofeed.prep.formats.picture.tiff import (
    TiffDirectory,
    is_one_plain_strip,
    read_tiff_directory,
    tiff_row,
    tiff_rows,
)
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE

Samples = NDArray[Any]
"""Stored numbers [row, column, sample]."""
_BAND_BYTES = 16 << 20
_SAMPLES = {GRAY: 1, COLOR: 3, PALETTE: 1, GRAY_ALPHA: 2, COLOR_ALPHA: 4}
_OF_BYTES = {1: GRAY, 2: GRAY_ALPHA, 3: COLOR, 4: COLOR_ALPHA}
"""Color type of 8 bits whose pixels have so many bytes; filters work on the bytes of a pixel."""
_TIFF_BEGINS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


class SampleBands(Protocol):
    """File whose stored samples are read in bands of rows."""

    @property
    def size(self) -> Size:
        """Size as (height, width)."""

    @property
    def held_bytes(self) -> int:
        """Maximum memory of reading, beside the bytes of the file."""

    def bands(self) -> Iterator[Samples]:
        """Yield the rows from top to bottom; SourceError where they are damaged."""

    def sample_file(self, samples: Samples) -> bytes:
        """Return a file of the same form, one row high, with these samples [column, sample]."""

    def first_part(self) -> bytes:
        """Return a file with the first rows, and with everything that the file says about its pixels."""


def open_bands(data: bytes) -> SampleBands | None:
    """Return the reader of a file's bands; None where its rows cannot be read one after the other.

    Raises:
        SourceError: the header is damaged.
    """
    if data.startswith(PNG_SIGNATURE):
        header = read_png_header(data)
        is_wide = header.depth == 16 and header.color_type in (COLOR, COLOR_ALPHA)
        return None if is_wide or has_passes(data, header) else PngBands(data=data, header=header)
    if data.startswith(_TIFF_BEGINS):
        directory = read_tiff_directory(data)
        return TiffBands(data=data, directory=directory) if _is_in_blocks(directory) else None
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class PngBands:
    """Bands of a PNG without interlacing."""

    data: bytes
    header: PngHeader

    @property
    def size(self) -> Size:
        """Size as (height, width)."""
        return self.header.size

    @property
    def held_bytes(self) -> int:
        """Maximum memory of reading: a band as it is stored, its file, and Pillow's copies of it."""
        return 8 * max(_BAND_BYTES, 2 * self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        return (self.size[1] * self.header.depth * _SAMPLES[self.header.color_type] + 7) // 8

    def bands(self) -> Iterator[Samples]:
        """Yield the rows from top to bottom."""
        above = b""
        for rows in self._inflated():
            pixels = self._unfiltered(above, rows)
            above = b"\0" + pixels[-1].tobytes()
            yield self._samples(pixels)

    def _inflated(self) -> Iterator[bytes]:
        """Yield the filtered bytes of each band."""
        height, step = self.size[0], 1 + self._row_bytes
        rows = max(1, _BAND_BYTES // step)
        inflate, held, done = zlib.decompressobj(), bytearray(), 0
        with decoder_failures():
            for chunk in pixel_chunks(self.data, self.header):
                rest: bytes | memoryview = chunk
                while len(rest):
                    held += inflate.decompress(rest, _BAND_BYTES)
                    rest = inflate.unconsumed_tail
                    while done < height and len(held) >= (band := min(rows, height - done) * step):
                        yield bytes(held[:band])
                        done += band // step
                        del held[:band]
                    # Bytes after the last row are ignored, as libpng does.
                    if done == height:
                        return
        raise truncated_error(f"{done} of {height} rows")

    def _unfiltered(self, above: bytes, rows: bytes) -> NDArray[np.uint8]:
        """Return the bytes [row, byte] of filtered rows; `above` is the row before them, b"" for none."""
        pixel_bytes = max(1, self.header.depth * _SAMPLES[self.header.color_type] // 8)
        height = (len(above) + len(rows)) // (1 + self._row_bytes)
        size = height, self._row_bytes // pixel_bytes
        file = png_file(size, 8, _OF_BYTES[pixel_bytes], (), above + rows)
        image = open_with_plugin(PngImagePlugin.PngImageFile, file)
        with decoder_failures():
            image.load()
            pixels = np.asarray(image).reshape(height, self._row_bytes)
        return pixels[1 if above else 0 :]

    def _samples(self, pixels: NDArray[np.uint8]) -> Samples:
        """Return the stored numbers of rows of bytes."""
        height, width, depth = len(pixels), self.size[1], self.header.depth
        if depth == 16:
            return np.ascontiguousarray(pixels).view(">u2").astype(np.uint16).reshape(height, width, -1)
        if depth == 8:
            return pixels.reshape(height, width, -1)
        # The leftmost pixel is in the highest bits (7.2).
        shifts = np.arange(8 - depth, -1, -depth, dtype=np.uint8)
        numbers = pixels[..., None] >> shifts & np.uint8(2**depth - 1)
        return numbers.reshape(height, -1)[:, :width, None]

    def sample_file(self, samples: Samples) -> bytes:
        """Return a PNG of one row with these samples [column, sample]."""
        depth = self.header.depth
        if depth == 16:
            row = samples.astype(">u2").tobytes()
        elif depth == 8:
            row = samples.astype(np.uint8).tobytes()
        else:
            shifts = np.arange(depth - 1, -1, -1, dtype=np.uint8)
            row = np.packbits(samples.reshape(-1, 1).astype(np.uint8) >> shifts & 1).tobytes()
        return self._with_palette((1, len(samples)), b"\0" + row)

    def first_part(self) -> bytes:
        """Return a PNG of one row of zeros."""
        return self._with_palette((1, self.size[1]), bytes(1 + self._row_bytes))

    def _with_palette(self, size: Size, rows: bytes) -> bytes:
        kinds = (b"PLTE", b"tRNS") if self.header.color_type == PALETTE else ()
        found = ((kind, self.header.payload(self.data, kind)) for kind in kinds)
        more = [(kind, payload) for kind, payload in found if payload is not None]
        return png_file(size, self.header.depth, self.header.color_type, more, rows)


def _is_in_blocks(directory: TiffDirectory) -> bool:
    """Return whether a TIFF has parts that can be decoded alone, of all samples together."""
    several = len(directory.integers(273)) + len(directory.integers(324)) > 1
    return directory.integer(284, 1) == 1 and (several or is_one_plain_strip(directory))


@dataclass(frozen=True, kw_only=True, eq=False)
class TiffBands:
    """Bands of a TIFF of several strips or tiles, which Pillow decodes band by band as it decodes complete files."""

    data: bytes
    directory: TiffDirectory

    @property
    def size(self) -> Size:
        """Size as (height, width)."""
        return self.directory.integer(257, 0), self.directory.integer(256, 0)

    @property
    def _block_rows(self) -> int:
        """Rows of a tile (323) or strip (278)."""
        if is_one_plain_strip(self.directory):
            return 1
        return int(self.directory.integer(323, 0) or self.directory.integer(278, self.size[0]))

    @property
    def held_bytes(self) -> int:
        """Maximum memory of reading: the blocks of a band, its file, and Pillow's copies of it."""
        samples = self.directory.integer(277, 1) * max(map(int, self.directory.integers(258)), default=1) // 8
        return 8 * max(_BAND_BYTES, (self._block_rows + 1) * self.size[1] * max(1, samples))

    def bands(self) -> Iterator[Samples]:
        """Yield the rows from top to bottom."""
        height, width = self.size
        rows = self._block_rows
        if not rows > 0 or not height or not width:
            raise damaged_error(f"{height} x {width} pixels in blocks of {rows} rows")
        samples = max(1, self.directory.integer(277, 1))
        together = max(1, _BAND_BYTES // (rows * width * samples * 2)) * rows
        for top in range(0, height, together):
            bottom = min(height, top + together)
            image = open_with_plugin(
                TiffImagePlugin.TiffImageFile, tiff_rows(self.data, self.directory, top, bottom)
            )
            with decoder_failures():
                image.load()
                pixels = np.asarray(image)
                if image.mode == "1":
                    pixels = pixels.astype(np.uint8)
                yield pixels.reshape(bottom - top, width, -1)

    def sample_file(self, samples: Samples) -> bytes:
        """Return a TIFF of one row without compression with these samples [column, sample]."""
        bits = self.directory.integers(258)
        depth = int(bits[0]) if len(bits) else 1
        kind = {16: "u2", 32: "i4"}.get(depth, "u1")
        row = (
            np.packbits(samples.reshape(-1).astype(np.uint8)).tobytes()
            if depth == 1
            else samples.astype(f"{self.directory.order}{kind}").tobytes()
        )
        return tiff_row(self.data, self.directory, len(samples), row)

    def first_part(self) -> bytes:
        """Return a TIFF with the first blocks."""
        return tiff_rows(self.data, self.directory, 0, min(self._block_rows, self.size[0]))
