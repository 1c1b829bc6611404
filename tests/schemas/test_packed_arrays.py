"""Packed arrays are exact, the kernel packs and unpacks as the slow reference does, and every changed bit is found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.schemas.native import packing
from halofeed.schemas.packed.packed_arrays import pack, unpack
from halofeed.schemas.packed.packed_layout import SLACK_BYTES, PackedLayout
from halofeed.schemas.packed.packed_reference import pack_slowly, unpack_slowly

needs_kernel = pytest.mark.skipif(not packing.packs(), reason="the kernel is not built")
DTYPES = ("uint8", "uint16", "int16", "int32", "float32")
CONTENTS = ("constant", "noise", "12 bits", "gradient", "smooth", "label")


def draw(content: str, shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[np.generic]:
    """Numbers of one kind, [plane, row, column, channel]; floats have no NaN, which has several forms."""
    generator = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if content == "noise":
        bits = generator.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]
        return np.nan_to_num(bits) if kind.kind == "f" else bits
    if content == "constant":
        return np.full(shape, generator.integers(0, 100), kind)
    if content == "12 bits":
        return generator.integers(0, min(4096, 1 << 8 * kind.itemsize), shape).astype(kind)
    if content == "label":
        label = np.zeros(shape, kind)
        for _ in range(generator.integers(0, 8)):
            top, left = generator.integers(0, shape[1]), generator.integers(0, shape[2])
            height, width = generator.integers(1, 30, 2)
            label[:, top : top + height, left : left + width] = generator.integers(0, 100)
        return label
    rows, columns = np.mgrid[0 : shape[1], 0 : shape[2]]
    values = np.broadcast_to((3 * rows + 2 * columns)[None, :, :, None], shape)
    if content == "smooth":
        values = values + generator.normal(0, 4, shape)
    # Signed numbers run through 0; small unsigned ones wrap around.
    return (values - 40 * (kind.kind != "u")).astype(np.int64).astype(kind)


@st.composite
def drawn_arrays(drawing: st.DrawFn) -> tuple[NDArray[np.generic], PackedLayout, bool]:
    """An array, its layout, and whether patches are tried."""
    shape = (
        drawing(st.integers(1, 3)),
        drawing(st.sampled_from([1, 2, 31, 32, 33, 65])),
        drawing(st.integers(1, 70)),
        drawing(st.integers(1, 4)),
    )
    dtype, content = drawing(st.sampled_from(DTYPES)), drawing(st.sampled_from(CONTENTS))
    array = draw(content, shape, dtype, drawing(st.integers(0, 1 << 16)))
    return array, PackedLayout.of(shape, dtype, axes=3), drawing(st.booleans())


def bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@settings(max_examples=60, deadline=None)
@given(drawn_arrays())
def test_the_reference_gives_back_every_array(drawn):
    array, layout, patches = drawn
    value = pack_slowly(bytes_of(array), layout, patches=patches)
    assert len(value) <= layout.max_bytes
    assert np.array_equal(unpack_slowly(value, layout), bytes_of(array))


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(drawn_arrays())
def test_the_kernel_packs_the_bytes_of_the_reference(drawn):
    array, layout, patches = drawn
    expected = pack_slowly(bytes_of(array), layout, patches=patches)
    assert bytes(pack(array, layout, patches=patches)) == expected


@needs_kernel
@settings(max_examples=150, deadline=None)
@given(drawn_arrays(), st.data())
def test_each_instruction_set_unpacks_every_window_forwards_and_backwards(drawn, data):
    array, layout, patches = drawn
    value = np.frombuffer(pack(array, layout, patches=patches), np.uint8)
    shape = array.shape[:3]
    start = tuple(data.draw(st.integers(0, side - 1)) for side in shape)
    stop = tuple(data.draw(st.integers(first + 1, side)) for first, side in zip(start, shape, strict=True))
    backwards = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    window = array[tuple(map(slice, start, stop))]
    expected = window[tuple(slice(None, None, -1 if back else 1) for back in backwards)]
    # The first stored pixel of a mirrored axis is the last one of the window.
    for wanted in (0, 1, 2):
        packing.use_instructions(wanted)
        out = np.empty((*expected.shape[:3], layout.pixel_bytes), np.uint8)
        assert packing.unpack_window(value, layout, start, backwards, out)
        assert np.array_equal(bytes_of(out), bytes_of(expected)), (wanted, start, stop, backwards)
    packing.use_instructions()
    assert np.array_equal(unpack(value.data, layout), bytes_of(array))


@pytest.mark.parametrize(
    ("content", "dtype", "patches"),
    [
        ("smooth", "uint8", False),
        ("label", "uint8", True),
        ("smooth", "int16", False),
        ("noise", "uint8", False),
    ],
)
@pytest.mark.parametrize("with_kernel", [True, False])
def test_every_changed_bit_of_a_value_is_found_or_is_in_the_zeros_at_its_end(
    content, dtype, patches, with_kernel, monkeypatch
):
    if not with_kernel:
        monkeypatch.setattr(packing, "packs", lambda: False)
    array = draw(content, (1, 40, 9, 1), dtype, seed=5)
    layout = PackedLayout.of(array.shape, dtype, axes=3)
    value = bytearray(pack(array, layout, patches=patches))
    for place in range(len(value) - SLACK_BYTES):
        for bit in range(8):
            value[place] ^= 1 << bit
            with pytest.raises(ValueError):
                unpack(bytes(value), layout)
            value[place] ^= 1 << bit
    assert unpack(bytes(value), layout).tobytes() == array.tobytes()


@needs_kernel
def test_the_kernel_compares_the_checksum_of_each_band_that_it_reads():
    array = draw("smooth", (2, 100, 40, 1), "int16", seed=1)
    layout = PackedLayout.of(array.shape, "int16", axes=3)
    value = np.frombuffer(pack(array, layout), np.uint8).copy()
    places, _ = layout.read_table(value.data, len(value))
    damaged = 5  # rows 32 to 63 of plane 1
    value[places[damaged] + 9] ^= 1
    for band in range(layout.bands):
        plane, first, stop = layout.rows_of(band)
        out = np.empty((1, stop - first, 40, 2), np.uint8)
        done = packing.unpack_window(value, layout, (plane, first, 0), (False,) * 3, out)
        assert done == (band != damaged)
        assert not done or out.tobytes() == array[plane, first:stop].tobytes()


def test_flags_keep_which_bands_were_compared():
    if not packing.packs():
        pytest.skip("the kernel is not built")
    array = draw("smooth", (1, 100, 40, 3), "uint8", seed=1)
    layout = PackedLayout.of(array.shape, "uint8", axes=3)
    value = np.frombuffer(pack(array, layout), np.uint8).copy()
    flags, out = np.zeros(layout.bands, np.uint8), np.empty((1, 40, 40, 3), np.uint8)
    assert packing.unpack_window(value, layout, (0, 30, 0), (False,) * 3, out, flags)
    assert flags.tolist() == [1, 1, 1, 0]
    assert np.array_equal(out[0], array[0, 30:70])


@pytest.mark.parametrize("content", CONTENTS)
def test_a_value_holds_no_more_than_its_array_and_a_table(content):
    array = draw(content, (1, 64, 64, 3), "uint8", seed=2)
    layout = PackedLayout.of(array.shape, "uint8", axes=3)
    size = len(pack(array, layout, patches=True))
    assert size <= layout.max_bytes < 1.01 * array.nbytes
    assert size < 0.05 * array.nbytes or content not in ("constant", "label")
    assert size < 0.75 * array.nbytes or content not in ("gradient", "smooth")


def test_a_value_of_another_layout_or_version_is_refused():
    array = np.zeros((64, 40), np.uint8)
    layout = PackedLayout.of(array.shape, "uint8", axes=2)
    value = bytes(pack(array, layout))
    with pytest.raises(ValueError, match="does not describe a value of 1"):
        layout.read_table(value, len(value) + 1)
    with pytest.raises(ValueError, match="expected version 1 of packed arrays, got 2"):
        unpack(b"\2" + value[1:], layout)
    with pytest.raises(ValueError, match="checksum of its table"):
        unpack(value, PackedLayout.of((96, 40), "uint8", axes=2))
    with pytest.raises(ValueError, match="expected a table of 24 bytes, got 20 bytes"):
        unpack(value[:20], layout)
    with pytest.raises(ValueError, match="expected numbers of 1, 2 or 4 bytes, got float64"):
        PackedLayout.of(array.shape, "float64", axes=2)


@pytest.mark.parametrize(
    ("shape", "planes", "rows", "expected"),
    [
        ((2, 100, 100), (0, 2), (0, 100), [0, 1, 2, 3, 4, 5, 6, 7]),
        ((2, 100, 100), (1, 2), (31, 33), [4, 5]),
        ((1, 32, 100), (0, 1), (0, 32), [0]),
    ],
)
def test_the_bands_of_rows_are_those_that_hold_one(shape, planes, rows, expected):
    layout = PackedLayout.of(shape, "int16", axes=3)
    assert layout.bands_of(planes, rows).tolist() == expected
    found = [
        band
        for band in range(layout.bands)
        if planes[0] <= layout.rows_of(band)[0] < planes[1]
        and any(rows[0] <= row < rows[1] for row in range(*layout.rows_of(band)[1:]))
    ]
    assert found == expected
