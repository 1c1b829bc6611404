"""How a JPEG file is freed of everything that is not the picture; its compressed data stay as they are.

Kept: the segments that decoding needs, JFIF without its thumbnail, Adobe's color transform, and the ICC profile as
`halofeed.prep.formats.picture.icc` rewrites it. Removed: Exif (the pixels are upright without it), XMP, IPTC, maker
notes, comments, previews, and everything after the end of the picture, such as a second picture or a video.

Source: ITU-T T.81, annex B; JFIF 1.02.
"""

from __future__ import annotations

import re

from halofeed.prep.formats.picture.icc import profile_without_names
from halofeed.prep.formats.picture.jpeg_markers import EOI, FRAMES, SOS, START_OF_IMAGE, read_segments

_NEEDED = FRAMES | {0xC4, 0xDB, 0xDD, SOS}
"""Frames, tables of Huffman codes, quantization tables, restart interval, scans: whose lengths decoders check."""
_APP0, _APP2, _APP14 = 0xE0, 0xE2, 0xEE
_JFIF, _ADOBE, _ICC = b"JFIF\0", b"Adobe", b"ICC_PROFILE\0"
_JFIF_BYTES, _ADOBE_BYTES = 18, 16
"""Of the whole segments, the marker included and the thumbnail left out."""
_ICC_START = 4 + len(_ICC) + 2
_MOST_ICC_BYTES = 65_519
"""Of a profile in one segment."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]", re.DOTALL)
"""What ends compressed data: neither a stuffed byte nor a restart marker. The pattern begins with one literal byte: a
repeated one takes ten times as long."""

Segment = tuple[int, int, int]


def without_metadata(data: bytes) -> bytes:
    """The same picture, of which every decoder makes the same pixels, without what describes it.

    Args:
        data: a JPEG file with Huffman codes that was decoded without a warning, without stray bytes between segments.

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


def _kept(data: bytes, segment: Segment) -> bytes | memoryview:
    """What stays of a segment."""
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
    """A segment of which all but its first bytes is cut off."""
    return data[start : start + 2] + (size - 2).to_bytes(2, "big") + data[start + 4 : start + size]


def _is_icc(data: bytes, segment: Segment) -> bool:
    return segment[0] == _APP2 and data.startswith(_ICC, segment[1] + 4)


def _profile(data: bytes, segments: tuple[Segment, ...]) -> bytes:
    """The ICC profile that the segments hold, without names; b"" where there is none that can be read."""
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
