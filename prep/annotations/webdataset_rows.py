"""Rows of WebDataset shards: tar files in which the members of one sample share their name up to the first dot.

    cats/0001.jpg  cats/0001.cls      the class, a number or a name
    cats/0002.jpg  cats/0002.json     the columns of a table: label, or objects with their boxes
    cats/0003.jpg  cats/0003.seg.png  a label image for segmentation

https://github.com/webdataset/webdataset#the-webdataset-format
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from halofeed.errors import AnnotationsError, SourceError
from halofeed.prep.annotations.container_rows import ContainerRow, faulty_row, picture_row
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.containers import describe_member, open_container
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.bounded_json import parse_json

_TEXTS = ("cls", "json")
_MAX_TEXT_BYTES = 16 << 20
_MAX_VALUES = 1_000_000
_LABEL_WORDS = frozenset(("seg", "mask", "label", "labels", "segmentation"))
_KINDS = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.FIFOTYPE: "a pipe"}
_KINDS |= {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.GNUTYPE_SPARSE: "a sparse file"}


@dataclass(kw_only=True)
class _Sample:
    """Members of one key.

    Args:
        pictures: path of each member by its extension.
        texts: content of .cls and .json.
        others: extensions that are not read.
        fault: (reason, detail) of the first unusable member.
    """

    pictures: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    fault: tuple[str, str] | None = None


def webdataset_rows(files: SourceFiles, name: str, options: LayoutOptions) -> Iterator[ContainerRow]:
    """Yield a row for each sample of a tar file; an unusable sample is rejected by its name.

    Raises:
        AnnotationsError: the tar file is damaged, cut off or compressed.
    """
    samples: dict[str, _Sample] = {}
    for info, data in _members(files, name):
        folder, file = posixpath.split(info.name)
        if file.startswith(".") and info.isreg():
            continue  # hidden files, such as macOS's ._0001.jpg
        stem, _, extension = file.partition(".")
        sample = samples.setdefault(posixpath.join(folder, stem), _Sample())
        try:
            _add(sample, name, info, extension.lower(), data)
        except SourceError as error:
            sample.fault = sample.fault or (error.reason, error.detail)
    for key, sample in samples.items():
        try:
            if sample.fault is not None:
                raise SourceError("annotation", *sample.fault)
            yield _row(sample, options)
        except SourceError as error:
            yield faulty_row(name, key, error.reason, error.detail)


def _members(files: SourceFiles, name: str) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Yield each member but folders, and its bytes if they are read."""
    with open_container(files, name) as reader:
        try:
            with tarfile.open(
                fileobj=reader,
                mode="r|",
                encoding="utf-8",
                errors="surrogateescape",  # type: ignore[call-overload]
            ) as archive:
                for info in archive:
                    if not info.isdir():
                        yield info, _content(archive, info)
                end = archive.offset
        except tarfile.TarError as error:
            raise AnnotationsError(
                f"{name}: not readable as a tar file, at byte {reader.offset:,} or before: {error}; copy it anew"
            ) from error
    closing = files.read_range(name, end, end + tarfile.BLOCKSIZE)
    if len(closing) < tarfile.BLOCKSIZE or any(closing):
        problem = "it is cut off" if len(closing) < tarfile.BLOCKSIZE else "it is damaged"
        raise AnnotationsError(
            f"{name}: {problem}: expected a member or the end mark at byte {end:,}; copy it anew"
        )


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | None:
    """Return the bytes of a member that is a picture, a class or a small JSON document; None for another."""
    extension = posixpath.basename(info.name).partition(".")[2].lower()
    is_text = extension in _TEXTS and info.size <= _MAX_TEXT_BYTES
    if not info.isreg() or info.issparse() or not (is_text or is_image_name(f"a.{extension}")):
        return None
    stream = archive.extractfile(info)
    return b"" if stream is None else stream.read()


def _add(sample: _Sample, container: str, info: tarfile.TarInfo, extension: str, data: bytes | None) -> None:
    """Add a member to its sample; raise SourceError if it is not usable."""
    name = info.name
    if not info.isreg() or info.issparse():
        kind = _KINDS.get(info.type, f"of type {info.type!r}")
        raise SourceError(
            "annotation", "tar member is no regular file", f"{name!r} is {kind}; store the file itself"
        )
    if name.startswith("/") or ".." in name.split("/") or "\\" in name or not name.isprintable():
        raise SourceError(
            "annotation", "tar member has an unsafe name", f"{name!r}; name it relative to the tar file"
        )
    if not extension:
        raise SourceError(
            "annotation", "tar member has no extension", f"{name!r}; expected KEY.jpg, KEY.cls or KEY.json"
        )
    if extension in (*sample.pictures, *sample.texts, *sample.others):
        raise SourceError("annotation", "tar file holds two members of one name", f"{name!r}")
    if data is None:
        sample.others.append(extension)
    elif extension in _TEXTS:
        sample.texts[extension] = data
    else:
        sample.pictures[extension] = describe_member(container, name, data, info.offset_data).path


def _row(sample: _Sample, options: LayoutOptions) -> ContainerRow:
    labels = {one: path for one, path in sample.pictures.items() if _LABEL_WORDS & set(one.split("."))}
    pictures = {one: path for one, path in sample.pictures.items() if one not in labels}
    plain = {one: path for one, path in pictures.items() if "." not in one} or pictures
    found = ", ".join((*sample.pictures, *sample.texts, *sample.others))
    if len(plain) != 1:
        reason = "sample has several pictures" if plain else "sample has no picture"
        raise SourceError("annotation", reason, f"its members are {found}")
    if options.wants_label_images and len(labels) > 1:
        raise SourceError("annotation", "sample has several label images", f"its members are {found}")
    columns: dict[str, Any] = {f"member_{one}": "" for one in sample.others}
    if (data := sample.texts.get("json")) is not None:
        columns |= _json_columns(data)
    if (data := sample.texts.get("cls")) is not None:
        columns["cls"] = _class(data)
    label = next(iter(labels.values()), None)
    return picture_row(columns, next(iter(plain.values())), label, options)


def _json_columns(data: bytes) -> dict[str, Any]:
    try:
        document = parse_json(data, _MAX_VALUES)
    except ValueError as error:
        raise SourceError("annotation", "malformed JSON", str(error)) from error
    if not isinstance(document, dict):
        raise SourceError(
            "annotation", "malformed JSON", f"expected an object, got {type(document).__name__}"
        )
    return document


def _class(data: bytes) -> str:
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise SourceError("annotation", "class is no UTF-8 text", str(error)) from error
    if not text or "\n" in text or "\0" in text:
        raise SourceError("annotation", "class is no number and no name", f"{text[:40]!r}")
    return text
