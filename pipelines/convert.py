"""How a conversion is run from beginning to end: check, plan, run the job, watch it, report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import apache_beam as beam

from halofeed.errors import CorruptFileError, JobError, UsageError
from halofeed.pipelines.beam_pipeline import build
from halofeed.pipelines.commit import check_committed_budget
from halofeed.pipelines.disk_space import check_room, record_bytes
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.lease import held
from halofeed.pipelines.listing import BELIEVED, ListingInJob
from halofeed.pipelines.objects.choose import use_options
from halofeed.pipelines.options import RunnerChoice, choose_runner, new_pipeline
from halofeed.pipelines.plan import Plan, Sources, make_plan, open_sources
from halofeed.pipelines.progress import Bar, job_counts, job_error
from halofeed.pipelines.references import FileByShard, NumberedFiles, read_shard
from halofeed.pipelines.remote import describe, quiet_logging, restarted, run_remote, start_heartbeat
from halofeed.pipelines.replace import (
    check_own,
    check_replacement,
    discard,
    mode_of_new,
    real_folder,
    replacement_of,
    take_place,
)
from halofeed.pipelines.run_distributed import RunDistributed, run_on_beam
from halofeed.pipelines.shard_writer import changed_input
from halofeed.pipelines.source_registry import Origin, recall, remember
from halofeed.pipelines.storage import OutputFolder, check_reachable, for_workers, is_remote, source_files
from halofeed.pipelines.workers import KEPT, Workers, available_cores, workers_in
from halofeed.prep.convert.normalize_like import normalized_like
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.files import MANIFEST, TEMPORARY_FOLDER, index_file
from halofeed.schemas.manifest import Manifest, is_intact, read_manifest
from halofeed.system import signals
from halofeed.system.console import print_status
from halofeed.system.memory import MEBIBYTE
from halofeed.system.resource_errors import in_words
from halofeed.system.scratch import scratch_folder
from halofeed.system.threads import OrderedThreads, in_thread, is_done

if TYPE_CHECKING:
    from halofeed.prep.formats.dicom.series_listing import SeriesListing

T = TypeVar("T")
_MOST_NAMED = 4
"""Files of one input, of which one has changed."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What came of a conversion: its manifest, its folder, and whether it was there already."""

    manifest: Manifest
    folder: str
    was_there: bool


def convert(
    options: JobOptions, recipe: Recipe, beam_arguments: Sequence[str] = (), *, show_progress: bool = True
) -> Conversion:
    """Convert a source into a data set; the same call again finishes what was interrupted.

    Args:
        beam_arguments: Beam's own options, such as --runner=DataflowRunner.

    Raises:
        UsageError: an option is wrong, or another recipe's data set stands there.
        AnnotationsError: the annotations as a whole cannot be used.
        NotRunError: Beam's options ask for the job's description in place of a run.
        JobError: the job failed, and what it finished is kept, a committed version too; or more was rejected than
            the limit allows; or another run is writing into the folder.
        StoreError: a store refuses, or does not answer.
    """
    for flag, path in (("--source", options.source), ("--images", options.images), ("--out", options.out)):
        check_reachable(flag, path or "")
    if options.normalize_like is not None:
        recipe = normalized_like(recipe, read_manifest(options.normalize_like))
    choice = choose_runner(options, recipe.shards, beam_arguments, recipe.max_memory * MEBIBYTE)
    new_pipeline(choice)  # which is refused before anything is written
    store_settings = use_options(choice.options)
    version = OutputFolder(real_folder(options.folder))
    replacement = OutputFolder(replacement_of(version.root))
    sources = open_sources(options)
    _check_apart(options, sources)
    check_own(version, options.name, "take another --name, --version or --out")
    if not version.exists(MANIFEST):
        if not is_remote(version.root) and os.path.exists(version.path(MANIFEST)):
            raise UsageError(
                f"{version.path(MANIFEST)}: expected a regular file; move it away, or take another --version"
            )
        _or_withdraw(version, version.make)
    with held(version.root) as version.holder, contextlib.ExitStack() as stack:
        run = _Run(
            options=options,
            recipe=recipe,
            sources=sources,
            choice=choice,
            store_settings=store_settings,
            show_progress=show_progress,
            scratch=stack.enter_context(scratch_folder()) if choice.local else None,
            stack=stack,
        )
        check_replacement(replacement, options.name)
        committed = _committed(version)
        if committed is not None and not options.overwrite:
            stamps = _check_same(run, version, committed)
            check_committed_budget(committed, options.max_rejected, options.folder)
            if _is_whole(version, committed):
                version.sweep()
                discard(replacement, version, options.name)
                _remember(options, sources, committed, stamps)
                return Conversion(manifest=committed, folder=options.folder, was_there=True)
        if version.exists(MANIFEST):
            with _unharmed(options.folder, replacement.root):
                _or_withdraw(replacement, lambda: replacement.make(mode_of_new(version)))
                with held(replacement.root) as replacement.holder:
                    stamps = _make(run, replacement, version, committed)
                    take_place(replacement, version, options.name)
        else:
            stamps = _make(run, version)
            discard(replacement, version, options.name)
        manifest = Manifest.from_json(version.read(MANIFEST), version.path(MANIFEST))
        _remember(options, sources, manifest, stamps)
        return Conversion(manifest=manifest, folder=options.folder, was_there=False)


@dataclass(kw_only=True)
class _Run:
    """A conversion on its way, and what it works with: on this machine, worker processes once they are asked for.

    Args:
        scratch: a folder of a local run, for what is of no use after it.
        stack: ends the worker processes.
    """

    options: JobOptions
    recipe: Recipe
    sources: Sources
    choice: RunnerChoice
    store_settings: Mapping[str, Any] = field(repr=False)
    show_progress: bool
    scratch: str | None
    stack: contextlib.ExitStack
    _workers: Workers | None = None

    def workers(self) -> Workers | None:
        """The worker processes; None where this process does their work, or another runner."""
        if self._workers is None and self.scratch is not None and self.choice.workers > 1:
            self._workers = self.stack.enter_context(
                workers_in(self.scratch, self.choice.workers, self.choice.beam_arguments)
            )
        return self._workers

    def plan(self, output: OutputFolder, written: NumberedFiles | FileByShard | None) -> Plan:
        """Plan the version that is made in this folder, with what `written` takes; None: with nothing written."""
        numbered = written if isinstance(written, NumberedFiles) else NumberedFiles(output)
        in_job = self._list_in_job(output, numbered)
        find_series = functools.partial(self.find_series, output)
        return make_plan(self.options, self.recipe, self.sources, written, find_series, in_job)

    def _list_in_job(self, output: OutputFolder, written: NumberedFiles) -> ListingInJob | None:
        """What lists the sources by the workers of another runner; None where this command does."""
        insists = self.options.listing == "job"
        if self.options.listing == "command" or self.choice.is_described:
            return None
        if self.choice.local:
            if insists:
                raise UsageError("--listing job: is for another runner (-- --runner=...); leave it out here")
            return None
        return ListingInJob(
            recipe=self.recipe,
            sources=self.sources,
            output=output,
            spread=self._spread(output, BELIEVED),
            written=written,
            insists=insists,
        )

    def series_folder(self, output: OutputFolder) -> str:
        """Where the slices of DICOM series are listed while a version is made."""
        if self.scratch is None:
            return for_workers(output.path(TEMPORARY_FOLDER))
        return os.path.join(self.scratch, "series")

    def find_series(
        self, output: OutputFolder, _: SourceFiles, policy: SeriesPolicy, below: Sequence[str]
    ) -> Mapping[str, SeriesListing]:
        """Find the DICOM series of the sources by whatever writes the shards later."""
        from halofeed.pipelines.run_distributed import SeriesSearch, find_series
        from halofeed.prep.formats.dicom.series_listing import CLASSES

        if self.scratch is None:
            output.begin()
        search = SeriesSearch(
            source=for_workers(self.sources.images.root),
            policy=policy,
            below=tuple(below),
            folder=self.series_folder(output),
        )
        return find_series(self.sources.images, search, self._spread(output, CLASSES))

    def _spread(self, output: OutputFolder, believed: Iterable[Any]) -> RunDistributed:
        """What has calls made by whatever writes the shards later; by this process where nothing is run."""
        if self.scratch is None and not self.choice.is_described:
            return run_on_beam(self.choice, for_workers(output.root), believed, self.store_settings)
        workers = self.workers()
        return map if workers is None else functools.partial(workers.map, what="listed DICOM series")


def _remember(options: JobOptions, sources: Sources, manifest: Manifest, stamps: str) -> None:
    """Keep for this user where the sources lie, so that a report can show them; the data set does not say it.

    Args:
        stamps: of a `Plan`, made before the sources were read of which the data set is.
    """
    source, images = map(for_workers, (options.source, sources.images.root))
    remember(options.folder, manifest, Origin(source=source, images=images, stamps=stamps))


def _committed(version: OutputFolder) -> Manifest | None:
    """The manifest that stands in the folder; None where there is none, or none that was written whole."""
    if not version.exists(MANIFEST):
        return None
    data = version.read(MANIFEST)
    if is_intact(data):
        return Manifest.from_json(data, version.path(MANIFEST))
    print_status(
        f"halofeed convert: {version.path(MANIFEST)} is damaged and so commits nothing; what is whole beside it is "
        "used again"
    )
    return None


@contextlib.contextmanager
def _unharmed(folder: str, replacement: str) -> Iterator[None]:
    """Say of an error that it left the committed version as it was, and where the new one has come to."""
    try:
        yield
    except JobError as error:
        raise JobError(
            f"{error}\n{folder} is as it was; what there is of the new version lies in {replacement}"
        ) from error


def _make(
    run: _Run, output: OutputFolder, replaces: OutputFolder | None = None, committed: Manifest | None = None
) -> str:
    """Convert into a folder that another command may have begun, as far as its commit.

    Args:
        output: the folder.
        replaces: the version that stands, whose finished shards are taken over where they are the same.
        committed: its manifest, if that is whole.

    Returns:
        The stamps of the plan.
    """
    options, recipe, choice = run.options, run.recipe, run.choice
    references: NumberedFiles | FileByShard = NumberedFiles(output)
    references_folder = None
    if choice.local:
        references_folder = run.scratch if is_remote(output.root) else for_workers(output.root)
        references = FileByShard(OutputFolder(references_folder or ""), recipe.shards)

    def prepare() -> Plan:
        output.make()
        output.sweep()
        plan = run.plan(output, references)
        label_dtype = plan.labels.stored_dtype(sets=recipe.holds_class_sets())
        each = record_bytes(recipe, plan.task, label_dtype)
        present = output.sizes()
        if replaces is not None and (committed is None or _is_same(plan, recipe, committed)):
            present = replaces.sizes() | present
        check_room(options.folder, plan.convertible, each, present, insist=options.disk_check == "ignore")
        return plan

    plan = _or_withdraw(output, prepare)
    output.delete([MANIFEST])
    job = dataclasses.replace(
        _job_of(run, plan, output, references_folder),
        replaces=None if replaces is None else for_workers(replaces.root),
    )
    if run.scratch is None:
        _run_elsewhere(run, job, references.count, output)
    else:
        _run_here(run, job, plan.count, run.scratch)
    output.sweep()
    return plan.stamps


def _job_of(run: _Run, plan: Plan, output: OutputFolder, references_folder: str | None) -> ShardJob:
    """The job of a plan that replaces nothing."""
    return ShardJob(
        recipe=run.recipe,
        task=plan.task,
        labels=plan.labels,
        name=run.options.name,
        version=run.options.version,
        images=for_workers(run.sources.images.root),
        folder=for_workers(output.root),
        replaces=None,
        splits=plan.splits,
        inputs=plan.inputs,
        max_rejected=run.options.max_rejected,
        threads=run.choice.threads,
        room_bytes=run.choice.room_bytes,
        progress_folder=run.scratch,
        series_folder=run.series_folder(output),
        references_folder=references_folder,
        holder=output.holder,
        store_settings=run.store_settings,
    )


def _or_withdraw(output: OutputFolder, prepare: Callable[[], T]) -> T:
    """What `prepare` returns; where it raises or a signal ends it, what was begun in the folder is gone again."""
    with signals.CleanupOnExit(output.withdraw) as begun:
        prepared = prepare()
        begun.keep()
        return prepared


def _is_whole(output: OutputFolder, manifest: Manifest) -> bool:
    """Whether every shard and index is there in its size; where one is not, the job rebuilds it."""
    sizes = output.sizes()
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return all(
        sizes.get(shard.file) == shard.bytes and sizes.get(index_file(shard.file)) == shard.index_bytes
        for shard in shards
    )


def _check_apart(options: JobOptions, sources: Sources) -> None:
    """Refuse to write into a folder that is listed as the source: the next run would read the output as input."""
    if sources.annotation_file is not None:
        return
    folder = os.path.realpath(options.folder)
    for flag, root in (("--source", sources.annotations.root), ("--images", sources.images.root)):
        if os.path.realpath(root) == "/":
            continue  # which is never listed
        if "://" in root or "://" in options.folder:
            inside = options.folder.startswith(root.rstrip("/") + "/")
        else:
            inside = os.path.commonpath([folder, os.path.realpath(root)]) == os.path.realpath(root)
        if inside:
            raise UsageError(f"--out {options.out}: lies inside {flag} {root}; name a folder outside of it")


def _is_same(plan: Plan, recipe: Recipe, manifest: Manifest) -> bool:
    """Whether a committed version is of the same recipe and sources."""
    return not recipe.difference(manifest.recipe) and manifest.inputs.get("fingerprint") in plan.fingerprints


def _check_same(run: _Run, version: OutputFolder, manifest: Manifest) -> str:
    """Refuse a committed version of another recipe or other sources; the stamps of these.

    What the sources hold is read where their stamps do not prove that it is what was converted.
    """
    folder, cure = run.options.folder, "take another --version, or add --overwrite"
    if differences := run.recipe.difference(manifest.recipe):
        listed = "\n".join(f"  {line}" for line in differences)
        raise UsageError(f"{folder} was converted with another recipe; {cure}:\n{listed}")
    with contextlib.ExitStack() as stack:
        if not run.choice.local:
            stack.callback(version.sweep)
        plan = _same_plan(run, version, manifest, None, cure)
        if not _is_proven(run, plan, manifest):
            # Listed again, as references take room on the disk and are mostly not needed.
            scratch = run.scratch or stack.enter_context(scratch_folder())
            by_shard, numbered = FileByShard(OutputFolder(scratch), run.recipe.shards), NumberedFiles(version)
            plan = _same_plan(run, version, manifest, by_shard if run.choice.local else numbered, cure)
            if not run.choice.local:
                by_shard.take_over(version, numbered.count, plan.splits)
            _check_contents(run, _job_of(run, plan, version, scratch), cure)
    return plan.stamps


def _same_plan(
    run: _Run,
    version: OutputFolder,
    manifest: Manifest,
    written: NumberedFiles | FileByShard | None,
    cure: str,
) -> Plan:
    """The plan of a committed version, with what `written` takes; UsageError where it is that of another."""
    plan = run.plan(version, written)
    if not _is_same(plan, run.recipe, manifest):
        before, now = manifest.inputs.get("count"), plan.count
        raise UsageError(
            f"{run.options.folder} was converted from other sources or labels ({before} inputs then, {now} now); "
            f"{cure}"
        )
    return plan


def _is_proven(run: _Run, plan: Plan, manifest: Manifest) -> bool:
    """Whether the stamps of the sources say that they hold what they did.

    Objects of a store count as the same where nothing is known: each had to be read over the network.
    """
    origin = recall(run.options.folder, manifest)
    known = "" if origin is None else origin.stamps
    if is_remote(run.sources.images.root) and not (known and plan.stamps):
        return True
    return bool(plan.stamps) and known == plan.stamps


def _check_contents(run: _Run, job: ShardJob, cure: str) -> None:
    """Refuse a committed version of files that hold something else now; of a damaged shard they are not compared."""
    sources, keys = source_files(job.images), job.shard_keys()
    with (
        contextlib.closing(OrderedThreads(available_cores())) as threads,
        contextlib.closing(Bar(len(keys), "shards compared", show=run.show_progress)) as bar,
    ):
        for number, key in enumerate(keys):
            bar.update(number, None)
            lines = [line.decode("utf-8", "surrogateescape") for line in read_shard(job, key)]
            with contextlib.suppress(CorruptFileError, FileNotFoundError):
                changed = changed_input(job, key, lines, sources, threads)
                if changed is not None:
                    paths = changed.paths or (changed.source,)
                    files = f"{'one of ' * (len(paths) > 1)}{', '.join(paths[:_MOST_NAMED])}"
                    raise UsageError(
                        f"{run.options.folder} was converted from other sources or labels: {files} has changed, or "
                        f"cannot be read; {cure}"
                    )


def _run_elsewhere(run: _Run, job: ShardJob, reference_files: int, output: OutputFolder) -> None:
    """Run the job on another runner; what has come of it is seen by the files that are there."""
    choice = run.choice

    def begun(holder: str | None) -> tuple[beam.Pipeline, str]:
        """The pipeline of the job, and the file that says that it is wanted."""
        wanted = start_heartbeat(OutputFolder(job.folder))
        pipeline = new_pipeline(choice)
        build(pipeline, dataclasses.replace(job, wanted=wanted, holder=holder), reference_files)
        return pipeline, wanted

    if choice.is_described:
        # A template is run later, when this command holds the folder no more.
        describe(begun(None if choice.template else job.holder)[0], choice, output)
    indexes = {index_file(job.shard_file(key)) for key in job.shard_keys()}

    def run_once() -> None:
        try:
            run_remote(
                *begun(job.holder),
                choice.max_silence_seconds,
                lambda sizes: bar.update(len(indexes & sizes.keys()), None),
            )
        except JobError as error:
            if _committed(output) is None:
                raise
            print_status(f"halofeed convert: the data set is whole; after that, {error}")

    with contextlib.closing(Bar(len(indexes), "shards", show=run.show_progress)) as bar:
        restarted(choice.job_restarts, run_once)
    if not output.exists(MANIFEST):
        raise JobError(f"the job ended, and {output.path(MANIFEST)} is not there: was it cancelled? {KEPT}")


def _run_here(run: _Run, job: ShardJob, examples: int, progress_folder: str) -> None:
    """Run the job on this machine, in a thread of its own, so that this one can watch it."""
    pipeline = new_pipeline(run.choice)
    build(pipeline, job, 0)
    workers = run.workers()

    def convert_all() -> None:
        with quiet_logging("apache_beam"):
            pipeline.run().wait_until_finish()

    def known_failure() -> str | None:
        return job_error(progress_folder) or (None if workers is None else workers.failure)

    with contextlib.closing(Bar(examples, "examples", show=run.show_progress)) as bar:
        converted = in_thread(convert_all, "pipeline")
        while not (is_done(converted, 0.1) or known_failure()):
            bar.update(*job_counts(progress_folder))
        if not converted.done():
            if workers is not None:
                workers.kill()
            is_done(converted, 0.5)
    cause = converted.exception() if converted.done() else None
    if converted.done() and cause is None:
        return
    if known := known_failure():
        raise JobError(known) from cause
    lines = [line for line in (in_words(cause) if cause else "").splitlines() if line.strip()]
    raise JobError(f"the pipeline failed: {lines[-1] if lines else ''}. {KEPT}") from cause
