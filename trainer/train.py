"""How does a training run go, from a loader to a list of losses?"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

import jax
from jax.sharding import Mesh

from halofeed.prep.statistics import mean_and_deviation
from halofeed.schemas.errors import TrainingError, UsageError
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.partition import Partition
from halofeed.schemas.tasks import task_named
from halofeed.trainer.losses import LOSSES
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.optimizers import OPTIMIZERS, warmup_cosine
from halofeed.trainer.options import TrainOptions
from halofeed.trainer.platform import hide_accelerators_from_tensorflow
from halofeed.trainer.step import Batch, Problem, TrainState, compile_step, new_state


class MeshLoader(Protocol):
    """What training needs of `halofeed.loader.Loader`."""

    def on_mesh(
        self, mesh: Mesh, partition: Partition, start_step: int = 0
    ) -> Iterable[Mapping[str, jax.Array]]:
        """Global batches from `start_step` on, each core's slab already apart."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What training needs to know of a data set beside its batches.

    Args:
        task: a key of `halofeed.schemas.tasks.TASKS`.
        classes: how many; a detection set's without the background.
        mean, std: per channel, in the stored image's units.
    """

    task: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TrainSummary:
    """What a run did; `images_per_second` leaves out compilation and the first step."""

    losses: tuple[float, ...]
    mesh_shape: Mapping[str, int]
    platform: str
    parameters: int
    compile_seconds: float
    seconds: float
    images_per_second: float
    state: TrainState = field(repr=False, compare=False)


def data_facts(manifest: Manifest, split: str) -> DataFacts:
    """The facts that a manifest holds; mean and deviation are those of `split`.

    Raises:
        UsageError: an unknown split, no labels, or a split without pixels.
    """
    if manifest.task not in LOSSES:
        raise UsageError(
            f"{manifest.name}: this version trains {' and '.join(LOSSES)}, not {manifest.task}; its records are loaded "
            "with halofeed.loader.Loader into a trainer of your own"
        )
    if not manifest.labels:
        raise UsageError(f"{manifest.name}: no labels to learn; convert it with annotations")
    if not manifest.split(split).records:
        raise UsageError(f"{manifest.name}: split {split!r} holds no records; train on another")
    mean, std = mean_and_deviation(manifest.split(split).statistics)
    return DataFacts(
        task=manifest.task,
        classes=max(manifest.labels) + 1 - task_named(manifest.task).first_label_id,
        mean=tuple(mean),
        std=tuple(max(value, 1.0) for value in std),
    )


def train(
    options: TrainOptions,
    loader: MeshLoader,
    facts: DataFacts,
    *,
    devices: Sequence[jax.Device] | None = None,
    stream: TextIO | None = None,
) -> TrainSummary:
    """Take `options.steps` training steps, or as many as the loader has batches.

    Args:
        options: of the run.
        loader: gives global batches of `options.batch_size` rows on a mesh.
        facts: of the loader's data set (`data_facts`).
        devices: all of the system's by default.
        stream: where progress goes, standard error by default.

    Returns:
        The losses, step by step, with times and the final state.

    Raises:
        UsageError: options that do not go together with each other, the devices or the data.
        TrainingError: a loss that is not finite, with its step; or no batch at all.
    """
    hide_accelerators_from_tensorflow()
    mesh = make_mesh(options.cores_per_replica, devices)
    partition = options.parsed_partition()
    platform = mesh.devices.flat[0].platform
    dims = partition.dims.get("image")
    problem = Problem(
        task=facts.task,
        classes=facts.classes,
        mean=facts.mean,
        std=facts.std,
        model=options.model,
        compute_dtype=options.compute_dtype,
        mesh=mesh,
        dims=tuple(dims) if dims is not None and math.prod(dims) > 1 else None,
    )
    optimizer = OPTIMIZERS[options.optimizer](warmup_cosine(options.learning_rate, options.steps))
    progress = _Progress(options, stream or sys.stderr)
    if options.cores_per_replica > 1 and problem.dims is None:
        progress.warn(
            f"every image is whole on each of the {options.cores_per_replica} cores of its replica, which all do the "
            f"same work; pass --partition image=1,{options.cores_per_replica},1,1, or --cores-per-replica 1"
        )

    started = time.perf_counter()
    batches = iter(loader.on_mesh(mesh, partition, start_step=0))
    batch = next(batches, None)
    if batch is None:
        raise TrainingError("the loader gave no batch; the split is smaller than one batch, or empty")
    _check_batch(batch, options, facts)
    state = new_state(problem, optimizer, options.seed)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    compiling = time.perf_counter()
    step = compile_step(problem, optimizer).lower(state, batch).compile()
    compile_seconds = time.perf_counter() - compiling
    progress.begin(mesh, platform, parameters, problem.compute_dtype, compile_seconds)

    in_flight: list[jax.Array] = []
    most_in_flight = 0 if platform == "cpu" else 1
    for number in range(options.steps):
        state, loss = step(state, batch)
        in_flight.append(loss)
        while len(in_flight) > most_in_flight:
            progress.record(float(in_flight.pop(0)))
        batch = next(batches, None) if number + 1 < options.steps else None
        if batch is None:
            break
    for loss in in_flight:
        progress.record(float(loss))
    progress.end()
    return TrainSummary(
        losses=tuple(progress.losses),
        mesh_shape=dict(mesh.shape),
        platform=platform,
        parameters=parameters,
        compile_seconds=compile_seconds,
        seconds=time.perf_counter() - started,
        images_per_second=progress.rate(),
        state=state,
    )


def _check_batch(batch: Batch, options: TrainOptions, facts: DataFacts) -> None:
    needed = {"classification": ("label",), "detection": ("classes", "num_boxes")}[facts.task]
    missing = [key for key in ("image", *needed) if key not in batch]
    if missing:
        raise UsageError(
            f"batch: expected {', '.join(missing)} for {facts.task}, got {', '.join(sorted(batch))}"
        )
    shape = batch["image"].shape
    if len(shape) != 4 or shape[0] != options.batch_size or shape[-1] != len(facts.mean):
        raise UsageError(
            f"image: expected [{options.batch_size}, height, width, {len(facts.mean)}], got {list(shape)}; "
            "give loader and options the same batch size, and the facts of the same data set"
        )


class _Progress:
    """Shows one line: in place on a terminal, else every tenth of the run."""

    def __init__(self, options: TrainOptions, stream: TextIO) -> None:
        self.options, self.stream = options, stream
        self.in_place = stream.isatty()
        self.losses: list[float] = []
        self.times: list[float] = []

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def begin(self, mesh: Mesh, platform: str, parameters: int, dtype: str, seconds: float) -> None:
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        self._line(
            f"{self.options.model}: {parameters:,} parameters, {dtype}, on {platform} as {axes}; "
            f"compiled in {seconds:.1f} s"
        )

    def record(self, loss: float) -> None:
        self.losses.append(loss)
        self.times.append(time.perf_counter())
        done = len(self.losses)
        if not math.isfinite(loss):
            self.end()
            raise TrainingError(
                f"step {done - 1}: the loss is {loss}; lower the learning rate of "
                f"{self.options.learning_rate:g}, or look for a broken record in that batch "
                f"(seed {self.options.seed}, step {done - 1})"
            )
        rate = f"{self.rate():.1f} images/s" if done > 1 else ""
        text = f"step {done}/{self.options.steps}  loss {loss:.4f}  {rate}".rstrip()
        if self.in_place:
            self.stream.write(f"\r\x1b[K{text}")
            self.stream.flush()
        elif done in (1, self.options.steps) or done % max(1, self.options.steps // 10) == 0:
            self._line(text)

    def rate(self) -> float:
        """Images per second since the first step ended; 0 before there is a second one."""
        if len(self.times) < 2:
            return 0.0
        elapsed = max(self.times[-1] - self.times[0], 1e-9)
        return (len(self.times) - 1) * self.options.batch_size / elapsed

    def end(self) -> None:
        if self.in_place and self.losses:
            self._line("")

    def _line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()
