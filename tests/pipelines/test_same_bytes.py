"""Do a shard's bytes depend on the sources and the recipe alone?"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from halofeed.pipelines.job import ShardKey
from halofeed.pipelines.ordered import OrderedThreads
from halofeed.pipelines.sinks import write_shard
from halofeed.pipelines.storage import OutputFolder
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import all_bytes, draw_folders, planned, run_convert, shard_job

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
