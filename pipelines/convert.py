"""How a conversion is run from beginning to end: check, plan, run the job, watch it, report."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from halofeed.pipelines.build import build
from halofeed.pipelines.job import JobOptions, ShardJob
from halofeed.pipelines.lock import held, scratch_folder
from halofeed.pipelines.options import RunnerChoice, choose_runner, new_pipeline
from halofeed.pipelines.plan import Plan, Sources, make_plan, open_sources
from halofeed.pipelines.progress import Bar, JobProgress, is_alive
from halofeed.pipelines.room import check_room, record_bytes
from halofeed.pipelines.sinks import check_committed_budget
from halofeed.pipelines.storage import OutputFolder, check_reachable
from halofeed.prep.recipe import Recipe
from halofeed.prep.volume.normalize_like import normalized_like
from halofeed.schemas.errors import HalofeedError, JobError, UsageError
from halofeed.schemas.layout import MANIFEST, index_file
from halofeed.schemas.manifest import Manifest, read_manifest

T = TypeVar("T")
_OWN_ERROR = re.compile(r"halofeed\.schemas\.errors\.\w+: (.*)")


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
        JobError: the job failed, and what it finished is kept; or more was rejected than the limit allows; or
            another run is writing into the folder (on local disk; on an object store nobody sees that).
    """
    for flag, path in (("--source", options.source), ("--images", options.images), ("--out", options.out)):
        check_reachable(flag, path or "")
    if options.normalize_like is not None:
        recipe = normalized_like(recipe, read_manifest(options.normalize_like))
    choice = choose_runner(options, recipe.shards, beam_arguments)
    pipeline = new_pipeline(choice)
    FileSystems.set_options(choice.options)
    output = OutputFolder(options.folder)
    sources = open_sources(options)
    _check_apart(options, sources)
    if not output.exists(MANIFEST):
        _or_withdraw(output, output.make)
    with held(options.folder):
        if output.exists(MANIFEST) and not options.overwrite:
            manifest = Manifest.from_json(output.read(MANIFEST), output.path(MANIFEST))
            _check_same(options, recipe, sources, manifest)
            check_committed_budget(manifest, options.max_rejected, options.folder)
            if _is_whole(output, manifest):
                output.sweep()
                return Conversion(manifest=manifest, folder=options.folder, was_there=True)

        def prepare() -> Plan:
            output.make()
            output.sweep()
            plan = make_plan(options, recipe, sources, output)
            label_dtype = plan.labels.stored_dtype(sets=recipe.holds_class_sets())
            each = record_bytes(recipe, plan.task, label_dtype)
            check_room(
                options.folder, plan.convertible, each, output.sizes(), insist=options.disk_check == "ignore"
            )
            return plan

        plan = _or_withdraw(output, prepare)
        output.delete([MANIFEST])
        with scratch_folder() if choice.local else contextlib.nullcontext() as scratch:
            _run(options, recipe, sources, plan, choice, pipeline, scratch, show_progress)
        manifest = Manifest.from_json(output.read(MANIFEST), output.path(MANIFEST))
        return Conversion(manifest=manifest, folder=options.folder, was_there=False)


def _or_withdraw(output: OutputFolder, prepare: Callable[[], T]) -> T:
    """What `prepare` returns; where it raises, what was begun in the folder is gone again."""
    try:
        return prepare()
    except BaseException:
        output.withdraw()
        raise


def _is_whole(output: OutputFolder, manifest: Manifest) -> bool:
    """Whether every shard and index is there in its size; where one is not, the job makes it anew."""
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


def _check_same(options: JobOptions, recipe: Recipe, sources: Sources, manifest: Manifest) -> None:
    cure = "take another --version, or add --overwrite"
    if differences := recipe.difference(manifest.recipe):
        listed = "\n".join(f"  {line}" for line in differences)
        raise UsageError(f"{options.folder} was converted with another recipe; {cure}:\n{listed}")
    plan = make_plan(options, recipe, sources, None)
    if plan.fingerprint != manifest.inputs["fingerprint"]:
        before, now = manifest.inputs["count"], plan.count
        raise UsageError(
            f"{options.folder} was converted from other sources or labels ({before} inputs then, {now} now); {cure}"
        )


def _run(
    options: JobOptions,
    recipe: Recipe,
    sources: Sources,
    plan: Plan,
    choice: RunnerChoice,
    pipeline: beam.Pipeline,
    folder: str | None,
    show_progress: bool,
) -> None:
    images = sources.images.root
    job = ShardJob(
        recipe=recipe,
        task=plan.task,
        labels=plan.labels,
        name=options.name,
        version=options.version,
        images=images if "://" in images else os.path.abspath(images),
        folder=options.folder if "://" in options.folder else os.path.abspath(options.folder),
        splits=plan.splits,
        inputs={
            "source": options.source,
            "images": images,
            "count": plan.count,
            "fingerprint": plan.fingerprint,
        },
        max_rejected=options.max_rejected,
        threads=choice.threads,
        progress_folder=folder,
    )

    def run() -> None:
        with _quiet_logging():
            build(pipeline, job, plan.reference_files)
            pipeline.run().wait_until_finish()

    bar = Bar(plan.count, "examples", show=show_progress)
    try:
        if folder is None:
            _run_remote(run)
        else:
            _run_local(run, JobProgress(folder), bar)
    finally:
        bar.close()


class _quiet_logging:
    """Beam tells of a worker's error at length before it raises it; the command line says it in one line."""

    def __enter__(self) -> None:
        self._before = logging.getLogger("apache_beam").level
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)

    def __exit__(self, *details: Any) -> None:
        logging.getLogger("apache_beam").setLevel(self._before)


def _run_remote(run: Callable[[], None]) -> None:
    try:
        run()
    except HalofeedError:
        raise
    except Exception as error:
        found = _OWN_ERROR.findall(str(error))
        if not found:
            raise
        raise JobError(found[-1].split(" [while running")[0]) from error


def _run_local(run: Callable[[], None], progress: JobProgress, bar: Bar) -> None:
    """Run the pipeline in a thread of its own, so that this one can watch it and hear Ctrl-C."""
    failure: list[BaseException] = []
    finished = threading.Event()

    def target() -> None:
        try:
            run()
        except BaseException as error:
            failure.append(error)
        finally:
            finished.set()

    lost = known = None
    with _worker_failures() as failed_workers:
        threading.Thread(target=target, name="pipeline", daemon=True).start()
        while not (finished.wait(0.1) or lost or known or failed_workers):
            bar.update(*progress.counts())
            lost, known = progress.vanished(), progress.error()
        if not finished.is_set():
            _stop_workers(progress)
            finished.wait(0.5)
    if finished.is_set() and not failure:
        return
    cause = failure[0] if failure else None
    if known := known or progress.error():
        raise JobError(known) from cause
    if lost := lost or progress.vanished():
        raise JobError(
            f"a worker was killed, {lost}; the usual cause is too little memory: take fewer --threads or "
            "--workers. What is finished is kept: run the same command again"
        ) from cause
    if failed_workers:
        raise JobError(
            f"a worker process could not go on: {failed_workers[0]}; --workers 1 works in this process. What is "
            "finished is kept: run the same command again"
        ) from cause
    lines = [line for line in str(cause).splitlines() if line.strip()]
    raise JobError(f"the pipeline failed: {type(cause).__name__}: {lines[-1] if lines else ''}") from cause


@contextlib.contextmanager
def _worker_failures() -> Iterator[list[str]]:
    """What the threads died of in which Beam waits for its worker processes; Beam itself would wait on.

    Its other threads tell at length of each connection that is lost when a worker ends; here they are silent.
    """
    failures: list[str] = []
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread is not None else ""
        if name == "run_worker":
            failures.append(str(arguments.exc_value))
        elif not name.startswith(("beam_", "read_grpc_")):
            before(arguments)

    threading.excepthook = hook
    try:
        yield failures
    finally:
        threading.excepthook = before


def _stop_workers(progress: JobProgress) -> None:
    for process in progress.workers():
        if process != os.getpid() and is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, 9)
