"""Training loop: batches in; checkpoints, metrics and the material of a report out."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from halofeed.loader.batch import join_id
from halofeed.loader.prefetcher import Prefetcher
from halofeed.schemas.file_layout import CHECKPOINTS, EXAMPLES, RUN_FILE
from halofeed.storage import owned_files
from halofeed.storage.atomic_files import restricted_umask
from halofeed.system import signals
from halofeed.system.console import VERBOSE, print_status
from halofeed.system.errors import CorruptFileError, TrainingError, UsageError
from halofeed.system.garbage_collection import paused_collector
from halofeed.system.wording import plural
from halofeed.trainer.checkpoint import DIGITS, Checkpoints, saved_steps
from halofeed.trainer.compile_cache import cache_events
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import TrainData
from halofeed.trainer.distributed import agree_any, is_chief
from halofeed.trainer.evaluate import ExampleCollector, Predictor, summary_lines
from halofeed.trainer.initial_weights import Origin, check_other_folder, initial_weights
from halofeed.trainer.log import RunLog
from halofeed.trainer.platform import hide_accelerators_from_tensorflow
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import (
    ORIGIN,
    begin_run,
    delete_replaced,
    open_run,
    restore_replaced,
    run_lock,
)
from halofeed.trainer.run_progress import Progress, StepTimer, StopRequest
from halofeed.trainer.step import TrainingSetup, TrainState
from halofeed.trainer.task import DataFacts, DeviceBatch
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.training_setup import Program, build_program
from halofeed.trainer.whole_pictures import whole_picture_metrics

STOP_CHECK_STEPS = 10
"""Steps between two checks, by all processes of a run together, for a stop request."""


@dataclass(frozen=True, kw_only=True)
class TrainSummary:
    """Result of a training run.

    Args:
        steps: number of steps taken, including those of earlier processes.
        losses: loss of each step that this process took.
        metrics: result of the last evaluation; None without one.
        mesh_shape: number of devices by mesh axis.
        images_per_second: throughput without compilation, evaluation and saving.
        waiting_share: share of that time in which steps waited for their batch, 0 to 1.
        stopped_by: number of the signal that ended the run early; None if it ended by itself.
        state: training state after the last step.
    """

    steps: int
    losses: tuple[float, ...]
    metrics: Mapping[str, Any] | None
    mesh_shape: Mapping[str, int]
    images_per_second: float
    waiting_share: float
    stopped_by: int | None
    state: TrainState = field(repr=False, compare=False)


def train(
    config: TrainConfig,
    data: TrainData,
    folder: str | Path | None = None,
    *,
    overwrite: bool = False,
    devices: Sequence[jax.Device] | None = None,
    stream: TextIO | None = None,
    notes: Sequence[str] = (),
) -> TrainSummary:
    """Take `config.steps` training steps, or as many as there are batches; resume where an earlier process ended.

    Args:
        config: options of the run.
        data: batches to train and evaluate on (`halofeed.trainer.data.open_data`).
        folder: run folder for the log, checkpoints and examples; None saves nothing.
        overwrite: replace the run in the folder. The old run is kept until the new one has saved a checkpoint.
        devices: devices of the mesh; all devices of the system by default.
        stream: stream for progress lines, standard error by default.
        notes: lines to print when the run begins, after everything that could refuse it.

    Returns:
        The losses, the last metrics, the throughput and the final state.

    Raises:
        UsageError: the options contradict each other, the devices, the data or the run in the folder.
        TrainingError: a loss is not finite (with its step and the ids of the batch), or there is no batch at all.
    """
    hide_accelerators_from_tensorflow()
    program = build_program(config, data.facts, devices)
    mesh, setup, partition = program.mesh, program.setup, program.partition
    # Raises for a partition that does not fit the batch, before anything is written.
    data.batches.on_mesh(mesh, partition)
    # A resume has its weights in the checkpoint; their origin may be deleted.
    resumes = folder is not None and not overwrite and bool(saved_steps(Path(folder) / CHECKPOINTS))
    with paused_collector():
        state, origin = _first_state(program, data.facts, folder, resumes=resumes)
    parameter_count = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))

    with RunWriter(config, data, folder, overwrite, setup, parameter_count, origin) as writer:
        state, start = writer.resume(state)
        if resumes and not start:
            raise TrainingError(
                f"{folder}: its checkpoints were removed while it was resumed; start it again"
            )
        progress = Progress(config, (stream or sys.stderr) if is_chief() else None, start)
        for line in (*notes, *writer.notes):
            progress.say(line)
        _warn_of_idle_cores(config, setup, data.facts.image_shape, progress)
        if start:
            progress.say(f"resuming after step {start}{writer.origin_text}")
        evaluate = _Evaluation(config, data, setup, writer, progress)

        with StopRequest() as stop, Prefetcher.of(data.batches.on_mesh(mesh, partition, start)) as batches:
            step, batch = start, next(batches, None) if start < config.steps else None
            if batch is None and not start:
                raise TrainingError("the loader gave no batch; the split is smaller than one batch, or empty")
            running = _RunningSteps(config, progress, writer, batches, mesh)
            if batch is not None:
                _check_batch(batch, config, data, setup)
                if not start:
                    _warn_of_other_anchors(batch, setup, progress)
                take_step = _compile(program, state, batch, progress, parameter_count)
                # A signal during the compilation ends the process: there is no step to save.
                stop.begin()
                loop = _Loop(
                    config=config,
                    take_step=take_step,
                    batches=batches,
                    running=running,
                    evaluate=evaluate,
                    writer=writer,
                    stop=stop,
                )
                with progress.first_step():
                    state, step = loop.run(state, batch, step)
            progress.end()
            if step > start:
                # A stopped run only saves: it may have little time left until it is killed.
                # All processes must agree, because those that evaluate would wait for one that does not.
                metric = None if _agree_to_stop(stop) else evaluate(state, step, stop, last=True)
                writer.save(step, state, metric, wait=True)
            if stop.signal is not None:
                outlook = "; the same command resumes there" if writer.folder is not None else ""
                progress.say(f"stopped after step {step}{outlook}")
            elif step == start:
                progress.say(f"nothing to do: all {plural(start, 'step was', 'steps were')} taken")
        return TrainSummary(
            steps=step,
            losses=tuple(running.losses),
            metrics=evaluate.metrics,
            mesh_shape=dict(mesh.shape),
            images_per_second=progress.images_per_second(),
            waiting_share=progress.waiting_share(),
            stopped_by=stop.signal,
            state=state,
        )


def _first_state(
    program: Program, facts: DataFacts, folder: str | Path | None, *, resumes: bool
) -> tuple[TrainState, Origin | None]:
    """Return the state before step 0, and the run whose weights it has; in a resume a checkpoint replaces it."""
    check_other_folder(program.config, folder)
    initial = None if resumes else initial_weights(program.config, facts, program.setup)
    if initial is None:
        return program.new_state(), None
    return program.new_state(initial.load), initial.origin


def _compile(
    program: Program, state: TrainState, batch: DeviceBatch, progress: Progress, parameter_count: int
) -> jax.stages.Compiled:
    """Compile the step, or load it from the compilation cache, and print which it was and how long it took."""
    with progress.compiling(), paused_collector(), cache_events() as events:
        take_step = program.step().lower(state, batch).compile()
    progress.begin(program.mesh, parameter_count, is_cached=events["cache_hits"] > 0)
    return take_step


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """Loop over the batches of a run.

    Args:
        take_step: compiled (state, batch) -> (state, values); it reuses the memory of the given state.
        running: steps that the devices have not finished.
        evaluate, writer: evaluate the state, and save it, where that is due.
        stop: request to end after the current step.
    """

    config: TrainConfig
    take_step: Callable[..., Any]
    batches: Prefetcher[DeviceBatch]
    running: _RunningSteps
    evaluate: _Evaluation
    writer: RunWriter
    stop: StopRequest

    def run(self, state: TrainState, batch: DeviceBatch | None, step: int) -> tuple[TrainState, int]:
        """Take steps from `batch` on until the last one, the end of the batches or a stop signal.

        Returns:
            The state after these steps, and the number of its last one.
        """
        self.running.begin_step()
        while batch is not None:
            state, values = self.take_step(state, batch)
            step += 1
            self.running.add(step, values, batch.get("id"))
            self.running.begin_step()
            # All processes of a run ask together, so each must ask after the last step too.
            if _asked_to_stop(self.stop, step) or step == self.config.steps:
                break
            if self.evaluate.is_due(step) or self.writer.is_due(step):
                # The time of evaluation and saving is not that of a step.
                self.running.finish()
                metric = self.evaluate(state, step, self.stop) if self.evaluate.is_due(step) else None
                self.writer.save(step, state, metric)
                # All processes end the evaluation together; a signal that one of them got later is not agreed on.
                if self.evaluate.was_stopped:
                    break
                self.running.begin_step()
            batch = next(self.batches, None)
        self.running.finish()
        return state, step


@dataclass(frozen=True)
class _Step:
    """A step that was dispatched to the devices, with the time at which it began and the waiting time until then."""

    number: int
    values: Mapping[str, jax.Array]
    ids: jax.Array | None
    began: float
    waited_before: float


class _RunningSteps:
    """Steps that run on the devices: it waits for the oldest ones, checks their loss and logs their values.

    It waits for `iterations_per_loop` steps at once. Accelerators have one more step to run meanwhile.
    """

    def __init__(
        self,
        config: TrainConfig,
        progress: Progress,
        writer: RunWriter,
        batches: Prefetcher[DeviceBatch],
        mesh: Mesh,
    ) -> None:
        self.losses: list[float] = []
        self._config, self._progress, self._writer, self._batches = config, progress, writer, batches
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        # On CPU devices two programs at once could wait for each other's collectives forever.
        self._group = 1 if is_cpu and mesh.size > 1 else config.iterations_per_loop
        self._max_running = 0 if is_cpu and self._group == 1 else self._group
        self._steps: list[_Step] = []
        self._timer = StepTimer()

    def begin_step(self) -> None:
        """Start the time of the next step, which includes the waiting for its batch."""
        self._began, self._waited_before = time.perf_counter(), self._batches.waited_seconds

    def add(self, number: int, values: Mapping[str, jax.Array], ids: jax.Array | None) -> None:
        """Add a step that was dispatched, and wait until at most `max_running` steps run."""
        self._steps.append(_Step(number, values, ids, self._began, self._waited_before))
        if len(self._steps) > self._max_running:
            self._finish_oldest(self._group)

    def finish(self) -> None:
        """Wait for all steps."""
        if self._steps:
            self._finish_oldest(len(self._steps))

    def _finish_oldest(self, count: int) -> None:
        steps, self._steps = self._steps[:count], self._steps[count:]
        # One transfer for all values: each wait hands the interpreter lock to the threads that make batches.
        local = [{name: value.addressable_data(0) for name, value in step.values.items()} for step in steps]
        found = jax.device_get(local)
        seconds, waited = self._timer.end_step(
            began=steps[0].began,
            waited_before=steps[0].waited_before,
            now=time.perf_counter(),
            waited=self._batches.waited_seconds,
        )
        seconds, waited = max(seconds, 1e-9) / count, waited / count
        rates = {"images_per_second": self._config.batch_size / seconds, "waiting_share": waited / seconds}
        for step, arrays in zip(steps, found, strict=True):
            values = {name: float(value) for name, value in arrays.items()}
            _check_finite(values["loss"], step, self._config)
            self._progress.record(step.number, values, seconds, waited)
            self.losses.append(values["loss"])
            self._writer.log(step.number, values | rates)


class RunWriter(AbstractContextManager["RunWriter"]):
    """Writer of the log, checkpoints and examples of a run; it writes nothing without a folder."""

    def __init__(
        self,
        config: TrainConfig,
        data: TrainData,
        folder: str | Path | None,
        overwrite: bool,
        setup: TrainingSetup,
        parameter_count: int,
        origin: Origin | None = None,
    ) -> None:
        self.notes = [] if origin is None else [origin.line]
        self.origin_text = ""
        self.folder = None if folder is None else owned_files.real_folder(folder)
        self._config, self._data = config, data
        self._checkpoints: Checkpoints | None = None
        self._log: RunLog | None = None
        self._restore_on_exit = signals.CleanupOnExit(self._restore_replaced)
        self._resources = ExitStack()
        if self.folder is None:
            return
        mesh = setup.mesh
        assert mesh is not None
        description = {
            **data.description,
            "parameters": parameter_count,
            "mesh": dict(mesh.shape),
            "platform": mesh.devices.flat[0].platform,
            "best_metric": setup.task.best,
        }
        if origin is not None:
            description[ORIGIN] = origin.document
        lock = run_lock()
        signals.set_stop_message(outlook="no step of this run was saved: the same command starts it again")
        self._resources.callback(lock.release)
        self._resources.enter_context(restricted_umask(self.folder / RUN_FILE))
        with ExitStack() as on_error, signals.DeferSignals():
            on_error.push(self._resources.__exit__)
            self.notes += begin_run(
                self.folder, config, data.facts, description, overwrite=overwrite, chief=is_chief(), lock=lock
            )
            self._restore_on_exit.__enter__()
            on_error.pop_all()

    def resume(self, state: TrainState) -> tuple[TrainState, int]:
        """Return the last checkpoint and its step, or the given state and 0 without a checkpoint."""
        if self.folder is None:
            return state, 0
        # The first process makes the folder; the others must not look for checkpoints before.
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("halofeed run folder")
        # Opening removes incomplete checkpoints; this process holds the folder's lock.
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep_last=self._config.keep_last)
        step = self._checkpoints.latest()
        self._log = RunLog(self.folder, resume_step=step, writes=is_chief())
        if step is None:
            return state, 0
        self._restore_on_exit.keep()
        self.origin_text = open_run(self.folder).origin_text
        signals.set_stop_message(outlook=f"the same command resumes after step {step}")
        state, loader_state = self._checkpoints.restore(state, step)
        # A loader that continues elsewhere would repeat or skip batches.
        if (following := self._data.batches.restore(loader_state)) != step:
            checkpoint = self.folder / CHECKPOINTS / f"{step:0{DIGITS}d}"
            raise CorruptFileError(
                f"{checkpoint}: the checkpoint of step {step} states that the loader continues with step {following}; "
                "remove this folder to resume from the checkpoint before it"
            )
        return state, step

    def is_due(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        return bool(self._config.checkpoint_every) and step % self._config.checkpoint_every == 0

    def save(self, step: int, state: TrainState, metric: float | None, *, wait: bool = False) -> None:
        """Save a checkpoint in the background; `wait` returns when it is on disk."""
        if self.folder is None or self._checkpoints is None:
            return
        latest = self._checkpoints.latest()
        # A complete checkpoint proves the new run, so the run that it replaced can go.
        if latest is not None:
            delete_replaced(self.folder)
            signals.set_stop_message(outlook=f"the same command resumes after step {latest}")
        self._restore_on_exit.keep()
        if step != latest:
            self._checkpoints.save(step, state, self._data.batches.state(step), metric, wait=wait)
            if is_chief():
                print_status(f"halofeed train: saving the checkpoint of step {step}", VERBOSE)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one step to the log."""
        if self._log is not None:
            self._log.step(step, values)

    def log_evaluation(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Add one evaluation to the log."""
        if self._log is not None:
            self._log.evaluation(step, split, metrics)

    def __exit__(self, error_type: object, *_: object) -> None:
        has_checkpoint = False
        with self._resources:
            try:
                if self._checkpoints is not None:
                    has_checkpoint = self._checkpoints.latest() is not None
                    self._checkpoints.close()
            finally:
                if self._log is not None:
                    self._log.close()
                # A run that failed before its first checkpoint gives the folder back to the earlier run.
                if error_type is None or has_checkpoint:
                    self._restore_on_exit.keep()
                    if self.folder is not None and is_chief():
                        delete_replaced(self.folder)
                self._restore_on_exit.__exit__()

    def _restore_replaced(self) -> None:
        """Move the replaced run back into the folder, because the new run saved nothing."""
        if self.folder is not None and is_chief() and restore_replaced(self.folder):
            print_status(f"halofeed train: {self.folder} holds the earlier run again")


class _Evaluation:
    """Evaluation at intervals; the first one compiles the prediction program."""

    def __init__(
        self,
        config: TrainConfig,
        data: TrainData,
        setup: TrainingSetup,
        writer: RunWriter,
        progress: Progress,
    ) -> None:
        self.metrics: Mapping[str, Any] | None = None
        self.was_stopped = False
        self._config, self._data, self._writer, self._progress = config, data, writer, progress
        self._predictor = Predictor(setup, config.parsed_partition())
        # Blending would take a scan's memory during training (docs/decisions.md).
        self._metadata: SplitMetadata | None = None
        recipe, split = data.description.get("recipe", {}), data.description.get("evaluate_split")
        is_tiled = recipe.get("fit") == "tiles"
        if is_tiled and split and data.evaluation is not None:
            self._metadata = SplitMetadata(data.description["data"], split)
        # Boxes, classes and masks of objects of a picture's tiles take little memory, so they are joined here too.
        is_joined = (
            self._metadata is not None and whole_picture_metrics(setup.task, self._metadata) is not None
        )
        self._of_tiles = (
            " (each tile by itself; `halofeed evaluate` joins those of a scan or picture)"
            if is_tiled and not is_joined
            else ""
        )

    def is_due(self, step: int) -> bool:
        """Return whether to evaluate after this step."""
        every = self._config.evaluate_every
        return self._data.evaluation is not None and bool(every) and step % every == 0

    def __call__(
        self, state: TrainState, step: int, stop: StopRequest, *, last: bool = False
    ) -> float | None:
        """Return the metric that ranks checkpoints; None without data to evaluate on, or after a stop signal.

        An evaluation may take minutes and needs memory of its own: where it fails, the steps are saved first.
        """
        try:
            return self._evaluate(state, step, stop, last=last)
        except Exception:
            # Saving needs every process of a run, and the others did not fail.
            if jax.process_count() == 1:
                self._writer.save(step, state, None, wait=True)
            raise

    def _evaluate(self, state: TrainState, step: int, stop: StopRequest, *, last: bool) -> float | None:
        source, task = self._data.evaluation, self._predictor.setup.task
        if source is None:
            return None
        split = str(self._data.description.get("evaluate_split"))
        examples = ExampleCollector(source.num_records) if last and self._writer.folder is not None else None
        joined = None if self._metadata is None else whole_picture_metrics(task, self._metadata)
        metrics = self._predictor.evaluate(
            state.best_parameters,
            state.statistics,
            source,
            examples,
            metrics=joined,
            ends=lambda batch: _asked_to_stop(stop, batch),
        )
        if metrics is None:
            self.was_stopped = True
            self._progress.say(
                f"the evaluation after step {step} did not end; `halofeed evaluate` repeats it"
            )
            return None
        self.metrics = metrics
        self._writer.log_evaluation(step, split, metrics)
        if not last:  # the caller prints those of the end, from the summary
            summary = "; ".join(summary_lines(metrics)[:2])
            self._progress.say(f"after step {step} on {split}{self._of_tiles}: {summary}")
        elif self._of_tiles:
            self._progress.say(f"metrics on {split}{self._of_tiles}:")
        if examples is not None and is_chief() and self._writer.folder is not None:
            examples.write(self._writer.folder / EXAMPLES, source, step, split)
        best = metrics.get(task.best)
        return None if best is None else float(best)


def _warn_of_idle_cores(
    config: TrainConfig, setup: TrainingSetup, image_shape: Sequence[int], progress: Progress
) -> None:
    if config.cores_per_replica > 1 and setup.dims is None:
        cores, other_axes = config.cores_per_replica, ",1" * (len(image_shape) - 1)
        progress.say(
            f"warning: each of the {cores} cores of a replica holds every complete image and does the same work; "
            f"pass --partition image=1,{cores}{other_axes}, or --cores-per-replica 1"
        )


def _check_batch(batch: DeviceBatch, config: TrainConfig, data: TrainData, setup: TrainingSetup) -> None:
    if missing := [key for key in ("image", *setup.task.keys) if key not in batch]:
        raise UsageError(
            f"batch: expected {', '.join(missing)} for {data.facts.task}, got {', '.join(sorted(batch))}"
        )
    expected = (config.batch_size, *data.facts.image_shape)
    if batch["image"].shape != expected:
        raise UsageError(
            f"image: expected {list(expected)}, got {list(batch['image'].shape)}; give loader and config the same "
            "batch size, and the facts of the same data set"
        )


def _warn_of_other_anchors(batch: DeviceBatch, setup: TrainingSetup, progress: Progress) -> None:
    """Print the model's warning about the sizes of the first boxes; a model without such a check prints none."""
    warning_of = getattr(setup.abstract_model, "anchor_warning", None)
    if warning_of is None or not isinstance(setup.task, Detection):
        return
    arrays = {name: batch[name] for name in ("boxes", "num_boxes", "is_crowd")}
    # Each process holds its own rows.
    if jax.process_count() > 1:
        arrays = multihost_utils.process_allgather(arrays, tiled=True)
    boxes = np.asarray(arrays["boxes"])
    sizes = (boxes[..., 2:] - boxes[..., :2]) * batch["image"].shape[1:3]
    is_box = np.arange(boxes.shape[1]) < np.asarray(arrays["num_boxes"])[:, None]
    is_box &= ~np.asarray(arrays["is_crowd"], bool) & (sizes > 0).all(-1)
    warning = warning_of(sizes[is_box], setup.task)
    if warning is not None:
        progress.say(warning)


def _asked_to_stop(stop: StopRequest, step: int) -> bool:
    """Return whether any process got a stop signal; several processes check every `STOP_CHECK_STEPS` steps."""
    # The agreement of all processes waits for the slowest one.
    if jax.process_count() > 1 and step % STOP_CHECK_STEPS:
        return False
    return _agree_to_stop(stop)


def _agree_to_stop(stop: StopRequest) -> bool:
    """Return whether any process got a stop signal, the same in all of them; all processes must call it together."""
    if agree_any(stop.signal is not None):
        # -1: another process of the run got the signal.
        stop.signal = stop.signal or -1
        return True
    return False


def _check_finite(loss: float, step: _Step, config: TrainConfig) -> None:
    if math.isfinite(loss):
        return
    id_text = ""
    # A loader of the user may give no ids. Each process holds its own rows of them.
    if step.ids is not None:
        ids = multihost_utils.process_allgather(step.ids, tiled=True) if jax.process_count() > 1 else step.ids
        listed = join_id(np.asarray(ids)).tolist()
        id_text = f"; the batch's ids: {', '.join(map(str, listed[:64]))}" + (
            " ..." if len(listed) > 64 else ""
        )
    raise TrainingError(
        f"step {step.number}: the loss is {loss}; lower --learning-rate {config.learning_rate:g}, or look for a "
        f"broken record in that batch (seed {config.seed}, batch {step.number - 1}){id_text}"
    )
