"""Check of an encoded picture in a record: its first bytes and its size, before a decoder gets it.

Readers of records import this module, so it imports no reader of source files.
"""

from __future__ import annotations

import struct

import simplejpeg

from halofeed.prep.geometry.resize import Size

START_OF_IMAGE = b"\xff\xd8"
"""First bytes of a JPEG file."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG file."""
_PNG_SIZE_END = len(PNG_SIGNATURE) + 16
"""End of the width and the height in a PNG, which follow the length and the type of the first chunk."""


def check_encoded_image(data: memoryview | bytes, encoding: str, largest: Size) -> Size:
    """Check the format and the size of an encoded picture in a record before it is decoded.

    A few bytes may unpack to any number of pixels.

    Args:
        data: bytes of the picture file.
        encoding: "jpeg" or "png".
        largest: maximum (height, width).

    Returns:
        The (height, width) of the picture.

    Raises:
        ValueError: the bytes are not a picture of this encoding, or the picture is too large.
    """
    if encoding == "jpeg":
        if bytes(data[: len(START_OF_IMAGE)]) != START_OF_IMAGE:
            raise ValueError("not a JPEG file")
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
        except KeyError as error:  # an unknown number of a color space or a sampling
            raise ValueError("its header is damaged") from error
    else:  # opening a PNG would check the checksums of all chunks, in every record
        head = bytes(data[:_PNG_SIZE_END])
        if len(head) < _PNG_SIZE_END or not head.startswith(PNG_SIGNATURE) or head[12:16] != b"IHDR":
            raise ValueError("not a PNG file")
        width, height = struct.unpack_from(">II", head, 16)
    if not (1 <= height <= largest[0] and 1 <= width <= largest[1]):
        raise ValueError(f"it is {height} x {width}, expected at most {largest[0]} x {largest[1]}")
    return height, width
