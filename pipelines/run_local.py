"""Run of a conversion on this machine: the steps of the Beam job as plain calls, in worker processes or here.

The steps and their results are those of `beam_pipeline`: write each shard, sum up groups of shards, commit. A local run
has its references in files by shard, so nothing is left to shuffle, and Beam is not imported, which takes longer than
to convert a small data set.
"""

from __future__ import annotations

from halofeed.pipelines.commit import commit, count_groups, sum_up
from halofeed.pipelines.job import ShardJob
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.shard_writer import ShardWriter, write_shard_of_job
from halofeed.pipelines.workers import Workers


def convert_here(job: ShardJob, workers: Workers | None) -> None:
    """Write all shards of a job and commit the data set.

    Args:
        job: job whose references are in files by shard.
        workers: worker processes; None writes the shards in this process.

    Raises:
        JobError: a step failed, or too many inputs were rejected.
    """
    text, shards = job.to_json(), [key.to_text() for key in job.shard_keys()]
    if workers is None:
        writer = ShardWriter(job)
        try:
            for shard in shards:
                writer.write(shard, ())
        finally:
            writer.close()
    else:
        for shard in shards:
            workers.submit(write_shard_of_job, (text, shard, []), f"wrote shard {shard}")
        for _ in workers.results():
            pass
    groups = [(text, number) for number in range(count_groups(job))]
    if workers is None:
        sums = list(map(_sum_up_group, groups))
    else:
        sums = list(workers.map(_sum_up_group, groups, "summed up shards"))
    with WorkerProgress(job.progress_folder).reporting("the commit"):
        commit(job, sums)


def _sum_up_group(group: tuple[str, int]) -> str:
    """Return the summary of a group of shards, from a job's text and the group's number."""
    job = ShardJob.from_json(group[0])
    with WorkerProgress(job.progress_folder).reporting("the commit"):
        return sum_up(job, group[1])
