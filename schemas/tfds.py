"""Metadata for other readers: TFDS's dataset_info.json, features.json and class names, and label_map.pbtxt.

`tfds.builder_from_directory(folder)` reads shards that have both files beside them. Each tf.train.Example key is one
feature of the same flat name (`example["image/encoded"]`). A raw image is a Tensor of encoding `bytes`, so TFDS returns
its pixels; a packed one is the bytes of its value; jpeg and png are Image features; the Object Detection API's lists
are Sequences in their stored types, float32, int64 and bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halofeed.schemas import keys
from halofeed.schemas.croissant import croissant_json
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import CLASS_NAMES, CROISSANT, DATASET_INFO, FEATURES, LABEL_MAP
from halofeed.schemas.limits import LABELS
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES

_PACKAGE = "tensorflow_datasets.core.features"
_DESCRIPTIVE = {
    "": {keys.FORMAT: "text", keys.HEIGHT: "int64", keys.WIDTH: "int64"},
    "classification": {keys.CLASS_TEXT: "text"},
    "detection": {keys.OBJECT_CLASS_TEXT: "texts"},
    "segmentation": {},
    "volume": {keys.DEPTH: "int64"},
    "clip": {keys.FRAMES: "int64"},
    "jpeg": {keys.KEY_SHA256: "text"},
    "png": {keys.KEY_SHA256: "text"},
    "classes": {keys.CLASS_TEXT: "texts"},
    "keep view": {OPTIONAL_ATTRIBUTES["view"]: "texts"},
    "keep keypoints": {
        **{f"{OPTIONAL_ATTRIBUTES['keypoints']}/{part}": "floats" for part in ("x", "y")},
        **{f"{OPTIONAL_ATTRIBUTES['keypoints']}/{part}": "int64s" for part in ("num", "visibility")},
        f"{OPTIONAL_ATTRIBUTES['keypoints']}/text": "texts",
    },
}
"""Type of each key beside those of the manifest's fields, by the task, kind, encoding or `--keep` that adds it."""


def metadata_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the files that follow from a manifest alone, by name; data sets of format 1 have only two of them."""
    found = {DATASET_INFO: dataset_info_json(manifest), FEATURES: features_json(manifest)}
    # Metadata of a committed version of format 1 must stay as it was written.
    if manifest.format_version > 1:
        found[CROISSANT] = croissant_json(manifest)
    if _has_class_names(manifest):
        found[LABEL_MAP] = label_map_text(manifest.labels)
        names = _class_names(manifest.labels)
        keyed = {key for field in manifest.fields for key in field.keys}
        files = {f"{key.replace('/', '.')}.labels.txt" for key in keyed} & set(CLASS_NAMES)
        # Others stay in label_map.pbtxt only, and TFDS shows numbers.
        if _are_lines(names):
            found |= dict.fromkeys(files, "".join(f"{name}\n" for name in names))
    return {name: text.encode("utf-8", "surrogateescape") for name, text in found.items()}


def label_map_text(labels: Mapping[int, str]) -> str:
    r"""Return the classes as a StringIntLabelMap of the TF Object Detection API, in protobuf's text form.

    Source: `object_detection/protos/string_int_label_map.proto`.

    >>> print(label_map_text({1: 'ace "of" hearts'}), end="")
    item {
      id: 1
      name: "ace \"of\" hearts"
    }
    """
    escaped = ((identity, "".join(map(_escape, labels[identity]))) for identity in sorted(labels))
    return "".join(f'item {{\n  id: {identity}\n  name: "{name}"\n}}\n' for identity, name in escaped)


def _escape(character: str) -> str:
    if character in '\\"':
        return f"\\{character}"
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
        return f"\\{ord(character) - 0xDC00:03o}"
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in character.encode())


def _has_class_names(manifest: Manifest) -> bool:
    return manifest.format_version > 1 and 0 <= max(manifest.labels, default=-1) < LABELS


def _class_names(labels: Mapping[int, str]) -> list[str]:
    """Return a name for each id from 0 to the largest one, as TFDS's ClassLabel needs it."""
    return [labels.get(identity, f"({identity} is no class)") for identity in range(max(labels) + 1)]


def _are_lines(names: Sequence[str]) -> bool:
    """Return whether TFDS, which reads a name per line and strips it, reads these names."""
    return len(set(names)) == len(names) and all(
        name == name.strip() and name.isprintable() and name for name in names
    )


def dataset_info_json(manifest: Manifest) -> str:
    """Return the text of dataset_info.json: name, version, license, splits, records of shards, supervised keys."""
    frame = HEADER_BYTES + FOOTER_BYTES
    document: dict[str, Any] = {
        "name": manifest.name,
        "version": manifest.version,
        "description": f"{manifest.name} {manifest.version}: {manifest.task}, written by halofeed; see manifest.json.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "numBytes": str(sum(shard.bytes - frame * shard.records for shard in split.shards)),
                "shardLengths": [str(shard.records) for shard in split.shards],
            }
            for name, split in sorted(manifest.splits.items())
        ],
    }
    if citation := manifest.recipe.get("citation"):
        document["citation"] = citation
    if terms := manifest.recipe.get("license"):
        document["redistributionInfo"] = {"license": terms}
    if manifest.format_version > 1:
        document["supervisedKeys"] = {"tuple": {"items": [{"featureKey": keys.ENCODED}, _target(manifest)]}}
    return _text(document)


def _target(manifest: Manifest) -> dict[str, Any]:
    """Return what `as_supervised` gives beside the image: the label, or boxes and classes by their keys."""
    targets = [field for field in manifest.fields if field.name in ("label", "labels", "boxes", "classes")]
    names = [key for field in targets for key in field.keys]
    if len(names) == 1:
        return {"featureKey": names[0]}
    return {"dict": {"dict": {name: {"featureKey": name} for name in names}}}


def features_json(manifest: Manifest) -> str:
    """Return the text of features.json: one feature per tf.train.Example key."""
    features = {}
    for field in manifest.fields:
        for key in field.keys:
            features[key] = _described(field)
    if _has_class_names(manifest):
        label = _feature(
            "class_label_feature.ClassLabel", classLabel={"numClasses": str(max(manifest.labels) + 1)}
        )
        # TFDS names classes only where the feature is a ClassLabel, or a sequence of them for boxes.
        for key in features.keys() & {keys.CLASS_LABEL, keys.OBJECT_CLASS_LABEL}:
            is_scalar = features[key] == _tensor((), "int64")
            features[key] = label if is_scalar else _sequence(label)
    encodings = {field.encoding for field in manifest.fields}
    kept = [f"keep {name}" for name in manifest.recipe.get("keep", ())]
    # The first type of a key counts, so that pictures of several classes have several texts.
    for part in ("", *sorted(encodings), manifest.task, manifest.kind.name, *kept):
        for key, kind in _DESCRIPTIVE.get(part, {}).items():
            features.setdefault(key, _DESCRIBED[kind])
    return _text(_feature("features_dict.FeaturesDict", featuresDict={"features": features}))


def _described(field: Field) -> dict[str, Any]:
    """Return the feature of each key of a field; a sequence where records may lack it, which is then empty."""
    if field.may_be_absent:
        return _sequence(_BYTES if field.encoding == "text" else _tensor((), _stored(field)))
    return _ENCODINGS[field.encoding](field)


def _text(document: Any) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _shape(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in shape]} if shape else {}


def _feature(kind: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{_PACKAGE}.{kind}", **content}


def _tensor(shape: tuple[int, ...], dtype: str, encoding: str = "none") -> dict[str, Any]:
    tensor = {"dtype": dtype, "encoding": encoding, "shape": _shape(shape)}
    return _feature("tensor_feature.Tensor" if shape else "scalar.Scalar", tensor=tensor)


def _image(dtype: str, encoding: str, channels: int) -> dict[str, Any]:
    image = {"dtype": dtype, "encodingFormat": encoding, "shape": _shape((-1, -1, channels))}
    return _feature("image_feature.Image", image=image)


def _sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return _feature("sequence_feature.Sequence", sequence={"feature": feature, "length": "-1"})


def _stored(field: Field) -> str:
    """Return the type of the field's numbers in tf.train.Example."""
    return "float32" if field.dtype in ("float32", "float64", "bfloat16") else "int64"


_BYTES = _feature("text_feature.Text", text={})
_DESCRIBED: dict[str, dict[str, Any]] = {
    "text": _BYTES,
    "texts": _sequence(_BYTES),
    "int64": _tensor((), "int64"),
    "int64s": _sequence(_tensor((), "int64")),
    "floats": _sequence(_tensor((), "float32")),
}
_ENCODINGS: dict[str, Callable[[Field], dict[str, Any]]] = {
    "raw": lambda field: _tensor(field.shape, field.dtype, "bytes"),
    "sets": lambda field: _tensor(field.stored_shape, field.stored_dtype, "bytes"),
    "packed": lambda field: _BYTES,
    "packed_sets": lambda field: _BYTES,
    "yuv420": lambda field: _BYTES,
    "jpeg": lambda field: _image(field.dtype, "jpeg", field.shape[-1]),
    "png": lambda field: _image(field.dtype, "png", field.shape[-1] if "channel" in field.axes else 1),
    "value": lambda field: _tensor(field.shape, _stored(field)),
    "classes": lambda field: _sequence(_tensor((), "int64")),
    "list": lambda field: _sequence(_tensor((), _stored(field))),
    "text": lambda field: _BYTES,
    "png_list": lambda field: _sequence(_image("uint8", "png", 1)),
}
