"""Pictures that become more records than are held at once: failures in the middle, kills, counts, and equal bytes."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from halofeed.errors import JobError
from halofeed.inspection.verify import verify
from halofeed.pipelines import inputs
from halofeed.pipelines.shard_writer import ShardWriter
from halofeed.prep.convert.tile_records import TileConverter
from halofeed.schemas.manifest import Manifest
from tests.support.conversions import (
    CLASSES,
    all_bytes,
    convert_words,
    die_at,
    halofeed,
    read_split,
    rejected_entries,
    run_convert,
    shard_bytes,
)
from tests.support.stores import Place

OPTIONS: dict[str, Any] = {
    "layout": "folders",
    "fit": "tiles",
    "height": 32,
    "width": 32,
    "tile_overlap": (8, 8),
    "encoding": "raw",
    "shards": 1,
    "max_rejected": 9,
}
TILES = 40
"""Tiles of each picture of 120 x 190 pixels."""
SHARD_FILE = "-00000-of-00001"


def draw(folder: Path, names: str = "abcd") -> Path:
    for number, name in enumerate(names):
        (folder / CLASSES[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (120, 190, 3)).astype(np.uint8)
        tifffile.imwrite(
            folder / CLASSES[number % 2] / f"{name}.tif",
            pixels,
            tile=(16, 32),
            compression="zlib",
            metadata=None,
        )
    return folder


def spoil(path: Path) -> None:
    """Flip the bytes of a block near the end of the picture."""
    with tifffile.TiffFile(path) as file:
        offset, length = file.pages[0].dataoffsets[-8], file.pages[0].databytecounts[-8]
    data = bytearray(path.read_bytes())
    for at in range(offset + 2, offset + length):
        data[at] ^= 255
    path.write_bytes(bytes(data))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return draw(tmp_path / "source")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the shard writer counts: (inputs that are done, rejected ones) of each call."""
    counts: list[tuple[int, int]] = []
    real = ShardWriter._count

    def count(self, done, rejected):
        counts.append((done, len(rejected)))
        real(self, done, rejected)

    monkeypatch.setattr(ShardWriter, "_count", count)
    return counts


def find(source: Path, name: str) -> Path:
    return next(source.rglob(f"{name}.tif"))


@pytest.mark.parametrize("damaged", ["a", "bc"])
def test_a_picture_that_fails_late_leaves_no_record_and_is_listed_once(
    source, tmp_path, monkeypatch, counted, damaged
):
    monkeypatch.setattr(inputs, "HELD_BYTES", 5000)
    without = tmp_path / "without"
    shutil.copytree(source, without)
    for name in damaged:
        spoil(find(source, name))
        find(without, name).unlink()
    done = run_convert(source, tmp_path / "out", **OPTIONS)
    kept = 4 - len(damaged)
    assert sum(count for count, _ in counted) == kept
    assert sum(rejected for _, rejected in counted) == len(damaged)
    entries = rejected_entries(done.folder)
    assert sorted(Path(entry["source"]).stem for entry in entries) == list(damaged)
    assert {entry["stage"] for entry in entries} == {"decode"}
    clean = run_convert(without, tmp_path / "clean", **OPTIONS)
    assert shard_bytes(Path(done.folder)) == shard_bytes(Path(clean.folder))
    assert len(list(read_split(Path(done.folder), "train"))) == TILES * kept
    assert verify(Path(done.folder)).ok


def test_some_records_are_given_before_the_failure(source, monkeypatch):
    """What the tests above rely on."""
    monkeypatch.setattr(inputs, "HELD_BYTES", 5000)
    spoil(find(source, "a"))
    seen = []
    real = TileConverter.stream

    def stream(self, *arguments):
        for record in real(self, *arguments):
            seen.append(record)
            yield record

    monkeypatch.setattr(TileConverter, "stream", stream)
    with pytest.raises(JobError, match="max-rejected"):
        run_convert(source, source.parent / "out", **OPTIONS | {"max_rejected": 0})
    assert len(seen) > 5


def test_the_limit_of_rejected_inputs_counts_late_failures(source, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "HELD_BYTES", 5000)
    for name in "ab":
        spoil(find(source, name))
    with pytest.raises(JobError, match="more than --max-rejected 1"):
        run_convert(source, tmp_path / "out", **OPTIONS | {"max_rejected": 1})
    assert run_convert(source, tmp_path / "out", **OPTIONS | {"max_rejected": 2})


def test_shards_workers_threads_and_parts_change_no_record(source, tmp_path, monkeypatch):
    one = run_convert(source, tmp_path / "one", **OPTIONS, threads=1)
    four = run_convert(source, tmp_path / "four", **OPTIONS, threads=4)
    assert all_bytes(Path(one.folder)) == all_bytes(Path(four.folder))
    monkeypatch.setattr(inputs, "HELD_BYTES", 1)
    parts = run_convert(source, tmp_path / "parts", **OPTIONS, threads=2)
    assert all_bytes(Path(one.folder)) == all_bytes(Path(parts.folder))
    three = {**OPTIONS, "shards": 3}
    shards = [run_convert(source, tmp_path / f"w{workers}", **three, workers=workers) for workers in (1, 3)]
    assert all_bytes(Path(shards[0].folder)) == all_bytes(Path(shards[1].folder))
    records = [sorted(map(text_of, read_split(Path(run.folder), "train"))) for run in (one, shards[0])]
    assert records[0] == records[1]


def text_of(record: dict[str, Any]) -> str:
    return str({key: bytes(value[0]) if isinstance(value, list) else value for key, value in record.items()})


@pytest.mark.parametrize("share", ["keep", "drop", "0.3"])
def test_a_share_of_the_empty_tiles_is_kept_by_a_stable_hash(tmp_path, share):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (300, 300, 3)).astype(np.uint8)
        tifffile.imwrite(source / f"{number}.tif", pixels)
    lines = ["image,xmin,ymin,xmax,ymax,label", *(f"{number}.tif,1,1,20,20,a" for number in range(6))]
    (source / "boxes.csv").write_text("\n".join(lines) + "\n")
    options = OPTIONS | {"layout": "csv", "tile_overlap": (0, 0), "empty_tiles": share}
    found = []
    for shards, threads in ((1, 1), (3, 3)):
        done = run_convert(
            source, tmp_path / f"out{shards}", **options | {"shards": shards, "threads": threads}
        )
        records = list(read_split(Path(done.folder), "train"))
        found.append(sorted((bytes(one["image/filename"][0]), int(one["image/tile"][0])) for one in records))
        assert verify(Path(done.folder)).ok
    assert found[0] == found[1]
    empty = 6 * 99
    expected = {"keep": empty, "drop": 0, "0.3": 0.3 * empty}[share]
    assert abs(len(found[0]) - 6 - expected) <= (50 if share == "0.3" else 0)


def test_a_picture_of_empty_tiles_only_is_listed_and_is_no_failure(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in "ab":
        tifffile.imwrite(source / f"{name}.tif", np.zeros((100, 100, 3), np.uint8))
    (source / "boxes.csv").write_text("image,xmin,ymin,xmax,ymax,label\na.tif,1,1,20,20,x\nb.tif,5,5,5,9,x\n")
    options = OPTIONS | {"layout": "csv", "empty_tiles": "drop", "max_rejected": 0}
    done = run_convert(source, tmp_path / "out", **options)
    entries = rejected_entries(done.folder)
    (entry,) = [entry for entry in entries if entry["reason"] == "all tiles are empty"]
    assert entry["source"] == "b.tif" and "--empty-tiles keep" in entry["detail"]
    # Its only object has no area, which is not lost with the tiles.
    assert "box 1" in entry["detail"] or len(entries) == 2
    kept = run_convert(source, tmp_path / "kept", **options | {"empty_tiles": "keep"})
    assert len(list(read_split(Path(kept.folder), "train"))) == 32


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_conversion_of_tiles_resumes_with_the_same_bytes(source, tmp_path, when):
    options = OPTIONS | {"shards": 2, "folds": 2}
    whole = all_bytes(Path(run_convert(source, tmp_path / "whole", **options).folder))
    out = tmp_path / "out"
    die_at(("-00001-of-00002", when, "exchange", convert_words(source, out, workers=1, **options)))
    resumed = run_convert(source, out, **options)
    assert all_bytes(Path(resumed.folder)) == whole


def test_a_finished_shard_of_tiles_is_kept(source, tmp_path, monkeypatch):
    options = OPTIONS | {"shards": 2, "split_shares": ("train=0.5", "validation=0.5")}
    first = run_convert(source, tmp_path / "out", **options)
    folder = Path(first.folder)
    before = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")}
    os.remove(folder / "manifest.json")
    converted = []
    real = TileConverter.stream

    def stream(self, reference, *arguments):
        converted.append(reference.source)
        return real(self, reference, *arguments)

    monkeypatch.setattr(TileConverter, "stream", stream)
    run_convert(source, tmp_path / "out", **options)
    assert {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")} == before
    assert converted == []


def test_a_picture_that_changes_while_it_is_converted_ends_the_job(source, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "HELD_BYTES", 5000)
    real = TileConverter._record
    path = find(source, "a")

    def record(self, source, job):
        if source.reference.source.endswith("a.tif") and job.tile.number == 20:
            with path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x01")
            os.utime(path, ns=(1, 1))
        return real(self, source, job)

    with monkeypatch.context() as patched:
        patched.setattr(TileConverter, "_record", record)
        with pytest.raises(JobError, match=r"a\.tif: was changed while") as raised:
            run_convert(source, tmp_path / "out", **OPTIONS)
    assert "run the same command again" in str(raised.value)
    again = run_convert(source, tmp_path / "out", **OPTIONS)
    fresh = run_convert(source, tmp_path / "fresh", **OPTIONS)
    assert all_bytes(Path(again.folder)) == all_bytes(Path(fresh.folder))


def test_too_little_memory_is_told_with_a_number_that_works(tmp_path):
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    pixels = np.zeros((1500, 8000, 3), np.uint8)
    tifffile.imwrite(source / "a/large.tif", pixels, tile=(256, 256), compression="zlib")
    tifffile.imwrite(source / "a/small.tif", pixels[:100, :100])
    words = convert_words(
        source, tmp_path / "out", **OPTIONS | {"height": 1024, "width": 1024, "max_memory": 128, "workers": 1}
    )
    done = halofeed(*words)
    listed = rejected_entries(tmp_path / "out/set/1.0.0")
    assert done.returncode == 0, done.stderr
    (entry,) = listed
    assert entry["reason"] == "takes too much memory" and entry["source"] == "a/large.tif"
    (number,) = re.findall(r"such as --max-memory (\d+)", entry["detail"])
    shutil.rmtree(tmp_path / "out")
    fixed = halofeed(*[f"--max-memory={number}" if "max-memory" in word else word for word in words])
    assert fixed.returncode == 0, fixed.stderr
    assert rejected_entries(tmp_path / "out/set/1.0.0") == []


def test_dry_run_limit_and_overwrite_take_tiles(source, tmp_path):
    out = tmp_path / "out"
    dry = halofeed(*convert_words(source, out, **OPTIONS, dry_run=True))
    assert dry.returncode == 0, dry.stderr
    assert not out.exists()
    limited = run_convert(source, out, **OPTIONS | {"limit": 2})
    assert len(list(read_split(Path(limited.folder), "train"))) == 2 * TILES
    full = run_convert(source, out, **OPTIONS | {"overwrite": True})
    assert len(list(read_split(Path(full.folder), "train"))) == 4 * TILES
    manifest = Manifest.from_json((Path(full.folder) / "manifest.json").read_bytes(), "manifest.json")
    assert sum(shard.records for shard in manifest.splits["train"].shards) == 4 * TILES


@pytest.mark.long
def test_tiles_from_and_to_an_object_store_have_the_same_bytes(source, tmp_path, clean: Place):
    local = run_convert(source, tmp_path / "local", **OPTIONS)
    address = clean.upload(source, "source")
    words = convert_words(address, f"{clean.address}/out", workers=1, **OPTIONS)
    done = halofeed(*words, env={**os.environ, **clean.settings})
    assert done.returncode == 0, done.stderr
    found = clean.objects("out/set/1.0.0/")
    expected = all_bytes(Path(local.folder))
    shards = [name for name in expected if ".tfrecord-" in name]
    assert {name: found[name] for name in shards} == {name: expected[name] for name in shards}
