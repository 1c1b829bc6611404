"""Colors of DICOM frames as red, green and blue: palettes, planes, subsampled chroma, YBR_FULL.

Source: PS3.3 C.7.6.3.1.2 (Photometric Interpretation), C.7.6.3.1.3 (Planar Configuration), C.7.6.3.1.5 and C.7.9.2
(palettes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.display_values import table_descriptor, table_entries
from halofeed.prep.formats.dicom.headers import Elements, damaged_file
from halofeed.prep.formats.dicom.picture_header import PALETTE, PictureHeader
from halofeed.prep.formats.dicom.pixels import (
    PLUGINS,
    RUN_LENGTHS,
    FrameReader,
    damaged_pixels,
    extract_values,
)

Colors = NDArray[np.uint8] | NDArray[np.uint16]
_YBR_TO_RGB = np.array(
    [[1, 1, 1], [0, -0.114 * 1.772 / 0.587, 1.772], [1.402, -0.299 * 1.402 / 0.587, 0]], np.float32
)
"""Rows Y, Cb, Cr to columns R, G, B (PS3.3 C.7.6.3.1.2, the inverse of its equations of YBR_FULL)."""
_DISCRETE, _LINEAR, _INDIRECT = 0, 1, 2
_BLOCK_ROWS = 64
_ENTRY_LIMIT = 1 << 16


def read_colors(header: PictureHeader, reader: FrameReader, frame: int) -> Colors:
    """Return the colors [height, width, 3] of a frame: 0 to 255, or 0 to 65535 for samples of more than 8 bits.

    Raises:
        SourceError: pixels or palettes are damaged or truncated.
    """
    if header.color == PALETTE:
        return _palette_colors(header, reader, frame)
    if header.syntax in PLUGINS:
        pixels, bits = reader.colors(frame, header.color)
        is_luma = header.syntax == RUN_LENGTHS and header.color.startswith("YBR_FULL")
    else:
        pixels, bits = _plain_colors(header, reader, frame), header.stored.bits_stored
        is_luma = header.color.startswith("YBR")
    if is_luma:
        pixels = ybr_to_rgb(pixels)
    return _full_depth(pixels, bits)


def ybr_to_rgb(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert YBR_FULL [height, width, 3] to red, green and blue.

    >>> ybr_to_rgb(np.array([[[76, 85, 255], [128, 128, 128]]], np.uint8)).tolist()
    [[[254, 0, 0], [128, 128, 128]]]
    """
    if pixels.dtype != np.uint8:
        raise damaged_pixels(f"YBR of {8 * pixels.dtype.itemsize} bits, expected 8")
    colors = np.empty(pixels.shape, np.uint8)
    for top in range(0, len(pixels), _BLOCK_ROWS):
        rows = pixels[top : top + _BLOCK_ROWS].astype(np.float32) - np.array([0, 128, 128], np.float32)
        colors[top : top + _BLOCK_ROWS] = np.clip(np.floor(rows @ _YBR_TO_RGB + np.float32(0.5)), 0, 255)
    return colors


def _plain_colors(header: PictureHeader, reader: FrameReader, frame: int) -> NDArray[Any]:
    """Return the stored samples [height, width, 3] of an uncompressed frame."""
    (height, width), words = header.stored.size, reader.plain_samples(frame)
    if header.is_subsampled:
        # Y1 Y2 Cb Cr for each two pixels of a row.
        if width % 2:
            raise damaged_pixels(f"YBR_FULL_422 of {width} columns, expected an even number")
        pairs = words.reshape(-1, 4)
        luma, chroma = pairs[:, :2].reshape(-1), np.repeat(pairs[:, 2:], 2, axis=0)
        return np.concatenate([luma[:, None], chroma], axis=1).reshape(height, width, 3)
    if header.is_planar:
        return words.reshape(3, height, width).transpose(1, 2, 0)
    return words.reshape(height, width, 3)


def _full_depth(pixels: NDArray[Any], bits: int) -> Colors:
    """Return samples of a number of bits scaled to 8 or 16 bits; bits above the number are ignored."""
    peak = (1 << bits) - 1
    if bits in (8, 16):
        return _as_colors(pixels, bits)
    full = 255 if bits < 8 else 65535
    scaled = ((pixels & pixels.dtype.type(peak)).astype(np.uint64) * full + peak // 2) // peak
    return _as_colors(scaled, bits)


def _as_colors(samples: NDArray[Any], bits: int) -> Colors:
    """Return samples as uint8 for up to 8 bits, else as uint16."""
    return samples.astype(np.uint8, copy=False) if bits <= 8 else samples.astype(np.uint16, copy=False)


def _palette_colors(header: PictureHeader, reader: FrameReader, frame: int) -> Colors:
    values = extract_values(reader.words(frame)[0], header.stored)
    tables = [_palette(header.elements, at, signed=header.stored.signed) for at in range(3)]
    firsts = {first for first, _ in tables}
    if len(firsts) > 1 or len({len(entries) for _, entries in tables}) > 1:
        raise damaged_file("palettes of red, green and blue that differ in size")
    entries = _palette_depth(np.stack([entries for _, entries in tables], axis=1))
    places = np.clip(values.astype(np.int64) - firsts.pop(), 0, len(entries) - 1)
    colors: Colors = entries[places]
    return colors


def _palette_depth(entries: NDArray[np.uint16]) -> Colors:
    """Return the entries as 8 bits if they hold no more than that.

    Devices of 8 bits write an entry of 16 bits with their value in the high byte, in the low byte, or in both.
    """
    high, low = entries >> 8, entries & 255
    if not high.any():
        return low.astype(np.uint8)
    if not low.any() or bool((high == low).all()):
        return high.astype(np.uint8)
    return entries


def _palette(elements: Elements, at: int, *, signed: bool) -> tuple[int, NDArray[np.uint16]]:
    """Return the first mapped value and the entries of the palette of one color."""
    count, first, bits = table_descriptor(elements, headers.PALETTE_DESCRIPTORS[at], signed=signed)
    if headers.has_value(elements, headers.PALETTES[at]):
        return first, table_entries(elements, headers.PALETTES[at], count)
    element = elements.get(headers.PALETTE_SEGMENTS[at])
    if not isinstance(element, headers.Element):
        raise damaged_file("no palette for PALETTE COLOR")
    order = "<" if element.little else ">"
    words = np.frombuffer(element.data, "u1" if bits == 8 else f"{order}u2").tolist()
    entries = list(_expand(words, 0, len(words), wide=bits != 8, depth=0))
    if len(entries) < count:
        raise damaged_file(f"a palette of {len(entries)} entries, expected {count}")
    return first, np.array(entries[:count], np.uint16)


def _expand(words: list[int], start: int, stop: int, *, wide: bool, depth: int) -> Iterator[int]:
    """Yield the entries of a segmented palette (PS3.3 C.7.9.2): discrete, linear and indirect segments.

    Args:
        words: the segments.
        start: place of the first segment.
        stop: place after the last one.
        wide: whether entries have 16 bits, so that an offset takes 2 words, else 4.
        depth: 1 within an indirect segment, which must not hold another.
    """
    made, last = 0, 0
    while start + 1 < stop and made <= _ENTRY_LIMIT:
        kind, length = words[start], words[start + 1]
        start += 2
        if kind == _DISCRETE and start + length <= len(words):
            entries = words[start : start + length]
            start += length
        elif kind == _LINEAR and start < len(words) and length:
            steps = np.linspace(last, words[start], length + 1)[1:]
            entries, start = np.floor(steps + 0.5).astype(int).tolist(), start + 1
        elif kind == _INDIRECT and not depth:
            parts = 2 if wide else 4
            offset = sum(
                word << (16 if wide else 8) * at for at, word in enumerate(words[start : start + parts])
            )
            entries = _repeated(words, offset, length, wide=wide)
            start += parts
        else:
            raise damaged_file(f"a palette with a segment of type {kind}")
        made += len(entries)
        last = entries[-1] if entries else last
        yield from entries


def _repeated(words: list[int], offset: int, segments: int, *, wide: bool) -> list[int]:
    """Return the entries of some segments at an offset, which an indirect segment repeats."""
    stop = offset
    for _ in range(segments):
        if stop + 1 >= len(words) or words[stop] not in (_DISCRETE, _LINEAR):
            raise damaged_file("a palette with an indirect segment that leads nowhere")
        stop += 2 + (words[stop + 1] if words[stop] == _DISCRETE else 1)
    return list(_expand(words, offset, stop, wide=wide, depth=1))
