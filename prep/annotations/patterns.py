"""Patterns from options: path patterns such as `images/{id}.nii.gz`, and regular expressions with a time limit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from halofeed.prep.sources.file_names import volume_files
from halofeed.system.errors import UsageError

_TIMEOUT_SECONDS = 10.0
"""Limit of one search. A usual one takes microseconds; a backtracking one would take years."""
_PART = re.compile(r"\{([^{}]*)\}|(\*\*/|\*\*|\*)|([{}])")
_EXAMPLE = "expected a path below the folder, such as images/{id}.nii.gz"


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
    halofeed.system.errors.UsageError: --group-pattern 'p([0-9]+': not a regular expression: missing ) at position 8
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
class Pattern:
    """Compiled pattern.

    Args:
        text: the pattern as written.
        names: its placeholders.
        literal: the number of its fixed characters.
        expression: its regular expression, compiled by `regex`.
    """

    text: str
    names: frozenset[str]
    literal: int
    expression: Any = field(compare=False, repr=False)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the placeholders in a path, or None; a .hdr/.img pair matches by either name.

        Matching is greedy from left to right.

        Raises:
            UsageError: matching takes longer than 10 s, which needs a placeholder written several times and a path of
                thousands of characters.
        """
        for file in dict.fromkeys([path, *volume_files(path)]):
            try:
                found = self.expression.fullmatch(file, timeout=_TIMEOUT_SECONDS)
            except TimeoutError as error:
                raise UsageError(
                    f"pattern {self.text!r}: too many ways to read {file!r}. Write each placeholder once and * in "
                    "its other places"
                ) from error
            if found is not None:
                return dict(found.groupdict())
        return None


_STARS = {"*": "[^/]*", "**": ".*", "**/": "(?:.*/)?"}


def compile_pattern(text: str, option: str, allowed: tuple[str, ...]) -> Pattern:
    """Return the compiled pattern of an option; raise UsageError if it is malformed.

    >>> compile_pattern("sub-{id}/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/3_ct.nii.gz")
    {'id': '3'}
    >>> compile_pattern("**/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/anat/3_ct.nii.gz")
    {'id': '3'}
    """
    import regex  # needs half the time of `re` for these expressions, and has a timeout

    names: set[str] = set()
    fixed = _PART.split(text)[:: _PART.groups + 1]
    parts = [regex.escape(fixed[0])]
    for part, following in zip(_PART.finditer(text), fixed[1:], strict=True):
        name, star, brace = part[1] or "", part[2], part[3]
        if brace or (not star and name not in allowed):
            raise _unknown_part(part[0], text, option, allowed)
        parts += [
            _STARS[star] if star else _placeholder(name, is_repeat=name in names),
            regex.escape(following),
        ]
        names |= {name} - {""}
    # Paths are relative to the source's folder, without a dot, as the listing has them.
    if not text or text.startswith(("/", "./", "../")):
        raise UsageError(f"--{option.replace('_', '-')} {text!r}: {_EXAMPLE}")
    # DOTALL: a file name may contain a line feed.
    expression = regex.compile("".join(parts), regex.DOTALL)
    return Pattern(text=text, names=frozenset(names), literal=sum(map(len, fixed)), expression=expression)


def _unknown_part(part: str, text: str, option: str, allowed: tuple[str, ...]) -> UsageError:
    known, meant = ", ".join(f"{{{one}}}" for one in allowed), text.replace(part, "{id}", 1)
    return UsageError(
        f"--{option.replace('_', '-')} {text!r}: {part!r} is not known; known: {known}, * and **; "
        f"{{id}} is the part that an image and its label share, such as {meant!r}"
    )


def _placeholder(name: str, *, is_repeat: bool) -> str:
    """Return the expression of a placeholder; only `id` may contain a slash."""
    if is_repeat:
        return f"(?P={name})"
    return f"(?P<{name}>{'.' if name == 'id' else '[^/]'}+)"


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
        # {id}.nii.gz matches the labels {id}_seg.nii.gz as well.
        if image is not None and (label is None or self.image.literal > self.label.literal):
            return True, image
        return None if label is None else (False, label)


def compile_pair(image: str | None, label: str | None, *, with_class: bool) -> PatternPair:
    """Return the two compiled patterns; raise UsageError if one is missing or they are incompatible."""
    if image is None or label is None:
        missing = "--image-pattern" if image is None else "--label-pattern"
        raise UsageError(f"{missing}: --image-pattern and --label-pattern go together; give both")
    of_labels = ("id", "split", "group", *(("class",) if with_class else ()), "reader")
    pair = PatternPair(
        image=compile_pattern(image, "image_pattern", ("id", "split", "group", "channel")),
        label=compile_pattern(label, "label_pattern", of_labels),
    )
    _check_pair(pair, with_class=with_class)
    return pair


def _check_pair(pair: PatternPair, *, with_class: bool) -> None:
    """Raise UsageError if the placeholders of two patterns do not connect images with labels."""
    image, label = pair.image.text, pair.label.text
    # An image without {id} would be the image of every label.
    if ("id" in pair.image.names) != ("id" in pair.label.names):
        raise UsageError(
            f"--image-pattern {image!r}, --label-pattern {label!r}: expected {{id}} in both or in neither"
        )
    if with_class and "class" not in pair.label.names:
        raise UsageError(f"--label-pattern {label!r}: class masks need {{class}} in it")
    # A label whose split or group is not in the image's path could not be found from it.
    if extra := pair.label.names - pair.image.names - {"class", "reader"}:
        raise UsageError(
            f"--label-pattern {label!r}: {{{min(extra)}}} stands in --image-pattern {image!r} too, or in none"
        )
    # Each file would be image and label at once.
    if image == label:
        raise UsageError(f"--image-pattern and --label-pattern are both {image!r}; expected two")
