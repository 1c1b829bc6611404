"""Which models can be trained? A new one is one file and one line in `MODELS`."""

from __future__ import annotations

from halofeed.schemas.errors import UsageError
from halofeed.trainer.models.classifier import Classifier

MODELS: dict[str, type[Classifier]] = {"classifier": Classifier}


def model_named(name: str) -> type[Classifier]:
    """The model of that name; UsageError that lists the known ones."""
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name]
