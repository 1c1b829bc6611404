"""Mosaic and MixUp equal a slow drawing with the same partners."""

import shutil

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader import Loader, Mixture, MixUp, Mosaic, RandomCrop
from halofeed.loader.augment import draw_uniform, draw_uniforms
from halofeed.loader.augment.augmented_example import _CHOICE
from halofeed.loader.batch import join_id
from tests.support.batches import flip
from tests.support.picture_writer import FILL, example_of
from tests.support.volume_writer import draw_scans, write_scans

STORAGE = [("raw", True), ("png", True), ("png", False)]
FIELDS = ["masks", "difficult", "size"]


def solid(count, frame=(24, 32)):
    """Pictures of one color each, of different sizes, whose one box is drawn in another and covers half of it."""
    rng = np.random.default_rng(1)
    examples = []
    for number in range(count):
        height, width = (int(rng.integers(side // 2, side + 1)) for side in frame)
        pixels = np.full((height, width, 3), (20 * number + 10, 0, 200), np.uint8)
        box = (height // 4, width // 4, height - 1, width - 1)
        pixels[box[0] : box[2], box[1] : box[3], 1] = 255
        examples.append(example_of(50 + number, pixels, [box], [number + 1], [number % 2]))
    return examples


def partners(seed, epoch, identity, number, count, records, partner=0):
    """The places of the others that are shown with an example."""
    of = np.array([epoch]), np.array([identity])
    drawn = draw_uniforms(seed, *of, number + 1, partner=partner + _CHOICE)[0, number]
    return [int(value * records) for value in drawn[:count]]


def stored_order(folder, count):
    return join_id(Loader(folder, batch_size=count, training=False).batch(0)["id"]).tolist()


def nearest(pixels, size):
    """Each pixel the nearest one of the original, which for solid areas is right up to their edges."""
    rows, columns = (
        ((np.arange(out) + 0.5) * side / out).astype(int)
        for out, side in zip(size, pixels.shape[:2], strict=True)
    )
    return pixels[np.ix_(rows, columns)]


def slow_mosaic(one, pictures, drawn):
    """The frame, and each picture's box in pixels of it, or None."""
    frame = np.empty((one.height, one.width, 3), np.uint8)
    frame[...] = FILL[:3]
    low, high = one.center
    sides = (one.height, one.width)
    cy, cx = (round((low + drawn[1 + axis] * (high - low)) * sides[axis]) for axis in range(2))
    boxes = []
    for number, (pixels, box) in enumerate(pictures):
        scale = one.scales[0] + drawn[3 + number] * (one.scales[1] - one.scales[0])
        scale *= min(one.height / pixels.shape[0], one.width / pixels.shape[1])
        size = [max(1, round(side * scale)) for side in pixels.shape[:2]]
        canvas = np.zeros((3 * one.height, 3 * one.width, 4), np.uint8)
        top = one.height + (cy if number >= 2 else cy - size[0])
        left = one.width + (cx if number % 2 else cx - size[1])
        canvas[top : top + size[0], left : left + size[1], :3] = nearest(pixels, size)
        canvas[top : top + size[0], left : left + size[1], 3] = 1
        window = canvas[one.height : 2 * one.height, one.width : 2 * one.width]
        frame[window[..., 3] == 1] = window[window[..., 3] == 1][:, :3]
        ratio = np.tile(np.array(size) / pixels.shape[:2], 2)
        moved = box * ratio + np.tile([top - one.height, left - one.width], 2)
        cut = np.clip(moved, 0, np.tile([one.height, one.width], 2))
        shown = np.prod((cut[2:] - cut[:2]).clip(0)) / np.prod(moved[2:] - moved[:2])
        boxes.append(cut if shown >= one.minimum_visible else None)
    return frame, boxes


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
def test_four_pictures_lie_around_the_point_with_their_objects(write, encoding, pad):
    examples = solid(10)
    folder = write(examples, encoding=encoding, pad=pad, max_boxes=6, masks=True)
    one = Mosaic(40, 48, (0.4, 1.2), minimum_visible=0.5)
    by_id, order = {example["id"]: example for example in examples}, stored_order(folder, 10)
    seen = 0
    for step in range(3):
        batch = Loader(folder, batch_size=10, seed=6, augment=[one], include=FIELDS).batch(step)
        assert batch["image"].shape == (10, 40, 48, 3)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            others = [order[place] for place in partners(6, step, identity, 0, 3, 10)]
            shown = [by_id[number] for number in (identity, *others)]
            drawn = draw_uniform(6, step, identity, 0)
            frame, boxes = slow_mosaic(one, [(each["pixels"], each["boxes"][0]) for each in shown], drawn)
            different = np.abs(batch["image"][row].astype(int) - frame).max(axis=-1) > 130
            assert different.mean() < 0.06  # the edges of the boxes, which are blurred
            red = np.abs(batch["image"][row, ..., 0].astype(int) - frame[..., 0])
            assert red.max() <= 1
            expected = [(each, box) for each, box in zip(shown, boxes, strict=True) if box is not None]
            assert batch["num_boxes"][row] == len(expected)
            for place, (each, box) in enumerate(expected):
                assert batch["classes"][row, place] == each["classes"][0]
                assert batch["is_crowd"][row, place] == each["is_crowd"][0]
                assert batch["difficult"][row, place] == 1 - each["is_crowd"][0]
                assert np.allclose(batch["boxes"][row, place] * [40, 48, 40, 48], box, atol=1e-3)
                assert np.isclose(batch["area"][row, place], np.prod(box[2:] - box[:2]), rtol=1e-3)
                ys, xs = np.nonzero(batch["masks"][row, place])
                found = np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1])
                assert np.abs(found - box).max() <= 1
                seen += 1
    assert seen > 50


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
def test_two_pictures_shine_through_each_other_with_the_objects_of_both(write, encoding, pad):
    examples = solid(8)
    folder = write(examples, encoding=encoding, pad=pad, max_boxes=6, masks=True)
    one = MixUp((0.2, 0.9), probability=1.0)
    by_id, order = {example["id"]: example for example in examples}, stored_order(folder, 8)
    batch = Loader(folder, batch_size=8, augment=[one], include=FIELDS).batch(0)
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        other = order[partners(0, 0, identity, 0, 1, 8)[0]]
        shown = [by_id[identity], by_id[other]]
        share = 0.2 + 0.7 * draw_uniform(0, 0, identity, 0)[1]
        size = np.max([each["pixels"].shape[:2] for each in shown], axis=0)
        expected = np.zeros((*size, 3))
        for each, weight in zip(shown, (share, 1 - share), strict=True):
            padded = np.empty((*size, 3))
            padded[...] = FILL[:3]
            padded[: each["pixels"].shape[0], : each["pixels"].shape[1]] = each["pixels"]
            expected += weight * padded
        assert batch["size"][row].tolist() == size.tolist()
        image = batch["image"][row]
        assert np.abs(image[: size[0], : size[1]] - expected).max() < 0.51 + 1e-3
        assert (image[size[0] :] == FILL[:3]).all() and (image[:, size[1] :] == FILL[:3]).all()
        assert batch["num_boxes"][row] == 2
        for place, each in enumerate(shown):
            assert np.allclose(batch["boxes"][row, place] * [24, 32, 24, 32], each["boxes"][0], atol=1e-4)
            assert batch["classes"][row, place] == each["classes"][0]
            top, left, bottom, right = each["boxes"][0]
            mask = np.zeros((24, 32), bool)
            mask[top:bottom, left:right] = True
            assert np.array_equal(batch["masks"][row, place], mask)


def test_max_boxes_holds_and_the_picture_itself_comes_first(draw, write):
    examples = draw(9)
    folder = write(examples, max_boxes=4)
    batch = Loader(folder, batch_size=9, augment=[MixUp((0.5, 0.5), 1.0)], include=["key"]).batch(0)
    assert batch["key"].tolist() == [str(identity) for identity in join_id(batch["id"]).tolist()]
    counts = {example["id"]: example["classes"].tolist() for example in examples}
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        own = counts[identity][:4]
        assert batch["classes"][row, : len(own)].tolist() == own and batch["num_boxes"][row] <= 4


def test_label_maps_are_put_together_as_the_pixels_are(tmp_path):
    scans = draw_scans({"train": 20}, shape=(20, 24), dtype="uint8", channels=3)
    for scan in scans:
        scan.image[...] = scan.label[..., None]
    folder = write_scans(tmp_path / "1.0.0", scans)
    # At scale 1 a picture that fills the frame is not resampled.
    large = {scan.id: scan for scan in scans if (scan.extent[1] >= (10, 12)).all()}
    order = [identity for identity in stored_order(folder, 20) if identity in large]
    assert len(large) > 4 and {scan.labelled for scan in large.values()} == {True, False}
    chain = [RandomCrop(10, 12), Mosaic(10, 12, (1.0, 1.0)), RandomCrop(8, 8, foreground=0.5)]
    batch = Loader(folder, batch_size=20, augment=chain, where=order).batch(0)
    assert np.array_equal(batch["image"][..., 0], batch["label"]) and batch["label"].any()
    for row, identity in enumerate(join_id(batch["id"]).tolist()[: len(order)]):
        others = [order[place] for place in partners(0, 0, identity, 1, 3, len(order))]
        assert batch["labelled"][row] == all(large[each].labelled for each in (identity, *others))


def test_others_are_of_the_chosen_records_alone_and_differ_by_epoch(write):
    examples = solid(10)
    folder = write(examples, max_boxes=6)
    chosen = [example["id"] for example in examples[:4]]
    loader = Loader(folder, batch_size=4, augment=[MixUp((0.5, 0.5), 1.0)], where=chosen)
    seen = {}
    for step in range(12):
        batch = loader.batch(step)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            seen.setdefault(identity, []).append(int(batch["classes"][row, 1]))
    assert all(set(classes) <= {1, 2, 3, 4} and len(set(classes)) > 1 for classes in seen.values())


def test_a_mixture_takes_others_of_the_same_data_set(write):
    folders = [write(solid(4), max_boxes=6) for _ in range(2)]
    batch = Mixture(dict.fromkeys(folders, 1), batch_size=8, augment=[MixUp((0.5, 0.5), 1.0)]).batch(0)
    assert (batch["num_boxes"] == 2).all()


def test_a_partner_that_cannot_be_read_is_named_or_passed_over(draw, write, tmp_path):
    folder = tmp_path / "1.0.0"
    shutil.copytree(write(draw(120, frame=(16, 16)), frame=(16, 16), shards=1), folder)
    ids = stored_order(folder, 120)
    shard = next(folder.glob("*.tfrecord-*-of-*[0-9]"))
    flip(shard, shard.stat().st_size // 2)
    options = {"batch_size": 120, "augment": [MixUp((0.5, 0.5), 1.0)]}
    with pytest.raises(CorruptFileError, match=r"record at byte [\d,]+.*\(id \d+\)"):
        Loader(folder, **options).batch(0)
    first, second = (Loader(folder, on_corrupt="skip", **options) for _ in range(2))
    batches = [first.batch(step) for step in (0, 1)]
    assert len(first.skipped) == 1
    (number,) = first.skipped
    assert f"(id {ids[number]})" in first.skipped[number]
    assert all(ids[number] not in join_id(batch["id"]) for batch in batches)
    for step in (1, 0):
        again = second.batch(step)
        assert all(np.array_equal(array, again[name]) for name, array in batches[step].items())


def test_without_a_mosaic_the_picture_alone_is_fitted(draw, write):
    folder = write(draw(7, vary=False), masks=True)
    plain = Loader(folder, batch_size=7, include=["masks"]).batch(0)
    for one in (Mosaic(24, 32, probability=0.0), MixUp(probability=0.0)):
        batch = Loader(folder, batch_size=7, augment=[one], include=["masks"]).batch(0)
        assert all(np.array_equal(array, batch[name]) for name, array in plain.items())


def test_what_cannot_be_is_refused(draw, write):
    classified, detected = write(draw(3, task="classification")), write(draw(3))
    for one, words in ((Mosaic(8, 8), "no one class"), (MixUp(), "classes cannot be averaged")):
        with pytest.raises(UsageError, match=words):
            Loader(classified, batch_size=1, augment=[one])
    with pytest.raises(UsageError, match="after Mosaic no affine"):
        Loader(detected, batch_size=1, augment=[Mosaic(8, 8)], include=["transform"])
