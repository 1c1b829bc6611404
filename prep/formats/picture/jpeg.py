"""Reader of JPEG files: markers here, pixels by libjpeg-turbo, strict about damage."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import simplejpeg
from PIL import JpegImagePlugin

from halofeed.errors import SourceError
from halofeed.prep.formats.picture.image import (
    Decoding,
    OpenedImage,
    Pixels,
    Raster,
    Size,
    damaged,
    plan_decoding,
    truncated,
    undecodable,
)
from halofeed.prep.formats.picture.pillow import (
    cmyk_to_rgb,
    decoder_failures,
    load_raster,
    open_with,
    plan_pillow,
)
from halofeed.prep.formats.picture.tiff import exif_orientation, read_directory

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


PREMATURE_END = "Premature end of JPEG file"
END_OF_IMAGE = b"\xff\xd9"
PLAIN_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive, all with Huffman codes."""
_MP_ENTRIES = 0xB002
_MPF_WITHIN, _MPF_BYTES = 1 << 18, 1 << 16
UNKNOWN_SAMPLING = "Could not determine subsampling level"
SCALES = (8, 4, 2)
ROW_BYTES = 512
"""Of each column, what libjpeg holds of the rows under way."""


def reduction(stored_size: Size, needed_size: Size) -> int:
    """The largest of 1, 2, 4, 8 by which the decoder can divide both sides and still deliver `needed_size`.

    Sizes are (height, width); the decoder rounds up. Below 16 pixels its choice of a scale is not clear from the
    size that it is asked for.

    >>> reduction((1200, 1800), (300, 400)), reduction((1200, 1800), (301, 400))
    (4, 2)
    """
    (height, width), (needed_height, needed_width) = stored_size, needed_size
    if (needed_height >= height and needed_width >= width) or min(height, width) < 16:
        return 1
    for scale in SCALES:
        if -(-height // scale) >= needed_height and -(-width // scale) >= needed_width:
            return scale
    return 1


def _lacks_end(error: ValueError, data: bytes) -> bool:
    """Whether the end marker alone is missing, and every block of the picture is there."""
    if PREMATURE_END not in str(error) or data.endswith(END_OF_IMAGE):
        return False
    try:
        _decode(data + END_OF_IMAGE, "GRAY", (0, 0))
    except ValueError:
        return False
    return True


def _decode(data: bytes, colors: str, least: Size) -> Pixels:
    pixels: Pixels = simplejpeg.decode_jpeg(
        data, colors, min_height=least[0], min_width=least[1], strict=True
    )
    return pixels


def _load(data: bytes, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> Raster:
    components = len(header.sampling)
    plain = without_strays(data, header) if header.stray_bytes else data
    colors = "CMYK" if components == 4 else "GRAY" if components == 1 or gray_is_enough else "RGB"
    scale, size = _scaled(header, needed_size)
    notes: list[str] = []
    try:
        pixels = _decode(plain, colors, size)
    except ValueError as error:
        if UNKNOWN_SAMPLING in str(error):
            raster = load_raster(open_with(JpegImagePlugin.JpegImageFile, without_strays(data, header)))
            return replace(raster, notes=(*raster.notes, "unusual JPEG sampling, damage would go unseen"))
        if not (header.has_one_scan and _lacks_end(error, plain)):
            raise (truncated if PREMATURE_END in str(error) else damaged)(str(error)) from error
        pixels = _decode(plain + END_OF_IMAGE, colors, size)
        notes.append("end marker of the JPEG is missing")
    if scale > 1:
        notes.append(f"decoded at 1/{scale}")
    if colors == "CMYK":
        # Adobe's convention, which every known writer of such files follows: 255 is no ink.
        pixels = cmyk_to_rgb(np.subtract(255, pixels, out=pixels))
        notes.append("CMYK converted")
    return Raster(pixels=pixels, scale=scale, notes=tuple(notes))


def _scaled(header: JpegHeader, needed_size: Size) -> tuple[int, Size]:
    """By how much the sides are divided, and the size that is decoded."""
    scale = reduction(header.size, needed_size)
    height, width = (-(-side // scale) for side in header.size)
    return scale, (height, width)


def _plan(byte_count: int, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> Decoding:
    inks = len(header.sampling) == 4
    channels = 1 if len(header.sampling) == 1 or (gray_is_enough and not inks) else 3
    held_bytes = header.coefficient_bytes + ROW_BYTES * header.size[1]
    if header.stray_bytes or not header.is_usual:
        held_bytes += byte_count
    _, size = _scaled(header, needed_size)
    planned = plan_decoding(size, channels, beside=4 if inks else 0, held_bytes=held_bytes)
    if header.is_usual:
        return planned
    by_pillow = plan_pillow(header.size, 1 if channels == 1 else 4, channels, held_bytes=held_bytes)
    return replace(planned, peak_bytes=max(planned.peak_bytes, by_pillow.peak_bytes))


def open_jpeg(data: bytes) -> OpenedImage:
    """Open a JPEG file: baseline or progressive, Huffman or arithmetic; gray, YCbCr, RGB, CMYK or YCCK.

    Gray from color is the file's own luma where it stores luma and chroma (ITU-R BT.601, as JFIF says).
    Of damage in the compressed data everything is an error that libjpeg warns of; where the components are
    sampled so unusually that the fast decoder does not take them, Pillow reads the file, without warnings.

    Raises:
        SourceError: as `read_jpeg_header`; when loaded, also that the compressed data are damaged.
    """
    header = read_jpeg_header(data)
    components = len(header.sampling)
    is_plain = components in (1, 3) and header.frame in PLAIN_FRAMES and not header.stray_bytes

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        with decoder_failures():
            return _load(data, header, gray_is_enough, needed_size)

    return OpenedImage(
        stored_size=header.size,
        orientation=header.orientation,
        plan=lambda gray_is_enough, needed: _plan(len(data), header, gray_is_enough, needed),
        load=load,
        # TensorFlow, libjpeg and browsers all take such a file as it is.
        plain_channels=components if is_plain else 0,
        more=_holds_views(data, header.size),
    )


def _holds_views(data: bytes, size: Size) -> bool:
    """Whether a multi-picture file (MPO) holds another picture of that size; previews and gain maps are smaller.

    Source: CIPA DC-007, sections 5.1 and 5.2.3.
    """
    at = data.find(b"MPF\0", 0, _MPF_WITHIN) + 4
    if at < 4:
        return False
    try:
        directory = read_directory(data[at : at + _MPF_BYTES])
        entries = directory.fields.get(_MP_ENTRIES)
        if entries is None or entries.data is None:
            return False
        numbers = np.frombuffer(entries.data[: len(entries.data) // 16 * 16], f"{directory.order}u4")
        starts = [at + int(offset) for offset in numbers[2::4] if offset]
        return any(read_jpeg_header(data[start:]).size == size for start in starts)
    except SourceError:
        return False
