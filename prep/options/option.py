"""How a dataclass says which of its fields are options of the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from halofeed.schemas.errors import UsageError

T = TypeVar("T")


def option(default: Any, help: str, *, is_secret: bool = False, **more: Any) -> Any:
    """A dataclass field that the command line offers as --its-name; `choices` or `least` say what it may be.

    One that is `omitted` stands in no recipe's JSON form while it has its default. One that is secret is not printed.
    """
    return dataclasses.field(default=default, repr=not is_secret, metadata={"help": help, **more})


def refusal(check: Callable[[], object], start: str = "") -> list[str]:
    """What is wrong by a check that raises UsageError; [] where it passes."""
    try:
        check()
    except UsageError as error:
        return [f"{start}{error}"]
    return []


def derived(kind: type[T], options: Any, **others: Any) -> T:
    """Narrower options: each field as it is among `options`, but for those of `others`.

    Raises:
        AttributeError: a field is in neither, so that an option that is renamed is not lost.

    >>> One, Both = dataclasses.make_dataclass("One", ["a", "b"]), dataclasses.make_dataclass("Both", ["a", "c"])
    >>> derived(One, Both(a=1, c=2), b=3)
    One(a=1, b=3)
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name not in others]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names}, **others)


def flag(name: str) -> str:
    """The command line's spelling of an option.

    >>> flag("max_boxes")
    '--max-boxes'
    """
    return "--" + name.replace("_", "-")
