"""Reader of tables of run lengths, as Kaggle has them: a picture and the pixels of one object, or of one class, a row.

    ImageId,EncodedPixels              ImageId_ClassId,EncodedPixels
    0a1b.jpg,264661 17 265429 33       0002cc93b.jpg_1,29102 12 29346 24
    0a1b.jpg,4701 9 5469 12            0002cc93b.jpg_2,
    0c2d.jpg,                          0002cc93b.jpg_3,-1

An empty cell, or -1, says that the picture has no such object. Columns are found by what their cells hold. The rules of
the numbers are those of Kaggle's evaluation pages ("Evaluation" of Airbus Ship Detection and of Severstal); the masks
of all pictures show where a table follows another one, see `halofeed.prep.voxels.run_lengths`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from posixpath import basename, splitext
from typing import Any

from halofeed.prep.annotations.class_names import note_similar_classes, sort_class_names
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    Listing,
    attributes_of,
    grouped,
    sort_examples,
    split_in_file_name,
    splits_by_folders,
)
from halofeed.prep.annotations.image_index import ImageIndex, ImageMatch, ImageQuery
from halofeed.prep.annotations.pairing import class_values, target_classes
from halofeed.prep.annotations.resolve_boxes import possible_sizes
from halofeed.prep.annotations.run_length_columns import (
    EMPTY,
    SAMPLE_ROWS,
    RunColumns,
    cells_of,
    find_columns,
    is_one_mask,
)
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.annotations.tables import TableText
from halofeed.prep.annotations.written_boxes import declared_size, is_mostly_bad, make_box, usable_boxes
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

_OBJECT = "object"
_RUNS = "run lengths"
"""Beginning of the reasons for which run lengths cannot be used."""
_TABLES = (".csv", ".tsv")
_PLACEHOLDERS = "all of its masks are the same, as in a sample submission"
_NO_ROW = "add a row with an empty cell for it if it shows no object"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row of a table: its place, the name of its picture, its class, its run lengths, and its other cells."""

    place: str
    picture: str
    label: str
    runs: str
    size: tuple[str, str]
    split: str
    group: str
    attributes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table of run lengths with its rows.

    Args:
        file: name of the file.
        columns: meaning of its columns.
        rows: its rows, in their order.
        notes: remarks for the user.
    """

    file: str
    columns: RunColumns
    rows: Sequence[_Row]
    notes: tuple[str, ...]


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every picture of the named table or of all tables with run lengths, and every other picture.

    A row is an object with its box and, with --masks, its mask. With --task segmentation, the rows of a picture are the
    masks of its classes.

    Returns:
        The classes by their values in label images, which begin at 1.

    Raises:
        AnnotationsError: no table has run lengths, or those of a table fit no picture.
    """
    index = ImageIndex(images, annotations.root, options.takes)
    tables = list(_read_tables(annotations, index, annotation_file, options))
    listed: list[SourceExample] = []
    for table in tables:
        listed += _examples(table, index, images, options)
    used = {one.source: one.split for one in listed if one.source in index.paths}
    bare = index.without_annotation(used.items, only_used_folders=annotation_file is not None)
    listed += (replace(one, problem=("selection", "image has no annotation", _NO_ROW)) for one in bare)
    labels = {row.label for table in tables for row in table.rows}
    if options.wants_label_images:
        targets = target_classes(labels, annotations.root, options)
        listed = [_with_targets(one, targets) for one in listed]
        yield from sort_examples(_without_repeats(listed))
        return lambda: class_values(targets, options)
    yield from sort_examples(note_similar_classes(_without_repeats(listed)))
    return lambda: dict(enumerate(sort_class_names(labels), start=1))


def _with_targets(example: SourceExample, targets: Mapping[str, str]) -> SourceExample:
    """Return the example with the chosen classes of its masks."""
    if example.class_runs is None:
        return example
    chosen = tuple((targets[name], code) for name, code in example.class_runs if name in targets)
    return replace(example, class_runs=chosen)


def _without_repeats(listed: Sequence[SourceExample]) -> list[SourceExample]:
    """Return the examples with a problem for each picture that several tables have."""
    counts = Counter(one.source for one in listed)
    fault = ("annotation", "several tables name one picture", "take one of them with --source")
    return [
        replace(one, boxes=None, class_runs=None, problem=fault)
        if counts[one.source] > 1 and one.problem is None
        else one
        for one in listed
    ]


# Tables ------------------------------------------------------------------------------------------------------


def _read_tables(
    annotations: SourceFiles, index: ImageIndex, annotation_file: str | None, options: LayoutOptions
) -> Iterator[_Table]:
    """Yield the tables with run lengths; raise AnnotationsError if there are none."""
    names = [annotation_file] if annotation_file else _table_names(annotations)
    stems = {name for path in index.paths if options.takes(path) for name in _names_of(path)}
    if not stems:
        index.check_any_image(names[0] if names else annotations.root)
    found, skipped = 0, ""
    for name in names:
        text = TableText(annotations, name, options)
        columns = _columns_of(name, text, stems, options)
        if columns is None:
            continue
        # A sample submission has pictures of the test set with masks that mean nothing.
        if is_one_mask(cells[columns.runs] for cells in _body(name, text) if len(cells) > columns.runs):
            skipped = name
            continue
        found += 1
        yield _table(name, text, columns, options)
    if not found:
        where = annotation_file or annotations.root
        why = f"{skipped}: {_PLACEHOLDERS}" if skipped else f"found {', '.join(names[:5]) or 'no table'}"
        raise AnnotationsError(
            f"{where}: expected a table with a column of run lengths, such as 264661 17 265429 33; {why}; name the "
            f"table with --source{layout_hint(annotations, 'run-lengths', annotation_file)}"
        )


def _names_of(path: str) -> tuple[str, str]:
    return basename(path), splitext(basename(path))[0]


def _table_names(annotations: SourceFiles) -> list[str]:
    return [path for path in annotations.sizes() if path.lower().endswith(_TABLES)]


def _columns_of(name: str, text: TableText, stems: set[str], options: LayoutOptions) -> RunColumns | None:
    with text.lines("") as lines:
        rows = list(islice(_cells(name, lines), SAMPLE_ROWS))
    return find_columns(name, rows, stems, options.ignore_columns) if len(rows) > 1 else None


def _cells(name: str, lines: Any) -> Iterator[list[str]]:
    try:
        yield from cells_of(lines)
    except AnnotationsError as error:
        raise AnnotationsError(f"{name}: {error}") from error


def _body(name: str, text: TableText) -> Iterator[list[str]]:
    """Yield the cells of all rows below the header."""
    with text.lines("") as lines:
        yield from islice(_cells(name, lines), 1, None)


def _table(name: str, text: TableText, columns: RunColumns, options: LayoutOptions) -> _Table:
    with text.lines("") as lines:
        header = next(_cells(name, lines))
    rows = [
        _row(f"{name}, row {place}", cells, header, columns, options)
        for place, cells in enumerate(_body(name, text), start=1)
    ]
    has_class = columns.class_behind_name or "class" in columns.known
    unread = [one for one in columns.unread if one != options.group_column]
    notes = []
    if not has_class and not options.one_class:
        notes.append(f"{name} names no class: all objects are of the class {_OBJECT}; --one-class names it")
    if unread:
        notes.append(f"columns of {name} that are not read: {', '.join(unread)}")
    return _Table(file=name, columns=columns, rows=rows, notes=tuple(notes))


def _row(
    place: str, cells: Sequence[str], header: Sequence[str], columns: RunColumns, options: LayoutOptions
) -> _Row:
    # A missing cell shifts those behind it under other columns.
    if len(cells) != len(header):
        raise AnnotationsError(
            f"{place}: {plural(len(cells), 'cell')} under {plural(len(header), 'column')}; correct the row"
        )
    known = {key: cells[at] for key, at in columns.known.items()}
    picture, label = cells[columns.picture], known.get("class", "")
    if columns.class_behind_name:
        picture, _, label = picture.rpartition("_")
    named = dict(zip(header, cells, strict=True)) if options.needs_groups else {}
    return _Row(
        place=place,
        picture=picture,
        label=label or options.one_class or _OBJECT,
        runs="" if cells[columns.runs].lower() in EMPTY else cells[columns.runs],
        size=(known.get("height", ""), known.get("width", "")),
        split=known.get("split", ""),
        group=known.get("group", ""),
        attributes=attributes_of({key: named[key] for key in columns.unread if key in named}, ()),
    )


# Pictures ----------------------------------------------------------------------------------------------------


def _examples(
    table: _Table, index: ImageIndex, images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return an example for each picture of a table."""
    by_picture = grouped((row.picture, row) for row in table.rows)
    found = index.match(
        {name: ImageQuery(name=name, stem="" if is_image_name(name) else name) for name in by_picture}
    )
    matched = {name: one for name, one in found.items() if isinstance(one, ImageMatch)}
    sizes = dict(zip(matched, possible_sizes([one.path for one in matched.values()], images), strict=True))
    listed = [_bare_example(table, name, rows, found[name], options) for name, rows in by_picture.items()]
    reader = _RunReader.of(table, by_picture, sizes, options)
    objects = [
        one if one.problem else reader.with_objects(one, rows, sizes[name])
        for one, (name, rows) in zip(listed, by_picture.items(), strict=True)
    ]
    _check_any_fits(table, objects)
    noted = [*table.notes, *reader.notes]
    return [replace(one, notes=(*one.notes, *noted)) if one.problem is None else one for one in objects]


def _bare_example(
    table: _Table,
    name: str,
    rows: Sequence[_Row],
    image: ImageMatch | SourceError,
    options: LayoutOptions,
) -> SourceExample:
    """Return the example of a picture without its objects; it has a problem if there is no such file."""
    folder_split = splits_by_folders([image.path])[0] if isinstance(image, ImageMatch) else "train"
    shared = [dict(row.attributes) for row in rows]
    example = SourceExample(
        source=image.path if isinstance(image, ImageMatch) else name,
        key=image.path if isinstance(image, ImageMatch) else name,
        split=_agreed("split", rows, [row.split for row in rows])
        or split_in_file_name(table.file)
        or folder_split,
        group=_agreed("group", rows, [row.group for row in rows]) or None,
        attributes=tuple(
            (key, value) for key, value in shared[0].items() if all(one.get(key) == value for one in shared)
        ),
        notes=(image.note,) if isinstance(image, ImageMatch) and image.note else (),
    )
    return (
        replace(example, problem=image.at(rows[0].place).args) if isinstance(image, SourceError) else example
    )


def _agreed(column: str, rows: Sequence[_Row], values: Sequence[str]) -> str:
    """Return the value of all rows of a picture; raise AnnotationsError if they differ."""
    if len(set(values)) > 1:
        raise AnnotationsError(
            f"{rows[0].place}: {rows[0].picture} has several values of {column}; give it one"
        )
    return values[0]


def _check_any_fits(table: _Table, listed: Sequence[SourceExample]) -> None:
    """Raise AnnotationsError if most masks do not fit their pictures, which then are others than the annotated ones."""
    bad = [one for example in listed for one in example.bad_objects]
    bad += [one.problem[1:] for one in listed if one.problem and one.problem[1].startswith(_RUNS)]
    good = sum(len(one.boxes or one.class_runs or ()) for one in listed)
    if is_mostly_bad(len(bad), len(bad) + good):
        raise AnnotationsError(
            f"{table.file}: {len(bad)} of {len(bad) + good} masks do not fit their pictures: {bad[0][0]}: {bad[0][1]}; "
            "name the folder of the pictures that were annotated with --images"
        )


def _masks(
    by_picture: Mapping[str, Sequence[_Row]],
    sizes: Mapping[str, tuple[tuple[int, int], ...]],
    options: LayoutOptions,
) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield the runs of each row that can be read, with the size of its picture."""
    from halofeed.prep.voxels.run_lengths import parse_runs

    for name, found in sizes.items():
        for row in by_picture[name] if found else ():
            try:
                if row.runs:
                    yield parse_runs(row.runs), _chosen(found, options)
            except SourceError:  # it is listed as a bad object
                continue


def _notes_of_rule(rule: Any, *, is_measured: bool, order: str | None) -> Iterator[str]:
    """Yield remarks on a rule that differs from Kaggle's, or that nothing proves."""
    if not is_measured:
        yield (
            ": nothing shows whether its run lengths go down the columns, as Kaggle's do: taken so; --run-lengths rows "
            "takes them along the rows"
        )
    elif order is None and rule.order == "rows":
        yield ": run lengths go along the rows, as its masks show"
    if rule.relative:
        yield ": a run begins as many pixels behind the one before it as its number says"
    elif not rule.origin:
        yield ": pixels count from 0, as its masks show"


def _has_one_row_per_class(table: _Table) -> bool:
    """Return whether a table of several classes has at most one row for each picture and class."""
    counts = Counter((row.picture, row.label) for row in table.rows)
    return len({row.label for row in table.rows}) > 1 and max(counts.values()) == 1


@dataclass(frozen=True, kw_only=True)
class _RunReader:
    """Reader of the masks of one table by one rule."""

    rule: Any
    options: LayoutOptions
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        table: _Table,
        by_picture: dict[str, list[_Row]],
        sizes: dict[str, tuple[tuple[int, int], ...]],
        options: LayoutOptions,
    ) -> _RunReader:
        """Return the reader with the rule that the masks of all pictures show."""
        # The command line's help imports the layouts, and does without NumPy.
        from halofeed.prep.voxels.run_lengths import settle_rule

        order = None if options.run_lengths == "auto" else options.run_lengths
        try:
            rule, is_measured = settle_rule(_masks(by_picture, sizes, options), order)
        except SourceError as error:
            raise AnnotationsError(
                f"{table.file}: {error.reason} {error.detail}; name the folder of the pictures that were annotated "
                "with --images"
            ) from error
        notes = [f"{table.file}{note}" for note in _notes_of_rule(rule, is_measured=is_measured, order=order)]
        if not options.wants_label_images and _has_one_row_per_class(table):
            notes.append(
                f"{table.file} has one row for a picture and a class, each one object here; --task segmentation takes "
                "them as classes of pixels"
            )
        return cls(rule=rule, options=options, notes=tuple(notes))

    def with_objects(
        self, example: SourceExample, rows: Sequence[_Row], sizes: tuple[tuple[int, int], ...]
    ) -> SourceExample:
        """Return the example of a picture with its objects or with the masks of its classes."""
        try:
            if not sizes:
                raise SourceError("annotation", "size of the picture is not in its header", example.source)
            size = _chosen(sizes, self.options)
            written = {declared_size(*row.size) for row in rows} - {None}
            if written and written != {size}:
                detail = (
                    f"{rows[0].place}: {sorted(map(str, written))[0]}; the picture has {size} (height, width)"
                )
                raise SourceError("annotation", "declared size is not the picture's", detail)
            filled = [row for row in rows if row.runs]
            if self.options.wants_label_images:
                runs = [(row.label, mask.code) for row in filled if (mask := self._mask(row, size))]
                return replace(example, class_runs=tuple(runs), declared_size=size)
            boxes, bad = usable_boxes(filled, lambda row: self._box(row, size), self.options)
        except SourceError as error:
            return replace(example, problem=error.args)
        return replace(example, boxes=boxes, declared_size=size, bad_objects=bad)

    def _box(self, row: _Row, size: tuple[int, int]) -> Box | None:
        mask = self._mask(row, size)
        if mask is None:
            return None
        ymin, xmin, ymax, xmax = mask.box
        code = mask.code if self.options.masks else None
        return make_box(row.label, (xmin, ymin, xmax, ymax), row.place, area=mask.area, mask=code)

    def _mask(self, row: _Row, size: tuple[int, int]) -> Any:
        from halofeed.prep.voxels.run_lengths import mask_of_runs, parse_runs

        try:
            return mask_of_runs(parse_runs(row.runs), self.rule, size)
        except SourceError as error:
            raise error.at(row.place) from error


def _chosen(sizes: tuple[tuple[int, int], ...], options: LayoutOptions) -> tuple[int, int]:
    """Return the (height, width) of the annotated picture: as stored, or as displayed if the user says so."""
    return sizes[-1] if options.annotation_grid == "displayed" else sizes[0]
