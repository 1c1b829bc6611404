"""Documents in the Croissant format: their files, record sets and fields, with the names that the specification gives.

Source: the Croissant format specification, versions 1.0 and 1.1 (http://mlcommons.org/croissant/1.1), by MLCommons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halofeed.prep.annotations.contract import read_required
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.bounded_json import parse_json
from halofeed.system.errors import AnnotationsError

_MAX_VALUES = 1_000_000
_PREFIX = re.compile(r"^(?:cr|sc|dct|ml|croissant):|^https?://(?:mlcommons\.org/croissant|schema\.org)/")
_VERSION = re.compile(r"https?://mlcommons\.org/croissant/(\d+\.\d+)")
READ_VERSIONS = ("1.0", "1.1")
_TERMS = ("fileProperty", "column", "jsonPath")


@dataclass(frozen=True, kw_only=True)
class FieldSource:
    """Where the values of a field come from.

    Args:
        base: id of a FileObject, FileSet or RecordSet.
        extract: "fileProperty", "column" or "jsonPath"; "" for none.
        what: name of the property or column, or the path.
        transforms: (name, text) of each transformation: regex, jsonPath, separator.
        format: format of the values, such as that of a box.
    """

    base: str
    extract: str = ""
    what: str = ""
    transforms: tuple[tuple[str, str], ...] = ()
    format: str = ""


@dataclass(frozen=True, kw_only=True)
class CroissantField:
    """Field of a record set.

    Args:
        id: its id, which begins with that of its record set.
        name: its last part.
        types: data types without prefixes, such as ImageObject.
        source: where its values come from; None for a field of parts or of inline data.
        references: id of the field with the same values in another record set; "" without one.
        target: source with the same values, where `references` names a file and a column in place of a field.
    """

    id: str
    name: str
    types: frozenset[str]
    source: FieldSource | None = None
    references: str = ""
    target: FieldSource | None = None


@dataclass(frozen=True, kw_only=True)
class RecordSet:
    """Records of one kind.

    Args:
        id: its id.
        types: data types without prefixes, such as Split and Enumeration.
        fields: its fields, also those inside others.
        data: inline records by the ids of the fields.
    """

    id: str
    types: frozenset[str]
    fields: tuple[CroissantField, ...]
    data: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A FileObject, or a FileSet, which has patterns.

    Args:
        id: its id.
        url: address or path of a FileObject.
        media_types: formats.
        includes, excludes: patterns of a FileSet.
        contained_in: ids of the archives or folders that hold it.
    """

    id: str
    url: str = ""
    media_types: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    contained_in: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CroissantDocument:
    """Content of a document: its files by id, its record sets, and all fields by id."""

    files: Mapping[str, Distribution]
    record_sets: tuple[RecordSet, ...]

    def field(self, identity: str) -> CroissantField | None:
        """Return the field of an id; None without one."""
        return next((one for found in self.record_sets for one in found.fields if one.id == identity), None)

    def owner(self, identity: str) -> RecordSet | None:
        """Return the record set that has a field of this id, or is it."""
        return next(
            (
                one
                for one in self.record_sets
                if one.id == identity or any(f.id == identity for f in one.fields)
            ),
            None,
        )


def read_croissant(files: SourceFiles, name: str) -> CroissantDocument:
    """Return the content of a document.

    Raises:
        AnnotationsError: it is no JSON, or of a version that is not read.
    """
    try:
        document = _plain(parse_json(read_required(files, name), _MAX_VALUES))
    except ValueError as error:
        raise AnnotationsError(f"{name}: not readable as JSON: {error}; download it anew") from error
    if not isinstance(document, dict):
        raise AnnotationsError(f"{name}: expected an object with recordSet, got {type(document).__name__}")
    versions = [found[1] for one in _many(document.get("conformsTo")) if (found := _VERSION.search(_id(one)))]
    if not set(versions) & set(READ_VERSIONS):
        stated = ", ".join(versions) or "none"
        raise AnnotationsError(
            f"{name}: conformsTo: expected Croissant {' or '.join(READ_VERSIONS)}, got {stated}; write it with "
            "mlcroissant 1.0 or later"
        )
    return CroissantDocument(
        files={one.id: one for one in map(_distribution, _many(document.get("distribution")))},
        record_sets=tuple(map(_record_set, _many(document.get("recordSet")))),
    )


def _plain(value: Any) -> Any:
    """Return a value whose keys have no prefix, whatever the context calls the vocabularies.

    >>> _plain({"cr:field": [{"@id": "a", "sc:name": "b"}]})
    {'field': [{'@id': 'a', 'name': 'b'}]}
    """
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {_PREFIX.sub("", key): one if key == "@context" else _plain(one) for key, one in value.items()}
    return value


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _id(value: Any) -> str:
    """Return the id of an object or of a reference to one."""
    if isinstance(value, dict):
        value = value.get("@id") or value.get("name") or ""
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one.get("@value", "")) if isinstance(one, dict) else str(one) for one in _many(value))


def _types(value: Any) -> frozenset[str]:
    """Return data types without their vocabularies; types of other vocabularies keep their last part."""
    return frozenset(re.split(r"[:/#]", _id(one))[-1] for one in _many(value))


def _distribution(written: Any) -> Distribution:
    described = written if isinstance(written, dict) else {}
    above = _many(described.get("containedIn"))
    # A DataSource names the file in its fileObject.
    contained = [one.get("fileObject") or one if isinstance(one, dict) else one for one in above]
    return Distribution(
        id=_id(written),
        url="".join(_texts(described.get("contentUrl"))[:1]),
        media_types=_texts(described.get("encodingFormat")),
        includes=_texts(described.get("includes")),
        excludes=_texts(described.get("excludes")),
        contained_in=tuple(map(_id, contained)),
    )


def _record_set(written: Any) -> RecordSet:
    described = written if isinstance(written, dict) else {}
    fields = [found for one in _many(described.get("field")) for found in _fields(one)]
    data = [one for one in _many(described.get("data")) if isinstance(one, dict)]
    return RecordSet(
        id=_id(written), types=_types(described.get("dataType")), fields=tuple(fields), data=tuple(data)
    )


def _fields(written: Any) -> list[CroissantField]:
    """Return a field and those inside it."""
    if not isinstance(written, dict):
        return []
    identity = _id(written)
    found = CroissantField(
        id=identity,
        name=identity.rpartition("/")[2],
        types=_types(written.get("dataType")),
        source=_source(written.get("source")),
        references=_reference(written.get("references")),
        target=_target(written.get("references")),
    )
    return [found, *(inner for one in _many(written.get("subField")) for inner in _fields(one))]


def _reference(written: Any) -> str:
    """Return the id of the referenced field, which version 1.0 may put into `field`."""
    first = next(iter(_many(written)), None)
    return "" if first is None else _id(first.get("field") or first if isinstance(first, dict) else first)


def _target(written: Any) -> FieldSource | None:
    """Return the source that a reference names by a file and an extraction; None for a reference to a field."""
    first = next(iter(_many(written)), None)
    return _source(first) if isinstance(first, dict) and "extract" in first else None


def _source(written: Any) -> FieldSource | None:
    if not isinstance(written, dict):
        return None
    described = written.get("extract")
    extract: dict[str, Any] = described if isinstance(described, dict) else {}
    kind = next((term for term in _TERMS if term in extract), "")
    base = next(
        (written[key] for key in ("fileSet", "fileObject", "recordSet", "field") if key in written), written
    )
    steps = [
        (key, str(value))
        for one in _many(written.get("transform"))
        if isinstance(one, dict)
        for key, value in one.items()
        if not key.startswith("@")
    ]
    return FieldSource(
        base=_id(base),
        extract=kind,
        what=str(extract.get(kind, "")),
        transforms=tuple(steps),
        format=str(written.get("format") or ""),
    )


def ids(found: Sequence[RecordSet]) -> str:
    """Return the ids of record sets for a message."""
    return ", ".join(one.id for one in found)
