"""Measures of records for a review, against slow and obvious ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.prep.convert import record_measures
from halofeed.prep.convert.record_measures import picture_measures, scan_measures
from halofeed.prep.convert.tallies import sum_pixels
from halofeed.schemas import measures
from tests.support.conversions import run_convert
from tests.support.volume_support import save_nifti, write_table


def drawn(seed, dtype, height=90, width=70, channels=3):
    random = np.random.default_rng(seed)
    return random.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)


def measured(pixels):
    return picture_measures(pixels, sum_pixels(pixels))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_measures_are_those_of_evenly_spaced_rows(dtype, channels):
    pixels = drawn(1, dtype, channels=channels)
    pixels[:40] //= 3
    rows, found = pixels[::8].astype(float), measured(pixels)
    largest = np.iinfo(dtype).max
    assert found[measures.BRIGHTNESS] == pytest.approx(rows.mean() / largest)
    variance = rows.reshape(-1, channels).var(0).mean()
    assert found[measures.CONTRAST] == pytest.approx(np.sqrt(variance) / largest)
    wide = pixels.astype(float)

    def squares(apart):
        return np.mean([(row[apart:] - row[:-apart]) ** 2 for row in wide[::3]])  # 90 // 24

    assert found[measures.SHARPNESS] == pytest.approx(squares(1) / squares(4))
    assert found[measures.ROUGHNESS] == pytest.approx(squares(1) / (2 * variance))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_squares_are_summed_without_rounding(dtype, channels):
    # The index has the same bytes on every machine, so not a single bit may differ.
    for seed in range(12):
        rows = drawn(seed, dtype, 30, 430 + 37 * seed, channels)
        exact = int(((rows[:, 4:].astype(np.int64) - rows[:, :-4]) ** 2).sum())
        assert record_measures._sum_of_squares(rows, 4) == exact


def test_entropy_counts_the_bits_of_the_values():
    one = np.full((32, 32, 1), 9, np.uint8)
    two = np.repeat(np.arange(2, dtype=np.uint8), 16)[None, :, None].repeat(32, 0)
    assert measured(one)[measures.ENTROPY_BITS] == 0
    assert measured(two)[measures.ENTROPY_BITS] == 1


def test_sharpness_ignores_brightness_and_contrast():
    pixels = drawn(2, np.uint8) // 4
    first, second = measured(pixels), measured(pixels * 3 + 20)
    assert first[measures.SHARPNESS] == pytest.approx(second[measures.SHARPNESS])
    assert first[measures.ROUGHNESS] == pytest.approx(second[measures.ROUGHNESS])


def test_noise_is_rough_and_a_ramp_is_blurred():
    noise = measured(drawn(3, np.uint8, 400, 400))
    ramp = measured(np.tile(np.arange(250, dtype=np.uint8)[None, :, None], (250, 1, 3)))
    assert noise[measures.ROUGHNESS] == pytest.approx(1, abs=0.03)
    assert noise[measures.SHARPNESS] == pytest.approx(1, abs=0.03)
    assert ramp[measures.SHARPNESS] == pytest.approx(1 / 16)
    assert ramp[measures.ROUGHNESS] < 0.001


@given(height=st.integers(1, 12), width=st.integers(1, 12), seed=st.integers(0, 9))
def test_pictures_of_any_size_are_measured(height, width, seed):
    found = measured(drawn(seed, np.uint8, height, width))
    assert all(np.isfinite(value) for value in found.values())


def test_a_picture_of_one_color_has_no_sharpness():
    found = measured(np.full((64, 64, 3), (9, 90, 200), np.uint8))
    assert found[measures.CONTRAST] == 0
    assert measures.SHARPNESS not in found


def test_classes_of_a_scan_have_their_mean_in_every_eighth_row():
    random = np.random.default_rng(4)
    image = random.integers(-1000, 400, (6, 40, 30, 2), np.int16)
    labels = (random.random((6, 40, 30)) * 4).astype(np.uint8)
    labels[labels == 3] = 200
    labels[0, 0, 0] = 3
    found = scan_measures(image, (3, 1, 1), labels, {1: 50, 2: 60, 200: 70, 3: 1})
    for identity in (1, 2, 200):
        inside = labels[:, ::8] == identity
        expected = image[:, ::8, :, 0][inside].mean(dtype=np.float64)
        assert found[f"class_mean/{identity}"] == pytest.approx(expected)
    assert found["class_mm3/200"] == 70
    # One voxel says nothing about a mean.
    assert "class_mean/3" not in found and found["class_mm3/3"] == 1


def test_overlapping_classes_each_have_their_mean():
    image = np.arange(4 * 16 * 32, dtype=np.float32).reshape(4, 16, 32, 1)
    labels = np.zeros((4, 16, 32), np.uint8)
    labels[:2] |= 1
    labels[1:3] |= 2
    found = scan_measures(image, (1, 1, 1), labels, {5: 1, 7: 1}, channels=(5, 7))
    assert found["class_mean/5"] == image[:2, ::8].mean()
    assert found["class_mean/7"] == image[1:3, ::8].mean()


def test_spacings_of_nanometers_keep_their_digits():
    found = scan_measures(np.zeros((2, 4, 4, 1), np.int16), (np.float32(4e-5), 0.0000123456789, 1.5))
    assert [found[name] for name in measures.SPACINGS_MM] == [4e-5, 1.2346e-5, 1.5]


def test_volumes_of_small_structures_are_not_rounded_to_whole_cubic_millimeters(tmp_path):
    labels = np.zeros((16, 16, 8), np.uint8)
    labels[:5, :5, 1:3], labels[8:10, 8:10, 3] = 1, 2
    affine = np.diag([0.01, 0.01, 0.02, 1])
    save_nifti(tmp_path / "image.nii.gz", np.arange(2048, dtype=np.int16).reshape(16, 16, 8), affine)
    save_nifti(tmp_path / "label.nii.gz", labels, affine)
    table = write_table(tmp_path, [("a", "image.nii.gz", "label.nii.gz")])
    done = run_convert(
        table, tmp_path / "out", layout="csv", task="segmentation", depth=8, height=16, width=16
    )
    reviewed = ReviewedSet(done.folder)
    volumes = [reviewed.measure(measures.of_class(measures.CLASS_MM3, value)).tolist() for value in (1, 2)]
    assert volumes == [[50 * 2e-6], [4 * 2e-6]]
