"""Extension of griffe that shows the doctests of docstrings as code; as plain Markdown they would be quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Puts each block of lines that begins with >>> into a fence."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object after it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
