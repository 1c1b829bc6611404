"""Computation of a few images of a batch at a time, so that a level at full size fits into a core's memory.

    batch of a replica   i0 i1 i2 i3 i4 i5 i6 i7
    at a time, 2         |---| -> |---| -> |---| -> |---|      the backward pass computes each chunk again

A TPU pads the last axis of an array to 128 lanes. 32 features then take the memory of 128, so arrays between two
chunked computations are stored folded: [..., width, 32] as [..., width / 4, 128].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax

from halofeed.system.errors import UsageError
from halofeed.trainer.mesh import activation_axes
from halofeed.trainer.models.layers import Pass

LANES = 128
"""Values in a row of a TPU's vector registers."""


def map_images(function: Callable[..., Any], *inputs: Any, images: int, run: Pass) -> Any:
    """Return `function(*inputs)`, computed for `images` images of each replica at a time.

    Args:
        function: function of arrays that treats each image alone; its results are computed again for the gradients.
        inputs: trees of arrays [batch, ...].
        images: number of images of a replica at a time; 0 computes all at once and keeps what the gradients need.
        run: pass with the mesh and the split.

    Raises:
        UsageError: the images of a replica do not divide by `images`.
    """
    if not images:
        return function(*inputs)
    batch = len(jax.tree.leaves(inputs)[0])
    axes = activation_axes((batch,), None)[0]
    replicas = 1 if run.mesh is None else math.prod(run.mesh.shape[axis] for axis in axes)
    # On more devices a replica has fewer images, and the same configuration must run.
    images = min(images, batch // replicas)
    chunks, rest = divmod(batch // replicas, images)
    if rest:
        raise UsageError(
            f"model.images_at_once: the {batch // replicas} images of a replica do not divide by {images}; take 1, "
            "or another batch size"
        )

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(replicas, chunks, images, *x.shape[1:]).swapaxes(0, 1)

    def merge(x: jax.Array) -> jax.Array:
        return _held(
            x.reshape(chunks, replicas, images, *x.shape[2:]).swapaxes(0, 1).reshape(batch, *x.shape[2:]), run
        )

    def chunk(parts: Any) -> Any:
        return function(*jax.tree.map(lambda x: _held(x.reshape(-1, *x.shape[2:]), run), parts))

    return jax.tree.map(merge, jax.lax.map(jax.checkpoint(chunk), jax.tree.map(split, inputs)))


def _held(x: jax.Array, run: Pass) -> jax.Array:
    """Constrain activations, and no moments of images."""
    return run.hold(x) if run.dims is not None and x.ndim == len(run.dims) else x


def fold(x: jax.Array, run: Pass) -> jax.Array:
    """Store [..., width, channel] as [..., width / n, n * channel], where that fills the lanes of a TPU."""
    *outer, width, channels = x.shape
    parts = run.parts[-1] if run.parts else 1
    # Other numbers of channels do not fill complete rows of lanes.
    count = math.gcd(width // parts, LANES // channels) if LANES % channels == 0 else 1
    return run.hold(x.reshape(*outer, width // count, count * channels)) if count > 1 else x


def unfold(x: jax.Array, channels: int, run: Pass) -> jax.Array:
    """Return what `fold` stored."""
    *outer, width, stored = x.shape
    return x if stored == channels else run.hold(x.reshape(*outer, width * (stored // channels), channels))
