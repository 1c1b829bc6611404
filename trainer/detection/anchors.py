"""Anchors of detectors, and the encoding of boxes relative to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import UsageError
from halofeed.system.wording import plural
from halofeed.trainer.detection.pixel_boxes import PixelBoxes


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Level:
    """Outputs of a detector at one level; a model returns a list of levels, the finest first.

    Args:
        class_logits: [batch, height, width, anchor, class], classes without the background.
        box_codes: [batch, height, width, anchor, 4], as `encode` returns them.
        anchors: float32 [height, width, anchor, 4], ymin, xmin, ymax, xmax as shares of the image's sides.
    """

    class_logits: jax.Array
    box_codes: jax.Array
    anchors: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class MaskedLevels:
    """Outputs of a detector with a mask head.

    Args:
        levels: outputs of each level, the finest first.
        pixels: outputs of the mask head.
    """

    levels: list[Level]
    pixels: PixelBoxes


SCALES = (10.0, 10.0, 5.0, 5.0)
"""Factors of ty, tx, th and tw by default, which make their variances about equal."""
SIDE_EPSILON = 1e-8
"""Value added to every side, so that a side of 0 has a logarithm."""
MAX_LOG_RATIO = 80.0
"""Maximum logarithm of a decoded side divided by its anchor's side; float32 overflows at 89."""


def encode(boxes: jax.Array, anchors: jax.Array, scales: Sequence[float] = SCALES) -> jax.Array:
    """Encode boxes relative to anchors.

    Args:
        boxes: [..., 4], ymin, xmin, ymax, xmax.
        anchors: [..., 4], in the same order and units; broadcast against the boxes.
        scales: factors of the four codes, y_scale, x_scale, height_scale and width_scale of `faster_rcnn_box_coder`.

    Returns:
        [..., 4]: 10 (y - ya) / ha, 10 (x - xa) / wa, 5 log(h / ha), 5 log(w / wa), of centers and sides.

    Source: Ren et al., Faster R-CNN (arXiv 1506.01497), section 3.1.2; scales of the TensorFlow Object Detection API.

    >>> encode(jnp.array([0.2, 0.1, 0.5, 0.5]), jnp.array([0.2, 0.0, 0.5, 0.4])).round(4).tolist()
    [0.0, 2.5, 0.0, 0.0]
    """
    center, side = _center_and_side(boxes)
    anchor_center, anchor_side = _center_and_side(anchors)
    side, anchor_side = side + SIDE_EPSILON, anchor_side + SIDE_EPSILON
    shift = (center - anchor_center) / anchor_side
    return jnp.concatenate([shift, jnp.log(side / anchor_side)], -1) * np.asarray(scales, shift.dtype)


def decode(codes: jax.Array, anchors: jax.Array, scales: Sequence[float] = SCALES) -> jax.Array:
    """Decode the output of `encode` to boxes.

    Args:
        codes: [..., 4], as `encode` returns them.
        anchors: [..., 4], ymin, xmin, ymax, xmax; in the shape of the codes, or one that broadcasts to it.
        scales: factors of the four codes, as for `encode`.

    Returns:
        [..., 4]: ymin, xmin, ymax, xmax in the anchors' units, finite for all finite codes up to 1e30.

    >>> decode(jnp.array([0.0, 5.0, 0.0, 0.0]), jnp.array([0.0, 0.0, 1.0, 0.5])).tolist()
    [0.0, 0.25, 1.0, 0.75]
    """
    codes = codes / np.asarray(scales, codes.dtype)
    anchor_center, anchor_side = _center_and_side(anchors)
    center = codes[..., :2] * anchor_side + anchor_center
    half = jnp.exp(jnp.minimum(codes[..., 2:], MAX_LOG_RATIO)) * anchor_side / 2
    return jnp.concatenate([center - half, center + half], -1)


def _center_and_side(boxes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return centers and sides, [..., 2] each, y before x."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


LOWEST_LAYER_SCALE = 0.1
"""Scale of the square anchor of SSD's lowest layer, if that layer has only three anchors."""


def retinanet_anchors(
    image_shape: Sequence[int],
    feature_shape: Sequence[int],
    *,
    stride: int,
    scale: float = 4.0,
    aspect_ratios: Sequence[float] = (1.0, 2.0, 0.5),
    scales_per_octave: int = 2,
) -> NDArray[np.float32]:
    """Return the anchors of one level of a feature pyramid, sized by its stride.

    The first center is half a stride inside the image along a side that the stride divides, else at 0. The scales of
    an octave vary fastest, then the aspect ratios.

    Args:
        image_shape: height and width in pixels; further axes are ignored.
        feature_shape: height and width of the level; further axes are ignored.
        stride: pixels between two positions, 2 ** level.
        scale: side of the base anchor in strides.
        aspect_ratios: width / height of the anchors, at equal areas.
        scales_per_octave: number of sizes, each 2 ** (1 / scales_per_octave) times the one before.

    Returns:
        float32 [height, width, len(aspect_ratios) * scales_per_octave, 4]: ymin, xmin, ymax, xmax as shares of
        the image's sides; anchors at the border extend beyond 0 and 1.

    Raises:
        UsageError: a size, scale or ratio is not above 0.

    Source: Lin et al., Focal Loss for Dense Object Detection (arXiv 1708.02002); the multiscale anchor generator of the
    TensorFlow Object Detection API.

    >>> anchors = retinanet_anchors((64, 64), (2, 2), stride=32)
    >>> anchors.shape, (anchors[0, 1, 0] * 64).tolist()
    ((2, 2, 6, 4), [-48.0, -16.0, 80.0, 112.0])
    """
    _check(image_shape=image_shape[:2], feature_shape=feature_shape[:2], stride=(stride,), scale=(scale,))
    _check(aspect_ratios=aspect_ratios, scales_per_octave=(scales_per_octave,))
    image = np.asarray(image_shape[:2], float)
    octave = 2.0 ** (np.arange(scales_per_octave) / scales_per_octave)
    sizes = np.concatenate([_sizes(stride * scale * octave, ratio) for ratio in aspect_ratios])
    # As the API's MultiscaleGridAnchorGenerator: no offset where the stride does not divide the image.
    offset = np.where(image % stride == 0, stride / 2, 0.0)
    return _around_grid(feature_shape, offset / image, stride / image, sizes / image)


def ssd_anchors(
    image_shape: Sequence[int],
    feature_shape: Sequence[int],
    *,
    level: int,
    levels: int,
    min_scale: float = 0.2,
    max_scale: float = 0.95,
    aspect_ratios: Sequence[float] = (1.0, 2.0, 0.5, 3.0, 1 / 3),
    reduce_boxes_in_lowest_layer: bool = True,
) -> NDArray[np.float32]:
    """Return the anchors of one level of SSD, sized by shares of the image's shorter side.

    The scales of the levels are evenly spaced from `min_scale` to `max_scale`. Each level has its scale at every aspect
    ratio, then a square of the geometric mean of its scale and the next level's (1 after the last level).

    Args:
        image_shape: height and width in pixels; further axes are ignored.
        feature_shape: height and width of the level; further axes are ignored.
        level: index of the level; 0 is the finest.
        levels: number of levels.
        min_scale: scale of the finest level.
        max_scale: scale of the coarsest level.
        aspect_ratios: width / height of the anchors, at equal areas.
        reduce_boxes_in_lowest_layer: give level 0 only three anchors: a square of scale 0.1, and its own scale at
            the ratios 2 and 1/2.

    Returns:
        float32 [height, width, anchor, 4]: ymin, xmin, ymax, xmax as shares of the image's sides. By default the finest
        level has 3 anchors and the others 6; anchors at the border extend beyond 0 and 1.

    Raises:
        UsageError: a size, scale or ratio is not above 0, or the level is not one of the levels.

    Source: Liu et al., SSD: Single Shot MultiBox Detector (arXiv 1512.02325), section 2.2; the SSD anchor generator of
    the TensorFlow Object Detection API.

    >>> [ssd_anchors((300, 300), (size, size), level=level, levels=2).shape for level, size in enumerate((19, 10))]
    [(19, 19, 3, 4), (10, 10, 6, 4)]
    """
    if not 0 <= level < levels:
        raise UsageError(f"level: expected 0 to {levels - 1} of {plural(levels, 'level')}, got {level}")
    _check(image_shape=image_shape[:2], feature_shape=feature_shape[:2], aspect_ratios=aspect_ratios)
    _check(min_scale=(min_scale,), max_scale=(max_scale,))
    scales = [*np.linspace(min_scale, max_scale, levels), 1.0]
    scale, next_scale = scales[level], scales[level + 1]
    # As the API's SSD anchor generator: the finest level has most positions, and fewer anchors at each.
    if level == 0 and reduce_boxes_in_lowest_layer:
        shapes = [(LOWEST_LAYER_SCALE, 1.0), (scale, 2.0), (scale, 0.5)]
    else:
        shapes = [*((scale, ratio) for ratio in aspect_ratios), (float(np.sqrt(scale * next_scale)), 1.0)]
    image = np.asarray(image_shape[:2], float)
    sizes = np.concatenate([_sizes(np.array([size]), ratio) for size, ratio in shapes])
    stride = 1 / np.asarray(feature_shape[:2], float)
    return _around_grid(feature_shape, stride / 2, stride, sizes * (image.min() / image))


def _sizes(scales: NDArray[np.float64], aspect_ratio: float) -> NDArray[np.float64]:
    """Return heights and widths [scale, 2] of the areas scales ** 2."""
    root = np.sqrt(aspect_ratio)
    return np.stack([scales / root, scales * root], -1)


def _around_grid(
    feature_shape: Sequence[int],
    offset: NDArray[np.float64],
    stride: NDArray[np.float64],
    sizes: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return boxes of sizes [anchor, 2] around the points offset + index * stride, in shares of the sides."""
    sides = zip(feature_shape[:2], stride, offset, strict=True)
    y, x = (np.arange(count) * step + start for count, step, start in sides)
    centers = np.stack(np.meshgrid(y, x, indexing="ij"), -1)[:, :, None, :]
    return np.concatenate([centers - sizes / 2, centers + sizes / 2], -1).astype(np.float32)


def _check(**positive: Sequence[float]) -> None:
    for name, values in positive.items():
        if not len(values) or not all(value > 0 for value in values):
            raise UsageError(f"{name}: expected values above 0, got {list(values)}")
