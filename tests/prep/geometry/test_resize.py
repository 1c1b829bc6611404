"""Are sizes those of the TF Object Detection API, and do affines lead from each grid to the next and back?"""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry import resize

ORIENTATIONS = range(1, 9)


@pytest.fixture(scope="module")
def tf() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return pytest.importorskip("tensorflow")


def tensorflow_sizes(tf: Any, height: Any, width: Any, minimum: int, maximum: int) -> Any:
    """The steps of resize_to_range and resize_images(preserve_aspect_ratio=True), in TensorFlow's float32."""
    landscape = tf.less(height, width)
    target_height = tf.where(landscape, minimum, maximum)
    target_width = tf.where(landscape, maximum, minimum)
    height, width = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    scale_height = tf.cast(target_height, tf.float32) / height
    scale_width = tf.cast(target_width, tf.float32) / width
    scale = tf.minimum(scale_height, scale_width)
    new_height = tf.cast(tf.round(scale * height), tf.int32)
    new_width = tf.cast(tf.round(scale * width), tf.int32)
    return tf.stack([new_height, new_width], axis=-1)


@pytest.mark.parametrize(("minimum", "maximum"), [(800, 1333), (600, 1024), (640, 640)])
def test_sizes_are_those_of_the_detection_api_and_of_tensorflow(tf, minimum, maximum):
    heights, widths = np.meshgrid(np.arange(64, 1600, dtype=np.int32), np.arange(64, 1600), indexing="ij")
    theirs = tensorflow_sizes(tf, heights, widths.astype(np.int32), minimum, maximum)
    ours = resize.keep_aspect_sizes(heights, widths, minimum, maximum)
    assert ours.shape == (1536, 1536, 2)
    assert np.array_equal(ours, theirs.numpy())
    random = np.random.default_rng(5)
    for height, width in [(73, 146), *random.integers(64, 1600, (25, 2)).tolist()]:
        target = (minimum, maximum) if height < width else (maximum, minimum)
        resized = tf.compat.v1.image.resize(
            np.zeros((height, width, 1), np.uint8),
            target,
            tf.compat.v1.image.ResizeMethod.NEAREST_NEIGHBOR,
            preserve_aspect_ratio=True,
        )
        plan = resize.plan_keep_aspect((height, width), minimum, maximum, pad=False)
        assert plan.resized_size == tuple(resized.shape[:2]) == plan.output_size


@pytest.mark.parametrize(("source", "resized"), [((73, 146), (667, 1333)), ((75, 930), (107, 1333))])
def test_float32_decides_where_float64_differs(source, resized):
    assert resize.plan_keep_aspect(source, 800, 1333, pad=False).resized_size == resized
    height, width = source
    assert round(min(800 / height, 1333 / width) * height) != resized[0]


def test_keep_aspect_pads_to_the_longest_side_fixed_shape_stretches_and_none_leaves_alone():
    assert resize.plan_keep_aspect((480, 640), 600, 1024, pad=True).output_size == (1024, 1024)
    assert resize.plan_fixed_shape((480, 640), 300, 200).output_size == (300, 200)
    assert resize.plan_unchanged((480, 640)).output_size == (480, 640)


def test_resizers_are_known_by_name_and_a_side_that_would_vanish_rejects_the_source():
    for name in ("keep_aspect", "range"):
        with pytest.raises(UsageError, match="fixed-shape, keep-aspect, none"):
            resize.resizer(name)
    assert all(resize.resizer(name) is resize.RESIZERS[name] for name in resize.RESIZERS)
    with pytest.raises(SourceError, match=r"image is too long and thin \(1×3000 at 600/1024 becomes 0×"):
        resize.plan_keep_aspect((1, 3000), 600, 1024, pad=True)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_orientations_go_where_pillow_puts_the_pixels(orientation):
    height, width = 3, 5
    pixels = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    displayed = np.asarray(ImageOps.exif_transpose(image))
    assert displayed.shape == resize.displayed_size(orientation, (height, width))
    affine = resize.displayed_to_file(orientation, (height, width))
    for y, x in np.ndindex(displayed.shape):
        row, column = np.floor(resize.apply_affine(affine, (y + 0.5, x + 0.5))).astype(int)
        assert displayed[y, x] == pixels[row, column]


def test_a_stored_pixel_leads_through_padding_and_scale_to_its_place_in_the_file():
    # A file of 60×40 (lying, orientation 6) is displayed as 40×60, stored as 20×30 in 30×30.
    plan = resize.plan_keep_aspect((40, 60), 20, 30, pad=True)
    assert plan.output_size == (30, 30)
    affine = resize.stored_to_file(plan, orientation=6)
    assert resize.apply_affine(affine, [(0, 0), (20, 30), (0, 30), (10, 15)]).tolist() == [
        [60, 0],
        [0, 40],
        [0, 0],
        [30, 20],
    ]
    assert resize.area_factor(affine) == 4
    upright = resize.plan_keep_aspect((60, 40), 20, 30, pad=True)
    points = resize.apply_affine(resize.stored_to_file(upright), [(30, 20), (15, 10)])
    assert points.tolist() == [[60, 40], [30, 20]]


sides = st.integers(1, 5000)
points = st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4)), min_size=1, max_size=5)


@given(orientation=st.sampled_from(ORIENTATIONS), sizes=st.tuples(sides, sides, sides, sides), points=points)
def test_inverting_leads_back(orientation, sizes, points):
    affine = resize.stored_to_file(resize.plan_fixed_shape(sizes[:2], *sizes[2:]), orientation)
    inverse = resize.invert_affine(affine)
    assert np.allclose(resize.apply_affine(inverse, resize.apply_affine(affine, points)), points, atol=1e-6)
    assert np.allclose(resize.compose_affines(inverse, affine), [1, 0, 0, 0, 1, 0], atol=1e-6)
