"""Windows of records that no one has read yet are planned, verified and copied at once, and every damage is found."""

import dataclasses
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import CorruptFileError
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop
from halofeed.loader.assemble import Assembler
from halofeed.loader.mapped_records import NumberParser
from halofeed.loader.store import remote_store
from halofeed.schemas import shard_file
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import MANIFEST, index_file
from halofeed.schemas.index import EARLIER_BLOCK_BYTES, ShardIndex
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.tfexample import decode_parts, encode_example
from halofeed.storage.mapped_files import is_guarded
from halofeed.system import checksum
from halofeed.system.checksum import block_checksums, crc32c
from tests.support.batches import flip, same
from tests.support.faulty_server import serving
from tests.support.guarded import guarded
from tests.support.kernels import needs_kernel
from tests.support.picture_writer import draw_examples, write_splits
from tests.support.volume_writer import draw_scans, write_scans

mapped = pytest.mark.skipif(not is_guarded(), reason="files are not mapped here")
WINDOWS = [RandomCrop(3, 30, 20), FlipLeftRight(), FlipUpDown(), FlipDepth()]
PICTURES = [RandomCrop(40, 30), FlipLeftRight(), FlipUpDown()]


@pytest.fixture(params=["raw", "packed"])
def encoding(request):
    return request.param


def volumes(folder, encoding, count=6):
    return write_scans(folder / "1.0.0", draw_scans({"train": count}, shape=(6, 70, 50)), encoding=encoding)


def noise(shape):
    """A scan that no coding makes much smaller."""
    (scan,) = draw_scans({"train": 1}, shape=shape)
    image = np.random.default_rng(0).integers(0, 4000, scan.image.shape, np.int16)
    return dataclasses.replace(scan, image=image)


def said_of(folder, options, right):
    """What the loader says of the damage; "" where its first batch is right."""
    try:
        same(Loader(folder, **options).batch(0), right)
    except CorruptFileError as error:
        return str(error)
    return ""


def pictures(folder, encoding):
    examples = draw_examples(12, frame=(70, 60), task="classification")
    return write_splits(folder / "1.0.0", {"train": examples}, frame=(70, 60), encoding=encoding)


@mapped
@needs_kernel
@pytest.mark.parametrize(("write", "augment"), [(volumes, WINDOWS), (pictures, PICTURES)])
def test_the_first_pass_is_planned_and_equals_an_unverified_one(
    tmp_path, monkeypatch, encoding, write, augment
):
    monkeypatch.setattr(checksum, "BLOCK_BYTES", 1000)
    folder = write(tmp_path, encoding)
    options = {"batch_size": 4, "seed": 1, "augment": augment}
    rows, move = [], Assembler.move_planned
    monkeypatch.setattr(Assembler, "move_planned", lambda *given: rows.append(move(*given)) or rows[-1])
    first, never = Loader(folder, **options), Loader(folder, **options, verify="never")
    for step in range(2 * first.steps_per_epoch):
        same(first.batch(step), never.batch(step))
    planned = np.concatenate(rows)
    assert planned.all() and len(planned) == 2 * 2 * first.steps_per_epoch * 4


@mapped
@needs_kernel
def test_each_flipped_bit_of_a_window_is_found_and_its_block_or_band_is_named(
    tmp_path, monkeypatch, encoding
):
    monkeypatch.setattr(checksum, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(shard_file, "_TICK_SECONDS", 0)  # nobody else writes
    folder = volumes(tmp_path, encoding, count=2)
    options = {"batch_size": 1, "training": False, "augment": [RandomCrop(3, 30, 20)]}
    loader = Loader(folder, **options)
    right = loader.batch(0)
    record = loader.stored(0)
    path = next(path for path in folder.iterdir() if record.place.startswith(f"{path}:"))
    starts = {key: record.value_start(key) for key in loader._shards.array_bytes}
    verified = {key: loader._shards.verified_parts[key][0] for key in starts}
    assert not all(flags.all() for flags in verified.values())
    found, rng = set(), np.random.default_rng(2)
    for number in range(120):
        key = list(starts)[number % 2]
        size = int(loader._shards.value_bytes[key][0])
        at = int(rng.integers(size))
        flip(path, starts[key] + at, 1 << number % 8)
        said = said_of(folder, options, right)
        flip(path, starts[key] + at, 1 << number % 8)
        if said:
            part = "block" if encoding == "raw" else "band"
            assert all(one in said for one in (str(path), f"(id {record.id})", key)), said
            assert part in said or "its table" in said or "version" in said, said
        if encoding == "raw":
            assert bool(said) == verified[key][at // 1000]
        found.add(bool(said))
    assert found == {True, False}
    same(Loader(folder, **options).batch(0), right)


def test_a_window_of_a_local_file_reads_its_bands_only(tmp_path, monkeypatch):
    """A window of two rows of a volume of 8 bands per plane, without a map: the table, and one or two bands a plane."""
    folder = write_scans(tmp_path / "1.0.0", [noise((4, 256, 300))], shards=1, encoding="packed")
    monkeypatch.setattr(shard_file, "map_file", lambda descriptor, size: None)
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: read.append(preadv(*given)) or read[-1])
    loader = Loader(folder, batch_size=1, training=False)
    whole = loader.batch(0)
    part = loader.of_slab(((0, 4), (100, 102), (0, 300)))
    read.clear()
    found = part.batch(0)
    assert np.array_equal(found["image"], whole["image"][:, :, 100:102])
    value = loader.stored(0).value_bytes("image/encoded")
    assert sum(read) < value // 3


def test_a_crop_of_a_large_value_fetches_its_table_and_its_bands(tmp_path, monkeypatch):
    folder = write_scans(tmp_path / "1.0.0", [noise((4, 1024, 700))], shards=1, encoding="packed")
    local = Loader(folder, batch_size=1, training=False)
    whole = local.batch(0)
    asked, request = [], remote_store._Process.request

    def counted(self, name, start, stop):
        asked.append(stop - start)
        return request(self, name, start, stop)

    monkeypatch.setattr(remote_store._Process, "request", counted)
    with serving(folder) as server:
        far = Loader(server.address, batch_size=1, training=False)
        assert far._shards.value_bytes["image/encoded"].size == 1
        slab = far.of_slab(((0, 4), (256, 320), (0, 700)))
        asked.clear()
        found = slab.batch(0)
    assert np.array_equal(found["image"], whole["image"][:, :, 256:320])
    value = local.stored(0).value_bytes("image/encoded")
    assert value > 4 << 20 and sum(asked) < value // 4 and len(asked) < 16


FIELDS = {
    "a": Field(name="a", keys=("a",), dtype="int32", axes=(), shape=(), encoding="value"),
    "b/c": Field(name="b", keys=("b/c",), dtype="float32", axes=("row",), shape=(3,), encoding="value"),
    "d": Field(name="d", keys=("d",), dtype="int64", axes=("row",), shape=(2,), encoding="value"),
}
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
VALUES = st.one_of(
    NUMBERS.map(lambda numbers: np.array(numbers, np.int64)),
    st.lists(st.floats(width=32), max_size=4).map(lambda numbers: np.array(numbers, np.float32)),
    st.binary(max_size=300),
    st.just(np.array([7])),
    st.just(np.array([1.5, -2.5, 0.0], np.float32)),
    st.just(np.array([2**40, -1])),
)


class Bytes:
    """Records that end where memory does; see `MappedRecords`."""

    def __init__(self, records):
        self.records = [guarded(len(record)) for record in records]
        for memory, record in zip(self.records, records, strict=True):
            memory[:] = np.frombuffer(record, np.uint8)

    def data(self):
        addresses = [record.ctypes.data for record in self.records]
        return np.array(addresses, np.int64), np.array([len(record) for record in self.records], np.int64)


@needs_kernel
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from([*FIELDS, "x", "zz"]), VALUES), min_size=1, max_size=4),
    st.data(),
)
def test_the_kernel_parses_what_the_parser_does_or_leaves_it(features, data):
    parser = NumberParser.of(list(FIELDS.values()))
    records = [b"".join(map(bytes, encode_example(one).chunks)) for one in features]
    parsed, values = parser.parse(Bytes(records))
    for row, (record, given_features) in enumerate(zip(records, features, strict=True)):
        fits = all(
            isinstance(given_features.get(key), np.ndarray)
            and given_features[key].dtype.kind == ("f" if field.dtype == "float32" else "i")
            and len(given_features[key]) == math.prod(field.shape)
            and (field.dtype != "int32" or abs(int(given_features[key][0])) < 2**31)
            for key, field in FIELDS.items()
        )
        assert parsed[row] == fits
        if fits:
            known = decode_parts([(0, memoryview(record))], len(record), frozenset(FIELDS))
            for key, field in FIELDS.items():
                expected = np.asarray(known[key]).astype(field.dtype).reshape(field.shape)
                assert values[field.name][row].tobytes() == expected.tobytes()
    # Damaged records are left or parsed; no byte outside them is read.
    cut = [record[: data.draw(st.integers(0, len(record)))] for record in records]
    parser.parse(Bytes(cut))


def restate(folder, change):
    """Write the indexes again as `change` returns them, with their sizes and checksums in the manifest."""
    manifest = read_manifest(folder)
    splits = {}
    for name, split in manifest.splits.items():
        shards = []
        for number, shard in enumerate(split.shards):
            path = folder / index_file(shard.file)
            index = ShardIndex.from_bytes(path.read_bytes(), "")
            data = change(number, index, (folder / shard.file).read_bytes()).to_bytes()
            path.write_bytes(data)
            sums = {"index_bytes": len(data), "index_crc32c": crc32c(data)}
            shards.append(dataclasses.replace(shard, **sums))
        splits[name] = dataclasses.replace(split, shards=tuple(shards))
    (folder / MANIFEST).write_bytes(dataclasses.replace(manifest, splits=splits).to_json().encode())


def in_blocks(index, data, sizes, block_bytes):
    sums = {
        key: [block_checksums(data[start : start + sizes[key]], block_bytes) for start in starts.tolist()]
        for key, starts in index.raw_starts.items()
    }
    sums = {key: np.array(one, np.uint32).reshape(len(index), -1) for key, one in sums.items()}
    return dataclasses.replace(index, raw_checksums=sums, block_bytes=block_bytes)


def test_indexes_of_earlier_versions_with_blocks_of_1_mib_still_load(tmp_path):
    scans = draw_scans({"train": 5}, shape=(9, 300, 250))
    folder = write_scans(tmp_path / "1.0.0", scans)
    options = {"batch_size": 2, "training": False, "augment": [RandomCrop(4, 100, 90)]}
    right = list(Loader(folder, **options).batches())
    sizes = Loader(folder, batch_size=1)._shards.array_bytes
    restate(folder, lambda number, index, data: in_blocks(index, data, sizes, EARLIER_BLOCK_BYTES))
    text = (folder / index_file(read_manifest(folder).split("train").shards[0].file)).read_bytes()
    assert b"block_bytes" not in text
    loader = Loader(folder, **options)
    for found, expected in zip(loader.batches(), right, strict=True):
        same(found, expected)
    assert loader._shards.block_bytes == 1 << 20


def test_shards_with_blocks_of_different_sizes_are_refused_with_the_cure(tmp_path):
    folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 6}))
    sizes = Loader(folder, batch_size=1)._shards.array_bytes
    restate(folder, lambda number, index, data: in_blocks(index, data, sizes, 500) if number else index)
    with pytest.raises(
        CorruptFileError, match=r"blocks of 65,536 bytes.* got 500; run the same `halofeed convert`"
    ):
        list(Loader(folder, batch_size=6, training=False))
