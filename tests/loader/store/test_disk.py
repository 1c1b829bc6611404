"""Shards on the cache disk are complete, correct, bounded and shared, whatever process or disk fails."""

import contextlib
import errno
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, SystemLimitError
from halofeed.loader import Loader, join_id
from halofeed.loader.store import disk
from halofeed.schemas.shard_file import close_idle
from tests.support.batches import flip, same
from tests.support.faulty_server import serving
from tests.support.forks import forks
from tests.support.level_rows import others
from tests.support.small_sets import KINDS

STAGER = """
import sys
from halofeed.loader import Loader, join_id
place, cache, seed = sys.argv[1:4]
loader = Loader(place, batch_size=6, cache="disk:" + cache, seed=int(seed))
print("ready", flush=True)
for step in range(8):
    loader.batch(step)
while (thread := loader._shards.store._thread) is not None:
    thread.join()
for step in range(8, 12):
    loader.batch(step)
print("done", join_id(loader.batch(3)["id"]).sum(), loader.retries, flush=True)
"""


def wait(loader: Loader) -> None:
    """Return once nothing is left to be staged, or raise why that is so."""
    store = loader._shards.store
    while (thread := store._thread) is not None:
        thread.join()
    if store._failed is not None:
        raise store._failed


def staged(cache: Path) -> dict[str, int]:
    """The shards that are whole in a cache, and their bytes."""
    return {
        path.name: path.stat().st_size
        for path in cache.glob("*/*")
        if path.suffix not in (disk.PART, disk.LOCK)
    }


def halves(cache: Path) -> list[Path]:
    return list(cache.glob(f"*/*{disk.PART}"))


def content(folder: Path) -> dict[str, bytes]:
    """The shards of a data set."""
    return {path.name: path.read_bytes() for path in folder.glob("*-of-0000?")}


def check_staged(cache: Path, folder: Path) -> None:
    """Whatever is taken for whole is what the data set has."""
    expected = content(folder)
    for path in cache.glob("*/*-of-0000?"):
        assert path.read_bytes() == expected[path.name]


@pytest.mark.parametrize("kind", others(KINDS, ("crops", "volumes")))
def test_batches_are_right_before_while_and_after_shards_are_staged(sets, kind, tmp_path):
    folder, augment = sets[kind]
    local = Loader(folder, batch_size=6, augment=augment)
    with serving(folder) as server:
        server.latency_seconds = 0.01
        for place in (folder, server.address):
            cache = tmp_path / str(place == folder)
            kept = Loader(place, batch_size=6, augment=augment, cache=f"disk:{cache}")
            for step, batch in zip(range(5), kept.batches(), strict=False):
                same(batch, local.batch(step))
            wait(kept)
            assert staged(cache) == {name: len(data) for name, data in content(folder).items()}
            check_staged(cache, folder)
            before = len(server.asked)
            for step in range(5, 10):
                same(kept.batch(step), local.batch(step))
            again = Loader(place, batch_size=6, augment=augment, cache=f"disk:{cache}")
            for step in range(4):
                same(again.batch(step), local.batch(step))
            asked = [name for name, _, _ in server.asked[before:]]
            assert all("index" in name or "manifest" in name for name in asked)
            assert kept.retries == again.retries == 0 and halves(cache) == []


def test_flipped_bits_of_staged_files_are_found_and_staged_again(sets, tmp_path):
    folder, cache = sets["jpeg"][0], tmp_path / "cache"
    local = [Loader(folder, batch_size=11, training=False).batch(step) for step in range(2)]
    first = Loader(folder, batch_size=11, training=False, cache=f"disk:{cache}")
    first.batch(0), first.batch(1)
    wait(first)
    generator = np.random.default_rng(0)
    paths = sorted(path for path in cache.glob("*/*-of-0000?"))
    for number in range(12):
        path = paths[number % len(paths)]
        changed = shutil.copyfile(path, path.with_name("changed.part"))
        flip(changed, generator.integers(path.stat().st_size), 1 << generator.integers(8))
        changed.replace(path)
        again = Loader(folder, batch_size=11, training=False, cache=f"disk:{cache}")
        for step in range(2):
            same(again.batch(step), local[step])
        assert again.retries == 1
        wait(again)
        check_staged(cache, folder)


def test_a_short_missing_or_grown_staged_file_is_not_taken(sets, tmp_path):
    folder, cache = sets["jpeg"][0], tmp_path / "cache"
    local = Loader(folder, batch_size=6)
    kept = Loader(folder, batch_size=6, cache=f"disk:{cache}")
    kept.batch(0), wait(kept)
    one, other, *_ = sorted(cache.glob("*/*-of-0000?"))
    one.write_bytes(one.read_bytes()[:-5])
    other.unlink()
    again = Loader(folder, batch_size=6, cache=f"disk:{cache}")
    for step in range(4):
        same(again.batch(step), local.batch(step))
    wait(again)
    check_staged(cache, folder)
    other.unlink()
    for step in range(4):
        same(again.batch(step), local.batch(step))
    before = again.retries
    for path in cache.glob("*/*-of-0000?"):
        with path.open("ab") as stream:
            stream.write(b"more")
    close_idle()
    for step in range(4):
        same(again.batch(step), local.batch(step))
    wait(again)
    check_staged(cache, folder)
    assert again.retries > before


def test_the_bound_holds_and_the_oldest_go_first(draw, write, tmp_path):
    cache = tmp_path / "cache"
    folders = [write(draw(18, seed=seed), shards=3) for seed in range(3)]
    sizes = [sum(map(len, content(folder).values())) for folder in folders]
    bound = sizes[0] + max(sizes) + 100
    names = []
    for folder in folders[:2]:
        kept = Loader(folder, batch_size=9, cache=f"disk:{cache}", cache_bytes=bound)
        names.append(kept._shards.store.folder.name)
        kept.batch(0), kept.batch(1), wait(kept)
        time.sleep(0.02)
    del kept
    used = Loader(folders[0], batch_size=9, cache=f"disk:{cache}", cache_bytes=bound)
    used.batch(0), used.batch(1)
    del used
    third = Loader(folders[2], batch_size=9, cache=f"disk:{cache}", cache_bytes=bound)
    for step in range(4):
        same(third.batch(step), Loader(folders[2], batch_size=9).batch(step))
    wait(third)
    assert sum(staged(cache).values()) <= bound
    assert len(list((cache / names[0]).glob("*-of-0000?"))) == 3, "used after the second"
    assert len(third._shards.store.staged) == 3
    assert list((cache / names[1]).glob("*-of-0000?")) == []


def test_no_file_of_others_below_the_folder_is_deleted_to_make_room(draw, write, tmp_path):
    mine = [tmp_path / "cache" / name for name in ("photos/a.jpg", "photos/b.part", "photos/a.jpg.lock")]
    mine[0].parent.mkdir(parents=True)
    for file in mine:
        file.write_bytes(bytes(10_000))
        os.utime(file, (1, 1))
    folder = write(draw(18), shards=3)
    bound = sum(map(len, content(folder).values())) + 100
    kept = Loader(folder, batch_size=9, cache=f"disk:{tmp_path / 'cache'}", cache_bytes=bound)
    kept.batch(0), kept.batch(1), wait(kept)
    assert len(kept._shards.store.staged) == 3 and all(file.stat().st_size == 10_000 for file in mine)


def test_what_a_loader_here_uses_is_not_deleted_and_the_rest_is_read_from_afar(draw, write, tmp_path):
    cache = tmp_path / "cache"
    folder, other = (write(draw(18, seed=seed), shards=3) for seed in (5, 6))
    bound = sum(map(len, content(folder).values())) + 100
    kept = Loader(folder, batch_size=9, cache=f"disk:{cache}", cache_bytes=bound)
    kept.batch(0), kept.batch(1), wait(kept)
    late = Loader(other, batch_size=9, cache=f"disk:{cache}", cache_bytes=bound)
    for step in range(4):
        same(late.batch(step), Loader(other, batch_size=9).batch(step))
    wait(late)
    assert len(kept._shards.store.staged) == 3 and late._shards.store.staged == set()
    assert sum(staged(cache).values()) <= bound


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STAGER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_that_stage_the_same_shards_do_not_disturb_each_other(sets, tmp_path, count):
    folder, cache = sets["large volumes"][0], tmp_path / "cache"
    expected = join_id(Loader(folder, batch_size=6).batch(3)["id"]).sum()
    with serving(folder) as server:
        started = [start(server.address, cache, 0) for _ in range(count)]
        ended = [process.communicate(timeout=120) for process in started]
        for process, (out, err) in zip(started, ended, strict=True):
            assert process.returncode == 0, err
            assert f"done {expected} 0" in out
        shards = content(folder)
        assert staged(cache) == {name: len(data) for name, data in shards.items()}
        check_staged(cache, folder)
    assert halves(cache) == []


@pytest.mark.exhaustive
def test_a_process_killed_at_any_moment_leaves_nothing_that_is_taken_for_whole(sets, tmp_path):
    folder, cache = sets["large volumes"][0], tmp_path / "cache"
    shards, generator, seen = content(folder), random.Random(3), 0
    with serving(folder) as server:
        server.latency_seconds = 0.02
        for _ in range(6):
            process = start(server.address, cache, 0)
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            seen += len(halves(cache))
            check_staged(cache, folder)
            for name in list(staged(cache))[:1]:
                next(cache.glob(f"*/{name}")).unlink()
        kept = Loader(server.address, batch_size=6, cache=f"disk:{cache}")
        for step in range(4):
            same(kept.batch(step), Loader(folder, batch_size=6).batch(step))
        wait(kept)
        assert staged(cache) == {name: len(data) for name, data in shards.items()}
        assert halves(cache) == []
    assert seen > 0, "none was killed in the middle"


@forks
def test_a_forked_process_stages_by_itself(sets, tmp_path):
    folder, cache = sets["jpeg"][0], tmp_path / "cache"
    kept = Loader(folder, batch_size=6, cache=f"disk:{cache}")
    expected = Loader(folder, batch_size=6).batch(2)["image"].tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def read() -> None:
        right = kept.batch(2)["image"].tobytes() == expected
        wait(kept)
        queue.put((right, len(kept._shards.store.staged)))

    with disk._locked(kept._shards.store.path("other.lock")):
        child = context.Process(target=read)
        child.start()
        assert queue.get(timeout=120) == (True, 3)
    child.join(120)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "posix_fallocate", refuse)


def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before, reserve = resource.getrlimit(resource.RLIMIT_FSIZE), os.posix_fallocate

    def within(descriptor: int, offset: int, size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            reserve(descriptor, offset, size)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(disk.os, "posix_fallocate", within)


@pytest.mark.parametrize("fault", [full_disk, small_files])
def test_a_full_disk_is_an_error_that_says_so_and_leaves_nothing_half(sets, tmp_path, monkeypatch, fault):
    folder, cache = sets["pictures"][0], tmp_path / "cache"
    fault(monkeypatch)
    kept = Loader(folder, batch_size=6, cache=f"disk:{cache}")
    with contextlib.suppress(SystemLimitError):  # where the first shard is staged before the last one is read
        kept.batch(0)
    with pytest.raises(SystemLimitError, match=r"(No space left on device|File too large); .* make room"):
        wait(kept)
    with pytest.raises(SystemLimitError, match=r"tfrecord-.*make room or allow fewer cache_bytes"):
        kept.batch(1)
    assert staged(cache) == {} and halves(cache) == []


def test_a_small_disk_is_filled_and_then_said_to_be_full(sets, tmp_path):
    folder, cache = sets["large volumes"][0], tmp_path / "small"
    cache.mkdir()
    shards = content(folder)
    size = max(map(len, shards.values())) + (1 << 20)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(cache)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        kept = Loader(folder, batch_size=6, cache=f"disk:{cache}")
        with pytest.raises(SystemLimitError, match=r"No space left on device"):
            list(zip(range(2000), kept.batches(), strict=False))
        assert len(staged(cache)) == 1 and halves(cache) == []
        check_staged(cache, folder)
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)


def test_a_shard_that_is_wrong_where_it_comes_from_is_told_by_its_record(sets, tmp_path):
    folder, cache = shutil.copytree(sets["jpeg"][0], tmp_path / "1.0.0"), tmp_path / "cache"
    shard = sorted(folder.glob("*-of-00003"))[1]
    flip(shard, shard.stat().st_size // 2)
    kept = Loader(folder, batch_size=22, cache=f"disk:{cache}")
    with pytest.raises(CorruptFileError, match=r"1\.0\.0/.*00001-of-00003: record at byte"):
        kept.batch(0)
    wait(kept)
    assert len(staged(cache)) == 2 and halves(cache) == []
