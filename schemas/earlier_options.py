"""What did earlier versions call the options of a recipe?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EARLIER_NAMES = {"store": "dtype", "kernel": "interpolation"}


def in_todays_names(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as JSON with today's name of each option, whichever version wrote it.

    `kernel` was of pictures and clips, beside volumes' `interpolation`; each recipe held both.

    >>> in_todays_names({"depth": None, "kernel": "tf2-area", "interpolation": "linear", "store": "uint8"})
    {'depth': None, 'interpolation': 'tf2-area', 'dtype': 'uint8'}
    >>> in_todays_names({"depth": 32, "kernel": "antialias", "interpolation": "cubic"})
    {'depth': 32, 'interpolation': 'cubic'}
    """
    idle = "kernel" if recipe.get("depth") is not None else "interpolation"
    return {
        _EARLIER_NAMES.get(name, name): value
        for name, value in recipe.items()
        if name != idle or "kernel" not in recipe
    }
