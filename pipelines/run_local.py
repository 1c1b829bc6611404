"""Run of a conversion on this machine: the steps of the Beam job as plain calls, in worker processes or here.

The steps and their results are those of `beam_pipeline`: write each shard, sum up groups of shards, commit. A local run
has its references in files by shard, so nothing is left to shuffle, and Beam is not imported, which takes longer than
to convert a small data set.
"""

from __future__ import annotations

from halofeed.pipelines.commit import commit, count_groups, sum_up
from halofeed.pipelines.job import ShardJob
from halofeed.pipelines.progress import WorkerProgress
from halofeed.pipelines.references import largest_first
from halofeed.pipelines.run_counts import ShardOutcome, WorkDone
from halofeed.pipelines.shard_writer import ShardWriter, write_shard_of_job
from halofeed.pipelines.workers import Workers


def convert_here(job: ShardJob, workers: Workers | None) -> WorkDone:
    """Write all shards of a job and commit the data set.

    Args:
        job: job whose references are in files by shard.
        workers: worker processes; None writes the shards in this process.

    Returns:
        What was done for the shards.

    Raises:
        JobError: a step failed, or too many inputs were rejected.
    """
    outcomes, sums = _write_here(job) if workers is None else _write_in(workers, job)
    with WorkerProgress(job.progress_folder).reporting("the commit"):
        commit(job, sums)
    return WorkDone.of(outcomes)


def _write_here(job: ShardJob) -> tuple[list[ShardOutcome], list[str]]:
    """Write all shards in this process; return what was done for each, and the summaries of their groups."""
    writer = ShardWriter(job)
    try:
        outcomes = [writer.write(key.to_text(), ()) for key in job.shard_keys()]
    finally:
        writer.close()
    return outcomes, [_sum_up(job, number) for number in range(count_groups(job))]


def _write_in(workers: Workers, job: ShardJob) -> tuple[list[ShardOutcome], list[str]]:
    """Write all shards in worker processes, which parse and check the job once each; return as `_write_here`."""
    text = job.to_json()
    for key in largest_first(job):
        shard = key.to_text()
        workers.submit(write_shard_of_job, (text, shard, []), f"wrote shard {shard}")
    outcomes = [outcome for _, outcome in workers.results()]
    groups = [(text, number) for number in range(count_groups(job))]
    return outcomes, list(workers.map(_sum_up_group, groups, "summed up shards"))


def _sum_up_group(group: tuple[str, int]) -> str:
    """Return the summary of a group of shards, from a job's text and the group's number."""
    text, number = group
    return _sum_up(ShardJob.from_json(text), number)


def _sum_up(job: ShardJob, number: int) -> str:
    with WorkerProgress(job.progress_folder).reporting("the commit"):
        return sum_up(job, number)
