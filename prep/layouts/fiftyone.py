"""Reader of FiftyOne's JSON: labels.json of a detection or classification data set, and samples.json of an export.

The rules are those of FiftyOne (github.com/voxel51/fiftyone, `utils/data/importers.py` and `core/labels.py`). Boxes are
[x, y, width, height], and points [x, y], in shares of the sides of the picture. Masks are those of `fiftyone_masks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name
from halofeed.prep.annotations.documents import as_mapping, parse_json_document
from halofeed.prep.annotations.named_points import PointNames, named_points, sides_of_points
from halofeed.prep.annotations.written_boxes import (
    class_of,
    no_box,
    numbers_of,
    points_of,
    polygon_of,
    rectangle_of,
    unite_parts,
)
from halofeed.prep.layouts.fiftyone_masks import (
    FiftyOneExport,
    label_rows,
    mask_files,
    mask_of_object,
    runs_of_segmentation,
)
from halofeed.prep.layouts.fiftyone_points import (
    BY_ORDER,
    Point,
    PointField,
    keypoints_of_sample,
    points_of_label,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_SIDES = 4
_OBJECTS = {"Detections": "detections", "Polylines": "polylines"}
"""Key of the list in a field of objects, by its class. A field may also be a single object of these classes."""
_CLASSES = {"Classifications": "classifications"}
_SINGLE = {"Detection": _OBJECTS, "Polyline": _OBJECTS, "Classification": _CLASSES}
_SEGMENTATION = "Segmentation"
_POINTS = frozenset(("Keypoints", "Keypoint"))
_UNREAD = frozenset((*_POINTS, _SEGMENTATION, "Heatmap", "Regression", "TemporalDetections"))
_NO_LABEL = ("selection", "image has no annotation")
_NO_NAMES = PointNames()


@dataclass(frozen=True, kw_only=True)
class _Object:
    """A written object.

    Args:
        written: its entry; that of keypoints for an object of these alone.
        size: height and width of its picture as written.
        export: files of the export, which may hold its mask.
        points: its keypoints; None without any.
        names: names of the keypoints of all objects.
    """

    written: Any
    size: tuple[Any, Any]
    export: FiftyOneExport
    points: list[Point] | None = None
    names: PointNames = _NO_NAMES


def _read_with(files: SourceFiles, options: LayoutOptions) -> Read:
    """Return the function that reads one file of a source."""

    def read(path: str, data: bytes) -> DocumentContent | None:
        document = as_mapping(parse_json_document(data))
        labels, samples = document.get("labels"), document.get("samples")
        if isinstance(labels, dict) and "classes" in document:
            return _read_labels(document["classes"], labels, FiftyOneExport.of(files, path))
        if isinstance(samples, list) and any("filepath" in as_mapping(one) for one in samples):
            found = [as_mapping(one) for one in samples]
            export = FiftyOneExport.of(files, path)
            if options.wants_label_images:
                return _read_segmentations(found, export, path)
            return _read_samples(found, export, options)
        return None

    return read


# labels.json: classes, and the labels of each picture by its name without an extension --------------------


def _read_labels(classes: Any, labels: Mapping[str, Any], export: FiftyOneExport) -> DocumentContent:
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    pictures = [_labelled_picture(key, target, names, export) for key, target in labels.items()]
    return DocumentContent(pictures=pictures, classes=names)


def _labelled_picture(key: str, target: Any, names: Sequence[str], export: FiftyOneExport) -> FilePicture:
    is_name = is_image_name(key)
    picture = FilePicture(name=key if is_name else "", stem="" if is_name else key, folders=("data",))
    # FiftyOne writes null for a sample without labels, and [] for one without objects.
    if target is None:
        return replace(picture, name=key, stem=key, fault=SourceError(*_NO_LABEL, f"{key} is null"))
    entries = target if isinstance(target, list) else [target]
    named = [_with_name(one, names) for one in entries]
    objects = [
        _Object(written=one, size=(None, None), export=export) for one in named if "bounding_box" in one
    ]
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


def _read_samples(
    samples: Sequence[Mapping[str, Any]], export: FiftyOneExport, options: LayoutOptions
) -> DocumentContent:
    fields = _Fields(samples)
    points = PointField()
    if "keypoints" in options.keep:
        own = fields.objects[:1]
        objects = {
            place: _entries(as_mapping(sample.get(name)))
            for place, sample in enumerate(samples)
            for name in own
        }
        points = PointField.of(samples, objects, export)
        fields.unread.pop(points.name, None)
    pictures = [_picture_of(sample, place, fields, points, export) for place, sample in enumerate(samples)]
    return DocumentContent(pictures=pictures)


def _read_segmentations(
    samples: Sequence[Mapping[str, Any]], export: FiftyOneExport, path: str
) -> DocumentContent:
    """Return the pictures with their label images; raise SourceError if several fields hold some."""
    fields = {
        name: None
        for sample in samples
        for name, value in sample.items()
        if as_mapping(value).get("_cls") == _SEGMENTATION
    }
    if len(fields) > 1:
        raise _several_fields("segmentations", [*fields])
    field = next(iter(fields), "")
    rows = list(label_rows(export, field, path))
    names = {row.value: row.name for row in rows if row.color is None}
    pictures = [
        _segmented_picture(sample, f"sample {place}", as_mapping(sample.get(field)), names)
        for place, sample in enumerate(samples)
    ]
    if any(one.label_image for one in pictures) and any(one.label_runs is not None for one in pictures):
        detail = (
            f"some of {field} are files and others are in {path}; write all of them to files by "
            "fiftyone.utils.labels.export_segmentations"
        )
        raise SourceError("annotation", "segmentations have two forms", detail)
    return DocumentContent(pictures=pictures, label_rows=rows)


def _segmented_picture(
    sample: Mapping[str, Any], what: str, label: Mapping[str, Any], names: Mapping[int, str]
) -> FilePicture:
    picture = _bare_picture(sample, what)
    path = label.get("mask_path")
    if label.get("mask") is None:
        return replace(picture, label_image=path if isinstance(path, str) else "")
    try:
        runs, size = runs_of_segmentation(label["mask"], picture.size, names, picture.name or what)
    except SourceError as error:
        return replace(picture, fault=picture.fault or error)
    return replace(picture, label_runs=runs, size=size)


def _several_fields(what: str, names: Sequence[str]) -> SourceError:
    listed = ", ".join(names)
    detail = (
        f"{listed}; export one of them: dataset.select_fields({names[0]!r}).export(..., "
        "dataset_type=fiftyone.types.FiftyOneDataset)"
    )
    return SourceError("annotation", f"several fields hold {what}", detail)


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
            raise _several_fields("objects", self.objects)
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


def _picture_of(
    sample: Mapping[str, Any], place: int, fields: _Fields, points: PointField, export: FiftyOneExport
) -> FilePicture:
    picture = _bare_picture(sample, f"sample {place}")
    written, fault = _objects_of(sample, picture.name or f"sample {place}", fields, points)
    own: Sequence[list[Point] | None] = [None] * len(written)
    try:
        if points.name and fields.objects:
            own = points.of_objects(sample, written)
        elif points.name:
            own = [points_of_label(one) for one in written]
    except SourceError as error:
        fault = fault or error
    objects = [
        _Object(written=one, size=picture.size, export=export, points=pose, names=points.names)
        for one, pose in zip(written, own, strict=True)
    ]
    notes = (*fields.notes(), *((BY_ORDER,) if points.is_ordered else ()))
    return replace(
        picture,
        companions=mask_files(sample, export),
        objects=objects,
        classes=_classes_of(sample, fields),
        fault=picture.fault or fault,
        notes=notes,
    )


def _bare_picture(sample: Mapping[str, Any], what: str) -> FilePicture:
    """Return the picture of a sample without its labels."""
    name = str(sample.get("filepath") or "")
    metadata = as_mapping(sample.get("metadata"))
    # FiftyOne's importers and exporters keep splits as tags.
    tags = [tag for tag in _texts(sample.get("tags")) if is_split_name(tag)]
    return FilePicture(
        name=name,
        size=(metadata.get("height"), metadata.get("width")),
        split=tags[0] if len(tags) == 1 else "",
        fault=None if name else SourceError("annotation", "sample has no filepath", what),
        attributes={
            key: value for key, value in sample.items() if not key.startswith("_") and key != "filepath"
        },
    )


def _objects_of(
    sample: Mapping[str, Any], what: str, fields: _Fields, points: PointField
) -> tuple[list[Mapping[str, Any]], SourceError | None]:
    """Return the objects of a sample, and the fault that makes it unusable."""
    try:
        field = fields.the_objects()
    except SourceError as error:
        return [], error
    if field is None:
        return keypoints_of_sample(sample, points.name) if points.name else [], None
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
    written = as_mapping(entry.written)
    label = class_of(written.get("label"), what)
    what = f"{what} {label!r}"
    flags: dict[str, Any] = {
        "is_crowd": _is_set(written, "iscrowd") or _is_set(written, "is_crowd"),
        **{name: _is_set(written, name) for name in ("occluded", "truncated", "difficult")},
    }
    if "keypoints" in options.keep:
        flags["keypoints"] = named_points(label, entry.points or [], entry.names, what)
        # Keypoints of a picture without a field of objects: the box is around the labeled ones.
        if entry.points is not None and "bounding_box" not in written:
            around = sides_of_points(flags["keypoints"])
            if around is None:
                raise no_box("Keypoint without a labeled point", what)
            return rectangle_of(label, around, what, options, **flags)
    if written.get("points") is not None:
        return _box_of_polyline(label, written, what, options, flags)
    numbers = written.get("bounding_box")
    if not isinstance(numbers, list) or len(numbers) != _SIDES:
        detail = f"{what}: {numbers!r:.60}; expected x, y, width and height"
        raise SourceError("annotation", "object has no box", detail)
    sides = numbers_of(numbers, what)
    if not options.masks:
        return rectangle_of(label, sides, what, options, form="corner-size", **flags)
    mask = mask_of_object(written, sides, entry.size, entry.export, what)
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


FIFTYONE = DocumentFormat(
    layout="fiftyone",
    summary="FiftyOne: labels.json with data/, or samples.json of an export; objects, points, classes, label images",
    extensions=(".json",),
    expected="FiftyOne's labels.json with classes and labels, or samples.json with samples, beside the folder data",
    read_with=_read_with,
    box_of=_box_of,
    is_normalized=True,
    has_classes=True,
    has_label_images=True,
    keeps=("occluded", "corners", "keypoints"),
)
