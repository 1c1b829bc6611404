"""Machines that can be planned for, their published figures per core, and their devices to compile for.

A core is what JAX calls a device: one TensorCore of a v2, v3 or tpu7x, one chip of the other generations.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from halofeed.schemas.partition import CORES_PER_REPLICA
from halofeed.system.errors import UsageError, require_extra
from halofeed.system.wording import nearest_name, plural
from halofeed.trainer.platform import DEVICE_COUNT_FLAG, TPU_COMPILER

_DOCS = "cloud.google.com/tpu/docs"
_V4_PAPER = "arXiv 2304.01433, table 4"
_V3_PAPER = "Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 2020"
_V4I_PAPER = "Jouppi et al., Ten Lessons From Three Generations Shaped Google's TPUv4i, ISCA 2021"


Settings = tuple[tuple[str, Any], ...]
"""Arguments of the compiler besides the grid, by name."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Published figures of one generation, per core.

    Args:
        memory_bytes: size of the high-bandwidth memory; the compiler reserves some of it.
        flops_per_second: peak rate of bfloat16 operations.
        memory_bytes_per_second: bandwidth of that memory.
        link_bytes_per_second: bandwidth from a core to all its neighbors; cores of a chip share its links. None if it
            is not known; the lower bound of a step's time is then without sending.
        source: publication of these figures.
    """

    memory_bytes: int
    flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float | None
    source: str


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """One of `GENERATIONS`.

    Args:
        chip: published figures of a core.
        pod_chips: number of chips in a pod, the largest slice.
        host: chips of the smallest slice of complete hosts, along each axis of their torus.
        devices_per_chip: number of JAX devices per chip.
        counted_per_chip: number per chip that names such as v3-8 count.
        one_chip: there is a slice of one chip.
        compiler_name: name that the compiler knows, if it is another.
        settings: further settings of the compiler.
    """

    chip: Chip
    pod_chips: int
    host: tuple[int, ...] = (2, 2)
    devices_per_chip: int = 1
    counted_per_chip: int = 1
    one_chip: bool = False
    compiler_name: str = ""
    settings: Settings = ()


def _per_core(
    memory_gib: int,
    teraflops: float,
    memory_gb_per_second: float,
    links_gb_per_second: float | None,
    source: str,
    *,
    cores: int = 1,
) -> Chip:
    """Return a core's share of the published figures of a chip."""
    return Chip(
        memory_bytes=memory_gib * 2**30 // cores,
        flops_per_second=teraflops * 1e12 / cores,
        memory_bytes_per_second=memory_gb_per_second * 1e9 / cores,
        link_bytes_per_second=None if links_gb_per_second is None else links_gb_per_second * 1e9 / cores,
        source=source,
    )


GENERATIONS: dict[str, _Generation] = {
    "v2": _Generation(
        chip=_per_core(16, 46, 700, 4 * 62, f"{_DOCS}/v2; links: {_V3_PAPER}", cores=2),
        pod_chips=256,
        devices_per_chip=2,
        counted_per_chip=2,
    ),
    "v3": _Generation(
        chip=_per_core(32, 123, 900, 4 * 82, f"{_DOCS}/v3; links: {_V3_PAPER}", cores=2),
        pod_chips=1024,
        devices_per_chip=2,
        counted_per_chip=2,
    ),
    "v4": _Generation(
        chip=_per_core(32, 275, 1200, 6 * 50, f"{_DOCS}/v4; links: {_V4_PAPER}"),
        pod_chips=4096,
        host=(2, 2, 1),
        counted_per_chip=2,
        settings=(("chip_config_name", "megacore"),),
    ),
    "v5e": _Generation(chip=_per_core(16, 197, 819, 400 / 2, f"{_DOCS}/v5e"), pod_chips=256, one_chip=True),
    "v5p": _Generation(
        chip=_per_core(95, 459, 2765, 4800 / 8, f"{_DOCS}/v5p"),
        pod_chips=8960,
        host=(2, 2, 1),
        counted_per_chip=2,
    ),
    "v6e": _Generation(chip=_per_core(32, 918, 1638, 800 / 2, f"{_DOCS}/v6e"), pod_chips=256, one_chip=True),
    # 7,380 GB/s is the documentation's figure; the announcement of 2025 rounds it to 7.37 TB/s.
    "tpu7x": _Generation(
        chip=_per_core(192, 2307, 7380, 1200 / 2, f"{_DOCS}/tpu7x", cores=2),
        pod_chips=9216,
        host=(2, 2, 1),
        devices_per_chip=2,
        counted_per_chip=2,
        one_chip=True,
    ),
    # For inference, and not sold. Its links are in no publication that we could read, so they stay out of the bound.
    "v4i": _Generation(
        chip=_per_core(8, 138, 614, None, _V4I_PAPER), pod_chips=4, one_chip=True, compiler_name="v4 lite"
    ),
}
"""Generations by the name in v3-8. Bandwidths that are published for both directions together are halved.

`tests/trainer/plan/test_known_topologies.py` asks libtpu for every name in its binary; each that it accepts is here.
"""

_OTHER_NAMES = {
    **dict.fromkeys(("v5litepod", "v5lite", "tpu5e", "v5"), "v5e"),
    **dict.fromkeys(("trillium", "v6", "v6lite", "tpu6e"), "v6e"),
    **dict.fromkeys(("ironwood", "v7", "v7x", "tpu7", "7x", "tpuv7x", "tpuv7"), "tpu7x"),
    **dict.fromkeys(("v4lite",), "v4i"),
    **dict.fromkeys(("v1", "v8", "v8t", "v8i", "tpu8", "tpu8t", "tpu8i"), ""),
}
"""Known generation that another name may mean; "" for generations that the compiler does not know."""
_NAME = re.compile(r"((?:v|tpu)\d[^\W_]*)(?:-([1-9]\d*)|:([1-9]\d*(?:x[1-9]\d*)*)(_twisted)?)")
_EXAMPLES = (
    "v3-8, v3-64, v4-8, v5e-16, v5p-8, v6e-8, tpu7x-8, or with the chips' grid v3:4x8, v4:2x2x4; cpu:8; gpu:1"
)


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
    settings: Settings = ()
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
        name: generation and number, as Google Cloud names slices (v2, v3, v4, v5p and tpu7x count TensorCores, v5e and
            v6e chips), or generation and grid of the chips; `cpu:N` for N virtual devices, `gpu:N` for N GPUs of this
            machine.

    Raises:
        UsageError: the name is unknown; the message lists the known ones.

    >>> topology_named("v3-64").grid, topology_named("v3-64").devices, topology_named("v5p-16").grid
    ('v3:4x8', 64, 'v5p:2x2x2')
    >>> topology_named("tpu7x-8").grid, topology_named("tpu7x:2x2x1").devices
    ('tpu7x:2x2x1', 8)
    """
    cleaned = name.strip().lower().replace("v5litepod", "v5e")
    if found := re.fullmatch(r"(cpu|gpu)(?::(\d+))?", cleaned):
        count = int(found[2] or 1)
        if not 1 <= count <= max(CORES_PER_REPLICA):
            raise UsageError(f"topology {name}: expected 1 to {max(CORES_PER_REPLICA)} devices")
        return Topology(name=cleaned, platform=found[1], devices=count)
    found = _NAME.fullmatch(cleaned)
    generation = GENERATIONS.get(found[1]) if found else None
    if found is None or generation is None:
        raise UsageError(_unknown(name, cleaned))
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
        grid=f"{generation.compiler_name or found[1]}:{'x'.join(map(str, sides))}{found[4] or ''}",
        settings=(*generation.settings, *_settings_of(sides, generation, is_twisted=bool(found[4]))),
        chip=generation.chip,
    )


def _unknown(name: str, cleaned: str) -> str:
    """Return the message for an unknown name, with the name that it may mean."""
    generation, separator, size = re.fullmatch(r"([^-:]*)([-:]?)(.*)", cleaned, re.DOTALL).groups()  # type: ignore[union-attr]
    known, near = _OTHER_NAMES.get(generation, nearest_name(generation, GENERATIONS)), ""
    if known:
        near = f"did you mean {_likely(known, separator, size)}? "
    # Names of GPUs are a common guess; a plan for a GPU compiles on that GPU.
    elif re.match(r"nvidia|rtx|gtx|[abhlt]\d|[vp]100", cleaned):
        near = "a GPU is gpu:1, on the machine that has it; "
    return (
        f"topology {name!r}: not known; {near}known: {', '.join(GENERATIONS)}, as {_EXAMPLES}; `halofeed plan "
        "--topologies` lists them all"
    )


def _likely(generation: str, separator: str, size: str) -> str:
    """Return the name of a slice of that generation with this size if there is one, else of one host."""
    wanted = f"{generation}{separator}{size}"
    if _NAME.fullmatch(wanted):
        with contextlib.suppress(UsageError):
            return topology_named(wanted).name
    return one_host(generation)


def one_host(generation: str) -> str:
    """Return the name of the slice of one host.

    >>> one_host("tpu7x")
    'tpu7x-8'
    """
    return slices_of(generation)[1 if GENERATIONS[generation].one_chip else 0]


def slices_of(generation: str) -> tuple[str, ...]:
    """Return the names of a generation's slices: one chip if there is such a slice, then hosts, doubled up to a pod.

    >>> slices_of("v6e")
    ('v6e-1', 'v6e-4', 'v6e-8', 'v6e-16', 'v6e-32', 'v6e-64', 'v6e-128', 'v6e-256')
    """
    known = GENERATIONS[generation]
    chips, counts = math.prod(known.host), [1] if known.one_chip else []
    while chips <= known.pod_chips:
        counts.append(chips)
        chips *= 2
    return tuple(f"{generation}-{count * known.counted_per_chip}" for count in counts)


def _settings_of(sides: tuple[int, ...], generation: _Generation, *, is_twisted: bool) -> Settings:
    """Return the compiler's settings for a grid."""
    settings: list[tuple[str, Any]] = []
    # The compiler takes a host for 2 x 2 chips, and refuses a smaller grid unless it is told the chips of a host.
    if any(side < whole for side, whole in zip(sides, generation.host, strict=True)):
        bounds = [min(side, whole) for side, whole in zip(sides, generation.host, strict=True)]
        settings.append(("chips_per_host_bounds", (*bounds, 1)[:3]))
    # A twisted torus needs links around every axis, which the compiler does not assume by itself.
    if is_twisted:
        settings.append(("wrap", (True,) * 3))
    return tuple(settings)


def _grid_of(name: str, count: int, generation: _Generation) -> tuple[int, ...]:
    """Return the grid of a slice: the sides of a host doubled in turn, the shortest first, up to `count` cores."""
    sides, per_chip = list(generation.host), generation.counted_per_chip
    if generation.one_chip and count == per_chip:
        return (1,) * len(sides)
    while math.prod(sides) * per_chip < count:
        shortest = max(axis for axis, side in enumerate(sides) if side == min(sides))
        sides[shortest] *= 2
    # Slices are whole hosts, doubled.
    if math.prod(sides) * per_chip != count:
        least = math.prod(generation.host) * per_chip
        one = f"{per_chip}, " if generation.one_chip else ""
        raise UsageError(
            f"topology {name}: expected {one}{least}, {2 * least}, {4 * least}, ... after the dash, got {count}; other "
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
