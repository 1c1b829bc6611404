"""Candidates of patterns for images and labels: pairs of paths with a common part, which becomes a placeholder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from halofeed.prep.annotations.advice import option_values
from halofeed.prep.annotations.contract import is_split_name
from halofeed.prep.sources.file_names import extension_of, folder_of, is_image_name

# The limits are estimates: they keep the time of a suggestion from growing with the square of the number of files.
SEEDS = 6
"""Files whose partners are looked for."""
_PARTNERS = 16
"""Most files that a seed is compared with: those whose paths share most with its own."""
_NEAR = 2_000
"""Most files to look at for each part of a path."""
_SCREENED = 600
"""Most files on which all candidates are tried; the best candidates are then tried on all files."""
_SHARE_OF_SET = 0.9
"""Share of all files from which on a folder holds the set: a few pictures of a project may lie beside it."""
_TOKEN = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]")
HOLE = re.compile(r"(\{[a-z]+\})")
"""Placeholder of a pattern."""


@dataclass(frozen=True, kw_only=True, order=True)
class PathPatterns:
    """Patterns of images and labels, and the layout that reads them."""

    image: str
    label: str
    layout: str = "pairs"

    def words(self, own: str) -> tuple[str, ...]:
        """Return the options to type beside the layout `own`."""
        layout = () if own == self.layout else ("--layout", self.layout)
        return (*layout, "--image-pattern", self.image, "--label-pattern", self.label)

    @property
    def takes_pictures(self) -> bool:
        """Return whether the images are pictures, each of one file."""
        return is_image_name(self.image)

    @classmethod
    def of_words(cls, words: Sequence[str], own: str) -> PathPatterns:
        """Parse the result of `words`."""
        given = option_values(words)
        layout = given.get("--layout", own)
        return cls(image=given["--image-pattern"], label=given["--label-pattern"], layout=layout)


class PathIndex:
    """Paths of a source by the parts of their names, for files that belong together."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._by_part: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            for part in _parts_of(path):
                self._by_part[part].append(path)
        self._folders = Counter(folder for path in paths for folder in set(path.split("/")[:-1]))
        shapes = Counter(re.sub("[0-9]+", "0", folder) for folder in self._folders)
        self._numbered = {folder for folder in self._folders if shapes[re.sub("[0-9]+", "0", folder)] > 1}

    def sample(self) -> dict[str, int]:
        """Return some files with those that share most of their names, as paths with a size of 0."""
        # A few files are tried completely.
        if len(self._paths) <= _SCREENED:
            return dict.fromkeys(self._paths, 0)
        seeds = _spread(self._paths, _SCREENED // _PARTNERS)
        chosen = {other for path in seeds for other in (path, *self._partners(path))}
        return dict.fromkeys(sorted(chosen), 0)

    def candidates(self) -> Iterator[PathPatterns]:
        """Yield patterns from pairs of paths with a common part."""
        seen: set[tuple[str, str]] = set()
        for one in _spread(self._paths, SEEDS):
            for other in self._partners(one):
                for image, label in self._patterns_of(one, other):
                    pair = (image, label)
                    # Both orders of a pair are yielded, so that the contents decide which file is the label.
                    if pair in seen or _count_apart(image, label) or any(map(self._counts, pair)):
                        continue
                    seen |= {pair, pair[::-1]}
                    yield PathPatterns(image=image, label=label)
                    yield PathPatterns(image=label, label=image)
        one, other = self._paths if len(self._paths) == 2 else ("", "")
        if one and folder_of(one) == folder_of(other):  # one image and its label
            yield PathPatterns(image=one, label=other)
            yield PathPatterns(image=other, label=one)

    def _counts(self, pattern: str) -> bool:
        """Return whether a pattern is of one of several numbered folders, or has {group} below {id}.

        Files of one patient's folder belong together, so its number is a part of {id}. And a group, such as a
        patient's, holds several images.
        """
        names = pattern.split("/")[:-1]
        return not self._numbered.isdisjoint(names) or 0 <= pattern.find("{id}") < pattern.find("{group}")

    def with_variants(self, pair: PathPatterns) -> Iterator[PathPatterns]:
        """Yield the patterns with {channel} or {class} for a part that images and labels do not share."""
        for image in () if pair.takes_pictures else _with_hole(pair.image, "{channel}"):
            yield replace(pair, image=image)
        for label in _with_hole(pair.label, "{class}"):
            yield replace(pair, label=label, layout="class-masks")

    def _partners(self, path: str) -> list[str]:
        """Return the files that share most with a path, where rare parts of names count most.

        Files that differ from it in a number, or in a split, on both sides belong to other images.
        """
        scores: dict[str, float] = defaultdict(float)
        for part in _parts_of(path):
            found = self._by_part[part]
            for other in found[:_NEAR]:
                scores[other] += 1 / len(found)
        near = [other for other in scores if other != path and not _count_apart(path, other)]
        return sorted(near, key=lambda other: (-scores[other], other))[:_PARTNERS]

    def _patterns_of(self, one: str, other: str) -> Iterator[tuple[str, str]]:
        """Yield pairs of patterns in which the common parts of two paths are placeholders."""
        for shared in self._shared_parts(one, other):
            for places in (None, -1, 0):
                patterns = [
                    self._pattern(path, beside, shared, places)
                    for path, beside in ((one, other), (other, one))
                ]
                # Without a placeholder a pattern means one file; two equal ones mean no pair.
                if all(patterns) and HOLE.findall(patterns[0]) and patterns[0] != patterns[1]:
                    yield patterns[0], patterns[1]

    def _shared_parts(self, one: str, other: str) -> list[str]:
        """Return the longest common sequences of words and numbers in one folder or file name of both paths."""
        found: dict[str, None] = {}
        for first in _names(one):
            for second in _names(other):
                for run in _common_runs(_TOKEN.findall(first), _TOKEN.findall(second)):
                    if trimmed := self._trim(run):
                        found[trimmed] = None
        return list(found)

    def _trim(self, tokens: Sequence[str]) -> str:
        """Return a sequence without separators, and without words that all paths have, at its ends."""
        tokens = list(tokens)

        def is_fixed(token: str) -> bool:
            is_common = len(self._by_part[token]) == len(self._paths) > 2
            return not token.isalnum() or (is_common and not token.isdecimal())

        while tokens and is_fixed(tokens[-1]):
            tokens.pop()
        while tokens and is_fixed(tokens[0]):
            tokens.pop(0)
        return "".join(tokens)

    def _pattern(self, path: str, beside: str, shared: str, place: int | None) -> str:
        """Return a path with {id} for a shared part, and {split} and {group} for other folders that differ.

        Args:
            place: which of the names that have the part gets {id}: 0 the first, -1 the last, None all of them.
        """
        extension = extension_of(path)
        names = _names(path)
        holes = [re.sub(_whole(shared), "{id}", name) for name in names]
        at = [number for number, (name, hole) in enumerate(zip(names, holes, strict=True)) if name != hole]
        if not at:
            return ""
        chosen = at if place is None else [at[place]]
        folders_beside = beside.split("/")[:-1]
        result = [
            holes[number] if number in chosen else self._folder(name, folders_beside)
            for number, name in enumerate(names[:-1])
        ]
        split = next((name for name, hole in zip(names, result, strict=False) if hole == "{split}"), "")
        last = holes[-1] if len(names) - 1 in chosen else names[-1]
        result.append(re.sub(_whole(split), "{split}", last) if split else last)  # as in DRIVE's 21_training
        return _with_one_group(result, extension)

    def _folder(self, name: str, beside: Collection[str]) -> str:
        """Return a folder's name, or the placeholder for folders that differ from file to file."""
        if name in beside:
            return self._shared_folder(name)
        # A split within a name, as in train_images and train_masks, or at its begin or end, as in train and trainannot.
        splits = {
            token
            for token in _TOKEN.findall("/".join((name, *beside)))
            if is_split_name(token) and _has_at_an_end(name, token)
            if any(_has_at_an_end(other, token) for other in beside)
        }
        # A word that all paths have is no split.
        if len(splits) == 1 and len(self._by_part[split := splits.pop()]) < len(self._paths):
            return name.replace(split, "{split}", 1)
        return name

    def _shared_folder(self, name: str) -> str:
        """Return the name of a folder that an image and its label share, or its placeholder if others have another."""
        # A folder of nearly all files is that of the set, and no group of it.
        if self._folders[name] >= _SHARE_OF_SET * len(self._paths):
            return name
        return "{split}" if is_split_name(name) else "{group}"


def _count_apart(image: str, label: str) -> bool:
    """Return whether each of two patterns has a number, or a split, that the other lacks.

    Numbers count patients, visits or channels, so that the files would belong to two of them.

    >>> _count_apart("p0/{id}.nii", "p1/{id}.nii"), _count_apart("train/{id}.png", "test/{id}.png")
    (True, True)
    >>> _count_apart("images/{id}_0000.nii", "labels/{id}.nii")
    False
    """
    tokens = _TOKEN.findall(image), _TOKEN.findall(label)
    one, other = (Counter(filter(str.isdecimal, found)) for found in tokens)
    of_one, of_other = ({token.lower() for token in found if is_split_name(token)} for found in tokens)
    return bool(one - other and other - one) or bool(of_one - of_other and of_other - of_one)


def _has_at_an_end(name: str, word: str) -> bool:
    """Return whether a name has a word as one of its tokens, or begins or ends with it.

    >>> [_has_at_an_end(name, "train") for name in ("a_train_b", "trainannot", "mtrains")]
    [True, True, False]
    """
    return name.startswith(word) or name.endswith(word) or word in _TOKEN.findall(name)


def _with_one_group(names: Sequence[str], extension: str) -> str:
    """Return the path of names, in which {id} holds all folders that differ but the first; "" if it cannot.

    >>> _with_one_group(["{group}", "{group}", "{id}_ct"], ".nii")
    '{group}/{id}_ct.nii'
    >>> _with_one_group(["{group}", "a", "{group}", "{id}"], "")
    '{group}/a/{id}'
    >>> _with_one_group(["{group}", "{group}", "ct_{id}"], "")
    ''
    """
    groups = [number for number, name in enumerate(names) if name == "{group}"]
    swallowed = groups[1:]
    for number in reversed(swallowed):
        after = next(
            (name for place, name in enumerate(names) if place > number and place not in swallowed), ""
        )
        # {id} may span folders only where it follows them directly.
        if not after.startswith("{id}") or names[number + 1] not in (after, "{group}"):
            return ""
    return "/".join(name for number, name in enumerate(names) if number not in swallowed) + extension


def _with_hole(pattern: str, hole: str) -> Iterator[str]:
    """Yield a pattern with a placeholder for a folder, or for a part of the file's name that is fixed text.

    >>> list(_with_hole("Case {id}/region1_label.nii", "{class}"))
    ['Case {id}/{class}.nii', 'Case {id}/{class}_label.nii', 'Case {id}/region1_{class}.nii']
    """
    extension = extension_of(pattern)
    names = pattern.removesuffix(extension).split("/")
    for number, name in enumerate(names[:-1]):
        # A folder with a placeholder differs from file to file already.
        if not HOLE.search(name):
            yield "/".join([*names[:number], hole, *names[number + 1 :]]) + extension
    pieces = HOLE.split(names[-1])
    for number, piece in enumerate(pieces):
        for begin, end in () if number % 2 else _word_spans(piece):
            inside = piece[:begin] + hole + piece[end:]
            yield (
                "/".join([*names[:-1], "".join([*pieces[:number], inside, *pieces[number + 1 :]])])
                + extension
            )


def _word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans in a fixed text that may be a name: all of it, and all but its last or first word."""
    words = [found.span() for found in re.finditer("[A-Za-z0-9]+", text)]
    if words:
        yield words[0][0], words[-1][1]
    if len(words) > 1:
        yield words[0][0], words[-2][1]
        yield words[1][0], words[-1][1]


def _names(path: str) -> list[str]:
    """Return the folders and the stem of a path."""
    return path.removesuffix(extension_of(path)).split("/")


def _parts_of(path: str) -> set[str]:
    """Return the words, numbers and folder names of a path, and its stem."""
    return {*_names(path), *filter(str.isalnum, _TOKEN.findall(path.removesuffix(extension_of(path))))}


def _spread(paths: Sequence[str], count: int) -> list[str]:
    """Return some paths, evenly spread, with the first and the last."""
    if len(paths) <= count:
        return list(paths)
    return [paths[number * (len(paths) - 1) // (count - 1)] for number in range(count)]


def _whole(part: str) -> str:
    """Return a regular expression for a part that no letter or digit of its kind continues."""
    kinds = {True: "[0-9]", False: "[A-Za-z]"}
    return f"(?<!{kinds[part[0].isdecimal()]}){re.escape(part)}(?!{kinds[part[-1].isdecimal()]})"


def _common_runs(one: Sequence[str], other: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the longest common sequences of tokens that cannot be extended.

    >>> list(_common_runs(["a", "_", "1"], ["b", "_", "1"]))
    [['_', '1']]
    """
    for begin in range(len(one)):
        for start in range(len(other)):
            # A run that begins one token earlier was yielded before.
            if one[begin] != other[start] or (begin and start and one[begin - 1] == other[start - 1]):
                continue
            length = 0
            while (
                one[begin + length : begin + length + 1] == other[start + length : start + length + 1] != []
            ):
                length += 1
            yield one[begin : begin + length]
