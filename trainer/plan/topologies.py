"""Machines that can be planned for, their published figures per core, and their devices to compile for.

A core is what JAX calls a device: one TensorCore of a v2 or v3, one chip of later generations.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from halofeed.schemas.partition import CORES_PER_REPLICA
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.wording import did_you_mean, plural
from halofeed.trainer.platform import DEVICE_COUNT_FLAG, TPU_COMPILER

_DOCS = "cloud.google.com/tpu/docs"
_V4_PAPER = "arXiv 2304.01433, table 4"
_V3_PAPER = "Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 2020"


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Published figures of one generation, per core.

    Args:
        memory_bytes: size of the high-bandwidth memory; the compiler reserves some of it.
        flops_per_second: peak rate of bfloat16 operations.
        memory_bytes_per_second: bandwidth of that memory.
        link_bytes_per_second: bandwidth from a core to all its neighbors; cores of a chip share its links.
        source: publication of these figures.
    """

    memory_bytes: int
    flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """One of `GENERATIONS`.

    Args:
        chip: published figures of a core.
        host: chips of the smallest slice of complete hosts, along each axis of their torus.
        devices_per_chip: number of JAX devices per chip.
        counted_per_chip: number per chip that names such as v3-8 count.
        settings: further settings of the compiler.
    """

    chip: Chip
    host: tuple[int, ...] = (2, 2)
    devices_per_chip: int = 1
    counted_per_chip: int = 1
    settings: tuple[tuple[str, str], ...] = ()


def _per_core(
    memory_gib: int,
    teraflops: float,
    memory_gb_per_second: float,
    links_gb_per_second: float,
    source: str,
    *,
    cores: int = 1,
) -> Chip:
    """Return a core's share of the published figures of a chip."""
    return Chip(
        memory_bytes=memory_gib * 2**30 // cores,
        flops_per_second=teraflops * 1e12 / cores,
        memory_bytes_per_second=memory_gb_per_second * 1e9 / cores,
        link_bytes_per_second=links_gb_per_second * 1e9 / cores,
        source=source,
    )


GENERATIONS: dict[str, _Generation] = {
    "v2": _Generation(
        chip=_per_core(16, 46, 700, 4 * 62, f"{_DOCS}/v2; links: {_V3_PAPER}", cores=2),
        devices_per_chip=2,
        counted_per_chip=2,
    ),
    "v3": _Generation(
        chip=_per_core(32, 123, 900, 4 * 82, f"{_DOCS}/v3; links: {_V3_PAPER}", cores=2),
        devices_per_chip=2,
        counted_per_chip=2,
    ),
    "v4": _Generation(
        chip=_per_core(32, 275, 1200, 6 * 50, f"{_DOCS}/v4; links: {_V4_PAPER}"),
        host=(2, 2, 1),
        counted_per_chip=2,
        settings=(("chip_config_name", "megacore"),),
    ),
    "v5e": _Generation(chip=_per_core(16, 197, 819, 400 / 2, f"{_DOCS}/v5e")),
    "v5p": _Generation(
        chip=_per_core(95, 459, 2765, 4800 / 8, f"{_DOCS}/v5p"), host=(2, 2, 1), counted_per_chip=2
    ),
    "v6e": _Generation(chip=_per_core(32, 918, 1638, 800 / 2, f"{_DOCS}/v6e")),
}
"""Generations by the name in v3-8. Bandwidths that are published for both directions together are halved."""

_EXAMPLES = "v3-8, v3-64, v4-8, v5e-16, v5p-8, v6e-8, or with the chips' grid v3:4x8, v4:2x2x4; cpu:8; gpu:1"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Machine to compile for.

    Args:
        name: name that the user gave.
        platform: "tpu", "cpu" or "gpu".
        devices: number of cores.
        grid: grid of a TPU's chips in its compiler's notation, "v3:2x2".
        settings: further settings of that compiler.
        chip: published figures of a core; None for CPUs and GPUs.
    """

    name: str
    platform: str
    devices: int
    grid: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    chip: Chip | None = None

    def splits(self) -> tuple[int, ...]:
        """Return the numbers of cores over which a replica can be split.

        >>> topology_named("v3-8").splits()
        (1, 2, 4, 8)
        """
        return tuple(cores for cores in CORES_PER_REPLICA if self.devices % cores == 0)


def topology_named(name: str) -> Topology:
    """Return the machine of a name.

    Args:
        name: generation and number, as Google Cloud names slices (v2, v3, v4 and v5p count TensorCores, v5e and v6e
            chips), or generation and grid of the chips; `cpu:N` for N virtual devices, `gpu:N` for N GPUs of this
            machine.

    Raises:
        UsageError: the name is unknown; the message lists the known ones.

    >>> topology_named("v3-64").grid, topology_named("v3-64").devices, topology_named("v5p-16").grid
    ('v3:4x8', 64, 'v5p:2x2x2')
    """
    cleaned = name.strip().lower().replace("v5litepod", "v5e")
    if found := re.fullmatch(r"(cpu|gpu)(?::(\d+))?", cleaned):
        count = int(found[2] or 1)
        if not 1 <= count <= max(CORES_PER_REPLICA):
            raise UsageError(f"topology {name}: expected 1 to {max(CORES_PER_REPLICA)} devices")
        return Topology(name=cleaned, platform=found[1], devices=count)
    found = re.fullmatch(r"(v\d\w*)(?:-(\d+)|:(\d+(?:x\d+)*))", cleaned)
    generation = GENERATIONS.get(found[1]) if found else None
    if found is None or generation is None:
        near = did_you_mean(cleaned, GENERATIONS)
        # Names of GPUs are a common guess; a plan for a GPU compiles on that GPU.
        if re.match(r"nvidia|rtx|gtx|[ahlt]\d|[vp]100", cleaned):
            near = "a GPU is gpu:1, on the machine that has it; "
        raise UsageError(
            f"topology {name!r}: not known; {near}known: {', '.join(GENERATIONS)}, as {_EXAMPLES}"
        )
    if found[2]:
        sides = _grid_of(name, int(found[2]), generation)
    else:
        sides = tuple(map(int, found[3].split("x")))
        if len(sides) != len(generation.host):
            raise UsageError(
                f"topology {name}: the grid of {found[1]} has {len(generation.host)} axes; name it as "
                f"{found[1]}:{'x'.join(map(str, generation.host))}"
            )
    return Topology(
        name=cleaned,
        platform="tpu",
        devices=math.prod(sides) * generation.devices_per_chip,
        grid=f"{found[1]}:{'x'.join(map(str, sides))}",
        settings=generation.settings,
        chip=generation.chip,
    )


def _grid_of(name: str, count: int, generation: _Generation) -> tuple[int, ...]:
    """Return the grid of a slice: the sides of a host doubled in turn, the shortest first, up to `count` cores."""
    sides, per_chip = list(generation.host), generation.counted_per_chip
    while math.prod(sides) * per_chip < count:
        shortest = max(axis for axis, side in enumerate(sides) if side == min(sides))
        sides[shortest] *= 2
    # Slices are whole hosts, doubled.
    if math.prod(sides) * per_chip != count:
        least = math.prod(generation.host) * per_chip
        raise UsageError(
            f"topology {name}: expected {least}, {2 * least}, {4 * least}, ... after the dash, got {count}; other "
            "slices are named by the grid of their chips"
        )
    return tuple(sides)


def devices_of(topology: Topology) -> Sequence[jax.Device]:
    """Return the devices of a machine, in JAX's order; a TPU's devices serve only for compiling.

    Raises:
        MissingExtraError: the TPU's compiler is not installed.
        UsageError: this machine has no such devices, or the compiler rejects the machine's name.
    """
    if topology.platform == "tpu":
        return _tpu_devices(topology)
    try:
        found = jax.devices(topology.platform)
    except RuntimeError as error:
        raise UsageError(f"topology {topology.name}: this machine has no such device: {error}") from error
    if len(found) < topology.devices:
        cure = "name a smaller one"
        if topology.platform == "cpu":
            cure = f"set XLA_FLAGS={DEVICE_COUNT_FLAG}={topology.devices} before JAX starts"
        raise UsageError(
            f"topology {topology.name}: this process has {plural(len(found), f'{topology.platform} device')}; {cure}"
        )
    return found[: topology.devices]


def _tpu_devices(topology: Topology) -> Sequence[jax.Device]:
    with require_extra("plan", "libtpu"):
        import libtpu  # noqa: F401
    from jax.experimental import topologies

    # libtpu reads these variables when it is loaded.
    for name, value in TPU_COMPILER.items():
        os.environ.setdefault(name, value)
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology.grid, **dict(topology.settings)
        ).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(
            f"topology {topology.name} ({topology.grid}): the compiler rejects it: {first}"
        ) from error
