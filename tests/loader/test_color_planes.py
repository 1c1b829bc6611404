"""Pictures that are stored as color planes (`--encoding yuv420`): their formula, and batches of every augmentation."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.loader import (
    FlipLeftRight,
    FlipUpDown,
    Loader,
    Mosaic,
    RandomCrop,
    Rotate90,
)
from halofeed.loader.device import to_rgb as to_rgb_on_device
from halofeed.schemas import color_planes
from halofeed.schemas.color_planes import color_window, colors_of, planes_of, split_colors
from halofeed.schemas.native import coloring
from halofeed.system.errors import UsageError
from tests.support.conversions import run_convert
from tests.support.kernels import kernel_if, needs_kernel, ways

SIZE = (42, 66)
AUGMENTATIONS = {
    "none": [],
    "crop at any pixel": [RandomCrop(17, 23)],
    "flips and crop": [FlipLeftRight(0.5), FlipUpDown(0.5), RandomCrop(30, 41)],
    "turn": [RandomCrop(31, 31), Rotate90(0.7)],
    "mosaic": [Mosaic(40, 40)],
}


def slow_planes(pixels):
    """The planes of a picture by the formulas of T.871, pixel by pixel in floating point."""
    red, green, blue = np.moveaxis(pixels.astype(float), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    blue_part = 128 - 0.168736 * red - 0.331264 * green + 0.5 * blue
    red_part = 128 + 0.5 * red - 0.418688 * green - 0.081312 * blue
    height, width = luma.shape
    squares = [
        part.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)).clip(0, 255)
        for part in (blue_part, red_part)
    ]
    return luma, np.stack(squares, axis=-1)


def pictures():
    draw_size = st.integers(1, 40)
    return st.tuples(draw_size, draw_size, st.integers(0, 2**32 - 1), st.booleans())


def drawn(height, width, seed, is_noise):
    rng = np.random.default_rng(seed)
    if is_noise:
        return rng.integers(0, 256, (2 * height, 2 * width, 3), np.uint8)
    return np.full((2 * height, 2 * width, 3), rng.integers(0, 256, 3), np.uint8)


@given(pictures())
@settings(max_examples=60, deadline=None)
def test_planes_are_those_of_the_standard_and_gray_stays_exact(what):
    pixels = drawn(*what)
    luma, chroma = planes_of(split_colors(pixels), pixels.shape[:2])
    expected_luma, expected_chroma = slow_planes(pixels)
    assert np.abs(luma - expected_luma).max() <= 0.51
    assert np.abs(chroma - expected_chroma).max() <= 0.51
    gray = np.repeat(pixels[..., :1], 3, axis=-1)
    stored = split_colors(gray)
    sides = tuple((0, side) for side in gray.shape[:2])
    assert (color_window(stored, gray.shape[:2], sides) == gray).all()


@needs_kernel
@given(pictures(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_kernel_and_numpy_give_the_same_bits_of_every_window(what, data):
    pixels = drawn(*what)
    size = pixels.shape[:2]
    value = split_colors(pixels)
    box = tuple(
        (start := data.draw(st.integers(0, side - 1)), data.draw(st.integers(start + 1, side)))
        for side in size
    )
    backwards = data.draw(st.tuples(st.booleans(), st.booleans()))
    found = color_window(value, size, box, backwards)
    luma, chroma = planes_of(value, size)
    complete = colors_of(luma, chroma.repeat(2, axis=0).repeat(2, axis=1))
    window = complete[tuple(slice(*side) for side in box)]
    assert (found == window[tuple(slice(None, None, -1 if back else 1) for back in backwards)]).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coloring, "colors_pictures", lambda: False)
        assert (color_planes.split_colors(pixels) == value).all()
        assert (color_planes.color_window(value, size, box, backwards) == found).all()


def write_pictures(folder, pixels, labeled):
    for number, (one, source) in enumerate(zip(pixels, labeled, strict=True)):
        label = (source[..., 0] // 90).astype(np.uint8) if number % 3 else np.zeros(SIZE, np.uint8)
        for name, array in (("images", one[..., ::-1]), ("labels", label)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(folder / name / f"{number:02d}.png"), array)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A set of color planes, and a raw set of the pictures that these show, with the same ids."""
    folder = tmp_path_factory.mktemp("planes")
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (12, 6, 9, 3)).astype(np.uint8)
    pixels = np.stack([cv2.resize(one, SIZE[::-1]) for one in small])
    sides = tuple((0, side) for side in SIZE)
    shown = [color_window(split_colors(one), SIZE, sides) for one in pixels]
    write_pictures(folder / "pictures", pixels, pixels)
    write_pictures(folder / "shown", shown, pixels)
    made = []
    for source, encoding in (("pictures", "yuv420"), ("shown", "raw")):
        options = {"layout": "pairs", "encoding": encoding, "height": SIZE[0], "width": SIZE[1]}
        run_convert(folder / source, folder / encoding, resize="fixed-shape", **options)
        made.append(folder / encoding / "set/1.0.0")
    return made[0], made[1]


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("verify", ["first", "never"])
def test_batches_are_those_of_the_complete_pictures(sets, name, verify):
    planes, raw = (
        Loader(data, split="train", batch_size=4, seed=5, augment=AUGMENTATIONS[name], verify=verify)
        for data in sets
    )
    for step in range(9):
        ours, expected = planes.batch(step), raw.batch(step)
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            assert (ours[key] == value).all(), key


EVEN = {
    "none": [],
    "crop": [RandomCrop(18, 24, step=2)],
    "flips and crop": [FlipLeftRight(0.5), FlipUpDown(0.5), RandomCrop(30, 42, step=2)],
}


def shown_by(loader, step, library):
    batch = loader.batch(step)
    luma, chroma = batch["luma"], batch["chroma"]
    if library == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        return to_rgb_on_device(tf.constant(luma), tf.constant(chroma)).numpy()
    return np.asarray(to_rgb_on_device(luma, chroma))


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize("library", ["jax", pytest.param("tensorflow", marks=pytest.mark.long)])
@ways
def test_planes_of_batches_become_the_colors_of_rgb_batches_on_the_device(sets, name, library, is_used):
    options = {"split": "train", "batch_size": 4, "seed": 5, "augment": EVEN[name]}
    with kernel_if(is_used):
        planes, rgb = (Loader(sets[0], color=color, **options) for color in ("planes", "rgb"))
        for step in range(7):
            ours, expected = planes.batch(step), rgb.batch(step)
            assert "image" not in ours
            assert ours["luma"].nbytes + ours["chroma"].nbytes == expected["image"].nbytes // 2
            assert (shown_by(planes, step, library) == expected["image"]).all()
            assert (ours["label"] == expected["label"]).all()


def test_a_core_has_its_rows_of_both_planes(sets):
    planes = Loader(sets[0], split="train", batch_size=4, seed=5, color="planes")
    complete, slab = planes.batch(3), planes.of_slab(((10, 26), (0, 66))).batch(3)
    assert (slab["luma"] == complete["luma"][:, 10:26]).all()
    assert (slab["chroma"] == complete["chroma"][:, 5:13]).all()
    with pytest.raises(UsageError, match="even height"):
        planes.of_slab(((9, 26), (0, 66)))


@pytest.mark.parametrize(
    ("augment", "cure"),
    [
        ([RandomCrop(18, 24)], r"RandomCrop\(18, 24, step=2\)"),
        ([RandomCrop(17, 24, step=2)], "even height"),
        ([Mosaic(40, 40)], "leave color out"),
    ],
)
def test_what_planes_cannot_show_is_refused_with_a_cure(sets, augment, cure):
    with pytest.raises(UsageError, match=cure):
        Loader(sets[0], split="train", batch_size=4, color="planes", augment=augment)


def test_planes_need_pictures_that_are_stored_as_planes(sets):
    with pytest.raises(UsageError, match="--encoding yuv420"):
        Loader(sets[1], split="train", batch_size=4, color="planes")
    with pytest.raises(UsageError, match="rgb, planes"):
        Loader(sets[1], split="train", batch_size=4, color="yuv")
