"""Plan of a conversion before any image is decoded: references (`SourceExample`), splits, classes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from halofeed.pipelines.declared_sizes import check_declared_sizes
from halofeed.pipelines.duplicates import COPIES, Duplicates
from halofeed.pipelines.earlier_version import EarlierVersion, compatible_labels
from halofeed.pipelines.first_pass import FirstPass, PassOptions
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.list_references import (
    LayoutInput,
    list_here,
    list_references,
    print_unused_lists,
    print_warning,
    splits_of,
)
from halofeed.pipelines.opened_sources import Sources, naming_faults
from halofeed.pipelines.planned_classes import plan_label_map
from halofeed.pipelines.references import ReferenceWriter
from halofeed.pipelines.split_files import check_split_names, named_file, read_split_options
from halofeed.pipelines.totals import Totals
from halofeed.prep.annotations import labels
from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.prep.annotations.contract import LayoutOptions, ListSeries
from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.annotations.splits import SplitOptions
from halofeed.prep.layouts import Layout, find_layout
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import STACK_EXTENSIONS, extension_of, is_image_name
from halofeed.prep.sources.files import RemoteFiles, SourceFiles
from halofeed.prep.voxels.intensity import check_channels_are_ct
from halofeed.schemas.identity import example_id, refuse_repeated
from halofeed.schemas.limits import SHARDS, SPLITS
from halofeed.schemas.tasks import task_named
from halofeed.system.console import print_status
from halofeed.system.errors import AnnotationsError, SourceError, UsageError
from halofeed.system.threads import available_cores
from halofeed.system.wording import plural

_STACK_BYTES = 64 << 20
"""Bytes of a picture that are read to find further pages."""
_MAX_SHOWN_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """Result of planning.

    Args:
        task: name of the task, given or chosen from the annotations.
        fingerprints: fingerprint of the references and labels, then those that earlier versions would give.
        stamps: digest of the stamps of all source files; "" where a file may change and keep its stamp.
        totals: counts of the references, and facts about them.
        copies: what --duplicates found, see `Duplicates.counts`; empty where copies are only reported.
    """

    task: str
    labels: LabelMap
    splits: tuple[str, ...]
    fingerprints: tuple[str, ...]
    stamps: str
    totals: Totals
    copies: Mapping[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Any]:
        """Return the manifest's entry for the references and labels."""
        found = {"count": self.totals.count, "fingerprint": self.fingerprints[0]}
        return {**found, COPIES: dict(self.copies)} if self.copies else found

    def describe_splits(self) -> str:
        """Return the number of convertible references of each split, such as "test 72, train 205"."""
        return ", ".join(f"{name} {count:,}" for name, count in sorted(self.totals.splits.items()))

    def describe_classes(self, names: Iterable[str]) -> str:
        """Return some classes with the number of labels or objects that annotations have of them."""
        counts = self.totals.labels
        texts = [f"{name} {counts[name]:,}" if counts[name] else name for name in names if name != BACKGROUND]
        more = f" and {len(texts) - _MAX_SHOWN_CLASSES} more" if len(texts) > _MAX_SHOWN_CLASSES else ""
        return f"{', '.join(texts[:_MAX_SHOWN_CLASSES])}{more}"


ListInJob: TypeAlias = "Callable[[Layout, LayoutOptions, SplitOptions], Totals | None]"
"""Function that lists, counts and writes the references by workers; it returns None where this process must do so."""


MakeFirstPass: TypeAlias = "Callable[[Callable[[SourceExample], SourceExample]], FirstPass]"
"""Function from `FileSelection.complete` to the pass that finds copies."""


def make_plan(
    options: JobOptions,
    recipe: Recipe,
    sources: Sources,
    writer: ReferenceWriter | None,
    list_series: ListSeries | None = None,
    list_in_job: ListInJob | None = None,
    earlier: EarlierVersion | None = None,
    first_pass: MakeFirstPass | None = None,
) -> ConversionPlan:
    """Read the annotations and write the references for the workers.

    Args:
        writer: writer of the references; None only counts and checks them.
        list_series: as in `LayoutOptions`.
        list_in_job: see `ListInJob`; None lists them in this process.
        earlier: version whose task and classes the data set keeps; with --keep-splits also the splits.
        first_pass: see `MakeFirstPass`; None decodes the inputs in this process.

    Raises:
        AnnotationsError: unknown labels, two sources with one id, a group or copies in several splits, invalid names of
            splits, or nothing to convert.
        UsageError: the layout does not support the task, or an option has an invalid name of a split.
    """
    layout = find_layout(recipe.layout)
    layout.check(task=recipe.task, masks=recipe.masks, keep=recipe.keep)
    with naming_faults(sources):
        _check_channels(recipe, layout, sources)
    layout_input = _input_of_layout(options, recipe, layout, sources)
    if options.keep_splits:
        layout_input = replace(layout_input, earlier=earlier)
    if recipe.duplicates != "report":
        duplicates = _duplicates_of(layout_input, earlier, first_pass)
        layout_input = replace(layout_input, duplicates=duplicates)
    with naming_faults(sources):
        totals = (
            None if list_in_job is None else list_in_job(layout, layout_input.options, layout_input.splits)
        )
    # Workers received the options without `list_series`, which cannot be sent to them.
    layout_input = replace(layout_input, options=replace(layout_input.options, list_series=list_series))
    is_listed_here = totals is None
    if totals is None:
        totals = list_here(layout_input, writer)
    splits = splits_of(totals)
    _check_splits(options, layout_input, totals, is_listed_here=is_listed_here)
    _check_convertible(options, layout_input, totals, writes=writer is not None)
    task = _settled_task(recipe, layout, totals)
    label_map = plan_label_map(layout_input, totals, task, options.label_map)
    if earlier is not None:
        label_map = _earlier_classes(options, earlier, totals, task, label_map)
    for warning in recipe.warnings():
        print_status(f"halofeed convert: {warning}")
    # --missing-masks prediction states that images without a label are expected; `halofeed predict` has it too.
    if task_named(task).has_label_image and recipe.missing_masks == "refuse":
        _print_unlabeled(totals)
    return ConversionPlan(
        task=task,
        labels=label_map,
        splits=splits,
        # Forms are what planning happened to see of files that the references name already.
        fingerprints=totals.fingerprints(json.dumps(replace(label_map, forms=()).to_json()).encode()),
        stamps=_stamps_of(sources, totals),
        totals=totals,
        copies=layout_input.duplicates.counts if layout_input.duplicates else {},
    )


def _duplicates_of(
    layout_input: LayoutInput, earlier: EarlierVersion | None, first_pass: MakeFirstPass | None
) -> Duplicates:
    """Return what --duplicates does with copies."""
    recipe, complete = layout_input.recipe, layout_input.selection.complete
    keeps = layout_input.earlier
    if first_pass is None:
        here = PassOptions(recipe=recipe, images=layout_input.sources.images.root, threads=available_cores())
        search = FirstPass(options=here, run=map, complete=complete)
    else:
        search = first_pass(complete)
    if earlier is not None:
        search.known = lambda one: earlier.signature_of(example_id(one.key), one.source)
    return Duplicates(
        mode=recipe.duplicates,
        search=search,
        by_shares=bool(layout_input.splits.shares),
        is_earlier=lambda one: earlier is not None and earlier.has_record(example_id(one.key)),
        kept_split=lambda one: keeps.split_of(example_id(one.key), one.source) if keeps is not None else None,
        warn=print_warning,
    )


def _input_of_layout(options: JobOptions, recipe: Recipe, layout: Layout, sources: Sources) -> LayoutInput:
    """Return what the layout needs to list references."""
    splits = read_split_options(options, recipe)
    selection = recipe.rules.select_files(recipe, sources.images)
    layout_options = recipe.layout_options(
        options.salt, source_splits=not (splits.shares or splits.lists), selection=selection
    )
    if options.label_map is not None and layout.has_containers:
        # Class numbers in container files count from 0, in detection too.
        names = labels.from_file(*named_file("--label-map", options.label_map), 0).names
        layout_options = replace(layout_options, class_names=names)
    return LayoutInput(
        recipe=recipe,
        layout=layout,
        sources=sources,
        selection=selection,
        options=layout_options,
        splits=splits,
    )


def _check_splits(
    options: JobOptions, layout_input: LayoutInput, totals: Totals, *, is_listed_here: bool
) -> None:
    """Refuse an empty source, and splits that cannot be written; print lists of splits that are not used."""
    recipe, count = layout_input.recipe, len(splits_of(totals))
    if not totals.count:
        raise AnnotationsError(
            f"--source {options.source}: no images and no annotations there for layout {recipe.layout}"
        )
    if count > SPLITS or count * recipe.shards > SHARDS:
        raise UsageError(
            f"--shards {recipe.shards}: {plural(count, 'split has', 'splits have')} "
            f"{plural(count * recipe.shards, 'shard')}; a data set has at most {SHARDS:,} in {SPLITS:,} splits"
        )
    named_by_option = bool(layout_input.splits.shares or options.split_lists or options.nnunet_splits)
    check_split_names(totals.splits, named_by_option=named_by_option)
    # To try the lists, this process lists the source again, which is too slow where workers had to list it.
    if len(totals.splits) == 1 and not named_by_option and is_listed_here:
        print_unused_lists(layout_input)


def _check_convertible(
    options: JobOptions, layout_input: LayoutInput, totals: Totals, *, writes: bool
) -> None:
    """Refuse a source whose references already show that its conversion would fail or be useless.

    Args:
        writes: whether the references are written for a conversion, and not only counted.
    """
    recipe, images = layout_input.recipe, layout_input.sources.images
    _check_depth_of_stack(recipe, images, totals.first_picture)
    refused = recipe.rules.refuses(recipe, totals.first_volume, totals.first_picture)
    if refused and _is_stack(images, totals.first_picture):
        totals.first_volume, refused = totals.first_picture, ""  # the name alone is that of a picture
    if refused:
        _check_no_stack(images, totals.first_picture)
        raise UsageError(refused)
    # With --max-rejected the commit refuses, after the list of rejected inputs has been written.
    if not totals.convertible and options.max_rejected is None:
        totals.refuse_all(images.root)
    # If an id is repeated, list the references again to name their sources.
    references = functools.partial(list_references, layout_input)
    refuse_repeated(
        totals.identities, lambda: ((one.key, one.source) for one in references() if one.problem is None)
    )
    totals.check_objects()
    if writes and options.on_loss == "refuse":
        check_declared_sizes(recipe, totals.declared)


def _settled_task(recipe: Recipe, layout: Layout, totals: Totals) -> str:
    """Return the user's task, or the one that the annotations show: boxes, or no label at all, mean detection."""
    default = "detection" if totals.has_boxes or not totals.has_label else "classification"
    return recipe.settled_task() or (default if default in layout.tasks else layout.tasks[0])


def _earlier_classes(
    options: JobOptions, earlier: EarlierVersion, totals: Totals, task: str, label_map: LabelMap
) -> LabelMap:
    """Return the classes of a version that starts from an earlier one; refuse another task."""
    if task != earlier.manifest.task:
        raise UsageError(
            f"--from {options.from_}: its task is {earlier.manifest.task}, and the sources show {task}; correct "
            "them, or convert without --from"
        )
    # The values of label images are numbers of classes already; names are numbered here.
    are_given = options.label_map is not None or (task_named(task).has_label_image and not totals.labels)
    return compatible_labels(earlier, label_map, are_given=are_given)


def _print_unlabeled(totals: Totals) -> None:
    """Print how many images of a segmentation set have no label."""
    if totals.convertible and not totals.labelled:
        print_status(
            f"halofeed convert: no label for {plural(totals.convertible, 'image')}, so the records are for prediction "
            "only. If there are labels, name them: a table with --layout csv and the columns id,image,label, or "
            "--layout pairs with --image-pattern and --label-pattern"
        )
    elif totals.unlabeled:
        print_status(f"halofeed convert: {totals.describe_unlabeled()}")


def _stamps_of(sources: Sources, totals: Totals) -> str:
    if isinstance(sources.images, RemoteFiles):  # its listing has the versions of all files
        return sources.images.stamps
    return "" if totals.stamps is None else f"{totals.stamps:064x}"


def _is_stack(images: SourceFiles, picture: str) -> bool:
    """Return whether a picture is a file of pages that may be the slices of a volume."""
    from halofeed.prep.formats.volume.tiff_stack import stack_shape  # imports the readers of volumes

    return picture.lower().endswith(STACK_EXTENSIONS) and stack_shape(images.read(picture)) is not None


def _check_depth_of_stack(recipe: Recipe, images: SourceFiles, picture: str) -> None:
    """Refuse to take stacks of pages for pictures, where a file beside them states the voxel size of a volume."""
    if recipe.depth is not None or not picture.lower().endswith(STACK_EXTENSIONS):
        return
    from halofeed.prep.formats.volume.tiff_stack import stack_shape, voxel_size_beside

    if voxel_size_beside(images, picture) is None:
        return
    shape = stack_shape(images.read(picture))
    if shape is not None:
        depth, height, width = shape
        raise UsageError(
            f"{picture} is a volume: a stack of {plural(depth, 'page')} with its voxel size beside it; use --depth "
            f"{depth} --height {height} --width {width}, or other sides"
        )


def _check_no_stack(images: SourceFiles, picture: str) -> None:
    """Refuse a file of several pages, to which advice for single pictures does not apply."""
    from halofeed.prep.formats.picture.picture_formats import (
        open_header,  # imports OpenCV, which --help does without
    )

    if not is_image_name(picture):
        return
    try:
        opened = open_header(images.head(picture, _STACK_BYTES))
    except SourceError:
        return
    if opened is not None and opened.more:
        raise UsageError(
            f"{picture}: it holds several pages, and stacks of pages are not read as volumes, because "
            f"{extension_of(picture)} files do not say their distance; save each image and label as NRRD or NIfTI with "
            "its voxel size (with SimpleITK or 3D Slicer; nnU-Net writes the voxel size into the JSON beside the "
            'image, and its dataset.json then needs "file_ending": ".nii.gz")'
        )


def _check_channels(recipe: Recipe, layout: Layout, sources: Sources) -> None:
    """Refuse a number of channels that the layout's files contradict."""
    if not recipe.rules.joins_files or layout.channel_names is None:
        return
    names = layout.channel_names(sources.annotations, sources.annotation_file)
    # A window in HU means nothing for MR or PET channels.
    if recipe.windows_hounsfield_units():
        check_channels_are_ct(names)
    if names and len(names) != recipe.channels:
        raise UsageError(
            f"--channels {recipe.channels}: the data set has {len(names)} ({', '.join(names)}); use --channels "
            f"{len(names)}"
        )
