"""How a PNG file is read: its chunks and their checksums here, its compressed pixels by Pillow."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import ImageFile, PngImagePlugin

from halofeed.prep.readers.image import OpenedImage, Pixels, Raster, Size, truncated, undecodable
from halofeed.prep.readers.pillow import load_16_bit, load_raster, open_with, with_transparent_colour
from halofeed.prep.readers.tiff_directory import exif_orientation

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
DEPTHS = {GREY: (1, 2, 4, 8, 16), PALETTE: (1, 2, 4, 8), **dict.fromkeys((2, 4, 6), (8, 16))}
NEEDED_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf", b"acTL")

METADATA_CHUNKS = (b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME", b"bKGD")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The IHDR chunk, and where the other chunks that matter lie: (type, offset of the payload, length).

    `skipped_damage` says that a chunk of metadata had a wrong checksum; as libpng does, it is passed over."""

    size: Size
    depth: int
    colour_type: int
    chunks: Sequence[tuple[bytes, int, int]]
    skipped_damage: bool

    def payload(self, data: bytes, kind: bytes) -> bytes | None:
        """The bytes of the first chunk of a kind."""
        return next((data[at : at + length] for name, at, length in self.chunks if name == kind), None)


def read_header(data: bytes) -> Header:
    """Walk over the chunks and check their checksums.

    Raises:
        SourceError: a chunk is missing, cut off or damaged, or the header is none that PNG defines.

    Source: Portable Network Graphics, third edition, 5.3 and 11.2.
    """
    chunks: list[tuple[bytes, int, int]] = []
    at, skipped_damage = len(SIGNATURE), False
    while not chunks or chunks[-1][0] != b"IEND":
        if at + 12 > len(data):
            raise truncated("no IEND chunk")
        length, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            raise truncated(f"chunk {kind!r} of {length} bytes at byte {at} of {len(data)}")
        checksum = struct.unpack_from(">I", data, at + 8 + length)[0]
        intact = zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) == checksum
        if not kind.isalpha() or not (intact or (chunks and kind in METADATA_CHUNKS)):
            raise undecodable("file is damaged", f"wrong checksum of chunk {kind!r} at byte {at}")
        skipped_damage = skipped_damage or not intact
        if kind in NEEDED_CHUNKS:
            chunks.append((kind, at + 8, length))
        elif kind[:1].isupper():
            raise undecodable("PNG feature is not supported", f"critical chunk {kind!r}")
        at += 12 + length
    kind, at, length = chunks[0]  # there is one: the walk ends at IEND
    if kind != b"IHDR" or length != 13:
        raise undecodable("file is damaged", f"the first chunk is {kind!r} of {length} bytes, not IHDR of 13")
    width, height = struct.unpack_from(">II", data, at)
    depth, colour_type, compression, filtering, interlace = data[at + 8 : at + 13]
    if depth not in DEPTHS.get(colour_type, ()) or compression or filtering or interlace > 1:
        raise undecodable(
            "file is damaged",
            f"header says depth {depth}, colour type {colour_type}, compression {compression}, "
            f"filter {filtering}, interlace {interlace}",
        )
    header = Header(
        size=(height, width),
        depth=depth,
        colour_type=colour_type,
        chunks=chunks,
        skipped_damage=skipped_damage,
    )
    for kind in (b"IDAT", b"PLTE") if colour_type == PALETTE else (b"IDAT",):
        if header.payload(data, kind) is None:
            raise undecodable("file is damaged", f"no {kind.decode()} chunk")
    return header


def _chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def _plain_png(data: bytes, header: Header, colour_type: int, depth: int) -> bytes:
    """The same picture without what is beside it (text, profiles, animation), which Pillow would unpack."""
    start = header.chunks[0][1]
    ihdr = bytearray(data[start : start + 13])
    ihdr[8:10] = depth, colour_type
    parts = [SIGNATURE, _chunk(b"IHDR", bytes(ihdr))]
    kinds = (b"PLTE", b"tRNS", b"IDAT") if colour_type == PALETTE else (b"IDAT",)
    for kind, at, length in header.chunks:
        if kind in kinds:
            parts.append(data[at - 8 : at + length + 4])
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _transparent_colour(data: bytes, header: Header) -> tuple[int, ...]:
    """The colour that a tRNS chunk declares transparent, at the decoded depth; empty where there is none."""
    payload = header.payload(data, b"tRNS")
    count = {GREY: 1, COLOUR: 3}.get(header.colour_type, 0)
    if payload is None or not count or len(payload) < 2 * count:
        return ()
    key = struct.unpack_from(f">{count}H", payload)
    spread = 255 // (2**header.depth - 1) if header.depth < 8 else 1
    return tuple((value & (2**header.depth - 1)) * spread for value in key)


def _open_pillow(plain: bytes) -> ImageFile.ImageFile:
    return open_with(PngImagePlugin.PngImageFile, plain)


def _load_samples(data: bytes, header: Header) -> Pixels:
    """The pixels with every stored bit; Pillow alone would cut 16-bit colour to 8 bits."""
    if header.depth < 16:
        return load_raster(_open_pillow(_plain_png(data, header, header.colour_type, header.depth))).pixels
    if header.colour_type in (COLOUR, COLOUR_ALPHA):
        plain = _plain_png(data, header, header.colour_type, 16)
        return load_16_bit(lambda: _open_pillow(plain))
    # Two bytes per pixel are filtered alike whether they are one sample or two, and so are four: read the
    # samples' high and low bytes as channels of their own.
    as_bytes = GREY_ALPHA if header.colour_type == GREY else COLOUR_ALPHA
    halves: Pixels = load_raster(_open_pillow(_plain_png(data, header, as_bytes, 8))).pixels.astype(np.uint16)
    return halves[..., 0::2] << 8 | halves[..., 1::2]


def open_png(data: bytes) -> OpenedImage:
    """Open a PNG file of any colour type and depth; of an animated one the default image.

    Raises:
        SourceError: as `read_header`; when loaded, also that the pixels are damaged.
    """
    header = read_header(data)

    def load(grey_is_enough: bool, needed_size: Size) -> Raster:
        pixels = _load_samples(data, header)
        key = _transparent_colour(data, header)
        if key:
            pixels = with_transparent_colour(pixels, key)
        notes = ["damaged metadata skipped"] if header.skipped_damage else []
        if header.payload(data, b"acTL") is not None:
            notes.append("first of several frames")
        return Raster(pixels=pixels, notes=tuple(notes))

    orientation = exif_orientation(header.payload(data, b"eXIf") or b"")
    return OpenedImage(stored_size=header.size, orientation=orientation, load=load)
