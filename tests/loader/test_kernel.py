"""The kernel copies what NumPy copies and no other byte, and accepts only intact records."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import CorruptFileError
from halofeed.loader import Loader, RandomCrop
from halofeed.loader.augment import FlipDepth, FlipLeftRight, FlipUpDown
from halofeed.schemas.native import kernel
from halofeed.schemas.tfrecord import read_records
from halofeed.storage.mapped_files import is_guarded
from tests.support.batches import flip, same
from tests.support.guarded import guarded
from tests.support.kernels import kernel_if, needs_kernel
from tests.support.scripts import run_script
from tests.support.volume_writer import draw_scans, write_scans

pytestmark = needs_kernel
WINDOWS = [FlipLeftRight(), FlipUpDown(), FlipDepth(), RandomCrop(11, 70, 90)]


@settings(max_examples=600, deadline=None)
@given(
    data=st.data(),
    axes=st.integers(1, 3),
    pixel=st.integers(1, 20),
    backwards=st.tuples(*[st.booleans()] * 3),
    streams=st.booleans(),
)
def test_a_window_is_what_numpy_copies_and_nothing_beside_it(data, axes, pixel, backwards, streams):
    stored = [data.draw(st.integers(1, 5 if axis < axes - 1 else 90)) for axis in range(axes)]
    low = [data.draw(st.integers(0, size - 1)) for size in stored]
    high = [data.draw(st.integers(first + 1, size)) for first, size in zip(low, stored, strict=True)]
    source = guarded(int(np.prod(stored)) * pixel)
    source[:] = np.random.default_rng(0).integers(0, 256, len(source))
    source = source.reshape(*stored, pixel)
    turns = slice(None), slice(None, None, -1)
    window = source[tuple(map(slice, low, high))][tuple(turns[back] for back in backwards[:axes])]
    # Rows of the target lie apart, and the last one ends where memory does.
    room = [size + data.draw(st.integers(0, 2)) for size in window.shape[:axes]]
    memory = guarded(int(np.prod(room)) * pixel)
    memory[:] = 7
    frame = memory.reshape(*room, pixel)
    inside = tuple(slice(side - size, side) for side, size in zip(room, window.shape[:axes], strict=True))
    target = frame[inside]
    moves = kernel.no_moves(1)
    outer = kernel.KERNEL_AXES - axes
    moves[0, kernel.SOURCE], moves[0, kernel.TARGET] = window.ctypes.data, target.ctypes.data
    moves[0, kernel.SHAPE][outer:] = window.shape[:axes]
    moves[0, kernel.SOURCE_STRIDES][outer:] = window.strides[:axes]
    moves[0, kernel.SOURCE_STRIDES][-1] = -pixel if backwards[axes - 1] else pixel
    moves[0, kernel.TARGET_STRIDES][outer:] = target.strides[:axes]
    moves[0, kernel.PIXEL_BYTES] = pixel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "STREAMED_BYTES", 0 if streams else 1 << 40)
        assert kernel.move(moves, lambda work: work(), (source, target)).all()
    assert np.array_equal(target, window)
    target[...] = 7
    assert (frame == 7).all()


@pytest.mark.parametrize("pixel", [1, 3, 6, 70, 20_000])
def test_long_rows_are_mirrored_by_pieces(pixel):
    source = np.random.default_rng(0).integers(0, 256, (3, 60_000 // pixel, pixel), np.uint8)
    for streams in (0, 1 << 40):
        target = np.empty_like(source)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "_STREAMED_COPY_BYTES", streams)
            assert kernel.copy(source[:, ::-1], target, 2)
        assert np.array_equal(target, source[:, ::-1])


def test_what_the_kernel_does_not_copy_it_leaves_alone():
    source, target = np.ones((4, 6, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)
    assert not kernel.copy(source, target.astype(np.int8), 2)
    assert not kernel.copy(source[:3], target, 2)
    assert not kernel.copy(source[..., ::-1], target, 2)
    assert not kernel.copy(source[:, ::2], target[:, :3], 2)
    assert not kernel.copy(source.transpose(1, 0, 2), np.zeros((6, 4, 3), np.uint8), 2)
    assert not kernel.copy(source[:0], target[:0], 2)
    fixed = np.frombuffer(bytes(72), np.uint8).reshape(4, 6, 3)
    assert not kernel.copy(source, fixed, 2) and not fixed.any()
    assert not target.any()


@pytest.mark.skipif(not is_guarded(), reason="files are not mapped here")
def test_all_threads_outlive_a_file_that_is_shortened(tmp_path):
    # Each attempt is a process of its own, which SIGBUS would end.
    path = tmp_path / "file"
    path.write_bytes(bytes([7]) * (1 << 24))
    output = run_script(f"""
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from halofeed.schemas.native import kernel
from halofeed.storage.mapped_files import map_file
pool = ThreadPoolExecutor(4)
def together(work):
    for thread in [pool.submit(work) for _ in range(4)]:
        thread.result()
for attempt in range(20):
    path = {str(path)!r}
    with open(path, "r+b") as stream:
        stream.truncate(1 << 24)
        file = map_file(stream.fileno(), 1 << 24)
        source, target = np.asarray(file), np.ones(1 << 24, np.uint8)
        moves = kernel.no_moves(64)
        starts = np.arange(64) << 18
        moves[:, kernel.SOURCE], moves[:, kernel.TARGET] = source.ctypes.data + starts, target.ctypes.data + starts
        moves[:, kernel.SHAPE] = 1, 1 << 9, 1 << 9
        moves[:, kernel.SOURCE_STRIDES] = moves[:, kernel.TARGET_STRIDES] = 1 << 18, 1 << 9, 1
        moves[:, kernel.PIXEL_BYTES] = 1
        stream.truncate(attempt << 19)
        assert kernel.move(moves, together, (file, target)).all() and file.lost
        assert not target[attempt << 19 :].any()
print("all outlived")
""")
    assert output.splitlines() == ["all outlived"]


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Volumes whose two raw values have blocks of a MiB and a shorter one."""
    drawn = draw_scans({"train": 7}, shape=(20, 200, 300))
    return write_scans(tmp_path_factory.mktemp("scans") / "set", drawn)


@pytest.mark.parametrize("verify", ["first", "always", "never"])
@pytest.mark.parametrize("augment", [[], WINDOWS], ids=["whole", "windows"])
@pytest.mark.parametrize("slab", [None, ((3, 9), (10, 60), (0, 77))])
def test_batches_are_those_of_numpy(scans, verify, augment, slab):
    def batches(is_used):
        with kernel_if(is_used):
            loader = Loader(scans, batch_size=3, seed=4, augment=augment, verify=verify)
            loader = loader if slab is None else loader.of_slab(slab)
            return [loader.batch(step) for step in range(6)]

    for ours, theirs in zip(batches(True), batches(False), strict=True):
        same(ours, theirs)


def test_wrong_bits_of_every_block_are_found(scans, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(scans, folder)
    shard = sorted(folder.glob("*.tfrecord-*-of-?????"))[0]
    whole = shard.read_bytes()
    (offset, record), *_ = read_records(whole, "")
    rng = np.random.default_rng(0)
    frame = 12 + len(record) + 4
    # In the header, in what stands around the values, in each of their blocks, and in the footer.
    places = [0, 9, 12, 13, 40, frame - 1, frame - 5, frame - 9, *rng.integers(0, frame, 12).tolist()]
    for place in places:
        shard.write_bytes(whole)
        flip(shard, offset + place, 1 << rng.integers(8))
        with pytest.raises(CorruptFileError, match=rf"at byte {offset:,}"):
            Loader(folder, batch_size=7, training=False, verify="always").batch(0)
    shard.write_bytes(whole)
