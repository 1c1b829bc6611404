"""How the boxes of an MP4 or QuickTime file are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.clip.clip import check_frame_count
from halofeed.prep.formats.clip.container import Container, limited, no_quarter_turn, no_video, printable
from halofeed.prep.formats.picture.image import Size, damaged, truncated, undecodable

ENTERED = (b"trak", b"mdia", b"minf", b"stbl", b"traf", b"edts")
DEEPEST = 16
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
"""Signs of a, b, c, d: x' = a x + c y, y' = b x + d y, y downwards; to the orientation of EXIF."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box: where it begins, where its payload does, and where it ends, which may be behind the file's end."""

    kind: bytes
    start: int
    payload: int
    end: int


def _boxes(data: bytes, at: int, end: int) -> Iterator[Box]:
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        payload = at + 8
        if size == 1:
            if at + 16 > end:
                return
            size, payload = struct.unpack_from(">Q", data, at + 8)[0], at + 16
        elif size == 0:
            size = end - at
        if size < payload - at:
            if kind == b"\0\0\0\0":  # zeros behind the last box
                return
            raise damaged(f"box {kind!r} of {size} bytes at byte {at}")
        yield Box(kind=kind, start=at, payload=payload, end=at + size)
        at += size


def _inside(data: bytes, box: Box, depth: int = 0) -> Iterator[Box]:
    """The boxes in a box, and those in what is entered, each whole."""
    if depth > DEEPEST:
        raise damaged(f"boxes in more than {DEEPEST} others")
    for inner in limited(_boxes(data, box.payload, box.end)):
        if inner.end > box.end:
            raise damaged(f"box {inner.kind!r} at byte {inner.start} is longer than what it is in")
        yield inner
        if inner.kind in ENTERED:
            yield from _inside(data, inner, depth + 1)


class Track:
    """The boxes in one, such as a track, each by its type; the first of each."""

    def __init__(self, data: bytes, box: Box) -> None:
        self._data = data
        self.boxes: dict[bytes, Box] = {}
        for inner in _inside(data, box):
            self.boxes.setdefault(inner.kind, inner)

    def numbers(self, kind: bytes, offset: int, form: str) -> tuple[int, ...]:
        """Numbers of a box from an offset of its payload on."""
        box = self.boxes.get(kind)
        if box is None:
            raise damaged(f"box {kind!r} is missing")
        if box.payload + offset + struct.calcsize(form) > box.end:
            raise damaged(f"box {kind!r} is too short")
        found: tuple[int, ...] = struct.unpack_from(form, self._data, box.payload + offset)
        return found

    def table(self, kind: bytes, offset: int, count: int, dtype: str) -> NDArray[np.int64]:
        """A table of numbers."""
        box = self.boxes[kind]
        if box.payload + offset + count * np.dtype(dtype).itemsize > box.end:
            raise damaged(f"box {kind!r} is shorter than its {count} entries")
        return np.frombuffer(self._data, dtype, count, box.payload + offset).astype(np.int64)

    @property
    def is_video(self) -> bool:
        return self.numbers(b"hdlr", 8, ">I")[0] == int.from_bytes(b"vide", "big")

    @property
    def number(self) -> int:
        (version,) = self.numbers(b"tkhd", 0, ">B")
        return self.numbers(b"tkhd", 20 if version else 12, ">I")[0]

    @property
    def size(self) -> Size:
        """(height, width) as stored, of the first sample description."""
        if not self.numbers(b"stsd", 4, ">I")[0]:
            raise damaged("a video track has no description")
        width, height = self.numbers(b"stsd", 8 + 32, ">HH")
        return height, width

    @property
    def is_interlaced(self) -> bool:
        """Of the first sample description.

        Source: QuickTime File Format Specification, field handling.
        """
        description = self.boxes[b"stsd"]
        return b"fiel\2" in self._data[description.payload : description.end]

    @property
    def codec(self) -> str:
        """Of the first sample description."""
        return printable(self.numbers(b"stsd", 12, ">I")[0].to_bytes(4, "big"))

    @property
    def orientation(self) -> int:
        """Of the display matrix, as EXIF counts them.

        Source: ISO/IEC 14496-12, 6.2.2 and 8.3.2.
        """
        (version,) = self.numbers(b"tkhd", 0, ">B")
        a, b, _, c, d, *_ = self.numbers(b"tkhd", 52 if version else 40, ">9i")
        largest = max(abs(value) for value in (a, b, c, d))
        if not largest:
            return 1
        signs = tuple(round(value / largest) for value in (a, b, c, d))
        slack = max(abs(value / largest - sign) for value, sign in zip((a, b, c, d), signs, strict=True))
        if signs not in _MATRIX_TURNS or (slack > 0.01 and not _is_scaled(a, b, c, d)):
            raise no_quarter_turn(f"({a}, {b}, {c}, {d}) / 65536")
        return _MATRIX_TURNS[signs]

    def duration_s(self) -> float:
        """How long all its frames are shown."""
        (version,) = self.numbers(b"mdhd", 0, ">B")
        scale, duration = self.numbers(b"mdhd", *((20, ">IQ") if version else (12, ">II")))
        return duration / max(1, scale)

    def shown_s(self, movie_scale: int) -> float | None:
        """How long the frames are shown that an edit list leaves; None where there is no such list.

        An edit without frames, in front of those of a track that begins late, is none of them.

        Source: ISO/IEC 14496-12, 8.6.6.
        """
        if b"elst" not in self.boxes:
            return None
        version, count = self.numbers(b"elst", 0, ">B3xI")
        entries = self.table(b"elst", 8, count * (5 if version else 3), ">u4").reshape(count, -1)
        lengths = entries[:, 0] * 2**32 + entries[:, 1] if version else entries[:, 0]
        is_empty = entries[:, -2] == 2**32 - 1
        return float(lengths[~is_empty].sum()) / max(1, movie_scale)

    def timed_samples(self) -> int:
        """How many samples the table of times has."""
        entries = self.table(b"stts", 8, 2 * self.numbers(b"stts", 4, ">I")[0], ">u4")
        return int(entries[::2].sum())

    def sample_sizes(self) -> tuple[int, int]:
        """(bytes of every sample or 0, how many samples there are)."""
        if b"stsz" not in self.boxes and b"stz2" in self.boxes:
            count = self.numbers(b"stz2", 8, ">I")[0]
            return 0, count
        size, count = self.numbers(b"stsz", 4, ">II")
        return size, count

    def sample_ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each sample begins and ends in the file, int64 [samples] each.

        Source: ISO/IEC 14496-12, 8.7.
        """
        size, count = self.sample_sizes()
        check_frame_count(count)
        if b"stsz" not in self.boxes:
            (field_bits,) = self.numbers(b"stz2", 7, ">B")
            if field_bits not in (8, 16):
                raise undecodable("video is not supported", f"a table of sizes of {field_bits} bits each")
            sizes = self.table(b"stz2", 12, count, ">u1" if field_bits == 8 else ">u2")
        else:
            sizes = np.full(count, size, np.int64) if size else self.table(b"stsz", 12, count, ">u4")
        wide = b"co64" in self.boxes
        offsets_in, width = (b"co64", ">u8") if wide else (b"stco", ">u4")
        chunks = self.numbers(offsets_in, 4, ">I")[0]
        offsets = self.table(offsets_in, 8, chunks, width)
        runs = self.table(b"stsc", 8, 3 * self.numbers(b"stsc", 4, ">I")[0], ">u4").reshape(-1, 3)
        first = np.clip(runs[:, 0] - 1, 0, chunks)
        lengths = np.diff(np.append(first, chunks))
        if not chunks or not len(runs) or (lengths < 0).any() or first[0]:
            raise damaged("its table of chunks is wrong")
        per_chunk = np.repeat(runs[:, 1], lengths)
        ends_of_chunks = np.minimum(np.cumsum(np.minimum(per_chunk, count)), count)
        in_chunk = np.diff(np.append(0, ends_of_chunks))
        if ends_of_chunks[-1] < count:
            raise damaged(f"its table of chunks has {ends_of_chunks[-1]} of {count} frames")
        before = np.cumsum(sizes) - sizes
        chunk_of = np.repeat(np.arange(chunks), in_chunk)
        starts_of_chunks = before[np.minimum(ends_of_chunks - in_chunk, count - 1)]
        starts = offsets[chunk_of] + before - starts_of_chunks[chunk_of]
        return starts, starts + sizes


def _is_scaled(a: int, b: int, c: int, d: int) -> bool:
    """Whether a matrix without a skew stretches one side: pixels that are not square."""
    return (not b and not c and bool(a and d)) or (not a and not d and bool(b and c))


def read_mp4(data: bytes) -> Container:
    """Read the headers and find the frames of the first video track.

    Raises:
        SourceError: no video, damaged, or cut off so that the index is missing.

    Source: ISO/IEC 14496-12; QuickTime File Format Specification.
    """
    movie, last, is_cut = None, None, False
    fragments: list[Box] = []
    declared: int | None
    for box in limited(_boxes(data, 0, len(data))):
        is_cut = box.end > len(data)
        if box.kind == b"moov" and not is_cut:
            movie = movie or box
        elif box.kind == b"moof" and not is_cut:
            fragments.append(box)
        last = box
    if last is not None and not is_cut:
        is_cut = (any(data[last.end : last.end + 16]) and len(data) - last.end < 16) or last.kind == b"moof"
    if movie is None:
        if is_cut or last is None or last.kind == b"mdat":
            raise truncated("its index (moov), often written last, is not whole; copy or record it again")
        raise damaged("it has no index (moov)")
    parts = Track(data, movie)
    tracks = [Track(data, box) for box in _inside(data, movie) if box.kind == b"trak"]
    video = next((track for track in tracks if track.is_video), None)
    if video is None:
        raise no_video(len(tracks))
    shown_s = video.shown_s(parts.numbers(b"mvhd", 20 if parts.numbers(b"mvhd", 0, ">B")[0] else 12, ">I")[0])
    if fragments or video.sample_sizes()[1] == 0:
        end = len(data)
        if is_cut and last is not None:
            end = min(
                last.start, fragments.pop().start if fragments and _is_open(fragments[-1], last) else end
            )
        packets, declared = video.sample_sizes()[1] + _in_fragments(data, video.number, fragments), None
    else:
        packets, declared, end = _in_tables(data, video)
        declared = max(declared, video.timed_samples())
    return Container(
        size=video.size,
        codec=video.codec,
        packets=packets,
        declared=declared,
        end=end,
        is_cut=is_cut,
        orientation=video.orientation,
        is_interlaced=video.is_interlaced,
        hides_frames=shown_s is not None and shown_s < video.duration_s() * (1 - 0.5 / max(1, packets)),
    )


def _in_tables(data: bytes, video: Track) -> tuple[int, int, int]:
    """(whole frames, frames, where the first that is not whole begins)."""
    starts, ends = video.sample_ends()
    missing = ends > len(data)
    if not missing.any():
        return len(ends), len(ends), len(data)
    return int((~missing).sum()), len(ends), min(int(starts[missing].min()), len(data))


def _is_open(fragment: Box, last: Box) -> bool:
    """Whether the frames of the last fragment are missing or not whole."""
    return last == fragment or (last.kind == b"mdat" and fragment.end == last.start)


def _in_fragments(data: bytes, number: int, fragments: list[Box]) -> int:
    """How many frames of a track these have."""
    packets = 0
    for fragment in fragments:
        current = None
        for box in _inside(data, fragment):
            if box.kind not in (b"tfhd", b"trun"):
                continue
            if box.end - box.payload < 8:
                raise damaged(f"box {box.kind!r} is too short")
            (value,) = struct.unpack_from(">I", data, box.payload + 4)
            if box.kind == b"tfhd":
                current = value
            elif current == number:
                packets += value
    return packets
