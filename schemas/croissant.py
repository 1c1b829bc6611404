"""Metadata in the Croissant format 1.1: croissant.json, which describes files and records for other programs.

A data set's own file follows from its manifest. TFRecords have a FileSet per split, since a FileObject needs a SHA-256
or MD5 of its file, and the manifest has the CRC-32C of each shard. Exports add record sets, see `halofeed.inspection`.

Source: the Croissant format specification, version 1.1 (http://mlcommons.org/croissant/1.1), by MLCommons. Files that
were written before 2026-11-30 have version 1.0; `verify` accepts both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.schemas.manifest import Manifest

MARK = "written by halofeed"
"""Text in the description of each croissant.json of ours, by which it differs from a user's own."""
_TFRECORD = "https://www.tensorflow.org/tutorials/load_data/tfrecord"
_CROISSANT_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet"),
    *("format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet"),
    *("references", "regex", "repeated", "replace", "samplingRate", "separator", "source", "subField"),
    "transform",
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _CROISSANT_TERMS},
}


VERSION, EARLIER_VERSION = "1.1", "1.0"
_LANGUAGE = {"@container": "@language"}
_TERMS_OF_1_1 = {
    **{term: f"cr:{term}" for term in ("arrayShape", "containedIn", "isArray")},
    "description": _LANGUAGE,
    "name": _LANGUAGE,
}
"""Terms of the context that version 1.1 has beside those of 1.0."""


def croissant_json(manifest: Manifest, version: str = VERSION) -> str:
    """Return the text of a data set's croissant.json: its terms, a FileSet for each split's shards, and the classes.

    Args:
        version: VERSION, or EARLIER_VERSION for the text that earlier versions of halofeed wrote.
    """
    shards = [
        file_set(
            f"shards-{name}",
            ["application/octet-stream", _TFRECORD],
            [f"{manifest.name}-{name}.tfrecord-*"],
            f"{split.records:,} records of split {name} in TFRecord files; manifest.json has their CRC-32C",
        )
        for name, split in sorted(manifest.splits.items())
        if split.shards
    ]
    records = class_records(manifest.labels)
    return croissant_text(manifest, distribution=shards, record_sets=records, version=version)


def croissant_text(
    manifest: Manifest,
    *,
    distribution: Sequence[Mapping[str, Any]],
    record_sets: Sequence[Mapping[str, Any]],
    version: str = VERSION,
) -> str:
    """Return the text of croissant.json: UTF-8 without lone surrogates; equal arguments give equal bytes.

    Args:
        distribution: `file_set` and `file_object` values.
        record_sets: `record_set` and `class_records` values.
        version: version of the format; the values are in both.
    """
    document: dict[str, Any] = {
        "@context": {**_CONTEXT, **(_TERMS_OF_1_1 if version == VERSION else {})},
        "@type": "sc:Dataset",
        "conformsTo": f"http://mlcommons.org/croissant/{version}",
        "name": manifest.name,
        "version": manifest.version,
        "description": f"{manifest.name} {manifest.version}: {manifest.task}, {MARK}.",
    }
    # The format wants both terms; a conversion knows them only from its user.
    for term, option in (("license", "license"), ("citeAs", "citation")):
        if text := manifest.recipe.get(option):
            document[term] = text
    document["distribution"] = distribution
    if record_sets:  # without classes there is nothing to enumerate
        document["recordSet"] = record_sets
    return re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def file_set(identity: str, formats: Sequence[str], patterns: Sequence[str], about: str) -> dict[str, Any]:
    """Return a FileSet: the files that match glob patterns, below the folder of croissant.json."""
    return {
        "@type": "cr:FileSet",
        "@id": identity,
        "name": identity,
        "description": about,
        "encodingFormat": formats,
        "includes": patterns,
    }


def file_object(path: str, media_type: str, size_bytes: int, sha256: str) -> dict[str, Any]:
    """Return a FileObject of a file at a path below the folder of croissant.json."""
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path,
        "contentUrl": path,
        "contentSize": f"{size_bytes} B",
        "encodingFormat": media_type,
        "sha256": sha256,
    }


def record_set(identity: str, fields: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a RecordSet of `record_field` values."""
    return {"@type": "cr:RecordSet", "@id": identity, "name": identity, **more, "field": fields}


def record_field(identity: str, data_type: str, about: str, **more: Any) -> dict[str, Any]:
    """Return a Field; `more` has its source, or `array_of`.

    >>> record_field("default/label", "sc:Integer", "class")["name"]
    'label'
    """
    described = {"name": identity.rpartition("/")[2], "description": about, "dataType": data_type}
    return {"@type": "cr:Field", "@id": identity, **described, **more}


def array_of(shape: str) -> dict[str, Any]:
    """Return the terms of a field that is an array; -1 is any length.

    >>> array_of("-1,4")
    {'isArray': True, 'arrayShape': '-1,4'}
    """
    return {"isArray": True, "arrayShape": shape}


def field_source(files: str, *, regex: str = "", json_path: str = "", **extract: str) -> dict[str, Any]:
    """Return the source of a field: what is extracted from each file of a FileSet, and how it is transformed.

    Args:
        files: id of the FileSet.
        regex: the first group that matches the beginning of the value is taken.
        json_path: part of a structure that is taken.
        extract: `column` of a table, or `fileProperty`.
    """
    transform = {key: value for key, value in (("regex", regex), ("jsonPath", json_path)) if value}
    return {"fileSet": {"@id": files}, "extract": extract, **({"transform": transform} if transform else {})}


def class_records(names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the record set `classes`, an enumeration with the id and name of each class; none without classes.

    >>> class_records({1: "cat"})[0]["data"]
    [{'classes/id': 1, 'classes/name': 'cat'}]
    """
    if not names:
        return []
    fields = [
        record_field("classes/id", "sc:Integer", "id of the class"),
        record_field("classes/name", "sc:Text", "name of the class"),
    ]
    data = [{"classes/id": identity, "classes/name": names[identity]} for identity in sorted(names)]
    enumeration = {"dataType": "sc:Enumeration", "key": {"@id": "classes/id"}, "data": data}
    return [record_set("classes", fields, **enumeration)]
