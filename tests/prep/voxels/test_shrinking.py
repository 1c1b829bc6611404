"""Pictures that the kernel shrinks equal those of Pillow bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.voxels.kernels import resize_by_pillow, resize_image
from halofeed.schemas.native.shrinking import shrink
from tests.support.kernels import kernel_if, needs_kernel


@st.composite
def pictures(draw):
    """Pixels, a size, and a part or None."""
    height, width = (draw(st.integers(1, 130)) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    levels = draw(st.sampled_from([(0, 255), tuple(range(256))]))
    pixels = rng.choice(np.array(levels, np.uint8), (height, width, 3))
    size = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    if draw(st.booleans()):
        return pixels, size, None
    edges = []
    for side in (height, width):
        low = draw(st.floats(0, side - 0.5))
        edges.append((low, draw(st.floats(low + 0.25, side))))
    (top, bottom), (left, right) = edges
    return pixels, size, (top, left, bottom, right)


@needs_kernel
@given(pictures())
@settings(max_examples=400, deadline=None)
def test_the_kernel_gives_the_pixels_of_pillow(picture):
    pixels, size, part = picture
    with kernel_if(False):
        expected = resize_by_pillow(pixels, size, part)
    assert np.array_equal(resize_by_pillow(pixels, size, part), expected)
    # Rows of a larger picture, of which the rest must not be read.
    larger = np.full((pixels.shape[0], pixels.shape[1] + 9, 3), 77, np.uint8)
    larger[:, 4:-5] = pixels
    assert np.array_equal(resize_by_pillow(larger[:, 4:-5], size, part), expected)


@needs_kernel
def test_only_the_result_is_written_and_strange_layouts_are_left_to_pillow():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    around = np.full((12, 20, 3), 9, np.uint8)
    whole = (0.0, 0.0, 40.0, 60.0)
    if not shrink(pixels, whole, around[1:-1, 2:-2]):
        pytest.skip("the processor has no AVX2")
    assert (around[0] == 9).all() and (around[-1] == 9).all() and (around[:, :2] == 9).all()
    assert (around[:, -2:] == 9).all()
    out = np.empty((8, 8, 3), np.uint8)
    frozen = out.copy()
    frozen.flags.writeable = False
    for given_pixels, box, target in (
        (pixels[:, ::-1], whole, out),
        (pixels[::-1], whole, out),
        (pixels.astype(np.uint16), whole, out),
        (pixels[..., :1], whole, out),
        (pixels[:0], (0.0, 0.0, 0.0, 60.0), out),
        (pixels, (0.0, 0.0, 41.0, 60.0), out),
        (pixels, (-1.0, 0.0, 40.0, 60.0), out),
        (pixels, (5.0, 0.0, 5.0, 60.0), out),
        (pixels, (float("nan"), 0.0, 5.0, 60.0), out),
        (pixels, whole, frozen),
    ):
        assert not shrink(given_pixels, box, target)
    for turned in (pixels[:, ::-1], pixels[::-1], pixels.transpose(1, 0, 2)):
        assert np.array_equal(
            resize_by_pillow(turned, (8, 8), None), resize_by_pillow(turned.copy(), (8, 8), None)
        )


def test_a_part_outside_the_picture_is_an_error_with_and_without_the_kernel():
    plan = ResizePlan(source_size=(4, 4), resized_size=(4, 4), output_size=(4, 4))
    for is_used in (True, False):
        with kernel_if(is_used), pytest.raises((ValueError, UsageError)):
            resize_image(np.zeros((8, 8, 3), np.uint8), plan, extent=(0.0, 0.0, 9.0, 8.0))
