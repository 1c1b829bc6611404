"""Are sizes those of the TF Object Detection API, and do affines lead from each grid to the next and back?"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from halofeed.prep.geometry.resize import (
    RESIZERS,
    ResizePlan,
    apply,
    apply_to_boxes,
    area_factor,
    compose,
    displayed_size,
    displayed_to_file,
    invert,
    keep_aspect_sizes,
    plan_fixed_shape,
    plan_keep_aspect,
    plan_unchanged,
    resizer,
    stored_to_file,
)
from halofeed.schemas.errors import SourceError, UsageError

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
def test_sizes_are_those_of_the_detection_api_from_64_to_1599(tf: Any, minimum: int, maximum: int) -> None:
    heights, widths = np.meshgrid(np.arange(64, 1600, dtype=np.int32), np.arange(64, 1600), indexing="ij")
    theirs = tensorflow_sizes(tf, heights, widths.astype(np.int32), minimum, maximum)
    ours = keep_aspect_sizes(heights, widths, minimum, maximum)
    assert ours.shape == (1536, 1536, 2)
    assert np.array_equal(ours, theirs.numpy())


@pytest.mark.parametrize(("minimum", "maximum"), [(800, 1333), (600, 1024), (640, 640)])
def test_sizes_are_what_tensorflow_really_resizes_to(tf: Any, minimum: int, maximum: int) -> None:
    random = np.random.default_rng(5)
    for height, width in [(73, 146), *random.integers(64, 1600, (25, 2)).tolist()]:
        target = (minimum, maximum) if height < width else (maximum, minimum)
        resized = tf.compat.v1.image.resize(
            np.zeros((height, width, 1), np.uint8),
            target,
            tf.compat.v1.image.ResizeMethod.NEAREST_NEIGHBOR,
            preserve_aspect_ratio=True,
        )
        plan = plan_keep_aspect((height, width), minimum, maximum, pad=False)
        assert plan.resized_size == tuple(resized.shape[:2]) == plan.output_size


@pytest.mark.parametrize(("source", "resized"), [((73, 146), (667, 1333)), ((75, 930), (107, 1333))])
def test_float32_decides_where_float64_differs(source: tuple[int, int], resized: tuple[int, int]) -> None:
    assert plan_keep_aspect(source, 800, 1333, pad=False).resized_size == resized
    height, width = source
    assert round(min(800 / height, 1333 / width) * height) != resized[0]


def test_padding_reaches_the_longest_side_both_ways() -> None:
    assert plan_keep_aspect((480, 640), 600, 1024, pad=True).output_size == (1024, 1024)


def test_fixed_shape_stretches_and_none_leaves_alone() -> None:
    assert plan_fixed_shape((480, 640), 300, 200).output_size == (300, 200)
    assert plan_unchanged((480, 640)).output_size == (480, 640)


def test_a_side_that_would_vanish_rejects_the_source() -> None:
    with pytest.raises(
        SourceError, match=r"resize: image is too long and thin \(1×3000 at 600/1024 becomes 0×"
    ):
        plan_keep_aspect((1, 3000), 600, 1024, pad=True)


@pytest.mark.parametrize(
    "plan",
    [
        lambda: plan_keep_aspect((9, 9), 601, 600, pad=False),
        lambda: plan_keep_aspect((9, 9), 0, 600, pad=False),
        lambda: plan_keep_aspect((0, 9), 600, 600, pad=False),
        lambda: plan_fixed_shape((9, 9), 0, 3),
        lambda: plan_fixed_shape((0, 9), 3, 3),
        lambda: plan_unchanged((0, 9)),
        lambda: ResizePlan(source_size=(9, 9), resized_size=(9, 9), output_size=(8, 9)),
        lambda: resizer("keep_aspect"),
        lambda: displayed_to_file(0, (3, 4)),
        lambda: invert(np.zeros(6)),
        lambda: apply_to_boxes(np.array([1.0, 0.1, 0, 0, 1, 0]), [0, 0, 1, 1]),
    ],
)
def test_what_cannot_be_is_a_usage_error(plan: Any) -> None:
    with pytest.raises(UsageError):
        plan()


def test_an_unknown_resizer_lists_the_known() -> None:
    with pytest.raises(UsageError, match="fixed-shape, keep-aspect, none"):
        resizer("range")
    assert all(resizer(name) is RESIZERS[name] for name in RESIZERS)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_orientations_go_where_pillow_puts_the_pixels(orientation: int) -> None:
    height, width = 3, 5
    pixels = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    displayed = np.asarray(ImageOps.exif_transpose(image))
    assert displayed.shape == displayed_size(orientation, (height, width))
    affine = displayed_to_file(orientation, (height, width))
    for y, x in np.ndindex(displayed.shape):
        row, column = np.floor(apply(affine, (y + 0.5, x + 0.5))).astype(int)
        assert displayed[y, x] == pixels[row, column]


def test_a_stored_pixel_leads_through_padding_and_scale_to_its_place_in_the_file() -> None:
    # A file of 60×40 (lying, orientation 6) is displayed as 40×60, stored as 20×30 in 30×30.
    plan = plan_keep_aspect((40, 60), 20, 30, pad=True)
    assert plan.output_size == (30, 30)
    affine = stored_to_file(plan, orientation=6)
    assert apply(affine, [(0, 0), (20, 30), (0, 30), (10, 15)]).tolist() == [
        [60, 0],
        [0, 40],
        [0, 0],
        [30, 20],
    ]
    assert area_factor(affine) == 4
    upright = plan_keep_aspect((60, 40), 20, 30, pad=True)
    assert apply(stored_to_file(upright), [(30, 20), (15, 10)]).tolist() == [[60, 40], [30, 20]]


sides = st.integers(1, 5000)
points = st.lists(st.tuples(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4)), min_size=1, max_size=5)


@given(orientation=st.sampled_from(ORIENTATIONS), sizes=st.tuples(sides, sides, sides, sides), points=points)
def test_inverting_leads_back(orientation: int, sizes: tuple[int, int, int, int], points: Any) -> None:
    affine = stored_to_file(plan_fixed_shape(sizes[:2], *sizes[2:]), orientation)
    assert np.allclose(apply(invert(affine), apply(affine, points)), points, atol=1e-6)
    assert np.allclose(compose(invert(affine), affine), [1, 0, 0, 0, 1, 0], atol=1e-6)
