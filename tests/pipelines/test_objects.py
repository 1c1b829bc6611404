"""Do the stores' clients keep their promises on real servers: ranges, conditions, parts, and whatever goes wrong?"""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from halofeed.errors import StoreError
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.prep.sources.files import source_files
from halofeed.storage import base, gcs, retry
from halofeed.storage.base import ABSENT, ObjectReader, ObjectWriter
from halofeed.storage.choose import store_of
from halofeed.storage.retry import ChangedError
from tests.support.fault_proxy import between
from tests.support.stores import Place, found_by

SEVERAL_PARTS = os.urandom((5 << 20) * 2 + 12345)


@pytest.fixture
def store(clean: Place) -> base.Files:
    return store_of(clean.address)


def test_an_object_is_read_whole_by_ranges_and_in_order_and_one_that_is_not_there_is_absent(clean, store):
    address, data = "a folder/ä+b%20&c.bin", bytes(range(256)) * 40
    store.write(address, data)
    assert store.read(address) == store.read(address, stop=1 << 40) == data
    assert store.read(address, 100, 300) == data[100:300]
    assert store.read(address, len(data) - 5, len(data) + 9) == data[-5:]
    assert store.read(address, len(data)) == store.read(address, 7, 7) == b""
    with ObjectReader(store, address) as reader:
        assert b"".join(iter(lambda: reader.read(999), b"")) == data
    store.write("empty", b"")
    assert store.read("empty", stop=10) == b""
    assert store.stat("nothing") is None
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    store.delete(["nothing", "nothing else"])
    with pytest.raises(StoreError, match="there is no such bucket"):
        list(store.at(f"{clean.scheme}://none").entries())


def test_a_write_on_condition_changes_nothing_that_another_wrote(clean, store):
    address = "one"
    first = store.write(address, b"first", ABSENT)
    with pytest.raises(ChangedError, match="one"):
        store.write(address, b"late", ABSENT)
    second = store.write(address, b"second", first)
    with pytest.raises(ChangedError):
        store.write(address, b"late", first)
    assert store.is_conditional and gcs.GcsObjects.is_conditional  # else a run takes no lease
    assert store.read(address) == b"second"
    stands = store.stat(address)
    assert (stands.size, stands.version) == (6, second) and -2 < stands.age_seconds < 60


def test_all_objects_below_a_prefix_are_listed_copied_and_deleted(clean, store):
    wanted = {f"some/{number:04d}": number % 3 for number in range(40)}
    for address, size in wanted.items():
        store.write(address, b"x" * size)
    store.write("other", b"")
    assert {entry.path: entry.size for entry in store.entries("some")} == wanted
    store.copy_from(store.at(f"{clean.address}/some"), "0002", "copy")
    assert store.read("copy") == b"xx"
    store.delete(wanted)
    assert list(store.entries("some")) == []


def test_a_local_folder_answers_as_a_store_does(store, tmp_path):
    written = {"a.txt": b"12345", "inside/b.txt": b"", "inside/deep/c.txt": b"x"}
    for path, data in written.items():
        store.write(path, data)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    for files in (store, store_of(str(tmp_path))):
        listings = [files.entries(), files.entries(deep=False), files.entries("inside", deep=False)]
        assert [{entry.path: entry.size for entry in listing} for listing in listings] == [
            {path: len(data) for path, data in written.items()},
            {"a.txt": 5, "inside": None},
            {"inside/b.txt": 0, "inside/deep": None},
        ]
        assert (files.read("a.txt"), files.read("a.txt", 1, 3), files.read("a.txt", 4, 9)) == (
            b"12345",
            b"23",
            b"5",
        )
        assert files.at(f"{files.root}/inside").read("deep/c.txt") == b"x"
        assert files.stat("a.txt").size == 5 and files.stat("none") is files.stat("inside") is None
        with pytest.raises(FileNotFoundError):
            files.read("none")
        files.delete(["a.txt", "none"])
        assert files.stat("a.txt") is None


def test_a_large_object_goes_in_parts_and_is_there_at_the_end(clean, store, monkeypatch):
    monkeypatch.setattr(base, "PART_BYTES", 5 << 20)
    address = "large"
    writer = ObjectWriter(store, address)
    for start in range(0, len(SEVERAL_PARTS), 999_999):
        writer.write(memoryview(SEVERAL_PARTS)[start : start + 999_999])
    if clean.scheme == "s3":  # fake-gcs-server shows an object after its first part
        assert store.stat(address) is None
    writer.finish()
    assert store.read(address) == SEVERAL_PARTS
    assert clean.open_uploads() == []


def test_the_late_writer_of_the_same_is_content_and_of_another_is_refused(clean, store, monkeypatch):
    monkeypatch.setattr(base, "PART_BYTES", 5 << 20)
    folder = OutputFolder(f"{clean.address}/set")
    for data in (b"small", SEVERAL_PARTS):
        folder.delete(["shard"])
        with folder.temporary("shard") as late:
            late.stream.write(data[:100])
            folder.write("shard", data)
            late.stream.write(data[100:])
            late.keep()
        assert folder.read("shard") == data
        folder.delete(["shard"])  # moto's end of parts knows no other condition
        with folder.temporary("shard") as zombie:
            zombie.stream.write(data[:-1] + b"!")
            folder.write("shard", data)
            with pytest.raises(ChangedError, match="shard"):
                zombie.keep()
        assert folder.read("shard") == data
        assert clean.open_uploads() == []
    if clean.scheme == "s3":
        with folder.temporary("given up") as file:
            file.stream.write(SEVERAL_PARTS)
        assert "set/given up" not in clean.objects("") and clean.open_uploads() == []


DIE_IN_THE_MIDDLE = """
import os, signal, sys
from halofeed.storage import base
from halofeed.pipelines.output_folder import OutputFolder
base.PART_BYTES = 5 << 20
with OutputFolder(sys.argv[1]).temporary("shard") as file:
    file.stream.write(bytes(16 << 20))
    file.stream._wait()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_what_a_killed_upload_left_is_swept(clean):
    if clean.scheme == "gs":
        pytest.skip("an unfinished upload to Google's store cannot be seen, and is gone after a week")
    address = f"{clean.address}/set/1.0.0"
    died = subprocess.run([sys.executable, "-c", DIE_IN_THE_MIDDLE, address], check=False)
    assert died.returncode == -signal.SIGKILL
    assert clean.open_uploads() == ["set/1.0.0/shard"]
    OutputFolder(f"{clean.address}/set/2.0.0").sweep()
    assert clean.open_uploads() == ["set/1.0.0/shard"]
    for name in ("notes.txt", "rejected-00000.jsonl"):
        store_of(address).write(f".incomplete/{name}", b"1")
    OutputFolder(address).sweep()
    assert clean.open_uploads() == [] and list(clean.objects("")) == ["set/1.0.0/.incomplete/notes.txt"]


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_passing_faults_change_nothing(clean, monkeypatch):
    monkeypatch.setattr(base, "PART_BYTES", 5 << 20)
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        proxy.stall_seconds = 0.05
        proxy.at_random(0.25, 5, ("500", "503", "429", "reset", "lost", "cut", "stall"))
        store, folder = store_of(clean.address), OutputFolder(f"{clean.address}/set")
        for number in range(40):
            folder.write(f"{number:02d}", bytes([number]) * 1000)
        for number in range(40):
            assert folder.read(f"{number:02d}") == bytes([number]) * 1000
        writer = ObjectWriter(store, "large")
        writer.write(SEVERAL_PARTS)
        writer.finish()
        assert store.read("large") == SEVERAL_PARTS
        assert len(list(store.entries())) == 41
        assert proxy.faults.total() > 20, proxy.faults
    assert clean.open_uploads() == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", ["500", "503", "429", "reset", "403"])
def test_a_lasting_fault_names_the_object_after_a_few_attempts_and_expired_credentials_at_once(clean, kind):
    told = "credentials are still valid" if kind == "403" else "in 8 attempts; the last"
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        store = store_of(clean.address)
        proxy.fault = lambda method, path: kind
        for act in (store.read, store.stat, lambda address: store.write(address, b"x")):
            proxy.asked.clear()
            with pytest.raises(StoreError, match=rf"{clean.address}/cards/7.jpg: .*{told}"):
                act("cards/7.jpg")
            assert len(proxy.asked) == (1 if kind == "403" else retry.REQUEST_ATTEMPTS)


def test_a_server_that_never_answers_is_not_waited_for(clean, monkeypatch):
    """The time-outs are the client's own, here a tenth of a second; whoever waited would get the answer."""
    monkeypatch.setattr(sys.modules[type(store_of(clean.address)).__module__], "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(retry, "REQUEST_ATTEMPTS", 2)
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        proxy.stall_seconds = 5
        proxy.fault = lambda method, path: "stall"
        with pytest.raises(StoreError, match="in 2 attempts"):
            store_of(clean.address).read("cards/7.jpg")


def test_one_client_serves_all_requests_of_a_process_one_request_each(clean, monkeypatch):
    store = store_of(clean.address)
    for number in range(10):
        store.write(f"src/{number}", b"x")
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        files = source_files(f"{clean.address}/src")
        assert len(files.sizes()) == 10
        for number in range(10):
            files.head(str(number), 1 << 20)
        client = "_client" if clean.scheme == "s3" else "_session"
        clients = [vars(store_of(clean.address))[client] for _ in range(3)]
        assert all(one is clients[0] for one in clients)
        assert Counter(method for method, _ in proxy.asked) == {"GET": 11}, "a listing and ten objects"
