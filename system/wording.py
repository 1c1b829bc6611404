"""Words of messages: a count with its noun, and the name that a misspelled one may mean."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun.

    >>> plural(1, "box", "boxes"), plural(1200, "record")
    ('1 box', '1,200 records')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a misspelled one, in upper or lower case; None if none is like it.

    >>> nearest_name("Yola", ["coco", "yolo"]), nearest_name("liver", ["spleen"])
    ('yolo', None)
    """
    from difflib import get_close_matches  # it takes 3 ms to import, and most commands need no correction

    by_folded = {one.casefold(): one for one in map(str, known)}
    near = get_close_matches(str(name).casefold(), by_folded, 1)
    return by_folded[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the nearest known name, with a blank at its end; "" if none is near.

    >>> did_you_mean("yola", ["coco", "yolo"])
    'did you mean yolo? '
    """
    near = nearest_name(name, known)
    return "" if near is None else f"did you mean {near}? "
