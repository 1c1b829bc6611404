"""Rows of tables that are made of container files: the picture of a row is a member of its container.

The Parquet files are those of Hugging Face datasets, and the tar files those of WebDataset; `tfrecord_rows` reads
TFRecord files.
"""

from __future__ import annotations

import json
import posixpath
import shlex
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.stated_columns import check_stated, parse_columns, single_columns
from halofeed.prep.sources.containers import describe_member, member_name, open_container
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.parquet import MAX_GROUP_BYTES, open_parquet, unreadable_parquet
from halofeed.schemas.bounded_json import parse_json
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import did_you_mean

FAULT = "//fault"
"""Key of (reason, detail) in a row whose picture is rejected. No column of a file has a name with this meaning."""
_PICTURE_NAMES = ("image", "img", "picture", "photo")
"""Usual names of the column of pictures, which decide only between several such columns."""
_LABEL_NAMES = ("label", "mask", "annotation", "segmentation", "segmentationmask", "semanticmask", "labelmap")

ContainerRow = dict[str, Any]
T = TypeVar("T")


def picture_row(
    row: Mapping[str, Any], picture: str, label: str | None, options: LayoutOptions
) -> ContainerRow:
    """Return a row with the path of its picture under the name that its task needs.

    Args:
        row: the other columns. A column that would name the picture too is renamed to `written_...`.
        picture: path of the picture.
        label: path of its label image, for segmentation.

    >>> picture_row({"filename": "a.jpg", "class": 3}, "a.tar//b@0+1-00000000.jpg", None, LayoutOptions())
    {'file_name': 'a.tar//b@0+1-00000000.jpg', 'written_filename': 'a.jpg', 'class': 3}
    """
    stated = single_columns(parse_columns(options.column))
    # Tables of segmentation call their columns image and label, those of pictures file_name, see `columns`. A column
    # that the user names keeps its name, by which the table is read.
    if options.wants_label_images:
        taken = {"image", "label", *SPELLINGS["filename"][0]}
        found = {stated.get("image", "image"): picture, stated.get("label", "label"): label}
    else:
        taken, found = {*SPELLINGS["filename"][0]}, {stated.get("image", "file_name"): picture}
    kept = {*stated.values(), *found}
    own = {
        f"written_{key}" if normalize_name(key) in taken and key not in kept else key: value
        for key, value in row.items()
    }
    return {**own, **found} if stated else {**found, **own}


def faulty_row(container: str, name: str, reason: str, detail: str) -> ContainerRow:
    """Return a row that rejects one member, or one sample, by its name."""
    path = f"{container}//{member_name(name)}"
    return {"file_name": path, "image": path, FAULT: (reason, detail)}


def numbered_name(number: int, written: str) -> str:
    """Return the name of a picture by the number of its row and the file name that the row has, if any.

    >>> numbered_name(7, "train/cat.jpg"), numbered_name(7, "")
    ('000007-cat.jpg', '000007')
    """
    file = written.replace("\\", "/").rpartition("/")[2]
    return f"{number:06d}-{file}" if written else f"{number:06d}"


def usable_rows(name: str, rows: Iterable[ContainerRow]) -> Iterator[ContainerRow]:
    """Yield the rows of a container; raise AnnotationsError if none of them can be used."""
    first, usable = None, False
    for row in rows:
        usable = usable or FAULT not in row
        first = first or row.get(FAULT)
        yield row
    # A data set of rejects alone is a fault of the file; the first reason tells which.
    if first and not usable:
        raise AnnotationsError(
            f"{name}: none of its pictures can be used, the first because: {first[0]} ({first[1]})"
        )


def choose_picture(container: str, names: Sequence[str], options: LayoutOptions) -> tuple[str, str | None]:
    """Return the columns or features of the picture and, for segmentation, of its label image.

    Raises:
        AnnotationsError: several can be the picture, or the label image.

    >>> choose_picture("a", ["thumbnail", "image"], LayoutOptions())
    ('image', None)
    >>> choose_picture("a", ["image", "annotation"], LayoutOptions(task="segmentation"))
    ('image', 'annotation')
    """
    found = f"{container}: it holds pictures in {', '.join(names) or 'no column'}"
    stated = single_columns(parse_columns(options.column))
    of_pictures = ("image", "label") if options.wants_label_images else ("image",)
    check_stated(container, names, {one: (stated[one],) for one in of_pictures if one in stated})
    picture = stated.get("image") or only_or_usual(names, lambda name: normalize_name(name) in _PICTURE_NAMES)
    if picture is None:
        raise AnnotationsError(f"{found}; expected one called image: {_name_it('image', names)}")
    if not options.wants_label_images:
        return picture, None
    others = [one for one in names if one != picture]
    label = stated.get("label") or only_or_usual(others, lambda name: normalize_name(name) in _LABEL_NAMES)
    if label is None:
        fix = _name_it("label", others)
        raise AnnotationsError(f"{found}; expected one called label for the label images: {fix}")
    return picture, label


def _name_it(meaning: str, names: Sequence[str]) -> str:
    """Return how to name the column with a meaning."""
    first = f"name it, such as {shlex.join(['--column', f'{meaning}={names[0]}'])}, or " if names else ""
    return f"{first}rename that column"


def only_or_usual(found: Sequence[T], is_usual: Callable[[T], bool]) -> T | None:
    """Return the only one, or else the only one with a usual name; None if none or several may be meant.

    >>> only_or_usual(["a"], str.isupper), only_or_usual(["a", "B"], str.isupper), only_or_usual("ab", str.isupper)
    ('a', 'B', None)
    """
    chosen = found if len(found) == 1 else [one for one in found if is_usual(one)]
    return chosen[0] if len(chosen) == 1 else None


# Parquet: pictures as bytes, and the names of classes -----------------------------------------------------
#
# The schema's metadata describe the features of the columns:
# https://huggingface.co/docs/datasets/about_dataset_features

_ROWS_AT_ONCE = 64
"""Rows whose pictures are in memory at once (estimate): 64 JPEG files of 5 MB are 320 MB."""
_OTHER_MEDIA = ("Audio", "Video", "Pdf", "Nifti")
"""Features of Hugging Face datasets that are bytes and no pictures."""


def parquet_rows(files: SourceFiles, name: str, options: LayoutOptions) -> Iterator[ContainerRow]:
    """Yield the rows of a Parquet file, with the paths of members for the bytes of pictures.

    Raises:
        AnnotationsError: the file is damaged; the bytes of pictures are inside lists; or a row group is too large.
    """
    file = open_parquet(files, name)
    columns = _picture_columns(file, name, _features(file))
    chosen = choose_picture(name, list(columns), options) if columns else None
    for values, found in parquet_records(files, name):
        # Parquet files without bytes of pictures name files; their rows stay as they are.
        if chosen is None:
            yield values
            continue
        picture, label = chosen
        others = {column: path for column, path in found.items() if column not in chosen}
        label_path = found[label] if label else None
        yield picture_row({**values, **others}, found[picture] or "", label_path, options)


def parquet_records(files: SourceFiles, name: str) -> Iterator[tuple[ContainerRow, Mapping[str, str | None]]]:
    """Yield the values of each row of a Parquet file, and the path of the picture in each column with pictures.

    Raises:
        AnnotationsError: as for `parquet_rows`.
    """
    file = open_parquet(files, name)
    features = _features(file)
    columns = _picture_columns(file, name, features)
    _check_groups(file, name, columns)
    row = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            for written in batch.to_pylist():
                values = _named(written, features)
                found = {
                    column: _member_path(name, values.pop(column), row, leaf)
                    for column, leaf in columns.items()
                }
                yield values, found
                row += 1
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise unreadable_parquet(name, error) from error


def parquet_class_names(files: SourceFiles, name: str, column: str | None = None) -> tuple[str, ...]:
    """Return the names of the one feature ClassLabel of a Parquet file in their order; () for none or several.

    Args:
        column: column of which the names are; None for any.
    """
    features = _features(open_parquet(files, name))
    found = set(_class_names(features if column is None else features.get(column)))
    return next(iter(found)) if len(found) == 1 else ()


def _features(file: Any) -> dict[str, Any]:
    """Return the features that the schema's metadata describe; {} without them."""
    written = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(written)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _class_names(feature: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names of each ClassLabel in a description of features."""
    if isinstance(feature, list):
        feature = dict(enumerate(feature))
    if isinstance(feature, dict):
        if _is_class_label(feature):
            yield tuple(map(str, feature["names"]))
        else:
            for one in feature.values():
                yield from _class_names(one)


def _is_class_label(feature: Mapping[str, Any]) -> bool:
    return feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)


def _named(value: Any, feature: Any) -> Any:
    """Return a value with names for the numbers of its ClassLabels; None for -1, which means no label."""
    feature = _feature_of_items(feature)
    # Parquet has null where a row lacks a value.
    if not isinstance(feature, dict) or value is None:
        return value
    if _is_class_label(feature):
        return _name_of(value, feature["names"])
    if isinstance(value, list):
        return [_named(one, feature) for one in value]
    if isinstance(value, dict):
        return {key: _named(one, feature.get(key)) for key, one in value.items()}
    return value


def _feature_of_items(feature: Any) -> Any:
    """Return the description of the items of a list, which datasets writes in four ways; others unchanged."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "LargeList", "List"):
        return feature.get("feature")
    return feature


def _name_of(value: Any, names: list[Any]) -> Any:
    # A sequence of class labels is a list of numbers with one list of names.
    if isinstance(value, list):
        return [_name_of(one, names) for one in value]
    # datasets writes -1 for examples without a label, such as those of a test split.
    if value is None or value == -1:
        return None
    # A number without a name keeps its digits, so that the label map names the fault.
    return str(names[value]) if isinstance(value, int) and 0 <= value < len(names) else str(value)


def _picture_columns(file: Any, name: str, features: Mapping[str, Any]) -> dict[str, int]:
    """Return the columns with pictures, and the number of the leaf that holds their bytes."""
    leaves = {file.schema.column(number).path: number for number in range(len(file.schema))}
    found = {}
    for column in file.schema_arrow:
        feature = features.get(column.name)
        kind = feature.get("_type") if isinstance(feature, dict) else None
        # Audio and video are bytes too, and only the feature tells which bytes are a picture.
        if "binary" not in str(column.type) or kind in _OTHER_MEDIA:
            continue
        # The feature Image is a struct of bytes and path; plain columns of bytes are leaves themselves.
        leaf = leaves.get(column.name, leaves.get(f"{column.name}.bytes"))
        if leaf is None:
            raise AnnotationsError(
                f"{name}: column {column.name} holds the bytes of several pictures in a row; expected one a row: "
                "write a row for each picture"
            )
        found[column.name] = leaf
    return found


def _check_groups(file: Any, name: str, columns: Mapping[str, int]) -> None:
    for group in range(file.num_row_groups):
        for column, leaf in columns.items():
            size = file.metadata.row_group(group).column(leaf).total_uncompressed_size
            # A cell cannot be decoded without its whole group.
            if size > MAX_GROUP_BYTES:
                raise AnnotationsError(
                    f"{name}: row group {group} has {size:,} bytes in column {column}, and a group is decoded at once; "
                    f"at most {MAX_GROUP_BYTES:,} are read: write the file anew with row_group_size=100"
                )


def _member_path(name: str, value: Any, row: int, leaf: int) -> str | None:
    """Return the path of the picture in a cell: bytes, or a struct of bytes and path, one of which may be absent."""
    written = value.get("path") if isinstance(value, dict) else None
    data = value.get("bytes") if isinstance(value, dict) else value
    # The picture is a file beside the table; `path` is its name.
    if data is None:
        return written
    return describe_member(name, numbered_name(row, str(written or "")), data, row, leaf).path


# WebDataset: tar files in which the members of one sample share their name up to the first dot ------------
#
#     cats/0001.jpg  cats/0001.cls      the class, a number or a name
#     cats/0002.jpg  cats/0002.json     the columns of a table: label, or objects with their boxes
#     cats/0003.jpg  cats/0003.seg.png  a label image for segmentation
#
# https://github.com/webdataset/webdataset#the-webdataset-format

_TEXTS = ("cls", "json")
_MAX_TEXT_BYTES = 16 << 20
"""Largest .cls or .json of a sample (estimate); texts of all samples are in memory until the archive ends."""
_MAX_VALUES = 1_000_000
_LABEL_WORDS = frozenset(("seg", "mask", "label", "labels", "segmentation"))
"""Parts of extensions of label images, such as seg.png; seg is the word of WebDataset's examples."""
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
    for info, data in _tar_members(files, name):
        folder, file = posixpath.split(info.name)
        if file.startswith(".") and info.isreg():
            continue  # hidden files, such as macOS's ._0001.jpg
        stem, _, extension = file.partition(".")
        sample = samples.setdefault(posixpath.join(folder, stem), _Sample())
        try:
            _add_member(sample, name, info, extension.lower(), data)
        except SourceError as error:
            sample.fault = sample.fault or (error.reason, error.detail)
    for key, sample in samples.items():
        try:
            # The first fault explains the others: a link has no bytes and so no picture.
            if sample.fault is not None:
                raise SourceError("annotation", *sample.fault)
            yield _sample_row(sample, options)
        except SourceError as error:
            yield faulty_row(name, key, error.reason, error.detail)


def _tar_members(files: SourceFiles, name: str) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
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
                        yield info, _tar_content(archive, info)
                end = archive.offset
        except tarfile.TarError as error:
            # tarfile reads ahead in a stream, so it knows no offsets there.
            raise AnnotationsError(
                f"{name}: not readable as a tar file, at byte {reader.offset:,} or before: {error}; copy it anew"
            ) from error
    # POSIX ends an archive with two blocks of zeros; tarfile takes the end of the file for the end of the archive, so
    # that one which is cut off between two members would be read without an error.
    closing = files.read_range(name, end, end + tarfile.BLOCKSIZE)
    if len(closing) < tarfile.BLOCKSIZE or any(closing):
        problem = "it is cut off" if len(closing) < tarfile.BLOCKSIZE else "it is damaged"
        raise AnnotationsError(
            f"{name}: {problem}: expected a member or the end mark at byte {end:,}; copy it anew"
        )


def _tar_content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | None:
    """Return the bytes of a member that is a picture, a class or a small JSON document; None for another."""
    extension = posixpath.basename(info.name).partition(".")[2].lower()
    is_text = extension in _TEXTS and info.size <= _MAX_TEXT_BYTES
    # Other members, such as .npy and .txt, are listed by name and not read.
    if not info.isreg() or info.issparse() or not (is_text or is_image_name(f"a.{extension}")):
        return None
    stream = archive.extractfile(info)
    return b"" if stream is None else stream.read()


def _add_member(
    sample: _Sample, container: str, info: tarfile.TarInfo, extension: str, data: bytes | None
) -> None:
    """Add a member to its sample; raise SourceError if it is not usable."""
    _check_member(info, extension)
    # tar keeps both versions of a file that was appended again; which one is right is unknown.
    if extension in (*sample.pictures, *sample.texts, *sample.others):
        raise SourceError("annotation", "tar file holds two members of one name", f"{info.name!r}")
    if data is None:
        sample.others.append(extension)
    elif extension in _TEXTS:
        sample.texts[extension] = data
    else:
        path = describe_member(container, info.name, data, info.offset_data).path
        sample.pictures[extension] = path


def _check_member(info: tarfile.TarInfo, extension: str) -> None:
    """Raise SourceError for a member that is no file, or whose name cannot be that of a sample's member."""
    name = info.name
    # A link would have to be followed, and a sparse file has no range with its bytes.
    if not info.isreg() or info.issparse():
        kind = _KINDS.get(info.type, f"of type {info.type!r}")
        raise SourceError(
            "annotation", "tar member is no regular file", f"{name!r} is {kind}; store the file itself"
        )
    # Names become parts of paths and of messages.
    if name.startswith("/") or ".." in name.split("/") or "\\" in name or not name.isprintable():
        raise SourceError(
            "annotation", "tar member has an unsafe name", f"{name!r}; name it relative to the tar file"
        )
    # A sample is the members of one key, and the extension says what each is.
    if not extension:
        raise SourceError(
            "annotation", "tar member has no extension", f"{name!r}; expected KEY.jpg, KEY.cls or KEY.json"
        )


def _sample_row(sample: _Sample, options: LayoutOptions) -> ContainerRow:
    """Return the row of a sample; raise SourceError if it has not exactly one picture."""
    if stated := _stated_members(sample, options):
        return picture_row(_columns_of_sample(sample), *stated, options)
    labels = {one: path for one, path in sample.pictures.items() if _LABEL_WORDS & set(one.split("."))}
    pictures = {one: path for one, path in sample.pictures.items() if one not in labels}
    # 0001.jpg is the picture beside 0001.depth.png.
    plain = {one: path for one, path in pictures.items() if "." not in one} or pictures
    found = ", ".join((*sample.pictures, *sample.texts, *sample.others))
    if len(plain) != 1:
        reason = "sample has several pictures" if plain else "sample has no picture"
        raise SourceError("annotation", reason, f"its members are {found}")
    if options.wants_label_images and len(labels) > 1:
        raise SourceError("annotation", "sample has several label images", f"its members are {found}")
    (picture,), label = plain.values(), next(iter(labels.values()), None)
    return picture_row(_columns_of_sample(sample), picture, label, options)


def _stated_members(sample: _Sample, options: LayoutOptions) -> tuple[str, str | None] | None:
    """Return the picture of a sample, and its label image, by the extensions that the user names; None without such.

    Raises:
        SourceError: the sample has no such member.
    """
    stated = single_columns(parse_columns(options.column))
    if "image" not in stated:
        return None
    wanted = ["image", *(["label"] if options.wants_label_images and "label" in stated else [])]
    for meaning in wanted:
        if stated[meaning].lower() not in sample.pictures:
            found = ", ".join((*sample.pictures, *sample.texts, *sample.others))
            near = did_you_mean(stated[meaning], sample.pictures)
            detail = f"--column {meaning}={stated[meaning]}: {near}its members are {found}"
            raise SourceError("annotation", "sample has no member of this extension", detail)
    picture, *labels = (sample.pictures[stated[meaning].lower()] for meaning in wanted)
    found_labels = {one: path for one, path in sample.pictures.items() if _LABEL_WORDS & set(one.split("."))}
    label = labels[0] if labels else next(iter(found_labels.values()), None)
    return picture, label if options.wants_label_images else None


def _columns_of_sample(sample: _Sample) -> dict[str, Any]:
    """Return the columns that the members of a sample are, besides its pictures; .cls counts more than .json."""
    columns: dict[str, Any] = {f"member_{one}": "" for one in sample.others}
    if (data := sample.texts.get("json")) is not None:
        columns |= _columns_of_json(data)
    if (data := sample.texts.get("cls")) is not None:
        columns["cls"] = _class_of_text(data)
    return columns


def _columns_of_json(data: bytes) -> dict[str, Any]:
    try:
        document = parse_json(data, _MAX_VALUES)
    except ValueError as error:
        raise SourceError("annotation", "malformed JSON", str(error)) from error
    if not isinstance(document, dict):
        raise SourceError(
            "annotation", "malformed JSON", f"expected an object, got {type(document).__name__}"
        )
    return document


def _class_of_text(data: bytes) -> str:
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise SourceError("annotation", "class is no UTF-8 text", str(error)) from error
    # The convention of .cls is one number or name; several lines are another format.
    if not text or "\n" in text or "\0" in text:
        raise SourceError("annotation", "class is no number and no name", f"{text[:40]!r}")
    return text
