"""What one array of an example is: its name, dtype, axes, shape and encoding.

How the classes of a voxel that may be in several are one number: a set, with one bit for each class.

Of a manifest's classes but the background, in the order of their ids, the first has bit 0 (value 1), the second bit 1
(value 2), the third bit 2 (value 4): 5 is a voxel of the first and of the third. 0 is in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.limits import FIELD_BYTES, SIDE
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES

ENCODINGS = {
    "raw": "fixed-size little-endian bytes, the fast path",
    "sets": "as raw, a number a voxel whose bits say in which classes it is; loaded as 0 or 1 for each class",
    "jpeg": "a JPEG file",
    "png": "a PNG file",
    "value": "exactly as many numbers as the shape says",
    "classes": "any number of label ids, loaded as 0 or 1 for each class in the order of the ids",
    "list": "any number of numbers, padded along the first axis with `fill` when loaded",
    "text": "UTF-8 text",
    "png_list": "any number of PNG files, one per object",
}
AXES = ("frame", "depth", "height", "width", "channel", "box", "coordinate", "row", "column", "class")
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "float64": 8}
_ITEM_BYTES |= {"bool": 1, "str": 8, "bfloat16": 2}
DTYPES = tuple(_ITEM_BYTES)
_LARGEST_FLOAT = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38}
MOST_CLASSES = 16
"""Of an axis `class`: a set of more does not fit 16 bits."""


def set_dtype(classes: int) -> str:
    """The type in which sets of so many classes are stored, a bit for each."""
    return "uint8" if classes <= 8 else "uint16"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One array of an example.

    Args:
        name: the loader's key.
        keys: the tf.train.Example keys that hold it; several are stacked along a new last axis.
        dtype: as the loader gives it.
        axes: a name per axis, without the batch. Of the encoding "sets" the last one is `class`, and stored is one
            number for all classes, see `halofeed.schemas.fields`.
        shape: the static size per axis. Of an image stored without padding it is the largest of the data set,
            to which the loader pads.
        encoding: one of `ENCODINGS`.
        fill: what pads a list, or an image stored without padding.
        optional: loaded only on request (`include=`).
    """

    name: str
    keys: tuple[str, ...]
    dtype: str
    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    encoding: str
    fill: tuple[float, ...] = (0,)
    optional: bool = False

    @property
    def holds_sets(self) -> bool:
        """Whether each stored number is a set of classes."""
        return self.encoding == "sets"

    @property
    def is_raw(self) -> bool:
        """Whether its bytes are stored as they are, so that an index says where they begin."""
        return self.encoding in ("raw", "sets")

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of what is stored."""
        return self.shape[:-1] if self.holds_sets else self.shape

    @property
    def stored_dtype(self) -> str:
        """The dtype of what is stored raw or as an image."""
        return set_dtype(self.shape[-1]) if self.holds_sets else self.dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes of a raw field's value."""
        return math.prod(self.stored_shape) * _ITEM_BYTES[self.stored_dtype]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Every (attribute, what is wrong with it)."""
        if not self.name:
            yield "name", "expected a name, got an empty one"
        if not self.keys or not all(self.keys):
            yield "keys", f"expected at least one tf.train.Example key and no empty one, got {self.keys}"
        if self.dtype not in DTYPES:
            yield "dtype", f"expected one of {', '.join(DTYPES)}, got {self.dtype!r}"
        if self.encoding not in ENCODINGS:
            yield "encoding", f"expected one of {', '.join(ENCODINGS)}, got {self.encoding!r}"
        if unknown := [axis for axis in self.axes if axis not in AXES]:
            yield "axes", f"expected some of {', '.join(AXES)}, got {', '.join(unknown)}"
        if len(self.axes) != len(self.shape):
            yield "shape", f"expected {len(self.axes)} sizes for axes {self.axes}, got {self.shape}"
        if not all(1 <= size <= SIDE for size in self.shape):
            yield "shape", f"expected sizes of 1 to {SIDE:,}, got {self.shape!s:.200}"
        elif self.shape and (problem := self._too_large()):
            yield "shape", problem
        if self.holds_sets and not (
            self.axes[-1:] == ("class",) and self.dtype == "uint8" and self.shape[-1:] <= (MOST_CLASSES,)
        ):
            yield "axes", f"of sets expected a last axis class of at most {MOST_CLASSES}, of uint8"
        if self.encoding in ("raw", "jpeg", "png") and self.dtype in ("str", "bool"):
            yield "dtype", f"expected a number's for the encoding {self.encoding}, got {self.dtype!r}"
        if self.encoding == "list" and not self.shape:
            yield "shape", "expected at least one size for a list, got none"
        for problem in self._fill_problems():
            yield "fill", problem

    def _too_large(self) -> str:
        stored = math.prod(self.stored_shape) * _ITEM_BYTES.get(self.stored_dtype, 8)
        if self.is_raw and stored > MAX_EXAMPLE_BYTES:
            return f"{stored:,} bytes fit in no record, which is less than 2 GiB"
        if math.prod(self.shape) * _ITEM_BYTES.get(self.dtype, 8) > FIELD_BYTES:
            return f"expected at most {FIELD_BYTES:,} bytes, got {self.shape} {self.dtype}"
        return ""

    def _fill_problems(self) -> Iterator[str]:
        channels = self.shape[-1] if self.shape and "channel" in self.axes[-1:] else 1
        if not self.fill or not all(math.isfinite(value) for value in self.fill):
            yield f"expected at least one number, all finite, got {self.fill!s:.200}"
        elif len(self.fill) not in (1, channels):
            yield f"expected one number{f' or {channels}' if channels > 1 else ''}, got {len(self.fill)}"
        elif unfit := [value for value in self.fill if not self._holds(value)]:
            yield f"expected numbers that {self.dtype} holds, got {unfit[0]!r:.60}"

    def _holds(self, value: float) -> bool:
        """Whether a number has a form in the field's dtype."""
        if self.dtype in ("uint8", "uint16", "int16", "int32", "int64"):
            whole = np.iinfo(self.dtype)
            return value == int(value) and whole.min <= value <= whole.max
        if self.dtype in ("bool", "str"):
            return value in (0, 1)
        return abs(value) <= _LARGEST_FLOAT.get(self.dtype, math.inf)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "fill": [int(value) if value == int(value) else value for value in self.fill]}


SETS: Final = "channels"
"""The value of --class-overlap with which records hold sets."""


def channel_ids(labels: Iterable[int]) -> tuple[int, ...]:
    """The class ids by channel, which is their bit: all but the background, in ascending order.

    >>> channel_ids({0: "background", 7: "liver", 2: "body"})
    (2, 7)
    """
    return tuple(sorted(identity for identity in labels if identity))


def ids_of_field(field: Field, labels: Iterable[int]) -> tuple[int, ...]:
    """The class ids by channel of a label that holds sets; () of one that holds a class index."""
    return channel_ids(labels) if field.holds_sets else ()


def members(values: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Write what sets hold: 1 where a class is in the set, else 0.

    Args:
        values: uint8 or uint16 [...], contiguous.
        out: uint8 [..., class].

    >>> out = np.empty((2, 3), np.uint8)
    >>> members(np.array([5, 0], np.uint8), out)
    >>> out.tolist()
    [[1, 0, 1], [0, 0, 0]]
    """
    for target, sets in zip(out, values, strict=True):  # a slice at a time: its bytes are made beside it
        little = np.ascontiguousarray(sets, sets.dtype.newbyteorder("<"))[..., None].view(np.uint8)
        target[...] = np.unpackbits(little, axis=-1, count=out.shape[-1], bitorder="little")


def count_members(counts: Mapping[int, Any], ids: Sequence[int]) -> dict[int, Any]:
    """From a count of each set the count of each class that occurs, by id; 0 counts the empty set.

    >>> count_members({0: 90, 1: 5, 3: 2}, (4, 6))
    {0: 90, 4: 7, 6: 2}
    """
    found = {0: counts[0]} if counts.get(0) else {}
    for bit, identity in enumerate(ids):
        if inside := [count for value, count in counts.items() if value >> bit & 1]:
            found[identity] = sum(inside)
    return found


def count_shared(counts: Mapping[int, int]) -> int:
    """From a count of each set how many are of several classes."""
    return sum(count for value, count in counts.items() if value.bit_count() > 1)


def top_classes(values: NDArray[Any], ids: Sequence[int]) -> NDArray[Any]:
    """Of each set the class of the highest id, 0 of an empty one: what is drawn where one alone can be shown.

    >>> top_classes(np.array([5, 1, 0], np.uint8), (2, 4, 9))
    array([9, 2, 0], dtype=uint8)
    """
    top = np.zeros(values.shape, np.min_scalar_type(max(ids, default=0)))
    for bit, identity in enumerate(ids):
        top[values >> bit & 1 != 0] = identity
    return top


def unknown_bits(counts: Mapping[int, int], classes: int) -> dict[int, int]:
    """Which bits of no class occur, and how often; none in sound data.

    >>> unknown_bits({0: 9, 9: 4, 8: 1}, 3)
    {3: 5}
    """
    highest = max(counts, default=0).bit_length()
    found = count_members(counts, range(1, highest + 1))
    return {number - 1: count for number, count in found.items() if number > classes}
