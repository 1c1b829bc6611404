"""What is corrected in a DICOM series, what is refused, and how its patient is named: the user's choices."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Literal

from halofeed.schemas.errors import UsageError

Choice = Literal["correct", "refuse"]
CHOICES = ("correct", "refuse")


@dataclass(frozen=True, kw_only=True)
class SeriesPolicy:
    """For each thing that can be odd about a series: is it corrected, or is the series refused?

    Every correction is a `Finding` of the scan. Some things are refused under every policy, because no
    correction is sound: slices of different size, orientation or pixel spacing; different images at one
    position; a gap so wide that two stacks are the likelier story (`dicom_slices.WIDE_GAP_MM`).

    Args:
        tilt: the slices are shifted across their normal from one to the next (gantry tilt). Corrected: the grid
            keeps the true, sheared positions, and is resampled on a straight grid with the rest of the geometry.
        unequal_gaps: the gaps between slices differ without a slice being missing. Corrected: linear
            interpolation on a regular grid between the first and the last slice.
        missing_slice: a gap is a whole multiple of the regular gap beside it. Corrected: the missing slices are
            interpolated between their neighbours. Refused by default, as nothing was seen there.
        overlapping: slices thicker than the gap between them. Nothing is wrong with such a scan, as the
            positions are true, so "correct" notes it and changes no voxel.
        padding: pixels outside the field of view that hold a padding value. Corrected: they become air, -1000 HU
            (0 in other modalities than CT).
        duplicates: the same image at the same position more than once. Corrected: one of them is kept.
        salt: mixed into the hash that stands for the patient, so that nobody finds a patient id by hashing all
            likely ones. Keep it secret, and the same for data sets whose patients must be comparable.

    Raises:
        UsageError: another word than "correct" or "refuse".
    """

    tilt: Choice = "correct"
    unequal_gaps: Choice = "correct"
    missing_slice: Choice = "refuse"
    overlapping: Choice = "correct"
    padding: Choice = "correct"
    duplicates: Choice = "correct"
    salt: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name == "salt":
                if not isinstance(value, str):
                    raise UsageError(f"salt: expected a string, got {type(value).__name__}")
            elif value not in CHOICES:
                raise UsageError(f"{option.name}: expected one of {', '.join(CHOICES)}, got {value!r}")

    def key(self, identifier: bytes) -> str | None:
        """The 16 hexadecimal digits that stand for an identifier of a header; None where it is empty.

        >>> SeriesPolicy(salt="s").key(b"P1") == SeriesPolicy(salt="s").key(b" P1 ")
        True
        """
        stripped = identifier.strip(b" \0")
        return hashlib.sha256(self.salt.encode() + stripped).hexdigest()[:16] if stripped else None
