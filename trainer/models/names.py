"""What is each layer called in a compiled program? By its place in the model: `pyramid.smoothing.0.convolution`."""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx

_NAME = "name_in_program"


def name_layers(model: nnx.Module) -> None:
    """Have every layer of a model, in place, put its name on the operations that it makes; what it computes stays."""
    for path, layer in list(nnx.iter_modules(model)):
        if path and callable(layer):
            setattr(layer, _NAME, ".".join(map(str, path)))
            layer.__class__ = _named(type(layer))


@functools.cache
def _named(kind: type[nnx.Module]) -> type[nnx.Module]:
    def call(layer: Any, *given: Any, **options: Any) -> Any:
        with jax.named_scope(getattr(layer, _NAME)):
            return kind.__call__(layer, *given, **options)  # type: ignore[operator]

    return type(kind.__name__, (kind,), {"__call__": call, "__doc__": kind.__doc__})
