"""How are numbers and tables written for people?

What do the findings of a conversion mean, in a sentence for people who did not write the readers?
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_PERHAPS_UNPRINTABLE = re.compile(r"[^\n -~]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """The rows under their head, each column as wide as it needs; `right` are the numbers' columns."""
    texts = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """An empty line, the title and the lines under it, further in; "none" where there are none."""
    return ["", title, *(f"  {line}" for line in (lines or ["none"]))]


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun.

    >>> plural(1, "box", "boxes"), plural(1200, "record")
    ('1 box', '1,200 records')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """A share for reading.

    >>> percent(0), percent(0.0004), percent(0.278)
    ('0 %', '< 0.1 %', '27.8 %')
    """
    return "0 %" if share <= 0 else "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def printable(text: str) -> str:
    """The text without what a terminal would obey or could not show: control characters, lone surrogates.

    >>> printable("a\\x1b[31m\\udcff")
    'a\\\\x1b[31m\\\\udcff'
    """
    return _PERHAPS_UNPRINTABLE.sub(
        lambda found: "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found[0]
        ),
        text,
    )


MEANINGS: Final = {
    "a class is cut off": "More than a hundredth of a class lies outside of the static shape and is in no record.",
    "center of rotation is ignored": "The header has another point to turn about; the axes turn about the first voxel.",
    "class masks overlap": "Voxels that the masks of two classes claim; one of the two got them.",
    "classes left out by choice": "Labels that the choice of classes drops; their voxels are background.",
    "classes overlap": "Voxels that two classes claim; one of the two got them, as the choice of overlaps says.",
    "classes that the label does not name": "The scan's SEG or RTSTRUCT has no such class; it is empty there.",
    "color voxels": "Each voxel is a color; its parts became channels.",
    "contours beyond the slices": "Contours just before the first or after the last slice; they were left out.",
    "contours cut at the image's edge": "Contours that leave the image; what lies within it was kept.",
    "contours of fewer than three points": "They enclose nothing and were left out.",
    "contours off their slice": "Contours that lie between slices; each was moved to the nearest.",
    "contours that enclose no area": "Points and open contours; they were left out.",
    "duplicates": "Slices that were there more than once, the same image at the same place; one of each was kept.",
    "fractional segmentation": "The mask holds fractions; one half and more counts as inside.",
    "fractions rounded to whole numbers": "The values were fractions; records hold whole numbers, at most 0.5 away.",
    "gantry tilt": "The slices lie askew to the table, as in head scans; they were sheared back by resampling.",
    "mask on another grid": "The mask's voxels were not the scan's; its nearest voxel was taken.",
    "mask's affine is not its image's": "By its header it lies elsewhere; it was taken voxel for voxel by choice.",
    "mask slightly off its image's grid": "The mask's grid differs by less than the tolerance; it was taken as it is.",
    "mask voxels that are no number": "Labels that are infinite or no number; the option said what they become.",
    "mask reaches beyond its image": "A part of the mask lies where the scan has no voxels; it is in no record.",
    "MONOCHROME1": "Low values are meant to be shown white; the values were kept.",
    "negative voxel size": "A size below 0 in the header, which the standard forbids; its sign was dropped.",
    "no origin given": "The file does not say where the first voxel lies; it is taken to lie at 0.",
    "no orientation given": "The file does not say how it lies in the patient; it was taken to be radiological. "
    "Left and right are not certain. Convert with --unoriented neurological where its first axis runs to the right.",
    "no rescale slope": "A CT that does not say how its values become Hounsfield units; they are as stored.",
    "old min and old max are not applied": "The range before values were quantized; voxels are taken as stored.",
    "order of bytes is not given": "The header does not say which byte of a number comes first; the low one does.",
    "orientations disagree": "The header names another orientation than its matrix has; the matrix counts.",
    "one of several volumes in a series": "One of the phases, echoes or other scans that its series holds.",
    "other files left out": "Other things lay in the series' folder, such as localizers; they were not read.",
    "overlapping slices": "Slices are thicker than they lie apart, so that neighbors show some of the same.",
    "padding values": "Values that stand for “nothing here”; corrected ones were set to air.",
    "repeated contours": "The same contour twice, which would cancel itself out; it was drawn once.",
    "rescale ignored": "The header's slope means no rescaling, so its intercept was not applied either.",
    "segments without a label": "Segments that have no name; they are called by their number.",
    "sform and qform disagree": "The header says two things of how the scan lies; the sform counts, unless it is none. "
    "Convert with --sform-qform qform where the other is right.",
    "sheared axes": "The axes do not meet at right angles; the affine still says where each voxel lies.",
    "single slice": "One slice alone; its thickness was taken as the spacing.",
    "slices are missing": "Slices that should lie between others are not there; they were interpolated.",
    "slices differ in rescale": "Slices have slopes of their own; each was rescaled by its own.",
    "structures that skip slices": "Contours are drawn on some slices only; a structure is empty on those between.",
    "structures renumbered": "Structures with numbers below 1 got unused ones.",
    "structures without a name": "Structures that have no name; they are called by their number.",
    "structures without contours": "Structures that are named but not drawn.",
    "unequal gaps": "Slices do not lie evenly; they were resampled on a regular grid.",
    "unit of length is not mm": "Lengths in meters or micrometers; they were turned into millimeters.",
    "unit of length is unknown": "The header's unit is none that the standard knows; it was taken to be millimeters.",
    "values are not certain to be Hounsfield units": "A CT whose rescale type is another; its values may not be HU.",
    "values taken for Hounsfield units": "The file does not say its unit and a window in HU was asked for; "
    "values below -50 speak for it.",
    "volumes of a series as channels": "The series held several images at each place; each became a channel.",
    "voxels of several classes": "Voxels that two or more classes claim; each of them has them.",
    "voxels that are no number": "Infinite voxels, or such that are no number; they were replaced.",
    "voxel size is not given": "The header has no size of a voxel; it is taken to be 1 mm, as the format says.",
    "wide gaps": "Some slices lie more than 3 times as far apart as is typical; what is between is interpolated.",
}
"""By the name of a finding. One that is not here is shown without a meaning."""
TREATMENTS: Final = {
    "corrected": "the voxels or the grid were changed for it",
    "noted": "nothing was changed",
}


def split_finding(key: str) -> tuple[str, str]:
    """The name and the treatment of a statistics' key.

    >>> split_finding("gantry tilt (corrected)")
    ('gantry tilt', 'corrected')
    """
    name, _, treatment = key.rpartition(" (")
    return (name, treatment.rstrip(")")) if name and treatment.rstrip(")") in TREATMENTS else (key, "")
