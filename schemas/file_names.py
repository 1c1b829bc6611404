"""How the names of files are written as text, so that records have the same bytes whatever the locale.

A name is bytes, and its text is those bytes as UTF-8, where each byte that is none becomes a lone surrogate from U+DC80
to U+DCFF (PEP 383). Python reads names by the locale, which is the same thing in all but a few: under LC_ALL=C without
Python's UTF-8 mode every byte beyond ASCII becomes a surrogate. Only what asks the system for a file needs its form.
"""

from __future__ import annotations

import os
import sys

_IS_SYSTEMS_FORM = sys.getfilesystemencoding().lower() == "utf-8"


def text_of_name(name: str) -> str:
    """The text of a name as Python got it from the system: of a folder's listing, an argument, a working folder."""
    return name if _IS_SYSTEMS_FORM else os.fsencode(name).decode("utf-8", "surrogateescape")


def system_name(text: str) -> str:
    """A name's text in the form that Python hands to the system.

    Raises:
        UnicodeEncodeError: no file can be called so.
    """
    return text if _IS_SYSTEMS_FORM else os.fsdecode(text.encode("utf-8", "surrogateescape"))


def can_be_named(text: str) -> bool:
    """Whether a text has bytes: that of every name has, and of others all but those with a lone surrogate that is none.

    >>> can_be_named("caf\\u00e9"), can_be_named("caf\\udce9"), can_be_named("caf\\ud800")
    (True, True, False)
    """
    if text.isascii():
        return True
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
