"""The corners of objects follow every augmentation, point by point; boxes of turned pictures are around them.

The oracle goes the other way: it maps each corner of a batch to the pixels of the source by the batch's `transform`,
which the loader computes for pixels, and compares it with the corner in the label file. Where no transform exists
(mosaics), a corner keeps its place between the sides of its box.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import (
    FlipLeftRight,
    FlipUpDown,
    Loader,
    MixUp,
    Mosaic,
    PadAndCrop,
    RandAugmentMoves,
    RandomCrop,
    RandomCropImage,
    RandomResizedCrop,
    RandomRotation,
    Rotate90,
    ScaleJitter,
    SsdRandomCrop,
)
from halofeed.prep.geometry.resize import apply_affine
from tests.support.conversions import run_convert

PICTURES, OBJECTS = 12, 5
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
}


def labels():
    """Return the corners of each picture's objects, x and y in its pixels; some lie partly outside."""
    random, found = np.random.default_rng(11), {}
    for number in range(PICTURES):
        size = random.integers(40, 90, 2)
        angles = random.uniform(0, 2 * np.pi, OBJECTS)
        halves = random.uniform(3, 14, (OBJECTS, 2)) / 2
        corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * halves[:, None]
        turns = np.array([[np.cos(angles), np.sin(angles)], [-np.sin(angles), np.cos(angles)]])
        turned = np.einsum("nki,ijn->nkj", corners, turns) + random.uniform(0, 1, (OBJECTS, 1, 2)) * size
        # The last object is upright.
        turned[-1] = corners[-1] + size / 2
        found[f"P{number}"] = tuple(size[::-1]), turned.round(2)
    return found


LABELS = labels()


@pytest.fixture(scope="module", params=FORMS)
def folder(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("corners")
    for name, (size, corners) in LABELS.items():
        for part in ("images", "labelTxt"):
            (root / f"in/train/{part}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / f"in/train/images/{name}.png"), np.full((*size, 3), 90, np.uint8))
        rows = (f"{' '.join(map(repr, one.reshape(-1).tolist()))} plane 0" for one in corners)
        (root / f"in/train/labelTxt/{name}.txt").write_text("\n".join(rows))
    options = {"layout": "dota", "keep": ("corners",), "max_boxes": 24, **FORMS[request.param]}
    return run_convert(root / "in", root / "out", **options).folder


def load(folder, chain, include=("corners", "transform", "key", "size"), step=0):
    loader = Loader(folder, batch_size=PICTURES, seed=5, augment=chain, include=include)
    return loader.batch(step)


def in_source(batch, row):
    """Map the corners of a row to x and y in pixels of its source."""
    count, shape = batch["num_boxes"][row], batch["image"].shape[1:3]
    points = batch["corners"][row, :count].reshape(-1, 4, 2).astype(np.float64) * shape
    return apply_affine(batch["transform"][row].reshape(6), points)[..., ::-1]


def written(batch, row):
    name = str(batch["key"][row]).rpartition("/")[2].removesuffix(".png")
    return LABELS[name][1]


CHAINS = {
    "none": [],
    "flips": [FlipLeftRight(0.5), FlipUpDown(0.5)],
    "crop": [RandomCrop(30, 36)],
    "planned": [FlipLeftRight(0.5), RandomCrop(40, 36, minimum_visible=0.1), FlipUpDown(0.5)],
    "quarter turns": [RandomCrop(40, 40), Rotate90(1.0)],
    "scale": [ScaleJitter(64, 40, scales=(0.5, 2.0))],
    "stretched crop": [RandomCropImage(min_object_covered=0.5)],
    "SSD": [SsdRandomCrop()],
    "resized crop": [FlipUpDown(0.5), RandomResizedCrop(36, 60, area_range=(0.3, 1.0))],
    "turn": [RandomRotation(40.0)],
    "shift": [PadAndCrop(9), FlipLeftRight(1.0), PadAndCrop(3)],
    "shears, shifts and turns": [RandAugmentMoves(8, 5.0), FlipUpDown(0.5)],
    "turn, then crop": [RandomRotation(20.0), FlipUpDown(1.0), RandomCrop(40, 40)],
    "crop, then turn": [RandomCrop(36, 36), Rotate90(0.5), RandomRotation(90.0)],
    "all": [FlipLeftRight(0.5), ScaleJitter(56, 72), RandomRotation(10.0), RandomCrop(48, 48), Rotate90(1.0)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_each_corner_is_what_the_label_file_says_in_pixels_of_the_source(folder, chain):
    found = 0
    for step in (0, 1):  # the second epoch finds all values in the caches
        batch = load(folder, CHAINS[chain], step=step)
        for row in np.flatnonzero(batch["valid"]):
            expected = written(batch, row)
            distances = np.abs(in_source(batch, row)[:, None] - expected[None]).max(axis=(2, 3))
            # Some objects are outside of what is shown; the others keep their order, and their corners theirs.
            which = distances.argmin(axis=1)
            assert (distances.min(axis=1) < 1e-3).all() and (np.diff(which) > 0).all()
            assert not batch["corners"][row, batch["num_boxes"][row] :].any()
            found += len(which)
    assert found > PICTURES * OBJECTS / 2


@pytest.mark.parametrize("chain", CHAINS)
def test_planned_rows_and_rows_one_by_one_have_the_same_corners(folder, chain):
    with_transform, without = (
        load(folder, CHAINS[chain], include) for include in (("corners", "transform"), ("corners",))
    )
    for name in without:
        assert np.array_equal(with_transform[name], without[name]), name


@pytest.mark.parametrize("chain", ["turn", "turn, then crop", "crop, then turn", "all"])
def test_boxes_of_turned_pictures_are_around_the_corners_with_and_without_including_them(folder, chain):
    batch, plain = load(folder, CHAINS[chain]), load(folder, CHAINS[chain], ())
    assert "corners" not in plain
    for name in ("boxes", "area", "num_boxes", "image"):
        assert np.array_equal(batch[name], plain[name])
    for row in range(PICTURES):
        count = batch["num_boxes"][row]
        corners = batch["corners"][row, :count].reshape(-1, 4, 2)
        shown = np.tile(batch["size"][row] / batch["image"].shape[1:3], 2)
        around = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).clip(0, shown)
        boxes = batch["boxes"][row, :count]
        if chain == "turn":
            # Nothing cut the objects before, except for the rim of the stored picture.
            inside = inside_source(batch, row)
            np.testing.assert_allclose(boxes[inside], around[inside], atol=2e-6)
        # A picture that is turned twice, or cropped first, shows less of an object than is in the box around it.
        assert (boxes[:, :2] >= around[:, :2] - 2e-6).all() and (boxes[:, 2:] <= around[:, 2:] + 2e-6).all()


def inside_source(batch, row):
    """Return which objects lie inside of their source."""
    name = str(batch["key"][row]).rpartition("/")[2].removesuffix(".png")
    points = in_source(batch, row)
    return ((points >= 0) & (points <= np.array(LABELS[name][0][::-1]))).all(axis=(1, 2))


def test_a_turned_box_is_smaller_than_that_of_a_data_set_without_corners(folder, tmp_path):
    source = Path(folder).parents[2] / "in"
    options = {"layout": "dota", "max_boxes": 24, **FORMS["raw"]}
    plain = run_convert(source, tmp_path / "out", **options).folder
    chain = [RandomRotation(45.0, minimum_visible=0.0)]
    sizes = []
    for data in (run_convert(source, tmp_path / "kept", keep=("corners",), **options).folder, plain):
        batch = load(data, chain, ())
        sizes.append((batch["boxes"][..., 2:] - batch["boxes"][..., :2]).prod(axis=-1).sum())
    assert sizes[0] < 0.8 * sizes[1]


def shapes(corners):
    """Return corners [n, 4, 2] as shares of the box around them."""
    low, high = corners.min(axis=1, keepdims=True), corners.max(axis=1, keepdims=True)
    return (corners - low) / (high - low)


COMBINED = {
    "mosaic": ([Mosaic(60, 80, minimum_visible=0.05)], False),
    "mixup": ([MixUp(probability=1.0)], False),
    "flipped mosaic": ([Mosaic(64, 64), FlipLeftRight(1.0)], True),
    "mosaic of crops": ([RandomCrop(30, 30), ScaleJitter(40, 40), Mosaic(64, 64)], False),
}


@pytest.mark.parametrize("case", COMBINED)
def test_corners_of_combined_pictures_have_the_shape_of_an_object_and_the_place_of_its_box(folder, case):
    chain, is_mirrored = COMBINED[case]
    batch = load(folder, chain, ("corners",))
    known = shapes(np.concatenate([corners for _, corners in LABELS.values()])[..., ::-1])
    whole = 0
    for row in range(PICTURES):
        count = batch["num_boxes"][row]
        boxes, corners = batch["boxes"][row, :count], batch["corners"][row, :count].reshape(-1, 4, 2)
        found = shapes(corners.astype(np.float64))
        if is_mirrored:
            found[..., 1] = 1 - found[..., 1]
        assert (np.abs(found[:, None] - known[None]).max(axis=(2, 3)).min(axis=1) < 1e-3).all()
        # A picture's rim and a tile's cut the box, and not the corners.
        low, high = corners.min(axis=1), corners.max(axis=1)
        assert (low <= boxes[:, :2] + 1e-5).all() and (high >= boxes[:, 2:] - 1e-5).all()
        same = np.isclose(boxes, np.concatenate([low, high], axis=1), atol=1e-5)
        whole += same.all(axis=1).sum()
        # Each side that is not cut is that of the corners.
        assert same.any(axis=1).all()
    assert whole > PICTURES


def test_streams_of_tensorflow_have_the_same_corners(folder):
    pytest.importorskip("tensorflow")
    loader = Loader(folder, batch_size=4, seed=5, augment=CHAINS["planned"], include=["corners"])
    expected = loader.batch(0)["corners"]
    first = next(iter(loader.dataset()))
    assert np.array_equal(first["corners"].numpy(), expected)


def test_a_data_set_without_corners_says_what_can_be_included(tmp_path):
    source = tmp_path / "in/train"
    for part in ("images", "labelTxt"):
        (source / part).mkdir(parents=True)
    cv2.imwrite(str(source / "images/a.png"), np.zeros((20, 20, 3), np.uint8))
    (source / "labelTxt/a.txt").write_text("1 1 9 1 9 9 1 9 plane 0\n")
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="dota")
    with pytest.raises(UsageError, match="include 'corners'"):
        Loader(done.folder, batch_size=1, include=["corners"])
