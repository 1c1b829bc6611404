"""Declaration of dataclass fields that are options of the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from halofeed.errors import UsageError

T = TypeVar("T")
SOURCE, SHAPE, OUTPUT, RUNNING = "source", "shape", "output", "running"
HELP_GROUPS = (SOURCE, SHAPE, OUTPUT, RUNNING)
"""Groups of the options of `halofeed convert`, in the order of its help; further groups follow."""


def option(
    default: Any, help: str, *, brief: str | bool = "", group: str = "", is_secret: bool = False, **more: Any
) -> Any:
    """Return a dataclass field that the command line offers as --its-name.

    Args:
        default: value without the option.
        help: text of the command line's complete help (--help-all).
        brief: text of the short help (--help), which lists only options that have one; True: the same text.
        group: group in the help; default: that of the dataclass, its OPTION_GROUP.
        is_secret: leave the value out of the dataclass's repr.
        **more: further metadata: `choices` lists the allowed values, `least` is the smallest one, and `omitted`
            leaves the option out of a recipe's JSON form while it has its default.
    """
    return dataclasses.field(
        default=default,
        repr=not is_secret,
        metadata={"help": help, "brief": help if brief is True else brief or "", "group": group, **more},
    )


def refusal(check: Callable[[], object], start: str = "") -> list[str]:
    """Return the message of a check that raises UsageError, after `start`; [] where it passes."""
    try:
        check()
    except UsageError as error:
        return [f"{start}{error}"]
    return []


def copy_options(kind: type[T], options: Any, **others: Any) -> T:
    """Build the dataclass `kind` from fields of the same names in `options`; `others` override them.

    Raises:
        AttributeError: a field is in neither, so a renamed option cannot be lost.

    >>> One, Both = dataclasses.make_dataclass("One", ["a", "b"]), dataclasses.make_dataclass("Both", ["a", "c"])
    >>> copy_options(One, Both(a=1, c=2), b=3)
    One(a=1, b=3)
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name not in others]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names}, **others)


def flag(name: str) -> str:
    """Return the command line's spelling of an option.

    >>> flag("max_boxes")
    '--max-boxes'
    """
    return "--" + name.replace("_", "-")
