"""What a user may decide about the reading of volumes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.geometry.scan import Origin
from halofeed.prep.sources.memory import Need, unlimited
from halofeed.prep.tasks.class_choice import ClassChoice
from halofeed.schemas.errors import UsageError

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
