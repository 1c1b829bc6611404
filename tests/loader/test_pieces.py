"""Chunked reads equal a copy of the complete array, and read no more bytes than documented."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.loader import FlipLeftRight, Loader, RandomCrop, Rotate90, record, shards
from halofeed.loader.augment.flips_and_crops import draw_foreground
from halofeed.loader.augment.view import View
from halofeed.loader.record import StoredArray
from halofeed.system import checksum
from tests.support.batches import same
from tests.support.volume_writer import draw_scans, write_scans

DTYPES = ("<u1", "<i2", "<u2", "<f4", "<f8")


class Record:
    """A raw value in memory in place of a record, which counts the bytes that are read of it.

    Of a shard that is "mapped" all can be looked at, at an odd address; of one that was "lost" zeros are.
    """

    place = "here"

    def __init__(self, array, shard="read"):
        self.bytes, self.read, self.calls = np.frombuffer(array.tobytes(), np.uint8), 0, 0
        self._scratch, self._shard = np.empty(0, np.uint8), shard

    def mapped_value(self, key, runs):
        if self._shard == "read":
            return None
        memory = np.zeros(len(self.bytes) + 65, np.uint8)
        value = memory[1 + -memory.ctypes.data % 64 :][: len(self.bytes)]
        value[:] = self.bytes if self._shard == "mapped" else 0
        return value

    def prefetch(self, key, runs):
        pass

    def is_lost(self):
        return self._shard == "lost"

    def scratch(self, size):
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size]

    def fetch(self, key, starts, length, out):
        assert key == "image" and len(out) == length * len(starts) and out.flags.c_contiguous
        for number, start in enumerate(starts):
            out[number * length : (number + 1) * length] = self.bytes[start : start + length]
            assert 0 <= start <= len(self.bytes) - length
        self.read += length * len(starts)
        self.calls += len(starts)

    def cached_count(self, key, count):
        return count()


def stored(array, axes, shard="read"):
    record = Record(array, shard)
    return StoredArray(record, "image", array.shape, array.dtype, axes), record


@st.composite
def views(draw):
    """An array of some shape, and any view of it."""
    axes = draw(st.integers(2, 3))
    shape = tuple(draw(st.integers(1, 20)) for _ in range(axes))
    channels = draw(st.sampled_from([(), (1,), (3,), (4,)]))
    view = View.whole(shape)
    for step in draw(st.lists(st.sampled_from(["crop", "flip", "turn"]), max_size=5)):
        if step == "crop":
            sizes = [draw(st.integers(1, size)) for size in view.shape]
            starts = [draw(st.integers(0, size - part)) for size, part in zip(view.shape, sizes, strict=True)]
            view = view.crop(starts, sizes)
        elif step == "flip":
            view = view.flip(-draw(st.integers(1, axes)))
        else:
            view = view.turn()
    return (*shape, *channels), axes, view, draw(st.sampled_from(DTYPES))


@settings(deadline=None, max_examples=600)
@given(
    views(),
    st.sampled_from([1, 50, 700, 1 << 20]),
    st.sampled_from([0, 8, 60, 1 << 13]),
    st.booleans(),
    st.sampled_from(["read", "mapped", "lost"]),
)
def test_any_view_is_copied_as_from_the_whole_array(drawn, piece_bytes, gap_bytes, framed, shard):
    shape, axes, view, dtype = drawn
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    expected = view.shown(array)
    frame = np.zeros([size + 2 for size in view.shape] + list(shape[axes:]), dtype)
    region = tuple(slice(0, size) for size in view.shape)
    out = frame[region] if framed else np.zeros(expected.shape, dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "CHUNK_BYTES", piece_bytes)
        patched.setattr(record, "_GAP_BYTES", gap_bytes)
        source, reads = stored(array, axes, shard)
        source.copy(view, out)
        assert np.array_equal(out, expected)
        assert reads.read <= (0 if shard == "mapped" else array.nbytes)
        if gap_bytes == 0 and shard != "mapped":
            assert reads.read == expected.nbytes
        # Every number of a box, in the order in which it is stored.
        seen = [part.copy() for _, part in source.chunks(view.box)]
    inside = array[tuple(slice(*side) for side in view.box)]
    assert np.array_equal(np.concatenate([part.ravel() for part in seen]), inside.ravel())


@settings(deadline=None, max_examples=200)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12)),
    st.integers(0, 2**32),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([1, 50, 1 << 20]),
    st.booleans(),
)
def test_foreground_is_drawn_as_from_the_whole_label(shape, seed, uniform, piece_bytes, is_volume):
    rng = np.random.default_rng(seed)
    label = (rng.random(shape) < 0.1).astype(np.uint8) * 7
    label = label if is_volume else label[0]
    box = tuple(sorted(map(int, rng.integers(0, size + 1, 2))) for size in label.shape)
    box = tuple((low, high) for low, high in box)
    inside = np.argwhere(label[tuple(slice(*side) for side in box)])
    expected = tuple(inside[int(uniform * len(inside))] + [low for low, _ in box]) if len(inside) else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "CHUNK_BYTES", piece_bytes)
        assert draw_foreground(stored(label, label.ndim)[0], box, uniform) == expected
        assert draw_foreground(label, box, uniform) == expected
        # With one class, to choose it first changes nothing.
        for source in (stored(label, label.ndim)[0], label):
            assert draw_foreground(source, box, uniform, class_uniform=0.9) == expected


def test_what_was_counted_is_remembered_within_bounds(tmp_path, monkeypatch):
    folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 6}))
    options = {"batch_size": 6, "seed": 2, "augment": [RandomCrop(2, 3, 3, foreground=1.0)]}
    expected = list(itertools.islice(Loader(folder, **options).batches(), 4))
    for most in (0, 100, 1 << 22):
        monkeypatch.setattr(shards, "MAX_COUNT_CACHE_BYTES", most)
        loader = Loader(folder, **options)
        for step, right in enumerate(expected):
            same(loader.batch(step), right)
        assert sum(found.nbytes for found in loader._shards._counts.values()) <= max(most, 48)


@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_blocks_pieces_and_gaps_change_no_batch(tmp_path, monkeypatch, verify):
    scans = draw_scans({"train": 5}, shape=(12, 20, 20))
    augment = [RandomCrop(6, 12, 12, foreground=0.5), Rotate90(), FlipLeftRight()]
    options = {"batch_size": 2, "num_epochs": 2, "augment": augment}
    expected = list(Loader(write_scans(tmp_path / "a/1.0.0", scans), **options))
    # Blocks of a size that no row or plane has: each piece begins and ends within one.
    monkeypatch.setattr(checksum, "BLOCK_BYTES", 700)
    folder = write_scans(tmp_path / "b/1.0.0", scans)
    for piece_bytes, gap_bytes in ((100, 0), (3000, 100), (1 << 20, 1 << 13)):
        monkeypatch.setattr(record, "CHUNK_BYTES", piece_bytes)
        monkeypatch.setattr(record, "_GAP_BYTES", gap_bytes)
        for found, right in zip(Loader(folder, **options, verify=verify), expected, strict=True):
            same(found, right)
