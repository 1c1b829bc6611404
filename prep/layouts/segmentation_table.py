"""Reader of CSV and JSONL tables with one scan and its label mask per row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from halofeed.prep.annotations.advice import suggest
from halofeed.prep.annotations.columns import match_columns
from halofeed.prep.annotations.contract import (
    LayoutOptions,
    grouped,
    rejected_example,
    sort_examples,
    split_in_file_name,
)
from halofeed.prep.annotations.pairing import MERGE_ADVICE
from halofeed.prep.annotations.resolve_boxes import resolve_grid
from halofeed.prep.annotations.stated_columns import parse_columns
from halofeed.prep.annotations.table_files import is_container
from halofeed.prep.annotations.tables import ColumnRules, TableRow, read_tables
from halofeed.prep.layouts.dicom import find_series, series_below
from halofeed.prep.sources.example import SourceExample, data_files
from halofeed.prep.sources.file_names import (
    ARRAY_EXTENSIONS,
    FolderIndex,
    extension_of,
    find_annotated_file,
    is_document_name,
    is_scan_or_array_name,
    is_still_name,
    iterate_scans,
    relative_path,
    volume_files,
)
from halofeed.prep.sources.files import SourceFiles, path_from
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import SeriesListing

_SPELLINGS = {
    "image": (("image",), ("imagepath", "imagefile", "img", "scan", "volume")),
    "label": (("label",), ("labelpath", "labelfile", "mask", "maskpath", "segmentation", "seg")),
    **{name: ((name,),) for name in ("id", "group", "split")},
}


def list_references(
    form: str,
    annotations: SourceFiles,
    images: SourceFiles,
    annotation_file: str | None,
    options: LayoutOptions,
) -> Iterator[SourceExample]:
    """Yield an example for every row of the tables, and one for every scan that is in no row.

    The columns are `image,label[,id,group,split]`. Paths are relative to the table's folder or to --images, and no
    other files are tried.

    An image is a volume, a picture, a DICOM file, or a folder with one DICOM series. For a folder with several
    series, the table contains the name that the layout `dicom` lists. Several files or folders, separated by `;` or
    as a JSONL list, are channels of one image. A DICOM series without a group has the hash of its patient as group.

    A label is a volume, a mask PNG, a DICOM SEG or RTSTRUCT, a folder that contains only such a file, or a folder of
    label slices: DICOM images, or a picture for each slice of a DICOM series. Several labels, separated by `;`, are
    merged, and so are those of several rows of an image with --several-masks. An empty cell means an image for
    prediction only. Without a split column, the table's name contains the split.

    Raises:
        AnnotationsError: columns are missing or the file is not a table.
    """
    columns = ColumnRules(
        required=("image", "label"),
        text=("id", "label", "split", "group"),
        expected="id,image,label[,group,split], one scan a row; id may be left out, and a cell under label be empty",
        spellings=_SPELLINGS,
        read=lambda name, header, stated: match_columns(
            name, header, _SPELLINGS, options.ignore_columns, stated
        ),
        options=options,
    )
    tables = read_tables(form, annotations, annotation_file, columns, images)
    index = FolderIndex(images)
    rows_of = [[_from_the_root(row, annotations.root, images.root) for row in table.rows] for table in tables]
    # All folders at once: the headers of their files are read in parallel.
    folders = dict.fromkeys(folder for rows in rows_of for row in rows for folder in _folders_of(row, index))
    series = series_below(images, tuple(folders), options) if folders else {}
    reader = _RowReader(index=index, options=options, series=series)
    listed: list[tuple[TableRow, SourceExample]] = []
    for table, rows in zip(tables, rows_of, strict=True):
        split, notes = split_in_file_name(table.file) or "train", table.notes(options.group_column)
        listed += [(row, replace(reader.example(row, split), notes=notes)) for row in rows]
    _check_label_column(listed, tables[0].header, (form, annotations, images, annotation_file), options)
    examples = resolve_grid(_with_rows_joined(listed, options.several_masks), images, options)
    used = {path for example in examples for path in example.paths}
    used |= data_files(images, used)
    named = _named_paths(listed, images.root)
    folders_of = {path.rpartition("/")[0] for path in used | named}
    files = _NamedFiles(used=used, named=named, folders=folders_of)
    # One of several tables does not describe the files of the others.
    unlisted = _unlisted_everywhere if annotation_file is None else _unlisted_beside
    yield from sort_examples([*examples, *unlisted(files, images, options)])


_IN_NO_ROW = ("selection", "file is in no row of the table", "")
_LABEL_NOT_FOUND = "label file not found"
"""Reason of `find_annotated_file`."""
_Source = tuple[str, SourceFiles, SourceFiles, str | None]


def _check_label_column(
    listed: Sequence[tuple[TableRow, SourceExample]],
    header: Sequence[str],
    source: _Source,
    options: LayoutOptions,
) -> None:
    """Refuse a table without any label that is a file, if another column that may be the label holds files.

    pyradiomics' tables have the columns Image, Mask and Label, where Label is the value within the mask.
    """
    # The user has named the column.
    if not _is_no_label_found(listed) or "label" in parse_columns(options.column):
        return
    column = match_columns("", header, _SPELLINGS, options.ignore_columns).columns["label"]
    ignored = (*options.ignore_columns, column)
    other = match_columns("", header, _SPELLINGS, ignored).columns.get("label")
    # No other column may be the label, so its files are missing.
    if other is None:
        return
    chosen = replace(options, ignore_columns=ignored)

    def pair(words: Sequence[str]) -> str | None:
        count = sum(one.problem is None and one.is_labelled for one in list_references(*source, chosen))
        return f"takes the labels of {plural(count, 'image')} from {other}" if count else None

    for suggestion in suggest([("--ignore-columns", ",".join(ignored))], pair):
        raise AnnotationsError(
            f"{listed[0][0].file}: columns {column} and {other} can both be the label, and nothing below {column} is a "
            f"file: {suggestion}"
        )


def _is_no_label_found(listed: Sequence[tuple[TableRow, SourceExample]]) -> bool:
    """Return whether a table names labels, and none of them is a file."""
    named = [one for row, one in listed if row.cell("label")]
    return bool(named) and all(one.problem and one.problem[1] == _LABEL_NOT_FOUND for one in named)


def _folders_of(row: TableRow, index: FolderIndex) -> Iterator[str]:
    """Yield the folders that a row names, without the suffix of a series."""
    cells = () if row.fault else (_split_cell(row.cell("image")), _label_files(row.cell("label"), index))
    for written in chain(*cells):
        path = relative_path(written, index.files.root)
        # A file is read by its row; only folders need the headers of all their files.
        if index.files.size(path) is not None:
            continue
        folder = path if index.files.has_folder(path) else path.rpartition("#")[0]
        # Folders of files elsewhere or without files are reported with their rows.
        if folder and index.below(folder):
            yield folder


@dataclass(frozen=True, kw_only=True)
class _RowReader:
    """Reader of the files that rows name; `series` are those of the folders that any row names."""

    index: FolderIndex
    options: LayoutOptions
    series: Mapping[str, SeriesListing]

    def example(self, row: TableRow, split: str) -> SourceExample:
        """Return the example of a row, in this split if the row has none; with a problem if a file is missing."""
        written = _split_cell(row.cell("image"))
        source = relative_path(written[0], self.index.files.root) if written else row.place
        known = SourceExample(
            source=source,
            key=row.cell("id") or source,
            split=row.cell("split") or split,
            group=row.cell("group") or None,
            attributes=tuple(row.attributes.items()),
        )
        try:
            if row.fault:
                raise SourceError("annotation", *row.fault)
            # An empty cell under label is a test image; one under image is a mistake.
            if not written:
                raise SourceError("annotation", "row names no file", "the cell under image is empty")
            image = self._with_image(known, written)
            image = replace(image, key=row.cell("id") or image.source)
            return self._with_labels(image, _label_files(row.cell("label"), self.index))
        except SourceError as error:
            return replace(known, problem=error.at(row.place).args)

    def _with_labels(self, image: SourceExample, written: Sequence[str]) -> SourceExample:
        """Return the example of an image with its labels."""
        labels = [self._label(path, image) for path in written]
        masks = [path for path, _ in labels]
        # Merging a mask with itself would hide that the other one is missing.
        if len(set(masks)) < len(masks):
            raise SourceError("annotation", "label is listed twice", "; ".join(masks))
        # A shifted column: voxels would be their own labels.
        if same := [path for path in masks if path in (*image.paths, image.source)]:
            raise SourceError("annotation", "image and label are one file", same[0])
        folders = (*image.mask_members, *((path, files) for path, files in labels if files))
        return replace(
            image, mask=masks[0] if masks else None, more_masks=tuple(masks[1:]), mask_members=folders
        )

    def _with_image(self, known: SourceExample, written: Sequence[str]) -> SourceExample:
        """Return the example with the files of its image."""
        # Several files in a cell are channels, such as T1 and T2 of one head.
        if len(written) > 1:
            return self._with_channels(known, written)
        if (series := self._series_at(written[0])) is not None:
            return _as_channels(known, [series])
        images = self.index.files
        is_file = images.size(relative_path(written[0], images.root)) is not None
        path = find_annotated_file(written[0], "image", images)
        # A DICOM file has no telling name; as a member it is opened by its content.
        takes_file = self.options.takes_scan(path) or path.lower().endswith(ARRAY_EXTENSIONS)
        return replace(known, source=path, members=() if is_file and takes_file else (path,))

    def _with_channels(self, known: SourceExample, written: Sequence[str]) -> SourceExample:
        """Return the example of an image of several channels, which are all DICOM series or all files."""
        found = [self._series_at(path) for path in written]
        series = [one for one in found if one is not None]
        # All channels are folders of DICOM series.
        if len(series) == len(found):
            return _as_channels(known, series)
        # Grids of series and of files are compared by different means.
        if series:
            detail = f"{'; '.join(written)}; save those in folders as NIfTI"
            raise SourceError("annotation", "channels are DICOM folders and files", detail)
        paths = [find_annotated_file(path, "image", self.index.files) for path in written]
        # Two equal channels are a mistake in the row.
        if len(set(paths)) < len(paths):
            raise SourceError("annotation", "channel is listed twice", "; ".join(paths))
        # A single DICOM file as a channel has no neighbors that give its spacing.
        if others := [path for path in paths if not is_scan_or_array_name(path)]:
            reason = "channels are not volumes in files or pictures"
            raise SourceError("annotation", reason, ", ".join(others[:3]))
        return replace(known, source=paths[0], channels=tuple(paths[1:]))

    def _series_at(self, written: str) -> SourceExample | None:
        """Return the DICOM series at a path; None if the path is not a folder of DICOM files."""
        path = relative_path(written, self.index.files.root)
        if self.index.files.size(path) is not None or (
            path not in self.series and path.rpartition("#")[0] not in self.series
        ):
            return None
        return find_series(self.index.files, path, self.series, self.options)

    def _label(self, written: str, image: SourceExample) -> tuple[str, tuple[str, ...]]:
        """Return the path of a label, and its files if they are slices."""
        images = self.index.files
        path = relative_path(written, images.root)
        is_folder = images.size(path) is None and images.has_folder(path)
        below = self.index.below(path) if is_folder else []
        # A file, or a name with # and a series' hash.
        if not below:
            found = self._series_at(written)
            return (found.source, found.members) if found else (self._label_file(written, written), ())
        # A folder of one volume, such as .hdr with .img, is that volume.
        if set(below) <= set(volume_files(below[0])):
            return self._label_file(below[0], written), ()
        return self._slices(written, path, below, image)

    def _slices(
        self, written: str, path: str, below: Sequence[str], image: SourceExample
    ) -> tuple[str, tuple[str, ...]]:
        """Return a folder of label slices and their files: pictures for the slices of a series, or DICOM images."""
        if all(map(is_still_name, below)):
            # Only a series has slices that pictures can be paired with, in the order of their names.
            if not (image.members or image.stored):
                detail = f"{plural(len(below), 'picture')} in {path}, and the image is no DICOM series; name one file"
                raise SourceError("annotation", "label folder holds several files", detail)
            return path, tuple(sorted(below))
        # Several masks in one folder may be those of classes, which the layout class-masks reads.
        if any(map(is_scan_or_array_name, below)):
            raise SourceError(
                "annotation", "label folder holds several files", f"{plural(len(below), 'file')} in {path}"
            )
        found = self._series_at(written)
        # Label slices as DICOM images: their headers order them.
        if found is not None:
            return found.source, found.members or tuple(below)
        return self._label_file(below[0], written), ()

    def _label_file(self, path: str, written: str) -> str:
        """Return the path of a label in one file."""
        try:
            return find_annotated_file(path, "label", self.index.files)
        except SourceError as error:
            if error.reason != _LABEL_NOT_FOUND or extension_of(written):
                raise
            # A name without an extension is mostly none: "None", "NaN", "-".
            detail = f"{error.detail}; if the image has no label, leave the cell empty"
            raise SourceError(error.stage, error.reason, detail) from None


def _from_the_root(row: TableRow, annotations_root: str, root: str) -> TableRow:
    """Return the row with paths that lead upwards from the table converted to paths from the root."""
    cells = {}
    for column in ("image", "label"):
        paths = _split_cell(row.cell(column))
        # Addresses have no parent folders to go up to.
        if is_remote(annotations_root) or not any(path.startswith(("../", "..\\")) for path in paths):
            continue
        cells[column] = json.dumps(
            [path_from(annotations_root, path.replace("\\", "/"), root) for path in paths]
        )
    return replace(row, cells={**row.cells, **cells}) if cells else row


def _split_cell(cell: str) -> list[str]:
    """Return the files that a cell names: one, several separated by `;`, or a JSON list.

    >>> _split_cell("t1.nii.gz; t2.nii.gz"), _split_cell('["a.nii", "b;c.nii"]'), _split_cell("")
    (['t1.nii.gz', 't2.nii.gz'], ['a.nii', 'b;c.nii'], [])
    """
    # JSONL has lists for several files; a CSV cell may hold one as text.
    if cell.startswith("["):
        try:
            listed = json.loads(cell)
        except (ValueError, RecursionError):
            listed = None
        # A file name may begin with a bracket, too.
        if isinstance(listed, list) and all(isinstance(path, str) and path for path in listed):
            return listed
    return [path.strip() for path in cell.split(";") if path.strip()]


def _as_channels(known: SourceExample, series: Sequence[SourceExample]) -> SourceExample:
    """Return the example with one or several DICOM series as the channels of its image."""
    first, *others = series
    names = [one.source for one in series]
    # Two equal channels are a mistake in the row.
    if len(set(names)) < len(names):
        raise SourceError("annotation", "channel is listed twice", "; ".join(names))
    # A channel is a path, which cannot say which volume of its series is meant.
    if parts := [one.source for one in others if one.volume is not None]:
        detail = f"{parts[0]}; save it as NIfTI, or give it a folder of its own"
        raise SourceError("annotation", "channel is one of several volumes of a series", detail)
    # Channels of two people are not one image; the hash of PatientID (DICOM PS3.3 C.7.1.1) shows it.
    if len({one.group for one in series if one.group is not None}) > 1:
        raise SourceError("annotation", "channels are of different patients (PatientID)", "; ".join(names))
    return replace(
        known,
        source=first.source,
        members=first.members,
        stored=first.stored,
        volume=first.volume,
        channels=tuple(one.source for one in others),
        mask_members=tuple((one.source, one.members) for one in others),
        group=known.group or first.group,
    )


def _label_files(cell: str, index: FolderIndex) -> list[str]:
    """Return the files that a label cell names; a file name may contain a semicolon itself."""
    if not cell:
        return []
    is_list = cell.startswith("[")
    is_one = ";" not in cell or index.files.size(relative_path(cell, index.files.root)) is not None
    return [cell] if is_one and not is_list else _split_cell(cell)


def _with_rows_joined(
    listed: Sequence[tuple[TableRow, SourceExample]], several_masks: str
) -> list[SourceExample]:
    """Return an example for each image; that of an image in several rows has all their labels, or a problem.

    Args:
        several_masks: handling of several labels of one image, see `LayoutOptions`.
    """
    by_source = grouped((example.source, (row, example)) for row, example in listed)
    result = []
    for same in by_source.values():
        example = same[0][1]
        # Rows may have different labels, or put one image into two splits.
        if len(same) > 1:
            examples = [one for _, one in same]
            joined = _joined(examples)
            if joined is not None and several_masks != "refuse":
                result.append(joined)
                continue
            places = ", ".join(row.place for row, _ in same[:3])
            fix = "" if joined is None else f"; {MERGE_ADVICE}"
            problem = ("annotation", "image is in several rows", f"{places}{fix}")
            example = replace(example, mask=None, more_masks=(), problem=problem)
        result.append(example)
    return result


def _joined(examples: Sequence[SourceExample]) -> SourceExample | None:
    """Return the example of the rows of one image, with the labels of all; None if they differ in more than these."""
    masks = [path for one in examples for path in one.masks]
    alike = {(one.key, one.split, one.group, one.channels, one.problem) for one in examples}
    # Merging a mask with itself would hide that the other one is missing.
    if len({*masks}) < max(len(masks), len(examples)) or len(alike) > 1 or examples[0].problem:
        return None
    members = dict.fromkeys(member for one in examples for member in one.mask_members)
    return replace(examples[0], mask=masks[0], more_masks=tuple(masks[1:]), mask_members=tuple(members))


def _named_paths(listed: Iterable[tuple[TableRow, SourceExample]], root: str) -> set[str]:
    """Return the paths that any row names, including rows with a problem."""
    return {
        relative_path(path, root)
        for row, _ in listed
        for cell in (row.cell("image"), row.cell("label"))
        for path in (cell, *_split_cell(cell))
        if path
    }


@dataclass(frozen=True, kw_only=True)
class _NamedFiles:
    """Files that examples use, paths that rows name, including rows with a problem, and the folders of all."""

    used: set[str]
    named: set[str]
    folders: set[str]

    def covers(self, path: str) -> bool:
        """Return whether a file is named, is in a folder that is named, or is a table with its pictures itself."""
        # Nothing is lost silently: every other scan is listed with its reason.
        if is_container(path) or path in self.used or path in self.named:
            return True
        return not self.named.isdisjoint(_folders_above(path))


def _unlisted_beside(
    files: _NamedFiles, images: SourceFiles, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example with a problem for each scan in no row, in the folders of the named files."""
    inside = sorted(folder for folder in files.folders if not folder.startswith(("/", "..")))
    paths = [path for folder in inside for path in images.files_in(folder)]
    for path in _whole_scans(paths, options):
        if path.rpartition("/")[0] in files.folders and not files.covers(path):
            yield rejected_example(path, _IN_NO_ROW)


def _unlisted_everywhere(
    files: _NamedFiles, images: SourceFiles, options: LayoutOptions
) -> Iterator[SourceExample]:
    """Yield an example with a problem for each scan in no row, and for each folder of other files in no row."""
    paths = [path for path in images.sizes() if not files.covers(path)]
    whole = set(_whole_scans(images.sizes(), options))
    yield from (rejected_example(path, _IN_NO_ROW) for path in paths if path in whole)
    others = Counter(path.rpartition("/")[0] for path in paths if _may_be_dicom(path, options))
    for folder, count in others.items():
        # Files straight in the root are documents and scripts.
        if folder and folder not in files.folders:
            detail = f"{plural(count, 'file')} that may be DICOM"
            yield rejected_example(folder, ("selection", "folder is in no row of the table", detail))


def _whole_scans(paths: Iterable[str], options: LayoutOptions) -> Iterator[str]:
    """Yield each scan once, though it may have several files."""
    return iterate_scans(set(paths), options.takes_scan)


def _may_be_dicom(path: str, options: LayoutOptions) -> bool:
    """Return whether a file may be a slice: DICOM files often have no extension, so all other names may be."""
    return not options.takes_scan(path) and not is_document_name(path)


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders that contain a file.

    >>> list(_folders_above("a/b/c.nii"))
    ['a', 'a/b']
    """
    parts = path.split("/")[:-1]
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
