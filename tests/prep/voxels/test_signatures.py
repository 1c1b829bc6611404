"""Signatures of records: thumbnails of what they show, and what they are packed into."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import halofeed
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.prep.voxels import signatures
from halofeed.prep.voxels.signatures import SIDE, sign_picture, sign_stack, unpack_signatures


def slow_thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the mean of each cell in 1/256 of a level: of 4 of its rows, with each pixel divided into 16 columns."""
    height, width, channels = pixels.shape
    rows = [int((row + 0.5) * height / 64) for row in range(64)]
    parts = np.repeat(pixels[rows].astype(np.int64), SIDE, 1)
    sums = parts.reshape(SIDE, 4, SIDE, width, channels).sum((1, 3, 4))
    return sums * 256 // (4 * width * channels)


def draw(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return cv2.resize(coarse, (shape[1], shape[0]), interpolation=cv2.INTER_CUBIC)[..., : shape[2]]


@pytest.mark.parametrize(
    "shape", [(16, 16, 1), (1, 1, 3), (5, 40, 3), (31, 33, 1), (100, 37, 4), (511, 48, 3)]
)
def test_a_thumbnail_has_the_means_of_equal_cells(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    found = signatures._thumbnail(pixels)
    assert np.array_equal(found, slow_thumbnail(pixels))


def test_the_rows_of_a_cell_have_nearly_the_mean_of_all_its_rows() -> None:
    pixels = draw((1024, 32, 3))
    means = pixels.reshape(SIDE, 64, SIDE, 2, 3).mean((1, 3, 4)) * 256
    assert np.abs(signatures._thumbnail(pixels) - means).max() < 256


def test_packed_levels_are_unpacked_and_depend_on_neither_brightness_nor_contrast() -> None:
    pixels = draw((64, 96, 3)) // 2
    words = np.array([sign_picture(pixels, "a.png", "p"), sign_picture(pixels // 2 + 100, "b.png", None)])
    found = unpack_signatures(words)
    assert words.dtype == np.int64 and found.thumbnails.shape == (2, 1, SIDE, SIDE)
    assert np.abs(found.thumbnails[0].astype(int) - found.thumbnails[1]).max() <= 1
    assert found.groups[0] > 0 == found.groups[1] and found.sources[0] != found.sources[1]
    assert found.spreads[0] > found.spreads[1] > 256
    levels = slow_thumbnail(pixels)
    assert np.corrcoef(levels.ravel(), found.thumbnails[0].ravel())[0, 1] > 0.99


def test_values_of_any_type_give_a_signature_and_a_flat_picture_has_no_spread() -> None:
    for dtype in (np.uint8, np.uint16, np.float32):
        words = np.array([sign_picture(np.full((20, 20, 1), 7, dtype), "a", None)])
        assert unpack_signatures(words).spreads[0] == 0
    deep = (draw((64, 64, 3)).astype(np.uint16) * 16) + 1000
    pair = np.array([sign_picture(deep, "a", None), sign_picture(draw((64, 64, 3)), "a", None)])
    thumbnails = unpack_signatures(pair).thumbnails
    assert np.abs(thumbnails[0].astype(int) - thumbnails[1]).max() <= 1


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_a_hot_and_a_dead_pixel_hide_nothing_of_deep_values(dtype: type) -> None:
    clean = (draw((64, 64, 1)).astype(dtype) * 8) + 1000
    faulty = clean.copy()
    faulty[:2, 0, 0] = 65535, 0
    found = unpack_signatures(np.array([sign_picture(one, "a", None) for one in (clean, faulty)]))
    assert np.abs(np.diff(found.thumbnails.astype(int), axis=0)).max() <= 1
    assert found.spreads.min() > 256 * 20
    stacks = [np.repeat(one[None, ..., 0], 12, axis=0) for one in (clean, faulty)]
    stacks[1][1:] = clean[..., 0]
    found = unpack_signatures(np.array([sign_stack(one, "a", None, "float32") for one in stacks]))
    assert np.abs(np.diff(found.thumbnails.astype(int), axis=0)).max() <= 1 < found.spreads.min()


def test_a_small_object_on_a_flat_background_keeps_its_spread() -> None:
    pixels = np.full((120, 120, 1), 500, np.uint16)
    pixels[50:58, 50:58] = 900
    assert unpack_signatures(np.array([sign_picture(pixels, "a", None)])).spreads[0] > 256


@pytest.mark.parametrize(("dtype", "store"), [("uint8", "uint8"), ("int16", "int16"), ("float32", "float32")])
@pytest.mark.parametrize("depth", [1, 2, 40])
def test_a_stack_has_a_thumbnail_of_each_third(dtype: str, store: str, depth: int) -> None:
    stack = np.stack([draw((60, 50, 1), seed)[..., 0] for seed in range(depth)]).astype(dtype)
    found = unpack_signatures(np.array([sign_stack(stack, "a", None, store)]))
    assert found.thumbnails.shape == (1, 3, SIDE, SIDE) and found.spreads[0] > 256
    assert np.array_equal(found.thumbnails[0, 0], found.thumbnails[0, 2]) == (depth == 1)


def test_unknown_words_are_no_signature() -> None:
    zeros = unpack_signatures(np.zeros((2, 18), np.int64))
    assert zeros.spreads.tolist() == [0, 0] and zeros.thumbnails.shape == (2, 1, SIDE, SIDE)
    assert unpack_signatures(np.zeros((3, 0), np.int64)).spreads.tolist() == [0, 0, 0]


def test_copies_of_other_sizes_and_paddings_have_nearly_the_signature_of_the_picture(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    picture = draw((300, 400, 3))
    for name, size in (("0", (400, 300)), ("1", (130, 97)), ("2", (410, 301))):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(picture, size, interpolation=cv2.INTER_AREA))
    halofeed.convert(
        layout="folders", source=tmp_path / "in", out=tmp_path, name="drawn", workers=1,
        resize="keep-aspect", min_dimension=128, max_dimension=160, pad=True, shards=1,
    )  # fmt: skip
    words = ReviewedSet(tmp_path / "drawn" / "1.0.0").signatures
    found = unpack_signatures(words)
    assert len(set(found.sources.tolist())) == 3
    assert np.abs(np.diff(found.thumbnails.astype(int), axis=0)).max() <= 1
