"""Array operations that exist in both JAX and TensorFlow, so that each device augmentation is written once."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from halofeed.system.errors import UsageError, require_extra

DeviceArray = Any
"""A jax.Array or a tf.Tensor."""


class Ops(abc.ABC):
    """Operations in addition to the operators + - * / < & of arrays.

    Args:
        library: the module with `where` and `reshape`.
        math: the module with elementwise functions.
    """

    clip: Callable[[DeviceArray, Any, Any], DeviceArray]
    constant: Callable[[Any, Any], DeviceArray]
    """Return NumPy values as an array of the library with a dtype."""
    xor: Callable[[DeviceArray, DeviceArray], DeviceArray]
    """Return the exclusive or of uint32."""

    def __init__(self, library: Any, math: Any) -> None:
        self.where, self.reshape = library.where, library.reshape
        self.exp, self.expm1, self.log, self.sqrt = math.exp, math.expm1, math.log, math.sqrt
        self.cos, self.sin, self.absolute, self.maximum = math.cos, math.sin, math.abs, math.maximum

    @abc.abstractmethod
    def cast(self, array: DeviceArray, dtype: Any) -> DeviceArray:
        """Convert an array to another dtype."""

    @abc.abstractmethod
    def wide(self, dtype: Any) -> Any:
        """Return the dtype to compute in: float64 for float64, otherwise float32."""

    def words(self, ids: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the high and low halves of a batch's ids, uint32 [batch] each."""
        # Without x64, JAX has already cut int64 ids to 32 bits, and those with equal low halves draw alike.
        if ids.dtype != np.uint32 or len(ids.shape) != 2 or ids.shape[1] != 2:
            raise UsageError(
                f"id: expected uint32 [batch, 2], got {ids.dtype.name} {list(ids.shape)}; give the `id` of a "
                "loader's batch, or halofeed.loader.split_id(ids) of int64 numbers"
            )
        return ids[:, 0], ids[:, 1]

    @abc.abstractmethod
    def rotate(self, words: DeviceArray, bits: int) -> DeviceArray:
        """Rotate uint32 to the left."""

    @abc.abstractmethod
    def top(self, words: DeviceArray, bits: int) -> DeviceArray:
        """Return the upper bits of uint32 as a number."""

    @abc.abstractmethod
    def numbers(self, sizes: Sequence[int]) -> DeviceArray:
        """Return the flat index of every grid position, uint32 [*sizes], the last axis fastest."""

    @abc.abstractmethod
    def sum(self, array: DeviceArray, axis: int) -> DeviceArray:
        """Sum along an axis, which keeps size 1."""

    @abc.abstractmethod
    def cumulated(self, array: DeviceArray, axis: int) -> DeviceArray:
        """Return the sums of the values up to each one along an axis."""

    @abc.abstractmethod
    def least(self, image: DeviceArray) -> DeviceArray:
        """Return the minimum over the axes between batch and channel, which keep size 1."""

    @abc.abstractmethod
    def greatest(self, image: DeviceArray) -> DeviceArray:
        """Return the maximum over the axes between batch and channel, which keep size 1."""

    @abc.abstractmethod
    def if_any(
        self, chosen: DeviceArray, change: Callable[[DeviceArray], DeviceArray], image: DeviceArray
    ) -> DeviceArray:
        """Return `change(image)` if any example is chosen, otherwise the image.

        The condition separates the image from its users. Otherwise XLA would fuse it and compute it again for each use
        (noise before a blur: 53 s instead of 1 s).
        """

    @abc.abstractmethod
    def shifted(self, array: DeviceArray, axis: int, by: int) -> DeviceArray:
        """Shift an array by `by` positions toward the start of an axis, and fill with zeros."""

    @abc.abstractmethod
    def rolled(self, array: DeviceArray) -> DeviceArray:
        """Return for each row of a batch the row before it; for the first one, the last."""

    @abc.abstractmethod
    def taken(self, table: DeviceArray, places: DeviceArray) -> DeviceArray:
        """Return the values of a table [n] at places, int32 [...]."""

    @abc.abstractmethod
    def counts(self, levels: DeviceArray, number: int) -> DeviceArray:
        """Count each of the levels 0 to number - 1 in the channels of images, int32 [batch, ..., channel].

        Returns:
            int32 [batch, number, channel]; other levels do not count.
        """

    @abc.abstractmethod
    def mapped(self, table: DeviceArray, levels: DeviceArray) -> DeviceArray:
        """Return the value of each level, int32 [batch, ..., channel], in a table [batch, number, channel]."""


def ops_of(array: DeviceArray) -> Ops:
    """Return the operations of an array's library; NumPy arrays use JAX.

    >>> type(ops_of(np.zeros(3))).__name__
    'JaxOps'
    """
    return tensorflow_ops() if type(array).__module__.startswith("tensorflow.") else jax_ops()


def _space(image: DeviceArray) -> tuple[int, ...]:
    return tuple(range(1, len(image.shape) - 1))


_LEVELS_AT_ONCE = 32
"""Levels that one pass over an image compares; more would keep too many comparisons in memory."""


class JaxOps(Ops):
    """Operations of JAX."""

    def __init__(self) -> None:
        with require_extra("train", "jax"):
            import jax.numpy as jnp
            from jax import lax
        super().__init__(jnp, jnp)
        self._jnp, self._lax = jnp, lax
        self.clip, self.constant, self.xor = jnp.clip, jnp.asarray, jnp.bitwise_xor

    def cast(self, array: DeviceArray, dtype: Any) -> DeviceArray:
        return self._jnp.asarray(array).astype(dtype)

    def wide(self, dtype: Any) -> Any:
        return self._jnp.promote_types(dtype, self._jnp.float32)

    def rotate(self, words: DeviceArray, bits: int) -> DeviceArray:
        return self._lax.shift_left(words, np.uint32(bits)) | self.top(words, bits)

    def top(self, words: DeviceArray, bits: int) -> DeviceArray:
        return self._lax.shift_right_logical(words, np.uint32(32 - bits))

    def numbers(self, sizes: Sequence[int]) -> DeviceArray:
        # Axis by axis, so that each core computes the numbers of its part of a split image.
        number: DeviceArray = np.uint32(0)
        for axis, size in enumerate(sizes):
            number = number * np.uint32(size) + self._lax.broadcasted_iota(np.uint32, tuple(sizes), axis)
        return number

    def sum(self, array: DeviceArray, axis: int) -> DeviceArray:
        return self._jnp.sum(array, axis=axis, keepdims=True)

    def cumulated(self, array: DeviceArray, axis: int) -> DeviceArray:
        return self._jnp.cumsum(array, axis=axis)

    def least(self, image: DeviceArray) -> DeviceArray:
        return self._jnp.min(image, axis=_space(image), keepdims=True)

    def greatest(self, image: DeviceArray) -> DeviceArray:
        return self._jnp.max(image, axis=_space(image), keepdims=True)

    def if_any(
        self, chosen: DeviceArray, change: Callable[[DeviceArray], DeviceArray], image: DeviceArray
    ) -> DeviceArray:
        return self._lax.cond(self._jnp.any(chosen), change, lambda same: same, image)

    def shifted(self, array: DeviceArray, axis: int, by: int) -> DeviceArray:
        padding = [(0, 0, 0)] * array.ndim
        padding[axis] = (-by, by, 0)
        return self._lax.pad(array, self._jnp.zeros((), array.dtype), padding)

    def rolled(self, array: DeviceArray) -> DeviceArray:
        return self._jnp.roll(array, 1, axis=0)

    def taken(self, table: DeviceArray, places: DeviceArray) -> DeviceArray:
        return self._jnp.take(table, places)

    # Both compare with every level: a scatter or gather is slow on TPUs, and XLA would gather an image that is split.
    def counts(self, levels: DeviceArray, number: int) -> DeviceArray:
        jnp, space = self._jnp, _space(levels)

        def count(level: DeviceArray) -> DeviceArray:
            return jnp.sum(levels == level, axis=space, dtype=np.int32)

        every = jnp.arange(number, dtype=np.int32)
        return jnp.moveaxis(self._lax.map(count, every, batch_size=_LEVELS_AT_ONCE), 0, 1)

    def mapped(self, table: DeviceArray, levels: DeviceArray) -> DeviceArray:
        jnp = self._jnp
        number = table.shape[1]
        rows = jnp.moveaxis(table, 1, 0).reshape(
            number, table.shape[0], *[1] * len(_space(levels)), table.shape[2]
        )

        def add(first: DeviceArray, found: DeviceArray) -> DeviceArray:
            for more in range(_LEVELS_AT_ONCE):
                row = self._lax.dynamic_index_in_dim(rows, first * _LEVELS_AT_ONCE + more, keepdims=False)
                found = jnp.where(levels == first * _LEVELS_AT_ONCE + more, row, found)
            return found

        return self._lax.fori_loop(
            0, -(-number // _LEVELS_AT_ONCE), add, jnp.zeros(levels.shape, table.dtype)
        )


class TensorFlowOps(Ops):
    """Operations of TensorFlow."""

    def __init__(self) -> None:
        with require_extra("tf", "tensorflow"):
            import tensorflow as tf
        super().__init__(tf, tf.math)
        self._tf = tf
        self.constant, self.clip = tf.constant, tf.clip_by_value
        self.xor = tf.bitwise.bitwise_xor

    def cast(self, array: DeviceArray, dtype: Any) -> DeviceArray:
        return self._tf.cast(array, dtype)

    def wide(self, dtype: Any) -> Any:
        tf = self._tf
        return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32

    def rotate(self, words: DeviceArray, bits: int) -> DeviceArray:
        shifted = self._tf.bitwise.left_shift(words, self._tf.constant(bits, self._tf.uint32))
        return self._tf.bitwise.bitwise_or(shifted, self.top(words, bits))

    def top(self, words: DeviceArray, bits: int) -> DeviceArray:
        return self._tf.bitwise.right_shift(words, self._tf.constant(32 - bits, self._tf.uint32))

    def numbers(self, sizes: Sequence[int]) -> DeviceArray:
        tf = self._tf
        return tf.reshape(tf.cast(tf.range(np.prod(sizes, dtype=np.int64)), tf.uint32), sizes)

    def sum(self, array: DeviceArray, axis: int) -> DeviceArray:
        return self._tf.reduce_sum(array, axis=axis, keepdims=True)

    def cumulated(self, array: DeviceArray, axis: int) -> DeviceArray:
        return self._tf.cumsum(array, axis=axis)

    def least(self, image: DeviceArray) -> DeviceArray:
        return self._tf.reduce_min(image, axis=_space(image), keepdims=True)

    def greatest(self, image: DeviceArray) -> DeviceArray:
        return self._tf.reduce_max(image, axis=_space(image), keepdims=True)

    def if_any(
        self, chosen: DeviceArray, change: Callable[[DeviceArray], DeviceArray], image: DeviceArray
    ) -> DeviceArray:
        return self._tf.cond(self._tf.reduce_any(chosen), lambda: change(image), lambda: image)

    def shifted(self, array: DeviceArray, axis: int, by: int) -> DeviceArray:
        size = array.shape[axis]
        kept = [slice(None)] * array.shape.rank
        kept[axis] = slice(min(max(by, 0), size), max(size + min(by, 0), 0))
        padding = [(0, 0)] * array.shape.rank
        padding[axis] = (min(max(-by, 0), size), min(max(by, 0), size))
        return self._tf.pad(array[tuple(kept)], padding)

    def rolled(self, array: DeviceArray) -> DeviceArray:
        return self._tf.roll(array, 1, axis=0)

    def taken(self, table: DeviceArray, places: DeviceArray) -> DeviceArray:
        return self._tf.gather(table, places)

    def counts(self, levels: DeviceArray, number: int) -> DeviceArray:
        tf = self._tf
        batch, channels = tf.shape(levels)[0], levels.shape[-1]
        rows = tf.reshape(
            tf.transpose(tf.reshape(levels, (batch, -1, channels)), (0, 2, 1)), (batch * channels, -1)
        )
        found = tf.math.bincount(rows, minlength=number, maxlength=number, axis=-1)
        return tf.transpose(tf.reshape(found, (batch, channels, number)), (0, 2, 1))

    def mapped(self, table: DeviceArray, levels: DeviceArray) -> DeviceArray:
        tf = self._tf
        channel = tf.range(levels.shape[-1])
        places = tf.stack([levels, tf.broadcast_to(channel, tf.shape(levels))], -1)
        return tf.gather_nd(table, places, batch_dims=1)


jax_ops, tensorflow_ops = functools.cache(JaxOps), functools.cache(TensorFlowOps)
"""Return one shared instance each."""
