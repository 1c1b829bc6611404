"""Reader of JPEG files: the markers are parsed here, libjpeg-turbo decodes the pixels and reports all damage.

`without_metadata` removes metadata from files and from ICC profiles; the compressed pixels stay the same.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

import numpy as np
import simplejpeg
from PIL import JpegImagePlugin

from halofeed.prep.formats.picture.deep_jpeg import load_deep_jpeg
from halofeed.prep.formats.picture.image import (
    MemoryEstimate,
    OpenedImage,
    PixelArray,
    Raster,
    Size,
    damaged_error,
    decode_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.pillow import (
    cmyk_to_rgb,
    decoder_failures,
    load_raster,
    open_with_plugin,
)
from halofeed.prep.formats.picture.tiff import exif_orientation, read_tiff_directory
from halofeed.prep.voxels.encoded_image import START_OF_IMAGE
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

END_OF_IMAGE = b"\xff\xd9"
SOS, EOI, APP1 = 0xDA, 0xD9, 0xE1
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
SEQUENTIAL = frozenset((0xC0, 0xC1, 0xC9))
LOSSLESS, HIERARCHICAL = frozenset((0xC3, 0xC7, 0xCB, 0xCF)), frozenset((0xC5, 0xC6, 0xCD, 0xCE))
PLAIN_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive frames, all with Huffman codes."""
WITHOUT_PAYLOAD = frozenset((0x01, *range(0xD0, 0xD8)))
KEPT_APPLICATION_SEGMENTS = (0xE0, 0xEE)
# More than any encoder writes. Each scan costs a pass over all pixels: a small file could take hours.
MAX_SCANS, MAX_SCANNED_PIXELS = 500, 2_000_000_000
MAX_SEGMENTS = 1 << 16
FILL = re.compile(b"\xff+")
USUAL_SCANS = 12
"""Scans that a picture of any size may have. The scripts of libjpeg write 10 scans, those of mozjpeg 9."""
SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Sampling factors of the first component that the fast decoder supports if the others have (1, 1)."""
_SCALES = (8, 4, 2)
ROW_BYTES = 512
"""Bytes per column that libjpeg holds for the rows that it is decoding."""
PREMATURE_END = "Premature end of JPEG file"
UNKNOWN_SAMPLING = "Could not determine subsampling level"
_MP_ENTRIES = 0xB002
_MPF_WITHIN, _MPF_BYTES = 1 << 18, 1 << 16


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """Content of a JPEG file before the first scan.

    Args:
        size: (height, width) as stored.
        frame: low byte of the frame marker, 0xC0 for baseline.
        precision: bits of a sample.
        sampling: (horizontal, vertical) sampling factors of each component.
        orientation: EXIF orientation, 1 to 8.
        segments: (marker, first byte, end) of each segment, including the first start of scan.
        stray_bytes: number of bytes between segments, which decoders skip.
        has_one_scan: whether the first scan holds all components of a sequential picture. Other files may lack
            scans although all existing data are intact.
    """

    size: Size
    frame: int
    precision: int
    sampling: tuple[tuple[int, int], ...]
    orientation: int
    segments: tuple[tuple[int, int, int], ...]
    stray_bytes: int
    has_one_scan: bool

    @property
    def coefficient_bytes(self) -> int:
        """Return the bytes of coefficients that a decoder keeps, at any scale, if there are several scans."""
        if self.has_one_scan:  # libjpeg decodes it row by row
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
        """True if the fast decoder supports the sampling of the components."""
        first, *others = self.sampling
        if len(self.sampling) == 4:  # black, which has the factors of the first one
            others = others[:2]
        return not others or (first in SAMPLINGS and all(factors == (1, 1) for factors in others))


def read_segments(data: bytes) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """Return the segments including the first start of scan, and the number of stray bytes between them.

    Raises:
        SourceError: the header is truncated or damaged.
    """
    found: list[tuple[int, int, int]] = []
    stray, at = 0, len(START_OF_IMAGE)
    for _ in range(MAX_SEGMENTS):
        start = data.find(b"\xff", at)
        if start < 0:
            raise truncated_error("no start of scan")
        stray, at = stray + start - at, start
        # Any number of FF bytes may precede a marker (T.81, B.1.1.2).
        at = FILL.match(data, at).end() - 1  # type: ignore[union-attr]
        if at + 1 >= len(data):
            raise truncated_error("no start of scan")
        marker = data[at + 1]
        # FF 00 is a stuffed byte of compressed data, which decoders skip here, as they do restart markers.
        if marker == 0 or marker in WITHOUT_PAYLOAD:
            stray, at = stray + 2, at + 2
            continue
        if marker == EOI:
            raise damaged_error("the JPEG ends before its first scan")
        end = _segment_end(data, at)
        found.append((marker, at, end))
        if marker == SOS:
            return tuple(found), stray
        at = end
    raise damaged_error(f"more than {MAX_SEGMENTS} segments before the first scan")


def _segment_end(data: bytes, at: int) -> int:
    """Return the end of the segment whose marker is at `at`; its length counts its own two bytes (B.1.1.4)."""
    marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
    if length < 2:
        if at + 4 > len(data):
            raise truncated_error(f"segment FF{marker:02X} at byte {at} of {len(data)}")
        raise damaged_error(f"segment FF{marker:02X} at byte {at} says length {length}")
    if at + 2 + length > len(data):
        raise truncated_error(f"segment FF{marker:02X} ends at byte {at + 2 + length} of {len(data)}")
    return at + 2 + length


def read_jpeg_header(data: bytes, *, takes_deep: bool = False) -> JpegHeader:
    """Read everything before the first scan.

    Args:
        data: bytes of the file.
        takes_deep: accept 9 to 16 bits and lossless frames with Huffman codes, which `deep_jpeg` decodes.

    Raises:
        SourceError: the header is truncated or damaged, or it declares an unsupported kind of JPEG:
            12 or 16 bits, lossless, hierarchical, or a height that follows the pixels.

    Source: ITU-T T.81, annex B.
    """
    segments, stray = read_segments(data)
    frames = [(marker, data[at + 4 : end]) for marker, at, end in segments if marker in FRAME_MARKERS]
    # Only a hierarchical JPEG has several (B.3), which no decoder reads.
    if len(frames) != 1:
        raise damaged_error(f"{len(frames)} frame headers before the first scan, expected 1")
    frame, payload = frames[0]
    # Precision, height, width and a count, then three bytes per component (T.81, B.2.2).
    if len(payload) < 6 or len(payload) < 6 + 3 * payload[5]:
        raise damaged_error(f"frame header of {plural(len(payload), 'byte')}")
    precision, components = payload[0], payload[5]
    size = int.from_bytes(payload[1:3], "big"), int.from_bytes(payload[3:5], "big")
    if not (takes_deep and is_deep(frame, precision, components)):
        _check_kind(frame, precision, components)
    first_scan = segments[-1][1]
    _check_scans(data.count(b"\xff\xda", first_scan), size)
    factors = tuple(payload[7 + 3 * index] for index in range(components))
    return JpegHeader(
        size=size,
        frame=frame,
        precision=precision,
        sampling=tuple((factor >> 4, factor & 15) for factor in factors),
        orientation=exif_orientation(_exif(data, segments)),
        segments=segments,
        stray_bytes=stray,
        has_one_scan=frame in SEQUENTIAL and data[first_scan + 4] == components,
    )


def is_deep(frame: int, precision: int, components: int) -> bool:
    """Return whether `deep_jpeg` decodes a kind of JPEG: 12 bits, or lossless with 8 to 16 bits; gray or color."""
    if components not in (1, 3):
        return False
    # Arithmetic codes of these kinds have no decoder here.
    return (frame in (0xC1, 0xC2) and precision == 12) or (frame == 0xC3 and 8 <= precision <= 16)


def _check_kind(frame: int, precision: int, components: int) -> None:
    """Refuse what libjpeg-turbo does not decode to 8-bit samples."""
    refused = (
        (frame in LOSSLESS, "lossless JPEG is not supported", f"frame FF{frame:02X}, {precision} bit"),
        (frame in HIERARCHICAL, "hierarchical JPEG is not supported", f"frame FF{frame:02X}"),
        (precision != 8, "JPEG of other than 8 bits is not supported", f"{precision} bits per sample"),
        (
            components not in (1, 3, 4),
            "JPEG of this many components is not supported",
            f"{components} components",
        ),
    )
    for is_refused, reason, detail in refused:
        if is_refused:
            raise decode_error(reason, detail)


def _check_scans(scans: int, size: Size) -> None:
    """Refuse more scans than an encoder writes: each costs a pass over all pixels, whatever its bytes."""
    if scans > MAX_SCANS:
        raise decode_error(
            "more JPEG scans than allowed", f"{plural(scans, 'scan')}, allowed are {MAX_SCANS}"
        )
    # Encoders write up to USUAL_SCANS for pictures of any size; only more of them on a large picture are hostile.
    if scans * size[0] * size[1] > MAX_SCANNED_PIXELS and scans > USUAL_SCANS:
        detail = f"{plural(scans, 'scan')} of {size[0]} x {size[1]} pixels"
        raise decode_error("more JPEG scans than allowed", detail)


def _exif(data: bytes, segments: tuple[tuple[int, int, int], ...]) -> bytes:
    """Return the first EXIF segment; XMP uses the same marker."""
    return next(
        (
            data[at + 4 : end]
            for marker, at, end in segments
            if marker == APP1 and data.startswith(b"Exif\0\0", at + 4)
        ),
        b"",
    )


def without_strays(data: bytes, header: JpegHeader) -> bytes:
    """Return the file without stray bytes, comments, profiles and EXIF data; the pixels stay the same."""
    kept = [
        data[at:end]
        for marker, at, end in header.segments
        if marker < 0xE0 or marker in KEPT_APPLICATION_SEGMENTS
    ]
    return b"".join([START_OF_IMAGE, *kept, memoryview(data)[header.segments[-1][2] :]])


def reduction(stored_size: Size, needed_size: Size) -> int:
    """Return the largest of 1, 2, 4, 8 by which the decoder can divide both sides and still reach `needed_size`.

    Sizes are (height, width); the decoder rounds up. The result is 1 for sides below 16 pixels, because the scale that
    libjpeg chooses for a requested size is then ambiguous.

    >>> reduction((1200, 1800), (300, 400)), reduction((1200, 1800), (301, 400))
    (4, 2)
    """
    (height, width), (needed_height, needed_width) = stored_size, needed_size
    # Below 16 pixels, several scales of libjpeg give one size, so the requested one is ambiguous.
    if (needed_height >= height and needed_width >= width) or min(height, width) < 16:
        return 1
    for scale in _SCALES:
        # libjpeg rounds the sides of a scaled picture up.
        if -(-height // scale) >= needed_height and -(-width // scale) >= needed_width:
            return scale
    return 1


def _lacks_end(error: ValueError, data: bytes) -> bool:
    """Return whether only the end marker is missing and every block of the picture is present."""
    # libjpeg also reports a missing end where a block before an existing marker is cut.
    if PREMATURE_END not in str(error) or data.endswith(END_OF_IMAGE):
        return False
    try:
        _decode(data + END_OF_IMAGE, "GRAY", (0, 0))
    except ValueError:
        return False
    return True


def _decode(data: bytes, colors: str, least: Size) -> PixelArray:
    pixels: PixelArray = simplejpeg.decode_jpeg(
        data, colors, min_height=least[0], min_width=least[1], strict=True
    )
    return pixels


def _load(data: bytes, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> Raster:
    """Decode with libjpeg-turbo; repair a missing end marker, and use Pillow for unusual samplings."""
    # Stray bytes make libjpeg warn, and a warning is an error here.
    plain = without_strays(data, header) if header.stray_bytes else data
    colors = _colors(header, gray_is_enough)
    scale, size = _scaled(header, needed_size)
    notes: list[str] = []
    try:
        pixels = _decode(plain, colors, size)
    except ValueError as error:
        if UNKNOWN_SAMPLING in str(error):  # TurboJPEG's interface has names for common samplings only
            return _load_with_pillow(data, header)
        # In a picture of one scan all blocks are there, or `_lacks_end` sees a warning; other scans may be missing.
        if not (header.has_one_scan and _lacks_end(error, plain)):
            raise (truncated_error if PREMATURE_END in str(error) else damaged_error)(str(error)) from error
        pixels = _decode(plain + END_OF_IMAGE, colors, size)
        notes.append("end marker of the JPEG is missing")
    if scale > 1:
        notes.append(f"decoded at 1/{scale}")
    if colors == "CMYK":
        # Adobe's convention, which every known writer of such files follows: 255 is no ink.
        pixels = cmyk_to_rgb(np.subtract(255, pixels, out=pixels))
        notes.append("CMYK converted")
    return Raster(pixels=pixels, scale=scale, notes=tuple(notes))


def _colors(header: JpegHeader, gray_is_enough: bool) -> str:
    """Return simplejpeg's name of the colors to decode; gray from color is the stored luma."""
    components = len(header.sampling)
    if components == 4:
        return "CMYK"
    return "GRAY" if components == 1 or gray_is_enough else "RGB"


def _load_with_pillow(data: bytes, header: JpegHeader) -> Raster:
    """Decode with Pillow, which does not report libjpeg's warnings."""
    raster = load_raster(open_with_plugin(JpegImagePlugin.JpegImageFile, without_strays(data, header)))
    return replace(raster, notes=(*raster.notes, "unusual JPEG sampling, damage would go unseen"))


def _scaled(header: JpegHeader, needed_size: Size) -> tuple[int, Size]:
    """Return the divisor of the sides and the decoded (height, width)."""
    scale = reduction(header.size, needed_size)
    height, width = (-(-side // scale) for side in header.size)
    return scale, (height, width)


def _estimate(byte_count: int, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> MemoryEstimate:
    is_cmyk = len(header.sampling) == 4
    channels = 1 if len(header.sampling) == 1 or (gray_is_enough and not is_cmyk) else 3
    held_bytes = header.coefficient_bytes + ROW_BYTES * header.size[1]
    if header.stray_bytes or not header.is_usual:  # a copy without them
        held_bytes += byte_count
    _, size = _scaled(header, needed_size)
    estimate = estimate_decoding(size, channels, extra_pixel_bytes=4 if is_cmyk else 0, held_bytes=held_bytes)
    if header.is_usual:
        return estimate
    # Pillow decodes at full size, whatever is needed.
    by_pillow = estimate_decoding(
        header.size, channels, pillow_bytes=1 if channels == 1 else 4, held_bytes=held_bytes
    )
    return replace(estimate, peak_bytes=max(estimate.peak_bytes, by_pillow.peak_bytes))


def open_jpeg(data: bytes) -> OpenedImage:
    """Open a JPEG file: baseline or progressive, Huffman or arithmetic; gray, YCbCr, RGB, CMYK or YCCK.

    Gray from color is the stored luma if the file has luma and chroma (ITU-R BT.601, as in JFIF).
    Every libjpeg warning about compressed data is an error. If the fast decoder does not support the sampling,
    Pillow reads the file without warnings.

    Raises:
        SourceError: see `read_jpeg_header`. `load` also reports damaged compressed data.
    """
    header = read_jpeg_header(data, takes_deep=True)
    components = len(header.sampling)
    if is_deep(header.frame, header.precision, components):
        return _open_deep(data, header)
    is_plain = components in (1, 3) and header.frame in PLAIN_FRAMES and not header.stray_bytes

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        with decoder_failures():
            return _load(data, header, gray_is_enough, needed_size)

    return OpenedImage(
        stored_size=header.size,
        orientation=header.orientation,
        estimate=lambda gray_is_enough, needed: _estimate(len(data), header, gray_is_enough, needed),
        load=load,
        # TensorFlow, libjpeg and browsers all decode such a file.
        plain_channels=components if is_plain else 0,
        more=_has_other_view(data, header.size),
    )


def _open_deep(data: bytes, header: JpegHeader) -> OpenedImage:
    """Open a JPEG of 12 bits, or a lossless one."""
    channels, sample_bytes = len(header.sampling), 2 if header.precision > 8 else 1
    # Two decoded rasters, and two copies of the file.
    estimate = estimate_decoding(
        header.size,
        channels,
        sample_bytes,
        extra_pixel_bytes=2 * channels * sample_bytes,
        held_bytes=header.coefficient_bytes + 4 * ROW_BYTES * header.size[1] + 2 * len(data),
    )
    kind = "lossless JPEG files" if header.frame in LOSSLESS else f"JPEG files of {header.precision} bits"
    return OpenedImage(
        stored_size=header.size,
        orientation=header.orientation,
        estimate=lambda *_: estimate,
        load=lambda *_: load_deep_jpeg(data, header.segments[-1][2], header.precision, kind),
    )


def _has_other_view(data: bytes, size: Size) -> bool:
    """Return whether a multi-picture file (MPO) has a second picture of this size.

    Previews and gain maps are smaller. Source: CIPA DC-007, sections 5.1 and 5.2.3.
    """
    at = data.find(b"MPF\0", 0, _MPF_WITHIN) + 4
    # There is no such segment: `find` returned -1.
    if at < 4:
        return False
    try:
        directory = read_tiff_directory(data[at : at + _MPF_BYTES])
        entries = directory.fields.get(_MP_ENTRIES)
        if entries is None or entries.data is None:
            return False
        numbers = np.frombuffer(entries.data[: len(entries.data) // 16 * 16], f"{directory.order}u4")
        starts = [at + int(offset) for offset in numbers[2::4] if offset]
        return any(read_jpeg_header(data[start:]).size == size for start in starts)
    except SourceError:
        return False


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
_MAX_TAGS, _MAX_BYTES = 100, 255 * 65_519
_NAME = "halofeed: without names"

_NEEDED = FRAME_MARKERS | {0xC4, 0xDB, 0xDD, SOS}
"""Frames, Huffman tables, quantization tables, restart interval and scans; decoders check their lengths."""
_APP0, _APP2, _APP14 = 0xE0, 0xE2, 0xEE
_JFIF, _ADOBE, _ICC = b"JFIF\0", b"Adobe", b"ICC_PROFILE\0"
_JFIF_BYTES, _ADOBE_BYTES = 18, 16
"""Bytes of the segments with their marker and without a thumbnail."""
_ICC_START = 4 + len(_ICC) + 2
_MAX_ICC_BYTES = 65_519
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
        # The new profile takes the place of the first part of the old one.
        if profile and _is_icc(data, segment):
            pieces += _icc_segments(profile)
            profile = b""
        pieces.append(_kept(data, segment))
    at = segments[-1][2]
    while (found := _MARKER.search(data, at)) is not None:
        start, marker = found.start(), data[found.start() + 1]
        if marker == EOI:  # what follows the end, such as the video of a motion photo, is dropped
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
    # JFIF states the aspect of the pixels; its thumbnail is dropped.
    if marker == _APP0 and data.startswith(_JFIF, start + 4) and size >= _JFIF_BYTES:
        plain = _shortened(data, start, _JFIF_BYTES)[:-2] + b"\0\0"
        return memoryview(data)[start:end] if data[start:end] == plain else plain
    # Adobe's segment says whether the colors are RGB, YCbCr, CMYK or YCCK.
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
    pieces = [profile[at : at + _MAX_ICC_BYTES] for at in range(0, len(profile), _MAX_ICC_BYTES)]
    return [
        b"\xff\xe2" + (len(piece) + 16).to_bytes(2, "big") + _ICC + bytes((number, len(pieces))) + piece
        for number, piece in enumerate(pieces, 1)
    ]


def profile_without_names(profile: bytes) -> bytes:
    """Return the ICC profile with the same colors and no names, dates or serial numbers; b"" if it is unreadable."""
    # The signature of a profile is "acsp" (ICC.1:2022, 7.2.9). A longer profile exceeds 255 segments.
    if not _HEADER_BYTES + 4 <= len(profile) <= _MAX_BYTES or profile[36:40] != b"acsp":
        return b""
    count = int.from_bytes(profile[_HEADER_BYTES : _HEADER_BYTES + 4], "big")
    end = _HEADER_BYTES + 4 + count * _ENTRY.size
    if count > _MAX_TAGS or end > len(profile):
        return b""
    tags = _color_tags(profile, end)
    # Without colors the profile describes nothing.
    if not tags:
        return b""
    is_early = profile[8] < 4  # version 2 has other types of texts (ICC.1:2001-04, 6.5)
    tags |= {
        b"desc": _early_description() if is_early else _text(),
        b"cprt": _early_text() if is_early else _text(),
    }
    return _assembled(profile, tags)


def _color_tags(profile: bytes, end: int) -> dict[bytes, bytes]:
    """Return the tags that state colors by name, without what follows their numbers; {} if one is cut off."""
    tags: dict[bytes, bytes] = {}
    for name, start, size in _ENTRY.iter_unpack(profile[_HEADER_BYTES + 4 : end]):
        value = profile[start : start + size]
        # Other tags and types may hold names, serial numbers or dates.
        if name not in _COLOR_TAGS or value[:4] not in _NUMBER_TYPES:
            continue
        # A cut tag would change the colors; without a profile, readers take sRGB.
        if len(value) < size:
            return {}
        tags[name] = value[: _number_bytes(value)]
    return tags


def _number_bytes(value: bytes) -> int:
    """Return how many bytes of a tag hold its numbers; names may follow them."""
    if value[:4] == b"curv":
        # a count, then that many numbers of 16 bits (ICC.1:2022, 10.6)
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
