"""How does a training run go, from batches to checkpoints, metrics and a report's material?"""

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
from flax import nnx
from jax.experimental import multihost_utils

from halofeed.errors import CorruptFileError, TrainingError, UsageError
from halofeed.loader.mesh import join_id
from halofeed.schemas.files import CHECKPOINTS, EXAMPLES, RUN_FILE
from halofeed.system import owned_files, signals
from halofeed.system.atomic_files import no_wider_than
from halofeed.system.console import print_status
from halofeed.trainer.ahead import Ahead
from halofeed.trainer.checkpoint import DIGITS, Checkpoints
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import TrainData
from halofeed.trainer.distributed import agree_any, is_chief
from halofeed.trainer.evaluate import Examples, Predictor, summary_lines
from halofeed.trainer.log import RunLog
from halofeed.trainer.models.keras_weights import keras_normalization, load_backbone
from halofeed.trainer.platform import hide_accelerators_from_tensorflow
from halofeed.trainer.problem import build_program
from halofeed.trainer.progress import Pace, Progress, StopRequest
from halofeed.trainer.run_folder import begin_run, bring_back, drop_replaced, run_lock
from halofeed.trainer.step import Problem, TrainState
from halofeed.trainer.task import Batch

_AGREE_EVERY = 10
"""Steps between two looks, of several processes together, at whether one of them was asked to stop."""


@dataclass(frozen=True, kw_only=True)
class TrainSummary:
    """What a run did.

    Args:
        steps: that were taken in all, earlier processes' included.
        losses: of the steps that this process took.
        metrics: of the last evaluation; None where there was none.
        images_per_second, waiting_share: without compilation, evaluation and saving.
        stopped_by: the signal that ended the run early.
        state: after the last step.
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
) -> TrainSummary:
    """Take `config.steps` training steps, or as many as there are batches; go on where an earlier process ended.

    Args:
        config: of the run.
        data: what it reads (`halofeed.trainer.data.open_data`).
        folder: of the run: log, checkpoints, examples; None keeps nothing.
        overwrite: replace a run that the folder holds, which is there until the new one has saved a checkpoint.
        devices: all of the system's by default.
        stream: where progress goes, standard error by default.

    Returns:
        The losses, the last metrics, the pace and the final state.

    Raises:
        UsageError: options that do not go together with each other, the devices, the data or the folder's run.
        TrainingError: a loss that is not finite, with its step and the batch's ids; or no batch at all.
    """
    hide_accelerators_from_tensorflow()
    program = build_program(config, data.facts, devices)
    mesh, problem, partition = program.mesh, program.problem, program.partition
    data.batches.on_mesh(mesh, partition)  # refuses what does not fit the batch, before anything is made
    state = program.new_state(_pretrain(config))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))

    with _Kept(config, data, folder, overwrite, problem, parameters) as kept:
        state, start = kept.resume(state)
        progress = Progress(config, (stream or sys.stderr) if is_chief() else None, start)
        _warn_of_idle_cores(config, problem, data.facts.image_shape, progress)
        if start:
            progress.say(f"going on after step {start}")
        evaluate = _Evaluation(config, data, problem, kept, progress)

        losses: list[float] = []
        in_flight: list[_Flight] = []
        pace = Pace()
        # On the CPU two programs at once could wait for each other's collectives for ever.
        most_in_flight = 0 if mesh.devices.flat[0].platform == "cpu" else 1

        def land() -> None:
            flight = in_flight.pop(0)
            # All at once: each wait by itself hands the interpreter's lock to the threads that make batches.
            own = {name: value.addressable_data(0) for name, value in flight.values.items()}
            values = {name: float(value) for name, value in jax.device_get(own).items()}
            _check_finite(values["loss"], flight, config)
            now = {"now": time.perf_counter(), "waited": batches.waited_seconds}
            seconds, waited = pace.ended(began=flight.began, waited_before=flight.waited_before, **now)
            progress.record(flight.step, values, seconds, waited)
            losses.append(values["loss"])
            seconds = max(seconds, 1e-9)
            rates = {"images_per_second": config.batch_size / seconds, "waiting_share": waited / seconds}
            kept.log(flight.step, values | rates)

        with StopRequest() as stop, Ahead(iter(data.batches.on_mesh(mesh, partition, start))) as batches:
            step_number, batch = start, next(batches, None) if start < config.steps else None
            if batch is None and not start:
                raise TrainingError("the loader gave no batch; the split is smaller than one batch, or empty")
            if batch is not None:
                _check_batch(batch, config, data, problem)
                progress.compiling()
                compiling = time.perf_counter()
                take_step = program.step().lower(state, batch).compile()
                progress.begin(mesh, parameters, time.perf_counter() - compiling)

            stop.begin()
            turn, waited = time.perf_counter(), batches.waited_seconds
            while batch is not None:
                state, values = take_step(state, batch)
                step_number += 1
                ids = batch.get("id")
                in_flight.append(_Flight(step_number, values, ids, began=turn, waited_before=waited))
                while len(in_flight) > most_in_flight:
                    land()
                turn, waited = time.perf_counter(), batches.waited_seconds
                if _asked_to_stop(stop, step_number):
                    break
                at_end = step_number == config.steps
                if not at_end and (evaluate.is_due(step_number) or kept.is_due(step_number)):
                    while in_flight:
                        land()
                    metric = evaluate(state, step_number) if evaluate.is_due(step_number) else None
                    kept.save(step_number, state, metric)
                    turn, waited = time.perf_counter(), batches.waited_seconds
                batch = None if at_end else next(batches, None)
            while in_flight:
                land()
            progress.end()
            if step_number > start:
                metric = None if stop.signal is not None else evaluate(state, step_number, last=True)
                kept.save(step_number, state, metric, wait=True)
            if stop.signal is not None:
                goes_on = "; the same command goes on there" if kept.folder is not None else ""
                progress.say(f"stopped after step {step_number}{goes_on}")
            elif step_number == start:
                progress.say(f"nothing to do: all {start} steps were taken")
        return TrainSummary(
            steps=step_number,
            losses=tuple(losses),
            metrics=evaluate.metrics,
            mesh_shape=dict(mesh.shape),
            images_per_second=progress.images_per_second(),
            waiting_share=progress.waiting_share(),
            stopped_by=stop.signal,
            state=state,
        )


@dataclass(frozen=True)
class _Flight:
    """A step that was dispatched, and when its turn began."""

    step: int
    values: Mapping[str, jax.Array]
    ids: jax.Array | None
    began: float
    waited_before: float


class _Kept(AbstractContextManager["_Kept"]):
    """What the run keeps on disk: log, checkpoints, examples; nothing without a folder."""

    def __init__(
        self,
        config: TrainConfig,
        data: TrainData,
        folder: str | Path | None,
        overwrite: bool,
        problem: Problem,
        parameters: int,
    ) -> None:
        self.folder = None if folder is None else owned_files.real_folder(folder)
        self._config, self._data = config, data
        self._checkpoints: Checkpoints | None = None
        self._log: RunLog | None = None
        self._set_aside = signals.CleanupOnExit(self._bring_back)
        self._ended = ExitStack()
        self._lock = run_lock()
        if self.folder is None:
            return
        mesh = problem.mesh
        assert mesh is not None
        made = {
            "parameters": parameters,
            "mesh": dict(mesh.shape),
            "platform": mesh.devices.flat[0].platform,
            "best_metric": problem.task.best,
        }
        signals.say_at_stop(outlook="no step of this run was saved: the same command starts it again")
        self._ended.callback(self._lock.release)
        self._ended.enter_context(no_wider_than(self.folder / RUN_FILE))
        with ExitStack() as failed, signals.DeferSignals():
            failed.push(self._ended.__exit__)
            description = {**data.description, **made}
            begin_run(
                self.folder,
                config,
                data.facts,
                description,
                overwrite=overwrite,
                chief=is_chief(),
                lock=self._lock,
            )
            self._set_aside.__enter__()
            failed.pop_all()

    def resume(self, state: TrainState) -> tuple[TrainState, int]:
        """The last checkpoint and the step it was saved after; the given state and 0 where there is none."""
        if self.folder is None:
            return state, 0
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("halofeed run folder")
        self._checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep_last=self._config.keep_last)
        step = self._checkpoints.latest()
        self._log = RunLog(self.folder, resume_step=step, writes=is_chief())
        if step is None:
            return state, 0
        self._set_aside.keep()
        signals.say_at_stop(outlook=f"the same command goes on after step {step}")
        state, loader_state = self._checkpoints.restore(state, step)
        if (following := self._data.batches.restore(loader_state)) != step:
            place = self.folder / CHECKPOINTS / f"{step:0{DIGITS}d}"
            raise CorruptFileError(
                f"{place}: the checkpoint of step {step} states that the loader continues with step {following}; "
                "remove this folder to resume from the checkpoint before it"
            )
        return state, step

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step."""
        return bool(self._config.checkpoint_every) and step % self._config.checkpoint_every == 0

    def save(self, step: int, state: TrainState, metric: float | None, *, wait: bool = False) -> None:
        """Save a checkpoint; it is written while the run goes on, unless it is waited for."""
        if self.folder is None or self._checkpoints is None:
            return
        latest = self._checkpoints.latest()
        if latest is not None:
            drop_replaced(self.folder)
            signals.say_at_stop(outlook=f"the same command goes on after step {latest}")
        self._set_aside.keep()
        if step != latest:
            self._checkpoints.save(step, state, self._data.batches.state(step), metric, wait=wait)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one step to the log."""
        if self._log is not None:
            self._log.step(step, values)

    def log_evaluation(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Add one evaluation to the log."""
        if self._log is not None:
            self._log.evaluation(step, split, metrics)

    def __exit__(self, kind: object, *_: object) -> None:
        saved = False
        with self._ended:
            try:
                if self._checkpoints is not None:
                    saved = self._checkpoints.latest() is not None
                    self._checkpoints.close()
            finally:
                if self._log is not None:
                    self._log.close()
                if kind is None or saved:
                    self._set_aside.keep()
                    if self.folder is not None and is_chief():
                        drop_replaced(self.folder)
                self._set_aside.__exit__()

    def _bring_back(self) -> None:
        """Have the run that was to be replaced stand where it did."""
        if self.folder is not None and is_chief() and bring_back(self.folder):
            print_status(f"halofeed train: {self.folder} holds the earlier run again")


class _Evaluation:
    """Evaluates the state every so often; the compiled program is made at the first time."""

    def __init__(
        self, config: TrainConfig, data: TrainData, problem: Problem, kept: _Kept, progress: Progress
    ) -> None:
        self.metrics: Mapping[str, Any] | None = None
        self._config, self._data, self._kept, self._progress = config, data, kept, progress
        self._predictor = Predictor(problem, config.parsed_partition())

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after this step."""
        every = self._config.evaluate_every
        return self._data.evaluation is not None and bool(every) and step % every == 0

    def __call__(self, state: TrainState, step: int, *, last: bool = False) -> float | None:
        """The metric by which checkpoints are compared; None where there is nothing to evaluate on."""
        source, task = self._data.evaluation, self._predictor.problem.task
        if source is None:
            return None
        split = str(self._data.description.get("evaluate_split"))
        examples = Examples(source.num_records) if last and self._kept.folder is not None else None
        metrics = self._predictor.evaluate(state.best_parameters, state.statistics, source, examples)
        self.metrics = metrics
        self._kept.log_evaluation(step, split, metrics)
        self._progress.say(f"after step {step} on {split}: " + "; ".join(summary_lines(metrics)[:2]))
        if examples is not None and is_chief() and self._kept.folder is not None:
            examples.write(self._kept.folder / EXAMPLES, source, step, split)
        best = metrics.get(task.best)
        return None if best is None else float(best)


def _pretrain(config: TrainConfig) -> Callable[[nnx.Module], object] | None:
    """What puts the backbone's weights from a file into a model; None where the config names no file."""
    if not config.backbone_weights:
        return None

    def load(model: nnx.Module) -> None:
        expected = keras_normalization(model)
        if config.normalization != expected:
            raise UsageError(
                f"normalization {config.normalization}: the backbone's weights were trained with {expected}; pass "
                f"--set normalization={expected}"
            )
        load_backbone(model, config.backbone_weights)

    return load


def _warn_of_idle_cores(
    config: TrainConfig, problem: Problem, image_shape: Sequence[int], progress: Progress
) -> None:
    if config.cores_per_replica > 1 and problem.dims is None:
        cores, whole = config.cores_per_replica, ",1" * (len(image_shape) - 1)
        progress.say(
            f"warning: every image is whole on each of the {cores} cores of its replica, which all do the same work; "
            f"pass --partition image=1,{cores}{whole}, or --cores-per-replica 1"
        )


def _check_batch(batch: Batch, config: TrainConfig, data: TrainData, problem: Problem) -> None:
    if missing := [key for key in ("image", *problem.task.keys) if key not in batch]:
        raise UsageError(
            f"batch: expected {', '.join(missing)} for {data.facts.task}, got {', '.join(sorted(batch))}"
        )
    expected = (config.batch_size, *data.facts.image_shape)
    if batch["image"].shape != expected:
        raise UsageError(
            f"image: expected {list(expected)}, got {list(batch['image'].shape)}; give loader and config the same "
            "batch size, and the facts of the same data set"
        )


def _asked_to_stop(stop: StopRequest, step: int) -> bool:
    if jax.process_count() > 1 and step % _AGREE_EVERY:
        return False
    if agree_any(stop.signal is not None):
        stop.signal = stop.signal or -1
        return True
    return False


def _check_finite(loss: float, flight: _Flight, config: TrainConfig) -> None:
    if math.isfinite(loss):
        return
    ids = ""
    if flight.ids is not None:
        several = jax.process_count() > 1
        whole = multihost_utils.process_allgather(flight.ids, tiled=True) if several else flight.ids
        listed = join_id(np.asarray(whole)).tolist()
        ids = f"; the batch's ids: {', '.join(map(str, listed[:64]))}" + (" ..." if len(listed) > 64 else "")
    raise TrainingError(
        f"step {flight.step}: the loss is {loss}; lower the learning rate of {config.learning_rate:g}, or look for a "
        f"broken record in that batch (seed {config.seed}, batch {flight.step - 1}){ids}"
    )
