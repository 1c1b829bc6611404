"""Which activations of a program stay whole on every core of a replica, and why?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax

from halofeed.schemas.partition import Dims
from halofeed.trainer.mesh import why_whole


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
