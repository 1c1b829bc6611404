"""Reader of PNG files: the chunks and checksums are checked here, Pillow decompresses the pixels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import PngImagePlugin

from halofeed.prep.formats.picture.image import (
    MemoryEstimate,
    OpenedImage,
    PixelArray,
    Raster,
    Size,
    damaged_error,
    decode_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.pillow import (
    copy_pixels,
    decoder_failures,
    load_16_bit,
    load_raster,
    open_with_plugin,
    with_transparent_color,
)
from halofeed.prep.formats.picture.tiff import exif_orientation
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE
from halofeed.system.wording import plural

GRAY, COLOR, PALETTE, GRAY_ALPHA, COLOR_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GRAY: (1, 2, 4, 8, 16), PALETTE: (1, 2, 4, 8), **dict.fromkeys((2, 4, 6), (8, 16))}
NEEDED_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf", b"acTL")

MAX_RUNS = 10_000
"""Maximum entries in `Header.chunks`. Consecutive chunks of pixels count as one entry."""
METADATA_CHUNKS = (b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME", b"bKGD")


@dataclass(frozen=True, kw_only=True)
class PngHeader:
    """IHDR chunk and the positions of the other needed chunks.

    Args:
        size: (height, width).
        depth: bits per sample.
        color_type: PNG color type.
        chunks: (type, offset of the payload, length); consecutive IDAT chunks are one entry that ends with the
            last payload.
        skipped_damage: whether a metadata chunk had a wrong checksum; it is skipped, as in libpng.
    """

    size: Size
    depth: int
    color_type: int
    chunks: Sequence[tuple[bytes, int, int]]
    skipped_damage: bool

    def payload(self, data: bytes, kind: bytes) -> bytes | None:
        """Return the payload of the first chunk of a type, or None."""
        return next((data[at : at + length] for name, at, length in self.chunks if name == kind), None)


def read_png_header(data: bytes) -> PngHeader:
    """Read the chunks and check their checksums.

    Raises:
        SourceError: a chunk is missing, truncated or damaged, or the header is not valid PNG.

    Source: Portable Network Graphics, third edition, 5.3 and 11.2.
    """
    chunks: list[tuple[bytes, int, int]] = []
    skipped_damage = False
    for chunk in _checked_chunks(data):
        skipped_damage = skipped_damage or not chunk.is_intact
        _keep_needed(chunks, chunk)
    kind, at, length = chunks[0]  # exists, because the chunks end with IEND
    if kind != b"IHDR" or length != 13:
        raise damaged_error(f"the first chunk is {kind!r} of {plural(length, 'byte')}, not IHDR of 13")
    width, height, depth, color_type = image_header(data, at)
    header = PngHeader(
        size=(height, width),
        depth=depth,
        color_type=color_type,
        chunks=chunks,
        skipped_damage=skipped_damage,
    )
    for kind in (b"IDAT", b"PLTE") if color_type == PALETTE else (b"IDAT",):
        if header.payload(data, kind) is None:
            raise damaged_error(f"no {kind.decode()} chunk")
    return header


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Chunk: its type, its start, the length of its payload, and whether its checksum is right."""

    kind: bytes
    start: int
    length: int
    is_intact: bool

    @property
    def payload_at(self) -> int:
        return self.start + 8

    @property
    def end(self) -> int:
        return self.start + 12 + self.length


def _checked_chunks(data: bytes) -> Iterator[_Chunk]:
    """Yield the chunks up to IEND; only a metadata chunk after the first may have a wrong checksum."""
    at, kind = len(PNG_SIGNATURE), b""
    while kind != b"IEND":
        is_first = not kind
        if at + 12 > len(data):
            raise truncated_error("no IEND chunk")
        length, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            raise truncated_error(f"chunk {kind!r} of {plural(length, 'byte')} at byte {at} of {len(data)}")
        checksum = struct.unpack_from(">I", data, at + 8 + length)[0]
        is_intact = zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) == checksum
        check_checksum(kind, at, is_intact=is_intact, is_first=is_first)
        yield _Chunk(kind=kind, start=at, length=length, is_intact=is_intact)
        at += 12 + length


def check_checksum(kind: bytes, at: int, *, is_intact: bool, is_first: bool) -> None:
    """Refuse a chunk at byte `at` with a wrong checksum; only metadata after the first chunk may have one.

    Raises:
        SourceError: the chunk is damaged, or its type is not four letters.
    """
    # libpng too skips damaged metadata with a warning; editors of metadata forget the checksum.
    may_be_damaged = kind in METADATA_CHUNKS and not is_first
    if not kind.isalpha() or not (is_intact or may_be_damaged):
        raise damaged_error(f"wrong checksum of chunk {kind!r} at byte {at}")


def check_known(kind: bytes) -> None:
    """Refuse a chunk that no reader here knows, and without which nobody may show the picture.

    Raises:
        SourceError: the chunk is critical.
    """
    # An upper-case first letter marks critical chunks (5.4).
    if kind not in NEEDED_CHUNKS and kind[:1].isupper():
        raise decode_error("PNG feature is not supported", f"critical chunk {kind!r}")


def _keep_needed(chunks: list[tuple[bytes, int, int]], chunk: _Chunk) -> None:
    """Add a needed chunk to the list, which consecutive chunks of pixels extend."""
    kind = chunk.kind
    # A large picture has thousands of these chunks; one entry for consecutive ones keeps the list short.
    if chunks and kind == b"IDAT" == chunks[-1][0] and sum(chunks[-1][1:]) + 4 == chunk.start:
        first = chunks[-1][1]
        chunks[-1] = (kind, first, chunk.end - 4 - first)
    elif kind in NEEDED_CHUNKS:
        # Each entry takes memory, and a hostile file may have millions of empty chunks.
        if len(chunks) >= MAX_RUNS:
            raise damaged_error(f"more than {MAX_RUNS} separate chunks")
        chunks.append((kind, chunk.payload_at, chunk.length))
    else:
        check_known(kind)


def image_header(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the width, height, depth and color type of an IHDR chunk."""
    width, height, depth, color_type, compression, filtering, interlace = struct.unpack_from(
        ">IIBBBBB", data, at
    )
    # One compression method and one filter method exist, and two interlace methods (11.2.1).
    if depth not in DEPTHS.get(color_type, ()) or compression or filtering or interlace > 1:
        raise damaged_error(
            f"header says depth {depth}, color type {color_type}, compression {compression}, "
            f"filter {filtering}, interlace {interlace}",
        )
    return width, height, depth, color_type


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    """Return a chunk with its length and checksum."""
    return (
        struct.pack(">I", len(payload))
        + kind
        + payload
        + struct.pack(">I", zlib.crc32(payload, zlib.crc32(kind)))
    )


def _plain_png(data: bytes, header: PngHeader, color_type: int, depth: int) -> bytes:
    """Return the file without text, profiles and animation, which Pillow would unpack.

    Pillow 12.3 refuses some pictures for their text or their profile alone.
    """
    start = header.chunks[0][1]
    ihdr = bytearray(data[start : start + 13])
    ihdr[8:10] = depth, color_type
    parts: list[bytes | memoryview] = [PNG_SIGNATURE, png_chunk(b"IHDR", bytes(ihdr))]
    kinds = (b"PLTE", b"tRNS", b"IDAT") if color_type == PALETTE else (b"IDAT",)
    for kind, at, length in header.chunks:
        if kind in kinds:
            parts.append(memoryview(data)[at - 8 : at + length + 4])
    return b"".join([*parts, png_chunk(b"IEND", b"")])


def pixel_chunks(data: bytes, header: PngHeader) -> Iterator[memoryview]:
    """Yield the payload of each IDAT chunk in order."""
    for kind, at, length in header.chunks:
        end = at + length
        while kind == b"IDAT" and at <= end:
            payload = struct.unpack_from(">I", data, at - 8)[0]
            yield memoryview(data)[at : at + payload]
            at += payload + 12


def has_passes(data: bytes, header: PngHeader) -> bool:
    """Return whether the rows of a PNG are spread over several passes."""
    return data[header.chunks[0][1] + 12] != 0


def png_file(
    size: Size, depth: int, color_type: int, more: Sequence[tuple[bytes, bytes]], rows: bytes
) -> bytes:
    """Return a PNG of rows that are filtered but not compressed.

    Args:
        size: (height, width).
        depth: bits per sample.
        color_type: PNG color type.
        more: (type, payload) of chunks between the header and the pixels.
        rows: the bytes of each row after the byte of its filter.
    """
    ihdr = struct.pack(">IIBBBBB", size[1], size[0], depth, color_type, 0, 0, 0)
    chunks = [(b"IHDR", ihdr), *more, (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b"")]
    return b"".join([PNG_SIGNATURE, *(png_chunk(kind, payload) for kind, payload in chunks)])


def transparent_color(data: bytes, header: PngHeader) -> tuple[int, ...]:
    """Return the transparent color of a tRNS chunk at the decoded depth, or () if there is none."""
    payload = header.payload(data, b"tRNS")
    count = {GRAY: 1, COLOR: 3}.get(header.color_type, 0)
    # Palettes have a transparency per entry, which Pillow applies; other images have alpha as a channel.
    if payload is None or not count or len(payload) < 2 * count:
        return ()
    key = struct.unpack_from(f">{count}H", payload)
    # The chunk holds stored numbers (11.3.1.1); pixels below 8 bits are scaled, which Pillow does not do with its key.
    scale = 255 // (2**header.depth - 1) if header.depth < 8 else 1
    return tuple((value & (2**header.depth - 1)) * scale for value in key)


def _load_samples(data: bytes, header: PngHeader) -> PixelArray:
    """Decode the pixels with every stored bit; Pillow alone would reduce 16-bit color to 8 bits."""
    if header.depth < 16:  # Pillow has every other mode
        plain = _plain_png(data, header, header.color_type, header.depth)
        return load_raster(open_with_plugin(PngImagePlugin.PngImageFile, plain)).pixels
    if header.color_type in (COLOR, COLOR_ALPHA):  # more bytes per pixel than any 8-bit mode has
        plain = _plain_png(data, header, header.color_type, 16)
        return load_16_bit(lambda: open_with_plugin(PngImagePlugin.PngImageFile, plain))
    # PNG filters work on bytes per pixel, not on samples. Read the high and low bytes of the samples as
    # separate 8-bit channels.
    as_bytes = GRAY_ALPHA if header.color_type == GRAY else COLOR_ALPHA
    with decoder_failures():
        image = open_with_plugin(PngImagePlugin.PngImageFile, _plain_png(data, header, as_bytes, 8))
        image.load()
        channels = len(image.getbands()) // 2
        return copy_pixels(
            image, lambda part: np.asarray(part).view(">u2").astype(np.uint16), channels, "uint16"
        )


def _estimate(data: bytes, header: PngHeader) -> MemoryEstimate:
    has_transparency = header.payload(data, b"tRNS") is not None
    channels = {GRAY: 1, COLOR: 3, PALETTE: 3 + has_transparency, GRAY_ALPHA: 2, COLOR_ALPHA: 4}[
        header.color_type
    ]
    pillow_bytes = 1 if header.depth < 16 and header.color_type in (GRAY, PALETTE) else 4
    sample_bytes = 2 if header.depth == 16 else 1
    held_bytes = sum(length for kind, _, length in header.chunks if kind == b"IDAT")
    estimate = estimate_decoding(
        header.size, channels, sample_bytes, pillow_bytes=pillow_bytes, held_bytes=held_bytes
    )
    # A transparent color becomes a channel in a second array; Pillow itself expands palettes and decodes stored alpha.
    if not has_transparency or header.color_type not in (GRAY, COLOR):
        return estimate
    with_alpha = estimate_decoding(
        header.size,
        channels + 1,
        sample_bytes,
        extra_pixel_bytes=channels * sample_bytes,
        held_bytes=held_bytes,
    )
    return replace(with_alpha, peak_bytes=max(with_alpha.peak_bytes, estimate.peak_bytes))


def open_png(data: bytes) -> OpenedImage:
    """Open a PNG file of any color type and depth; only the default image of an animation is read.

    Raises:
        SourceError: see `read_png_header`. `load` also reports damaged pixels.
    """
    header = read_png_header(data)

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        pixels = _load_samples(data, header)
        key = transparent_color(data, header)
        # Pillow does not apply the color, because `_plain_png` leaves the chunk out for gray and color.
        if key:
            pixels = with_transparent_color(pixels, key)
        return Raster(pixels=pixels, notes=("damaged metadata skipped",) * header.skipped_damage)

    return OpenedImage(
        stored_size=header.size,
        orientation=exif_orientation(header.payload(data, b"eXIf") or b""),
        estimate=lambda *_: _estimate(data, header),
        load=load,
        more=int.from_bytes((header.payload(data, b"acTL") or b"")[:4], "big") > 1,
    )
