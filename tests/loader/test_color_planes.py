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
from halofeed.schemas import color_planes
from halofeed.schemas.color_planes import color_window, planes_of, split_colors, to_rgb
from halofeed.schemas.native import coloring
from tests.support.conversions import run_convert
from tests.support.kernels import needs_kernel

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


def pictures(draw_size=st.integers(1, 40)):
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
        (start := data.draw(st.integers(0, side - 1)), data.draw(st.integers(start + 1, side))) for side in size
    )
    backwards = data.draw(st.tuples(st.booleans(), st.booleans()))
    found = color_window(value, size, box, backwards)
    luma, chroma = planes_of(value, size)
    complete = to_rgb(luma, chroma.repeat(2, axis=0).repeat(2, axis=1))
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
