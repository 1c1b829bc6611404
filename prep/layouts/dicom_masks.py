"""Choice of SEG and RTSTRUCT files for DICOM series: by pattern, by place, and advice where a series has several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile

from halofeed.prep.annotations.advice import suggest
from halofeed.prep.annotations.pairing import MERGE_ADVICE
from halofeed.prep.annotations.patterns import Pattern, compile_pattern
from halofeed.prep.sources.file_names import folder_of, stem_of

_NAMES = {"segmentation": "SEG", "label map segmentation": "SEG", "structure set": "RTSTRUCT"}
_MAX_CHOICES = 3


def series_near(path: str, folders: Mapping[str, str]) -> list[str]:
    """Return the series nearest to a file: in or below its folder, else in or below the folder above, and so on.

    A series whose folder is named like the file comes first among several.

    Args:
        path: path of the file.
        folders: folder of each series, "." for the root.

    >>> series_near("p1/seg/s.dcm", {"p1/ct": "p1/ct", "p2/ct": "p2/ct"})
    ['p1/ct']
    >>> series_near("masks/b.dcm", {"ct/a": "ct/a", "ct/b": "ct/b"})
    ['ct/b']
    """
    place = folder_of(path)
    while True:
        inside = "" if place == "." else f"{place}/"
        near = [source for source, folder in folders.items() if f"{folder}/".startswith(inside)]
        # The nearest folder that holds any series: exports put SEG and RTSTRUCT beside or above their series.
        if near or place == ".":
            break
        place = folder_of(place)
    named = [source for source in near if folders[source].rpartition("/")[2] == stem_of(path)]
    return named if len(named) == 1 else near


def describe_choice(several: Sequence[Sequence[str]], single: Sequence[str], kinds: Mapping[str, str]) -> str:
    """Return options that take one of several labels of a series, each tried on the files, then merging.

    Args:
        several: the label files of each series that has several.
        single: the label file of each other series that has one.
        kinds: kind of each DICOM file.

    >>> files = [["p1/ct.dcm", "p1/rt/1.dcm"], ["p2/ct.dcm", "p2/rt/7.dcm"]]
    >>> describe_choice(files, [], {}).split("; or ")[1]
    "use --label-pattern '**/rt/*.dcm', which takes rt/1.dcm, one for each of 2 series"
    """
    ordered = [sorted(paths, key=lambda path: (kinds.get(path, ""), path)) for paths in several]
    patterns = [
        _pattern_of([paths[place] for paths in ordered], ordered) for place in range(min(map(len, ordered)))
    ]
    try_words = partial(_try_pattern, ordered, single, kinds)
    found = suggest([("--label-pattern", pattern) for pattern in patterns], try_words, most=_MAX_CHOICES)
    return "; or ".join([*map(str, found), MERGE_ADVICE])


def _try_pattern(
    ordered: Sequence[Sequence[str]], single: Sequence[str], kinds: Mapping[str, str], words: Sequence[str]
) -> str | None:
    """Return what a pattern takes, if that is one label of each series that has several; else None."""
    pattern = compile_pattern(words[1], "label_pattern", ("id", "class"))
    taken = [[path for path in paths if fits_pattern(pattern, path)] for paths in ordered]
    # Advice must take one label of each series, or it would end in the next message.
    if any(len(paths) != 1 for paths in taken):
        return None
    count = len(ordered) + sum(fits_pattern(pattern, path) for path in single)
    total = len(ordered) + len(single)
    each = "each" if count == total else f"{count:,}"
    scope = "" if count == total == 1 else f", one for {each} of {total:,} series"
    return f"takes {_describe([path for (path,) in taken], ordered, kinds)}{scope}"


def _describe(chosen: Sequence[str], ordered: Sequence[Sequence[str]], kinds: Mapping[str, str]) -> str:
    """Return "the SEG" where all chosen labels and no others are SEGs, else the name of the first."""
    named = {path: _NAMES.get(kinds.get(path, ""), "") for paths in ordered for path in paths}
    kind = named[chosen[0]]
    # "the SEG" is clear only if no other label is a SEG.
    if kind and all((path in chosen) == (named[path] == kind) for path in named):
        return f"the {kind}"
    return _tail(chosen[0], ordered[0])


def _tail(path: str, beside: Iterable[str]) -> str:
    """Return a path without the folders that it shares with the others."""
    shared = os.path.commonpath([folder_of(one) for one in beside])
    return path if shared in ("", ".") else path[len(shared) + 1 :]


def _pattern_of(chosen: Sequence[str], ordered: Sequence[Sequence[str]]) -> str:
    """Return a pattern for one label of each series, with stars where the series differ."""
    tails = [_tail(path, beside).split("/") for path, beside in zip(chosen, ordered, strict=True)]
    # Labels at several depths share their file names at most.
    if len({len(parts) for parts in tails}) > 1:
        tails = [parts[-1:] for parts in tails]
    return "**/" + "/".join(_common(parts) for parts in zip(*tails, strict=True))


def _common(parts: Sequence[str]) -> str:
    """Return the part that is equal, or what all begin and end with around a star.

    >>> _common(["300-Seg-1.dcm", "300-Seg-22.dcm"]), _common(["a", "a"])
    ('300-Seg-*.dcm', 'a')
    """
    if len(set(parts)) == 1:
        return parts[0]
    start = _shared_start(parts)
    end = _shared_start([part[len(start) :][::-1] for part in parts])[::-1]
    return f"{start}*{end}"


def _shared_start(texts: Sequence[str]) -> str:
    """Return the characters that all texts begin with."""
    columns = zip(*texts, strict=False)
    return "".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def fits_pattern(pattern: Pattern | None, path: str) -> bool:
    """Return whether a pattern for labels takes a file; without a pattern all are taken."""
    return pattern is None or pattern.match(path) is not None
