"""How does a config become a plan: a verdict for each split of a machine, and the one to take?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from halofeed import __version__
from halofeed.schemas.errors import UsageError
from halofeed.schemas.plan import PLAN_FORMAT
from halofeed.trainer.plan.cache import Cache
from halofeed.trainer.plan.children import Answer, answers
from halofeed.trainer.plan.request import Request, versions
from halofeed.trainer.plan.splits import Case, cases
from halofeed.trainer.plan.topologies import Topology, topology_named
from halofeed.trainer.plan.verdict import verdict_of

Tell = Callable[[str], None]


def plan_config(
    asked: Request,
    *,
    cores: Sequence[int] = (),
    images_per_replica: int | None = None,
    cache: Cache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
    known_only: bool = False,
) -> dict[str, Any]:
    """The plan of a config on a machine, as plain JSON values.

    Args:
        asked: the config, the machine, and the data set where there is one.
        cores: of a replica, each number a split; none takes 1, 2, 4, ... up to 16.
        images_per_replica: None keeps the config's batch, spread over the replicas.
        cache: of what compilers said.
        tell: is given lines of progress.
        jobs: how many compilers run at once; None is as many as cores and free memory allow.
        known_only: compile nothing; a split that is not known is refused as `UNKNOWN`.

    Returns:
        `topology`, `config`, `image_shape`, `versions`, `splits` (one for each number of cores) and `recommended`, the
        cores of a replica of the split to take; None where nothing fits.

    Raises:
        UsageError: a machine, a split or a config that cannot be; no split could be compiled, with the reason.
    """
    topology = topology_named(asked.topology)
    shape = image_shape_of(asked)
    wanted = cases(asked, topology, shape, cores, images_per_replica)
    requests = {case.cores: case.request for case in wanted if case.request is not None}
    names = [f"{cores}-way" if cores > 1 else "unsplit" for cores in requests]
    asking = list(requests.values())
    found = answers(asking, cache, names=names, tell=tell, jobs=jobs, known_only=known_only)
    answered = dict(zip(requests, found, strict=True))
    splits = [_split(case, answered.get(case.cores), topology, shape) for case in wanted]
    if not known_only and not any("memory" in split or split["nearest"] for split in splits):
        raise UsageError("; ".join(dict.fromkeys(str(split["refused"]) for split in splits)))
    chip = topology.chip
    return {
        "format": PLAN_FORMAT,
        "halofeed": __version__,
        "versions": versions(),
        "topology": {
            "name": topology.name,
            "platform": topology.platform,
            "cores": topology.devices,
            "grid": topology.grid,
            "chip": None if chip is None else asdict(chip),
        },
        "config": asked.config.to_json(),
        "image_shape": list(shape),
        "splits": splits,
        "recommended": recommended(splits),
    }


def image_shape_of(asked: Request) -> tuple[int, ...]:
    """Of one image, the channel last.

    Raises:
        UsageError: a config that stands alone and names no size.
    """
    if asked.facts is not None:
        return tuple(asked.facts["image_shape"])
    if asked.config.image_shape is None:
        raise UsageError(
            "the config takes what a data set has: name the data set's folder, or a size, such as "
            "--set image_shape=[128,128,3] (of volumes [64,64,64,1])"
        )
    return asked.config.image_shape


def recommended(splits: Sequence[dict[str, Any]]) -> int | None:
    """The cores of the split to take: the fewest that fit, since each further core adds only what is sent."""
    return min((int(split["cores"]) for split in splits if split["fits"]), default=None)


def _split(case: Case, answer: Answer | None, topology: Topology, shape: Sequence[int]) -> dict[str, Any]:
    split: dict[str, Any] = {
        "cores": case.cores,
        "partition": case.partition,
        "replicas": case.replicas,
        "batch_size": case.batch_size,
        "fits": False,
        "refused": case.refused,
        "nearest": [{"image_shape": list(shape), "more_pixels": share} for shape, share in case.nearest],
    }
    if answer is None:
        return split
    if answer.said is None:
        return {**split, "refused": answer.refused or "the compiler's answer is lost; ask again"}
    return {**split, **verdict_of(answer.said, topology, shape)}


def per_core_share(fewer: dict[str, Any], more: dict[str, Any]) -> float:
    """By which power of p/q memory falls from p to q cores: 1 is in proportion."""
    ratio = more["memory"]["total"] / fewer["memory"]["total"]
    return math.log(ratio) / math.log(fewer["cores"] / more["cores"])
