"""Reader of JPEG files by rows: libjpeg-turbo, by libvips, decodes bands; the markers are parsed by `picture.jpeg`.

A picture of up to `WHOLE_BYTES` is decoded whole. Of the installed libraries only libvips reads scanlines: Pillow,
OpenCV, simplejpeg and imagecodecs have calls for the whole picture alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import damaged_error, decode_error, truncated_error
from halofeed.prep.formats.picture.jpeg import (
    END_OF_IMAGE,
    PLAIN_FRAMES,
    PREMATURE_END,
    ROW_BYTES,
    JpegHeader,
    open_jpeg,
    read_jpeg_header,
    without_strays,
)
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL
from halofeed.prep.formats.picture.pillow import cmyk_to_rgb, decoder_failures
from halofeed.prep.formats.region.region_reader import RegionFacts, RegionReader
from halofeed.prep.formats.region.row_order import RowWindows
from halofeed.prep.formats.region.whole_picture import COLOR_OF_BANDS, WHOLE_BYTES, whole_picture
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import require_extra
from halofeed.system.memory import TOO_MUCH_MEMORY, mebibytes, process_memory

_STRIP_ROWS = 8
"""Rows of a call of libvips, which decodes strips of 8. Calls for 1,024 rows of 20,000 x 20,000 pixels took 2.4 times
as long and 250 MiB more (libvips 8.18, 2 cores, 2026-11-29)."""
_HELD_ROWS = 2048
"""Upper limit on the rows that libvips' cache holds in buffers; 1,800 were measured with one thread."""
_CHECK_SCALE = 8
"""Scale of the check of the compressed data: at 1/8 libjpeg decodes all codes, and transforms nothing."""
MISSING_END = "end marker of the JPEG is missing"


class JpegRows:
    """Reader of a JPEG with bounded memory.

    Args:
        data: the file without stray bytes and metadata, and with an end marker.
        header: its header.
        facts: its facts.
        lacks_end: whether the file had no end marker.
    """

    def __init__(self, data: bytes, header: JpegHeader, facts: RegionFacts, *, lacks_end: bool) -> None:
        self.facts = facts
        self._data, self._header, self._lacks_end = data, header, lacks_end
        self._windows = RowWindows(facts, self._next_rows)
        self._region: Any = None
        self._row = 0

    def read_bytes(self, level: int, height: int, width: int) -> int:
        columns, components = self._header.size[1], len(self._header.sampling)
        cached = min(_HELD_ROWS, self._header.size[0]) * columns * components
        decoding = self._header.coefficient_bytes + ROW_BYTES * columns + cached
        return len(self._data) + max(decoding, _check_bytes(self._header))

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        return self._windows.read(level, top, left, height, width)

    def _next_rows(self, most: int) -> NDArray[Any]:
        if self._region is None:
            self._open()
        (height, width), components = self._header.size, len(self._header.sampling)
        # The rest of the strip that begins at or above the next row.
        rows = min(most, height - self._row, _STRIP_ROWS - self._row % _STRIP_ROWS)
        with decoder_failures():
            strip = self._region.fetch(0, self._row, width, rows)
        pixels = np.frombuffer(strip, np.uint8).reshape(rows, width, components)
        self._row += rows
        # libvips inverts the inks: 255 is full ink, unlike in the file.
        return cmyk_to_rgb(pixels) if components == 4 else pixels

    def _open(self) -> None:
        if self._header.has_one_scan:
            self._check()
        with require_extra("large", "pyvips"):
            import pyvips
        # Operations in libvips' cache keep their pictures open. Its cache of rows grows with the number of its threads:
        # at 20,000 columns it took 105 MiB with one thread, and 810 MiB with 64, which decode no faster.
        pyvips.cache_set_max(0)
        pyvips.concurrency_set(1)
        # A source reads the bytes in place; `jpegload_buffer` of pyvips 3.2 copies them.
        with decoder_failures():
            source = pyvips.Source.new_from_memory(self._data)
            image = pyvips.Image.jpegload_source(source, access="sequential", fail_on="warning")
        found = image.height, image.width, image.bands
        if found != (*self._header.size, len(self._header.sampling)):
            raise damaged_error(f"header says {self._header.size}, libvips reads {found}")
        self._region = pyvips.Region.new(image)

    def _check(self) -> None:
        """Check all compressed data of a JPEG of one scan, before its first pixel is used.

        libvips 8.18 tests for warnings before each strip, and never after the last one. It does not read the end
        marker, so it reports no bytes that are left over. Data of several scans are complete before the first row.

        Raises:
            SourceError: libjpeg reports an error or a warning.
        """
        height, width = (-(-side // _CHECK_SCALE) for side in self._header.size)
        colors = "CMYK" if len(self._header.sampling) == 4 else "GRAY"
        try:
            simplejpeg.decode_jpeg(self._data, colors, min_height=height, min_width=width, strict=True)
        except ValueError as error:
            is_truncated = self._lacks_end or PREMATURE_END in str(error)
            raise (truncated_error if is_truncated else damaged_error)(str(error)) from error

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        return None

    def close(self) -> None:
        self._region, self._data = None, b""


def _check_bytes(header: JpegHeader) -> int:
    """Return the memory of `JpegRows._check`."""
    height, width = (-(-side // _CHECK_SCALE) for side in header.size)
    return height * width * len(header.sampling) + ROW_BYTES * header.size[1]


def open_jpeg_regions(files: SourceFiles, path: str, threads: int = 1) -> RegionReader:
    """Open a JPEG file: by rows if it is large, else whole.

    Files with arithmetic codes or unusual sampling are decoded whole, as by `open_jpeg`.

    Raises:
        SourceError: the header is damaged, or a progressive picture needs more memory than there is.
    """
    data = files.read(path)
    header = read_jpeg_header(data)
    opened = open_jpeg(data)
    bands = 1 if len(header.sampling) == 1 else 3
    notes = ("CMYK converted",) * (len(header.sampling) == 4)
    _check_coefficients(header)
    # TurboJPEG, which checks the data, has names for the usual samplings only.
    by_rows = header.frame in PLAIN_FRAMES and header.is_usual
    if header.size[0] * header.size[1] * bands <= WHOLE_BYTES or not by_rows:
        return whole_picture(data, opened, notes)
    # A marker within compressed data is a real one: FF is followed by 0 otherwise (T.81, B.1.1.5).
    lacks_end = data.find(END_OF_IMAGE, header.segments[-1][2]) < 0
    if lacks_end and not header.has_one_scan:
        raise truncated_error("no end marker, so that scans may be missing")
    facts = RegionFacts(
        levels=(header.size,),
        bands=bands,
        dtype="uint8",
        color=COLOR_OF_BANDS[bands],
        row_steps=(1,),
        orientation=header.orientation,
        in_order=True,
        notes=(FIRST_OF_SEVERAL,) * opened.more + notes + (MISSING_END,) * lacks_end,
    )
    plain = without_strays(data, header) + END_OF_IMAGE * lacks_end
    return JpegRows(plain, header, facts, lacks_end=lacks_end)


def _check_coefficients(header: JpegHeader) -> None:
    """Refuse a JPEG of several scans whose coefficients, which every decoder holds, exceed the memory."""
    if header.coefficient_bytes > process_memory():
        raise decode_error(
            TOO_MUCH_MEMORY,
            f"a progressive JPEG of {mebibytes(header.coefficient_bytes)} MiB of coefficients; jpegtran -outfile b.jpg "
            "a.jpg, on a machine with that memory, writes the same picture as a baseline JPEG, which is read by rows",
        )
