"""Do box codes say what Faster R-CNN's say, and lead back to the box?"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.trainer.detection.box_coder import decode, encode

SCALES = (10.0, 10.0, 5.0, 5.0)
BOXES = np.array([[10.0, 10.0, 20.0, 15.0], [0.2, 0.1, 0.5, 0.4]], np.float32)
ANCHORS = np.array([[15.0, 12.0, 30.0, 18.0], [0.1, 0.0, 0.7, 0.9]], np.float32)
UNSCALED = np.array([[-0.5, -0.416666, -0.405465, -0.182321], [-0.083333, -0.222222, -0.693147, -1.098612]])


def test_the_codes_and_boxes_of_the_tf_object_detection_api():
    """Numbers of tensorflow/models, object_detection/box_coders/faster_rcnn_box_coder_test.py, without scales."""
    codes = (UNSCALED * SCALES).astype(np.float32)
    np.testing.assert_allclose(encode(jnp.array(BOXES), jnp.array(ANCHORS)), codes, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(decode(jnp.array(codes), jnp.array(ANCHORS)), BOXES, rtol=1e-4, atol=1e-4)
    without_width = encode(jnp.array([10.0, 10.0, 10.0000001, 20.0]), jnp.array([15.0, 12.0, 30.0, 18.0]))
    np.testing.assert_allclose(
        without_width / np.array(SCALES), [-0.833333, 0.0, -21.128731, 0.510826], rtol=1e-4, atol=1e-4
    )


corner = st.floats(0, 0.5, width=32)
side = st.floats(2**-6, 0.5, width=32)


@settings(max_examples=50, deadline=None)
@given(st.tuples(corner, corner, side, side), st.tuples(corner, corner, side, side))
def test_decoding_undoes_encoding(box, anchor):
    box, anchor = (
        jnp.array([low_y, low_x, low_y + high, low_x + wide]) for low_y, low_x, high, wide in (box, anchor)
    )
    np.testing.assert_allclose(decode(encode(box, anchor), anchor), box, atol=2e-6)


def test_codes_of_any_size_decode_to_finite_boxes():
    codes = jnp.array([[1e30, -1e30, 1e30, 500.0], [0.0, 0.0, -1e30, -500.0]])
    assert np.isfinite(decode(codes, jnp.array([0.0, 0.0, 1.0, 1.0]))).all()
