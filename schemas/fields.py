"""Fields: the arrays of an example, each with name, dtype, axes, shape and encoding.

A voxel that may be in several classes is stored as a set, one number with a bit for each class. The classes except
the background have their bits in the order of their ids: value 1 is the first class, 2 the second, 4 the third. So 5
is a voxel of the first and the third class, and 0 is in no class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas import keys
from halofeed.schemas.encodings import ENCODINGS, Encoding
from halofeed.schemas.limits import FIELD_BYTES, SIDE
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES
from halofeed.system.wording import plural

AXES = ("frame", "depth", "height", "width", "channel", "box", "coordinate", "row", "column", "class")
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "float64": 8}
_ITEM_BYTES |= {"bool": 1, "str": 8, "bfloat16": 2}
DTYPES = tuple(_ITEM_BYTES)
_LARGEST_FLOAT = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38}
MAX_CLASSES = 16
"""Largest size of an axis `class`, since a set has at most 16 bits."""
SETS: Final = "channels"
"""Value of --class-overlap that makes records hold sets."""


_UNKNOWN = Encoding(description="an encoding that `Field.problems` reports")


def set_dtype(classes: int) -> str:
    """Return the stored dtype of sets of this many classes."""
    return "uint8" if classes <= 8 else "uint16"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One array of an example.

    Args:
        name: key in the loader's batches.
        keys: the tf.train.Example keys that hold it; several are stacked along a new last axis.
        dtype: dtype in the loader's batches.
        axes: name of each axis, without the batch axis. With the encoding "sets" the last axis is `class`, and the
            record holds one number for all classes.
        shape: static size of each axis. For an image stored without padding it is the largest size in the data set,
            to which the loader pads.
        encoding: a key of `ENCODINGS`.
        fill: padding value of a list, or of an image stored without padding.
        optional: True if it is loaded only on request (`include=`).
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
    def form(self) -> Encoding:
        """Properties of its encoding."""
        return ENCODINGS.get(self.encoding, _UNKNOWN)

    @property
    def holds_sets(self) -> bool:
        """True if each stored number is a set of classes."""
        return self.form.holds_sets

    @property
    def is_raw(self) -> bool:
        """True if the bytes are stored unencoded, as many in every record."""
        return self.form.is_array and self.form.is_fixed_size and not self.form.holds_planes

    @property
    def holds_planes(self) -> bool:
        """True if the record holds the color planes of a picture, as many bytes in every record."""
        return self.form.holds_planes

    @property
    def is_packed(self) -> bool:
        """True if the array is stored as a packed value, whose size differs from record to record."""
        return self.form.is_array and not self.form.is_fixed_size

    @property
    def is_array(self) -> bool:
        """True if the record holds an array of which a part can be read; the index holds its offset."""
        return self.form.is_array

    @property
    def is_file(self) -> bool:
        """True if the record holds a picture file, which has its own size."""
        return self.form.is_file

    @property
    def may_be_absent(self) -> bool:
        """True if a record lacks the key where its source does not state the value: the loader gives NaN or "".

        The spacing of pixels is one; that of voxels is in every record of a volume.
        """
        is_pixel_spacing = self.keys == (keys.SPACING_MM,) and self.shape == (2,)
        return is_pixel_spacing or (len(self.keys) == 1 and self.keys[0] in keys.WORDS)

    @property
    def packed_layout(self) -> PackedLayout:
        """Layout of the stored array's packed values."""
        axes = len([axis for axis in self.axes if axis not in ("channel", "class")])
        return PackedLayout.of(self.stored_shape, self.stored_dtype, axes)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored array."""
        return self.shape[:-1] if self.holds_sets else self.shape

    @property
    def stored_dtype(self) -> str:
        """Dtype of the stored array or image."""
        return set_dtype(self.shape[-1]) if self.holds_sets else self.dtype

    @property
    def stored_bytes(self) -> int:
        """Size of the stored array in bytes; that of a packed field is the unpacked one."""
        count = math.prod(self.stored_shape) * _ITEM_BYTES[self.stored_dtype]
        return count // 2 if self.holds_planes else count

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (attribute, problem) for each problem of the field."""
        yield from self._word_problems()
        yield from self._shape_problems()
        yield from self._encoding_problems()
        for problem in self._fill_problems():
            yield "fill", problem

    def _word_problems(self) -> Iterator[tuple[str, str]]:
        """Yield problems of attributes that are one of several words."""
        if not self.name:
            yield "name", "expected a name, got an empty one"
        if not self.keys or not all(self.keys):
            yield "keys", f"expected at least one tf.train.Example key and no empty one, got {self.keys}"
        if self.dtype not in DTYPES:
            yield "dtype", f"expected one of {', '.join(DTYPES)}, got {self.dtype!r}"
        if self.encoding not in ENCODINGS:
            cure = "if a newer halofeed wrote it, install that one"
            yield "encoding", f"expected one of {', '.join(ENCODINGS)}, got {self.encoding!r}; {cure}"
        if unknown := [axis for axis in self.axes if axis not in AXES]:
            yield "axes", f"expected some of {', '.join(AXES)}, got {', '.join(unknown)}"

    def _shape_problems(self) -> Iterator[tuple[str, str]]:
        if len(self.axes) != len(self.shape):
            yield "shape", f"expected {len(self.axes)} sizes for axes {self.axes}, got {self.shape}"
        # A reader allocates what the manifest states, so a damaged size must not ask for terabytes.
        if not all(1 <= size <= SIDE for size in self.shape):
            yield "shape", f"expected sizes of 1 to {SIDE:,}, got {self.shape!s:.200}"
        elif self.shape and (problem := self._too_large()):
            yield "shape", problem

    def _encoding_problems(self) -> Iterator[tuple[str, str]]:
        """Yield contradictions between the encoding and the other attributes."""
        if self.holds_sets and not (
            self.axes[-1:] == ("class",) and self.dtype == "uint8" and self.shape[-1:] <= (MAX_CLASSES,)
        ):
            yield "axes", f"expected a last axis class of at most {MAX_CLASSES} and dtype uint8 for sets"
        if (self.is_array or self.is_file) and self.dtype in ("str", "bool"):
            yield "dtype", f"expected a dtype of numbers for the encoding {self.encoding}, got {self.dtype!r}"
        # Four pixels share their chroma.
        if self.holds_planes and (self.shape[0] % 2 or self.shape[1] % 2):
            yield "shape", f"expected an even height and width for {self.encoding}, got {self.shape}"
        if self.encoding == "list" and not self.shape:
            yield "shape", "expected at least one size for a list, got none"

    def _too_large(self) -> str:
        stored = math.prod(self.stored_shape) * _ITEM_BYTES.get(self.stored_dtype, 8)
        if self.is_array and stored > MAX_EXAMPLE_BYTES:
            return f"{plural(stored, 'byte')} fit in no record, which is less than 2 GiB"
        # JPEG and PNG are small in a record, but their arrays are as large as the shape.
        if math.prod(self.shape) * _ITEM_BYTES.get(self.dtype, 8) > FIELD_BYTES:
            return f"expected at most {FIELD_BYTES:,} bytes, got {self.shape} {self.dtype}"
        return ""

    def _fill_problems(self) -> Iterator[str]:
        channels = self.shape[-1] if self.shape and "channel" in self.axes[-1:] else 1
        # An image may have a fill value per channel, such as the mean color.
        if not self.fill or not all(math.isfinite(value) for value in self.fill):
            yield f"expected at least one number, all finite, got {self.fill!s:.200}"
        elif len(self.fill) not in (1, channels):
            yield f"expected one number{f' or {channels}' if channels > 1 else ''}, got {len(self.fill)}"
        elif outside := [value for value in self.fill if not self._can_hold(value)]:
            yield f"expected numbers that {self.dtype} can hold, got {outside[0]!r:.60}"

    def _can_hold(self, value: float) -> bool:
        if self.dtype in ("uint8", "uint16", "int16", "int32", "int64"):
            limits = np.iinfo(self.dtype)
            return value == int(value) and limits.min <= value <= limits.max
        if self.dtype in ("bool", "str"):
            return value in (0, 1)
        return abs(value) <= _LARGEST_FLOAT.get(self.dtype, math.inf)

    def to_json(self) -> dict[str, Any]:
        """Return the field as plain JSON values."""
        return {**vars(self), "fill": [int(value) if value == int(value) else value for value in self.fill]}


def channel_ids(labels: Iterable[int]) -> tuple[int, ...]:
    """Return the class id of each channel (bit of a set): all ids except the background, in ascending order.

    >>> channel_ids({0: "background", 7: "liver", 2: "body"})
    (2, 7)
    """
    return tuple(sorted(identity for identity in labels if identity))


def ids_of_field(field: Field, labels: Iterable[int]) -> tuple[int, ...]:
    """Return `channel_ids` for a field that holds sets, and () for one that holds a class index."""
    return channel_ids(labels) if field.holds_sets else ()


def unpack_sets(values: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Unpack sets: write 1 where a class is in the set, else 0.

    Args:
        values: uint8 or uint16 [...], contiguous.
        out: uint8 [..., class].

    >>> out = np.empty((2, 3), np.uint8)
    >>> unpack_sets(np.array([5, 0], np.uint8), out)
    >>> out.tolist()
    [[1, 0, 1], [0, 0, 0]]
    """
    for target, sets in zip(out, values, strict=True):  # one slice at a time limits the temporary memory
        little = np.ascontiguousarray(sets, sets.dtype.newbyteorder("<"))[..., None].view(np.uint8)
        target[...] = np.unpackbits(little, axis=-1, count=out.shape[-1], bitorder="little")


def count_set_members(counts: Mapping[int, Any], ids: Sequence[int]) -> dict[int, Any]:
    """Return the count of each class that occurs, by id, from a count of each set; 0 counts the empty set.

    >>> count_set_members({0: 90, 1: 5, 3: 2}, (4, 6))
    {0: 90, 4: 7, 6: 2}
    """
    found = {0: counts[0]} if counts.get(0) else {}
    for bit, identity in enumerate(ids):
        if inside := [count for value, count in counts.items() if value >> bit & 1]:
            found[identity] = sum(inside)
    return found


def count_overlaps(counts: Mapping[int, int]) -> int:
    """Return how many voxels are in several classes, from a count of each set."""
    return sum(count for value, count in counts.items() if value.bit_count() > 1)


def top_classes(values: NDArray[Any], ids: Sequence[int]) -> NDArray[Any]:
    """Return the highest class id of each set, 0 for an empty one, for a view that can show one class per voxel.

    >>> top_classes(np.array([5, 1, 0], np.uint8), (2, 4, 9))
    array([9, 2, 0], dtype=uint8)
    """
    top = np.zeros(values.shape, np.min_scalar_type(max(ids, default=0)))
    for bit, identity in enumerate(ids):
        top[values >> bit & 1 != 0] = identity
    return top


def unknown_bits(counts: Mapping[int, int], classes: int) -> dict[int, int]:
    """Return the bits that belong to no class, and how often they occur; empty for valid data.

    >>> unknown_bits({0: 9, 9: 4, 8: 1}, 3)
    {3: 5}
    """
    highest = max(counts, default=0).bit_length()
    found = count_set_members(counts, range(1, highest + 1))
    return {number - 1: count for number, count in found.items() if number > classes}
