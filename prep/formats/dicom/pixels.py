"""Decoder of the stored values of DICOM frames.

file --(fragments, compressed_frames)--> bytes of one frame --(FrameReader.words)--> stored words
stored words --(extract_values)--> stored values, without unused bits and with their sign
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydicom.encaps import encapsulate
from pydicom.pixels.decoders.base import get_decoder
from rle.rle import decode_segment

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import PixelFormat
from halofeed.prep.formats.dicom.headers import PixelLocation
from halofeed.prep.formats.dicom.jpeg_xl import JPEG_XL, decode_jpeg_xl, jpeg_xl_size
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

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
            (JPEG_XL, "imagecodecs"): (110, 111, 112),
        }.items()
        for number in numbers
    },
}
"""For each transfer syntax the codec of its frames, and the pydicom plug-in that decodes them."""

UNCOMPRESSED = (headers.IMPLICIT_LITTLE, headers.EXPLICIT_LITTLE, headers.EXPLICIT_BIG, headers.DEFLATED)

SLICE_BIT_DEPTHS = (8, 16, 32)
"""Bits of the words of slices; images of one bit are segmentations or secondary captures (PS3.3 A.51, A.8.2)."""
FREE_PIXELS, PIXELS_PER_BYTE = 1 << 20, 4096
"""Limit on the pixels of a compressed frame: a million, and 4096 more for each of its bytes. For comparison, a
constant 512 x 512 frame of JPEG 2000 has 2,600 pixels per byte."""

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
"""The frame headers that each codec may have."""
RLE_HEADER_BYTES = 64


class _SilencedThreads(logging.Filter):
    """Filter that drops pydicom's log records in silenced threads, because they may quote a damaged header."""

    def __init__(self) -> None:
        super().__init__()
        self.state = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.state, "silenced", False)


_SILENCED_THREADS = _SilencedThreads()
for _name in (
    "pydicom",
    "pydicom.pixels.decoders.base",
    "pydicom.pixels.utils",
    "openjpeg.utils",
    "openjpeg.decode",
):
    # A logger's filter does not apply to the records of its child loggers.
    logging.getLogger(_name).addFilter(_SILENCED_THREADS)


@contextlib.contextmanager
def _silence_pydicom() -> Iterator[None]:
    """Suppress pydicom's warnings and log records. Concurrent use may suppress warnings for longer."""
    state = _SILENCED_THREADS.state
    before = getattr(state, "silenced", False)
    state.silenced = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pydicom")
            yield
    finally:
        state.silenced = before


def damaged_pixels(detail: str) -> SourceError:
    """Return the error for pixel data that contradicts its header."""
    return SourceError("decode", "pixel data is damaged", detail)


def truncated_pixels(detail: str) -> SourceError:
    """Return the error for pixel data that ends early."""
    return SourceError("decode", "pixel data is truncated", f"{detail}; copy or download the file again")


def check_run_lengths(frame: bytes, planes: int) -> list[int]:
    """Return the offsets at which the byte planes of an RLE frame begin, and the end of the last one.

    Raises:
        SourceError: the RLE header does not list `planes` byte planes in ascending order.
    """
    # PS3.5 G.5: the number of segments, then up to 15 offsets. A segment holds one byte of each pixel.
    header = frame[:RLE_HEADER_BYTES].ljust(RLE_HEADER_BYTES, b"\0")
    count, *offsets = np.frombuffer(header, "<u4").tolist()
    if count != planes or offsets[0] != RLE_HEADER_BYTES or offsets[:planes] != sorted(set(offsets[:planes])):
        raise damaged_pixels(f"run lengths of {count} planes, expected {planes}")
    if offsets[planes - 1] >= len(frame):
        raise truncated_pixels(f"run lengths from byte {offsets[planes - 1]} of {len(frame)}")
    return [*offsets[:planes], len(frame)]


def decode_rle(
    frame: bytes, planes: int, size: tuple[int, int], samples: int = 1
) -> NDArray[np.unsignedinteger]:
    """Decode an RLE frame into unsigned pixels [row, column], or [row, column, sample] of several samples.

    Args:
        frame: the compressed frame.
        planes: number of byte planes, which is the bytes of a pixel with all of its samples.
        size: (rows, columns).
        samples: values per pixel.

    Raises:
        SourceError: the header or the runs do not match the number of pixels. Zeros after the runs are padding.
    """
    offsets = check_run_lengths(frame, planes)
    count, word_bytes = size[0] * size[1], planes // samples
    pixels = np.empty((count, samples, word_bytes), np.uint8)
    for plane in range(planes):
        try:
            decoded = bytes(decode_segment(frame[offsets[plane] : offsets[plane + 1]]))
        except ValueError as error:
            raise damaged_pixels("the last run is truncated") from error
        if len(decoded) < count or any(decoded[count:]):
            raise damaged_pixels(f"run lengths of {plural(len(decoded), 'value')}, expected {count}")
        # PS3.5 G.2: all planes of a sample follow each other, and the most significant byte comes first.
        sample, byte = divmod(plane, word_bytes)
        pixels[:, sample, word_bytes - 1 - byte] = np.frombuffer(decoded, np.uint8, count)
    return pixels.view(f"<u{word_bytes}").reshape(size if samples == 1 else (*size, samples))


@dataclass(frozen=True, kw_only=True)
class Codestream:
    """Header of a compressed frame.

    Args:
        size: (rows, columns).
        components: values per pixel.
        precision: bits per value.
        signed: whether the values are signed.
        process: marker of the frame header of a JPEG; 0 for other codecs.
        near: largest error of a value in JPEG-LS; 0 for other codecs.
    """

    size: tuple[int, int]
    components: int
    precision: int
    signed: bool
    process: int = 0
    near: int = 0


def frame_error(reason: str, detail: str = "") -> SourceError:
    """Return the error for pixels that cannot be decoded."""
    return SourceError("decode", reason, detail)


def _jpeg_header(frame: bytes) -> Codestream:
    """Check the structure of a JPEG or JPEG-LS frame and return its header.

    Only tables, one frame header and one scan are allowed, because GDCM aborts the process on a second start of image;
    JPEG-LS may have a scan for each color.
    """
    if frame[:2] != b"\xff\xd8":
        raise damaged_pixels("a JPEG frame without a start marker")
    header: Codestream | None = None
    for marker, offset, length in _jpeg_segments(frame):
        if marker == START_OF_SCAN and header is not None and offset + 2 + length <= len(frame):
            return _check_scan(frame, offset, length, header)
        if marker in START_OF_FRAME and header is None and offset + 10 <= len(frame):
            header = _frame_header(frame, offset, marker)
        elif marker not in TABLES or length < 2:
            break
    raise damaged_pixels("a JPEG frame without a header")


def _jpeg_segments(frame: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker, the offset and the length of each marker segment of a JPEG (ITU-T T.81, B.1.1)."""
    offset = 2
    while offset + 4 <= len(frame) and frame[offset] == 0xFF:
        marker, length = frame[offset + 1], int.from_bytes(frame[offset + 2 : offset + 4], "big")
        # T.81, B.1.1.2: any number of 0xFF may precede a marker.
        if marker == 0xFF:
            offset += 1
            continue
        yield marker, offset, length
        offset += 2 + length


def _frame_header(frame: bytes, offset: int, marker: int) -> Codestream:
    """Return the frame header at an offset (ITU-T T.81, B.2.2): precision, height, width, components."""
    height, width = (int.from_bytes(frame[at : at + 2], "big") for at in (offset + 5, offset + 7))
    return Codestream(
        size=(height, width),
        components=frame[offset + 9],
        precision=frame[offset + 4],
        signed=False,
        process=marker,
    )


def _check_scan(frame: bytes, offset: int, length: int, header: Codestream) -> Codestream:
    """Return the header with what the scan states, after a check that the scan is the only one.

    Args:
        frame: the JPEG.
        offset: offset of the scan header.
        length: bytes of the scan header.
        header: the frame header.
    """
    scan = frame[offset + 2 + length :].rstrip(b"\0\xff")[:-2]
    markers = set(re.findall(rb"\xff+([^\x00\xff])", scan))
    if header.process == JPEG_LS:
        # JPEG-LS stuffs a zero bit after 0xFF, and not a zero byte, so that only codes from 0x80 on are markers.
        markers = {code for code in markers if code[0] >= 0x80}
        # A scan per color is one of the three interleave modes (ITU-T T.87, C.2.3).
        if header.components > 1:
            markers -= {bytes([START_OF_SCAN])}
    if markers - RESTARTS:
        raise damaged_pixels("a JPEG frame of several scans or images")
    if header.process == JPEG_LS:
        # The number of components, two bytes for each, then NEAR (ITU-T T.87, C.2.3).
        return replace(header, near=frame[offset + 5 + 2 * frame[offset + 4]])
    return header


def _jpeg_2000_header(frame: bytes) -> Codestream:
    # SOC and SIZ begin the codestream (ITU-T T.800, A.4.1, A.5.1). The boxes of a JP2 file may come before them.
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


def _check_codestream(frame: bytes, codec: str, stored: PixelFormat) -> Codestream:
    """Return the header of a compressed frame.

    Raises:
        SourceError: the frame is truncated, contradicts `stored`, or has a format that no plug-in decodes.
    """
    if codec == "RLE":
        check_run_lengths(frame, stored.word_bytes * stored.samples)
        return Codestream(
            size=stored.size,
            components=stored.samples,
            precision=stored.bits_allocated,
            signed=stored.signed,
        )
    header = _jpeg_2000_header(frame) if codec == "JPEG 2000" else _jpeg_header(frame)
    _check_pixel_format(header, codec, stored)
    # A plug-in may read a frame of another process than the transfer syntax names, and return other values.
    if codec in PROCESSES and header.process not in PROCESSES[codec]:
        raise damaged_pixels(f"{codec} with a frame header of type {header.process:02X}")
    # Decoders invent the missing pixels of a truncated frame and report success.
    if not frame.rstrip(b"\0\xff").endswith(b"\xff\xd9"):
        raise truncated_pixels(f"a frame of {plural(len(frame), 'byte')} has no end mark")
    return header


def _check_pixel_format(header: Codestream, codec: str, stored: PixelFormat) -> None:
    """Refuse a frame whose size or bits are not those that the file states, or that no plug-in decodes."""
    (height, width), (rows, columns) = header.size, stored.size
    if header.size != stored.size:
        raise damaged_pixels(f"a frame of {height} x {width} pixels, expected {rows} x {columns}")
    # Pillow's libjpeg decodes 8 bits only; 12 bits need another build of it.
    if codec in ("JPEG baseline", "JPEG extended") and header.precision != 8:
        raise frame_error("transfer syntax is not supported", f"{codec} of {header.precision} bits")
    # T.81 and T.87 begin at 2 bits per value. The word has to hold the value, and no plug-in decodes more than 16 bits.
    least = min(2, stored.bits_allocated)
    is_possible = least <= header.precision <= min(stored.bits_allocated, 16)
    if header.components != stored.samples or not is_possible:
        detail = f"{header.components} x {header.precision} bits in {stored.bits_allocated}"
        raise damaged_pixels(detail)


class Sliceable(Protocol):
    """Bytes of a file, which may be read where they are sliced."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes: ...


def fragments(body: Sliceable, offset: int) -> list[tuple[int, int]]:
    """Return the (offset, length) of each fragment of compressed pixel data; the first is the offset table.

    Raises:
        SourceError: the data is truncated, or contains elements other than fragments.
    """
    found = []
    while offset + 8 <= len(body):
        group, number, length = struct.unpack("<HHI", body[offset : offset + 8])
        tag = group << 16 | number
        if tag == headers.SEQUENCE_END:
            break
        if tag != headers.ITEM:
            raise damaged_pixels("elements other than fragments of frames")
        if offset + 8 + length > len(body):
            raise truncated_pixels(f"a fragment ends at byte {offset + 8 + length} of {len(body)}")
        found.append((offset + 8, length))
        offset += 8 + length
    if len(found) < 2:
        raise truncated_pixels("no frames")
    return found


def compressed_frames(body: Sliceable, offset: int, count: int) -> list[list[tuple[int, int]]]:
    """Return the (offset, length) of the fragments of each frame.

    A frame has one fragment, or the only frame has all of them, or the basic offset table assigns them.

    Raises:
        SourceError: there are fewer fragments than frames, or no valid offset table assigns them.
    """
    (table_at, table_length), *pieces = fragments(body, offset)
    if count == 1:
        return [pieces]
    if len(pieces) < count:
        raise truncated_pixels(f"{plural(len(pieces), 'fragment')} for {plural(count, 'frame')}")
    # PS3.5 A.4: the table may be empty. It is not needed where each frame is one fragment.
    if len(pieces) == count:
        return [[piece] for piece in pieces]
    starts = np.frombuffer(body[table_at : table_at + table_length // 4 * 4], "<u4").tolist()
    return _frames_of_table(pieces, starts, count)


def _frames_of_table(
    pieces: Sequence[tuple[int, int]], starts: Sequence[int], count: int
) -> list[list[tuple[int, int]]]:
    """Return the fragments of each frame by the basic offset table.

    PS3.5 A.4: it holds the offset of each frame's first fragment, from the first byte of the first fragment's item tag.
    """
    first = pieces[0][0] - 8
    index_at = {piece[0] - 8 - first: index for index, piece in enumerate(pieces)}
    ascending = list(starts) == sorted(set(starts))
    if len(starts) != count or not ascending or not index_at.keys() >= set(starts):
        detail = f"{plural(len(pieces), 'fragment')} for {plural(count, 'frame')}, and no table of them"
        raise damaged_pixels(detail)
    cuts = [*(index_at[start] for start in starts), len(pieces)]
    return [list(pieces[start:stop]) for start, stop in pairwise(cuts)]


def _decode(
    frame: bytes, syntax: str, stored: PixelFormat, color: str = "MONOCHROME2"
) -> tuple[NDArray[Any], Codestream]:
    """Decode a compressed frame; return it with the header of its codestream.

    Args:
        frame: the compressed frame.
        syntax: UID of the transfer syntax.
        stored: storage format of the pixels.
        color: Photometric Interpretation; YBR_FULL and YBR_FULL_422 are converted to RGB, except for RLE.
    """
    codec, plugin = PLUGINS[syntax]
    if codec == JPEG_XL:
        decoded = _decode_jpeg_xl(frame, stored)
        header = Codestream(
            size=stored.size, components=1, precision=8 * decoded.dtype.itemsize, signed=False
        )
        return decoded, header
    header = _check_codestream(frame, codec, stored)
    if codec == "RLE":
        planes = decode_rle(frame, stored.word_bytes * stored.samples, stored.size, stored.samples)
        return planes, header
    options: dict[str, Any] = {
        "rows": stored.size[0],
        "columns": stored.size[1],
        "samples_per_pixel": stored.samples,
        "number_of_frames": 1,
        "photometric_interpretation": color,
        "bits_allocated": 8 if header.precision <= 8 else 16,
        "bits_stored": header.precision,
        "pixel_representation": int(header.signed),
        "pixel_keyword": "PixelData",
        "correct_unused_bits": False,
    }
    # The plug-ins change it where the codestream has the colors in planes.
    if stored.samples > 1:
        options["planar_configuration"] = 0
    try:
        decoder = get_decoder(syntax)
        with _silence_pydicom():
            array, _ = decoder.as_array(
                encapsulate([frame]),
                index=0,
                raw=stored.samples == 1,
                validate=False,
                decoding_plugin=plugin,
                **options,
            )
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:
        # The plug-ins may raise any type for damaged bytes; the panics of Rust are not subclasses of Exception.
        raise damaged_pixels(f"its {codec} cannot be decoded") from None
    if array.shape != (stored.size if stored.samples == 1 else (*stored.size, stored.samples)):
        raise damaged_pixels(f"{codec}: decoded to {array.shape}")
    return np.asarray(array), header


def _decode_jpeg_xl(frame: bytes, stored: PixelFormat) -> NDArray[Any]:
    # JPEG XL has no signed integers, and how writers store them as unsigned ones is not known from any file.
    if stored.signed or stored.bits_allocated > 16 or stored.samples > 1:
        sign = "signed " if stored.signed else ""
        detail = f"{JPEG_XL} of {stored.samples} x {sign}{stored.bits_allocated} bits"
        raise frame_error("transfer syntax is not supported", detail)
    size = jpeg_xl_size(frame)
    if size != stored.size:
        rows, columns = stored.size
        found = "no header" if size is None else f"a header of {size[0]} x {size[1]} pixels"
        raise damaged_pixels(f"{JPEG_XL}: {found}, expected {rows} x {columns}")
    decoded = decode_jpeg_xl(frame)
    if decoded.shape != stored.size or decoded.dtype != np.dtype(f"u{stored.bits_allocated // 8}"):
        raise damaged_pixels(f"{JPEG_XL}: decoded to {decoded.dtype} {decoded.shape}")
    return decoded


class FrameReader:
    """Reader of the frames of one file, which decodes one frame at a time.

    Args:
        body: the bytes that hold the pixels, as `parse_dicom_header` returns them.
        location: location of the pixels in them.
        syntax: UID of the transfer syntax.
        stored: storage format of the pixels, which was checked.
        count: number of frames.

    Raises:
        SourceError: compressed pixels are not divided into frames.
    """

    def __init__(
        self, body: Sliceable, location: PixelLocation, syntax: str, stored: PixelFormat, count: int
    ) -> None:
        self._body, self._location, self._syntax, self._stored = body, location, syntax, stored
        self._fragments = compressed_frames(body, location.offset, count) if syntax in PLUGINS else []

    def on(self, body: Sliceable) -> FrameReader:
        """Return a reader of the same frames in other bytes, which hold the same file."""
        other = copy(self)
        other._body = body
        return other

    def frame_bytes(self, index: int) -> int:
        """Return the bytes of a frame in the file."""
        if self._fragments:
            return sum(length for _, length in self._fragments[index])
        stored = self._stored
        return -(-stored.size[0] * stored.size[1] * stored.samples * stored.bits_allocated // 8)

    def words(self, index: int) -> tuple[NDArray[Any], int]:
        """Return the stored words of one frame, and the largest error of a value that JPEG-LS states, else 0.

        The words are unsigned [height, width] and contain the unused bits.
        """
        stored = self._stored
        dtype = np.dtype(f"u{stored.word_bytes}")
        if self._fragments:
            frame = b"".join(self._body[start : start + length] for start, length in self._fragments[index])
            array, header = _decode(frame, self._syntax, stored)
            # Plug-ins return signed values for a signed codestream: the sign goes back into the word's bits.
            if array.dtype.kind == "i":
                array = array.astype(f"i{dtype.itemsize}").view(dtype)
            return array.astype(dtype, copy=False), header.near
        return self._plain_words(index, dtype).reshape(stored.size), 0

    def plain_samples(self, index: int) -> NDArray[Any]:
        """Return all stored words of one uncompressed frame [value], in the order of the file."""
        return self._plain_words(index, np.dtype(f"u{self._stored.word_bytes}"))

    def _plain_words(self, index: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        stored, is_big = self._stored, self._syntax == headers.EXPLICIT_BIG
        count = stored.size[0] * stored.size[1] * stored.samples
        start = index * count
        if stored.bits_allocated == 1:
            # PS3.5 8.1.1: frames are not padded to bytes, so a frame may begin within a byte.
            first, end = start // 8, (start + count + 7) // 8
            packed = self._part(first, end - first, np.dtype("u1"))
            return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + count]
        if is_big and dtype.itemsize == 1 and self._location.words:
            # PS3.5 7.3: 8-bit pixels in big-endian 16-bit words, so that the two pixels of each word are swapped.
            even, stop = start - start % 2, start + count + (start + count) % 2
            pairs = self._part(even, stop - even, np.dtype("u1")).reshape(-1, 2)
            return pairs[:, ::-1].reshape(-1)[start - even :][:count]
        order: Literal["<", ">"] = ">" if is_big else "<"
        words = self._part(start * dtype.itemsize, count, dtype.newbyteorder(order))
        return words.astype(dtype, copy=False)

    def _part(self, start: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return numbers of uncompressed pixels from a byte of them on; without a copy of bytes in memory."""
        offset = self._location.offset + start
        if isinstance(self._body, bytes):
            return np.frombuffer(self._body, dtype, count, offset)
        part = self._body[offset : offset + count * dtype.itemsize]
        # The file became shorter since its header was read.
        if len(part) < count * dtype.itemsize:
            raise truncated_pixels(f"{plural(len(part), 'byte')} of a frame")
        return np.frombuffer(part, dtype)

    def colors(self, index: int, color: str) -> tuple[NDArray[Any], int]:
        """Return the decoded colors [height, width, sample] of a compressed frame, and the bits of a sample.

        Args:
            index: number of the frame, from 0.
            color: Photometric Interpretation, as for `_decode`.
        """
        pieces = self._fragments[index]
        frame = b"".join(self._body[start : start + length] for start, length in pieces)
        array, header = _decode(frame, self._syntax, self._stored, color)
        return array, self._stored.bits_stored if self._syntax == RUN_LENGTHS else header.precision

    def check_density(self) -> None:
        """Refuse a compressed frame of far fewer bytes than an image of its size takes; a mask may be even smaller.

        Raises:
            SourceError: a frame is truncated.
        """
        rows, columns = self._stored.size
        for pieces in self._fragments:
            held = sum(length for _, length in pieces)
            if rows * columns > FREE_PIXELS + PIXELS_PER_BYTE * held:
                raise truncated_pixels(f"{plural(held, 'byte')} for {rows} x {columns} pixels")


class StoredPixels(Protocol):
    """Header fields that state how pixels are stored."""

    @property
    def pixels(self) -> PixelLocation | None:
        """Location of the pixels."""

    @property
    def stored(self) -> PixelFormat:
        """Storage format of the pixels."""

    @property
    def syntax(self) -> str:
        """UID of the transfer syntax."""

    @property
    def frames(self) -> Sequence[object]:
        """The frames."""


def read_frames(
    body: Sliceable, fields: StoredPixels, bit_depths: Sequence[int] = SLICE_BIT_DEPTHS
) -> FrameReader:
    """Return the reader of the frames of an image.

    Args:
        body: the bytes that hold the pixels.
        fields: header fields of the file.
        bit_depths: allowed bits of a word.

    Raises:
        SourceError: the format of the pixels is not supported, or the header states more pixels than there are.
    """
    location = check_pixels(fields, len(body), bit_depths)
    reader = FrameReader(body, location, fields.syntax, fields.stored, len(fields.frames))
    reader.check_density()
    return reader


def extract_values(words: NDArray[Any], stored: PixelFormat) -> NDArray[Any]:
    """Return the values of stored words: only the used bits, with their sign.

    >>> few = PixelFormat(size=(1, 1), samples=1, photometric="", bits_allocated=16, bits_stored=12, high_bit=11,
    ...     signed=True, padding=None)
    >>> extract_values(np.array([[0xF7FF, 0x0800]], np.uint16), few).tolist()
    [[2047, -2048]]
    """
    if stored.is_float:
        return words.view(f"f{words.dtype.itemsize}")
    signed = f"i{words.dtype.itemsize}"
    above, below = stored.bits_allocated - 1 - stored.high_bit, stored.high_bit + 1 - stored.bits_stored
    # The left shift drops the bits above the value; the right shift fills up with zeros or with the sign.
    raised = words << words.dtype.type(above) if above else words
    raised = raised.view(signed) if stored.signed else raised
    return np.asarray(raised >> raised.dtype.type(above + below) if above + below else raised)


def check_pixels(
    fields: StoredPixels, byte_count: int | None, bit_depths: Sequence[int] = SLICE_BIT_DEPTHS
) -> PixelLocation:
    """Return the location of an image's pixels, after a check of the header that reads no pixel.

    Args:
        fields: header fields of the file.
        byte_count: size of the file, or of its inflated data set; None if it is not inflated yet.
        bit_depths: allowed bits of a word.

    Raises:
        SourceError: the format is not supported, or the pixels cannot be those that the header states.
    """
    location = fields.pixels
    assert location is not None
    _check_format(fields, location, bit_depths)
    held = max(0, byte_count - location.offset) if byte_count is not None else location.length or 0
    check_length = _check_compressed if fields.syntax in PLUGINS else _check_uncompressed
    check_length(fields, location, held)
    return location


def _check_format(fields: StoredPixels, location: PixelLocation, bit_depths: Sequence[int]) -> None:
    """Refuse a transfer syntax or a format of pixels that is not read."""
    stored = fields.stored
    if fields.syntax not in PLUGINS and fields.syntax not in UNCOMPRESSED:
        raise frame_error("transfer syntax is not supported")
    if location.kind != "integer" and not (stored.is_float and fields.syntax in UNCOMPRESSED):
        # It states a padding value, or is compressed.
        cure = "save it as NIfTI (3D Slicer does, or paramap2itkimage of dcmqi), then --layout pairs or csv"
        raise frame_error("floating-point pixels are not supported", f"a parametric map; {cure}")
    if stored.bits_allocated not in bit_depths and not stored.is_float:
        raise frame_error("bit depth is not supported", f"{stored.bits_allocated} bits allocated")


def _check_compressed(fields: StoredPixels, location: PixelLocation, held: int) -> None:
    """Refuse compressed pixels of far fewer bytes than frames of their size take; `held` is the bytes of the file."""
    # PS3.5 A.4: encapsulated pixels have an undefined length.
    if location.length is not None:
        raise damaged_pixels("compressed pixels that are not in fragments")
    (rows, columns), frames = fields.stored.size, len(fields.frames)
    if rows * columns * frames > FREE_PIXELS * frames + PIXELS_PER_BYTE * held:
        raise truncated_pixels(f"{plural(held, 'byte')} for {frames} x {rows} x {columns} pixels")


def _check_uncompressed(fields: StoredPixels, location: PixelLocation, held: int) -> None:
    """Refuse pixels of fewer bytes than the frames take; `held` is the bytes of the file from the first pixel on."""
    rows, columns = fields.stored.size
    values = rows * columns * fields.stored.samples * len(fields.frames)
    needed = (values * fields.stored.bits_allocated + 7) // 8
    found = min(location.length or 0, held)
    if location.length is None or found < needed:
        raise truncated_pixels(f"{plural(found, 'byte')} of pixels, expected {needed}")
