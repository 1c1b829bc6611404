"""The Beam pipeline of a conversion, as a graph.

reference files ─> Reshuffle ─> ReadReferences ┐
                                               ├> GroupByKey > WriteShards > GroupByKey > SumUp > GroupByKey > Commit
ranges of shards ─> Reshuffle ─> their keys ───┘  (a shard)                    (some shards)          (all)

A runner fuses what stands between two shuffles and gives it to one worker, so there is one before whatever takes long.
What is named in the graph is a range of numbers, and does not grow with the data. On this machine the references do not
go through the runner, see `halofeed.pipelines.references`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from halofeed.pipelines.job import ShardJob
from halofeed.pipelines.transforms import Commit, ReadReferences, SumUp, WriteShards

SHARDS_AT_ONCE = 1_000
_Keyed = tuple[str, bytes]


def build(pipeline: Any, job: ShardJob, reference_files: int) -> None:
    """Add the conversion to a pipeline.

    The key of every shard goes into the shuffle by itself, so that a shard without examples is made too.

    Args:
        reference_files: how many there are.
    """
    text = job.to_json()

    def keys_from(first: int) -> Iterator[_Keyed]:
        for key in ShardJob.from_json(text).shard_keys()[first : first + SHARDS_AT_ONCE]:
            yield key.to_text(), b""

    shards = (
        pipeline
        | "ranges of shards" >> Numbers(len(job.splits) * job.recipe.shards, SHARDS_AT_ONCE)
        | "name shards" >> beam.FlatMap(keys_from).with_output_types(_Keyed)
    )
    references = []
    if job.references_folder is None:
        references += [
            pipeline
            | "reference files" >> Numbers(reference_files, 1)
            | "read references" >> beam.ParDo(ReadReferences(text)).with_output_types(_Keyed)
        ]
    (
        (shards, *references)
        | "gather" >> beam.Flatten()
        | "group by shard" >> beam.GroupByKey()
        | "write shards" >> beam.ParDo(WriteShards(text)).with_output_types(tuple[int, str])
        | "some shards" >> beam.GroupByKey()
        | "sum up" >> beam.ParDo(SumUp(text)).with_output_types(tuple[int, str])
        | "all shards" >> beam.GroupByKey()
        | "commit" >> beam.ParDo(Commit(text)).with_output_types(int)
    )


class Numbers(beam.PTransform):  # type: ignore[misc]
    """The first number of each range of so many below a limit, wherever a worker is idle."""

    def __init__(self, limit: int, step: int) -> None:
        super().__init__()
        self._limit, self._step = limit, step

    def expand(self, pipeline: Any) -> Any:
        limit, step = self._limit, self._step

        def numbers(_: bytes) -> Iterator[int]:
            return iter(range(0, limit, step))

        return pipeline | beam.Impulse() | beam.FlatMap(numbers).with_output_types(int) | beam.Reshuffle()
