"""Decoders from a record's features to arrays: pictures, labels, masks, numbers, lists and text.

Records hold what halofeed's converter wrote: baseline JPEG, and PNG of 1, 3 or 4 channels and 8 or 16 bits, upright
and without a palette. So this module calls the two decoders directly; `prep.formats.picture` would first detect the
format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.record import StoredRecord
from halofeed.prep.geometry.resize import Size
from halofeed.schemas.fields import Field
from halofeed.schemas.tfexample import Decoded
from halofeed.system.errors import CorruptFileError, UsageError

DECODE = {
    "accurate": "JPEG by the slow integer transform, chroma smoothed where it is upsampled",
    "fast": "JPEG by the fast integer transform, chroma repeated where it is upsampled, and at 1/2, 1/4 or 1/8 of its "
    "size where an augmentation shrinks pictures at least as much",
}
JPEG_COLORS = {1: "GRAY", 3: "RGB"}
_CURE = "run `halofeed verify` on the data set, and the same `halofeed convert` with --overwrite"


@lru_cache(maxsize=256)
def array_dtype(field: Field) -> np.dtype[Any]:
    """Return the NumPy dtype of a field's array; text is an array of Python's str."""
    if field.dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise UsageError(
                f"{field.name}: NumPy has no bfloat16 of its own; install the package ml_dtypes, which comes with JAX "
                "and TensorFlow, or convert with --dtype float32"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(object if field.dtype == "str" else field.dtype)


def _error(record: StoredRecord, what: str) -> CorruptFileError:
    return CorruptFileError(f"{record.place}: {what}; {_CURE}")


def stored_dtype(field: Field) -> np.dtype[Any]:
    """Return the NumPy dtype of a stored raw field; a field of class sets stores one number per voxel."""
    dtype = np.dtype(field.stored_dtype) if field.holds_sets else array_dtype(field)
    return dtype.newbyteorder("<")


def decode_image(data: memoryview, field: Field, record: StoredRecord) -> NDArray[Any]:
    """Decode a stored picture.

    Args:
        data: a JPEG or PNG file, as `field.encoding` says.
        field: the image's field; its shape is the largest that is allowed.
        record: the picture's record, for messages.

    Returns:
        [height, width, channel] of the field's dtype.

    Raises:
        CorruptFileError: the picture cannot be decoded, or its size, channels or dtype differ from the field's.
    """
    import simplejpeg  # raw records need neither of these

    from halofeed.prep.voxels.encoded_image import check_encoded_image

    largest = field.shape[0], field.shape[1]
    with decoding_failures(field, record):
        if field.encoding == "jpeg":
            check_encoded_image(data, "jpeg", largest)
            pixels: NDArray[Any] = simplejpeg.decode_jpeg(data, JPEG_COLORS[field.shape[2]])
        else:
            pixels = decode_png(data, largest)
    too_large = any(size > most for size, most in zip(pixels.shape, field.shape, strict=True))
    if too_large or pixels.shape[2] != field.shape[2] or pixels.dtype != field.dtype:
        found = f"{pixels.dtype} {pixels.shape}"
        raise _error(record, f"expected a {field.dtype} image of at most {field.shape}, got {found}")
    return pixels


@contextmanager
def decoding_failures(field: Field, record: StoredRecord) -> Iterator[None]:
    """Raise a decoder's ValueError as a CorruptFileError that names the record."""
    try:
        yield
    except ValueError as error:
        raise _error(record, f"the {field.encoding} image cannot be decoded: {error}") from error


def check_picture_size(data: memoryview, field: Field, record: StoredRecord) -> Size:
    """Return the (height, width) of a stored picture without decoding it; CorruptFileError as `decode_image`."""
    from halofeed.prep.voxels.encoded_image import check_encoded_image

    with decoding_failures(field, record):
        return check_encoded_image(data, field.encoding, (field.shape[0], field.shape[1]))


def decode_label(
    data: memoryview, field: Field, shape: tuple[int, ...], record: StoredRecord
) -> NDArray[Any]:
    """Decode the class indices [height, width] of a picture of a given shape from a PNG file of one channel.

    Raises:
        CorruptFileError: the file cannot be decoded, or its size or dtype is wrong.
    """
    try:
        pixels = decode_png(data, (shape[0], shape[1]))
    except ValueError as error:
        raise _error(record, f"the {field.name} cannot be decoded: {error}") from error
    if pixels.shape != (*shape, 1) or pixels.dtype != field.dtype:
        expected = f"{field.dtype} {(*shape, 1)}, as the image"
        raise _error(record, f"{field.name}: expected {expected}, got {pixels.dtype} {pixels.shape}")
    return pixels[..., 0]


def decode_png(data: memoryview, largest: tuple[int, int]) -> NDArray[Any]:
    """Decode a PNG file to uint8 or uint16 [height, width, channel]; ValueError if it is damaged or too large."""
    import cv2

    from halofeed.prep.voxels.encoded_image import check_encoded_image

    check_encoded_image(data, "png", largest)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(str(error)) from error
    if pixels is None:
        raise ValueError("not a PNG file, or damaged")
    if pixels.ndim == 2:  # OpenCV drops the axis of a single channel
        return np.asarray(pixels[..., None])
    order = {3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGBA}[pixels.shape[2]]
    return np.asarray(cv2.cvtColor(pixels, order))


def read_numbers(field: Field, features: Decoded, record: StoredRecord) -> NDArray[Any]:
    """Return a field's numbers: [...] of the static shape ("value"), or [n, ...] of any length n ("list").

    A value that the source does not state is NaN, see `Field.may_be_absent`.

    Raises:
        CorruptFileError: a value is missing, lists that belong together differ in length, or a number does not
            fit the field's dtype.
    """
    if field.may_be_absent and field.keys[0] not in features:
        return np.full(field.shape, np.nan, array_dtype(field))
    columns = [_numbers_of(key, features, record) for key in field.keys]
    numbers = columns[0] if len(columns) == 1 else _stacked(columns, field, record)
    if field.encoding == "value":
        if numbers.size != math.prod(field.shape):
            raise _error(record, f"expected {field.shape or 1} numbers of {field.name}, got {numbers.size}")
        numbers = numbers.reshape(field.shape)
    converted = numbers.astype(array_dtype(field))
    # A record holds int64 and float32 only; smaller integers are stored as int64.
    if numbers.dtype.kind == "i" and (converted != numbers).any():
        raise _error(record, f"{field.name} {numbers.tolist()} does not fit in {field.dtype}")
    return converted


def _stacked(columns: list[NDArray[Any]], field: Field, record: StoredRecord) -> NDArray[Any]:
    """Stack the numbers of several keys, such as the four edges of boxes, along a new last axis."""
    if any(len(column) != len(columns[0]) for column in columns):
        lengths = ", ".join(f"{len(column)} {key}" for key, column in zip(field.keys, columns, strict=True))
        raise _error(record, f"lists of {field.name} differ in length: {lengths}")
    return np.stack(columns, axis=-1)


def _numbers_of(key: str, features: Decoded, record: StoredRecord) -> NDArray[Any]:
    values = features.get(key, np.zeros(0, np.int64))  # an empty list may be left out of a record
    if not isinstance(values, np.ndarray):
        raise _error(record, f"expected numbers under {key}, got bytes")
    return values


def read_classes(
    field: Field, features: Decoded, record: StoredRecord, ids: NDArray[np.int64]
) -> NDArray[Any]:
    """Return 1 for each label id that the record has, else 0, in the order of `ids`.

    Raises:
        CorruptFileError: the record has a label that is not in `ids`, or values that are not numbers.
    """
    values = features.get(field.keys[0], np.zeros(0, np.int64))
    if not len(values):  # an empty list has no type
        return np.zeros(len(ids), array_dtype(field))
    if not isinstance(values, np.ndarray):
        raise _error(record, f"expected numbers under {field.keys[0]}, got bytes")
    if not (known := np.isin(values, ids)).all():
        unknown = ", ".join(map(str, values[~known]))
        raise _error(record, f"{field.name}: {unknown} is not in the manifest's labels")
    return np.isin(ids, values).astype(array_dtype(field))


def read_bytes(key: str, features: Decoded, record: StoredRecord) -> list[memoryview]:
    """Return the bytes values under a key; an empty list if the key is missing."""
    values = features.get(key, [])
    if isinstance(values, np.ndarray):
        if values.size:  # an empty list of numbers is as good as no bytes
            raise _error(record, f"expected bytes under {key}, got numbers")
        return []
    return values


def read_text(field: Field, features: Decoded, record: StoredRecord) -> str:
    """Return a text field's value; bytes that are not UTF-8 (file names) become surrogates, as in os.fsdecode.

    A text that the source does not state is "", see `Field.may_be_absent`.
    """
    if field.may_be_absent and field.keys[0] not in features:
        return ""
    values = read_bytes(field.keys[0], features, record)
    if len(values) != 1:
        raise _error(record, f"expected one text of {field.name}, got {len(values)}")
    return str(values[0], "utf-8", "surrogateescape")
