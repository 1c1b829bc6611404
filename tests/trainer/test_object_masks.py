"""Masks in pixels of the source: against a loop over source pixels, and pycocotools' run lengths."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco_masks

from halofeed.system.errors import UsageError
from halofeed.trainer.detection.pixel_boxes import HALF_LEVEL
from halofeed.trainer.object_masks import MaskPlacement, box_mask, encode_at, predicted_masks, true_masks

# pycocotools 2.0.8 makes arrays in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PLACEMENTS = {
    "as stored": ([[1, 0, 0], [0, 1, 0]], (16, 24), (16, 24)),
    "stretched": ([[2.5, 0, 0], [0, 0.75, 0]], (16, 24), (40, 18)),
    "padded": ([[2, 0, 0], [0, 2, 0]], (24, 24), (32, 48)),
    "mirrored": ([[1.5, 0, 0], [0, -1.5, 36]], (16, 24), (24, 36)),
    "upside down": ([[-1, 0, 16], [0, -1, 24]], (16, 24), (16, 24)),
    "turned": ([[0, -2, 48], [2, 0, 0]], (16, 24), (48, 32)),
    "transposed": ([[0, 1, 0], [1, 0, 0]], (16, 24), (24, 16)),
    "tile": ([[1, 0, 10], [0, 1, 20]], (16, 24), (40, 60)),
    "tile at the border": ([[2, 0, 20], [0, 2, 30]], (16, 24), (40, 60)),
}


def placement_of(name: str) -> MaskPlacement:
    transform, image_size, source_size = PLACEMENTS[name]
    return MaskPlacement(transform=np.array(transform, float), image_size=image_size, source_size=source_size)


def slow_mask(levels: NDArray[np.uint8], stride: int, placement: MaskPlacement) -> NDArray[np.bool_]:
    """The value between the four positions around the center of each source pixel, one pixel after the other."""
    inverse = np.linalg.inv(placement.transform[:, :2])
    found = np.zeros(placement.source_size, bool)
    rows, columns = levels.shape
    for row, column in np.ndindex(found.shape):
        y, x = inverse @ (np.array([row + 0.5, column + 0.5]) - placement.transform[:, 2])
        if not (0 < y < placement.image_size[0] and 0 < x < placement.image_size[1]):
            continue
        at_y = min(max(y / stride - 0.5, 0), rows - 1)
        at_x = min(max(x / stride - 0.5, 0), columns - 1)
        top, left = math.floor(at_y), math.floor(at_x)
        below, beside = min(top + 1, rows - 1), min(left + 1, columns - 1)
        down, across = at_y - top, at_x - left
        first = levels[top, left] * (1 - down) + levels[below, left] * down
        second = levels[top, beside] * (1 - down) + levels[below, beside] * down
        found[row, column] = first * (1 - across) + second * across > HALF_LEVEL
    return found


def blob(shape: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Levels of a smooth spot, odd ones, so that no source pixel is halfway between two."""
    generator = np.random.default_rng(seed)
    center = generator.uniform(0, 1, 2) * shape
    y, x = np.indices(shape) + 0.5
    near = np.exp(-(((y - center[0]) / 2.7) ** 2 + ((x - center[1]) / 3.1) ** 2))
    return (np.round(near * 127) * 2 + (near > 0.05)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_masks_are_interpolated_at_the_centers_of_source_pixels(name, stride):
    placement = placement_of(name)
    shape = (-(-placement.image_size[0] // stride), -(-placement.image_size[1] // stride))
    inside = 0
    for seed in range(4):
        levels = blob(shape, seed)
        (found,) = predicted_masks(levels[None], stride, placement)
        expected = slow_mask(levels, stride, placement)
        assert np.array_equal(coco_masks.decode(found) > 0, expected)
        inside += int(expected.sum())
    assert inside


@pytest.mark.parametrize("name", PLACEMENTS)
def test_true_masks_are_the_nearest_pixel_of_the_record(name):
    placement = placement_of(name)
    inverse = np.linalg.inv(placement.transform[:, :2])
    inside = 0
    for seed in range(4):
        mask = (blob(placement.image_size, seed) > 90).astype(np.uint8)
        (found,) = true_masks(mask[None], placement)
        expected = np.zeros(placement.source_size, bool)
        for pixel in np.ndindex(expected.shape):
            y, x = np.floor(inverse @ (np.array(pixel) + 0.5 - placement.transform[:, 2])).astype(int)
            if 0 <= y < placement.image_size[0] and 0 <= x < placement.image_size[1]:
                expected[pixel] = mask[y, x]
        assert np.array_equal(coco_masks.decode(found) > 0, expected)
        inside += int(expected.sum())
    assert inside


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_run_lengths_are_those_of_pycocotools(height, width, seed):
    generator = np.random.default_rng(seed)
    top, left = int(generator.integers(0, height)), int(generator.integers(0, width))
    part = generator.random((height - top, width - left)) < generator.random()
    whole = np.zeros((height, width), np.uint8)
    whole[top:, left:] = part
    expected = coco_masks.encode(np.asfortranarray(whole))
    found = encode_at(top, left, part, (height, width))
    assert (found["size"], found["counts"]) == (expected["size"], expected["counts"].decode())


def test_a_mask_without_pixels_has_one_run():
    found = encode_at(0, 0, np.zeros((0, 0), bool), (3, 4))
    assert coco_masks.area(found) == 0
    assert coco_masks.decode(found).shape == (3, 4)


def test_a_box_as_a_mask_has_the_pixels_whose_centers_it_contains():
    found = coco_masks.decode(box_mask([0.6, 1.0, 2.4, 3.5], (4, 5)))
    assert np.argwhere(found).tolist() == [[1, 1], [1, 2]]


def test_a_transform_that_is_not_of_quarter_turns_is_refused():
    with pytest.raises(UsageError, match="parallel axes"):
        MaskPlacement(
            transform=np.array([[0.7, -0.7, 5], [0.7, 0.7, 0]]), image_size=(8, 8), source_size=(8, 8)
        )
