"""Rows of TFRecord and ArrayRecord files whose tf.train.Examples hold encoded pictures.

Two schemas are read: the one of the TF Object Detection API, which TF-slim's classification records share, and those of
TFDS, whose features.json beside the records names the features.
https://github.com/tensorflow/models/blob/master/research/object_detection/g3doc/using_your_own_dataset.md
https://github.com/tensorflow/datasets/blob/master/tensorflow_datasets/core/proto/feature.proto
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations import labels
from halofeed.prep.annotations.container_rows import (
    ContainerRow,
    choose_picture,
    faulty_row,
    numbered_name,
    only_or_usual,
    picture_row,
)
from halofeed.prep.annotations.contract import LayoutOptions, read_required
from halofeed.prep.annotations.group_evidence import is_group_name
from halofeed.prep.annotations.stated_columns import (
    check_stated,
    no_such_column,
    parse_columns,
    single_columns,
)
from halofeed.prep.sources.array_records import is_array_record, iterate_records
from halofeed.prep.sources.containers import ContainerReader, describe_member, open_container
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas import keys
from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.file_layout import DATASET_INFO, FEATURES, LABEL_MAP
from halofeed.schemas.tfexample import Decoded, decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_header, check_record
from halofeed.system.errors import AnnotationsError, CorruptFileError, SourceError

_MAX_VALUES = 1_000_000
_MAX_MASK_PIXELS = 1 << 28
"""Most pixels of an object's mask: those of a picture of 16,384 x 16,384."""
_FILE_NAMES = (keys.FILENAME, "file_name", "filename", "id", keys.SOURCE_ID)
"""Keys of the name of a picture's file, of which the first one with a text is used."""
_YXYX = "REL_YXYX"
_EXPECTED = f"expected {keys.ENCODED} of the TF Object Detection API, or {FEATURES} of TFDS beside the file"
_PICTURE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
INSTANCE_MASK = "instance_rle"
"""Column with the run lengths of an object's mask."""


@dataclass(frozen=True, kw_only=True)
class _ClassFeature:
    """Classes of a record or of its objects.

    Args:
        numbers: key of the class numbers.
        texts: key of the class names; "" without one.
        names: name of each number.
    """

    numbers: str
    texts: str = ""
    names: Mapping[int, str] = field(default_factory=dict)

    def of(self, features: Decoded) -> list[str | None]:
        """Return the classes in one record; None for the number -1, with which TFDS means no label."""
        numbers = [int(one) for one in features.get(self.numbers, ())]
        texts = [_text(one) for one in features.get(self.texts, ())] if self.texts else []
        # Names count more than numbers, which depend on a label map. They may be empty.
        if texts and all(texts):
            return list(texts)
        return [None if one == -1 else self.names.get(one, str(one)) for one in numbers]


@dataclass(frozen=True, kw_only=True)
class _RecordSchema:
    """Keys of the Examples in one file.

    Args:
        picture: key of the encoded picture.
        label_image: key of the label image for segmentation.
        label: classes of the picture.
        boxes: keys of ymin, xmin, ymax and xmax, or the one key of all four for each object.
        object_label: classes of the objects.
        flags: keys of the objects' further columns.
        size: keys of the columns height and width.
        masks: key of the objects' masks as PNG.
    """

    picture: str
    label_image: str | None = None
    label: _ClassFeature | None = None
    boxes: tuple[str, ...] = ()
    object_label: _ClassFeature | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    size: Mapping[str, str] = field(default_factory=dict)
    masks: str = ""

    def serves(self, options: LayoutOptions) -> bool:
        """Return whether the records have what the task reads."""
        if options.wants_label_images:
            return self.label_image is not None
        if options.wants_boxes:
            return bool(self.boxes)
        # Without a task the records decide.
        return options.wants_boxes is None or self.label is not None

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes in the order of their numbers; () where pictures and objects differ."""
        classes = [one.names for one in (self.label, self.object_label) if one is not None and one.names]
        found = {tuple(names[number] for number in sorted(names)) for names in classes}
        return next(iter(found)) if len(found) == 1 else ()


def tfrecord_rows(files: SourceFiles, name: str, options: LayoutOptions) -> Iterator[ContainerRow]:
    """Yield a row for each record of an ArrayRecord file, or of a TFRecord file after both checksums were verified.

    Raises:
        AnnotationsError: a record is damaged or cut off; its message has the offset. Or the records have another
            schema, or halofeed wrote them.
    """
    schema, split = None, _split_of(files, name)
    for number, record in enumerate(_records(files, name)):
        try:
            features = decode_example(record.data)
        except CorruptFileError as error:
            raise AnnotationsError(f"{name}: {record.place}: {error}; {_EXPECTED}") from error
        # All records of a file have one schema; optional features may be absent from some.
        if schema is None:
            schema = _schema_of(files, name, features, options)
        row = _row(name, number, record, features, schema, options)
        yield row if split is None else {"split": split, **row}


def tfrecord_class_names(
    files: SourceFiles, name: str, options: LayoutOptions | None = None
) -> tuple[str, ...]:
    """Return the names of the classes that files beside the records give, in their order; () without such files.

    The options may name the feature of the classes.
    """
    described = _beside(files, name, FEATURES)
    if files.size(described) is not None:
        schema = _tfds_schema(files, name, options or LayoutOptions())
        named = schema.label or schema.object_label
        return schema.class_names() if options is None or named is None else _in_order(named.names)
    return _in_order(_label_map(files, name))


@dataclass(frozen=True, kw_only=True)
class _Record:
    """One record.

    Args:
        data: its bytes.
        start: offset of its data in the file, or its number in an ArrayRecord file.
        is_numbered: whether `start` is a number.
    """

    data: bytes
    start: int
    is_numbered: bool = False

    @property
    def place(self) -> str:
        return (
            f"record {self.start:,}" if self.is_numbered else f"record at byte {self.start - HEADER_BYTES:,}"
        )

    def member(self, name: str, stem: str, value: memoryview | bytes) -> str:
        """Return the path of the picture that a value of this record is."""
        base, first = (np.frombuffer(one, np.uint8).ctypes.data for one in (self.data, value))
        place = (self.start, first - base) if self.is_numbered else (self.start + first - base, None)
        return describe_member(name, f"{stem}.x", bytes(value), *place).path


def _in_order(names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[number] for number in sorted(names))


def _records(files: SourceFiles, name: str) -> Iterator[_Record]:
    """Yield each record."""
    if is_array_record(name):
        for number, data in iterate_records(files, name):
            yield _Record(data=data, start=number, is_numbered=True)
        return
    size = files.size(name) or 0
    fix = "copy or write the file anew"
    with open_container(files, name) as reader:
        while (offset := reader.offset) < size:
            place = f"{name}: record at byte {offset:,}"
            try:
                frame = _frame(reader, place, size)
                data = bytes(check_record(memoryview(frame), name, offset))
                yield _Record(data=data, start=offset + HEADER_BYTES)
            except CorruptFileError as error:
                raise AnnotationsError(f"{error}; {fix}") from error


def _frame(reader: ContainerReader, place: str, size: int) -> bytes:
    header = reader.read(HEADER_BYTES)
    length = check_header(memoryview(header), place)
    # Checked before the read, since a damaged length may be petabytes.
    if reader.offset + length + FOOTER_BYTES > size:
        raise CorruptFileError(f"{place}: the file ends inside the record ({length:,} bytes announced)")
    return header + reader.read(length + FOOTER_BYTES)


def _row(
    name: str,
    number: int,
    record: _Record,
    features: Decoded,
    schema: _RecordSchema,
    options: LayoutOptions,
) -> ContainerRow:
    written = (_text(features[key][0]) for key in _FILE_NAMES if _is_text(features.get(key)))
    stem = numbered_name(number, next(written, ""))
    try:
        picture, label = _member(name, stem, record, features, schema.picture), None
        if schema.label_image:
            label = _member(name, f"{stem}.label", record, features, schema.label_image)
        columns = {**_columns(features, schema, options), **_groups_in(features, options)}
        # The columns have their usual names, whatever the user calls the features.
        usual = replace(options, column=())
        return picture_row(columns, picture, label if options.wants_label_images else None, usual)
    except SourceError as error:
        return faulty_row(name, stem, error.reason, error.detail)


def _columns(features: Decoded, schema: _RecordSchema, options: LayoutOptions) -> dict[str, Any]:
    """Return the columns of a record that the task reads: none for label images, else its objects or its class."""
    sizes = {side: _first(features, key) for side, key in schema.size.items()}
    # A label image has its classes in its pixels.
    if options.wants_label_images:
        return {}
    if schema.boxes and options.wants_boxes is not False:
        known = {side: value for side, value in sizes.items() if value is not None}
        return {**known, "objects": _objects(features, schema, options)}
    found = schema.label.of(features) if schema.label is not None else [None]
    return {"class": found[0] if len(found) == 1 else [one for one in found if one is not None]}


def _groups_in(features: Decoded, options: LayoutOptions) -> dict[str, str]:
    """Return the features with one text or whole number that the user names, or that are named like a needed group."""
    stated = {
        column
        for meaning, column in single_columns(parse_columns(options.column)).items()
        if meaning in ("split", "group", "id")
    }
    if not options.needs_groups and not stated:
        return {}
    found = {}
    for key, values in features.items():
        # `--group-column` may name any other feature, too.
        is_group = options.needs_groups and (key == options.group_column or is_group_name(key))
        if key in stated or is_group:
            if _is_text(values):
                found[key] = _text(values[0])
            elif not isinstance(values, list) and len(values) == 1 and float(values[0]).is_integer():
                # Ids are whole numbers, also where a writer stored floats.
                found[key] = str(int(values[0]))
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and 0 < len(value[0]) < 1000


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "surrogateescape")


def _first(features: Decoded, key: str) -> int | None:
    values = features.get(key)
    return int(values[0]) if isinstance(values, np.ndarray) and len(values) == 1 else None


def _member(name: str, stem: str, record: _Record, features: Decoded, key: str) -> str:
    """Return the path of the encoded picture under a key, which is a range of the record's bytes."""
    values = features.get(key, [])
    if not isinstance(values, list) or len(values) != 1 or not values[0]:
        count = f"{len(values)} values" if isinstance(values, list) else "numbers"
        raise SourceError(
            "annotation", "record has no picture", f"{key}: expected one encoded picture, got {count}"
        )
    return record.member(name, stem, values[0])


def _objects(features: Decoded, schema: _RecordSchema, options: LayoutOptions) -> dict[str, list[Any]]:
    """Return the objects of a record in the form of Hugging Face, with boxes as x, y, width and height."""
    ymin, xmin, ymax, xmax = sides = _sides(features, schema)
    classes = schema.object_label.of(features) if schema.object_label is not None else []
    lengths = {"boxes": {len(one) for one in sides}, "classes": {len(classes)}}
    if len(set().union(*lengths.values())) != 1:
        detail = ", ".join(f"{'/'.join(map(str, sorted(found)))} {what}" for what, found in lengths.items())
        raise SourceError("annotation", "objects have boxes and classes of other numbers", detail)
    found: dict[str, list[Any]] = {
        "bbox": np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=1).tolist(),
        "category": list(classes),
    }
    # A flag is optional in each record: a writer leaves it out where no object has it.
    for column, key in schema.flags.items():
        values = features.get(key)
        if isinstance(values, np.ndarray) and len(values) == len(classes):
            found[column] = values.tolist()
    if options.masks:
        found[INSTANCE_MASK] = _instance_masks(features.get(schema.masks, []), len(classes))
    return found


def _sides(features: Decoded, schema: _RecordSchema) -> list[NDArray[np.float64]]:
    """Return ymin, xmin, ymax and xmax of all objects: four features, or one with four numbers for each object."""
    columns = [np.asarray(features.get(key, ()), np.float64) for key in schema.boxes]
    # The Object Detection API has a feature for each side, TFDS one for all.
    if len(columns) > 1:
        return columns
    if len(columns[0]) % 4:
        raise SourceError("annotation", "record has no complete boxes", f"{len(columns[0])} numbers")
    return list(columns[0].reshape(-1, 4).T)


def _instance_masks(encoded: Any, count: int) -> list[str]:
    """Return the run lengths of the objects' PNG masks, as COCO writes them, in JSON."""
    from PIL import PngImagePlugin

    from halofeed.prep.formats.picture.image import check_pixel_count
    from halofeed.prep.formats.picture.pillow import decoder_failures, open_with_plugin

    # Masks and boxes belong together by their positions.
    if len(encoded) != count or not isinstance(encoded, list):
        detail = f"{len(encoded)} masks, {count} objects; leave --masks out"
        raise SourceError("annotation", "objects have no masks", detail)
    found = []
    for data in encoded:
        image = open_with_plugin(PngImagePlugin.PngImageFile, bytes(data))
        check_pixel_count((image.height, image.width), _MAX_MASK_PIXELS)
        with decoder_failures():
            mask = np.asarray(image.convert("L") if image.mode not in ("1", "I;16", "P") else image) != 0
        flat = mask.ravel(order="F")
        changes = np.flatnonzero(np.diff(flat, prepend=False))
        counts = np.diff(np.concatenate([[0], changes, [flat.size]]))
        found.append(json.dumps({"size": list(mask.shape), "counts": counts.tolist()}))
    return found


# Schemas --------------------------------------------------------------------------------------------------


def _beside(files: SourceFiles, name: str, other: str) -> str:
    return posixpath.join(posixpath.dirname(name), other)


def _schema_of(files: SourceFiles, name: str, features: Decoded, options: LayoutOptions) -> _RecordSchema:
    # Converting a data set again would resize its pictures twice.
    if keys.KEY_SOURCE in features and keys.TRANSFORM in features:
        folder = posixpath.normpath(posixpath.join(files.root, posixpath.dirname(name)))
        raise AnnotationsError(
            f"{name}: halofeed wrote these records, so this data set is converted already; look at it with "
            f"`halofeed report {folder}`"
        )
    # A description beside the records is certain, while any writer may use the keys of the Object Detection API.
    if files.size(_beside(files, name, FEATURES)) is not None:
        schema = _tfds_schema(files, name, options)
    elif keys.ENCODED in features or single_columns(parse_columns(options.column)).get("image"):
        schema = _with_stated(name, _detection_schema(files, name, options), features, options)
    else:
        listed = ", ".join(sorted(features)[:12])
        raise AnnotationsError(f"{name}: the records have the keys {listed}; {_EXPECTED}{_key_fix(features)}")
    if not schema.serves(options):
        raise AnnotationsError(
            f"{name}: the records have no annotations for --task {options.task}; leave --task out to take those they "
            "have"
        )
    return schema


def _key_fix(features: Decoded) -> str:
    """Return how to name the features of records of another schema; "" if no value begins like a picture."""
    first = next((key for key, values in features.items() if _begins_like_picture(values)), None)
    if first is None:
        return ""
    fix = shlex.join(["--column", f"image={first}"])
    return f"; {first} holds pictures: {fix} reads them, with label=KEY for the key of the class"


def _begins_like_picture(values: Any) -> bool:
    return _is_bytes(values) and bytes(values[0][:8]).startswith(_PICTURE_STARTS)


def _is_bytes(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 1


def _with_stated(
    name: str, schema: _RecordSchema, features: Decoded, options: LayoutOptions
) -> _RecordSchema:
    """Return the schema with the keys that the user names.

    Raises:
        AnnotationsError: the records have no such key.
    """
    stated = single_columns(parse_columns(options.column))
    wanted = {meaning: (key,) for meaning, key in stated.items() if meaning in ("image", "label")}
    check_stated(name, sorted(features), wanted)
    schema = replace(schema, picture=stated.get("image", schema.picture))
    if (key := stated.get("label")) is None:
        return schema
    if options.wants_label_images:
        return replace(schema, label_image=key)
    # Names are bytes, and numbers have names in a label map.
    is_text = isinstance(features[key], list)
    known = schema.object_label.names if schema.object_label is not None else {}
    named = _ClassFeature(numbers="" if is_text else key, texts=key if is_text else "", names=known)
    return replace(schema, object_label=named) if schema.boxes else replace(schema, label=named)


def _label_map(files: SourceFiles, name: str) -> dict[int, str]:
    """Return the names in the one .pbtxt file beside the records; {} without one."""
    folder = posixpath.dirname(name)
    found = [path for path in files.files_in(folder) if path.endswith(".pbtxt")]
    if not found:
        return {}
    chosen = only_or_usual(found, lambda path: path.endswith(LABEL_MAP))
    if chosen is None:
        raise AnnotationsError(
            f"{name}: several label maps lie beside it: {', '.join(found[:3])}; keep one there"
        )
    return dict(labels.from_file(chosen, read_required(files, chosen), 0).names)


def _detection_schema(files: SourceFiles, name: str, options: LayoutOptions) -> _RecordSchema:
    """Return the schema of the TF Object Detection API; of a file without any box the boxes remain absent."""
    names = _label_map(files, name)
    says_class = "label" in parse_columns(options.column)
    has_boxes = options.wants_boxes is not False and _has_boxes(files, name, says_class=says_class)
    return _RecordSchema(
        picture=keys.ENCODED,
        label=None
        if has_boxes
        else _ClassFeature(numbers=keys.CLASS_LABEL, texts=keys.CLASS_TEXT, names=names),
        boxes=keys.BOX_CORNERS if has_boxes else (),
        object_label=_ClassFeature(
            numbers=keys.OBJECT_CLASS_LABEL, texts=keys.OBJECT_CLASS_TEXT, names=names
        ),
        flags={**keys.OBJECT_FLAGS, "group_of": keys.OBJECT_GROUP_OF},
        size={"height": keys.HEIGHT, "width": keys.WIDTH},
        masks=keys.OBJECT_MASK,
    )


def _has_boxes(files: SourceFiles, name: str, *, says_class: bool) -> bool:
    """Return whether a record of a file has a box or the class of an object, or none has the class of a picture.

    The user may name the key of the class, so that a file without a box has classes.
    """
    wanted = [*keys.BOX_CORNERS, keys.OBJECT_CLASS_LABEL, keys.CLASS_LABEL, keys.CLASS_TEXT]
    classified = False
    for record in _records(files, name):
        found = decode_example(record.data, wanted)
        # The first record with a box decides; pictures without objects may come before it.
        if found.keys() & set(wanted[:5]):
            return True
        classified = classified or bool(found)
    return not classified and not says_class


@dataclass(frozen=True, kw_only=True)
class _TfdsFeature:
    """One leaf of features.json.

    Args:
        parts: names from the top down to it.
        kind: "image", "classLabel", "boundingBox", or another kind.
        document: its description.
        in_sequence: number of sequences around it.
    """

    parts: tuple[str, ...]
    kind: str
    document: Mapping[str, Any]
    in_sequence: int = 0

    @property
    def key(self) -> str:
        return "/".join(self.parts)


def _tfds_features(
    document: Any, parts: tuple[str, ...] = (), in_sequence: int = 0
) -> Iterator[_TfdsFeature]:
    if not isinstance(document, dict):
        return
    for kind, inner in document.items():
        # These describe the node; the other key names its kind.
        if kind in ("pythonClassName", "description") or not isinstance(inner, dict):
            continue
        if kind == "featuresDict":
            for name, one in inner.get("features", {}).items():
                yield from _tfds_features(one, (*parts, name), in_sequence)
        elif kind in ("sequence", "dataset"):
            # A `dataset` is a sequence of records (RLDS), which is one level deeper as well.
            yield from _tfds_features(inner.get("feature"), parts, in_sequence + 1)
        else:
            yield _TfdsFeature(parts=parts, kind=kind, document=inner, in_sequence=in_sequence)


def _read_tfds_features(files: SourceFiles, described: str) -> list[_TfdsFeature]:
    """Return the features in a file features.json; raise AnnotationsError if it is damaged."""
    try:
        document = parse_json(read_required(files, described), _MAX_VALUES)
    except ValueError as error:
        raise AnnotationsError(f"{described}: not readable as JSON: {error}; copy it anew") from error
    return list(_tfds_features(document))


def _tfds_schema(files: SourceFiles, name: str, options: LayoutOptions) -> _RecordSchema:
    """Return the schema of records of TFDS by the features.json beside them."""
    described = _beside(files, name, FEATURES)
    found = _read_tfds_features(files, described)
    # Pictures in a sequence are frames of a video.
    images = [one.key for one in _of_kind(found, "image", in_sequence=0)]
    picture, label_image = choose_picture(described, images, options)
    stated = single_columns(parse_columns(options.column)).get("label")
    boxes = _of_kind(found, "boundingBox", in_sequence=1) if options.wants_boxes is not False else []
    of_objects = stated if boxes and not options.wants_label_images else None
    of_picture = None if boxes or options.wants_label_images else stated
    classes = _of_kind(found, "classLabel", in_sequence=0) if of_picture is None else _columns_in(found, 0)
    label = _tfds_label(files, described, classes, of_picture)
    schema = _RecordSchema(picture=picture, label_image=label_image, label=label)
    if not boxes:
        return schema
    return _with_tfds_boxes(schema, files, described, found, _tfds_box(described, boxes), of_objects)


def _with_tfds_boxes(
    schema: _RecordSchema,
    files: SourceFiles,
    described: str,
    found: Sequence[_TfdsFeature],
    box: _TfdsFeature,
    stated: str | None,
) -> _RecordSchema:
    """Return the schema with the boxes of objects, and with their classes and flags.

    Args:
        stated: feature of the classes of objects that the user names; None for a ClassLabel.
    """
    # The features of an object are named alike: objects/bbox, objects/label, objects/is_crowd.
    own = [one for one in found if one.parts[:-1] == box.parts[:-1] and one is not box]
    classes = _of_kind(own, "classLabel", in_sequence=1)
    candidates = classes if stated is None else _columns_in(own, 1)
    others = [one for one in own if one.in_sequence == 1 and one not in classes]
    names = {one.parts[-1].removeprefix("is_"): one.key for one in others}
    return replace(
        schema,
        boxes=(box.key,),
        object_label=_tfds_label(files, described, candidates, stated),
        flags={column: names[written] for column, written in _TFDS_FLAGS.items() if written in names},
    )


def _of_kind(found: Sequence[_TfdsFeature], kind: str, in_sequence: int) -> list[_TfdsFeature]:
    return [one for one in found if (one.kind, one.in_sequence) == (kind, in_sequence)]


def _columns_in(found: Sequence[_TfdsFeature], in_sequence: int) -> list[_TfdsFeature]:
    """Return the features that may be a class if the user names one: numbers and texts too."""
    others = ("image", "boundingBox", "video", "audio")
    return [one for one in found if one.kind not in others and one.in_sequence == in_sequence]


_TFDS_FLAGS = {
    "is_crowd": "crowd",
    **{name: name for name in ("difficult", "truncated", "occluded", "group_of")},
}
"""Name in TFDS, without "is_", of each column of flags."""


def _tfds_box(described: str, boxes: Sequence[_TfdsFeature]) -> _TfdsFeature:
    """Return the one feature that is the boxes; raise AnnotationsError for several, or another form of boxes."""
    if len(boxes) > 1:
        listed = ", ".join(one.key for one in boxes)
        raise AnnotationsError(
            f"{described}: several features are boxes: {listed}; write one into the records"
        )
    (box,) = boxes
    # A description without a form is of a version of TFDS that has this one only.
    if (form := box.document.get("bboxFormat", _YXYX)) != _YXYX:
        raise AnnotationsError(
            f"{described}: {box.key}: expected boxes of the form {_YXYX}, got {form}; write that form"
        )
    return box


def _tfds_label(
    files: SourceFiles, described: str, classes: Sequence[_TfdsFeature], stated: str | None
) -> _ClassFeature | None:
    """Return one ClassLabel among features, with the names in the file beside: the stated or only one, or label."""
    if stated is not None:
        named = [one for one in classes if stated in (one.key, one.parts[-1])]
        if len(named) != 1:
            raise no_such_column(described, "label", stated, [one.key for one in classes])
        classes = named
    if not classes:
        return None
    chosen = only_or_usual(classes, lambda one: one.parts[-1] == "label")
    if chosen is None:
        listed = ", ".join(one.key for one in classes)
        raise AnnotationsError(
            f"{described}: several features are classes: {listed}; name one of them, such as "
            f"--column label={classes[0].key}"
        )
    file_name = "-".join(part.replace("/", ".") for part in chosen.parts)
    path = _beside(files, described, f"{file_name}.labels.txt")
    names: dict[int, str] = {}
    # TFDS stores the names of a ClassLabel in FEATURE.labels.txt beside features.json.
    if files.size(path) is not None:
        lines = read_required(files, path).decode("utf-8", "surrogateescape").split("\n")
        names = dict(enumerate(line.strip() for line in lines if line.strip()))
    if chosen.kind == "text":
        return _ClassFeature(numbers="", texts=chosen.key)
    return _ClassFeature(numbers=chosen.key, names=names)


def _split_of(files: SourceFiles, name: str) -> str | None:
    """Return the split of a file by dataset_info.json beside it, since a split of TFDS can have any name."""
    described = _beside(files, name, DATASET_INFO)
    if files.size(described) is None:
        return None
    try:
        document = parse_json(read_required(files, described), _MAX_VALUES)
        splits = [str(one["name"]) for one in document.get("splits", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnnotationsError(
            f"{described}: not the description of a TFDS data set: {error}; copy it anew"
        ) from error
    start = f"{document.get('name')}-"
    last = posixpath.basename(name)
    found = [split for split in splits if last.startswith(f"{start}{split}.")]
    return found[0] if len(found) == 1 else None
