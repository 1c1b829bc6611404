"""Is each input counted once, though a runner makes a bundle twice, ends it in the middle, or moves it elsewhere?"""

from __future__ import annotations

import pytest

from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.plan import make_plan, open_sources
from halofeed.pipelines.progress import JobProgress
from halofeed.pipelines.references import NumberedFiles, read_file
from halofeed.pipelines.shard_writer import ShardWriter
from halofeed.pipelines.storage import OutputFolder
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import JobError
from tests.pipelines.support import draw_folders, rejected_entries, shard_bytes, shard_job

RECIPE = Recipe(layout="folders", height=16, width=24, shards=2)
BROKEN = 7


@pytest.fixture
def source(tmp_path):
    draw_folders(tmp_path / "src", 20, broken=BROKEN)
    return tmp_path / "src"


@pytest.mark.parametrize("workers", [1, 2])
def test_bundles_that_are_made_twice_keep_the_budget(source, tmp_path, workers):
    given = {"source": str(source), "name": "set", "workers": workers, "max_rejected": BROKEN}
    twice = ("--direct_runner_bundle_repeat=1",)
    once = convert(JobOptions(out=str(tmp_path / "once"), **given), RECIPE, show_progress=False)
    done = convert(JobOptions(out=str(tmp_path / "twice"), **given), RECIPE, twice, show_progress=False)
    assert len(rejected_entries(done.folder)) == BROKEN and done.manifest == once.manifest
    assert shard_bytes(tmp_path / "once") == shard_bytes(tmp_path / "twice")


@pytest.fixture
def job(source, tmp_path):
    options = JobOptions(source=str(source), out=str(tmp_path), name="set")
    output = OutputFolder(options.folder)
    output.make()
    files = NumberedFiles(output)
    plan = make_plan(options, RECIPE, open_sources(options), files)
    (tmp_path / "progress").mkdir()
    progress = str(tmp_path / "progress")
    written = shard_job(RECIPE, plan, source, output.root, max_rejected=BROKEN, progress_folder=progress)
    return written, [line for number in range(files.count) for _, line in read_file(output, number)]


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
    progress = JobProgress(written.progress_folder)
    assert 0 < sum(progress.counts()) < len(lines)
    assert writer.write("train/0", lines)
    assert progress.counts() == (len(lines) - BROKEN, BROKEN)


def test_a_shard_that_moves_to_another_worker_counts_once(job):
    written, lines = job
    first, second = ShardWriter(written), ShardWriter(written)
    assert first.write("train/1", lines[:12]) and first.write("train/0", lines[12:])
    assert not second.write("train/1", lines[:12]) and not second.write("train/0", lines[12:])
    assert JobProgress(written.progress_folder).counts() == (len(lines) - BROKEN, BROKEN)


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
