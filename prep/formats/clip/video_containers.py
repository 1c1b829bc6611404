"""Readers of video containers: AVI, Matroska and WebM, MP4 and QuickTime."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.clip.opened_clip import check_frame_count
from halofeed.prep.formats.picture.image import Size, damaged_error, decode_error, truncated_error
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

MAX_CONTAINER_ELEMENTS = 5_000_000
"""Maximum boxes, chunks or elements in a file."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Container:
    """Headers and tables of a video file.

    Args:
        size: stored (height, width) of the first video track.
        codec: name of the codec in the container.
        packets: number of complete compressed frames.
        declared: number of frames that the headers declare; None if they do not.
        end: end of the complete frames in the file; later bytes belong to an incomplete frame.
        is_cut: whether the file ends before its container does.
        orientation: EXIF orientation, 1 to 8.
        hides_frames: whether the container declares that some frames are not shown.
        is_interlaced: whether the container declares interlaced frames.
        has_alpha: whether the container declares transparency.
        times_s: times of the complete frames, if only the container has them.
    """

    size: Size
    codec: str
    packets: int
    declared: int | None
    end: int
    is_cut: bool
    orientation: int = 1
    hides_frames: bool = False
    is_interlaced: bool = False
    has_alpha: bool = False
    times_s: tuple[float, ...] | None = None


def _printable(name: bytes) -> str:
    """Return a short name as text, with "?" for bytes that are not printable.

    >>> _printable(b"av01"), _printable(bytes([0, 0x58, 0x59, 0xFF]))
    ('av01', '?XY?')
    """
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in name[:40])


def unsupported_matrix(what: str) -> SourceError:
    """Return the error of a video whose display matrix is not a combination of quarter turns and a mirroring."""
    return decode_error(
        "display matrix is not supported", f"{what} does not turn by quarter turns; export it upright"
    )


def no_video(tracks: int) -> SourceError:
    """Return the error of a file without a video track."""
    detail = f"{tracks} track{'s' * (tracks != 1)}, none of them video; leave it out"
    return decode_error("file has no video", f"audio only: {detail}" if tracks else "no track at all")


def limit_elements(elements: Iterator[_T]) -> Iterator[_T]:
    """Yield elements; raise SourceError if there are too many to read in reasonable time."""
    for number, element in enumerate(elements):
        if number >= MAX_CONTAINER_ELEMENTS:
            raise damaged_error(f"more than {MAX_CONTAINER_ELEMENTS:,} elements")
        yield element


AVI_VIDEO = b"vids"
AVI_LISTS = (b"RIFF", b"LIST")


def _avi_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, start of the payload, its length) of every chunk, in file order; lists are expanded.

    The type of a list is that of its contents, and its chunks follow. A chunk may extend beyond the file.
    """
    at = 0
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind in AVI_LISTS:  # a list begins with the type of its contents
            yield bytes(data[at + 8 : at + 12]), at + 12, max(length, 4) - 4
            at += 12
            continue
        yield kind, at + 8, length
        at += 8 + length + length % 2  # chunks begin at even bytes


@dataclass
class _AviStream:
    """AVI stream. `slots` counts its chunks in the header; each lasts `slot_s`, even without a frame."""

    kind: bytes
    slots: int
    slot_s: float
    size: Size = (0, 0)
    codec: bytes = b""


def _avi_streams(data: bytes) -> list[_AviStream]:
    """Read the headers of all streams, up to the list of frames."""
    streams: list[_AviStream] = []
    for kind, at, length in limit_elements(_avi_chunks(data)):
        if kind == b"movi":
            break
        if kind == b"strh":
            streams.append(_avi_stream(data, at, length))
        # The format of a stream follows its header; only that of video is a BITMAPINFOHEADER.
        if kind == b"strf" and streams and streams[-1].kind == AVI_VIDEO:
            _read_avi_format(data, at, length, streams[-1])
    return streams


def _avi_stream(data: bytes, at: int, length: int) -> _AviStream:
    if length < 48 or at + 48 > len(data):
        raise truncated_error("no room for a stream's header")
    scale, rate, _, slots = struct.unpack_from("<4I", data, at + 20)
    return _AviStream(kind=bytes(data[at : at + 4]), slots=slots, slot_s=scale / max(1, rate))


def _read_avi_format(data: bytes, at: int, length: int, stream: _AviStream) -> None:
    if length < 20 or at + 20 > len(data):
        raise truncated_error("no room for a stream's format")
    width, height = struct.unpack_from("<ii", data, at + 4)
    # BITMAPINFOHEADER: a negative height stores the rows from the top to the bottom.
    stream.size, stream.codec = (abs(height), abs(width)), bytes(data[at + 16 : at + 20])


@dataclass(frozen=True, kw_only=True)
class _AviFrames:
    """Chunks of one AVI stream.

    Args:
        filled: numbers of the chunks that hold a frame; the others repeat the frame before.
        slots: number of all chunks.
        incomplete_at: start of the chunk at which the file ends; None if it has all of them.
    """

    filled: list[int]
    slots: int
    incomplete_at: int | None


def _avi_frames(data: bytes, number: int) -> _AviFrames | None:
    """Read the chunks of a stream; None if there is no list of frames."""
    in_movi, slots = False, 0
    filled: list[int] = []
    wanted = tuple(f"{number:02d}{ending}".encode() for ending in ("dc", "db"))
    for kind, at, length in limit_elements(_avi_chunks(data)):
        in_movi = in_movi or kind == b"movi"
        # Names of chunks with frames begin with the stream's two digits; an index and padding are between them.
        if not in_movi or not kind[:2].isdigit():
            continue
        if at + length > len(data):
            return _AviFrames(filled=filled, slots=slots, incomplete_at=at - 8)
        if kind in wanted:
            filled += [slots] if length else []
            slots += 1
    return _AviFrames(filled=filled, slots=slots, incomplete_at=None) if in_movi else None


def read_avi(data: bytes) -> Container:
    """Read the headers and count the chunks of the first video stream.

    Raises:
        SourceError: there is no video, or the file is damaged or ends within the headers.

    Source: AVI RIFF File Reference; OpenDML AVI File Format Extensions 1.02.
    """
    streams = _avi_streams(data)
    is_cut = _is_riff_cut(data)
    number = _first_avi_video(streams, is_cut)
    frames = _avi_frames(data, number)
    if frames is None:
        if is_cut:
            raise truncated_error("it ends before the first frame")
        raise damaged_error("no list of frames (movi)")
    # A list that is longer than the file already shows that its end is missing.
    if frames.incomplete_at is not None and not is_cut:
        _check_recording_stopped(data, frames.incomplete_at)
    stream = streams[number]
    return Container(
        size=stream.size,
        codec=_printable(stream.codec),
        packets=len(frames.filled),
        declared=max(0, stream.slots - (frames.slots - len(frames.filled))) or None,
        end=len(data) if frames.incomplete_at is None else frames.incomplete_at,
        is_cut=is_cut or frames.incomplete_at is not None,
        times_s=tuple(slot * stream.slot_s for slot in frames.filled),
    )


def _first_avi_video(streams: list[_AviStream], is_cut: bool) -> int:
    """Return the number of the first video stream; SourceError says why there is none."""
    number = next((number for number, stream in enumerate(streams) if stream.kind == AVI_VIDEO), None)
    if number is not None:
        return number
    if is_cut and not streams:
        raise truncated_error("it ends within its headers")
    raise no_video(len(streams))


def _is_riff_cut(data: bytes) -> bool:
    """Return whether a list of the whole file is longer than the file.

    A file above 1 GB has another list, of kind AVIX, for each further gigabyte (OpenDML 1.02).
    """
    return any(
        at + length > len(data)
        for kind, at, length in limit_elements(_avi_chunks(data))
        if kind in (b"AVI ", b"AVIX")
    )


def _check_recording_stopped(data: bytes, at: int) -> None:
    """Refuse a chunk that is longer than the file, unless the recorder stopped before it wrote the file's length."""
    (riff_length,) = struct.unpack_from("<I", data, 4)
    if riff_length:
        kind, length = struct.unpack_from("<4sI", data, at)
        raise damaged_error(
            f"chunk {kind!r} of {plural(length, 'byte')} at byte {at} is longer than the file"
        )


SEGMENT, INFO, TRACKS, TRACK, MATROSKA_VIDEO = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0
TRACK_NUMBER, TRACK_TYPE, CODEC, PIXEL_WIDTH, PIXEL_HEIGHT = 0xD7, 0x83, 0x86, 0xB0, 0xBA
CLUSTER, GROUP, BLOCK, SIMPLE_BLOCK = 0x1F43B675, 0xA0, 0xA1, 0xA3
INTERLACED, ALPHA, PROJECTION, YAW, PITCH, ROLL = 0x9A, 0x53C0, 0x7670, 0x7673, 0x7674, 0x7675
DOCUMENT_TYPE, CHECKSUM = 0x4282, 0xBF
MATROSKA_PARENTS = {SEGMENT, INFO, TRACKS, TRACK, MATROSKA_VIDEO, PROJECTION, CLUSTER, GROUP, 0x1A45DFA3}
_NUMBERS = (TRACK_NUMBER, TRACK_TYPE, PIXEL_WIDTH, PIXEL_HEIGHT, INTERLACED, ALPHA)
_ANGLES = (YAW, PITCH, ROLL)
_TRACK_FIELDS = frozenset((*_NUMBERS, *_ANGLES, CODEC))
_TYPES = (b"webm", b"matroska")


def _variable_length(data: bytes, at: int, keep_marker: bool) -> tuple[int | None, int]:
    """Return a number of variable length and its end; None if all its bits are set, which means unknown."""
    if at >= len(data):
        raise IndexError
    # The zeros before the first one of the bits say how many bytes follow (RFC 8794, 4).
    first = data[at]
    length = 9 - first.bit_length()
    if length > 8 or at + length > len(data):
        raise IndexError
    value = int.from_bytes(data[at : at + length], "big")
    # Identifiers are written with the bits that tell their length (RFC 8794, 5).
    if keep_marker:
        return value, at + length
    value &= (1 << 7 * length) - 1
    return (None if value == (1 << 7 * length) - 1 else value), at + length


@dataclass(frozen=True, kw_only=True)
class _Element:
    """Matroska element: its id (-1 if it cannot be read), its start, and its payload from `at` to `stop`.

    `has_length` is False if the length is unknown, as in a live stream; then `stop` is `at`.
    """

    identifier: int
    start: int
    at: int
    stop: int
    has_length: bool = True


def _matroska_elements(data: bytes) -> Iterator[_Element]:
    """Yield every element, in file order; the children of an element follow it.

    The iteration stops at an element that does not fit in the file.
    """
    at = 0
    while at < len(data):
        start = at
        try:
            identifier, at = _variable_length(data, at, True)
            length, at = _variable_length(data, at, False)
        except IndexError:
            yield _Element(identifier=-1, start=start, at=start, stop=start)
            return
        if identifier is None:  # impossible, because the marker is kept; for the type checker
            return
        stop = at + (length or 0)
        yield _Element(identifier=identifier, start=start, at=at, stop=stop, has_length=length is not None)
        # The children of a parent follow; other payloads are skipped, and one of unknown length has no end.
        if identifier not in MATROSKA_PARENTS:
            at = len(data) if length is None else stop


class _WholeElements:
    """Elements of a Matroska file that it holds completely, after checks of their lengths and checksums.

    After the iteration, `is_cut` says whether the file ends early, and `end` is the end of the last whole element.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.end, self.is_cut = len(data), False

    def __iter__(self) -> Iterator[_Element]:
        data, is_complete, parent_end = self._data, False, 0
        for element in limit_elements(_matroska_elements(data)):
            if element.identifier == SEGMENT:
                is_complete = element.has_length and element.stop <= len(data)
            if element.stop > len(data) or element.identifier == -1:
                # In a segment that the file holds completely, a longer element is damage and no missing end.
                if is_complete:
                    raise damaged_error(f"the element at byte {element.start} is longer than the file")
                self.is_cut = True
                # These elements contain others, whose first ones are complete even if the parent is cut off.
                if element.identifier not in (SEGMENT, CLUSTER, GROUP):
                    self.end = element.start
                    return
            # A checksum is the first child, so the last parent is its own (RFC 8794, 11.3.1).
            if element.identifier in MATROSKA_PARENTS:
                parent_end = element.stop if element.has_length else len(data) + 1
            self._check_checksum(element, parent_end)
            yield element

    def _check_checksum(self, element: _Element, parent_end: int) -> None:
        """Compare a CRC-32 element with the rest of its parent (RFC 8794, 11.3.1); a cut parent cannot be checked."""
        if element.identifier != CHECKSUM or element.stop - element.at != 4 or parent_end > len(self._data):
            return
        stored = int.from_bytes(self._data[element.at : element.stop], "little")
        if zlib.crc32(self._data[element.stop : parent_end]) != stored:
            raise damaged_error(f"the checksum at byte {element.start} does not match the data after it")


class _MatroskaTrack:
    """Fields of a track: numbers and angles by id, and the codec. The first value of a field counts."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.codec: bytes | None = None

    @property
    def is_video(self) -> bool:
        return self.numbers.get(TRACK_TYPE) == 1

    def add(self, identifier: int, payload: bytes) -> None:
        """Add a field of `_TRACK_FIELDS`."""
        if identifier in _NUMBERS:
            self.numbers.setdefault(identifier, int.from_bytes(payload[:8], "big"))
        elif identifier == CODEC:
            self.codec = payload if self.codec is None else self.codec
        elif len(payload) in (4, 8):  # EBML has floats of 4 and 8 bytes (RFC 8794, 7.3)
            (angle,) = struct.unpack(">f" if len(payload) == 4 else ">d", payload)
            # For an angle that is not a number: `_pose_orientation` refuses 1, which is not a multiple of 90.
            self.numbers.setdefault(identifier, round(angle) % 360 if math.isfinite(angle) else 1)


def read_matroska(data: bytes) -> Container:
    """Read the headers and count the blocks of the first video track.

    Raises:
        SourceError: there is no video, the document has another type, or the file is damaged or ends within the
            headers.

    Source: RFC 8794 and RFC 9559.
    """
    elements = _WholeElements(data)
    document, packets, has_cluster = b"", 0, False
    tracks: list[_MatroskaTrack] = []
    video: _MatroskaTrack | None = None
    for element in elements:
        if element.identifier == DOCUMENT_TYPE:
            document = bytes(data[element.at : element.stop]).rstrip(b"\0")
        elif element.identifier == TRACK:
            tracks.append(_MatroskaTrack())
        elif element.identifier in _TRACK_FIELDS and tracks:
            tracks[-1].add(element.identifier, bytes(data[element.at : element.stop]))
        elif element.identifier == CLUSTER:
            has_cluster, video = True, _first_video(tracks)
        elif element.identifier in (BLOCK, SIMPLE_BLOCK):
            packets += _is_shown(data, element, video)
    video = _needed_video(document, tracks, is_cut=elements.is_cut, has_cluster=has_cluster)
    return Container(
        size=(video.numbers[PIXEL_HEIGHT], video.numbers[PIXEL_WIDTH]),
        codec=_printable(video.codec or b""),
        packets=packets,
        declared=None,
        end=elements.end,
        is_cut=elements.is_cut,
        orientation=_pose_orientation(video.numbers),
        is_interlaced=video.numbers.get(INTERLACED) == 1,
        has_alpha=video.numbers.get(ALPHA) == 1,
    )


def _needed_video(
    document: bytes, tracks: list[_MatroskaTrack], *, is_cut: bool, has_cluster: bool
) -> _MatroskaTrack:
    """Return the first video track; SourceError says what the file lacks."""
    ends_early = is_cut and not has_cluster
    if is_cut and not document:
        raise truncated_error("it ends within its headers")
    if document not in _TYPES:
        raise damaged_error(f"its document type is {document[:20]!r}; expected webm or matroska")
    video = _first_video(tracks)
    if video is None:
        raise truncated_error("it ends within its headers") if ends_early else no_video(len(tracks))
    if ends_early:
        raise truncated_error("it ends before the first frame")
    if not {PIXEL_WIDTH, PIXEL_HEIGHT} <= video.numbers.keys():
        raise damaged_error("its video track has no size")
    return video


def _first_video(tracks: list[_MatroskaTrack]) -> _MatroskaTrack | None:
    return next((track for track in tracks if track.is_video), None)


def _is_shown(data: bytes, block: _Element, video: _MatroskaTrack | None) -> bool:
    """Return whether a block holds a frame of the video track that is shown."""
    if _track_of(data, block.at) != (video.numbers.get(TRACK_NUMBER) if video else None):
        return False
    # FFmpeg returns no frame for a VP8 reference frame that is never shown, so it is not counted either.
    may_hide = video is not None and video.codec == b"V_VP8"
    return not (may_hide and _is_hidden_vp8(data[block.at : block.stop]))


def _track_of(data: bytes, at: int) -> int | None:
    try:
        return _variable_length(data, at, False)[0]
    except IndexError:
        return None


def _pose_orientation(numbers: dict[int, int]) -> int:
    """Return the EXIF orientation of a pose in degrees; FFmpeg writes a yaw of 180 for a mirrored video.

    Source: RFC 9559, 5.1.4.1.28.41; libavformat/matroskadec.c, mkv_create_display_matrix.
    """
    yaw, pitch, roll = (numbers.get(angle, 0) for angle in (YAW, PITCH, ROLL))
    if pitch or yaw % 180 or roll % 90:
        raise unsupported_matrix(f"a pose of {yaw}, {pitch}, {roll} degrees")
    return ((1, 8, 3, 6), (2, 5, 4, 7))[yaw // 180][roll // 90]


def _is_hidden_vp8(block: bytes) -> bool:
    """Return whether a block holds a VP8 reference frame that is never shown.

    Source: RFC 6386, 9.1.
    """
    return len(block) > 4 and not block[3] & 0x06 and not block[4] & 0x10


MP4_PARENTS = (b"trak", b"mdia", b"minf", b"stbl", b"traf", b"edts")
MAX_BOX_DEPTH = 16
_MATRIX_TURNS = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}
"""EXIF orientation by the signs of a, b, c, d in x' = a x + c y, y' = b x + d y, with y downwards."""


@dataclass(frozen=True, kw_only=True)
class _Mp4Box:
    """MP4 box: its type, its start, the start of its payload, and its end, which may be beyond the file."""

    kind: bytes
    start: int
    payload: int
    end: int


def _mp4_boxes(data: bytes, at: int, end: int) -> Iterator[_Mp4Box]:
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        payload = at + 8
        # ISO/IEC 14496-12, 4.2: 1 announces a size of 64 bits, and 0 the end of the file.
        if size == 1:
            if at + 16 > end:
                return
            size, payload = struct.unpack_from(">Q", data, at + 8)[0], at + 16
        elif size == 0:
            size = end - at
        if size < payload - at:
            if kind == b"\0\0\0\0":  # padding after the last box
                return
            raise damaged_error(f"box {kind!r} of {size} bytes at byte {at}")
        yield _Mp4Box(kind=kind, start=at, payload=payload, end=at + size)
        at += size


def _nested_boxes(data: bytes, box: _Mp4Box, depth: int = 0) -> Iterator[_Mp4Box]:
    """Yield the boxes in a box and, for the types in MP4_PARENTS, the boxes in these."""
    # A box of 8 bytes per level would exceed Python's recursion limit.
    if depth > MAX_BOX_DEPTH:
        raise damaged_error(f"boxes in more than {MAX_BOX_DEPTH} others")
    for inner in limit_elements(_mp4_boxes(data, box.payload, box.end)):
        if inner.end > box.end:
            raise damaged_error(f"box {inner.kind!r} at byte {inner.start} is longer than its parent")
        yield inner
        if inner.kind in MP4_PARENTS:
            yield from _nested_boxes(data, inner, depth + 1)


class _Mp4Track:
    """Nested boxes of a track or another box: the first box of each type."""

    def __init__(self, data: bytes, box: _Mp4Box) -> None:
        self._data = data
        self.boxes: dict[bytes, _Mp4Box] = {}
        for inner in _nested_boxes(data, box):
            self.boxes.setdefault(inner.kind, inner)

    def numbers(self, kind: bytes, offset: int, form: str) -> tuple[int, ...]:
        """Read numbers of a box at an offset in its payload."""
        box = self.boxes.get(kind)
        if box is None:
            raise damaged_error(f"box {kind!r} is missing")
        if box.payload + offset + struct.calcsize(form) > box.end:
            raise damaged_error(f"box {kind!r} is too short")
        found: tuple[int, ...] = struct.unpack_from(form, self._data, box.payload + offset)
        return found

    def table(self, kind: bytes, offset: int, count: int, dtype: str) -> NDArray[np.int64]:
        """Read a table of numbers of a box."""
        box = self.boxes[kind]
        if box.payload + offset + count * np.dtype(dtype).itemsize > box.end:
            raise damaged_error(f"box {kind!r} is shorter than its {count} entries")
        return np.frombuffer(self._data, dtype, count, box.payload + offset).astype(np.int64)

    @property
    def is_video(self) -> bool:
        return self.numbers(b"hdlr", 8, ">I")[0] == int.from_bytes(b"vide", "big")

    def timed(self, kind: bytes, offset: int, long_offset: int, form: str) -> tuple[int, ...]:
        """Read numbers of a box whose times have 32 bits in version 0 and 64 bits, which moves them, in version 1."""
        (version,) = self.numbers(kind, 0, ">B")
        return self.numbers(kind, long_offset if version else offset, form)

    @property
    def number(self) -> int:
        return self.timed(b"tkhd", 12, 20, ">I")[0]

    @property
    def ticks_per_second(self) -> int:
        """Unit of the durations in a movie's header, and so in its edit lists."""
        return self.timed(b"mvhd", 12, 20, ">I")[0]

    @property
    def size(self) -> Size:
        """Stored (height, width) in the first sample description."""
        if not self.numbers(b"stsd", 4, ">I")[0]:
            raise damaged_error("a video track has no description")
        width, height = self.numbers(b"stsd", 8 + 32, ">HH")
        return height, width

    @property
    def is_interlaced(self) -> bool:
        """True if the first sample description declares interlaced fields.

        Source: QuickTime File Format Specification, field handling.
        """
        description = self.boxes[b"stsd"]
        return b"fiel\2" in self._data[description.payload : description.end]

    @property
    def codec(self) -> str:
        """Codec in the first sample description."""
        return _printable(self.numbers(b"stsd", 12, ">I")[0].to_bytes(4, "big"))

    @property
    def orientation(self) -> int:
        """EXIF orientation of the display matrix.

        Source: ISO/IEC 14496-12, 6.2.2 and 8.3.2.
        """
        a, b, _, c, d, *_ = self.timed(b"tkhd", 40, 52, ">9i")
        largest = max(abs(value) for value in (a, b, c, d))
        if not largest:  # a matrix of zeros; FFmpeg shows such a video upright
            return 1
        signs = tuple(round(value / largest) for value in (a, b, c, d))
        slack = max(abs(value / largest - sign) for value, sign in zip((a, b, c, d), signs, strict=True))
        # The matrix may be rounded, and scaled for pixels that are not square.
        if signs not in _MATRIX_TURNS or (slack > 0.01 and not _is_scaled(a, b, c, d)):
            raise unsupported_matrix(f"({a}, {b}, {c}, {d}) / 65536")
        return _MATRIX_TURNS[signs]

    def duration_s(self) -> float:
        """Return the duration of all frames."""
        # As `timed`, but the duration itself has 64 bits in version 1.
        (version,) = self.numbers(b"mdhd", 0, ">B")
        scale, duration = self.numbers(b"mdhd", *((20, ">IQ") if version else (12, ">II")))
        return duration / max(1, scale)

    def shown_s(self, movie_scale: int) -> float | None:
        """Return the duration of the frames that an edit list keeps; None if there is no edit list.

        Empty edits, which delay the start of a track, do not count.

        Source: ISO/IEC 14496-12, 8.6.6.
        """
        # Without an edit list all frames are shown.
        if b"elst" not in self.boxes:
            return None
        version, count = self.numbers(b"elst", 0, ">B3xI")
        entries = self.table(b"elst", 8, count * (5 if version else 3), ">u4").reshape(count, -1)
        lengths = entries[:, 0] * 2**32 + entries[:, 1] if version else entries[:, 0]
        is_empty = entries[:, -2] == 2**32 - 1
        return float(lengths[~is_empty].sum()) / max(1, movie_scale)

    def timed_samples(self) -> int:
        """Return the number of samples in the table of times."""
        entries = self.table(b"stts", 8, 2 * self.numbers(b"stts", 4, ">I")[0], ">u4")
        return int(entries[::2].sum())

    def sample_sizes(self) -> tuple[int, int]:
        """Return (bytes of every sample or 0, number of samples)."""
        # `stz2` is the compact form of `stsz` (8.7.3).
        if b"stsz" not in self.boxes and b"stz2" in self.boxes:
            count = self.numbers(b"stz2", 8, ">I")[0]
            return 0, count
        size, count = self.numbers(b"stsz", 4, ">II")
        return size, count

    def sample_ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and the end of each sample in the file, int64 [samples] each.

        Source: ISO/IEC 14496-12, 8.7.
        """
        _, count = self.sample_sizes()
        check_frame_count(count)
        sizes = self._size_table()
        offsets_in, width = (b"co64", ">u8") if b"co64" in self.boxes else (b"stco", ">u4")
        chunks = self.numbers(offsets_in, 4, ">I")[0]
        offsets = self.table(offsets_in, 8, chunks, width)
        ends_of_chunks = np.minimum(np.cumsum(np.minimum(self._samples_per_chunk(chunks), count)), count)
        in_chunk = np.diff(np.append(0, ends_of_chunks))
        if ends_of_chunks[-1] < count:
            raise damaged_error(f"its table of chunks has {ends_of_chunks[-1]} of {plural(count, 'frame')}")
        before = np.cumsum(sizes) - sizes
        chunk_of = np.repeat(np.arange(chunks), in_chunk)
        starts_of_chunks = before[np.minimum(ends_of_chunks - in_chunk, count - 1)]
        starts = offsets[chunk_of] + before - starts_of_chunks[chunk_of]
        return starts, starts + sizes

    def _size_table(self) -> NDArray[np.int64]:
        """Return the bytes of each sample from the box `stsz`, or from the compact `stz2`."""
        size, count = self.sample_sizes()
        if b"stsz" in self.boxes:
            return np.full(count, size, np.int64) if size else self.table(b"stsz", 12, count, ">u4")
        (field_bits,) = self.numbers(b"stz2", 7, ">B")
        if field_bits not in (8, 16):
            raise decode_error("video is not supported", f"a table of sizes of {field_bits} bits each")
        return self.table(b"stz2", 12, count, ">u1" if field_bits == 8 else ">u2")

    def _samples_per_chunk(self, chunks: int) -> NDArray[np.int64]:
        """Return the number of samples in each chunk; an entry of `stsc` holds for all chunks up to the next one's."""
        runs = self.table(b"stsc", 8, 3 * self.numbers(b"stsc", 4, ">I")[0], ">u4").reshape(-1, 3)
        first = np.clip(runs[:, 0] - 1, 0, chunks)
        lengths = np.diff(np.append(first, chunks))
        # Runs ascend from chunk 1 (8.7.4).
        if not chunks or not len(runs) or (lengths < 0).any() or first[0]:
            raise damaged_error("its table of chunks is wrong")
        return np.repeat(runs[:, 1], lengths)


def _is_scaled(a: int, b: int, c: int, d: int) -> bool:
    """Return whether a matrix without skew scales the sides differently: the pixels are not square."""
    return (not b and not c and bool(a and d)) or (not a and not d and bool(b and c))


@dataclass(frozen=True, kw_only=True)
class _TopBoxes:
    """Boxes at the top of an MP4 file.

    Args:
        movie: the first complete `moov`, which has the headers and tables.
        fragments: complete `moof` boxes, each with the tables of some more frames.
        last: the last box, which may be longer than the file.
        is_cut: whether the file ends within a box, or before the frames of a fragment.
    """

    movie: _Mp4Box | None
    fragments: tuple[_Mp4Box, ...]
    last: _Mp4Box | None
    is_cut: bool


def _top_boxes(data: bytes) -> _TopBoxes:
    movie, last = None, None
    fragments: list[_Mp4Box] = []
    for box in limit_elements(_mp4_boxes(data, 0, len(data))):
        last = box
        if box.end > len(data):  # the last one
            continue
        if box.kind == b"moov":
            movie = movie or box
        elif box.kind == b"moof":
            fragments.append(box)
    return _TopBoxes(movie=movie, fragments=tuple(fragments), last=last, is_cut=_is_mp4_cut(data, last))


def _is_mp4_cut(data: bytes, last: _Mp4Box | None) -> bool:
    if last is None:
        return False
    if last.end > len(data) or last.kind == b"moof":  # the frames of a fragment follow it
        return True
    # A box needs 8 bytes, and 16 with a long size. Zeros are padding.
    return any(data[last.end : last.end + 16]) and len(data) - last.end < 16


def read_mp4(data: bytes) -> Container:
    """Read the headers and count the frames of the first video track.

    Raises:
        SourceError: there is no video, or the file is damaged or lacks its index because it is truncated.

    Source: ISO/IEC 14496-12; QuickTime File Format Specification.
    """
    top = _top_boxes(data)
    if top.movie is None:
        raise _no_index(top)
    tracks = [_Mp4Track(data, box) for box in _nested_boxes(data, top.movie) if box.kind == b"trak"]
    video = next((track for track in tracks if track.is_video), None)
    if video is None:
        raise no_video(len(tracks))
    shown_s = video.shown_s(_Mp4Track(data, top.movie).ticks_per_second)
    # In a fragmented file the index lists the frames before the fragments, usually none.
    if top.fragments or video.sample_sizes()[1] == 0:
        packets, end = _fragment_frames(data, video, top)
        declared = None
    else:
        packets, in_table, end = _table_frames(data, video)
        declared = max(in_table, video.timed_samples())
    return Container(
        size=video.size,
        codec=video.codec,
        packets=packets,
        declared=declared,
        end=end,
        is_cut=top.is_cut,
        orientation=video.orientation,
        is_interlaced=video.is_interlaced,
        # Less than half a frame is rounding: the edit list counts in other ticks than the frames.
        hides_frames=shown_s is not None and shown_s < video.duration_s() * (1 - 0.5 / max(1, packets)),
    )


def _no_index(top: _TopBoxes) -> SourceError:
    # Cameras write the index after the frames, so a file that ends with frames (mdat) lost it.
    if top.is_cut or top.last is None or top.last.kind == b"mdat":
        return truncated_error("its index (moov), often written last, is incomplete; copy or record it again")
    return damaged_error("it has no index (moov)")


def _table_frames(data: bytes, video: _Mp4Track) -> tuple[int, int, int]:
    """Return (complete frames, all frames, start of the first incomplete frame or end of the file)."""
    starts, ends = video.sample_ends()
    missing = ends > len(data)
    if not missing.any():
        return len(ends), len(ends), len(data)
    return int((~missing).sum()), len(ends), min(int(starts[missing].min()), len(data))


def _fragment_frames(data: bytes, video: _Mp4Track, top: _TopBoxes) -> tuple[int, int]:
    """Return the number of frames in the index and in the complete fragments, and the end of the latter."""
    fragments, end = top.fragments, len(data)
    # The last box is incomplete, and with it the fragment whose frames it holds.
    if top.is_cut and top.last is not None:
        end = top.last.start
        if fragments and _is_incomplete(fragments[-1], top.last):
            end = min(end, fragments[-1].start)
            fragments = fragments[:-1]
    counts = (_frames_of_fragment(data, video.number, fragment) for fragment in fragments)
    return video.sample_sizes()[1] + sum(counts), end


def _is_incomplete(fragment: _Mp4Box, last: _Mp4Box) -> bool:
    """Return whether the last fragment lacks frames or part of a frame."""
    return last == fragment or (last.kind == b"mdat" and fragment.end == last.start)


def _frames_of_fragment(data: bytes, number: int, fragment: _Mp4Box) -> int:
    """Return the number of frames of a track in a fragment: a `tfhd` names the track of the `trun` boxes after it."""
    current, packets = None, 0
    for box in _nested_boxes(data, fragment):
        if box.kind not in (b"tfhd", b"trun"):
            continue
        if box.end - box.payload < 8:
            raise damaged_error(f"box {box.kind!r} is too short")
        (value,) = struct.unpack_from(">I", data, box.payload + 4)
        if box.kind == b"tfhd":
            current = value
        elif current == number:
            packets += value
    return packets
