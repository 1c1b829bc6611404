"""Reader of FiftyOne's JSON: labels.json of a detection or classification data set, and samples.json of an export.

The rules are those of FiftyOne (github.com/voxel51/fiftyone, `utils/data/importers.py` and `core/labels.py`). Boxes are
[x, y, width, height], and points [x, y], in shares of the sides of the picture. The mask of an object covers its box.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name
from halofeed.prep.annotations.documents import as_mapping, parse_json_document
from halofeed.prep.annotations.written_boxes import (
    class_of,
    declared_size,
    no_box,
    numbers_of,
    points_of,
    polygon_of,
    rectangle_of,
    unite_parts,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import SourceError

_SIDES = 4
_OBJECTS = {"Detections": "detections", "Polylines": "polylines"}
"""Key of the list in a field of objects, by its class. A field may also be a single object of these classes."""
_CLASSES = {"Classifications": "classifications"}
_SINGLE = {"Detection": _OBJECTS, "Polyline": _OBJECTS, "Classification": _CLASSES}
_UNREAD = frozenset(("Keypoints", "Keypoint", "Segmentation", "Heatmap", "Regression", "TemporalDetections"))
_NO_LABEL = ("selection", "image has no annotation")
_MAX_MASK_BYTES = 1 << 28
"""Largest unpacked mask of one object (estimate): 16,000 x 16,000 pixels."""

_Object = tuple[Any, tuple[Any, Any]]
"""A written object, and the height and width of its picture."""


def _read(path: str, data: bytes) -> DocumentContent | None:
    document = as_mapping(parse_json_document(data))
    labels, samples = document.get("labels"), document.get("samples")
    if isinstance(labels, dict) and "classes" in document:
        return _read_labels(document["classes"], labels)
    if isinstance(samples, list) and any("filepath" in as_mapping(one) for one in samples):
        return _read_samples(samples)
    return None


# labels.json: classes, and the labels of each picture by its name without an extension --------------------


def _read_labels(classes: Any, labels: Mapping[str, Any]) -> DocumentContent:
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    pictures = [_labelled_picture(key, target, names) for key, target in labels.items()]
    return DocumentContent(pictures=pictures, classes=names)


def _labelled_picture(key: str, target: Any, names: Sequence[str]) -> FilePicture:
    is_name = is_image_name(key)
    picture = FilePicture(name=key if is_name else "", stem="" if is_name else key, folders=("data",))
    # FiftyOne writes null for a sample without labels, and [] for one without objects.
    if target is None:
        return replace(picture, name=key, stem=key, fault=SourceError(*_NO_LABEL, f"{key} is null"))
    entries = target if isinstance(target, list) else [target]
    named = [_with_name(one, names) for one in entries]
    objects = [(one, (None, None)) for one in named if "bounding_box" in one]
    classes = [str(one["label"]) for one in named if "bounding_box" not in one]
    return replace(picture, objects=objects, classes=classes)


def _with_name(entry: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return an entry with the name of its class, which may be a number in the list of classes."""
    entry = entry if isinstance(entry, dict) else {"label": entry}
    label = entry.get("label")
    is_number = isinstance(label, int) and not isinstance(label, bool)
    if is_number and names:
        # A wrong number is no class: `class_of` refuses None.
        return {**entry, "label": names[label] if 0 <= label < len(names) else None}
    return {**entry, "label": str(label) if is_number else label}


# samples.json: the fields of each sample ------------------------------------------------------------------


def _read_samples(samples: Sequence[Any]) -> DocumentContent:
    fields = _Fields(samples)
    pictures = [_picture_of(as_mapping(sample), place, fields) for place, sample in enumerate(samples)]
    return DocumentContent(pictures=pictures)


class _Fields:
    """Fields of samples that hold objects and classes, as their values show."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._predicted: dict[str, bool] = {}
        self._kinds: dict[str, str] = {}
        self.unread: dict[str, None] = {}
        for sample in map(as_mapping, samples):
            for name, value in sample.items():
                self._add(name, as_mapping(value))
        self.objects = self._chosen(_OBJECTS)
        self.classes = self._chosen(_CLASSES)

    def _add(self, name: str, value: Mapping[str, Any]) -> None:
        kind = str(value.get("_cls"))
        if kind in _UNREAD:
            self.unread[name] = None
        if not (kind in _OBJECTS or kind in _CLASSES or kind in _SINGLE):
            return
        self._kinds[name] = kind
        has_confidence = any(one.get("confidence") is not None for one in _entries(value))
        self._predicted[name] = self._predicted.get(name, False) or has_confidence

    def _chosen(self, kinds: Mapping[str, str]) -> tuple[str, ...]:
        """Return the fields of some kinds; predictions, which have confidences, only if there are no others."""
        found = [name for name, kind in self._kinds.items() if kind in kinds or _SINGLE.get(kind) is kinds]
        return tuple(name for name in found if not self._predicted[name]) or tuple(found)

    def the_objects(self) -> str | None:
        """Return the field of objects; raise SourceError if there are several, of which one is to be chosen."""
        if len(self.objects) > 1:
            listed = ", ".join(self.objects)
            detail = (
                f"{listed}; export one of them: dataset.select_fields({self.objects[0]!r}).export(..., "
                "dataset_type=fiftyone.types.FiftyOneDataset)"
            )
            raise SourceError("annotation", "several fields hold objects", detail)
        return self.objects[0] if self.objects else None

    def notes(self) -> tuple[str, ...]:
        """Return remarks on the fields that are not read, and on one of predictions that is."""
        classes = self.classes if len(self.classes) > 1 or self.objects else ()
        taken = {*self.objects, *self.classes}
        left_out = [name for name in self._kinds if name not in taken]
        other = [*self.unread, *classes, *left_out]
        notes = [f"fields of FiftyOne that are not read: {shorten_list(other)}"] if other else []
        predicted = [name for name in self.objects if self._predicted[name]]
        notes += [f"the objects of {name} have confidences, so they are predictions" for name in predicted]
        return tuple(notes)


def _entries(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects or classes of a field, which may be one."""
    kind = str(value.get("_cls"))
    if kind in _SINGLE:
        return [value]
    listed = value.get((_OBJECTS | _CLASSES).get(kind, ""))
    return [as_mapping(one) for one in listed] if isinstance(listed, list) else []


def _picture_of(sample: Mapping[str, Any], place: int, fields: _Fields) -> FilePicture:
    name = str(sample.get("filepath") or "")
    metadata = as_mapping(sample.get("metadata"))
    size = (metadata.get("height"), metadata.get("width"))
    written, fault = _objects_of(sample, name or f"sample {place}", fields)
    # FiftyOne's importers and exporters keep splits as tags.
    tags = [tag for tag in _texts(sample.get("tags")) if is_split_name(tag)]
    return FilePicture(
        name=name,
        size=size,
        split=tags[0] if len(tags) == 1 else "",
        objects=[(one, size) for one in written],
        classes=_classes_of(sample, fields),
        fault=fault if name else SourceError("annotation", "sample has no filepath", f"sample {place}"),
        notes=fields.notes(),
        attributes={
            key: value for key, value in sample.items() if not key.startswith("_") and key != "filepath"
        },
    )


def _objects_of(
    sample: Mapping[str, Any], what: str, fields: _Fields
) -> tuple[list[Mapping[str, Any]], SourceError | None]:
    """Return the objects of a sample, and the fault that makes it unusable."""
    try:
        field = fields.the_objects()
    except SourceError as error:
        return [], error
    if field is None:
        return [], None
    # FiftyOne has null where nobody has labeled a sample.
    if sample.get(field) is None:
        return [], SourceError(*_NO_LABEL, f"{what}: {field} is null")
    return _entries(as_mapping(sample[field])), None


def _classes_of(sample: Mapping[str, Any], fields: _Fields) -> list[str]:
    """Return the classes of a sample of the only field of classes; beside objects, classes are attributes."""
    if fields.objects or len(fields.classes) != 1:
        return []
    return list(_texts(one.get("label") for one in _entries(as_mapping(sample.get(fields.classes[0])))))


def _texts(values: Any) -> Iterator[str]:
    """Yield the texts among some values; nothing for anything but a list or an iterator."""
    if isinstance(values, str | dict) or not hasattr(values, "__iter__"):
        return
    yield from (value for value in values if isinstance(value, str) and value.strip())


# Objects ----------------------------------------------------------------------------------------------------


def _box_of(entry: _Object, what: str, options: LayoutOptions) -> Box:
    written, size = as_mapping(entry[0]), entry[1]
    label = class_of(written.get("label"), what)
    what = f"{what} {label!r}"
    flags = {
        "is_crowd": _is_set(written, "iscrowd") or _is_set(written, "is_crowd"),
        **{name: _is_set(written, name) for name in ("occluded", "truncated", "difficult")},
    }
    if written.get("points") is not None:
        return _box_of_polyline(label, written, what, options, flags)
    numbers = written.get("bounding_box")
    if not isinstance(numbers, list) or len(numbers) != _SIDES:
        detail = f"{what}: {numbers!r:.60}; expected x, y, width and height"
        raise SourceError("annotation", "object has no box", detail)
    sides = numbers_of(numbers, what)
    if not options.masks:
        return rectangle_of(label, sides, what, options, form="corner-size", **flags)
    mask = _mask_of(written, sides, size, what)
    return rectangle_of(label, sides, what, options, form="corner-size", mask=mask, **flags)


def _is_set(written: Mapping[str, Any], name: str) -> bool:
    """Return whether a flag is set: a field of the object, or one of its attributes, which may have a value."""
    value = written.get(name, as_mapping(written.get("attributes")).get(name))
    value = value.get("value") if isinstance(value, dict) else value
    return value in (True, 1, "1") or (isinstance(value, str) and value.lower() == "true")


def _box_of_polyline(
    label: str, written: Mapping[str, Any], what: str, options: LayoutOptions, flags: Mapping[str, Any]
) -> Box:
    if not written.get("closed") and not written.get("filled"):
        raise no_box("Polyline that is not closed", what)
    parts = written["points"]
    if not isinstance(parts, list) or not parts:
        raise SourceError("annotation", "points are no list of [x, y]", f"{what}: {parts!r:.60}")
    return unite_parts(
        parts, lambda part: polygon_of(label, points_of(part, what), what, options, **flags), options
    )


def _mask_of(
    written: Mapping[str, Any], sides: Sequence[float], size: tuple[Any, Any], what: str
) -> dict[str, Any]:
    """Return the mask of an object as run lengths of the picture; raise SourceError if there is none."""
    import numpy as np

    from halofeed.prep.voxels.masks import encode_run_lengths

    pixels = _unpacked(written.get("mask"), what)
    picture = declared_size(*size)
    if picture is None:
        detail = (
            f"{what}: call dataset.compute_metadata() before the export, which writes the size of pictures"
        )
        raise SourceError("annotation", "size of the picture is missing", detail)
    drawn = np.zeros(picture, np.uint8)
    (top, height), (left, width) = (
        (round(sides[axis] * length), max(1, round(sides[axis + 2] * length)))
        for axis, length in ((1, picture[0]), (0, picture[1]))
    )
    # The mask covers the box; by rounding it may have a row or a column more or less.
    if abs(pixels.shape[0] - height) <= 1 and abs(pixels.shape[1] - width) <= 1:
        height, width = pixels.shape
    rows = np.arange(max(0, top), min(picture[0], top + height))
    columns = np.arange(max(0, left), min(picture[1], left + width))
    source = (rows - top) * pixels.shape[0] // height, (columns - left) * pixels.shape[1] // width
    drawn[np.ix_(rows, columns)] = pixels[np.ix_(*source)]
    return encode_run_lengths(drawn)


def _unpacked(mask: Any, what: str) -> Any:
    """Return a mask, uint8 [row, column], 0 or 1, which FiftyOne packs as a NumPy file in zlib and base64."""
    import numpy as np

    if isinstance(mask, dict):
        mask = as_mapping(mask.get("$binary")).get("base64")
    if not isinstance(mask, str):
        raise SourceError("annotation", "object has no segmentation", what)
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(mask, validate=True), _MAX_MASK_BYTES)
        pixels = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, zlib.error) as error:
        raise SourceError("annotation", "mask is no packed array", f"{what}: {error}") from error
    if pixels.ndim != 2 or not pixels.size:
        raise SourceError("annotation", "mask is no packed array", f"{what}: shape {pixels.shape}")
    return (pixels != 0).astype(np.uint8)


FIFTYONE = DocumentFormat(
    layout="fiftyone",
    summary="FiftyOne: labels.json with data/, or samples.json of an export; boxes, polylines, masks, classes",
    extensions=(".json",),
    expected="FiftyOne's labels.json with classes and labels, or samples.json with samples, beside the folder data",
    read=_read,
    box_of=_box_of,
    is_normalized=True,
    has_classes=True,
    keeps=("occluded", "corners"),
)
