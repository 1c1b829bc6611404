"""How the chunks of an AVI file are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from halofeed.prep.formats.clip.container import Container, limited, no_video, printable
from halofeed.prep.formats.picture.image import Size, damaged, truncated

VIDEO = b"vids"
ENTERED = (b"RIFF", b"LIST")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of the payload, its length) of every chunk, those in lists among them, in the order of the file.

    Of a list the type is that of its contents, and the chunks in it follow. A chunk may reach beyond the file.
    """
    at = 0
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind in ENTERED:
            yield bytes(data[at + 8 : at + 12]), at + 12, max(length, 4) - 4
            at += 12
            continue
        yield kind, at + 8, length
        at += 8 + length + length % 2


@dataclass
class _Track:
    """A stream; `slots` are its chunks by its header, each shown for `slot_s`, those without a frame among them."""

    kind: bytes
    slots: int
    slot_s: float
    size: Size = (0, 0)
    codec: bytes = b""


def _tracks(data: bytes) -> list[_Track]:
    tracks: list[_Track] = []
    for kind, at, length in limited(_chunks(data)):
        if kind == b"movi":
            break
        if kind == b"strh":
            if length < 48 or at + 48 > len(data):
                raise truncated("no room for a stream's header")
            scale, rate, _, slots = struct.unpack_from("<4I", data, at + 20)
            tracks.append(_Track(kind=bytes(data[at : at + 4]), slots=slots, slot_s=scale / max(1, rate)))
        if kind == b"strf" and tracks and tracks[-1].kind == VIDEO:
            if length < 20 or at + 20 > len(data):
                raise truncated("no room for a stream's format")
            width, height = struct.unpack_from("<ii", data, at + 4)
            tracks[-1].size, tracks[-1].codec = (abs(height), abs(width)), bytes(data[at + 16 : at + 20])
    return tracks


def read_avi(data: bytes) -> Container:
    """Read the headers and find the chunks of the first video stream.

    Raises:
        SourceError: no video, damaged, or cut off within the headers.

    Source: AVI RIFF File Reference; OpenDML AVI File Format Extensions 1.02.
    """
    tracks = _tracks(data)
    stream = next((number for number, track in enumerate(tracks) if track.kind == VIDEO), None)
    in_movi, end, slots = False, len(data), 0
    filled: list[int] = []
    (riff_length,) = struct.unpack_from("<I", data, 4)  # 0 where a recorder had no time to write it
    is_cut = any(
        at + length > len(data) for kind, at, length in limited(_chunks(data)) if kind in (b"AVI ", b"AVIX")
    )
    if stream is None:
        if is_cut and not tracks:
            raise truncated("it ends within its headers")
        raise no_video(len(tracks))
    wanted = tuple(f"{stream:02d}{ending}".encode() for ending in ("dc", "db"))
    for kind, at, length in limited(_chunks(data)):
        in_movi = in_movi or kind == b"movi"
        if not in_movi or not kind[:2].isdigit():
            continue
        if at + length > len(data):
            if riff_length and not is_cut:
                raise damaged(f"chunk {kind!r} of {length} bytes at byte {at - 8} is longer than the file")
            end, is_cut = at - 8, True
            break
        if kind in wanted:
            filled += [slots] if length else []
            slots += 1
    if not in_movi:
        raise truncated("it ends before the first frame") if is_cut else damaged("no list of frames (movi)")
    track = tracks[stream]
    return Container(
        size=track.size,
        codec=printable(track.codec),
        packets=len(filled),
        declared=max(0, track.slots - (slots - len(filled))) or None,
        end=end,
        is_cut=is_cut,
        times_s=tuple(slot * track.slot_s for slot in filled),
    )
