"""Targets, losses and masks of pixels that predict the box of their object, against loops over pixels."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from halofeed.trainer.detection.pixel_boxes import (
    BASE_STRIDES,
    HALF_LEVEL,
    PixelBoxes,
    detection_masks,
    mask_losses,
)

STRIDE = 2
SIZES = [(16, 24), (15, 21)]
"""Sizes that the stride divides, and that it does not."""
Boxes = np.ndarray
BOXES = np.array([[0.05, 0.1, 0.5, 0.4], [0.3, 0.35, 0.95, 0.9], [0.6, 0.02, 0.9, 0.3]])


def scene(size: tuple[int, int], rows: int = 2) -> dict[str, np.ndarray]:
    """Two objects and a crowd, each as its box with a corner cut off; the second row is not valid."""
    shown = np.zeros((rows, *size), np.uint16)
    for number, (top, left, bottom, right) in enumerate((BOXES * [*size, *size]).round().astype(int), 1):
        shown[:, top:bottom, left:right] = number
        shown[:, top, left] = 0
    return {
        "object_map": shown,
        "boxes": np.tile(BOXES, (rows, 1, 1)),
        "is_object": np.tile([True, True, False], (rows, 1)),
        "valid": np.arange(rows) != 1,
    }


def outputs_of(size: tuple[int, int], rows: int = 2, seed: int = 0) -> PixelBoxes:
    generator = np.random.default_rng(seed)
    shape = (rows, *(-(-side // STRIDE) for side in size))
    foreground, logs = generator.normal(size=shape), 0.5 * generator.normal(size=(*shape, 4))
    return PixelBoxes(foreground=jnp.asarray(foreground), log_distances=jnp.asarray(logs), stride=STRIDE)


def expected_losses(pixels: PixelBoxes, given: dict[str, np.ndarray]) -> tuple[float, float]:
    """Both losses by loops over rows and positions."""
    size = given["object_map"].shape[1:]
    logits, logs = np.asarray(pixels.foreground), np.asarray(pixels.log_distances)
    entropies, overlaps, chances = [], [], []
    for row, y, x in np.ndindex(logits.shape):
        block = given["object_map"][row, y * STRIDE : (y + 1) * STRIDE, x * STRIDE : (x + 1) * STRIDE]
        share = (block > 0).sum() / STRIDE**2
        inside = block.shape == (STRIDE, STRIDE)
        number = int(block[STRIDE // 2, STRIDE // 2]) if inside else 0
        if not given["valid"][row] or (number and not given["is_object"][row, number - 1]):
            continue
        center = (np.array([y, x]) + 0.5) * STRIDE / size
        regions = given.get("regions", np.zeros((len(logits), 0, 4)))[row]
        if not number and any((center >= one[:2]).all() and (center < one[2:]).all() for one in regions):
            continue
        chance = 1 / (1 + math.exp(-logits[row, y, x]))
        chances.append((chance, share))
        entropies.append(-share * math.log(chance) - (1 - share) * math.log(1 - chance))
        if number:
            top, left, bottom, right = given["boxes"][row, number - 1] * [*size, *size]
            at_y, at_x = (y + 0.5) * STRIDE, (x + 0.5) * STRIDE
            true = np.maximum([at_y - top, at_x - left, bottom - at_y, right - at_x], STRIDE / 2)
            found = BASE_STRIDES * STRIDE * np.exp(logs[row, y, x])
            least = np.minimum(found, true)
            common = (least[0] + least[2]) * (least[1] + least[3])
            area, own = ((sides[0] + sides[2]) * (sides[1] + sides[3]) for sides in (true, found))
            overlaps.append((-math.log(common / (own + area - common)), 1 / area))
    values, weights = np.array(overlaps).T
    found, shares = np.array(chances).T
    dice = 2 * (found * shares).sum() / (found.sum() + shares.sum())
    return float(np.mean(entropies)) + 1 - dice, float((values * weights).sum() / weights.sum())


@pytest.mark.parametrize("size", SIZES)
def test_losses_are_those_of_loops_over_pixels(size):
    with jax.enable_x64(True):
        pixels, given = outputs_of(size), scene(size)
        found = mask_losses(pixels, **{name: jnp.asarray(value) for name, value in given.items()})
        np.testing.assert_allclose(found, expected_losses(pixels, given), rtol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_ignored_regions_count_only_where_they_show_an_object(size):
    with jax.enable_x64(True):
        pixels, given = outputs_of(size), scene(size)
        given["regions"] = np.tile([[0.0, 0.3, 0.4, 1.0], [0, 0, 0, 0]], (2, 1, 1))
        found = mask_losses(pixels, **{name: jnp.asarray(value) for name, value in given.items()})
        np.testing.assert_allclose(found, expected_losses(pixels, given), rtol=1e-10)
        del given["regions"]
        assert found[0] != pytest.approx(expected_losses(pixels, given)[0], rel=1e-3)


def test_gradients_are_those_of_finite_differences():
    with jax.enable_x64(True):
        pixels = outputs_of(SIZES[1], rows=1, seed=3)
        given = {name: jnp.asarray(value) for name, value in scene(SIZES[1], rows=1).items()}

        def loss(foreground: jax.Array, logs: jax.Array) -> jax.Array:
            one, other = mask_losses(
                PixelBoxes(foreground=foreground, log_distances=logs, stride=STRIDE), **given
            )
            return one + other

        check_grads(loss, (pixels.foreground, pixels.log_distances), 1, modes=["rev"], rtol=1e-5)


@pytest.mark.parametrize("count", [0, 2])
def test_pictures_without_objects_have_a_finite_loss_and_no_box_loss(count):
    pixels, given = outputs_of(SIZES[0]), scene(SIZES[0])
    given["object_map"][...] = 0
    given["valid"][:] = count > 0
    given["boxes"][...] = 0
    foreground, boxes = mask_losses(pixels, **{name: jnp.asarray(value) for name, value in given.items()})
    assert math.isfinite(foreground) and float(boxes) == 0


def perfect_outputs(given: dict[str, np.ndarray], stride: int = 1) -> PixelBoxes:
    """Outputs that say what each pixel shows; a fifth of the box's side is wrong."""
    shown = given["object_map"].astype(int)
    size = shown.shape[1:]
    boxes = np.concatenate([np.full((len(shown), 1, 4), 0.5), given["boxes"]], 1) * [*size, *size]
    y, x = ((np.arange(side) + 0.5) for side in size)
    of_pixel = np.stack([boxes[row][numbers] for row, numbers in enumerate(shown)])
    top, left, bottom, right = np.moveaxis(of_pixel, -1, 0)
    distances = np.stack([y[:, None] - top, x - left, bottom - y[:, None], right - x], -1)
    logs = np.log(np.maximum(distances, 0.5) * 1.1 / (BASE_STRIDES * stride))
    return PixelBoxes(
        foreground=jnp.asarray(np.where(shown > 0, 9.0, -9.0)), log_distances=jnp.asarray(logs), stride=stride
    )


def test_touching_objects_are_separated_by_their_boxes():
    given = scene((16, 24), rows=1)
    masks = np.asarray(detection_masks(perfect_outputs(given), jnp.asarray(given["boxes"]), (16, 24)))
    assert masks.dtype == np.uint8 and masks.shape == (1, 3, 16, 24)
    for number in range(3):
        assert np.array_equal(masks[0, number] > HALF_LEVEL, given["object_map"][0] == number + 1)


def test_a_box_without_area_has_an_empty_mask():
    given = scene((16, 24), rows=1)
    masks = detection_masks(perfect_outputs(given), jnp.zeros((1, 2, 4)), (16, 24))
    assert not np.asarray(masks).any()
