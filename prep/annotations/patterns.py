"""How a pattern such as `images/{id}.nii.gz` is read, and which of two patterns a file belongs to.

{id}      what an image and its label share; as long as can be, folders included
{split}   the split, within one folder's name
{group}   what must not be divided over splits (a patient), within one folder's name
{class}   class-masks: the class's name, within one folder's name
{channel} of an image: which of its channels a file is (t1, flair, 0000), within one folder's name
*         anything within one folder's name
**        any number of folders; {id} behind it is then one name
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from halofeed.prep.sources.volume_files import files_of
from halofeed.schemas.errors import UsageError

_PLACEHOLDERS = {"id": ".+", "split": "[^/]+", "group": "[^/]+", "class": "[^/]+", "channel": "[^/]+"}
_PART = re.compile(r"\{([^{}]*)\}|(\*\*/|\*\*|\*)|([{}])")
_STARS = {"*": "[^/]*", "**": ".*", "**/": "(?:.*/)?"}
_EXAMPLE = "expected a path below the folder, such as images/{id}.nii.gz"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A pattern ready for use; `literal` is the number of characters that it fixes."""

    text: str
    expression: re.Pattern[str]
    names: frozenset[str]
    literal: int

    def match(self, path: str) -> dict[str, str] | None:
        """What the placeholders stand for in a path, or None; a .hdr/.img pair matches by either name."""
        for file in dict.fromkeys([path, *files_of(path)]):
            found = self.expression.fullmatch(file)
            if found is not None:
                return found.groupdict()
        return None


def compile_pattern(text: str, option: str, allowed: tuple[str, ...]) -> Pattern:
    """The pattern of an option; UsageError where it is malformed.

    >>> compile_pattern("sub-{id}/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/3_ct.nii.gz")
    {'id': '3'}
    >>> compile_pattern("**/{id}_ct.nii.gz", "image_pattern", ("id",)).match("sub-3/anat/3_ct.nii.gz")
    {'id': '3'}
    """
    expression, literal, end = "", 0, 0
    names: set[str] = set()
    for part in _PART.finditer(text):
        fixed = text[end : part.start()]
        expression, literal, end = expression + re.escape(fixed), literal + len(fixed), part.end()
        name, star, brace = part[1] or "", part[2], part[3]
        if brace or (not star and name not in allowed):
            known = ", ".join(f"{{{one}}}" for one in allowed)
            raise UsageError(f"{option} {text!r}: {part.group()!r} is not known; known: {known}, * and **")
        if star:
            expression += _STARS[star]
        elif name in names:
            expression += f"(?P={name})"
        else:
            expression += f"(?P<{name}>{_PLACEHOLDERS[name]})"
            names.add(name)
    expression, literal = expression + re.escape(text[end:]), literal + len(text) - end
    if not text or text.startswith(("/", "./", "../")):
        raise UsageError(f"{option} {text!r}: {_EXAMPLE}")
    return Pattern(text=text, expression=re.compile(expression), names=frozenset(names), literal=literal)


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
