"""Verdict on a split from the compiler's output: whether it fits, memory by purpose, traffic, lower bound of time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import reason_not_split
from halofeed.trainer.plan.hlo import COLLECTIVE_KINDS, Collective, Module, collectives, peak, repeated_costs
from halofeed.trainer.plan.topologies import Topology


def whole_levels(traced: jax.stages.Traced, dims: Dims) -> list[dict[str, Any]]:
    """Return the sizes of activations that are not split, finest first, with the reason and the number of activations.

    They are the sharding constraints of the program: every layer constrains its activation (`Pass.hold`).
    """
    if dims is None:
        return []
    counts: dict[tuple[tuple[int, ...], str], int] = {}
    for shape in _constrained_shapes(traced.jaxpr.jaxpr):
        if len(shape) == len(dims) and (reason := reason_not_split(shape, dims)) is not None:
            key = shape[1:-1], reason
            counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda entry: -math.prod(entry[0][0]))
    return [
        {"sizes": list(sizes), "reason": reason, "activations": count} for (sizes, reason), count in ordered
    ]


def _constrained_shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "sharding_constraint":
            yield tuple(equation.outvars[0].aval.shape)
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                if hasattr(inner, "eqns"):
                    yield from _constrained_shapes(inner)
                elif hasattr(inner, "jaxpr") and hasattr(inner.jaxpr, "eqns"):
                    yield from _constrained_shapes(inner.jaxpr)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
_MAX_SHOWN = 12
_TOO_LARGE = (
    "the program compiles, but needs more than JAX may use of the device (XLA_PYTHON_CLIENT_MEM_FRACTION)"
)


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


def _out_of_memory(compiled: dict[str, Any]) -> dict[str, Any]:
    """Return the required and the available memory in the compiler's message."""
    message = compiled["out_of_memory"]
    used = re.search(rf"Used {_SIZE} of {_SIZE} hbm", message)
    early = re.search(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)", message)
    total = _bytes(used[1], used[2]) if used else None
    if early:  # this message does not count the arguments
        total = _bytes(early[1], early[2]) + sum(_arguments(compiled).values())
    used = used or early
    return {
        "total": total,
        **_arguments(compiled),
        "limit": _bytes(used[3], used[4]) if used else None,
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
        "links": sent / chip.link_bytes_per_second,
    }
    longest = max(seconds, key=lambda name: seconds[name])
    return {**seconds, "step": seconds[longest], "by": longest}
