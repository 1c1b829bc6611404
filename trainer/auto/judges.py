"""Verdicts on configurations: a step compiled and timed on the devices of this process, or compiled for a machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from halofeed.loader import Loader
from halofeed.schemas.partition import CORES_PER_REPLICA
from halofeed.system.errors import UsageError
from halofeed.system.memory import available_memory, give_back_freed_memory
from halofeed.trainer.auto.candidates import Machine, PlanCandidate
from halofeed.trainer.auto.choose import Verdict
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import open_data
from halofeed.trainer.plan.compiling import CompileCache, Tell, compile_all, memory_sizes
from halofeed.trainer.plan.document import image_shape_of, memory_limit, plan_config, verdict_of
from halofeed.trainer.plan.requests import Request, build_lowered
from halofeed.trainer.plan.topologies import Topology, topology_named
from halofeed.trainer.tasks import build_task
from halofeed.trainer.training_setup import Program, Spec

MEMORY_SHARE = 0.7
"""Share of the free memory of a machine, or of a GPU's, that a step may take: loader and evaluation need some too."""
_TIMED_STEPS, _TIMED_SECONDS = 10, 1.0
"""Most steps that are timed, and the time after which two are enough."""
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory", "out of memory")
Configure = Callable[[PlanCandidate], TrainConfig]


def request_of_data(config: TrainConfig, path: str, split: str, topology: str) -> Request:
    """Return the request to compile a step of a config on a data set; only the shapes of one record are read.

    Args:
        config: options of the run.
        path: version folder of the data set.
        split: split to train on.
        topology: name of the machine, for `topology_named`.
    """
    data = open_data(
        config, path, split, lambda facts: build_task(facts, config.options_of_task, config.task)
    )
    assert isinstance(data.batches, Loader)
    arrays = {
        key: (array.shape, str(array.dtype))
        for key, array in data.batches.spec.items()
        if not array.dtype.hasobject
    }
    return Request(config=config, topology=topology, facts=data.facts.to_json(), arrays=arrays)


def present_machine(platform: str, devices: int) -> Machine:
    """Return the devices of this process as a machine, with the memory that a step may take on each.

    Args:
        platform: platform of the devices, as JAX names it.
        devices: number of devices.
    """
    if platform == "cpu":
        limit: int | None = round(MEMORY_SHARE * available_memory() / devices)
    else:
        known = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
        # The compiler of a TPU refuses what does not fit.
        limit = None if known is None or platform == "tpu" else round(MEMORY_SHARE * known)
    splits = tuple(cores for cores in CORES_PER_REPLICA if devices % cores == 0)
    return Machine(platform=platform, devices=devices, splits=splits, limit_bytes=limit)


def machine_of(topology: Topology) -> Machine:
    """Return a machine to compile for."""
    limit = None if topology.chip is None else topology.chip.memory_bytes
    return Machine(
        platform=topology.platform,
        devices=topology.devices,
        splits=tuple(cores for cores in topology.splits() if cores <= 16),
        limit_bytes=limit,
        is_present=False,
    )


@dataclass(frozen=True, kw_only=True)
class PresentJudge:
    """Judge that compiles a step for the devices of this process and takes a few.

    Args:
        configure: function from a candidate to its config.
        path: version folder of the data set.
        split: split to train on.
        machine: devices of this process.
        tell: function that prints a progress line.
    """

    configure: Configure
    path: str
    split: str
    machine: Machine
    tell: Tell

    def __call__(self, candidate: PlanCandidate) -> Verdict:
        """Return the memory and the time of a step; a step that ends for lack of memory does not fit."""
        request = request_of_data(self.configure(candidate), self.path, self.split, self.machine.platform)
        began = time.monotonic()
        measured = _Measured()
        try:
            measured = _measure(*build_lowered(request, jax.devices()), limit=self.machine.limit_bytes)
        except jax.errors.JaxRuntimeError as error:
            if not any(mark in str(error) for mark in _OUT_OF_MEMORY):
                raise
        # A processor's heap keeps freed memory, and the run may need less than this candidate.
        give_back_freed_memory()
        total, seconds = measured.total_bytes, measured.step_seconds
        limit = self.machine.limit_bytes
        fits = total is not None and (limit is None or total <= limit)
        took = f"{seconds:.3g} s a step" if seconds is not None else "not taken"
        needs = f"{total / 2**30:.2f} GiB" if total is not None else "more memory than there is"
        judged = time.monotonic() - began
        self.tell(f"{candidate.name}: {needs}, {took} (judged in {judged:.0f} s)")
        return Verdict(
            fits=fits,
            total_bytes=total,
            limit_bytes=limit,
            step_seconds=seconds,
            is_measured=True,
            compile_seconds=measured.compile_seconds,
            seconds=judged,
        )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Memory of a step in bytes, its time and the compiler's in seconds; no time if it would exceed the limit."""

    total_bytes: int | None = None
    step_seconds: float | None = None
    compile_seconds: float = 0.0


def _measure(program: Program, spec: Spec, *, limit: int | None) -> _Measured:
    """Compile a step and take a few."""
    arguments = program.abstract_state(), program.abstract_batch(spec)
    began = time.perf_counter()
    compiled = program.step().lower(*arguments).compile()
    compile_seconds = time.perf_counter() - began
    sizes = memory_sizes(compiled.memory_analysis())
    # Results that reuse the memory of donated arguments ("alias") take none.
    results = max(0, sizes["output"] - sizes["alias"])
    total = sizes["argument"] + sizes["temp"] + results + sizes["generated_code"]
    if limit is not None and total > limit:
        return _Measured(total_bytes=total, compile_seconds=compile_seconds)
    state = program.new_state()
    batch = {name: _filled(name, one) for name, one in arguments[1].items()}
    times: list[float] = []
    # The first step also starts the threads. The mean counts, because a run pays for slow steps too.
    while len(times) < 3 or (len(times) <= _TIMED_STEPS and sum(times[1:]) < _TIMED_SECONDS):
        began = time.perf_counter()
        state, values = compiled(state, batch)
        jax.device_get(values["loss"])
        times.append(time.perf_counter() - began)
    return _Measured(
        total_bytes=total, step_seconds=statistics.fmean(times[1:]), compile_seconds=compile_seconds
    )


def _filled(name: str, array: jax.ShapeDtypeStruct) -> jax.Array:
    """Return an array of a batch: rows that count, and zeros."""
    value = np.ones if name in ("valid", "labelled") else np.zeros
    host = value(array.shape, array.dtype)
    return jax.make_array_from_callback(array.shape, array.sharding, lambda index: host[index])


@dataclass(frozen=True, kw_only=True)
class CompilingJudge:
    """Judge that compiles a step for a machine that need not be present.

    Args:
        configure: function from a candidate to its config.
        path: version folder of the data set.
        split: split to train on.
        topology: name of the machine.
        cache: cache of the compilers' output.
        tell: function that prints a progress line.
        jobs: number of compilers at once.
    """

    configure: Configure
    path: str
    split: str
    topology: str
    cache: CompileCache
    tell: Tell
    jobs: int | None = None

    def __call__(self, candidate: PlanCandidate) -> Verdict:
        """Return the compiler's memory of a step, and the lower bound of its time."""
        request = request_of_data(self.configure(candidate), self.path, self.split, self.topology)
        (result,) = compile_all([request], self.cache, names=[candidate.name], tell=self.tell, jobs=self.jobs)
        if result.compiled is None:
            raise UsageError(f"--auto: {candidate.name}: {result.refused}")
        topology = topology_named(self.topology)
        found = verdict_of(result.compiled, topology, image_shape_of(request))
        memory, bound = found["memory"], found.get("bound")
        limit = memory["limit"] or memory_limit(str(memory.get("compiler", "")))
        return Verdict(
            fits=found["fits"],
            total_bytes=memory["total"],
            limit_bytes=limit,
            step_seconds=bound["step"] if bound else None,
        )

    def plan(self, candidate: PlanCandidate) -> dict[str, Any]:
        """Return the plan of a candidate as `plan_config` makes it; a judged one is in the cache."""
        request = request_of_data(self.configure(candidate), self.path, self.split, self.topology)
        cores = (request.config.cores_per_replica,)
        return plan_config(request, cores=cores, cache=self.cache, tell=self.tell, jobs=self.jobs)
