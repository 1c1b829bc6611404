"""A view shows what NumPy's flips, rotations and slices show, at any place and size."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.loader.augment import Example
from halofeed.loader.augment.view import View
from tests.support.kernels import kernel_if, ways

DTYPES = ["uint8", "uint16", "int16", "float32", "float64", "bool", "bfloat16"]
STEPS = ["flip", "turn", "crop"]


def seen_by_numpy(view, seen, step, data):
    """The view after one step, and the same of the array by NumPy."""
    axes = len(view.shape)
    if step == "flip":
        axis = data.draw(st.integers(0, axes - 1))
        return view.flip(axis), np.flip(seen, axis)
    if step == "turn":
        return view.turn(), np.rot90(seen, axes=(axes - 2, axes - 1))
    start = [data.draw(st.integers(0, size - 1)) for size in view.shape]
    shape = [data.draw(st.integers(1, size - low)) for low, size in zip(start, view.shape, strict=True)]
    window = tuple(slice(low, low + size) for low, size in zip(start, shape, strict=True))
    return view.crop(start, shape), seen[window]


@ways
@settings(max_examples=400, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), axes=st.integers(2, 3), channels=st.integers(0, 6))
def test_a_view_is_what_numpy_shows(is_used, data, dtype, axes, channels):
    # Planes from 16 pixels on go through OpenCV.
    shape = tuple(data.draw(st.integers(1, 4 if axis == axes - 3 else 40)) for axis in range(axes))
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    values = (np.arange(np.prod(shape) * max(channels, 1)) % 251).astype(kind).tobytes()
    odd = data.draw(st.integers(0, 1))  # arrays of records begin at any byte
    source = np.frombuffer(bytes(odd) + values, kind, offset=odd)
    source = source.reshape((*shape, channels) if channels else shape)
    view, seen = View.whole(shape), source
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=5)):
        view, seen = seen_by_numpy(view, seen, step, data)
    frame = np.full([size + 2 for size in view.shape] + ([channels] if channels else []), 3, source.dtype)
    inside = tuple(slice(0, size) for size in view.shape)
    with kernel_if(is_used):
        view.copy(source, frame[inside])
    assert np.array_equal(frame[inside], seen)
    assert np.array_equal(view.shown(source), seen)
    frame[inside] = 3
    assert (frame == np.array(3, frame.dtype)).all()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), axes=st.integers(2, 3))
def test_points_and_boxes_are_found_again(data, axes):
    shape = tuple(data.draw(st.integers(1, 7)) for _ in range(axes))
    view, seen = View.whole(shape), np.arange(np.prod(shape)).reshape(shape)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=6)):
        view, seen = seen_by_numpy(view, seen, step, data)
    voxels = np.moveaxis(np.indices(view.shape), 0, -1).reshape(-1, axes)
    stored = np.stack(np.unravel_index(seen.ravel(), shape), axis=-1)
    ones = np.ones((len(voxels), 1))
    scene = Example(view=view, extent=view.box)
    centers, edges = scene.stored_points(centers=True), scene.stored_points(centers=False)
    assert np.array_equal(np.hstack([voxels, ones]) @ centers.T, np.hstack([stored, ones]))
    # The middle of a pixel is half a pixel after its edge.
    assert np.array_equal(np.hstack([voxels + 0.5, ones]) @ edges.T, np.hstack([stored + 0.5, ones]))
    assert view.box == tuple((stored[:, axis].min(), stored[:, axis].max() + 1) for axis in range(axes))

    low = [data.draw(st.integers(0, size - 1)) for size in shape]
    high = [data.draw(st.integers(first + 1, size)) for first, size in zip(low, shape, strict=True)]
    inside = np.zeros(shape, bool)
    inside[tuple(map(slice, low, high))] = True
    found = inside.ravel()[seen]
    box = view.seen(tuple(zip(low, high, strict=True)))
    expected = np.zeros(view.shape, bool)
    expected[tuple(slice(*side) for side in box)] = True
    assert np.array_equal(found, expected)


@ways
@pytest.mark.parametrize("reverse", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("channels", [0, 1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "bfloat16"])
def test_large_pictures_keep_every_bit(is_used, reverse, channels, dtype):
    # Of 4 bytes on more than one piece, of which the last is shorter; odd bits of floats are no numbers.
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    shape = (611, 433, channels) if channels else (611, 433)
    data = np.random.default_rng(0).integers(0, 256, kind.itemsize * int(np.prod(shape)) + 1, np.uint8)
    source = np.frombuffer(data.tobytes(), kind, offset=1).reshape(shape)
    view = View.whole(shape[:2]).crop((7, 5), (601, 421))
    for axis in reverse:
        view = view.flip(axis)
    out = np.zeros((610, 430, *shape[2:]), kind)
    with kernel_if(is_used):
        view.copy(source, out[:601, :421])
    expected = np.flip(source[7:608, 5:426], reverse)
    assert out[:601, :421].tobytes() == expected.tobytes()
    assert not out[601:].view(np.uint8).any() and not out[:, 421:].copy().view(np.uint8).any()
