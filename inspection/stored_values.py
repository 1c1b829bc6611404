"""Stored images and label maps: their checks and their arrays, one entry of `FORMS` per encoding.

`halofeed verify`, exports and pages decide by this table and by `halofeed.schemas.encodings`, not by encodings' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.encoded_image import check_encoded_image
from halofeed.schemas.color_planes import color_window
from halofeed.schemas.fields import Field
from halofeed.schemas.packed.packed_arrays import unpack
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.packed.packed_reference import unpack_band
from halofeed.schemas.shard_file import CURE
from halofeed.system.checksum import block_checksums, crc32c
from halofeed.system.wording import plural

RecordSize = tuple[int | None, int | None]


@dataclass(frozen=True, kw_only=True)
class StoredForm:
    """Functions on the value of a field of one encoding.

    Args:
        problems: yield each problem of a value, of (value, field, the record's height and width).
        array: return the stored array of the field's `stored_shape`; the array of a picture file has the file's size
            and a last axis of channels. None if the value cannot be decoded. bfloat16 is returned as bits in uint16.
        checksum_problems: yield each difference from the index's checksums, of (value, checksums, uint32 [block],
            bytes of a block).
        extension: extension of a file with these bytes; "" if the value is not a file.
    """

    problems: Callable[[memoryview, Field, RecordSize], Iterator[str]]
    array: Callable[[memoryview, Field], NDArray[Any] | None]
    checksum_problems: Callable[[memoryview, NDArray[np.uint32], int], Iterator[str]] = (
        lambda data, sums, block: iter(())
    )
    extension: str = ""


def decode_stored(data: memoryview, encoding: str, largest: tuple[int, int]) -> NDArray[Any] | None:
    """Decode a stored JPEG or PNG to [height, width, channel] in OpenCV's channel order.

    Returns:
        the pixels; None if the data cannot be decoded or the image is larger than `largest` (height, width).
    """
    try:
        check_encoded_image(data, encoding, largest)
    except ValueError:
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return None if pixels is None else pixels.reshape(*pixels.shape[:2], -1)


def stored_array(data: memoryview, field: Field) -> NDArray[Any] | None:
    """Return the array of the value of an image or a label map, see `StoredForm.array`."""
    return FORMS[field.encoding].array(data, field)


def block_problems(data: memoryview, expected: NDArray[np.uint32], block_bytes: int) -> Iterator[str]:
    """Yield each block of a raw value that differs from the index's checksums."""
    found = block_checksums(data, block_bytes)
    if len(found) != len(expected):
        yield f"the index holds {len(expected)} block checksums, the value has {len(found)} blocks"
    for block, (ours, theirs) in enumerate(zip(found, expected.tolist(), strict=False)):
        if ours != theirs:
            yield f"the checksum of block {block} is {ours:#010x}, the index says {theirs:#010x}"


# Arrays ----------------------------------------------------------------------------------------------------------


def _shaped(numbers: NDArray[np.uint8], field: Field) -> NDArray[Any]:
    """Return little-endian bytes as the field's stored array."""
    dtype = "uint16" if field.stored_dtype == "bfloat16" else field.stored_dtype
    return numbers.view(np.dtype(dtype).newbyteorder("<")).reshape(field.stored_shape)


def _raw_array(data: memoryview, field: Field) -> NDArray[Any] | None:
    if len(data) != field.stored_bytes:
        return None
    return _shaped(np.frombuffer(data, np.uint8), field)


def _raw_problems(data: memoryview, field: Field, size: RecordSize) -> Iterator[str]:
    dtype, shape, expected = field.stored_dtype, field.stored_shape, field.stored_bytes
    if len(data) != expected:
        yield f"expected {plural(expected, 'byte')} ({dtype} {list(shape)}), got {len(data):,}"


def _packed_array(data: memoryview, field: Field) -> NDArray[Any] | None:
    try:
        return _shaped(unpack(data, field.packed_layout), field)
    except ValueError:
        return None


def packed_problems(data: memoryview, layout: PackedLayout) -> Iterator[str]:
    """Yield each problem of a packed value by checksums: of its table, of each band, and of the bytes at its end."""
    try:
        places, checksums = layout.read_table(data, len(data))
    except ValueError as error:
        yield f"not a packed array of {plural(layout.array_bytes, 'byte')}: {error}; {CURE}"
        return
    for band, expected in enumerate(checksums.tolist()):
        if (found := crc32c(data[places[band] : places[band + 1]])) != expected:
            differ = f"the checksum is {found:#010x}, the table says {expected:#010x}"
            yield f"{_place(band, layout)}: {differ}; {CURE}"
    if any(data[places[-1] :]):
        yield f"expected zeros after the last band; {CURE}"


def _packed_problems(data: memoryview, field: Field, size: RecordSize) -> Iterator[str]:
    layout = field.packed_layout
    if found := list(packed_problems(data, layout)):
        yield from found
        return
    try:
        unpack(data, layout)
    except ValueError:
        yield from _contents_problems(data, layout)


def _contents_problems(data: memoryview, layout: PackedLayout) -> Iterator[str]:
    """Yield each band that has the right checksum but cannot be unpacked: the program that wrote it has a defect."""
    places, _ = layout.read_table(data, len(data))
    for band in range(layout.bands):
        _, first, stop = layout.rows_of(band)
        try:
            unpack_band(data[places[band] : places[band + 1]], layout, stop - first)
        except ValueError as error:
            yield f"{_place(band, layout)}: {error}; {CURE}"


def _place(band: int, layout: PackedLayout) -> str:
    """Return the place of a band for messages: its number, its plane and its rows."""
    plane, first, stop = layout.rows_of(band)
    of_plane = f"plane {plane}, " if layout.planes > 1 else ""
    return f"band {band} ({of_plane}rows {first} to {stop - 1})"


def _value_problems(data: memoryview, expected: NDArray[np.uint32], block_bytes: int) -> Iterator[str]:
    """Yield a problem if the checksum of a complete packed value is not the index's."""
    if expected.tolist() != [found := crc32c(data)]:
        listed = ", ".join(f"{one:#010x}" for one in expected.tolist()) or "none"
        yield f"the checksum is {found:#010x}, the index says {listed}"


# Files -----------------------------------------------------------------------------------------------------------


def _decoded(data: memoryview, field: Field) -> NDArray[Any] | None:
    pixels = decode_stored(data, field.encoding, (field.shape[0], field.shape[1]))
    if pixels is None or "channel" not in field.axes:
        return pixels[..., 0] if pixels is not None and pixels.shape[2] == 1 else None
    # OpenCV decodes to BGR.
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(pixels.shape[2])
    return pixels if order is None else pixels[..., order]


def _file_problems(data: memoryview, field: Field, size: RecordSize) -> Iterator[str]:
    pixels = decode_stored(data, field.encoding, (field.shape[0], field.shape[1]))
    if pixels is None:
        yield _undecodable(data, field)
        return
    if pixels.shape[:2] != size:
        stated = f"image/height and image/width say {size[0]} x {size[1]}"
        yield f"decodes to {pixels.shape[0]} x {pixels.shape[1]}, {stated}"
    channels = field.shape[-1] if "channel" in field.axes else 1
    if pixels.shape[2] != channels or str(pixels.dtype) != field.dtype:
        yield f"expected {plural(channels, 'channel')} of {field.dtype}, got {pixels.shape[2]} of {pixels.dtype}"


def _undecodable(data: memoryview, field: Field) -> str:
    try:
        check_encoded_image(data, field.encoding, (field.shape[0], field.shape[1]))
    except ValueError as error:
        return f"not a {field.encoding} image that can be decoded: {error}"
    return f"not a {field.encoding} image that can be decoded"


def _colors(data: memoryview, field: Field) -> NDArray[Any] | None:
    if len(data) != field.stored_bytes:
        return None
    height, width, _ = field.shape
    return color_window(np.frombuffer(data, np.uint8), (height, width), ((0, height), (0, width)))


_RAW = StoredForm(problems=_raw_problems, array=_raw_array, checksum_problems=block_problems)
_PACKED = StoredForm(problems=_packed_problems, array=_packed_array, checksum_problems=_value_problems)
FORMS = {
    "raw": _RAW,
    "sets": _RAW,
    "packed": _PACKED,
    "packed_sets": _PACKED,
    "yuv420": StoredForm(problems=_raw_problems, array=_colors, checksum_problems=block_problems),
    "jpeg": StoredForm(problems=_file_problems, array=_decoded, extension=".jpg"),
    "png": StoredForm(problems=_file_problems, array=_decoded, extension=".png"),
}
