"""Patterns for images and labels, made from the paths of a source and tried on its files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice

from halofeed.prep.annotations.advice import Suggestion, advise, suggest
from halofeed.prep.annotations.contract import LayoutOptions
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
from halofeed.prep.annotations.pattern_candidates import HOLE, SEEDS, PathIndex, PathPatterns
from halofeed.prep.annotations.patterns import compile_pair
from halofeed.prep.annotations.suggest_layout import layout_hint
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import extension_of, folder_of, is_image_name, iterate_scans
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError, UsageError
from halofeed.system.wording import plural

# The limits are estimates, as those of `pattern_candidates`.
_TRIED_ON_ALL = 24
"""Most candidates that are tried on all files; the best one is among the first few."""
_OPENED = 48
"""Most files to open for one source."""
_SAMPLES = 3
"""Pairs that are opened for each candidate: reading all would take as long as the conversion."""
_LEAST_SHARE = 0.5
"""Least share of images with a label, and of labels with an image: some sets have labels for a part of their images."""
_LABEL_WORD = re.compile(
    r"label|mask|seg|annot|(?<![a-z])gt(?![a-z])|truth|lesion|tumou?r|(?<![a-z])roi|contour|matte",
    re.IGNORECASE,
)
"""Words in names of labels. They decide only where the contents of two files do not."""


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
    index = PathIndex(paths)
    screened = index.sample()
    scored = {one: trials.count_pairs(one, screened) for one in index.candidates()}
    ranked = sorted((one for one in scored if scored[one] > 0), key=lambda one: _rank(one, scored[one], own))
    more = {
        one: trials.count_pairs(one, screened) for best in ranked[:SEEDS] for one in index.with_variants(best)
    }
    scored |= {one: count for one, count in more.items() if count > 0}
    ranked = sorted((one for one in scored if scored[one] > 0), key=lambda one: _rank(one, scored[one], own))
    return trials.suggest(ranked[:_TRIED_ON_ALL], own)


def _rank(one: PathPatterns, files: int, own: str) -> tuple[object, ...]:
    """Return the sort key of patterns that pair this number of files: more files first, then the plainer patterns."""
    # The label is more often the file with such a word, where both orders pair the same files.
    words = len(_LABEL_WORD.findall(one.label)) - len(_LABEL_WORD.findall(one.image))
    return (
        -files,
        one.layout != (own or "pairs"),
        "{id}" not in one.image,
        -words,
        len(HOLE.findall(one.image + one.label)),
        one,
    )


class LayoutError(AnnotationsError):
    """Error of a source that does not fit the layout that the user named, with advice for that layout.

    The advice may open files, so it is made when the message is needed. `brief` is the message without it: another
    layout, or the choice of one, has specific advice.
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
    # Patterns pair one label with an image, so several labels need other advice.
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
        # One folder has the picture, the other the masks of its objects.
        if not more and len(labels) > 1 and _is_image_of(files, image, labels[:_SAMPLES]):
            return (
                f"{image} has several label images, {plural(len(labels), 'file')} in {folder_of(labels[0])}, such as "
                "one for each object: join them into one label image for each picture, with the number of the class at "
                "each pixel, or write a box for each into a table with the columns filename,class,xmin,ymin,xmax,ymax"
            )
    return ""


def _is_image_of(files: SourceFiles, image: str, labels: Sequence[str]) -> bool:
    """Return whether files are labels of an image by their content."""
    of_image, *of_labels = (read_content(files, path) for path in (image, *labels))
    return of_image is not None and all(one and is_label_of(one, of_image) for one in of_labels)


# Trials ---------------------------------------------------------------------------------------------------------


def _count_files(examples: Sequence[SourceExample]) -> int:
    """Return the number of files of images and labels."""
    return sum(1 + len(example.channels) + len(example.mask_paths) for example in examples)


_Labels = Mapping[tuple[str, ...], frozenset[str]]
"""Labels of each image."""


class _Tried:
    """Labels that patterns gave so far."""

    def __init__(self) -> None:
        self._labels: list[_Labels] = []
        self._most = 0

    def is_new(self, labels: _Labels) -> bool:
        """Return whether no patterns before gave the same labels, and no accepted ones gave more."""
        # Candidates differ in placeholders and often give the same pairs.
        if labels in self._labels or sum(map(len, labels.values())) < self._most:
            return False
        self._labels.append(labels)
        return True

    def accept(self, labels: _Labels) -> None:
        """Take labels for right ones."""
        self._most = max(self._most, sum(map(len, labels.values())))


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

    def suggest(self, ranked: Sequence[PathPatterns], own: str) -> tuple[Suggestion, ...]:
        """Return the best patterns, and others that take as many labels."""
        return self._suggest(ranked, own, by_name=False) or self._suggest(ranked, own, by_name=True)

    def _suggest(self, ranked: Sequence[PathPatterns], own: str, *, by_name: bool) -> tuple[Suggestion, ...]:
        tried = _Tried()

        def try_words(words: Sequence[str]) -> str | None:
            return self._effect(PathPatterns.of_words(words, own), tried, by_name)

        found = suggest((one.words(own) for one in ranked), try_words, most=2)
        return tuple(replace(one, words=(*one.words, *self._needed(one.words, own))) for one in found)

    def _effect(self, patterns: PathPatterns, tried: _Tried, by_name: bool) -> str | None:
        """Return what patterns do, as a verb phrase; None if they do not fit, or less than others before them."""
        examples = self._list(patterns, self._paths)
        good = [one for one in examples if one.problem is None]
        labels = {(one.source, *one.channels): frozenset(one.mask_paths) for one in good}
        if not tried.is_new(labels):
            return None
        # Of one pair with most files around it, the fixed text of the patterns is all that counts the files.
        if len(good) == 1 and 2 * _count_files(good) < len(self._paths):
            return None
        if not self._are_labels(examples, by_name):
            return None
        tried.accept(labels)
        return self._describe(examples)

    def _needed(self, words: Sequence[str], own: str) -> tuple[str, ...]:
        """Return the options that these files need: the number of channels, and the void value of label images."""
        patterns = PathPatterns.of_words(words, own)
        good = [one for one in self._list(patterns, self._paths) if one.problem is None]
        channels = max(1 + len(one.channels) for one in good)
        contents = (self._contents.get(path) for one in good for path in one.masks)
        values = {value for content in contents if content for value in content.values}
        is_void = patterns.takes_pictures and void_problem(values)
        return (
            *(("--channels", str(channels)) if channels > 1 else ()),
            *(("--ignore-label", str(VOC_VOID)) if is_void else ()),
        )

    def count_pairs(self, one: PathPatterns, paths: Mapping[str, int]) -> int:
        """Return the number of files in pairs; 0 if the patterns do not fit the files."""
        try:
            examples = self._list(one, paths)
        except (AnnotationsError, UsageError, SourceError):
            return 0
        good = [example for example in examples if example.problem is None]
        alone = Counter(example.problem for example in examples if example.problem is not None)
        # Several labels of one image, or a missing channel, show that the patterns are too wide.
        if not alone.keys() <= {NO_LABEL, NO_IMAGE}:
            return 0
        max_alone = max(alone.values(), default=0)
        return _count_files(good) if len(good) >= _LEAST_SHARE * (len(good) + max_alone) else 0

    def _list(self, one: PathPatterns, paths: Mapping[str, int]) -> list[SourceExample]:
        """Return the examples that a conversion with these patterns lists."""
        has_classes = one.layout == "class-masks"
        pair = compile_pair(one.image, one.label, with_class=has_classes)
        found = by_pattern(paths, self._files.root, pair, self._options)
        # A conversion takes folders of splits too, if no placeholder does.
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
        # A picture with three colors is no channel of another.
        if example.channels and not all(map(self._has_one_channel, images)):
            return False
        if not labels or not all(
            self._is_label(label, image, by_name) for label in labels for image in images
        ):
            return False
        return not example.class_masks or self._are_apart(labels)

    def _has_one_channel(self, path: str) -> bool:
        content = self._content(path)
        return content is not None and content.channels == 1

    def _are_apart(self, labels: Sequence[str]) -> bool:
        """Return whether labels are masks of classes: two values each, and no overlap.

        Labels that overlap may be several labels of one thing, such as those of two readers.
        """
        contents = map(self._content, labels)
        areas = [content.area for content in contents if content and content.area is not None]
        return len(areas) == len(labels) and not any(
            (one & other).any() for one, other in combinations(areas, 2)
        )

    def _content(self, path: str) -> FileContent | None:
        # Beyond the limit no file is opened, so that the pair does not count as proven.
        if path not in self._contents and len(self._contents) < _OPENED:
            self._contents[path] = read_content(self._files, path)
        return self._contents.get(path)

    def _is_label(self, label: str, image: str, by_name: bool) -> bool:
        of_label, of_image = self._content(label), self._content(image)
        if of_label is None or of_image is None:
            return False
        # A drawing in colors is a label as well, though no reader takes it as it is.
        if self._any_color:
            of_label = replace(of_label, may_be_label=True)
        found = is_label_of(of_label, of_image)
        # Two files with few values, such as a mask and a schematic picture: only their names are left.
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
        taken = _count_files(good)
        rest = sum(1 for _ in iterate_scans(self._paths, self._options.takes_scan)) - taken
        return f"pairs {images} with {labels}" + (
            f" and leaves out {plural(rest, 'file')}" if rest > 0 else ""
        )
