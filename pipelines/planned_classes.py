"""Classes that a plan gives to a data set: of --label-map's file, of the annotations, or of label images."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from halofeed.pipelines.classes import (
    NamesInLabels,
    check_channels,
    check_choice,
    expand_patterns,
    region_classes,
    resolve_ignored,
    segmentation_classes,
)
from halofeed.pipelines.label_evidence import (
    check_has_background,
    check_positions,
    find_color_table,
    gray_reading,
    is_of_objects,
)
from halofeed.pipelines.list_references import LayoutInput
from halofeed.pipelines.split_files import named_file
from halofeed.pipelines.totals import Totals
from halofeed.prep.annotations import labels
from halofeed.prep.annotations.choose_classes import chosen_order
from halofeed.prep.annotations.class_names import BACKGROUND, ClassChoice, sort_class_names
from halofeed.prep.annotations.class_rows import ClassTable, is_ignored, is_void_name
from halofeed.prep.annotations.contract import can_be_encoded
from halofeed.prep.annotations.labels import VOC_VOID, LabelMap, void_problem
from halofeed.prep.convert.label_image import has_voc_palette, read_label_image
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.tasks import task_named
from halofeed.system.console import print_status
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

_MAX_LISTED: Final = 3
"""Ignored values that have a line each."""
_MAX_DECODED: Final = 8
"""Label images whose pixels planning reads."""


def plan_label_map(layout_input: LayoutInput, totals: Totals, task: str, file: str | None) -> LabelMap:
    """Return the classes of --label-map's file, or of the data.

    Args:
        file: value of --label-map; None without it.

    Raises:
        AnnotationsError: the data have a class that the file lacks, or sources of classes contradict each other.
    """
    first_id = task_named(task).first_label_id
    table = None if file is None else _read_class_file(layout_input, totals, first_id, file)
    if task_named(task).has_label_image:
        table = _find_color_table(layout_input, totals) if table is None else table
        given = None if table is None else labels.from_table(table, first_id)
        return _label_map_of_images(layout_input, totals, given, table)
    # A class whose name cannot be written has no objects: its images are rejected.
    order = list(filter(can_be_encoded, _ordered_by_layout(layout_input, totals)))
    if choice := layout_input.recipe.class_choice():
        totals.chosen.check(choice, order)
        if text := totals.chosen.describe(choice):
            print_status(f"halofeed convert: {text}")
        order = chosen_order(choice, order)
    if table is not None:
        return labels.from_table(table, first_id)
    if not totals.labels and not order:
        # A detection or classification set without any object still needs a class for its label map.
        return LabelMap(entries=((first_id, "object"),), first_id=first_id, where="the labels of the data")
    return labels.from_data(totals.labels, first_id, order)


def _ordered_by_layout(layout_input: LayoutInput, totals: Totals) -> Iterable[str]:
    """Return the class names in the layout's own order; () without one."""
    layout, sources = layout_input.layout, layout_input.sources
    if totals.listed_classes is not None:
        return totals.listed_classes().values()
    return layout.list_labels(sources.annotations, sources.annotation_file) if layout.list_labels else ()


def _read_class_file(layout_input: LayoutInput, totals: Totals, first_id: int, file: str) -> ClassTable:
    """Return the classes of --label-map's file; raise AnnotationsError where the data have others."""
    table = labels.read_table(*named_file("--label-map", file), first_id)
    if totals.first_volume and is_of_objects(table, layout_input.selection.files):
        print_status(
            f"halofeed convert: {table.where} counts classes from 0, as nnDetection does: value 1 is "
            f"{table.names[0]!r}, and 0 is the background"
        )
        table = table.counted_from_1()
    _check_known(labels.from_table(table, first_id), totals, file)
    return table


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


@dataclass(frozen=True, kw_only=True)
class _Naming:
    """Names of the values of label images, and the user's choice of classes.

    Args:
        given: classes of --label-map's file, or of a class table beside label images in color.
        table: rows of the same file.
        named: names of values by --label-channels or --label-colors, the layout's own files, or label files.
        choice: what --classes and --map-classes say.
    """

    given: LabelMap | None
    table: ClassTable | None
    named: Mapping[int, str]
    choice: ClassChoice

    @property
    def in_tables(self) -> dict[int, str]:
        """Return the names as they are written, also of values that are no class."""
        return {**_names_of(self.table), **self.named}

    @property
    def in_classes(self) -> dict[int, str]:
        """Return the names of the values that are classes."""
        return {**_names_of(self.given), **self.named}

    def with_background(self) -> _Naming:
        """Return the naming in which value 0 is the background, if the user's choice makes its name the background.

        Then --map-classes BG=background says what value 0 means, and it selects nothing.
        """
        zero = self.in_classes.get(0, "")
        if zero not in (name for name, target in self.choice.renamed if target == BACKGROUND):
            return self
        return _Naming(
            given=None if self.given is None else self.given.with_background(),
            table=None if self.table is None else self.table.with_background(),
            named={**self.named, 0: BACKGROUND} if self.named else self.named,
            choice=self.choice.without(zero),
        )

    def without(self, values: Collection[int]) -> _Naming:
        """Return the naming without some values that an option or the layout names."""
        return replace(self, named={value: name for value, name in self.named.items() if value not in values})

    def with_names_in_labels(self, in_files: NamesInLabels) -> tuple[_Naming, bool]:
        """Return the naming with the names in label files, and whether values that no file names are classes too.

        Names in label files count only where nothing else names the values of the source.
        """
        if self.named or not in_files.named:
            return self, False
        # A code takes several classes, as that of the kidney takes both of them, so values have no names of their own.
        if in_files.codes.intersection(self.choice.written()):
            return self, False
        is_chosen_by_name = bool(self.given or self.choice.keep)
        # Where files disagree, a value means something else in each file, and a choice by names needs no values.
        named = in_files.ids() if in_files.agree() or not is_chosen_by_name else {}
        in_files.check_numbers(name for name, _ in self.choice.renamed)
        is_open = bool(in_files.without_names) and not (self.given or self.choice) and max(named) <= 255
        return replace(self, named=named), is_open


def _names_of(one: ClassTable | LabelMap | None) -> Mapping[int, str]:
    return {} if one is None else one.names


def _label_map_of_images(
    layout_input: LayoutInput, totals: Totals, given: LabelMap | None, table: ClassTable | None
) -> LabelMap:
    """Return the classes of label images: those `given` in a table, of the layout's files, or of the values."""
    _check_zero_is_background(given, totals)
    recipe, images = layout_input.recipe, layout_input.selection.files
    # If each class has separate masks, the layout has applied the user's choice.
    choice = ClassChoice() if totals.labels else recipe.class_choice()
    if (regions := _classes_of_regions(layout_input, given, choice)) is not None:
        return regions
    # A complete file of classes replaces the source's names; a choice needs these to find what it renames.
    named = _named_by_source(layout_input, totals) if given is None or choice else {}
    in_files = totals.names_in_labels or NamesInLabels(files=images)
    choice = _expanded(layout_input, totals, choice, (named, _names_of(given)), in_files)
    naming = _Naming(given=given, table=table, named=named, choice=choice).with_background()
    marked = _marked_as_ignored(naming.in_tables, naming.choice, _ignored_by_layout(layout_input))
    source_names = {**naming.in_classes, **marked}
    naming = naming.without(marked)
    by_names = bool(in_files.named) and (naming.given is not None or not naming.named)
    naming, is_open = naming.with_names_in_labels(in_files)
    _check_choice(layout_input, totals, naming, in_files)
    classes = segmentation_classes(naming.given, naming.named, naming.choice)
    settled = {
        *marked.values(),
        *naming.choice.keep,
        *dict(naming.choice.renamed),
        *recipe.ignore_label,
    }
    _print_hints(naming.in_tables, settled)
    colors = _colors_of(naming.table)
    classes = replace(
        classes, by_names=by_names, is_open=classes.is_open or is_open, colors=tuple(colors.items())
    )
    _check_table(layout_input, totals, naming.table, in_files)
    classes = _with_gray_reading(layout_input, totals, classes, naming.named)
    if recipe.holds_class_sets():
        _check_sets_ignore_nothing([*marked.values()], naming.choice)
        return check_channels(classes)
    ignored = resolve_ignored(recipe.ignore_label, source_names, recipe.label_coding(), colors)
    _print_marked(marked, recipe.layout if naming.table is None else naming.table.where)
    ignored = tuple(dict.fromkeys([*ignored, *marked]))
    return _with_ignored(layout_input, totals, naming.choice, classes, ignored)


def _expanded(
    layout_input: LayoutInput,
    totals: Totals,
    choice: ClassChoice,
    named: Iterable[Mapping[int, str]],
    in_files: NamesInLabels,
) -> ClassChoice:
    """Return the choice with the classes that its patterns keep."""
    options, images = layout_input.options, layout_input.selection.files
    names = (name for one in named for value, name in one.items() if value)
    return expand_patterns(
        choice,
        [*names, *in_files.named],
        totals.masks,
        images,
        lambda path: options.takes_scan(path) or images.size(path) is None,
    )


def _check_zero_is_background(given: LabelMap | None, totals: Totals) -> None:
    """Refuse a file of classes that gives id 0, the background of every label image, to a class with masks."""
    if given is not None and given.names.get(0) in totals.labels:
        raise AnnotationsError(
            f"{given.where}: id 0 is {given.names[0]!r}, a class with masks, but 0 is the background; let classes "
            "start at 1 (.txt: 'background' in the first line)"
        )


def _check_choice(
    layout_input: LayoutInput, totals: Totals, naming: _Naming, in_files: NamesInLabels
) -> None:
    """Refuse a choice of classes that are nowhere in the source."""
    if not naming.choice:
        return
    options, images = layout_input.options, layout_input.selection.files
    check_choice(
        naming.choice,
        naming.given,
        naming.named,
        totals.masks,
        images,
        # A path without a size is a folder of label slices, which have values.
        lambda path: options.takes_scan(path) or images.size(path) is None,
        [*in_files.named, *sorted(in_files.codes)],
    )


def _check_table(
    layout_input: LayoutInput, totals: Totals, table: ClassTable | None, in_files: NamesInLabels
) -> None:
    """Refuse a list of names whose positions are not the values of the labels.

    Names in label files, and masks for each class, need no positions.
    """
    if table is None or in_files.named or totals.labels:
        return
    if totals.first_volume:
        check_has_background(table)
    max_pixels = layout_input.recipe.max_pixels
    check_positions(table, layout_input.selection.files, totals.label_images[:_MAX_DECODED], max_pixels)


def _classes_of_regions(
    layout_input: LayoutInput, given: LabelMap | None, choice: ClassChoice
) -> LabelMap | None:
    """Return the classes of nnU-Net's regions, where records hold sets of classes; None for other data."""
    layout, sources = layout_input.layout, layout_input.sources
    # Without sets, the layout has combined the regions into exclusive classes.
    if not layout_input.recipe.holds_class_sets() or layout.regions is None:
        return None
    regions = layout.regions(sources.annotations, sources.annotation_file)
    if not regions:
        return None
    classes = check_channels(region_classes(given, regions, choice))
    marks = [name for name, (value, *more) in regions.items() if not more and is_ignored(value, name)]
    _check_sets_ignore_nothing(marks, choice)
    return classes


def _named_by_source(layout_input: LayoutInput, totals: Totals) -> Mapping[int, str]:
    """Return the names of values by --label-channels or --label-colors, else by the layout's own files."""
    layout, sources = layout_input.layout, layout_input.sources
    named: Mapping[int, str] = {}
    if totals.listed_classes is not None:
        named = totals.listed_classes()
    elif layout.label_values is not None:
        named = layout.label_values(
            sources.annotations, layout_input.selection.files, sources.annotation_file, layout_input.options
        )
    coding = layout_input.recipe.label_coding()
    return coding.names if coding else named


def _colors_of(table: ClassTable | None) -> dict[int, int]:
    """Return the value of each color of a table; black is the background without another, as with --label-colors."""
    colors = {} if table is None else dict(table.colors)
    if colors and table is not None and 0 not in table.names:
        colors.setdefault(0, 0)
    return colors


def _find_color_table(layout_input: LayoutInput, totals: Totals) -> ClassTable | None:
    """Return the class table beside label images in color that names their colors; None without one."""
    recipe, images, layout = layout_input.recipe, layout_input.selection.files, layout_input.layout
    if layout.color_table is not None and not recipe.label_coding():
        sources = layout_input.sources
        return layout.color_table(sources.annotations, images, sources.annotation_file, layout_input.options)
    # The user names the colors, or labels are masks per class, or the layout has no label images.
    if recipe.label_coding() or totals.labels or layout.label_values is None:
        return None
    table = find_color_table(images, totals.label_images[:_MAX_DECODED], recipe.max_pixels)
    if table is not None:
        print_status(
            f"halofeed convert: label images are in color, such as {totals.label_images[0]}: {table.where} names their "
            f"colors; --label-colors names other classes"
        )
    return table


def _with_gray_reading(
    layout_input: LayoutInput, totals: Totals, classes: LabelMap, named: Mapping[int, str]
) -> LabelMap:
    """Return the classes with what a gray PNG of few bits or with a palette means."""
    recipe = layout_input.recipe
    values = () if classes.is_open else (*named, *classes.names, *dict(classes.values or ()))
    bits, forms = gray_reading(
        layout_input.selection.files,
        totals.label_images,
        values,
        recipe.label_values,
        recipe.max_pixels,
        colors_are_classes=bool(recipe.label_coding() or classes.colors),
    )
    if bits and recipe.label_values == "auto":
        print_status(
            "halofeed convert: label images are files of several forms, as lossless optimizers write them; their "
            "gray values are the classes; --label-values stored takes the numbers in the files"
        )
    return replace(classes, shown_bits=bits, forms=forms)


def _ignored_by_layout(layout_input: LayoutInput) -> Collection[int]:
    """Return the values that the format of the source leaves out of training."""
    layout, sources = layout_input.layout, layout_input.sources
    if layout.ignored_values is None:
        return ()
    return layout.ignored_values(
        sources.annotations, layout_input.selection.files, sources.annotation_file, layout_input.options
    )


def _marked_as_ignored(
    named: Mapping[int, str], choice: ClassChoice, by_layout: Collection[int] = ()
) -> dict[int, str]:
    """Return the values that their names, signs or format mark as no class, unless the user's choice names them."""
    chosen = {*choice.keep, *(name for name, _ in choice.renamed)}
    return {
        value: name
        for value, name in named.items()
        if (value in by_layout or is_ignored(value, name)) and not {name, str(value)} & chosen
    }


def _print_marked(marked: Mapping[int, str], where: str) -> None:
    # A format with many such values has one line for all of them.
    if len(marked) > _MAX_LISTED:
        listed = ", ".join(f"{value} {name}" for value, name in marked.items())
        name = [*marked.values()][-1]
        print_status(
            f"halofeed convert: {where}: pixels of these values are ignored and are no class: {listed}; "
            f"--map-classes '{name}={name}' makes one of them a class"
        )
        return
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


def _with_ignored(
    layout_input: LayoutInput,
    totals: Totals,
    choice: ClassChoice,
    classes: LabelMap,
    ignored: tuple[int, ...],
) -> LabelMap:
    """Return the classes with the ignore label, or with 255 as foreground in masks of 0 and 255."""
    ignored = ignored or _ignored_by_custom(layout_input, totals, choice, classes)
    if ignored:
        # halofeed chooses the number of a color. It takes 255, which palette images of the same classes store.
        has_colors = layout_input.recipe.label_colors or classes.colors
        # Of a format with many ignored values none is special; 255 is what its training ids have.
        prefers_void = has_colors or layout_input.layout.ignored_values is not None
        return classes.ignoring(*ignored, stored=VOC_VOID if prefers_void else None)
    # A table of names shows whether 255 is a class.
    if not classes.is_open or classes.id_of_value(VOC_VOID) is not None:
        return classes
    return _with_foreground(layout_input, totals, choice, classes)


def _ignored_by_custom(
    layout_input: LayoutInput, totals: Totals, choice: ClassChoice, classes: LabelMap
) -> tuple[int, ...]:
    """Return the value that the layout or PASCAL VOC's custom makes the ignore label; () without one."""
    if layout_input.layout.unlabeled is not None:
        return (layout_input.layout.unlabeled,)
    # Label images of --label-colors and --label-channels store no class numbers, so no value can be void.
    if layout_input.recipe.label_coding():
        return ()
    if not _is_void(layout_input.selection.files, totals.label_images, classes, choice):
        return ()
    print_status(
        f"halofeed convert: {totals.label_images[0]} is a label image of PASCAL VOC by its folder or palette, "
        f"where {VOC_VOID} is void: it is the ignore label; --map-classes {VOC_VOID}={VOC_VOID} makes it a class"
    )
    return (VOC_VOID,)


def _with_foreground(
    layout_input: LayoutInput, totals: Totals, choice: ClassChoice, classes: LabelMap
) -> LabelMap:
    """Return the classes in which 255 is foreground, if label images hold only 0 and 255, as masks of editors do."""
    images, recipe = layout_input.selection.files, layout_input.recipe
    found = _values_in(images, totals.label_images[:_MAX_DECODED], recipe.max_pixels, classes)
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
