"""Instance masks from pixels that predict the box of their object: targets, loss, and the masks of detections.

    image -> ... -> each pixel: foreground?  and  distances to the four sides of its object's box
                                                                      │
    detections (class, box) ──────────────────────────────────────────┴──> a pixel belongs to a detection if it is
                                                                           foreground and its box is the detection's

Everything is computed pixel by pixel, so that a picture that is split over cores stays split: only sums cross them. The
sides of a box separate touching objects of one class, which a class per pixel cannot.

Sources: Tian et al., FCOS (arXiv 1904.01355), for distances to the sides. Yu et al., UnitBox (arXiv 1608.01471), for
the loss of their overlap. Neven et al., Instance Segmentation by Jointly Optimizing Spatial Embeddings and Clustering
Bandwidth (arXiv 1906.11109), for pixels that belong to an object by what each predicts of it. docs/decisions.md
compares them with a mask per box.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

BASE_STRIDES = 4.0
"""Distance to a side for the output 0, in strides of the map."""
MAX_LOG_DISTANCE = 20.0
"""Maximum logarithm of a distance divided by the base; float32 overflows at 89, and areas multiply two of them."""
LEAST_OVERLAP, FULL_OVERLAP = 0.1, 0.3
"""Overlaps of a pixel's box and a detection's up to which the pixel is outside, and from which it is inside."""
MASK_LEVELS = 255
"""Predicted masks are uint8: the probability times 255."""
HALF_LEVEL = 127.5
"""Level above which a pixel is inside of a mask."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class PixelBoxes:
    """Outputs of a mask head at every `stride`-th pixel of the image.

    Args:
        foreground: [batch, height, width], logits of being inside of any object.
        log_distances: [batch, height, width, 4]: logarithms of the distances from the center of the position to the
            upper, left, lower and right side of the object's box, divided by `BASE_STRIDES` strides.
        stride: pixels of the image between two positions.
    """

    foreground: jax.Array
    log_distances: jax.Array
    stride: int = field(metadata={"static": True})

    def distances(self) -> jax.Array:
        """Return the distances to the four sides in pixels of the image, above 0."""
        return BASE_STRIDES * self.stride * jnp.exp(jnp.minimum(self.log_distances, MAX_LOG_DISTANCE))

    def centers(self) -> tuple[jax.Array, jax.Array]:
        """Return y [height, 1] and x [1, width] of the centers of the positions, in pixels of the image."""
        height, width = self.foreground.shape[1:]
        y, x = ((np.arange(size) + 0.5) * self.stride for size in (height, width))
        dtype = self.foreground.dtype
        return jnp.asarray(y[:, None], dtype), jnp.asarray(x[None, :], dtype)


def mask_losses(
    pixels: PixelBoxes,
    object_map: jax.Array,
    boxes: jax.Array,
    is_object: jax.Array,
    valid: jax.Array,
    regions: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of the foreground and that of the pixels' boxes.

    The foreground has cross-entropy with the share of a position's pixels that show an object, as the mean over
    positions, plus 1 - Dice of the batch: few positions show small objects, and cross-entropy alone learned them late.
    The boxes have -log of the overlap (intersection over union) with the true box, weighted so that objects
    of all sizes count alike. Positions in crowds count in neither, nor do those in ignored regions that show no object.

    Args:
        pixels: outputs of the mask head.
        object_map: integers [batch, height, width] of the loader: number of the box from 1 that a pixel shows, or 0.
        boxes: [batch, box, 4], ymin, xmin, ymax, xmax as shares of the image's sides.
        is_object: bool [batch, box], False for crowds and padding.
        valid: bool [batch], False for rows that do not count.
        regions: [batch, region, 4], ignored regions as shares of the image's sides; those without area are padding.
            None without any.
    """
    dtype = pixels.foreground.dtype
    number, share = _targets(object_map, pixels)
    is_inside = number > 0
    # The fourth column is the weight's divisor, so that one gather takes all.
    sizes = np.asarray([*object_map.shape[1:3]] * 2, dtype)
    corners = boxes.astype(dtype) * sizes
    table = jnp.concatenate([corners, is_object[..., None].astype(dtype)], -1)
    of_pixel = jax.vmap(lambda rows, index: rows[index])(table, jnp.maximum(number - 1, 0))
    is_known = of_pixel[..., 4] > 0
    is_background = ~is_inside
    if regions is not None:
        is_background &= ~_are_in_regions(pixels, regions.astype(dtype) * sizes)
    is_counted = (is_background | (is_inside & is_known)) & valid[:, None, None]
    counted = is_counted.astype(dtype)
    foreground_loss = _mean(_cross_entropy(pixels.foreground, share), counted)
    foreground_loss += _missing_dice(jax.nn.sigmoid(pixels.foreground) * counted, share * counted)

    y, x = pixels.centers()
    # A pixel of an object may be outside of its box by rounding, or where the box is wrong.
    least = 0.5 * pixels.stride
    true = jnp.stack(
        [y - of_pixel[..., 0], x - of_pixel[..., 1], of_pixel[..., 2] - y, of_pixel[..., 3] - x], -1
    )
    true = jnp.maximum(true, jnp.asarray(least, dtype))
    area = (true[..., 0] + true[..., 2]) * (true[..., 1] + true[..., 3])
    weight = jnp.where(is_inside & is_counted, 1 / area, 0)
    box_loss = _mean(-jnp.log(_overlap_around(pixels.distances(), true, area)), weight)
    return foreground_loss, box_loss


def detection_masks(pixels: PixelBoxes, boxes: jax.Array, image_size: tuple[int, int]) -> jax.Array:
    """Return the mask of each detection at the positions of a mask head.

    Args:
        pixels: outputs of the mask head.
        boxes: [batch, detection, 4], ymin, xmin, ymax, xmax as shares of the image's sides; those without area have an
            empty mask.
        image_size: height and width of the image in pixels.

    Returns:
        uint8 [batch, detection, height, width]: the probability times 255 that a position shows the object.
    """
    dtype = pixels.foreground.dtype
    y, x = pixels.centers()
    up, left, down, right = jnp.moveaxis(pixels.distances(), -1, 0)
    top, bottom, first, last = y - up, y + down, x - left, x + right
    corners = boxes.astype(dtype) * np.asarray([*image_size] * 2, dtype)
    ymin, xmin, ymax, xmax = jnp.moveaxis(corners, -1, 0)[..., None, None]
    height = jnp.minimum(bottom[:, None], ymax) - jnp.maximum(top[:, None], ymin)
    width = jnp.minimum(last[:, None], xmax) - jnp.maximum(first[:, None], xmin)
    common = jnp.maximum(height, 0) * jnp.maximum(width, 0)
    union = ((up + down) * (left + right))[:, None] + (ymax - ymin) * (xmax - xmin) - common
    belongs = (common / union - LEAST_OVERLAP) / (FULL_OVERLAP - LEAST_OVERLAP)
    probability = jax.nn.sigmoid(pixels.foreground)[:, None] * jnp.clip(belongs, 0, 1)
    return jnp.round(probability * MASK_LEVELS).astype(jnp.uint8)


def _targets(object_map: jax.Array, pixels: PixelBoxes) -> tuple[jax.Array, jax.Array]:
    """Return the number of the box at the center of each position, int32, and the share of its pixels in any object."""
    stride = pixels.stride
    height, width = pixels.foreground.shape[1:]
    below, beside = height * stride - object_map.shape[1], width * stride - object_map.shape[2]
    # Strides round odd sizes up.
    if below or beside:
        object_map = jnp.pad(object_map, ((0, 0), (0, below), (0, beside)))
    # Blocks of pixels instead of a strided slice: each core holds complete blocks.
    blocks = object_map.reshape(-1, height, stride, width, stride)
    share = jnp.mean(blocks > 0, axis=(2, 4), dtype=pixels.foreground.dtype)
    return blocks[:, :, stride // 2, :, stride // 2].astype(jnp.int32), share


def _are_in_regions(pixels: PixelBoxes, regions: jax.Array) -> jax.Array:
    """Return which positions have their center in a region, bool [batch, height, width]; regions are in pixels."""
    y, x = pixels.centers()
    ymin, xmin, ymax, xmax = jnp.moveaxis(regions, -1, 0)[..., None, None]
    return jnp.any((y >= ymin) & (y < ymax) & (x >= xmin) & (x < xmax), axis=1)


def _overlap_around(found: jax.Array, true: jax.Array, area: jax.Array) -> jax.Array:
    """Return the intersection over union of boxes around one point, by the distances to their sides [..., 4]."""
    least = jnp.minimum(found, true)
    common = (least[..., 0] + least[..., 2]) * (least[..., 1] + least[..., 3])
    own = (found[..., 0] + found[..., 2]) * (found[..., 1] + found[..., 3])
    return common / (own + area - common)


def _cross_entropy(logits: jax.Array, share: jax.Array) -> jax.Array:
    return jax.nn.softplus(logits) - share * logits


def _missing_dice(predicted: jax.Array, true: jax.Array) -> jax.Array:
    """Return 1 - Dice of probabilities and shares over a batch; 0 without true ones, which cross-entropy teaches."""
    both, total = jnp.sum(predicted * true), jnp.sum(predicted) + jnp.sum(true)
    return jnp.where(jnp.any(true > 0), 1 - 2 * both / jnp.where(total > 0, total, 1), 0)


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted mean; 0 if all weights are 0."""
    total = jnp.sum(weights)
    return jnp.sum(values * weights) / jnp.where(total > 0, total, 1)
