"""Removal of metadata from JPEG files and ICC profiles; the compressed pixels stay the same."""

from __future__ import annotations

import re
import struct

from halofeed.prep.formats.picture.jpeg import EOI, FRAME_MARKERS, SOS, START_OF_IMAGE, read_segments

_COLOR_TAGS = frozenset(
    (
        *(b"rXYZ", b"gXYZ", b"bXYZ", b"wtpt", b"chad", b"rTRC", b"gTRC", b"bTRC", b"kTRC"),
        *(b"A2B0", b"A2B1", b"A2B2", b"B2A0", b"B2A1", b"B2A2"),
    )
)
_NUMBER_TYPES = frozenset((b"XYZ ", b"sf32", b"curv", b"para", b"mft1", b"mft2", b"mAB ", b"mBA "))
_HEADER_BYTES, _ENTRY = 128, struct.Struct(">4sII")
_KEPT_FIELDS = ((8, 24), (36, 40), (64, 80))
"""Byte ranges of the ICC header that are kept: version, class and color spaces; `acsp`; intent and illuminant."""
_MOST_TAGS, _MOST_BYTES = 100, 255 * 65_519
_NAME = "halofeed: without names"

_NEEDED = FRAME_MARKERS | {0xC4, 0xDB, 0xDD, SOS}
"""Frames, Huffman tables, quantization tables, restart interval and scans; decoders check their lengths."""
_APP0, _APP2, _APP14 = 0xE0, 0xE2, 0xEE
_JFIF, _ADOBE, _ICC = b"JFIF\0", b"Adobe", b"ICC_PROFILE\0"
_JFIF_BYTES, _ADOBE_BYTES = 18, 16
"""Bytes of the segments with their marker and without a thumbnail."""
_ICC_START = 4 + len(_ICC) + 2
_MOST_ICC_BYTES = 65_519
"""Maximum bytes of a profile in one segment."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]", re.DOTALL)
"""End of compressed data: a marker that is neither a stuffed byte nor a restart. The pattern begins with one literal
byte, because a repeated one takes ten times as long."""

_Segment = tuple[int, int, int]


def without_metadata(data: bytes) -> bytes:
    """Return the JPEG file without descriptive metadata; every decoder reads the same pixels from it.

    Args:
        data: a JPEG file with Huffman codes and no stray bytes between segments, which decodes without a warning.

    >>> table, scan = bytes.fromhex("ffdd 0004 0000"), bytes.fromhex("ffda 0008 01 01 00 00 3f 00 12 ffd9")
    >>> named = START_OF_IMAGE + b"\\xff\\xfe\\0\\x05Ann" + table + scan + b"more"
    >>> without_metadata(named) == START_OF_IMAGE + table + scan
    True
    """
    segments, _ = read_segments(data)
    view = memoryview(data)
    pieces: list[bytes | memoryview] = [view[: len(START_OF_IMAGE)]]
    profile = _profile(data, segments)
    for segment in segments:
        if profile and _is_icc(data, segment):
            pieces += _icc_segments(profile)
            profile = b""
        pieces.append(_kept(data, segment))
    at = segments[-1][2]
    while (found := _MARKER.search(data, at)) is not None:
        start, marker = found.start(), data[found.start() + 1]
        if marker == EOI:
            pieces.append(view[at : start + 2])
            break
        pieces.append(view[at:start])
        at = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        pieces.append(_kept(data, (marker, start, at)))
    else:
        pieces.append(view[at:])
    is_same = sum(map(len, pieces)) == len(data) and all(isinstance(piece, memoryview) for piece in pieces)
    return data if is_same else b"".join(pieces)


def _kept(data: bytes, segment: _Segment) -> bytes | memoryview:
    """Return the part of a segment that is kept."""
    marker, start, end = segment
    if marker in _NEEDED:
        return memoryview(data)[start:end]
    size = end - start
    if marker == _APP0 and data.startswith(_JFIF, start + 4) and size >= _JFIF_BYTES:
        plain = _shortened(data, start, _JFIF_BYTES)[:-2] + b"\0\0"
        return memoryview(data)[start:end] if data[start:end] == plain else plain
    if marker == _APP14 and data.startswith(_ADOBE, start + 4) and size >= _ADOBE_BYTES:
        return _shortened(data, start, _ADOBE_BYTES)
    return b""


def _shortened(data: bytes, start: int, size: int) -> bytes:
    """Return the first bytes of a segment, with the length field set to match."""
    return data[start : start + 2] + (size - 2).to_bytes(2, "big") + data[start + 4 : start + size]


def _is_icc(data: bytes, segment: _Segment) -> bool:
    return segment[0] == _APP2 and data.startswith(_ICC, segment[1] + 4)


def _profile(data: bytes, segments: tuple[_Segment, ...]) -> bytes:
    """Return the ICC profile of the segments without names; b"" if there is none that can be read."""
    parts = sorted(
        (data[start + 16], start, end) for _, start, end in filter(lambda s: _is_icc(data, s), segments)
    )
    return profile_without_names(b"".join(data[start + _ICC_START : end] for _, start, end in parts))


def _icc_segments(profile: bytes) -> list[bytes]:
    pieces = [profile[at : at + _MOST_ICC_BYTES] for at in range(0, len(profile), _MOST_ICC_BYTES)]
    return [
        b"\xff\xe2" + (len(piece) + 16).to_bytes(2, "big") + _ICC + bytes((number, len(pieces))) + piece
        for number, piece in enumerate(pieces, 1)
    ]


def profile_without_names(profile: bytes) -> bytes:
    """Return the ICC profile with the same colors and no names, dates or serial numbers; b"" if it is unreadable."""
    if not _HEADER_BYTES + 4 <= len(profile) <= _MOST_BYTES or profile[36:40] != b"acsp":
        return b""
    count = int.from_bytes(profile[_HEADER_BYTES : _HEADER_BYTES + 4], "big")
    end = _HEADER_BYTES + 4 + count * _ENTRY.size
    if count > _MOST_TAGS or end > len(profile):
        return b""
    tags: dict[bytes, bytes] = {}
    for name, start, size in _ENTRY.iter_unpack(profile[_HEADER_BYTES + 4 : end]):
        value = profile[start : start + size]
        if name in _COLOR_TAGS and value[:4] in _NUMBER_TYPES:
            if len(value) < size:
                return b""
            tags[name] = value[: _number_bytes(value)]
    if not tags:
        return b""
    is_early = profile[8] < 4
    tags |= {
        b"desc": _early_description() if is_early else _text(),
        b"cprt": _early_text() if is_early else _text(),
    }
    return _assembled(profile, tags)


def _number_bytes(value: bytes) -> int:
    """Return how many bytes of a tag hold its numbers; names may follow them."""
    if value[:4] == b"curv":
        return 12 + 2 * int.from_bytes(value[8:12], "big")
    return {b"XYZ ": 20, b"sf32": 44}.get(value[:4], len(value))


def _assembled(profile: bytes, tags: dict[bytes, bytes]) -> bytes:
    header = bytearray(_HEADER_BYTES)
    for start, stop in _KEPT_FIELDS:
        header[start:stop] = profile[start:stop]
    at = _HEADER_BYTES + 4 + len(tags) * _ENTRY.size
    entries, places, body = [], {}, bytearray()
    for name, value in tags.items():
        if value not in places:  # red, green and blue often share a curve
            places[value] = at + len(body)
            body += value + bytes(-len(value) % 4)
        entries.append(_ENTRY.pack(name, places[value], len(value)))
    header[:4] = (at + len(body)).to_bytes(4, "big")
    return b"".join([header, len(tags).to_bytes(4, "big"), *entries, body])


def _early_description() -> bytes:
    name = _NAME.encode() + b"\0"
    return b"desc\0\0\0\0" + len(name).to_bytes(4, "big") + name + bytes(4 + 4 + 2 + 1 + 67)


def _early_text() -> bytes:
    return b"text\0\0\0\0" + _NAME.encode() + b"\0"


def _text() -> bytes:
    name = _NAME.encode("utf-16-be")
    return b"mluc\0\0\0\0" + struct.pack(">II4sII", 1, 12, b"enUS", len(name), 28) + name
