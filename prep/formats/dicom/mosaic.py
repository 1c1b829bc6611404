"""Siemens' mosaics: the slices of one volume as tiles of one image, and where each of them lies.

    +---+---+---+      tiles run along rows, then down; the last ones are empty
    | 0 | 1 | 2 |      the position of the file is that of a slice as large as the mosaic about the same middle:
    +---+---+---+        first pixel of a tile = position + (mosaic - tile) / 2 along rows and columns
    | 3 | 4 |   |      the normal, and so the direction in which slices follow, is in Siemens' own header
    +---+---+---+

Source: the layout of the CSA header and of mosaics as nibabel (nicom/csareader, nicom/dicomwrappers) and dcm2niix read
them; the tests compare with the latter.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.facts import FileFacts, PixelFormat
from halofeed.prep.formats.dicom.headers import Elements
from halofeed.prep.formats.dicom.slices import axes_of
from halofeed.schemas.errors import SourceError

MAGIC, MOST_TAGS, TAG_BYTES, ITEM_BYTES = b"SV10", 1000, 84, 16
NUMBER = re.compile(rb"\s*([+-]?\d+\.?\d*(?:[eE][+-]?\d+)?)\s*\0*.*", re.DOTALL)
NORMAL_TOLERANCE = 1e-3


def split_mosaic(elements: Elements, facts: FileFacts) -> FileFacts | None:
    """The facts of a mosaic with a frame for each of its slices; None where its header does not place them."""
    if facts.format is None or len(facts.frames) != 1:
        return None
    csa = _csa_values(elements)
    count = int(csa.get("NumberOfImagesInMosaic", (0.0,))[0])
    frame, normal, spacing = facts.frames[0], csa.get("SliceNormalVector", ()), _spacing(elements)
    side = math.isqrt(count - 1) + 1 if count > 0 else 0
    rows, columns = facts.format.size
    if (
        not side
        or rows % side
        or columns % side
        or len(normal) != 3
        or spacing is None
        or frame.position_mm is None
        or frame.orientation is None
        or frame.spacing_mm is None
    ):
        return None
    try:
        along_row, along_column, across = axes_of(frame.orientation)
    except SourceError:
        return None
    step = np.array(normal)
    if min(np.abs(step - across).max(), np.abs(step + across).max()) > NORMAL_TOLERANCE:
        return None
    size = rows // side, columns // side
    origin = np.array(frame.position_mm)
    origin = origin + along_row * frame.spacing_mm[1] * (columns - size[1]) / 2
    origin = origin + along_column * frame.spacing_mm[0] * (rows - size[0]) / 2
    frames = tuple(
        replace(frame, position_mm=tuple((origin + index * spacing * step).tolist()))
        for index in range(count)
    )
    return replace(facts, format=replace(facts.format, size=size), frames=frames, tiles=side)


def whole_image(facts: FileFacts) -> FileFacts:
    """The facts of a file as its pixels are stored: a mosaic as one frame."""
    if facts.tiles is None:
        return facts
    rows, columns = facts.stored.size
    stored = replace(facts.stored, size=(rows * facts.tiles, columns * facts.tiles))
    return replace(facts, format=stored, frames=facts.frames[:1], tiles=None)


def tile_at(index: int, tiles: int, stored: PixelFormat) -> tuple[slice, slice]:
    """The rows and columns of a slice in its mosaic.

    >>> stored = PixelFormat(size=(4, 5), samples=1, photometric="", bits_allocated=16, bits_stored=16, high_bit=15,
    ...     signed=False, padding=None)
    >>> tile_at(5, 3, stored)
    (slice(4, 8, None), slice(10, 15, None))
    """
    rows, columns = stored.size
    top, left = index // tiles * rows, index % tiles * columns
    return slice(top, top + rows), slice(left, left + columns)


def _spacing(elements: Elements) -> float | None:
    try:
        spacing = headers.number(elements, headers.SPACING_BETWEEN_SLICES)
    except SourceError:
        return None
    return spacing if spacing is not None and spacing > 0 else None


def _csa_values(elements: Elements) -> Mapping[str, tuple[float, ...]]:
    """The two values of Siemens' header that place the slices; empty where it has another form."""
    data = headers.identifier(elements, headers.CSA_IMAGE_HEADER)
    if headers.text(elements, headers.CSA_CREATOR) != "SIEMENS CSA HEADER" or data[:4] != MAGIC:
        return {}
    found: dict[str, tuple[float, ...]] = {}
    try:
        (tags,) = struct.unpack_from("<I", data, 8)
        offset = 16
        for _ in range(min(tags, MOST_TAGS)):
            name = data[offset : offset + 64].split(b"\0")[0].decode("latin-1")
            items = struct.unpack_from("<i", data, offset + 76)[0]
            offset += TAG_BYTES
            values = []
            for _ in range(items):
                length = struct.unpack_from("<4i", data, offset)[1]
                number = NUMBER.fullmatch(data[offset + ITEM_BYTES : offset + ITEM_BYTES + length])
                if number:
                    values.append(float(number[1]))
                offset += ITEM_BYTES + (max(length, 0) + 3) // 4 * 4
            if values and name in ("NumberOfImagesInMosaic", "SliceNormalVector"):
                found[name] = tuple(values)
    except struct.error:
        return {}
    return found
