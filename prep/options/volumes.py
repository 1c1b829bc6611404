"""Which options CT and MR volumes have, and what a recipe means for them; triples are depth, height, width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from halofeed.errors import UsageError
from halofeed.prep.annotations.class_names import ClassChoice
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
from halofeed.prep.geometry.scan import LARGEST_TOLERANCE, SAME_GRID_VOXELS, Shape, Triple
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.option import KindRules, derived, option, refusal
from halofeed.prep.sources.reference import FileSelection, with_data_files
from halofeed.prep.voxels.intensity import STORES, WINDOWS, IntensityPlan, Standard, Window, named_window
from halofeed.schemas.fields import SETS
from halofeed.schemas.kinds import KINDS
from halofeed.system.memory import VOLUMES_MIB, Need, unlimited

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe

TASK = "segmentation"
SCAN = "scan"
"""Of `normalize`: each scan by its own figures."""
INTERPOLATIONS = ("linear", "cubic")
"""How volumes can be resampled, the default first."""
FLAWS = tuple(name.replace("_", "-") for name in reading_options.FLAWS)


@dataclass(frozen=True, kw_only=True)
class VolumeOptions:
    """What is done to volumes and to the labels of segmentation."""

    OPTION_GROUP: ClassVar[str] = "CT and MR volumes, and label images"

    depth: int | None = option(
        None,
        "slices of a record: every source is a CT or MR volume, brought to --depth x --height x --width",
        least=1,
    )
    spacing_mm: tuple[float, ...] = option(
        (), "resample to this spacing, e.g. 2,1.5,1.5; default: the scan's own"
    )
    fit: str = option(
        "crop-or-pad",
        "how a scan comes to the static shape: crop-or-pad about --center, stretch whatever the spacing, or "
        "tiles, as many records as cover it",
        choices=("crop-or-pad", "stretch", "tiles"),
    )
    center: str = option(
        "volume",
        "crop-or-pad: the middle of what is kept: the volume's, the foreground's (above -500 where the scan has air of "
        "-500 and less, else above its mean) or the label's",
        choices=("volume", "foreground", "label"),
    )
    crop_foreground: bool = option(False, "crop to the foreground before --fit")
    tile_overlap: tuple[int, ...] = option((), "tiles: voxels that neighbors share at least, e.g. 8,64,64")
    mask_interpolation: str = option(
        "onehot-linear",
        "how masks are resampled: the class of most weight, or nearest, which is 40 times as fast and up to "
        "half a source voxel off",
        choices=("onehot-linear", "nearest"),
    )
    slice_wise: str = option(
        "auto",
        "through thick slices take the nearest slice, as nnU-Net does; auto where the slice is over 3 times "
        "the spacing within it",
        choices=("auto", "always", "never"),
    )
    window: str | None = option(
        None, f"a window in HU by name ({', '.join(WINDOWS)}) or as center/width, e.g. 40/400"
    )
    window_hu: tuple[float, ...] = option((), "the window's low and high end, e.g. -160,240")
    window_unit: str = option(
        "hu",
        "what --window and --window-hu are taken of: hu refuses a scan whose values are no Hounsfield units (MR, a CT "
        "without rescale, a file that does not say its unit and holds nothing below -50); any windows what is there",
        choices=("hu", "any"),
    )
    window_percentiles: tuple[float, ...] = option(
        (), "a window of its own for each scan, e.g. 0.5,99.5 of what is above its least value (MR)"
    )
    normalize: str | None = option(
        None,
        "subtract a mean and divide by a deviation: scan takes each scan's and channel's own, of what is above its "
        "least value (z-score); MEAN/DEVIATION, e.g. 101.3/38.2, the same of all, after the window. Stored as float32 "
        "or bfloat16; the manifest, and each record where scans differ, say how to undo it. See --normalize-like",
    )
    mask_grid: str = option(
        "refuse",
        "a mask on another grid than its scan is refused, or resampled onto it; voxels: one of the scan's shape as "
        "stored is taken voxel for voxel, for masks whose affine was lost, and others are refused",
        choices=("refuse", "resample", "voxels"),
    )
    mask_grid_tolerance: float = option(
        SAME_GRID_VOXELS,
        "how far a mask, or a further channel, may lie from its scan's grid along each axis, as a share of a voxel "
        "below 0.5; it is then taken as it lies",
    )
    mask_references: str = option(
        "check",
        "a SEG or RTSTRUCT that refers to other images, another series or another frame of reference than those of its "
        "DICOM scan is refused; ignore: it is taken where it lies, as of scans whose UIDs were changed",
        choices=MASK_REFERENCES,
    )
    class_overlap: str = option(
        "refuse",
        "voxels that two classes claim, of class-masks, of a SEG or RTSTRUCT, of several files: the scan is refused, "
        "or the class with the last or first number, or of the last or first file, has them; channels (volumes, at "
        "most 16 classes) keeps them all: the loader gives each class, and each region of nnU-Net, as a channel of 0 "
        "and 1, the last axis of `label` (halofeed's trainer does not train on it)",
        choices=("refuse", "last", "first", SETS),
    )
    several_masks: str = option(
        "refuse",
        "pairs, dicom: several label files (SEGs, RTSTRUCTs) of one image are refused, or merged in order of name",
        choices=("refuse", "merge"),
    )
    refuse_flaws: tuple[str, ...] = option(
        (), f"DICOM: refuse a series with any of these in place of correcting it: {', '.join(FLAWS)}"
    )
    fill_missing_slices: bool = option(
        False, "DICOM: interpolate missing slices in place of refusing the series"
    )
    min_slices: int = option(
        3,
        "DICOM: a stack of fewer slices is listed and not taken: surveys, captures, files of one series UID each",
        least=1,
    )
    secondary_captures: str = option(
        "skip",
        "DICOM: images of the SOP class Secondary Capture, mostly screenshots, are listed and not taken; take: some "
        "programs write volumes so",
        choices=reading_options.SECONDARY_CAPTURES,
    )
    series_identity: str = option(
        "headers",
        "DICOM: files of one series UID whose headers name different patients, studies, series or equipment become "
        "several scans where that is proven, and are refused otherwise; uid: files of one series UID are one series "
        "whatever else they say; folder: the files of a folder are, whatever their series UIDs are",
        choices=reading_options.IDENTITIES,
    )
    series_split: str = option(
        "volumes",
        "DICOM: a series with several images at each place (phases, echoes, b-values, times) becomes one scan of each, "
        "or one scan of as many channels (say --channels), or is refused",
        choices=reading_options.SPLITS,
    )
    alternating_slices: str = option(
        "refuse",
        "DICOM: a scan whose every other slice shows something else, as if two were mixed that nothing tells apart",
        choices=reading_options.ALTERNATING,
    )
    series_modality: tuple[str, ...] = option((), "DICOM: take series of these modalities alone, e.g. CT,MR")
    series_description: str | None = option(
        None,
        "DICOM: take series alone whose description holds this regular expression, in any case, e.g. 'portal|venous'",
    )
    series_choice: str = option(
        "all",
        "DICOM: of each study take all series, or of those chosen otherwise the largest (slices x rows x columns)",
        choices=reading_options.SERIES_CHOICES,
    )
    non_finite_value: float | None = option(
        None,
        "volumes in files: what voxels that are no number (NaN, infinity) are set to, in the scan's unit, e.g. -1024; "
        "default: such a scan is refused",
    )
    non_finite_labels: str = option(
        "refuse",
        "volumes in files: a label with voxels that are no number is refused, or they are background",
        choices=NON_FINITE_LABELS,
    )
    sform_qform: str = option(
        "sform",
        "NIfTI: which affine counts where a file has two that disagree by over a tenth of a voxel (noted), or "
        "refuse it",
        choices=SFORM_QFORM,
    )
    unoriented: str = option(
        "radiological",
        "volumes in files: one that does not say how it lies in the patient: its first axis runs to the left "
        "(radiological, as SPM, FSL, nibabel and ITK take it; noted), to the right (neurological), or refuse it",
        choices=UNORIENTED,
    )
    max_voxels: int = option(
        2**31, "volumes in files: one that claims more voxels, over all channels, is refused", least=1
    )
    image_pattern: str | None = option(
        None,
        "pairs, class-masks: where the images are, e.g. images/{id}.nii.gz. {id} is what an image and its label "
        "share, {split} the split, {group} what must not be divided over splits (a patient), {channel} which channel "
        "of an image a file is, each but {id} within one name: {split}/{group}_{id}_{channel}.nii.gz; * stands for "
        "anything within a name, ** for any folders; dicom: with "
        "--label-pattern, which part of a series' folder {id} is, e.g. {id}/ct",
    )
    label_pattern: str | None = option(
        None,
        "pairs, dicom: where the labels are, e.g. labels/{id}.nii.gz; class-masks: e.g. {class}/{id}.nii.gz",
    )
    regions: str = option(
        "refuse",
        "nnU-Net: regions (classes of several values) are refused, or each value is a class, called by all regions "
        "that hold it, e.g. tumor+core; with --class-overlap channels each region is a class of its own",
        choices=("refuse", "combine"),
    )
    channel_order: tuple[str, ...] = option(
        (),
        "the values of {channel} in --image-pattern that are taken as channels, in order, e.g. t1,t1ce,t2,flair; "
        "default: all, by name",
    )
    classes: tuple[str, ...] = option(
        (),
        "segmentation: the classes to keep, by name or value, in the order of their ids from 1 (a --label-map "
        "gives other ids); all others become background",
    )
    map_classes: tuple[str, ...] = option(
        (),
        "segmentation: what becomes of classes of the source, by name or value: FROM=TO, e.g. 'left kidney=kidney,"
        "right kidney=kidney,BODY=background,500=liver'; background leaves a class out, before overlaps are counted",
    )
    ignore_label: int | None = option(
        None,
        "segmentation: the value of label images and volumes that is no class, such as 255: the loader gives it as "
        "`loader.ignore_label`, padding holds it, and losses, metrics and statistics leave it out (default: 255 for "
        "label images with the palette of PASCAL VOC)",
        least=0,
        omitted=True,
    )
    missing_masks: str = option(
        "refuse",
        "segmentation: images without a label are rejected, or kept for prediction",
        choices=("refuse", "prediction"),
    )
    missing_classes: str = option(
        "refuse",
        "class-masks: a scan that lacks the mask of a class is rejected, or the class is empty there; SEG and "
        "RTSTRUCT: the same of a scan whose label names none of the classes",
        choices=("refuse", "empty"),
    )

    def volume_problems(self) -> Iterator[str]:
        """What is wrong with these options by themselves."""
        if self.spacing_mm and (
            len(self.spacing_mm) != 3 or not all(0 < side < math.inf for side in self.spacing_mm)
        ):
            yield f"--spacing-mm {_written(self.spacing_mm)}: expected three lengths: depth,height,width"
        if self.tile_overlap and (len(self.tile_overlap) != 3 or min(self.tile_overlap) < 0):
            yield f"--tile-overlap {_written(self.tile_overlap)}: expected three counts: depth,height,width"
        for name, ends in (("hu", self.window_hu), ("percentiles", self.window_percentiles)):
            if ends and not (len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf):
                yield f"--window-{name} {_written(ends)}: expected a low and a higher end"
        if any(not 0 <= end <= 100 for end in self.window_percentiles):
            yield f"--window-percentiles {_written(self.window_percentiles)}: expected 0 to 100"
        windows = (self.window, self.window_hu, self.window_percentiles)
        if sum(map(bool, windows)) > 1:
            yield "--window, --window-hu and --window-percentiles: give one of them"
        if not 0 <= self.mask_grid_tolerance < LARGEST_TOLERANCE:
            yield (
                f"--mask-grid-tolerance {self.mask_grid_tolerance:g}: expected a share of a voxel, 0 to below "
                f"{LARGEST_TOLERANCE:g}; --mask-grid resample takes masks that lie further off"
            )
        if (window := self.window) is not None:
            yield from refusal(lambda: _parse_window(window), "--window: ")
        if self.normalize == SCAN and any(windows):
            yield "--normalize scan: takes no window; leave the window out, or --normalize"
        elif self.normalize and self.window_percentiles:
            yield (
                "--normalize: each scan has its own unit with --window-percentiles; leave that out, or take "
                "--normalize scan in place of both"
            )
        yield from refusal(self.fixed_standard, f"--normalize {self.normalize!r}: ")
        for modality in self.series_modality:
            if modality not in reading_options.SCAN_MODALITIES:
                known = ", ".join(reading_options.SCAN_MODALITIES)
                yield f"--series-modality {modality!r}: expected some of {known}"
        if self.series_description is not None:
            description = self.series_description
            yield from refusal(lambda: Expression(option="--series-description", text=description))
        if self.non_finite_value is not None and not math.isfinite(self.non_finite_value):
            yield f"--non-finite-value {self.non_finite_value}: expected a number"
        yield from self.class_choice().problems()
        if self.ignore_label is not None and self.ignore_label > LARGEST_LABEL:
            yield f"--ignore-label {self.ignore_label}: expected at most {LARGEST_LABEL}"
        if self.ignore_label is not None and self.class_overlap == SETS:
            yield "--ignore-label and --class-overlap channels: a set of classes has no value for it; leave one out"
        for flaw in self.refuse_flaws:
            if flaw not in FLAWS:
                yield f"--refuse-flaws {flaw!r}: expected some of {', '.join(FLAWS)}"

    def holds_class_sets(self) -> bool:
        """Whether a voxel may be in several classes: records hold sets of them, see `halofeed.schemas.fields`."""
        return self.class_overlap == SETS

    def class_choice(self) -> ClassChoice:
        """Which classes of the source become which of the data set."""
        return ClassChoice.of(self.classes, self.map_classes)

    def fixed_window(self) -> Window | None:
        """The window in HU, where all scans share one."""
        if self.window_hu:
            return Window(low=self.window_hu[0], high=self.window_hu[1])
        return _parse_window(self.window) if self.window is not None else None

    def fixed_standard(self) -> Standard | None:
        """The mean and deviation of --normalize, where all scans share them; UsageError where they are none."""
        if self.normalize in (None, SCAN):
            return None
        try:
            mean, deviation = map(float, str(self.normalize).split("/"))
        except ValueError as error:
            raise UsageError("expected scan, or MEAN/DEVIATION such as 101.3/38.2") from error
        return Standard(mean=mean, deviation=deviation)

    def scales_each_scan(self) -> bool:
        """Whether each scan has a scale of its own, which its records then say."""
        return bool(self.window_percentiles) or self.normalize == SCAN

    def windows_hounsfield_units(self) -> bool:
        """Whether a window is taken of Hounsfield units, and of nothing else."""
        return self.fixed_window() is not None and self.window_unit == "hu"

    def overlap(self) -> Shape:
        """--tile-overlap, none where it is left out."""
        depth, height, width = self.tile_overlap if len(self.tile_overlap) == 3 else (0, 0, 0)
        return depth, height, width

    def spacing(self) -> Triple | None:
        """--spacing-mm, None where it is left out."""
        if not self.spacing_mm:
            return None
        depth, height, width = self.spacing_mm
        return depth, height, width

    def series_policy(self) -> SeriesPolicy:
        """Which DICOM series are taken, and how they are read."""
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
            **choices,  # type: ignore[arg-type]
        )

    def scan_options(self, need: Need = unlimited) -> ScanOptions:
        """How volumes are read; `need` is told how many bytes opening one takes."""
        return derived(
            ScanOptions,
            self,
            need=need,
            classes=self.class_choice(),
            series=self.series_policy(),
            origin=None,
        )


def default_dtype(options: VolumeOptions) -> str:
    """What a record holds unless it is said: whole Hounsfield units, or the window in 8 bits."""
    if options.normalize:
        return "float32"
    return "uint8" if options.window or options.window_hu or options.window_percentiles else STORES[0]


def _parse_window(text: str) -> Window:
    center, slash, width = text.partition("/")
    if not slash:
        return named_window(text)
    try:
        ends = float(center), float(width)
    except ValueError as error:
        raise UsageError(f"expected a name or center/width, got {text!r}") from error
    return Window.from_center(*ends)


def _written(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def _defaults(recipe: Recipe) -> Mapping[str, Any]:
    return {
        "dtype": default_dtype(recipe),
        "interpolation": INTERPOLATIONS[0],
        "channels": 1,
        "pad_value": (),
        "max_memory": VOLUMES_MIB,
    }


def _problems(recipe: Recipe) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    if layout is not None and TASK not in layout.tasks:
        fitting = ", ".join(name for name, other in LAYOUTS.items() if TASK in other.tasks)
        yield (
            f"--depth is for volumes and layout {recipe.layout} holds pictures; leave it out, or take one of "
            f"{fitting}"
        )
    if recipe.holds_class_sets() and recipe.regions == "combine":
        yield (
            "--regions combine makes classes that do not overlap, and --class-overlap channels takes each region "
            "as it is; leave one of them out"
        )
    if recipe.task not in (None, TASK):
        yield f"--depth goes with --task {TASK}, not with {recipe.task}; take that, or leave --depth out"
    if recipe.encoding != "raw":
        yield f"--encoding {recipe.encoding}: volumes are stored raw; leave it out"
    if recipe.dtype not in STORES:
        yield f"--dtype {recipe.dtype}: of volumes expected one of {', '.join(STORES)}"
    if recipe.interpolation not in INTERPOLATIONS:
        yield f"--interpolation {recipe.interpolation}: of volumes expected one of {', '.join(INTERPOLATIONS)}"
    if recipe.normalize and recipe.dtype not in ("float32", "bfloat16"):
        yield (
            f"--dtype {recipe.dtype}: --normalize needs float32 or bfloat16; take --dtype float32 or leave --normalize "
            "out"
        )
    elif recipe.dtype == "uint8" and default_dtype(recipe) != "uint8":
        yield "--dtype uint8 needs a window: give --window, --window-hu or --window-percentiles"
    if recipe.channels < 1:
        yield f"--channels {recipe.channels}: expected 1 or more"
    if len(recipe.pad_value) > 1:
        yield f"--pad-value: expected one value of volumes, got {len(recipe.pad_value)}"
    shape = _shape(recipe)
    if recipe.fit == "tiles" and any(
        shared >= side for shared, side in zip(recipe.overlap(), shape, strict=True)
    ):
        yield f"--tile-overlap {recipe.overlap()}: expected less than {shape} along each axis"


def _shape(recipe: Recipe) -> tuple[int, int, int]:
    return recipe.depth or 1, recipe.height, recipe.width


def _padding(recipe: Recipe) -> tuple[float, ...]:
    """0 where each scan has its own."""
    if not recipe.pad_value or recipe.scales_each_scan():
        return (0,) * recipe.channels
    plan = IntensityPlan(store=recipe.dtype, window=recipe.fixed_window(), standard=recipe.fixed_standard())
    return (plan.stored(float(recipe.pad_value[0])),) * recipe.channels


def _refuses(recipe: Recipe, volume: str, picture: str) -> str:
    if not picture or volume:
        return ""
    return (
        f"--depth {recipe.depth}: {picture} is a picture, and nothing else than pictures is listed; leave --depth out, "
        "or stack slices into one volume file first"
    )


RULES = KindRules(
    kind=KINDS["volume"],
    chosen_by="depth",
    tasks=(TASK,),
    is_heavy=True,
    is_fitted=True,
    joins_files=True,
    listing=lambda files: FileSelection(files=files, complete=lambda one: with_data_files(one, files)),
    defaults=_defaults,
    problems=_problems,
    shape=_shape,
    padding=_padding,
    is_scaled=lambda recipe: recipe.scales_each_scan(),
    refuses=_refuses,
)
