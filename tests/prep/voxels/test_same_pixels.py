"""Comparison of pixels: what strong edges in common hide, and what copies keep."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from halofeed.prep.voxels import same_pixels
from halofeed.prep.voxels.same_pixels import Match, match_pictures, to_compared

WHOLE = np.array([0, 1], np.float32)
Pixels = NDArray[np.uint8]


def match(first: Pixels, second: Pixels) -> Match:
    return match_pictures(to_compared(first), to_compared(second), WHOLE, WHOLE)


def textured(seed: int, height: int = 160, width: int = 200) -> Pixels:
    """Draw a texture of several scales, as photographs have."""
    random = np.random.default_rng(seed)
    layers = [random.normal(0, 1, (height // step, width // step, 3)) for step in (40, 12, 4)]
    grown = sum(cv2.resize(layer, (width, height), interpolation=cv2.INTER_CUBIC) for layer in layers)
    return np.clip(128 + 25 * np.asarray(grown), 0, 255).astype(np.uint8)


def framed(picture: Pixels) -> Pixels:
    """Put a white frame around a picture, darkened, so that the frame has the strongest edges."""
    return cv2.copyMakeBorder(picture // 2, 14, 14, 14, 14, cv2.BORDER_CONSTANT, value=(255, 255, 255))


def test_other_pictures_in_one_frame_have_high_correlation_and_are_not_the_same() -> None:
    other = match(framed(textured(1)), framed(textured(2)))
    assert other.details > 0.9 and other.blocks < 0.3 and not other.is_same
    assert match(framed(textured(1)), framed(textured(1))[:, :, ::-1] // 2 + 60).is_same


@pytest.mark.parametrize("quality", [25, 90])
def test_recompressed_drawings_on_flat_ground_are_the_same(quality: int) -> None:
    page = np.full((160, 200, 3), 240, np.uint8)
    cv2.circle(page, (60, 70), 25, (20, 40, 200), -1)
    cv2.rectangle(page, (120, 30), (150, 130), (40, 160, 30), 3)
    coded = cv2.imdecode(cv2.imencode(".jpg", page, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], 1)
    assert match(page, np.asarray(coded, np.uint8)).is_same


def test_drawn_discs_at_one_place_on_other_grain_are_not_the_same() -> None:
    random = np.random.default_rng(0)
    discs = []
    for _ in range(2):
        pixels = np.clip(random.normal(40, 14, (160, 200, 3)), 0, 255).astype(np.uint8)
        cv2.circle(pixels, (100, 80), 50, (225, 225, 225), -1)
        discs.append(pixels)
    other = match(*discs)
    assert other.details > 0.8 and other.blocks < 0.3 and not other.is_same
    assert match(discs[0], discs[0][3:, 5:]).is_same


def test_the_quartile_of_blocks_is_that_of_a_loop_over_them() -> None:
    first, second = (to_compared(textured(seed)) for seed in (1, 2))
    second = np.asarray(0.5 * first + 0.5 * second, np.float32)[:96, :96]
    first = first[:96, :96]
    # The lower right corner shows nothing in both, and is not counted.
    first[72:, 72:] = second[72:, 72:] = 100
    shown = np.ones((96, 96), np.bool_)
    bands = [
        cv2.GaussianBlur(one, (0, 0), 0.7) - cv2.GaussianBlur(one, (0, 0), 2.5) for one in (first, second)
    ]
    expected = []
    for row in range(8):
        for column in range(8):
            one, other = (
                band[12 * row : 12 * row + 12, 12 * column : 12 * column + 12].ravel() for band in bands
            )
            if max(one.var(), other.var()) >= 1:
                expected.append(np.corrcoef(one, other)[0, 1])
    assert 50 < len(expected) < 64
    found = same_pixels._lower_quartile_of_blocks(first, second, shown, 8)
    assert found == pytest.approx(np.quantile(expected, 0.25), abs=1e-4)


def test_pixels_of_more_bits_with_a_hot_one_are_compared_like_those_of_8_bits() -> None:
    page = np.full((160, 200, 3), 240, np.uint8)
    cv2.circle(page, (60, 70), 25, (20, 40, 200), -1)
    coded = np.asarray(
        cv2.imdecode(cv2.imencode(".jpg", page, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 1), np.uint8
    )
    deep, hot = page.astype(np.uint16) * 16, coded.astype(np.uint16) * 200 + 999
    hot[5, 5] = 65535
    found, usual = (
        match_pictures(to_compared(one), to_compared(other), WHOLE, WHOLE)
        for one, other in ((deep, hot), (page, coded))
    )
    assert found.is_same and abs(found.blocks - usual.blocks) < 0.02
