"""Reader of tables of images, with one image or one box per row, from CSV, JSONL and container files."""

from __future__ import annotations

import heapq
import json
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from operator import itemgetter
from typing import Any

from halofeed.errors import AnnotationsError, SourceError, UsageError
from halofeed.prep.annotations.advice import Suggestion, advise, suggest
from halofeed.prep.annotations.class_names import (
    add_class_notes,
    class_number,
    classes_in,
    note_similar_classes,
    similar_class_notes,
)
from halofeed.prep.annotations.classes_beside import classes_beside, ordered_classes
from halofeed.prep.annotations.columns import CORNERS, SPELLINGS, parse_literal, read_columns
from halofeed.prep.annotations.container_rows import parquet_class_names
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    sort_examples,
    sort_key,
    split_in_file_name,
    splits_by_folders,
)
from halofeed.prep.annotations.image_index import (
    ImageIndex,
    ImageMatch,
    ImageMatcher,
    ImageQuery,
    PathComparison,
)
from halofeed.prep.annotations.picture_classes import settle_classes
from halofeed.prep.annotations.resolve_boxes import resolve_boxes
from halofeed.prep.annotations.table_files import container_files, described_folder, is_container
from halofeed.prep.annotations.table_forms import is_metadata
from halofeed.prep.annotations.tables import ColumnRules, Table, TableRow, read_tables, shared_attributes
from halofeed.prep.annotations.tfrecord_rows import tfrecord_class_names
from halofeed.prep.annotations.written_boxes import (
    declared_size,
    make_box,
    parse_flag,
    parse_number,
    usable_boxes,
    usable_parts,
)
from halofeed.prep.layouts import segmentation_table
from halofeed.prep.sources.containers import container_kind
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.members import container_of, member_key
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.system.spill import ExternalSort, SortedRecord
from halofeed.system.wording import plural

_SEPARATOR = re.compile(r"[\W_]+")
"""Text between letters and digits that may separate several classes in one cell."""
_MAX_NAMED = 5
_IMAGE_COLUMNS = ("filename", "class")
_NO_NAME = SourceError("annotation", "row names no file")
_FLAG_COLUMNS = ("is_crowd", "difficult", "truncated", "occluded", "group_of")
_FLAGS = {**dict.fromkeys(("", "-1", "0", "false", "no"), False), **dict.fromkeys(("1", "true", "yes"), True)}
_Name = tuple[str, str]
"""Split folder of a table, and the name of an image in it."""


def list_references(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield an example for every image of the named table, or of all tables of the form in the folder.

    The form is "csv" or "jsonl", or "tfrecord" or "webdataset", whose container files are read as tables of the
    pictures in them. Without tables directly in the folder, the reader uses tables of the same name in
    split folders (`valid/_annotations.csv`), as Roboflow exports them, or Hugging Face's metadata in any folder.

    For classes the columns are `filename,class[,split,group,id]`. For boxes they are
    `filename,class,xmin,ymin,xmax,ymax[,width,height]`, with one box per row in pixels. A row without class and box
    is an image without objects. Further columns for boxes are area, is_crowd, difficult, truncated and occluded.
    `columns` accepts other spellings and other forms of a box. `table_forms` converts the tables of Hugging Face,
    Google's AutoML and Vertex AI, Open Images and Kaggle's wheat.

    Without a split column, the file name contains the split (train for `train_labels.csv`). Files are UTF-8, with or
    without a byte order mark. The delimiter is the comma, semicolon or tab that makes the header line readable. A
    JSONL file has one object per line, with the columns as keys.

    Raises:
        AnnotationsError: columns are missing, or one image has two classes, splits, groups or ids.
    """
    try:
        yield from _list_references(form, annotations, images, annotation_file, options)
    except AnnotationsError as error:
        if options.task is not None:
            raise
        tried = _suggest_task(form, annotations, images, annotation_file, options)
        if not tried:
            raise
        raise AnnotationsError(f"{error}; {advise(tried, '')}") from error


def _list_references(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield the examples of `list_references`."""
    if form == "tfrecord":
        options = replace(
            options, box_units="normalized" if options.box_units == "auto" else options.box_units
        )
    if options.wants_label_images:
        yield from segmentation_table.list_references(form, annotations, images, annotation_file, options)
        return
    columns = ColumnRules(
        required=_IMAGE_COLUMNS,
        together=CORNERS,
        text=(*_IMAGE_COLUMNS, "split", "group", "id"),
        lists=("class",),
        expected=f"{','.join(_IMAGE_COLUMNS)} for one image a row, with {','.join(CORNERS)} for one box a row; "
        "image,label need --task segmentation, or --task classification where labels are classes",
        spellings={**SPELLINGS, "filename": (*SPELLINGS["filename"], ("image",))},
        read=lambda name, header: read_columns(
            name, header, options.wants_boxes, options.box_form, options.ignore_columns
        ),
        options=options,
    )
    if form == "webdataset" and not options.class_names:
        found = container_files(form, annotations, annotation_file)
        options = replace(options, class_names=classes_beside(annotations, [*found, ""]))
    tables = [
        _with_class_names(table, options) if is_container(table.file) else table
        for table in read_tables(form, annotations, annotation_file, columns, images)
    ]
    one_file = annotation_file is not None
    index = ImageIndex(images, annotations.root, options.takes)
    with_boxes = _has_boxes(tables, options.wants_boxes)
    if missing := [name for name in options.keep if not any(name in table.columns for table in tables)]:
        found_columns = ", ".join(dict.fromkeys(column for table in tables for column in table.header))
        raise AnnotationsError(
            f"{tables[0].file}: --keep {','.join(missing)}: no table has such a column; found {found_columns}; "
            "leave it out"
        )
    if with_boxes and options.several_classes == "keep":
        raise UsageError(
            "--several-classes keep: has no effect on boxes, each of which has its class; add --task classification, "
            "or leave it out"
        )
    if not any(True for table in tables for _ in table.rows):
        raise AnnotationsError(f"{tables[0].file}: a header and no rows; name a table that has rows")
    by_source, classes, named = _by_source(tables, index, options)
    if not with_boxes:
        _check_separators(classes, options)
    if all(payload[0] is not None for _, _, payload in by_source):
        index.check_any_image(tables[0].file)

    def images_of_rows() -> Iterator[_Image]:
        return (_image(source, records) for source, records in groupby(by_source, itemgetter(0)))

    def examples() -> Iterator[SourceExample]:
        for image in images_of_rows():
            found = [_example(image, with_boxes, options)] if image.rows else []
            found += [_missing_image_example(image, image.error)] if image.error else []
            yield from sort_examples(found)

    def splits() -> Iterator[tuple[str, str]]:
        found = ((source, payload[-2]) for source, _, payload in by_source if payload[0] is None)
        return (next(records) for _, records in groupby(found, itemgetter(0)))

    others = []
    if not index.all_images_are_named(named, only_used_folders=one_file):
        others = sort_examples(list(index.without_annotation(splits, only_used_folders=one_file)))
    if with_boxes:
        resolved = _resolve_tables(images_of_rows(), images, options)
        yield from sort_examples(note_similar_classes([*resolved, *others]))
        return
    similar = similar_class_notes(name for cell in classes for name in _classes(cell, options))
    if similar:  # `classes` includes those of rejected images
        similar = similar_class_notes(label for one in examples() for label in classes_in(one))
    yield from add_class_notes(heapq.merge(examples(), others, key=sort_key), similar)


def _suggest_task(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> tuple[Suggestion, ...]:
    """Return the task for which a table can be read that cannot be read without one."""

    def try_words(words: Sequence[str]) -> str | None:
        chosen = replace(options, task=words[1])
        listed = list(_list_references(form, annotations, images, annotation_file, chosen))
        good = sum(one.problem is None and one.has_annotation for one in listed)
        return (
            f"finds labels for {good:,} of {plural(len(listed), 'input')}" if 2 * good > len(listed) else None
        )

    return suggest([("--task", task) for task in ("classification", "segmentation")], try_words)


def list_labels(form: str, annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the class names that container files of a form give, in their order; () without such files."""
    found = container_files(form, annotations, annotation_file)
    if form == "webdataset":  # a class is a number, whose name no member of a tar file has
        return ordered_classes(classes_beside(annotations, [*found, ""]))
    read = {"parquet": parquet_class_names, "tfrecord": tfrecord_class_names}
    firsts = {posixpath.dirname(file): file for file in reversed(found)}
    names = (read[container_kind(file)](annotations, file) for file in firsts.values())
    return tuple(dict.fromkeys(name for one in names for name in one))


def label_values(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> dict[int, str]:
    """Return the classes of label images in container files of a form, from a class table beside them or in the root.

    The result is {} without a table.
    """
    found = container_files(form, annotations, annotation_file)
    names = classes_beside(annotations, [*found, ""]) if found else {}
    return {number: name for number, name in names.items() if number}


def _with_class_names(table: Table, options: LayoutOptions) -> Table:
    """Return the table of a container file with the names of --label-map for class numbers."""
    names = options.class_names

    def named(row: TableRow) -> TableRow:
        number = class_number(row.cell("class"))
        if number is None or row.cell("class") in names.values():
            return row
        if number not in names:
            known = ", ".join(f"{one} {name}" for one, name in list(names.items())[:_MAX_NAMED])
            raise AnnotationsError(
                f"{row.place}: class number {number:g} has no name in the label map; known are {known}; add it there"
            )
        return replace(row, cells={**row.cells, "class": names[int(number)]})

    return replace(table, rows=[named(row) for row in table.rows]) if names else table


@dataclass(kw_only=True, slots=True)
class _Image:
    """Rows of one image.

    Args:
        source: path of the image.
        number: number of its first row among all rows.
        rows: (row, split) of the existing image.
        notes: notes of its rows.
        missing_rows: (row, split) of rows whose image file is missing.
        error: error of the missing image file.
    """

    source: str
    number: int
    rows: list[tuple[TableRow, str]]
    notes: tuple[str, ...]
    missing_rows: list[tuple[TableRow, str]]
    error: SourceError | None


def _image(source: str, records: Iterable[SortedRecord]) -> _Image:
    rows: list[tuple[TableRow, str]] = []
    missing_rows: list[tuple[TableRow, str]] = []
    messages: dict[str, None] = {}
    error = None
    first = -1
    for _, place, (fault, file, line, cells, row_fault, split, notes) in records:
        row = TableRow(file=file, line=line, cells=cells, fault=row_fault)
        first = place if first < 0 else first
        (rows if fault is None else missing_rows).append((row, split))
        messages.update(dict.fromkeys(notes))
        error = error or (None if fault is None else SourceError(*fault))
    return _Image(
        source=source, number=first, rows=rows, notes=tuple(messages), missing_rows=missing_rows, error=error
    )


def _by_source(
    tables: Sequence[Table], index: ImageIndex, options: LayoutOptions
) -> tuple[ExternalSort, dict[str, str], PathComparison]:
    """Return the rows of all tables sorted by image, the first location of each class, and the comparison of images.

    A row is (fault, file, line, cells, fault of its form, split, notes). A row whose image is missing is sorted by
    the written name and has a fault.
    """
    found, others = ExternalSort(), ExternalSort()
    matcher: ImageMatcher[_Name] = ImageMatcher(index)
    classes: dict[str, str] = {}
    comparison, places = PathComparison(), count()
    for table in tables:
        folder = described_folder(table.file)
        # Hugging Face: the folder of a picture is its split, wherever the metadata are.
        table_split = "" if is_metadata(table.file) else folder or split_in_file_name(table.file) or "train"
        if is_container(table.file):
            folder, table_split = "", split_in_file_name(table.file) or splits_by_folders([table.file])[0]
        notes = (*table.notes, *_left_note(table, options))
        for row in table.rows:
            if (written := row.cell("class")) not in classes:
                classes[written] = row.place
            named = row.cell("filename")
            split = row.cell("split") or table_split or splits_by_folders([posixpath.join(folder, named)])[0]
            query = _image_query(folder, named)
            inside = row.fault is not None or container_of(named) == table.file
            is_path = bool(named) and (inside or matcher.is_path((folder, named), query))
            payload = (None, row.file, row.line, row.cells, row.fault, split, notes)
            if is_path:
                if not inside:
                    comparison.add(query.name, -1)
                found.add((named if inside else query.name, next(places), payload))
            else:
                others.add((named, next(places), payload))
    images = matcher.match_remaining(lambda: (source for source, _, _ in found))
    for named, place, (_, file, line, cells, row_fault, split, notes) in others:
        folder = described_folder(file)
        image = images[folder, named] if named else _NO_NAME
        if isinstance(image, ImageMatch):
            source, fault, notes = image.path, None, (*notes, image.note) if image.note else notes
            comparison.add(source, -1)
        else:
            source = index.relative(posixpath.join(folder, named)) if named else f"{file}:{line}"
            fault, notes = image.args, ()
        found.add((source, place, (fault, file, line, cells, row_fault, split, notes)))
    return found, classes, comparison


def _resolve_tables(
    listed: Iterable[_Image], images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the examples of images with boxes; all images of a table determine the meaning of its numbers."""
    examples: list[SourceExample] = []
    found: list[tuple[int, str, tuple[SourceExample, list[str], str]]] = []
    for image in listed:
        if image.rows:
            alone = [row for row, _ in image.rows if _is_class_alone(row)]
            names, where = [row.cell("class") for row in alone], alone[0].place if alone else ""
            given = (_example(image, True, options), names, where)
            found.append((image.number, image.rows[0][0].file, given))
        if image.error:
            examples.append(_missing_image_example(image, image.error))
    by_table: dict[str, list[tuple[SourceExample, list[str], str]]] = {}
    for _, file, described in sorted(found, key=itemgetter(0)):
        by_table.setdefault(file, []).append(described)
    for file, of_table in by_table.items():
        has_places = any(one.boxes or one.bad_objects for one, *_ in of_table)
        if not has_places and any(names for _, names, _ in of_table):
            raise AnnotationsError(
                f"{file}: no row has a box, and rows have classes: take --task classification"
            )
        settled = settle_classes(of_table, options, are_objects=True)
        examples += resolve_boxes(settled, images, options, file)
    return examples


def _is_class_alone(row: TableRow) -> bool:
    """Return whether a row of a table of boxes gives its picture a class and no box, as in sets of camera traps."""
    has_place = any(row.cell(column) for column in (*CORNERS, "mask"))
    return row.fault is None and bool(row.cell("class")) and not has_place


def _classes(cell: str, options: LayoutOptions) -> Sequence[str]:
    try:
        return _written_classes(TableRow(file="", line=0, cells={"class": cell}), options)
    except SourceError:
        return ()


def _image_query(folder: str, name: str) -> ImageQuery:
    """Return the possible locations of a row's image; a table in a split folder names only images in that folder."""
    inside = folder and not name.startswith((f"{folder}/", "/", "\\")) and ":" not in name
    full = posixpath.join(folder, name) if inside else name
    return ImageQuery(name=full, stem="" if is_image_name(name) else full)


def _left_note(table: Table, options: LayoutOptions) -> tuple[str, ...]:
    """Return a note on the columns that only --keep would read."""
    unkept = [name for name in OPTIONAL_ATTRIBUTES if name in table.columns and name not in options.keep]
    return (f"columns of {table.file} that --keep would keep: {', '.join(unkept)}",) if unkept else ()


def _missing_image_example(image: _Image, error: SourceError) -> SourceExample:
    """Return one example with a problem for all rows of a missing image."""
    (row, split), more = image.missing_rows[0], len(image.missing_rows) - 1
    place = row.place + (f" and {more} more rows" if more > 1 else " and one more row" if more else "")
    group = row.cell("group") or None
    return SourceExample(
        source=image.source,
        key=row.cell("id") or image.source,
        split=split,
        group=group,
        problem=error.at(place).args,
    )


def _has_boxes(tables: Sequence[Table], are_required: bool | None) -> bool:
    plain = [table for table in tables if "xmin" not in table.columns]
    if are_required is False:
        return False
    if plain and (are_required or len(plain) < len(tables)):
        raise AnnotationsError(
            f"{plain[0].file}: no columns {','.join(CORNERS)}; found {', '.join(plain[0].header)}; "
            "detection needs one box a row in every table"
        )
    return not plain


def _agree(source: str, rows: Sequence[TableRow], column: str, values: Sequence[str]) -> str:
    """Return the value that all rows of an image have; raise AnnotationsError if they differ."""
    for row, value in zip(rows, values, strict=True):
        if value != values[0]:
            raise AnnotationsError(
                f"{source}: two values of {column}: {values[0]!r} ({rows[0].place}) and {value!r} "
                f"({row.place}); an image has one {column}"
            )
    return values[0]


def _example(image: _Image, with_boxes: bool, options: LayoutOptions) -> SourceExample:
    source, rows, notes = image.source, [row for row, _ in image.rows], image.notes
    if faulty := next((row for row in rows if row.fault), None):
        reason, detail = faulty.fault or ("", "")
        fault = ("annotation", reason, f"{faulty.place}: {detail}")
        return SourceExample(
            source=source, key=member_key(source), split=image.rows[0][1], problem=fault, notes=notes
        )
    known: dict[str, Any] = {
        "source": source,
        "split": _agree(source, rows, "split", [split for _, split in image.rows]),
        "group": _agree(source, rows, "group", [row.cell("group") for row in rows]) or None,
        "key": _agree(source, rows, "id", [row.cell("id") for row in rows]) or member_key(source),
        "notes": notes,
        "attributes": shared_attributes(rows) if options.needs_groups else (),
    }
    try:
        if with_boxes:
            placed = [row for row in rows if not _is_class_alone(row)]
            boxes, bad = usable_boxes(placed, lambda row: _box(row, options), options)
            return SourceExample(**known, boxes=boxes, declared_size=_size(rows), bad_objects=bad)
        classes = classes_of(source, rows, options)
        if options.several_classes == "keep":
            return SourceExample(**known, labels=classes)
        return SourceExample(**known, label=classes[0])
    except SourceError as error:
        return SourceExample(**known, problem=error.args)


def _size(rows: Sequence[TableRow]) -> tuple[int, int] | None:
    sizes = {declared_size(row.cell("height"), row.cell("width")) for row in rows}
    if len(sizes) > 1:
        detail = f"{rows[0].place} and others: {sorted(str(size) for size in sizes)}"
        raise SourceError("annotation", "rows disagree about the size", detail)
    return sizes.pop()


def _box(row: TableRow, options: LayoutOptions) -> Box | None:
    """Return the box of a row; None if the row means that the image has no objects."""
    coordinates = [row.cell(column) for column in CORNERS]
    if not row.cell("class") and not any(coordinates):
        return None
    if not row.cell("class"):
        raise SourceError("annotation", "box has no class", row.place)
    classes = _listed_classes(row.cell("class")) or (row.cell("class"),)
    if len(classes) != 1 or _listed_classes(row.cell("class")) == ():
        raise SourceError("annotation", "box has no class or several", f"{row.place}: {row.cell('class')}")
    if not all(coordinates):
        raise SourceError("annotation", "row has no complete box", f"{row.place}: {','.join(coordinates)}")
    sides = [parse_number(row.cell(side), f"{row.place} {side}") for side in CORNERS]
    flags = {
        name: parse_flag(row.cell(name).lower(), f"{row.place} {name}", _FLAGS) for name in _FLAG_COLUMNS
    }
    area = parse_number(row.cell("area"), f"{row.place} area") if row.cell("area") else None
    mask, lost = (json.loads(row.cell("mask")) if row.cell("mask") else None), 0
    if isinstance(mask, list):
        mask, lost = usable_parts(mask, row.place, options)
    return make_box(classes[0], sides, row.place, area=area, mask=mask, lost_parts=lost, **flags)


def _listed_classes(cell: str) -> tuple[str, ...] | None:
    """Return the classes of a cell with a JSON or Python list; None if the cell is plain text.

    >>> _listed_classes('["hat", "coat"]'), _listed_classes("['hat']"), _listed_classes("[]"), _listed_classes("[hat]")
    (('hat', 'coat'), ('hat',), (), None)
    """
    found = parse_literal(cell, None) if cell.startswith("[") and cell.endswith("]") else None
    if not isinstance(found, list) or not all(type(one) in (str, int) for one in found):
        return None
    return tuple(str(one).strip() for one in found)


def _check_separators(places: Mapping[str, str], options: LayoutOptions) -> None:
    """Raise an error for a cell whose parts are classes of other rows, unless the user chose a separator.

    Args:
        places: maps each class, as written, to its first location.
    """
    if options.class_separator != "auto":
        return
    by_separator: dict[str, dict[str, list[str]]] = {}
    joining = _joining_words(places)
    for cell in places:
        if _listed_classes(cell) is not None or class_number(cell) is not None:
            continue
        # Blanks around a sign belong to it: "a, b" is separated by the comma.
        signs = {run.strip() or " " for run in _SEPARATOR.findall(cell)}
        for separator in signs | {f" {word} " for word in joining & set(cell.split()[1:-1])}:
            parts = [part.strip() for part in cell.split(None if separator == " " else separator)]
            if len(parts) > 1 and all(parts):
                by_separator.setdefault(separator, {})[cell] = parts
    # A word, as in "scab and rust", comes before the blank, which would make a class of it.
    for separator, cells in sorted(by_separator.items(), key=lambda item: (item[0] == " ", item[0])):
        combined = next((cell for cell, parts in cells.items() if all(part in places for part in parts)), "")
        reason = "as each part is a class of other rows"
        if not combined and _are_combinations(cells, places):
            combined, reason = next(iter(cells)), "as its parts come in other cells in other combinations"
        if combined:
            more = () if options.several_classes == "keep" else ("--several-classes", "keep")
            words = shlex.join(["--class-separator", separator, *more])
            if separator.startswith("--"):  # the command line takes it for an option
                words = shlex.join([f"--class-separator={separator}", *more])
            raise AnnotationsError(
                f"{places[combined]}: class {combined!r} looks like "
                f"{plural(len(cells[combined]), 'class', 'classes')}, {reason}; say {words} for several classes, or "
                "--class-separator none if it is one class"
            )


def _joining_words(cells: Iterable[str]) -> set[str]:
    """Return words that only come between others, as in "scab and rust".

    >>> _joining_words(["scab and rust", "sun sea", "sea road", "sun sea road"])
    {'and'}
    """
    words = [cell.split() for cell in cells]
    ends = {word for some in words if some for word in (some[0], some[-1])}
    return {word for some in words for word in some[1:-1] if word.isalpha()} - ends


def _are_combinations(cells: Mapping[str, Sequence[str]], places: Mapping[str, str]) -> bool:
    """Return whether cells are sets of a few parts, of which no part need be a cell of its own.

    Each part is in several cells, there are more cells than parts, and some part comes in several places. So
    "clear primary", "clear road primary", "haze primary" and so on are sets, while "red car", "red bus", "blue car" and
    "Tomato___healthy" are names.
    """
    parts = Counter(part for found in cells.values() for part in set(found))
    whole = [cell for cell in places if cell and cell not in cells]
    parts.update(whole)
    positions = {(part, place) for found in cells.values() for place, part in enumerate(found)}
    used = {part for part, _ in positions}
    if any(parts[part] < 2 for part in used) or len(positions) == len(used):
        return False
    return len(cells) + len(whole) > len(parts)


def classes_of(source: str, rows: Sequence[TableRow], options: LayoutOptions) -> tuple[str, ...]:
    """Return the distinct classes of one image.

    Raises:
        AnnotationsError: there are several, and the options do not keep them.
        SourceError: a row has no class. An empty list means no class if the options keep several.
    """
    if len(rows) == 1 and len(only := _written_classes(rows[0], options)) == 1:
        return (only[0],)
    places: dict[str, str] = {}
    lacking = None
    for row in rows:
        found = _written_classes(row, options)
        lacking = lacking or (None if found else row)
        for name in found:
            places.setdefault(name, row.place)
    if lacking is not None and (
        places or options.several_classes == "refuse" or _listed_classes(lacking.cell("class")) != ()
    ):
        raise SourceError("annotation", "row has no class", lacking.place)
    if len(places) > 1 and options.several_classes == "refuse":
        count = "two" if len(places) == 2 else f"{len(places)}"
        named = " and ".join(f"{name!r} ({place})" for name, place in [*places.items()][:_MAX_NAMED])
        more = ", ..." if len(places) > _MAX_NAMED else ""
        raise AnnotationsError(
            f"{source}: {count} values of class: {named}{more}; an image has one class; --several-classes keep keeps "
            "them all"
        )
    return tuple(places)


def _written_classes(row: TableRow, options: LayoutOptions) -> list[str]:
    """Return the classes in one row; raise SourceError if one has no name."""
    cell = row.cell("class")
    listed = _listed_classes(cell)
    if listed is None:
        separator = options.class_separator
        if separator in ("auto", "none") or not cell:
            return [cell] if cell else []
        # A whitespace separator may occur several times in a row.
        listed = tuple(part.strip() for part in cell.split(separator if separator.strip() else None))
    if not all(listed):
        raise SourceError("annotation", "class has no name", f"{row.place}: {cell!r}"[:200])
    return list(listed)
