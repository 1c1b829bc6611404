"""Topologies that the installed libtpu compiles for, found by asking it.

libtpu has no list of its machines. It accepts or refuses one name at a time, so every name in its binary that looks
like a TPU's is tried, and so is every slice of the generations that have published figures. Names, number of devices
and the memory for programs are libtpu's answers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from halofeed.storage.paths import open_path
from halofeed.system.errors import UsageError
from halofeed.trainer.plan.compiling import CompileCache
from halofeed.trainer.plan.document import memory_limit
from halofeed.trainer.plan.requests import versions
from halofeed.trainer.plan.topologies import (
    GENERATIONS,
    Topology,
    devices_of,
    one_host,
    slices_of,
    topology_named,
)

_NAME_IN_BINARY = re.compile(rb"\x00TPU( ?v?\d[A-Za-z0-9 ]{0,11})(?=\x00)")
"""Strings such as "TPU v5 lite" and "TPU7x", the names of devices in JAX."""
_BLOCK_BYTES = 1 << 24
_TOO_LARGE = (1 << 19, 1 << 19)
"""Shape of an array of 1 TiB in float32; no core has that much memory."""


def known_topologies(cache: CompileCache) -> dict[str, Any]:
    """Return what the installed libtpu compiles for, from the cache if this version was asked before.

    Args:
        cache: cache of the compilers' output; one without a folder asks again.

    Returns:
        `libtpu` and `jax`, the versions; `generations`, a list with `name`, `device_kind` (JAX's name),
        `cores_per_chip`, `program_bytes` (memory of a core of one host that programs may use), `chip` (its published
        figures) and `slices` (each with `name`, `grid` and `cores`); `without_figures`, names of libtpu without
        published figures here, for which `halofeed plan` does not plan.

    Raises:
        MissingExtraError: libtpu is not installed.
        UsageError: libtpu refuses a slice.
    """
    found = versions()
    table = repr(sorted((name, asdict(one)) for name, one in GENERATIONS.items()))
    key = hashlib.sha256(repr((found["libtpu"], found["jax"], table)).encode()).hexdigest()[:32]
    known = cache.lookup_topologies(key)
    if known is None:
        generations = [_ask_generation(name) for name in GENERATIONS]
        kinds = {one["device_kind"] for one in generations}
        known = {
            "libtpu": found["libtpu"],
            "jax": found["jax"],
            "generations": generations,
            "without_figures": sorted(kind for kind in accepted_kinds() if kind not in kinds),
        }
        cache.store_topologies(key, known)
    return known


def _ask_generation(name: str) -> dict[str, Any]:
    """Return libtpu's answers for the slices of a generation."""
    generation, slices = GENERATIONS[name], []
    for topology in map(topology_named, slices_of(name)):
        devices = devices_of(topology)
        if len(devices) != topology.devices:
            raise UsageError(
                f"topology {topology.name}: libtpu has {len(devices)} devices for it, halofeed expects "
                f"{topology.devices}; take the version of libtpu in requirements.lock"
            )
        grid = f"{name}:{topology.grid.partition(':')[2]}"
        slices.append({"name": topology.name, "grid": grid, "cores": topology.devices})
    # libtpu keeps a little more memory for itself on a larger slice: 0.01 GiB on tpu7x-16384.
    (host,) = devices_of(topology_named(one_host(name)))[:1]
    return {
        "name": name,
        "device_kind": host.device_kind,
        "cores_per_chip": generation.devices_per_chip,
        "program_bytes": _program_bytes(host),
        "chip": asdict(generation.chip),
        "slices": slices,
    }


def _program_bytes(device: jax.Device) -> int | None:
    """Return the memory of a core that programs may use: libtpu states it when it refuses a larger program."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    array = jax.ShapeDtypeStruct(_TOO_LARGE, "float32", sharding=sharding)  # type: ignore[no-untyped-call]
    try:
        jax.jit(lambda array: array + 1).lower(array).compile()
    except jax.errors.JaxRuntimeError as error:
        return memory_limit(str(error))
    return None


def accepted_kinds() -> set[str]:
    """Return JAX's names of all devices that libtpu compiles for, whatever `GENERATIONS` has.

    libtpu takes the name of a topology without a "TPU" and a space in front of it: "v5 lite:2x2" for "TPU v5 lite".
    """
    kinds = set()
    for name in sorted(set(_names_in_binary())):
        asked = name[1:] if name.startswith(" ") else f"tpu{name}"
        topology = Topology(name=asked, platform="tpu", devices=0, grid=f"{asked}:2x2")
        try:
            kinds.add(str(devices_of(topology)[0].device_kind))
        except UsageError:  # an older spelling, or a name that other code of the binary uses
            continue
    return kinds


def _names_in_binary() -> Iterator[str]:
    spec = importlib.util.find_spec("libtpu")
    assert spec is not None and spec.origin is not None  # `devices_of` has imported it
    # The binary has 690 MB: blocks, each with the end of the block before, in which a name may begin.
    with open_path(Path(spec.origin).with_name("libtpu.so"), "rb") as file:
        before = b""
        while block := file.read(_BLOCK_BYTES):
            for found in _NAME_IN_BINARY.finditer(before + block):
                yield found[1].decode()
            before = block[-32:]
