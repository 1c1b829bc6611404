"""Reader of FreeSurfer volumes (.mgh, .mgz).

    header, 284 bytes, big-endian | voxels, i fastest, then j, k and frames | scanner parameters, not read

Source: https://surfer.nmr.mgh.harvard.edu/fswiki/FsTutorial/MghFormat
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.streams import read_start
from halofeed.prep.formats.volume.volume_file import VolumeFile, volume_file
from halofeed.prep.formats.volume.volume_header import (
    PlacedAffine,
    StoredVoxels,
    check_voxel_count,
    content_of,
    first_axis_side,
    orientation_finding,
    truncated_header,
    unsupported_type,
    wrong_format,
)
from halofeed.prep.geometry.scan import Finding, affine_matrix
from halofeed.prep.sources.files import SourceFiles

HEADER_BYTES: Final = 284
_FIELDS: Final = struct.Struct(">7ih15f")
_TYPES: Final = {0: ">u1", 1: ">i4", 3: ">f4", 4: ">i2", 10: ">u2"}


def open_mgh(files: SourceFiles, path: str, options: ScanOptions) -> VolumeFile:
    """Open a file by its header. Axis i becomes width, j height, k depth, and frames become channels.

    Raises:
        SourceError: the file has another format or an unsupported type, or is damaged or too large.
    """
    data = files.read(path)
    start = read_start(data, HEADER_BYTES)
    # The format has no magic bytes: version 1, and a type whose number is below 256.
    if not (start.startswith(b"\0\0\0\1") and start[20:23] == b"\0\0\0"):
        raise wrong_format("a FreeSurfer volume", start)
    if len(start) < HEADER_BYTES:
        raise truncated_header(start, HEADER_BYTES)
    _, i, j, k, frames, code, _, is_oriented, *numbers = _FIELDS.unpack_from(start)
    if code not in _TYPES:
        raise unsupported_type(f"code {code}")
    check_voxel_count((i, j, k), frames, options.max_voxels)
    stored = StoredVoxels(
        shape=(k, j, i),
        channels=frames,
        interleaved=False,
        dtype=np.dtype(_TYPES[code]),
        offset=HEADER_BYTES,
        has_trailer=True,  # such as names of structures
    )
    placed = _affine(np.array(numbers, np.float64), (i, j, k), options, is_oriented=bool(is_oriented))
    return volume_file(stored, placed, content_of(data), (path,))


def _affine(
    numbers: NDArray[np.float64], lengths: tuple[int, int, int], options: ScanOptions, *, is_oriented: bool
) -> PlacedAffine:
    """Return the affine from voxel (i, j, k) to millimeters, and a finding if the file has no orientation.

    Args:
        numbers: header values: three voxel sizes, three axes, and the center, which is the voxel `lengths / 2`.
        lengths: lengths of the axes i, j, k.
        options: options with the choice `unoriented`.
        is_oriented: whether the header marks its orientation as valid.
    """
    findings: tuple[Finding, ...] = ()
    # Then voxel sizes and axes in the header are undefined; FreeSurfer takes 1 mm and coronal slices.
    if not is_oriented:
        side, sign = first_axis_side("the header's orientation is marked as not good", options)
        numbers = np.array([1, 1, 1, sign, 0, 0, 0, 0, -1, 0, 1, 0, 0, 0, 0])
        taken = f"taken to be {options.unoriented} with voxels of 1 mm"
        detail = f"{taken}: the axes run to the {side}, inferior and anterior"
        findings = (orientation_finding(detail),)
    affine = affine_matrix(numbers[3:12].reshape(3, 3) * numbers[:3, None])
    affine[:3, 3] = numbers[12:15] - affine[:3, :3] @ (np.array(lengths) / 2)
    return affine, findings
