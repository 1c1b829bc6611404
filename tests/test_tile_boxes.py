"""Boxes of a large picture, found again from the tiles of its data set."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.conversions import read_split, run_convert
from tests.support.large_picture_files import WRITERS
from tests.support.large_pictures import LargePicture, write_coco
from tests.support.tile_boxes import find_boxes

SIDE, OBJECTS = 2000, 200


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A picture in tiles of JPEG with its annotations, and its boxes [objects, 4]."""
    folder, picture = tmp_path_factory.mktemp("large"), LargePicture(SIDE, SIDE, count=OBJECTS)
    name, write = WRITERS["jpeg-tiles"]
    write(folder / name, picture)
    write_coco(folder / "annotations.json", {name: picture})
    return folder, np.array([one.box for one in picture.objects])


@pytest.mark.parametrize("overlap", [0, 64])
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_every_box_is_found_again_within_half_a_pixel_of_the_source(tmp_path, drawn, scale, overlap):
    source, boxes = drawn
    options = {
        "fit": "tiles",
        "height": 256,
        "width": 320,
        "tile_overlap": (overlap, overlap),
        "scale": scale,
    }
    done = run_convert(source, tmp_path, layout="coco", **options)
    found = find_boxes(read_split(Path(done.folder), "train"), boxes)
    assert found.missing == ()
    assert found.worst < 0.5
    assert found.cut > OBJECTS // 10
    # The largest object has 56 pixels, so that an overlap of 64 shows every one whole in some tile.
    assert (found.whole == OBJECTS) == (overlap == 64)


def test_boxes_that_are_moved_or_missing_are_noticed(tmp_path, drawn):
    source, boxes = drawn
    options = {"fit": "tiles", "height": 512, "width": 512, "tile_overlap": (64, 64)}
    done = run_convert(source, tmp_path, layout="coco", **options)
    records = list(read_split(Path(done.folder), "train"))
    moved = boxes.copy()
    moved[7] += 1
    assert find_boxes(records, moved).worst == pytest.approx(1, abs=0.01)
    more = np.concatenate([boxes, [[5, 5, 9, 9]]])
    assert find_boxes(records, more).missing == (OBJECTS,)
