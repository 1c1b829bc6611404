"""Patterns for images and labels, made from the paths of a source and tried on its files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from halofeed.errors import AnnotationsError, SourceError, UsageError
from halofeed.prep.annotations.advice import Suggestion, advise, suggest
from halofeed.prep.annotations.contract import LayoutOptions, is_split_name
from halofeed.prep.annotations.file_content import FileContent, is_label_of, read_content
from halofeed.prep.annotations.labels import VOC_VOID, void_problem
from halofeed.prep.annotations.pairing import (
    NO_IMAGE,
    NO_LABEL,
    by_pattern,
    join_class_masks,
    pair_up,
    split_by_folder,
)
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, folder_of, is_image_name, iterate_scans
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.wording import plural

_SEEDS = 6
"""Files whose partners are looked for."""
_PARTNERS = 16
"""Most files that a seed is compared with: those whose paths share most with its own."""
_NEAR = 2_000
"""Most files to look at for each part of a path."""
_SCREENED = 600
"""Most files on which all candidates are tried; the best candidates are then tried on all files."""
_TRIED_ON_ALL = 24
_OPENED = 48
"""Most files to open for one source."""
_SAMPLES = 3
"""Pairs that are opened for each candidate: reading all would take as long as the conversion."""
_LEAST_SHARE = 0.5
"""Least share of images with a label, and of labels with an image."""
_TOKEN = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9]")
_HOLE = re.compile(r"(\{[a-z]+\})")
_LABEL_WORD = re.compile(
    r"label|mask|seg|annot|(?<![a-z])gt(?![a-z])|truth|lesion|tumou?r|(?<![a-z])roi|contour|matte",
    re.IGNORECASE,
)
"""Words in names of labels. They decide only where the contents of two files do not."""


@dataclass(frozen=True, kw_only=True, order=True)
class _Patterns:
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
    def of_words(cls, words: Sequence[str], own: str) -> _Patterns:
        """Parse the result of `words`."""
        given = dict(zip(words[::2], words[1::2], strict=True))
        layout = given.get("--layout", own)
        return cls(image=given["--image-pattern"], label=given["--label-pattern"], layout=layout)


def suggest_patterns(files: SourceFiles, options: LayoutOptions, own: str = "") -> tuple[Suggestion, ...]:
    """Return patterns that pair images with labels, each tried on the files; () if none does.

    Candidates come from two paths with a common part. A trial sorts all files as a conversion does, and opens a few
    pairs: one file must be the label of the other by its content. So two folders of pictures are not images and
    labels, and neither are the files of two patients.

    Args:
        options: the user's options, for the files that count as scans.
        own: layout that the user named, "pairs" or "class-masks"; "" suggests the layout too.
    """
    return _rank_and_try(_Trials(files, options), list(iterate_scans(files.sizes(), options.takes_scan)), own)


def find_drawings(files: SourceFiles, options: LayoutOptions, paths: Sequence[str]) -> tuple[Suggestion, ...]:
    """Return patterns that pair pictures with drawings of the same size and few colors, which may be their labels.

    Such folders are no classes, also where the colors cannot be read as labels.

    Args:
        paths: pictures to look at.
    """
    return _rank_and_try(_Trials(files, options, paths=paths, any_color=True), paths, "")


def _rank_and_try(trials: _Trials, paths: Sequence[str], own: str) -> tuple[Suggestion, ...]:
    index = _PathIndex(paths)
    screened = index.sample()
    scored = {one: trials.count_pairs(one, screened) for one in index.candidates()}
    ranked = sorted((one for one in scored if scored[one] > 0), key=lambda one: _rank(one, scored[one], own))
    more = {
        one: trials.count_pairs(one, screened)
        for best in ranked[:_SEEDS]
        for one in index.with_variants(best)
    }
    scored |= {one: count for one, count in more.items() if count > 0}
    ranked = sorted((one for one in scored if scored[one] > 0), key=lambda one: _rank(one, scored[one], own))
    return trials.suggest(ranked[:_TRIED_ON_ALL], own)


def _rank(one: _Patterns, files: int, own: str) -> tuple[object, ...]:
    """Return the sort key of patterns that pair this number of files: more files first, then the plainer patterns."""
    words = len(_LABEL_WORD.findall(one.label)) - len(_LABEL_WORD.findall(one.image))
    return (
        -files,
        one.layout != (own or "pairs"),
        "{id}" not in one.image,
        -words,
        len(_HOLE.findall(one.image + one.label)),
        one,
    )


class LayoutError(AnnotationsError):
    """Error of a source that does not fit the layout that the user named, with advice for that layout.

    The advice may open files, so it is made when the message is needed. `brief` is the message without it: another
    layout, or the choice of one, has advice of its own.
    """

    def __init__(self, brief: str, advice: Callable[[], str]) -> None:
        super().__init__(brief)
        self.brief, self._advice = brief, advice

    def __str__(self) -> str:
        return f"{self.brief}; {self._advice()}"


def pattern_advice(files: SourceFiles, options: LayoutOptions, own: str = "") -> str:
    """Return a clause with patterns that were tried, or with what patterns are if no pair of files proved right.

    Another layout that the files show is named, too. Folders with labels are no classes.
    """
    suggested = suggest_patterns(files, options, own)
    hint = layout_hint(files, own, may_be_classes=not suggested) if own else ""
    return f"{advise(suggested, no_pattern(files))}{hint}"


def no_pattern(files: SourceFiles) -> str:
    """Return what was seen, and a pattern with a path of the source.

    >>> from types import SimpleNamespace
    >>> print(no_pattern(SimpleNamespace(sizes=lambda: {"ct/a1.nii": 1, "ct/a2.nii": 1})))
    by name and content, none of its 2 files, such as ct/a1.nii, is the label of another. If some are, name images and \
labels with --image-pattern and --label-pattern: paths with {id} for the part that counts, as in 'ct/a{id}.nii'
    """
    paths = list(iterate_scans(files.sizes()))
    if not paths:
        return "it holds no picture and no volume"
    if several := several_labels(files, paths):
        return several
    path = paths[0]
    stem = path.removesuffix(extension_of(path))
    numbers = list(re.finditer("[0-9]+(?![A-Za-z0-9])", stem))
    begin, end = numbers[-1].span() if numbers else (stem.rfind("/") + 1, len(stem))
    return (
        f"by name and content, none of its {plural(len(paths), 'file')}, such as {path}, is the label of another. If "
        "some are, name images and labels with --image-pattern and --label-pattern: paths with {id} for the part that "
        f"counts, as in '{path[:begin]}{{id}}{path[end:]}'"
    )


def several_labels(files: SourceFiles, paths: Sequence[str]) -> str:
    """Return that each picture has several label images in a folder beside its own, as in DSB 2018; "" otherwise."""
    folders: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in filter(is_image_name, paths):
        folder = folder_of(path)
        folders[folder_of(folder)][folder].append(path)
    for beside in islice((one for one in folders.values() if len(one) == 2), _SAMPLES):
        (image, *more), labels = sorted(beside.values(), key=len)
        contents = [read_content(files, path) for path in (image, *labels[:_SAMPLES])]
        of_image, *of_labels = contents
        if (
            not more
            and len(labels) > 1
            and of_image
            and all(one and is_label_of(one, of_image) for one in of_labels)
        ):
            return (
                f"{image} has several label images, {plural(len(labels), 'file')} in {folder_of(labels[0])}, such as "
                "one for each object: join them into one label image for each picture, with the number of the class at "
                "each pixel, or write a box for each into a table with the columns filename,class,xmin,ymin,xmax,ymax"
            )
    return ""


# Trials ---------------------------------------------------------------------------------------------------------


class _Trials:
    """Trials of patterns on the files of one source; contents of files are read once."""

    def __init__(
        self,
        files: SourceFiles,
        options: LayoutOptions,
        *,
        paths: Sequence[str] | None = None,
        any_color: bool = False,
    ) -> None:
        self._files, self._options = files, replace(options, channel_order=())
        self._paths = files.sizes() if paths is None else dict.fromkeys(paths, 0)
        self._any_color = any_color
        self._contents: dict[str, FileContent | None] = {}

    def suggest(self, ranked: Sequence[_Patterns], own: str) -> tuple[Suggestion, ...]:
        """Return the best patterns, and others that take as many labels."""
        return self._suggest(ranked, own, by_name=False) or self._suggest(ranked, own, by_name=True)

    def _suggest(self, ranked: Sequence[_Patterns], own: str, *, by_name: bool) -> tuple[Suggestion, ...]:
        tried: list[dict[tuple[str, ...], frozenset[str]]] = []
        taken: list[int] = []

        def try_words(words: Sequence[str]) -> str | None:
            examples = self._list(_Patterns.of_words(words, own), self._paths)
            good = [one for one in examples if one.problem is None]
            labels = {(one.source, *one.channels): frozenset(one.mask_paths) for one in good}
            if labels in tried or any(_count(labels) < count for count in taken):
                return None
            tried.append(labels)
            taken_files = sum(1 + len(one.channels) + len(one.mask_paths) for one in good)
            if len(good) == 1 and 2 * taken_files < len(self._paths):
                return None  # all that counts files is fixed text
            if not self._are_labels(examples, by_name):
                return None
            taken.append(_count(labels))
            return self._describe(examples)

        def _count(labels: Mapping[tuple[str, ...], Collection[str]]) -> int:
            return sum(map(len, labels.values()))

        found = suggest((one.words(own) for one in ranked), try_words, most=2)
        return tuple(replace(one, words=(*one.words, *self._needed(one.words, own))) for one in found)

    def _needed(self, words: Sequence[str], own: str) -> tuple[str, ...]:
        """Return the options that these files need: the number of channels, and the void value of label images."""
        patterns = _Patterns.of_words(words, own)
        good = [one for one in self._list(patterns, self._paths) if one.problem is None]
        channels = max(1 + len(one.channels) for one in good)
        contents = (self._contents.get(path) for one in good for path in one.masks)
        values = {value for content in contents if content for value in content.values}
        is_void = patterns.takes_pictures and void_problem(values)
        return (
            *(("--channels", str(channels)) if channels > 1 else ()),
            *(("--ignore-label", str(VOC_VOID)) if is_void else ()),
        )

    def count_pairs(self, one: _Patterns, paths: Mapping[str, int]) -> int:
        """Return the number of files in pairs; 0 if the patterns do not fit the files."""
        try:
            examples = self._list(one, paths)
        except (AnnotationsError, UsageError, SourceError):
            return 0
        good = [example for example in examples if example.problem is None]
        single = [example for example in examples if example.problem is not None]
        if any(example.problem not in (NO_LABEL, NO_IMAGE) for example in single):
            return 0
        if any(
            len(good) < _LEAST_SHARE * (len(good) + sum(example.problem == problem for example in single))
            for problem in (NO_LABEL, NO_IMAGE)
        ):
            return 0
        return sum(1 + len(example.channels) + len(example.mask_paths) for example in good)

    def _list(self, one: _Patterns, paths: Mapping[str, int]) -> list[SourceExample]:
        """Return the examples that a conversion with these patterns lists."""
        has_classes = one.layout == "class-masks"
        pair = compile_pair(one.image, one.label, with_class=has_classes)
        found = by_pattern(paths, self._files.root, pair, self._options)
        if "split" not in pair.image.names:
            found.images = split_by_folder(found.images, self._files.root, self._options.split_folders)
        if has_classes:
            found.labels = join_class_masks(found.labels, self._files.root, self._options)
        return pair_up(found.images, found.labels, "refuse")

    def _are_labels(self, examples: Sequence[SourceExample], by_name: bool) -> bool:
        """Return whether the labels of a few examples are labels by their content.

        Args:
            by_name: whether the names decide for a file whose content does not.
        """
        good = [example for example in examples if example.problem is None]
        step = max(1, (len(good) - 1) // (_SAMPLES - 1))
        sample = good[::step][:_SAMPLES]
        return bool(sample) and all(self._has_labels(example, by_name) for example in sample)

    def _has_labels(self, example: SourceExample, by_name: bool) -> bool:
        labels = example.mask_paths
        images = (example.source, *example.channels)
        if example.channels and any(
            (content := self._content(path)) is None or content.channels > 1 for path in images
        ):
            return False
        if not labels or not all(
            self._is_label(label, image, by_name) for label in labels for image in images
        ):
            return False
        # Masks of classes hold two values each and do not overlap; else they may be several labels of one thing.
        areas = [content.area for label in labels if (content := self._content(label))]
        known = [area for area in areas if area is not None]
        return not example.class_masks or (
            len(known) == len(labels)
            and not any((one & other).any() for one, other in combinations(known, 2))
        )

    def _content(self, path: str) -> FileContent | None:
        if path not in self._contents and len(self._contents) < _OPENED:
            self._contents[path] = read_content(self._files, path)
        return self._contents.get(path)

    def _is_label(self, label: str, image: str, by_name: bool) -> bool:
        of_label, of_image = self._content(label), self._content(image)
        if of_label is None or of_image is None:
            return False
        if self._any_color:
            of_label = replace(of_label, may_be_label=True)
        found = is_label_of(of_label, of_image)
        if found is None and by_name:
            return len(_LABEL_WORD.findall(label)) > len(_LABEL_WORD.findall(image))
        return bool(found)

    def _describe(self, examples: Sequence[SourceExample]) -> str:
        """Return what the patterns do, as a verb phrase."""
        good = [example for example in examples if example.problem is None]
        channels = 1 + len(good[0].channels)
        images = plural(len(good), "image") + (f" of {channels} channels" if channels > 1 else "")
        classes = {name for example in good for name, _ in example.class_masks}
        masks = sum(len(example.mask_paths) for example in good)
        labels = (
            f"{plural(masks, 'mask')} of {plural(len(classes), 'class', 'classes')}"
            if classes
            else plural(masks, "label")
        )
        taken = sum(1 + len(example.channels) + len(example.mask_paths) for example in good)
        rest = sum(1 for _ in iterate_scans(self._paths, self._options.takes_scan)) - taken
        return f"pairs {images} with {labels}" + (
            f" and leaves out {plural(rest, 'file')}" if rest > 0 else ""
        )


# Candidates -----------------------------------------------------------------------------------------------------


class _PathIndex:
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
        if len(self._paths) <= _SCREENED:
            return dict.fromkeys(self._paths, 0)
        seeds = _spread(self._paths, _SCREENED // _PARTNERS)
        chosen = {other for path in seeds for other in (path, *self._partners(path))}
        return dict.fromkeys(sorted(chosen), 0)

    def candidates(self) -> Iterator[_Patterns]:
        """Yield patterns from pairs of paths with a common part."""
        seen: set[tuple[str, str]] = set()
        for one in _spread(self._paths, _SEEDS):
            for other in self._partners(one):
                for image, label in self._patterns_of(one, other):
                    pair = (image, label)
                    if pair in seen or _count_apart(image, label) or any(map(self._counts, pair)):
                        continue
                    seen |= {pair, pair[::-1]}
                    yield _Patterns(image=image, label=label)
                    yield _Patterns(image=label, label=image)
        one, other = self._paths if len(self._paths) == 2 else ("", "")
        if one and folder_of(one) == folder_of(other):  # one image and its label
            yield _Patterns(image=one, label=other)
            yield _Patterns(image=other, label=one)

    def _counts(self, pattern: str) -> bool:
        """Return whether a pattern is of one of several numbered folders, or has {group} below {id}.

        Files of one patient's folder belong together, so its number is a part of {id}. And a group, such as a
        patient's, holds several images.
        """
        names = pattern.split("/")[:-1]
        return not self._numbered.isdisjoint(names) or 0 <= pattern.find("{id}") < pattern.find("{group}")

    def with_variants(self, pair: _Patterns) -> Iterator[_Patterns]:
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
                if all(patterns) and _HOLE.findall(patterns[0]) and patterns[0] != patterns[1]:
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
            if self._folders[name] == len(self._paths):
                return name
            return "{split}" if is_split_name(name) else "{group}"
        tokens = _TOKEN.findall(name)
        common = {token for other in beside for token in _TOKEN.findall(other)}
        splits = [token for token in tokens if token in common and is_split_name(token)]
        if len(splits) == 1 and len(self._by_part[splits[0]]) < len(self._paths):
            return "".join("{split}" if token == splits[0] else token for token in tokens)
        return name


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
        if not _HOLE.search(name):
            yield "/".join([*names[:number], hole, *names[number + 1 :]]) + extension
    pieces = _HOLE.split(names[-1])
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
            if one[begin] != other[start] or (begin and start and one[begin - 1] == other[start - 1]):
                continue
            length = 0
            while (
                one[begin + length : begin + length + 1] == other[start + length : start + length + 1] != []
            ):
                length += 1
            yield one[begin : begin + length]
