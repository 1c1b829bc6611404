"""Is each input counted once, though a runner makes a bundle twice, ends it in the middle, or moves it elsewhere?"""

from __future__ import annotations

import pytest

from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.progress import job_counts
from halofeed.pipelines.shard_writer import ShardWriter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import JobError
from tests.support.conversions import draw_folders, planned, rejected_entries, shard_bytes, shard_job

RECIPE = Recipe(layout="folders", height=16, width=24, shards=2)
BROKEN = 7


@pytest.fixture
def source(tmp_path):
    return draw_folders(tmp_path / "src", 20, broken=BROKEN)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_bundles_that_are_made_twice_keep_the_budget(source, tmp_path, workers):
    given = {"source": str(source), "name": "set", "workers": workers, "max_rejected": BROKEN}
    twice = ("--direct_runner_bundle_repeat=1",)
    once = convert(JobOptions(out=str(tmp_path / "once"), **given), RECIPE, show_progress=False)
    done = convert(JobOptions(out=str(tmp_path / "twice"), **given), RECIPE, twice, show_progress=False)
    assert len(rejected_entries(done.folder)) == BROKEN and done.manifest == once.manifest
    assert shard_bytes(tmp_path / "once") == shard_bytes(tmp_path / "twice")


@pytest.fixture
def job(source, tmp_path):
    plan, lines = planned(source, tmp_path / "set", RECIPE)
    progress = tmp_path / "progress"
    progress.mkdir()
    more = {"max_rejected": BROKEN, "progress_folder": str(progress)}
    return shard_job(RECIPE, plan, source, tmp_path / "set", **more), lines


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
