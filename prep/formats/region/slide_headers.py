"""Headers of DICOM whole-slide images: size, tiles, color and places of the frames, without pixels.

One instance is one resolution of the slide. Its tiles are frames, in rows from the top left (TILED_FULL), or at places
that the header lists (TILED_SPARSE). Source: DICOM PS3.3, A.32.8 and C.8.12.4, C.7.6.17; PS3.5, A.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from posixpath import dirname
from typing import TYPE_CHECKING, Any

from halofeed.prep.formats.dicom.sop_classes import SLIDE_CLASS
from halofeed.prep.formats.picture.image import Size, damaged_error, decode_error
from halofeed.prep.sources.files import SourceFiles, SourceRanges
from halofeed.prep.sources.range_stream import RangeStream
from halofeed.system.errors import SourceError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_VOLUME = "VOLUME"
"""Third value of Image Type of a resolution of the slide; others are LABEL, OVERVIEW and THUMBNAIL (C.8.12.4.1.1)."""
_PREAMBLE = 132
_BLOCK_BYTES = 256 << 10
_NUMBERS_ONLY = (
    *(
        "SOPClassUID",
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


def is_slide(files: SourceFiles, path: str) -> bool:
    """Return whether a file is the largest resolution of a DICOM slide; other resolutions are levels of its picture."""
    try:
        if not _is_dicom(files, path):
            return False
        data, _ = _read(files, path)
        if not _is_volume(data):
            return False
        own = _pixels_of(data)
        return all(
            _pixels_of(other) < own or (_pixels_of(other) == own and path <= name)
            for name, other in _siblings(files, path, str(data.SeriesInstanceUID))
        )
    except (SourceError, AttributeError):
        return False


def read_levels(files: SourceFiles, path: str) -> list[SlideHeader]:
    """Return the header of a slide, and those of its lower resolutions beside it, from the largest.

    Raises:
        SourceError: the file is no resolution of a slide, or of a kind that is not supported.
    """
    data, at = _read(files, path)
    if str(data.get("SOPClassUID", "")) != SLIDE_CLASS:
        raise decode_error(
            "DICOM file is no whole-slide image",
            "convert scans with --depth; save single pictures as 16-bit PNG files",
        )
    if not _is_volume(data):
        raise decode_error(
            "DICOM file is a label, an overview or a thumbnail of a slide",
            f"its Image Type is {'/'.join(map(str, data.get('ImageType', ())))}; name the file with the pixels of the "
            "slide, whose Image Type has VOLUME",
        )
    first = _header(path, data, at)
    levels = [first]
    others = []
    for name, other in _siblings(files, path, first.series):
        if _pixels_of(other) < first.size[0] * first.size[1]:
            again, place = _read(files, name)
            others.append(_header(name, again, place))
    for header in sorted(others, key=lambda one: one.size, reverse=True):
        # A resolution shows the same field of view; another region of the slide does not.
        if _is_reduction(header, first) and header.size < levels[-1].size:
            levels.append(header)
    return levels


def _is_reduction(small: SlideHeader, large: SlideHeader) -> bool:
    """Return whether the sides are those of the large one divided by one factor, up to rounding to a pixel."""
    if (small.samples, small.bits) != (large.samples, large.bits):
        return False
    factor = large.size[0] / small.size[0]
    return abs(large.size[1] / factor - small.size[1]) <= 1 + small.size[1] / 100


def _is_dicom(files: SourceFiles, path: str) -> bool:
    return files.head(path, _PREAMBLE)[128:] == b"DICM"


def _is_volume(data: Dataset) -> bool:
    kinds = [str(kind) for kind in data.get("ImageType", ())]
    return str(data.get("SOPClassUID", "")) == SLIDE_CLASS and _VOLUME in kinds


def _pixels_of(data: Dataset) -> int:
    return int(data.get("TotalPixelMatrixRows", 0)) * int(data.get("TotalPixelMatrixColumns", 0))


def _siblings(files: SourceFiles, path: str, series: str) -> list[tuple[str, Dataset]]:
    """Return the other resolutions of a series in the folder of a file."""
    found = []
    for name in files.files_in(dirname(path)):
        if name == path or not _is_dicom(files, name):
            continue
        data, _ = _read(files, name, brief=True)
        if _is_volume(data) and str(data.get("SeriesInstanceUID", "")) == series:
            found.append((name, data))
    return found


def _read(files: SourceFiles, path: str, *, brief: bool = False) -> tuple[Dataset, int]:
    """Return the members of a file before its pixels that are needed, and the byte at which the pixels' tag begins."""
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    source = files.open_ranges(path)
    try:
        stream: Any = RangeStream(source.size, source.read, _BLOCK_BYTES)
        tags = [
            name for name in _NUMBERS_ONLY if not (brief and name.endswith(("Sequence", "Table", "Lengths")))
        ]
        data = dcmread(stream, stop_before_pixels=True, specific_tags=tags)
        # Reads the values now, while the file is open.
        data.walk(lambda one, element: element.value)
        return data, stream.tell()
    except (InvalidDicomError, EOFError, ValueError, NotImplementedError, KeyError) as error:
        raise damaged_error(f"{type(error).__name__}: {error}") from error
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
    if str(data.get("DimensionOrganizationType", "")) != "TILED_SPARSE":
        if count < grid[0] * grid[1]:
            raise damaged_error(f"it has {count} frames, expected {grid[0] * grid[1]} tiles")
        return {(number // grid[1], number % grid[1]): number for number in range(grid[0] * grid[1])}
    frames: dict[tuple[int, int], int] = {}
    for number, group in enumerate(data.PerFrameFunctionalGroupsSequence):
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
    from pydicom.encaps import parse_basic_offsets, parse_fragments

    stream: Any = RangeStream(source.size, source.read, _BLOCK_BYTES)
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
        basic = parse_basic_offsets(stream)
        first = stream.tell()
        offsets = list(header.extended_offsets or basic)
        if len(offsets) == header.count:
            ends = [*offsets[1:], source.size - first]
            return [(first + start, first + end) for start, end in zip(offsets, ends, strict=True)]
        fragments, starts = parse_fragments(stream)
    except (ValueError, IndexError) as error:
        raise damaged_error(f"the items of Pixel Data: {error}") from error
    if fragments != header.count:
        raise decode_error(
            "frames of the slide cannot be told apart",
            f"{fragments} fragments for {header.count} frames, and no offset table; write it anew with one, such as "
            "with wsidicom",
        )
    return [(start, end) for start, end in zip(starts, [*starts[1:], source.size], strict=True)]
