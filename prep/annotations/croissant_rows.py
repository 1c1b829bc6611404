"""Rows of a record set in the Croissant format: the pictures that its fields name, with their classes and boxes.

    field default/image   fileSet pictures, fileProperty content        a row for each file of the set
    field default/label   fileSet pictures, regex of the full path      a text of the same file
    field images/label    fileObject labels.csv, column label           a row of the table whose key `references` names

Rows are those that mlcroissant makes: a left join from the source of the pictures. Values stay texts and numbers.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from halofeed.prep.annotations.columns import to_corners
from halofeed.prep.annotations.container_rows import (
    ContainerRow,
    choose_picture,
    parquet_records,
    picture_row,
)
from halofeed.prep.annotations.contract import LayoutOptions, read_required, split_in_file_name
from halofeed.prep.annotations.croissant_document import (
    CroissantDocument,
    CroissantField,
    Distribution,
    FieldSource,
    RecordSet,
    ids,
    read_croissant,
)
from halofeed.prep.annotations.stated_columns import parse_columns, single_columns
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.members import container_of
from halofeed.schemas.bounded_json import parse_json
from halofeed.system.errors import AnnotationsError
from halofeed.system.wording import did_you_mean

_MAX_VALUES = 10_000_000
_PATH = "//path"
"""Key of the path of a record's file. No column has this name."""
_PICTURE_TYPES = {"ImageObject"}
_MASK_TYPES = {"SegmentationMask"}
_DATA_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
_ARCHIVES = {".zip": "unzip -d", ".tar": "tar -xf", ".tgz": "tar -xf", ".gz": "tar -xf"}
_BOX_FORMS = {
    "XYXY": ("corners", False),
    "XYWH": ("corner-size", False),
    "CENTER_XYWH": ("center-size", False),
    "YXYX": ("corners", True),
}
"""Form, and whether y comes first, of Keras's names of the forms of a box; REL_ in front means shares of the sides."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reader of the records of a document.

    Args:
        files: files of the source.
        name: path of the document.
        document: its content.
        options: the user's options.
    """

    files: SourceFiles
    name: str
    document: CroissantDocument
    options: LayoutOptions

    # Record sets and fields -------------------------------------------------------------------------------

    def rows(self) -> Iterator[ContainerRow]:
        """Yield a row for each record of the record set with pictures."""
        chosen = self.record_set()
        fields = [self.resolved(field) for field in chosen.fields]
        fields = [field for field in fields if field.source is not None]
        pictures = {field.name: field for field in fields if _is_picture(field)}
        picture, label = self.picture_fields(pictures)
        base = pictures[picture].source.base  # type: ignore[union-attr]
        others = list(dict.fromkeys(f.source.base for f in fields if f.source and f.source.base != base))
        joins = [self.join(fields, base, other) for other in others]
        for record in self.records(base, fields):
            for joined in _joined(record, joins):
                yield self.row(joined, fields, base, picture, label)

    def record_set(self) -> RecordSet:
        """Return the record set with pictures; --column image=RECORDS/FIELD chooses one of several."""
        stated = single_columns(parse_columns(self.options.column)).get("image", "")
        found = [one for one in self.document.record_sets if any(map(_is_picture, one.fields))]
        named = [one for one in found if any(field.id == stated for field in one.fields)]
        found = named or found
        if not found:
            raise AnnotationsError(
                f"{self.name}: no record set has a field of the type sc:ImageObject; found "
                f"{ids(self.document.record_sets) or 'no record set'}; name the folder of the pictures, or the table"
            )
        if len(found) > 1:
            first = next(field for field in found[0].fields if _is_picture(field))
            fix = shlex.join(["--column", f"image={first.id}"])
            raise AnnotationsError(
                f"{self.name}: several record sets have pictures: {ids(found)}; name the field of one, such as {fix}"
            )
        return found[0]

    def picture_fields(self, pictures: Mapping[str, CroissantField]) -> tuple[str, str | None]:
        """Return the names of the picture and, for segmentation, of the label image."""
        masks = [name for name, field in pictures.items() if field.types & _MASK_TYPES]
        names = [name for name in pictures if name not in masks]
        if self.options.wants_label_images and len(masks) == len(names) == 1:
            return names[0], masks[0]
        stated = parse_columns(self.options.column)
        by_id = {field.id: name for name, field in pictures.items()}
        column = tuple(f"{key}={by_id.get(one, one)}" for key, found in stated.items() for one in found)
        every = list(pictures) if self.options.wants_label_images else names or list(pictures)
        return choose_picture(self.name, every, replace(self.options, column=column))

    def resolved(self, field: CroissantField) -> CroissantField:
        """Return a field with the source of the field that it takes its values from."""
        seen = set()
        while field.source and (other := self.document.field(field.source.base)) and other.id not in seen:
            seen.add(other.id)
            field = replace(field, source=other.source, types=field.types | other.types)
        return field

    # Joins ------------------------------------------------------------------------------------------------

    def join(self, fields: Sequence[CroissantField], base: str, other: str) -> _Join:
        """Return how the records of another source are found for those of the pictures."""
        every = [self.resolved(one) for found in self.document.record_sets for one in found.fields]
        by_id = {one.id: one for one in every}
        for one in every:
            referenced = by_id.get(one.references)
            target = one.target if referenced is None else referenced.source
            if one.source is None or target is None or {one.source.base, target.base} != {base, other}:
                continue
            sides = {one.source.base: one, target.base: replace(one, source=target)}
            by_key: dict[str, list[Record]] = {}
            for record in self.records(other, [*fields, sides[other]]):
                by_key.setdefault(_text(self.value(sides[other], record)), []).append(record)
            key = partial(self.value, sides[base])
            return _Join(other=other, key=lambda record: _text(key(record)), rows=by_key)
        raise AnnotationsError(
            f"{self.name}: nothing joins {base} with {other}; add references to a field of one that has the values of "
            "a field of the other, such as the file name"
        )

    # Records ----------------------------------------------------------------------------------------------

    def records(self, base: str, fields: Sequence[CroissantField]) -> Iterator[Record]:
        """Yield the records of a source: rows of its tables, or its files."""
        paths = self.paths(base)
        own = [one.source for one in fields if one.source is not None and one.source.base == base]
        is_table = any(one.extract in ("column", "jsonPath") for one in own)
        for path in paths:
            if is_table:
                yield from ({**row, _PATH: path} for row in self.table(path))
            else:
                yield {_PATH: path}

    def table(self, path: str) -> Iterator[Record]:
        """Yield the rows of a table."""
        kind = posixpath.splitext(path)[1].lower()
        if kind == ".parquet":
            for values, pictures in parquet_records(self.files, path):
                yield {**values, **pictures}
            return
        text = read_required(self.files, path)
        try:
            if kind in (".csv", ".tsv"):
                lines = text.decode("utf-8-sig").splitlines()
                yield from csv.DictReader(lines, delimiter="\t" if kind == ".tsv" else ",", restval="")
            elif kind == ".json":
                found = parse_json(text, _MAX_VALUES)
                yield from (
                    one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)
                )
            else:
                yield from (
                    json.loads(line) for line in text.decode("utf-8-sig").splitlines() if line.strip()
                )
        except (ValueError, csv.Error, RecursionError) as error:
            raise AnnotationsError(f"{path}: not readable as {kind.lstrip('.').upper()}: {error}") from error

    def paths(self, base: str) -> list[str]:
        """Return the files of a FileObject or FileSet, which lie beside the document."""
        found = self.document.files.get(base)
        if found is None:
            known = did_you_mean(base, self.document.files)
            raise AnnotationsError(
                f"{self.name}: a field takes values from {base!r}, which is no file; {known}correct its source"
            )
        if found.includes:
            return self.set_paths(found)
        if (path := self.object_path(found)) is not None:
            return [path]
        raise self.absent(found)

    def object_path(self, found: Distribution) -> str | None:
        """Return the path of a FileObject; None if it is not there."""
        folder = posixpath.dirname(self.name)
        url = urlsplit(found.url)
        names = [found.url] if not url.scheme else [posixpath.basename(url.path), found.id]
        inside = [posixpath.splitext(self.file_name(one))[0] for one in found.contained_in]
        for name in names:
            for above in ("", *inside):
                path = posixpath.normpath(posixpath.join(folder, above, name))
                if name and not path.startswith(("..", "/")) and self.files.size(path) is not None:
                    return path
        return None

    def file_name(self, identity: str) -> str:
        """Return the file name of a FileObject."""
        found = self.document.files.get(identity)
        return posixpath.basename(urlsplit(found.url if found else identity).path)

    def set_paths(self, found: Distribution) -> list[str]:
        """Return the files of a FileSet, sorted; patterns match full paths below the document or the archive."""
        folder = posixpath.dirname(self.name)
        start = f"{folder}/" if folder else ""
        inside = [f"{posixpath.splitext(self.file_name(one))[0]}/" for one in found.contained_in]
        includes, excludes = (
            [re.compile(fnmatch.translate(one.removeprefix("./"))) for one in patterns]
            for patterns in (found.includes, found.excludes)
        )
        chosen = []
        for path in self.files.sizes():
            if not path.startswith(start):
                continue
            below = path.removeprefix(start)
            forms = [below, *(below.removeprefix(one) for one in inside if below.startswith(one))]
            if _matches(forms, includes) and not _matches(forms, excludes):
                chosen.append(path)
        if not chosen:
            raise self.absent(found)
        return sorted(chosen)

    def absent(self, found: Distribution) -> AnnotationsError:
        """Return the error about files that are not beside the document."""
        folder = posixpath.normpath(f"{self.files.root}/{posixpath.dirname(self.name)}")
        what = ", ".join(found.includes) or found.url or found.id
        for identity in (*found.contained_in, found.id):
            archive = self.document.files.get(identity)
            path = None if archive is None else self.object_path(archive)
            command = _ARCHIVES.get(posixpath.splitext(path or "")[1].lower(), "")
            if path is not None and command:
                place = f"{self.files.root}/{path}"
                words = (
                    f"unzip {shlex.quote(place)} -d {shlex.quote(folder)}"
                    if command.startswith("unzip")
                    else f"tar -xf {shlex.quote(place)} -C {shlex.quote(folder)}"
                )
                return AnnotationsError(
                    f"{self.name}: {found.id}: {what} is inside {path}; unpack it with {words}"
                )
        return AnnotationsError(
            f"{self.name}: {found.id}: no file {what} lies below {folder}; download the data set "
            "there, as the document says"
        )

    # Values -----------------------------------------------------------------------------------------------

    def value(self, field: CroissantField, record: Record) -> Any:
        """Return the value of a field in a record of its source."""
        source = field.source
        assert source is not None
        path = record.get(_PATH, "")
        found: Any = path
        if source.extract == "fileProperty":
            found = self.property(source, path, field)
        elif source.extract == "column":
            found = record.get(source.what)
        elif source.extract == "jsonPath":
            found = _at_path(record, source.what, self.place(field))
        for kind, text in source.transforms:
            found = self.transformed(found, kind, text, field, record)
        return found

    def property(self, source: FieldSource, path: str, field: CroissantField) -> str:
        start = posixpath.dirname(self.name)
        below = path.removeprefix(f"{start}/") if start else path
        properties = {"content": path, "fullpath": below, "filename": posixpath.basename(path)}
        if source.what not in properties:
            raise AnnotationsError(
                f"{self.place(field)}: fileProperty {source.what!r} is not read; expected {', '.join(properties)}"
            )
        return properties[source.what]

    def transformed(self, found: Any, kind: str, text: str, field: CroissantField, record: Record) -> Any:
        if found is None:
            return None
        if kind == "regex":
            # The first group of a match at the beginning, as in mlcroissant.
            match = re.match(text, str(found))
            groups = match.groups() if match else ()
            return next((one for one in groups if one is not None), None) if match else None
        if kind == "jsonPath":
            # The bytes of a picture in a structure are a member of the file already.
            return (
                found
                if isinstance(found, str) and container_of(found)
                else _at_path(found, text, self.place(field))
            )
        if kind == "separator":
            return str(found).split(text)
        raise AnnotationsError(
            f"{self.place(field)}: transform {kind} is not read; expected regex, jsonPath or separator"
        )

    def place(self, field: CroissantField) -> str:
        """Return the place of a field for messages."""
        return f"{self.name}: field {field.id}"

    # Rows -------------------------------------------------------------------------------------------------

    def row(
        self,
        records: Mapping[str, Record],
        fields: Sequence[CroissantField],
        base: str,
        picture: str,
        label: str | None,
    ) -> ContainerRow:
        """Return the row of joined records, by the names of fields."""
        values: ContainerRow = {}
        for field in fields:
            assert field.source is not None
            record = records.get("" if field.source.base == base else field.source.base)
            found = None if record is None else self.value(field, record)
            found = self.named(field, found)
            if "BoundingBox" in field.types and found not in (None, ""):
                values |= self.box(field, found)
            elif self.is_split(field):
                values["split"] = found
            elif (column := _column_of_structure(field, record)) is not None:
                values[column] = record[column]  # type: ignore[index]
            elif field.name not in values:
                values[field.name] = found
        path, mask = values.pop(picture), values.pop(label) if label else None
        if not values.get("split") and (container := container_of(str(path or ""))):
            values["split"] = split_in_file_name(container) or "train"
        # A picture of a structure of bytes and path may be a structure still.
        return picture_row(values, str(path or ""), mask, replace(self.options, column=()))

    def is_split(self, field: CroissantField) -> bool:
        """Return whether a field is the split of its record, by its type or that of what it refers to."""
        owner = self.document.owner(field.references) if field.references else None
        return "Split" in field.types or (owner is not None and "Split" in owner.types)

    def named(self, field: CroissantField, value: Any) -> Any:
        """Return the name of a value that is the key of an inline enumeration; others unchanged."""
        owner = self.document.owner(field.references) if field.references else None
        if owner is None or not owner.data or "Split" in owner.types:
            return value
        names = {}
        for one in owner.data:
            keys = (field.references, field.references.rpartition("/")[2])
            key = next((one[name] for name in keys if name in one), None)
            texts = [text for name, text in one.items() if name.rpartition("/")[2] in ("name", "label")]
            names[_text(key)] = texts[0] if texts else key
        if isinstance(value, list):
            return [names.get(_text(one), one) for one in value]
        return names.get(_text(value), value)

    def box(self, field: CroissantField, value: Any) -> ContainerRow:
        """Return the corners of a box as columns, by the format of its source."""
        form = (field.source.format if field.source else "").upper()
        known = _BOX_FORMS.get(form.removeprefix("REL_"))
        if known is None:
            listed = ", ".join(_BOX_FORMS)
            raise AnnotationsError(
                f"{self.place(field)}: expected a format of its box, one of {listed}, or with REL_ in front, got "
                f"{form or 'none'}; write it into source"
            )
        numbers = value if isinstance(value, list) else re.split(r"[\s,;]+", str(value).strip("[]() "))
        try:
            first, second, third, fourth = map(float, numbers)
        except ValueError as error:
            raise AnnotationsError(
                f"{self.place(field)}: expected four numbers of a box, got {value!r:.80}"
            ) from error
        kind, is_y_first = known
        ordered = (second, first, fourth, third) if is_y_first else (first, second, third, fourth)
        return dict(zip(("xmin", "ymin", "xmax", "ymax"), to_corners(ordered, kind), strict=True))


@dataclass(frozen=True, kw_only=True)
class _Join:
    """Records of another source by their key.

    Args:
        other: id of the source.
        key: function from a record of the pictures' source to the key.
        rows: records of each key.
    """

    other: str
    key: Callable[[Record], str]
    rows: Mapping[str, Sequence[Record]]


def _joined(record: Record, joins: Sequence[_Join]) -> Iterator[dict[str, Record]]:
    """Yield the records of all sources that belong to one record; each match is one, and none is one without it."""
    combined: list[dict[str, Record]] = [{"": record}]
    for join in joins:
        # A picture without a row of the other table is a record with empty fields.
        found = join.rows.get(join.key(record)) or [{}]
        combined = [{**one, join.other: match} for one in combined for match in found]
    yield from combined


def _matches(texts: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.match(text) for pattern in patterns for text in texts)


def _is_picture(field: CroissantField) -> bool:
    return bool(field.types & (_PICTURE_TYPES | _MASK_TYPES))


def _column_of_structure(field: CroissantField, record: Record | None) -> str | None:
    """Return the column whose structure a field is a part of, such as the objects of a picture; None for others.

    Structures are read as a whole, since the parts of an object belong together.
    """
    source = field.source
    if record is None or source is None or source.extract != "column" or _is_picture(field):
        return None
    is_part = any(kind == "jsonPath" for kind, _ in source.transforms)
    return source.what if is_part and isinstance(record.get(source.what), dict | list) else None


def _text(value: Any) -> str:
    """Return a key as text; 3.0 of a table with gaps is the key 3."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def _at_path(value: Any, path: str, place: str) -> Any:
    """Return the value at a JSON path of names, such as $.a.b.

    >>> _at_path({"a": {"b": 3}}, "$.a.b", "x"), _at_path([{"b": 1}, {"b": 2}], "$[*].b", "x"), _at_path(None, "a", "x")
    (3, [1, 2], None)
    """
    text = path.removeprefix("$").lstrip(".")
    steps = [one for one in re.split(r"\.|(?=\[)", text) if one]
    if not all(re.fullmatch(r"[\w@ -]+|\[\*\]|\['[^']+'\]", one) for one in steps):
        raise AnnotationsError(
            f"{place}: JSON path {path!r} is not read; expected names with dots, such as $.a.b"
        )
    for step in steps:
        if step == "[*]":
            value = value if isinstance(value, list) else None
        elif isinstance(value, list):
            value = [one.get(_name(step)) if isinstance(one, dict) else None for one in value]
        else:
            value = value.get(_name(step)) if isinstance(value, dict) else None
    return value


def _name(step: str) -> str:
    return step[2:-2] if step.startswith("['") else step


def croissant_rows(files: SourceFiles, name: str, options: LayoutOptions) -> Iterator[ContainerRow]:
    """Yield a row for each record with a picture of a document.

    Raises:
        AnnotationsError: the document is damaged or unclear, or its files are not beside it.
    """
    document = read_croissant(files, name)
    yield from _Reader(files=files, name=name, document=document, options=options).rows()
