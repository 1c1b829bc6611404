"""Patterns of users: file names with fields such as `images/{id}.nii.gz`, and regular expressions with a time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from halofeed.errors import UsageError
from halofeed.prep.sources.file_names import files_of

_TIMEOUT_SECONDS = 10.0


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
    halofeed.errors.UsageError: --group-pattern 'p([0-9]+': not a regular expression: missing ) at position 8
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
            return self._compiled.search(text, timeout=_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise UsageError(
                f"{self.option} {self.text!r}: the search in a text of {len(text):,} characters took longer than "
                f"{_TIMEOUT_SECONDS:g} s. Write the expression without a repetition inside a repetition"
            ) from error


_PLACEHOLDERS = ("id", "split", "group", "class", "channel")
_PART = re.compile(r"\{([^{}]*)\}|(\*\*/|\*\*|\*)|([{}])")
_EXAMPLE = "expected a path below the folder, such as images/{id}.nii.gz"
_MAX_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class _Token:
    """A part of a pattern: fixed text, a star, or a placeholder.

    Attributes:
        fixed: the text; empty for a star or a placeholder.
        name: the placeholder's name; empty for a star.
        min_length: the fewest characters that it can be.
        within_folder: whether it ends at the next slash.
        ends_folder: whether it is empty or ends with a slash, as **/ does.
        is_repeat: whether it repeats the value of an earlier placeholder.
        repeated: the placeholders that are repeated behind it.
        following: the token behind it.
    """

    fixed: str = ""
    name: str = ""
    min_length: int = 0
    within_folder: bool = True
    ends_folder: bool = False
    is_repeat: bool = False
    repeated: tuple[str, ...] = ()
    following: _Token | None = None


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern ready for use; `literal` is the number of characters that it fixes."""

    text: str
    tokens: tuple[_Token, ...]
    names: frozenset[str]
    literal: int

    def match(self, path: str) -> dict[str, str] | None:
        """What the placeholders stand for in a path, or None; a .hdr/.img pair matches by either name.

        Each star and placeholder is as long as the rest allows, the first one first. The time is linear in the
        length of the path, unless the pattern repeats a placeholder.

        Raises:
            UsageError: if a repeated placeholder takes more than 100,000 steps on this path.
        """
        for file in dict.fromkeys([path, *files_of(path)]):
            if file.startswith(self.tokens[0].fixed) and file.endswith(self.tokens[-1].fixed):
                values = _Matcher(file, self.text).match(self.tokens[0], 0, {})
                if values is not None:
                    return values
        return None


class _Matcher:
    """One match of a path.

    `_failed` has the smallest start from which a token failed, per token, end of its reach and values that are needed
    later. Its ends from there are not tried is_repeat from earlier starts. The value of a repeated placeholder depends on
    its start, so each start has an entry.
    """

    def __init__(self, path: str, pattern: str) -> None:
        self._path, self._pattern = path, pattern
        self._failed: dict[tuple[object, ...], int] = {}
        self._steps = 0

    def match(self, token: _Token | None, start: int, values: dict[str, str]) -> dict[str, str] | None:
        """The values with those of the token and of what follows it, which end where the path ends; else None."""
        path = self._path
        if token is None:
            return values if start == len(path) else None
        fixed = values[token.name] if token.is_repeat else token.fixed
        if fixed:
            found = path.startswith(fixed, start)
            return self.match(token.following, start + len(fixed), values) if found else None
        limit = path.find("/", start) if token.within_folder else -1
        limit = len(path) if limit < 0 else limit
        key = (
            id(token),
            limit,
            start if token.name in token.repeated else -1,
            *map(values.get, token.repeated),
        )
        known = self._failed.get(key)
        for end in self._ends(
            token, start, limit if known is None else min(limit, known + token.min_length - 1)
        ):
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise UsageError(
                    f"pattern {self._pattern!r}: too many ways to read {path!r}. Write each placeholder once and * in "
                    "its other places"
                )
            new_values = {**values, token.name: path[start:end]} if token.name else values
            if (result := self.match(token.following, end, new_values)) is not None:
                return result
        self._failed[key] = start
        return None

    def _ends(self, token: _Token, start: int, last: int) -> Iterator[int]:
        """Where a token that begins at start can end, the last one first."""
        path, following, first = self._path, token.following, start + token.min_length
        if token.ends_folder:
            while (slash := path.rfind("/", start, last)) >= 0:
                yield slash + 1
                last = slash
            yield start
        elif following is None:
            yield from (last,) if first <= last == len(path) else ()
        elif following.fixed:
            while (end := path.rfind(following.fixed, first, last + len(following.fixed))) >= 0:
                yield end
                last = end - 1
        else:
            yield from range(last, first - 1, -1)


def compile_pattern(text: str, option: str, allowed: tuple[str, ...]) -> Pattern:
    """The pattern of an option; UsageError where it is malformed.

    >>> compile_pattern("sub-{id}/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/3_ct.nii.gz")
    {'id': '3'}
    >>> compile_pattern("**/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/anat/3_ct.nii.gz")
    {'id': '3'}
    """
    tokens: list[_Token] = []
    names: set[str] = set()
    end = 0
    for part in _PART.finditer(text):
        if fixed := text[end : part.start()]:
            tokens.append(_Token(fixed=fixed))
        end = part.end()
        name, star, brace = part[1] or "", part[2], part[3]
        if brace or (not star and name not in allowed):
            known = ", ".join(f"{{{one}}}" for one in allowed)
            raise UsageError(f"{option} {text!r}: {part.group()!r} is not known; known: {known}, * and **")
        if star:
            tokens.append(_Token(within_folder=star == "*", ends_folder=star == "**/"))
        else:
            tokens.append(
                _Token(name=name, min_length=1, within_folder=name != "id", is_repeat=name in names)
            )
            names.add(name)
    if fixed := text[end:]:
        tokens.append(_Token(fixed=fixed))
    if not text or text.startswith(("/", "./", "../")):
        raise UsageError(f"{option} {text!r}: {_EXAMPLE}")
    for number in reversed(range(len(tokens))):
        behind = tokens[number + 1 :]
        repeated = tuple(dict.fromkeys(token.name for token in behind if token.is_repeat))
        following = behind[0] if behind else None
        tokens[number] = replace(tokens[number], repeated=repeated, following=following)
    literal = sum(len(token.fixed) for token in tokens)
    return Pattern(text=text, tokens=tuple(tokens), names=frozenset(names), literal=literal)


@dataclass(frozen=True, kw_only=True)
class PatternPair:
    """The patterns of images and of labels, checked against each other."""

    image: Pattern
    label: Pattern

    @property
    def shared(self) -> tuple[str, ...]:
        """The placeholders by which an image finds its label."""
        return tuple(sorted(self.image.names & self.label.names))

    def classify(self, path: str) -> tuple[bool, dict[str, str]] | None:
        """(whether a file is an image, what the placeholders stand for), or None where it is neither.

        A file that both patterns match belongs to the one that fixes more characters: `{id}_seg.nii.gz` rather
        than `{id}.nii.gz`.
        """
        image, label = self.image.match(path), self.label.match(path)
        if image is not None and (label is None or self.image.literal > self.label.literal):
            return True, image
        return None if label is None else (False, label)


def compile_pair(image: str | None, label: str | None, *, with_class: bool) -> PatternPair:
    """The two patterns of the options; UsageError where one is missing or they do not go together."""
    if image is None or label is None:
        missing = "--image-pattern" if image is None else "--label-pattern"
        raise UsageError(f"{missing}: --image-pattern and --label-pattern go together; give both")
    pair = PatternPair(
        image=compile_pattern(image, "image_pattern", ("id", "split", "group", "channel")),
        label=compile_pattern(
            label, "label_pattern", ("id", "split", "group", *(("class",) if with_class else ()))
        ),
    )
    if ("id" in pair.image.names) != ("id" in pair.label.names):
        raise UsageError(
            f"--image-pattern {image!r}, --label-pattern {label!r}: {{id}} stands in both or in neither"
        )
    if with_class and "class" not in pair.label.names:
        raise UsageError(f"--label-pattern {label!r}: class masks need {{class}} in it")
    if extra := pair.label.names - pair.image.names - {"class"}:
        raise UsageError(
            f"--label-pattern {label!r}: {{{min(extra)}}} stands in --image-pattern {image!r} too, or in none"
        )
    if pair.image.literal == pair.label.literal and image == label:
        raise UsageError(f"--image-pattern and --label-pattern are both {image!r}; expected two")
    return pair
