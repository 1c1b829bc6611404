"""A random window is stretched to the size; boxes, areas, masks and the transform follow it."""

import numpy as np
import pytest
import tensorflow as tf

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomResizedCrop
from halofeed.loader.augment.crop_and_resize import draw_windows, window_draws
from halofeed.loader.batch import join_id


def test_windows_are_distributed_like_those_of_tensorflow():
    shape, count = (80, 100), 3000
    crop = RandomResizedCrop(8, 8)
    generator = np.random.default_rng(0)
    ranges = (crop.area_range, crop.aspect_ratio_range)
    drawn = [next(draw_windows(shape, *ranges, generator.random((100, 4)))) for _ in range(count)]
    ours = np.array([(*start, *size) for start, size in drawn])
    sample = tf.function(
        lambda: tf.image.sample_distorted_bounding_box(
            image_size=[*shape, 3],
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.0,
            aspect_ratio_range=crop.aspect_ratio_range,
            area_range=crop.area_range,
            max_attempts=100,
        )[:2]
    )
    tf.random.set_seed(1)
    theirs = np.array([[*start[:2], *size[:2]] for start, size in (sample() for _ in range(count))])
    for power in (1, 2):
        one, other = (values.astype(float) ** power for values in (ours, theirs))
        error = np.sqrt((one.var(0) + other.var(0)) / count)
        assert (np.abs(one.mean(0) - other.mean(0)) <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_boxes_areas_masks_and_transform_follow_the_window(draw, write, encoding):
    examples = draw(16, frame=(48, 64))
    folder = write(examples, frame=(48, 64), encoding=encoding, pad=True, max_boxes=8, masks=True)
    crop = RandomResizedCrop(30, 40, area_range=(0.3, 0.9), minimum_visible=0.4)
    augment, include = [FlipLeftRight(1.0), crop], ["transform", "size", "masks"]
    loader = Loader(folder, batch_size=16, seed=5, augment=augment, include=include)
    assert loader.row_spec["image"].shape == (30, 40, 3)
    originals = {example["id"]: example for example in examples}
    seen = 0
    for step in range(3):
        batch = loader.batch(step)
        assert (batch["size"] == [30, 40]).all()
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            original = originals[identity]
            width = original["pixels"].shape[1]
            # The stored picture's transform to its source is y * 2 + 1 and x * 2 - 3; it was mirrored before.
            matrix = batch["transform"][row].astype(np.float64)
            scale = matrix[[0, 1], [0, 1]] / [2, -2]
            start = (matrix[:, 2] - [1, -3]) / 2 * [1, -1] + [0, width]
            expected = []
            for box in original["boxes"]:
                mirrored = np.array([box[0], width - box[3], box[2], width - box[1]])
                moved = (mirrored - np.tile(start, 2)) / np.tile(scale, 2)
                cut = np.clip(moved, 0, [30, 40, 30, 40])
                share = np.prod(cut[2:] - cut[:2]) / np.prod(moved[2:] - moved[:2])
                assert abs(share - 0.4) > 1e-6
                if share > 0.4:
                    expected.append(cut)
            assert batch["num_boxes"][row] == min(8, len(expected))
            for place, box in enumerate(expected[:8]):
                assert np.allclose(batch["boxes"][row, place] * [30, 40, 30, 40], box, atol=2e-2)
                assert np.isclose(batch["area"][row, place], np.prod(box[2:] - box[:2]), rtol=2e-2)
                ys, xs = np.nonzero(batch["masks"][row, place])
                if (box[2:] - box[:2] >= 3).all():
                    found = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1])
                    assert np.abs(found - box).max() <= 1.0
                    seen += 1
    assert seen > 20


def test_the_complete_picture_is_shown_where_no_window_fits():
    crop = RandomResizedCrop(8, 8, area_range=(0.9, 1.0), aspect_ratio_range=(3.0, 3.0))
    windows = draw_windows((50, 50), crop.area_range, crop.aspect_ratio_range, window_draws(np.full(8, 0.3)))
    assert next(windows, None) is None


def test_a_picture_without_a_fitting_window_is_stretched(draw, write):
    folder = write(draw(4, frame=(48, 48), vary=False), frame=(48, 48), encoding="jpeg", pad=False)
    crop = RandomResizedCrop(12, 24, area_range=(0.9, 1.0), aspect_ratio_range=(3.0, 3.0))
    batch = Loader(folder, batch_size=4, augment=[crop], include=["transform"]).batch(0)
    assert np.allclose(batch["transform"][:, 0, 0], 2 * 4) and np.allclose(batch["transform"][:, 1, 1], 2 * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0}, r"RandomResizedCrop: expected a height and a width of at least 1"),
        ({"area_range": (0.5, 1.5)}, r"RandomResizedCrop: area_range: expected 0 to 1.*1.5"),
        ({"area_range": (0.0, 0.5)}, r"RandomResizedCrop: area_range: expected values above 0"),
        ({"aspect_ratio_range": (2, 1)}, r"RandomResizedCrop: aspect_ratio_range: expected a minimum and"),
        ({"minimum_visible": 2}, r"RandomResizedCrop: minimum_visible: expected 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        RandomResizedCrop(**{"height": 8, "width": 8, **arguments})
