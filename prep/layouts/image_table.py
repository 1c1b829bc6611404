"""Reader of tables of images, with one image or one box per row, from CSV, JSONL and container files."""

from __future__ import annotations

import heapq
import json
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

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
    ListedClasses,
    Listing,
    grouped,
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
from halofeed.prep.annotations.stated_columns import parse_columns, single_columns
from halofeed.prep.annotations.table_files import container_files, described_folder, is_container
from halofeed.prep.annotations.table_forms import is_metadata
from halofeed.prep.annotations.tables import ColumnRules, Table, TableRow, read_tables, shared_attributes
from halofeed.prep.annotations.tfrecord_rows import tfrecord_class_names
from halofeed.prep.annotations.written_boxes import (
    REGION,
    declared_size,
    keeps_corners,
    make_box,
    parse_flag,
    parse_number,
    usable_boxes,
    usable_parts,
    with_corners,
)
from halofeed.prep.layouts import segmentation_table
from halofeed.prep.sources.containers import container_kind
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.members import container_of, member_key
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.storage.spill import ExternalSort, SortedRecord
from halofeed.system.errors import AnnotationsError, Problem, SourceError, UsageError
from halofeed.system.wording import plural

_SEPARATOR = re.compile(r"[\W_]+")
"""Text between letters and digits that may separate several classes in one cell."""
_MAX_NAMED = 5
_IMAGE_COLUMNS = ("filename", "class")
_NO_NAME = SourceError("annotation", "row names no file")
_CORNER_NUMBERS = 8
_FLAG_COLUMNS = ("is_crowd", "difficult", "truncated", "occluded", "group_of")
_FLAGS = {**dict.fromkeys(("", "-1", "0", "false", "no"), False), **dict.fromkeys(("1", "true", "yes"), True)}
_Name = tuple[str, str]
"""Split folder of a table, and the name of an image in it."""
_Described = tuple[SourceExample, list[str], str]
"""Example with boxes, the classes of its rows without one, and where these are."""


def list_references(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Listing:
    """Yield an example for every image of the named table, or of all tables of the form in the folder.

    The form is "csv" or "jsonl", or "tfrecord" or "webdataset", whose container files are read as tables of the
    pictures in them. Without tables directly in the folder, the reader uses tables of the same name in
    split folders (`valid/_annotations.csv`), as Roboflow exports them, or Hugging Face's metadata in any folder.

    For classes the columns are `filename,class[,split,group,id]`. For boxes they are
    `filename,class,xmin,ymin,xmax,ymax[,width,height]`, with one box per row in pixels. A row without class and box
    is an image without objects. Further columns for boxes are area, is_crowd, difficult, truncated and occluded,
    ignored, whose rows with 1 are ignored regions and need no class, and corners with a list of x and y of four points.
    `columns` accepts other spellings and other forms of a box. `table_forms` converts the tables of Hugging Face,
    Google's AutoML and Vertex AI, Open Images and Kaggle's wheat.

    Without a split column, the file name contains the split (train for `train_labels.csv`). Files are UTF-8, with or
    without a byte order mark. The delimiter is the comma, semicolon or tab that makes the header line readable. A
    JSONL file has one object per line, with the columns as keys.

    Raises:
        AnnotationsError: columns are missing, or one image has two classes, splits, groups or ids.
    """
    try:
        return (yield from _list_references(form, annotations, images, annotation_file, options))
    except AnnotationsError as error:
        # The user's task does not fit; only without one may another be suggested.
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
) -> Listing:
    """Yield the examples of `list_references`; return the classes that the headers of its tables name."""
    # The TF Object Detection API's create_*_tf_record.py write boxes as shares of the picture's sides.
    if form == "tfrecord" and options.box_units == "auto":
        options = replace(options, box_units="normalized")
    # A column of masks in place of boxes: the files are paired by rows.
    if options.wants_label_images:
        yield from segmentation_table.list_references(form, annotations, images, annotation_file, options)
        return None
    tables = _read_tables(form, annotations, images, annotation_file, options)
    with_boxes = _has_boxes(tables, options.wants_boxes)
    _check_tables(tables, options, with_boxes=with_boxes)
    index = ImageIndex(images, annotations.root, options.takes)
    rows = _by_source(tables, index, options)
    # A box has one class, so only classes of pictures may be joined in a cell.
    if not with_boxes:
        _check_separators(rows.classes, options)
    # All images are missing: a wrong folder, which one message tells better than a problem of each row.
    if not rows.has_image():
        index.check_any_image(tables[0].file)
    others = _without_row(index, rows, only_used_folders=annotation_file is not None)
    # Units and grids of boxes are resolved from all rows of a table, so its examples are in memory.
    if with_boxes:
        resolved = _resolve_tables(rows.images(), images, options)
        yield from sort_examples(note_similar_classes([*resolved, *others]))
        return _classes_of_column(annotations, tables, options)
    similar = _similar_classes(rows, options)
    yield from add_class_notes(heapq.merge(_classified(rows, options), others, key=sort_key), similar)
    # A column for each class: the columns give the order of the classes, and a class may be 0 in all rows.
    named = tuple(dict.fromkeys(name for table in tables for name in table.classes))
    return (lambda: dict(enumerate(named))) if named else _classes_of_column(annotations, tables, options)


def _without_row(index: ImageIndex, rows: _SortedRows, *, only_used_folders: bool) -> list[SourceExample]:
    """Return an example for each image that no row names, sorted."""
    # Counts and sums of hashes tell it without a list of all paths, which large tables would need.
    if index.all_images_are_named(rows.named, only_used_folders=only_used_folders):
        return []
    return sort_examples(list(index.without_annotation(rows.splits, only_used_folders=only_used_folders)))


def _similar_classes(rows: _SortedRows, options: LayoutOptions) -> dict[str, str]:
    """Return the notes on classes that differ only in spelling."""
    similar = similar_class_notes(name for cell in rows.classes for name in _classes(cell, options))
    # `classes` includes those of rejected images.
    if similar:
        return similar_class_notes(label for one in _classified(rows, options) for label in classes_in(one))
    return similar


def _classes_of_column(
    annotations: SourceFiles, tables: Sequence[Table], options: LayoutOptions
) -> ListedClasses | None:
    """Return the class names of the column that the user names, in their order; None if the user names none."""
    stated = single_columns(parse_columns(options.column)).get("label")
    if stated is None:
        return None
    named: dict[str, None] = {}
    for table in tables:
        kind = container_kind(table.file)
        if kind == "parquet":
            named |= dict.fromkeys(parquet_class_names(annotations, table.file, stated))
        elif kind in ("tfrecord", "array_record"):
            named |= dict.fromkeys(tfrecord_class_names(annotations, table.file, options))
    # No names: the classes are those of the rows, and not those of another feature.
    return lambda: dict(enumerate(named))


def _read_tables(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> list[Table]:
    """Return the tables of a form; those of container files with the names of class numbers."""
    # A .cls member of WebDataset is a number; its name is in a list of classes beside the tar files.
    if form == "webdataset" and not options.class_names:
        found = container_files(form, annotations, annotation_file)
        options = replace(options, class_names=classes_beside(annotations, [*found, ""]))
    tables = read_tables(form, annotations, annotation_file, _column_rules(options), images)
    return [_with_class_names(table, options) if is_container(table.file) else table for table in tables]


def _column_rules(options: LayoutOptions) -> ColumnRules:
    """Return how the columns of a table of classes or boxes are found."""
    return ColumnRules(
        required=_IMAGE_COLUMNS,
        together=CORNERS,
        text=(*_IMAGE_COLUMNS, "split", "group", "id"),
        lists=("class",),
        expected=f"{','.join(_IMAGE_COLUMNS)} with one image per row, or also {','.join(CORNERS)} with one box per "
        "row; image,label need --task segmentation, or --task classification where labels are classes",
        spellings={**SPELLINGS, "filename": (*SPELLINGS["filename"], ("image",))},
        read=lambda name, header, stated: read_columns(
            name, header, options.wants_boxes, options.box_form, options.ignore_columns, stated
        ),
        options=options,
    )


def _check_tables(tables: Sequence[Table], options: LayoutOptions, *, with_boxes: bool) -> None:
    """Raise an error if tables have no rows, or an option has no effect on them."""
    columns = set(chain(*(table.columns for table in tables)))
    # A typed column that no table has would silently keep nothing.
    if missing := [name for name in options.keep if name not in columns]:
        found_columns = ", ".join(dict.fromkeys(chain(*(table.header for table in tables))))
        raise AnnotationsError(
            f"{tables[0].file}: --keep {','.join(missing)}: no table has such a column; found {found_columns}; "
            "leave it out"
        )
    # An option without effect is refused (docs/decisions.md).
    if with_boxes and options.several_classes == "keep":
        raise UsageError(
            "--several-classes keep: has no effect on boxes, each of which has its class; add --task classification, "
            "or leave it out"
        )
    if not any(True for table in tables for _ in table.rows):
        raise AnnotationsError(f"{tables[0].file}: a header and no rows; name a table that has rows")


def _classified(rows: _SortedRows, options: LayoutOptions) -> Iterator[SourceExample]:
    """Yield the examples of a table of classes, sorted."""
    for image in rows.images():
        found = [_with_classes(_plain_example(image, options), image, options)] if image.rows else []
        found += [_missing_image_example(image, image.error)] if image.error else []
        yield from sort_examples(found)


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

    # Segmentation fits only if the labels are files; as classes, the files' names would fit too.
    return suggest([("--task", task) for task in ("segmentation", "classification")], try_words)


def list_labels(form: str, annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the class names that container files of a form give, in their order; () without such files."""
    found = container_files(form, annotations, annotation_file)
    if form == "webdataset":  # a class is a number, whose name no member of a tar file has
        return ordered_classes(classes_beside(annotations, [*found, ""]))
    read: dict[str, Callable[[SourceFiles, str], tuple[str, ...]]] = {
        "parquet": parquet_class_names,
        "tfrecord": tfrecord_class_names,
        "array_record": tfrecord_class_names,
    }
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
        # Some files of a set have names already, as the label map's own.
        if number is None or row.cell("class") in names.values():
            return row
        # A number among names would become another class.
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


@dataclass(frozen=True, kw_only=True)
class _SortedRows:
    """Rows of all tables, sorted by image on disk; each pass over them reads them again.

    Args:
        records: image, number of the row, and (fault, file, line, cells, fault of its form, split, notes). A row whose
            image is missing is sorted by the written name and has a fault.
        classes: first location of each class, as written.
        named: comparison of the images that rows name with those that exist.
    """

    records: ExternalSort
    classes: Mapping[str, str]
    named: PathComparison

    def has_image(self) -> bool:
        """Return whether the image of any row exists."""
        return any(payload[0] is None for _, _, payload in self.records)

    def images(self) -> Iterator[_Image]:
        """Yield the rows of each image."""
        return (_image(source, records) for source, records in groupby(self.records, itemgetter(0)))

    def splits(self) -> Iterator[tuple[str, str]]:
        """Yield each image that exists, and the split of its first row."""
        found = ((source, payload[-2]) for source, _, payload in self.records if payload[0] is None)
        return (next(records) for _, records in groupby(found, itemgetter(0)))


def _by_source(tables: Sequence[Table], index: ImageIndex, options: LayoutOptions) -> _SortedRows:
    """Return the rows of all tables, sorted by image."""
    found, others = ExternalSort(), ExternalSort()
    matcher: ImageMatcher[_Name] = ImageMatcher(index)
    classes: dict[str, str] = {}
    comparison, place = PathComparison(), 0
    for table in tables:
        facts = _facts_of(table, options)
        for row in table.rows:
            if (written := row.cell("class")) not in classes:  # `place` is formatted only once a class
                classes[written] = row.place
            named = row.cell("filename")
            query = _image_query(facts.folder, named)
            payload = (None, row.file, row.line, row.cells, row.fault, facts.split_of(row), facts.notes)
            # Pictures inside of the container are its own. A damaged row keeps its name, wherever the file is.
            if named and (row.fault is not None or _is_member(named, table)):
                found.add((named, place, payload))
            # Most names are paths, which are confirmed at once; the others need all names together.
            elif named and matcher.is_path((facts.folder, named), query):
                comparison.add(query.name, -1)
                found.add((query.name, place, payload))
            else:
                others.add((named, place, payload))
            place += 1
    for record in _located(others, found, matcher, index):
        # A row without a fault has an image, which the tables name.
        if record[2][0] is None:
            comparison.add(record[0], -1)
        found.add(record)
    return _SortedRows(records=found, classes=classes, named=comparison)


def _is_member(named: str, table: Table) -> bool:
    """Return whether a row names a picture inside a container: the table, or a file that its rows come from."""
    container = container_of(named)
    return container is not None and (container == table.file or table.has_members)


@dataclass(frozen=True, kw_only=True)
class _TableFacts:
    """Facts that the rows of a table share.

    Args:
        folder: split folder that the table describes; "" if it describes all of the source.
        split: split of its rows; "" if that is in each path.
        notes: notes, as one object for all rows, of which marshal writes references.
    """

    folder: str
    split: str
    notes: tuple[str, ...]

    def split_of(self, row: TableRow) -> str:
        """Return the split of a row: its own, the table's, or that of its path's folders."""
        # The column counts before the names of files and folders.
        if split := row.cell("split") or self.split:
            return split
        return splits_by_folders([posixpath.join(self.folder, row.cell("filename"))])[0]


def _facts_of(table: Table, options: LayoutOptions) -> _TableFacts:
    """Return the split folder, the split and the notes of a table."""
    file, notes = table.file, (*table.notes(options.group_column), *_left_note(table, options))
    # The folders of pictures are inside of the container; those above it are its own.
    if is_container(file):
        split = split_in_file_name(file) or splits_by_folders([file])[0]
        return _TableFacts(folder="", split=split, notes=notes)
    # The paths of Croissant are complete.
    folder = "" if table.has_members else described_folder(file)
    # Hugging Face: the folder of a picture is its split, wherever the metadata are.
    follows_folders = is_metadata(file) or table.has_members
    split = "" if follows_folders else folder or split_in_file_name(file) or "train"
    return _TableFacts(folder=folder, split=split, notes=notes)


def _located(
    others: ExternalSort, found: ExternalSort, matcher: ImageMatcher[_Name], index: ImageIndex
) -> Iterator[SortedRecord]:
    """Yield the records of rows whose names are no paths, under their images, or under their names with a fault.

    Args:
        found: records of the other rows: an image that they name is not meant by a partial name.
    """
    images = matcher.match_remaining(lambda: (source for source, _, _ in found))
    for named, place, (_, file, line, cells, row_fault, split, notes) in others:
        folder = described_folder(file)
        image = images[folder, named] if named else _NO_NAME
        if isinstance(image, ImageMatch):
            source, fault, notes = image.path, None, (*notes, image.note) if image.note else notes
        else:
            source = index.relative(posixpath.join(folder, named)) if named else f"{file}:{line}"
            fault, notes = image.args, ()
        yield source, place, (fault, file, line, cells, row_fault, split, notes)


def _resolve_tables(
    listed: Iterable[_Image], images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the examples of images with boxes; all images of a table determine the meaning of its numbers."""
    examples: list[SourceExample] = []
    found: list[tuple[int, str, _Described]] = []
    for image in listed:
        # One name may have rows that are found and rows that are not, by their folders.
        if image.rows:
            found.append((image.number, image.rows[0][0].file, _with_boxes(image, options)))
        if image.error:
            examples.append(_missing_image_example(image, image.error))
    # In the order of the rows, so that messages name the first one.
    by_table = grouped((file, described) for _, file, described in sorted(found, key=itemgetter(0)))
    for file, of_table in by_table.items():
        _check_any_box(file, of_table)
        settled = settle_classes(of_table, options, are_objects=True)
        examples += resolve_boxes(settled, images, options, file)
    return examples


def _check_any_box(file: str, of_table: Sequence[_Described]) -> None:
    """Raise AnnotationsError if a table with columns for boxes has classes and no box at all."""
    has_places = any(one.boxes or one.bad_objects for one, *_ in of_table)
    # Empty columns of corners: a table of classes that was made from one of boxes.
    if not has_places and any(names for _, names, _ in of_table):
        raise AnnotationsError(f"{file}: no row has a box, and rows have classes: take --task classification")


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
    # --task classification ignores the boxes, and takes the classes of all rows.
    if are_required is False:
        return False
    # Pictures of a table of classes would seem to have no objects.
    if plain and (are_required or len(plain) < len(tables)):
        raise AnnotationsError(
            f"{plain[0].file}: no columns {','.join(CORNERS)}; found {', '.join(plain[0].header)}; "
            "detection needs one box a row in every table"
        )
    return not plain


def _agree(source: str, rows: Sequence[TableRow], column: str, values: Sequence[str]) -> str:
    """Return the value that all rows of an image have; raise AnnotationsError if they differ."""
    for row, value in zip(rows, values, strict=True):
        # An image in two splits or groups would be on both sides of a division.
        if value != values[0]:
            raise AnnotationsError(
                f"{source}: two values of {column}: {values[0]!r} ({rows[0].place}) and {value!r} "
                f"({row.place}); an image has one {column}"
            )
    return values[0]


def _plain_example(image: _Image, options: LayoutOptions) -> SourceExample:
    """Return the example of an image without its classes or boxes; it has a problem if the form of a row is wrong."""
    source, rows = image.source, [row for row, _ in image.rows]
    # A row of another form may hold a box that is not read, so the image is rejected.
    if faulty := next((row for row in rows if row.fault), None):
        return SourceExample(
            source=source,
            key=member_key(source),
            split=image.rows[0][1],
            problem=_row_problem(faulty),
            notes=image.notes,
        )
    return SourceExample(
        source=source,
        split=_agree(source, rows, "split", [split for _, split in image.rows]),
        group=_agree(source, rows, "group", [row.cell("group") for row in rows]) or None,
        key=_agree(source, rows, "id", [row.cell("id") for row in rows]) or member_key(source),
        notes=image.notes,
        attributes=shared_attributes(rows) if options.needs_groups else (),
    )


def _row_problem(row: TableRow) -> Problem:
    """Return the problem of a row with a wrong form."""
    reason, detail = row.fault or ("", "")
    return ("annotation", reason, f"{row.place}: {detail}")


def _with_classes(example: SourceExample, image: _Image, options: LayoutOptions) -> SourceExample:
    """Return the example with the class, or the classes, of the rows of its image."""
    if example.problem is not None:
        return example
    try:
        classes = classes_of(example.source, [row for row, _ in image.rows], options)
    except SourceError as error:
        return replace(example, problem=error.args)
    # A record has either a class or a set of classes, the same in the complete data set.
    if options.several_classes == "keep":
        return replace(example, labels=classes)
    return replace(example, label=classes[0])


def _with_boxes(image: _Image, options: LayoutOptions) -> _Described:
    """Return the example of an image with its boxes, the classes of its rows without one, and where these are."""
    rows = [row for row, _ in image.rows]
    alone = [row for row in rows if _is_class_alone(row)]
    names, where = [row.cell("class") for row in alone], alone[0].place if alone else ""
    example = _plain_example(image, options)
    if example.problem is not None:
        return example, names, where
    try:
        placed = [row for row in rows if not _is_class_alone(row)]
        boxes, bad = usable_boxes(placed, lambda row: _box(row, options), options)
        example = replace(example, boxes=boxes, declared_size=_size(rows), bad_objects=bad)
    except SourceError as error:
        example = replace(example, problem=error.args)
    return example, names, where


def _size(rows: Sequence[TableRow]) -> tuple[int, int] | None:
    sizes = {declared_size(row.cell("height"), row.cell("width")) for row in rows}
    # Boxes may be scaled by the declared size, so it must be known.
    if len(sizes) > 1:
        detail = f"{rows[0].place} and others: {sorted(str(size) for size in sizes)}"
        raise SourceError("annotation", "rows disagree about the size", detail)
    return sizes.pop()


def _box(row: TableRow, options: LayoutOptions) -> Box | None:
    """Return the box of a row; None if the row means that the image has no objects."""
    coordinates = [row.cell(column) for column in CORNERS]
    # keras-retinanet's CSV format: a row with the name alone is a picture without objects.
    if not row.cell("class") and not any(coordinates):
        return None
    is_ignored = parse_flag(row.cell("ignored").lower(), f"{row.place} ignored", _FLAGS)
    label = REGION if is_ignored else _class_of_box(row)
    # A missing side cannot be guessed, as an empty row can.
    if not all(coordinates):
        raise SourceError("annotation", "row has no complete box", f"{row.place}: {','.join(coordinates)}")
    sides = [parse_number(row.cell(side), f"{row.place} {side}") for side in CORNERS]
    if is_ignored:
        return make_box(label, sides, row.place, is_region=True)
    flags = {
        name: parse_flag(row.cell(name).lower(), f"{row.place} {name}", _FLAGS) for name in _FLAG_COLUMNS
    }
    area = parse_number(row.cell("area"), f"{row.place} area") if row.cell("area") else None
    mask, lost = (json.loads(row.cell("mask")) if row.cell("mask") else None), 0
    if isinstance(mask, list):  # polygons; a run-length code is an object
        mask, lost = usable_parts(mask, row.place, options)
    box = make_box(label, sides, row.place, area=area, mask=mask, lost_parts=lost, **flags)
    return with_corners(box, _corners(row), row.place, options) if keeps_corners(options) else box


def _corners(row: TableRow) -> list[float]:
    """Return the corners in a cell [x1, y1, x2, y2, x3, y3, x4, y4]; [] if it is empty."""
    written = row.cell("corners")
    values = parse_literal(written, None) if written else []
    if not isinstance(values, list) or len(values) not in (0, _CORNER_NUMBERS):
        detail = f"{row.place} corners: expected [x1, y1, x2, y2, x3, y3, x4, y4], got {written:.80}"
        raise SourceError("annotation", "corners are no four points", detail)
    return [parse_number(value, f"{row.place} corners") for value in values]


def _class_of_box(row: TableRow) -> str:
    """Return the class of a row with a box: a text, or the only one of a list."""
    written = row.cell("class")
    if not written:
        raise SourceError("annotation", "box has no class", row.place)
    listed = _listed_classes(written)
    # Two classes of one box are either two objects or a mistake.
    if listed is not None and len(listed) != 1:
        raise SourceError("annotation", "box has no class or several", f"{row.place}: {written}")
    return listed[0] if listed else written


def _listed_classes(cell: str) -> tuple[str, ...] | None:
    """Return the classes of a cell with a JSON or Python list; None if the cell is plain text.

    >>> _listed_classes('["hat", "coat"]'), _listed_classes("['hat']"), _listed_classes("[]"), _listed_classes("[hat]")
    (('hat', 'coat'), ('hat',), (), None)
    """
    found = parse_literal(cell, None) if cell.startswith("[") and cell.endswith("]") else None
    # A text in brackets, such as [hat], is the name of a class.
    if not isinstance(found, list) or not all(type(one) in (str, int) for one in found):
        return None
    return tuple(str(one).strip() for one in found)


def _check_separators(places: Mapping[str, str], options: LayoutOptions) -> None:
    """Raise an error for a cell whose parts are classes of other rows, unless the user chose a separator.

    Args:
        places: maps each class, as written, to its first location.
    """
    # The user has said how cells are divided.
    if options.class_separator != "auto":
        return
    # A word, as in "scab and rust", comes before the blank, which would make a class of it.
    by_separator = sorted(_parts_of_cells(places).items(), key=lambda item: (item[0] == " ", item[0]))
    for separator, cells in by_separator:
        combined = next((cell for cell, parts in cells.items() if all(part in places for part in parts)), "")
        reason = "as each part is a class of other rows"
        # Kaggle's Planet set: rows combine a few words, such as "clear primary", most of which never occur alone.
        if not combined and _are_combinations(cells, places):
            combined, reason = next(iter(cells)), "as its parts come in other cells in other combinations"
        if combined:
            raise AnnotationsError(
                f"{places[combined]}: class {combined!r} looks like "
                f"{plural(len(cells[combined]), 'class', 'classes')}, {reason}; use "
                f"{_separator_words(separator, options)} for several classes, or --class-separator none if it is one "
                "class"
            )


def _parts_of_cells(cells: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return the parts of each cell that a separator divides, for all signs and words that may be separators."""
    cells = list(cells)
    joining = _joining_words(cells)
    by_separator: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        # The parts of a list are known, and the parts of a number are not classes.
        if _listed_classes(cell) is not None or class_number(cell) is not None:
            continue
        # Blanks around a sign belong to it: "a, b" is separated by the comma.
        signs = {run.strip() or " " for run in _SEPARATOR.findall(cell)}
        for separator in signs | {f" {word} " for word in joining & set(cell.split()[1:-1])}:
            parts = [part.strip() for part in cell.split(None if separator == " " else separator)]
            # "cat_" and "-x" are names.
            if len(parts) > 1 and all(parts):
                by_separator.setdefault(separator, {})[cell] = parts
    return by_separator


def _separator_words(separator: str, options: LayoutOptions) -> str:
    """Return the words of a command line that divide the cells of a table by a separator."""
    more = () if options.several_classes == "keep" else ("--several-classes", "keep")
    if separator.startswith("--"):  # argparse takes a separate word for an option
        return shlex.join([f"--class-separator={separator}", *more])
    return shlex.join(["--class-separator", separator, *more])


def _joining_words(cells: Iterable[str]) -> set[str]:
    """Return words that only come between others, as in "scab and rust".

    >>> _joining_words(["scab and rust", "sun sea", "sea road", "sun sea road"])
    {'and'}
    """
    words = [cell.split() for cell in cells]
    ends = {word for some in words if some for word in (some[0], some[-1])}
    return {word for some in words for word in some[1:-1] if word.isalpha()} - ends


def _are_combinations(cells: Mapping[str, Sequence[str]], places: Mapping[str, str]) -> bool:
    """Return whether cells are sets of a few parts; a part need not occur alone in any cell.

    Each part is in several cells, there are more cells than parts, and some part comes in several places. So
    "clear primary", "clear road primary", "haze primary" and so on are sets, while "red car", "red bus", "blue car" and
    "Tomato___healthy" are names.
    """
    parts = Counter(chain(*map(set, cells.values())))
    whole = [cell for cell in places if cell and cell not in cells]
    parts.update(whole)
    positions = {(part, place) for found in cells.values() for place, part in enumerate(found)}
    used = set(chain(*cells.values()))
    # Parts with one place each are the words of a name: color first, then thing.
    if len(positions) == len(used) or any(parts[part] < 2 for part in used):
        return False
    return len(cells) + len(whole) > len(parts)


def classes_of(source: str, rows: Sequence[TableRow], options: LayoutOptions) -> tuple[str, ...]:
    """Return the distinct classes of one image.

    Raises:
        AnnotationsError: there are several, and the options do not keep them.
        SourceError: a row has no class. An empty list means no class if the options keep several.
    """
    if len(rows) == 1 and len(only := _written_classes(rows[0], options)) == 1:  # nearly all images
        return (only[0],)
    places, lacking = _first_places(rows, options)
    if lacking is not None and not _means_no_class(lacking, places, options):
        advice = "" if options.several_classes == "refuse" else "; write [] if the image has none"
        raise SourceError("annotation", "row has no class", f"{lacking.place}{advice}")
    if len(places) > 1 and options.several_classes == "refuse":
        raise _several_classes(source, places)
    return tuple(places)


def _first_places(rows: Iterable[TableRow], options: LayoutOptions) -> tuple[dict[str, str], TableRow | None]:
    """Return the first location of each class of an image, in the order of the rows, and the first row without one."""
    places: dict[str, str] = {}
    lacking = None
    for row in rows:  # without another list: one image may have all rows of a large table
        found = _written_classes(row, options)
        lacking = lacking or (None if found else row)
        for name in found:
            places.setdefault(name, row.place)
    return places, lacking


def _several_classes(source: str, places: Mapping[str, str]) -> AnnotationsError:
    """Return the error for an image with several classes, each with its first location."""
    count = "two" if len(places) == 2 else f"{len(places)}"
    named = " and ".join(f"{name!r} ({place})" for name, place in [*places.items()][:_MAX_NAMED])
    more = ", ..." if len(places) > _MAX_NAMED else ""
    return AnnotationsError(
        f"{source}: {count} values of class: {named}{more}; an image has one class; --several-classes keep keeps "
        "them all"
    )


def _means_no_class(row: TableRow, places: Mapping[str, str], options: LayoutOptions) -> bool:
    """Return whether an image may have no class: `[]` in a table of several classes means so, unlike an empty cell."""
    is_empty_list = _listed_classes(row.cell("class")) == ()
    return is_empty_list and not places and options.several_classes != "refuse"


def _written_classes(row: TableRow, options: LayoutOptions) -> list[str]:
    """Return the classes in one row; raise SourceError if one has no name."""
    cell = row.cell("class")
    listed = _listed_classes(cell)
    # The classes of a list are known; --class-separator divides plain cells.
    if listed is None:
        separator = options.class_separator
        # `_check_separators` refused cells that look divided.
        if separator in ("auto", "none") or not cell:
            return [cell] if cell else []
        # A whitespace separator may occur several times in a row.
        listed = tuple(part.strip() for part in cell.split(separator if separator.strip() else None))
    # "hat,,coat": a lost name, or a separator too many.
    if not all(listed):
        raise SourceError("annotation", "class has no name", f"{row.place}: {cell!r}"[:200])
    return list(listed)
