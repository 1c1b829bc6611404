"""Decoder of the stored values of DICOM frames, and of Siemens' mosaics."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydicom.encaps import encapsulate
from pydicom.pixels.decoders.base import get_decoder
from rle.rle import decode_segment

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.elements import unheard
from halofeed.prep.formats.dicom.header_fields import HeaderFields, PixelFormat
from halofeed.prep.formats.dicom.headers import Elements, PixelPlace
from halofeed.prep.formats.dicom.slice_geometry import axes_of

HEADER_BYTES = 64


def damaged_pixels(detail: str) -> SourceError:
    """The error of pixel data that is not what its header says."""
    return SourceError("decode", "pixel data is damaged", detail)


def too_short(detail: str) -> SourceError:
    """The error of pixel data that ends early."""
    return SourceError("decode", "pixel data is truncated", detail)


def check_run_lengths(frame: bytes, planes: int) -> list[int]:
    """Where each piece of a frame begins, and where the last one ends.

    Raises:
        SourceError: the header is not one of `planes` pieces in order.
    """
    count, *offsets = np.frombuffer(frame[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), "<u4").tolist()
    if count != planes or offsets[0] != HEADER_BYTES or offsets[:planes] != sorted(set(offsets[:planes])):
        raise damaged_pixels(f"run lengths of {count} planes, expected {planes}")
    if offsets[planes - 1] >= len(frame):
        raise too_short(f"run lengths from byte {offsets[planes - 1]} of {len(frame)}")
    return [*offsets[:planes], len(frame)]


def decode_run_lengths(frame: bytes, planes: int, size: tuple[int, int]) -> NDArray[np.unsignedinteger]:
    """The pixels [row, column] of a frame, of `planes` bytes each, unsigned.

    Raises:
        SourceError: the header, or the runs, are not those of so many pixels; zeros behind them are padding.
    """
    places = check_run_lengths(frame, planes)
    count = size[0] * size[1]
    pixels = np.empty((count, planes), np.uint8)
    for plane in range(planes):
        try:
            decoded = bytes(decode_segment(frame[places[plane] : places[plane + 1]]))
        except ValueError as error:
            raise damaged_pixels("the last run ends after the end") from error
        if len(decoded) < count or any(decoded[count:]):
            raise damaged_pixels(f"run lengths of {len(decoded)} values, expected {count}")
        pixels[:, planes - 1 - plane] = np.frombuffer(decoded, np.uint8, count)
    return pixels.view(f"<u{planes}").reshape(size)


MAGIC, MOST_TAGS, TAG_BYTES, ITEM_BYTES = b"SV10", 1000, 84, 16
NUMBER = re.compile(rb"\s*([+-]?\d+\.?\d*(?:[eE][+-]?\d+)?)\s*\0*.*", re.DOTALL)
NORMAL_TOLERANCE = 1e-3


def split_mosaic(elements: Elements, facts: HeaderFields) -> HeaderFields | None:
    """The facts of a mosaic with a frame for each of its slices; None where its header does not place them."""
    if facts.format is None or len(facts.frames) != 1:
        return None
    csa = _csa_values(elements)
    count = int(csa.get("NumberOfImagesInMosaic", (0.0,))[0])
    frame, normal, spacing = facts.frames[0], csa.get("SliceNormalVector", ()), _spacing(elements)
    side = math.isqrt(count - 1) + 1 if count > 0 else 0
    rows, columns = facts.format.size
    if (
        not side
        or rows % side
        or columns % side
        or len(normal) != 3
        or spacing is None
        or frame.position_mm is None
        or frame.orientation is None
        or frame.spacing_mm is None
    ):
        return None
    try:
        along_row, along_column, across = axes_of(frame.orientation)
    except SourceError:
        return None
    step = np.array(normal)
    if min(np.abs(step - across).max(), np.abs(step + across).max()) > NORMAL_TOLERANCE:
        return None
    size = rows // side, columns // side
    origin = np.array(frame.position_mm)
    origin = origin + along_row * frame.spacing_mm[1] * (columns - size[1]) / 2
    origin = origin + along_column * frame.spacing_mm[0] * (rows - size[0]) / 2
    frames = tuple(
        replace(frame, position_mm=tuple((origin + index * spacing * step).tolist()))
        for index in range(count)
    )
    return replace(facts, format=replace(facts.format, size=size), frames=frames, tiles=side)


def whole_image(facts: HeaderFields) -> HeaderFields:
    """The facts of a file as its pixels are stored: a mosaic as one frame."""
    if facts.tiles is None:
        return facts
    rows, columns = facts.stored.size
    stored = replace(facts.stored, size=(rows * facts.tiles, columns * facts.tiles))
    return replace(facts, format=stored, frames=facts.frames[:1], tiles=None)


def tile_at(index: int, tiles: int, stored: PixelFormat) -> tuple[slice, slice]:
    """The rows and columns of a slice in its mosaic.

    >>> stored = PixelFormat(size=(4, 5), samples=1, photometric="", bits_allocated=16, bits_stored=16, high_bit=15,
    ...     signed=False, padding=None)
    >>> tile_at(5, 3, stored)
    (slice(4, 8, None), slice(10, 15, None))
    """
    rows, columns = stored.size
    top, left = index // tiles * rows, index % tiles * columns
    return slice(top, top + rows), slice(left, left + columns)


def _spacing(elements: Elements) -> float | None:
    try:
        spacing = headers.number(elements, headers.SPACING_BETWEEN_SLICES)
    except SourceError:
        return None
    return spacing if spacing is not None and spacing > 0 else None


def _csa_values(elements: Elements) -> Mapping[str, tuple[float, ...]]:
    """The two values of Siemens' header that place the slices; empty where it has another form."""
    data = headers.identifier(elements, headers.CSA_IMAGE_HEADER)
    if headers.text(elements, headers.CSA_CREATOR) != "SIEMENS CSA HEADER" or data[:4] != MAGIC:
        return {}
    found: dict[str, tuple[float, ...]] = {}
    try:
        (tags,) = struct.unpack_from("<I", data, 8)
        offset = 16
        for _ in range(min(tags, MOST_TAGS)):
            name = data[offset : offset + 64].split(b"\0")[0].decode("latin-1")
            items = struct.unpack_from("<i", data, offset + 76)[0]
            offset += TAG_BYTES
            values = []
            for _ in range(items):
                length = struct.unpack_from("<4i", data, offset)[1]
                number = NUMBER.fullmatch(data[offset + ITEM_BYTES : offset + ITEM_BYTES + length])
                if number:
                    values.append(float(number[1]))
                offset += ITEM_BYTES + (max(length, 0) + 3) // 4 * 4
            if values and name in ("NumberOfImagesInMosaic", "SliceNormalVector"):
                found[name] = tuple(values)
    except struct.error:
        return {}
    return found


RUN_LENGTHS = "1.2.840.10008.1.2.5"
PLUGINS: Mapping[str, tuple[str, str]] = {
    RUN_LENGTHS: ("RLE", "pylibjpeg"),
    **{
        f"1.2.840.10008.1.2.4.{number}": decoder
        for decoder, numbers in {
            ("JPEG baseline", "pillow"): (50,),
            ("JPEG extended", "pillow"): (51,),
            ("JPEG lossless", "gdcm"): (57, 70),
            ("JPEG-LS", "pyjpegls"): (80, 81),
            ("JPEG 2000", "pylibjpeg"): (90, 91, 201, 202, 203),
        }.items()
        for number in numbers
    },
}
"""Transfer syntax: the family of its frames, and the plug-in that decodes them."""

UNCOMPRESSED = (headers.IMPLICIT_LITTLE, headers.EXPLICIT_LITTLE, headers.EXPLICIT_BIG, headers.DEFLATED)

FREE_PIXELS, PIXELS_PER_BYTE = 1 << 20, 4096
"""A compressed frame may claim a million pixels, and as many more as 4096 for each of its bytes: an even
512 x 512 frame of JPEG 2000 has 2,600 pixels a byte."""

START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}
JPEG_LS, START_OF_SCAN = 0xF7, 0xDA
# Huffman, arithmetic and quantization tables, restart interval, JPEG-LS parameters, applications, comment.
TABLES = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xF8, *range(0xE0, 0xF0), 0xFE))
RESTARTS = frozenset(bytes([code]) for code in range(0xD0, 0xD8))
PROCESSES: Mapping[str, tuple[int, ...]] = {
    "JPEG baseline": (0xC0,),
    "JPEG extended": (0xC0, 0xC1),
    "JPEG lossless": (0xC3,),
    "JPEG-LS": (0xF7,),
}
"""The frame headers that each family may have."""


@dataclass(frozen=True, kw_only=True)
class Codestream:
    """What a compressed frame's own header says; `process` is the marker of a JPEG's frame header, `near` by how much a
    value of JPEG-LS may be off."""

    size: tuple[int, int]
    components: int
    precision: int
    signed: bool
    process: int = 0
    near: int = 0


def undecodable(reason: str, detail: str = "") -> SourceError:
    """The error of pixels that cannot be decoded."""
    return SourceError("decode", reason, detail)


def _jpeg_header(frame: bytes) -> Codestream:
    """The header of a JPEG or JPEG-LS frame of one scan, after a look at its structure.

    Nothing but tables, one frame header and one scan is let through: GDCM ends the whole process on a second
    start of image within the first.
    """
    if frame[:2] != b"\xff\xd8":
        raise damaged_pixels("a JPEG frame without a beginning")
    found, offset = None, 2
    while offset + 4 <= len(frame) and frame[offset] == 0xFF:
        marker, length = frame[offset + 1], int.from_bytes(frame[offset + 2 : offset + 4], "big")
        if marker == 0xFF:
            offset += 1
            continue
        if marker == START_OF_SCAN:
            if found is None or offset + 2 + length > len(frame):
                break
            inside = set(
                re.findall(rb"\xff+([^\x00\xff])", frame[offset + 2 + length :].rstrip(b"\0\xff")[:-2])
            )
            if found.process == JPEG_LS:
                inside = {code for code in inside if code[0] >= 0x80}  # A zero bit follows 0xFF there.
            if inside - RESTARTS:
                raise damaged_pixels("a JPEG frame of several scans or images")
            if found.process == JPEG_LS:
                # Components in the scan, two bytes for each, then NEAR (ITU-T T.87, C.2.3).
                return replace(found, near=frame[offset + 5 + 2 * frame[offset + 4]])
            return found
        if marker in START_OF_FRAME:
            if found is not None or offset + 10 > len(frame):
                break
            height, width = (int.from_bytes(frame[at : at + 2], "big") for at in (offset + 5, offset + 7))
            found = Codestream(
                size=(height, width),
                components=frame[offset + 9],
                precision=frame[offset + 4],
                signed=False,
                process=marker,
            )
        elif marker not in TABLES or length < 2:
            break
        offset += 2 + length
    raise damaged_pixels("a JPEG frame without a header")


def _jpeg_2000_header(frame: bytes) -> Codestream:
    start = frame[:512].find(b"\xff\x4f\xff\x51")
    if start < 0 or start + 45 > len(frame):
        raise damaged_pixels("a JPEG 2000 frame without a header")
    width, height, left, top = (
        int.from_bytes(frame[start + at : start + at + 4], "big") for at in (8, 12, 16, 20)
    )
    components = int.from_bytes(frame[start + 40 : start + 42], "big")
    precision = frame[start + 42]
    return Codestream(
        size=(height - top, width - left),
        components=components,
        precision=(precision & 0x7F) + 1,
        signed=precision >= 0x80,
    )


def _check_codestream(frame: bytes, family: str, stored: PixelFormat) -> Codestream:
    """What a frame says of itself; refused where it is cut off, of another size, or of a kind that nobody decodes."""
    rows, columns = stored.size
    if rows * columns > FREE_PIXELS + PIXELS_PER_BYTE * len(frame):
        raise too_short(f"{len(frame)} bytes for {rows} x {columns} pixels")
    if family == "RLE":
        check_run_lengths(frame, stored.bits_allocated // 8)
        return Codestream(
            size=stored.size, components=1, precision=stored.bits_allocated, signed=stored.signed
        )
    found = _jpeg_2000_header(frame) if family == "JPEG 2000" else _jpeg_header(frame)
    if found.size != stored.size:
        detail = f"a frame of {found.size[0]} x {found.size[1]} pixels, expected {rows} x {columns}"
        raise damaged_pixels(detail)
    if family in ("JPEG baseline", "JPEG extended") and found.precision != 8:
        raise undecodable("transfer syntax is not supported", f"{family} of {found.precision} bits")
    if found.components != 1 or not 2 <= found.precision <= min(stored.bits_allocated, 16):
        detail = f"{found.components} x {found.precision} bits in {stored.bits_allocated}"
        raise damaged_pixels(detail)
    if family in PROCESSES and found.process not in PROCESSES[family]:
        raise damaged_pixels(f"{family} with a frame header of type {found.process:02X}")
    # Decoders make up what a cut-off frame lacks and report success.
    if not frame.rstrip(b"\0\xff").endswith(b"\xff\xd9"):
        raise too_short(f"a frame of {len(frame)} bytes has no end mark")
    return found


def fragments(body: bytes, offset: int) -> list[tuple[int, int]]:
    """The pieces of compressed pixel data, the table before them first: where each begins, and its bytes.

    Raises:
        SourceError: they are cut off, or something else than pieces.
    """
    found = []
    while offset + 8 <= len(body):
        tag = int.from_bytes(body[offset : offset + 2], "little") << 16
        tag |= int.from_bytes(body[offset + 2 : offset + 4], "little")
        length = int.from_bytes(body[offset + 4 : offset + 8], "little")
        if tag == headers.SEQUENCE_END:
            break
        if tag != headers.ITEM:
            raise damaged_pixels("something else than pieces of frames")
        if offset + 8 + length > len(body):
            raise too_short(f"a piece ends at byte {offset + 8 + length} of {len(body)}")
        found.append((offset + 8, length))
        offset += 8 + length
    if len(found) < 2:
        raise too_short("no frames")
    return found


def compressed_frames(body: bytes, offset: int, count: int) -> list[list[tuple[int, int]]]:
    """The pieces of each frame.

    One piece a frame, or all pieces for the only frame, or as the table of offsets says.

    Raises:
        SourceError: fewer frames than `count`, or nothing says which piece is whose.
    """
    (table_at, table_length), *pieces = fragments(body, offset)
    if count == 1:
        return [pieces]
    if len(pieces) < count:
        raise too_short(f"{len(pieces)} pieces for {count} frames")
    if len(pieces) == count:
        return [[piece] for piece in pieces]
    starts = np.frombuffer(body, "<u4", table_length // 4, table_at).tolist()
    first = pieces[0][0] - 8
    begins = {piece[0] - 8 - first: index for index, piece in enumerate(pieces)}
    if len(starts) != count or any(start not in begins for start in starts) or starts != sorted(set(starts)):
        raise damaged_pixels(f"{len(pieces)} pieces for {count} frames, and no table of them")
    cuts = [*(begins[start] for start in starts), len(pieces)]
    return [pieces[start:stop] for start, stop in pairwise(cuts)]


def _decode(frame: bytes, facts: HeaderFields) -> tuple[NDArray[Any], int]:
    """The decoded frame, and by how much its values may be off by its own word."""
    (family, plugin), stored = PLUGINS[facts.syntax], facts.stored
    found = _check_codestream(frame, family, stored)
    if family == "RLE":
        return decode_run_lengths(frame, stored.bits_allocated // 8, stored.size), found.near
    options: dict[str, Any] = {
        "rows": stored.size[0],
        "columns": stored.size[1],
        "samples_per_pixel": 1,
        "number_of_frames": 1,
        "photometric_interpretation": "MONOCHROME2",
        "bits_allocated": 8 if found.precision <= 8 else 16,
        "bits_stored": found.precision,
        "pixel_representation": int(found.signed),
        "pixel_keyword": "PixelData",
        "correct_unused_bits": False,
    }
    try:
        decoder = get_decoder(facts.syntax)
        with unheard():
            array, _ = decoder.as_array(
                encapsulate([frame]), index=0, raw=True, validate=False, decoding_plugin=plugin, **options
            )
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:
        # The plug-ins raise anything on damaged bytes; Rust's panics are not even Exceptions.
        raise damaged_pixels(f"its {family} cannot be decoded") from None
    if array.shape != stored.size:
        raise damaged_pixels(f"{family}: decoded to {array.shape}")
    return np.asarray(array), found.near


class FrameReader:
    """The frames of one file, decoded one at a time.

    Args:
        body: the bytes in which the pixels lie, as `read_header` gives them.
        facts: of the same file.

    Raises:
        SourceError: the pixels are of an unsupported kind, or shorter than the header says.
    """

    def __init__(self, body: bytes, facts: HeaderFields) -> None:
        self._place = check_pixels(facts, len(body))
        self._body, self._facts = body, facts
        is_packed = facts.syntax in PLUGINS
        self._pieces = compressed_frames(body, self._place.offset, len(facts.frames)) if is_packed else []

    def words(self, index: int) -> tuple[NDArray[Any], int]:
        """The pixels of one frame as they are stored, unused bits included: unsigned [height, width].

        And by how much the values may be off, where a JPEG-LS says so; else 0.
        """
        stored = self._facts.stored
        dtype = np.dtype(f"u{stored.bits_allocated // 8}")
        if self._pieces:
            frame = b"".join(self._body[start : start + length] for start, length in self._pieces[index])
            array, near = _decode(frame, self._facts)
            if array.dtype.kind == "i":
                array = array.astype(f"i{dtype.itemsize}").view(dtype)
            return array.astype(dtype, copy=False), near
        pixels, is_big = stored.size[0] * stored.size[1], self._facts.syntax == headers.EXPLICIT_BIG
        if is_big and dtype.itemsize == 1 and self._place.words:
            # 8-bit pixels in 16-bit words: the two of a word lie in the other order.
            start = index * pixels
            even, stop = start - start % 2, start + pixels + (start + pixels) % 2
            pairs = np.frombuffer(self._body, "u1", stop - even, self._place.offset + even).reshape(-1, 2)
            return pairs[:, ::-1].reshape(-1)[start - even :][:pixels].reshape(stored.size), 0
        order: Literal["<", ">"] = ">" if is_big else "<"
        offset = self._place.offset + index * pixels * dtype.itemsize
        words = np.frombuffer(self._body, dtype.newbyteorder(order), pixels, offset)
        return words.astype(dtype, copy=False).reshape(stored.size), 0


def values_of(words: NDArray[Any], stored: PixelFormat) -> NDArray[Any]:
    """The values that stored words stand for: the used bits alone, with their sign.

    >>> few = PixelFormat(size=(1, 1), samples=1, photometric="", bits_allocated=16, bits_stored=12, high_bit=11,
    ...     signed=True, padding=None)
    >>> values_of(np.array([[0xF7FF, 0x0800]], np.uint16), few).tolist()
    [[2047, -2048]]
    """
    signed = f"i{words.dtype.itemsize}"
    above, below = stored.bits_allocated - 1 - stored.high_bit, stored.high_bit + 1 - stored.bits_stored
    # What lies above is shifted out at the top; the way back down brings zeros, or copies of the sign.
    raised = words << words.dtype.type(above) if above else words
    raised = raised.view(signed) if stored.signed else raised
    return np.asarray(raised >> raised.dtype.type(above + below) if above + below else raised)


def check_pixels(facts: HeaderFields, byte_count: int | None) -> PixelPlace:
    """Where the pixels of an image lie; refused before they are read where they cannot be what the header says.

    Args:
        byte_count: of the file, or of its inflated data set; None while that is not inflated.

    Raises:
        SourceError: of stage `decode`.
    """
    stored, place = facts.stored, facts.pixels
    assert place is not None
    if facts.syntax not in PLUGINS and facts.syntax not in UNCOMPRESSED:
        raise undecodable("transfer syntax is not supported")
    if place.kind != "integer":
        cure = "save it as NIfTI (3D Slicer does, or paramap2itkimage of dcmqi), then --layout pairs or csv"
        raise undecodable("floating-point pixels are not supported", f"a parametric map; {cure}")
    if stored.bits_allocated not in (8, 16, 32):
        raise undecodable("bit depth is not supported", f"{stored.bits_allocated} bits allocated")
    rows, columns = stored.size
    pixels = rows * columns * len(facts.frames)
    held = max(0, byte_count - place.offset) if byte_count is not None else place.length or 0
    if facts.syntax in PLUGINS:
        if place.length is not None:
            raise damaged_pixels("compressed pixels that are not in pieces")
        if pixels > FREE_PIXELS * len(facts.frames) + PIXELS_PER_BYTE * held:
            raise too_short(f"{held} bytes for {len(facts.frames)} x {rows} x {columns} pixels")
        return place
    needed = pixels * stored.bits_allocated // 8
    if place.length is None or min(place.length, held) < needed:
        raise too_short(f"{min(place.length or 0, held)} bytes of pixels, expected {needed}")
    return place
