"""What a recipe means for each kind of image: defaults, what goes together, the shape that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.listing import Listing
from halofeed.schemas.kinds import Kind

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe


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
    listing: Callable[[SourceFiles], Listing] = lambda files: Listing(files=files)
    defaults: Callable[[Recipe], Mapping[str, Any]]
    problems: Callable[[Recipe], Iterator[str]]
    shape: Callable[[Recipe], tuple[int, ...] | None]
    padding: Callable[[Recipe], tuple[float, ...]] = lambda recipe: recipe.padding()
    is_scaled: Callable[[Recipe], bool] = lambda recipe: False
    refuses: Callable[[Recipe, str, str], str] = lambda recipe, volume, picture: ""
