"""Label maps, which assign an id to each class name: from the data or from a file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from halofeed.prep.annotations.class_documents import read_class_document, xml_entries
from halofeed.prep.annotations.class_names import BACKGROUND, class_number, shorten_list, sort_class_names
from halofeed.prep.annotations.class_rows import ClassRow, ClassTable, is_background, is_ignored
from halofeed.prep.annotations.class_tables import read_class_table
from halofeed.prep.annotations.documents import parse_xml_document, parse_yaml
from halofeed.schemas.fields import channel_ids, set_dtype
from halofeed.schemas.limits import LABEL_LENGTH, LABELS
from halofeed.schemas.text_proto import parse_text_proto
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import did_you_mean, plural

VOC_VOID = 255
"""Value of pixels that belong to no class in VOC and in many sets after it."""
LARGEST_LABEL = 65535
"""Largest value of a label image of 16 bits."""
_UNKNOWN = "mask has unknown labels"
_MAX_FIXED = 20
"""Unknown values that a message suggests to map; more are likely an image in place of a label (an estimate)."""


@dataclass(frozen=True, kw_only=True)
class LabelMap:
    """Class names by id.

    Args:
        entries: (id, name) in ascending order of id; gaps are allowed.
        first_id: smallest allowed id: 0 for classification; 1 for detection, where 0 is the background.
        aliases: (other name, id), the display names of a .pbtxt file.
        where: file or other origin of the map, for messages only.
        is_open: segmentation without class names: every value is a class and its own name.
        values: segmentation: (value of a label image, id), with id 0 for values that are left out; None if values are
            ids. If records hold sets of classes, a value of several classes (regions) has one pair per id.
        drops_others: segmentation: whether to leave out values that are not in `values`.
        ignore: segmentation: values of a label image of pixels without a class, and last their value in records; None
            if there are none.
        colors: segmentation: (color RRGGBB as an integer, value) of label images in color, from a class table.
        shown_bits: segmentation: 8 or 16 if a gray PNG has the gray values that it shows, scaled to so many bits; 0 if
            it has the numbers that it stores.
        forms: segmentation: forms of the label images that decided this, see `gray_forms`; () if none decided it.
        by_names: segmentation: whether to read label files with named values by these names.
    """

    entries: tuple[tuple[int, str], ...]
    first_id: int
    aliases: tuple[tuple[str, int], ...] = ()
    where: str = "label map"
    is_open: bool = False
    values: tuple[tuple[int, int], ...] | None = None
    drops_others: bool = False
    by_names: bool = False
    ignore: tuple[int, ...] | None = None
    colors: tuple[tuple[int, int], ...] = ()
    shown_bits: int = 0
    forms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.entries:
            raise AnnotationsError(f"{self.where}: no class names; expected at least one")
        object.__setattr__(self, "entries", tuple(sorted(self.entries)))
        problems = list(self._problems())
        # The first problem is enough to act on; hundreds of its kind would hide it.
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise AnnotationsError(f"{self.where}: {problems[0]}{more}")

    def _problems(self) -> Iterator[str]:
        # Readers bound the size of a label map before they allocate it, see schemas/limits.py.
        if len(self.entries) > LABELS:
            yield f"{plural(len(self.entries), 'class', 'classes')}; a data set has at most {LABELS:,}"
        ids: dict[int, str] = {}
        names: dict[str, int] = {}
        for identity, name in self.entries:
            if len(name) > LABEL_LENGTH:
                yield f"id {identity} is {name[:40]!r}..., a name of {len(name):,} characters; shorten it"
            if identity in ids:
                yield f"id {identity} belongs to {ids[identity]!r} and to {name!r}; give each name its own id"
            if name in names:
                yield f"name {name!r} comes twice, with ids {names[name]} and {identity}; keep one"
            yield from _name_problems(identity, name)
            yield from self._id_problems(identity, name)
            ids[identity], names[name] = name, identity
        for alias, identity in self.aliases:
            # Annotations may use either name, so that one text must not mean two classes.
            if names.setdefault(alias, identity) != identity:
                yield f"display name {alias!r} of id {identity} also means id {names[alias]}; keep one"

    def _id_problems(self, identity: int, name: str) -> Iterator[str]:
        # The Object Detection API's detectors have class 0 for the background; ids are int32 in TensorFlow's graphs.
        if self.first_id == 1 and (identity == 0 or is_background(name)):
            yield (
                f"id {identity} is {name!r}: in detection id 0 is the background and has no entry; "
                "remove it, and let classes start at 1"
            )
        elif not self.first_id <= identity < 2**31:
            yield f"id {identity} ({name!r}): expected {self.first_id} to {2**31 - 1}"

    @cached_property
    def names(self) -> dict[int, str]:
        """Return the names by id, in ascending order of id."""
        return dict(self.entries)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the ids by name, including aliases."""
        return {**dict(self.aliases), **{name: identity for identity, name in self.entries}}

    def with_background(self) -> LabelMap:
        """Return the map whose id 0 is called background."""
        entries = tuple((identity, name if identity else BACKGROUND) for identity, name in self.entries)
        return dataclasses.replace(self, entries=entries)

    def id_of(self, name: str) -> int:
        """Return the id of a class name; raise AnnotationsError for an unknown name."""
        # A class that is absent from the file would have no id; a guess of one would be another class.
        if name not in self.ids:
            raise AnnotationsError(
                f"label {name!r} is not in {self.where}; {did_you_mean(name, self.ids)}known: "
                f"{shorten_list(self.names.values())}; add it there, or correct the annotation"
            )
        return self.ids[name]

    @property
    def dtype(self) -> str:
        """Return the smallest dtype that holds every class index of segmentation."""
        return "uint8" if max(*self.names, self.stored_ignore or 0) <= 255 else "uint16"

    @property
    def stored_ignore(self) -> int | None:
        """Return the value in records of pixels to ignore; None if there are none."""
        return None if self.ignore is None else self.ignore[-1]

    @property
    def ignored_values(self) -> tuple[int, ...]:
        """Return the values of label images that are no classes."""
        return () if self.ignore is None else self.ignore[:-1]

    @property
    def negative_values(self) -> tuple[int, ...]:
        """Return the negative values that label files may hold, since they are ignored or become classes."""
        return tuple(value for value in (*self.ignored_values, *dict(self.values or ())) if value < 0)

    def ignoring(self, *ignored: int, stored: int | None = None) -> LabelMap:
        """Return the map with values of label images to ignore; records store the first one if it is free.

        Args:
            *ignored: the values.
            stored: preferred value in records.

        >>> one = LabelMap(entries=((0, "background"), (1, "liver"), (2, "void")), first_id=0)
        >>> one.ignoring(2).names, one.ignoring(2).ignore, one.ignoring(0).ignore
        ({0: 'background', 1: 'liver'}, (2, 2), (0, 255))
        """
        pairs = self.values
        values = None if pairs is None else tuple(pair for pair in pairs if pair[0] not in ignored)
        lost = self._ids_of_ignored(ignored).difference(identity for _, identity in values or ())
        entries = tuple(entry for entry in self.entries if entry[0] not in lost)
        aliases = tuple(alias for alias in self.aliases if alias[1] not in lost)
        wanted = ignored if stored is None else (stored, *ignored)
        kept_value = _free_value(wanted, {0, *(identity for identity, _ in entries)})
        return dataclasses.replace(
            self, entries=entries, aliases=aliases, values=values, ignore=(*ignored, kept_value)
        )

    def _ids_of_ignored(self, ignored: Collection[int]) -> set[int]:
        """Return the classes of ignored values except the background, which is always a class."""
        # Then the values are the ids.
        if self.values is None:
            return {*ignored} - {0}
        return {identity for value, identity in self.values if value in ignored} - {0}

    @property
    def channels(self) -> tuple[int, ...]:
        """Return the class ids in the order of their bits in sets of classes."""
        return channel_ids(self.names)

    def stored_dtype(self, *, sets: bool) -> str:
        """Return the dtype of a record's label: class indices, or sets of classes."""
        return set_dtype(len(self.channels)) if sets else self.dtype

    def set_of(self, identity: int) -> int:
        """Return the set that contains one class, as a bit mask; the background is the empty set."""
        return 1 << self.channels.index(identity) if identity else 0

    def sets_of_values(self, values: Iterable[int]) -> dict[int, int]:
        """Return the set of classes of each value, see `ids_of_values`.

        >>> regions = LabelMap(
        ...     entries=((0, "background"), (1, "tumor"), (2, "core")), first_id=0, values=((1, 1), (2, 1), (2, 2))
        ... )
        >>> regions.sets_of_values([0, 1, 2])
        {0: 0, 1: 1, 2: 3}
        """
        ids = self.ids_of_values(values, may_ignore=False)
        sets = {value: self.set_of(identity) for value, identity in ids.items()}
        for value, identity in self.values or ():
            # A value of several regions has a pair for each of them.
            if value in sets:
                sets[value] |= self.set_of(identity)
        return sets

    def check_values(self, values: Iterable[int], *, may_ignore: bool = True) -> None:
        """Raise SourceError for values of a label image or volume that are not classes; 0 is always the background.

        Args:
            values: the values.
            may_ignore: whether the message may suggest --ignore-label.

        Raises:
            SourceError: lists the unknown values and the classes.
        """
        present = [int(value) for value in values if value]
        # Without names a label image may have up to 255 classes, which fit into 8 bits.
        if self.is_open:
            unknown = [value for value in present if not 0 < value <= 255 or value == self.stored_ignore]
            known = "1 to 255; --label-map or --classes takes larger ones"
            known += _objects_fix(present) or _fixes(unknown, may_ignore=may_ignore)
        else:
            unknown = [value for value in present if value not in self.names]
            known = ", ".join(f"{identity} {name}" for identity, name in self.entries[:20])
            known += _fixes(unknown, may_ignore=may_ignore)
        if unknown:
            listed = ", ".join(map(str, unknown[:10]))
            # A photograph has hundreds of values, a label of classes few.
            swapped = "; are image and label swapped?" if len(unknown) > 100 else ""
            raise SourceError("annotation", _UNKNOWN, f"{listed}; known are {known}{swapped}")

    def ids_of_values(self, values: Iterable[int], *, may_ignore: bool = True) -> dict[int, int]:
        """Return the id of each value of a label image or volume; 0 for values that the user left out.

        Args:
            values: the values.
            may_ignore: whether messages may suggest --ignore-label.

        Raises:
            SourceError: some values are not classes; lists them and the classes.

        >>> classes = LabelMap(entries=((0, "background"), (1, "kidney")), first_id=0, values=((300, 1), (7, 0)))
        >>> classes.ids_of_values([0, 7, 300])
        {0: 0, 7: 0, 300: 1}
        """
        present = [int(value) for value in values]
        # Ignored values come first: --ignore-label counts more than a name of the same value.
        if self.stored_ignore is not None:
            ignored = {value: self.stored_ignore for value in present if value in self.ignored_values}
            others = [value for value in present if value not in ignored]
            return {**self._ids_of_classes(others, may_ignore=may_ignore), **ignored}
        return self._ids_of_classes(present, may_ignore=may_ignore)

    def _ids_of_classes(self, present: Sequence[int], *, may_ignore: bool) -> dict[int, int]:
        """Return the id of each value that is not ignored; see `ids_of_values`."""
        if self.values is None:
            self.check_values(present, may_ignore=may_ignore)
            return {value: value for value in present}
        ids = {0: 0, **dict(self.values)}
        others = [value for value in present if value not in ids]
        # Values without a name in --map-classes are classes by their numbers.
        if self.is_open:
            self.check_values(others, may_ignore=may_ignore)
            ids |= {value: value for value in others}
        elif others and not self.drops_others:
            # With --classes the values of other classes are left out, not unknown.
            listed, known = (", ".join(map(str, found[:20])) for found in (others, [*dict(self.values)]))
            raise SourceError(
                "annotation", _UNKNOWN, f"{listed}; known are {known}{_fixes(others, may_ignore=may_ignore)}"
            )
        return {value: ids.get(value, 0) for value in present}

    def id_of_value(self, value: int) -> int | None:
        """Return the id of a value of a label file; None if it is not a class or its class is unknown."""
        if self.values is not None:
            return dict(self.values).get(value)
        return value if value in self.names else None

    def to_json(self) -> dict[str, Any]:
        """Return the map as a JSON object: first_id, names by decimal id, and optional entries."""
        # Manifests of maps without an entry have no key for it, so that older versions read them.
        optional = {
            "aliases": dict(self.aliases),
            "is_open": self.is_open,
            "values": None if self.values is None else self._ids_by_value(),
            "ignore": None if self.ignore is None else list(self.ignore),
            "colors": [list(pair) for pair in self.colors],
            "shown_bits": self.shown_bits,
            "forms": list(self.forms),
            "drops_others": self.drops_others,
            "by_names": self.by_names,
        }
        kept = {
            key: value for key, value in optional.items() if value or (key == "values" and value is not None)
        }
        names = {str(identity): name for identity, name in self.entries}
        return {"first_id": self.first_id, "names": names, **kept}

    def _ids_by_value(self) -> dict[str, int | list[int]]:
        """Return the id of each value, or a list of the ids of a value of several classes."""
        ids: dict[int, list[int]] = {}
        for value, identity in self.values or ():
            ids.setdefault(value, []).append(identity)
        return {str(value): found if len(found) > 1 else found[0] for value, found in ids.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LabelMap:
        """Return the map from the result of `to_json`."""
        return cls(
            entries=tuple((int(identity), str(name)) for identity, name in document["names"].items()),
            first_id=int(document["first_id"]),
            aliases=tuple((str(name), int(one)) for name, one in document.get("aliases", {}).items()),
            is_open=bool(document.get("is_open", False)),
            values=tuple(
                (int(value), int(identity))
                for value, ids in document["values"].items()
                for identity in (ids if isinstance(ids, list) else [ids])
            )
            if "values" in document
            else None,
            drops_others=bool(document.get("drops_others", False)),
            by_names=bool(document.get("by_names", False)),
            ignore=tuple(document["ignore"]) if "ignore" in document else None,
            colors=tuple((int(color), int(value)) for color, value in document.get("colors", ())),
            shown_bits=int(document.get("shown_bits", 0)),
            forms=tuple(document.get("forms", ())),
        )


def _name_problems(identity: int, name: str) -> Iterator[str]:
    """Yield a message for each reason for which records cannot store a name as it is."""
    if name != name.encode("utf-8", "replace").decode():  # names of folders may be any bytes
        yield f"id {identity} is {name!r}, which is not UTF-8; rename the folder or class"
    if "\0" in name:
        yield f"id {identity} is {name!r}, which holds a NUL character; rename the folder or class"
    if not name.strip():
        yield f"id {identity} has an empty name; name it or remove it"


def _fixes(unknown: Sequence[int], *, may_ignore: bool) -> str:
    """Return what to do with values of label files that no table names; "" without any or with too many."""
    # An option with hundreds of values helps nobody.
    if not 0 < len(unknown) <= _MAX_FIXED:
        return ""
    mapped = ",".join(f"{value}=background" for value in unknown)
    space = "=" if unknown[0] < 0 else " "
    listed = ",".join(map(str, unknown))
    what = "leaves it out" if len(unknown) == 1 else "leaves them out"
    ignoring = f", --ignore-label{space}{listed} ignores their pixels" if may_ignore else ""
    return f"; --map-classes{space}{mapped} {what}{ignoring}"


def _free_value(wanted: Iterable[int], taken: Collection[int]) -> int:
    """Return the first of some values, or else of all values, that a record can hold and that is no class.

    255 and 65535 come first of all: they are what -1 becomes in label images of 8 and 16 bits.
    """
    for one in (*wanted, VOC_VOID, LARGEST_LABEL):
        if one not in taken and 0 < one <= LARGEST_LABEL:
            return one
    return next(one for one in range(1, LARGEST_LABEL) if one not in taken)


def from_data(labels: Iterable[str], first_id: int, order: Iterable[str] | None = None) -> LabelMap:
    """Return a map with consecutive ids from `first_id`, in the layout's `order` or sorted by name.

    If the order contains a background that no object has, the map omits it in detection.

    >>> from_data(["hat", "coat", "hat"], 0).names
    {0: 'coat', 1: 'hat'}
    """
    used = set(labels)
    names = [
        name
        for name in dict.fromkeys(order or ())
        if name in used or first_id == 0 or not is_background(name)
    ]
    names += sort_class_names(used.difference(names))
    _check_number_spellings(names)
    return LabelMap(
        entries=tuple(enumerate(names, start=first_id)), first_id=first_id, where="the labels of the data"
    )


def _check_number_spellings(names: Iterable[str]) -> None:
    """Raise AnnotationsError for two spellings of one number, such as "1" and "1.0": one class would become two."""
    first: dict[float, str] = {}
    for name in names:
        if (value := class_number(name)) is not None and first.setdefault(value, name) != name:
            raise AnnotationsError(
                f"classes {first[value]!r} and {name!r} are one number, written in two ways; write it in one way (a "
                "CSV column with empty cells makes 1.0 of 1), or give both an id with --label-map"
            )


def read_table(name: str, data: bytes, first: int = 0) -> ClassTable:
    """Return the classes of a file in UTF-8: a table of text, JSON, YAML, XML or .pbtxt.

    The extension decides between text and documents. In a table of text, the form decides, see `class_tables`.

    Args:
        name: path of the file.
        data: its content.
        first: value of the first name of a list without numbers.

    Raises:
        AnnotationsError: the file is no class table, or can be read in two ways.
    """
    kind = PurePosixPath(name).suffix.lower()
    # Only the extension divides text from documents: JSON is a text as well.
    if kind not in _READERS:
        raise AnnotationsError(
            f"{name}: a label map is {', '.join(_READERS)}, not {kind or 'without extension'}"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AnnotationsError(f"{name}: expected UTF-8 text: {error}; save it as UTF-8") from error
    inner = text.strip()
    # Scripts print a list or dict of classes into a text file.
    if (
        kind in TEXT_TABLES
        and inner[:1] + inner[-1:] in ("{}", "[]")
        and (len(inner.splitlines()) > 1 or "," in inner)
    ):
        return _read_yaml(name, inner, first)  # JSON, or a list or dict of Python, which YAML reads as well
    return _READERS[kind](name, text, first)


def from_table(table: ClassTable, first_id: int) -> LabelMap:
    """Return the label map of a class table, without negative values, which are pixels without a class.

    In detection, the map has no background: a table with values names it as 0.
    """
    # A list that begins at 1 may name a class background; where 0 has a name, it is the background.
    has_zero = first_id == 1 and (table.is_numbered or min(table.names, default=0) < 1)
    rows = [
        row
        for row in table.rows
        if not is_ignored(row.value, row.name) or row.value > 0
        if not (has_zero and row.value == 0 and is_background(row.name))
    ]
    return LabelMap(
        entries=tuple((row.value, row.name) for row in rows),
        first_id=first_id,
        aliases=tuple((row.alias, row.value) for row in rows if row.alias is not None),
        where=table.where,
    )


def from_file(name: str, data: bytes, first_id: int) -> LabelMap:
    """Return the label map of a file, see `read_table` and `from_table`.

    >>> from_file("labels.txt", b"hat\\ncoat\\n", 1).names
    {1: 'hat', 2: 'coat'}
    """
    return from_table(read_table(name, data, first_id), first_id)


def shared_names(names: Mapping[str, Mapping[int, str]]) -> Mapping[int, str]:
    """Return the names by value that all files have, by path; {} if there is no file.

    Raises:
        AnnotationsError: the names of two files differ.
    """
    first = next(iter(names), "")
    # Label numbers mean one class in the whole data set.
    if different := next((path for path in names if names[path] != names[first]), None):
        raise AnnotationsError(
            f"{first} and {different} name different classes; give one for all with --label-map, and remove the others"
        )
    return names.get(first, {})


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        # Python keeps the last of two equal keys without a message.
        if key in content:
            raise ValueError(f"key {key!r} comes twice")
        content[key] = value
    return content


def _read_json(name: str, text: str, first_id: int) -> ClassTable:
    try:
        content = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise AnnotationsError(f"{name}: not a label map in JSON: {error}") from error
    return read_class_document(name, content, first_id)


def _read_yaml(name: str, text: str, first_id: int) -> ClassTable:
    try:
        content = parse_yaml(text.encode(), as_text=True)
    except ValueError as error:
        raise AnnotationsError(f"{name}: {error}") from error
    return read_class_document(name, content, first_id)


def _read_xml(name: str, text: str, first_id: int) -> ClassTable:
    try:
        root = parse_xml_document(text.encode())
    except SourceError as error:
        raise AnnotationsError(f"{name}: {error.detail or error.reason}") from error
    return read_class_document(name, xml_entries(root), first_id)


def _read_pbtxt(name: str, text: str, first_id: int) -> ClassTable:
    """Read the `item` messages of a StringIntLabelMap; other fields, such as keypoints, are skipped."""
    try:
        fields = parse_text_proto(text)
    except ValueError as error:
        raise AnnotationsError(f"{name}{error}") from error
    # A misspelled field, such as items, would lose its classes.
    if others := [key for key in fields if key != "item"]:
        raise AnnotationsError(f"{name}: expected `item {{ ... }}`, got {others[0]!r}")
    rows = [_row_of_item(name, message) for message in fields.get("item", ())]
    return ClassTable(where=name, rows=tuple(rows), is_numbered=True)


def _row_of_item(name: str, message: Any) -> ClassRow:
    """Return the class of an `item`, which needs an id and a name; the display name may take the name's place."""
    if isinstance(message, str):
        raise AnnotationsError(f"{name}: expected {{ after the name of a message, got {message!r}")
    item = _texts_of_item(name, message)
    identity, label = item.get("id"), item.get("name", item.get("display_name"))
    # protobuf's default id would be 0, which is the background.
    if identity is None or label is None or not re.fullmatch(r"[+-]?[0-9]+", identity):
        raise AnnotationsError(f"{name}: an item needs an integer id and a name; got {item}")
    other = item.get("display_name", label)
    return ClassRow(value=int(identity), name=label, alias=None if other == label else other, place=name)


def _texts_of_item(name: str, message: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the fields of an `item` that are read; raise AnnotationsError for a repeated one."""
    item: dict[str, str] = {}
    for key in ("id", "name", "display_name"):
        values = [value for value in message.get(key, ()) if isinstance(value, str)]
        # One of two ids or names would be lost.
        if len(values) > 1:
            raise AnnotationsError(f"{name}: {key} comes twice in one item: {values[0]!r}, {values[1]!r}")
        if values:
            item[key] = values[0]
    return item


TEXT_TABLES = (".txt", ".csv", ".tsv", ".ctbl", ".lut", ".label", ".names", ".labels", ".dat")
"""Extensions of tables of text; .ctbl is 3D Slicer's, .lut FSL's, .label ITK-SNAP's, .names
Darknet's."""
_READERS: dict[str, Callable[[str, str, int], ClassTable]] = {
    **dict.fromkeys(TEXT_TABLES, read_class_table),
    ".json": _read_json,
    ".pbtxt": _read_pbtxt,
    **dict.fromkeys((".yaml", ".yml"), _read_yaml),
    ".xml": _read_xml,
}


_COUNTED_UP = 0.9
"""Share of the numbers up to the largest that occurs; the others were deleted (an estimate)."""


def _objects_fix(values: Sequence[int]) -> str:
    """Return the option that makes one class of values that count up beyond 255, as numbers of objects do; or ""."""
    most = max(values, default=0)
    # Up to 255 such values may be classes; more that count up are numbers of objects (an estimate).
    if not VOC_VOID < most <= LARGEST_LABEL or len({*values}) < _COUNTED_UP * most:
        return ""
    # Other label images may have more objects than this one.
    all_of_them = min(10 ** len(str(4 * most)) - 1, LARGEST_LABEL)
    return f"; they count up as numbers of objects do, and --map-classes 1..{all_of_them}=object makes them one class"


def void_problem(values: Collection[int]) -> str:
    """Return what is unclear about 255 in label images without names, from all their values; "" if nothing is.

    >>> void_problem({0, 1, 2, 255})[:45], void_problem({0, 85, 170, 255}), void_problem(range(300))
    ('255 beside 1 to 2 is void in many data sets, ', '', '')
    """
    others = [value for value in values if value not in (0, VOC_VOID)]
    if {VOC_VOID - 1, VOC_VOID + 1} <= {*others}:  # one of many numbers, such as those of objects
        return ""
    # Alone beside 0, 255 is the foreground; beside large values, or few of a wide range, it is one of many gray values
    # (the factors are estimates).
    if VOC_VOID not in values or not others or max(others) > max(20, 4 * len(others)):
        return ""
    return (
        f"{VOC_VOID} beside {min(others)} to {max(others)} is void in many data sets, and nothing says whether it is a "
        f"class here; --ignore-label {VOC_VOID} ignores it, --map-classes {VOC_VOID}={VOC_VOID} makes it a class"
    )
