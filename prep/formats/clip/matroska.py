"""How the elements of a Matroska or WebM file are read."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

from halofeed.prep.formats.clip.container import Container, limited, no_quarter_turn, no_video, printable
from halofeed.prep.formats.picture.image import damaged, truncated

SEGMENT, INFO, TRACKS, TRACK, VIDEO = 0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0
TRACK_NUMBER, TRACK_TYPE, CODEC, PIXEL_WIDTH, PIXEL_HEIGHT = 0xD7, 0x83, 0x86, 0xB0, 0xBA
CLUSTER, GROUP, BLOCK, SIMPLE_BLOCK = 0x1F43B675, 0xA0, 0xA1, 0xA3
INTERLACED, ALPHA, PROJECTION, YAW, PITCH, ROLL = 0x9A, 0x53C0, 0x7670, 0x7673, 0x7674, 0x7675
DOCUMENT_TYPE, CHECKSUM = 0x4282, 0xBF
ENTERED = {SEGMENT, INFO, TRACKS, TRACK, VIDEO, PROJECTION, CLUSTER, GROUP, 0x1A45DFA3}
NUMBERS = (TRACK_NUMBER, TRACK_TYPE, PIXEL_WIDTH, PIXEL_HEIGHT, INTERLACED, ALPHA)
TYPES = (b"webm", b"matroska")


def _number(data: bytes, at: int, keep_marker: bool) -> tuple[int | None, int]:
    """A number of variable length and where it ends; None where all its bits are set, which means unknown."""
    if at >= len(data):
        raise IndexError
    first = data[at]
    length = 9 - first.bit_length()
    if length > 8 or at + length > len(data):
        raise IndexError
    value = int.from_bytes(data[at : at + length], "big")
    if keep_marker:
        return value, at + length
    value &= (1 << 7 * length) - 1
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _elements(data: bytes) -> Iterator[tuple[int, int, int, int | None]]:
    """(id, start, start of the payload, its length or None) of every element, in the order of the file.

    What may hold others is entered: its elements follow it. It ends where an element begins that does not fit the file.
    """
    at = 0
    while at < len(data):
        start = at
        try:
            identifier, at = _number(data, at, True)
            length, at = _number(data, at, False)
        except IndexError:
            yield -1, start, start, None
            return
        if identifier is None:  # never: the marker is kept
            return
        yield identifier, start, at, length
        if identifier not in ENTERED:
            at = len(data) if length is None else at + length


def _unsigned(data: bytes, at: int, length: int | None) -> int:
    return int.from_bytes(data[at : at + min(length or 0, 8)], "big")


def read_matroska(data: bytes) -> Container:
    """Read the headers and find the blocks of the first video track.

    Raises:
        SourceError: no video, of another kind of document, damaged, or cut off within the headers.

    Source: RFC 8794 and RFC 9559.
    """
    document = b""
    tracks: list[dict[int, int]] = []
    codecs: dict[int, bytes] = {}
    packets, end, is_cut, has_cluster, is_whole = 0, len(data), False, False, False
    number: int | None = None
    inside, hides = 0, False
    for identifier, start, at, length in limited(_elements(data)):
        stop = at if length is None else at + length
        if identifier == SEGMENT:
            is_whole = length is not None and stop <= len(data)
        if stop > len(data) or identifier == -1:
            if is_whole:
                raise damaged(f"the element at byte {start} is longer than the file")
            is_cut = True
            if identifier not in (SEGMENT, CLUSTER, GROUP):
                end = start
                break
        if identifier in ENTERED:
            inside = len(data) + 1 if length is None else stop
        is_checksum = identifier == CHECKSUM and length == 4 and inside <= len(data)
        if is_checksum and zlib.crc32(data[stop:inside]) != int.from_bytes(data[at:stop], "little"):
            raise damaged(f"the checksum at byte {start} is not that of what follows it")
        if identifier == DOCUMENT_TYPE:
            document = bytes(data[at:stop]).rstrip(b"\0")
        elif identifier == TRACK:
            tracks.append({})
        elif identifier in NUMBERS and tracks:
            tracks[-1].setdefault(identifier, _unsigned(data, at, length))
        elif identifier in (YAW, PITCH, ROLL) and tracks and length in (4, 8):
            (angle,) = struct.unpack(">f" if length == 4 else ">d", data[at:stop])
            tracks[-1].setdefault(identifier, round(angle) % 360 if math.isfinite(angle) else 1)
        elif identifier == CODEC and tracks:
            codecs.setdefault(len(tracks) - 1, bytes(data[at:stop]))
        elif identifier == CLUSTER:
            has_cluster = True
            video = _first_video(tracks)
            number = video.get(TRACK_NUMBER) if video else None
            hides = video is not None and codecs.get(tracks.index(video)) == b"V_VP8"
        elif identifier in (BLOCK, SIMPLE_BLOCK) and _track_of(data, at) == number:
            packets += not (hides and _is_hidden_vp8(data[at:stop]))
    if is_cut and not document:
        raise truncated("it ends within its headers")
    if document not in TYPES:
        raise damaged(f"its document type is {document[:20]!r}; expected webm or matroska")
    video = _first_video(tracks)
    if video is None:
        if is_cut and not has_cluster:
            raise truncated("it ends within its headers")
        raise no_video(len(tracks))
    if not has_cluster and is_cut:
        raise truncated("it ends before the first frame")
    if PIXEL_WIDTH not in video or PIXEL_HEIGHT not in video:
        raise damaged("its video track has no size")
    return Container(
        size=(video[PIXEL_HEIGHT], video[PIXEL_WIDTH]),
        codec=printable(codecs.get(tracks.index(video), b"")),
        packets=packets,
        declared=None,
        end=end,
        is_cut=is_cut,
        orientation=_orientation(video),
        is_interlaced=video.get(INTERLACED) == 1,
        has_alpha=video.get(ALPHA) == 1,
    )


def _first_video(tracks: list[dict[int, int]]) -> dict[int, int] | None:
    return next((track for track in tracks if track.get(TRACK_TYPE) == 1), None)


def _track_of(data: bytes, at: int) -> int | None:
    try:
        return _number(data, at, False)[0]
    except IndexError:
        return None


def _orientation(video: dict[int, int]) -> int:
    """As EXIF counts them, of a pose in degrees; FFmpeg writes a yaw of 180 where it is mirrored.

    Source: RFC 9559, 5.1.4.1.28.41; libavformat/matroskadec.c, mkv_create_display_matrix.
    """
    yaw, pitch, roll = (video.get(angle, 0) for angle in (YAW, PITCH, ROLL))
    if pitch or yaw % 180 or roll % 90:
        raise no_quarter_turn(f"a pose of {yaw}, {pitch}, {roll} degrees")
    return ((1, 8, 3, 6), (2, 5, 4, 7))[yaw // 180][roll // 90]


def _is_hidden_vp8(block: bytes) -> bool:
    """Whether a block holds a frame that others are made of and that is never shown itself.

    Source: RFC 6386, 9.1.
    """
    return len(block) > 4 and not block[3] & 0x06 and not block[4] & 0x10
