"""Boxes of photographs enclose their masks under every augmentation."""

import numpy as np
import pytest

from halofeed.loader import Loader, MixUp, Mosaic, RandomRotation, ScaleJitter
from tests.support.conversions import run_convert
from tests.support.level_rows import others


@pytest.fixture(scope="module")
def photographs(test_data, tmp_path_factory):
    source, out = test_data / "detection/coco_ccby", tmp_path_factory.mktemp("photographs")
    fit = {"resize": "keep-aspect", "min_dimension": 256, "max_dimension": 320, "encoding": "jpeg"}
    return run_convert(source, out, layout="coco", masks=True, **fit).folder


PICTURE_CHAINS = [
    ([ScaleJitter(256, 256, (0.5, 1.8))], 2.0),
    ([RandomRotation(15.0)], 2.5),
    ([Mosaic(256, 256)], 2.0),
    ([ScaleJitter(256, 256, (0.5, 1.5)), Mosaic(256, 256), MixUp(probability=1.0)], 2.5),
]


@pytest.mark.parametrize(("chain", "slack"), others(PICTURE_CHAINS, PICTURE_CHAINS[1:2]))
def test_boxes_of_photographs_lie_around_their_masks(photographs, chain, slack):
    loader = Loader(photographs, batch_size=16, seed=1, augment=chain, include=["masks"])
    sides = np.array(loader.spec["image"].shape[1:3])
    overlaps, seen = [], 0
    for step in range(2):
        batch = loader.batch(step)
        for row in range(16):
            for place in range(int(batch["num_boxes"][row])):
                box = batch["boxes"][row, place] * np.tile(sides, 2)
                ys, xs = np.nonzero(batch["masks"][row, place])
                assert (box[2:] >= box[:2]).all() and (box >= 0).all() and (box[2:] <= sides + 1e-3).all()
                if len(ys) < 30 or batch["is_crowd"][row, place]:
                    continue
                found = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1])
                assert (found[:2] >= box[:2] - slack).all() and (found[2:] <= box[2:] + slack).all()
                overlaps.append(np.prod(found[2:] - found[:2]) / np.prod(box[2:] - box[:2]))
                seen += 1
    assert seen > 60 and np.median(overlaps) > (0.6 if isinstance(chain[0], RandomRotation) else 0.9)
