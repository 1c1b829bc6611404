"""Sets of pictures that Croissant documents describe: joined with a table, in folders, and in Parquet."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tests.support.layout_references import write_files

CONTEXT = {"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/"} | {
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{
        term: f"cr:{term}"
        for term in (
            *("column", "containedIn", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
            *("includes", "jsonPath", "key", "recordSet", "references", "regex", "repeated", "separator"),
            *("source", "subField", "transform", "isArray", "arrayShape"),
        )
    },
}
Node = dict[str, Any]


def picture(value: int) -> bytes:
    return cv2.imencode(".png", np.full((20, 30, 3), value, np.uint8))[1].tobytes()


PICTURES = {f"p{number}.png": picture(40 * number) for number in range(4)}


def document(files: list[Node], records: list[Node], version: str = "1.1") -> str:
    return json.dumps(
        {
            "@context": CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": f"http://mlcommons.org/croissant/{version}",
            "name": "set",
            "description": "a set",
            "license": "CC0",
            "url": "https://example.org",
            "version": "1.0.0",
            "datePublished": "2026-01-01",
            "distribution": files,
            "recordSet": records,
        }
    )


def file_object(name: str, data: bytes, media_type: str) -> Node:
    sha256 = hashlib.sha256(data).hexdigest()
    named = {"@type": "cr:FileObject", "@id": name, "name": name}
    return {**named, "contentUrl": name, "encodingFormat": media_type, "sha256": sha256}


def file_set(name: str, includes: str, media_type: str, **more: Any) -> Node:
    named = {"@type": "cr:FileSet", "@id": name, "name": name}
    return {**named, "encodingFormat": media_type, "includes": includes, **more}


def record_set(name: str, *fields: Node, **more: Any) -> Node:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": list(fields), **more}


def field(name: str, kind: str, source: Node | None = None, **more: Any) -> Node:
    named = {"@type": "cr:Field", "@id": name, "name": name.rpartition("/")[2], "dataType": kind}
    return {**named, **({"source": source} if source else {}), **more}


def of_files(name: str, what: str, regex: str = "") -> Node:
    transform = {"transform": {"regex": regex}} if regex else {}
    return {"fileSet": {"@id": name}, "extract": {"fileProperty": what}, **transform}


def of_column(name: str, column: str, *, kind: str = "fileObject", **more: Any) -> Node:
    return {kind: {"@id": name}, "extract": {"column": column}, **more}


IMAGE = field("images/image", "sc:ImageObject", of_files("pictures", "content"))
JOIN = {"fileObject": {"@id": "labels.csv"}, "extract": {"column": "name"}}


def joined(root: Path) -> None:
    """Pictures of a FileSet, with the classes and splits of a table whose keys are the stems of their names."""
    rows = "".join(f"p{n},{'cat' if n % 2 else 'dog'},{'train' if n < 3 else 'test'}\n" for n in range(4))
    table = f"name,kind,fold\n{rows}".encode()
    stem = of_files("pictures", "filename", r"(.*)\.png")
    records = record_set(
        "images",
        IMAGE,
        field("images/stem", "sc:Text", stem, references=JOIN),
        field("images/label", "sc:Text", of_column("labels.csv", "kind")),
        field("images/split", "sc:Text", of_column("labels.csv", "fold")),
    )
    files = [file_object("labels.csv", table, "text/csv"), file_set("pictures", "pics/*.png", "image/png")]
    pictures = {f"pics/{name}": data for name, data in PICTURES.items()}
    write_files(root, {"labels.csv": table, "metadata.json": document(files, [records]), **pictures})


def in_folders(root: Path) -> None:
    """Pictures whose paths say split and class, as text before the name."""
    records = record_set(
        "images",
        IMAGE,
        field("images/split", "sc:Text", of_files("pictures", "fullpath", "([^/]*)/")),
        field("images/label", "sc:Text", of_files("pictures", "fullpath", "[^/]*/([^/]*)/")),
    )
    places = ["train/dog/p0.png", "train/cat/p1.png", "train/dog/p2.png", "test/cat/p3.png"]
    pictures = {place: PICTURES[place.rpartition("/")[2]] for place in places}
    files = [file_set("pictures", "*/*/*.png", "image/png")]
    write_files(root, {"croissant.json": document(files, [records], "1.0"), **pictures})


def in_parquet(root: Path) -> None:
    """Rows of Parquet files as Hugging Face describes them, whose splits are in the files' names."""
    import pyarrow
    from pyarrow import parquet

    shards = {}
    for split, numbers in (("train", range(3)), ("test", range(3, 4))):
        images = [{"bytes": PICTURES[f"p{n}.png"], "path": f"p{n}.png"} for n in numbers]
        labels = ["cat" if n % 2 else "dog" for n in numbers]
        parquet.write_table(pyarrow.table({"image": images, "kind": labels}), stream := io.BytesIO())
        shards[f"data/{split}-00000-of-00001.parquet"] = stream.getvalue()
    content = of_column("shards", "image", kind="fileSet", transform={"jsonPath": "bytes"})
    records = record_set(
        "images",
        field("images/split", "sc:Text", of_files("shards", "fullpath", r"(?:.*/)?(train|test)-.+")),
        field("images/image", "sc:ImageObject", content),
        field("images/label", "sc:Text", of_column("shards", "kind", kind="fileSet")),
    )
    files = [file_set("shards", "data/*.parquet", "application/x-parquet")]
    write_files(root, {"croissant.json": document(files, [records]), **shards})


SETS: dict[str, Callable[[Path], None]] = {"join": joined, "folders": in_folders, "parquet": in_parquet}
