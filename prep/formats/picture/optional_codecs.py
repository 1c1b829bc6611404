"""Libraries that only some formats of pictures need; without one, files of the format are rejected with the command."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from halofeed.prep.formats.picture.image import PixelArray, decode_error, fill_depth
from halofeed.system.errors import install_command


def codec(module: str, extra: str, what: str) -> Any:
    """Return an optional library.

    Args:
        module: name of the library.
        extra: extra of halofeed that installs it.
        what: kind of pictures that need it, in the plural.

    Raises:
        SourceError: the library is not installed; the message has the command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = f"{what} need {module.replace('_', '-')}"
        raise decode_error(reason, f"install it with {install_command(extra)}") from error


def to_full_depth(pixels: PixelArray, bits: int) -> tuple[PixelArray, tuple[str, ...]]:
    """Return samples of some number of bits as samples of 8 or of 16 bits that use the full range, and a note.

    Args:
        pixels: [height, width, channel] with values from 0 to 2^bits - 1.
        bits: 1 to 16.

    >>> to_full_depth(np.array([[[1023]]], np.uint16), 10)[0].tolist(), to_full_depth(np.array([[[1]]]), 1)[0].tolist()
    ([[[65535]]], [[[255]]])
    """
    if bits in (8, 16):
        return pixels, ()
    if bits < 8:
        peak = (1 << bits) - 1
        return ((pixels.astype(np.uint16) * 255 + peak // 2) // peak).astype(np.uint8), ()
    filled = fill_depth(pixels, bits)
    # `fill_depth` leaves alpha alone, which has as many bits as the colors here.
    if pixels.shape[2] in (2, 4):
        filled[..., -1] = fill_depth(np.ascontiguousarray(pixels[..., -1:]), bits)[..., 0]
    return filled, (f"samples of {bits} bits scaled to 16",)


def three_axes(pixels: PixelArray) -> PixelArray:
    """Return [height, width, channel] of an array that may lack the last axis."""
    return pixels[..., None] if pixels.ndim == 2 else pixels
