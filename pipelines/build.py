"""The Beam pipeline of a conversion, as a graph.

reference files ─> ReadReferences ─┐
                                   ├─> GroupByKey ─> WriteShards ─> GroupByKey ─> Commit
every shard's key ─────────────────┘   (shard)      (one shard      (all)        (manifest)
                                                     per call)
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam

from halofeed.pipelines.job import ShardJob
from halofeed.pipelines.transforms import Commit, ReadReferences, WriteShards


def build(pipeline: Any, job: ShardJob, reference_files: list[str]) -> None:
    """Add the conversion to a pipeline.

    The key of every shard goes into the shuffle by itself, so that a shard without examples is made too.
    """
    text = job.to_json()
    references = (
        pipeline
        | "name reference files" >> beam.Create(reference_files, reshuffle=False)
        | "read references" >> beam.ParDo(ReadReferences(text))
    )
    shards = pipeline | "name shards" >> beam.Create(
        [(key.to_text(), b"") for key in job.shard_keys()], reshuffle=False
    )
    (
        (references, shards)
        | "gather" >> beam.Flatten()
        | "group by shard" >> beam.GroupByKey()
        | "write shards" >> beam.ParDo(WriteShards(text))
        | "to one" >> beam.Map(lambda key: (0, key))
        | "all shards" >> beam.GroupByKey()
        | "commit" >> beam.ParDo(Commit(text))
    )
