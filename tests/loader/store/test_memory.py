"""A split in memory gives what its shards held when they were read, and an error where they are wrong."""

import multiprocessing
import shutil

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader import Loader
from halofeed.loader.store import local_store as local
from halofeed.system.memory import available_memory, process_memory
from tests.support.batches import flip, same
from tests.support.faulty_server import serving
from tests.support.forks import forks
from tests.support.level_rows import others
from tests.support.small_sets import KINDS


@pytest.mark.parametrize("kind", others(KINDS, ("crops", "volumes")))
def test_batches_are_those_of_the_local_set_and_of_a_remote_one(sets, kind):
    folder, augment = sets[kind]
    local = Loader(folder, batch_size=6, augment=augment)
    with serving(folder) as server:
        held = [Loader(at, batch_size=6, augment=augment, cache="memory") for at in (folder, server.address)]
        before = len(server.asked)
        for step in range(6):
            for loader in held:
                same(loader.batch(step), local.batch(step))
        asked = [name for name, _, _ in server.asked[before:]]
        assert all("index" in name for name in asked)


def test_nothing_is_read_or_summed_once_it_is_there(sets, tmp_path):
    folder = shutil.copytree(sets["pictures"][0], tmp_path / "1.0.0")
    local = [Loader(folder, batch_size=6).batch(step) for step in range(4)]
    held = Loader(folder, batch_size=6, cache="memory")
    held.batch(0)
    for shard in folder.glob("*-of-00003"):
        shard.write_bytes(b"")
    assert held._shards.verified.all()
    for step in range(4):
        same(held.batch(step), local[step])


@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_a_flipped_bit_is_found_while_it_is_read(sets, tmp_path, verify):
    folder = shutil.copytree(sets["jpeg"][0], tmp_path / "1.0.0")
    shard = sorted(folder.glob("*-of-00003"))[1]
    generator = np.random.default_rng(5)
    whole = shard.read_bytes()
    for _ in range(8):
        shard.write_bytes(whole)
        flip(shard, generator.integers(len(whole)), 1 << generator.integers(8))
        with pytest.raises(CorruptFileError, match=r"00001-of-00003: its checksum is not the manifest's"):
            Loader(folder, batch_size=6, cache="memory", verify=verify)


def test_a_fault_on_the_way_is_met_by_another_attempt(sets):
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        server.faults("flip", "cut", every=2)
        held = Loader(server.address, batch_size=6, cache="memory")
        assert held.retries > 0
        server.fault = lambda name, number: ""
        same(held.batch(0), Loader(folder, batch_size=6).batch(0))


def test_too_little_memory_is_told_before_anything_is_read(sets, monkeypatch):
    assert 0 < available_memory() <= process_memory()
    monkeypatch.setattr(local, "available_memory", lambda: 20_000)
    monkeypatch.setattr(local, "checked_pieces", None)
    with pytest.raises(UsageError, match=r"cache='memory': the split's shards .*, and there are 20\.0 kB"):
        Loader(sets["pictures"][0], batch_size=6, cache="memory")


@forks
def test_forked_processes_look_at_the_same_memory(sets):
    held = Loader(sets["large volumes"][0], batch_size=6, cache="memory")
    expected = held.batch(1)["image"].tobytes()
    size = sum(len(array) for array in held._shards.store._memory.values())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def own() -> int:
        with open("/proc/self/smaps_rollup") as facts:
            return next(int(line.split()[1]) << 10 for line in facts if line.startswith("Private_Dirty"))

    def read() -> None:
        before, batch = own(), held.batch(1)
        queue.put((batch["image"].tobytes() == expected, own() - before, sum(map(np.size, batch.values()))))

    child = context.Process(target=read)
    child.start()
    right, grown, numbers = queue.get(timeout=120)
    child.join(120)
    assert right
    assert grown < 2 * numbers + size // 2, "a batch of two-byte numbers, and no copy of the shards"


def test_all_bytes_can_be_looked_at_where_they_lie(sets):
    folder = sets["volumes"][0]
    held = Loader(folder, batch_size=6, cache="memory")
    opened = held._shards.open(0)
    name = held.manifest.split("train").shards[0].file
    assert opened.as_array().tobytes() == (folder / name).read_bytes()
    assert not opened.as_array().flags.writeable and opened.as_array() is opened.as_array()
    with pytest.raises(CorruptFileError, match=r"it ends at byte"):
        opened.read(opened.bytes - 3, 4)
