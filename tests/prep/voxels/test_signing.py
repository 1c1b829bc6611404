"""The kernel makes the signatures and measures of the NumPy code, bit for bit."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.convert.record_measures import picture_measures
from halofeed.prep.convert.tallies import sum_pixels
from halofeed.prep.voxels.signatures import sign_picture, sign_stack
from halofeed.schemas.native import kernel
from halofeed.schemas.native.measuring import measure
from halofeed.schemas.native.signing import sign
from tests.support.kernels import kernel_if

# Drawn bits are also those of signaling NaNs, of which NumPy warns when it converts them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
needs_signing = pytest.mark.skipif(
    kernel.library() is None or kernel.library().sign is None,
    reason="schemas/native/signing.c is not built: halofeed was installed where there is no C compiler",
)


def fill(random: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    if kind == "one color":
        return np.full(shape, 9, dtype)
    if kind == "all bits":
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return random.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)
    if kind == "two values":
        return random.choice(np.array([0, 200], dtype), shape, p=[0.995, 0.005])
    return (random.normal(120, 30, shape).clip(0, 255) * (1 if dtype == "|u1" else 7)).astype(dtype)


KINDS = st.sampled_from(["one color", "all bits", "two values", "usual"])


@st.composite
def arrays(draw: Any, dtypes: tuple[str, ...], axes: int, most: int) -> NDArray[Any]:
    """A part of a larger array, turned and mirrored: what is around it must not be read as its values."""
    dtype = draw(st.sampled_from(dtypes))
    channels = draw(st.integers(1, 5))
    sides = [draw(st.integers(1, most)) for _ in range(axes)]
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    margins = [draw(st.integers(0, 3)) for _ in range(axes)]
    whole = fill(
        random, draw(KINDS), (*(s + m for s, m in zip(sides, margins, strict=True)), channels), dtype
    )
    array = whole[tuple(slice(m, None) for m in margins)]
    if draw(st.booleans()):
        array = array.swapaxes(axes - 2, axes - 1)
    steps = [draw(st.sampled_from([1, 1, -1])) for _ in range(axes)]
    return array[tuple(slice(None, None, step) for step in steps)]


@needs_signing
@given(arrays(("|u1", "<u2", "<i2", "<f4"), 2, 150))
@settings(max_examples=150, deadline=None)
def test_the_kernel_signs_pictures_as_the_numpy_code_does(pixels: NDArray[Any]) -> None:
    with kernel_if(False):
        expected = sign_picture(pixels, "a.png", "p")
    assert sign([pixels], 1) is not None
    assert sign_picture(pixels, "a.png", "p") == expected


@needs_signing
@given(arrays(("|u1", "<u2", "<i2", "<f4"), 3, 40), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_kernel_signs_stacks_as_the_numpy_code_does(
    stack: NDArray[Any], has_channels: bool, is_brain_float: bool
) -> None:
    stack = stack if has_channels else stack[..., 0]
    store = "bfloat16" if is_brain_float and stack.dtype == np.uint16 else "float32"
    with kernel_if(False):
        expected = sign_stack(stack, "a", None, store)
    assert sign_stack(stack, "a", None, store) == expected


@needs_signing
@given(arrays(("|u1", "<u2"), 2, 90))
@settings(max_examples=150, deadline=None)
def test_the_kernel_measures_pictures_as_the_numpy_code_does(pixels: NDArray[Any]) -> None:
    sums = sum_pixels(np.ascontiguousarray(pixels))
    with kernel_if(False):
        expected = picture_measures(pixels, sums)
    assert picture_measures(pixels, sums) == expected


def slow_sums(pixels: NDArray[Any], apart: int) -> int:
    """The sum of the squared differences by whole numbers of any size."""
    wide = pixels.astype(object)
    return int(((wide[:, apart:] - wide[:, :-apart]) ** 2).sum())


@pytest.mark.parametrize("dtype", ["|u1", "<u2"])
def test_sums_of_differences_are_exact(dtype: str) -> None:
    """Alternate the least and the largest value, whose sums are the largest."""
    pixels = np.zeros((2, 40_000, 1), dtype)
    pixels[:, ::2] = np.iinfo(dtype).max
    counts = np.zeros((1, 256), np.int64)
    counts[0, :3] = 8, 1, 2
    if (found := measure(pixels, 1, 3, counts)) is not None:
        assert found == (slow_sums(pixels, 1), slow_sums(pixels, 3), 26)
    expected = picture_measures(pixels, sum_pixels(pixels))
    with kernel_if(False):
        assert picture_measures(pixels, sum_pixels(pixels)) == expected


@needs_signing
def test_strange_arrays_are_left_to_the_numpy_code() -> None:
    for pixels in (
        np.zeros((4, 4, 1), np.float64),
        np.zeros((4, 4, 1), ">u2"),
        np.zeros((0, 4, 1), np.uint8),
        np.zeros((4, 0, 1), np.uint8),
    ):
        assert sign([pixels], 1) is None
    counts = np.zeros((1, 256), np.int64)
    for pixels in (
        np.zeros((4, 9, 3), np.uint8)[:, ::-1],
        np.zeros((4, 9, 3), np.uint8)[..., :2],
        np.zeros((4, 9, 3), np.int16),
        np.zeros((4, 4, 3), np.uint8),
    ):
        assert measure(pixels, 1, 4, counts) is None
    assert measure(np.zeros((4, 9, 3), np.uint8), 1, 4, counts[:, ::2]) is None


@needs_signing
def test_numbers_that_are_none_are_zero_in_signatures() -> None:
    """NaN and infinities of float32 and bfloat16, which some scans have outside the body."""
    bits = np.tile(np.array([0x7F80, 0xFF80, 0x7FC0, 0x8000, 0x4080, 0xC080], np.uint16), (3, 12, 6))
    floats = (bits.astype(np.uint32) << 16).view(np.float32)
    assert not np.isfinite(floats).all() and struct.pack("<f", floats[0, 0, 3]) == b"\0\0\0\x80"
    with kernel_if(False):
        expected = sign_stack(floats, "a", None, "float32")
    for stack, store in ((floats, "float32"), (bits, "bfloat16")):
        assert sign_stack(stack, "a", None, store) == expected
