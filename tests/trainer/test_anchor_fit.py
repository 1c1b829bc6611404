"""A run warns if no anchor of its RetinaNet has the size of its boxes, and names options whose anchors do."""

import io

import numpy as np
import pytest

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.detection.anchor_fit import anchor_warning, best_overlaps, retinanet_sizes
from halofeed.trainer.detection.matcher import Matcher
from halofeed.trainer.run_progress import Progress
from halofeed.trainer.train import _warn_of_other_anchors
from halofeed.trainer.training_setup import build_training_setup
from tests.support.training import facts_of

CELLS = np.array([[12.0, 12.0]] * 5 + [[119.0, 96.0]])
"""Five cells of a tray and the tray itself, in a picture of 256 x 256."""


DEFAULT = Matcher()


def warning(boxes, matcher=DEFAULT, *, scale=2.5, ratios=(1.0,)):
    return anchor_warning(
        boxes, matcher, levels=(3, 5), scale=scale, aspect_ratios=ratios, scales_per_octave=2
    )


def test_small_boxes_are_counted_and_a_smaller_scale_is_named():
    text = warning(CELLS)
    assert text.startswith("warning: 5 of 6 boxes of the first batch overlap no anchor by 0.5")
    assert "sides of 12 pixels (root of the area), the anchors 20 to 113; --set model.anchor_scale=2 " in text
    assert warning(CELLS, scale=2.0) is None


def test_long_boxes_need_other_aspect_ratios():
    text = warning(CELLS * [1, 3])
    assert "--set model.anchor_scale=3 --set model.aspect_ratios=[1.0,2.0,0.5] leaves none" in text
    assert warning(CELLS * [1, 3], scale=3.0, ratios=(1.0, 2.0, 0.5)) is None


def test_boxes_below_the_stride_need_a_finer_level():
    cells = np.full((5, 2), 8.0)
    options = {"scale": 2.5, "aspect_ratios": (1.0,), "scales_per_octave": 2}
    text = anchor_warning(cells, DEFAULT, levels=(3, 5), first_levels=(2, 3), **options)
    assert text.endswith("; --set model.first_level=2 leaves none")
    assert anchor_warning(cells, DEFAULT, levels=(2, 5), first_levels=(2, 3), **options) is None


def test_boxes_that_no_scale_reaches_need_other_pictures():
    assert warning(CELLS / 4).endswith("; convert the pictures to another size")


@pytest.mark.parametrize(
    ("boxes", "matcher"),
    [
        (CELLS[:0], Matcher()),
        (CELLS, Matcher(ignore_thresholds=True)),
        (CELLS, Matcher(matched_threshold=0.3, unmatched_threshold=0.3)),
        (np.repeat(CELLS, [1, 1, 0, 0, 0, 3], axis=0), Matcher()),
    ],
    ids=["no boxes", "no thresholds", "low threshold", "less than half"],
)
def test_there_is_no_warning(boxes, matcher):
    assert warning(boxes, matcher) is None


def test_without_forced_matches_no_anchor_learns_these_boxes():
    assert "no anchor learns them" in warning(CELLS, Matcher(force_match_for_each_row=False))


def test_best_overlap_is_that_of_boxes_about_one_center():
    anchors = retinanet_sizes(3, 3, 2.5, (1.0, 2.0), 1)
    np.testing.assert_allclose(anchors, [[20, 20], [200**0.5, 800**0.5]], rtol=1e-6)
    np.testing.assert_allclose(best_overlaps(np.array([[10.0, 40.0]]), anchors[:1]), [200 / 600], rtol=1e-6)


@pytest.mark.parametrize(("scale", "count"), [(2.5, "5 of 6"), (2.0, None)])
def test_run_measures_the_boxes_of_its_first_batch_without_padding_and_crowds(scale, count):
    config = TrainConfig(
        model="retinanet", model_options={"anchor_scale": scale, "aspect_ratios": [1.0], "last_level": 5}
    )
    setup = build_training_setup(config, facts_of("detection", {1: "cell", 2: "tray"}, (256, 256, 3)))
    boxes = np.zeros((1, 10, 4), np.float32)
    boxes[0, :6, 2:] = CELLS / 256
    boxes[0, 6:, 2:] = 1 / 256
    crowd = np.arange(10)[None] == 6
    batch = {
        "image": np.zeros((1, 256, 256, 3), np.uint8),
        "boxes": boxes,
        "num_boxes": np.array([7]),
        "is_crowd": crowd,
    }
    stream = io.StringIO()
    _warn_of_other_anchors(batch, setup, Progress(config, stream, 0))
    assert (stream.getvalue() == "") if count is None else (f"warning: {count} boxes" in stream.getvalue())
