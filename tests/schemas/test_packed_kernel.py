"""The kernel's packing and unpacking: damaged values, wrong windows, threads, other compilers and processors."""

import itertools
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.schemas.native import packing
from halofeed.schemas.packed.packed_arrays import pack, unpack
from halofeed.schemas.packed.packed_layout import MAX_VALUE_BYTES, SLACK_BYTES, PackedLayout
from halofeed.schemas.packed.packed_reference import pack_slowly, unpack_slowly
from tests.support.kernels import kernel_if, needs_kernel, ways

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "schemas" / "native"
FORMS = [("uint8", 1), ("uint8", 2), ("uint8", 3), ("int16", 1), ("uint16", 3), ("float32", 1), ("int32", 2)]
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.fixture(autouse=True)
def best_instructions():
    """Whatever a test chose, the next one has the best instructions."""
    yield
    if packing.packs():
        packing.use_instructions()


def instruction_sets():
    best = packing.use_instructions()
    for wanted in range(best + 1):
        assert packing.use_instructions(wanted) == wanted
        yield wanted


def drawn(seed, shape, dtype, channels):
    """An array of planes, rows and columns: steps from row to row of a random size, with runs and jumps."""
    random = np.random.default_rng(seed)
    size = (*shape, channels)
    noise = random.integers(0, 1 << random.integers(0, 8), size)
    steps = noise * random.integers(1, 1 << random.integers(1, 24))
    found = np.where(random.random(size) < 0.02, random.integers(0, 1 << 31, size), np.cumsum(steps, axis=1))
    if random.random() < 0.3:
        found = np.repeat(random.integers(0, 4, (*shape[:2], -(-shape[2] // 8), channels)), 8, axis=2)[
            :, :, : shape[2]
        ]
    as_float = dtype == "float32"
    return np.ascontiguousarray((found / 7 if as_float else found).astype(dtype))


def layout_of(array):
    return PackedLayout.of(array.shape, array.dtype, axes=3)


def bytes_of(array):
    return array.reshape(-1).view(np.uint8)


arrays = st.builds(
    lambda seed, shape, form: drawn(seed, shape, *form),
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 70)),
    st.sampled_from(FORMS),
)


# Packing ---------------------------------------------------------------------------------------------------------


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(arrays, st.booleans())
def test_a_value_has_the_same_bytes_with_every_instruction_set_and_without_a_compiler(array, patches):
    expected = pack_slowly(bytes_of(array), layout_of(array), patches=patches)
    for _ in instruction_sets():
        assert bytes(pack(array, layout_of(array), patches=patches)) == expected


@needs_kernel
@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("int16", 16)])
def test_every_number_of_bits_has_its_width(dtype, bits):
    # A group whose row differs from the one above by exactly -2**(n - 1) to 2**(n - 1) - 1 needs n bits.
    for needed in range(bits + 1):
        array = np.zeros((1, 2, 16), f"uint{bits}")
        if needed:
            array[0, 1, ::2] = (1 << needed - 1) - 1
            array[0, 1, 1::2] = (-(1 << needed - 1)) % (1 << bits)
        array, layout = array.view(dtype), PackedLayout.of((1, 2, 16), dtype, axes=3)
        expected = pack_slowly(bytes_of(array), layout)
        for _ in instruction_sets():
            assert bytes(pack(array, layout)) == expected
            assert unpack(expected, layout).tobytes() == array.tobytes()


@needs_kernel
@pytest.mark.parametrize("form", FORMS)
def test_arrays_values_and_targets_may_begin_at_any_address(form):
    array = drawn(5, (2, 40, 37), *form)
    layout, expected = layout_of(array), pack_slowly(bytes_of(array), layout_of(array))
    for offset, _ in itertools.product(range(1, 4), instruction_sets()):
        moved = np.zeros(array.nbytes + offset, np.uint8)[offset:]
        moved[:] = bytes_of(array)
        assert packing.pack_bytes(moved, layout, patches=False).tobytes() == expected
        value = np.frombuffer(bytes(offset) + expected, np.uint8)[offset:]
        out = np.zeros(array.nbytes + offset, np.uint8)[offset:].reshape(2, 40, 37, -1)
        assert packing.unpack_window(value, layout, (0, 0, 0), (False,) * 3, out)
        assert out.tobytes() == array.tobytes()


def test_an_array_of_another_layout_is_not_packed():
    layout = PackedLayout.of((40, 40), "uint8", axes=2)
    if packing.packs():
        with pytest.raises(ValueError, match=r"1,600 adjacent bytes, got 1,599"):
            packing.pack_bytes(np.zeros(1599, np.uint8), layout, patches=False)


@pytest.mark.parametrize("empty", range(4))
def test_a_layout_has_no_empty_axis(empty):
    sizes = [2, 3, 4, 1]
    sizes[empty] = 0
    with pytest.raises(ValueError, match="not empty, got"):
        PackedLayout(planes=sizes[0], height=sizes[1], width=sizes[2], pixel_bytes=sizes[3], unit_bytes=1)


@pytest.mark.parametrize(("pixel", "unit"), [(3, 2), (4, 3), (8, 8), (2, 0)])
def test_a_pixel_has_whole_units(pixel, unit):
    with pytest.raises(ValueError, match="units of 1 to 4 bytes"):
        PackedLayout(planes=1, height=1, width=1, pixel_bytes=pixel, unit_bytes=unit)


def test_a_value_that_offsets_of_32_bits_cannot_describe_is_refused():
    # 2,048 slices of 1,024 x 1,024 voxels of 2 bytes are 2**32 bytes.
    with pytest.raises(ValueError, match=rf"at most {MAX_VALUE_BYTES:,} bytes, and this array may need 4,29"):
        PackedLayout.of((2048, 1024, 1024), "int16", axes=3)
    assert PackedLayout.of((2047, 1024, 1024), "int16", axes=3).max_bytes <= MAX_VALUE_BYTES


# Damage ----------------------------------------------------------------------------------------------------------


def small_value(mode):
    """An array, its layout, and a value whose bands have the mode, if its content allows."""
    array = drawn(3, (2, 33, 9), "int16", 1)
    if mode == "raw":
        array = np.random.default_rng(1).integers(-32768, 32767, array.shape).astype(np.int16)
    if mode == "patches":
        array = (array > array.mean()).astype(np.int16)
    layout = layout_of(array)
    return array, layout, bytes(pack(array, layout, patches=mode == "patches"))


@ways
@pytest.mark.parametrize("mode", ["raw", "groups", "patches"])
def test_every_changed_bit_of_a_complete_value_is_found(is_used, mode):
    array, layout, value = small_value(mode)
    with kernel_if(is_used):
        assert unpack(value, layout).tobytes() == array.tobytes()
        for byte, bit in itertools.product(range(len(value)), range(8)):
            changed = bytearray(value)
            changed[byte] ^= 1 << bit
            with pytest.raises(ValueError, match=r"version|checksum|not 0"):
                unpack(memoryview(changed), layout)


@ways
def test_a_value_that_is_too_short_or_too_long_is_refused(is_used):
    _, layout, value = small_value("groups")
    with kernel_if(is_used):
        for size in range(len(value)):
            with pytest.raises(ValueError):
                unpack(value[:size], layout)
        for more in (1, SLACK_BYTES):
            with pytest.raises(ValueError, match="does not describe a value of"):
                unpack(value + bytes(more), layout)


def test_the_message_names_the_damaged_band():
    _, layout, value = small_value("groups")
    changed = bytearray(value)
    changed[-SLACK_BYTES - 1] ^= 1
    with pytest.raises(ValueError, match="checksum of band 3 is wrong"):
        unpack(memoryview(changed), layout)


def with_right_checksums(value, layout):
    """A value with the checksums of its bytes, if its table has possible ends."""
    ends = np.frombuffer(value, "<u4", 2 * layout.bands, 8)[::2].tolist()
    places = [layout.table_bytes, *ends]
    if sorted(set(places)) != places or places[-1] > len(value):
        return None
    bands = [value[begin:end] for begin, end in itertools.pairwise(places)]
    return layout.write_table(bands) + value[layout.table_bytes :]


@needs_kernel
@settings(max_examples=150, deadline=None)
@given(
    arrays, st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_the_kernel_and_the_reference_agree_on_what_is_valid(array, patches, changes):
    layout = layout_of(array)
    value = bytearray(pack(array, layout, patches=patches))
    bands = range(layout.table_bytes, len(value) - SLACK_BYTES)
    for place, byte in changes:
        # Also near the start of the first band, where its mode and its widths are.
        value[bands[int(place**2 * (len(bands) - 1))]] = byte
    value = with_right_checksums(bytes(value), layout)
    try:
        expected = unpack_slowly(value, layout).tobytes()
    except ValueError:
        expected = None
    shape = layout.planes, layout.height, layout.width, layout.pixel_bytes
    for _ in instruction_sets():
        out = np.empty(shape, np.uint8)
        done = packing.unpack_window(np.frombuffer(value, np.uint8), layout, (0, 0, 0), (False,) * 3, out)
        assert (out.tobytes() if done else None) == expected


# Windows ---------------------------------------------------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize(
    ("start", "shape"),
    [
        ((0, 0, 0), (3, 1, 1)),
        ((2, 0, 0), (1, 1, 1)),
        ((0, 40, 0), (1, 1, 1)),
        ((0, 30, 0), (1, 11, 1)),
        ((0, 0, 36), (1, 1, 2)),
        ((0, 0, -1), (1, 1, 2)),
        ((0, -1, 0), (1, 2, 1)),
        ((-1, 0, 0), (1, 1, 1)),
        ((0, 0, 2**63 - 1), (1, 1, 1)),
    ],
)
def test_a_window_that_is_not_in_the_array_is_left(start, shape):
    array = drawn(5, (2, 40, 37), "int16", 1)
    layout, value = layout_of(array), np.frombuffer(pack(array, layout_of(array)), np.uint8)
    out = np.full((*shape, 2), 7, np.uint8)
    assert not packing.unpack_window(value, layout, start, (False,) * 3, out)
    assert (out == 7).all()


@needs_kernel
def test_a_target_value_or_flags_of_another_form_are_refused():
    array = drawn(5, (2, 40, 37), "int16", 1)
    layout, value = layout_of(array), np.frombuffer(pack(array, layout_of(array)), np.uint8)
    out = np.zeros((2, 40, 37, 2), np.uint8)
    for wrong in (
        out[..., :1],
        out[:, :, ::2],
        out[:, :, ::-1],
        out[..., ::-1],
        out.view(np.int16)[..., None][..., :0],
    ):
        with pytest.raises(ValueError, match="adjacent pixels of 2 bytes, got"):
            packing.unpack_window(value, layout, (0, 0, 0), (False,) * 3, wrong)
    with pytest.raises(ValueError, match="adjacent bytes"):
        packing.unpack_window(value[::2], layout, (0, 0, 0), (False,) * 3, out)
    with pytest.raises(ValueError, match="4 adjacent flags"):
        packing.unpack_window(value, layout, (0, 0, 0), (False,) * 3, out, np.zeros(3, np.uint8))


@needs_kernel
def test_threads_share_a_table_and_the_flags_of_its_values():
    array = drawn(8, (3, 90, 61), "uint8", 3)
    layout, value = layout_of(array), np.frombuffer(pack(array, layout_of(array)), np.uint8)
    random, flags = np.random.default_rng(1), np.zeros(layout.bands, np.uint8)
    unpacks, targets, expected = packing.no_unpacks(100, layout), [], []
    for unpack_row in unpacks:
        start = random.integers(0, array.shape[:3])
        shape = [
            int(random.integers(1, size - at + 1)) for at, size in zip(start, array.shape[:3], strict=True)
        ]
        back = random.integers(0, 2, 3)
        window = array[tuple(slice(at, at + size) for at, size in zip(start, shape, strict=True))]
        expected.append(window[tuple(slice(None, None, -1 if one else 1) for one in back)])
        targets.append(np.zeros((*shape, 3), np.uint8))
        unpack_row[packing.VALUE], unpack_row[packing.VALUE_BYTES] = value.ctypes.data, value.nbytes
        unpack_row[packing.START], unpack_row[packing.SHAPE], unpack_row[packing.BACKWARDS] = (
            start,
            shape,
            back,
        )
        unpack_row[packing.TARGET], unpack_row[packing.FLAGS] = targets[-1].ctypes.data, flags.ctypes.data
        unpack_row[packing.TARGET_STRIDES] = targets[-1].strides[:3]

    def in_four_threads(work):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert packing.unpack_all(unpacks, in_four_threads, (value, targets, flags)).all()
    for target, window in zip(targets, expected, strict=True):
        assert (target == window).all()
    assert flags.all()
    # A table that is used again keeps no result of its last use.
    unpacks[:, packing.VALUE_BYTES] -= 1
    assert not packing.unpack_all(unpacks, in_four_threads, (value, targets, flags)).any()


@needs_kernel
def test_only_bands_that_were_compared_and_right_get_a_flag():
    array, layout, value = small_value("groups")
    changed = bytearray(value)
    changed[-SLACK_BYTES - 1] ^= 1  # in band 3, rows 32 and on of plane 1
    changed = np.frombuffer(changed, np.uint8)
    flags, out = np.zeros(layout.bands, np.uint8), np.zeros((1, 32, 9, 2), np.uint8)
    assert packing.unpack_window(changed, layout, (1, 0, 0), (False,) * 3, out, flags)
    assert out.tobytes() == array[1, :32].tobytes()
    assert flags.tolist() == [0, 0, 1, 0]
    assert not packing.unpack_window(changed, layout, (1, 1, 0), (False,) * 3, out, flags)
    assert flags.tolist() == [0, 0, 1, 0]
    flags[3] = 1  # compared before, so it is not compared again
    assert packing.unpack_window(changed, layout, (1, 1, 0), (False,) * 3, out, flags)


# Other compilers and processors ----------------------------------------------------------------------------------


def build(compiler, options, program):
    """Compile fuzz_packed.c, which includes the kernel's files, without warnings.

    Skip if the compiler cannot build any program with these options: headers or libraries of 32 bits may be missing.
    """
    smallest = ["-x", "c", "-", "-o", str(program), "-pthread"]
    tried = subprocess.run(
        [compiler, *options, *smallest],
        input="#include <pthread.h>\n#include <stdio.h>\nint main(void) { return 0; }\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"{compiler} {' '.join(options)}: {tried.stderr}")
    command = [compiler, *options, f"-I{NATIVE}", str(HERE / "fuzz_packed.c"), "-o", str(program), "-pthread"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    return program


SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@needs_compiler
@pytest.mark.long
def test_twenty_thousand_damaged_values_are_read_inside_and_written_inside(tmp_path):
    program = build("gcc", SANITIZED, tmp_path / "fuzz")
    assert subprocess.check_output([program, "20000", "1"], text=True) == "done\n"


@needs_compiler
@pytest.mark.exhaustive
def test_a_million_damaged_values_are_read_inside_and_written_inside(tmp_path):
    program = build("gcc", SANITIZED, tmp_path / "fuzz")
    assert subprocess.check_output([program, "1000000", "2"], text=True) == "done\n"


@needs_compiler
@pytest.mark.long
def test_threads_in_the_kernel_have_no_data_race(tmp_path):
    program = build("gcc", ["-g", "-O1", "-fsanitize=thread"], tmp_path / "threads")
    assert subprocess.check_output([program, "threads"], text=True) == "done\n"


def vectors():
    """Arrays and the values that the reference packs, as `read_vectors` of fuzz_packed.c reads them."""
    shapes = [(1, 1, 1), (1, 33, 16), (2, 32, 17), (3, 70, 45)]
    found = b""
    for seed, (shape, form, patches) in enumerate(itertools.product(shapes, FORMS, (False, True))):
        array = drawn(seed, shape, *form)
        layout = layout_of(array)
        value = pack_slowly(bytes_of(array), layout, patches=patches)
        head = np.array([*layout.numbers, patches, array.nbytes, len(value)], "<i8")
        found += head.tobytes() + array.tobytes() + value
    return found


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize(
    ("compiler", "options", "runner"),
    [
        ("gcc", [], None),
        ("clang", [], None),
        ("gcc", ["-m32"], None),
        ("aarch64-linux-gnu-gcc", ["-static"], "qemu-aarch64-static"),
    ],
)
def test_every_compiler_and_processor_packs_and_unpacks_the_values_of_the_reference(
    tmp_path, compiler, options, runner
):
    if not shutil.which(compiler) or (runner and not shutil.which(runner)):
        pytest.skip(f"{compiler} or {runner} is not installed")
    warnings = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-Wpedantic"]
    program = build(compiler, [*warnings, *options], tmp_path / "vectors")
    command = [runner, str(program)] if runner else [str(program)]
    said = subprocess.run(
        [*command, "vectors"], input=vectors(), capture_output=True, check=True
    ).stdout.decode()
    assert said.startswith("56 vectors, ") and said.endswith("done\n")
    assert subprocess.check_output([*command, "5000", "3"], text=True) == "done\n"
