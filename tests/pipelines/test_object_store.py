"""Conversion from and to s3:// and gs://, on servers at loopback: the bytes of a local run's, whatever goes wrong."""

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.containers import CONTAINERS
from halofeed.demo import draw_data_set
from halofeed.errors import CorruptFileError, JobError, StoreError, UsageError
from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.pipelines import lease, run_local
from halofeed.pipelines.beam_pipeline import Commit, SumUp
from halofeed.pipelines.convert import convert as convert_here
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.lease import held, leased, lock_of
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.run_counts import ShardOutcome
from halofeed.prep.annotations import tables
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.layouts import find_layout
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import source_files
from halofeed.storage import base, choose
from halofeed.storage.choose import store_of, use_settings
from tests.support.annotation_writer import draw
from tests.support.conversions import all_bytes, draw_folders, run_convert
from tests.support.fault_proxy import between
from tests.support.layout_references import write_files
from tests.support.stores import Place, convert, convert_words, found_by

pytestmark = pytest.mark.long
KILLS = int(os.environ.get("HALOFEED_KILLS", "2"))
"""Of a driver, in a test; more by hand."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw_data_set(folder := tmp_path_factory.mktemp("drawn"), 24)
    return folder


@pytest.fixture(scope="module")
def undisturbed(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    done = convert(drawn, out := tmp_path_factory.mktemp("undisturbed"))
    assert done.returncode == 0, done.stderr
    return all_bytes(out / "shapes/1.0.0")


@pytest.fixture
def source(clean: Place, drawn: Path) -> str:
    return clean.upload(drawn, "source")


def here(source: str, out: str, beam_arguments: Sequence[str] = (), **options: object) -> str:
    job = JobOptions(source=source, out=out, name="shapes", workers=1, **options)
    recipe = Recipe(layout="coco", height=32, width=32, shards=2)
    return convert_here(job, recipe, beam_arguments, show_progress=False).folder


def is_as(found: dict[str, bytes], expected: dict[str, bytes]) -> bool:
    assert sorted(found) == sorted(expected)
    return [name for name in found if found[name] != expected[name]] == []


def test_a_store_gives_and_takes_the_same_files_as_a_local_folder(clean, source, undisturbed):
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        here(source, f"{clean.address}/out")
        asked = Counter(path for method, path in proxy.asked if method == "GET" and "images" in path)
        assert len(asked) == 24 and set(asked.values()) == {2}, "once for its size, and once for all of it"
    assert is_as(clean.objects("out/shapes/"), {f"1.0.0/{name}": data for name, data in undisturbed.items()})
    assert clean.open_uploads() == []


@pytest.mark.parametrize("layout", CONTAINERS)
def test_pictures_inside_container_files_of_a_store_give_the_same_records(clean, tmp_path, layout):
    name, write = CONTAINERS[layout]
    write_files(tmp_path / "in", {name: write([draw(tmp_path, "a.jpg").joinpath("a.jpg").read_bytes()] * 4)})
    with found_by(clean.at(clean.endpoint)):
        sources = (tmp_path / "in", clean.upload(tmp_path / "in", "in"))
        here, there = (run_convert(one, tmp_path / f"out{len(str(one))}", layout=layout) for one in sources)
    assert is_as(all_bytes(Path(there.folder)), all_bytes(Path(here.folder)))


@pytest.mark.usefixtures("hasty")
def test_a_conversion_through_faults_writes_the_same(clean, source, undisturbed):
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        proxy.at_random(0.05, 3, ("500", "503", "429", "reset", "lost", "cut", "stall"))
        here(source, f"{clean.address}/out")
        assert proxy.faults
    assert is_as(clean.objects("out/shapes/1.0.0/"), undisturbed)


def test_an_object_that_was_replaced_by_one_of_its_size_is_noticed(clean, source, tmp_path):
    before, store = all_bytes(Path(here(source, str(tmp_path)))), clean.store()
    store = store.at(f"{source}/images")
    path = next(entry.path for entry in store.entries() if "0007" in entry.path)
    data = store.read(path)
    for changed, refused in ((data, False), (data[:-9] + bytes([data[-9] ^ 3]) + data[-8:], True)):
        store.write(path, changed)
        told = r"other sources or labels: images/.*0007.* has changed"
        with pytest.raises(UsageError, match=told) if refused else contextlib.nullcontext():
            here(source, str(tmp_path))
        assert all_bytes(tmp_path / "shapes/1.0.0") == before


def test_an_object_that_vanished_is_rejected_by_name(clean, source):
    store = clean.store().at(f"{source}/images")
    lost = next(entry.path for entry in store.entries() if "0007" in entry.path)
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):

        def vanish(method: str, path: str) -> str:
            if "images" in path and "prefix" not in path:
                store.delete([lost])
            return ""

        proxy.fault = vanish
        folder = here(source, f"{clean.address}/out")
    listed = OutputFolder(folder).read("rejected.jsonl").decode().splitlines()
    assert any(entry["reason"] == "file cannot be read" for entry in map(json.loads, listed)), listed


@pytest.mark.parametrize("layout", ["csv", "jsonl"])
def test_a_table_of_a_store_that_is_not_held_is_listed_as_a_local_one(clean, tmp_path, monkeypatch, layout):
    monkeypatch.setattr(tables, "MAX_CACHED_BYTES", 5)
    monkeypatch.setattr(base, "PART_BYTES", 50)
    row = "{0}.jpg,hat\n" if layout == "csv" else '{{"filename": "{0}.jpg", "class": "hat"}}\n'
    lines = ["filename,class\n"] * (layout == "csv") + [row.format(number) for number in range(40)]
    (tmp_path / f"table.{layout}").write_text("".join(lines))
    for number in range(39):
        (tmp_path / f"{number}.jpg").write_bytes(b"x")
    local, there = source_files(str(tmp_path)), source_files(clean.upload(tmp_path, "listed"))
    references = find_layout(layout).list_references
    found = [list(references(files, files, f"table.{layout}", LayoutOptions())) for files in (local, there)]
    assert len(found[0]) == 40 and found[0] == found[1]


def test_a_driver_that_is_killed_leaves_what_the_next_run_ends_with(clean, source, undisturbed):
    seed = random.SystemRandom().randrange(2**32)
    generator, story = random.Random(seed), [f"seed {seed}"]
    words = convert_words(source, f"{clean.address}/out", "--workers", "2")
    store = clean.store()
    for _ in range(KILLS):
        store.delete([entry.path for entry in store.entries("out") if "manifest" in entry.path])
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not list(store.entries("out")):
            time.sleep(0.02)
        time.sleep(1.5 * generator.random())
        process.kill()
        _, said = process.communicate()
        left = sorted(entry.path.rpartition("/")[2] for entry in store.entries("out"))
        story.append(f"{process.returncode}: {said[-300:]} {left}")
    done = convert(source, f"{clean.address}/out", "--workers", "2")
    assert done.returncode == 0, [*story, done.stderr]
    assert is_as(clean.objects("out/"), {f"shapes/1.0.0/{k}": data for k, data in undisturbed.items()}), story
    assert clean.open_uploads() == []
    again = convert(source, f"{clean.address}/out", "--workers", "2")
    assert again.returncode == 0 and "already converted" in again.stdout


def options_of_s3(place: Place) -> list[str]:
    """Beam's options by which it is found."""
    if place.scheme == "gs":
        pytest.skip("Beam has no such options for gs://")
    options = ["--s3_access_key_id=test", "--s3_secret_access_key=test", "--s3_region_name=us-east-1"]
    return [*options, f"--s3_endpoint_url={place.endpoint}"]


def test_options_of_s3_reach_every_worker(clean, source, undisturbed):
    given = options_of_s3(clean)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words = convert_words(source, f"{clean.address}/out", "--workers", "2", "--", *given)
    environment = {**bare, "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert is_as(clean.objects("out/shapes/1.0.0/"), undisturbed)


def test_a_job_takes_the_options_of_s3_to_workers_elsewhere(clean, source, undisturbed, monkeypatch):
    """A worker of an external pool has neither the driver's environment nor Beam's options for file systems."""
    given, jobs = options_of_s3(clean), []

    def noted(job: ShardJob, workers: object) -> object:
        jobs.append(job)
        return run_local.convert_here(job, workers)

    monkeypatch.setattr("halofeed.pipelines.convert.convert_here", noted)
    for name in clean.settings:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    choose._stores.clear()
    here(source, f"{clean.address}/out", beam_arguments=given)
    use_settings({})
    clean.store().delete(["out/shapes/1.0.0/manifest.json"])
    job = dataclasses.replace(jobs[0], progress_folder=None, holder=None)
    summing = SumUp(job.to_json())
    summing.setup()
    counts = {"bytes_read": 0, "bytes_written": 0, "records": 0, "rejected": {}}
    kept = [ShardOutcome(key=key.to_text(), is_kept=True, **counts).to_json() for key in job.shard_keys()]
    sums = [text for _, text in summing.process((0, kept))]
    list(Commit(job.to_json()).process((0, sums)))
    use_settings({})
    assert is_as(clean.objects("out/shapes/1.0.0/"), undisturbed)


def test_a_version_in_a_store_stays_until_the_new_one_is_whole_also_with_empty_shards(clean, drawn, tmp_path):
    words = {"layout": "coco", "height": 32, "width": 32, "shards": 20}
    for place in (str(tmp_path / "empty"), f"{clean.address}/empty"):
        job = JobOptions(source=str(drawn), out=place, name="shapes", workers=1)
        convert_here(job, Recipe(**words), show_progress=False)
    assert is_as(clean.objects("empty/shapes/1.0.0/"), all_bytes(tmp_path / "empty/shapes/1.0.0"))
    source, out = tmp_path / "source", f"{clean.address}/out"
    draw_data_set(source, 24)
    here(str(source), out)
    before = clean.objects("out/shapes/1.0.0/")
    picture = next(source.rglob("*.jpg"))
    picture.write_bytes(picture.read_bytes()[:200])
    with pytest.raises(JobError, match="is unchanged"):
        here(str(source), out, overwrite=True, max_rejected=0)
    assert clean.objects("out/shapes/1.0.0/") == before
    here(str(source), out, overwrite=True)
    here(str(source), str(tmp_path / "local"))
    expected = all_bytes(tmp_path / "local/shapes/1.0.0").items()
    assert is_as(clean.objects("out/"), {f"shapes/1.0.0/{name}": data for name, data in expected})


HOLD = """
import sys, time
from halofeed.pipelines.lease import held
with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_second_run_is_refused_and_the_holder_named_until_it_ends(clean, source):
    folder = f"{clean.address}/out/shapes/1.0.0"
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        told = rf"@.*, process {process.pid}, is converting into it: it renewed .*/\.1\.0\.0\.lock"
        with pytest.raises(JobError, match=told):
            here(source, f"{clean.address}/out")
        refused = convert(source, f"{clean.address}/out")
        assert refused.returncode == 1 and f"process {process.pid}, is converting into it" in refused.stderr
        assert clean.objects("out/").keys() == {"shapes/.1.0.0.lock"}
        process.send_signal(signal.SIGKILL)
        process.wait()
        with held(folder):  # of a process that has ended on this machine nobody waits for the lease
            pass
    assert clean.objects("out/") == {}


def test_a_lease_is_renewed_while_it_is_held_and_taken_over_once_it_was_not(clean, monkeypatch):
    folder, store = f"{clean.address}/out/shapes/1.0.0", clean.store()
    lock = lock_of(folder).removeprefix(f"{clean.address}/")
    elsewhere = {"machine": "another", "process": 1, "born": "1"}
    lease_of_ana = json.dumps({"owner": "ana@far, process 7,", "token": "x", **elsewhere})
    store.write(lock, lease_of_ana.encode())
    with pytest.raises(JobError, match="ana@far, process 7, is converting into it"), held(folder):
        pass
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    time.sleep(2.1)
    with held(folder):
        assert b"ana@far" not in store.read(lock)
    assert store.stat(lock) is None
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.05)
    with held(folder):
        time.sleep(0.6)
        assert json.loads(store.read(lock))["renewals"] > 2
    assert clean.objects("out/") == {}


def test_what_writes_for_a_run_that_lost_its_folder_writes_no_more(clean):
    address = f"{clean.address}/out/shapes/1.0.0"
    with leased(address) as token:
        zombie = OutputFolder(address, token)
        zombie.write("shard", b"of the first run")
        with zombie.temporary("late") as file:
            file.stream.write(b"late")
            another = json.dumps({"owner": "ana,", "token": "other"}).encode()
            store_of(lock_of(address)).write("", another)
            with pytest.raises(JobError, match="ana, holds it now"):
                file.keep()
    assert clean.objects("out/shapes/1.0.0/") == {"shard": b"of the first run"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    draw_folders(folder / "source", 12, broken=1)
    return Path(run_convert(folder / "source", folder / "out", layout="folders", shards=2).folder)


@pytest.fixture
def address(clean: Place, local: Path) -> str:
    return clean.upload(local, "set/1.0.0")


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "more"])
def test_verify_finds_the_damage_that_it_finds_in_a_local_folder(clean, address, local, tmp_path, damage):
    copy = Path(shutil.copytree(local, tmp_path / "1.0.0"))
    shard = sorted(copy.glob("*train*-of-*[0-9]"))[0]
    data = bytearray(shard.read_bytes())
    store, there = clean.store().at(address), shard.name
    if damage == "gone":
        shard.unlink()
        store.delete([there])
    elif damage == "more":
        (copy / "other").write_bytes(b"x")
        store.write("other", b"x")
    else:
        data[len(data) // 2] ^= 1
        shard.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
        store.write(there, shard.read_bytes())
    near, far = (
        [(problem.file, problem.record, problem.offset) for problem in verify(place).problems]
        for place in (copy, address)
    )
    assert far == near and far, verify(address)


def test_verify_inspect_and_report_say_of_an_address_what_they_say_of_a_folder(address, local, tmp_path):
    near, far = verify(local), verify(address)
    assert far.ok and far.folder == address
    assert (far.files, far.records, far.bytes) == (near.files, near.records, near.bytes)
    lines = describe_dataset(local).splitlines()
    whole = [line for line in lines if not line.startswith(("  source:", "  images:"))]
    assert describe_dataset(address).replace(address, str(local)).splitlines() == whole
    assert describe_record(address, "train:3") == describe_record(local, "train:3")
    near = write_report(local, output=tmp_path / "near.html", sources=str(local.parents[2] / "source"))
    far = write_report(address, output=tmp_path / "far.html", sources=str(local.parents[2] / "source"))
    known = re.sub(r"Converted from \S+ by", "Converted by", near.read_text())
    assert far.read_text().replace(address, str(local)) == known


def test_what_cannot_be_read_is_named_and_not_waited_for(clean, address):
    missing = f"{clean.address}/none/1.0.0"
    for look in (verify, describe_dataset):
        with pytest.raises(UsageError, match=re.escape(missing)):
            look(missing)
    store = clean.store().at(address)
    store.delete([entry.path for entry in store.entries() if entry.path.startswith("_index")])
    with pytest.raises(CorruptFileError, match=rf"{address}/_index.*: it is missing"):
        describe_record(address, "train:0")
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        proxy.fault = lambda method, path: "403"
        with pytest.raises(StoreError, match=clean.address):
            describe_dataset(address)
