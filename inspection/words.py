"""Formatting of numbers and tables for text output, and one sentence on each finding of a conversion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_MAYBE_UNPRINTABLE = re.compile(r"[^\n -~]+")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> list[str]:
    """Format rows below a header, each column as wide as it needs.

    Args:
        right: numbers of the right-aligned columns.
    """
    texts = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]


def titled_lines(title: str, lines: Sequence[str]) -> list[str]:
    """Return an empty line, the title and the indented lines; "none" if there are no lines."""
    return ["", title, *(f"  {line}" for line in (lines or ["none"]))]


def percent(share: float) -> str:
    """Format a share as a percentage.

    >>> percent(0), percent(0.0004), percent(0.278)
    ('0 %', '< 0.1 %', '27.8 %')
    """
    return "0 %" if share <= 0 else "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def escape_unprintable(text: str) -> str:
    """Escape characters that a terminal would execute or cannot show: control characters, lone surrogates.

    >>> escape_unprintable("a\\x1b[31m\\udcff")
    'a\\\\x1b[31m\\\\udcff'
    """
    return _MAYBE_UNPRINTABLE.sub(
        lambda found: "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found[0]
        ),
        text,
    )


MEANINGS: Final = {
    "a class is cut off": "More than 1 % of a class is outside the static shape and is in no record.",
    "center of rotation is ignored": "The header has another center; the axes rotate about the first voxel.",
    "class masks overlap": "The masks of two classes share voxels; each such voxel was given to one of them.",
    "classes left out by choice": "The class selection drops these labels; their voxels are background.",
    "classes overlap": "Two classes share voxels; the overlap option decided which class each voxel got.",
    "classes that the label does not name": "The scan's SEG or RTSTRUCT has no such class; it is empty in this scan.",
    "color voxels": "Each voxel is a color; its components became channels.",
    "label pictures in order of their names": "Pictures have other names than the slices; their order is taken.",
    "contours beyond the slices": "Contours just before the first or after the last slice were ignored.",
    "contours cut at the image's edge": "Contours leave the image; the part inside was kept.",
    "contours of fewer than three points": "Such contours enclose no area and were ignored.",
    "contours off their slice": "Contours between slices were moved to the nearest slice.",
    "contours that enclose no area": "Points and open contours were ignored.",
    "duplicates": "The same slice occurs more than once at the same position; one copy was kept.",
    "fractional segmentation": "The mask holds fractions; values of 0.5 and more count as inside.",
    "fractions rounded to whole numbers": "The values were fractions; records hold integers, at most 0.5 away.",
    "gantry tilt": "The slices are tilted against the table, as in head scans; resampling removed the shear.",
    "mask on another grid": "The mask and the scan have different grids; each voxel got the nearest mask voxel.",
    "mask's affine is not its image's": "The mask's header gives another position; an option said to ignore it.",
    "mask slightly off its image's grid": "The mask's grid differs by less than the tolerance; it was used unchanged.",
    "mask voxels that are no number": "Mask values are infinite or NaN; an option gave the value that replaces them.",
    "mask reaches beyond its image": "Part of the mask is outside the scan; that part is in no record.",
    "MONOCHROME1": "Low values are meant to be shown white; the values were kept.",
    "negative voxel size": "The header has a voxel size below 0, which the standard forbids; the sign was dropped.",
    "no origin given": "The file does not give the position of the first voxel; 0 was assumed.",
    "no orientation given": "The file does not give the orientation of the patient; radiological order was assumed. "
    "Left and right are not certain. Convert with --unoriented neurological if the first axis runs to the right.",
    "no rescale slope": "A CT file has no rescale slope to Hounsfield units; values are as stored.",
    "old min and old max are not applied": "The file gives the range before quantization; values are as stored.",
    "order of bytes is not given": "The header does not give the byte order; little-endian was assumed.",
    "orientations disagree": "The header's orientation code and its matrix disagree; the matrix was used.",
    "one of several volumes in a series": "The series holds several scans, such as phases or echoes; this is one.",
    "other files left out": "The series' folder held other files, such as localizers; they were not read.",
    "overlapping slices": "Slices are thicker than the distance between them, so neighbors share tissue.",
    "padding values": "Some values mean “no data”; where this was corrected, they were set to air.",
    "repeated contours": "The same contour occurs twice and would cancel itself out; it was drawn once.",
    "rescale ignored": "The header's slope means no rescaling, so the intercept was not applied either.",
    "segments without a label": "Segments have no name; their number is used as the name.",
    "sform and qform disagree": "The header gives two positions of the scan; the sform was used, unless there is none. "
    "Convert with --sform-qform qform if the qform is right.",
    "sheared axes": "The axes are not perpendicular; the affine still gives the position of each voxel.",
    "single slice": "The scan has one slice; its thickness was used as the spacing.",
    "slices are missing": "Slices are missing between others; they were interpolated.",
    "slices differ in rescale": "Slices have different slopes; each slice was rescaled with its own.",
    "structures that skip slices": "Contours are drawn on some slices only; the structure is empty on the others.",
    "structures renumbered": "Structures with numbers below 1 got unused numbers.",
    "structures without a name": "Structures have no name; their number is used as the name.",
    "structures without contours": "Structures are named but have no contours.",
    "unequal gaps": "The distances between slices differ; the slices were resampled to a regular grid.",
    "unit of length is not mm": "Lengths were in meters or micrometers; they were converted to millimeters.",
    "unit of length is unknown": "The header's length unit is not in the standard; millimeters were assumed.",
    "values are not certain to be Hounsfield units": "A CT file has another rescale type; its values may not be HU.",
    "values taken for Hounsfield units": "The file gives no unit and the recipe has a window in HU; "
    "values below -50 suggest Hounsfield units.",
    "volumes of a series as channels": "The series held several images at each position; each became a channel.",
    "voxels of several classes": "Two or more classes share voxels; each such voxel belongs to all of them.",
    "voxels that are no number": "Voxels were infinite or NaN; they were replaced.",
    "voxel size is not given": "The header has no voxel size; 1 mm was assumed, as the format says.",
    "wide gaps": "Some gaps between slices are more than 3 times the typical gap; they were interpolated.",
}
"""Sentence on each finding, by its name. Reports show an unknown finding without a sentence."""
TREATMENTS: Final = {
    "corrected": "the voxels or the grid were changed",
    "noted": "nothing was changed",
}


def split_finding(key: str) -> tuple[str, str]:
    """Split a key of the finding statistics into name and treatment.

    >>> split_finding("gantry tilt (corrected)")
    ('gantry tilt', 'corrected')
    """
    name, _, treatment = key.rpartition(" (")
    return (name, treatment.rstrip(")")) if name and treatment.rstrip(")") in TREATMENTS else (key, "")
