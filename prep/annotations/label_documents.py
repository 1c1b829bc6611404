"""Label images that annotation files name beside objects: FiftyOne's segmentations and SageMaker's.

A format of documents gives each picture a label image, or its classes as run lengths, and the classes of the values or
colors of all label images.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from halofeed.prep.annotations.annotation_tools import (
    DocumentEntry,
    DocumentFormat,
    FilePicture,
    find_images,
    list_documents,
    no_entries_error,
    read_documents,
    refuse_shared_images,
)
from halofeed.prep.annotations.class_rows import ClassRow, ClassTable
from halofeed.prep.annotations.contract import LayoutOptions, Listing, sort_examples
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.pairing import NO_LABEL, class_values, target_classes
from halofeed.prep.annotations.written_boxes import declared_size
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError


def list_of_task(
    form: DocumentFormat,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Listing:
    """Yield the examples of `list_label_images` for segmentation, and of `list_documents` for other tasks."""
    listing = list_label_images if options.wants_label_images else list_documents
    return (yield from listing(form, annotations, images, annotation_file, options))


def list_label_images(
    form: DocumentFormat,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Listing:
    """Yield an example for every picture of the annotation files with its label, and for every other picture.

    Returns:
        The classes by the values of label images, or of the run lengths.

    Raises:
        AnnotationsError: no file has this format, or no picture of the files has a label image.
    """
    index = ImageIndex(images, annotations.root)
    where = annotation_file or annotations.root
    entries, faulty, contents = read_documents(form, annotations, annotation_file, options)
    if not entries:
        raise no_entries_error(form, annotations, annotation_file, faulty)
    if not any(one.label_image or one.label_runs is not None for _, one in entries):
        raise AnnotationsError(
            f"{where}: its {len(entries):,} pictures have no label images; --task detection takes objects"
        )
    listed = _with_labels(form, entries, index, options)
    if all(one.problem is not None for one in listed):
        index.check_any_image(f"{where} ({len(entries):,} annotated pictures)")
    classes: Mapping[int, str] = _names_of(contents_rows(row for one in contents for row in one.label_rows))
    # Colors are no values; `color_table` gives the values of their classes.
    runs = {name for one in listed for name, _ in one.class_runs or ()}
    if runs:
        targets = target_classes(runs, annotations.root, options)
        listed = [_with_targets(one, targets) for one in listed]
        classes = class_values(targets, options)
    used = {one.source: one.split for one in listed}
    masks = {path for one in listed for path in one.masks}
    others = index.without_annotation(used.items, only_used_folders=annotation_file is not None)
    listed += (one for one in others if one.source not in masks)
    yield from sort_examples([*listed, *faulty])
    return lambda: classes


def color_table(
    form: DocumentFormat,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> ClassTable | None:
    """Return the classes of the colors of label images; None if the files name no colors."""
    _, _, contents = read_documents(form, annotations, annotation_file, options)
    rows = contents_rows(row for one in contents for row in one.label_rows)
    if not rows or any(row.color is None for row in rows):
        return None
    return ClassTable(where=rows[0].place, rows=tuple(rows), is_numbered=True)


def contents_rows(written: Iterable[ClassRow]) -> list[ClassRow]:
    """Return each class once, in the order of the values; those of colors get values in the order of their names.

    Raises:
        AnnotationsError: two files or lines name one value or color in two ways.

    >>> rows = [ClassRow(value=1, name="road", color=0xFF), ClassRow(value=1, name="car", color=0xFF00)]
    >>> [(row.value, row.name) for row in contents_rows([*rows, rows[0]])]
    [(1, 'car'), (2, 'road')]
    """
    rows = list(written)
    found: dict[tuple[bool, int], ClassRow] = {}
    for row in rows:
        key = (True, row.value) if row.color is None else (False, row.color)
        first = found.setdefault(key, row)
        if first.name != row.name:
            what = f"value {row.value}" if row.color is None else f"color {row.color:06x}"
            raise AnnotationsError(
                f"{row.place}: {what} is {row.name!r}, and {first.name!r} in {first.place}; give it one class"
            )
    if all(row.color is None for row in found.values()):
        return [found[value] for value in sorted(found)]
    # Numbers of colors may be those of one picture alone.
    names = sorted({row.name for row in found.values() if row.name.lower() != "background"})
    values = dict(zip(names, range(1, len(names) + 1), strict=True))
    return sorted(
        (replace(row, value=values.get(row.name, 0)) for row in found.values()), key=lambda row: row.value
    )


def _names_of(rows: Sequence[ClassRow]) -> dict[int, str]:
    return {row.value: row.name for row in rows}


def _with_labels(
    form: DocumentFormat, entries: Sequence[DocumentEntry], index: ImageIndex, options: LayoutOptions
) -> list[SourceExample]:
    """Return the example of each entry with its label."""
    found = list(find_images(form, entries, index, options))
    masks = index.match(dict(_queries(found)))
    listed = []
    for place, (file, one, picture) in enumerate(found):
        mask = masks.get(place)
        if one.problem is not None:
            listed.append(one)
        elif isinstance(mask, ImageMatch):
            listed.append(replace(one, mask=mask.path))
        elif isinstance(mask, SourceError):
            problem = ("annotation", "label image is missing", f"{file}: {picture.label_image}")
            listed.append(replace(one, problem=problem))
        elif picture.label_runs is not None:
            size = declared_size(*picture.size)
            listed.append(replace(one, class_runs=picture.label_runs, declared_size=size))
        else:
            problem_of = None if options.missing_masks == "prediction" else NO_LABEL
            listed.append(replace(one, problem=problem_of))
    return refuse_shared_images(listed, [file for file, *_ in found])


def _queries(found: Iterable[tuple[str, SourceExample, FilePicture]]) -> Iterator[tuple[int, ImageQuery]]:
    """Yield the query for each label image, by the place of its picture."""
    for place, (file, one, picture) in enumerate(found):
        name = picture.label_image
        if name and one.problem is None:
            folder = posixpath.dirname(file)
            yield place, ImageQuery(name=name, places=((folder,), ("",)), beside=(folder,))


def _with_targets(example: SourceExample, targets: Mapping[str, str]) -> SourceExample:
    """Return the example with the chosen classes of its run lengths."""
    if example.class_runs is None:
        return example
    chosen = tuple((targets[name], code) for name, code in example.class_runs if name in targets)
    return replace(example, class_runs=chosen)
