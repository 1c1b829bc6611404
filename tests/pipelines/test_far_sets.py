"""Does a data set in a store look, check and load as the local one does?"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from halofeed.inspection.html.report import write_report
from halofeed.inspection.text import describe, describe_record
from halofeed.inspection.verify import verify
from halofeed.schemas.errors import CorruptFileError, StoreError, UsageError
from tests.support.conversions import draw_folders, run_convert
from tests.support.fault_proxy import between
from tests.support.stores import Place, found_by

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set with one reject."""
    folder = tmp_path_factory.mktemp("local")
    draw_folders(folder / "source", 12, broken=1)
    return Path(run_convert(folder / "source", folder / "out", layout="folders", shards=2).folder)


@pytest.fixture
def address(clean: Place, local: Path) -> str:
    return clean.upload(local, "set/1.0.0")


def test_verify_checks_every_byte_of_an_address(clean, address, local):
    near, far = verify(local), verify(address)
    assert far.ok and far.folder == address
    assert (far.files, far.records, far.bytes) == (near.files, near.records, near.bytes)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "more"])
def test_verify_finds_the_damage_that_it_finds_in_a_local_folder(clean, address, local, tmp_path, damage):
    copy = Path(shutil.copytree(local, tmp_path / "1.0.0"))
    shard = sorted(copy.glob("*train*-of-*[0-9]"))[0]
    data = bytearray(shard.read_bytes())
    store, there = clean.store(), f"{address}/{shard.name}"
    if damage == "gone":
        shard.unlink()
        store.delete([there])
    elif damage == "more":
        (copy / "other").write_bytes(b"x")
        store.write(f"{address}/other", b"x")
    else:
        data[len(data) // 2] ^= 1
        shard.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
        store.write(there, shard.read_bytes())
    near, far = (
        [(problem.file, problem.record, problem.offset) for problem in verify(place).problems]
        for place in (copy, address)
    )
    assert far == near and far, verify(address)


def test_inspect_and_report_say_of_an_address_what_they_say_of_a_folder(address, local, tmp_path):
    whole = [line for line in describe(local).splitlines() if not line.startswith(("  source:", "  images:"))]
    assert describe(address).replace(address, str(local)).splitlines() == whole
    assert describe_record(address, "train:3") == describe_record(local, "train:3")
    near = write_report(local, output=tmp_path / "near.html", sources=str(local.parents[2] / "source"))
    far = write_report(address, output=tmp_path / "far.html", sources=str(local.parents[2] / "source"))
    known = re.sub(r"Converted from \S+ by", "Converted by", near.read_text())
    assert far.read_text().replace(address, str(local)) == known


def test_a_report_of_an_address_lies_in_the_working_folder(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_report(address, samples=0) == Path("1.0.0-report.html")


def test_what_cannot_be_read_is_named_and_not_waited_for(clean, address):
    missing = f"{clean.address}/none/1.0.0"
    for look in (verify, describe):
        with pytest.raises(UsageError, match=re.escape(missing)):
            look(missing)
    store = clean.store()
    store.delete([found for found, _ in store.listed(f"{address}/") if found.endswith(".index")])
    with pytest.raises(CorruptFileError, match=rf"{address}/set-train.*\.index: it is missing"):
        describe_record(address, "train:0")
    with between(clean.endpoint) as proxy, found_by(clean.at(proxy.endpoint)):
        proxy.fault = lambda method, path: "403"
        with pytest.raises(StoreError, match=clean.address):
            describe(address)
