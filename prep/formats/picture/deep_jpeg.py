"""Decoder of JPEG files with more than 8 bits and of lossless ones: libjpeg-turbo 3 in imagecodecs.

Both are exact: 12-bit samples are those of libjpeg-turbo, and lossless samples those of the file (ITU-T T.81, annex H).
"""

from __future__ import annotations

import numpy as np

from halofeed.prep.formats.picture.image import Raster, truncated_error
from halofeed.prep.formats.picture.optional_codecs import codec, three_axes, to_full_depth
from halofeed.prep.formats.picture.pillow import decoder_failures

_END = b"\xff\xd9"
_FILLERS = (bytes(range(1, 65)), bytes(range(200, 136, -1)))
"""Bytes that a decoder reads only where compressed data are missing; no byte is FF, which begins a marker."""
UNSEEN = "damage inside the compressed data of this kind of JPEG would go unseen"


def load_deep_jpeg(data: bytes, first_scan: int, bits: int, what: str) -> Raster:
    """Decode the samples, scaled to 8 or 16 bits.

    Args:
        data: bytes of the file.
        first_scan: position of the first scan.
        bits: bits of a sample, 8 to 16.
        what: kind of JPEG in the plural, for messages.

    Raises:
        SourceError: imagecodecs is not installed, or the file is damaged or truncated.
    """
    imagecodecs = codec("imagecodecs", "pictures", what)
    end = data.rfind(_END)
    if end < first_scan:
        raise truncated_error("no end marker")
    # imagecodecs ignores libjpeg's warnings: data that end early become a gray rest. What stands between the end of
    # complete data and the end marker changes no pixel, so two fillers there show whether the data are complete.
    with decoder_failures():
        first, second = (
            np.asarray(imagecodecs.jpeg8_decode(data[:end] + filler + _END)) for filler in _FILLERS
        )
    if not np.array_equal(first, second):
        raise truncated_error("the compressed data end before the last pixel")
    filled, notes = to_full_depth(three_axes(first), bits)
    return Raster(pixels=filled, notes=(*notes, UNSEEN))
