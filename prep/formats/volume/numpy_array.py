"""Reader of NumPy arrays [depth, height, width] (.npy, and .npz with one array), whose voxel size the options state.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Nothing is unpickled.
"""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy

from halofeed.prep.formats.volume.reading_options import ARRAY_ADVICE, ScanOptions
from halofeed.prep.formats.volume.streams import MAX_DEFLATE_RATIO, OUTPUT_BYTES, PieceStream, PlainStream
from halofeed.prep.formats.volume.volume_file import VolumeFile, volume_file
from halofeed.prep.formats.volume.volume_header import (
    LPS_TO_RAS,
    Content,
    StoredVoxels,
    check_voxel_count,
    orient_as_itk,
    unsupported_type,
)
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

MAX_NPY_HEADER_BYTES: Final = 1 << 14
_HEADERS: Final[dict[tuple[int, int], Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_HEADER_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
)
"""Errors of numpy for headers that are no dictionary of the three keys."""
_ZIP_MAGIC = b"PK"
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)


def open_array(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open an array by its header. Its axes are depth, height and width; it says nothing about the patient.

    Raises:
        SourceError: the options state no voxel size; or the file is damaged, or has other axes or types.
    """
    data = files.read(path)
    is_archive = data.startswith(_ZIP_MAGIC)
    content = Content(data=data, unpack=_open_member if is_archive else PlainStream)
    head = memoryview(bytearray(MAX_NPY_HEADER_BYTES))
    stream = io.BytesIO(head[: content.open().read_into(head)])
    try:
        shape, is_fortran, dtype = _HEADERS[npy.read_magic(stream)](stream)
    except _HEADER_ERRORS as error:
        raise SourceError("decode", "not a NumPy array", f"{error}"[:200]) from error
    # Pickled objects would run code; longdouble and complex numbers are no voxels.
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        cure = "save numbers, such as np.save(path, array.astype('float32'))"
        raise unsupported_type(f"dtype {dtype}; {cure}")
    if len(shape) != 3:
        detail = f"axes of {shape}; expected depth, height, width: save each volume and channel by itself"
        raise SourceError("decode", "not three axes of space", detail)
    check_voxel_count(shape, 1, options.max_voxels)
    # nibabel's arrays are in this order, with width first, and nothing in the file distinguishes them from others.
    if is_fortran:
        detail = (
            "its first axis is the fastest; save np.ascontiguousarray(array.T) if that is the axis of width, as "
            "nibabel has it, else np.ascontiguousarray(array)"
        )
        raise SourceError("decode", "array is in Fortran order", detail)
    if not options.array_spacing_mm:
        raise SourceError("decode", "array has no voxel size", ARRAY_ADVICE)
    sides = options.array_spacing_mm[::-1]
    affine = LPS_TO_RAS @ np.diag([*sides, 1.0])
    placed = orient_as_itk(affine, "an array has no orientation", options)
    stored = StoredVoxels(
        shape=shape,
        channels=1,
        interleaved=False,
        dtype=np.dtype("u1") if dtype.kind == "b" else dtype,
        offset=stream.tell(),
    )
    return volume_file(stored, placed, content, (path,))


def _open_member(data: bytes, start: int = 0) -> PieceStream:
    """Return the content of the only array of an archive.

    Raises:
        SourceError: the archive is damaged, or has several arrays.
    """
    try:
        members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except _ZIP_ERRORS as error:
        raise SourceError("decode", "npz archive is damaged", f"{error}"[:200]) from error
    # Nothing says which of several arrays is the image.
    if len(members) != 1:
        listed = ", ".join(member.filename.removesuffix(".npy") for member in members[:5])
        detail = f"{len(members)} arrays: {listed}; expected one: save each by itself with np.save"
        raise SourceError("decode", "npz archive has not one array", detail)
    # The directory may claim any size; deflate cannot expand more than this.
    most = min(members[0].file_size, MAX_DEFLATE_RATIO * (members[0].compress_size + 1))
    return PieceStream(_pieces(data, members[0]), most)


def _pieces(data: bytes, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member in blocks; zipfile compares its checksum at the end."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(member) as stream:
            while piece := stream.read(OUTPUT_BYTES):
                yield piece
    except _ZIP_ERRORS as error:
        raise SourceError("decode", "npz archive is damaged", f"{error}"[:200]) from error
