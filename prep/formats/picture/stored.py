"""How large does a record's JPEG or PNG say it is? Asked before it is decoded: few bytes may unpack to any number."""

from __future__ import annotations

import struct

import simplejpeg

from halofeed.prep.formats.picture.image import Size
from halofeed.prep.formats.picture.jpeg_markers import START_OF_IMAGE
from halofeed.prep.formats.picture.png import SIGNATURE

_IHDR_END = len(SIGNATURE) + 16


def check_stored(data: memoryview | bytes, encoding: str, largest: Size) -> Size:
    """Refuse to decode what is no picture of an encoding, or larger than it may be.

    Args:
        data: the file.
        encoding: jpeg or png.
        largest: (height, width).

    Returns:
        its (height, width).

    Raises:
        ValueError: says what is wrong.
    """
    if encoding == "jpeg":
        if bytes(data[: len(START_OF_IMAGE)]) != START_OF_IMAGE:
            raise ValueError("not a JPEG file")
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
        except KeyError as error:  # the number of a color space or a sampling that it has no name for
            raise ValueError("its header is damaged") from error
    else:
        head = bytes(data[:_IHDR_END])
        if len(head) < _IHDR_END or not head.startswith(SIGNATURE) or head[12:16] != b"IHDR":
            raise ValueError("not a PNG file")
        width, height = struct.unpack_from(">II", head, 16)
    if not (1 <= height <= largest[0] and 1 <= width <= largest[1]):
        raise ValueError(f"it is {height} x {width}, and at most {largest[0]} x {largest[1]} is expected")
    return height, width
