"""Plan of a config on a machine: memory and time of each split, and the recommended split.

`plan_own_step` compiles a custom step for a machine in this process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from halofeed import __version__
from halofeed.schemas.file_layout import PLAN_FORMAT
from halofeed.schemas.partition import Partition, nearest_multiples, splits_that_divide
from halofeed.system.errors import PartitionError, UsageError
from halofeed.system.wording import plural
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.compiling import (
    CompileCache,
    CompileResult,
    Tell,
    cache_folder,
    compile_all,
    compile_for,
    program_key,
)
from halofeed.trainer.plan.hlo import COLLECTIVE_KINDS, Collective, Module, collectives, peak, repeated_costs
from halofeed.trainer.plan.requests import Request, versions
from halofeed.trainer.plan.topologies import Topology, devices_of, topology_named

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
_EXCEEDS = re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_MAX_SHOWN = 12
_TOO_LARGE = (
    "the program compiles, but needs more than JAX may use of the device (XLA_PYTHON_CLIENT_MEM_FRACTION)"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One split of a machine.

    Args:
        cores: number of cores per replica.
        partition: split of the image over them, as `--partition` takes it.
        replicas: number of replicas on the machine.
        batch_size: batch size over all replicas.
        request: request to compile; None if the split is impossible.
        refused: reason why the split is impossible.
        nearest: nearest image shapes that this split divides, each with its share of additional pixels.
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
    """Return a case for each number of cores per replica.

    Args:
        asked: request with the config, and with the data set if there is one.
        topology: machine to compile for.
        shape: shape of one image, channel last.
        cores: numbers of cores per replica, each a divisor of the machine's cores; empty takes 1, 2, 4, ... up to 16.
        images_per_replica: batch size per replica; None keeps the config's batch size.

    Raises:
        UsageError: a number does not divide the machine's cores.
    """
    counts = tuple(cores) or tuple(count for count in topology.splits() if count <= 16)
    for count in counts:
        try:
            Partition(cores_per_replica=count).replicas(topology.devices)
        except PartitionError:
            raise UsageError(
                f"--cores-per-replica {count}: {topology.name} has {plural(topology.devices, 'core')}; it can be "
                f"{', '.join(map(str, topology.splits()))}"
            ) from None
    return [_case(asked, topology, tuple(shape), count, images_per_replica) for count in counts]


def split_image(config: TrainConfig, shape: Sequence[int], cores: int) -> str | None:
    """Return the split of an image over cores: the config's own, else bands of rows (slabs of depth for volumes).

    If these do not divide, it is the split that divides most halvings of the image, with the least halo. None if no
    axis divides.

    >>> split_image(TrainConfig(), (512, 512, 3), 8), split_image(TrainConfig(), (300, 512, 3), 8)
    ('image=1,8,1,1', 'image=1,1,8,1')
    """
    if cores == 1:
        return ""
    # The user's own split comes before a computed one.
    if cores == config.cores_per_replica and config.partition:
        return config.partition
    splits = splits_that_divide((1, *shape), (cores,), tuple(range(1, len(shape))))[cores]
    rows = (1, cores, *(1,) * (len(shape) - 1))
    best = max(splits, key=lambda split: (split == rows, _halving_count(shape, split[1:])), default=None)
    return None if best is None else "image=" + ",".join(map(str, best))


def _halving_count(shape: Sequence[int], parts: Sequence[int]) -> int:
    """Return how often an image can be halved while each split axis divides and has two rows or more per core."""
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
        cure = " or ".join(f"--set batch_size={size}" for size in nearest_multiples(batch, replicas))
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
    """Return the case with the reason why it is impossible, and the two nearest image shapes that divide."""
    shapes = []
    for axis in range(len(shape) - 1):
        for size in nearest_multiples(shape[axis], case.cores):
            # An axis that divides already is not the obstacle.
            if size != shape[axis]:
                other = (*shape[:axis], size, *shape[axis + 1 :])
                shapes.append((other, math.prod(other) / math.prod(shape) - 1))
    shapes.sort(key=lambda entry: abs(entry[1]))
    return replace(case, refused=why, nearest=tuple(shapes[:2]))


def plan_config(
    asked: Request,
    *,
    cores: Sequence[int] = (),
    images_per_replica: int | None = None,
    cache: CompileCache,
    tell: Tell = lambda line: None,
    jobs: int | None = None,
    known_only: bool = False,
) -> dict[str, Any]:
    """Return the plan of a config on a machine, as plain JSON values.

    Args:
        asked: request with the config and the machine, and with the data set if there is one.
        cores: numbers of cores per replica, one per split; empty takes 1, 2, 4, ... up to 16.
        images_per_replica: batch size per replica; None keeps the config's batch size.
        cache: cache of the compilers' output.
        tell: function that prints a progress line.
        jobs: number of compilers at once; None is as many as cores and free memory allow.
        known_only: compile nothing and refuse a split that is not cached as `UNKNOWN`.

    Returns:
        `topology`, `config`, `image_shape`, `versions`, `splits` (one per number of cores) and `recommended`, the
        cores per replica of the recommended split, None if no split fits.

    Raises:
        UsageError: the machine, a split or the config is invalid, or no split could be compiled (with the reason).
    """
    topology = topology_named(asked.topology)
    shape = image_shape_of(asked)
    all_cases = cases(asked, topology, shape, cores, images_per_replica)
    requests = {case.cores: case.request for case in all_cases if case.request is not None}
    names = [f"{cores}-way" if cores > 1 else "unsplit" for cores in requests]
    compiled = compile_all(
        list(requests.values()), cache, names=names, tell=tell, jobs=jobs, known_only=known_only
    )
    results = dict(zip(requests, compiled, strict=True))
    splits = [split_of(case, results.get(case.cores), topology, shape) for case in all_cases]
    # Nothing was compiled and no near size would help, so the request itself is wrong.
    if not known_only and not any("memory" in split or split["nearest"] for split in splits):
        raise UsageError("; ".join(dict.fromkeys(str(split["refused"]) for split in splits)))
    return {
        **plan_head(asked, topology),
        "image_shape": list(shape),
        "splits": splits,
        "recommended": recommended(splits),
    }


def plan_head(asked: Request, topology: Topology) -> dict[str, Any]:
    """Return what every plan begins with: versions, machine and config, as plain JSON values."""
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
    }


def image_shape_of(asked: Request) -> tuple[int, ...]:
    """Return the shape of one image, channel last.

    Raises:
        UsageError: there is no data set and the config has no image shape.
    """
    if asked.facts is not None:
        return tuple(asked.facts["image_shape"])
    if asked.config.image_shape is None:
        raise UsageError(
            "the config takes its size from a data set: name the data set's folder, or a size, such as "
            "--set image_shape=[128,128,3] (for volumes [64,64,64,1])"
        )
    return asked.config.image_shape


def recommended(splits: Sequence[dict[str, Any]]) -> int | None:
    """Return the cores of the recommended split: the fewest that fit, because more cores only add communication."""
    return min((int(split["cores"]) for split in splits if split["fits"]), default=None)


def split_of(
    case: Case, result: CompileResult | None, topology: Topology, shape: Sequence[int]
) -> dict[str, Any]:
    """Return one split of a plan as plain JSON values: the case, and the verdict if something was compiled."""
    split: dict[str, Any] = {
        "cores": case.cores,
        "partition": case.partition,
        "replicas": case.replicas,
        "batch_size": case.batch_size,
        "fits": False,
        "refused": case.refused,
        "nearest": [{"image_shape": list(shape), "more_pixels": share} for shape, share in case.nearest],
    }
    if result is None:
        return split
    if result.compiled is None:
        return {**split, "refused": result.refused or "the compiler's output was lost; run the command again"}
    return {**split, **verdict_of(result.compiled, topology, shape)}


def plan_own_step(
    step: Callable[..., Any], shapes: Sequence[Any], topology: str, *, remember: bool = True
) -> dict[str, Any]:
    """Return the verdict on a custom step for one machine; see `halofeed.trainer.plan.plan`."""
    machine = topology_named(topology)
    mesh = _mesh_over(devices_of(machine), shapes, topology)
    arguments = jax.tree.map(lambda leaf: _place_on(mesh, leaf), tuple(shapes))
    jitted = step if isinstance(step, jax.stages.Wrapped) else jax.jit(step)
    with jax.set_mesh(mesh):
        lowered = jitted.lower(*arguments)
    cache = CompileCache(cache_folder() if remember else None)
    key = program_key(lowered, machine)
    compiled = cache.lookup_program(key)
    if compiled is None:
        compiled = compile_for(lowered)
        cache.store_program(key, compiled)
    argument_bytes = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(arguments)
    )
    state = dict.fromkeys(("parameters", "optimizer", "average"), 0)
    facts = {"state": state, "batch_bytes": argument_bytes, "whole_levels": []}
    return {"topology": machine.name, **verdict_of({**compiled, **facts}, machine, ())}


def _mesh_over(devices: Sequence[jax.Device], shapes: Sequence[Any], topology: str) -> Mesh:
    """Return a mesh with the axes of the shapes' meshes, or one axis of one core without any."""
    meshes = [
        leaf.sharding.mesh
        for leaf in jax.tree.leaves(tuple(shapes))
        if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    ]
    sizes = dict(meshes[0].shape) if meshes else {"core": 1}
    if any(dict(mesh.shape) != sizes for mesh in meshes):
        raise UsageError("shapes: expected one mesh for all, got meshes of different axes")
    count = math.prod(sizes.values())
    # A mesh of the user may be larger than the machine.
    if count > len(devices):
        raise UsageError(
            f"topology {topology}: has {plural(len(devices), 'core')}, the mesh of the shapes {count}"
        )
    placed = np.array(devices[:count], dtype=object).reshape(tuple(sizes.values()))
    return Mesh(placed, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _place_on(mesh: Mesh, leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()  # type: ignore[no-untyped-call]
    placed = NamedSharding(mesh, spec)  # type: ignore[no-untyped-call]
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)  # type: ignore[no-untyped-call]


def verdict_of(compiled: dict[str, Any], topology: Topology, image_shape: Sequence[int]) -> dict[str, Any]:
    """Return the figures of one split, as plain JSON values; bytes are per core.

    Args:
        compiled: output of `compile_for`, with the request's facts (`state`, `batch_bytes`, `whole_levels`).
        topology: machine that it was compiled for.
        image_shape: shape of one image, channel last.

    Returns:
        `fits`, `memory`, `levels_not_split`, `compile_seconds`; for a compiled program also `flops`,
        `bytes_accessed`, `sent_bytes` and `exchanges` by kind, `bound`, `whole_gathers` and `largest`.
    """
    common = {
        "compile_seconds": compiled["seconds"],
        "compiler_bytes": compiled["compiler_bytes"],
        "levels_not_split": compiled["whole_levels"],
    }
    if "out_of_memory" in compiled:
        return {"fits": False, "memory": _out_of_memory(compiled), **common}
    module = Module(compiled["hlo"])
    exchanged = collectives(module, topology.devices)
    sent_bytes = dict.fromkeys(COLLECTIVE_KINDS.values(), 0.0)
    counts = dict.fromkeys(COLLECTIVE_KINDS.values(), 0)
    for collective in exchanged:
        sent_bytes[collective.kind] += collective.sent_bytes
        counts[collective.kind] += collective.times
    fullest = peak(module)
    memory = _memory(compiled, fullest.bytes, fullest.unpadded_bytes)
    repeated = repeated_costs(module)
    flops, accessed = (
        compiled["cost"].get(name, 0.0) + more
        for name, more in zip(("flops", "bytes accessed"), repeated, strict=True)
    )
    fits = memory["limit"] is None or memory["total"] <= memory["limit"]
    # A GPU's compiler accepts what does not fit, and the run fails (docs/decisions.md).
    if not fits:
        memory["compiler"] = _TOO_LARGE
    return {
        "fits": fits,
        "memory": memory,
        "flops": flops,
        "bytes_accessed": accessed,
        "sent_bytes": sent_bytes,
        "exchanges": counts,
        "bound": _bound(topology, flops, accessed, sum(sent_bytes.values())),
        "whole_gathers": [one.to_json() for one in whole_gathers(exchanged, image_shape)][:_MAX_SHOWN],
        "largest": list(fullest.largest),
        **common,
    }


def whole_gathers(exchanged: Sequence[Collective], image_shape: Sequence[int]) -> list[Collective]:
    """Return the gathers of complete activations: as large as the image, or one of its halvings, along every axis.

    Gathers of weights and lists of boxes are not included. Without an image, with the shape (), all gathers are.
    """
    # A step of the user has no image to compare with.
    if not image_shape:
        return [one for one in exchanged if one.kind == "gathers"]
    sides = [_halvings(size) for size in image_shape[:-1]]
    return [
        one
        for one in exchanged
        if one.kind == "gathers"
        and len(one.result_shape) > len(sides)
        and _level(one.result_shape, sides) is not None
    ]


def _level(shape: Sequence[int], sides: Sequence[Sequence[int]]) -> int | None:
    """Return the level whose sizes are consecutive in a shape; 0 is the image's own, None is no level."""
    for level in range(min(map(len, sides))):
        sizes = tuple(side[level] for side in sides)
        if any(tuple(shape[at : at + len(sizes)]) == sizes for at in range(len(shape))):
            return level
    return None


def _halvings(size: int) -> list[int]:
    found = [size]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def _memory(compiled: dict[str, Any], live: int, live_unpadded: int) -> dict[str, Any]:
    """Return a core's memory by purpose; `padding` is that of arguments and of the arrays at peak memory."""
    sizes = compiled["memory"]
    # Results that reuse the memory of donated arguments ("alias") take none.
    temporary = sizes["temp"] + max(0, sizes["output"] - sizes["alias"])
    padding_share = 1 - live_unpadded / live if live else 0.0
    argument_padding = max(0, sizes["argument"] - sum(_arguments(compiled).values()))
    return {
        "total": sizes["argument"] + temporary + sizes["generated_code"],
        **_arguments(compiled),
        "activations": round(temporary * (1 - padding_share)),
        "padding": round(temporary * padding_share) + argument_padding,
        "program": sizes["generated_code"],
        "limit": compiled.get("device_bytes"),
    }


def memory_limit(message: str) -> int | None:
    """Return the memory of a core that programs may use, from the compiler's message that one needs more.

    >>> memory_limit("the total memory required for HLO temporaries (2.00T) exceeds available HBM (94.75G).") / 2**30
    94.75
    """
    found = _USED.search(message) or _EXCEEDS.search(message)
    return _bytes(found[3], found[4]) if found else None


def _out_of_memory(compiled: dict[str, Any]) -> dict[str, Any]:
    """Return the required and the available memory in the compiler's message."""
    message = compiled["out_of_memory"]
    used, early = _USED.search(message), _EXCEEDS.search(message)
    total = _bytes(used[1], used[2]) if used else None
    if early:  # this message does not count the arguments
        total = _bytes(early[1], early[2]) + sum(_arguments(compiled).values())
    return {
        "total": total,
        **_arguments(compiled),
        "limit": memory_limit(message),
        "compiler": message.splitlines()[0][:500],
    }


def _arguments(compiled: dict[str, Any]) -> dict[str, int]:
    state = compiled["state"]
    return {
        "parameters": state["parameters"] + state["average"],
        "optimizer": state["optimizer"],
        "batch": compiled["batch_bytes"],
    }


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _bound(topology: Topology, flops: float, accessed: float, sent: float) -> dict[str, Any] | None:
    """Return the lower bound of a step's time: the largest of compute, memory and link time at published rates."""
    chip = topology.chip
    if chip is None:
        return None
    seconds = {
        "compute": flops / chip.flops_per_second,
        "memory": accessed / chip.memory_bytes_per_second,
        "links": 0.0 if chip.link_bytes_per_second is None else sent / chip.link_bytes_per_second,
    }
    longest = max(seconds, key=lambda name: seconds[name])
    return {**seconds, "step": seconds[longest], "by": longest}
