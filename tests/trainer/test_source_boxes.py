"""The boxes of a perfect model land on the annotations in the source, EXIF orientations included."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.loader import Loader
from halofeed.prep.geometry.resize import displayed_size, resizer, stored_to_file
from halofeed.trainer.source_grid import boxes_in_source, coco_results
from tests.support.conversions import run_convert
from tests.test_end_to_end import DETECTION, FOLDERS, RECIPES, read_truth


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["cards", "coco"])
def test_true_boxes_land_within_half_a_pixel_of_the_annotation(test_data, tmp_path, name, recipe):
    truth, source = read_truth(name, test_data), test_data / "detection" / FOLDERS[name]
    done = run_convert(source, tmp_path, layout=DETECTION[name], **RECIPES[recipe])
    include = ("transform", "source", "source_height", "source_width")
    compared = 0
    for split in done.manifest.splits:
        loader = Loader(done.folder, split=split, batch_size=1, training=False, include=include)
        for batch in loader.batches():
            size = int(batch["source_height"][0]), int(batch["source_width"][0])
            boxes = batch["boxes"][0, : batch["num_boxes"][0]]
            found = boxes_in_source(boxes, batch["transform"][0], loader.spec["image"].shape[1:3], size)
            expected = [box for _, box in truth[Path(batch["source"][0]).stem]]
            # An annotation may reach beyond its picture.
            expected = np.clip(np.reshape(expected, (-1, 4)), 0, [*size, *size])
            assert found.shape == expected.shape and np.abs(found - expected).max(initial=0) < 0.5
            compared += len(found)
    assert compared > 500


@given(
    orientation=st.integers(1, 8),
    size=st.tuples(st.integers(8, 400), st.integers(8, 400)),
    corners=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_a_box_comes_back_from_every_orientation(orientation, size, corners):
    plan = resizer("fixed-shape")(size, height=32, width=48)
    file_size = displayed_size(orientation, size)
    ymin, ymax = sorted(side * file_size[0] for side in corners[:2])
    xmin, xmax = sorted(side * file_size[1] for side in corners[2:])
    to_file = stored_to_file(plan, orientation).reshape(2, 3)
    back = np.linalg.inv(np.vstack([to_file, [0, 0, 1]]))
    ends = np.array([back[:2] @ [y, x, 1] for y, x in ((ymin, xmin), (ymax, xmax))]) / plan.output_size
    box = [*ends.min(axis=0), *ends.max(axis=0)]
    found = boxes_in_source([box], to_file.astype(np.float32), plan.output_size, file_size)
    assert np.abs(found - [ymin, xmin, ymax, xmax]).max() < 0.01


def test_boxes_are_cut_to_the_source_and_those_in_the_padding_are_left_out():
    boxes = boxes_in_source([[0.5, 0.5, 1, 1], [0.8, 0, 1, 1]], [[2, 0, 0], [0, 2, 0]], (10, 10), (14, 20))
    assert boxes.tolist() == [[10, 10, 14, 20], [14, 0, 14, 20]]
    (entry,) = coco_results(1, boxes, [1, 1], [0.5, 0.5])
    assert entry["bbox"] == [10.0, 10.0, 10.0, 4.0]
