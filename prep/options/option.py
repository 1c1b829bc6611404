"""Declaration of dataclass fields that are options of the command line, and of what an option needs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from halofeed.system.errors import UsageError

T = TypeVar("T")
SOURCE, SHAPE, OUTPUT, RUNNING = "source", "shape", "output", "running"
HELP_GROUPS = (SOURCE, SHAPE, OUTPUT, RUNNING)
"""Groups of the options of `halofeed convert`, in the order of its help; further groups follow."""


@dataclass(frozen=True)
class Need:
    """Condition under which an option has an effect: in words, and as a test of a recipe.

    >>> Need("--pad", lambda recipe: recipe.pad).message("pad_value")
    '--pad-value has no effect without --pad; add that, or leave it out'
    """

    words: str
    is_met: Callable[[Any], bool]
    why: str = "without {}; add that, or leave it out"

    def message(self, name: str) -> str:
        """Return the message that refuses an option because the condition is not met."""
        return f"{flag(name)} has no effect {self.why.format(self.words, option=flag(name))}"


def of_layouts(*layouts: str) -> Need:
    """Return the condition that the layout is one of these."""
    listed = " or ".join(filter(None, (", ".join(layouts[:-1]), layouts[-1])))
    return Need(f"--layout {listed}", lambda recipe: recipe.layout in layouts)


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
        **more: further metadata: `choices` lists the allowed values, `least` is the smallest one, `needs` is the
            condition, or a tuple of conditions, under which the option has an effect (default: that of the dataclass,
            its NEEDS), `omitted` leaves the option out of a recipe's JSON form while it has its default, and
            `metavar` is the word for the value in the help.
    """
    return dataclasses.field(
        default=default,
        repr=not is_secret,
        metadata={"help": help, "brief": help if brief is True else brief or "", "group": group, **more},
    )


def fields_by_class(kind: type[Any]) -> list[tuple[Any, dataclasses.Field[Any]]]:
    """Return the fields of a dataclass with the classes that declare them, in the fields' order."""
    classes = {name: base for base in reversed(kind.__mro__) for name in inspect.get_annotations(base)}
    return [(classes[field.name], field) for field in dataclasses.fields(kind)]


def unmet_need(declaring_class: Any, field: dataclasses.Field[Any], recipe: Any) -> Need | None:
    """Return the first condition of an option that a recipe does not meet; None if the option has an effect."""
    needs = field.metadata.get("needs", vars(declaring_class).get("NEEDS", ()))
    every = needs if isinstance(needs, tuple) else (needs,)
    return next((need for need in every if not need.is_met(recipe)), None)


def problems_of(*checks: tuple[object, str]) -> list[str]:
    """Return the messages of the checks whose first part is true.

    >>> problems_of((True, "--depth: expected 1 or more"), (0 > 1, "--height: expected 1 or more"))
    ['--depth: expected 1 or more']
    """
    return [message for is_wrong, message in checks if is_wrong]


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

    >>> flag("max_boxes"), flag("from_")
    ('--max-boxes', '--from')
    """
    # Python has `from` for itself, so that the field has one more sign.
    return "--" + name.rstrip("_").replace("_", "-")
