"""Signatures: small thumbnails of records, by which `halofeed review` finds copies.

    word 0     version of the signature, number of thumbnails, largest of their spreads
    word 1     CRC-32 of the source's name, and of its group
    16 words   for each thumbnail: 16 x 16 levels of 4 bits, row by row

A picture has one thumbnail of what it shows, without padding, so copies of other sizes have nearly the same one. A scan
and a clip have three, each of a third of their slices or frames. All arithmetic is in integers, or in single operations
of IEEE 754, so the words are the same on every machine.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas.native.signing import sign

SIDE = 16
"""Rows and columns of a thumbnail."""
STACK_PLANES = 3
"""Thumbnails of a scan or a clip."""
_VERSION = 2
"""Version 1 scaled values of more than 8 bits from the least to the largest one."""
_LEVELS = 16
_WORDS = SIDE * SIDE * 4 // 64
HEAD_WORDS = 2
_MEAN_BITS = 8
"""Bits of a cell's mean after the point."""
_SMALL = 2 * SIDE
"""Widths below this are enlarged 16 times, so that each cell has complete pixels."""
_ROWS_PER_CELL = 4
"""Rows of a cell that are summed. All 40 rows of a picture of 640 take 10 times the memory traffic, and change no level
by more than 1."""
_SLICES_PER_PLANE, _SLICE_SIDE = 4, 128
"""Slices of a scan that are summed to a thumbnail, and the samples along a side of each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Signatures:
    """Signatures of many records.

    Args:
        thumbnails: levels -8 to 7, int8 [record, plane, 16, 16].
        spreads: mean distance of a thumbnail's cells from their mean, in 1/256 of a gray level, int64 [record]; of
            several thumbnails the largest one. 0 for a record without a signature.
        sources, groups: hashes of the source and of its group, int64 [record]; group 0 for none.
    """

    thumbnails: NDArray[np.int8]
    spreads: NDArray[np.int64]
    sources: NDArray[np.int64]
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spreads)


def sign_picture(pixels: NDArray[Any], source: str, group: str | None) -> tuple[int, ...]:
    """Return the signature of a picture.

    Args:
        pixels: uint8 or uint16 [height, width, channel], without padding.
        source: name of the source; records of one source are not compared.
        group: patient or scene, None for none.

    >>> black = sign_picture(np.zeros((40, 50, 3), np.uint8), "a.jpg", None)
    >>> len(black), unpack_signatures(np.array([black])).spreads.tolist()
    (18, [0])
    """
    if pixels.dtype != np.uint8:
        step = [max(1, side // _SLICE_SIDE) for side in pixels.shape[:2]]
        pixels = pixels[:: step[0], :: step[1]]
    spreads, words = sign([pixels], 1) or _pack([_thumbnail(_as_bytes([pixels])[0])])
    return _with_head(spreads, words, source, group)


def sign_stack(stack: NDArray[Any], source: str, group: str | None, store: str = "uint8") -> tuple[int, ...]:
    """Return the signature of a scan or a clip.

    Args:
        stack: numbers [slice or frame, height, width], or with channels after them, without padding.
        source, group: as for `sign_picture`.
        store: the recipe's dtype of the numbers.
    """
    steps = [max(1, side // _SLICE_SIDE) for side in stack.shape[1:3]]
    count = len(stack)
    # The middles of equal parts; a short stack repeats slices.
    at = (
        (2 * np.arange(STACK_PLANES * _SLICES_PER_PLANE) + 1)
        * count
        // (2 * STACK_PLANES * _SLICES_PER_PLANE)
    )
    slices = [stack[index, :: steps[0], :: steps[1]] for index in at.tolist()]
    slices = [one if one.ndim == 3 else one[..., None] for one in slices]
    signed = sign(slices, STACK_PLANES, are_bfloat16=store == "bfloat16")
    spreads, words = signed or _pack(_planes([as_numbers(one, store) for one in slices]))
    return _with_head(spreads, words, source, group)


def with_group(words: Sequence[int], group: str | None) -> tuple[int, ...]:
    """Return the words of a signature with another group; indexes have none, because it may name a patient.

    >>> signed = sign_picture(np.zeros((9, 9, 1), np.uint8), "a.jpg", "patient 1")
    >>> with_group(with_group(signed, None), "patient 1") == signed
    True
    """
    head, names, *rest = words
    return head, names & 0xFFFFFFFF | _hash_of_group(group) << 32, *rest


def unpack_signatures(words: NDArray[np.int64]) -> Signatures:
    """Return the content of signatures [record, word]; records without one, or of an unknown version, have spread 0."""
    count, width = words.shape
    planes = max(0, width - HEAD_WORDS) // _WORDS
    heads = words[:, :HEAD_WORDS] if width >= HEAD_WORDS else np.zeros((count, HEAD_WORDS), np.int64)
    body = np.ascontiguousarray(words[:, HEAD_WORDS : HEAD_WORDS + planes * _WORDS], "<i8").view(np.uint8)
    levels = np.empty((count, planes * SIDE * SIDE), np.int8)
    levels[:, 0::2] = (body & 15).view(np.int8) - _LEVELS // 2
    levels[:, 1::2] = (body >> 4).view(np.int8) - _LEVELS // 2
    known = (heads[:, 0] & 255 == _VERSION) & (planes > 0)
    return Signatures(
        thumbnails=levels.reshape(count, planes, SIDE, SIDE),
        spreads=np.where(known, heads[:, 0] >> 16, 0),
        sources=heads[:, 1] & 0xFFFFFFFF,
        groups=heads[:, 1] >> 32,
    )


def have_other_version(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which signatures [record, word] are of another version, and cannot be compared; bool [record].

    >>> have_other_version(np.array([sign_picture(np.zeros((9, 9, 1), np.uint8), "a.jpg", None), [0] * 18])).tolist()
    [False, False]
    """
    # Zeros are a record without a signature.
    versions = words[:, 0] & 255 if words.shape[1] else np.zeros(len(words), np.int64)
    return np.asarray((versions != _VERSION) & (versions != 0))


def _with_head(
    spreads: Sequence[int], words: Sequence[int], source: str, group: str | None
) -> tuple[int, ...]:
    head = _VERSION | len(spreads) << 8 | max(spreads) << 16
    return head, _hash(source) | _hash_of_group(group) << 32, *words


def _hash_of_group(group: str | None) -> int:
    return _hash(group) & 0x7FFFFFFF if group else 0


# The definition, which schemas/native/signing.c computes where it is built


def _planes(slices: Sequence[NDArray[Any]]) -> list[NDArray[np.int64]]:
    """Return the thumbnails of the thirds of a stack."""
    cells = np.array([_thumbnail(one) for one in _as_bytes(slices)])
    planes = cells.reshape(STACK_PLANES, _SLICES_PER_PLANE, SIDE, SIDE).sum(axis=1) // _SLICES_PER_PLANE
    return list(planes)


def _as_bytes(parts: Sequence[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """Return the values of all parts, scaled together from their 1st and 99th percentile to 0 and 255.

    A hot pixel or a metal implant would leave the rest of a picture in few levels.
    """
    if all(part.dtype == np.uint8 for part in parts):
        return [np.asarray(part, np.uint8) for part in parts]
    wide = [np.nan_to_num(part.astype(np.float64), posinf=0, neginf=0) for part in parts]
    values = np.concatenate([part.reshape(-1) for part in wide])
    # Values that are in the picture: interpolated ones would be rounded differently by machines.
    at = [(len(values) - 1) * percent // 100 for percent in (0, 1, 99, 100)]
    first, least, most, last = np.partition(values, at)[at]
    if least == most:  # a small object on a flat background
        least, most = first, last
    if least == most:
        return [np.zeros(part.shape, np.uint8) for part in wide]
    return [np.floor((part - least) * (255 / (most - least))).clip(0, 255).astype(np.uint8) for part in wide]


def _thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the mean of each of 16 x 16 equal cells, over all channels, in 1/256 of a level.

    All columns count, and `_ROWS_PER_CELL` rows of each cell.
    """
    if pixels.shape[1] < _SMALL:
        pixels = np.repeat(pixels, SIDE, axis=1)
    height, width, channels = pixels.shape
    at = (2 * np.arange(SIDE * _ROWS_PER_CELL) + 1) * height // (2 * SIDE * _ROWS_PER_CELL)
    edges = np.arange(SIDE + 1) * width
    begins, parts = edges // SIDE, edges % SIDE
    sampled, rows = _buffers(width * channels)
    np.take(pixels, at, axis=0, out=sampled.reshape(-1, width, channels), mode="clip")
    for cell in range(SIDE):
        part = sampled[cell * _ROWS_PER_CELL : (cell + 1) * _ROWS_PER_CELL]
        cv2.reduce(part, 0, cv2.REDUCE_SUM, rows[cell : cell + 1], cv2.CV_32S)
    sums = np.add.reduceat(rows, begins[:-1] * channels, axis=1).astype(np.int64) * SIDE
    if parts.any():
        # A column that two cells share counts in each by the part that is inside.
        each = rows.reshape(SIDE, width, channels)[:, np.minimum(begins, width - 1)]
        shared = each.sum(axis=2, dtype=np.int64) * parts
        shared[:, -1] = 0
        sums += shared[:, 1:] - shared[:, :-1]
    return np.asarray((sums << _MEAN_BITS) // (_ROWS_PER_CELL * width * channels), np.int64)


_memory = threading.local()


def _buffers(columns: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return arrays for the sampled rows [row, column] and their sums, in memory that a thread uses again.

    New arrays of this size have their pages mapped and cleared in each call, which took 200 of 300 microseconds.
    """
    if getattr(_memory, "columns", 0) < columns:
        _memory.columns = columns
        _memory.sampled = np.empty(SIDE * _ROWS_PER_CELL * columns, np.uint8)
        _memory.rows = np.empty(SIDE * columns, np.int32)
    rows_sampled = SIDE * _ROWS_PER_CELL
    return (
        _memory.sampled[: rows_sampled * columns].reshape(rows_sampled, columns),
        _memory.rows[: SIDE * columns].reshape(SIDE, columns),
    )


def _pack(planes: Sequence[NDArray[np.int64]]) -> tuple[list[int], list[int]]:
    """Return the spread of each thumbnail [16, 16] in 1/256 of a level, and the words of all."""
    words: list[int] = []
    spreads = []
    for cells in planes:
        distances = cells.reshape(-1) - int(cells.sum()) // cells.size
        spread = int(np.abs(distances).sum()) // cells.size
        spreads.append(spread)
        # 2.5 levels for each mean distance: 16 levels reach 3.2 of them, which is 2.6 standard deviations of a normal
        # distribution.
        levels = (distances * 5 + spread) // max(1, 2 * spread) + _LEVELS // 2
        levels = levels.clip(0, _LEVELS - 1).astype(np.uint8)
        words += (levels[0::2] | levels[1::2] << 4).view("<i8").tolist()
    return spreads, words


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogateescape")) or 1
