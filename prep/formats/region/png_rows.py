"""Reader of PNG files by rows: chunks are read and checked in order, zlib inflates rows, imagecodecs reverses filters.

libpng, behind imagecodecs, has no call for the filters alone. A band of rows therefore becomes a small PNG with an
uncompressed zlib stream, whose first row is the last row of the band before:

    file    | IDAT | IDAT | IDAT | ...        inflate --> filtered rows
    band    | signature | IHDR | IDAT: stored(row before, filtered rows) | IEND |    libpng --> rows

Filters work on bytes (PNG third edition, 9.2), so that rows of other forms are decoded as 8-bit samples of as many
bytes per pixel, and become samples here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import PixelArray, damaged_error, truncated_error
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL
from halofeed.prep.formats.picture.pillow import decoder_failures, with_transparent_color
from halofeed.prep.formats.picture.png import (
    COLOR,
    COLOR_ALPHA,
    GRAY,
    GRAY_ALPHA,
    NEEDED_CHUNKS,
    PALETTE,
    PngHeader,
    check_checksum,
    check_known,
    has_passes,
    image_header,
    open_png,
    png_file,
    transparent_color,
)
from halofeed.prep.formats.picture.tiff import exif_orientation
from halofeed.prep.formats.region.region_reader import RegionFacts, RegionReader
from halofeed.prep.formats.region.row_order import RowWindows
from halofeed.prep.formats.region.whole_picture import COLOR_OF_BANDS, WHOLE_BYTES, whole_picture
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE
from halofeed.system.errors import require_extra
from halofeed.system.wording import plural

_BLOCK_BYTES = 1 << 20
"""Bytes that are read from the file at a time."""
_BAND_BYTES = 8 << 20
"""Bytes of filtered rows that are decoded at a time; 1 MiB took 1.5 times as long."""
_MAX_NEEDED_BYTES = 1 << 20
"""Limit on chunks that are kept: the longest are those of EXIF data, 64 KiB in a JPEG."""
_MAX_CHUNKS = 1000
"""Limit on the needed chunks before the pixels."""
_HEADER_BYTES = 13
_MAX_DROPPED_BYTES = 1 << 24
"""Limit on the bytes after the last row that are inflated for the checksum at their end."""
_TAIL_BYTES = 1 << 17
"""Bytes at the end of a file in which EXIF data are looked for."""
_SAMPLES = {GRAY: 1, COLOR: 3, PALETTE: 1, GRAY_ALPHA: 2, COLOR_ALPHA: 4}
_FORM_OF_BYTES = {
    1: (GRAY, 8),
    2: (GRAY_ALPHA, 8),
    3: (COLOR, 8),
    4: (COLOR_ALPHA, 8),
    6: (COLOR, 16),
    8: (COLOR_ALPHA, 16),
}
"""Color type and depth with a number of bytes per pixel."""


class _FileBytes:
    """Bytes of a file in order, read in blocks."""

    def __init__(self, files: SourceFiles, path: str) -> None:
        self._files, self._path, self._block = files, path, memoryview(b"")
        self.position = 0

    def take(self, most: int) -> memoryview:
        """Return the next bytes, at least one and at most `most`; none at the end of the file."""
        if not self._block:
            stop = self.position + _BLOCK_BYTES
            self._block = memoryview(self._files.read_range(self._path, self.position, stop))
        taken, self._block = self._block[:most], self._block[most:]
        self.position += len(taken)
        return taken

    def take_all(self, size: int, missing: str) -> bytes:
        """Return exactly `size` next bytes; SourceError with the text `missing` if the file ends before."""
        parts = []
        while size:
            part = self.take(size)
            if not part:
                raise truncated_error(missing)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def next_chunk(self) -> _ChunkStart:
        start = self.position
        length, kind = struct.unpack(">I4s", self.take_all(8, "no IEND chunk"))
        return _ChunkStart(kind=kind, length=length, start=start)

    def payload(self, chunk: _ChunkStart) -> Iterator[memoryview]:
        """Yield the payload of a chunk in pieces; its checksum is checked after the last one."""
        kind, left = chunk.kind, chunk.length
        checksum, is_first = zlib.crc32(kind), chunk.start == len(PNG_SIGNATURE)
        cut = f"chunk {kind!r} of {plural(chunk.length, 'byte')} at byte {chunk.start}"
        while left:
            piece = self.take(left)
            if not piece:
                raise truncated_error(f"{cut} of {self.position}")
            checksum, left = zlib.crc32(piece, checksum), left - len(piece)
            yield piece
        is_intact = checksum == int.from_bytes(self.take_all(4, f"{cut} of {self.position}"), "big")
        check_checksum(kind, chunk.start, is_intact=is_intact, is_first=is_first)


@dataclass(frozen=True, kw_only=True)
class _ChunkStart:
    """Type, length of the payload, and position of a chunk."""

    kind: bytes
    length: int
    start: int


@dataclass(frozen=True, kw_only=True)
class _Head:
    """Chunks before the pixels: the payloads of those that are needed, their places, and the first chunk of pixels."""

    data: bytes
    header: PngHeader
    is_interlaced: bool
    pixels: _ChunkStart


def _read_head(stream: _FileBytes) -> _Head:
    """Read the chunks up to the first chunk of pixels."""
    stream.take_all(len(PNG_SIGNATURE), "no PNG signature")
    data, places = bytearray(), list[tuple[bytes, int, int]]()
    while (chunk := stream.next_chunk()).kind != b"IDAT":
        check_known(chunk.kind)
        is_kept = chunk.kind in NEEDED_CHUNKS
        if is_kept and (chunk.length > _MAX_NEEDED_BYTES or len(places) > _MAX_CHUNKS):
            raise damaged_error(
                f"chunk {chunk.kind!r} of {plural(chunk.length, 'byte')} at byte {chunk.start}"
            )
        if is_kept:
            places.append((chunk.kind, len(data), chunk.length))
        for piece in stream.payload(chunk):
            data += piece if is_kept else b""
        if chunk.kind == b"IEND":
            raise damaged_error("no IDAT chunk")
    if not places or places[0] != (b"IHDR", 0, _HEADER_BYTES):
        raise damaged_error(f"the first chunk is not IHDR of {_HEADER_BYTES} bytes")
    head = bytes(data)
    width, height, depth, color_type = image_header(head, 0)
    header = PngHeader(
        size=(height, width), depth=depth, color_type=color_type, chunks=places, skipped_damage=False
    )
    if color_type == PALETTE and header.payload(head, b"PLTE") is None:
        raise damaged_error("no PLTE chunk")
    return _Head(data=head, header=header, is_interlaced=has_passes(head, header), pixels=chunk)


def _compressed_pieces(stream: _FileBytes, chunk: _ChunkStart) -> Iterator[memoryview]:
    """Yield the payloads of all chunks of pixels, from an opened one on; check all chunks to the end."""
    while chunk.kind != b"IEND":
        check_known(chunk.kind)
        for piece in stream.payload(chunk):
            if chunk.kind == b"IDAT":
                yield piece
        chunk = stream.next_chunk()
    for _ in stream.payload(chunk):
        pass


class _Inflater:
    """Bytes of a zlib stream that comes in pieces."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces, self._zlib, self._rest = pieces, zlib.decompressobj(), b""

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        parts, left = [], size
        while left:
            part = self._some(left)
            if not part:
                raise truncated_error(f"{size - left} of {size} bytes of a band of rows")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _some(self, most: int) -> bytes:
        """Return at most `most` next bytes; b"" at the end."""
        while not self._zlib.eof:
            # A call without input returns what zlib still holds.
            found = self._zlib.decompress(self._rest, most)
            self._rest = self._zlib.unconsumed_tail
            if found:
                return found
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = bytes(piece)
        return b""

    def finish(self) -> None:
        """Read to the end of the picture, so that all checksums are checked; rows beyond the last one are dropped."""
        dropped = 0
        while dropped < _MAX_DROPPED_BYTES and (part := self._some(_BLOCK_BYTES)):
            dropped += len(part)
        for _ in self._pieces:
            pass


class PngRows:
    """Reader of a PNG that is not interlaced, with bounded memory.

    Args:
        stream: bytes of the file after the start of its first chunk of pixels.
        head: the chunks before.
        facts: its facts.
    """

    def __init__(self, stream: _FileBytes, head: _Head, facts: RegionFacts) -> None:
        with require_extra("large", "imagecodecs"):
            import imagecodecs
        self.facts = facts
        self._decode = imagecodecs.png_decode
        self._head, self._inflater = head, _Inflater(_compressed_pieces(stream, head.pixels))
        self._windows = RowWindows(facts, self._next_rows)
        self._row, self._before = 0, b""
        bits = _SAMPLES[head.header.color_type] * head.header.depth
        self._pixel_bytes = max(1, bits // 8)
        self._row_bytes = -(-head.header.size[1] * bits // 8)
        self._band_rows = max(1, _BAND_BYTES // (self._row_bytes + 1))
        self._table = _value_table(head)
        self._key = transparent_color(head.data, head.header)

    def read_bytes(self, level: int, height: int, width: int) -> int:
        rows = min(self._band_rows, self.facts.size[0])
        filtered = (rows + 1) * (self._row_bytes + 1)
        pixels = rows * self.facts.size[1] * self.facts.bands * np.dtype(self.facts.dtype).itemsize
        # Filtered rows in parts, joined, as stored stream and as file; decoded rows, samples and pixels.
        return 6 * filtered + 3 * pixels + 4 * _BLOCK_BYTES

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        return self._windows.read(level, top, left, height, width)

    def _next_rows(self, most: int) -> PixelArray:
        height = self.facts.size[0]
        rows = min(most, self._band_rows, height - self._row)
        with decoder_failures():
            decoded = self._unfilter(self._inflater.read(rows * (self._row_bytes + 1)), rows)
            self._row += rows
            if self._row == height:
                self._inflater.finish()
        pixels = self._samples(decoded)
        return with_transparent_color(pixels, self._key) if self._key else pixels

    def _unfilter(self, filtered: bytes, rows: int) -> NDArray[Any]:
        """Return decoded rows [row, column, byte of a pixel], or [row, column, sample] for 16-bit colors."""
        color_type, depth = _FORM_OF_BYTES[self._pixel_bytes]
        # Filter 0 leaves the row before as it is.
        above = b"\0" + self._before if self._before else b""
        columns, count = self._row_bytes // self._pixel_bytes, rows + bool(above)
        picture = png_file((count, columns), depth, color_type, (), above + filtered)
        decoded: NDArray[Any] = self._decode(picture).reshape(count, columns, -1)
        last = decoded[-1]
        self._before = (last.astype(">u2") if depth == 16 else last).tobytes()
        return decoded[bool(above) :]

    def _samples(self, decoded: NDArray[Any]) -> PixelArray:
        """Return the pixels [row, column, band] of decoded rows."""
        header, rows = self._head.header, len(decoded)
        if self._table is not None:
            values = _unpack(decoded.reshape(rows, -1), header.depth)[:, : header.size[1]]
            return self._table[values]
        if header.depth == 16 and decoded.dtype == np.uint8:
            return np.ascontiguousarray(decoded).view(">u2").astype(np.uint16)
        return decoded

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        return None

    def close(self) -> None:
        self._inflater, self._before = _Inflater(iter(())), b""


def _unpack(rows: NDArray[np.uint8], depth: int) -> NDArray[np.uint8]:
    """Return the numbers of 1, 2, 4 or 8 bits in bytes [row, byte], the high bits first (7.2).

    >>> _unpack(np.array([[0b11100100]], np.uint8), 2)
    array([[3, 2, 1, 0]], dtype=uint8)
    """
    if depth == 8:
        return rows
    shifts = np.arange(8 - depth, -1, -depth, dtype=np.uint8)
    return (rows[..., None] >> shifts & np.uint8((1 << depth) - 1)).reshape(len(rows), -1)


def _value_table(head: _Head) -> NDArray[np.uint8] | None:
    """Return the pixel [number, band] of each number of a palette, or of gray of fewer than 8 bits; else None."""
    header = head.header
    if header.color_type == GRAY and header.depth < 8:
        most = (1 << header.depth) - 1
        return (np.arange(most + 1, dtype=np.uint8) * np.uint8(255 // most))[:, None]
    if header.color_type != PALETTE:
        return None
    entries = np.frombuffer(header.payload(head.data, b"PLTE") or b"", np.uint8)
    # Pillow gives numbers beyond the palette the color black, and those beyond the list of alphas full alpha.
    table = np.zeros((256, 3), np.uint8)
    count = min(256, len(entries) // 3)
    table[:count] = entries[: 3 * count].reshape(-1, 3)
    alphas = header.payload(head.data, b"tRNS")
    if alphas is None:
        return table
    alpha = np.full((256, 1), 255, np.uint8)
    alpha[: len(alphas), 0] = np.frombuffer(alphas[:256], np.uint8)
    return np.concatenate([table, alpha], axis=1)


def open_png_regions(files: SourceFiles, path: str, threads: int = 1) -> RegionReader:
    """Open a PNG file: by rows if it is large, else whole; an interlaced one is always decoded whole.

    Interlaced rows are complete only at the end of the file. ImageMagick writes the same picture without:
    `magick a.png -interlace none b.png`.

    Raises:
        SourceError: the header is damaged. `read` reports damaged pixels.
    """
    stream = _FileBytes(files, path)
    head = _read_head(stream)
    header = head.header
    bands = _bands(head)
    sample_bytes = 2 if header.depth == 16 else 1
    if head.is_interlaced or header.size[0] * header.size[1] * bands * sample_bytes <= WHOLE_BYTES:
        data = files.read(path)
        return whole_picture(data, open_png(data))
    exif = header.payload(head.data, b"eXIf") or _late_exif(files, path)
    is_animation = int.from_bytes((header.payload(head.data, b"acTL") or b"")[:4], "big") > 1
    facts = RegionFacts(
        levels=(header.size,),
        bands=bands,
        dtype="uint16" if sample_bytes == 2 else "uint8",
        color=COLOR_OF_BANDS[bands],
        row_steps=(1,),
        orientation=exif_orientation(exif),
        in_order=True,
        notes=(FIRST_OF_SEVERAL,) * is_animation,
    )
    return PngRows(stream, head, facts)


def _bands(head: _Head) -> int:
    """Return the bands of the pixels; a transparent color or palette entry adds alpha."""
    colors = 3 if head.header.color_type == PALETTE else _SAMPLES[head.header.color_type]
    if head.header.color_type == PALETTE:
        return colors + (head.header.payload(head.data, b"tRNS") is not None)
    return colors + bool(transparent_color(head.data, head.header))


def _late_exif(files: SourceFiles, path: str) -> bytes:
    """Return the payload of an eXIf chunk after the pixels; b"" if the end of the file holds none."""
    size = files.size(path) or 0
    tail = files.read_range(path, max(0, size - _TAIL_BYTES), size)
    at = tail.rfind(b"eXIf")
    if at < 4:
        return b""
    end = at + 4 + int.from_bytes(tail[at - 4 : at], "big")
    # Compressed pixels may hold these letters; the checksum shows whether they are a chunk.
    is_chunk = zlib.crc32(tail[at:end]) == int.from_bytes(tail[end : end + 4], "big")
    return tail[at + 4 : end] if is_chunk and end + 4 <= len(tail) else b""
