"""Advice that was tried: words of a command line that are printed only after a trial on the files of a source."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from halofeed.system.errors import AnnotationsError, SourceError, UsageError


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Words of a command line, and what a trial of them on the files showed.

    `suggest` makes every suggestion, so that no advice is text alone.

    Args:
        words: options with their values, as typed after `halofeed convert`.
        effect: what they do, as a verb phrase in the third person, such as "pairs 12 images with 12 labels".

    >>> words = ("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/roi.nii.gz")
    >>> print(Suggestion(words=words, effect="pairs 2 images with 2 labels"))
    use --image-pattern '{id}/ct.nii.gz' --label-pattern '{id}/roi.nii.gz', which pairs 2 images with 2 labels
    """

    words: tuple[str, ...]
    effect: str

    def __str__(self) -> str:
        return f"use {shlex.join(self.words)}, which {self.effect}"


def option_values(words: Sequence[str]) -> dict[str, str]:
    """Return the value of each option among the words of a suggestion.

    >>> option_values(("--layout", "pairs", "--image-pattern", "{id}.png"))
    {'--layout': 'pairs', '--image-pattern': '{id}.png'}
    """
    return dict(zip(words[::2], words[1::2], strict=True))


def suggest(
    candidates: Iterable[Sequence[str]], try_words: Callable[[Sequence[str]], str | None], most: int = 1
) -> tuple[Suggestion, ...]:
    """Return the first candidates whose trial succeeds, at most `most`.

    Args:
        candidates: words of a command line, the best first.
        try_words: runs the code that the command will run, and returns what the words do (see `Suggestion.effect`),
            or None if they do not work. An error about the source or the options counts as None.
        most: largest number of suggestions; no further candidate is tried.

    >>> def count_matches(words):
    ...     found = sum(name.startswith(words[1]) for name in ("a1", "a2", "b1"))
    ...     return f"takes {found} files" if found else None
    >>> print(*suggest([("--prefix", "c"), ("--prefix", "a")], count_matches))
    use --prefix a, which takes 2 files
    """
    found: list[Suggestion] = []
    for words in candidates:
        try:
            effect = try_words(words)
        except (AnnotationsError, UsageError, SourceError):
            # A candidate that fails is a guess that was wrong, and no fault of the source.
            continue
        if effect:
            found.append(Suggestion(words=tuple(words), effect=effect))
        if len(found) >= most:
            break
    return tuple(found)


def advise(suggestions: Iterable[Suggestion], otherwise: str) -> str:
    """Return a clause with all suggestions, or `otherwise` if there is none.

    >>> one, other = (Suggestion(words=("--layout", name), effect="reads it") for name in ("csv", "coco"))
    >>> advise([one, other], "name the file"), advise([], "name the file")
    ('use --layout csv, which reads it; or use --layout coco, which reads it', 'name the file')
    """
    return "; or ".join(map(str, suggestions)) or otherwise
