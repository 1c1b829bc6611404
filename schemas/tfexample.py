"""How a tf.train.Example is written and read without TensorFlow.

The wire format is protobuf's: an Example holds Features, a map from key to a Feature that is one of
bytes_list, float_list (packed float32) and int64_list (packed varints).
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
Keys are written in sorted order, so that equal features give equal bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.errors import CorruptFileError, UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview
Value: TypeAlias = Buffer | Sequence[Buffer] | NDArray[Any]
"""One feature: bytes or a list of bytes, or a one-dimensional array of floats or integers."""
Decoded: TypeAlias = dict[str, "list[memoryview] | NDArray[Any]"]

REFERRED_BYTES = 1 << 14
"""From this size on a value is referred to rather than copied."""
MAX_EXAMPLE_BYTES = (1 << 31) - 1
"""Protobuf refuses a message of 2 GiB or more."""

_INT64_MAX = (1 << 63) - 1
_LARGEST_FIELD_NUMBER = (1 << 29) - 1


_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length_prefixed(field: int, length: int) -> bytes:
    return _ONE_BYTE[field << 3 | 2] + _varint(length)


@dataclass(frozen=True, kw_only=True)
class EncodedExample:
    """A serialized Example as pieces to be written one after the other.

    `starts` says, for every key with a single bytes value, at which byte of the whole that value begins.
    """

    chunks: tuple[Buffer, ...]
    length: int
    starts: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """The pieces joined."""
        return b"".join(self.chunks)


def _feature_chunks(key: str, value: Value) -> tuple[list[Buffer], bool]:
    """A Feature message as pieces, and whether it is a single bytes value (which is then the last piece)."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise UsageError(f"{key}: expected a one-dimensional array, got shape {value.shape}")
        if value.dtype.kind == "f":
            body = value.astype("<f4", copy=False).tobytes()
            inner = _length_prefixed(1, len(body)) + body if body else b""
            return [_length_prefixed(2, len(inner)), inner], False
        if value.dtype.kind in "iub":
            if value.dtype == np.uint64 and value.size and value.max() > _INT64_MAX:
                raise UsageError(f"{key}: expected int64 values, got {value.max()}, which int64 cannot hold")
            body = b"".join(map(_varint, value.tolist()))
            inner = _length_prefixed(1, len(body)) + body if body else b""
            return [_length_prefixed(3, len(inner)), inner], False
        raise UsageError(
            f"{key}: a {value.dtype} array has no form in tf.train.Example; use floats or integers"
        )
    single = isinstance(value, bytes | bytearray | memoryview)
    values: Sequence[Any] = [value] if single else value
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UsageError(f"{key}: expected bytes, a list of bytes or an array, got {value!r:.60}")
    pieces: list[Buffer] = []
    for item in values:
        if not isinstance(item, bytes | bytearray | memoryview):
            raise UsageError(f"{key}: expected a list of bytes, got {item!r:.60} in it")
        view = item if isinstance(item, bytes | bytearray) else item.cast("B")
        pieces += [_length_prefixed(1, len(view)), view]
    return [_length_prefixed(1, sum(map(len, pieces))), *pieces], single


def encode_example(features: Mapping[str, Value]) -> EncodedExample:
    """Serialize features; large bytes values are referred to, not copied.

    Args:
        features: key to bytes, a list of bytes, or a one-dimensional array (floats are stored as float32,
            integers and booleans as int64).

    Raises:
        UsageError: a value has no form in tf.train.Example, or the whole reaches 2 GiB.

    >>> encode_example({"a": np.array([1, 300])}).to_bytes().hex()
    '0a0e0a0c0a016112071a050a0301ac02'
    """
    body: list[Buffer] = []
    starts: dict[str, int] = {}
    position = 0
    for key in sorted(features):
        pieces, single = _feature_chunks(key, features[key])
        name = key.encode()
        feature_length = sum(map(len, pieces))
        feature_head = _length_prefixed(2, feature_length)
        entry_length = len(_length_prefixed(1, len(name))) + len(name) + len(feature_head) + feature_length
        head = _length_prefixed(1, entry_length) + _length_prefixed(1, len(name)) + name + feature_head
        body.append(head)
        body.extend(pieces)
        position += len(head) + feature_length
        if single:
            starts[key] = position - len(pieces[-1])
    head = _length_prefixed(1, position)
    length = len(head) + position
    if length > MAX_EXAMPLE_BYTES:
        raise UsageError(
            f"an example of {length:,} bytes is over protobuf's limit of {MAX_EXAMPLE_BYTES:,}; cut it into tiles"
        )
    return EncodedExample(
        chunks=tuple(_join_small([head, *body])),
        length=length,
        starts={key: start + len(head) for key, start in starts.items()},
    )


def _join_small(pieces: list[Buffer]) -> Iterator[Buffer]:
    """The same bytes in few pieces: the large ones as they are, what lies between them joined."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < REFERRED_BYTES:
            small.append(piece)
            continue
        yield b"".join(small)
        yield piece
        small = []
    yield b"".join(small)


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            break
    raise CorruptFileError(f"not a tf.train.Example: a number that does not end at byte {at}")


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field of a message: its number, wire type, and the range of its value (or the value itself)."""
    while at < end:
        tag, at = _read_varint(view, at, end)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _LARGEST_FIELD_NUMBER:
            raise CorruptFileError(f"not a tf.train.Example: field number {number} at byte {at}")
        if wire == 0:
            value, at = _read_varint(view, at, end)
            yield number, wire, value, at
            continue
        if wire == 2:
            size, at = _read_varint(view, at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise CorruptFileError(f"not a tf.train.Example: wire type {wire} at byte {at}")
        if size > end - at:
            raise CorruptFileError(
                f"not a tf.train.Example: a field runs past its message's end at byte {end}"
            )
        yield number, wire, at, at + size
        at += size


def _decode_floats(view: memoryview, at: int, end: int) -> NDArray[np.float32]:
    parts = []
    for number, wire, start, stop in _fields(view, at, end):
        if number == 1 and wire in (2, 5):
            if (stop - start) % 4:
                raise CorruptFileError(
                    f"not a tf.train.Example: {stop - start} bytes of float32 at byte {start}"
                )
            parts.append(np.frombuffer(view[start:stop], "<f4"))
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _decode_integers(view: memoryview, at: int, end: int) -> NDArray[np.int64]:
    values: list[int] = []
    for number, wire, start, stop in _fields(view, at, end):
        if number == 1 and wire == 0:
            values.append(start)
        elif number == 1 and wire == 2:
            while start < stop:
                value, start = _read_varint(view, start, stop)
                values.append(value)
    return np.array(values, np.uint64).astype(np.int64)


def decode_example(data: Buffer, keys: Collection[str] | None = None) -> Decoded:
    """Parse a serialized Example; bytes values are views into `data`.

    Args:
        data: the message.
        keys: parse only these; None for all of them.

    Returns:
        key to a list of memoryviews (bytes_list), a float32 array or an int64 array; a key whose Feature
        holds nothing is left out.

    Raises:
        CorruptFileError: the bytes are not an Example.

    >>> data = encode_example({"a": np.array([1, -1]), "b": b"xy"}).to_bytes()
    >>> decode_example(data)["a"].tolist()
    [1, -1]
    >>> list(decode_example(data, keys=["b"]))
    ['b']
    """
    view = memoryview(data).cast("B")
    wanted = None if keys is None else {key.encode() for key in keys}
    found: Decoded = {}
    for number, wire, at, end in _fields(view, 0, len(view)):
        if number != 1 or wire != 2:
            continue
        for entry, entry_wire, entry_at, entry_end in _fields(view, at, end):
            if (
                entry == 1
                and entry_wire == 2
                and (wanted is None or _is_wanted(view, entry_at, entry_end, wanted))
            ):
                _decode_entry(view, entry_at, entry_end, found)
    return found if keys is None else {key: value for key, value in found.items() if key in keys}


def _is_wanted(view: memoryview, at: int, end: int, wanted: set[bytes]) -> bool:
    """Whether an entry's key is one of `wanted`, or does not stand at its beginning, where writers put it."""
    if end - at < 2 or view[at] != 0x0A or view[at + 1] > 0x7F:
        return True
    return bytes(view[at + 2 : at + 2 + view[at + 1]]) in wanted


def _decode_entry(view: memoryview, at: int, end: int, found: Decoded) -> None:
    key, feature = "", (0, 0)
    for number, wire, start, stop in _fields(view, at, end):
        if wire == 2 and number == 1:
            try:
                key = str(view[start:stop], "utf-8")
            except UnicodeDecodeError as error:
                raise CorruptFileError(
                    f"not a tf.train.Example: a key that is not UTF-8 at byte {start}"
                ) from error
        elif wire == 2 and number == 2:
            feature = (start, stop)
    found.pop(key, None)
    for number, wire, start, stop in _fields(view, *feature):
        if wire != 2:
            continue
        if number == 1:
            found[key] = [view[a:b] for n, w, a, b in _fields(view, start, stop) if n == 1 and w == 2]
        elif number == 2:
            found[key] = _decode_floats(view, start, stop)
        elif number == 3:
            found[key] = _decode_integers(view, start, stop)
