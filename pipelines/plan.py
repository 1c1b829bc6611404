"""Plan of a conversion before any image is decoded: references (`SourceExample`), splits, classes and disk space."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from halofeed.errors import AnnotationsError, Problem, SourceError, UsageError
from halofeed.pipelines.classes import (
    NamesInLabels,
    check_channels,
    check_choice,
    region_classes,
    resolve_ignored,
    segmentation_classes,
)
from halofeed.pipelines.declared_sizes import add_declared_objects, check_declared_sizes
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.label_evidence import (
    check_has_background,
    check_positions,
    find_color_table,
    gray_reading,
    is_of_objects,
)
from halofeed.pipelines.references import ReferenceWriter
from halofeed.pipelines.totals import Totals
from halofeed.prep.annotations import labels
from halofeed.prep.annotations.advice import suggest
from halofeed.prep.annotations.class_names import BACKGROUND, ClassChoice, sort_class_names
from halofeed.prep.annotations.class_rows import ClassTable, is_ignored, is_void_name
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    ListSeries,
    can_be_encoded,
    is_split_name,
    reject_lone_surrogates,
)
from halofeed.prep.annotations.labels import VOC_VOID, LabelMap, void_problem
from halofeed.prep.annotations.splits import (
    SplitOptions,
    assign_splits,
    check_groups,
    find_split_lists,
    read_fold,
)
from halofeed.prep.annotations.unlabeled import assign_unlabeled_apart
from halofeed.prep.convert.label_image import has_voc_palette, read_label_image
from halofeed.prep.layouts import Layout, find_layout
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.containers import container_kind
from halofeed.prep.sources.example import FileSelection, SourceExample
from halofeed.prep.sources.file_names import extension_of, is_image_name
from halofeed.prep.sources.files import (
    LocalFiles,
    RemoteFiles,
    SourceFiles,
    check_source_path,
    settled_stamp,
    source_files,
)
from halofeed.prep.sources.walk import EMPTY_FOLDER, HIDDEN_FILE
from halofeed.prep.voxels.intensity import check_channels_are_ct
from halofeed.schemas.files import check_split
from halofeed.schemas.identity import refuse_repeated
from halofeed.schemas.limits import SHARDS, SPLITS
from halofeed.schemas.tasks import task_named
from halofeed.storage.choose import read_option_file
from halofeed.system.addresses import address_of, is_remote
from halofeed.system.atomic_files import decode_name
from halofeed.system.console import human_bytes, print_status
from halofeed.system.memory import machine_memory
from halofeed.system.wording import plural

_MAX_SHOWN_FAULTS = 3
_MOST_DECODED = 8
_STACK_BYTES = 64 << 20
"""Bytes of a picture that are read to find further pages."""
"""Label images whose pixels planning reads."""
_MAX_SHOWN_CLASSES = 20
_MIN_PRINTED_BYTES: Final = 1 << 30
"""Size of a data set from which a conversion prints its expected size."""
_SHARE_KEPT_FREE: Final = 0.02
"""Share of the disk that a conversion leaves free."""


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """Result of planning.

    Args:
        task: name of the task, given or chosen from the annotations.
        fingerprints: fingerprint of the references and labels, then those that earlier versions would give.
        stamps: digest of the stamps of all source files; "" where a file may change and keep its stamp.
        totals: counts of the references, and facts about them.
    """

    task: str
    labels: LabelMap
    splits: tuple[str, ...]
    fingerprints: tuple[str, ...]
    stamps: str
    totals: Totals

    @property
    def inputs(self) -> dict[str, Any]:
        """Return the manifest's entry for the references and labels."""
        return {"count": self.totals.count, "fingerprint": self.fingerprints[0]}

    def describe_splits(self) -> str:
        """Return the number of convertible references of each split, such as "test 72, train 205"."""
        return ", ".join(f"{name} {count:,}" for name, count in sorted(self.totals.splits.items()))

    def describe_classes(self, names: Iterable[str]) -> str:
        """Return some classes with the number of labels or objects that annotations have of them."""
        counts = self.totals.labels
        texts = [f"{name} {counts[name]:,}" if counts[name] else name for name in names if name != BACKGROUND]
        more = f" and {len(texts) - _MAX_SHOWN_CLASSES} more" if len(texts) > _MAX_SHOWN_CLASSES else ""
        return f"{', '.join(texts[:_MAX_SHOWN_CLASSES])}{more}"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Folders of the annotations and the images, and the name of the annotation file if the user gave one."""

    annotations: LocalFiles | RemoteFiles
    images: LocalFiles | RemoteFiles
    annotation_file: str | None


@dataclass(frozen=True, kw_only=True)
class _LayoutInput:
    """A layout, and the source and options from which it lists references."""

    recipe: Recipe
    layout: Layout
    sources: Sources
    selection: FileSelection
    options: LayoutOptions


ListInJob: TypeAlias = "Callable[[Layout, LayoutOptions, SplitOptions], Totals | None]"
"""Function that lists, counts and writes the references by workers; it returns None where this process must do so."""


def open_sources(options: JobOptions) -> Sources:
    """Open the source that the user named; raise UsageError where a local one does not exist."""
    source, annotation_file = options.source.rstrip("/") or "/", None
    if is_remote(source):
        # Not looked up: the extension shows whether the address is a file.
        folder, _, last = source.rpartition("/")
        if last.rpartition(".")[2] in ("json", "csv", "jsonl") or container_kind(last):
            source, annotation_file = folder, last
    elif check_source_path("--source", source):
        source, annotation_file = os.path.dirname(source) or ".", decode_name(os.path.basename(source))
    annotations = source_files(source)
    images = annotations if options.images is None else source_files(options.images)
    return Sources(annotations=annotations, images=images, annotation_file=annotation_file)


def make_plan(
    options: JobOptions,
    recipe: Recipe,
    sources: Sources,
    writer: ReferenceWriter | None,
    list_series: ListSeries | None = None,
    list_in_job: ListInJob | None = None,
) -> ConversionPlan:
    """Read the annotations and write the references for the workers.

    Args:
        writer: writer of the references; None only counts and checks them.
        list_series: as in `LayoutOptions`.
        list_in_job: see `ListInJob`; None lists them in this process.

    Raises:
        AnnotationsError: unknown labels, two sources with one id, a group in several splits, invalid names of splits,
            or nothing to convert.
        UsageError: the layout does not support the task, or an option has an invalid name of a split.
    """
    layout = find_layout(recipe.layout)
    layout.check(task=recipe.task, masks=recipe.masks, keep=recipe.keep)
    with _naming_faults(sources):
        _check_channels(recipe, layout, sources)
    split_options = SplitOptions(
        shares=recipe.shares(),
        lists=_read_split_lists(options),
        cases=_read_fold(options),
        seed=recipe.split_seed,
        group_pattern=recipe.group_pattern,
        group_column=recipe.group_column,
        folds=recipe.folds,
    )
    selection = recipe.rules.select_files(sources.images)
    layout_options = recipe.layout_options(
        options.salt, source_splits=not (split_options.shares or split_options.lists), selection=selection
    )
    if options.label_map is not None and layout.has_containers:
        # Class numbers in container files count from 0, in detection too.
        names = labels.from_file(*_named_file("--label-map", options.label_map), 0).names
        layout_options = replace(layout_options, class_names=names)
    with _naming_faults(sources):
        totals = None if list_in_job is None else list_in_job(layout, layout_options, split_options)
    # Workers received the options without `list_series`, which cannot be sent to them.
    layout_options = replace(layout_options, list_series=list_series)
    layout_input = _LayoutInput(
        recipe=recipe, layout=layout, sources=sources, selection=selection, options=layout_options
    )
    is_listed_here = totals is None
    if totals is None:
        totals = _list_here(layout_input, split_options, writer)
    splits = _splits_of(totals)
    if not totals.count:
        raise AnnotationsError(
            f"--source {options.source}: no images and no annotations there for layout {recipe.layout}"
        )
    if len(splits) > SPLITS or len(splits) * recipe.shards > SHARDS:
        raise UsageError(
            f"--shards {recipe.shards}: {plural(len(splits), 'split has', 'splits have')} "
            f"{plural(len(splits) * recipe.shards, 'shard')}; a data set has at most {SHARDS:,} in {SPLITS:,} splits"
        )
    named_by_option = bool(split_options.shares or options.split_lists or options.nnunet_splits)
    _check_split_names(totals.splits, named_by_option=named_by_option)
    if len(totals.splits) == 1 and not named_by_option and is_listed_here:
        _print_unused_lists(layout_input, split_options)
    if refused := recipe.rules.refuses(recipe, totals.first_volume, totals.first_picture):
        _check_no_stack(sources.images, totals.first_picture)
        raise UsageError(refused)
    if not totals.convertible and options.max_rejected is None:
        totals.refuse_all(sources.images.root)
    # If an id comes twice, this lists the references again to name their sources.
    references = functools.partial(_list_references, layout_input, split_options)
    refuse_repeated(
        totals.identities, lambda: ((one.key, one.source) for one in references() if one.problem is None)
    )
    totals.check_objects()
    if writer is not None and options.on_loss == "refuse":
        check_declared_sizes(recipe, totals.declared)
    default_task = "detection" if totals.has_boxes or not totals.has_label else "classification"
    task = recipe.settled_task() or (default_task if default_task in layout.tasks else layout.tasks[0])
    label_map = _label_map(layout_input, totals, task, options.label_map)
    for warning in recipe.warnings():
        print_status(f"halofeed convert: {warning}")
    if task_named(task).has_label_image and totals.convertible and not totals.labelled:
        print_status(
            f"halofeed convert: no label for {plural(totals.convertible, 'image')}, so the records are for prediction "
            "only. If there are labels, name them: a table with --layout csv and the columns id,image,label, or "
            "--layout pairs with --image-pattern and --label-pattern"
        )
    elif task_named(task).has_label_image and totals.unlabeled:
        print_status(f"halofeed convert: {totals.describe_unlabeled()}")
    stamps = "" if totals.stamps is None else f"{totals.stamps:064x}"
    if isinstance(sources.images, RemoteFiles):  # its listing has the versions of all files
        stamps = sources.images.stamps
    return ConversionPlan(
        task=task,
        labels=label_map,
        splits=splits,
        # Forms are what planning happened to see of files that the references name already.
        fingerprints=totals.fingerprints(json.dumps(replace(label_map, forms=()).to_json()).encode()),
        stamps=stamps,
        totals=totals,
    )


def _check_no_stack(images: SourceFiles, picture: str) -> None:
    """Refuse a file of several pages, to which advice for single pictures does not apply.

    nnU-Net's Tiff3DIO and microscopes store volumes so. TIFF has no standard field for the distance of the pages.
    """
    from halofeed.prep.formats.picture.table import open_header  # imports OpenCV, which --help does without

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


def _list_here(
    layout_input: _LayoutInput, split_options: SplitOptions, writer: ReferenceWriter | None
) -> Totals:
    """List all references in this process, and write them; print which splits have other names than their folders."""
    recipe, images = layout_input.recipe, layout_input.sources.images
    totals = Totals()
    has_choice = bool(recipe.class_choice())
    names = totals.names_in_labels = NamesInLabels(files=images)
    stamp = functools.partial(settled_stamp, images)
    with contextlib.nullcontext() if writer is None else contextlib.closing(writer):
        for reference in _list_references(layout_input, split_options, print_warning):
            if reference.channels and not recipe.rules.joins_files:
                raise UsageError(
                    f"{reference.source}: only volumes may have channels in several files; give their static shape "
                    "with --depth, --height and --width"
                )
            if reference.problem is None:
                if layout_input.options.source_splits and reference.split not in totals.splits:
                    _print_other_name(reference)
                if has_choice:
                    totals.masks.update(reference.masks)
                names.read(reference.masks)
                add_declared_objects(totals.declared, reference, recipe)
            identity, line = totals.take(reference, images.size, stamp)
            if writer is not None:
                writer.add(reference.split, identity, line)
        if writer is not None and totals.count:
            writer.finish(_splits_of(totals))
    return totals


def print_warning(text: str) -> None:
    """Print a sentence about the splits."""
    print_status(f"halofeed convert: {text}")


def _print_other_name(first: SourceExample) -> None:
    """Print the split of an image whose folders name another one, such as `valid` for `val` of YOLO's data.yaml."""
    named = [folder for folder in first.source.split("/")[:-1] if is_split_name(folder)]
    if named and first.split not in named:
        print_status(f"halofeed convert: images in the folder {named[0]} are in the split {first.split}")


def _splits_of(totals: Totals) -> tuple[str, ...]:
    """Return the splits of the convertible references; one split if there are none, for their rejects."""
    return tuple(sorted(totals.splits)) or ("train",)


def _list_references(
    layout_input: _LayoutInput, split_options: SplitOptions, warn: Callable[[str], None] = lambda _: None
) -> Iterator[SourceExample]:
    """Yield the references with their splits, then a rejected one for each path that could not be listed."""
    layout, sources, selection = layout_input.layout, layout_input.sources, layout_input.selection
    references = layout.list_references(
        sources.annotations, selection.files, sources.annotation_file, layout_input.options
    )
    named: set[str] = set()
    with _naming_faults(sources):
        assign = functools.partial(
            _assign, options=split_options, are_patients=layout.name == "dicom", warn=warn
        )
        references = reject_lone_surrogates(references)
        # Only for segmentation does an example without a mask lack its label.
        assigned = (
            assign_unlabeled_apart(references, assign, by_shares=bool(split_options.shares))
            if layout_input.recipe.may_hold_label_images()
            else assign(references)
        )
        for reference in assigned:
            if faults := _faults(sources):
                named |= faults.keys() & reference.paths
            yield selection.complete(reference)
    for path, problem in _faults(sources).items():
        if path not in named:
            yield SourceExample(source=path, key=path, problem=problem)


def _assign(
    references: Iterable[SourceExample],
    *,
    options: SplitOptions,
    are_patients: bool,
    warn: Callable[[str], None],
) -> Iterator[SourceExample]:
    assigned = assign_splits(references, options, warn)
    return check_groups(assigned, options, are_patients=are_patients, warn=warn)


def _faults(sources: Sources) -> dict[str, Problem]:
    """Return the problem of each path of the sources that could not be listed."""
    return {**sources.annotations.faults(), **sources.images.faults()}


@contextlib.contextmanager
def _naming_faults(sources: Sources) -> Iterator[None]:
    """Add the paths that could not be listed to an error of the annotations, because they may explain it."""
    try:
        yield
    except AnnotationsError as error:
        lines = [
            f"  {path}: {SourceError(*problem)}"
            for path, problem in _faults(sources).items()
            if problem not in (HIDDEN_FILE, EMPTY_FOLDER)
        ]
        if not lines:
            raise
        if len(lines) > _MAX_SHOWN_FAULTS:
            lines[_MAX_SHOWN_FAULTS:] = [f"  and {len(lines) - _MAX_SHOWN_FAULTS} more"]
        raise AnnotationsError("\n".join([str(error), "these could not be listed:", *lines])) from error


def _print_unused_lists(layout_input: _LayoutInput, split_options: SplitOptions) -> None:
    """Print which lists of splits beside the images are not used, if they divide the images."""
    images = layout_input.sources.images
    lists = find_split_lists(images)

    def try_words(words: Sequence[str]) -> str | None:
        texts = {split: images.read(path).decode("utf-8-sig") for split, path in lists.items()}
        options = replace(split_options, lists=texts)
        counts = Counter(one.split for one in _list_references(layout_input, options) if one.problem is None)
        listed = (f"{count:,} in {split}" for split, count in counts.items())
        return f"puts {' and '.join(listed)}" if len(counts) > 1 else None

    option = ",".join(f"{split}={images.root.rstrip('/')}/{path}" for split, path in lists.items())
    for one in suggest([("--split-lists", option)] if lists else [], try_words):
        print_status(
            f"halofeed convert: all images are in one split, but {' and '.join(lists.values())} divide them; "
            f"--split-lists {one.effect}; use these lists with {shlex.join(one.words)}"
        )


def _read_split_lists(options: JobOptions) -> dict[str, str]:
    """Return the text of each split's list in --split-lists."""
    lists = {}
    for part in options.split_lists:
        name, _, path = part.partition("=")
        if not path:
            raise UsageError(f"--split-lists {part!r}: expected name=file, e.g. train=train.txt")
        if name in lists:
            raise UsageError(f"--split-lists {part}: {name} comes twice; name each split once, with one file")
        try:
            lists[name] = _named_file("--split-lists", path)[1].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"--split-lists {_shown(path)}: expected UTF-8 text: {error}") from error
    return lists


def _read_fold(options: JobOptions) -> dict[str, tuple[str, ...]]:
    """Return the cases of each split in the selected fold of nnU-Net's splits_final.json."""
    path, fold = options.nnunet_splits, options.nnunet_fold
    if path is None:
        if fold is not None:
            raise UsageError("--nnunet-fold has no effect without --nnunet-splits; add that, or leave it out")
        return {}
    try:
        document = json.loads(_named_file("--nnunet-splits", path)[1])
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"--nnunet-splits {_shown(path)}: not readable as JSON: {error}") from error
    try:
        return read_fold(document, fold)
    except UsageError as error:
        raise UsageError(f"--nnunet-splits {_shown(path)}: {error}") from error


def _named_file(flag: str, path: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a file that an option names, local or remote."""
    return os.path.basename(_shown(path)), read_option_file(flag, path, machine_memory())


def _shown(path: str) -> str:
    """Return a path or an address for messages, without the secrets of an address."""
    return str(address_of(path) or path)


def _check_split_names(names: Iterable[str], *, named_by_option: bool) -> None:
    """Refuse names of splits that are invalid in file names, or differ only in upper and lower case."""
    try:
        by_folded: dict[str, str] = {}
        for name in sorted(names):
            other = by_folded.setdefault(check_split(name).casefold(), name)
            if other != name:
                raise UsageError(
                    f"splits {other!r} and {name!r} differ only in upper and lower case, so their files would be one "
                    "on some file systems; rename one"
                )
    except UsageError as error:
        if named_by_option:
            raise
        raise AnnotationsError(str(error)) from error


def _check_channels(recipe: Recipe, layout: Layout, sources: Sources) -> None:
    """Refuse a number of channels that the layout's files contradict."""
    if not recipe.rules.joins_files or layout.channel_names is None:
        return
    names = layout.channel_names(sources.annotations, sources.annotation_file)
    if recipe.windows_hounsfield_units():
        check_channels_are_ct(names)
    if names and len(names) != recipe.channels:
        raise UsageError(
            f"--channels {recipe.channels}: the data set has {len(names)} ({', '.join(names)}); say --channels "
            f"{len(names)}"
        )


def _label_map(layout_input: _LayoutInput, totals: Totals, task: str, file: str | None) -> LabelMap:
    """Return the classes of --label-map's file, or of the data."""
    first_id = task_named(task).first_label_id
    given, table = None, None
    if file is not None:
        table = labels.read_table(*_named_file("--label-map", file), first_id)
        if totals.first_volume and is_of_objects(table, layout_input.selection.files):
            print_status(
                f"halofeed convert: {table.where} counts classes from 0, as nnDetection does: value 1 is "
                f"{table.names[0]!r}, and 0 is the background"
            )
            table = table.counted_from_1()
        given = labels.from_table(table, first_id)
        _check_known(given, totals, file)
    if task_named(task).has_label_image:
        if table is None:
            table = _find_color_table(layout_input, totals)
            given = None if table is None else labels.from_table(table, first_id)
        return _segmentation_label_map(layout_input, totals, given, table)
    if given is not None:
        return given
    layout, sources = layout_input.layout, layout_input.sources
    order = layout.list_labels(sources.annotations, sources.annotation_file) if layout.list_labels else ()
    # A class whose name cannot be written has no objects: its images are rejected.
    order = tuple(filter(can_be_encoded, order))
    if not totals.labels and not order:
        return LabelMap(entries=((first_id, "object"),), first_id=first_id, where="the labels of the data")
    return labels.from_data(totals.labels, first_id, order)


def _check_known(label_map: LabelMap, totals: Totals, file: str) -> None:
    """Refuse a label map that lacks classes of the data; the message has all of them."""
    if unknown := [name for name in sort_class_names(totals.labels) if name not in label_map.ids]:
        listed = [
            f"  {name!r}: {plural(totals.labels[name], 'time')}, first in {totals.first_sources[name]}"
            for name in unknown
        ]
        known = ", ".join(label_map.names.values())
        head = (
            f"{plural(len(unknown), 'label of the data is', 'labels of the data are')} not in {file} "
            f"(known: {known}):"
        )
        raise AnnotationsError("\n".join([head, *listed, "add them there, or take them out of the data"]))


def _segmentation_label_map(
    layout_input: _LayoutInput, totals: Totals, given: LabelMap | None, table: ClassTable | None
) -> LabelMap:
    """Return the classes of segmentation: those `given` in a table, of the layout's files, or of label images."""
    if given is not None and given.names.get(0) in totals.labels:
        raise AnnotationsError(
            f"{given.where}: id 0 is {given.names[0]!r}, a class with masks, but 0 is the background; let classes "
            "start at 1 (.txt: 'background' in the first line)"
        )
    recipe, images = layout_input.recipe, layout_input.selection.files
    # Where each class has masks of its own, the layout has applied the user's choice.
    choice = ClassChoice() if totals.labels else recipe.class_choice()
    if (regions := _classes_of_regions(layout_input, given, choice)) is not None:
        return regions
    named = _named_by_source(layout_input) if given is None or choice else {}
    if zero := _background_of(choice, {**_names_of(given), **named}):
        named, choice = {**named, 0: BACKGROUND} if named else named, choice.without(zero)
        table = None if table is None else table.with_background()
        given = None if given is None else given.with_background()
    marked = _marked_as_ignored({**_names_of(table), **named}, choice)
    source_names = {**_names_of(given), **named, **marked}
    named = {value: name for value, name in named.items() if value not in marked}
    in_files = totals.names_in_labels or NamesInLabels(files=images)
    by_names = bool(in_files.named) and (given is not None or not named)
    is_open = False
    if in_files.named and not named:
        named, is_open = _named_in_labels(in_files, given, choice)
    if choice:
        options = layout_input.options
        check_choice(
            choice,
            given,
            named,
            totals.masks,
            images,
            # A path without a size is a folder of label slices, which have values.
            lambda path: options.takes_scan(path) or images.size(path) is None,
            in_files.named,
        )
    classes = segmentation_classes(given, named, choice)
    colors = _colors_of(table)
    settled = {*marked.values(), *choice.keep, *dict(choice.renamed), *recipe.ignore_label}
    _print_hints({**_names_of(table), **named}, settled)
    classes = replace(
        classes, by_names=by_names, is_open=classes.is_open or is_open, colors=tuple(colors.items())
    )
    if table is not None and not in_files.named and not totals.labels:
        if totals.first_volume:
            check_has_background(table)
        check_positions(table, images, totals.label_images[:_MOST_DECODED], recipe.max_pixels)
    classes = _with_gray_reading(layout_input, totals, classes, named)
    if recipe.holds_class_sets():
        _check_sets_ignore_nothing([*marked.values()], choice)
        return check_channels(classes)
    ignored = resolve_ignored(recipe.ignore_label, source_names, recipe.label_coding(), colors)
    if marked:
        _print_marked(marked, recipe.layout if table is None else table.where)
    return _add_void(layout_input, totals, choice, classes, tuple(dict.fromkeys([*ignored, *marked])))


def _classes_of_regions(
    layout_input: _LayoutInput, given: LabelMap | None, choice: ClassChoice
) -> LabelMap | None:
    """Return the classes of nnU-Net's regions, where records hold sets of classes; None for other data."""
    layout, sources = layout_input.layout, layout_input.sources
    if not layout_input.recipe.holds_class_sets() or layout.regions is None:
        return None
    regions = layout.regions(sources.annotations, sources.annotation_file)
    if not regions:
        return None
    classes = check_channels(region_classes(given, regions, choice))
    marks = [name for name, (value, *more) in regions.items() if not more and is_ignored(value, name)]
    _check_sets_ignore_nothing(marks, choice)
    return classes


def _named_by_source(layout_input: _LayoutInput) -> Mapping[int, str]:
    """Return the names of values by --label-channels or --label-colors, else by the layout's own files."""
    layout, sources = layout_input.layout, layout_input.sources
    named: Mapping[int, str] = {}
    if layout.label_values is not None:
        named = layout.label_values(
            sources.annotations, layout_input.selection.files, sources.annotation_file, layout_input.options
        )
    coding = layout_input.recipe.label_coding()
    return coding.names if coding else named


def _named_in_labels(
    in_files: NamesInLabels, given: LabelMap | None, choice: ClassChoice
) -> tuple[Mapping[int, str], bool]:
    """Return the names in label files that name their values, and whether other values are classes too."""
    named: Mapping[int, str] = {}
    if in_files.agree() or not (given or choice.keep):
        named = in_files.ids()
    in_files.check_numbers(name for name, _ in choice.renamed)
    return named, bool(in_files.without_names) and not (given or choice) and max(named) <= 255


def _names_of(one: ClassTable | LabelMap | None) -> Mapping[int, str]:
    return {} if one is None else one.names


def _colors_of(table: ClassTable | None) -> dict[int, int]:
    """Return the value of each color of a table; black is the background without another, as with --label-colors."""
    colors = {} if table is None else dict(table.colors)
    if colors and table is not None and 0 not in table.names:
        colors.setdefault(0, 0)
    return colors


def _background_of(choice: ClassChoice, named: Mapping[int, str]) -> str:
    """Return the name of value 0 that the user says is the background, such as --map-classes BG=background; else ""."""
    zero = named.get(0, "")
    return zero if zero in (name for name, to in choice.renamed if to == BACKGROUND) else ""


def _find_color_table(layout_input: _LayoutInput, totals: Totals) -> ClassTable | None:
    """Return the class table beside label images in color that names their colors; None without one."""
    recipe, images = layout_input.recipe, layout_input.selection.files
    if recipe.label_coding() or totals.labels or layout_input.layout.label_values is None:
        return None
    table = find_color_table(images, totals.label_images[:_MOST_DECODED], recipe.max_pixels)
    if table is not None:
        print_status(
            f"halofeed convert: label images are in color, such as {totals.label_images[0]}: {table.where} names their "
            f"colors; --label-colors names other classes"
        )
    return table


def _with_gray_reading(
    layout_input: _LayoutInput, totals: Totals, classes: LabelMap, named: Mapping[int, str]
) -> LabelMap:
    """Return the classes with what a gray PNG of few bits or with a palette means."""
    recipe = layout_input.recipe
    values = () if classes.is_open else (*named, *classes.names, *dict(classes.values or ()))
    bits, forms = gray_reading(
        layout_input.selection.files, totals.label_images, values, recipe.label_values, recipe.max_pixels
    )
    if bits and recipe.label_values == "auto":
        print_status(
            "halofeed convert: label images are files of several forms, as lossless optimizers write them; their "
            "gray values are the classes; --label-values stored takes the numbers in the files"
        )
    return replace(classes, shown_bits=bits, forms=forms)


def _marked_as_ignored(named: Mapping[int, str], choice: ClassChoice) -> dict[int, str]:
    """Return the values that their names or signs mark as no class, unless the user's choice names them."""
    chosen = {*choice.keep, *(name for name, _ in choice.renamed)}
    return {
        value: name
        for value, name in named.items()
        if is_ignored(value, name) and not {name, str(value)} & chosen
    }


def _print_marked(marked: Mapping[int, str], where: str) -> None:
    for value, name in marked.items():
        print_status(
            f"halofeed convert: {where}: value {value} is {name!r}: its pixels are ignored and are no class; "
            f"--map-classes '{name}={BACKGROUND}' makes them background"
            + (f", '{name}={name}' a class" if value > 0 else "")
        )


def _print_hints(named: Mapping[int, str], settled: Collection[str]) -> None:
    """Name the classes whose names hint at pixels without a class, unless it is settled, and how to ignore them."""
    for value, name in named.items():
        if is_void_name(name) and not {name, str(value)} & {*settled}:
            taken = "a class" if value else "background"
            print_status(
                f"halofeed convert: value {value} is {name!r}, and is taken as {taken}; if its "
                f"pixels have no class, --ignore-label '{name}' ignores them"
            )


def _check_sets_ignore_nothing(names: Sequence[str], choice: ClassChoice) -> None:
    """Refuse sets of classes of a source with an ignored value, for which a set has no value."""
    chosen = {*choice.keep, *dict(choice.renamed)}
    if names := [name for name in names if name not in chosen]:
        raise AnnotationsError(
            f"--class-overlap channels: {names[0]!r} marks pixels without a class, and a set of classes has no value "
            f"for them; --map-classes '{names[0]}={BACKGROUND}' makes them background; or leave --class-overlap out "
            "(with --regions combine where classes are regions), and records keep them apart from all classes"
        )


def _add_void(
    layout_input: _LayoutInput,
    totals: Totals,
    choice: ClassChoice,
    classes: LabelMap,
    ignored: tuple[int, ...],
) -> LabelMap:
    """Return the classes with the ignore label; the void of PASCAL VOC is one, or foreground in masks of 0 and 255."""
    recipe, images = layout_input.recipe, layout_input.selection.files
    if not ignored and layout_input.layout.unlabeled is not None:
        ignored = (layout_input.layout.unlabeled,)
    if not ignored and not recipe.label_coding() and _is_void(images, totals.label_images, classes, choice):
        ignored = (VOC_VOID,)
        print_status(
            f"halofeed convert: {totals.label_images[0]} is a label image of PASCAL VOC by its folder or palette, "
            f"where {VOC_VOID} is void: it is the ignore label; --map-classes {VOC_VOID}={VOC_VOID} makes it a class"
        )
    if ignored:
        # The number of a color is halofeed's own choice; 255 is what palette images of the same classes hold.
        return classes.ignoring(*ignored, stored=VOC_VOID if recipe.label_colors or classes.colors else None)
    if not classes.is_open or classes.id_of_value(VOC_VOID) is not None:
        return classes
    found = _values_in(images, totals.label_images[:_MOST_DECODED], recipe.max_pixels, classes)
    if problem := void_problem(found):
        raise AnnotationsError(f"{totals.label_images[0]} and others: {problem}")
    if found not in ({0, VOC_VOID}, {VOC_VOID}) or choice:
        return classes
    print_status(
        f"halofeed convert: label images hold only 0 and {VOC_VOID}, such as {totals.label_images[0]}: {VOC_VOID} is "
        f"class 1, foreground; --map-classes {VOC_VOID}=NAME names it"
    )
    entries = ((0, BACKGROUND), (1, "foreground"))
    return replace(classes, entries=entries, is_open=False, values=((VOC_VOID, 1),))


def _values_in(images: SourceFiles, paths: Iterable[str], max_pixels: int, classes: LabelMap) -> set[int]:
    """Return all values of some label images."""
    found: set[int] = set()
    for path in paths:
        try:
            found.update(np.unique(read_label_image(images.read(path), max_pixels, labels=classes)).tolist())
        except (SourceError, MemoryError):  # the conversion rejects the file with its reason
            continue
    return found


def _is_void(images: SourceFiles, paths: Sequence[str], classes: LabelMap, choice: ClassChoice) -> bool:
    """Return whether 255 is the void of PASCAL VOC: no class has it, and a label image's folder or palette is VOC's."""
    named = {*classes.names, *(value for value, _ in classes.values or ())}
    path = next(iter(paths), "")
    if not path or VOC_VOID in named or str(VOC_VOID) in dict(choice.renamed):
        return False
    in_folder = any(folder.startswith("segmentationclass") for folder in path.lower().split("/")[:-1])
    if in_folder and not classes.colors:  # CVAT and Datumaro write colors into this folder
        return True
    try:
        return has_voc_palette(images.read(path))
    except (SourceError, MemoryError):  # the conversion rejects the file with its reason
        return False


def bytes_per_record(recipe: Recipe, task: str, label_dtype: str) -> int | None:
    """Return the bytes of one record's image and label; None where they depend on the encoding.

    >>> bytes_per_record(Recipe(height=640, width=640), "detection", "uint8")
    1228800
    """
    shape = recipe.static_shape()
    if recipe.encoding != "raw" or shape is None:
        return None
    # NumPy has no bfloat16, which takes 2 bytes.
    stored = np.dtype({"bfloat16": "uint16"}.get(recipe.dtype, recipe.dtype)).itemsize * recipe.channels
    label = np.dtype(label_dtype).itemsize if task_named(task).has_label_image else 0
    return math.prod(shape) * (stored + label)


def free_bytes(folder: str) -> int:
    """Return the free bytes of the local disk that would hold a folder."""
    path = Path(folder).absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if os.path.exists(one))).free


def check_disk_space(
    folder: str, records: int, record_bytes: int | None, present: Mapping[str, int], *, refuse: bool
) -> None:
    """Print the expected bytes of a large data set, and refuse one that does not fit on the disk.

    Args:
        folder: output folder; the space of an object store is unknown.
        records: minimum number of records.
        record_bytes: result of `bytes_per_record`.
        present: names of existing files of an interrupted run, with their sizes; shards need no more space.
        refuse: raise an error where the space is too small; otherwise only print it.

    Raises:
        UsageError: there is too little space; names the options that make records smaller.
    """
    if record_bytes is None or is_remote(folder):
        return
    needed = records * record_bytes - sum(size for name, size in present.items() if ".tfrecord-" in name)
    free = free_bytes(folder)
    text = f"{plural(records, 'record')} of {human_bytes(record_bytes)} are {human_bytes(records * record_bytes)}"
    if needed > free * (1 - _SHARE_KEPT_FREE):
        text += f", and {folder} has {human_bytes(free)} free"
        if refuse:
            raise UsageError(
                f"{text}; take smaller records (a smaller --height, --width or --max-dimension, for volumes also "
                "--depth), for pictures --encoding jpeg or png, another --out, or insist with --disk-check ignore"
            )
        text = f"warning: {text}"
    elif needed < _MIN_PRINTED_BYTES:
        return
    print_status(f"halofeed convert: {text}")
