"""Listing of a source in this process: references with their splits, in the order of the layout."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from halofeed.pipelines.classes import NamesInLabels
from halofeed.pipelines.declared_sizes import add_declared_objects
from halofeed.pipelines.duplicates import Duplicates
from halofeed.pipelines.earlier_version import EarlierVersion, keep_splits
from halofeed.pipelines.opened_sources import Sources, naming_faults
from halofeed.pipelines.references import ReferenceWriter
from halofeed.pipelines.totals import Totals
from halofeed.prep.annotations.advice import suggest
from halofeed.prep.annotations.choose_classes import ChosenCounts, choose_classes
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    ListedClasses,
    is_split_name,
    keep_classes,
    reject_lone_surrogates,
)
from halofeed.prep.annotations.splits import (
    FindCopies,
    SplitOptions,
    assign_splits,
    check_groups,
    find_split_lists,
)
from halofeed.prep.annotations.unlabeled import assign_unlabeled_apart
from halofeed.prep.convert.channel_grids import named_channel
from halofeed.prep.layouts import Layout
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.prep.sources.example import FileSelection, SourceExample, split_frames
from halofeed.prep.sources.files import settled_stamp
from halofeed.system.console import print_status
from halofeed.system.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LayoutInput:
    """A layout, and the source and options from which it lists references.

    Args:
        options: options that the layout reads.
        splits: how the user divides the references.
        earlier: version whose examples keep their splits.
        duplicates: what --duplicates does with copies; None where they are only reported.
    """

    recipe: Recipe
    layout: Layout
    sources: Sources
    selection: FileSelection
    options: LayoutOptions
    splits: SplitOptions
    earlier: EarlierVersion | None = None
    duplicates: Duplicates | None = None


def list_here(layout_input: LayoutInput, writer: ReferenceWriter | None) -> Totals:
    """List all references in this process, and write them; print which splits have other names than their folders."""
    recipe, images = layout_input.recipe, layout_input.sources.images
    totals = Totals()
    has_choice = bool(recipe.class_choice())
    names = totals.names_in_labels = NamesInLabels(files=images)
    stamp = functools.partial(settled_stamp, images)
    with contextlib.nullcontext() if writer is None else contextlib.closing(writer):
        for reference in list_references(layout_input, print_warning, totals.keep_classes, totals.chosen):
            _check_channel_files(reference, recipe)
            if reference.problem is None:
                # Print it once per split. With shares or lists of the user, the names of splits need no explanation.
                if layout_input.options.source_splits and reference.split not in totals.splits:
                    _print_other_name(reference)
                if has_choice:
                    totals.masks.update(reference.masks)
                names.read(reference.masks)
                add_declared_objects(totals.declared, reference, recipe)
            identity, line = totals.take(reference, images.size, stamp)
            if writer is not None:
                writer.add(reference.split, identity, line)
        if writer is not None and totals.count:  # an empty source is refused by the plan, with a message
            writer.finish(splits_of(totals))
    return totals


def _check_channel_files(reference: SourceExample, recipe: Recipe) -> None:
    """Refuse a reference with a file for each channel, such as nnU-Net's _0000 and _0001, where the kind has none."""
    if reference.channels and not recipe.rules.joins_files:
        raise UsageError(
            f"{reference.source}: only volumes may have channels in several files; give their static shape "
            "with --depth, --height and --width"
        )


def print_warning(text: str) -> None:
    """Print a warning about the splits."""
    print_status(f"halofeed convert: {text}")


def _print_other_name(first: SourceExample) -> None:
    """Print the split of an image whose folders name another one, such as `valid` for `val` of YOLO's data.yaml."""
    named = [folder for folder in first.source.split("/")[:-1] if is_split_name(folder)]
    if named and first.split not in named:
        print_status(f"halofeed convert: images in the folder {named[0]} are in the split {first.split}")


def splits_of(totals: Totals) -> tuple[str, ...]:
    """Return the splits of the convertible references; one split if there are none, for their rejects."""
    return tuple(sorted(totals.splits)) or ("train",)


def list_references(
    layout_input: LayoutInput,
    warn: Callable[[str], None] = lambda _: None,
    keep: Callable[[ListedClasses], None] = lambda _: None,
    chosen: ChosenCounts | None = None,
) -> Iterator[SourceExample]:
    """Yield the references with their splits, then a rejected one for each path that could not be listed.

    Args:
        keep: receives the classes of a layout that knows them after listing.
        chosen: receives what the choice of classes of objects and pictures has met.
    """
    layout, sources, selection = layout_input.layout, layout_input.sources, layout_input.selection
    listing = layout.list_references(
        sources.annotations, selection.files, sources.annotation_file, layout_input.options
    )
    references = with_chosen_classes(
        reject_lone_surrogates(keep_classes(listing, keep)),
        layout_input.recipe,
        ChosenCounts() if chosen is None else chosen,
    )
    references = _with_grid_channel(references, layout_input)
    if layout_input.recipe.rules.kind.name == "picture":
        references = _described(references, layout_input, warn)
    named: set[str] = set()
    with naming_faults(sources):
        for reference in _assigned(references, layout_input, warn):
            # A listing knows its faults only once it has reached them, so they are asked for again each time.
            if faults := sources.faults():
                named |= faults.keys() & reference.paths
            yield from split_frames(selection.complete(reference))
    for path, problem in sources.faults().items():
        if path not in named:
            yield SourceExample(source=path, key=path, problem=problem)


def _with_grid_channel(
    references: Iterator[SourceExample], layout_input: LayoutInput
) -> Iterator[SourceExample]:
    """Return the references with the number of the channel that --channel-grid names as the data set does.

    The files of nnU-Net's channels have numbers, such as case_0001.nii.gz, and only dataset.json has their names.
    """
    layout, sources, rule = layout_input.layout, layout_input.sources, layout_input.recipe.channel_grid
    if ":" not in rule or layout.channel_names is None:
        return references
    named = named_channel(layout.channel_names(sources.annotations, sources.annotation_file), rule)
    if named is None:
        return references
    # All channels of one file have one grid.
    return (replace(one, grid_channel=named) if named <= len(one.channels) > 0 else one for one in references)


def _described(
    references: Iterator[SourceExample], layout_input: LayoutInput, warn: Callable[[str], None]
) -> Iterator[SourceExample]:
    """Return the references with what the headers of DICOM pictures say, such as the patient as their group."""
    from halofeed.prep.formats.dicom.picture_listing import PictureListing  # takes 0.1 s

    splits = layout_input.splits
    listing = PictureListing(
        files=layout_input.selection.files,
        policy=layout_input.options.series,
        window=layout_input.recipe.window,
        divides=len(splits.shares) > 1 and splits.finds_groups,
        warn=warn,
        leaves_slides=cuts_pictures(layout_input.recipe),
    )
    return listing.described(references)


def with_chosen_classes(
    references: Iterator[SourceExample], recipe: Recipe, counts: ChosenCounts
) -> Iterator[SourceExample]:
    """Return the references with the chosen classes of objects and pictures, before they are divided into splits.

    The classes of label images are chosen by their values, when they are read.
    """
    choice = recipe.class_choice()
    if not choice or recipe.may_hold_label_images():
        return references
    return choose_classes(references, choice, recipe.emptied_pictures, counts)


def _assigned(
    references: Iterable[SourceExample], layout_input: LayoutInput, warn: Callable[[str], None]
) -> Iterator[SourceExample]:
    """Yield the references in their splits; for segmentation, images without a label get separate splits.

    For other tasks an example without a mask lacks nothing.
    """
    options = layout_input.splits
    assign = functools.partial(
        _assign,
        options=options,
        are_patients=layout_input.layout.name == "dicom",
        warn=warn,
        find_copies=layout_input.duplicates or iter,
    )
    if layout_input.recipe.may_hold_label_images():
        assigned = assign_unlabeled_apart(references, assign, by_shares=bool(options.shares))
    else:
        assigned = assign(references)
    return assigned if layout_input.earlier is None else keep_splits(assigned, layout_input.earlier, warn)


def _assign(
    references: Iterable[SourceExample],
    *,
    options: SplitOptions,
    are_patients: bool,
    warn: Callable[[str], None],
    find_copies: FindCopies,
) -> Iterator[SourceExample]:
    assigned = assign_splits(references, options, warn, find_copies)
    return check_groups(assigned, options, are_patients=are_patients, warn=warn)


def print_unused_lists(layout_input: LayoutInput) -> None:
    """Print which lists of splits beside the images are not used, if they divide the images."""
    images = layout_input.sources.images
    lists = find_split_lists(images)

    def try_words(words: Sequence[str]) -> str | None:
        texts = {split: images.read(path).decode("utf-8-sig") for split, path in lists.items()}
        splits = replace(layout_input.splits, lists=texts)
        divided = replace(layout_input, splits=splits, duplicates=None)
        counts = Counter(one.split for one in list_references(divided) if one.problem is None)
        listed = (f"{count:,} in {split}" for split, count in counts.items())
        return f"puts {' and '.join(listed)}" if len(counts) > 1 else None

    option = ",".join(f"{split}={images.root.rstrip('/')}/{path}" for split, path in lists.items())
    for one in suggest([("--split-lists", option)] if lists else [], try_words):
        print_status(
            f"halofeed convert: all images are in one split, but {' and '.join(lists.values())} divide them; "
            f"--split-lists {one.effect}; use these lists with {shlex.join(one.words)}"
        )
