"""Reader of SageMaker's manifests, of Ground Truth and Rekognition Custom Labels, and of its JSON for each picture.

The rules are those of Amazon (docs.aws.amazon.com/sagemaker: "Augmented manifest file", "Output data", and "Object
detection", "Input/output interface").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.class_rows import ClassRow
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_list, as_mapping, parse_json_document, parse_json_lines
from halofeed.prep.annotations.written_boxes import class_of, numbers_of, rectangle_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_META = "-metadata"
_OBJECTS, _CLASS, _CLASSES = "object-detection", "image-classification", "image-classification-multilabel"
_COLORS = "semantic-segmentation"
_COLOR = re.compile(r"#?[0-9A-Fa-f]{6}")
_TOP_SIZE = ("left", "top", "width", "height")


def _read_with(files: SourceFiles, options: LayoutOptions) -> Read:
    """Return the function that reads one file."""
    return partial(_read_sagemaker, options)


def _read_sagemaker(options: LayoutOptions, path: str, data: bytes) -> DocumentContent | None:
    if path.lower().endswith(".json") and (one := _sagemaker_document(path, data)) is not None:
        return one
    if b'"source-ref"' not in data:
        return None
    classes: dict[int, str] = {}
    lines = [(number, as_mapping(one)) for number, one in parse_json_lines(data)]
    pictures = [_manifest_picture(number, one, classes, options) for number, one in lines]
    # A manifest may state both, and a wrong color is no fault of its boxes.
    colored = lines if options.wants_label_images else []
    return DocumentContent(
        pictures=pictures,
        classes=[name for _, name in sorted(classes.items())],
        label_rows=[row for number, one in colored for row in _label_rows(one, f"{path}, line {number}")],
    )


def _sagemaker_document(path: str, data: bytes) -> DocumentContent | None:
    """Return the picture of a JSON file of the built-in algorithm; None for another file."""
    if b'"class_id"' not in data or b'"source-ref"' in data:
        return None
    document = as_mapping(parse_json_document(data))
    if not {"file", "annotations"} <= document.keys():
        return None
    names = {
        one["class_id"]: str(one.get("name"))
        for one in map(as_mapping, as_list(document.get("categories")))
        if isinstance(one.get("class_id"), int)
    }
    picture = FilePicture(
        name=str(document["file"]),
        folders=("../train", "../validation"),
        size=_size_of(document),
        objects=[(one, names) for one in as_list(document["annotations"])],
    )
    return DocumentContent(pictures=[picture], classes=[name for _, name in sorted(names.items())])


def _size_of(value: Mapping[str, Any]) -> tuple[Any, Any]:
    size = as_mapping(next(iter(as_list(value.get("image_size"))), None))
    return size.get("height"), size.get("width")


def _path_of(reference: str) -> str:
    """Return the path of an address such as s3://bucket/a%20b.jpg."""
    return unquote(urlsplit(reference).path).lstrip("/")


def _manifest_picture(
    number: int, line: Mapping[str, Any], classes: dict[int, str], options: LayoutOptions
) -> FilePicture:
    """Return the picture of a line; the names of its classes are added to `classes`."""
    reference = line.get("source-ref")
    if not isinstance(reference, str):
        fault = SourceError("annotation", "line has no source-ref", f"line {number}: {shorten_list(line)}")
        return FilePicture(name="", stem=f"line {number}", fault=fault)
    name = _path_of(reference)
    label_image = _label_image(line)
    try:
        key, kind = _labeled_attribute(line, number)
    except SourceError as error:
        # The label image of a segmentation job is no fault for the task of segmentation.
        is_labelled = bool(label_image) and options.wants_label_images
        return FilePicture(name=name, fault=None if is_labelled else error, label_image=label_image)
    value, meta = line.get(key), as_mapping(line.get(f"{key}{_META}"))
    names = {int(at): str(text) for at, text in as_mapping(meta.get("class-map")).items() if at.isdecimal()}
    classes |= names
    if kind == _OBJECTS:
        boxes = as_mapping(value)
        return FilePicture(
            name=name,
            size=_size_of(boxes),
            objects=[(one, names) for one in as_list(boxes.get("annotations"))],
            label_image=label_image,
            attributes=line,
        )
    given = meta.get("class-name")
    numbers: list[Any] = as_list(value) if kind == _CLASSES else [value]
    named = [given] if isinstance(given, str) else [names.get(one, str(one)) for one in numbers]
    return FilePicture(name=name, classes=named, label_image=label_image, attributes=line)


def _labeled_attribute(line: Mapping[str, Any], number: int) -> tuple[str, str]:
    """Return the only attribute with boxes or classes, and its type; raise SourceError if there is another number."""
    kinds = {
        key.removesuffix(_META): str(as_mapping(meta).get("type")).removeprefix("groundtruth/")
        for key, meta in line.items()
        if key.endswith(_META)
    }
    found = [(key, kind) for key, kind in kinds.items() if kind in (_OBJECTS, _CLASS, _CLASSES)]
    failed = [key for key, _ in found if "failure-reason" in as_mapping(line.get(f"{key}{_META}"))]
    if len(found) - len(failed) == 1:
        return next(one for one in found if one[0] not in failed)
    if len(found) > 1:
        detail = f"line {number}: {shorten_list([key for key, _ in found])}; keep one of them in the manifest"
        raise SourceError("annotation", "line has several labels", detail)
    colors = [key for key, kind in kinds.items() if kind == _COLORS]
    if colors:
        detail = f"line {number}: {colors[0]} is a label image; take --task segmentation"
        raise SourceError("annotation", "label is a picture in color", detail)
    reason = f"line {number}: " + (f"{failed[0]} failed" if failed else "no attribute with boxes or classes")
    raise SourceError("selection", "image has no annotation", reason)


def _label_image(line: Mapping[str, Any]) -> str:
    """Return the label image of a line, of which there is one; "" without one."""
    found = [line.get(key) for key, _ in _color_maps(line)]
    return _path_of(found[0]) if len(found) == 1 and isinstance(found[0], str) else ""


def _color_maps(line: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the attribute of each label image of a line, such as `street-ref`, and its metadata."""
    for key, value in line.items():
        meta = as_mapping(value)
        kind = str(meta.get("type")).removeprefix("groundtruth/")
        if key.endswith(_META) and kind == _COLORS and "failure-reason" not in meta:
            yield key.removesuffix(_META), meta


def _label_rows(line: Mapping[str, Any], place: str) -> Iterator[ClassRow]:
    """Yield the classes of the colors of a label image.

    Raises:
        SourceError: a color is no #RRGGBB, or a class has no name.
    """
    for _, meta in _color_maps(line):
        for number, entry in as_mapping(meta.get("internal-color-map")).items():
            one = as_mapping(entry)
            color, name = str(one.get("hex-color")), one.get("class-name")
            if _COLOR.fullmatch(color) is None or not isinstance(name, str) or not name.strip():
                detail = f"{place}: {number} is {entry!r:.60}; expected class-name and hex-color #RRGGBB"
                raise SourceError("annotation", "color of a class is not known", detail)
            yield ClassRow(
                value=int(number) if number.isdecimal() else 0,
                name=name.strip(),
                color=int(color.lstrip("#"), 16),
                place=place,
            )


def _box_of_sagemaker(written: tuple[Any, Mapping[int, str]], what: str, options: LayoutOptions) -> Box:
    one, names = as_mapping(written[0]), written[1]
    number = one.get("class_id")
    # Without a table of classes, their numbers are all that the file says.
    name = str(number)
    if names:
        name = names.get(number, "") if isinstance(number, int) else ""
    label = class_of(name, f"{what}: class_id is {number!r:.20}")
    sides = numbers_of(map(one.get, _TOP_SIZE), f"{what} {label!r}")
    return rectangle_of(label, sides, f"{what} {label!r}", options, form="corner-size")


SAGEMAKER = DocumentFormat(
    layout="sagemaker",
    summary="SageMaker Ground Truth and Rekognition: manifests with source-ref and boxes, classes or label images",
    extensions=(".manifest", ".jsonl", ".json"),
    expected="a manifest of SageMaker: lines with source-ref, and an attribute with its metadata and their type",
    read_with=_read_with,
    box_of=_box_of_sagemaker,
    has_masks=False,
    has_classes=True,
    has_label_images=True,
)
