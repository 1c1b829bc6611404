"""Findings about scans: facts that a conversion counts in the manifest by name, each with a sentence for reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class FindingName(StrEnum):
    """Name of a finding, as the manifest and reports spell it.

    Attributes:
        meaning: sentence that explains it to a user.
        fix: sentence with the options of another conversion, where one may be better; else "".
    """

    meaning: str
    fix: str

    def __new__(cls, name: str, meaning: str, fix: str = "") -> FindingName:
        member = str.__new__(cls, name)
        member._value_, member.meaning, member.fix = name, meaning, fix
        return member

    # fmt: off
    CENTER_OF_ROTATION = ("center of rotation is ignored",
        "The header has another center; the axes rotate about the first voxel.")
    CHANNEL_ON_ANOTHER_GRID = ("channel on another grid",
        "A channel lies on another grid than the first, or the named one; an option said to resample it.")
    CHANNEL_SMALLER = ("channel covers less than the first",
        "A resampled channel ends within the other scan; voxels beyond it got its background.")
    CLASSES_LEFT_OUT = ("classes left out by choice",
        "The class selection drops these labels; their voxels are background.")
    CLASSES_OUTVOTED = ("classes that no voxel has after the vote",
        "Too few of a scan's masks have these classes; if the masks show different structures, merge them.")
    CLASSES_NOT_IN_LABEL = ("classes that the label does not name",
        "The scan's SEG or RTSTRUCT has no such class; it is empty in this scan.")
    CLASSES_OVERLAP = ("classes overlap",
        "Two classes share voxels; the overlap option decided which class each voxel got.")
    OBJECTS_BY_CLASS = ("objects became their classes",
        "The label numbers objects, and the document beside it gives the class of each, as nnDetection writes it.")
    CLASS_CUT_OFF = ("a class is cut off", "More than 1 % of a class is outside the static shape and is in no record.")
    CLASS_MASKS_OVERLAP = ("class masks overlap",
        "The masks of two classes share voxels; each such voxel was given to one of them.")
    COLOR_VOXELS = ("color voxels", "Each voxel is a color; its components became channels.")
    CONTOURS_BEYOND_SLICES = ("contours beyond the slices",
        "Contours just before the first or after the last slice were ignored.")
    CONTOURS_CUT = ("contours cut at the image's edge", "Contours leave the image; the part inside was kept.")
    CONTOURS_OFF_SLICE = ("contours off their slice", "Contours between slices were moved to the nearest slice.")
    CONTOURS_TOO_SHORT = ("contours of fewer than three points", "Such contours enclose no area and were ignored.")
    CONTOURS_WITHOUT_AREA = ("contours that enclose no area", "Points and open contours were ignored.")
    DUPLICATES = ("duplicates", "The same slice occurs more than once at the same position; one copy was kept.")
    FRACTIONAL_SEGMENTATION = ("fractional segmentation",
        "The mask holds fractions; values of 0.5 and more count as inside.")
    FRACTIONS_ROUNDED = ("fractions rounded to whole numbers",
        "The values were fractions; records hold integers, at most 0.5 away.")
    GANTRY_TILT = ("gantry tilt",
        "The slices are tilted against the table, as in head scans; resampling removed the shear.")
    HOUNSFIELD_UNITS_ASSUMED = ("values taken for Hounsfield units",
        "The file gives no unit and the recipe has a window in HU; values below -50 suggest Hounsfield units.")
    HOUNSFIELD_UNITS_NOT_CERTAIN = ("values are not certain to be Hounsfield units",
        "A CT file has another rescale type; its values may not be HU.")
    LABEL_PICTURES_BY_NAME = ("label pictures in order of their names",
        "Pictures have other names than the slices; their order is taken.")
    LENGTH_UNIT_NOT_MM = ("unit of length is not mm",
        "Lengths were in meters or micrometers; they were converted to millimeters.")
    LENGTH_UNIT_UNKNOWN = ("unit of length is unknown",
        "The header's length unit is not in the standard; millimeters were assumed.")
    MASKS_COMBINED = ("masks combined by vote",
        "Several masks of one scan became one label by an option; voxels on which they differ got the voted class.")
    MASK_AFFINE_DIFFERS = ("mask's affine is not its image's",
        "The mask's header gives another position; an option said to ignore it.")
    MASK_BEYOND_IMAGE = ("mask reaches beyond its image",
        "Part of the mask is outside the scan; that part is in no record.")
    MASK_IS_PART = ("mask covers a part of its scan",
        "The mask has some of the scan's voxels, at an offset of whole voxels; the others are background.")
    MASK_ON_ANOTHER_GRID = ("mask on another grid",
        "The mask and the scan have different grids; each voxel got the nearest mask voxel.")
    MASK_QUANTIZED = ("mask saved through floats",
        "The mask's integers have a fractional slope; each value was rounded to the whole number within half a step.")
    MASK_SLIGHTLY_OFF = ("mask slightly off its image's grid",
        "The mask's grid differs by less than the tolerance; it was used unchanged.")
    MASK_VOXELS_NOT_FINITE = ("mask voxels that are no number",
        "Mask values are infinite or NaN; an option gave the value that replaces them.")
    MISSING_SLICES = ("slices are missing", "Slices are missing between others; they were interpolated.")
    MONOCHROME1 = ("MONOCHROME1", "Low values are meant to be shown white; the values were kept.")
    NEGATIVE_VOXEL_SIZE = ("negative voxel size",
        "The header has a voxel size below 0, which the standard forbids; the sign was dropped.")
    NO_BYTE_ORDER = ("order of bytes is not given",
        "The header does not give the byte order; little-endian was assumed.")
    NO_ORIENTATION = ("no orientation given",
        "The file does not give the orientation of the patient; radiological order was assumed. Left and right are"
        " not certain.",
        "Convert with --unoriented neurological if the first axis runs to the right.")
    NO_ORIGIN = ("no origin given", "The file does not give the position of the first voxel; 0 was assumed.")
    NO_RESCALE_SLOPE = ("no rescale slope", "A CT file has no rescale slope to Hounsfield units; values are as stored.")
    NO_VOXEL_SIZE = ("voxel size is not given", "The header has no voxel size; 1 mm was assumed, as the format says.")
    OBJECTS_CUT_OFF = ("objects in no record",
        "Objects with boxes are outside the static shape and are in no record.",
        "Convert with --fit tiles, a larger --depth, --height and --width, or --center label.")
    OLD_RANGE_NOT_APPLIED = ("old min and old max are not applied",
        "The file gives the range before quantization; values are as stored.")
    ONE_OF_SEVERAL_VOLUMES = ("one of several volumes in a series",
        "The series holds several scans, such as phases or echoes; this is one.")
    ORIENTATIONS_DISAGREE = ("orientations disagree",
        "The header's orientation code and its matrix disagree; the matrix was used.")
    OTHER_FILES = ("other files left out",
        "The series' folder held other files, such as localizers; they were not read.")
    OVERLAPPING_SLICES = ("overlapping slices",
        "Slices are thicker than the distance between them, so neighbors share tissue.")
    PADDING_VALUES = ("padding values", "Some values mean “no data”; where this was corrected, they were set to air.")
    REAL_WORLD_VALUES = ("real world values",
        "The file maps stored values to a quantity with a unit; the mapping was applied.",
        "Convert with --real-world-values stored for the values as they are stored.")
    REPEATED_CONTOURS = ("repeated contours",
        "The same contour occurs twice and would cancel itself out; it was drawn once.")
    RESCALE_IGNORED = ("rescale ignored",
        "The header's slope means no rescaling, so the intercept was not applied either.")
    SEGMENTS_WITHOUT_LABEL = ("segments without a label", "Segments have no name; their number is used as the name.")
    SFORM_AND_QFORM_DISAGREE = ("sform and qform disagree",
        "The header gives two positions of the scan; the sform was used, unless there is none.",
        "Convert with --sform-qform qform if the qform is right.")
    SHEARED_AXES = ("sheared axes",
        "The axes are not perpendicular; the affine still gives the position of each voxel.")
    SINGLE_SLICE = ("single slice", "The scan has one slice; its thickness was used as the spacing.")
    SLICES_DIFFER_IN_RESCALE = ("slices differ in rescale",
        "Slices have different slopes; each slice was rescaled with its own.")
    STRUCTURES_RENUMBERED = ("structures renumbered", "Structures with numbers below 1 got unused numbers.")
    STRUCTURES_SKIP_SLICES = ("structures that skip slices",
        "Contours are drawn on some slices only; the structure is empty on the others.")
    STRUCTURES_WITHOUT_CONTOURS = ("structures without contours", "Structures are named but have no contours.")
    STRUCTURES_WITHOUT_NAME = ("structures without a name",
        "Structures have no name; their number is used as the name.")
    UNEQUAL_GAPS = ("unequal gaps", "The distances between slices differ; the slices were resampled to a regular grid.")
    VOLUMES_AS_CHANNELS = ("volumes of a series as channels",
        "The series held several images at each position; each became a channel.")
    VOXELS_NOT_FINITE = ("voxels that are no number", "Voxels were infinite or NaN; they were replaced.")
    VOXELS_OF_SEVERAL_CLASSES = ("voxels of several classes",
        "Two or more classes share voxels; each such voxel belongs to all of them.")
    WIDE_GAPS = ("wide gaps", "Some gaps between slices are more than 3 times the typical gap; they were interpolated.")
    # fmt: on


TREATMENTS: Final = {
    "corrected": "the voxels or the grid were changed",
    "noted": "nothing was changed",
}


def finding_key(name: str, treatment: str) -> str:
    """Return the key of a finding in the statistics of the manifest.

    >>> finding_key(FindingName.GANTRY_TILT, "corrected")
    'gantry tilt (corrected)'
    """
    return f"{name} ({treatment})"


def split_finding(key: str) -> tuple[str, str]:
    """Split a key of `finding_key` into name and treatment; another text is a name without a treatment.

    >>> split_finding("gantry tilt (corrected)"), split_finding("duplicates")
    (('gantry tilt', 'corrected'), ('duplicates', ''))
    """
    name, _, treatment = key.rpartition(" (")
    return (name, treatment.rstrip(")")) if name and treatment.rstrip(")") in TREATMENTS else (key, "")


def explain_finding(name: str) -> str:
    """Return the meaning of a finding and its fix; "" for a name that only another version of halofeed knows.

    >>> explain_finding("duplicates"), explain_finding("unknown")
    ('The same slice occurs more than once at the same position; one copy was kept.', '')
    """
    known = FindingName._value2member_map_.get(name)
    return f"{known.meaning} {known.fix}".rstrip() if isinstance(known, FindingName) else ""
