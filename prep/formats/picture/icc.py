"""How an ICC profile is reduced to what turns stored values into colors.

A profile also names its author, the device, its serial number and the day on which it was measured. Those may identify
a person or a place, so that only the tags with numbers are kept.

Source: ICC.1:2022, clauses 7 to 10; ICC.1:2001-04 for `desc` and `text`.
"""

from __future__ import annotations

import struct

_COLOR_TAGS = frozenset(
    (
        *(b"rXYZ", b"gXYZ", b"bXYZ", b"wtpt", b"chad", b"rTRC", b"gTRC", b"bTRC", b"kTRC"),
        *(b"A2B0", b"A2B1", b"A2B2", b"B2A0", b"B2A1", b"B2A2"),
    )
)
_NUMBER_TYPES = frozenset((b"XYZ ", b"sf32", b"curv", b"para", b"mft1", b"mft2", b"mAB ", b"mBA "))
_HEADER_BYTES, _ENTRY = 128, struct.Struct(">4sII")
_KEPT_FIELDS = ((8, 24), (36, 40), (64, 80))
"""Of the header: version, class, color space and the space of the connection; `acsp`; intent and illuminant."""
_MOST_TAGS, _MOST_BYTES = 100, 255 * 65_519
_NAME = "halofeed: without names"


def profile_without_names(profile: bytes) -> bytes:
    """The profile with the same colors and without names, dates and serial numbers; b"" where it cannot be read."""
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
    """How many bytes of a tag hold its numbers; names may stand behind."""
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
