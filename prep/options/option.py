"""How a dataclass says which of its fields are options of the command line.

What a recipe means for each kind of image: defaults, what goes together, the shape that it gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from halofeed.errors import UsageError
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import FileSelection
from halofeed.schemas.kinds import Kind

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe


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


@dataclass(frozen=True, kw_only=True, eq=False)
class KindRules:
    """The rules of one kind; each function is of a recipe.

    Args:
        kind: of image.
        chosen_by: the option that makes a recipe one of this kind; "" where none of the others is given.
        tasks: that its records can be for, first the one that is meant where neither --task nor the layout says it; ():
            what the layout says.
        is_heavy: whether one input takes as much memory as hundreds of pictures.
        is_fitted: whether --fit decides how an image comes to its shape.
        joins_files: whether an image may have channels in files of their own.
        listing: the sources among files.
        defaults: the values of options that were left out.
        problems: what is wrong with its options together.
        shape: the static size along the kind's axes; None where the recipe does not fix it.
        padding: what padding holds in a record, per channel.
        is_scaled: whether each record says the scale of its values.
        refuses: what is wrong with sources, given the first volume and the first picture among them, or "".
    """

    kind: Kind
    chosen_by: str
    tasks: tuple[str, ...]
    is_heavy: bool = False
    is_fitted: bool = False
    joins_files: bool = False
    listing: Callable[[SourceFiles], FileSelection] = lambda files: FileSelection(files=files)
    defaults: Callable[[Recipe], Mapping[str, Any]]
    problems: Callable[[Recipe], Iterator[str]]
    shape: Callable[[Recipe], tuple[int, ...] | None]
    padding: Callable[[Recipe], tuple[float, ...]] = lambda recipe: recipe.padding()
    is_scaled: Callable[[Recipe], bool] = lambda recipe: False
    refuses: Callable[[Recipe, str, str], str] = lambda recipe, volume, picture: ""
