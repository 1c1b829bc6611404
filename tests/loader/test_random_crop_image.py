"""Windows are drawn as TensorFlow draws them; boxes, masks and the transform follow, and the picture keeps its size."""

import numpy as np
import pytest
import tensorflow as tf

from halofeed.loader import Loader, RandomCropImage, SsdRandomCrop
from halofeed.loader.batch import join_id

BOXES = np.array([[10, 20, 40, 50], [60, 5, 70, 90], [3, 3, 3, 9]])
RANGES = [((0.75, 3.0), (0.75, 1.0), 0.0), ((0.5, 2.0), (0.1, 1.0), 0.9), ((0.75, 1.33), (0.1, 0.3), 0.3)]


@pytest.mark.parametrize(("ratios", "areas", "covered"), RANGES)
def test_windows_are_distributed_like_those_of_tensorflow(ratios, areas, covered):
    shape, count = (80, 100), 3000
    crop = RandomCropImage(min_object_covered=covered, aspect_ratio_range=ratios, area_range=areas)
    generator = np.random.default_rng(0)
    drawn = [crop.draw_window(shape, BOXES, generator.random((100, 4))) for _ in range(count)]
    ours = np.array([(*start, *size) for start, size in (window or ((0, 0), shape) for window in drawn)])
    given = {"image_size": [*shape, 3], "bounding_boxes": (BOXES / [*shape, *shape])[None].astype(np.float32)}
    given |= {"min_object_covered": covered, "aspect_ratio_range": ratios, "area_range": areas}
    sample = tf.function(lambda: tf.image.sample_distorted_bounding_box(**given, max_attempts=100)[:2])
    tf.random.set_seed(1)
    theirs = np.array([[*start[:2], *size[:2]] for start, size in (sample() for _ in range(count))])
    for power in (1, 2):
        one, other = (values.astype(float) ** power for values in (ours, theirs))
        error = np.sqrt((one.var(0) + other.var(0)) / count)
        assert (np.abs(one.mean(0) - other.mean(0)) <= 4.5 * error + 1e-9).all()
    assert (ours[:, :2] + ours[:, 2:] <= shape).all() and np.ptp(ours[:, 2]) > 5


def stored(matrix, points):
    """Points of the stored picture; the source's, to which the transform leads, are y * 2 + 1 and x * 2 - 3."""
    return (np.reshape(points, (2, 2)) @ matrix[:, :2].T + matrix[:, 2] - [1, -3]).ravel() / 2


@pytest.mark.parametrize("crop", [RandomCropImage(0.3, (0.5, 2.0), (0.2, 0.7)), SsdRandomCrop()])
def test_boxes_masks_and_transform_follow_the_window(draw, write, crop):
    examples = draw(16, frame=(48, 64))
    folder = write(examples, frame=(48, 64), encoding="raw", pad=True, max_boxes=8, masks=True)
    loader = Loader(folder, batch_size=16, seed=5, augment=[crop], include=["transform", "size", "masks"])
    originals = {example["id"]: example for example in examples}
    moved = seen = 0
    for step in range(3):
        batch = loader.batch(step)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            size = np.array(originals[identity]["pixels"].shape[:2])
            assert batch["size"][row].tolist() == size.tolist()
            matrix = batch["transform"][row].astype(np.float64)
            window = stored(matrix, [0, 0, *size])
            moved += not np.allclose(window, [0, 0, *size], atol=1e-3)
            low, high = np.tile(window[:2], 2), np.tile(window[2:], 2)
            expected = np.array([np.clip(box, low, high) for box in originals[identity]["boxes"]])
            for place in range(batch["num_boxes"][row]):
                box = batch["boxes"][row, place] * [48, 64, 48, 64]
                assert np.abs(expected - stored(matrix, box)).max(1).min() < 1e-2
                ys, xs = np.nonzero(batch["masks"][row, place])
                if (box[2:] - box[:2] >= 4).all():
                    found = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1])
                    assert np.abs(found - box).max() <= 2.5
                    seen += 1
    assert moved > 20 and seen > 10
