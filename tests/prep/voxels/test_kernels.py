"""Do kernels give TensorFlow's pixels, and does the default keep objects where their boxes are?"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.prep.geometry.resize import (
    KERNEL_NAMES,
    ResizePlan,
    plan_fixed_shape,
    plan_keep_aspect,
    plan_unchanged,
)
from halofeed.prep.voxels.kernels import KERNELS, resize_image, resize_mask

CASES = [  # source (h, w) -> (h, w)
    *(((7, 5), (3, 4)), ((7, 5), (16, 23)), ((64, 48), (32, 24)), ((61, 97), (20, 150))),
    *(((97, 61), (150, 20)), ((333, 500), (300, 300)), ((480, 640), (640, 640)), ((427, 640), (683, 1024))),
    *(((1, 9), (4, 3)), ((9, 1), (2, 5)), ((50, 50), (1, 1)), ((113, 127), (113, 64))),
]


def tensorflow_resize(pixels: npt.NDArray[Any], size: tuple[int, int], kernel: str) -> npt.NDArray[Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf = pytest.importorskip("tensorflow")
    era, method, *rest = kernel.split("-")
    if era == "tf1":
        methods = tf.compat.v1.image.ResizeMethod
        result = tf.compat.v1.image.resize(pixels, size, getattr(methods, _TF1_NAMES[method]))
    else:
        result = tf.image.resize(pixels, size, method, antialias=rest == ["antialias"])
    return np.asarray(result)


_TF1_NAMES = {"bilinear": "BILINEAR", "nearest": "NEAREST_NEIGHBOR", "bicubic": "BICUBIC", "area": "AREA"}
TENSORFLOW_KERNELS = [name for name in KERNELS if name != "antialias"]


def random_pixels(size: tuple[int, int], channels: int = 3, dtype: Any = np.uint8) -> npt.NDArray[Any]:
    random = np.random.default_rng([*size, channels])
    return random.integers(0, np.iinfo(dtype).max + 1, (*size, channels), dtype=dtype)


def assert_as_tensorflow(pixels, size, kernel, tolerance=1e-3):
    theirs = tensorflow_resize(pixels, size, kernel)
    ours = KERNELS[kernel](pixels, size, (0, size[0]))
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max() <= tolerance
    rounded = resize_image(pixels, plan_fixed_shape(pixels.shape[:2], *size), kernel)
    expected = np.clip(np.rint(theirs), 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)
    tie = np.abs(theirs - np.floor(theirs) - 0.5) <= tolerance
    assert (rounded == expected)[~tie].all()
    assert np.abs(rounded.astype(np.int64) - expected.astype(np.int64)).max() <= 1


@pytest.mark.parametrize("kernel", TENSORFLOW_KERNELS)
def test_kernels_named_after_tensorflow_give_its_pixels(kernel):
    for source, size in CASES:
        assert_as_tensorflow(random_pixels(source), size, kernel)
    assert_as_tensorflow(random_pixels((61, 97), 1, np.uint16), (40, 120), kernel, tolerance=0.25)
    pixels = random_pixels((20, 30))
    for any_kernel in (kernel, "antialias"):
        assert np.array_equal(resize_image(pixels, plan_unchanged((20, 30)), any_kernel), pixels)


@pytest.mark.parametrize("kernel", TENSORFLOW_KERNELS)
@settings(max_examples=40, deadline=None)
@given(sides=st.tuples(*[st.integers(1, 90)] * 4), channels=st.sampled_from([1, 2, 3, 4]))
def test_kernels_give_tensorflows_pixels_at_any_size(kernel, sides, channels):
    assert_as_tensorflow(random_pixels(sides[:2], channels), sides[2:], kernel)


def triangle_oracle(pixels: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """One output pixel after the other, in float64, straight from the definition."""

    def matrix(source: int, out: int) -> npt.NDArray[np.float64]:
        scale, rows = source / out, np.zeros((out, source))
        for i in range(out):
            for j in range(source):
                rows[i, j] = max(0.0, 1 - abs(j + 0.5 - (i + 0.5) * scale) / max(scale, 1))
        return rows / rows.sum(axis=1, keepdims=True)

    down, across = (matrix(source, out) for source, out in zip(pixels.shape[:2], size, strict=True))
    return np.einsum("yh,hwc,xw->yxc", down, pixels.astype(np.float64), across, optimize=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("source", "size"), [((61, 97), (20, 150)), ((99, 80), (33, 47)), ((9, 7), (9, 20))])
def test_the_default_is_a_triangle_filter_to_within_one_level(dtype, channels, source, size):
    pixels = random_pixels(source, channels, dtype)
    resized = resize_image(pixels, plan_fixed_shape(source, *size))
    assert resized.dtype == dtype
    assert np.abs(resized - triangle_oracle(pixels, size)).max() <= 1.01


def test_padding_lies_at_the_bottom_and_right_in_each_channels_value():
    pixels = random_pixels((30, 60))
    plan = plan_keep_aspect((30, 60), 40, 50, pad=True)
    assert plan.resized_size == (25, 50)
    padded = resize_image(pixels, plan, pad_value=(1, 2, 3))
    assert padded.shape == (50, 50, 3)
    assert (padded[25:] == (1, 2, 3)).all()
    unpadded = resize_image(pixels, plan_keep_aspect((30, 60), 40, 50, pad=False))
    assert np.array_equal(padded[:25], unpadded)
    plan = plan_keep_aspect((60, 30), 40, 50, pad=True)
    tall = resize_image(pixels.swapaxes(0, 1), plan, pad_value=(1, 2, 3))
    assert (tall[:, 25:] == (1, 2, 3)).all()


def test_views_with_any_strides_and_threads_give_the_same_bytes():
    pixels = random_pixels((40, 60))
    plan = plan_fixed_shape((40, 60), 21, 22)
    for view in (pixels[:, ::-1], pixels[::-1], pixels[..., ::-1]):
        assert np.array_equal(resize_image(view, plan), resize_image(view.copy(), plan))
    images = [random_pixels((200 + i, 300)) for i in range(16)]
    plan = plan_fixed_shape((200, 300), 111, 97)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda image: resize_image(image, plan), images))
    for found, image in zip(together, images, strict=True):
        assert np.array_equal(found, resize_image(image, plan))


def test_resizing_works_in_a_process_forked_after_resizing():
    program = """
import os, numpy as np
from halofeed.prep.geometry.resize import KERNEL_NAMES
from halofeed.prep.voxels.kernels import resize_image
from halofeed.prep.geometry.resize import plan_fixed_shape
def resize():
    for side in (900, 2500):
        resize_image(np.zeros((2000, 2000, 3), np.uint8), plan_fixed_shape((2000, 2000), side, side))
resize()
child = os.fork()
if child == 0:
    resize()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_kernels_and_padding_that_cannot_be_are_refused():
    plan, image = plan_fixed_shape((4, 5), 2, 2), random_pixels((4, 5))
    for pixels, arguments, message in (
        (image, {"kernel": "cubic"}, "kernel 'cubic' is not known; choose from antialias, tf1-bilinear"),
        (image, {"pad_value": (1, 2)}, "one for each of 3 channels, got .1, 2."),
        *((image, {"pad_value": value}, "expected 0 to 255") for value in ((1, 2, 256), -1)),
    ):
        with pytest.raises(UsageError, match=message):
            resize_image(pixels, plan, **arguments)
    assert tuple(KERNELS) == KERNEL_NAMES


@given(sides=st.tuples(*[st.integers(1, 40)] * 4), pad=st.tuples(*[st.integers(0, 5)] * 2))
def test_masks_take_the_nearest_source_pixel(sides, pad):
    height, width, new_height, new_width = sides
    mask = random_pixels((height, width), 1)[..., 0]
    plan = ResizePlan(
        source_size=(height, width),
        resized_size=(new_height, new_width),
        output_size=(new_height + pad[0], new_width + pad[1]),
    )
    resized = resize_mask(mask, plan)
    expected = np.zeros(plan.output_size, np.uint8)
    for y in range(new_height):
        for x in range(new_width):
            row, column = (2 * y + 1) * height // (2 * new_height), (2 * x + 1) * width // (2 * new_width)
            expected[y, x] = mask[row, column]
    assert np.array_equal(resized, expected)
