"""Choices of the user about the reading of volumes and DICOM series."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

from halofeed.errors import UsageError
from halofeed.prep.annotations.class_names import ClassChoice
from halofeed.prep.annotations.patterns import Expression
from halofeed.prep.geometry.scan import Origin
from halofeed.system.memory import Need, unlimited

Choice = Literal["correct", "refuse"]
CHOICES = ("correct", "refuse")
FLAWS = ("tilt", "unequal_gaps", "missing_slice", "overlapping", "padding", "duplicates")
"""The fields that say whether something odd is corrected or refused."""
SPLITS = ("volumes", "channels", "refuse")
SECONDARY_CAPTURES = ("skip", "take")
ALTERNATING = ("refuse", "keep")
SCAN_MODALITIES = ("CT", "MR", "PT", "NM", "XA", "OPT", "US", "OT")
SERIES_CHOICES = ("all", "largest")
IDENTITIES = ("headers", "uid", "folder")


@dataclass(frozen=True, kw_only=True)
class SeriesPolicy:
    """Which series are taken; and for each thing that can be odd about one: is it corrected, or is the series refused?

    Every correction is a `Finding` of the scan. Some things are refused under every policy, because no
    correction is sound: slices of different size, orientation or pixel spacing; different images at one
    position; a gap so wide that two stacks are the likelier story (`dicom_slices.WIDE_GAP_MM`).

    Args:
        tilt: the slices are shifted across their normal from one to the next (gantry tilt). Corrected: the grid
            keeps the true, sheared positions, and is resampled on a straight grid with the rest of the geometry.
        unequal_gaps: the gaps between slices differ without a slice being missing. Corrected: linear
            interpolation on a regular grid between the first and the last slice.
        missing_slice: a gap is a whole multiple of the regular gap beside it. Corrected: the missing slices are
            interpolated between their neighbors. Refused by default, as nothing was seen there.
        overlapping: slices thicker than the gap between them. Nothing is wrong with such a scan, as the
            positions are true, so "correct" notes it and changes no voxel.
        padding: pixels outside the field of view that hold a padding value. Corrected: they become air, -1000 HU
            (0 in other modalities than CT).
        duplicates: the same image at the same position more than once. Corrected: one of them is kept.
        min_slices: a stack of fewer slices is no scan: a survey, a capture, or files of which each has a series UID of
            its own (see `identity`).
        secondary_captures: what becomes of images whose SOP class is Secondary Capture: "skip", as most are
            screenshots, or "take", as some programs write volumes so.
        split: what becomes of a series that holds several images at each place (phases, echoes, b-values, times) or
            stacks that interleave: "volumes", one of each; "channels" of one volume; or "refuse".
        alternating: what becomes of a volume whose every other slice shows something else, as where two acquisitions
            were mixed and nothing in the headers tells them apart: "refuse", or "keep".
        modalities: only series of these, such as ("CT",); (): all.
        description: a regular expression, found anywhere in the series' description in any case; None: all. The
            description itself is never kept.
        identity: which files are one series: those of one series UID whose "headers" do not contradict each other, all
            of one series "uid" whatever else they say, or those of one "folder", whatever their series UIDs are.
        series: "all" of a study, or the "largest" alone.
        salt: mixed into the hash that stands for the patient, so that nobody finds a patient id by hashing all
            likely ones. Keep it secret, and the same for data sets whose patients must be comparable.

    Raises:
        UsageError: a value that is none of these.
    """

    tilt: Choice = "correct"
    unequal_gaps: Choice = "correct"
    missing_slice: Choice = "refuse"
    overlapping: Choice = "correct"
    padding: Choice = "correct"
    duplicates: Choice = "correct"
    min_slices: int = 3
    secondary_captures: str = "skip"
    split: str = "volumes"
    alternating: str = "refuse"
    modalities: tuple[str, ...] = ()
    description: str | None = None
    series: str = "all"
    identity: str = "headers"
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        choices = {
            **dict.fromkeys(FLAWS, CHOICES),
            "secondary_captures": SECONDARY_CAPTURES,
            "split": SPLITS,
            "alternating": ALTERNATING,
            "series": SERIES_CHOICES,
            "identity": IDENTITIES,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.min_slices < 1:
            raise UsageError(f"min_slices: expected 1 or more, got {self.min_slices}")
        if not isinstance(self.salt, str):
            raise UsageError(f"salt: expected a string, got {type(self.salt).__name__}")
        self.asks_for("")

    def asks_for(self, description: str) -> bool:
        """Whether `description` is in a series' description, in any case; UsageError where it is no expression."""
        if self.description is None:
            return False
        expression = Expression(option="--series-description", text=self.description, ignore_case=True)
        return expression.search(description) is not None

    def key(self, identifier: bytes) -> str | None:
        """The 16 hexadecimal digits that stand for an identifier of a header; None where it is empty.

        >>> SeriesPolicy(salt="s").key(b"P1") == SeriesPolicy(salt="s").key(b" P1 ")
        True
        """
        stripped = identifier.strip(b" \0")
        if not stripped:
            return None
        return hashlib.sha256(self.salt.encode("utf-8", "surrogateescape") + stripped).hexdigest()[:16]


SFORM_QFORM = ("sform", "qform", "refuse")
UNORIENTED = ("radiological", "neurological", "refuse")
NON_FINITE_LABELS = ("refuse", "background")
MASK_REFERENCES = ("check", "ignore")


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How volumes are read.

    Args:
        max_voxels: a header that claims more values than this, over all channels, is refused.
        sform_qform: which affine of a NIfTI file counts where it has both and they disagree; "refuse": the file
            is refused.
        unoriented: what becomes of a file that does not say how it lies in the patient. "radiological": its first axis
            is taken to run to the left, the second to anterior (of NRRD and MetaImage to posterior), the third to
            superior, as SPM, FSL and nibabel (and ITK) take it, which is noted as a finding. "neurological": the
            first axis is taken to run to the right.
        non_finite_value: what voxels that are no number (NaN, infinity) are set to, in the unit of the scan; None:
            a scan with such voxels is refused.
        mask_grid_tolerance: how far, in voxels, a pixel of a DICOM segmentation may lie from its scan's.
        non_finite_labels: what becomes of voxels of a mask that are no number: "refuse", or "background".
        mask_references: what is done about a SEG or RTSTRUCT that refers to another scan than its own: "check" refuses
            it, "ignore" takes it.
        classes: which classes of a file that names them are read.
        ignore_label: the value of masks that is no class; None: there is none.
        series: what is done about the flaws of a DICOM series.
        need: told how many bytes opening a file takes, where that is more than the file.
        origin: of a mask's scan, where that is a DICOM series.
    """

    max_voxels: int = 2**31
    sform_qform: str = "sform"
    unoriented: str = "radiological"
    non_finite_value: float | None = None
    non_finite_labels: str = "refuse"
    mask_grid_tolerance: float = 0.05
    mask_references: str = "check"
    classes: ClassChoice = field(default_factory=ClassChoice)
    ignore_label: int | None = None
    series: SeriesPolicy = field(default_factory=SeriesPolicy)
    need: Need = unlimited
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.max_voxels < 1:
            raise UsageError(f"max_voxels: expected at least 1, got {self.max_voxels}")
        for name, choices in (
            ("sform_qform", SFORM_QFORM),
            ("unoriented", UNORIENTED),
            ("non_finite_labels", NON_FINITE_LABELS),
            ("mask_references", MASK_REFERENCES),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}: expected {' or '.join(choices)}, got {getattr(self, name)!r}")
        if self.non_finite_value is not None and not math.isfinite(self.non_finite_value):
            raise UsageError(f"non_finite_value: expected a number, got {self.non_finite_value}")
