"""Label, affine and extent follow the voxels under every augmentation, and random choices are as documented."""

from collections import Counter

import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import (
    FlipDepth,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    MixUp,
    Mosaic,
    RandomCrop,
    Rotate90,
    ScaleJitter,
)
from halofeed.loader.augment import Example, augment, draw_uniform, draw_uniforms
from halofeed.loader.batch import join_id
from tests.support.volume_writer import draw_scans, write_scans

VOLUME = (6, 8, 10)
PICTURE = (20, 24)
CHAINS = {
    "flip left right": [FlipLeftRight(1.0)],
    "flip up down": [FlipUpDown(1.0)],
    "flip depth": [FlipDepth(1.0)],
    "sometimes": [FlipLeftRight(), FlipUpDown(), FlipDepth()],
    "crop": [RandomCrop(3, 5, 7)],
    "square, turn": [RandomCrop(6, 7, 7), Rotate90(1.0)],
    "foreground": [RandomCrop(2, 3, 3, foreground=1.0)],
    "foreground at times": [RandomCrop(2, 3, 3, foreground=0.5)],
    "foreground by class": [RandomCrop(2, 3, 3, foreground=0.7, by_class=True)],
    "whole": [RandomCrop(*VOLUME)],
}
CHAINS["all"] = [FlipDepth(), FlipLeftRight(), RandomCrop(5, 7, 7, foreground=0.5), Rotate90(), FlipUpDown()]
CHAINS["all"] += [RandomCrop(2, 4, 5, foreground=0.5), FlipLeftRight()]
STORAGE = [("raw", True), ("png", True), ("png", False)]
STORED = [{}, {"dtype": "bfloat16", "label_dtype": "uint16"}, {"channels": 3, "dtype": "float32"}]


def of_pictures(chain):
    """The chain without what only volumes know, for frames of `PICTURE`."""
    return [
        RandomCrop(*(2 * side for side in one.sides[1:]), foreground=one.foreground, by_class=one.by_class)
        if isinstance(one, RandomCrop)
        else one
        for one in chain
        if not isinstance(one, FlipDepth)
    ]


class Oracle:
    """Each augmentation in NumPy's own words, on the numbers of the stored voxels."""

    def __init__(self, label, extent):
        # Pictures are shown without their padding, which always lies at the bottom and right.
        shown = tuple(slice(0, high) for high in extent[1]) if label.ndim == 2 else ...
        self.stored = label
        self.inside = np.zeros(label.shape, bool)
        self.inside[tuple(map(slice, *extent))] = True
        self.numbers = np.arange(label.size).reshape(label.shape)[shown]

    def apply(self, one, drawn):
        if isinstance(one, RandomCrop):
            self.crop(one, drawn)
        elif drawn[0] < one.probability:
            if isinstance(one, Rotate90):
                self.numbers = np.rot90(self.numbers, 1 + int(3 * drawn[1]), axes=(-2, -1))
            else:
                axis = {FlipDepth: -3, FlipUpDown: -2, FlipLeftRight: -1}[type(one)]
                self.numbers = np.flip(self.numbers, axis)

    def crop(self, one, drawn):
        shape = np.minimum(one.sides, self.numbers.shape)
        inside = self.inside.ravel()[self.numbers]
        occupied = [np.flatnonzero(inside.any(axis=self.others(axis))) for axis in range(len(shape))]
        starts = []
        for side, size, places in zip(shape, self.numbers.shape, occupied, strict=True):
            windows = [range(start, start + side) for start in range(size - side + 1)]
            in_extent = [window[0] for window in windows if set(window) <= set(places.tolist())]
            around = [window[0] for window in windows if set(places.tolist()) <= set(window)]
            starts.append(in_extent or around)
        if drawn[3] < one.foreground:
            wanted = np.sort(self.numbers[(self.stored.ravel()[self.numbers] > 0) & inside])
            if len(wanted) and one.by_class:
                values = np.unique(self.stored.ravel()[wanted])
                wanted = wanted[self.stored.ravel()[wanted] == values[int(drawn[5] * len(values))]]
            if len(wanted):
                point = np.argwhere(self.numbers == wanted[int(drawn[4] * len(wanted))])[0]
                starts = [
                    [start for start in some if start <= at < start + side]
                    for some, at, side in zip(starts, point, shape, strict=True)
                ]
        numbers = drawn[[2, 0, 1]][-len(shape) :]
        chosen = [some[int(number * len(some))] for some, number in zip(starts, numbers, strict=True)]
        window = (slice(low, low + side) for low, side in zip(chosen, shape, strict=True))
        self.numbers = self.numbers[tuple(window)]

    def others(self, axis):
        return tuple(other for other in range(self.numbers.ndim) if other != axis)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(shape=VOLUME, count=9, **options):
        key = (shape, count, *sorted(options.items()))
        if key not in made:
            drawing = {k: v for k, v in options.items() if k in ("channels", "dtype", "label_dtype")}
            writing = {k: v for k, v in options.items() if k in ("encoding", "pad")}
            scans = draw_scans({"train": count}, shape=shape, **drawing)
            if drawing.get("dtype") == "bfloat16":
                writing["dtype"] = "bfloat16"
            path = write_scans(tmp_path_factory.mktemp("scans") / "1.0.0", scans, **writing)
            made[key] = path, {scan.id: scan for scan in scans}
        return made[key]

    return folder


def check(batch, row, scan, seed, epoch, chain, frame):
    oracle = Oracle(scan.label, scan.extent)
    for number, one in enumerate(chain):
        oracle.apply(one, draw_uniform(seed, epoch, scan.id, number))
    numbers = oracle.numbers
    channels = scan.image.shape[-1]
    inside = tuple(slice(0, size) for size in numbers.shape)
    image = np.zeros((*frame, channels), scan.image.dtype)
    label = np.zeros(frame, scan.label.dtype)
    image[inside] = scan.image.reshape(-1, channels)[numbers]
    label[inside] = scan.label.ravel()[numbers]
    found = batch["image"][row]
    assert np.array_equal(found.view(image.dtype), image)
    assert batch["label"].dtype == label.dtype and np.array_equal(batch["label"][row], label)
    assert batch["labelled"][row] == scan.labelled
    return oracle


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("options", STORED, ids=["int16", "bfloat16", "channels"])
def test_label_affine_spacing_and_extent_follow_the_voxels_of_volumes(folder_of, chain, options):
    folder, scans = folder_of(**options)
    chain = CHAINS[chain]
    include = ["affine", "extent", "spacing_mm", "source_affine", "tile", "tile_origin", "source_shape"]
    loader = Loader(folder, batch_size=9, seed=3, augment=chain, include=include)
    for epoch in range(4):
        batch = loader.batch(epoch)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            scan = scans[identity]
            oracle = check(batch, row, scan, 3, epoch, chain, loader.spec["image"].shape[1:-1])
            # The same tissue lies at the same millimeter.
            seen = np.indices(oracle.numbers.shape).reshape(3, -1)
            stored = np.stack(np.unravel_index(oracle.numbers.ravel(), VOLUME))
            ones = np.ones((1, seen.shape[1]))
            expected = scan.affine.astype(np.float64) @ np.vstack([stored, ones])
            assert np.allclose(batch["affine"][row] @ np.vstack([seen, ones]), expected, atol=1e-4)
            spacing = np.linalg.norm(batch["affine"][row, :3, :3], axis=0)
            assert np.allclose(batch["spacing_mm"][row], spacing, rtol=1e-5)
            extent = np.zeros(oracle.numbers.shape, bool)
            extent[tuple(map(slice, *batch["extent"][row]))] = True
            assert np.array_equal(extent, oracle.inside.ravel()[oracle.numbers])
            assert np.array_equal(batch["source_affine"][row], 2 * scan.affine)
            assert batch["tile"][row] == scan.tile
            assert batch["tile_origin"][row].tolist() == [scan.tile, 0, 2 * scan.tile]
            assert batch["source_shape"][row].tolist() == list(scan.source.shape)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
def test_label_and_transform_follow_the_pixels_of_pictures(folder_of, encoding, pad, chain):
    stored = {"channels": 3, "dtype": "uint8", "label_dtype": "uint16"}
    folder, scans = folder_of(PICTURE, encoding=encoding, pad=pad, **stored)
    chain = of_pictures(CHAINS[chain])
    loader = Loader(folder, batch_size=9, seed=3, augment=chain, include=["transform", "size"])
    for epoch in range(3):
        batch = loader.batch(epoch)
        for row, identity in enumerate(join_id(batch["id"]).tolist()):
            oracle = check(batch, row, scans[identity], 3, epoch, chain, loader.spec["image"].shape[1:-1])
            assert batch["size"][row].tolist() == list(oracle.numbers.shape)
            middle = np.indices(oracle.numbers.shape).reshape(2, -1) + 0.5
            source = batch["transform"][row] @ np.vstack([middle, np.ones_like(middle[:1])])
            stored = np.stack(np.unravel_index(oracle.numbers.ravel(), PICTURE)) + 0.5
            # The data sets' own transform is y * 2 + 1, x * 2 - 3.
            assert np.allclose(source, stored * 2 + [[1], [-3]])


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_window_holds_foreground_as_often_as_was_asked_for(share):
    label = np.zeros((9, 20, 20), np.uint8)
    label[4, 10, 10], label[8, 0, 19] = 2, 1
    scene = Example(view=Example.whole(label.shape).view, extent=((0, 9), (0, 20), (0, 20)), label=label)
    chain = [RandomCrop(2, 3, 4, foreground=share)]
    drawn = draw_uniforms(5, np.arange(3000), np.full(3000, 77), len(chain))
    views = [augment(chain, scene, own).view for own in drawn]
    seen = Counter(label[tuple(slice(*side) for side in view.box)].max() for view in views)
    # By chance: 2·3·4 of 8·18·17 windows hold the first voxel, and one the second.
    chance = (1 - share) * 24 / (8 * 18 * 17)
    for value in (1, 2):
        assert abs(seen[value] / 3000 - share / 2 - chance) < 0.03
    around = Counter(one.start for one in views if label[tuple(slice(*side) for side in one.box)].max() == 2)
    # Each window that holds the voxel in the middle is equally likely: 62 times where foreground is always drawn.
    assert len(around) == 24
    assert share < 1 or (min(around.values()) > 30 and max(around.values()) < 100)


def test_by_class_a_small_class_is_shown_as_often_as_a_large_one():
    label = np.zeros((9, 20, 20), np.uint8)
    label[:5], label[8, 19, 19] = 1, 2
    scene = Example(view=Example.whole(label.shape).view, extent=((0, 9), (0, 20), (0, 20)), label=label)
    shown = []
    for by_class in (False, True):
        chain = [RandomCrop(2, 3, 4, foreground=0.5, by_class=by_class)]
        views = [
            augment(chain, scene, own).view for own in draw_uniforms(5, np.arange(2000), np.full(2000, 77), 1)
        ]
        shown.append(sum((label[tuple(slice(*side) for side in one.box)] == 2).any() for one in views) / 2000)
    # Half of the windows are drawn around a voxel, and half of those around the class of one voxel.
    assert shown[0] < 0.01 and abs(shown[1] - 0.25) < 0.03


REFUSED = [
    (VOLUME, [Rotate90()], r"Rotate90: the images are 6 deep, 8 high and 10 wide.*RandomCrop\(6, 8, 8\)"),
    (PICTURE, [Rotate90()], r"Rotate90: the images are 20 high and 24 wide.*RandomCrop\(20, 20\)"),
    (PICTURE, [FlipDepth()], "pictures have no depth"),
    (VOLUME, [RandomCrop(7, 7)], r"RandomCrop\(7, 7\): .* 6 deep.*such as RandomCrop\(6, 7, 7\)"),
    (PICTURE, [RandomCrop(2, 7, 7)], r"\(2, 7, 7\): .*20 high and 24 wide.*such as RandomCrop\(7, 7\)"),
    (VOLUME, [RandomCrop(7, 7, 7)], r"6 deep, 8 high and 10 wide; crop at most that"),
    (VOLUME, [RandomCrop(3, 4, 5), Rotate90()], "3 deep, 4 high and 5 wide"),
    (VOLUME, [ScaleJitter(8, 8)], "volumes are not resized"),
    (VOLUME, [Mosaic(8, 8)], "takes pictures"),
    (VOLUME, [MixUp()], "takes pictures"),
]


@pytest.mark.parametrize(("shape", "chain", "message"), REFUSED)
def test_what_cannot_be_is_refused_before_a_record_is_read(folder_of, shape, chain, message):
    with pytest.raises(UsageError, match=message):
        Loader(folder_of(shape)[0], batch_size=1, augment=chain)


def test_foreground_needs_a_label_on_the_grid(draw, write):
    with pytest.raises(UsageError, match=r"foreground=0\.5 needs a label on the image's grid"):
        Loader(write(draw(3)), batch_size=1, augment=[RandomCrop(8, 8, foreground=0.5)])
