"""A data set at an address gives the bytes of the local one, whatever its server does."""

import multiprocessing
import shutil
import socket
import sys
import time
from itertools import product
from pathlib import Path

import fsspec
import numpy as np
import pytest

from halofeed.errors import CorruptFileError, MissingExtraError, StoreError, UsageError
from halofeed.inspection.batch_png import write_batch
from halofeed.inspection.bench import bench
from halofeed.inspection.training_batches import TrainingBatches
from halofeed.loader import Loader, Mixture, RandomCrop
from halofeed.loader.batch import join_id
from halofeed.loader.store import remote_store as remote
from halofeed.loader.store.dataset_store import HeldFile
from halofeed.loader.store.remote_store import FetchWindow
from halofeed.schemas.shard_file import OpenFile
from halofeed.storage import choose, web
from tests.support import stores
from tests.support.batches import joined, same
from tests.support.faulty_server import serving
from tests.support.forks import forks
from tests.support.level_rows import others
from tests.support.small_sets import KINDS


def in_memory(folder: Path) -> str:
    """The files of a folder at an address of this process."""
    address = f"memory://{folder.parent.name}/{folder.name}"
    files = fsspec.filesystem("memory")
    for path in folder.iterdir():
        files.pipe_file(f"/{folder.parent.name}/{folder.name}/{path.name}", path.read_bytes())
    return address


@pytest.mark.parametrize(
    ("kind", "verify"), others(product(KINDS, ["first", "never"]), [("crops", "first"), ("volumes", "never")])
)
def test_batches_are_those_of_the_local_set(sets, kind, verify):
    folder, augment = sets[kind]
    options = {"batch_size": 6, "augment": augment, "verify": verify}
    local, far = Loader(folder, **options), Loader(in_memory(folder), **options)
    for step, batch in zip(range(9), far.batches(), strict=False):
        same(batch, local.batch(step))
    same(far.batch(5), local.batch(5))
    same(far[3], local[3])
    assert far.retries == 0
    hosts = [Loader(in_memory(folder), **options, shard_index=host, shard_count=3) for host in range(3)]
    same(joined([next(host.batches(4)) for host in hosts]), local.batch(4))
    ends = Loader(in_memory(folder), batch_size=5, training=False)
    assert sum(int(batch["valid"].sum()) for batch in ends) == ends.num_records


def test_a_mixture_and_subsets_read_addresses(sets):
    folder = sets["pictures"][0]
    chosen = [int(value) for value in join_id(Loader(folder, batch_size=22).batch(0)["id"][:9])]
    for options in ({}, {"where": chosen}):
        near = Mixture({str(folder): 1.0}, batch_size=6, **options)
        far = Mixture({in_memory(folder): 1.0}, batch_size=6, **options)
        for step, batch in zip(range(5), far.batches(), strict=False):
            same(batch, near.batch(step))


@forks
def test_a_forked_process_reads_by_itself(sets):
    loader = Loader(in_memory(sets["pictures"][0]), batch_size=6)
    expected = loader.batch(2)["image"].tobytes()
    context = multiprocessing.get_context("fork")
    with serving(sets["pictures"][0]) as server:
        far = Loader(server.address, batch_size=6)
        far.batch(1)
        queue = context.Queue()
        child = context.Process(
            target=lambda: queue.put([one.batch(2)["image"].tobytes() for one in (loader, far)])
        )
        child.start()
        assert queue.get(timeout=120) == [expected, expected]
        child.join(120)
        assert far.batch(2)["image"].tobytes() == expected


@pytest.mark.parametrize("kind", others(KINDS, ("crops", "volumes")))
def test_faults_of_a_server_are_retried_and_counted(sets, kind):
    folder, augment = sets[kind]
    local = Loader(folder, batch_size=6, augment=augment)
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6, augment=augment, concurrent_reads=4)
        occurred = server.faults("cut", "503", "short", "flip", every=5)
        for step, batch in zip(range(6), far.batches(), strict=False):
            same(batch, local.batch(step))
        # Those of later batches may not be met yet, and two flips in one record are read again together.
        assert far.retries >= len(occurred) // 2 > 0


def test_bytes_whose_asker_needs_them_no_longer_are_asked_for_again(sets):
    folder = sets["pictures"][0]
    first, second = sorted(path.name for path in folder.glob("*.tfrecord-?????-of-?????"))[:2]
    with serving(folder) as server:
        store = Loader(server.address, batch_size=6, concurrent_reads=1)._shards.store
        server.latency_seconds = 0.3
        window = FetchWindow()
        store.request_spans(window, [(first, 0, 9), (second, 0, 9)])
        queued = window.find(second, 0)
        window.cancel()
        assert store.wait_for(second, queued) == (folder / second).read_bytes()[:9]


def test_a_stalled_request_is_given_up_and_made_again(sets, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 0.3)
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6)
        server.faults("stall", every=4)
        same(far.batch(0), Loader(folder, batch_size=6).batch(0))
        assert far.retries > 0


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("503", StoreError, r"tfrecord.*bytes .* could not be had in 5 attempts; .*503"),
        ("cut", StoreError, r"tfrecord.*bytes .* could not be had in 5 attempts"),
        ("short", StoreError, r"cut off after [\d,]+ bytes"),
        ("stall", StoreError, r"5 attempts.*Timeout"),
        ("flip", CorruptFileError, r"tfrecord.*: record at byte [\d,]+"),
        ("whole", StoreError, r"the server does not give ranges; use one that does"),
        ("403", StoreError, r"are refused: .*403"),
    ],
)
@pytest.mark.parametrize("on_corrupt", ["fail", pytest.param("skip", marks=pytest.mark.long)])
def test_a_broken_server_is_an_error_naming_the_object(sets, monkeypatch, fault, error, message, on_corrupt):
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 0.1)
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        server.stall_seconds = 0.5
        far = Loader(server.address, batch_size=6, on_corrupt=on_corrupt)
        list(map(far.batch, range(4)))  # every transfer is checked anew
        server.fault = lambda name, number: fault * ("tfrecord-00001" in name and "index" not in name)
        with pytest.raises(error, match=message) as raised:
            list(zip(range(4), far.batches(), strict=False))
        assert "00001-of-00003" in str(raised.value)


def test_a_wrong_index_is_asked_for_again_and_refused_if_it_stays_wrong(sets):
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6)
        server.fault = lambda name, number: "flip" if "index" in name and number < 5 else ""
        same(far.batch(0), Loader(folder, batch_size=6).batch(0))
        assert far.retries > 0
        far = Loader(server.address, batch_size=6)
        server.fault = lambda name, number: "flip" if "index" in name else ""
        with pytest.raises(CorruptFileError, match=r"_index.*: its checksum is not the manifest's"):
            far.batch(0)


def test_what_is_missing_shortened_or_unreachable_is_told(sets, tmp_path, monkeypatch):
    copy = shutil.copytree(sets["jpeg"][0], tmp_path / "1.0.0")
    shard = next(copy.glob("*-00001-of-00003"))
    with serving(copy) as server:
        far = Loader(server.address, batch_size=6)
        whole = shard.read_bytes()
        shard.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CorruptFileError, match=r"00001-of-00003: it ends at byte .*was shortened"):
            list(zip(range(4), far.batches(), strict=False))
        with pytest.raises(CorruptFileError, match=r"00001-of-00003: expected .* bytes, found"):
            Loader(server.address, batch_size=6)
        shard.unlink()
        with pytest.raises(CorruptFileError, match=r"00001-of-00003: it is missing"):
            Loader(server.address, batch_size=6)
        (copy / "manifest.json").unlink()
        with pytest.raises(UsageError, match=r"manifest.json: there is none"):
            Loader(server.address, batch_size=6)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:\d+/manifest.json: cannot be reached: "):
        Loader(nobody, batch_size=6)


def test_requests_are_side_by_side_joined_and_no_more_than_allowed(sets):
    folder = sets["pictures"][0]
    with serving(folder) as server:
        server.latency_seconds = 0.05
        far = Loader(server.address, batch_size=22, concurrent_reads=3, training=False)
        far.batch(0)
        shards = [name for name, _, _ in server.asked if "index" not in name and "tfrecord" in name]
        assert len(shards) == 3, "the records of each shard lie together"
        assert server.most_at_once == 3


def test_no_more_of_a_large_volume_is_fetched_than_the_blocks_of_a_crop(sets):
    folder = sets["volume crops"][0]
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6, augment=[RandomCrop(3, 160, 400)])
        far.batch(0)
        data = sum(stop - start for name, start, stop in server.asked if name[-3:].isdecimal())
        stored = sum(path.stat().st_size for path in folder.glob("*-of-0000?"))
        # Of 24 planes 3, in one or two blocks of a mebibyte of the image's three; labels are small and come whole.
        labels = 6 * 24 * 160 * 400
        assert labels < data < labels + 6 * (2 << 20) + 20_000 < stored


def test_the_next_batch_is_asked_for_while_this_one_is_used(sets):
    folder = sets["pictures"][0]
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6)
        batches = far.batches()
        next(batches)
        before = -1
        while before < len(server.asked):  # until nothing more is asked for
            before = len(server.asked)
            time.sleep(0.4)
        same(far.batch(1), Loader(folder, batch_size=6).batch(1))
        assert len(server.asked) == before, "step 1 was fetched already"
        far.batch(7)
        assert len(server.asked) > before


def test_a_missing_library_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(choose, "_stores", {})
    for scheme, package in (("s3", "boto3"), ("gs", "google.auth"), ("memory", "fsspec")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=rf"{package}\S* is not .*pip install .*\[remote\]'"):
            Loader(f"{scheme}://bucket/cards/1.0.0", batch_size=4)


def test_a_remote_file_has_all_methods_of_a_local_one():
    methods = {name for name in vars(OpenFile) if not name.startswith("_")}
    assert {"read_into", "read", "is_unchanged"} <= methods
    public = {name for name in methods if callable(getattr(OpenFile, name))}
    assert public - set(vars(remote.RemoteFile)) - set(vars(HeldFile)) <= {"read"}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """Puts the files of a folder into a bucket on an S3 server at loopback, and gives their address."""
    with stores.serving("s3", tmp_path_factory.mktemp("s3")) as place:
        yield place.upload


@pytest.mark.parametrize("kind", others(KINDS, ("crops",), pytest.mark.exhaustive))
def test_an_s3_bucket_gives_the_batches_of_the_local_set(sets, bucket, kind):
    folder, augment = sets[kind]
    options = {"batch_size": 6, "augment": augment}
    local, far = Loader(folder, **options), Loader(bucket(folder, kind.replace(" ", "-")), **options)
    for step, batch in zip(range(4), far.batches(), strict=False):
        same(batch, local.batch(step))
    dataset = far.dataset(start_step=2, repeat=True).take(2)
    for step, batch in enumerate(dataset.as_numpy_iterator(), 2):
        for key in ("image", "id"):
            np.testing.assert_array_equal(batch[key], local.batch(step)[key])
    assert far.retries == 0
    with pytest.raises(UsageError, match=r"s3://bucket/none/manifest.json: there is none"):
        Loader("s3://bucket/none", batch_size=4)


def test_addresses_are_signed_once_and_boto3_asks_where_that_is_not_enough(sets, bucket, monkeypatch):
    folder = sets["jpeg"][0]
    address = bucket(folder, "signed")
    local = Loader(folder, batch_size=6)
    calls = []

    def get(self, address, start, stop, seconds):
        calls.append(address)
        return plain(self, address, start, stop, seconds)

    plain = web.RangeReader.get
    monkeypatch.setattr(web.RangeReader, "get", get)
    far = Loader(address, batch_size=6)
    same(far.batch(0), local.batch(0))
    assert len(set(calls)) == len({address.partition("?")[0] for address in calls}) > 3
    assert all("Signature=" in address for address in calls)

    def refuse(self, address, start, stop, seconds):
        calls.append(address)
        raise web.WebError(403, "Forbidden")

    monkeypatch.setattr(web.RangeReader, "get", refuse)
    calls.clear()
    far = Loader(address, batch_size=6)
    same(far.batch(0), local.batch(0))
    assert far.retries == 0 and len(calls) == 1


@pytest.mark.long
def test_a_batch_is_drawn_and_the_way_measured_from_an_address(sets, tmp_path):
    with serving(sets["jpeg"][0]) as server:
        here, there = (
            write_batch(place, tmp_path / name, TrainingBatches(batch_size=4)).read_bytes()
            for place, name in ((sets["jpeg"][0], "here.png"), (server.address, "there.png"))
        )
        assert here == there
        assert "shards read in order" in str(
            bench(server.address, TrainingBatches(batch_size=4), seconds=0.01)
        )


def test_draws_by_class_read_what_is_beside_the_pictures_alone(draw, write):
    folder = write(draw(22, frame=(300, 400), task="classification"), frame=(300, 400))
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6, draw_by="class")
        read = sum(stop - start for name, start, stop in server.asked if name[-3:].isdecimal())
        assert read < 22 * 2000
        same(far.batch(2), Loader(folder, batch_size=6, draw_by="class").batch(2))


def test_redirects_are_followed_and_kept_connections_that_were_closed_are_made_anew(sets):
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        far = Loader(server.address, batch_size=6)
        far.batch(0)
        server.fault = lambda name, number: "close"
        for step in range(1, 4):
            same(far.batch(step), Loader(folder, batch_size=6).batch(step))
        assert far.retries == 0
        server.fault = lambda name, number: "" if "moved" in name else "moved"
        same(far.batch(9), Loader(folder, batch_size=6).batch(9))
        assert far.retries == 0


def test_a_size_is_that_of_a_range_where_the_server_refuses_head(sets):
    folder = sets["jpeg"][0]
    with serving(folder) as server:
        server.refuses_head = True
        same(Loader(server.address, batch_size=6).batch(0), Loader(folder, batch_size=6).batch(0))
