"""Encodings of fields: the forms in which records hold values, with the properties by which code decides.

Other tables have the same keys; `docs/extending.md` lists them. `halofeed.prep.voxels.encode` has the functions that
encode, and `halofeed.inspection.stored_values` those that check and decode for `halofeed verify`, exports and pages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Properties of one encoding, by which code decides instead of by its name.

    Args:
        description: what is stored, for readers of the data set.
        is_array: True if a part of the array can be read alone; the index then states where the value begins.
        is_fixed_size: True if the value of an array has the same number of bytes in every record.
        has_one_shape: True if the array of every record has the field's shape.
        is_file: True if the value is a picture file, which has its own size and which other programs decode.
        holds_sets: True if each number of an array is a set of classes.
        holds_planes: True if the value holds color planes, see `halofeed.schemas.color_planes`.
    """

    description: str
    is_array: bool = False
    is_fixed_size: bool = False
    has_one_shape: bool = False
    is_file: bool = False
    holds_sets: bool = False
    holds_planes: bool = False


ENCODINGS = {
    "raw": Encoding(
        description="fixed-size little-endian bytes, the fast path",
        is_array=True,
        is_fixed_size=True,
        has_one_shape=True,
    ),
    "sets": Encoding(
        description="as raw, one number per voxel with a bit for each of its classes; loaded as 0 or 1 for each class",
        is_array=True,
        is_fixed_size=True,
        has_one_shape=True,
        holds_sets=True,
    ),
    "packed": Encoding(
        description="the same numbers in about half of the bytes (docs/packed.md)",
        is_array=True,
        has_one_shape=True,
    ),
    "packed_sets": Encoding(
        description="as sets, packed", is_array=True, has_one_shape=True, holds_sets=True
    ),
    "yuv420": Encoding(
        description="luma, and chroma of half the height and width; half of raw's bytes, loaded as RGB",
        is_array=True,
        is_fixed_size=True,
        has_one_shape=True,
        holds_planes=True,
    ),
    "jpeg": Encoding(description="a JPEG file", is_file=True),
    "png": Encoding(description="a PNG file", is_file=True),
    "value": Encoding(description="as many numbers as the shape has elements", has_one_shape=True),
    "classes": Encoding(
        description="any number of label ids, loaded as 0 or 1 for each class in the order of the ids",
        has_one_shape=True,
    ),
    "list": Encoding(
        description="any number of numbers, padded along the first axis with `fill` when loaded"
    ),
    "text": Encoding(description="UTF-8 text", has_one_shape=True),
    "png_list": Encoding(description="any number of PNG files, one per object"),
}
