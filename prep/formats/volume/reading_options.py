"""User options for reading volumes and DICOM series."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

from halofeed.prep.annotations.class_names import ClassChoice, LabelCoding
from halofeed.prep.annotations.patterns import Expression
from halofeed.prep.geometry.scan import ScanIdentity
from halofeed.system.errors import UsageError
from halofeed.system.memory import ReserveMemory, no_memory_limit

Choice = Literal["correct", "refuse"]
CHOICES = ("correct", "refuse")
FLAW_FIELDS = ("tilt", "unequal_gaps", "missing_slice", "overlapping", "padding", "duplicates")
"""Fields of `SeriesPolicy` that choose between correcting and refusing a flaw."""
SERIES_SPLITS = ("volumes", "channels", "refuse")
SECONDARY_CAPTURES = ("skip", "take")
ALTERNATING = ("refuse", "keep")
SCAN_MODALITIES = ("CT", "MR", "PT", "NM", "XA", "OPT", "US", "OT")
SERIES_CHOICES = ("all", "largest")
IDENTITIES = ("headers", "uid", "folder")


@dataclass(frozen=True, kw_only=True)
class SeriesPolicy:
    """Rules that select series, and that choose for each flaw of a series whether it is corrected or refused.

    Every correction becomes a `Finding` of the scan. Some flaws are refused under every policy, because no correction
    is sound: slices of different size, orientation or pixel spacing; different images at one position; a gap so wide
    that the slices are probably two stacks (`halofeed.prep.formats.dicom.slice_geometry.WIDE_GAP_MM`).

    Args:
        tilt: each slice is shifted across the normal (gantry tilt). Corrected: the grid keeps the true, sheared
            positions, and resampling makes it rectangular.
        unequal_gaps: the gaps between slices differ, but no slice is missing. Corrected: linear interpolation on a
            regular grid between the first and the last slice.
        missing_slice: a gap is a multiple of the regular gap near it. Corrected: the missing slices are interpolated
            between their neighbors. Refused by default, because the content of the gap is unknown.
        overlapping: slices are thicker than the gap between them. The positions of such a scan are correct, so
            "correct" adds a finding and changes no voxel.
        padding: pixels outside the field of view hold a padding value. Corrected: they become air, -1000 HU (0 in other
            modalities than CT).
        duplicates: the same image occurs more than once at a position. Corrected: one of them is kept.
        min_slices: smallest number of slices of a scan. Fewer slices are a survey, a capture, or files with a series
            UID each (see `identity`).
        secondary_captures: treatment of images whose SOP class is Secondary Capture: "skip", because most are
            screenshots, or "take", because some programs write volumes that way.
        split: treatment of a series with several images at each place (phases, echoes, b-values, times) or with
            interleaved stacks: separate "volumes", "channels" of one volume, or "refuse".
        alternating: treatment of a volume in which every other slice shows another scan, although the headers do not
            distinguish the two: "refuse" or "keep".
        modalities: selected modalities, such as ("CT",); () selects all.
        description: regular expression that is searched in the series' description, ignoring case; None selects all.
            The description itself is not stored.
        identity: rule that assigns files to a series. "headers": one series UID and no contradicting headers; "uid":
            one series UID; "folder": one folder, with any series UIDs.
        series: "all" series of a study, or only the "largest".
        real_world_values: choice among the real world value mappings of a frame, see
            `halofeed.prep.formats.dicom.real_world_values.choose_rescale`.
        salt: secret that is part of every hash, so that nobody finds a patient id by hashing likely ids. Use the same
            salt for data sets whose patients must be comparable.

    Raises:
        UsageError: a value is not allowed.
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
    real_world_values: str = "auto"
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        choices = {
            **dict.fromkeys(FLAW_FIELDS, CHOICES),
            "secondary_captures": SECONDARY_CAPTURES,
            "split": SERIES_SPLITS,
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
        """Return whether the expression `self.description` matches a series' description.

        Raises:
            UsageError: `self.description` is not a regular expression.
        """
        if self.description is None:
            return False
        expression = Expression(option="--series-description", text=self.description, ignore_case=True)
        return expression.search(description) is not None

    def key(self, identifier: bytes) -> str | None:
        """Return the salted hash of an identifier, as 16 hexadecimal digits; None if the identifier is empty.

        >>> SeriesPolicy(salt="s").key(b"P1") == SeriesPolicy(salt="s").key(b" P1 ")
        True
        """
        # DICOM pads values to an even length, with a blank or a zero byte (PS3.5 6.2), and programs trim some of them.
        stripped = identifier.strip(b" \0")
        if not stripped:
            return None
        return hashlib.sha256(self.salt.encode("utf-8", "surrogateescape") + stripped).hexdigest()[:16]


ARRAY_ADVICE = "--array-spacing-mm, such as 2.5,0.8,0.8 for depth, height and width, states it"
SFORM_QFORM = ("sform", "qform", "refuse")
UNORIENTED = ("radiological", "neurological", "refuse")
NON_FINITE_LABELS = ("refuse", "background")
MASK_REFERENCES = ("check", "ignore")


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """Options for reading volumes.

    Args:
        array_spacing_mm: voxel size of NumPy arrays: (depth, height, width); () refuses arrays.
        max_voxels: largest number of values over all channels; a header that claims more is refused.
        sform_qform: the affine of a NIfTI file that is used if its sform and qform disagree, or "refuse".
        unoriented: treatment of a file without orientation in the patient, or "refuse". "radiological": the axes run to
            the left, anterior and superior (NRRD and MetaImage: left, posterior, superior), as in SPM, FSL, nibabel
            and ITK. "neurological": the first axis runs to the right. Both add a finding.
        non_finite_value: value that replaces NaN and infinity, in the unit of the scan; None refuses such a scan.
        mask_grid_tolerance: largest distance between a pixel of a DICOM segmentation and its scan's voxel, in voxels.
        non_finite_labels: treatment of NaN and infinity in a mask: "refuse" or "background".
        mask_references: treatment of a SEG or RTSTRUCT that refers to another scan: "check" refuses it, "ignore" reads
            it.
        classes: classes that are read from a file that names its classes.
        coding: classes of masks with a channel or a color per class.
        ignored_values: values of masks that are no classes.
        negative_values: negative values that masks may hold, since they are ignored or mapped to classes.
        series: rules for DICOM series.
        reserve: called with the number of bytes that opening a file takes, if that is more than the file.
        origin: identity of a mask's scan, if that is a DICOM series.
    """

    array_spacing_mm: tuple[float, ...] = ()
    max_voxels: int = 2**31
    sform_qform: str = "sform"
    unoriented: str = "radiological"
    non_finite_value: float | None = None
    non_finite_labels: str = "refuse"
    mask_grid_tolerance: float = 0.05
    mask_references: str = "check"
    classes: ClassChoice = field(default_factory=ClassChoice)
    coding: LabelCoding = field(default_factory=LabelCoding)
    ignored_values: tuple[int, ...] = ()
    negative_values: tuple[int, ...] = ()
    series: SeriesPolicy = field(default_factory=SeriesPolicy)
    reserve: ReserveMemory = no_memory_limit
    origin: ScanIdentity | None = None

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
