"""Is the graph of a job one that a cluster can spread, and does it give what this machine gives without its shuffle?"""

from __future__ import annotations

import dataclasses

import apache_beam as beam
import pytest
from apache_beam.coders import Coder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from halofeed.pipelines import commit, references
from halofeed.pipelines.build import build
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.plan import make_plan, open_sources
from halofeed.pipelines.references import FileByShard, NumberedFiles
from halofeed.pipelines.storage import OutputFolder
from halofeed.pipelines.transforms import SumUp
from halofeed.prep.options.recipe import Recipe
from halofeed.schemas.errors import JobError
from tests.support.conversions import all_bytes, draw_folders, shard_job

RECIPE = Recipe(layout="folders", height=16, width=24, shards=3, split_shares=("train=0.7", "test=0.3"))
LONG = ("read references", "name shards", "write shards", "sum up")
BREAKS = {common_urns.primitives.GROUP_BY_KEY.urn, common_urns.composites.RESHUFFLE.urn}


def planned(source, out, written) -> ShardJob:
    options = JobOptions(source=str(source), out=str(out), name="set")
    plan = make_plan(options, RECIPE, open_sources(options), written)
    folder = str(out) if isinstance(written, FileByShard) else None
    return shard_job(RECIPE, plan, source, out, inputs=plan.inputs, references_folder=folder)


@pytest.fixture
def source(tmp_path):
    return draw_folders(tmp_path / "src", 40, broken=2)


@pytest.fixture
def job(source, tmp_path):
    output = OutputFolder(str(tmp_path / "out"))
    output.make()
    return planned(source, tmp_path / "out", NumberedFiles(output))


def run(job, files):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build(pipeline, job, files)
    pipeline.run().wait_until_finish()


def test_what_is_shuffled_and_what_lies_by_shard_give_the_same_bytes(source, tmp_path, monkeypatch):
    monkeypatch.setattr(references, "REFERENCES_PER_FILE", 7)
    monkeypatch.setattr(references, "BUFFER_BYTES", 200)
    shuffled, by_shard = (OutputFolder(str(tmp_path / name)) for name in ("shuffled", "by_shard"))
    for output in (shuffled, by_shard):
        output.make()
    files = NumberedFiles(shuffled)
    run(planned(source, shuffled.root, files), files.count)
    assert files.count == 6
    written = FileByShard(by_shard, RECIPE.shards)
    run(planned(source, by_shard.root, written), written.count)
    first, second = all_bytes(tmp_path / "shuffled"), all_bytes(tmp_path / "by_shard")
    assert first == second and sum(".tfrecord-" in name for name in first) == 2 * 2 * RECIPE.shards


@pytest.mark.parametrize("at_once", [1, 2, 4, 5])
def test_shards_that_are_summed_up_by_several_give_the_same_bytes(source, tmp_path, monkeypatch, at_once):
    """Two splits of three shards, so that groups have shards of both, and rejects lie in several."""
    folders = []
    for name, size in (("all", 256), ("some", at_once)):
        monkeypatch.setattr(commit, "SHARDS_AT_ONCE", size)
        output = OutputFolder(str(tmp_path / name))
        output.make()
        files = NumberedFiles(output)
        run(planned(source, output.root, files), files.count)
        folders.append(all_bytes(tmp_path / name))
    assert folders[0] == folders[1] and folders[0]["rejected.jsonl"].count(b"\n") == 2


def test_a_shard_that_nobody_wrote_ends_the_commit_by_its_name(job, monkeypatch):
    monkeypatch.setattr(commit, "SHARDS_AT_ONCE", 2)
    summing = SumUp(job.to_json())
    summing.setup()
    with pytest.raises(JobError, match="were not written: train/0; run the same command again"):
        list(summing.process((1, ["test/2"])))
    with pytest.raises(JobError, match=r"were not written: test/0, .*, train/2; run the same command again"):
        commit.commit(job, [])


def test_work_that_takes_long_stands_behind_a_break_of_fusion(job):
    components = graph(job, 9).components
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


def test_what_crosses_a_shuffle_is_not_pickled_and_keys_are_deterministic(job):
    proto, context = beam_graph(job, 9)
    transforms, key = proto.components.transforms.values(), common_urns.primitives.GROUP_BY_KEY.urn
    ours = [one for one in transforms if one.spec.urn == key and "Reshuffle" not in one.unique_name]
    assert {one.unique_name for one in ours} == {"group by shard", "some shards", "all shards"}
    for transform in ours:
        (collection,) = transform.inputs.values()
        coder = context.coders.get_by_id(proto.components.pcollections[collection].coder_id)
        assert coder.key_coder().is_deterministic()
        assert not any(is_pickled(part) for part in (coder.key_coder(), coder.value_coder())), coder


def test_no_step_has_a_side_input_and_the_graph_does_not_grow_with_the_data(job):
    small = graph(job, 1)
    transforms = small.components.transforms.values()
    assert all(
        not beam_runner_api_pb2.ParDoPayload.FromString(one.spec.payload).side_inputs
        for one in transforms
        if one.spec.urn == common_urns.primitives.PAR_DO.urn
    )
    many = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, shards=99_999))
    assert graph(many, 10_000).ByteSize() < small.ByteSize() + 200


def is_pickled(coder: Coder) -> bool:
    return any(name in repr(coder) for name in ("Pickle", "FastPrimitives", "Dill"))


def beam_graph(job, files):
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build(pipeline, job, files)
    return pipeline.to_runner_api(return_context=True)


def graph(job, files):
    return beam_graph(job, files)[0]
