"""Ignored regions in the forms of trainers: crowds of every class for evaluation, boxes of their own, or a message."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.loader import FlipLeftRight, Loader
from halofeed.loader.forms.ignored_regions import pixel_regions, regions_as_crowds, tell_of_regions
from halofeed.loader.forms.pixel_boxes import pixel_objects
from halofeed.loader.forms.ultralytics_form import ultralytics
from halofeed.system.errors import UsageError
from halofeed.trainer.metrics import CocoMetrics
from tests.support.scripts import run_script

REGION = [20, 10, 60, 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two pictures of 40 x 80: one with an object, a crowd and a region, one without any; and masks."""
    root = tmp_path_factory.mktemp("regions")
    (root / "images").mkdir()
    for number in (1, 2):
        Image.fromarray(np.full((40, 80, 3), 40 * number, np.uint8)).save(root / f"images/{number}.png")
    images = [{"id": n, "file_name": f"{n}.png", "width": 80, "height": 40} for n in (1, 2)]
    annotations = [
        {"id": number, "image_id": 1, "category_id": label, "bbox": box, "area": box[2] * box[3], **flags}
        | {"segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]]}
        for number, (label, box, flags) in enumerate(
            [
                (3, [2, 3, 10, 12], {"iscrowd": 0}),
                (7, [60, 5, 10, 10], {"iscrowd": 1}),
                (7, [0, 30, 8, 8], {"iscrowd": 0}),
                (3, [20, 10, 40, 20], {"iscrowd": 0, "ignore": 1}),
            ],
            1,
        )
        for x, y, w, h in [box]
    ]
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    (root / "coco.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    data = halofeed.convert(
        root / "coco.json",
        root / "data",
        layout="coco",
        images=root / "images",
        name="set",
        height=40,
        width=80,
        masks=True,
        split_shares={"train": 1},
    )
    return str(data.path)


def test_regions_in_pixels_follow_the_augmentations(folder):
    for augment, expected in (([], REGION), ([FlipLeftRight(1.0)], [20, 10, 60, 30])):
        batch = Loader(folder, batch_size=2, training=False, augment=augment).batch(0)
        found = pixel_regions(batch)
        assert sorted(map(len, found)) == [0, 1]
        np.testing.assert_allclose(np.concatenate(found)[0], expected, atol=1e-4)


def test_each_region_is_a_crowd_of_every_class_after_the_objects_with_a_mask(folder):
    loader = Loader(folder, batch_size=2, training=False, include=["size", "masks"])
    batch = loader.batch(0)
    labels = sorted(loader.manifest.labels)
    changed = regions_as_crowds(batch, labels)
    plain, objects = (
        pixel_objects(one, np.arange(8), crowds) for one, crowds in ((batch, "keep"), (changed, "keep"))
    )
    row = int(np.argmax(plain.counts))
    assert plain.counts[row] == 3 and objects.counts[row] == 3 + len(labels) and min(objects.counts) == 0
    np.testing.assert_array_equal(objects.boxes[:3], plain.boxes)
    np.testing.assert_allclose(objects.boxes[3:], [REGION] * 2, atol=1e-4)
    assert objects.classes[3:].tolist() == labels and objects.crowd.tolist() == [
        False,
        True,
        False,
        True,
        True,
    ]
    np.testing.assert_allclose(objects.areas[3:], 40 * 20, rtol=1e-5)
    mask = np.zeros((40, 80), np.uint8)
    mask[10:30, 20:60] = 1
    np.testing.assert_array_equal(changed["masks"][row, 3:5], [mask, mask])
    assert batch["num_boxes"].max() == 3, "the batch itself is as it was"


def test_a_set_without_regions_is_given_as_it_is_and_says_nothing(folder, capsys):
    batch = {"boxes": np.zeros((1, 0, 4))}
    assert regions_as_crowds(batch, [1]) is batch
    loader = Loader(folder, batch_size=2, training=False)
    tell_of_regions(loader, "a trainer", "Do this")
    tell_of_regions(loader, "a trainer", "Do this")
    said = capsys.readouterr().err
    assert said.count("set has ignored regions") == 1 and "Do this" in said


def test_ultralytics_says_what_it_leaves_out_and_refuses_regions(folder, capsys):
    loader = halofeed.open(folder).loader("train", batch_size=2)
    ultralytics(loader)
    assert "torch.ultralytics: set has ignored regions" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no flag for crowds"):
        ultralytics(loader, crowds="with-regions")
    with pytest.raises(UsageError, match="drop, keep, with-regions, got 'all'"):
        ultralytics(loader, crowds="all")


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_the_crowds_are_those_of_the_regions(seed):
    random = np.random.default_rng(seed)

    def boxes(count):
        low = random.uniform(0, 0.8, (4, count, 2))
        return np.concatenate([low, low + random.uniform(0.05, 0.2, low.shape)], 2).astype(np.float32)

    truth = {
        "image": np.broadcast_to(np.uint8(0), (4, 100, 200, 3)),
        "boxes": boxes(5),
        "classes": random.integers(1, 4, (4, 5)),
        "num_boxes": random.integers(0, 6, 4),
        "is_crowd": random.random((4, 5)) < 0.2,
        "area": np.full((4, 5), 500, np.float32),
        "ignored_boxes": boxes(3) * np.array([1, 1, 0], np.float32)[:, None],
    }
    near = np.concatenate([truth["boxes"], truth["ignored_boxes"]], 1) + random.normal(0, 0.01, (4, 8, 4))
    found = {"boxes": np.sort(near.reshape(4, 8, 2, 2), 2).reshape(4, 8, 4).clip(0, 1)}
    found |= {"classes": random.integers(1, 4, (4, 8)), "scores": random.random((4, 8))}
    found |= {"num_detections": np.full(4, 8), "image_size": np.tile([100, 200], (4, 1))}
    results = []
    for one in (truth, {**regions_as_crowds(truth, [1, 2, 3]), "ignored_boxes": np.zeros((4, 0, 4))}):
        metrics = CocoMetrics(("a", "b", "c"))
        metrics.update(found, {key: value for key, value in one.items() if key != "image"})
        results.append(metrics.result())
    assert results[0] == results[1]


TORCH = """
import sys
import halofeed
data = halofeed.open(sys.argv[1])
stream = lambda: data.loader("train", batch_size=2, training=False)
(_, targets), = halofeed.torch.detection(stream())
first = max(targets, key=lambda target: len(target["boxes"]))
assert first["ignored_boxes"].tolist() == [[20, 10, 60, 30]] and first["iscrowd"].tolist() == [0, 0]
assert min(len(target["ignored_boxes"]) for target in targets) == 0
(_, targets), = halofeed.torch.detection(stream(), crowds="with-regions")
first = max(targets, key=lambda target: len(target["boxes"]))
assert first["iscrowd"].tolist() == [0, 1, 0, 1, 1] and first["labels"].tolist()[3:] == [1, 2]
assert first["masks"].shape == (5, 40, 80)
"""


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_targets_of_torchvision_have_regions_apart_or_as_crowds(folder):
    run_script(TORCH, folder)
