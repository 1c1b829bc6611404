"""Which program does a config train with? `train` runs it, and `plan` compiles it for devices that are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from halofeed.loader.mesh import mesh_specs
from halofeed.schemas.partition import Partition
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.optimizers import build_optimizer
from halofeed.trainer.problem import batch_partition, build_problem
from halofeed.trainer.schedules import Schedule
from halofeed.trainer.shared.facts import DataFacts
from halofeed.trainer.step import Problem, TrainState, abstract_state, compile_step, new_state

Spec = Mapping[str, tuple[tuple[int, ...], np.dtype]]  # type: ignore[type-arg]
"""Shape (the whole batch first) and dtype of every array of a batch."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is compiled.

    Args:
        config: of the run.
        mesh: where the batch lies.
        problem: what is trained on what.
        partition: of every array of the batch.
        optimizer, schedule: of the config.
    """

    config: TrainConfig
    mesh: Mesh
    problem: Problem
    partition: Partition
    optimizer: optax.GradientTransformation
    schedule: Schedule

    def step(self) -> jax.stages.Wrapped:
        """The jitted (state, batch) -> (state, values) of `compile_step`."""
        return compile_step(
            self.problem,
            self.optimizer,
            schedule=self.schedule,
            average_decay=self.config.average_decay,
            average_every=self.config.accumulate_steps,
        )

    def new_state(self, pretrain: Callable[[nnx.Module], object] | None = None) -> TrainState:
        """The state before step 0."""
        return new_state(
            self.problem, self.optimizer, self.config.seed, average=self._averages, pretrain=pretrain
        )

    def abstract_state(self) -> TrainState:
        """The state as shapes, dtypes and shardings."""
        return abstract_state(self.problem, self.optimizer, average=self._averages)

    def abstract_batch(self, spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
        """The batch that the loader puts onto the mesh, as shapes, dtypes and shardings.

        Raises:
            PartitionError: a shape that does not divide by its parts.
        """
        specs = mesh_specs(self.mesh, self.partition, {name: shape for name, (shape, _) in spec.items()})
        batch = {}
        for name, (shape, dtype) in spec.items():
            if name == "id":
                shape, dtype = (shape[0], 2), np.dtype(np.uint32)
            sharding = NamedSharding(self.mesh, specs[name])  # type: ignore[no-untyped-call]
            batch[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
        return batch

    @property
    def _averages(self) -> bool:
        return self.config.average_decay > 0


def build_program(
    config: TrainConfig, facts: DataFacts, devices: Sequence[jax.Device] | None = None
) -> Program:
    """The program of a config.

    Args:
        config: of the run.
        facts: of the data set.
        devices: all of the system's by default; those of a topology that is not there will do for compiling.

    Raises:
        UsageError: options that do not go together with each other, the devices or the data.
    """
    mesh = make_mesh(config.cores_per_replica, devices)
    problem = build_problem(config, facts, mesh)
    partition = batch_partition(config.parsed_partition(), problem.task)
    optimizer, schedule = build_optimizer(config)
    return Program(
        config=config,
        mesh=mesh,
        problem=problem,
        partition=partition,
        optimizer=optimizer,
        schedule=schedule,
    )
