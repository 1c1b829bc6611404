"""Where does a NIfTI or Analyze file say that its voxels lie in the patient?

A NIfTI header can say it twice (a matrix, "sform"; a rotation, shift and voxel size, "qform"), or not at all.
Everything here is in NIfTI's order, voxel (i, j, k) to millimeters, until the last step.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from nibabel.nifti1 import Nifti1Header
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from halofeed.prep.formats.volume.affine import (
    Affine,
    check_affine,
    grid_of,
    other_unit,
    unoriented_noted,
    unoriented_refused,
)
from halofeed.prep.formats.volume.nifti_header import Fields, NiftiHeader, spm_origin
from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.geometry.scan import Finding, Grid
from halofeed.schemas.errors import SourceError

UNITS_MM = {1: ("meters", 1000.0), 3: ("micrometers", 0.001)}
UNIT_UNKNOWN, UNIT_MM = 0, 2
DISAGREEMENT = 0.1
"""The sform and the qform may lie so many times the smallest voxel side apart, at any corner."""


def read_grid(header: NiftiHeader, options: ScanOptions) -> tuple[Grid, tuple[Finding, ...]]:
    """The grid [depth, height, width] of a file, and what is odd about how it is given.

    Raises:
        SourceError: no affine that can be true; or one that the options refuse.
    """
    lengths = np.asarray(header.shape[::-1])
    affine, findings = _stated_affine(header.fields, lengths, options)
    grid, sheared = grid_of(header.shape, affine)
    return grid, (*findings, *sheared)


def _stated_affine(
    fields: Fields, lengths: NDArray[Any], options: ScanOptions
) -> tuple[Affine, tuple[Finding, ...]]:
    fields, negative = _with_positive_sizes(fields)
    is_nifti = isinstance(fields, Nifti1Header)
    unit, scale = _unit(int(fields["xyzt_units"])) if is_nifti else ((), 1.0)
    has_sform, has_qform = (is_nifti and fields[code] > 0 for code in ("sform_code", "qform_code"))
    if has_sform and has_qform:
        affine, findings = _of_two(fields, lengths, options, scale)
        findings = (*negative * (options.sform_qform == "qform"), *findings)
    elif has_sform:
        affine, findings = _sform(fields), ()
    elif has_qform:
        affine, findings = _qform(fields), negative
    else:
        affine, findings = _unoriented(fields, lengths, options)
        findings = (*negative, *findings)
    return _in_mm(affine, scale), (*findings, *unit)


def _in_mm(affine: Affine, scale: float) -> Affine:
    scaled = affine.copy()
    scaled[:3] *= scale
    return scaled


def _with_positive_sizes(fields: Fields) -> tuple[Fields, tuple[Finding, ...]]:
    """A copy whose voxel sizes are positive, as the standard has them, and whose qfac is not 0."""
    fields = fields.copy()
    sizes = fields["pixdim"][1:4]
    negative = bool((sizes < 0).any())
    detail = f"{' x '.join(f'{size:g}' for size in sizes)}; the sign is dropped"
    dropped = Finding.corrected("negative voxel size", detail)
    fields["pixdim"][1:4] = np.abs(sizes)
    if fields["pixdim"][0] == 0:
        fields["pixdim"][0] = 1  # as the standard reads it
    return fields, (dropped,) * negative


def _unit(code: int) -> tuple[tuple[Finding, ...], float]:
    """What the unit of length changes, and its millimeters."""
    code &= 7
    if code in UNITS_MM:
        name, scale = UNITS_MM[code]
        return (other_unit(name),), scale
    if code not in (UNIT_UNKNOWN, UNIT_MM):
        detail = f"code {code} is none that the standard knows; taken to be millimeters"
        return (Finding.noted("unit of length is unknown", detail),), 1.0
    return (), 1.0


def _sform(fields: Fields) -> Affine:
    return np.asarray(fields.get_sform(), np.float64)


def _qform(fields: Fields) -> Affine:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(fields.get_qform(), np.float64)
    except (HeaderDataError, ValueError) as error:
        quaternion = ", ".join(f"{float(fields[name]):g}" for name in ("quatern_b", "quatern_c", "quatern_d"))
        detail = f"quaternion {quaternion} with qfac {float(fields['pixdim'][0]):g}"
        raise SourceError("decode", "qform is no rotation", detail) from error


def _of_two(
    fields: Fields, lengths: NDArray[Any], options: ScanOptions, scale: float
) -> tuple[Affine, tuple[Finding, ...]]:
    """The affine that counts of the two, and whether the other agrees.

    Raises:
        SourceError: neither can be true; or they disagree, and that is to be refused.
    """
    used, other_name = ("qform", "sform") if options.sform_qform == "qform" else ("sform", "qform")
    affine, fault = _checked(used, fields, scale)
    other, other_fault = _checked(other_name, fields, scale)
    if affine is None:
        if other is None:
            raise fault or AssertionError("an affine is there or has a fault")
        affine, other, fault, other_fault = other, affine, other_fault, fault
        used, other_name = other_name, used
    if other is None:
        detail = f"the {other_name} is none ({other_fault and other_fault.reason})"
        cure = f"--sform-qform {used} takes the {used}"
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            distance = _farthest(affine, other, lengths)
            allowed = DISAGREEMENT * float(np.linalg.norm(affine[:3, :3], axis=0).min())
        if distance <= allowed:
            return affine, ()
        detail = f"they lie {distance:.3g} apart at a corner"
        cure = "--sform-qform sform or qform says which counts"
    if options.sform_qform == "refuse":
        raise SourceError("decode", "sform and qform disagree", f"{detail}; {cure}")
    return affine, (Finding.noted("sform and qform disagree", f"{detail}; the {used} counts"),)


def _checked(name: str, fields: Fields, scale: float) -> tuple[Affine | None, SourceError | None]:
    """An affine of a header, or why it can be that of no volume; `scale`: millimeters of its unit."""
    try:
        affine = _sform(fields) if name == "sform" else _qform(fields)
        check_affine(_in_mm(affine, scale))
    except SourceError as error:
        return None, error
    return affine, None


def _farthest(one: Affine, other: Affine, lengths: NDArray[Any]) -> float:
    """The largest distance between where two affines put a corner of the volume."""
    corners = np.array([(*corner, 1) for corner in itertools.product(*((0, side - 1) for side in lengths))])
    return float(np.linalg.norm((corners @ (one - other).T)[:, :3], axis=1).max())


def _unoriented(
    fields: Fields, lengths: NDArray[Any], options: ScanOptions
) -> tuple[Affine, tuple[Finding, ...]]:
    """The volume's middle (or SPM's origin) at 0, the first axis running to the left, or to the right by choice."""
    if options.unoriented == "refuse":
        raise unoriented_refused("sform and qform code are 0")
    to_left = options.unoriented == "radiological"
    sizes = fields["pixdim"][1:4].astype(np.float64) * (-1 if to_left else 1, 1, 1)
    origin = spm_origin(fields) or (lengths - 1) / 2
    affine = np.diag([*sizes, 1.0])
    affine[:3, 3] = -np.asarray(origin) * sizes
    axes = f"the axes run to the {'left' if to_left else 'right'}, to anterior and to superior"
    return affine, (unoriented_noted(f"taken to be {options.unoriented}: {axes}"),)
