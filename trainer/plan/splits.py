"""Which splits of a config are compiled for a machine, and which cannot be, with what could in their place?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from halofeed.schemas.errors import PartitionError, UsageError
from halofeed.schemas.partition import Partition, nearest, splits_that_divide
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.plan.request import Request
from halofeed.trainer.plan.topologies import Topology


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
