"""Evidence of groups: parts of paths, table columns and keys of image entries that repeat while others count.

A group is a patient, a video, a place: images that must not be divided between splits. Nothing here depends on a
format. Every path is cut into fields, and paths of one form make a table whose columns are the fields:

    volume-3_slice_010.png        volume | 3 | slice | 010
    volume-3_slice_011.png   ->   volume | 3 | slice | 011     column 2 repeats while column 4 counts
    volume-4_slice_010.png        volume | 4 | slice | 010

`path_forms` makes these tables, and `path_groups` chooses the column. Attributes, which are columns and keys that a
layout does not read, are judged in the same way.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from halofeed.prep.annotations.class_names import classes_in
from halofeed.prep.annotations.columns import normalize_name
from halofeed.prep.annotations.path_forms import (
    PathForm,
    group_patterns,
    path_fields,
    path_forms,
    whole_folders,
)
from halofeed.prep.annotations.path_groups import LEAST_SHARE, group_place, in_groups, is_class_or_split
from halofeed.prep.annotations.patterns import Expression
from halofeed.prep.sources.example import SourceExample
from halofeed.system.wording import plural

MAX_ROWS = 200_000
"""Images in memory; of more, a sample by a hash of what precedes the last number, so that groups stay whole."""
_WORDS = (
    *(
        "sub",
        "subj",
        "subject",
        "patient",
        "pat",
        "participant",
        "person",
        "individual",
        "identity",
        "case",
        "donor",
    ),
    *("animal", "mouse", "specimen", "slide", "video", "clip", "movie", "sequence", "seq", "scene", "study"),
    *("location", "place"),
)
"""Hints: a measured repeat of such a word with a number, or of a column with such a name, is refused."""
_NAMED = re.compile(
    rf"(?<![A-Za-z])(?P<word>{'|'.join(_WORDS)})(?P<sign>[-_ ]?)[0-9]+(?![0-9])", re.IGNORECASE
)
_COLUMN_ENDS = ("", "id", "uid", "no", "number", "nr", "name", "key", "code", "instanceuid")
"""Ends that a usual word may have in the name of a column; instanceuid is DICOM's."""
_IDENTITY_ENDS = ("id", "uid", "uuid", "guid", "key", "code", "group", "number", "name")
"""Hints: the name of a column that identifies something ends like this."""
_HASH_END = re.compile(
    r"(.*[^\W_])((?:[^\w/]|_)+(?:rf[.])?)(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\.[^.]+"
)
"""Hash of eight digits or more behind a sign, with a digit and a letter in it, so that no date or word is one."""
_NAME_OF_RUN = re.compile(r"(?![0-9]{4}).*[^\W\d_]")
"""Text with a letter that begins with no year."""
# Estimates: three values of three images each come in runs by chance once in 280 times.
_LEAST_RUNS, _LEAST_PER_RUN = 3, 3
"""Least number of values of a column, and of images for each on average, whose runs are not due to chance."""
# An estimate, as those of `path_groups`.
_MAX_ENDS = 12
"""Number of different ends of names up to which they are kinds of copies."""


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Facts of one image that may show its group.

    Args:
        source: path of the image.
        classes: its classes, in order and joined.
        attributes: value by name of a column or key.
    """

    source: str
    classes: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupsFound:
    """Groups that the images seem to have.

    Args:
        option: words of the command line that keep the groups together, "" if no such option works.
        groups: number of groups of several images.
        images: number of images in them.
        example: two images of one group.
        what: description of what repeats.
        is_named: whether a standard word names the group.
        all_groups: number of groups that the option makes of all images.
        alone: number of images whose names have none of the forms, so that each is a separate group.
    """

    option: tuple[str, str]
    groups: int
    images: int
    example: tuple[str, str]
    what: str
    is_named: bool
    all_groups: int
    alone: int = 0


@dataclass(kw_only=True)
class GroupEvidence:
    """Rows of a source, to which those of further parts can be added in any order with the same result.

    With more than `MAX_ROWS` images it keeps those whose hash is below a limit, which halves until they fit.
    """

    rows: list[tuple[int, ImageFacts]] = field(default_factory=list)
    level: int = 0

    def add(self, example: SourceExample) -> None:
        """Add an image without a group."""
        # The kept rows depend only on hashes and level, so the order of images and parts does not matter. Paths that
        # differ only in their last number, such as frames, share a hash and are kept together.
        unit = re.sub(r"\d+(?!.*\d)", "", example.source, count=1)
        digest = int.from_bytes(
            hashlib.blake2b(unit.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
        )
        if digest < 1 << (64 - self.level):
            classes = "\n".join(sorted(set(classes_in(example))))
            row = ImageFacts(source=example.source, classes=classes, attributes=example.attributes)
            self.rows.append((digest, row))
            self._shrink()

    def merge(self, other: GroupEvidence) -> None:
        """Add the rows of another part of the source."""
        self.level = max(self.level, other.level)
        limit = 1 << (64 - self.level)
        self.rows = [one for one in (*self.rows, *other.rows) if one[0] < limit]
        self._shrink()

    def _shrink(self) -> None:
        while len(self.rows) > MAX_ROWS and self.level < 63:
            self.level += 1
            limit = 1 << (64 - self.level)
            self.rows = [one for one in self.rows if one[0] < limit]

    def find(self) -> GroupsFound | None:
        """Return the most certain groups: named ones first, then columns, then parts of paths."""
        rows = sorted({row.source: row for _, row in self.rows}.values(), key=lambda row: row.source)
        # One image repeats nothing.
        if len(rows) < 2:
            return None
        classes = {row.source: row.classes for row in rows}
        copies, parts = [*_copies(classes), *_hashed_copies(classes)], _repeated_parts(classes)
        if copies and parts and _keeps_together(parts[0], copies[0], classes):
            copies = []  # P001_3_flip.png is a copy of P001_3.png, and both are of P001
        candidates = [*_repeated_columns(rows, classes), *_named_parts(classes), *copies, *parts]
        candidates.sort(key=lambda one: not one.is_named)
        return next(iter(candidates), None)


def _keeps_together(outer: GroupsFound, inner: GroupsFound, sources: Iterable[str]) -> bool:
    """Return whether the pattern of `outer` gives each group of the pattern of `inner` one group, and fewer in all."""
    # Without a pattern there is nothing to compare; groups that are no fewer hold no copies of several pictures.
    if not outer.option[0] or outer.all_groups >= inner.all_groups:
        return False
    first, second = (Expression(option=one.option[0], text=one.option[1]) for one in (outer, inner))
    groups: dict[str, str] = {}
    for source in sources:
        large, small = first.search(source), second.search(source)
        if large is None or small is None or groups.setdefault(str(small[1]), str(large[1])) != str(large[1]):
            return False
    return True


@dataclass(frozen=True)
class _Grouping:
    """Group of each image, by its path, that one rule gives."""

    by_source: Mapping[str, str]

    @cached_property
    def counts(self) -> Counter[str]:
        """Return the number of images of each group."""
        return Counter(self.by_source.values())

    @cached_property
    def repeated(self) -> str:
        """Return the first group of several images."""
        return next(value for value in self.by_source.values() if self.counts[value] > 1)

    def found(self, option: tuple[str, str], what: str, *, is_named: bool, total: int) -> GroupsFound:
        """Return the groups with the option that keeps them together, which makes `total` groups of all images."""
        pair = [source for source, group in self.by_source.items() if group == self.repeated][:2]
        return GroupsFound(
            option=option,
            groups=sum(count > 1 for count in self.counts.values()),
            images=in_groups(self.counts),
            example=(pair[0], pair[1]),
            what=what,
            is_named=is_named,
            all_groups=total,
        )


# Columns and keys -----------------------------------------------------------------------------------------


def _repeated_columns(rows: Sequence[ImageFacts], classes: Mapping[str, str]) -> list[GroupsFound]:
    """Return the groups that attributes show, the best first."""
    values: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, value in row.attributes:
            # An empty cell says that there is no group.
            if value.strip():
                values.setdefault(name, {})[row.source] = value
    found = [_groups_of_column(name, by_source, classes) for name, by_source in values.items()]
    return sorted(
        (one for one in found if one is not None), key=lambda one: (not one.is_named, one.all_groups)
    )


def _groups_of_column(
    name: str, by_source: Mapping[str, str], classes: Mapping[str, str]
) -> GroupsFound | None:
    """Return the groups that one attribute shows; None if it names none."""
    is_named = is_group_name(name)
    # A measure such as an age repeats too, so that a column needs the name of an identity.
    is_identity = normalize_name(name).endswith(_IDENTITY_ENDS) and not is_class_or_split(classes, by_source)
    grouping = _Grouping(by_source)
    if not 1 < len(grouping.counts) < len(by_source):
        return None
    if not (is_named or is_identity or _names_runs(grouping, classes)):
        return None
    # An attribute that only some images have cannot divide all of them.
    option = ("--group-column", name) if len(by_source) == len(classes) else ("", "")
    what = f"{name!r} is the same for several images"
    return grouping.found(option, what, is_named=is_named, total=len(grouping.counts))


def _names_runs(grouping: _Grouping, classes: Mapping[str, str]) -> bool:
    """Return whether each value of a column names one run of images in the order of their paths.

    Images are numbered place by place and session by session, so that the values of a place come one after the other,
    whatever the column is called. Weather, breeds or views alternate.
    """
    values = set(grouping.counts)
    # Measures and dates repeat by their nature, two runs are halves such as day and night, and classes come in runs.
    if len(values) < _LEAST_RUNS or not all(_NAME_OF_RUN.match(value) for value in values):
        return False
    if is_class_or_split(classes, grouping.by_source) or _names_classes(grouping, classes):
        return False
    # Of single images, the order shows nothing; values in equal shares need three of each to be no chance.
    if len(grouping.by_source) < _LEAST_PER_RUN * len(values):
        return False
    ordered = sorted(grouping.by_source, key=_natural_order)
    row = [grouping.by_source[source] for source in ordered]
    return 1 + sum(one != other for one, other in pairwise(row)) == len(values)


def _names_classes(grouping: _Grouping, classes: Mapping[str, str]) -> bool:
    """Return whether a column describes the classes, as a species does: each class has one value of it."""
    found = {(classes[source], value) for source, value in grouping.by_source.items()}
    names = {name for name, _ in found}
    return len(names) > 1 and len(found) == len(names)


def _natural_order(path: str) -> list[tuple[bool, int, str]]:
    """Return the key that sorts 9.png before 10.png."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"([0-9]+)", path)
        if part
    ]


def is_group_name(name: str) -> bool:
    """Return whether a column or key is named like a group; of a path of keys the last one counts.

    >>> [is_group_name(name) for name in ("patient_id", "VideoName", "meta.StudyInstanceUID", "scenery", "grid")]
    [True, True, True, False, False]
    """
    normalized = normalize_name(re.split(r"[./]", name)[-1])
    return any(normalized == word + end for word in _WORDS for end in _COLUMN_ENDS)


# Words and copies in paths --------------------------------------------------------------------------------


def _named_parts(classes: Mapping[str, str]) -> list[GroupsFound]:
    """Return the groups that a standard word with a number names in several paths, outer words first."""
    by_word: dict[str, dict[str, re.Match[str]]] = {}
    for source in classes:
        for match in _NAMED.finditer(source):
            by_word.setdefault(match["word"].lower(), {}).setdefault(source, match)
    outer_first = sorted(by_word.values(), key=lambda some: min(match.start() for match in some.values()))
    found = [_groups_of_word(matches, classes) for matches in outer_first]
    return [one for one in found if one is not None]


def _groups_of_word(matches: Mapping[str, re.Match[str]], classes: Mapping[str, str]) -> GroupsFound | None:
    """Return the groups that one word with a number names, by its match in each path; None if none repeats."""
    grouping = _Grouping({source: match[0].lower() for source, match in matches.items()})
    repeated = [match for match in matches.values() if grouping.counts[match[0].lower()] > 1]
    # A word with a number may also be a class or a split: scene_1/a.jpg.
    if not repeated or is_class_or_split(classes, grouping.by_source):
        return None
    forms = dict.fromkeys(f"{match['word']}{re.escape(match['sign'])}[0-9]+" for match in repeated)
    part = f"(?:{'|'.join(forms)})" if len(forms) > 1 else next(iter(forms))
    option, total = _checked_pattern(classes, [f"({part}|^(?!.*{part}).+)"], None)
    what = f"they are named after one {repeated[0][0]!r}"
    return grouping.found(option, what, is_named=True, total=total)


def _copies(classes: Mapping[str, str]) -> list[GroupsFound]:
    """Return the groups of pictures and their copies: 12.png with 12_flip.png, IMG_7.jpg with "IMG_7 (1).jpg".

    The name of a copy is that of another picture with more fields behind it.
    """
    whole = whole_folders(classes)
    cut = {source: source.rpartition(".")[0] or source for source in classes}
    stems = set(cut.values())
    bases = {source: base for source, stem in cut.items() if (base := _base_of(stem, stems, whole))}
    # A long number in the end, such as a hash or a time, differs for each copy.
    ends = dict.fromkeys(
        re.sub(r"[0-9]+", "[0-9]+", re.escape(cut[source][len(base) :])) for source, base in bases.items()
    )
    # Many different ends are names that begin alike, and no kinds of copies.
    if len(bases) < max(1, LEAST_SHARE * len(classes)) or len(ends) > _MAX_ENDS:
        return []
    grouping = _Grouping({source: bases.get(source, stem) for source, stem in cut.items()})
    pattern = rf"^(.+?)(?:{'|'.join(ends)})?\.[^.]+$"
    option, total = _checked_pattern(classes, [pattern], len(grouping.counts))
    # A message without an option that works would be no help for a guess by names.
    if not option[0]:
        return []
    what = f"names of copies begin with that of another picture, {grouping.repeated!r}"
    return [grouping.found(option, what, is_named=False, total=total)]


def _base_of(stem: str, stems: Container[str], whole: Container[tuple[int, int]]) -> str:
    """Return the longest stem of another picture that a stem begins with, field by field; "" if there is none."""
    fields, separators = path_fields(stem, whole)
    for last in range(len(fields) - 1, 0, -1):
        parts = [after + field for after, field in zip(separators[:last], fields[:last], strict=True)]
        if (base := "".join(parts)) in stems:
            return base
    return ""


def _hashed_copies(classes: Mapping[str, str]) -> list[GroupsFound]:
    """Return the groups of pictures that differ in a hash at the end alone: apple pie_png.rf.f052e38f658a2d34.jpg.

    Roboflow names the copies that it makes of a picture like this. The text before the hash may have any form.
    """
    matches = {source: match for source in classes if (match := _HASH_END.fullmatch(source))}
    grouping = _Grouping({source: match[1] for source, match in matches.items()})
    tails = {match[2] for match in matches.values()}
    # One tool names all files in one way.
    if len(matches) < len(classes) or len(tails) != 1 or len(grouping.counts) < 2:
        return []
    # A tool that makes copies makes them of most pictures (an estimate).
    if in_groups(grouping.counts) < len(classes) / 2 or is_class_or_split(classes, grouping.by_source):
        return []
    pattern = rf"^(.+){re.escape(tails.pop())}[0-9A-Fa-f]{{8,}}\.[^.]+$"
    option, total = _checked_pattern(classes, [pattern], len(grouping.counts))
    what = f"{grouping.repeated!r} repeats before a hash"
    return [grouping.found(option, what, is_named=False, total=total)]


# Parts of paths -------------------------------------------------------------------------------------------


def _repeated_parts(classes: Mapping[str, str]) -> list[GroupsFound]:
    """Return the groups that parts of paths show, of each form of paths the outermost part that repeats."""
    found = _columns_of_groups(classes)
    grouping = _Grouping(
        {
            source: value
            for form, place in found
            for source, value in zip(form.sources, form.columns[place], strict=True)
        }
    )
    # Fewer repeats than that are chance.
    if not found or in_groups(grouping.counts) < LEAST_SHARE * len(classes):
        return []
    alone = len(classes) - len(grouping.by_source)
    total = len(grouping.counts) + alone
    option, _ = _checked_pattern(classes, group_patterns(found, len(classes)), total)
    what = f"{grouping.repeated!r} repeats while the rest counts"
    return [replace(grouping.found(option, what, is_named=False, total=total), alone=alone)]


def _columns_of_groups(classes: Mapping[str, str]) -> list[tuple[PathForm, int]]:
    """Return the forms of paths that have groups, with the column that names these."""
    class_names = {name.lower() for names in classes.values() for name in names.split("\n") if name}
    # Letters and digits of one field are mostly one name, so they are cut only where nothing else shows a group.
    for cuts_letters in (False, True):
        places = [
            (form, group_place(form, classes, class_names)) for form in path_forms(classes, cuts_letters)
        ]
        if found := [(form, place) for form, place in places if place is not None]:
            return found
    return []


def _checked_pattern(
    sources: Collection[str], patterns: Iterable[str], total: int | None
) -> tuple[tuple[str, str], int]:
    """Return the first pattern that matches all sources and makes so many groups of them, and their number."""
    for pattern in patterns:
        groups = _count_groups(sources, pattern)
        if groups is not None and total in (None, groups):
            return ("--group-pattern", pattern), groups
    return ("", ""), total or 0


def _count_groups(sources: Iterable[str], pattern: str) -> int | None:
    """Return the number of groups that a pattern makes; None if a source has none."""
    compiled = Expression(option="--group-pattern", text=pattern)
    groups = set()
    for source in sources:
        match = compiled.search(source)
        if match is None or match[1] is None:
            return None
        groups.add(match[1])
    return len(groups)


def describe(found: GroupsFound, level: int = 0) -> str:
    """Return a sentence about groups with the option that keeps them together."""
    one, other = found.example
    sample = f" (in a sample of one of {1 << level} images)" if level else ""
    fix = (
        f"use {shlex.join(found.option)} to keep each group in one split, which makes "
        f"{plural(found.all_groups, 'group')}"
        + (f" ({plural(found.alone, 'image')} with other names are each one)" if found.alone else "")
        if found.option[0]
        else "write the group of each image in a column group of a table"
    )
    return (
        f"{one} and {other} may get into different splits: {found.what}; {plural(found.groups, 'such group')} with "
        f"{plural(found.images, 'image')}{sample}; {fix}"
    )
