"""A shard's bytes depend on sources and recipe alone, and each input is counted once, whatever a runner does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions, ShardKey
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.progress import job_counts
from halofeed.pipelines.shard_writer import ShardWriter
from halofeed.pipelines.sinks import write_shard
from halofeed.pipelines.storage import OutputFolder
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import JobError
from tests.support.conversions import (
    all_bytes,
    draw_folders,
    planned,
    rejected_entries,
    run_convert,
    shard_bytes,
    shard_job,
)

OPTIONS = {"layout": "folders", "shards": 3, "split_shares": ("train=0.7", "test=0.3")}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return draw_folders(tmp_path_factory.mktemp("source"), 40, broken=2)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, bytes]:
    return all_bytes(Path(run_convert(source, tmp_path_factory.mktemp("out"), **OPTIONS).folder))


@pytest.mark.parametrize(
    ("workers", "threads"),
    [
        (1, 2),
        (2, 2),
        pytest.param(1, 5, marks=pytest.mark.long),
        pytest.param(3, 2, marks=pytest.mark.long),
        *(pytest.param(*some, marks=pytest.mark.exhaustive) for some in ((2, 1), (3, 1), (2, 5))),
    ],
)
def test_workers_and_threads_change_no_byte_of_any_file(source, expected, tmp_path, workers, threads):
    done = run_convert(source, tmp_path, workers=workers, threads=threads, **OPTIONS)
    assert all_bytes(Path(done.folder)) == expected


def test_the_order_of_arrival_changes_no_byte(source, tmp_path):
    recipe = Recipe(layout="folders", height=16, width=24)
    plan, lines = planned(source, tmp_path / "plan", recipe)
    references, sources = [line.decode() for line in lines], LocalFiles(source)
    assert len(references) == 40
    generator, seen = random.Random(7), set()
    for number in range(4):
        job = shard_job(recipe, plan, source, tmp_path / str(number), threads=2)
        OutputFolder(job.folder).make()
        generator.shuffle(references)
        counted: list[tuple[int, int]] = []

        def count(done, rejected, counted=counted):
            counted.append((done, len(rejected)))

        threads, key = OrderedThreads(2), ShardKey("train", 0)
        assert write_shard(job, key, references, sources, threads, count)
        assert tuple(map(sum, zip(*counted, strict=True))) == (38, 2)
        counted.clear()
        assert not write_shard(job, key, references[::-1], sources, threads, count)
        assert counted == [(38, 2)]
        threads.close()
        seen.add(tuple(sorted(all_bytes(Path(job.folder)).items())))
    assert len(seen) == 1


RECIPE = Recipe(layout="folders", height=16, width=24, shards=2)
BROKEN = 7


@pytest.fixture
def some(tmp_path):
    return draw_folders(tmp_path / "src", 20, broken=BROKEN)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_bundles_that_are_made_twice_keep_the_budget(some, tmp_path, workers):
    given = {"source": str(some), "name": "set", "workers": workers, "max_rejected": BROKEN}
    twice = ("--direct_runner_bundle_repeat=1",)
    once = convert(JobOptions(out=str(tmp_path / "once"), **given), RECIPE, show_progress=False)
    done = convert(JobOptions(out=str(tmp_path / "twice"), **given), RECIPE, twice, show_progress=False)
    assert len(rejected_entries(done.folder)) == BROKEN and done.manifest == once.manifest
    assert shard_bytes(tmp_path / "once") == shard_bytes(tmp_path / "twice")


@pytest.fixture
def job(some, tmp_path):
    plan, lines = planned(some, tmp_path / "set", RECIPE)
    progress = tmp_path / "progress"
    progress.mkdir()
    more = {"max_rejected": BROKEN, "progress_folder": str(progress)}
    return shard_job(RECIPE, plan, some, tmp_path / "set", **more), lines


def test_a_shard_that_dies_in_the_middle_begins_from_nothing(job, monkeypatch):
    written, lines = job
    writer, read, left = ShardWriter(written), LocalFiles.read, [15]

    def dying(files, path):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(5, "Input/output error")
        return read(files, path)

    monkeypatch.setattr(LocalFiles, "read", dying)
    with pytest.raises(JobError, match="Input/output error"):
        writer.write("train/0", lines)
    assert 0 < sum(job_counts(written.progress_folder)) < len(lines)
    assert writer.write("train/0", lines)
    assert job_counts(written.progress_folder) == (len(lines) - BROKEN, BROKEN)


def test_a_shard_that_moves_to_another_worker_counts_once(job):
    written, lines = job
    first, second = ShardWriter(written), ShardWriter(written)
    assert first.write("train/1", lines[:12]) and first.write("train/0", lines[12:])
    assert not second.write("train/1", lines[:12]) and not second.write("train/0", lines[12:])
    assert job_counts(written.progress_folder) == (len(lines) - BROKEN, BROKEN)


def test_the_rejects_of_a_shard_that_was_begun_twice_are_named_once(job):
    written, lines = job
    writer = ShardWriter(written)
    assert writer.write("train/0", lines)
    assert not writer.write("train/0", lines)
    more = [line.replace(b"shirt/", b"hat/") for line in lines]
    with pytest.raises(JobError, match=f"more than --max-rejected {BROKEN}") as caught:
        writer.write("train/1", more)
    named = [line.split(": ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert len(named) == len(set(named)) == BROKEN
