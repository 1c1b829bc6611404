"""Boxes, areas, masks and the transform follow the pixels under flips and crops."""

import numpy as np
import pytest

import halofeed.loader
from halofeed.errors import UsageError
from halofeed.loader import (
    ElasticDeformation,
    FlipDepth,
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
from halofeed.loader.augment import AUGMENTATIONS, build_augmentations, draw_uniform, draw_uniforms
from halofeed.loader.batch import join_id
from tests.support.picture_writer import example_of

FRAME = (24, 32)
PACKAGES = [halofeed.loader, halofeed.loader.augment]
STORAGE = [("raw", True), ("png", True), ("png", False)]
CROP, SQUARE = RandomCrop(13, 17, minimum_visible=0.0), RandomCrop(20, 20, minimum_visible=0.0)
CHAINS = {
    "flip left right": [FlipLeftRight(1.0)],
    "flip up down": [FlipUpDown(1.0)],
    "sometimes": [FlipLeftRight(), FlipUpDown()],
    "crop": [CROP],
    "flip, crop": [FlipLeftRight(1.0), FlipUpDown(1.0), CROP],
    "crop, flip, crop": [SQUARE, FlipLeftRight(1.0), CROP],
    "square, turn": [SQUARE, Rotate90(1.0)],
    "turn among all": [FlipLeftRight(), SQUARE, Rotate90(), FlipUpDown(), CROP],
    "whole": [RandomCrop(*FRAME, minimum_visible=0.0)],
}


def painted(count, seed=0):
    """Pictures of a grid of cells, some of which are boxes painted in a color of their own; the rest is black."""
    rng = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        size = (int(rng.integers(12, FRAME[0] + 1)), int(rng.integers(12, FRAME[1] + 1)))
        pixels = np.zeros((*size, 3), np.uint8)
        rows, columns = (np.unique(np.append(rng.choice(side + 1, 3), [0, side])) for side in size)
        cells = [
            (rows[i], columns[j], rows[i + 1], columns[j + 1])
            for i in range(len(rows) - 1)
            for j in range(len(columns) - 1)
            if rng.random() < 0.6
        ]
        for color, (ymin, xmin, ymax, xmax) in enumerate(cells, start=1):
            pixels[ymin:ymax, xmin:xmax] = (10 * color, 255 - color, number)
        classes = np.arange(1, len(cells) + 1)
        examples.append(example_of(number * 11, pixels, cells, classes, classes % 2))
    return examples


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
@pytest.mark.parametrize("chain", CHAINS)
def test_boxes_follow_their_pixels(write, encoding, pad, chain):
    examples = painted(9)
    folder = write(examples, encoding=encoding, pad=pad, max_boxes=20, masks=True)
    include = ["size", "masks", "difficult"]
    loader = Loader(folder, batch_size=9, seed=1, augment=CHAINS[chain], include=include)
    batch = loader.batch(2)
    frame = np.array(batch["image"].shape[1:3])
    originals = {example["id"]: example for example in examples}
    for row in range(9):
        original = originals[int(join_id(batch["id"][row]))]
        image, (height, width) = batch["image"][row], batch["size"][row]
        assert (image[height:] == (9, 8, 7)).all() and (image[:, width:] == (9, 8, 7)).all()
        picture = image[:height, :width]
        found = []
        for color in range(1, len(original["boxes"]) + 1):
            places = np.argwhere((picture[..., 0] == 10 * color) & (picture[..., 1] == 255 - color))
            if len(places):
                found.append((color, *places.min(axis=0), *(places.max(axis=0) + 1), len(places)))
        count = batch["num_boxes"][row]
        assert batch["classes"][row, :count].tolist() == [color for color, *_ in found]
        boxes = np.array([box for _, *box, _ in found]).reshape(-1, 4)
        assert np.allclose(batch["boxes"][row, :count] * np.tile(frame, 2), boxes, atol=1e-4)
        assert np.allclose(batch["area"][row, :count], [area for *_, area in found], rtol=1e-5)
        assert batch["is_crowd"][row, :count].tolist() == [color % 2 == 1 for color, *_ in found]
        assert batch["difficult"][row, :count].tolist() == [color % 2 == 0 for color, *_ in found]
        for name in ("boxes", "classes", "area", "is_crowd", "difficult", "masks"):
            assert not batch[name][row, count:].any()
        for mask, (color, *_) in zip(batch["masks"][row], found, strict=False):
            expected = (picture[..., 0] == 10 * color) & (picture[..., 1] == 255 - color)
            assert np.array_equal(mask[:height, :width], expected) and mask.sum() == expected.sum()


@pytest.mark.parametrize("minimum", [0.0, 0.3, 0.5, 1.0])
def test_boxes_of_which_too_little_is_left_are_dropped(write, minimum):
    examples = painted(20)
    classes_of = {example["id"]: example for example in examples}
    folder = write(examples, max_boxes=20)
    dropped = 0
    for step in range(3):
        everything, batch = (
            Loader(folder, batch_size=20, augment=[RandomCrop(10, 10, minimum_visible=least)]).batch(step)
            for least in (0.0, minimum)
        )
        assert np.array_equal(batch["image"], everything["image"])
        for row in range(20):
            original = classes_of[int(join_id(batch["id"][row]))]
            whole = np.prod(original["boxes"][:, 2:] - original["boxes"][:, :2], axis=1)
            count = everything["num_boxes"][row]
            classes, areas = everything["classes"][row, :count], everything["area"][row, :count]
            share = areas / whole[classes - 1]
            kept = batch["classes"][row, : batch["num_boxes"][row]]
            assert kept.tolist() == classes[share >= minimum - 1e-6].tolist()
            dropped += count - len(kept)
    assert (dropped > 0) == (minimum > 0)


def test_boxes_are_cut_to_max_boxes_after_the_crop(write):
    examples = painted(12)
    folder, large = write(examples, max_boxes=2), write(examples, max_boxes=20)
    options = {"batch_size": 12, "augment": [RandomCrop(8, 8)]}
    few, all_of_them = Loader(folder, **options).batch(0), Loader(large, **options).batch(0)
    assert (all_of_them["num_boxes"] > 2).any()
    assert np.array_equal(few["num_boxes"], np.minimum(all_of_them["num_boxes"], 2))
    assert np.array_equal(few["boxes"], all_of_them["boxes"][:, :2])


def test_draws_of_a_batch_are_the_words_of_numpys_generator():
    rng = np.random.default_rng(0)
    epochs, ids = rng.integers(0, 2**40, 50), rng.integers(-(2**63), 2**63 - 1, 50)
    for seed in (0, 2**64 - 1):
        drawn = draw_uniforms(seed, epochs, ids, 3)
        for example, number in np.ndindex(50, 3):
            key = np.array([seed, epochs[example]], np.uint64)
            counter = np.array([0, 0, int(ids[example]) % 2**64, number], np.uint64)
            words = np.random.Philox(key=key, counter=counter).random_raw(8)
            assert drawn[example, number].tolist() == [(int(word) >> 11) * 2.0**-53 for word in words]


def test_draws_are_fixed_for_all_time():
    drawn = [0.6044423335601707, 0.7235559951065417, 0.038216092089916165, 0.7863267218367057]
    assert draw_uniform(7, 3, 12345, 1)[:4].tolist() == drawn


IMPOSSIBLE = [(lambda: FlipLeftRight(1.5), "probability"), (lambda: FlipUpDown(-1), "probability")]
IMPOSSIBLE += [(lambda: FlipDepth(2), "probability"), (lambda: Rotate90(-0.1), "probability")]
IMPOSSIBLE += [(lambda: RandomCrop(0, 3), "RandomCrop: expected a height")]
IMPOSSIBLE += [(lambda: RandomCrop(3, 3, 2.0), "RandomCrop: expected a height")]
IMPOSSIBLE += [(lambda: RandomCrop(3), "RandomCrop: expected a height")]
IMPOSSIBLE += [(lambda: RandomCrop(3, 3, 3, 3), "RandomCrop: expected a height")]
IMPOSSIBLE += [(lambda: RandomCrop(3, 3, minimum_visible=2.0), "RandomCrop: minimum_visible")]
IMPOSSIBLE += [(lambda: RandomCrop(3, 3, foreground=-0.5), "RandomCrop: foreground")]
IMPOSSIBLE += [(lambda: ScaleJitter(0, 8), "ScaleJitter: expected a height")]
IMPOSSIBLE += [(lambda: ScaleJitter(8, 8, (0.0, 1.0)), "ScaleJitter: scales")]
IMPOSSIBLE += [(lambda: ScaleJitter(8, 8, (2.0, 1.0)), "ScaleJitter: scales")]
IMPOSSIBLE += [(lambda: ScaleJitter(8, 8, 2.0), "ScaleJitter: scales")]
IMPOSSIBLE += [(lambda: ScaleJitter(8, 8, minimum_visible=2.0), "ScaleJitter: minimum_visible")]
IMPOSSIBLE += [
    (lambda: RandomCropImage(area_range=(0.0, 1.0)), "RandomCropImage: area_range: expected values")
]
IMPOSSIBLE += [(lambda: RandomCropImage(overlap_thresh=2), "RandomCropImage: overlap_thresh")]
IMPOSSIBLE += [(lambda: RandomRotation(-1), "RandomRotation: degrees")]
IMPOSSIBLE += [(lambda: RandomRotation((1, 2)), "RandomRotation: degrees")]
IMPOSSIBLE += [(lambda: RandomRotation(400), "RandomRotation: degrees")]
IMPOSSIBLE += [(lambda: ElasticDeformation(magnitude=5.0, grid=10.0), "nothing folds")]
IMPOSSIBLE += [(lambda: Mosaic(0, 5), "Mosaic: expected a height")]
IMPOSSIBLE += [(lambda: Mosaic(5, 5, (0, 1)), "Mosaic: expected scales above 0")]
IMPOSSIBLE += [(lambda: Mosaic(5, 5, center=(0, 1)), "Mosaic: expected scales above 0")]
IMPOSSIBLE += [(lambda: MixUp((0.5, 2.0)), "MixUp: shares")]


@pytest.mark.parametrize(("make", "words"), IMPOSSIBLE)
def test_impossible_augmentations_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


TABLES = {"FlipLeftRight": {"probability": 0.2}, "FlipUpDown": {}, "FlipDepth": {}}
TABLES |= {"Rotate90": {"probability": 0.5}, "RandomCrop": {"sides": [4, 5], "minimum_visible": 0.1}}
TABLES |= {"ScaleJitter": {"height": 8, "width": 9, "scales": [0.5, 2]}, "MixUp": {"shares": [0.5, 0.5]}}
TABLES |= {
    "RandomRotation": {"degrees": [5, 0, 10], "fill": 0},
    "ElasticDeformation": {"magnitude": 2, "grid": 10},
}
TABLES |= {"RandAugmentMoves": {"operations": 3, "magnitude": 4}}
TABLES |= {"PadAndCrop": {"padding": 3, "fill": 0}}
TABLES |= {"Mosaic": {"height": 8, "width": 9, "center": [0.4, 0.6]}}
TABLES |= {"RandomCropImage": {"area_range": [0.5, 1]}, "SsdRandomCrop": {}}
TABLES |= {"RandomResizedCrop": {"height": 8, "width": 9, "area_range": [0.5, 1]}}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_recipe_builds_each_and_it_says_all_of_itself(name):
    (built,) = build_augmentations([{"name": name, **TABLES[name]}])
    assert eval(repr(built), dict(AUGMENTATIONS)) == built
    assert hash(built) == hash(build_augmentations([{"name": name, **TABLES[name]}])[0])
    with pytest.raises(UsageError, match=f"augment {name}: .*it takes"):
        build_augmentations([{"name": name, **TABLES[name], "strength": 1}])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_each_of_its_names_and_no_others(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    for name in AUGMENTATIONS:
        assert getattr(package, name) is AUGMENTATIONS[name]
    with pytest.raises(AttributeError, match=f"{package.__name__}.*FlipLeftLeft"):
        package.FlipLeftLeft  # noqa: B018
