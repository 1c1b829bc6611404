"""Which activations of a program stay whole on every core of a replica, and why?

What does a compiler's answer mean: does it fit, what fills the memory, what is sent, and how fast is it at best?
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import why_whole
from halofeed.trainer.plan.hlo import KINDS, Collective, Module, collectives, peak
from halofeed.trainer.plan.topologies import Topology


def whole_levels(traced: jax.stages.Traced, dims: Dims) -> list[dict[str, Any]]:
    """The sizes that are not split, the finest first, each with how many activations have it and the reason.

    Read off the program itself: every layer holds its activation to a split (`Pass.hold`).
    """
    if dims is None:
        return []
    counts: dict[tuple[tuple[int, ...], str], int] = {}
    for shape in _held(traced.jaxpr.jaxpr):
        if len(shape) == len(dims) and (reason := why_whole(shape, dims)) is not None:
            key = shape[1:-1], reason
            counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda entry: -math.prod(entry[0][0]))
    return [
        {"sizes": list(sizes), "reason": reason, "activations": count} for (sizes, reason), count in ordered
    ]


def _held(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            yield tuple(equation.outvars[0].aval.shape)
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _held(inner)
                elif hasattr(inner, "jaxpr") and hasattr(inner.jaxpr, "eqns"):
                    yield from _held(inner.jaxpr)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_MOST_SHOWN = 12
_TOO_LARGE = "the program is made, but takes more than JAX may of the device (XLA_PYTHON_CLIENT_MEM_FRACTION)"


def verdict_of(said: dict[str, Any], topology: Topology, image_shape: Sequence[int]) -> dict[str, Any]:
    """The figures of one split, as plain JSON values; bytes are a core's.

    Args:
        said: of `compile_for`, with `state` and `whole_levels`.
        topology: what it was compiled for.
        image_shape: of one image, the channel last.

    Returns:
        `fits`, `memory`, `levels_not_split`, `compile_seconds`; where there is a program also `flops`,
        `bytes_accessed`, `sent_bytes` and `exchanges` by kind, `bound`, `whole_gathers` and `largest`.
    """
    common = {
        "compile_seconds": said["seconds"],
        "compiler_bytes": said["compiler_bytes"],
        "levels_not_split": said["whole_levels"],
    }
    if "out_of_memory" in said:
        return {"fits": False, "memory": _refused_memory(said), **common}
    module = Module(said["hlo"])
    exchanged = collectives(module, topology.devices)
    kinds = dict.fromkeys(KINDS.values(), 0.0)
    counts = dict.fromkeys(KINDS.values(), 0)
    for one in exchanged:
        kinds[one.kind] += one.sent_bytes
        counts[one.kind] += one.times
    fullest = peak(module)
    memory = _memory(said, fullest.bytes, fullest.unpadded_bytes)
    flops, accessed = (said["cost"].get(name, 0.0) for name in ("flops", "bytes accessed"))
    fits = memory["limit"] is None or memory["total"] <= memory["limit"]
    if not fits:
        memory["compiler"] = _TOO_LARGE
    return {
        "fits": fits,
        "memory": memory,
        "flops": flops,
        "bytes_accessed": accessed,
        "sent_bytes": kinds,
        "exchanges": counts,
        "bound": _bound(topology, flops, accessed, sum(kinds.values())),
        "whole_gathers": [one.to_json() for one in whole_gathers(exchanged, image_shape)][:_MOST_SHOWN],
        "largest": list(fullest.largest),
        **common,
    }


def whole_gathers(exchanged: Sequence[Collective], image_shape: Sequence[int]) -> list[Collective]:
    """The gathers whose result is a whole activation: as long as the image, or one of its halvings, along every axis.

    Sums of weights and lists of boxes are none. Where the image is not known, () stands for its shape and every gather
    is given.
    """
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
    """The level whose sizes stand side by side in a shape, 0 the image's own."""
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


def _memory(said: dict[str, Any], live: int, live_unpadded: int) -> dict[str, Any]:
    """What a core's memory holds; `padding` is what tiles add to arguments, and to the arrays of the fullest moment."""
    sizes = said["memory"]
    temporary = sizes["temp"] + max(0, sizes["output"] - sizes["alias"])
    of_live = 1 - live_unpadded / live if live else 0.0
    return {
        "total": sizes["argument"] + temporary + sizes["generated_code"],
        **_arguments(said),
        "activations": round(temporary * (1 - of_live)),
        "padding": round(temporary * of_live) + max(0, sizes["argument"] - sum(_arguments(said).values())),
        "program": sizes["generated_code"],
        "limit": said.get("device_bytes"),
    }


def _refused_memory(said: dict[str, Any]) -> dict[str, Any]:
    """What the compiler says it would need, and has."""
    words = said["out_of_memory"]
    used = re.search(rf"Used {_SIZE} of {_SIZE} hbm", words)
    early = re.search(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)", words)
    total = _bytes(used[1], used[2]) if used else None
    if early:  # said before the arguments are counted
        total = _bytes(early[1], early[2]) + sum(_arguments(said).values())
    used = used or early
    return {
        "total": total,
        **_arguments(said),
        "limit": _bytes(used[3], used[4]) if used else None,
        "compiler": words.splitlines()[0][:500],
    }


def _arguments(said: dict[str, Any]) -> dict[str, int]:
    state = said["state"]
    return {
        "parameters": state["parameters"] + state["average"],
        "optimizer": state["optimizer"],
        "batch": said["batch_bytes"],
    }


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _bound(topology: Topology, flops: float, accessed: float, sent: float) -> dict[str, Any] | None:
    """No step takes less: each figure over what is published, and the longest of the three."""
    chip = topology.chip
    if chip is None:
        return None
    seconds = {
        "compute": flops / chip.flops_per_second,
        "memory": accessed / chip.memory_bytes_per_second,
        "links": sent / chip.link_bytes_per_second,
    }
    longest = max(seconds, key=lambda name: seconds[name])
    return {**seconds, "step": seconds[longest], "by": longest}
