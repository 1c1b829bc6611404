"""How the header of a JPEG file is read: its size, its kind, its orientation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from halofeed.prep.formats.picture.image import Size, damaged, truncated, undecodable
from halofeed.prep.formats.picture.tiff_directory import exif_orientation

START_OF_IMAGE = b"\xff\xd8"
SOS, EOI, APP1 = 0xDA, 0xD9, 0xE1
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SEQUENTIAL = frozenset((0xC0, 0xC1, 0xC9))
LOSSLESS, HIERARCHICAL = frozenset((0xC3, 0xC7, 0xCB, 0xCF)), frozenset((0xC5, 0xC6, 0xCD, 0xCE))
WITHOUT_PAYLOAD = frozenset((0x01, *range(0xD0, 0xD8)))
KEPT_APPLICATION_SEGMENTS = (0xE0, 0xEE)
# More than any encoder writes. Each costs a pass over the whole picture: a small file could take hours.
MAX_SCANS, MAX_SCANNED_PIXELS = 500, 2_000_000_000
MAX_SEGMENTS = 1 << 16
FILL = re.compile(b"\xff+")
USUAL_SCANS = 12
"""Up to here a picture of any size may have; what libjpeg's own scripts and mozjpeg write are 10 and 9."""
SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Of the first component, where the others have one sample: what the fast decoder takes."""


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """What stands before the first scan.

    Args:
        size: (height, width) as stored.
        frame: the low byte of the frame marker, 0xC0 for baseline.
        sampling: (horizontal, vertical) sampling factors of each component.
        orientation: EXIF orientation, 1 to 8.
        segments: (marker, first byte, end) of each segment up to and with the first start of scan.
        stray_bytes: bytes between segments, which decoders skip.
        has_one_scan: whether the first scan holds all of the picture: sequential, every component in it. Of others a
            part may be missing without damage to what is there.
    """

    size: Size
    frame: int
    sampling: tuple[tuple[int, int], ...]
    orientation: int
    segments: tuple[tuple[int, int, int], ...]
    stray_bytes: int
    has_one_scan: bool

    @property
    def coefficient_bytes(self) -> int:
        """What a decoder keeps of the whole picture, at any scale, where it comes in more than one scan."""
        if self.has_one_scan:
            return 0
        height, width = self.size
        across, down = (max(1, *(factors[axis] for factors in self.sampling)) for axis in (0, 1))
        samples = 0
        for horizontal, vertical in self.sampling:
            columns, rows = -(-width // (8 * across)) * horizontal, -(-height // (8 * down)) * vertical
            samples += 64 * columns * rows
        return 2 * samples

    @property
    def is_usual(self) -> bool:
        """Whether the components are sampled as the fast decoder takes them."""
        first, *others = self.sampling
        if len(self.sampling) == 4:
            others = others[:2]
        return not others or (first in SAMPLINGS and all(factors == (1, 1) for factors in others))


def read_segments(data: bytes) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """The segments up to and with the first start of scan, and how many stray bytes lie between them.

    Raises:
        SourceError: the header is cut off or damaged.
    """
    found: list[tuple[int, int, int]] = []
    stray, at, steps = 0, len(START_OF_IMAGE), 0
    while True:
        steps += 1
        if steps > MAX_SEGMENTS:
            raise damaged(f"more than {MAX_SEGMENTS} segments before the first scan")
        start = data.find(b"\xff", at)
        if start < 0:
            raise truncated("no start of scan")
        stray, at = stray + start - at, start
        at = FILL.match(data, at).end() - 1  # type: ignore[union-attr]
        if at + 1 >= len(data):
            raise truncated("no start of scan")
        marker = data[at + 1]
        if marker == 0 or marker in WITHOUT_PAYLOAD:
            stray, at = stray + 2, at + 2
            continue
        if marker == EOI:
            raise damaged("the JPEG ends before its first scan")
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            if at + 4 > len(data):
                raise truncated(f"segment FF{marker:02X} at byte {at} of {len(data)}")
            raise damaged(f"segment FF{marker:02X} at byte {at} says length {length}")
        end = at + 2 + length
        if end > len(data):
            raise truncated(f"segment FF{marker:02X} ends at byte {end} of {len(data)}")
        found.append((marker, at, end))
        if marker == SOS:
            return tuple(found), stray
        at = end


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Read everything up to the first scan.

    Raises:
        SourceError: the header is cut off or damaged, or it announces a kind of JPEG that is not read:
            12 or 16 bits, lossless, hierarchical, height unknown until the end.

    Source: ITU-T T.81, annex B.
    """
    segments, stray = read_segments(data)
    frames = [(marker, data[at + 4 : end]) for marker, at, end in segments if marker in FRAMES]
    if len(frames) != 1:
        raise damaged(f"{len(frames)} frame headers before the first scan, expected 1")
    frame, payload = frames[0]
    if len(payload) < 6 or len(payload) < 6 + 3 * payload[5]:
        raise damaged(f"frame header of {len(payload)} bytes")
    precision, components = payload[0], payload[5]
    size = int.from_bytes(payload[1:3], "big"), int.from_bytes(payload[3:5], "big")
    if frame in LOSSLESS:
        raise undecodable("lossless JPEG is not supported", f"frame FF{frame:02X}, {precision} bit")
    if frame in HIERARCHICAL:
        raise undecodable("hierarchical JPEG is not supported", f"frame FF{frame:02X}")
    if precision != 8:
        raise undecodable("JPEG of other than 8 bits is not supported", f"{precision} bits per sample")
    if components not in (1, 3, 4):
        raise undecodable("JPEG of this many components is not supported", f"{components} components")
    scans = data.count(b"\xff\xda", segments[-1][1])
    if scans > MAX_SCANS:
        raise undecodable("more JPEG scans than allowed", f"{scans} scans, allowed are {MAX_SCANS}")
    if scans * size[0] * size[1] > MAX_SCANNED_PIXELS and scans > USUAL_SCANS:
        detail = f"{scans} scans of {size[0]} x {size[1]} pixels"
        raise undecodable("more JPEG scans than allowed", detail)
    factors = tuple(payload[7 + 3 * index] for index in range(components))
    exif = next((data[at + 4 : end] for marker, at, end in segments if _is_exif(data, marker, at)), b"")
    return JpegHeader(
        size=size,
        frame=frame,
        sampling=tuple((factor >> 4, factor & 15) for factor in factors),
        orientation=exif_orientation(exif),
        segments=segments,
        stray_bytes=stray,
        has_one_scan=frame in SEQUENTIAL and data[segments[-1][1] + 4] == components,
    )


def _is_exif(data: bytes, marker: int, at: int) -> bool:
    return marker == APP1 and data[at + 4 : at + 10] == b"Exif\0\0"


def without_strays(data: bytes, header: JpegHeader) -> bytes:
    """The same picture without bytes between segments, comments, profiles and EXIF data."""
    kept = [
        data[at:end]
        for marker, at, end in header.segments
        if marker < 0xE0 or marker in KEPT_APPLICATION_SEGMENTS
    ]
    return b"".join([START_OF_IMAGE, *kept, memoryview(data)[header.segments[-1][2] :]])
