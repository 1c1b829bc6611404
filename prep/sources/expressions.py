"""Regular expressions that users give, with a limit on their time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from halofeed.schemas.errors import UsageError

_MOST_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Expression:
    """A regular expression of an option, in the syntax of Python's `re`.

    Args:
        option: the option's name for messages, such as --group-pattern.
        text: the expression.
        ignore_case: whether upper and lower case are equal.

    Raises:
        UsageError: if the text is not a regular expression.

    >>> Expression(option="--group-pattern", text="p([0-9]+)").search("scans/p12.nii")[1]
    '12'
    >>> Expression(option="--group-pattern", text="p([0-9]+").search("scans/p12.nii")
    Traceback (most recent call last):
    ...
    halofeed.schemas.errors.UsageError: --group-pattern 'p([0-9]+': not a regular expression: missing ) at position 8
    """

    option: str
    text: str
    ignore_case: bool = False

    def __post_init__(self) -> None:
        self.groups  # noqa: B018 - compiles it

    @cached_property
    def _compiled(self) -> Any:
        import regex  # `re` has no timeout

        try:
            return regex.compile(self.text, regex.IGNORECASE if self.ignore_case else 0)
        except regex.error as error:
            raise UsageError(f"{self.option} {self.text!r}: not a regular expression: {error}") from error

    @property
    def groups(self) -> int:
        return int(self._compiled.groups)

    def search(self, text: str) -> Any:
        """The first match in a text, or None.

        Raises:
            UsageError: if the search takes longer than 10 s, as that of (a+)+b in a long text does. The text is not in
                the message: it can hold a person's name.
        """
        try:
            return self._compiled.search(text, timeout=_MOST_SECONDS)
        except TimeoutError as error:
            raise UsageError(
                f"{self.option} {self.text!r}: the search in a text of {len(text):,} characters took longer than "
                f"{_MOST_SECONDS:g} s. Write the expression without a repetition inside a repetition"
            ) from error
