"""The picture of a batch shows each box, label, mask and line in its place."""

import numpy as np
import pytest

from halofeed.loader.batch import split_id
from halofeed.loader.contact_sheet import _caption, draw_batch, rgb_of
from halofeed.schemas.kinds import KINDS

GAP, LINE = 6, (255, 255, 0)
NAMES = ("background", "hat", "shoe")


def batch_of(image, **more):
    rows = len(image)
    return {"image": image, "id": split_id(np.arange(rows)), "valid": np.ones(rows, bool), **more}


def has(canvas, color):
    return (canvas == np.array(color)).all(-1)


def test_boxes_stand_where_they_are_in_their_class_color():
    image = np.full((1, 50, 100, 3), 128, np.uint8)
    boxes = np.array([[[0.2, 0.1, 0.8, 0.5], [0, 0, 0, 0]]], np.float32)
    more = {"boxes": boxes, "classes": np.array([[2, 0]]), "num_boxes": np.array([1])}
    canvas = draw_batch(batch_of(image, **more), KINDS["picture"], NAMES, side=200)
    pane = canvas[GAP : GAP + 100, GAP : GAP + 200]
    rows, columns = np.nonzero(has(pane, rgb_of(1)))
    assert (rows.max(), columns.min(), columns.max()) == (79, 20, 99), "its name stands above it"
    assert has(pane, rgb_of(1))[20:80, 20].all() and has(pane, rgb_of(1))[79, 20:100].all()
    assert not has(pane, rgb_of(0)).any()


def test_masks_tint_what_they_cover():
    image = np.full((1, 40, 40, 3), 200, np.uint8)
    masks = np.zeros((1, 1, 40, 40), np.uint8)
    masks[0, 0, 10:20, 10:30] = 1
    more = {"boxes": np.array([[[0.25, 0.25, 0.5, 0.75]]], np.float32), "classes": np.array([[1]])}
    more |= {"num_boxes": np.array([1]), "masks": masks}
    pane = draw_batch(batch_of(image, **more), KINDS["picture"], NAMES, side=40)[GAP:, GAP:][:40, :40]
    untouched = has(pane, (200, 200, 200))
    assert untouched[21:, :].all() and not untouched[12:19, 12:29].any()


def test_lines_part_the_image_as_its_cores_do():
    image = np.zeros((2, 64, 32, 1), np.uint8)
    canvas = draw_batch(batch_of(image), KINDS["picture"], NAMES, split=(1, 4, 2, 1), side=128)
    pane = canvas[GAP : GAP + 128, GAP : GAP + 64]
    lines = has(pane, LINE)
    assert np.flatnonzero(lines.all(1)).tolist() == [31, 63, 95]
    assert np.flatnonzero(lines.all(0)).tolist() == [31]


@pytest.mark.parametrize("sets", [False, True])
def test_a_volume_shows_its_middle_planes_with_label_and_lines(sets):
    image = np.zeros((1, 8, 16, 32, 1), np.int16)
    image[0, 4, :, :] = 1000
    label = np.zeros((1, 8, 16, 32), np.uint8)
    label[0, 4, 4:8, 8:16] = 2
    if sets:
        label = np.stack([label == 1, label == 2], -1).astype(np.uint8)
    more = {"label": label, "labelled": np.ones(1, bool)}
    canvas = draw_batch(batch_of(image, **more), KINDS["volume"], NAMES, split=(1, 2, 1, 1, 1), side=32)
    depth = canvas[GAP : GAP + 16, GAP : GAP + 32].astype(int)
    height = canvas[GAP : GAP + 8, 2 * GAP + 32 : 2 * GAP + 64]
    tinted = (255 * 0.65 + np.array(rgb_of(1)) * 0.35).astype(int)
    expected = np.zeros((16, 32), bool)
    expected[4:8, 8:16] = True
    np.testing.assert_array_equal(has(depth, tinted), expected)
    assert not has(depth, LINE).any() and has(height, LINE)[3].all()


def test_a_clip_shows_frames_and_rows_of_padding_say_so():
    image = np.zeros((2, 5, 8, 8, 3), np.uint8)
    image[0] += np.arange(0, 250, 50, dtype=np.uint8)[:, None, None, None]
    batch = batch_of(image, label=np.array([1, 0]))
    batch["valid"][1] = False
    canvas = draw_batch(batch, KINDS["clip"], NAMES, side=20)
    assert canvas[GAP + 5, [GAP + 5, GAP + 31, GAP + 57], 0].tolist() == [0, 100, 200]
    assert _caption(batch, 0, NAMES) == "id 0, hat" and _caption(batch, 1, NAMES) == "padding"


def test_values_that_are_no_bytes_are_stretched_and_odd_ones_do_no_harm():
    image = np.linspace(-1000, 3000, 10_000, dtype=np.float32).reshape(1, 100, 100, 1)
    image[0, 50, 50] = np.nan
    canvas = draw_batch(batch_of(image), KINDS["picture"], NAMES, side=100)
    pane = canvas[GAP : GAP + 100, GAP : GAP + 100, 0]
    assert pane[0, 0] == 0 and pane[-1, -1] == 255 and abs(int(pane[49, 99]) - 127) <= 2
