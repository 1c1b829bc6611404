"""What a batch shows leads back to the stored image, point by point, by the transform or the affine that it states.

Each stored pixel has a value of its own: a label that numbers it, and colors that rise along each axis. So a pixel of a
batch states where it is from, and that is where its transform must lead, in image, label, boxes and masks alike.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.loader import (
    FlipDepth,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    PadAndCrop,
    RandAugmentMoves,
    RandomCropImage,
    RandomResizedCrop,
    SsdRandomCrop,
)
from halofeed.loader.batch import join_id
from tests.support.picture_writer import example_of
from tests.support.volume_writer import draw_scans, write_scans

FRAME = (40, 56)
SLOPES = np.array([5, 4])
"""Levels by which the first color rises from row to row, and the second one from column to column."""
VOLUME = (8, 10, 12)
CHAINS = {
    "resized crop": [RandomResizedCrop(30, 42)],
    "enlarged crop": [FlipUpDown(), RandomResizedCrop(70, 50, area_range=(0.1, 0.5))],
    "crop of SSD": [SsdRandomCrop()],
    "flipped crop of an image": [FlipLeftRight(), RandomCropImage(0.0, (0.5, 2.0), (0.2, 0.8))],
    "moves": [RandAugmentMoves(operations=4, magnitude=5.0)],
    "flipped moves": [FlipLeftRight(1.0), RandAugmentMoves(operations=8, magnitude=3.0)],
    "padded crop": [PadAndCrop(9)],
    "flipped padded crop": [FlipUpDown(), PadAndCrop(6), FlipLeftRight()],
}
MOVES = {"moves", "flipped moves"}
SEEDS = st.integers(0, 2**64 - 1)
SLACK = 1 / 16
"""OpenCV rounds positions to 1/32 pixel."""


def colored(size):
    """A picture whose colors state the place of each pixel."""
    y, x = np.indices(size)
    return np.stack([SLOPES[0] * y, SLOPES[1] * x, np.full(size, 90)], -1).astype(np.uint8)


@pytest.fixture(scope="module", params=["raw", "png"])
def labelled(request, tmp_path_factory):
    """Pictures whose labels number their pixels from 1."""
    scans = draw_scans({"train": 4}, shape=FRAME, channels=3, dtype="uint8", label_dtype="uint16")
    numbers = 1 + np.arange(np.prod(FRAME), dtype=np.uint16).reshape(FRAME)
    for number, scan in enumerate(scans):
        # Two pictures fill the frame, and the others are padded.
        high, wide = FRAME if number < 2 else scan.extent[1]
        scan.extent[1] = high, wide
        scan.image[...], scan.label[...] = 0, 0
        scan.image[:high, :wide], scan.label[:high, :wide] = (
            colored((high, wide)),
            numbers[:high, :wide],
        )
    scans = [dataclasses.replace(scan, labelled=True) for scan in scans]
    folder = write_scans(tmp_path_factory.mktemp("labelled") / "1.0.0", scans, encoding=request.param)
    return folder, {scan.id: tuple(scan.extent[1].tolist()) for scan in scans}


@pytest.fixture(scope="module")
def objects(write):
    """Pictures with boxes and masks of all sizes, the first of one pixel; `classes` number them."""
    generator, examples = np.random.default_rng(1), []
    for number in range(4):
        size = FRAME if number < 2 else tuple(int(side) for side in generator.integers(24, 40, 2))
        boxes = [(5, 7, 6, 8)]
        for _ in range(7):
            boxes.append(
                tuple(
                    np.array(
                        [np.sort(generator.choice(side + 1, 2, replace=False)) for side in size]
                    ).T.ravel()
                )
            )
        examples.append(example_of(number + 1, colored(size), boxes, np.arange(1, 9), np.zeros(8, int)))
    folder = write(examples, frame=FRAME, encoding="raw", max_boxes=8, masks=True)
    return folder, {example["id"]: example for example in examples}


def stored_points(transform, shape):
    """Where the center of each pixel shown is in the stored picture, float64 [height, width, 2]."""
    centers = np.moveaxis(np.indices(shape), 0, -1) + 0.5
    # The data sets' own transform to the source is y * 2 + 1, x * 2 - 3.
    return (centers @ transform[:, :2].T.astype(np.float64) + transform[:, 2] - [1, -3]) / 2


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_each_pixel_and_its_label_come_from_the_point_to_which_the_transform_leads(labelled, chain, seed):
    folder, sizes = labelled
    loader = Loader(folder, batch_size=4, seed=seed, augment=CHAINS[chain], include=["transform", "size"])
    batch = loader.batch(seed % 5)
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        size, shape = np.array(sizes[identity]), batch["size"][row].tolist()
        label = batch["label"][row][: shape[0], : shape[1]].astype(int)
        image = batch["image"][row][: shape[0], : shape[1]].astype(float)
        points = stored_points(batch["transform"][row], shape)
        inside = np.all((points > SLACK) & (points < size - SLACK), -1)
        outside = np.any((points < -SLACK) | (points > size + SLACK), -1)
        # The nearest pixel is the one that contains the point.
        assert (label[inside] > 0).all() and not label[outside].any()
        found = np.stack(np.divmod(label - 1, FRAME[1]), -1)
        assert np.abs(found + 0.5 - points)[label > 0].max(initial=0) <= 0.5 + SLACK
        # A triangle filter is exact for colors that rise evenly, except next to the border of what it averages.
        matrix = batch["transform"][row, :, :2].astype(np.float64) / 2
        reach = np.maximum(1, np.abs(matrix).max(1)) + 1
        rim = [int(np.ceil(one)) for one in reach / np.maximum(np.abs(matrix).max(1), 1e-9)]
        sure = np.all((points > reach) & (points < size - reach), -1)
        if chain not in MOVES:
            middle = np.zeros_like(sure)
            middle[rim[0] : shape[0] - rim[0], rim[1] : shape[1] - rim[1]] = True
            sure &= middle
        expected = SLOPES * (points - 0.5)
        assert np.abs(image[..., :2] - expected)[sure].max(initial=0) <= 0.5 + SLOPES.max() * SLACK


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_each_box_and_mask_is_the_stored_one_by_way_of_the_transform(objects, chain, seed):
    folder, examples = objects
    include = ["transform", "size", "masks"]
    loader = Loader(folder, batch_size=4, seed=seed, augment=CHAINS[chain], include=include)
    batch = loader.batch(seed % 5)
    frame = batch["image"].shape[1:3]
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        shape = batch["size"][row].tolist()
        transform = batch["transform"][row].astype(np.float64)
        points = stored_points(transform, shape)
        matrix, start = transform[:, :2] / 2, (transform[:, 2] - [1, -3]) / 2
        for place in range(batch["num_boxes"][row]):
            box = np.array(examples[identity]["boxes"][batch["classes"][row, place] - 1], float)
            corners = np.array([[box[a], box[b]] for a in (0, 2) for b in (1, 3)])
            moved = (corners - start) @ np.linalg.inv(matrix).T
            around = np.concatenate([moved.min(0), moved.max(0)]).clip(0, [*shape, *shape])
            found = batch["boxes"][row, place] * np.array([*frame, *frame], float)
            np.testing.assert_allclose(found, around, atol=2e-3)
            mask = batch["masks"][row, place][: shape[0], : shape[1]].astype(bool)
            within = np.all((points > box[:2] + SLACK) & (points < box[2:] - SLACK), -1)
            beyond = np.any((points < box[:2] - SLACK) | (points > box[2:] + SLACK), -1)
            assert mask[within].all() and not mask[beyond].any()
            assert not batch["masks"][row, place][shape[0] :].any()


@pytest.mark.parametrize(
    "chain",
    [
        [PadAndCrop(4)],
        [FlipDepth(), FlipLeftRight(), PadAndCrop(3)],
        [FlipUpDown(1.0), PadAndCrop(5), FlipDepth()],
    ],
    ids=["shift", "flip, shift", "flip, shift, flip"],
)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_each_voxel_is_the_stored_one_to_which_the_affine_leads(volumes, chain, seed):
    folder, scans = volumes
    loader = Loader(folder, batch_size=4, seed=seed, augment=chain, include=["affine", "extent"])
    batch = loader.batch(seed % 5)
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        scan = scans[identity]
        seen = np.stack([*np.indices(VOLUME).reshape(3, -1), np.ones(np.prod(VOLUME))])
        back = np.linalg.inv(scan.affine.astype(np.float64)) @ batch["affine"][row].astype(np.float64)
        places = (back @ seen)[:3].T
        stored = np.rint(places).astype(int)
        assert np.abs(places - stored).max() < 1e-2
        inside = np.all((stored >= 0) & (stored < VOLUME), 1)
        assert inside.any()
        at = tuple(stored[inside].T)
        np.testing.assert_array_equal(batch["image"][row].reshape(-1, 1)[inside], scan.image[at])
        np.testing.assert_array_equal(batch["label"][row].ravel()[inside], scan.label[at])
        assert not batch["label"][row].ravel()[~inside].any()
        shown = np.zeros(VOLUME, bool)
        shown[tuple(map(slice, *batch["extent"][row]))] = True
        of_scan = inside & np.all((stored >= scan.extent[0]) & (stored < scan.extent[1]), 1)
        np.testing.assert_array_equal(shown.ravel(), of_scan)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    scans = draw_scans({"train": 4}, shape=VOLUME)
    numbers = 1 + np.arange(np.prod(VOLUME), dtype=np.uint16).reshape(VOLUME)
    turned = []
    for scan in scans:
        # A well-conditioned affine, so that float32 leads back to the voxel.
        axes = np.linalg.qr(scan.affine[:3, :3].astype(np.float64))[0] * [2.0, 1.0, 1.5]
        scan.affine[:3, :3] = axes
        turned.append(dataclasses.replace(scan, label=numbers, labelled=True))
    folder = write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", turned)
    return folder, {scan.id: scan for scan in turned}
