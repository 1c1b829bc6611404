"""Which names a person cannot distinguish, or takes for two spellings of one."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from halofeed.prep.tasks.class_order import number_of

# Small letters of Cyrillic and Greek, and others, that look like Latin ones in one case at least.
_LATIN = str.maketrans(
    "авекмнорстухіјѕһԁԛԝ" + "αβεζηικμνορτυχ" + "ɑɡı×" + "’‘ʼ´`" + "“”",
    "abekmhopctyxijshdqw" + "abezhikmnoptyx" + "agix" + "'''''" + '""',
)
_UNSEEN = ("Cf", "Cc")
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


def look_of(name: str) -> str:
    """A name as it looks: names that a person may take for one have the same.

    >>> look_of("Red  hat") == look_of("red_hat") == look_of("red\\u00a0h\\u0430t") == look_of("red\\u200b\\u2011hat")
    True
    >>> look_of("caf\\u00e9") == look_of("cafe\\u0301") != look_of("cafe")
    True
    """
    if number_of(name) is not None:
        return name
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(_LATIN)
    return " ".join("".join(map(_seen, folded)).split())


def _seen(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category == "Pd" or character in "_\u2212":
        return " "
    is_variation = 0xFE00 <= ord(character) <= 0xFE0F
    return "" if category in _UNSEEN or character in _FILLERS or is_variation else character


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """The groups of two and more names that look alike, each in order."""
    alike: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        alike.setdefault(look_of(name), []).append(name)
    return [group for group in alike.values() if len(group) > 1]


def shown_apart(names: Iterable[str]) -> str:
    """Names that look alike, each with those of its characters that ASCII lacks and not all of the names have.

    >>> shown_apart(["dog", "d\\u043eg"])
    "'dog', 'd\u043eg' (U+043E)"
    """
    names = list(names)
    common = set.intersection(*map(set, names))
    shown = []
    for name in names:
        own = [f"U+{ord(one):04X}" for one in dict.fromkeys(name) if one not in common and not one.isascii()]
        shown.append(f"{name!r} ({' '.join(own)})" if own else repr(name))
    return ", ".join(shown)
