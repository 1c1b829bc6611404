"""Reader of tables of boxes in scans, in voxels or in millimeters: volumes in files or DICOM series.

A row has one box; a row of JSONL may also have a list of objects with their boxes.

A row names a scan by its path, its file name, or its file name without extension, and has a box: two corners, a corner
or a center with sizes, or a center with a diameter or radius (a sphere). Columns class, split and group are optional. A
row without numbers says that its scan has no object.

Nothing in a table states the unit of its numbers, unless the names of columns do (`x_mm`). It is measured: in the right
unit the boxes lie in their scans. Where several units fit, --scan-box-units names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from halofeed.prep.annotations.class_names import note_similar_classes
from halofeed.prep.annotations.contract import LayoutOptions, grouped, rejected_example, sort_examples
from halofeed.prep.annotations.scan_box_columns import (
    SCAN_SPELLINGS,
    BoxForm,
    describe_columns,
    find_box_form,
    listed_boxes_form,
    read_scan_columns,
)
from halofeed.prep.annotations.scan_box_rows import AUTO, WrittenBox, is_blank, measure_unit, read_box
from halofeed.prep.annotations.table_files import table_files
from halofeed.prep.annotations.tables import ColumnRules, Table, TableRow, read_tables
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume_formats import open_scan
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.layouts.dicom import list_scans
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import is_volume_name, iterate_scans, stem_of
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, Problem, SourceError
from halofeed.system.wording import plural

_JSON_LINES = (".jsonl", ".ndjson")
_MEASURED_SCANS = 16
"""Scans whose headers are read to measure the unit."""
_CHANNEL = "_0000"
_NO_CLASS = "object"
_NOT_THERE: Problem = ("annotation", "scan of a row is not there", "")
_NO_ROW: Problem = (
    "selection",
    "scan has no row in the table",
    "a row with its name alone says that it has no object",
)


@dataclass(frozen=True, kw_only=True)
class ScanTableRules:
    """Rules by which a format of such tables differs from the general form.

    Args:
        unit: unit of the numbers; "auto" measures it.
        label: class of rows without one.
        unlisted: problem of scans without a row; None if these have no object.
        missing: problem of rows whose scan is not there.
        group_of: function that returns the group of a scan, from its path; None uses the table's column.
    """

    unit: str = AUTO
    label: str = _NO_CLASS
    unlisted: Problem | None = _NO_ROW
    missing: Problem = _NOT_THERE
    group_of: Callable[[str], str | None] | None = None


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example for every scan below the folder with its boxes, and one for every row of a scan that is missing.

    Raises:
        AnnotationsError: no table has boxes of scans, or the unit of its numbers is not certain.
    """
    rules = ScanTableRules(unit=options.scan_box_units)
    yield from list_scan_table(annotations, images, annotation_file, options, rules)


def list_scan_table(
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
    rules: ScanTableRules,
) -> Iterator[SourceExample]:
    """Yield the examples of `list_references` by the rules of one format."""
    table = _read_table(annotations, images, annotation_file, options)
    form = find_box_form(table.header)
    assert form is not None
    index = _ScanIndex(images, options)
    rows = grouped((row.cell("scan"), row) for row in table.rows)
    if not any(index.find(name) for name in rows):
        first = next(iter(rows), "")
        raise AnnotationsError(
            f"{table.file}: no row names a scan in {images.root}, such as {first!r}; found "
            f"{', '.join(islice(index.scans, 3)) or 'no volume file'}; name their folder with --images"
        )
    listed = [_Listed.of(name, found, index, form, rules) for name, found in rows.items()]
    listed = _joined(listed)
    unit = rules.unit
    if unit == AUTO:
        unit = _measured_unit(listed, index, images, form, table.file)
    examples = [one.example(unit, options, rules, table, index.scans.get(one.source)) for one in listed]
    named = {one.source for one in listed}
    others = [_unlisted(scan, rules) for path, scan in index.scans.items() if path not in named]
    yield from sort_examples(note_similar_classes([*examples, *others]))


def _unlisted(scan: SourceExample, rules: ScanTableRules) -> SourceExample:
    """Return the example of a scan without a row: one without an object, or one that is left out."""
    if scan.problem is not None:
        return scan
    if rules.unlisted is not None:
        return rejected_example(scan.source, rules.unlisted)
    group = rules.group_of(scan.source) if rules.group_of else scan.group
    return replace(scan, boxes=(), group=group)


def _read_table(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Table:
    """Return the table with boxes of scans; raise AnnotationsError if there is none, or there are several."""
    rule = ColumnRules(
        required=("scan",),
        text=("scan", "class", "split", "group"),
        expected="a column of the scan, such as filename, and xmin,ymin,zmin,xmax,ymax,zmax",
        spellings=SCAN_SPELLINGS,
        read=read_scan_columns,
        options=options,
        form=listed_boxes_form,
    )
    tables, faults = [], []
    for name, form in _table_files(annotations, annotation_file):
        try:
            tables += read_tables(form, annotations, name, rule, images)
        # Other tables may describe the patients.
        except AnnotationsError as error:
            faults.append(error)
    found = [one for one in tables if find_box_form(one.header)]
    if not found and tables:
        raise AnnotationsError(
            f"{tables[0].file}: it has no boxes of scans; {describe_columns(tables[0].header)}"
        )
    if not found:
        raise faults[0]
    if len(found) > 1:
        listed = ", ".join(table.file for table in found)
        raise AnnotationsError(
            f"{annotations.root}: {listed} have boxes of scans; name one of them with --source"
        )
    return found[0]


def _table_files(annotations: SourceFiles, annotation_file: str | None) -> list[tuple[str, str]]:
    """Return (file, form) of each table that may have boxes of scans; raise AnnotationsError if there is none."""
    if annotation_file is not None:
        is_json = annotation_file.lower().endswith(_JSON_LINES)
        return [(annotation_file, "jsonl" if is_json else "csv")]
    found = []
    if any(path.lower().endswith(_JSON_LINES) for path in annotations.sizes()):
        found += [(name, "jsonl") for name in table_files(annotations, None, "jsonl")]
    # Without any table, the message expects the usual one.
    if not found or any(path.lower().endswith((".csv", ".tsv")) for path in annotations.sizes()):
        found += [(name, "csv") for name in table_files(annotations, None, "csv")]
    return found


class _ScanIndex:
    """Scans of a source, by the names that a table may use for them: volume files, or without any DICOM series."""

    def __init__(self, images: SourceFiles, options: LayoutOptions) -> None:
        paths = sorted(iterate_scans(images.sizes(), is_volume_name))
        self.scans = {path: SourceExample(source=path, key=path) for path in paths}
        names = [(name, path) for path in paths for name in dict.fromkeys(_names_of(path))]
        self._key_of = options.series.key
        # DICOM beside volumes in files is mostly what they were made from.
        if not paths and images.sizes():
            names = self._add_series(images, options)
        self._found = grouped(names)

    def _add_series(self, images: SourceFiles, options: LayoutOptions) -> list[tuple[str, str]]:
        """Take the DICOM series as scans, and return (name, source) of each: its folder, and the hash of its UID."""
        try:
            found, _ = list_scans(images, options)
        except AnnotationsError:  # the caller reports that no scan is named
            return []
        self.scans = {one.source: one.example for one in found}
        names = []
        for one in found:
            folder = one.source.partition("#")[0]
            known = (one.source, folder, folder.rpartition("/")[2], one.scan.series)
            names += [(name, one.source) for name in dict.fromkeys(known) if name]
        return names

    def find(self, written: str) -> list[str]:
        """Return the scans that a name may mean: those of its path, or else of its file name."""
        name = written.replace("\\", "/").strip().removeprefix("./")
        for one in (name, name.rpartition("/")[2]):
            if found := self._found.get(one):
                return found
        if is_volume_name(name):
            return self._found.get(stem_of(name), [])
        return self._found.get(self._key_of(name.encode()) or "", [])


def _names_of(path: str) -> Iterator[str]:
    stem = stem_of(path)
    yield path
    yield path.rpartition("/")[2]
    yield path[: len(path) - len(path.rpartition("/")[2])] + stem
    yield stem
    # nnU-Net and nnDetection number the channels of a case.
    if stem.endswith(_CHANNEL):
        yield stem.removesuffix(_CHANNEL)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """Rows of one scan.

    Args:
        source: path of the scan, or its name in the table if it is not there.
        boxes: boxes of usable rows.
        rows: all rows.
        bad: (reason, detail) of each unusable row.
        problem: why the scan cannot be used.
    """

    source: str
    boxes: tuple[WrittenBox, ...]
    rows: tuple[TableRow, ...]
    bad: tuple[tuple[str, str], ...] = ()
    problem: Problem | None = None

    @classmethod
    def of(
        cls, name: str, rows: Sequence[TableRow], index: _ScanIndex, form: BoxForm, rules: ScanTableRules
    ) -> _Listed:
        """Return the rows that name one scan in the same way."""
        found = index.find(name)
        first = rows[0].place
        if not found:
            stage, reason, detail = rules.missing
            problem = (stage, reason, f"{first}: {name!r}{'; ' if detail else ''}{detail}")
            return cls(source=name or first, boxes=(), rows=tuple(rows), problem=problem)
        if len(found) > 1:
            detail = f"{first}: {name!r} is {', '.join(found[:3])}; write the path of one of them"
            return cls(
                source=found[0],
                boxes=(),
                rows=tuple(rows),
                problem=("annotation", "name of a row fits several scans", detail),
            )
        boxes, bad = [], []
        for row in rows:
            if row.fault is not None:
                bad.append((row.fault[0], f"{row.place}: {row.fault[1]}"))
            elif not is_blank(row, form):
                try:
                    boxes.append(read_box(row, form, row.cell("class") or rules.label))
                except SourceError as error:
                    bad.append((error.reason, error.detail))
        return cls(source=found[0], boxes=tuple(boxes), rows=tuple(rows), bad=tuple(bad))

    def example(
        self,
        unit: str,
        options: LayoutOptions,
        rules: ScanTableRules,
        table: Table,
        scan: SourceExample | None,
    ) -> SourceExample:
        """Return the example of the scan; `scan` is the one without objects, None for one that is not there."""
        scan = scan or SourceExample(source=self.source, key=self.source)
        split, problem = self._only("split", "train")
        group, other = self._only("group", scan.group)
        if rules.group_of is not None and self.problem is None:
            group = rules.group_of(self.source)
        if self.bad and options.on_bad_object == "reject":
            problem = problem or ("annotation", *self.bad[0])
        return replace(
            scan,
            split=split or "train",
            group=group,
            boxes=tuple(box.in_unit(unit) for box in self.boxes),
            bad_objects=self.bad,
            problem=self.problem or scan.problem or problem or other,
            notes=table.notes(options.group_column),
        )

    def _only(self, column: str, default: str | None) -> tuple[str | None, Problem | None]:
        """Return the value of a column that all rows share, and the problem if they differ."""
        values = list(dict.fromkeys(value for row in self.rows if (value := row.cell(column))))
        if len(values) > 1:
            return values[0], ("annotation", f"rows of a scan differ in {column}", ", ".join(values[:3]))
        return (values[0] if values else default), None


def _joined(listed: Iterable[_Listed]) -> list[_Listed]:
    """Return the rows of each scan together, which a table may name in several ways."""
    by_source = grouped((one.source, one) for one in listed)
    joined = []
    for found in by_source.values():
        first, *others = found
        for other in others:
            first = replace(
                first,
                boxes=(*first.boxes, *other.boxes),
                rows=(*first.rows, *other.rows),
                bad=(*first.bad, *other.bad),
                problem=first.problem or other.problem,
            )
        joined.append(first)
    return joined


def _measured_unit(
    listed: Sequence[_Listed], index: _ScanIndex, images: SourceFiles, form: BoxForm, place: str
) -> str:
    """Return the unit of the numbers, measured on some scans with boxes."""
    with_boxes = [one for one in listed if one.problem is None and one.boxes]
    step = max(1, len(with_boxes) // _MEASURED_SCANS)
    chosen: Mapping[str, Sequence[WrittenBox]] = {
        one.source: one.boxes for one in with_boxes[::step][:_MEASURED_SCANS]
    }
    # Without any box all units are the same.
    if not chosen:
        return "voxels"
    grids = {path: _grid_of(images, index.scans[path]) for path in chosen}
    if not any(grids.values()):
        raise AnnotationsError(
            f"{place}: none of {plural(len(grids), 'scan')} can be opened to measure the unit of its boxes, such as "
            f"{next(iter(grids))}; repair them"
        )
    return measure_unit(chosen, grids.__getitem__, form.unit, place)


def _grid_of(images: SourceFiles, scan: SourceExample) -> Grid | None:
    try:
        return open_scan(images, scan.source.partition("#")[0], scan.members, ScanOptions(), scan.volume).grid
    except SourceError:  # the conversion rejects the scan with its reason
        return None
