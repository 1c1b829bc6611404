"""Pixels, boxes, masks and labels follow the random scale, and pixels equal a slow filter."""

import numpy as np
import pytest

from halofeed.loader import FlipLeftRight, Loader, RandomCrop, ScaleJitter
from halofeed.loader.augment import draw_uniform
from halofeed.loader.batch import join_id
from tests.support.batches import same
from tests.support.picture_writer import FILL
from tests.support.volume_writer import draw_scans, write_scans

STORAGE = [("raw", True), ("png", True), ("png", False)]


def weights(source, resized, repeats):
    """[resized, source], a triangle as wide as the shrinking factor; past the edge its pixel repeats, or nothing is."""
    ratio = source / resized
    width = max(1.0, ratio)
    table = np.zeros((resized, source))
    for row in range(resized):
        center = (row + 0.5) * ratio
        for column in range(-2 * source, 3 * source) if repeats else range(source):
            table[row, min(max(column, 0), source - 1)] += max(0.0, 1 - abs(column + 0.5 - center) / width)
        table[row] /= table[row].sum()
    return table


def plan(jitter, size, drawn):
    """The resized size, and where the window begins and ends."""
    low, high = jitter.scales
    scale = (low + drawn[0] * (high - low)) * min(jitter.height / size[0], jitter.width / size[1])
    resized = [max(1, round(side * scale)) for side in size]
    windows = []
    for number, side, most in zip(drawn[1:], resized, (jitter.height, jitter.width), strict=False):
        start = int(number * (max(0, side - most) + 1))
        windows.append(slice(start, start + min(side, most)))
    return resized, tuple(windows)


def resize(pixels, resized):
    repeats = pixels.dtype != np.uint8
    down, across = (weights(size, out, repeats) for size, out in zip(pixels.shape[:2], resized, strict=True))
    return np.einsum("yh,xw,hwc->yxc", down, across, pixels.astype(np.float64))


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
@pytest.mark.parametrize("scales", [(0.2, 0.9), (1.1, 3.0), (0.1, 2.0)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_pixels_are_those_of_a_slow_triangle_filter(draw, write, encoding, pad, scales, dtype):
    examples = draw(9, dtype=dtype)
    jitter = ScaleJitter(20, 36, scales)
    folder = write(examples, encoding=encoding, pad=pad)
    loader = Loader(folder, batch_size=9, seed=2, augment=[jitter], include=["size"])
    batch = loader.batch(1)
    assert batch["image"].shape == (9, 20, 36, 3)
    originals = {example["id"]: example["pixels"] for example in examples}
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        original = originals[identity]
        resized, window = plan(jitter, original.shape[:2], draw_uniform(2, 1, identity, 0))
        expected = resize(original, resized)[window]
        height, width = batch["size"][row]
        assert (height, width) == expected.shape[:2]
        image = batch["image"][row]
        assert np.abs(image[:height, :width] - expected).max() <= 1.01
        assert (image[height:] == FILL[:3]).all() and (image[:, width:] == FILL[:3]).all()


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
def test_boxes_areas_flags_and_masks_move_with_the_pixels(draw, write, encoding, pad):
    examples = draw(12, frame=(48, 64))
    folder = write(examples, frame=(48, 64), encoding=encoding, pad=pad, max_boxes=8, masks=True)
    jitter = ScaleJitter(40, 40, (0.3, 2.5), minimum_visible=0.4)
    include = ["transform", "size", "masks", "difficult"]
    loader = Loader(folder, batch_size=12, seed=5, augment=[FlipLeftRight(1.0), jitter], include=include)
    originals = {example["id"]: example for example in examples}
    seen = 0
    for step in range(3):
        batch = loader.batch(step)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            original = originals[identity]
            size = np.array(original["pixels"].shape[:2])
            resized, window = plan(jitter, size, draw_uniform(5, step, identity, 1))
            ratio = np.array(resized) / size
            start = np.array([part.start for part in window])
            stop = np.array([part.stop for part in window])
            expected = []
            for number, box in enumerate(original["boxes"]):
                box = np.array([box[0], size[1] - box[3], box[2], size[1] - box[1]])
                moved = box * np.tile(ratio, 2) - np.tile(start, 2)
                cut = np.clip(moved, 0, np.tile(stop - start, 2))
                share = np.prod(cut[2:] - cut[:2]) / np.prod(moved[2:] - moved[:2])
                if share >= 0.4:
                    expected.append((number, cut, np.prod(cut[2:] - cut[:2])))
            count = batch["num_boxes"][row]
            assert count == min(8, len(expected))
            for place, (number, box, area) in enumerate(expected[:8]):
                assert np.allclose(batch["boxes"][row, place] * 40, box, atol=1e-3)
                assert np.isclose(batch["area"][row, place], area, rtol=1e-4)
                assert batch["classes"][row, place] == original["classes"][number]
                assert batch["is_crowd"][row, place] == original["is_crowd"][number]
                assert batch["difficult"][row, place] == 1 - original["is_crowd"][number]
                ys, xs = np.nonzero(batch["masks"][row, place])
                if (box[2:] - box[:2] >= 2).all():
                    found = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1])
                    assert np.abs(found - box).max() <= 0.5 + 1e-3
                    seen += 1
            # The transform maps what is shown to where it was stored: there the source's is y * 2 + 1, x * 2 - 3.
            corner = batch["transform"][row].astype(np.float64) @ [0.0, 0.0, 1.0]
            stored = (start / ratio)[0], size[1] - (start / ratio)[1]
            assert np.allclose(corner, [2 * stored[0] + 1, 2 * stored[1] - 3], atol=1e-3)
    assert seen > 20


def test_a_label_map_takes_the_nearest_pixels_and_its_foreground_is_found(tmp_path):
    scans = draw_scans({"train": 9}, shape=(20, 24), dtype="uint8", channels=3)
    folder = write_scans(tmp_path / "1.0.0", scans)
    jitter = ScaleJitter(30, 30, (0.5, 2.0))
    crop = RandomCrop(8, 9, foreground=1.0)
    loader = Loader(folder, batch_size=9, augment=[jitter, crop], include=["size"])
    plain = Loader(folder, batch_size=9, augment=[jitter], include=["size"])
    by_id = {scan.id: scan for scan in scans}
    whole = plain.batch(0)
    for row, identity in enumerate(join_id(whole["id"]).tolist()):
        scan = by_id[identity]
        shown = tuple(slice(0, high) for high in scan.extent[1])
        label = scan.label[shown]
        resized, window = plan(jitter, label.shape, draw_uniform(0, 0, identity, 0))
        lines = [
            np.array([int((place + 0.5) * side / out) for place in range(out)])
            for side, out in zip(label.shape, resized, strict=True)
        ]
        expected = label[np.ix_(*lines)][window]
        height, width = whole["size"][row]
        assert np.array_equal(whole["label"][row, :height, :width], expected)
        cropped = loader.batch(0)["label"][row]
        assert cropped.any() == expected.any()


def test_scale_1_of_a_picture_that_fits_changes_nothing(draw, write):
    examples = draw(7, vary=False)
    folder = write(examples, masks=True)
    plain, jittered = (
        Loader(folder, batch_size=7, augment=augment, include=["masks", "transform", "size"]).batch(3)
        for augment in ([], [ScaleJitter(24, 32, (1.0, 1.0))])
    )
    same(plain, jittered)
