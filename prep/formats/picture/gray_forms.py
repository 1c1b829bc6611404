"""Forms of gray label images: what a file stores for a pixel, and which gray value it shows.

Lossless optimizers (oxipng, zopflipng) write a gray picture with fewer bits, or with a palette of grays, where its
values allow that, and they decide it for each file. A pixel of 17 of 255 is stored as 1 in 4 bits. Tools that draw
labels write numbers of classes into few bits too, and mean the numbers. A set of files tells which it is.

Source: Portable Network Graphics, third edition, 13.12 (sample depth rescaling); TensorFlow, OpenCV and imageio return
the shown value.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.png import GRAY, PALETTE, PngHeader

_PLAIN = ("gray8", "gray16")
_LARGEST_IN_BITS = ((1, 1), (2, 3), (4, 15), (8, 255), (16, 65535))


@dataclass(frozen=True, kw_only=True)
class GrayForm:
    """Form of a gray picture.

    Args:
        bits: bits of a stored number.
        palette: gray value of each stored number; () without a palette.
    """

    bits: int
    palette: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return a name that is equal for files of one form."""
        return f"palette{zlib.crc32(bytes(self.palette)):08x}" if self.palette else f"gray{self.bits}"

    def shown(self, values: NDArray[Any], bits: int) -> NDArray[Any]:
        """Return the gray values, scaled to a number of bits, of stored numbers of any shape.

        >>> GrayForm(bits=4).shown(np.array([0, 1, 15], np.uint8), 8)
        array([  0,  17, 255], dtype=uint8)
        >>> GrayForm(bits=1, palette=(0, 2)).shown(np.array([0, 1], np.uint8), 8)
        array([0, 2], dtype=uint8)
        """
        stored_bits = self.bits
        # Palettes have entries of 8 bits, however many bits a number has.
        if self.palette:
            values, stored_bits = np.array(self.palette, np.uint8)[values], 8
        if stored_bits >= bits:
            return np.asarray(values)
        factor = (2**bits - 1) // (2**stored_bits - 1)
        dtype = np.uint8 if bits == 8 else np.uint16
        return np.asarray(values.astype(np.uint32) * factor, dtype)


def png_form(data: bytes, header: PngHeader) -> GrayForm | None:
    """Return the form of a PNG; None if it is in color or has a palette of colors, whose numbers are classes."""
    if header.color_type == GRAY:  # with alpha or color, optimizers keep 8 bits
        return GrayForm(bits=header.depth)
    if header.color_type != PALETTE:
        return None
    palette = header.payload(data, b"PLTE") or b""
    grays = palette[::3]
    # A palette of colors shows no gray values; its numbers are the classes.
    if not grays or grays != palette[1::3] or grays != palette[2::3]:
        return None
    # Each number shows itself, so the palette changes nothing.
    if grays == bytes(range(len(grays))):
        return GrayForm(bits=8)
    # Pillow gives numbers beyond the palette the color black.
    return GrayForm(bits=header.depth, palette=(*grays, *[0] * (256 - len(grays))))


def is_other_form(form: GrayForm, values: NDArray[Any], known: Collection[str]) -> bool:
    """Return whether a file has another form than those seen before, and this changes what its values mean."""
    # The first file has nothing to compare with.
    if form.name in known or not known:
        return False
    differs = form.bits < 16 and not np.array_equal(form.shown(values, 8), values)
    return differs or (bool(values.any()) and any(name not in _PLAIN for name in known))


def bits_to_show(found: Sequence[tuple[GrayForm, Collection[int]]], named: Collection[int]) -> int | None:
    """Return how the stored numbers of a set of files are read.

    Args:
        found: form and stored numbers of each file.
        named: values that a table of classes names, without 0; empty if there is none.

    Returns:
        0 for the stored numbers; 8 or 16 for the gray values, scaled to so many bits; None if nothing proves either.

    >>> plain, small = GrayForm(bits=8), GrayForm(bits=4)
    >>> bits_to_show([(plain, {1, 2, 17}), (plain, {1}), (small, {1, 2})], ())  # 17 and 34
    8
    >>> bits_to_show([(small, {1, 2}), (small, {1, 5})], ())
    0
    >>> bits_to_show([(plain, {0, 1}), (GrayForm(bits=1), {0, 1})], ()) is None
    True
    """
    top = 16 if any(form.bits == 16 for form, _ in found) else 8
    files = [
        _FileValues(form=form, stored={*values}, shown=_shown_set(form, values, top))
        for form, values in found
    ]
    scaled = [file for file in files if file.stored != file.shown]
    # In every file the stored numbers are the gray values, so both readings are equal.
    if not scaled:
        return 0
    stored, shown = _united(scaled)
    # A table of classes that names all values of one reading, and not all of the other, decides.
    by_table = _by_table(stored, shown, {*named}, top)
    if by_table is not None:
        return by_table
    plain = [file.stored for file in files if file.stored == file.shown and file.stored - {0}]
    # No file stores its gray values as they are, so there are no numbers to compare with.
    if not plain:
        return _without_plain(scaled, top)
    return _beside_plain(plain, scaled, (stored, shown), top)


@dataclass(frozen=True, kw_only=True)
class _FileValues:
    """Form of a file, its stored numbers, and the gray values that they show."""

    form: GrayForm
    stored: set[int]
    shown: set[int]


def _united(files: Sequence[_FileValues]) -> tuple[set[int], set[int]]:
    """Return all stored numbers and all shown values, without 0."""
    stored = set[int]().union(*(file.stored for file in files)) - {0}
    return stored, set[int]().union(*(file.shown for file in files)) - {0}


def _by_table(stored: set[int], shown: set[int], named: set[int], top: int) -> int | None:
    # Both readings or neither fit the table, which then proves nothing.
    if not named or (shown <= named) == (stored <= named):
        return None
    return top if shown <= named else 0


def _beside_plain(
    plain: Sequence[set[int]], scaled: Sequence[_FileValues], values: tuple[set[int], set[int]], top: int
) -> int | None:
    """Return how numbers are read if some files store gray values as they are.

    Args:
        plain: values of each plain file.
        scaled: the other files.
        values: all stored numbers, and all shown values, of the other files, without 0.
        top: bits of the gray values.
    """
    stored, shown = values
    known = set[int]().union(*plain) - {0}
    if not _bits_follow_numbers(plain, [(file.form, file.stored) for file in scaled], top):
        # A file of small numbers has all bits: no tool that writes numbers chose the form of the others.
        return top if shown & known else None
    # A tool that writes numbers takes more bits for larger ones, which explains the forms too.
    if (shown <= known) != (stored <= known):
        return top if shown <= known else 0
    # Both readings fit. In 16 bits the others would show multiples of 257, which nobody chooses as class numbers.
    return 0 if top == 16 else None


def _shown_set(form: GrayForm, values: Iterable[int], bits: int) -> set[int]:
    numbers = np.array(sorted(values), np.uint16)
    return set(form.shown(numbers, bits).tolist())


def _without_plain(scaled: Sequence[_FileValues], top: int) -> int | None:
    # An optimizer decides for each file; a tool that writes numbers has one form.
    if len({file.form.name for file in scaled}) == 1:
        return 0
    if all(file.form.palette for file in scaled):
        return top  # a tool that stores numbers writes one palette
    return None


def _bits_follow_numbers(
    plain: Sequence[set[int]], low: Sequence[tuple[GrayForm, set[int]]], top: int
) -> bool:
    """Return whether each file has the fewest bits that hold its stored numbers."""
    # The numbers of a palette do not show how many bits its values need.
    if any(form.palette for form, _ in low):
        return False
    least = {8: 16, 16: 256}[top]
    return all(max(one) >= least for one in plain) and all(
        form.bits == next(bits for bits, largest in _LARGEST_IN_BITS if max(one) <= largest) or form.bits >= 8
        for form, one in low
    )
