"""A conversion from beginning to end: check the options, plan, run the job, watch it, and return the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from halofeed.pipelines.beam_options import RunnerChoice, choose_runner, new_pipeline
from halofeed.pipelines.commit import WORK_DONE, check_committed_budget
from halofeed.pipelines.counted_files import CountedFiles
from halofeed.pipelines.disk_space import check_disk_space, size_of_record
from halofeed.pipelines.earlier_version import EarlierVersion, lineage_from, open_earlier
from halofeed.pipelines.first_pass import FirstPass, PassOptions
from halofeed.pipelines.heartbeat import start_heartbeat
from halofeed.pipelines.job import EarlierShards, JobOptions, ShardJob
from halofeed.pipelines.lease import held
from halofeed.pipelines.listing import TRANSFERRED_CLASSES, ListingInJob
from halofeed.pipelines.opened_sources import Sources, open_sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.plan import ConversionPlan, make_plan
from halofeed.pipelines.progress import Bar, job_counts, job_error
from halofeed.pipelines.references import (
    FileByShard,
    NumberedFiles,
    ReferenceWriter,
    SampledReferences,
    read_shard,
)
from halofeed.pipelines.replace import (
    check_own_version,
    check_replacement,
    delete_replacement,
    mode_of_new,
    real_version_folder,
    replacement_of,
    take_place,
)
from halofeed.pipelines.run_counts import ConversionSummary, WorkDone
from halofeed.pipelines.run_distributed import RunDistributed, SeriesSearch, find_series_in_job
from halofeed.pipelines.run_local import convert_here
from halofeed.pipelines.shard_writer import changed_input
from halofeed.pipelines.source_registry import SourceLocations, recall, remember
from halofeed.pipelines.workers import SHARD_KEPT, Workers, is_interpreter_busy, workers_in
from halofeed.prep.convert.normalize_like import normalized_like
from halofeed.prep.formats.dicom.series_listing import LISTING_CLASSES, SeriesListing
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles, source_files
from halofeed.schemas.file_layout import MANIFEST, TEMPORARY_FOLDER, index_file, index_files
from halofeed.schemas.lineage import PARENT, lineage_of
from halofeed.schemas.manifest import Manifest, is_intact, read_manifest
from halofeed.storage.choose import check_reachable, for_workers, use_options
from halofeed.storage.scratch import scratch_folder
from halofeed.system import signals
from halofeed.system.addresses import is_remote
from halofeed.system.console import VERBOSE, print_error, print_status
from halofeed.system.errors import ChangedSourceError, CorruptFileError, JobError, UsageError
from halofeed.system.memory import MEBIBYTE
from halofeed.system.resource_errors import describe_error
from halofeed.system.threads import OrderedThreads, available_cores, run_in_thread, wait_until_done
from halofeed.system.wording import plural

if TYPE_CHECKING:
    import apache_beam as beam

T = TypeVar("T")
_MAX_NAMED = 4
"""Files of a changed input that a message names."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Result of a conversion.

    Args:
        folder: folder or address of the version.
        was_there: whether an earlier run had already committed it.
        summary: what this run did.
    """

    manifest: Manifest
    folder: str
    was_there: bool
    summary: ConversionSummary


def prepare_stores(options: JobOptions, beam_arguments: Sequence[str]) -> None:
    """Check addresses and Beam's options, and apply those of stores to this process, before a source is read.

    Raises:
        UsageError: an address or an option is wrong.
    """
    _check_addresses(options)
    choice = choose_runner(options, 1, beam_arguments, MEBIBYTE)
    if not choice.local:
        new_pipeline(choice)
    if choice.options is not None:
        use_options(choice.options)


def _check_addresses(options: JobOptions) -> None:
    for flag, path in (("--source", options.source), ("--images", options.images), ("--out", options.out)):
        check_reachable(flag, path or "")


def convert(
    options: JobOptions,
    recipe: Recipe,
    beam_arguments: Sequence[str] = (),
    *,
    show_progress: bool = True,
    began: float | None = None,
) -> Conversion:
    """Convert a source into a data set; the same call after an interruption resumes.

    Args:
        beam_arguments: Beam's own options, such as --runner=DataflowRunner.
        began: `time.monotonic()` from which the summary counts, as of a command that first detected the layout; None:
            now.

    Raises:
        UsageError: an option is wrong, or the folder has a data set of another recipe.
        AnnotationsError: the annotations cannot be used.
        NotRunError: Beam's options ask for a description of the job instead of a run.
        JobError: the job failed and its finished shards are kept, as is a committed version; or too many inputs were
            rejected; or another run is writing into the folder.
        StoreError: a store refuses a request or does not answer.
    """
    began = time.monotonic() if began is None else began
    _check_addresses(options)
    if options.normalize_like is not None:
        recipe = normalized_like(recipe, read_manifest(options.normalize_like))
    choice = choose_runner(options, recipe.shards, beam_arguments, recipe.max_memory * MEBIBYTE)
    if not choice.local:
        new_pipeline(choice)  # raises before anything is written
    store_settings = {} if choice.options is None else use_options(choice.options)
    if options.from_ and not choice.local:
        raise UsageError(
            "--from: the earlier version is compared on this machine; leave --runner out. --source and --out may be "
            "addresses of a store"
        )
    if recipe.duplicates != "report" and not choice.local:
        raise UsageError(
            f"--duplicates {recipe.duplicates}: the sources are compared on this machine before splits are assigned; "
            "leave --runner out, or leave --duplicates out. --source and --out may be addresses of a store"
        )
    earlier = open_earlier(options, recipe)
    version = OutputFolder(real_version_folder(options.folder))
    sources = open_sources(options)
    _check_output_outside_sources(options, sources)
    check_own_version(version, options.name, "take another --name, --version or --out")
    _make_version(version)
    with held(version.root) as version.holder, contextlib.ExitStack() as stack:
        started = stack.enter_context(signals.CleanupOnExit(version.withdraw))
        run = _Run(
            options=options,
            recipe=recipe,
            sources=sources,
            choice=choice,
            store_settings=store_settings,
            show_progress=show_progress,
            scratch=stack.enter_context(scratch_folder()) if choice.local else None,
            stack=stack,
            began=began,
            earlier=earlier,
        )
        return _convert_version(run, version, started)


def _make_version(version: OutputFolder) -> None:
    """Make the folder of a version that is not committed."""
    if version.exists(MANIFEST):
        return
    # `exists` is about regular files; a folder or a link of this name would let the commit fail at the end.
    if not is_remote(version.root) and os.path.exists(version.path(MANIFEST)):
        raise UsageError(
            f"{version.path(MANIFEST)}: expected a regular file; move it away, or take another --version"
        )
    _withdraw_on_error(version, version.make)


def _convert_version(run: _Run, version: OutputFolder, started: signals.CleanupOnExit) -> Conversion:
    """Convert into the folder of a version that this process holds, or find the version there.

    Args:
        started: cleanup that deletes what was started in the folder.
    """
    options, sources = run.options, run.sources
    replacement = OutputFolder(replacement_of(version.root))
    check_replacement(replacement, options.name)
    committed = _committed(version)
    if version.exists(MANIFEST):  # a committed version is never withdrawn
        started.keep()
    if committed is not None and not options.overwrite:
        stamps, compared_bytes = _check_same(run, version, committed)
        check_committed_budget(committed, options.reject_limit, options.folder)
        if _is_complete(version, committed):
            version.sweep()
            delete_replacement(replacement, version, options.name)
            _remember(options, sources, committed, stamps)
            return run.conversion(committed, _all_kept(committed, compared_bytes), was_there=True)
    if version.exists(MANIFEST):
        # Replaced on request, or because its manifest is damaged or shards are missing.
        _withdraw_on_error(replacement, lambda: replacement.make(mode_of_new(version)))
        with held(replacement.root) as replacement.holder:
            with _noting_unchanged_version(options.folder, replacement.root):
                done = _convert_into(run, replacement, version, committed)
            take_place(replacement, version, options.name)
    else:
        done = _convert_into(run, version, started=started)
        delete_replacement(replacement, version, options.name)
    written = version.read(MANIFEST)
    manifest = Manifest.from_json(written, version.path(MANIFEST))
    _remember(options, sources, manifest, done.stamps, written)
    return run.conversion(manifest, done)


@dataclass(frozen=True, kw_only=True)
class _Done:
    """Result of a job.

    Args:
        stamps: `ConversionPlan.stamps`.
        work: what the workers did.
        before: names of the shards that were finished before the job, also those of the version that it replaces.
    """

    stamps: str = ""
    work: WorkDone
    before: Set[str]


def _all_kept(manifest: Manifest, bytes_read: int) -> _Done:
    """Return the result of a run that found a committed version; it read these bytes to compare the sources."""
    shards = [
        (f"{name}/{number}", shard.file)
        for name, split in manifest.splits.items()
        for number, shard in enumerate(split.shards)
    ]
    work = WorkDone(kept=tuple(key for key, _ in shards), bytes_read=bytes_read)
    return _Done(work=work, before={file for _, file in shards})


class _PassBar:
    """Progress of the first pass, which knows the number of inputs when it begins."""

    def __init__(self, *, show: bool) -> None:
        self._show = show
        self._bar: Bar | None = None

    def update(self, done: int, count: int) -> None:
        """Show how many inputs are done."""
        if self._bar is None:
            self._bar = Bar(count, "inputs compared", show=self._show)
        self._bar.update(done, None)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


@dataclass(kw_only=True)
class _Run:
    """A conversion in progress and its resources.

    Args:
        scratch: temporary folder of a local run; None on another runner.
        stack: stops the worker processes at the end.
        began: `time.monotonic()` at the beginning.
        earlier: version from which this one starts.
    """

    options: JobOptions
    recipe: Recipe
    sources: Sources
    choice: RunnerChoice
    store_settings: Mapping[str, Any] = field(repr=False)
    show_progress: bool
    scratch: str | None
    stack: contextlib.ExitStack
    began: float
    earlier: EarlierVersion | None = None
    _workers: Workers | None = None

    def references_by_shard(self, folder: str) -> FileByShard:
        """Return the writer of references into a local folder."""
        return FileByShard(OutputFolder(folder), self.recipe.shards, self.earlier)

    def conversion(self, manifest: Manifest, done: _Done, *, was_there: bool = False) -> Conversion:
        """Return the result of the conversion."""
        elapsed = time.monotonic() - self.began
        summary = ConversionSummary.of(manifest, done.work, before=done.before, elapsed_seconds=elapsed)
        return Conversion(manifest=manifest, folder=self.options.folder, was_there=was_there, summary=summary)

    def workers(self) -> Workers | None:
        """Return the worker processes of a local run, started at the first call; None where there are none."""
        if self._workers is None and self.scratch is not None and self._wants_processes():
            self._workers = self.stack.enter_context(
                workers_in(self.scratch, self.choice.workers, self.choice.beam_arguments)
            )
        return self._workers

    def _wants_processes(self) -> bool:
        """Return whether a local run uses worker processes: several, or one where this interpreter is busy."""
        return self.choice.workers > 1 or (self.options.workers is None and is_interpreter_busy())

    def plan(self, output: OutputFolder, writer: NumberedFiles | FileByShard | None) -> ConversionPlan:
        """Plan the version in a folder; `writer` writes the references, and None only counts and checks them."""
        numbered = writer if isinstance(writer, NumberedFiles) else NumberedFiles(output)
        in_job = self._list_in_job(output, numbered)
        find_series = functools.partial(self.find_series, output)
        chosen: ReferenceWriter | None = writer
        if writer is not None and self.recipe.limit is not None:
            chosen = SampledReferences(writer, self.recipe.limit)
        with contextlib.closing(_PassBar(show=self.show_progress)) as bar:
            return make_plan(
                self.options,
                self.recipe,
                self.sources,
                chosen,
                find_series,
                in_job,
                earlier=self.earlier,
                first_pass=functools.partial(self._first_pass, output, bar),
            )

    def _first_pass(
        self, output: OutputFolder, bar: _PassBar, complete: Callable[[SourceExample], SourceExample]
    ) -> FirstPass:
        """Return the search for copies in the processes that will write the shards."""
        return FirstPass(
            options=PassOptions(
                recipe=self.recipe,
                images=for_workers(self.sources.images.root),
                threads=self.choice.threads,
                series_folder=self.series_folder(output),
                memory_bytes=self.choice.memory_bytes,
            ),
            run=self._run_distributed(output, (), "compared inputs"),
            complete=complete,
            progress=bar.update,
        )

    def _list_in_job(self, output: OutputFolder, writer: NumberedFiles) -> ListingInJob | None:
        """Return the listing of the sources by the runner's workers; None if this process lists them."""
        is_required = self.options.listing == "job"
        # A description submits no job, and a sample of --limit is drawn from the list of all references.
        if self.options.listing == "command" or self.choice.is_described or self.recipe.limit is not None:
            return None
        if self.choice.local:
            if is_required:
                raise UsageError("--listing job: is for another runner (-- --runner=...); leave it out here")
            return None
        return ListingInJob(
            recipe=self.recipe,
            sources=self.sources,
            output=output,
            run_distributed=self._run_distributed(output, TRANSFERRED_CLASSES),
            writer=writer,
            is_required=is_required,
        )

    def series_folder(self, output: OutputFolder) -> str:
        """Return the folder for the lists of DICOM slices."""
        if self.scratch is None:
            return for_workers(output.path(TEMPORARY_FOLDER))
        return os.path.join(self.scratch, "series")

    def find_series(
        self, output: OutputFolder, _: SourceFiles, policy: SeriesPolicy, below: Sequence[str]
    ) -> Mapping[str, SeriesListing]:
        """Find the DICOM series of the sources by the processes that will write the shards.

        The second argument is not used: `self.sources.images` is searched.
        """
        if self.scratch is None:
            output.begin()
        search = SeriesSearch(
            source=for_workers(self.sources.images.root),
            policy=policy,
            below=tuple(below),
            folder=self.series_folder(output),
        )
        return find_series_in_job(self.sources.images, search, self._run_distributed(output, LISTING_CLASSES))

    def _run_distributed(
        self, output: OutputFolder, allowed_classes: Iterable[Any], what: str = "listed DICOM series"
    ) -> RunDistributed:
        """Return what calls functions in the processes that will write the shards, or here where nothing runs."""
        # Imports Beam, which a local run does without.
        if self.scratch is None and not self.choice.is_described:
            from halofeed.pipelines.run_on_beam import run_on_beam

            return run_on_beam(self.choice, for_workers(output.root), allowed_classes, self.store_settings)
        workers = self.workers()
        return map if workers is None else functools.partial(workers.map, what=what)


def _remember(
    options: JobOptions, sources: Sources, manifest: Manifest, stamps: str, written: bytes = b""
) -> None:
    """Store the location of the sources for this user, so that reports can show them; the data set has no such paths.

    Args:
        stamps: `ConversionPlan.stamps`, taken before the sources were read.
        written: as in `remember`.
    """
    source, images = map(for_workers, (options.source, sources.images.root))
    origin = SourceLocations(source=source, images=images, stamps=stamps)
    remember(options.folder, manifest, origin, written)


def _committed(version: OutputFolder) -> Manifest | None:
    """Return the manifest in the folder; None where it is missing or damaged."""
    if not version.exists(MANIFEST):
        return None
    data = version.read(MANIFEST)
    if is_intact(data):
        return Manifest.from_json(data, version.path(MANIFEST))
    print_status(
        f"halofeed convert: {version.path(MANIFEST)} is damaged, so the version is not committed; its intact shards "
        "are used again"
    )
    return None


@contextlib.contextmanager
def _noting_unchanged_version(folder: str, replacement: str) -> Iterator[None]:
    """Add to a JobError that the committed version is unchanged, and where the unfinished one is."""
    try:
        yield
    except JobError as error:
        raise JobError(
            f"{error}\n{folder} is unchanged; the unfinished new version is in {replacement}"
        ) from error


def _convert_into(
    run: _Run,
    output: OutputFolder,
    replaces: OutputFolder | None = None,
    committed: Manifest | None = None,
    started: signals.CleanupOnExit | None = None,
) -> _Done:
    """Convert into a folder, which an earlier command may have started, and commit.

    Args:
        replaces: the version to replace, whose finished shards are reused where they are the same.
        committed: its manifest, if that is intact.
        started: cleanup that ends once the job is planned.
    """
    choice = run.choice
    references: NumberedFiles | FileByShard = NumberedFiles(output)
    references_folder = None
    if choice.local:
        references_folder = run.scratch if is_remote(output.root) else for_workers(output.root)
        references = run.references_by_shard(references_folder or "")

    def prepare() -> ConversionPlan:
        output.make()
        output.sweep()
        plan = run.plan(output, references)
        _check_space(run, plan, output, replaces, committed)
        return plan

    began = time.monotonic()
    plan = _withdraw_on_error(output, prepare)
    _print_detail(f"planned {plural(plan.totals.count, 'input')} in {time.monotonic() - began:.1f} s")
    if started is not None:
        started.keep()
    _print_plan(run, plan)
    output.delete([MANIFEST])
    before = _finished_shards(output) | (set() if replaces is None else _finished_shards(replaces))
    counts = references.shard_counts if isinstance(references, FileByShard) else {}
    job = _job_of(run, plan, output, references_folder, replaces, counts)
    before |= {job.shard_file(key) for key in job.shard_keys() if job.earlier_file(key) is not None}
    _print_resumed(run, job, before)
    began = time.monotonic()
    if run.scratch is None:
        work = _run_elsewhere(run, job, references.count, output)
    else:
        work = _run_here(run, job, min(plan.totals.count, run.recipe.limit or plan.totals.count), run.scratch)
    output.sweep()
    shards = plural(len(job.shard_keys()), "shard")
    processes = f" by {plural(choice.workers, 'process', 'processes')}" if choice.local else ""
    _print_detail(f"wrote {shards}{processes} in {time.monotonic() - began:.1f} s")
    return _Done(stamps=plan.stamps, work=work, before=before)


def _check_space(
    run: _Run,
    plan: ConversionPlan,
    output: OutputFolder,
    replaces: OutputFolder | None,
    committed: Manifest | None,
) -> None:
    """Refuse a data set that does not fit on the disk, unless --disk-check says otherwise."""
    options, recipe = run.options, run.recipe
    label_dtype = plan.labels.stored_dtype(sets=recipe.holds_class_sets())
    present = output.sizes()
    # Shards that stay the same become hard links, which need no space.
    if replaces is not None and (committed is None or _is_same(plan, recipe, committed)):
        present = replaces.sizes() | present
    if run.earlier is not None:
        present = OutputFolder(run.earlier.folder).sizes() | present
    check_disk_space(
        options.folder,
        min(plan.totals.convertible, recipe.limit or plan.totals.convertible),
        size_of_record(recipe, plan.task, label_dtype),
        present,
        refuse=options.disk_check == "refuse",
    )


def _print_plan(run: _Run, plan: ConversionPlan) -> None:
    """Print inputs and classes above the progress bar of a terminal; without one, the summary says the same."""
    if not run.show_progress or sys.stderr is None or not sys.stderr.isatty():
        return
    classes = plan.describe_classes(plan.labels.names.values())
    print_status(
        f"{run.options.name}: {plan.totals.count:,} inputs ({plan.describe_splits()}); {plan.task}: {classes}"
    )


def _finished_shards(output: OutputFolder) -> set[str]:
    """Return the names of the shards in a folder that have their index, which is written last."""
    names = output.sizes().keys()
    return {name for name in names if names & index_files(name)}


def _print_resumed(run: _Run, job: ShardJob, before: Set[str]) -> None:
    """Print how many shards of an earlier run there are; on another runner, because its job may take hours."""
    shards = {job.shard_file(key) for key in job.shard_keys()}
    if (shards & before) and not run.choice.local:
        print_status(
            f"halofeed convert: {len(shards & before):,} of {plural(len(shards), 'shard')} exist from an earlier run; "
            "those whose inputs have not changed are kept"
        )


def _print_detail(text: str) -> None:
    print_status(f"halofeed convert: {text}", VERBOSE)


def _job_of(
    run: _Run,
    plan: ConversionPlan,
    output: OutputFolder,
    references_folder: str | None,
    replaces: OutputFolder | None = None,
    shard_counts: Mapping[str, int] | None = None,
) -> ShardJob:
    inputs, earlier = plan.inputs, None
    if run.earlier is not None:
        lineage = lineage_from(run.earlier, run.recipe, plan.labels, shard_counts or {})
        inputs = {**inputs, PARENT: lineage.to_json()}
        earlier = EarlierShards(
            folder=for_workers(run.earlier.folder),
            shard_counts=run.earlier.shard_counts,
            recipes=lineage.recipes,
        )
    return ShardJob(
        recipe=run.recipe,
        task=plan.task,
        labels=plan.labels,
        name=run.options.name,
        version=run.options.version,
        images=for_workers(run.sources.images.root),
        folder=for_workers(output.root),
        replaces=None if replaces is None else for_workers(replaces.root),
        splits=plan.splits,
        inputs=inputs,
        max_rejected=run.options.max_rejected,
        threads=run.choice.threads,
        memory_bytes=run.choice.memory_bytes,
        progress_folder=run.scratch,
        series_folder=run.series_folder(output),
        references_folder=references_folder,
        holder=output.holder,
        store_settings=run.store_settings,
        on_loss=run.options.on_loss,
        shard_counts=shard_counts or {},
        earlier=earlier,
    )


def _withdraw_on_error(output: OutputFolder, prepare: Callable[[], T]) -> T:
    """Return what `prepare` returns; after an error or a signal, delete what was started in the folder."""
    with signals.CleanupOnExit(output.withdraw) as cleanup:
        prepared = prepare()
        cleanup.keep()
        return prepared


def _is_complete(output: OutputFolder, manifest: Manifest) -> bool:
    """Return whether every shard and index exists with its size."""
    sizes = output.sizes()
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    return all(
        sizes.get(shard.file) == shard.bytes and sizes.get(shard.index) == shard.index_bytes
        for shard in shards
    )


def _check_output_outside_sources(options: JobOptions, sources: Sources) -> None:
    """Refuse an output folder inside a listed source, because the next run would read the output as input."""
    if sources.annotation_file is not None:
        return
    folder = os.path.realpath(options.folder)
    for flag, root in (("--source", sources.annotations.root), ("--images", sources.images.root)):
        if os.path.realpath(root) == "/":
            continue  # the root folder is never listed
        if is_remote(root) or is_remote(options.folder):  # addresses have no links to resolve
            inside = options.folder.startswith(root.rstrip("/") + "/")
        else:
            inside = os.path.commonpath([folder, os.path.realpath(root)]) == os.path.realpath(root)
        if inside:
            raise UsageError(f"--out {options.out}: lies inside {flag} {root}; name a folder outside of it")


def _is_same(plan: ConversionPlan, recipe: Recipe, manifest: Manifest) -> bool:
    """Return whether a committed version has the same recipe and sources."""
    return not recipe.difference(manifest.recipe) and manifest.inputs.get("fingerprint") in plan.fingerprints


def _check_same(run: _Run, version: OutputFolder, manifest: Manifest) -> tuple[str, int]:
    """Refuse a committed version of another recipe or other sources.

    The contents of the sources are read unless their stamps prove that they are unchanged.

    Returns:
        The stamps of the sources, and the number of bytes that were read to compare them.

    Raises:
        ChangedSourceError: the version is of another recipe or other sources.
    """
    compared_bytes = 0
    folder, fix = run.options.folder, "take another --version, or add --overwrite"
    if differences := run.recipe.difference(manifest.recipe):
        listed = "\n".join(f"  {line}" for line in differences)
        raise ChangedSourceError(f"{folder} was converted with another recipe; {fix}:\n{listed}")
    _check_same_parent(run, manifest, fix)
    with contextlib.ExitStack() as stack:
        if not run.choice.local:
            stack.callback(version.sweep)
        plan = _same_plan(run, version, manifest, None, fix)
        if not _is_proven(run, plan, manifest):
            # The first plan wrote no references, because they need disk space and are rarely needed.
            scratch = run.scratch or stack.enter_context(scratch_folder())
            by_shard, numbered = run.references_by_shard(scratch), NumberedFiles(version)
            plan = _same_plan(run, version, manifest, by_shard if run.choice.local else numbered, fix)
            if not run.choice.local:
                by_shard.take_over(version, numbered.count, plan.splits)
            job = _job_of(run, plan, version, scratch, shard_counts=by_shard.shard_counts)
            compared_bytes = _check_contents(run, job, fix)
    return plan.stamps, compared_bytes


def _check_same_parent(run: _Run, manifest: Manifest, fix: str) -> None:
    """Refuse a committed version that started from another earlier version, or from none."""
    lineage, earlier = lineage_of(manifest.inputs), run.earlier
    before = None if lineage is None else (lineage.version, lineage.crc32c)
    now = None if earlier is None else (earlier.manifest.version, earlier.crc32c)
    if before == now:
        return
    started = "without an earlier version" if lineage is None else f"from version {lineage.version}"
    same = before is not None and now is not None and before[0] == now[0]
    changed = ", which has changed since" if same else ""
    raise ChangedSourceError(f"{run.options.folder} was converted {started}{changed} (--from); {fix}")


def _same_plan(
    run: _Run,
    version: OutputFolder,
    manifest: Manifest,
    writer: NumberedFiles | FileByShard | None,
    fix: str,
) -> ConversionPlan:
    """Plan a committed version again; raise UsageError where the plan differs."""
    plan = run.plan(version, writer)
    if not _is_same(plan, run.recipe, manifest):
        before, now = manifest.inputs.get("count"), plan.totals.count
        raise ChangedSourceError(
            f"{run.options.folder} was converted from other sources or labels ({before} inputs "
            f"then, {now} now); "
            f"{fix}"
        )
    return plan


def _is_proven(run: _Run, plan: ConversionPlan, manifest: Manifest) -> bool:
    """Return whether the stamps of the sources prove that they are unchanged.

    Objects of a store without known stamps count as unchanged, because checking them would download each.
    """
    origin = recall(run.options.folder, manifest)
    known = "" if origin is None else origin.stamps
    if is_remote(run.sources.images.root) and not (known and plan.stamps):
        return True
    return bool(plan.stamps) and known == plan.stamps


def _check_contents(run: _Run, job: ShardJob, fix: str) -> int:
    """Refuse a committed version whose source files have changed since; return the bytes that were read.

    A damaged shard is not compared.
    """
    sources, keys = CountedFiles(source_files(job.images)), job.shard_keys()
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
                    files = f"{'one of ' * (len(paths) > 1)}{', '.join(paths[:_MAX_NAMED])}"
                    raise ChangedSourceError(
                        f"{run.options.folder} was converted from other sources or labels: {files} has changed, or "
                        f"cannot be read; {fix}"
                    )
    return sources.bytes_read


def _run_elsewhere(run: _Run, job: ShardJob, reference_files: int, output: OutputFolder) -> WorkDone:
    """Run the job on another runner, and show its progress by the files in the output folder."""
    from halofeed.pipelines.beam_pipeline import build_pipeline
    from halofeed.pipelines.remote_job import describe_job_error, restarted, run_remote

    choice = run.choice

    def start(holder: str | None) -> tuple[beam.Pipeline, str]:
        """Return the pipeline of the job and the path of its heartbeat file."""
        path = start_heartbeat(OutputFolder(job.folder))
        pipeline = new_pipeline(choice)
        build_pipeline(
            pipeline, dataclasses.replace(job, heartbeat_path=path, holder=holder), reference_files
        )
        return pipeline, path

    if choice.is_described:
        # A template runs later, when this command no longer holds the folder.
        describe_job_error(start(None if choice.template else job.holder)[0], choice, output)
    indexes = {index_file(job.shard_file(key)) for key in job.shard_keys()}

    def run_once() -> None:
        try:
            run_remote(
                *start(job.holder),
                choice.max_silence_seconds,
                lambda sizes: bar.update(len(indexes & sizes.keys()), None),
            )
        except JobError as error:
            # A runner may fail after the last step, when the manifest exists.
            if _committed(output) is None:
                raise
            print_error(f"halofeed convert: the data set is complete; after the commit, {error}")

    with contextlib.closing(Bar(len(indexes), "shards", show=run.show_progress)) as bar:
        restarted(choice.job_restarts, run_once)
    if not output.exists(MANIFEST):
        raise JobError(f"the job ended without {output.path(MANIFEST)}: was it canceled? {SHARD_KEPT}")
    done = WorkDone.from_json(output.read(WORK_DONE))
    output.delete([WORK_DONE])  # a committed version in a store holds nothing of its job
    return done


def _run_here(run: _Run, job: ShardJob, examples: int, progress_folder: str) -> WorkDone:
    """Run the job on this machine in a thread, and show its progress."""
    workers = run.workers()

    def known_failure() -> str | None:
        return job_error(progress_folder) or (None if workers is None else workers.failure)

    with contextlib.closing(Bar(examples, "examples", show=run.show_progress)) as bar:
        converted = run_in_thread(lambda: convert_here(job, workers), "shards")
        while not (wait_until_done(converted, 0.1) or known_failure()):
            bar.update(*job_counts(progress_folder))
        if not converted.done():
            # One worker failed, and the others would finish long shards before the thread sees it.
            if workers is not None:
                workers.kill()
            wait_until_done(converted, 0.5)
    if not converted.done():
        raise JobError(known_failure() or "")
    if (cause := converted.exception()) is not None:
        raise JobError(known_failure() or _failure_text(cause)) from cause
    return converted.result()


def _failure_text(cause: BaseException) -> str:
    """Return a message of an error that no worker reported, from the last line of its description."""
    lines = [line for line in describe_error(cause).splitlines() if line.strip()]
    return f"the conversion failed: {lines[-1] if lines else ''}. {SHARD_KEPT}"
