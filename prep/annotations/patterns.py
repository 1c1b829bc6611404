"""Patterns from options: path patterns such as `images/{id}.nii.gz`, and regular expressions with a time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from halofeed.errors import UsageError
from halofeed.prep.sources.file_names import volume_files

_TIMEOUT_SECONDS = 10.0
_PART = re.compile(r"\{([^{}]*)\}|(\*\*/|\*\*|\*)|([{}])")
_EXAMPLE = "expected a path below the folder, such as images/{id}.nii.gz"
_MAX_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Expression:
    """Regular expression from an option, in the syntax of Python's `re`.

    Args:
        option: name of the option for messages, such as --group-pattern.
        text: the expression.
        ignore_case: whether matching ignores case.

    Raises:
        UsageError: the text is not a regular expression.

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
        """Return the first match in a text, or None.

        Raises:
            UsageError: the search takes longer than 10 s, as (a+)+b does in a long text. The message omits the text,
                which can contain a person's name.
        """
        try:
            return self._compiled.search(text, timeout=_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise UsageError(
                f"{self.option} {self.text!r}: the search in a text of {len(text):,} characters took longer than "
                f"{_TIMEOUT_SECONDS:g} s. Write the expression without a repetition inside a repetition"
            ) from error


@dataclass(frozen=True, kw_only=True)
class _Token:
    """Part of a pattern: fixed text, a star, or a placeholder.

    Attributes:
        fixed: fixed text; empty for a star or a placeholder.
        name: name of the placeholder; empty for a star.
        min_length: minimum number of characters.
        within_folder: whether the token cannot contain a slash.
        ends_folder: whether the token is empty or ends with a slash, as **/ does.
        is_repeat: whether it repeats the value of an earlier placeholder.
        repeated: placeholders that later tokens repeat.
        following: next token.
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
    """Compiled pattern; `literal` is the number of its fixed characters."""

    text: str
    tokens: tuple[_Token, ...]
    names: frozenset[str]
    literal: int

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the placeholders in a path, or None; a .hdr/.img pair matches by either name.

        Matching is greedy from left to right. Its time is linear in the length of the path, unless the pattern
        repeats a placeholder.

        Raises:
            UsageError: a repeated placeholder needs more than 100,000 steps on this path.
        """
        for file in dict.fromkeys([path, *volume_files(path)]):
            if file.startswith(self.tokens[0].fixed) and file.endswith(self.tokens[-1].fixed):
                values = _Matcher(file, self.text).match(self.tokens[0], 0, {})
                if values is not None:
                    return values
        return None


class _Matcher:
    """Backtracking matcher for one path, with a cache of failures.

    `_failed` maps (token, limit, values needed later) to the smallest start at which the token failed. An earlier
    start does not try the same ends again. A repeated placeholder's value depends on its start, so each start has its
    own entry.
    """

    def __init__(self, path: str, pattern: str) -> None:
        self._path, self._pattern = path, pattern
        self._failed: dict[tuple[object, ...], int] = {}
        self._steps = 0

    def match(self, token: _Token | None, start: int, values: dict[str, str]) -> dict[str, str] | None:
        """Return the values, including those of the token and its successors up to the end of the path, or None."""
        path = self._path
        if token is None:
            return values if start == len(path) else None
        fixed = values[token.name] if token.is_repeat else token.fixed
        if fixed:
            found = path.startswith(fixed, start)
            return self.match(token.following, start + len(fixed), values) if found else None
        limit = path.find("/", start) if token.within_folder else -1
        limit = len(path) if limit < 0 else limit
        # What follows depends on the values that later tokens repeat, and on nothing else that came before.
        place = start if token.name in token.repeated else -1
        key = (id(token), limit, place, *map(values.get, token.repeated))
        known = self._failed.get(key)
        last = limit if known is None else min(limit, known + token.min_length - 1)
        for end in self._ends(token, start, last):
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise self._too_many_ways()
            new_values = {**values, token.name: path[start:end]} if token.name else values
            if (result := self.match(token.following, end, new_values)) is not None:
                return result
        self._failed[key] = start
        return None

    def _too_many_ways(self) -> UsageError:
        return UsageError(
            f"pattern {self._pattern!r}: too many ways to read {self._path!r}. Write each placeholder once and * in "
            "its other places"
        )

    def _ends(self, token: _Token, start: int, last: int) -> Iterator[int]:
        """Yield the possible ends of a token that begins at `start`, the last one first."""
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
    """Return the compiled pattern of an option; raise UsageError if it is malformed.

    >>> compile_pattern("sub-{id}/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/3_ct.nii.gz")
    {'id': '3'}
    >>> compile_pattern("**/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/anat/3_ct.nii.gz")
    {'id': '3'}
    """
    tokens = _tokens(text, option, allowed)
    if not text or text.startswith(("/", "./", "../")):
        raise UsageError(f"--{option.replace('_', '-')} {text!r}: {_EXAMPLE}")
    # From the last token to the first, since each one holds the next.
    for number in reversed(range(len(tokens))):
        behind = tokens[number + 1 :]
        repeated = tuple(dict.fromkeys(token.name for token in behind if token.is_repeat))
        following = behind[0] if behind else None
        tokens[number] = replace(tokens[number], repeated=repeated, following=following)
    names = frozenset(token.name for token in tokens if token.name)
    literal = sum(len(token.fixed) for token in tokens)
    return Pattern(text=text, tokens=tuple(tokens), names=names, literal=literal)


def _tokens(text: str, option: str, allowed: tuple[str, ...]) -> list[_Token]:
    """Return the parts of a pattern; raise UsageError for an unknown placeholder or a single brace."""
    tokens: list[_Token] = []
    names: set[str] = set()
    end = 0
    for part in _PART.finditer(text):
        if fixed := text[end : part.start()]:
            tokens.append(_Token(fixed=fixed))
        end = part.end()
        name, star, brace = part[1] or "", part[2], part[3]
        if star:
            tokens.append(_Token(within_folder=star == "*", ends_folder=star == "**/"))
        elif brace or name not in allowed:
            raise _unknown_part(part, text, option, allowed)
        else:
            # An id may span folders: p1/a.png and p2/a.png are two images.
            is_repeat = name in names
            tokens.append(_Token(name=name, min_length=1, within_folder=name != "id", is_repeat=is_repeat))
            names.add(name)
    if fixed := text[end:]:
        tokens.append(_Token(fixed=fixed))
    return tokens


def _unknown_part(part: re.Match[str], text: str, option: str, allowed: tuple[str, ...]) -> UsageError:
    known, meant = ", ".join(f"{{{one}}}" for one in allowed), text.replace(part.group(), "{id}", 1)
    return UsageError(
        f"--{option.replace('_', '-')} {text!r}: {part.group()!r} is not known; known: {known}, * and **; "
        f"{{id}} is the part that an image and its label share, such as {meant!r}"
    )


@dataclass(frozen=True, kw_only=True)
class PatternPair:
    """Compatible patterns of images and labels."""

    image: Pattern
    label: Pattern

    @property
    def shared(self) -> tuple[str, ...]:
        """Return the placeholders that connect an image and its label."""
        return tuple(sorted(self.image.names & self.label.names))

    def classify(self, path: str) -> tuple[bool, dict[str, str]] | None:
        """Return (whether a file is an image, values of the placeholders), or None if it is neither image nor label.

        If both patterns match, the one with more fixed characters wins: `{id}_seg.nii.gz` over `{id}.nii.gz`.
        """
        image, label = self.image.match(path), self.label.match(path)
        if image is not None and (label is None or self.image.literal > self.label.literal):
            return True, image
        return None if label is None else (False, label)


def compile_pair(image: str | None, label: str | None, *, with_class: bool) -> PatternPair:
    """Return the two compiled patterns; raise UsageError if one is missing or they are incompatible."""
    if image is None or label is None:
        missing = "--image-pattern" if image is None else "--label-pattern"
        raise UsageError(f"{missing}: --image-pattern and --label-pattern go together; give both")
    of_labels = ("id", "split", "group", *(("class",) if with_class else ()))
    pair = PatternPair(
        image=compile_pattern(image, "image_pattern", ("id", "split", "group", "channel")),
        label=compile_pattern(label, "label_pattern", of_labels),
    )
    _check_pair(pair, with_class=with_class)
    return pair


def _check_pair(pair: PatternPair, *, with_class: bool) -> None:
    """Raise UsageError if the placeholders of two patterns do not connect images with labels."""
    image, label = pair.image.text, pair.label.text
    if ("id" in pair.image.names) != ("id" in pair.label.names):
        raise UsageError(
            f"--image-pattern {image!r}, --label-pattern {label!r}: expected {{id}} in both or in neither"
        )
    if with_class and "class" not in pair.label.names:
        raise UsageError(f"--label-pattern {label!r}: class masks need {{class}} in it")
    if extra := pair.label.names - pair.image.names - {"class"}:
        raise UsageError(
            f"--label-pattern {label!r}: {{{min(extra)}}} stands in --image-pattern {image!r} too, or in none"
        )
    if image == label:
        raise UsageError(f"--image-pattern and --label-pattern are both {image!r}; expected two")
