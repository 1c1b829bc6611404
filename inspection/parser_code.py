"""Source code of a TensorFlow parse function for the records of one data set; it needs nothing but TensorFlow."""

from __future__ import annotations

import json
import os

from halofeed.inspection.dataset_files import open_manifest
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.system.addresses import address_of

_FIXED_AXES = ("channel", "coordinate")
_PROGRAM = '''\
"""Reads {name} {version} with TensorFlow alone. Written by `halofeed inspect`."""

import tensorflow as tf

FEATURES = {{
{features}
}}


def parse(record):
    """Return the arrays of one serialized tf.train.Example.

{arrays}
    """
    values = tf.io.parse_single_example(record, FEATURES)
    return {{
{values}
    }}


if __name__ == "__main__":
    files = tf.data.Dataset.list_files({pattern!r}, shuffle=False)
    for example in tf.data.TFRecordDataset(files).map(parse).take(1):
        for name, value in example.items():
            print(name, value.dtype.name, value.shape)
'''


def parser_code(path: str | os.PathLike[str]) -> str:
    """Return a Python program that reads the data set at a path or address, with a function `parse`.

    The arrays have the names, dtypes and values of the loader's batches. Lists and images of varying size are not
    padded, and boxes are fractions of the stored image.

    Raises:
        UsageError, ManifestError: there is no data set.
    """
    place = address_of(path) or os.path.abspath(path)
    manifest = open_manifest(path)
    features = {key: _feature(field) for field in manifest.fields for key in field.keys}
    split = next(iter(manifest.splits))
    return _PROGRAM.format(
        name=manifest.name,
        version=manifest.version,
        features="\n".join(f"    {json.dumps(key)}: {kind}," for key, kind in features.items()),
        arrays="\n".join(f"    {_description(field)}" for field in manifest.fields),
        values="\n".join(
            f"        {json.dumps(field.name)}: {_expression(field, manifest)}," for field in manifest.fields
        ),
        pattern=f"{place}/{manifest.name}-{split}.tfrecord-*",
    )


def _feature(field: Field) -> str:
    """Return the feature of one key of a field."""
    stored = {"str": "string", "float32": "float32", "float64": "float32", "bfloat16": "float32"}
    number = "string" if field.encoding == "png_list" else stored.get(field.dtype, "int64")
    if field.encoding == "value":
        return f"tf.io.FixedLenFeature({list(field.shape)}, tf.{number})"
    if field.encoding in ("list", "classes", "png_list"):
        return f"tf.io.FixedLenSequenceFeature([], tf.{number}, allow_missing=True)"
    return "tf.io.FixedLenFeature([], tf.string)"


def _description(field: Field) -> str:
    """Return a line that names an array, its dtype and axes, with their sizes where all records have the same."""
    if field.encoding == "png_list":
        return f"{field.name}: uint8 [box, height, width]"
    if field.name == "id":
        return "id: uint32 [2], the high and low half of a number"
    is_static = field.encoding not in ("list", "jpeg", "png")
    sizes = zip(field.axes, field.shape, strict=True)
    fixed = (f"{axis} {size}" if is_static or axis in _FIXED_AXES else axis for axis, size in sizes)
    return f"{field.name}: {field.dtype} [{', '.join(fixed)}]"


def _expression(field: Field, manifest: Manifest) -> str:
    """Return the expression for a field's array."""
    values = [f"values[{json.dumps(key)}]" for key in field.keys]
    value = values[0] if len(values) == 1 else f"tf.stack([{', '.join(values)}], axis=-1)"
    if field.is_raw:
        value = f"tf.reshape(tf.io.decode_raw({value}, tf.{field.stored_dtype}), {list(field.stored_shape)})"
        if not field.holds_sets:
            return value
        bits = f"tf.range({field.shape[-1]})"
        return f"tf.cast(tf.bitwise.right_shift(tf.cast({value}, tf.int32)[..., None], {bits}) & 1, tf.uint8)"
    if field.encoding in ("jpeg", "png"):
        channels = field.shape[-1] if field.axes[-1] == "channel" else 1
        depth = f", dtype=tf.{field.dtype}" if field.encoding == "png" else ""
        depth = depth or ', dct_method="INTEGER_ACCURATE"'
        decoded = f"tf.io.decode_{field.encoding}({value}, channels={channels}{depth})"
        return decoded if field.axes[-1] == "channel" else f"{decoded}[..., 0]"
    if field.encoding == "png_list":
        decode = "lambda png: tf.io.decode_png(png, channels=1)[..., 0]"
        return f"tf.map_fn({decode}, {value}, fn_output_signature=tf.uint8)"
    if field.encoding == "classes":
        ids = sorted(manifest.labels)
        return f"tf.cast(tf.reduce_any({value}[:, None] == tf.constant({ids}, tf.int64), axis=0), tf.{field.dtype})"
    if field.name == "id":
        return f"tf.reverse(tf.bitcast(tf.strings.to_number({value}, tf.int64), tf.uint32), [0])"
    if field.encoding == "text" and field.dtype != "str":
        return f"tf.strings.to_number({value}, tf.{field.dtype})"
    is_stored = field.dtype in ("str", "float32", "int64")
    return value if is_stored else f"tf.cast({value}, tf.{field.dtype})"
