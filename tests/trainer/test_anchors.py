"""Anchors lie where other generators put them, and box codes are decoded; test_published_detectors.py compares both."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.detection.anchors import decode, encode, retinanet_anchors, ssd_anchors

NINE = [[y - 64, x - 64, y + 64, x + 64] for y in (0, 32, 64) for x in (0, 32, 64)]


def test_anchors_of_an_image_that_the_stride_does_not_divide_begin_at_its_corner():
    """Numbers of tensorflow/models, object_detection/anchor_generators/multiscale_grid_anchor_generator_test.py."""
    anchors = retinanet_anchors((65, 65), (3, 3), stride=32, aspect_ratios=(1.0,), scales_per_octave=1)
    np.testing.assert_allclose((anchors * 65).reshape(-1, 4), NINE, atol=1e-4)


def test_ssd_anchors_of_a_wide_image_are_square_in_pixels():
    anchors = ssd_anchors((200, 400), (2, 3), level=1, levels=6)
    first, center, half = (
        anchors[1, 2, 0] * [200, 400, 200, 400],
        np.array([150, 400 * 5 / 6]),
        0.35 * 200 / 2,
    )
    np.testing.assert_allclose(first, [*(center - half), *(center + half)], atol=1e-3)
    between = anchors[1, 2, 5] * [200, 400, 200, 400]
    assert between[2] - between[0] == pytest.approx(200 * (0.35 * 0.5) ** 0.5, abs=1e-3)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="stride: expected values above 0"):
        retinanet_anchors((64, 64), (2, 2), stride=0)
    with pytest.raises(UsageError, match="aspect_ratios: expected values above 0"):
        ssd_anchors((64, 64), (2, 2), level=0, levels=2, aspect_ratios=(1.0, -2.0))
    with pytest.raises(UsageError, match="level: expected 0 to 1 of 2 levels, got 2"):
        ssd_anchors((64, 64), (2, 2), level=2, levels=2)


corner = st.floats(0, 0.5, width=32)
side = st.floats(2**-6, 0.5, width=32)


@settings(max_examples=50, deadline=None)
@given(st.tuples(corner, corner, side, side), st.tuples(corner, corner, side, side))
def test_decoding_undoes_encoding(box, anchor):
    box, anchor = (jnp.array([y, x, y + high, x + wide]) for y, x, high, wide in (box, anchor))
    np.testing.assert_allclose(decode(encode(box, anchor), anchor), box, atol=2e-6)


def test_codes_of_any_size_decode_to_finite_boxes():
    codes = jnp.array([[1e30, -1e30, 1e30, 500.0], [0.0, 0.0, -1e30, -500.0]])
    assert np.isfinite(decode(codes, jnp.array([0.0, 0.0, 1.0, 1.0]))).all()
