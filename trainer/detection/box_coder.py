"""How is a box said relative to an anchor? By Faster R-CNN's code: ty, tx, th, tw, scaled 10, 10, 5, 5."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

SCALES = (10.0, 10.0, 5.0, 5.0)
"""By what ty, tx, th and tw are multiplied, so that they vary about equally."""
SMALLEST_SIDE = 1e-8
"""Added to every side, so that a side of 0 has a logarithm."""
LARGEST_LOGARITHM = 80.0
"""Of a decoded side over its anchor's: float32 overflows at 89."""


def encode(boxes: jax.Array, anchors: jax.Array) -> jax.Array:
    """Codes of boxes relative to anchors.

    Args:
        boxes: [..., 4], ymin, xmin, ymax, xmax.
        anchors: [..., 4], likewise and in the same units; broadcast against the boxes.

    Returns:
        [..., 4]: 10 (y - ya) / ha, 10 (x - xa) / wa, 5 log(h / ha), 5 log(w / wa), of centers and sides.

    Source: Ren et al., Faster R-CNN (arXiv 1506.01497), section 3.1.2; scales of the TensorFlow Object Detection API.

    >>> encode(jnp.array([0.2, 0.1, 0.5, 0.5]), jnp.array([0.2, 0.0, 0.5, 0.4])).round(4).tolist()
    [0.0, 2.5, 0.0, 0.0]
    """
    center, side = _center_and_side(boxes)
    anchor_center, anchor_side = _center_and_side(anchors)
    side, anchor_side = side + SMALLEST_SIDE, anchor_side + SMALLEST_SIDE
    shift = (center - anchor_center) / anchor_side
    return jnp.concatenate([shift, jnp.log(side / anchor_side)], -1) * np.asarray(SCALES, shift.dtype)


def decode(codes: jax.Array, anchors: jax.Array) -> jax.Array:
    """The boxes that codes mean.

    Args:
        codes: [..., 4], of `encode`.
        anchors: [..., 4], ymin, xmin, ymax, xmax; of the codes' shape, or one that broadcasts to it.

    Returns:
        [..., 4]: ymin, xmin, ymax, xmax in the anchors' units, finite for all finite codes up to 1e30.

    >>> decode(jnp.array([0.0, 5.0, 0.0, 0.0]), jnp.array([0.0, 0.0, 1.0, 0.5])).tolist()
    [0.0, 0.25, 1.0, 0.75]
    """
    codes = codes / np.asarray(SCALES, codes.dtype)
    anchor_center, anchor_side = _center_and_side(anchors)
    center = codes[..., :2] * anchor_side + anchor_center
    half = jnp.exp(jnp.minimum(codes[..., 2:], LARGEST_LOGARITHM)) * anchor_side / 2
    return jnp.concatenate([center - half, center + half], -1)


def _center_and_side(boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[..., 2] each, y before x."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low
