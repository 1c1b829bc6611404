"""What is the largest side, batch or depth that fits at each split? By bisection over compilations.

What would rematerialization, or another optimizer's state, save? Compiled, and not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.errors import UsageError
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.answers import Cache
from halofeed.trainer.plan.children import answers
from halofeed.trainer.plan.document import cases, image_shape_of, plan_config
from halofeed.trainer.plan.requests import Request
from halofeed.trainer.plan.topologies import Topology, topology_named
from halofeed.trainer.plan.verdict import verdict_of

Tell = Callable[[str], None]
STEPS = {"side": 64, "depth": 16, "batch": 1}
"""To a multiple of how much each is found; a side or depth that a model or split cannot have is passed over."""
_MOST_STEPS = 1 << 12


@dataclass
class _Bracket:
    """One split's search, in steps: what fits, what does not, and what is asked next."""

    cores: int
    step: int
    ask: int
    fits: int = 0
    refuses: int = _MOST_STEPS
    total_bytes: int | None = None

    @property
    def is_done(self) -> bool:
        return self.refuses - self.fits <= 1

    def learn(self, fits: bool, total: int | None) -> None:
        if fits:
            self.fits, self.total_bytes = self.ask, total
        else:
            self.refuses = self.ask
        unbounded = self.refuses == _MOST_STEPS
        self.ask = min(2 * self.fits, _MOST_STEPS) if unbounded else (self.fits + self.refuses) // 2


def search(
    asked: Request,
    plan: dict[str, Any],
    of: str,
    *,
    cache: Cache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any]:
    """The largest that fits at each split of a plan.

    Args:
        asked: what the plan was made of.
        plan: of `plan_config`.
        of: "side" (height and width, of volumes depth too), "depth" (of volumes or clips alone) or "batch" (images a
            replica).
        cache, tell, jobs: as of `plan_config`.

    Returns:
        `of`, and `found`: for each split `largest`, `least_refused` and `total_bytes` of a core at the largest.
    """
    topology, shape = topology_named(asked.topology), image_shape_of(asked)
    if topology.chip is None:
        raise UsageError(f"--search: {topology.name} has no memory of its own that could be full; name a TPU")
    if of == "depth" and len(shape) < 4:
        raise UsageError("--search depth: pictures have none; take --search side")
    splits = {split["cores"]: split for split in plan["splits"]}
    brackets = [_bracket(of, shape, split) for split in splits.values()]
    while open_ones := [one for one in brackets if not one.is_done]:
        probes = {one.cores: _probe(asked, topology, of, shape, splits[one.cores], one) for one in open_ones}
        requests = {cores: request for cores, request in probes.items() if request is not None}
        left = max((one.refuses - one.fits).bit_length() for one in open_ones)
        tell(f"search of {of}: {len(requests)} to compile, at most {left} rounds more")
        names = [f"{one.cores}-way {of} {one.ask * one.step}" for one in open_ones if one.cores in requests]
        found = answers(list(requests.values()), cache, names=names, tell=tell, jobs=jobs)
        answered = dict(zip(requests, found, strict=True))
        for one in open_ones:
            said = answered[one.cores].said if one.cores in answered else None
            told = None if said is None else verdict_of(said, topology, shape)
            one.learn(bool(told and told["fits"]), told["memory"]["total"] if told else None)
    return {
        "of": of,
        "found": [
            {
                "cores": one.cores,
                "partition": splits[one.cores]["partition"],
                "largest": one.fits * one.step or None,
                "least_refused": one.refuses * one.step if one.refuses < _MOST_STEPS else None,
                "total_bytes": one.total_bytes,
            }
            for one in brackets
        ],
    }


def _bracket(of: str, shape: Sequence[int], split: dict[str, Any]) -> _Bracket:
    step = max(STEPS[of], split["cores"] if of != "batch" else 1)
    if of == "side" and len(shape) > 3:
        step = max(STEPS["depth"], split["cores"])
    now = (
        split["batch_size"] // split["replicas"] if of == "batch" else shape[-2] if of == "side" else shape[0]
    )
    return _Bracket(cores=split["cores"], step=step, ask=max(1, now // step))


def _probe(
    asked: Request, topology: Topology, of: str, shape: tuple[int, ...], split: dict[str, Any], one: _Bracket
) -> Request | None:
    """What is compiled to know whether so much fits; None where the split cannot have it."""
    value, images = one.ask * one.step, split["batch_size"] // split["replicas"]
    if of == "batch":
        images = value
    else:
        axes = 1 if of == "depth" else len(shape) - 1
        shape = (*(value,) * axes, *shape[axes:])
    return cases(resized(asked, shape), topology, shape, (one.cores,), images)[0].request


def resized(asked: Request, shape: tuple[int, ...]) -> Request:
    """The same for images of another size: every array that lies on the image's grid changes with it."""
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
    "--set optimizer=sgd --set momentum=0.9": {"optimizer": "sgd", "momentum": 0.9},
    "--set optimizer=sgd --set momentum=0.0": {"optimizer": "sgd", "momentum": 0.0},
    "--set average_decay=0": {"average_decay": 0.0},
}


def savings(
    asked: Request,
    plan: dict[str, Any],
    *,
    cache: Cache,
    tell: Callable[[str], None] = lambda line: None,
    jobs: int | None = None,
) -> dict[str, Any] | None:
    """What each change makes of one split: of the last that does not fit, else of the recommended one.

    Returns:
        `before`, the split as it is, and `changes`, each `change` (the options to give) with its `split`; None where
        nothing could be compiled.
    """
    compiled = [split for split in plan["splits"] if "memory" in split]
    if not compiled:
        return None
    refused = [split for split in compiled if not split["fits"]]
    before = (refused or [split for split in compiled if split["cores"] == plan["recommended"]])[-1]
    changes = []
    for name, values in _CHANGES.items():
        config = asked.config.changed(**values)
        if config == asked.config or _needs_more(config, asked.config):
            continue
        tell(f"what {name} would save")
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


def _needs_more(config: TrainConfig, than: TrainConfig) -> bool:
    """Whether a config's optimizer keeps more numbers a parameter than another's."""

    def kept(one: TrainConfig) -> int:
        return {"sgd": int(bool(one.momentum)), "lars": 1}.get(one.optimizer, 2)

    return (
        kept(config) >= kept(than)
        and config.remat == than.remat
        and bool(than.average_decay) == bool(config.average_decay)
    )
