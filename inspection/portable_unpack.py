"""Decoders of packed arrays that `halofeed inspect --parser` prints, for programs that read records without halofeed.

`docs/packed.md` is the specification. The functions need NumPy or TensorFlow alone, and call only each other, because
`unpack_source` prints their text. They do not compare the checksums of bands: readers of TFRecords compare that of the
complete record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


def unpack_source() -> str:
    """Return the source of the decoders, for a program that imports `numpy as np` and `tensorflow as tf`."""
    return "\n\n".join(map(inspect.getsource, _PRINTED)).replace("    import tensorflow as tf\n\n", "")


def coloring_source() -> str:
    """Return the source of the decoder of color planes, for a program that imports `tensorflow as tf`."""
    return inspect.getsource(colors_with_tensorflow).replace("    import tensorflow as tf\n\n", "")


# fmt: off
def colors_with_tensorflow(value: Any, height: int, width: int) -> Any:
    """Return the RGB pixels of color planes, uint8 [height, width, 3]."""
    import tensorflow as tf

    planes = tf.cast(tf.io.decode_raw(value, tf.uint8), tf.int32)
    luma = tf.reshape(planes[: height * width], [height, width, 1])
    chroma = tf.reshape(planes[height * width :], [height // 2, width // 2, 2]) - 128
    blue, red = tf.split(tf.repeat(tf.repeat(chroma, 2, axis=0), 2, axis=1), 2, axis=-1)
    added = tf.concat([91881 * red, -22554 * blue - 46802 * red, 116130 * blue], axis=-1)
    colors = luma + tf.bitwise.right_shift(added + 32768, 16)
    return tf.cast(tf.clip_by_value(colors, 0, 255), tf.uint8)


def unpack_with_numpy(value: bytes, planes: int, height: int, width: int, pixel_bytes: int, unit_bytes: int) -> Any:
    """Return the little-endian bytes of a packed array, uint8 [byte]."""
    per_plane = -(-height // 32)
    data = np.frombuffer(value, np.uint8)
    start, bands = 8 + 8 * planes * per_plane, []
    for band, end in enumerate(data[8:start].view("<u4")[::2].tolist()):
        rows = min(32, height - 32 * (band % per_plane))
        decode = (_raw_rows, _grouped_rows, _patched_rows)[data[start]]
        bands.append(decode(data[start + 1 : end], rows, width * pixel_bytes, unit_bytes))
        start = end
    return np.concatenate(bands)


def _raw_rows(coded: Any, rows: int, row_bytes: int, unit_bytes: int) -> Any:
    return coded


def _grouped_rows(coded: Any, rows: int, row_bytes: int, unit_bytes: int) -> Any:
    parts, item = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2)}[unit_bytes]
    units = row_bytes // unit_bytes
    groups = -(-units // 16)
    base_bytes, width_bytes = groups * unit_bytes, -(-groups * parts // 2)
    first = base_bytes + rows * width_bytes
    bases = coded[:base_bytes].view(f"<u{item}").astype(np.int64).reshape(groups, parts)
    pairs = coded[base_bytes:first].reshape(rows, width_bytes)
    widths = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(rows, -1)[:, : groups * parts].astype(np.int64)
    widths = np.where(widths == 15, 16, widths).reshape(-1, 1)
    starts = first + 2 * (np.cumsum(widths).reshape(-1, 1) - widths)
    # Of numbers of more than 8 bits, 16 low bytes come before the other bits.
    is_wide, number = widths > 8, np.arange(16)
    narrow = widths - 8 * is_wide
    bit = number * narrow
    at = starts + 16 * is_wide + bit // 8
    padded = np.pad(coded, (0, 32)).astype(np.int64)
    values = (padded[at] | padded[at + 1] << 8) >> bit % 8 & (1 << narrow) - 1
    deltas = np.where(is_wide, padded[starts + number] | values << 8, values) - (1 << widths >> 1)
    deltas = deltas.reshape(rows, groups, parts, 16).swapaxes(2, 3).reshape(rows, groups * 16, parts)
    if unit_bytes == 3:  # green, and what red and blue differ by from it
        deltas = deltas[..., [1, 0, 2]] + deltas[..., :1] * [1, 0, 1]
    deltas[0] += np.repeat(bases, 16, axis=0)
    numbers = np.cumsum(deltas, axis=0)[:, :units] % (1 << 8 * item)
    return np.ascontiguousarray(numbers.astype(f"<u{item}")).view(np.uint8).reshape(-1)


def _patched_rows(coded: Any, rows: int, row_bytes: int, unit_bytes: int) -> Any:
    at, out = 0, np.zeros((rows, row_bytes // unit_bytes, unit_bytes), np.uint8)

    def number() -> int:  # 7 bits in each byte, the lowest first
        nonlocal at
        value, shift = int(coded[at]) & 127, 7
        while coded[at] > 127:
            at += 1
            value |= (int(coded[at]) & 127) << shift
            shift += 7
        at += 1
        return value

    for row in range(rows):
        out[row] = out[row - 1] if row else 0
        place = 0
        for _ in range(number()):
            start = place + number()
            place = start + number()
            out[row, start:place] = coded[at : at + unit_bytes]
            at += unit_bytes
    return out.reshape(-1)


def unpack_with_tensorflow(
    value: Any, planes: int, height: int, width: int, pixel_bytes: int, unit_bytes: int
) -> Any:
    """Return the little-endian bytes of a packed array, uint8 [byte]; all bands of a plane are decoded together."""
    import tensorflow as tf

    bands = -(-height // 32)
    data = tf.cast(tf.io.decode_raw(value, tf.uint8), tf.int32)
    first = 8 + 8 * planes * bands
    ends = tf.reduce_sum(tf.reshape(data[8:first], [-1, 8])[:, :4] * [1, 1 << 8, 1 << 16, 1 << 24], axis=1)
    starts = tf.concat([[first], ends[:-1]], axis=0)
    rows = tf.minimum(32, height - 32 * tf.range(bands))

    def decode(plane: Any) -> Any:
        start = starts[plane * bands : (plane + 1) * bands]
        mode = tf.gather(data, start)
        shape = (width * pixel_bytes, unit_bytes)
        grouped = _tensor_of_groups(data, start + 1, tf.where(mode == 1, rows, 0), *shape)
        patched = _tensor_of_patches(data, start + 1, tf.where(mode == 2, rows, 0), *shape)
        byte = tf.reshape(tf.range(32 * shape[0]), [1, 32, shape[0]])
        stored = tf.gather(data, tf.minimum(start[:, None, None] + 1 + byte, tf.size(data) - 1))
        mode = mode[:, None, None]
        chosen = tf.where(mode == 0, stored, tf.where(mode == 1, grouped, patched))
        return tf.cast(tf.reshape(chosen, [-1, shape[0]])[:height], tf.uint8)

    return tf.reshape(tf.map_fn(decode, tf.range(planes), fn_output_signature=tf.uint8), [-1])


def _tensor_of_groups(data: Any, start: Any, rows: Any, row_bytes: int, unit_bytes: int) -> Any:
    """Return the bytes of bands of groups, int32 [band, 32, byte], of the first `rows` rows of each, int32 [band]."""
    import tensorflow as tf

    parts, item = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2)}[unit_bytes]
    units = row_bytes // unit_bytes
    groups = -(-units // 16)
    base_bytes, width_bytes = groups * unit_bytes, -(-groups * parts // 2)
    padded = tf.pad(data, [[0, 64]])

    def load(place: Any) -> Any:
        return tf.gather(padded, tf.clip_by_value(place, 0, tf.size(data) + 62))

    scale = 256 ** tf.range(item)
    bases = load(start[:, None] + tf.range(base_bytes))
    bases = tf.reduce_sum(tf.reshape(bases, [-1, groups, 1, parts, item]) * scale, axis=-1)
    first = start + base_bytes
    pairs = load(first[:, None, None] + tf.reshape(tf.range(32 * width_bytes), [1, 32, width_bytes]))
    widths = tf.reshape(tf.stack([pairs % 16, pairs // 16], axis=-1), [-1, 32, 2 * width_bytes])
    inside = tf.range(32)[None, :, None] < rows[:, None, None]
    widths = tf.where(inside, widths, 0)[:, :, : groups * parts]
    widths = tf.reshape(tf.where(widths == 15, 16, widths), [-1, 32 * groups * parts])
    starts = (first + rows * width_bytes)[:, None] + 2 * tf.cumsum(widths, axis=1, exclusive=True)
    # Of numbers of more than 8 bits, 16 low bytes come before the other bits.
    widths, starts, number = widths[..., None], starts[..., None], tf.range(16)
    narrow = tf.where(widths > 8, widths - 8, widths)
    bit = number * narrow
    at = starts + tf.where(widths > 8, 16, 0) + bit // 8
    shift = tf.bitwise.right_shift
    values = shift(load(at) + 256 * load(at + 1), bit % 8) % tf.bitwise.left_shift(1, narrow)
    values = tf.where(widths > 8, load(starts + number) + 256 * values, values)
    deltas = values - shift(tf.bitwise.left_shift(1, widths), 1)
    deltas = tf.transpose(tf.reshape(deltas, [-1, 32, groups, parts, 16]), [0, 1, 2, 4, 3])
    if unit_bytes == 3:  # green, and what red and blue differ by from it
        deltas = tf.gather(deltas, [1, 0, 2], axis=-1) + deltas[..., :1] * [1, 0, 1]
    numbers = bases[:, None] + tf.cumsum(deltas, axis=1)
    numbers = tf.reshape(numbers, [-1, 32, groups * 16, parts])[:, :, :units] % 256**item
    return tf.reshape(numbers[..., None] // scale % 256, [-1, 32, row_bytes])


def _tensor_of_patches(data: Any, start: Any, rows: Any, row_bytes: int, unit_bytes: int) -> Any:
    """Return the bytes of bands of patches, int32 [band, 32, byte]; all bands take one step at a time."""
    import tensorflow as tf

    units, padded = row_bytes // unit_bytes, tf.pad(data, [[0, 8]])

    def load(place: Any) -> Any:
        return tf.gather(padded, tf.clip_by_value(place, 0, tf.size(data) + 7))

    def number(at: Any) -> tuple[Any, Any]:  # 7 bits in each byte, the lowest first
        bytes_there = load(at[:, None] + tf.range(5))
        more = tf.math.cumprod(tf.cast(bytes_there > 127, tf.int32), axis=1)
        used = tf.pad(more[:, :4], [[0, 0], [1, 0]], constant_values=1)
        value = tf.reduce_sum(used * (bytes_there % 128) * [1, 1 << 7, 1 << 14, 1 << 21, 1 << 28], axis=1)
        return value, at + tf.reduce_sum(used, axis=1)

    band, row_starts = tf.range(tf.size(start)), tf.zeros([0, 4 + unit_bytes], tf.int32)

    def step(at: Any, row: Any, left: Any, place: Any, found: Any) -> tuple[Any, ...]:
        # A band begins its next row if no patch is left, else it takes a patch.
        begins = (left == 0) & (row + 1 < rows)
        takes = left > 0
        one, after_one = number(at)
        length, after = number(after_one)
        patch = tf.stack([band, row, place + one, place + one + length], axis=1)
        patch = tf.concat([patch, load(after[:, None] + tf.range(unit_bytes))], axis=1)
        found = tf.concat([found, tf.boolean_mask(patch, takes)], axis=0)
        place = tf.where(begins, 0, tf.where(takes, place + one + length, place))
        at = tf.where(begins, after_one, tf.where(takes, after + unit_bytes, at))
        return at, tf.where(begins, row + 1, row), tf.where(begins, one, left - tf.cast(takes, tf.int32)), place, found

    zeros = tf.zeros_like(start)
    loop = (start, zeros - 1, zeros, zeros, row_starts)
    shapes = (*(one.shape for one in loop[:4]), tf.TensorShape([None, 4 + unit_bytes]))
    *_, found = tf.while_loop(
        lambda at, row, left, place, found: tf.reduce_any((left > 0) | (row + 1 < rows)),
        step,
        loop,
        shape_invariants=shapes,
    )
    # Patches of a row do not overlap, so that sums along the row give where they are, and their values.
    shape = [tf.size(start), 32, units + 1, 1 + unit_bytes]
    changes = tf.pad(found[:, 4:], [[0, 0], [1, 0]], constant_values=1)
    begin, end = tf.gather(found, [0, 1, 2], axis=1), tf.gather(found, [0, 1, 3], axis=1)
    sums = tf.cumsum(tf.scatter_nd(begin, changes, shape) - tf.scatter_nd(end, changes, shape), axis=2)[:, :, :units]
    current, out = tf.zeros_like(sums[:, 0, :, 1:]), []
    for row in range(32):
        current = tf.where(sums[:, row, :, :1] > 0, sums[:, row, :, 1:], current)
        out.append(current)
    return tf.reshape(tf.stack(out, axis=1), [-1, 32, row_bytes])
# fmt: on


_PRINTED: tuple[Callable[..., Any], ...] = (
    unpack_with_numpy,
    _raw_rows,
    _grouped_rows,
    _patched_rows,
    unpack_with_tensorflow,
    _tensor_of_groups,
    _tensor_of_patches,
)
