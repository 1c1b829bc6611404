"""How text becomes HTML without ever being taken for HTML: everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from halofeed.inspection.inspect import printable


class Markup(str):
    """Text that is HTML already; only this file makes one out of anything else."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[str | int | None] | None"
_VOID = frozenset({"img", "meta", "br", "link", "input"})


def text(value: object) -> Markup:
    """Escaped text; what cannot be printed or encoded becomes an escape such as \\x1b.

    >>> text("<b>&'\\x07"), text(Markup("<b>"))
    ('&lt;b&gt;&amp;&#x27;\\\\x07', '<b>')
    """
    return value if isinstance(value, Markup) else Markup(html.escape(printable(str(value))))


def join(children: Iterable[str | int | None], between: str = "") -> Markup:
    """The children one after the other, None left out."""
    return Markup(text(between).join(text(child) for child in children if child is not None))


def element(name: str, attributes: Mapping[str, object] | str | None = None, *children: Child) -> Markup:
    """One element with its children.

    Args:
        name: of the element.
        attributes: by name, those that are None left out; or only the class.
        children: texts, which are escaped, markup, lists of both; None is left out.

    >>> element("a", {"title": '"'}, "1 < 2", [element("br")])
    '<a title="&quot;">1 &lt; 2<br></a>'
    """
    given = {"class": attributes} if isinstance(attributes, str) else attributes or {}
    written = "".join(f' {key}="{text(value)}"' for key, value in given.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    content = "".join(
        join([child] if child is None or isinstance(child, str | int) else child) for child in children
    )
    return Markup(f"<{name}{written}>{content}</{name}>")


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], numbers: Iterable[int] = ()) -> Markup:
    """A table that scrolls by itself where it is wider than the page; `numbers` are the right-aligned columns."""
    right = set(numbers)

    def row(cells: Iterable[Child], cell: str) -> Markup:
        return element(
            "tr",
            None,
            [element(cell, "n" if at in right else None, content) for at, content in enumerate(cells)],
        )

    body = element("tbody", None, [row(cells, "td") for cells in rows])
    return element("div", "table", element("table", None, element("thead", None, row(head, "th")), body))
