"""Ignored regions go with the picture through resizing, padding, orientation, tiles and every augmentation.

The oracle is a twin of the data set in which each region is an object of a class of its own. Regions of the set and
objects of that class in the twin must be the same boxes, and all other objects must be as without regions.
"""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image

from halofeed.loader import (
    FlipLeftRight,
    FlipUpDown,
    Loader,
    MixUp,
    Mosaic,
    RandomCrop,
    RandomCropImage,
    RandomRotation,
    Rotate90,
    ScaleJitter,
)
from halofeed.loader.augment import Objects
from halofeed.prep.geometry.resize import apply_to_boxes
from tests.support.conversions import run_convert

PICTURES = 8
SIDE = 48
FORMS = {
    "raw": {"encoding": "raw", "resize": "fixed-shape", "height": SIDE, "width": SIDE},
    "padded": {
        "encoding": "png",
        "resize": "keep-aspect",
        "min_dimension": SIDE,
        "max_dimension": SIDE,
        "pad": True,
        "height": None,
        "width": None,
    },
    "tiles": {"encoding": "png", "fit": "tiles", "tile_overlap": (8, 8), "height": 40, "width": 40},
}
CHAINS = {
    "none": [],
    "flips": [FlipLeftRight(0.5), FlipUpDown(0.5)],
    "crops": [FlipLeftRight(0.5), RandomCrop(30, 30, minimum_visible=0), FlipUpDown(0.5)],
    "quarter turns": [RandomCrop(32, 32, minimum_visible=0), Rotate90(1.0)],
    "scale": [ScaleJitter(64, 40, scales=(0.5, 2.0), minimum_visible=0)],
    "turn": [RandomRotation(40.0, minimum_visible=0)],
    "mosaic": [Mosaic(60, 80, minimum_visible=0), FlipLeftRight(1.0)],
    "mixup": [MixUp(probability=1.0)],
}


def rows(number, size, region):
    """Return KITTI's rows of one picture: objects, and regions under another name, in no order."""
    random = np.random.default_rng(number)
    found = []
    for name in ("Car", region, "Van", region, "Car")[: 2 + number % 4]:
        low = random.uniform(-4, np.array(size) - 8)
        high = low + random.uniform(4, 40, 2)
        found.append(f"{name} 0 0 -10 {low[1]:.2f} {low[0]:.2f} {high[1]:.2f} {high[0]:.2f}{' -1' * 7}")
    return "\n".join(found)


def write(root, region):
    for number in range(PICTURES):
        size = (60 + 7 * number, 90 - 5 * number)
        for part in ("image_2", "label_2"):
            (root / f"train/{part}").mkdir(parents=True, exist_ok=True)
        pixels = np.full((*size, 3), 10 * number, np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 3 == 0 else 1
        Image.fromarray(pixels).save(root / f"train/image_2/{number}.jpg", exif=exif)
        (root / f"train/label_2/{number}.txt").write_text(rows(number, size, region))


@pytest.fixture(scope="module", params=FORMS)
def folders(request, tmp_path_factory):
    """Return the data set and its twin."""
    root, form = tmp_path_factory.mktemp("ignored"), FORMS[request.param]
    found = []
    for name, region in (("set", "DontCare"), ("twin", "Region")):
        write(root / name, region)
        options = {"layout": "kitti", "max_boxes": 40, "annotation_grid": "stored", **form}
        found.append(run_convert(root / name, root / f"{name}_out", **options).folder)
    return found


def regions_of(batch, row):
    boxes = batch["ignored_boxes"][row]
    count = int((boxes != 0).any(axis=1).sum())
    assert not boxes[count:].any()
    return boxes[:count]


@pytest.mark.parametrize("chain", CHAINS)
def test_regions_are_the_boxes_of_a_class_that_no_object_has(folders, chain):
    loaders = [Loader(one, batch_size=PICTURES, seed=3, augment=CHAINS[chain]) for one in folders]
    names = dict(loaders[1].manifest.labels)
    assert list(loaders[0].manifest.labels.values()) == ["Car", "Van"] and len(names) == 3
    found = 0
    for step in (0, 1, 2):  # the second epoch finds values in the caches
        batch, twin = (loader.batch(step) for loader in loaders)
        assert np.array_equal(batch["image"], twin["image"])
        for row in range(PICTURES):
            count = twin["num_boxes"][row]
            classes = [names[label] for label in twin["classes"][row, :count].tolist()]
            is_region = np.array([name == "Region" for name in classes], bool)
            boxes = twin["boxes"][row, :count]
            regions = regions_of(batch, row)
            # A picture's own regions follow its objects, so those of combined pictures have another order.
            assert sorted(map(tuple, regions.tolist())) == sorted(map(tuple, boxes[is_region].tolist()))
            own = batch["num_boxes"][row]
            assert np.array_equal(batch["boxes"][row, :own], boxes[~is_region])
            assert np.array_equal(batch["area"][row, :own], twin["area"][row, :count][~is_region])
            labels = [loaders[0].manifest.labels[label] for label in batch["classes"][row, :own].tolist()]
            assert labels == [name for name in classes if name != "Region"]
            found += len(regions)
    assert found > PICTURES


def test_a_region_stays_as_long_as_some_of_it_is_shown(folders):
    loaders = [
        Loader(folders[0], batch_size=PICTURES, seed=1, augment=[RandomCrop(24, 24, minimum_visible=share)])
        for share in (0.0, 1.0)
    ]
    for step in (0, 1):
        loose, strict = (loader.batch(step) for loader in loaders)
        assert np.array_equal(loose["ignored_boxes"], strict["ignored_boxes"])
        assert loose["num_boxes"].sum() > strict["num_boxes"].sum()


class OwnFlip:
    """An augmentation of a user that makes objects of what it knows: boxes, areas and numbers."""

    def frame(self, frame):
        return frame

    def apply(self, example, uniform):
        flipped = FlipLeftRight(1.0).apply(example, uniform)
        found = flipped.objects
        return replace(flipped, objects=Objects(boxes=found.boxes, areas=found.areas, kept=found.kept))


def test_an_augmentation_that_knows_no_regions_moves_them_too(folders):
    ours, own = (
        Loader(folders[0], batch_size=PICTURES, seed=2, augment=[one]).batch(0)
        for one in (FlipLeftRight(1.0), OwnFlip())
    )
    for name in ours:
        assert np.array_equal(ours[name], own[name]), name


def test_a_window_is_not_drawn_to_cover_a_region(tmp_path):
    for part in ("image_2", "label_2"):
        (tmp_path / f"in/train/{part}").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "in/train/image_2/a.png"), np.zeros((60, 60, 3), np.uint8))
    lines = [
        f"{name} 0 0 -10 {sides}{' -1' * 7}"
        for name, sides in (("Car", "2 2 58 58"), ("DontCare", "0 0 3 3"))
    ]
    (tmp_path / "in/train/label_2/a.txt").write_text("\n".join(lines))
    folder = run_convert(tmp_path / "in", tmp_path / "out", layout="kitti", **FORMS["raw"]).folder
    # At least 90 % of the object: with the region as an object, windows around it alone would do.
    crop = RandomCropImage(min_object_covered=0.9, area_range=(0.01, 1.0), overlap_thresh=0.0)
    loader = Loader(folder, batch_size=1, seed=0, augment=[crop], include=["transform"])
    for step in range(30):
        batch = loader.batch(step)
        assert abs(np.linalg.det(batch["transform"][0][:, :2])) > 0.5


def test_masks_stay_with_their_objects_where_mosaics_have_regions(tmp_path):
    import json

    for number in range(4):
        (tmp_path / "in").mkdir(exist_ok=True)
        pixels = np.full((40, 40, 3), 40, np.uint8)
        cv2.imwrite(str(tmp_path / f"in/{number}.png"), pixels)
    annotations = []
    for number in range(4):
        square = [10 + number, 10, 22 + number, 10, 22 + number, 22, 10 + number, 22]
        common = {"image_id": number, "category_id": 1, "iscrowd": 0, "area": 144}
        annotations.append(
            {
                **common,
                "id": 2 * number + 1,
                "bbox": [0, 30, 9, 9],
                "ignore": 1,
                "segmentation": [[0, 30, 9, 30, 9, 39]],
            }
        )
        annotations.append(
            {**common, "id": 2 * number + 2, "bbox": [10 + number, 10, 12, 12], "segmentation": [square]}
        )
    document = {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 40, "width": 40} for n in range(4)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "hat"}],
    }
    (tmp_path / "in/a.json").write_text(json.dumps(document))
    options = {"encoding": "png", "resize": "none", "height": None, "width": None}
    folder = run_convert(tmp_path / "in", tmp_path / "out", layout="coco", masks=True, **options).folder
    chain = [Mosaic(64, 64, scales=(0.6, 0.9), minimum_visible=0)]
    loader = Loader(folder, batch_size=4, seed=2, augment=chain, include=["masks"])
    batch, objects = loader.batch(0), 0
    for row in range(4):
        assert len(regions_of(batch, row)) >= 1
        for box, mask in zip(
            batch["boxes"][row, : batch["num_boxes"][row]] * 64, batch["masks"][row], strict=False
        ):
            ys, xs = np.nonzero(mask)
            around = [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1]
            assert np.abs(np.array(around) - box).max() <= 1.5
            objects += 1
    assert objects > 4


def test_every_way_gives_the_same_regions(folders):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    import jax

    from halofeed.schemas.partition import Partition
    from halofeed.trainer.mesh import make_mesh

    options = {"batch_size": 8, "seed": 9, "augment": CHAINS["crops"]}
    expected = [Loader(folders[0], **options).batch(step)["ignored_boxes"] for step in range(2)]
    assert expected[0].any()
    stream = Loader(folders[0], **options).dataset(repeat=True)
    assert stream.element_spec["ignored_boxes"] == tf.TensorSpec(expected[0].shape, tf.float32)
    for ours, element in zip(expected, stream.take(2).as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(element["ignored_boxes"], ours)
    partition = Partition(cores_per_replica=1, dims={"image": (1, 1, 1, 1)})
    on_mesh = Loader(folders[0], **options).on_mesh(make_mesh(1), partition)
    for ours, batch in zip(expected, on_mesh, strict=False):
        assert isinstance(batch["ignored_boxes"], jax.Array)
        np.testing.assert_array_equal(np.asarray(batch["ignored_boxes"]), ours)
    record = Loader(folders[0], **options, training=False).records[0]
    assert record["ignored_boxes"].shape == expected[0].shape[1:]


def test_tiles_give_the_complete_regions_on_request(tmp_path):
    write(tmp_path / "in", "DontCare")
    options = {"layout": "kitti", "annotation_grid": "stored", **FORMS["tiles"]}
    folder = run_convert(tmp_path / "in", tmp_path / "out", **options).folder
    include = ["ignored_source_boxes", "transform"]
    loader = Loader(folder, batch_size=8, training=False, include=include)
    found = 0
    for step in range(loader.steps):
        batch = loader.batch(step)
        for row in np.flatnonzero(batch["valid"]):
            shown = regions_of(batch, row)
            complete = batch["ignored_source_boxes"][row, : len(shown)]
            assert not batch["ignored_source_boxes"][row, len(shown) :].any()
            parts = apply_to_boxes(batch["transform"][row].reshape(6), shown.astype(np.float64) * 40)
            # A part is inside of its region in the file.
            assert (parts[:, :2] >= complete[:, :2] - 1e-3).all() and (
                parts[:, 2:] <= complete[:, 2:] + 1e-3
            ).all()
            found += len(shown)
    assert found > 8
