"""How a dataclass says which of its fields are options of the command line."""

from __future__ import annotations

import dataclasses
from typing import Any


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field that the command line offers as --its-name."""
    return dataclasses.field(default=default, metadata={"help": help, **more})


def flag(name: str) -> str:
    """The command line's spelling of an option.

    >>> flag("max_boxes")
    '--max-boxes'
    """
    return "--" + name.replace("_", "-")
