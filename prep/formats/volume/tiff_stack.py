"""Reader of stacks of TIFF pages [depth, height, width], whose voxel size is in a JSON file beside them.

scan_0000.tif   page per slice        scan.json  {"spacing": [2.0, 1.5, 1.0]}     of the image, or of all its channels
scan.tif        page per slice        scan.json                                   of the label

TIFF has no field for the distance of pages. nnU-Net stores it so. --array-spacing-mm states it for stacks without the
file.

Source: Tiff3DIO in nnunetv2/imageio/tif_reader_writer.py, and "3D TIFF" in documentation/dataset_format.md of nnU-Net.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from halofeed.prep.annotations.documents import parse_json_document, read_limited
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import PieceStream
from halofeed.prep.formats.volume.volume_file import VolumeFile, volume_file
from halofeed.prep.formats.volume.volume_header import (
    LPS_TO_RAS,
    Content,
    StoredVoxels,
    check_voxel_count,
    orient_as_itk,
    unsupported_type,
)
from halofeed.prep.geometry.scan import Triple
from halofeed.prep.sources.file_names import extension_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError, require_extra

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPageSeries

_MAX_BYTES: Final = 1 << 20
_CHANNEL_NUMBER: Final = re.compile(r"_\d{4}$")
_COLORS: Final = "S"
"""tifffile's letter for the axis of colors. A depth may have any other: tifffile writes arrays of three axes for ImageJ
as channels, C, unless the caller names the axes."""


def open_tiff_stack(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open a stack of pages by its header; each page is a slice along depth.

    Raises:
        SourceError: nothing states the voxel size; or the file is damaged, or has other axes or types.
        MissingExtraError: tifffile or imagecodecs is not installed.
    """
    data = files.read(path)
    file, series = _open(data)
    shape = tuple(int(side) for side in series.shape)
    _check_axes(series.axes, shape)
    dtype = np.dtype(series.dtype)
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise unsupported_type(f"dtype {dtype}; save numbers of up to 8 bytes")
    check_voxel_count(shape, 1, options.max_voxels)
    sides = voxel_size_beside(files, path) or options.array_spacing_mm
    if not sides:
        stem = _stem(path)
        raise SourceError(
            "decode",
            "stack has no voxel size",
            f'{stem}.json beside it with {{"spacing": [2.5, 0.8, 0.8]}}, for depth, height and width, states it, and '
            "--array-spacing-mm 2.5,0.8,0.8 for all stacks",
        )
    affine = LPS_TO_RAS @ np.diag([*sides[::-1], 1.0])
    placed = orient_as_itk(affine, "a stack of pages has no orientation", options)
    stored = StoredVoxels(
        shape=(shape[0], shape[1], shape[2]),
        channels=1,
        interleaved=False,
        dtype=np.dtype("u1") if dtype.kind == "b" else dtype.newbyteorder("="),
        offset=0,
    )
    file.close()
    content = Content(data=data, unpack=_unpacked, working_bytes=stored.voxel_bytes)
    return volume_file(stored, placed, content, (path,))


def stack_shape(data: bytes) -> tuple[int, ...] | None:
    """Return the (depth, height, width) of a file of several pages; None for any other file."""
    try:
        file, series = _open(data)
        file.close()
        shape = tuple(int(side) for side in series.shape)
        _check_axes(series.axes, shape)
    except SourceError:
        return None
    return shape


def voxel_size_beside(files: SourceFiles, path: str) -> Triple | None:
    """Return the voxel size, along depth, height and width, in the JSON file beside a stack; None without one.

    An image CASE_0000.tif has CASE.json, and so has the label CASE.tif.

    Raises:
        SourceError: the file states something else than three lengths above 0.
    """
    stem = path.removesuffix(extension_of(path))
    for beside in dict.fromkeys((f"{stem}.json", f"{_stem(path)}.json")):
        if files.size(beside) is None:
            continue
        document = parse_json_document(read_limited(files, beside, "voxel size of a stack", _MAX_BYTES))
        spacing = document.get("spacing") if isinstance(document, dict) else None
        # Other programs write other documents beside pictures.
        if spacing is None:
            continue
        if not isinstance(spacing, list) or len(spacing) != 3 or not all(map(_is_length, spacing)):
            detail = f"{beside}: expected three lengths above 0 for depth, height and width, got {str(spacing)[:80]}"
            raise SourceError("decode", "voxel size of a stack is wrong", detail)
        depth, height, width = map(float, spacing)
        return depth, height, width
    return None


def _is_length(side: object) -> bool:
    return isinstance(side, int | float) and not isinstance(side, bool) and 0 < side < math.inf


def _stem(path: str) -> str:
    return _CHANNEL_NUMBER.sub("", path.removesuffix(extension_of(path)))


def _open(data: bytes) -> tuple[TiffFile, TiffPageSeries]:
    """Return the file and its first series of pages, which `tifffile.imread` returns too."""
    # An error about a missing library must not become one about the file.
    with require_extra("large", "tifffile", "imagecodecs"):
        import imagecodecs  # noqa: F401
        import tifffile

    # tifffile logs what it ignores in a header; without a handler Python prints it to stderr.
    logger = logging.getLogger("tifffile")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    try:
        file = tifffile.TiffFile(io.BytesIO(data), _multifile=False)
        return file, file.series[0]
    except (
        tifffile.TiffFileError,
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        OSError,
    ) as error:
        raise SourceError("decode", "not a TIFF file", f"{error}"[:200]) from error


def _check_axes(axes: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 3 and _COLORS not in axes:
        return
    colors = ", of which one axis holds colors" if _COLORS in axes else ""
    detail = (
        f"{'×'.join(map(str, shape))} pixels{colors}; expected a page for each slice: save each volume and channel as "
        "one file of gray pages"
    )
    raise SourceError("decode", "not three axes of space", detail)


def _unpacked(data: bytes, start: int = 0) -> PieceStream:
    """Return the voxels of a stack, in the order of its pages."""
    _, series = _open(data)
    size = math.prod(int(side) for side in series.shape) * np.dtype(series.dtype).itemsize
    return PieceStream(_pages(series), size)


def _pages(series: Any) -> Iterator[bytes]:
    try:
        voxels = series.asarray()
    except Exception as error:  # codecs raise errors of many kinds for damaged data
        raise SourceError(
            "decode", "TIFF page is damaged", f"{type(error).__name__}: {error}"[:200]
        ) from error
    for page in voxels.reshape(len(voxels), -1):
        yield np.ascontiguousarray(page, dtype=page.dtype.newbyteorder("=")).tobytes()
