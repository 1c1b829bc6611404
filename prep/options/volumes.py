"""Options of CT and MR volumes and of the labels of segmentation; triples are depth, height, width."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from halofeed.prep.annotations.class_names import ClassChoice, LabelCoding, is_whole_number
from halofeed.prep.annotations.labels import LARGEST_LABEL
from halofeed.prep.annotations.patterns import Expression
from halofeed.prep.formats.volume import reading_options
from halofeed.prep.formats.volume.reading_options import (
    MASK_REFERENCES,
    NON_FINITE_LABELS,
    SFORM_QFORM,
    UNORIENTED,
    ScanOptions,
    SeriesPolicy,
)
from halofeed.prep.geometry.scan import GRID_TOLERANCE_VOXELS, MAX_GRID_TOLERANCE_VOXELS, Triple, VolumeShape
from halofeed.prep.options.option import (
    SHAPE,
    SOURCE,
    Need,
    copy_options,
    of_layouts,
    option,
    problems_of,
    refusal,
)
from halofeed.prep.voxels.intensity import STORES, WINDOWS, IntensityWindow, Standardization, named_window
from halofeed.prep.voxels.votes import RULES
from halofeed.schemas.fields import SETS
from halofeed.system.errors import UsageError
from halofeed.system.memory import ReserveMemory, no_memory_limit

SCAN = "scan"
"""Value of `normalize` that scales each scan by its own mean and deviation."""
INTERPOLATIONS = ("linear", "cubic")
"""Interpolations of volumes, the default first."""
_WINDOW_EXAMPLES = {"hu": "-160,240", "percentiles": "0.5,99.5"}
FLAWS = tuple(name.replace("_", "-") for name in reading_options.FLAW_FIELDS)
_PICTURES_ALSO = "without --depth; add that for volumes, or leave it out for pictures"
VOLUMES = Need("--depth", lambda recipe: recipe.depth is not None, why=_PICTURES_ALSO)
_SERIES = (VOLUMES, of_layouts("dicom", "csv", "jsonl"))
_PATTERNS = of_layouts("pairs", "class-masks", "object-masks", "bids", "dicom")
_FITTED = Need(
    "--depth, or --fit tiles for pictures",
    lambda recipe: recipe.depth is not None or recipe.fit == "tiles",
)
_TILES = Need("--fit tiles", lambda recipe: recipe.fit == "tiles")
_CLASS_MAPS = Need(
    "labels for segmentation",
    lambda recipe: recipe.may_hold_label_images(),
    # Which option makes label images of a source depends on its files, so none is named here.
    why="without labels of voxels or pixels; leave {option} out: boxes and classes of pictures keep the classes of the "
    "source",
)


@dataclass(frozen=True, kw_only=True)
class VolumeOptions:
    """Options of volumes and of the labels of segmentation; those of labels state what they need."""

    OPTION_GROUP: ClassVar[str] = "CT and MR volumes, and label images"
    NEEDS: ClassVar[Need] = VOLUMES

    depth: int | None = option(
        None,
        "slices of a record: every source is a CT or MR volume, brought to --depth x --height x --width",
        least=1,
        brief="slices of a record; every source is a CT or MR volume",
        group=SHAPE,
    )
    spacing_mm: tuple[float, ...] = option(
        (),
        "resample to this spacing, e.g. 2,1.5,1.5; default: the scan's own",
        brief="resample to this spacing, e.g. 2,1.5,1.5",
        group=SHAPE,
    )
    fit: str = option(
        "crop-or-pad",
        "how a scan is brought to the static shape: crop-or-pad around --center, stretch whatever the spacing, or "
        "tiles, as many records as cover it; pictures: tiles of --height x --width cover each picture",
        choices=("crop-or-pad", "stretch", "tiles"),
        brief="tiles: cut large pictures and scans into records",
        group=SHAPE,
        needs=_FITTED,
    )
    center: str = option(
        "volume",
        "crop-or-pad: center of the crop: the volume's, the foreground's (above -500 where the scan has air of "
        "-500 and less, else above its mean) or the label's",
        choices=("volume", "foreground", "label"),
        needs=(VOLUMES, Need("--fit crop-or-pad", lambda recipe: recipe.fit == "crop-or-pad")),
    )
    crop_foreground: bool = option(False, "crop to the foreground before --fit")
    tile_overlap: tuple[int, ...] = option(
        (),
        "tiles: minimum overlap of neighbors, in voxels, e.g. 8,64,64, or of pictures in pixels of the scaled picture, "
        "e.g. 128,128",
        group=SHAPE,
        needs=_TILES,
    )
    mask_interpolation: str = option(
        "onehot-linear",
        "how masks are resampled: the class with the largest weight, or nearest, which is 40 times as fast and up to "
        "half a source voxel off",
        choices=("onehot-linear", "nearest"),
    )
    slice_wise: str = option(
        "auto",
        "use the nearest slice across thick slices, as nnU-Net does; auto: if the slice spacing is over 3 times the "
        "spacing within the slice",
        choices=("auto", "always", "never"),
    )
    window: str | None = option(
        None,
        f"a window in HU by name ({', '.join(WINDOWS)}) or as center/width, e.g. 40/400; DICOM pictures: the number or "
        "the explanation of one of the file's own windows or VOI LUTs, e.g. 2 (default: the first), center/width, or "
        "none for all values",
        brief="volumes: window by name, or as 40/400 (center/width)",
        group=SHAPE,
        needs=Need(
            "volumes or complete DICOM pictures",
            lambda recipe: recipe.depth is not None or (recipe.frames is None and recipe.fit != "tiles"),
            why="without {}; leave {option} out",
        ),
    )
    window_hu: tuple[float, ...] = option((), "the window's low and high end, e.g. -160,240")
    window_unit: str = option(
        "hu",
        "unit of --window and --window-hu: hu refuses a scan whose values are not Hounsfield units (MR, a CT without "
        "rescale, a file that states no unit and has no value below -50); any applies the window to every scan",
        choices=("hu", "any"),
        needs=(VOLUMES, Need("--window or --window-hu", lambda recipe: recipe.fixed_window() is not None)),
    )
    offset_hu: float = option(
        0.0,
        "CT in files that do not state their unit: number that is added to each value and gives Hounsfield units, e.g. "
        "-1024 for values stored as HU + 1024; use --offset-hu=-1024. Scans of one channel",
        omitted=True,
    )
    window_percentiles: tuple[float, ...] = option(
        (),
        "a separate window for each scan, e.g. 0.5,99.5 of the values above its smallest one (MR); tiles: for each "
        "picture and band, of its pixels that are not nodata, e.g. 2,98",
        needs=_FITTED,
    )
    normalize: str | None = option(
        None,
        "subtract a mean and divide by a deviation: scan uses each scan's and channel's own, of the values above its "
        "smallest one (z-score); MEAN/DEVIATION, e.g. 101.3/38.2, is the same for all scans, after the window. Stored "
        "as float32 or bfloat16; the manifest, or each record where scans differ, states how to undo it. See "
        "--normalize-like",
        group=SHAPE,
    )
    mask_grid: str = option(
        "refuse",
        "a mask on another grid than its scan is refused, or resampled onto it; voxels: a mask of the scan's stored "
        "shape is used voxel by voxel, for masks whose affine was lost, and others are refused",
        choices=("refuse", "resample", "voxels"),
    )
    channel_grid: str = option(
        "refuse",
        "refuse: a further channel on another grid than the first (PET and CT, ADC and T2) is refused; resample: it is "
        "brought onto the first one's grid by linear interpolation (few whole numbers in areas, as labels: nearest "
        "voxel), and voxels that it does not cover get its background; resample:NAME takes the grid of another "
        "channel: its name in dataset.json, the part of its file's name that others lack, e.g. resample:CT, or its "
        "number from 0",
        omitted=True,
    )
    mask_grid_tolerance: float = option(
        GRID_TOLERANCE_VOXELS,
        "largest offset of a mask, or a further channel, from its scan's grid along each axis, as a fraction of a "
        "voxel below 0.5; within it the offset is ignored",
    )
    mask_references: str = option(
        "check",
        "a SEG or RTSTRUCT that refers to other images, another series or another frame of reference than those of its "
        "DICOM scan is refused; ignore: it is used at its position, e.g. for scans whose UIDs were changed (layout "
        "dicom pairs it with the series that lies nearest, or that --label-pattern names)",
        choices=MASK_REFERENCES,
    )
    class_overlap: str = option(
        "refuse",
        "voxels that two classes claim in class-masks, a SEG or RTSTRUCT, or several files: the scan is refused, or "
        "the class with the last or first number, or of the last or first file, gets them; channels (volumes, at most "
        "16 classes) keeps all: the loader gives each class, and each region of nnU-Net, as a channel of 0 and 1, the "
        "last axis of `label` (halofeed's trainer does not train on it)",
        choices=("refuse", "last", "first", SETS),
        needs=_CLASS_MAPS,
    )
    several_masks: str = option(
        "refuse",
        "several label files (SEGs, RTSTRUCTs) of one image are refused, or merged in order of name, as those of a "
        "table are; volumes: readings of the same structures become one label: majority takes the class of most "
        "readings, staple weighs them by their agreement (STAPLE); a tie is background. A reading is a file, or all "
        "files of one {reader} of --label-pattern",
        choices=("refuse", "merge", *RULES),
        needs=of_layouts("pairs", "class-masks", "dicom", "csv", "jsonl"),
    )
    scan_box_units: str = option(
        "auto",
        "scan-boxes: unit of the boxes: voxels (continuous, x along the file's fastest axis), mm-ras (to the right, "
        "anterior and superior, as in NIfTI) or mm-lps (left, posterior, superior, as in DICOM and ITK); auto takes "
        "the only one in which they lie in their scans",
        choices=("auto", "voxels", "mm-ras", "mm-lps"),
        needs=of_layouts("scan-boxes"),
        omitted="auto",
    )
    min_readers: int = option(
        1,
        "LIDC: a nodule that fewer readers outlined is flagged as ignored (is_crowd), so that it is neither learned "
        "nor counted as background; --boxes-crowd drop leaves it out",
        least=1,
        needs=of_layouts("lidc"),
        omitted=1,
    )
    refuse_flaws: tuple[str, ...] = option(
        (), f"DICOM: refuse a series with any of these flaws instead of correcting it: {', '.join(FLAWS)}"
    )
    fill_missing_slices: bool = option(
        False, "DICOM: interpolate missing slices instead of refusing the series"
    )
    min_slices: int = option(
        3,
        "DICOM: a stack of fewer slices is listed and skipped: surveys, captures, files of one series UID each",
        least=1,
        needs=_SERIES,
    )
    secondary_captures: str = option(
        "skip",
        "DICOM: images of the SOP class Secondary Capture, mostly screenshots, are listed and skipped; take: use them, "
        "since some programs write volumes in this form",
        choices=reading_options.SECONDARY_CAPTURES,
        needs=_SERIES,
    )
    real_world_values: str = option(
        "auto",
        "DICOM: auto applies the only Real World Value Mapping of a frame (parametric maps, enhanced MR), except to "
        "CT, PET and others whose rescale is a quantity; or name one of several by its unit, such as mm2/s, or by its "
        "number from 1; stored: no mapping",
        omitted="auto",
        needs=_SERIES,
    )
    series_identity: str = option(
        "headers",
        "DICOM: files of one series UID whose headers name different patients, studies, series or equipment become "
        "several scans where that is proven, and are refused otherwise; uid: files of one series UID are one series "
        "whatever their other headers are; folder: the files of a folder are one series whatever their series UIDs are",
        choices=reading_options.IDENTITIES,
        needs=_SERIES,
    )
    series_split: str = option(
        "volumes",
        "DICOM: a series with several images at each position (phases, echoes, b-values, times) becomes one scan of "
        "each, or one scan with as many channels (give --channels), or is refused",
        choices=reading_options.SERIES_SPLITS,
        needs=_SERIES,
    )
    alternating_slices: str = option(
        "refuse",
        "DICOM: a scan whose alternating slices show different content, as if two scans were mixed without a header "
        "that distinguishes them",
        choices=reading_options.ALTERNATING,
        needs=_SERIES,
    )
    series_modality: tuple[str, ...] = option(
        (), "DICOM: use only series of these modalities, e.g. CT,MR", needs=_SERIES
    )
    series_description: str | None = option(
        None,
        "DICOM: use only series whose description matches this regular expression in upper or lower case, e.g. "
        "'portal|venous'",
        needs=_SERIES,
    )
    series_choice: str = option(
        "all",
        "DICOM: use all series of each study, or only the largest of them (slices x rows x columns) after the other "
        "options",
        choices=reading_options.SERIES_CHOICES,
        needs=_SERIES,
    )
    non_finite_value: float | None = option(
        None,
        "volumes in files: value that replaces NaN and infinity, in the scan's unit, e.g. -1024; default: such a scan "
        "is refused",
    )
    non_finite_labels: str = option(
        "refuse",
        "volumes in files: a label with NaN or infinity is refused, or these voxels become background",
        choices=NON_FINITE_LABELS,
    )
    sform_qform: str = option(
        "sform",
        "NIfTI: which affine is used if a file has two that differ by more than a tenth of a voxel (the report notes "
        "it), or refuse the file",
        choices=SFORM_QFORM,
    )
    unoriented: str = option(
        "radiological",
        "volumes in files: direction of the first axis in a volume without an orientation: to the left (radiological, "
        "as SPM, FSL, nibabel and ITK read it; the report notes it), to the right (neurological), or refuse the volume",
        choices=UNORIENTED,
    )
    array_spacing_mm: tuple[float, ...] = option(
        (),
        "NumPy arrays (.npy, .npz) are volumes [depth, height, width] with this voxel size, e.g. 2.5,0.8,0.8, and so "
        "are stacks of TIFF pages without a JSON file of their spacing; they are without an orientation, see "
        "--unoriented",
        omitted=True,
    )
    max_voxels: int = option(
        2**31, "volumes in files: a volume that claims more voxels, over all channels, is refused", least=1
    )
    image_pattern: str | None = option(
        None,
        "pairs, class-masks: path of the images, e.g. images/{id}.nii.gz. {id} is the part that an image and its label "
        "share, {split} the split, {group} the group that stays in one split (a patient), {channel} the channel of an "
        "image that a file holds; all but {id} stay within one name: {split}/{group}_{id}_{channel}.nii.gz; * matches "
        "anything within a name, ** any folders; dicom: with --label-pattern, the part of a series' folder that is "
        "{id}, e.g. {id}/ct; bids: where the images are, if not in anat, e.g. **/{id}_pet.nii.gz, with {id} for the "
        "subject and session",
        group=SOURCE,
        needs=_PATTERNS,
    )
    label_pattern: str | None = option(
        None,
        "pairs, dicom: path of the labels, e.g. labels/{id}.nii.gz; class-masks, dicom: e.g. {class}/{id}.nii.gz; "
        "dicom: also folders of DICOM images whose values are classes, or pictures, one for each slice; bids: the "
        "labels to take where there are several, e.g. derivatives/manual/**/{id}_dseg.nii.gz; {reader} is who drew "
        "a label, see --several-masks",
        group=SOURCE,
        needs=_PATTERNS,
    )
    regions: str = option(
        "refuse",
        "nnU-Net: regions (classes of several values) are refused, or each value is a class that is named after all "
        "regions that contain it, e.g. tumor+core; with --class-overlap channels each region is a separate class",
        choices=("refuse", "combine"),
        needs=of_layouts("nnunet"),
    )
    channel_order: tuple[str, ...] = option(
        (),
        "the values of {channel} in --image-pattern that become channels, in order, e.g. t1,t1ce,t2,flair; default: "
        "all, by name; bids: suffixes, also with entities, e.g. T1w,ce-gd_T1w; default: those of all sessions",
        needs=Need(
            "{channel} in --image-pattern, or BIDS",
            lambda recipe: "{channel}" in (recipe.image_pattern or "") or recipe.layout == "bids",
        ),
    )
    classes: tuple[str, ...] = option(
        (),
        "the classes to keep, by name (label images: or value), in the order of their ids (a --label-map gives other "
        "ids); objects, pictures, pixels and voxels of all others are left out. A name may be a pattern, e.g. 'GTV*', "
        "which keeps each class that fits, or a code of a SEG, RTSTRUCT or .seg.nrrd, e.g. SCT:10200004",
        brief="the classes to keep, by name or value",
        group=SOURCE,
        needs=(),
    )
    map_classes: tuple[str, ...] = option(
        (),
        "replace classes of the source, by name (label images: or value): FROM=TO, e.g. 'car=vehicle,bus=vehicle' or "
        "'left kidney=kidney,BODY=background,500=liver', 'GTV*=tumor' for all that fit, SCT:10200004=liver for a code "
        "(SCT:64033007+SCT:7771000 with a modifier), or 1..300=cell for a range of values; background leaves a class "
        "out, before overlaps are counted",
        needs=(),
    )
    drop_classes: tuple[str, ...] = option(
        (),
        "classes of the source to leave out, by name or value",
        omitted=True,
        needs=(),
    )
    emptied_pictures: Literal["negative", "ignored", "left-out"] = option(
        "negative",
        "a picture whose objects --classes, --map-classes and --drop-classes all leave out becomes a picture without "
        "objects, one with ignored regions in the place of its objects, or has no record",
        choices=("negative", "ignored", "left-out"),
        omitted=True,
        needs=Need(
            "a choice of classes of objects or pictures, such as --classes",
            lambda recipe: bool(recipe.class_choice()) and not recipe.may_hold_label_images(),
        ),
    )
    label_channels: tuple[str, ...] = option(
        (),
        "volumes: the class of each channel of label files with a channel per class (one-hot), in order, e.g. "
        "background,liver,spleen",
        omitted=True,
        needs=Need(
            "volumes whose labels are not a mask per class",
            lambda recipe: recipe.depth is not None and recipe.layout != "class-masks",
        ),
    )
    label_colors: tuple[str, ...] = option(
        (),
        "segmentation: the class of each color (RRGGBB, hexadecimal) of label files in color, e.g. "
        "ff0000=liver,00ff00=spleen; black is the background",
        omitted=True,
        needs=Need(
            "labels of volumes, pictures and clips for segmentation",
            lambda recipe: recipe.may_hold_label_images() and recipe.layout != "class-masks",
        ),
    )
    label_values: str = option(
        "auto",
        "segmentation: what a gray PNG label of fewer than 8 bits, or with a palette of grays, holds: the numbers that "
        "it stores, the gray values that it shows, or what the files of the data set prove",
        choices=("auto", "stored", "shown"),
        omitted=True,
        needs=_CLASS_MAPS,
    )
    ignore_label: tuple[str, ...] = option(
        (),
        "segmentation: what is no class in label images and volumes: values, names or colors (RRGGBB), such as 255, -1 "
        "or void,e0e0c0. Records store one value for all, `loader.ignore_label`; padding has it, and losses, metrics "
        "and statistics ignore it (default: what the source calls ignore; 255 for label images with the palette of "
        "PASCAL VOC)",
        omitted=True,
        needs=_CLASS_MAPS,
    )
    missing_masks: str = option(
        "refuse",
        "segmentation: images without a label are rejected, or kept for prediction in a split without labels",
        choices=("refuse", "prediction"),
        needs=(),
    )
    missing_classes: str = option(
        "refuse",
        "class-masks, bids: a scan that lacks the mask of a class is rejected, or the class is empty there; SEG and "
        "RTSTRUCT: the same for a scan whose label names none of the classes",
        choices=("refuse", "empty"),
        needs=of_layouts("class-masks", "bids", "dicom", "csv", "jsonl", "pairs"),
    )

    def volume_problems(self) -> Iterator[str]:
        """Yield a message for each of these options that has a wrong value or contradicts another of them."""
        yield from self._length_problems()
        yield from self._window_problems()
        yield from problems_of(
            (
                not 0 <= self.mask_grid_tolerance < MAX_GRID_TOLERANCE_VOXELS,
                f"--mask-grid-tolerance {self.mask_grid_tolerance:g}: expected a share of a voxel, 0 to below "
                f"{MAX_GRID_TOLERANCE_VOXELS:g}; --mask-grid resample takes masks that lie further off",
            ),
            (
                not re.fullmatch(r"refuse|resample(:.+)?", self.channel_grid),
                f"--channel-grid {self.channel_grid}: expected refuse, resample, or resample:NAME such as resample:CT",
            ),
        )
        if not math.isfinite(self.offset_hu):
            yield f"--offset-hu {self.offset_hu}: expected a number, such as --offset-hu=-1024"
        yield from self._scale_problems()
        yield from self._vote_problems()
        yield from self._series_problems()
        if self.non_finite_value is not None and not math.isfinite(self.non_finite_value):
            yield f"--non-finite-value {self.non_finite_value}: expected a number"
        yield from self.label_coding().problems()
        yield from self._ignore_problems()
        for flaw in self.refuse_flaws:
            if flaw not in FLAWS:
                yield f"--refuse-flaws {flaw!r}: expected some of {', '.join(FLAWS)}"

    def _length_problems(self) -> Iterator[str]:
        """Yield a message for each option that is not a triple along depth, height and width."""
        for name, sides in (("spacing", self.spacing_mm), ("array-spacing", self.array_spacing_mm)):
            if sides and (len(sides) != 3 or not all(map(_is_length, sides))):
                # One length is mostly meant for all axes.
                example = _written(sides * 3) if len(sides) == 1 and _is_length(sides[0]) else "2,1.5,1.5"
                yield f"--{name}-mm {_written(sides)}: expected three lengths: depth,height,width, such as {example}"
        axes, unit, example = (
            ("height,width", "pixels", "128,128")
            if self.depth is None
            else ("depth,height,width", "voxels", "8,64,64")
        )
        count = len(axes.split(","))
        if self.tile_overlap and (len(self.tile_overlap) != count or min(self.tile_overlap) < 0):
            yield (
                f"--tile-overlap {_written(self.tile_overlap)}: expected {('two', 'three')[count - 2]} counts of "
                f"{unit}: {axes}, such as {example}"
            )

    def _window_problems(self) -> Iterator[str]:
        """Yield a message for each window with invalid ends, and for several windows."""
        for name, ends in (("hu", self.window_hu), ("percentiles", self.window_percentiles)):
            if ends and not (len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf):
                example = _written(tuple(sorted(ends))) if len({*ends}) == 2 else _WINDOW_EXAMPLES[name]
                yield f"--window-{name} {_written(ends)}: expected a low and a higher end, such as {example}"
        yield from _percentile_problems(self.window_percentiles)
        if sum(map(bool, (self.window, self.window_hu, self.window_percentiles))) > 1:
            yield "--window, --window-hu and --window-percentiles: give one of them"

    def _scale_problems(self) -> Iterator[str]:
        """Yield a message for a window that cannot be read, and for --normalize."""
        if (window := self.window) is not None and not self.chooses_view():
            yield from refusal(lambda: _parse_window(window), "--window: ")
        # A mean and a deviation of each scan undo any window before them, except for its clipping.
        if self.normalize == SCAN and (self.window or self.window_hu or self.window_percentiles):
            yield "--normalize scan: takes no window; leave the window out, or --normalize"
        elif self.normalize and self.window_percentiles:
            yield (
                "--normalize: each scan has its own unit with --window-percentiles; leave that out, or take "
                "--normalize scan in place of both"
            )
        yield from refusal(self.fixed_standard, f"--normalize {self.normalize!r}: ")

    def _vote_problems(self) -> Iterator[str]:
        """Yield a message for a vote of masks that cannot be taken."""
        if self.several_masks not in RULES:
            return
        if self.depth is None:
            yield f"--several-masks {self.several_masks}: masks of volumes are combined so; add --depth, or use merge"
        if self.class_overlap == SETS:
            yield (
                f"--several-masks {self.several_masks} and --class-overlap channels: a vote gives each voxel one "
                "class; leave one out"
            )

    def _series_problems(self) -> Iterator[str]:
        """Yield a message for each wrong choice of DICOM series."""
        for modality in self.series_modality:
            if modality not in reading_options.SCAN_MODALITIES:
                known = ", ".join(reading_options.SCAN_MODALITIES)
                yield f"--series-modality {modality!r}: expected some of {known}"
        if (description := self.series_description) is not None:
            yield from refusal(lambda: Expression(option="--series-description", text=description))

    def _ignore_problems(self) -> Iterator[str]:
        """Yield a message for each value of --ignore-label that no label can have, and for options against it."""
        for written in self.ignore_label:
            if is_whole_number(written) and not -LARGEST_LABEL <= int(written) <= LARGEST_LABEL:
                yield f"--ignore-label {written}: expected at most {LARGEST_LABEL}"
        if "" in self.ignore_label:
            yield f"--ignore-label {','.join(self.ignore_label)}: expected values, names or colors, such as 255,void"
        # Records of sets have a bit for each class, and the background is the empty set.
        if self.ignore_label and self.class_overlap == SETS:
            yield "--ignore-label and --class-overlap channels: a set of classes has no value for it; leave one out"

    def holds_class_sets(self) -> bool:
        """Return True if a voxel may be in several classes: records hold sets, see `halofeed.schemas.fields`."""
        return self.class_overlap == SETS

    def class_choice(self) -> ClassChoice:
        """Return the mapping from classes of the source to classes of the data set."""
        return ClassChoice.of(self.classes, self.map_classes, self.drop_classes)

    def label_coding(self) -> LabelCoding:
        """Return the classes of label files that do not store class numbers."""
        return LabelCoding(
            channels=self.label_channels,
            colors=self.label_colors,
            ignored=self.ignore_label if self.label_colors else (),
        )

    def fixed_window(self) -> IntensityWindow | None:
        """Return the window in HU that all scans share; None where there is none."""
        if self.window_hu:
            return IntensityWindow(low=self.window_hu[0], high=self.window_hu[1])
        return _parse_window(self.window) if self.window is not None and not self.chooses_view() else None

    def chooses_view(self) -> bool:
        """Return True if --window means a window or a VOI LUT of each DICOM picture, by its number or explanation."""
        return self.depth is None and "/" not in (self.window or "/") and self.window not in WINDOWS

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each option of volumes that is valid, and likely means something else."""
        first, slash, second = (self.window or "").partition("/")
        window = self.fixed_window()
        # Soft-tissue windows are centered near 40 and 400 wide; viewers show them as W/L, the other way round.
        if (
            self.depth is not None
            and slash
            and window is not None
            and float(first) >= max(100.0, 2 * float(second))
        ):
            yield (
                f"--window {self.window} is center/width, and shows {window.low:g} to {window.high:g} HU only; if "
                f"{first} is the width, as in W/L of viewers, use --window {second}/{first}"
            )
        # --classes lists what is kept beside the background, which has id 0 without being listed.
        if self.depth is not None and "0" in self.classes:
            others = ",".join(name for name in self.classes if name != "0")
            yield (
                f"--classes {','.join(self.classes)}: the value 0 becomes a class beside the background; if it is the "
                f"background, which is kept anyway, use --classes {others}"
            )

    def fixed_standard(self) -> Standardization | None:
        """Return the mean and deviation of --normalize that all scans share; None where there are none.

        Raises:
            UsageError: the text has another form.
        """
        if self.normalize in (None, SCAN):
            return None
        try:
            mean, deviation = map(float, str(self.normalize).split("/"))
        except ValueError as error:
            raise UsageError(
                "expected scan (each scan's own mean and deviation), or MEAN/DEVIATION such as 101.3/38.2"
            ) from error
        return Standardization(mean=mean, deviation=deviation)

    def scales_each_scan(self) -> bool:
        """Return True if each scan has its own scale, which its records state."""
        return bool(self.window_percentiles) or self.normalize == SCAN

    def windows_hounsfield_units(self) -> bool:
        """Return True if the window applies to Hounsfield units only."""
        return self.fixed_window() is not None and self.window_unit == "hu"

    def overlap(self) -> VolumeShape:
        """Return --tile-overlap; zeros where it is left out."""
        return self.tile_overlap if len(self.tile_overlap) == 3 else (0, 0, 0)

    def spacing(self) -> Triple | None:
        """Return --spacing-mm; None where it is left out."""
        return cast(Triple, self.spacing_mm) or None

    def series_policy(self) -> SeriesPolicy:
        """Return the rules by which DICOM series are selected and read."""
        choices = {flaw.replace("-", "_"): "refuse" for flaw in self.refuse_flaws}
        if self.fill_missing_slices:
            choices["missing_slice"] = "correct"
        return SeriesPolicy(
            min_slices=self.min_slices,
            secondary_captures=self.secondary_captures,
            split=self.series_split,
            alternating=self.alternating_slices,
            modalities=self.series_modality,
            description=self.series_description,
            series=self.series_choice,
            identity=self.series_identity,
            real_world_values=self.real_world_values,
            **choices,  # type: ignore[arg-type]
        )

    def scan_options(self, reserve: ReserveMemory = no_memory_limit) -> ScanOptions:
        """Return the options of the volume readers; they call `reserve` with the bytes that a volume takes."""
        return copy_options(
            ScanOptions,
            self,
            reserve=reserve,
            classes=self.class_choice(),
            coding=self.label_coding(),
            series=self.series_policy(),
            ignored_values=(),
            negative_values=(),
            origin=None,
        )


def default_dtype(options: VolumeOptions) -> str:
    """Return the default dtype of records: int16 Hounsfield units, uint8 with a window, float32 if normalized."""
    if options.normalize:
        return "float32"
    return "uint8" if options.window or options.window_hu or options.window_percentiles else STORES[0]


def _is_length(value: float) -> bool:
    return 0 < value < math.inf


def _percentile_problems(percentiles: tuple[float, ...]) -> Iterator[str]:
    """Yield a message for percentiles outside of 0 to 100, and for shares from 0 to 1, which were meant in percent."""
    if all(0 <= end <= 100 for end in percentiles) and not 0 < max(percentiles, default=0) <= 1:
        return
    in_percent = tuple(100 * end for end in percentiles if 0 <= end <= 1)
    example = _written(in_percent) if len(in_percent) == 2 else _WINDOW_EXAMPLES["percentiles"]
    yield f"--window-percentiles {_written(percentiles)}: expected 0 to 100 percent, such as {example}"


def _parse_window(text: str) -> IntensityWindow:
    center, slash, width = text.partition("/")
    if not slash:
        return named_window(text)
    try:
        ends = float(center), float(width)
    except ValueError as error:
        raise UsageError(f"expected a name or center/width, got {text!r}") from error
    return IntensityWindow.from_center(*ends)


def _written(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)
