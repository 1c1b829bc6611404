"""A shard's bytes depend on sources and recipe alone, and each input is counted once, whatever a runner does."""

import dataclasses
import random
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.coders import Coder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from halofeed.errors import JobError
from halofeed.pipelines import commit, references
from halofeed.pipelines.beam_pipeline import SumUp, build_pipeline
from halofeed.pipelines.convert import convert
from halofeed.pipelines.job import JobOptions, ShardJob, ShardKey
from halofeed.pipelines.opened_sources import open_sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.plan import make_plan
from halofeed.pipelines.progress import job_counts
from halofeed.pipelines.references import FileByShard, NumberedFiles
from halofeed.pipelines.run_counts import ShardOutcome
from halofeed.pipelines.shard_writer import ShardWriter, write_shard
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.system.threads import OrderedThreads
from tests.support.conversions import (
    all_bytes,
    draw_folders,
    planned,
    rejected_entries,
    run_convert,
    shard_bytes,
    shard_job,
)
from tests.support.level_rows import levels

OPTIONS = {"layout": "folders", "shards": 3, "split_shares": ("train=0.7", "test=0.3")}
SOURCE = {"images": 40, "broken": 2}


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, bytes]:
    return all_bytes(Path(run_convert(source, tmp_path_factory.mktemp("out"), **OPTIONS).folder))


@pytest.mark.parametrize(
    ("workers", "threads"), levels((1, 2), (2, 2), long=[(1, 5), (3, 2)], exhaustive=[(2, 1), (3, 1), (2, 5)])
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
        assert not write_shard(job, key, references, sources, threads, count).is_kept
        assert tuple(map(sum, zip(*counted, strict=True))) == (38, 2)
        counted.clear()
        assert write_shard(job, key, references[::-1], sources, threads, count).is_kept
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
    assert not writer.write("train/0", lines).is_kept
    assert job_counts(written.progress_folder) == (len(lines) - BROKEN, BROKEN)


def test_the_rejects_of_a_shard_that_was_begun_twice_are_named_once(job):
    written, lines = job
    writer = ShardWriter(written)
    assert not writer.write("train/0", lines).is_kept
    assert writer.write("train/0", lines).is_kept
    more = [line.replace(b"shirt/", b"hat/") for line in lines]
    with pytest.raises(JobError, match=f"more than --max-rejected {BROKEN}") as caught:
        writer.write("train/1", more)
    named = [line.split(": ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert len(named) == len(set(named)) == BROKEN


GRAPHED = Recipe(layout="folders", height=16, width=24, shards=3, split_shares=("train=0.7", "test=0.3"))
LONG = ("read references", "name shards", "write shards", "sum up")
BREAKS = {common_urns.primitives.GROUP_BY_KEY.urn, common_urns.composites.RESHUFFLE.urn}


def graph_job(source, out, written) -> ShardJob:
    options = JobOptions(source=str(source), out=str(out), name="set")
    plan = make_plan(options, GRAPHED, open_sources(options), written)
    folder = str(out) if isinstance(written, FileByShard) else None
    return shard_job(GRAPHED, plan, source, out, inputs=plan.inputs, references_folder=folder)


@pytest.fixture
def submitted(source, tmp_path):
    output = OutputFolder(str(tmp_path / "out"))
    output.make()
    return graph_job(source, tmp_path / "out", NumberedFiles(output))


def run(job, files):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build_pipeline(pipeline, job, files)
    pipeline.run().wait_until_finish()


def test_what_is_shuffled_and_what_lies_by_shard_give_the_same_bytes(source, tmp_path, monkeypatch):
    monkeypatch.setattr(references, "REFERENCES_PER_FILE", 7)
    monkeypatch.setattr(references, "REFERENCE_BUFFER_BYTES", 200)
    shuffled, by_shard = (OutputFolder(str(tmp_path / name)) for name in ("shuffled", "by_shard"))
    for output in (shuffled, by_shard):
        output.make()
    files = NumberedFiles(shuffled)
    run(graph_job(source, shuffled.root, files), files.count)
    assert files.count == 6
    written = FileByShard(by_shard, GRAPHED.shards)
    run(graph_job(source, by_shard.root, written), written.count)
    first, second = all_bytes(tmp_path / "shuffled"), all_bytes(tmp_path / "by_shard")
    assert first == second and sum(".tfrecord-" in name for name in first) == 2 * GRAPHED.shards


@pytest.mark.parametrize("at_once", [1, 2, 4, 5])
def test_shards_that_are_summed_up_by_several_give_the_same_bytes(source, tmp_path, monkeypatch, at_once):
    """Two splits of three shards, so that groups have shards of both, and rejects lie in several."""
    folders = []
    for name, size in (("all", 256), ("some", at_once)):
        monkeypatch.setattr(commit, "SHARDS_PER_SUM", size)
        output = OutputFolder(str(tmp_path / name))
        output.make()
        files = NumberedFiles(output)
        run(graph_job(source, output.root, files), files.count)
        folders.append(all_bytes(tmp_path / name))
    assert folders[0] == folders[1] and folders[0]["rejected.jsonl"].count(b"\n") == 2


def test_a_shard_that_nobody_wrote_ends_the_commit_by_its_name(submitted, monkeypatch):
    monkeypatch.setattr(commit, "SHARDS_PER_SUM", 2)
    summing = SumUp(submitted.to_json())
    summing.setup()
    done = ShardOutcome(key="test/2", is_kept=False, bytes_read=0, bytes_written=0, records=0)
    with pytest.raises(JobError, match="were not written: train/0; run the same command again"):
        list(summing.process((1, [done.to_json()])))
    with pytest.raises(JobError, match=r"were not written: test/0, .*, train/2; run the same command again"):
        commit.commit(submitted, [])


def test_work_that_takes_long_stands_behind_a_break_of_fusion(submitted):
    components = graph(submitted, 9).components
    made_by = {
        collection: transform
        for transform in components.transforms.values()
        if "Reshuffle/" not in transform.unique_name
        and (transform.spec.urn in BREAKS or not transform.subtransforms)
        for collection in transform.outputs.values()
    }

    def distance(name: str) -> int:
        """How many steps lie between a step and the break before it."""
        (transform,) = (one for one in components.transforms.values() if one.unique_name == name)
        steps = 0
        while True:
            (collection,) = transform.inputs.values()
            transform = made_by[collection]
            if transform.spec.urn in BREAKS:
                return steps
            steps += 1

    assert {name: distance(name) for name in LONG} == dict.fromkeys(LONG, 0)


def test_what_crosses_a_shuffle_is_not_pickled_and_keys_are_deterministic(submitted):
    proto, context = beam_graph(submitted, 9)
    transforms, key = proto.components.transforms.values(), common_urns.primitives.GROUP_BY_KEY.urn
    ours = [one for one in transforms if one.spec.urn == key and "Reshuffle" not in one.unique_name]
    assert {one.unique_name for one in ours} == {"group by shard", "some shards", "all shards"}
    for transform in ours:
        (collection,) = transform.inputs.values()
        coder = context.coders.get_by_id(proto.components.pcollections[collection].coder_id)
        assert coder.key_coder().is_deterministic()
        assert not any(is_pickled(part) for part in (coder.key_coder(), coder.value_coder())), coder


def test_no_step_has_a_side_input_and_the_graph_does_not_grow_with_the_data(submitted):
    small = graph(submitted, 1)
    transforms = small.components.transforms.values()
    assert all(
        not beam_runner_api_pb2.ParDoPayload.FromString(one.spec.payload).side_inputs
        for one in transforms
        if one.spec.urn == common_urns.primitives.PAR_DO.urn
    )
    many = dataclasses.replace(submitted, recipe=dataclasses.replace(GRAPHED, shards=99_999))
    assert graph(many, 10_000).ByteSize() < small.ByteSize() + 200


def is_pickled(coder: Coder) -> bool:
    return any(name in repr(coder) for name in ("Pickle", "FastPrimitives", "Dill"))


def beam_graph(job, files):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build_pipeline(pipeline, job, files)
    return pipeline.to_runner_api(return_context=True)


def graph(job, files):
    return beam_graph(job, files)[0]
