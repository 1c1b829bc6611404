"""Headers of DICOM whole-slide images: size, tiles, color and places of the frames, without pixels.

One instance is one resolution of the slide. Its tiles are frames, in rows from the top left (TILED_FULL), or at places
that the header lists (TILED_SPARSE). Source: DICOM PS3.3, A.32.8 and C.8.12.4, C.7.6.17; PS3.5, A.4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from posixpath import dirname
from typing import TYPE_CHECKING, Any

from halofeed.prep.formats.dicom.headers import media_sop_class
from halofeed.prep.formats.dicom.sop_classes import (
    IMAGE,
    SECONDARY_CAPTURE,
    SLIDE_CLASS,
    SOP_CLASS_KINDS,
    sop_class_kind,
)
from halofeed.prep.formats.picture.image import Size, damaged_error, decode_error
from halofeed.prep.sources.files import SourceFiles, SourceRanges
from halofeed.prep.sources.range_stream import RangeStream
from halofeed.system.errors import SourceError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_VOLUME = "VOLUME"
"""Third value of Image Type of a resolution of the slide; others are LABEL, OVERVIEW and THUMBNAIL (C.8.12.4.1.1)."""
SLIDE_HEAD_BYTES = 1024
"""First bytes of a file that name its class."""
_SLIDE_CLASS = re.compile(rb"%b(?![\d.])" % re.escape(SLIDE_CLASS).encode())
_LAST_BRIEF_TAG = 0x00480007
"""Total Pixel Matrix Rows. The tags behind it may list the places of 100,000 frames, which a listing does not need."""
_PIXEL_DATA = 0x7FE00010
_BLOCK_BYTES = 256 << 10
_SCAN_BYTES = 64 << 10
"""Bytes that a search of the frames reads at once: 0.17 s for 20,000 frames of 20 kB; 0.35 s with 256 KiB (2 cores)."""
_NUMBERS_ONLY = (
    *(
        "SOPClassUID",
        "SOPInstanceUID",
        "ImageType",
        "SeriesInstanceUID",
        "Rows",
        "Columns",
        "NumberOfFrames",
        "SamplesPerPixel",
    ),
    *("TotalPixelMatrixRows", "TotalPixelMatrixColumns", "TotalPixelMatrixFocalPlanes", "BitsAllocated"),
    *(
        "PhotometricInterpretation",
        "PlanarConfiguration",
        "DimensionOrganizationType",
        "NumberOfOpticalPaths",
    ),
    *("PixelRepresentation", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("ExtendedOffsetTable", "ExtendedOffsetTableLengths", "ConcatenationUID"),
)
"""Members that are read. None of them names a person or a date."""


@dataclass(frozen=True, kw_only=True)
class SlideHeader:
    """Header of one instance.

    Args:
        path: path of the file.
        series: SeriesInstanceUID, by which the resolutions of a slide are found.
        size: (height, width) of the complete pixel matrix.
        tile: (height, width) of a frame.
        frames: number of the frame at each (row, column) of the grid of tiles.
        count: number of frames.
        samples: samples per pixel, 1 or 3.
        bits: bits of a sample, 8 or 16.
        color: Photometric Interpretation.
        is_planar: True if the samples of an uncompressed frame are separate planes.
        syntax: UID of the transfer syntax.
        pixel_size_m: (height, width) of a pixel in meters; None if unknown.
        pixels_at: byte at which the value of Pixel Data begins.
        extended_offsets: offsets of the frames from the end of the first item; () without an extended offset table.
    """

    path: str
    series: str
    size: Size
    tile: Size
    frames: Mapping[tuple[int, int], int]
    count: int
    samples: int
    bits: int
    color: str
    is_planar: bool
    syntax: str
    pixel_size_m: tuple[float, float] | None
    pixels_at: int
    extended_offsets: tuple[int, ...]


class SlideIndex:
    """Index of the slides of a source: the DICOM files that are pictures, and not a lower resolution of another.

    The headers of a folder are read once, when the first of its files is asked for.
    """

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._folders: dict[str, frozenset[str]] = {}

    def __contains__(self, path: str) -> bool:
        """Return whether a file is a picture that is cut into tiles."""
        folder = dirname(path)
        if folder not in self._folders:
            self._folders[folder] = frozenset(_pictures_in(self._files, folder))
        return path in self._folders[folder]


def _pictures_in(files: SourceFiles, folder: str) -> list[str]:
    """Return the files of a folder that are pictures; a damaged slide is one, so that its fault is reported.

    Single pictures, such as mammograms, count where no slide is beside them: there they are photographs of it.
    """
    pictures, found = list[str](), list[_Instance]()
    for name in files.files_in(folder):
        try:
            found += [one] if (one := _brief(files, name)) is not None else []
        except SourceError:
            pictures.append(name)
    if not found and not pictures:
        return [
            name for name in files.files_in(folder) if is_single_picture(files.head(name, SLIDE_HEAD_BYTES))
        ]
    largest = list[_Instance]()
    for one in sorted(found, key=lambda one: (-one.pixels, one.path)):
        # A series may hold several regions of a slide, each with its resolutions.
        if not any(one.series == other.series and _is_reduced(one.size, other.size) for other in largest):
            largest.append(one)
    return pictures + [one.path for one in largest]


def read_levels(files: SourceFiles, path: str) -> tuple[list[SlideHeader], int]:
    """Return the headers of a slide and of its lower resolutions beside it, from the largest; and how many are damaged.

    Raises:
        SourceError: the file is no resolution of a slide, or of a kind that is not supported.
    """
    with _header_failures():
        data, at = _read(files, path)
        if str(data.get("SOPClassUID", "")) != SLIDE_CLASS:
            raise decode_error(
                "DICOM file is no whole-slide image",
                "convert slices of a scan with --layout dicom and --depth; single pictures such as radiographs are cut",
            )
        siblings, damaged = _siblings(files, path, str(data.get("SeriesInstanceUID", "")))
        if not _is_volume(data):
            raise _no_resolution(data, siblings)
        first = _header(path, data, at)
        _check_alone(first, str(data.get("SOPInstanceUID", "")), siblings)
    levels = [first]
    for one in sorted(siblings, key=lambda one: (-one.pixels, one.path)):
        # A resolution shows the same field of view; another region of the slide does not.
        if one.size == levels[-1].size or not _is_reduced(one.size, first.size):
            continue
        try:
            with _header_failures():
                header = _header(one.path, *_read(files, one.path))
        except SourceError:
            damaged += 1
            continue
        if (header.samples, header.bits) == (first.samples, first.bits):
            levels.append(header)
    return levels, damaged


def _no_resolution(data: Dataset, siblings: list[_Instance]) -> SourceError:
    kind = "/".join(map(str, data.get("ImageType", ())))
    largest = min(siblings, key=lambda one: (-one.pixels, one.path), default=None)
    cure = "its folder has no file of the series with VOLUME in Image Type: add the slide's other files"
    if largest is not None:
        cure = f"name the file with the most pixels, {largest.path}"
    return decode_error(
        "DICOM file is a label, an overview or a thumbnail of a slide", f"its Image Type is {kind}; {cure}"
    )


def _check_alone(header: SlideHeader, instance: str, siblings: list[_Instance]) -> None:
    """Refuse a slide whose optical paths or focal planes are files of the same size; a copy of the file is none."""
    same = [one.path for one in siblings if one.size == header.size and one.instance != instance]
    if same:
        raise decode_error(
            "slide with several focal planes or optical paths is not supported",
            f"{same[0]} has the same series and size; move all but one of them to other folders",
        )


def _is_reduced(small: Size, large: Size) -> bool:
    """Return whether the sides are those of the large one divided by one factor, up to rounding to a pixel.

    >>> _is_reduced((75, 101), (150, 200)), _is_reduced((75, 200), (150, 200)), _is_reduced((150, 200), (75, 100))
    (True, False, False)
    """
    factor = large[0] / small[0]
    return factor >= 1 and abs(large[1] / factor - small[1]) <= 1 + small[1] / 100


def _is_volume(data: Dataset) -> bool:
    kinds = [str(kind) for kind in data.get("ImageType", ())]
    return str(data.get("SOPClassUID", "")) == SLIDE_CLASS and _VOLUME in kinds


@dataclass(frozen=True, kw_only=True)
class _Instance:
    """Path, series and size of one resolution, for a listing."""

    path: str
    series: str
    instance: str
    size: Size

    @property
    def pixels(self) -> int:
        return self.size[0] * self.size[1]


def is_slide_head(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a DICOM slide, of any resolution."""
    # The class is in the file meta information (PS3.10, 7.1), so that other files are not parsed.
    return head[128:132] == b"DICM" and _SLIDE_CLASS.search(head[:SLIDE_HEAD_BYTES]) is not None


def is_single_picture(head: bytes) -> bool:
    """Return whether the first bytes are those of a single DICOM picture by its class: no slice, mask or report."""
    sop_class = media_sop_class(head)
    kind = (sop_class_kind(sop_class) if sop_class else None) or IMAGE
    # The standard names each class of pictures an image; that of slices of a volume is `IMAGE` alone.
    return kind == SECONDARY_CAPTURE or (kind != IMAGE and IMAGE in kind and sop_class not in SOP_CLASS_KINDS)


def _brief(files: SourceFiles, path: str) -> _Instance | None:
    """Return the size and the series of a resolution of a slide; None for any other file.

    Raises:
        SourceError: the file is a slide, and its header is damaged.
    """
    if not is_slide_head(files.head(path, SLIDE_HEAD_BYTES)):
        return None
    with _header_failures():
        data, _ = _read(files, path, brief=True)
        if not _is_volume(data):
            return None
        size = (int(data.TotalPixelMatrixRows), int(data.TotalPixelMatrixColumns))
        if min(size) < 1:
            raise damaged_error(f"a pixel matrix of {size[0]} x {size[1]}")
        return _Instance(
            path=path,
            series=str(data.SeriesInstanceUID),
            instance=str(data.get("SOPInstanceUID", "")),
            size=size,
        )


def slide_size(files: SourceFiles, path: str) -> Size | None:
    """Return the (height, width) of a DICOM slide by its header; None for any other file.

    Raises:
        SourceError: the file is a slide, and its header is damaged.
    """
    found = _brief(files, path)
    return None if found is None else found.size


def _siblings(files: SourceFiles, path: str, series: str) -> tuple[list[_Instance], int]:
    """Return the other resolutions of a series in the folder of a file, and the number of damaged slide files there."""
    found, damaged = list[_Instance](), 0
    for name in files.files_in(dirname(path)):
        try:
            one = None if name == path else _brief(files, name)
        except SourceError:
            damaged += 1
            continue
        if one is not None and one.series == series:
            found.append(one)
    return found, damaged


@contextmanager
def _header_failures() -> Iterator[None]:
    """Convert the exceptions of pydicom, and those about missing members, into errors about the file."""
    from pydicom.errors import InvalidDicomError

    known = (AttributeError, LookupError, TypeError, ValueError, EOFError, NotImplementedError, OverflowError)
    try:
        yield
    except (InvalidDicomError, *known) as error:
        raise damaged_error(f"its header: {type(error).__name__}: {error}") from error


def _read(files: SourceFiles, path: str, *, brief: bool = False) -> tuple[Dataset, int]:
    """Return the members of a file before its pixels that are needed, and the byte at which the pixels' tag begins."""
    from pydicom.filereader import read_partial
    from pydicom.tag import Tag

    source = files.open_ranges(path)
    try:
        stream: Any = RangeStream(source.size, source.read, _BLOCK_BYTES)
        last = _LAST_BRIEF_TAG if brief else _PIXEL_DATA - 1
        data = read_partial(
            stream, lambda tag, *_: int(tag) > last, specific_tags=[Tag(name) for name in _NUMBERS_ONLY]
        )
        # Reads the values now, while the file is open.
        data.walk(lambda one, element: element.value)
        return data, stream.tell()
    finally:
        source.close()


def _header(path: str, data: Dataset, at: int) -> SlideHeader:
    size = (int(data.TotalPixelMatrixRows), int(data.TotalPixelMatrixColumns))
    tile = (int(data.Rows), int(data.Columns))
    if min(*size, *tile) < 1:
        raise damaged_error(f"a pixel matrix of {size[0]} x {size[1]} in tiles of {tile[0]} x {tile[1]}")
    planes = int(data.get("TotalPixelMatrixFocalPlanes", 1) or 1)
    paths = int(data.get("NumberOfOpticalPaths", 1) or 1)
    if planes > 1 or paths > 1:
        raise decode_error(
            "slide with several focal planes or optical paths is not supported",
            f"it has {planes} and {paths}; save the one to use as a series of its own",
        )
    if data.get("ConcatenationUID"):
        raise decode_error(
            "slide in several files of one resolution is not supported",
            "its frames are in a concatenation; join them into one instance, such as with wsidicom",
        )
    if int(data.get("PixelRepresentation", 0) or 0) != 0:
        raise decode_error("slide of these samples is not supported", "signed numbers")
    count = int(data.get("NumberOfFrames", 1) or 1)
    grid = (-(-size[0] // tile[0]), -(-size[1] // tile[1]))
    offsets = data.get("ExtendedOffsetTable")
    return SlideHeader(
        path=path,
        series=str(data.get("SeriesInstanceUID", "")),
        size=size,
        tile=tile,
        frames=_frames(data, grid, tile, count),
        count=count,
        samples=int(data.SamplesPerPixel),
        bits=int(data.BitsAllocated),
        color=str(data.PhotometricInterpretation),
        is_planar=int(data.get("PlanarConfiguration", 0) or 0) == 1,
        syntax=str(data.file_meta.TransferSyntaxUID),
        pixel_size_m=_pixel_size(data),
        pixels_at=at,
        extended_offsets=() if not offsets else tuple(memoryview(offsets).cast("Q").tolist()),
    )


def _frames(data: Dataset, grid: tuple[int, int], tile: Size, count: int) -> dict[tuple[int, int], int]:
    """Return the number of the frame at each place of the grid."""
    groups: Sequence[Dataset] = data.get("PerFrameFunctionalGroupsSequence") or ()
    # Slides from before the type TILED_FULL have places without a type (Supplement 145).
    has_places = len(groups) > 0 and "PlanePositionSlideSequence" in groups[0]
    organization = str(data.get("DimensionOrganizationType", ""))
    if organization == "TILED_FULL" or (organization != "TILED_SPARSE" and not has_places):
        if count != grid[0] * grid[1]:
            raise damaged_error(f"it has {count} frames, expected {grid[0] * grid[1]} tiles")
        return {(number // grid[1], number % grid[1]): number for number in range(count)}
    if len(groups) != count:
        raise damaged_error(f"it has {count} frames, and places of {len(groups)}")
    return _placed_frames(groups, tile)


def _placed_frames(groups: Sequence[Dataset], tile: Size) -> dict[tuple[int, int], int]:
    """Return the number of the frame at each place of the grid that the header lists."""
    frames: dict[tuple[int, int], int] = {}
    for number, group in enumerate(groups):
        place = group.PlanePositionSlideSequence[0]
        # Places count from 1 (C.8.12.6).
        row = int(place.RowPositionInTotalImagePixelMatrix) - 1
        column = int(place.ColumnPositionInTotalImagePixelMatrix) - 1
        if row % tile[0] or column % tile[1] or row < 0 or column < 0:
            raise decode_error(
                "slide whose tiles overlap is not supported",
                f"a tile begins at row {row}, column {column}, and tiles are {tile[0]} x {tile[1]}",
            )
        if frames.setdefault((row // tile[0], column // tile[1]), number) != number:
            raise decode_error(
                "slide with several frames at one place is not supported",
                f"row {row}, column {column}; save one focal plane and one optical path",
            )
    return frames


def _pixel_size(data: Dataset) -> tuple[float, float] | None:
    """Return Pixel Spacing in meters; None if it is missing."""
    try:
        spacing = data.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing
        height, width = (float(value) / 1000 for value in spacing)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    return (height, width) if min(height, width) > 0 else None


def frame_places(header: SlideHeader, source: SourceRanges) -> list[tuple[int, int]]:
    """Return the first byte of each frame, and the one after its last; compressed frames still have their item headers.

    Raises:
        SourceError: the file ends too early, or its fragments do not show where frames begin.
    """
    stream: Any = RangeStream(source.size, source.read, _SCAN_BYTES)
    stream.seek(header.pixels_at)
    tag = stream.read(12)
    # (7FE0,0010) with its value representation; implicit little endian has no pixels of slides (PS3.5, A.1).
    if tag[:4] != b"\xe0\x7f\x10\x00" or tag[4:6] not in (b"OB", b"OW"):
        raise damaged_error("Pixel Data does not follow the header")
    length = int.from_bytes(tag[8:12], "little")
    if length != 0xFFFFFFFF:
        size = header.tile[0] * header.tile[1] * header.samples * header.bits // 8
        start = stream.tell()
        return [(start + number * size, start + (number + 1) * size) for number in range(header.count)]
    try:
        return _encapsulated(header, source, stream)
    except (ValueError, IndexError, EOFError, struct.error) as error:
        raise damaged_error(f"the items of Pixel Data: {error}") from error


def _encapsulated(header: SlideHeader, source: SourceRanges, stream: Any) -> list[tuple[int, int]]:
    """Return the first byte and the end of each compressed frame, from an offset table or from all its items."""
    from pydicom.encaps import parse_basic_offsets, parse_fragments

    basic = parse_basic_offsets(stream)
    first = stream.tell()
    offsets = list(header.extended_offsets or basic)
    if len(offsets) == header.count:
        # A basic offset table has 32 bits, which some writers let overflow.
        if any(end <= start for start, end in pairwise(offsets)):
            raise damaged_error("its offset table is not ascending")
        starts = [first + start for start in offsets]
    else:
        fragments, starts = parse_fragments(stream)
        if fragments > header.count:
            starts = [start for start in starts if _begins_frame(stream, start)]
        if len(starts) != header.count:
            raise decode_error(
                "frames of the slide cannot be told apart",
                f"{fragments} fragments for {header.count} frames, and no offset table; write it anew with one, such "
                "as with wsidicom",
            )
    return list(pairwise([*starts, source.size]))


def _begins_frame(stream: Any, start: int) -> bool:
    """Return whether a fragment begins with a JPEG, a JPEG-LS or a JPEG 2000 codestream.

    Compressed data inside these codestreams have no 0xFFD8 (ITU-T T.81, B.1.1.5) and no 0xFF51 (T.800, A.1).
    """
    stream.seek(start + 8)
    return bytes(stream.read(4)).startswith((b"\xff\xd8", b"\xff\x4f\xff\x51"))
