"""Writer and readers of tf.train.Example without TensorFlow.

The wire format is protobuf's: an Example holds Features, a map from key to a Feature that is one of bytes_list,
float_list (packed float32) and int64_list (packed varints).
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
The writer sorts the keys, so that equal features give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.limits import RECORD_VALUES
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural

Buffer: TypeAlias = bytes | bytearray | memoryview
Value: TypeAlias = Buffer | Sequence[Buffer] | NDArray[Any]
"""A feature: bytes, a list of bytes, or a one-dimensional array of floats or integers."""
Decoded: TypeAlias = dict[str, "list[memoryview] | NDArray[Any]"]

REFERRED_BYTES = 1 << 14
"""Size from which `encode_example` refers to a value instead of copying it."""
MAX_EXAMPLE_BYTES = (1 << 31) - 1
"""Protobuf refuses a message of 2 GiB or more."""

_WINDOW_BYTES, _MAX_HEAD_BYTES = 1 << 13, 1 << 8
"""Bytes per read of a message that is not in memory, and the longest head of an entry with its key."""
_MAX_COPIED_BYTES = 1 << 13
"""Larger parts are not copied to bytes. Python indexes bytes twice as fast as a memoryview."""
_MAX_LOOP_BYTES = 64
"""Larger packed integers are decoded with NumPy instead of a loop."""
_KEY_BYTES = 1 << 12
_VARINT_BYTES = 10
_INT64_MAX = (1 << 63) - 1
_LARGEST_FIELD_NUMBER = (1 << 29) - 1
_FLOAT = np.dtype("<f4")
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


def varint(value: int) -> bytes:
    """Return an integer as protobuf's varint; negative ones as their 64 bits.

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length_prefixed(field: int, length: int) -> bytes:
    """Return the head of a field of bytes: its number, 1 to 15, and the length of what follows.

    >>> length_prefixed(1, 300).hex()
    '0aac02'
    """
    return _ONE_BYTE[field << 3 | 2] + varint(length)


@dataclass(frozen=True, kw_only=True)
class EncodedExample:
    """Serialized Example as consecutive chunks.

    Args:
        chunks: the chunks in order.
        length: bytes of all chunks.
        starts: for every key with a single bytes value, the byte at which the value begins.
    """

    chunks: tuple[Buffer, ...]
    length: int
    starts: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """Return the joined chunks."""
        return b"".join(self.chunks)


def _feature_chunks(key: str, value: Value) -> tuple[list[Buffer], bool]:
    """Return a Feature message as chunks, and True if the last chunk is its only bytes value."""
    if isinstance(value, np.ndarray):
        number, body = _packed(key, value)
        inner = length_prefixed(1, len(body)) + body if body else b""
        return [length_prefixed(number, len(inner)), inner], False
    single = isinstance(value, bytes | bytearray | memoryview)
    values: Sequence[Any] = [value] if single else value
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UsageError(f"{key}: expected bytes, a list of bytes or an array, got {value!r:.60}")
    pieces: list[Buffer] = []
    for item in values:
        if not isinstance(item, bytes | bytearray | memoryview):
            raise UsageError(f"{key}: expected a list of bytes, got {item!r:.60} in it")
        view = item if isinstance(item, bytes | bytearray) else item.cast("B")
        pieces += [length_prefixed(1, len(view)), view]
    return [length_prefixed(1, sum(map(len, pieces))), *pieces], single


def _packed(key: str, value: NDArray[Any]) -> tuple[int, bytes]:
    """Return the field of a Feature for an array, 2 for floats and 3 for integers, and the packed numbers."""
    if value.ndim != 1:
        raise UsageError(f"{key}: expected a one-dimensional array, got shape {value.shape}")
    if value.dtype.kind == "f":
        return 2, value.astype("<f4", copy=False).tobytes()
    if value.dtype.kind not in "iub":
        raise UsageError(
            f"{key}: a {value.dtype} array has no form in tf.train.Example; use floats or integers"
        )
    if value.dtype == np.uint64 and value.size and value.max() > _INT64_MAX:
        raise UsageError(f"{key}: expected int64 values, got {value.max()}, which int64 cannot hold")
    return 3, b"".join(map(varint, value.tolist()))


def encode_example(features: Mapping[str, Value]) -> EncodedExample:
    """Serialize features without copying large bytes values.

    Args:
        features: key to bytes, a list of bytes, or a one-dimensional array (floats are stored as float32,
            integers and booleans as int64).

    Raises:
        UsageError: a value has no form in tf.train.Example, or the example exceeds 2 GiB or `RECORD_VALUES` values.

    >>> encode_example({"a": np.array([1, 300])}).to_bytes().hex()
    '0a0e0a0c0a016112071a050a0301ac02'
    """
    body: list[Buffer] = []
    starts: dict[str, int] = {}
    position = 0
    if (count := sum(map(_count_values, features.values()))) > RECORD_VALUES:
        raise UsageError(
            f"an example of {plural(count, 'value')} is over the limit of {RECORD_VALUES:,}; cut it into tiles"
        )
    for key in sorted(features):
        pieces, single = _feature_chunks(key, features[key])
        feature_length = sum(map(len, pieces))
        key_and_head = _key_field(key) + length_prefixed(2, feature_length)
        head = length_prefixed(1, len(key_and_head) + feature_length) + key_and_head
        body.append(head)
        body.extend(pieces)
        position += len(head) + feature_length
        if single:
            starts[key] = position - len(pieces[-1])
    head = length_prefixed(1, position)
    length = len(head) + position
    if length > MAX_EXAMPLE_BYTES:
        raise UsageError(
            f"an example of {plural(length, 'byte')} is over protobuf's limit of {MAX_EXAMPLE_BYTES:,}; cut "
            "it into tiles"
        )
    return EncodedExample(
        chunks=tuple(_join_small([head, *body])),
        length=length,
        starts={key: start + len(head) for key, start in starts.items()},
    )


@lru_cache(maxsize=256)
def _key_field(key: str) -> bytes:
    """Return the key of a map entry as protobuf's field; all records of a task have the same keys."""
    name = key.encode()
    return length_prefixed(1, len(name)) + name


def _count_values(value: Value) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return len(value) if isinstance(value, list | tuple) else 1


def _join_small(pieces: list[Buffer]) -> Iterator[Buffer]:
    """Join consecutive small pieces; yield large ones unchanged."""
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
        if shift > 63:  # a varint has at most ten bytes
            break
    raise CorruptFileError(f"not a tf.train.Example: a number that does not end at byte {at}")


class _ValueLimit:
    """Counter of the values that a record may still have; a record of few bytes cannot exceed the limit."""

    def __init__(self, size: int) -> None:
        self.count = RECORD_VALUES if size > RECORD_VALUES else -1

    def take(self, count: int, at: int) -> None:
        """Count values; raise CorruptFileError if they are too many."""
        if self.count >= 0:
            self.count -= count
            if self.count < 0:
                raise CorruptFileError(
                    f"not an example of halofeed: more than {RECORD_VALUES:,} values, at byte {at}"
                )


def _fields(view: memoryview, at: int, end: int, limit: _ValueLimit) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, wire type, start and end of each field; for a varint the value instead of the start.

    One loop without calls for the usual tags and sizes of one byte, because it runs for every value of every record.
    """
    limited = limit.count >= 0
    while at < end:
        if limited:
            limit.take(1, at)
        # Most varints have one byte.
        if (tag := view[at]) < 0x80:
            at += 1
        else:
            tag, at = _read_varint(view, at, end)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _LARGEST_FIELD_NUMBER:
            raise CorruptFileError(f"not a tf.train.Example: field number {number} at byte {at}")
        if wire == 2:
            if at < end and (size := view[at]) < 0x80:
                at += 1
            else:
                size, at = _read_varint(view, at, end)
        elif wire == 0:
            value, at = _read_varint(view, at, end)
            yield number, wire, value, at
            continue
        elif wire in (1, 5):  # fixed64 and fixed32
            size = 8 if wire == 1 else 4
        else:  # groups (3 and 4), which proto3 does not have, and 6 and 7, which no version has
            raise CorruptFileError(f"not a tf.train.Example: wire type {wire} at byte {at}")
        if size > end - at:
            raise CorruptFileError(
                f"not a tf.train.Example: a field runs past its message's end at byte {end}"
            )
        yield number, wire, at, at + size
        at += size


def _decode_floats(view: memoryview, at: int, end: int, limit: _ValueLimit) -> NDArray[np.float32]:
    parts = []
    for number, wire, start, stop in _fields(view, at, end, limit):
        if number == 1 and wire in (2, 5):
            limit.take((stop - start) // 4, start)
            if (stop - start) % 4:
                raise CorruptFileError(
                    f"not a tf.train.Example: {plural(stop - start, 'byte')} of float32 at byte {start}"
                )
            parts.append(np.frombuffer(view[start:stop], _FLOAT))
    if len(parts) == 1:
        return parts[0].copy()  # three times as fast as to concatenate one part
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _decode_integers(view: memoryview, at: int, end: int, limit: _ValueLimit) -> NDArray[np.int64]:
    values: list[int] = []
    parts: list[NDArray[np.uint64]] = []
    for number, wire, start, stop in _fields(view, at, end, limit):
        # Writers pack integers; readers must accept both forms.
        # https://protobuf.dev/programming-guides/encoding/#packed
        if number == 1 and wire == 0:
            values.append(start)
        elif number == 1 and wire == 2 and stop - start > _MAX_LOOP_BYTES:
            parts += [np.array(values, np.uint64), _decode_packed(view, start, stop, limit)]
            values = []
        elif number == 1 and wire == 2:
            while start < stop:
                if (value := view[start]) < 0x80:
                    start += 1
                else:
                    value, start = _read_varint(view, start, stop)
                values.append(value)
    last = np.array(values, np.uint64)
    return (np.concatenate([*parts, last]) if parts else last).view(np.int64)


def _decode_packed(view: memoryview, start: int, stop: int, limit: _ValueLimit) -> NDArray[np.uint64]:
    """Decode many packed varints with NumPy; a loop would take minutes for a gigabyte."""
    # More bytes than the longest form of the permitted values; refused before NumPy allocates arrays of that size.
    if stop - start > _VARINT_BYTES * RECORD_VALUES:
        limit.take(RECORD_VALUES + 1, start)
    data = np.frombuffer(view[start:stop], np.uint8)
    ends = np.flatnonzero(data < 0x80)
    limit.take(len(ends), start)
    begins = np.concatenate([np.zeros(1, np.int64), ends + 1])
    sizes = np.diff(begins)
    if begins[-1] != len(data) or sizes.max() > _VARINT_BYTES:
        raise CorruptFileError(f"not a tf.train.Example: a number that does not end after byte {start}")
    begins = begins[:-1]
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(sizes.max())):
        reaching = sizes > place
        bits = (data[begins[reaching] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        values[reaching] |= bits
    return values


def decode_example(data: Buffer, keys: Collection[str] | None = None) -> Decoded:
    """Parse a serialized Example; bytes values are views into `data`.

    Args:
        data: the message.
        keys: keys to parse; None for all.

    Returns:
        key to a list of memoryviews (bytes_list), a float32 array or an int64 array, without keys of empty Features.

    Raises:
        CorruptFileError: the bytes are not an Example.

    >>> data = encode_example({"a": np.array([1, -1]), "b": b"xy"}).to_bytes()
    >>> decode_example(data)["a"].tolist()
    [1, -1]
    >>> list(decode_example(data, keys=["b"]))
    ['b']
    """
    view = memoryview(data).cast("B")
    limit = _ValueLimit(len(view))
    wanted = None if keys is None else {key.encode() for key in keys}
    found: Decoded = {}
    for at, end in _entries(view, limit):
        if wanted is None or _is_wanted(view, at, end, wanted):
            _decode_entry(view, at, end, found, limit)
    return found if keys is None else {key: value for key, value in found.items() if key in keys}


def _entries(view: memoryview, limit: _ValueLimit) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each entry of the map of features.

    Fields of other numbers are skipped, as protobuf does with fields that a reader does not know.
    """
    for number, wire, at, end in _fields(view, 0, len(view), limit):
        if number == 1 and wire == 2:
            for entry, entry_wire, start, stop in _fields(view, at, end, limit):
                if entry == 1 and entry_wire == 2:
                    yield start, stop


def decode_parts(parts: Sequence[tuple[int, memoryview]], length: int, keys: frozenset[str]) -> Decoded:
    """Parse a serialized Example from which some values were left out, each at the end of its entry.

    Args:
        parts: the available parts in order, each with its offset in the message.
        length: bytes of the complete message.
        keys: keys to parse; their values must be in the parts.

    Raises:
        CorruptFileError: the bytes are not an Example, or a gap is not such a value.

    >>> data = memoryview(encode_example({"a": b"xyz", "b": b"uv"}).to_bytes())
    >>> bytes(decode_parts([(0, data[:13]), (16, data[16:])], len(data), frozenset("b"))["b"][0])
    b'uv'
    """
    try:
        return _decode_in_order(parts, length, keys)
    except CorruptFileError:
        if len(parts) > 1:
            raise
        return decode_example(parts[0][1], keys)  # accepts every form of the message


def _decode_in_order(parts: Sequence[tuple[int, memoryview]], length: int, keys: frozenset[str]) -> Decoded:
    """Decode the form of a message that writers use: one map of features and no other field.

    One loop with the state of a scanner (part, place), which the loader runs for each record that is not cached.
    """
    wanted = _encoded_keys(keys)
    found: Decoded = {}
    limit = _ValueLimit(sum(len(part) for _, part in parts))
    view = parts[0][1]
    size, at = _read_varint(view, 1, len(view))  # refuses a part that is too short
    if view[0] != 0x0A or at + size != length:
        raise CorruptFileError(f"not a tf.train.Example of {plural(length, 'byte')}")
    for (begin, view), (following, _) in zip(parts, [*parts[1:], (length, None)], strict=True):
        end = len(view)
        data = _copied(view)
        while at < end:
            start = at
            if at + 1 < end and (size := data[at + 1]) < 0x80:
                at += 2
            else:
                size, at = _read_varint(view, start + 1, end)
            stop = at + size
            if data[start] != 0x0A or (stop > end and begin + stop != following):
                raise CorruptFileError(
                    f"not a tf.train.Example with its raw values where they should be, at byte {begin + start}"
                )
            limit.take(1, begin + start)
            if stop <= end and _is_wanted(data, at, stop, wanted):
                _decode_entry(view, at, stop, found, limit)
            at = stop
        if begin + at != following:
            raise CorruptFileError(f"not a tf.train.Example with a raw value at byte {begin + at}")
        at = 0
    return {key: value for key, value in found.items() if key in keys}


def decode_small(read: Callable[[int, int], memoryview], length: int, keys: Collection[str]) -> Decoded:
    """Parse small values of a serialized Example that is not in memory, without reading the other values.

    Args:
        read: function of an offset and a size that returns these bytes of the message.
        length: bytes of the complete message.
        keys: keys to parse.

    Raises:
        CorruptFileError: the bytes are not an Example.

    >>> data = memoryview(encode_example({"a": bytes(100_000), "b": b"uv"}).to_bytes())
    >>> bytes(decode_small(lambda at, size: data[at : at + size], len(data), ["b"])["b"][0])
    b'uv'
    """
    try:
        return _decode_windows(read, length, keys)
    except CorruptFileError:
        return decode_example(read(0, length), keys)  # accepts every form of the message


def _decode_windows(read: Callable[[int, int], memoryview], length: int, keys: Collection[str]) -> Decoded:
    """Decode the form of a message that writers use: one map of features and no other field.

    One loop with the state of a scanner (window, its base, place): each step may read the next window.
    """
    wanted = {key.encode() for key in keys}
    found: Decoded = {}
    limit = _ValueLimit(length)
    view, base = _copied(read(0, min(_WINDOW_BYTES, length))), 0
    size, at = _read_varint(view, 1, len(view))
    if view[0] != 0x0A or at + size != length:
        raise CorruptFileError(f"not a tf.train.Example of {plural(length, 'byte')}")
    while base + at < length:
        if at + _MAX_HEAD_BYTES > len(view) and base + len(view) < length:
            # The window may end inside the next entry's head.
            view, base, at = _copied(read(base + at, min(_WINDOW_BYTES, length - base - at))), base + at, 0
        start = at
        if at + 1 < len(view) and (size := view[at + 1]) < 0x80:
            at += 2
        else:
            size, at = _read_varint(view, start + 1, len(view))
        stop = at + size
        if view[start] != 0x0A or base + stop > length:
            raise CorruptFileError(f"not a tf.train.Example: no feature at byte {base + start}")
        limit.take(1, base + start)
        if _is_wanted(view, at, stop, wanted):
            if stop > len(view):
                view, base, at, stop = read(base + at, size), base + at, 0, size
            _decode_entry(view, at, stop, found, limit)
        if stop > len(view):
            view = _copied(read(base + stop, min(_WINDOW_BYTES, length - base - stop)))
            stop, base = 0, base + stop
        at = stop
    return {key: value for key, value in found.items() if key in keys}


def _copied(view: memoryview) -> Any:
    """Return a copy of a small part as bytes, and a large part as it is."""
    return bytes(view) if len(view) <= _MAX_COPIED_BYTES else view


@lru_cache(maxsize=64)
def _encoded_keys(keys: frozenset[str]) -> set[bytes]:
    return {key.encode() for key in keys}


def _is_wanted(view: memoryview | bytes, at: int, end: int, wanted: set[bytes]) -> bool:
    """Return True if an entry's key is in `wanted`, or the entry is not a key and a value, as writers make it."""
    if end - at < 2 or view[at] != 0x0A or (size := view[at + 1]) > 0x7F:
        return True
    value = at + 2 + size
    if bytes(view[at + 2 : value]) in wanted:
        return True
    # After a value that does not fill the entry may be another key, which replaces the first one.
    rest = end - value - 2
    if rest < 0 or value + 1 >= len(view) or view[value] != 0x12:
        return True
    if rest < 0x80:
        return view[value + 1] != rest
    size, value = _read_varint(memoryview(view), value + 1, len(view))
    return value + size != end


def _decode_entry(view: memoryview, at: int, end: int, found: Decoded, limit: _ValueLimit) -> None:
    key, features = "", []
    for number, wire, start, stop in _fields(view, at, end, limit):
        if wire == 2 and number == 1:
            key = _decode_key(view, start, stop)
        elif wire == 2 and number == 2:
            features.append((start, stop))
    # A later entry of the same key replaces an earlier one. Within an entry, messages of one field are merged, which
    # joins their lists; of a oneof the last member counts.
    # https://protobuf.dev/programming-guides/encoding/#last-one-wins
    found.pop(key, None)
    kind = 0
    lists: list[Any] = []
    for begin, last in features:
        for number, wire, start, stop in _fields(view, begin, last, limit):
            if wire == 2 and number in _DECODERS:
                if number != kind:
                    kind, lists = number, []
                lists.append(_DECODERS[number](view, start, stop, limit))
    if lists:
        found[key] = lists[0] if len(lists) == 1 else _joined(lists)


def _decode_key(view: memoryview, start: int, stop: int) -> str:
    # No key of a record is this long; a damaged length would make the message of an error as long as the record.
    if stop - start > _KEY_BYTES:
        raise CorruptFileError(
            f"not a tf.train.Example: a key of {plural(stop - start, 'byte')} at byte {start}"
        )
    try:
        return str(view[start:stop], "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"not a tf.train.Example: a key that is not UTF-8 at byte {start}") from error


def _decode_bytes(view: memoryview, at: int, end: int, limit: _ValueLimit) -> list[memoryview]:
    return [
        view[start:stop]
        for number, wire, start, stop in _fields(view, at, end, limit)
        if number == 1 and wire == 2
    ]


_DECODERS: dict[int, Callable[..., Any]] = {1: _decode_bytes, 2: _decode_floats, 3: _decode_integers}
"""Decoders of the members of a Feature's oneof, by the number of their field."""


def _joined(lists: list[Any]) -> list[memoryview] | NDArray[Any]:
    if isinstance(lists[0], list):
        return [item for one in lists for item in one]
    return np.concatenate(lists)
