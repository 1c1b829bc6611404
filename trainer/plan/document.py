"""Which splits of a config are compiled for a machine, and which cannot be, with what could in their place?

How does a config become a plan: a verdict for each split of a machine, and the one to take?

How is a step of the user's own compiled for a machine, in this process?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from halofeed import __version__
from halofeed.errors import PartitionError, UsageError
from halofeed.schemas.files import PLAN_FORMAT
from halofeed.schemas.partition import Partition, nearest, splits_that_divide
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.answers import Cache, cache_folder, compile_for, program_key
from halofeed.trainer.plan.children import Answer, answers
from halofeed.trainer.plan.requests import Request, versions
from halofeed.trainer.plan.topologies import Topology, devices_of, topology_named
from halofeed.trainer.plan.verdict import verdict_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """One split.

    Args:
        cores: of a replica.
        partition: how the image is split over them, as `--partition` takes it.
        replicas: on the machine.
        batch_size: over all replicas.
        request: what is compiled; None where `refused` says why it cannot be.
        nearest: image shapes that could be split so, with their share of pixels more (or less).
    """

    cores: int
    partition: str
    replicas: int
    batch_size: int
    request: Request | None = None
    refused: str = ""
    nearest: tuple[tuple[tuple[int, ...], float], ...] = ()


def cases(
    asked: Request,
    topology: Topology,
    shape: Sequence[int],
    cores: Sequence[int],
    images_per_replica: int | None,
) -> list[Case]:
    """Every number of cores, with its split of the image.

    Args:
        asked: the config, with the data set where there is one.
        topology: to compile for.
        shape: of one image, the channel last.
        cores: of a replica, each a divisor of the machine's cores; none takes 1, 2, 4, ... up to 16.
        images_per_replica: None keeps the config's batch, spread over the replicas.

    Raises:
        UsageError: cores that the machine does not have.
    """
    wanted = tuple(cores) or tuple(count for count in topology.splits() if count <= 16)
    for count in wanted:
        try:
            Partition(cores_per_replica=count).replicas(topology.devices)
        except PartitionError:
            raise UsageError(
                f"--cores-per-replica {count}: {topology.name} has {topology.devices} cores; it can be "
                f"{', '.join(map(str, topology.splits()))}"
            ) from None
    return [_case(asked, topology, tuple(shape), count, images_per_replica) for count in wanted]


def split_image(config: TrainConfig, shape: Sequence[int], cores: int) -> str | None:
    """How an image is split over so many cores: as the config says, else in bands of rows (of volumes slabs of depth).

    Where these do not divide, so that most of its halvings do, with the least halo. None where no axis divides.

    >>> split_image(TrainConfig(), (512, 512, 3), 8), split_image(TrainConfig(), (300, 512, 3), 8)
    ('image=1,8,1,1', 'image=1,1,8,1')
    """
    if cores == 1:
        return ""
    if cores == config.cores_per_replica and config.partition:
        return config.partition
    found = splits_that_divide((1, *shape), (cores,), tuple(range(1, len(shape))))[cores]
    rows = (1, cores, *(1,) * (len(shape) - 1))
    best = max(found, key=lambda split: (split == rows, _halvings(shape, split[1:])), default=None)
    return None if best is None else "image=" + ",".join(map(str, best))


def _halvings(shape: Sequence[int], parts: Sequence[int]) -> int:
    """How often an image can be halved until some split axis does not divide, or leaves a core less than two of it."""
    sizes, count = [size for size, each in zip(shape, parts, strict=True) if each > 1], 0
    split = [each for each in parts if each > 1]
    while all(size % each == 0 and size >= 2 * each for size, each in zip(sizes, split, strict=True)):
        sizes, count = [-(-size // 2) for size in sizes], count + 1
    return count


def _case(
    asked: Request, topology: Topology, shape: tuple[int, ...], cores: int, images_per_replica: int | None
) -> Case:
    replicas = topology.devices // cores
    batch = asked.config.batch_size if images_per_replica is None else images_per_replica * replicas
    partition = split_image(asked.config, shape, cores)
    case = Case(cores=cores, partition=partition or "", replicas=replicas, batch_size=batch)
    if partition is None:
        return _refused(case, f"no axis of {list(shape)} divides by {cores}", shape)
    if batch % replicas:
        cure = " or ".join(f"--set batch_size={size}" for size in nearest(batch, replicas))
        return _refused(case, f"the batch of {batch} does not divide by the {replicas} replicas: {cure}")
    try:
        config = asked.config.changed(cores_per_replica=cores, partition=partition, batch_size=batch)
        split = config.parsed_partition()
        label = {"label": (batch, *shape[:-1])} if "label" in split.dims else {}
        split.resolve({"image": (batch, *shape), **label}, replicas=replicas)
    except UsageError as error:
        return _refused(case, str(error), shape)
    arrays = asked.arrays
    if arrays is not None:
        arrays = {name: ((batch, *sizes[1:]), dtype) for name, (sizes, dtype) in arrays.items()}
    request = replace(asked, config=config, topology=topology.name, arrays=arrays)
    return replace(case, request=request)


def _refused(case: Case, why: str, shape: tuple[int, ...] = ()) -> Case:
    near = []
    for axis in range(len(shape) - 1):
        for size in nearest(shape[axis], case.cores):
            if size != shape[axis]:
                other = (*shape[:axis], size, *shape[axis + 1 :])
                near.append((other, math.prod(other) / math.prod(shape) - 1))
    near.sort(key=lambda entry: abs(entry[1]))
    return replace(case, refused=why, nearest=tuple(near[:2]))


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


def plan_step(
    step: Callable[..., Any], shapes: Sequence[Any], topology: str, *, remember: bool = True
) -> dict[str, Any]:
    """The verdict on a step for one machine; see `halofeed.trainer.plan.plan`."""
    machine = topology_named(topology)
    mesh = _mesh_over(devices_of(machine), shapes, topology)
    arguments = jax.tree.map(lambda leaf: _on(mesh, leaf), tuple(shapes))
    jitted = step if isinstance(step, jax.stages.Wrapped) else jax.jit(step)
    with jax.set_mesh(mesh):
        lowered = jitted.lower(*arguments)
    cache = Cache(cache_folder() if remember else None)
    key = program_key(lowered, machine)
    said = cache.program(key)
    if said is None:
        said = compile_for(lowered)
        cache.keep(key, said)
    held = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arguments)
    )
    known = {"state": dict.fromkeys(("parameters", "optimizer", "average"), 0), "batch_bytes": held}
    verdict = verdict_of({**said, **known, "whole_levels": []}, machine, ())
    return {"topology": machine.name, **verdict}


def _mesh_over(devices: Sequence[jax.Device], shapes: Sequence[Any], topology: str) -> Mesh:
    """A mesh of the axes that the shapes name; of one axis of one core where they name none."""
    meshes = [
        leaf.sharding.mesh
        for leaf in jax.tree.leaves(tuple(shapes))
        if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    ]
    sizes = dict(meshes[0].shape) if meshes else {"core": 1}
    if any(dict(mesh.shape) != sizes for mesh in meshes):
        raise UsageError("shapes: expected one mesh for all, got meshes of different axes")
    count = math.prod(sizes.values())
    if count > len(devices):
        raise UsageError(f"topology {topology}: has {len(devices)} cores, the mesh of the shapes {count}")
    placed = np.array(devices[:count], dtype=object).reshape(tuple(sizes.values()))
    return Mesh(placed, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _on(mesh: Mesh, leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()  # type: ignore[no-untyped-call]
    placed = NamedSharding(mesh, spec)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)  # type: ignore[no-untyped-call]
