"""Is one record what the manifest and the index say of it? Every fault in words."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored.features import (
    bytes_of,
    decode_stored,
    integer_of,
    item_bytes,
    key_of,
    text_of,
)
from halofeed.inspection.stored.labels import is_volumetric
from halofeed.inspection.verify.kept import kept_problems
from halofeed.prep.formats.picture.stored import check_stored
from halofeed.schemas import keys
from halofeed.schemas.checksum import block_checksums
from halofeed.schemas.fields import Field
from halofeed.schemas.identity import example_id
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

_INTEGER_LIMITS = {"bool": (0, 1)} | {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("uint8", "uint16", "int16", "int32", "int64")
}


def record_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Everything in which a record differs from what the manifest says."""
    for field in manifest.fields:
        for key in field.keys:
            if key not in features:
                yield f"{key} is missing"
            elif field.encoding == "png_list":
                yield from (f"{key}: {problem}" for problem in _masks(features[key], features, manifest))
            else:
                yield from (
                    f"{key}: {problem}" for problem in _CHECKS[field.encoding](features[key], field, features)
                )
    yield from _parallel_problems(features, manifest)
    yield from _image_problems(features, manifest)
    yield from _box_problems(features)
    yield from kept_problems(features, manifest)
    yield from _label_problems(features, manifest)
    yield from _identity_problems(features)


def block_problems(data: memoryview, expected: NDArray[np.uint32]) -> Iterator[str]:
    """Which 1 MiB blocks of a raw value differ from the index's checksums."""
    found = block_checksums(data)
    if len(found) != len(expected):
        yield f"the index holds {len(expected)} block checksums, the value has {len(found)} blocks"
    for block, (ours, theirs) in enumerate(zip(found, expected.tolist(), strict=False)):
        if ours != theirs:
            yield f"the checksum of block {block} is {ours:#010x}, the index says {theirs:#010x}"


def _single(value: Any) -> Iterator[str]:
    if not isinstance(value, list) or len(value) != 1:
        yield f"expected one bytes value, got {_kind(value)}"


def _kind(value: Any) -> str:
    kind = "bytes values" if isinstance(value, list) else f"{value.dtype} values"
    return f"{len(value)} {kind}"


def _raw(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    yield from (problems := list(_single(value)))
    dtype, shape = field.stored_dtype, field.stored_shape
    expected = math.prod(shape) * item_bytes(dtype)
    if not problems and len(value[0]) != expected:
        yield f"expected {expected:,} bytes ({dtype} {list(shape)}), got {len(value[0]):,}"


def _compressed(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    yield from (problems := list(_single(value)))
    if problems:
        return
    pixels = decode_stored(value[0], field.encoding, (field.shape[0], field.shape[1]))
    if pixels is None:
        yield _undecodable(value[0], field)
        return
    size = (integer_of(features, keys.HEIGHT), integer_of(features, keys.WIDTH))
    if pixels.shape[:2] != size:
        stated = f"image/height and image/width say {size[0]} x {size[1]}"
        yield f"decodes to {pixels.shape[0]} x {pixels.shape[1]}, {stated}"
    channels = field.shape[-1] if "channel" in field.axes else 1
    if pixels.shape[2] != channels or str(pixels.dtype) != field.dtype:
        yield f"expected {channels} channels of {field.dtype}, got {pixels.shape[2]} of {pixels.dtype}"


def _undecodable(data: memoryview, field: Field) -> str:
    try:
        check_stored(data, field.encoding, (field.shape[0], field.shape[1]))
    except ValueError as error:
        return f"not a {field.encoding} image that can be decoded: {error}"
    return f"not a {field.encoding} image that can be decoded"


def _numbers(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    limits = _INTEGER_LIMITS.get(field.dtype)
    wanted = "float32" if limits is None else "int64"
    if not isinstance(value, np.ndarray) or value.dtype != wanted:
        # An empty list has lost its type in some writers; its length is checked elsewhere.
        if len(value):
            yield f"expected {wanted} values, got {_kind(value)}"
        return
    wrong = ~np.isfinite(value) if limits is None else (value < limits[0]) | (value > limits[1])
    if wrong.any():
        at = int(np.argmax(wrong))
        yield f"value {at} is {value[at]}, which is no {field.dtype}" + (
            " (0 or 1)" if field.dtype == "bool" else ""
        )


def _value(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    yield from _numbers(value, field, features)
    if len(value) != math.prod(field.shape):
        yield f"expected {math.prod(field.shape)} values (shape {list(field.shape)}), got {len(value)}"


def _text(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    yield from _single(value)


def _masks(value: Any, features: Decoded, manifest: Manifest) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"expected PNG files, got {_kind(value)}"
        return
    image = manifest.field("image")
    size = (integer_of(features, keys.HEIGHT), integer_of(features, keys.WIDTH), 1)
    for number, data in enumerate(value):
        pixels = decode_stored(data, "png", (image.shape[0], image.shape[1]))
        if pixels is None:
            yield f"mask {number} is no PNG that can be decoded"
        elif pixels.shape != size or pixels.dtype != np.uint8:
            yield f"mask {number} is {pixels.dtype} {list(pixels.shape)}, expected uint8 {list(size)}"
        elif pixels.max() > 1:
            yield f"mask {number} holds {int(pixels.max())}, expected 0 and 1"


def _classes(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    texts = features.get(keys.CLASS_TEXT, ())
    if len(texts) != len(value):
        yield f"{len(value)} labels, but {len(texts)} texts"
    if not len(value):
        return
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        yield f"expected int64 values, got {_kind(value)}"
    elif (np.diff(value) <= 0).any():
        yield f"expected labels in ascending order, each once, got {value.tolist()}"


_CHECKS = {
    "classes": _classes,
    "raw": _raw,
    "sets": _raw,
    "jpeg": _compressed,
    "png": _compressed,
    "value": _value,
    "list": _numbers,
    "text": _text,
}


def _parallel_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    lists = [key for field in manifest.fields if field.encoding in ("list", "png_list") for key in field.keys]
    if keys.OBJECT_CLASS_LABEL in lists:
        lists.append(keys.OBJECT_CLASS_TEXT)
    lengths = {key: len(features[key]) for key in lists if key in features}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield f"expected lists of one length, got {counts}"


def _image_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    image, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    if data is None:
        return
    if (stored := text_of(features, keys.FORMAT)) != image.encoding:
        yield f"image/format: expected {image.encoding!r} as the manifest says, got {stored!r}"
    stored = text_of(features, keys.KEY_SHA256)
    # A raw image has the index's block checksums in its stead.
    if (stored is not None or image.encoding != "raw") and (
        digest := hashlib.sha256(data).hexdigest()
    ) != stored:
        yield f"image/key/sha256: image/encoded has {digest}, the record says {stored!r:.80}"
    if is_volumetric(manifest):
        return  # a volume's sizes are checked with its geometry
    height, width, unpadded_height, unpadded_width = (
        integer_of(features, key) for key in (*keys.SIDES, *keys.UNPADDED_SIDES)
    )
    if height is None or width is None:
        yield "image/height, image/width: expected one integer each"
        return
    if image.encoding == "raw" and (height, width) != image.shape[-3:-1]:
        yield f"image/height, image/width: expected {list(image.shape[-3:-1])} of a raw image, got {[height, width]}"
    inside = zip(keys.UNPADDED_SIDES, (unpadded_height, unpadded_width), (height, width), strict=True)
    for key, inner, outer in inside:
        if inner is not None and not 1 <= inner <= outer:
            yield f"{key}: expected 1 to {outer}, got {inner}"
    for key in keys.SOURCE_SIDES:
        if (side := integer_of(features, key)) is not None and side < 1:
            yield f"{key}: expected 1 or more, got {side}"


def _box_problems(features: Decoded) -> Iterator[str]:
    corners = {key: features.get(key) for key in keys.BOX_CORNERS}
    floats = {key: value for key, value in corners.items() if isinstance(value, np.ndarray)}
    for key, values in floats.items():
        # Written so that NaN is outside too.
        for box in np.flatnonzero(~((values >= 0) & (values <= 1))):
            yield f"{key}: box {box}: expected 0 to 1, got {values[box]}"
    for low, high in zip(keys.BOX_CORNERS[:2], keys.BOX_CORNERS[2:], strict=True):
        if low in floats and high in floats and len(floats[low]) == len(floats[high]):
            for box in np.flatnonzero(floats[low] > floats[high]):
                what, _, side = low.rpartition("/")
                yield (
                    f"{what}: box {box}: {side} {floats[low][box]} is more than "
                    f"{high.rpartition('/')[2]} {floats[high][box]}"
                )
    area = features.get(keys.OBJECT_AREA)
    if isinstance(area, np.ndarray):
        for box in np.flatnonzero(area < 0):
            yield f"image/object/area: box {box}: expected 0 or more, got {area[box]}"


def _label_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    for label_key, text_key, what in (
        (keys.CLASS_LABEL, keys.CLASS_TEXT, "label"),
        (keys.OBJECT_CLASS_LABEL, keys.OBJECT_CLASS_TEXT, "box"),
    ):
        labels, texts = features.get(label_key), features.get(text_key)
        if labels is None:
            continue
        if not isinstance(texts, list):
            yield (
                f"{text_key} is missing"
                if texts is None
                else f"{text_key}: expected texts, got {_kind(texts)}"
            )
            texts = []
        if isinstance(labels, list):
            continue
        for number, label in enumerate(labels.tolist()):
            if label not in manifest.labels:
                yield f"{label_key}: {what} {number}: {label} is not in the manifest's labels"
            elif number < len(texts) and bytes(texts[number]) != manifest.labels[label].encode():
                text = str(texts[number], "utf-8", "replace")
                yield f"{text_key}: {what} {number}: {text!r}, but label {label} is {manifest.labels[label]!r}"


def _identity_problems(features: Decoded) -> Iterator[str]:
    stored, key = text_of(features, keys.SOURCE_ID), text_of(features, keys.KEY_SOURCE)
    if stored is None or key is None:
        return
    if not re.fullmatch("0|[1-9][0-9]{0,18}", stored):
        yield f"image/source_id: expected a decimal number, got {stored!r:.80}"
    elif int(stored) != (expected := example_id(key_of(features) or key)):
        yield f"image/source_id: {stored}, but image/key/source {key!r:.80} gives {expected}"
