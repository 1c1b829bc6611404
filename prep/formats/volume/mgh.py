"""How a FreeSurfer volume (.mgh, .mgz) becomes a scan or a mask.

    header 284 bytes, big-endian | voxels, i fastest, frames one after the other | parameters of the scanner, not read

Source: https://surfer.nmr.mgh.harvard.edu/fswiki/FsTutorial/MghFormat
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import read_start
from halofeed.prep.formats.volume.volume_file import VolumeFile
from halofeed.prep.formats.volume.volume_header import (
    Affine,
    Content,
    StoredVoxels,
    check_voxel_count,
    damaged_header,
    grid_of,
    orientation_error,
    orientation_finding,
)
from halofeed.prep.geometry.scan import Finding
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.memory import with_margin

HEADER_BYTES: Final = 284
_FIELDS: Final = struct.Struct(">7ih15f")
_TYPES: Final = {0: ">u1", 1: ">i4", 3: ">f4", 4: ">i2", 10: ">u2"}


def begins_as_mgh(start: bytes) -> bool:
    """Whether the first bytes of a file, decompressed, are those of the format."""
    return start.startswith(b"\0\0\0\1") and start[20:23] == b"\0\0\0"


def open_mgh(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """A file by its header; axis i becomes width, j height, k depth, and frames become channels.

    Raises:
        SourceError: it is none, damaged, too large, or has voxels of a type that is not read.
    """
    data = files.read(path)
    start = read_start(data, HEADER_BYTES)
    if not begins_as_mgh(start):
        raise SourceError(
            "decode", "not a FreeSurfer volume", f"begins with {start[:8].hex(' ') or 'nothing'}"
        )
    if len(start) < HEADER_BYTES:
        raise SourceError("decode", "file is truncated", f"{len(start)} bytes of a header of {HEADER_BYTES}")
    _, i, j, k, frames, code, _, is_oriented, *numbers = _FIELDS.unpack_from(start)
    if min(i, j, k, frames) < 1:
        raise damaged_header(f"axes of {i} x {j} x {k} x {frames} voxels; expected at least 1 along each")
    if code not in _TYPES:
        raise SourceError("decode", "voxels of this type are not supported", f"code {code}")
    check_voxel_count((i, j, k), frames, options.max_voxels)
    stored = StoredVoxels(
        shape=(k, j, i), channels=frames, interleaved=False, dtype=np.dtype(_TYPES[code]), offset=HEADER_BYTES
    )
    needed = HEADER_BYTES + stored.voxel_bytes
    options.need(with_margin(len(data) + needed))
    affine, findings = _affine(
        np.array(numbers, np.float64), (i, j, k), options, is_oriented=bool(is_oriented)
    )
    grid, sheared = grid_of(stored.shape, affine)
    # What follows the voxels, such as names of structures, may be as long as it likes.
    content = Content(data=read_start(data, needed))
    return VolumeFile(
        stored=stored, grid=grid, findings=(*findings, *sheared), content=content, files=(path,)
    )


def _affine(
    numbers: NDArray[np.float64], lengths: tuple[int, int, int], options: ScanOptions, *, is_oriented: bool
) -> tuple[Affine, tuple[Finding, ...]]:
    """From voxel (i, j, k) to millimeters: the header gives voxel sizes, axes and the middle, lengths / 2."""
    findings: tuple[Finding, ...] = ()
    if not is_oriented:
        if options.unoriented == "refuse":
            raise orientation_error("the header's orientation is marked as not good")
        sign = -1.0 if options.unoriented == "radiological" else 1.0
        numbers = np.array([1, 1, 1, sign, 0, 0, 0, 0, -1, 0, 1, 0, 0, 0, 0])
        side = "left" if sign < 0 else "right"
        taken = f"taken to be {options.unoriented} with voxels of 1 mm"
        detail = f"{taken}: the axes run to the {side}, to inferior and to anterior"
        findings = (orientation_finding(detail),)
    affine = np.eye(4)
    affine[:3, :3] = numbers[3:12].reshape(3, 3).T * numbers[:3]
    affine[:3, 3] = numbers[12:15] - affine[:3, :3] @ (np.array(lengths) / 2)
    return affine, findings
