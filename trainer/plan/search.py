"""Search for the largest image or batch that fits each split, and for options that save memory, by compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.system.errors import UsageError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.models import model_named
from halofeed.trainer.plan.compiling import CompileCache, Tell, compile_all
from halofeed.trainer.plan.document import cases, image_shape_of, plan_config, verdict_of
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.topologies import Topology, topology_named

STEPS = {"side": 64, "depth": 16, "batch": 1}
"""Resolution of the search; a side or depth that a model or split cannot have counts as too large."""
_MAX_STEPS = 1 << 12


@dataclass
class _Bracket:
    """Bisection for one split, in multiples of `step`: largest that fits, smallest that does not, next to try."""

    cores: int
    step: int
    next: int
    fits: int = 0
    too_large: int = _MAX_STEPS
    total_bytes: int | None = None

    @property
    def is_done(self) -> bool:
        return self.too_large - self.fits <= 1

    @property
    def value(self) -> int:
        """Side, depth or batch to try next."""
        return self.next * self.step

    def to_json(self, partition: str) -> dict[str, Any]:
        """Return the result of a bisection that is done; 0 and `_MAX_STEPS` are bounds that were never tried."""
        return {
            "cores": self.cores,
            "partition": partition,
            "largest": self.fits * self.step or None,
            "least_refused": self.too_large * self.step if self.too_large < _MAX_STEPS else None,
            "total_bytes": self.total_bytes,
        }

    def update(self, fits: bool, total_bytes: int | None) -> None:
        """Narrow the bracket by the result for `next`."""
        if fits:
            self.fits, self.total_bytes = self.next, total_bytes
        else:
            self.too_large = self.next
        # Double until something does not fit: the bound is far above any machine.
        is_unbounded = self.too_large == _MAX_STEPS
        self.next = min(2 * self.fits, _MAX_STEPS) if is_unbounded else (self.fits + self.too_large) // 2


def search(
    asked: Request,
    plan: dict[str, Any],
    of: str,
    *,
    cache: CompileCache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Find the largest image or batch that fits each split of a plan.

    Args:
        asked: request from which the plan was made.
        plan: output of `plan_config`.
        of: "side" (height and width, also depth of volumes), "depth" (volumes and clips) or "batch" (images per
            replica).
        cache, tell, jobs: as for `plan_config`.

    Returns:
        `of`, and `found`: for each split `largest`, `least_refused` and `total_bytes` of a core at the largest.
    """
    topology, shape = topology_named(asked.topology), image_shape_of(asked)
    if topology.chip is None:
        raise UsageError(f"--search: {topology.name} has no device memory of a known size; name a TPU")
    if of == "depth" and len(shape) < 4:
        raise UsageError("--search depth: pictures have no depth; take --search side")
    splits = {split["cores"]: split for split in plan["splits"]}
    brackets = [_bracket(of, shape, split) for split in splits.values()]
    # All splits narrow their brackets together, so that their compilers run in parallel.
    while unfinished := [bracket for bracket in brackets if not bracket.is_done]:
        requests = {
            bracket.cores: request
            for bracket in unfinished
            if (request := _request(asked, topology, of, shape, splits[bracket.cores], bracket.value))
            is not None
        }
        rounds = max((bracket.too_large - bracket.fits).bit_length() for bracket in unfinished)
        tell(f"search of {of}: {len(requests)} to compile, at most {rounds} more rounds")
        names = [
            f"{bracket.cores}-way {of} {bracket.value}" for bracket in unfinished if bracket.cores in requests
        ]
        compiled = compile_all(list(requests.values()), cache, names=names, tell=tell, jobs=jobs)
        outputs = {cores: result.compiled for cores, result in zip(requests, compiled, strict=True)}
        for bracket in unfinished:
            _update(bracket, outputs.get(bracket.cores), topology, shape)
    found = [bracket.to_json(splits[bracket.cores]["partition"]) for bracket in brackets]
    return {"of": of, "found": found}


def _update(
    bracket: _Bracket, output: dict[str, Any] | None, topology: Topology, shape: Sequence[int]
) -> None:
    """Narrow a bracket by the compiler's output for its next value; None, an impossible value, counts as too large."""
    if output is None:
        bracket.update(fits=False, total_bytes=None)
        return
    verdict = verdict_of(output, topology, shape)
    bracket.update(fits=verdict["fits"], total_bytes=verdict["memory"]["total"])


def _bracket(of: str, shape: Sequence[int], split: dict[str, Any]) -> _Bracket:
    step = max(STEPS[of], split["cores"] if of != "batch" else 1)
    # The side of a volume is its depth too.
    if of == "side" and len(shape) > 3:
        step = max(STEPS["depth"], split["cores"])
    current = {"batch": split["batch_size"] // split["replicas"], "side": shape[-2], "depth": shape[0]}[of]
    return _Bracket(cores=split["cores"], step=step, next=max(1, current // step))


def _request(
    asked: Request, topology: Topology, of: str, shape: tuple[int, ...], split: dict[str, Any], value: int
) -> Request | None:
    """Return the request to compile for a side, depth or batch; None if the split cannot have it."""
    images = split["batch_size"] // split["replicas"]
    if of == "batch":
        images = value
    else:
        axes = 1 if of == "depth" else len(shape) - 1
        shape = (*(value,) * axes, *shape[axes:])
    return cases(resized(asked, shape), topology, shape, (split["cores"],), images)[0].request


def resized(asked: Request, shape: tuple[int, ...]) -> Request:
    """Return the request for images of another shape; all arrays on the image's grid change their shape too."""
    before = image_shape_of(asked)
    if shape == before:
        return asked
    facts, arrays = asked.facts, asked.arrays
    if facts is not None:
        facts = {**facts, "image_shape": list(shape)}
    if arrays is not None:
        grids = {before: shape, before[:-1]: shape[:-1]}
        arrays = {
            name: ((sizes[0], *grids.get(tuple(sizes[1:]), tuple(sizes[1:]))), dtype)
            for name, (sizes, dtype) in arrays.items()
        }
    config = asked.config if asked.config.image_shape is None else replace(asked.config, image_shape=shape)
    return replace(asked, config=config, facts=facts, arrays=arrays)


_CHANGES: dict[str, dict[str, Any]] = {
    "--remat": {"remat": True},
    "--set model.images_at_once=1": {"model_options": {"images_at_once": 1}},
    "--set optimizer=sgd --set momentum=0.9": {"optimizer": "sgd", "momentum": 0.9},
    "--set optimizer=sgd --set momentum=0.0": {"optimizer": "sgd", "momentum": 0.0},
    "--set average_decay=0": {"average_decay": 0.0},
}


def savings(
    asked: Request,
    plan: dict[str, Any],
    *,
    cache: CompileCache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any] | None:
    """Compile one split with each option that saves memory: the last split that does not fit, else the recommended.

    Returns:
        `before`, the unchanged split, and `changes`, each a `change` (the options) with its `split`; None if nothing
        could be compiled.
    """
    compiled = [split for split in plan["splits"] if "memory" in split]
    if not compiled:
        return None
    refused = [split for split in compiled if not split["fits"]]
    before = (refused or [split for split in compiled if split["cores"] == plan["recommended"]])[-1]
    changes = []
    for name, values in _CHANGES.items():
        options = values.get("model_options", {})
        # Other models lack the option.
        if not options.keys() <= model_named(asked.config.model).options().keys():
            continue
        merged = {**asked.config.model_options, **options}
        config = asked.config.changed(**{**values, "model_options": merged})
        # The config has the option already, or an equal one.
        if config == asked.config or not _saves_memory(config, asked.config):
            continue
        tell(f"compiling with {name}")
        after = plan_config(
            replace(asked, config=config),
            cores=(before["cores"],),
            images_per_replica=before["batch_size"] // before["replicas"],
            cache=cache,
            tell=tell,
            jobs=jobs,
        )
        changes.append({"change": name, "split": after["splits"][0]})
    return {"before": before, "changes": changes}


def _saves_memory(config: TrainConfig, current: TrainConfig) -> bool:
    """Return whether a config recomputes other activations, drops the average, or keeps a smaller state."""

    def state_values(config: TrainConfig) -> int:
        """Return the number of values per parameter in the optimizer's state."""
        return {"sgd": int(bool(config.momentum)), "lars": 1}.get(config.optimizer, 2)

    return (
        state_values(config) < state_values(current)
        or (config.remat, config.model_options) != (current.remat, current.model_options)
        or bool(config.average_decay) != bool(current.average_decay)
    )
