"""`object_map` numbers the box whose object each pixel shows, through augmentations, as `masks` say."""

import numpy as np
import pytest

from halofeed.loader import Loader
from halofeed.loader.augment import build_augmentations
from halofeed.system.errors import UsageError
from tests.support.object_masks import convert_objects

AUGMENTED = [
    (),
    ({"name": "FlipLeftRight"}, {"name": "Rotate90"}),
    ({"name": "RandomCrop", "sides": [20, 16]}, {"name": "FlipLeftRight"}),
]


def numbered(masks: np.ndarray, count: int) -> np.ndarray:
    """Objects drawn one over the other, those with the most pixels first, the last of equal ones first."""
    found = np.zeros(masks.shape[1:], np.uint16)
    for number in sorted(range(count), key=lambda number: (-int(masks[number].sum()), -number)):
        found[masks[number] > 0] = number + 1
    return found


@pytest.mark.parametrize("augment", AUGMENTED, ids=["stored", "turned", "cropped"])
def test_an_object_map_shows_the_object_with_the_fewest_pixels(augment, tmp_path):
    data = convert_objects(tmp_path)
    options = {"split": "train", "batch_size": 2, "augment": build_augmentations(augment)}
    loader = Loader(data, include=["masks", "object_map"], **options)
    alone = Loader(data, include=["object_map"], **options)
    overlaps = 0
    for step in range(4):
        batch = loader.batch(step)
        for row in range(2):
            count = int(batch["num_boxes"][row])
            overlaps += int((batch["masks"][row].sum(0) > 1).sum())
            assert np.array_equal(batch["object_map"][row], numbered(batch["masks"][row], count))
        assert np.array_equal(alone.batch(step)["object_map"], batch["object_map"])
        assert "masks" not in alone.batch(step)
    assert overlaps


def test_boxes_beyond_the_limit_are_not_in_the_map(tmp_path):
    batch = Loader(
        convert_objects(tmp_path, max_boxes=1), split="train", batch_size=2, include=["object_map"]
    ).batch(0)
    assert batch["object_map"].max() == 1


def test_a_data_set_without_masks_has_no_object_map(tmp_path):
    with pytest.raises(UsageError, match="object_map"):
        Loader(convert_objects(tmp_path, masks=False), split="train", batch_size=1, include=["object_map"])
