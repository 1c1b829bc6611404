"""Evidence of groups: parts of paths, table columns and keys of image entries that repeat while others count.

A group is a patient, a video, a place: images that must not be divided between splits. Nothing here depends on a
format. Every path is cut into fields, and paths of one form make a table whose columns are the fields:

    volume-3_slice_010.png        volume | 3 | slice | 010
    volume-3_slice_011.png   ->   volume | 3 | slice | 011     column 2 repeats while column 4 counts
    volume-4_slice_010.png        volume | 4 | slice | 010

Attributes, which are columns and keys that a layout does not read, are judged in the same way.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from halofeed.prep.annotations.class_names import classes_in
from halofeed.prep.annotations.columns import normalize_name
from halofeed.prep.annotations.contract import is_split_name
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
_COUNTER = re.compile(r"(frame|frm|slice|slc|tile|crop|layer|z|t)\d*", re.IGNORECASE)
"""Hints: a number behind such a word counts within a group, although it stands first in the path."""
_SIDES = frozenset({"left", "right", "l", "r", "od", "os", "lt", "rt"})
"""Hints: two pictures of one person, the same numbers of which are no chance."""
_COLUMN_ENDS = ("", "id", "uid", "no", "number", "nr", "name", "key", "code", "instanceuid")
_IDENTITY_ENDS = ("id", "uid", "uuid", "guid", "key", "code", "group", "number", "name")
"""Hints: the name of a column that identifies something ends like this."""
_FIELD = re.compile(r"[^\W_]+")
_TWO_NUMBERS = re.compile(r"([^\W\d_]*)(\d+)([^\W\d_]+)(\d+)([^\W\d_]*)")
_HASH_END = re.compile(
    r"(.*[^\W_])((?:[^\w/]|_)+(?:rf[.])?)(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\.[^.]+"
)
_SIZE = re.compile(r"\d{2,5}x\d{2,5}")
_DATE = re.compile(
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])\d{0,9}|1[2-9][0-9]{8}|1[2-9][0-9]{11}|19[89]\d|20[0-3]\d"
)
"""A day with or without a time, seconds or milliseconds since 1970, or a year, as in VOC's 2007_000027.jpg."""
# The thresholds from here on are estimates: they were chosen on the real sets of the tests and on about 190 drawn sets
# of names, and were measured on no others.
_LEAST_SHARE = 0.02
"""Share of the images that must be in groups of several; fewer are chance."""
_EVEN = 0.02
"""Variance of the sizes of groups, compared with their mean, below which even few groups are no chance."""
_BLOCKS = (10, 100, 500, 1000, 5000, 10_000, 100_000)
"""Usual numbers of files in a folder of a large set."""
_LEAST_FOLDERS, _LEAST_WORDS = 3, 4
"""Least number of different folders and of other words that may be names of groups."""
_MAX_ENDS = 12
"""Number of different ends of names up to which they are kinds of copies."""
_CHANCE = 3.0
"""Number of equal pairs, compared with pairs of random numbers, from which they are no chance."""


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
        alone: number of images whose names have none of the forms, so that each is a group of its own.
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
        # Order and parts do not matter: the set of kept rows depends on the hashes and the level alone.
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
        if len(rows) < 2:
            return None
        copies, parts = [*_copies(rows), *_hashed_copies(rows)], _repeated_parts(rows)
        if copies and parts and _keeps_together(parts[0], copies[0], rows):
            copies = []  # P001_3_flip.png is a copy of P001_3.png, and both are of P001
        candidates = [*_repeated_columns(rows), *_named_parts(rows), *copies, *parts]
        candidates.sort(key=lambda one: not one.is_named)
        return next(iter(candidates), None)


def _keeps_together(outer: GroupsFound, inner: GroupsFound, rows: Sequence[ImageFacts]) -> bool:
    """Return whether the pattern of `outer` gives each group of the pattern of `inner` one group, and fewer in all."""
    if not outer.option[0] or outer.all_groups >= inner.all_groups:
        return False
    first, second = (Expression(option=one.option[0], text=one.option[1]) for one in (outer, inner))
    groups: dict[str, str] = {}
    for row in rows:
        large, small = first.search(row.source), second.search(row.source)
        if large is None or small is None or groups.setdefault(str(small[1]), str(large[1])) != str(large[1]):
            return False
    return True


def _repeated_columns(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups that attributes show, the best first."""
    values: dict[str, dict[str, str]] = {}
    for row in rows:
        for name, value in row.attributes:
            if value.strip():
                values.setdefault(name, {})[row.source] = value
    found = []
    for name, by_source in values.items():
        is_named = is_group_name(name)
        normalized = normalize_name(name)
        if not is_named and not normalized.endswith(_IDENTITY_ENDS):
            continue
        if _is_class_or_split(rows, by_source) and not is_named:
            continue
        counts = Counter(by_source.values())
        if len(counts) < 2 or len(counts) == len(by_source):
            continue
        # An attribute that only some images have cannot divide all of them.
        is_complete = len(by_source) == len(rows)
        option = ("--group-column", name) if is_complete else ("", "")
        found.append(
            _found(
                by_source, counts, option, f"{name!r} is the same for several images", is_named, len(counts)
            )
        )
    return sorted(found, key=lambda one: (not one.is_named, one.all_groups))


def is_group_name(name: str) -> bool:
    """Return whether a column or key is named like a group; of a path of keys the last one counts.

    >>> [is_group_name(name) for name in ("patient_id", "VideoName", "meta.StudyInstanceUID", "scenery", "grid")]
    [True, True, True, False, False]
    """
    normalized = normalize_name(re.split(r"[./]", name)[-1])
    return any(normalized == word + end for word in _WORDS for end in _COLUMN_ENDS)


def _named_parts(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups that a standard word with a number names in several paths, outer words first."""
    by_word: dict[str, dict[str, tuple[int, re.Match[str]]]] = {}
    for row in rows:
        for match in _NAMED.finditer(row.source):
            by_word.setdefault(match["word"].lower(), {}).setdefault(row.source, (match.start(), match))
    found = []
    for matches in sorted(by_word.values(), key=lambda some: min(start for start, _ in some.values())):
        by_source = {source: match[0].lower() for source, (_, match) in matches.items()}
        counts = Counter(by_source.values())
        repeated = [match for source, (_, match) in matches.items() if counts[by_source[source]] > 1]
        if not repeated or _is_class_or_split(rows, by_source):
            continue
        forms = dict.fromkeys(f"{match['word']}{re.escape(match['sign'])}[0-9]+" for match in repeated)
        part = f"(?:{'|'.join(forms)})" if len(forms) > 1 else next(iter(forms))
        option, total = _checked_pattern(rows, [f"({part}|^(?!.*{part}).+)"], None)
        what = f"they are named after one {repeated[0][0]!r}"
        found.append(_found(by_source, counts, option, what, True, total))
    return found


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Paths of one form, as a table with a column for each field."""

    sources: Sequence[str]
    classes: Mapping[str, str]
    columns: Sequence[Sequence[str]]
    separators: tuple[str, ...]


def _fields(path: str, whole: Container[tuple[int, int]] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a path and the text around them.

    Args:
        whole: (number of folders, place among them) of folders that are one field.

    >>> _fields("a/P1_0.png"), _fields("car-turn/7.png", {(1, 0)})
    ((('a', 'P1', '0', 'png'), ('', '/', '_', '.', '')), (('car-turn', '7', 'png'), ('', '/', '.', '')))
    """
    *folders, name = path.split("/")
    fields: list[str] = []
    around = [""]
    for place, part in enumerate((*folders, name)):
        is_whole = (len(folders), place) in whole and place < len(folders)
        inner = [part] if is_whole else _FIELD.findall(part)
        first, *more = ("", "") if is_whole else _FIELD.split(part)
        around[-1] += first
        around += more
        fields += inner
        around[-1] += "/" if place < len(folders) else ""
    return tuple(fields), tuple(around)


def _whole_folders(paths: Iterable[str]) -> set[tuple[int, int]]:
    """Return the folders whose names have different forms, such as bear and car-turn, so that each is one field."""
    forms: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for path in paths:
        folders = path.split("/")[:-1]
        for place, folder in enumerate(folders):
            forms.setdefault((len(folders), place), set()).add(tuple(_FIELD.split(folder)))
    return {place for place, some in forms.items() if len(some) > 1}


def _forms(rows: Sequence[ImageFacts], cuts_letters: bool = False) -> list[_Form]:
    """Return the tables of paths that have the same text between their fields.

    Args:
        cuts_letters: cut letters from digits: austin12.png, 12L.png.
    """
    by_form: dict[tuple[str, ...], list[tuple[ImageFacts, tuple[str, ...]]]] = {}
    whole = _whole_folders(row.source for row in rows)
    for row in rows:
        fields, separators = _fields(row.source, whole)
        by_form.setdefault(separators, []).append((row, fields))
    found = []
    for separators, some in by_form.items():
        if len(some) < 2:
            continue
        columns: list[Sequence[str]] = []
        between = [separators[0]]
        for column, after in zip(
            zip(*(fields for _, fields in some), strict=True), separators[1:], strict=True
        ):
            parts = _cut_column(column)
            if cuts_letters and len(parts) == 1:
                parts = _cut_letters(column)
            columns += parts
            between += [""] * (len(parts) - 1) + [after]
        found.append(
            _Form(
                sources=[row.source for row, _ in some],
                classes={row.source: row.classes for row, _ in some},
                columns=columns,
                separators=tuple(between),
            )
        )
    return found


def _cut_column(column: Sequence[str]) -> list[Sequence[str]]:
    """Return the column, or two if each value is two numbers after the same letters, such as v1f20.

    >>> _cut_column(["v1f20", "v12f3"]), _cut_column(["640x480", "1024x768"]), _cut_column(["53e4", "7f12"])
    ([['v1', 'v12'], ['f20', 'f3']], [['640x480', '1024x768']], [['53e4', '7f12']])
    """
    if all(map(_SIZE.fullmatch, column)):
        return [column]
    matches = [_TWO_NUMBERS.fullmatch(value) for value in column]
    if not all(matches) or len({(one[1], one[3], one[5]) for one in matches if one}) > 1:
        return [column]
    return [[one[1] + one[2] for one in matches if one], [one[3] + one[4] + one[5] for one in matches if one]]


def _cut_letters(column: Sequence[str]) -> list[Sequence[str]]:
    """Return the column, or two if each value is letters before a number, or a number before letters.

    >>> _cut_letters(["ulm1", "bonn12"]), _cut_letters(["10L", "12R"]), _cut_letters(["P1", "P2"])
    ([['ulm', 'bonn'], ['1', '12']], [['10', '12'], ['L', 'R']], [['P1', 'P2']])
    """
    for form in (r"([^\W\d_]+)([0-9]+)", r"([0-9]+)([^\W\d_]+)"):
        matches = [re.fullmatch(form, value) for value in column]
        if all(matches):
            parts = [[one[number] for one in matches if one] for number in (1, 2)]
            if all(len(set(part)) > 1 for part in parts):
                return list(parts)
    return [column]


def _copies(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups of pictures and their copies: 12.png with 12_flip.png, IMG_7.jpg with "IMG_7 (1).jpg".

    The name of a copy is that of another picture with more fields behind it.
    """
    whole = _whole_folders(row.source for row in rows)
    cut = {row.source: row.source.rpartition(".")[0] or row.source for row in rows}
    stems = set(cut.values())
    bases: dict[str, str] = {}
    ends: dict[str, None] = {}
    for source, stem in cut.items():
        fields, separators = _fields(stem, whole)
        for last in range(len(fields) - 1, 0, -1):
            base = separators[0] + "".join(
                field + after for field, after in zip(fields[:last], separators[1:], strict=False)
            )
            base = base[: len(base) - len(separators[last])]
            if base in stems:
                end = stem[len(base) :]
                # A long number, such as a hash or a time, differs for each copy.
                ends[re.sub(r"[0-9]+", "[0-9]+", re.escape(end))] = None
                bases[source] = base
                break
    if len(bases) < max(1, _LEAST_SHARE * len(rows)) or len(ends) > _MAX_ENDS:
        return []
    by_source = {row.source: bases.get(row.source, cut[row.source]) for row in rows}
    counts = Counter(by_source.values())
    pattern = rf"^(.+?)(?:{'|'.join(ends)})?\.[^.]+$"
    option, total = _checked_pattern(rows, [pattern], len(counts))
    if not option[0]:
        return []
    value = next(value for value in by_source.values() if counts[value] > 1)
    what = f"names of copies begin with that of another picture, {value!r}"
    return [_found(by_source, counts, option, what, False, total)]


def _hashed_copies(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups of pictures that differ in a hash at the end alone: apple pie_png.rf.f052e38f658a2d34.jpg.

    What stands before the hash may have any form.
    """
    matches = {row.source: _HASH_END.fullmatch(row.source) for row in rows}
    by_source = {source: match[1] for source, match in matches.items() if match}
    counts = Counter(by_source.values())
    in_groups = sum(count for count in counts.values() if count > 1)
    tails = {match[2] for match in matches.values() if match}
    if (
        len(by_source) < len(rows)
        or len(tails) != 1
        or len(counts) < 2
        or in_groups < _LEAST_SHARE * len(rows)
    ):
        return []
    if in_groups < len(rows) / 2 or _is_class_or_split(rows, by_source):
        return []
    pattern = rf"^(.+){re.escape(tails.pop())}[0-9A-Fa-f]{{8,}}\.[^.]+$"
    option, total = _checked_pattern(rows, [pattern], len(counts))
    value = next(value for value in by_source.values() if counts[value] > 1)
    return [_found(by_source, counts, option, f"{value!r} repeats before a hash", False, total)]


def _repeated_parts(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups that parts of paths show, of each form of paths the outermost part that repeats."""
    class_names = {name.lower() for row in rows for name in row.classes.split("\n") if name}
    found: list[tuple[_Form, int]] = []
    for cuts_letters in (False, True):
        places = [(form, _group_place(form, rows, class_names)) for form in _forms(rows, cuts_letters)]
        found = found or [(form, place) for form, place in places if place is not None]
    if not found:
        return []
    by_source: dict[str, str] = {}
    for form, place in found:
        by_source.update(zip(form.sources, form.columns[place], strict=True))
    counts = Counter(by_source.values())
    if sum(count for count in counts.values() if count > 1) < _LEAST_SHARE * len(rows):
        return []
    total = len(counts) + len(rows) - len(by_source)
    option, _ = _checked_pattern(rows, _patterns(found, len(rows)), total)
    value = next(value for value in by_source.values() if counts[value] > 1)
    result = _found(by_source, counts, option, f"{value!r} repeats while the rest counts", False, total)
    return [replace(result, alone=len(rows) - len(by_source))]


def _group_place(form: _Form, rows: Sequence[ImageFacts], class_names: set[str]) -> int | None:
    """Return the column that names a group; None if there is none.

    The outermost column with numbers comes first, then folders, then words. Numbers that restart under an outer word,
    such as sequences of a city, belong to that word.
    """
    varied = [place for place, column in enumerate(form.columns[:-1]) if len(set(column)) > 1]
    skipped = _dates(form)
    fitting = [
        place
        for place in varied
        if place not in skipped
        and not _names_class_or_split(form, place, rows)
        and not _counts_within_classes(form, place)
        and _inner_counts(form, place, varied)
    ]
    if (behind := _behind_counter(form, fitting, varied, class_names)) is not None:
        return behind
    numbered = [place for place in fitting if _has_numbers(form.columns[place])]
    words = [place for place in fitting if place not in numbered and _may_be_names(form, place, class_names)]
    if not numbered:
        if (shared := _shared_numbers(form, varied, skipped)) is not None:
            return shared
        folders = [place for place in words if "/" in form.separators[place + 1]]
        return next(iter([*folders, *words]), _named_after_counter(form, varied, skipped))
    outer = [
        place
        for place in words
        if place < numbered[0] and _restarts(form.columns[place], form.columns[numbered[0]])
    ]
    return outer[0] if outer else numbered[0]


def _behind_counter(
    form: _Form, fitting: Sequence[int], varied: Sequence[int], class_names: set[str]
) -> int | None:
    """Return the column that names a group behind a counter of frames or slices: frame_0001_videoA.png.

    In a grid of frames and videos both columns repeat, and the order alone would take the frames for groups.
    """
    if not fitting or not _is_hinted_counter(form, fitting[0]):
        return None
    for place in varied:
        values = [value.lower() for value in form.columns[place]]
        if place > fitting[0] and len(set(values)) < len(values) and not _is_hinted_counter(form, place):
            return None if class_names.issuperset(values) else place
    return None


def _counts_within_classes(form: _Form, place: int) -> bool:
    """Return whether a column numbers the pictures of each class from 0 or 1: 002.Laysan/Laysan_0001_1033.jpg."""
    column = form.columns[place]
    if not all(value.isascii() and value.isdigit() for value in column):
        return False
    by_class: dict[str, list[int]] = {}
    for source, value in zip(form.sources, column, strict=True):
        by_class.setdefault(form.classes[source], []).append(int(value))
    return len(by_class) > 1 and all(
        min(some) in (0, 1) and sorted(some) == [*range(min(some), min(some) + len(some))]
        for some in by_class.values()
    )


def _is_hinted_counter(form: _Form, place: int) -> bool:
    """Return whether the letters of a column, or the constant word before its numbers, say that it counts."""
    values = form.columns[place]
    if place and all(map(str.isdigit, values)) and len(set(form.columns[place - 1])) == 1:
        return _COUNTER.fullmatch(form.columns[place - 1][0]) is not None
    return all(_COUNTER.fullmatch(value) and value[-1].isdigit() for value in values)


def _shared_numbers(form: _Form, varied: Sequence[int], skipped: set[int]) -> int | None:
    """Return a column of numbers that come under several outer words: left_12.png, right_12.png.

    Classes and folders number their pictures from 0 or 1 without gaps, so that such numbers are the same by their
    nature. Equal numbers with gaps, or from another start, are those of the same persons or places; words for sides are
    too.
    """
    for place in varied:
        outer = [other for other in varied if other < place and not _has_numbers(form.columns[other])]
        if place in skipped or len(outer) != 1 or any(other > place for other in varied):
            continue
        if not all(value.isascii() and value.isdigit() for value in form.columns[place]):
            continue
        words = {value.lower() for value in form.columns[outer[0]]}
        within: dict[str, set[int]] = {}
        for word, value in zip(form.columns[outer[0]], form.columns[place], strict=True):
            within.setdefault(word, set()).add(int(value))
        sets = list(within.values())
        equal = sum(some == sets[0] for some in sets) == len(sets)
        counts = set(range(len(sets[0]))) in (sets[0], {number - 1 for number in sets[0]})
        shared = len(set.intersection(*sets)) > len(sets[0]) / 2
        if len(sets) > 1 and len(sets[0]) > 1 and ((equal and not counts) or (shared and words <= _SIDES)):
            return place
    return None


def _has_numbers(column: Sequence[str]) -> bool:
    return 2 * sum(any(map(str.isdigit, value)) for value in column) > len(column)


def _may_be_names(form: _Form, place: int, class_names: set[str]) -> bool:
    """Return whether words may be names of persons or scenes: no class, no split, and not few words of a flat folder.

    Few words, such as left and right, benign and normal, or makers of cameras, are categories. Numbers that restart
    under each word are a counter of each, so that fewer words suffice. Two folders suffice if each has several classes,
    because a folder of a category mostly has one.
    """
    column = form.columns[place]
    values = set(column)
    if all(value.lower() in class_names or is_split_name(value) for value in values):
        return False
    if "/" in form.separators[place + 1]:
        return len(values) >= _LEAST_FOLDERS or _have_several_classes(form, column)
    restarts = any(_restarts(column, inner) for inner in form.columns[place + 1 : -1] if len(set(inner)) > 1)
    return len(values) >= (_LEAST_WORDS - restarts)


def _have_several_classes(form: _Form, column: Sequence[str]) -> bool:
    classes: dict[str, set[str]] = {}
    for source, value in zip(form.sources, column, strict=True):
        classes.setdefault(value, set()).add(form.classes[source])
    # Folders of coarse classes, such as animals and plants, have several classes and none in common.
    return all(len(some) > 1 for some in classes.values()) and bool(set.intersection(*classes.values()))


def _names_class_or_split(form: _Form, place: int, rows: Sequence[ImageFacts]) -> bool:
    column = form.columns[place]
    if place and len(set(form.columns[place - 1])) == 1:  # fold_0, fold_1
        before = form.columns[place - 1][0] + form.separators[place]
        # Long numbers count cases: BraTS20_Training_001.
        if all(len(value) < 3 and is_split_name(before + value) for value in set(column)):
            return True
    return _is_class_or_split(rows, dict(zip(form.sources, column, strict=True)))


def _restarts(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Return whether most values of a column come under several values of an outer one."""
    pairs = Counter(value for _, value in set(zip(outer, inner, strict=True)))
    return 2 * sum(count > 1 for count in pairs.values()) > len(pairs)


def _named_after_counter(form: _Form, varied: Sequence[int], skipped: set[int]) -> int | None:
    """Return a column such as P003 behind a number that counts all files: 0001_P003.png."""
    count = len(form.sources)
    counters = [place for place in varied if len(set(form.columns[place])) == count and place not in skipped]
    for place in varied:
        values = set(form.columns[place])
        is_id = all(re.fullmatch(r"[^\W\d_]+[0-9]+", value) for value in values)
        if (
            is_id
            and place not in skipped
            and counters
            and counters[0] < place
            and _LEAST_FOLDERS <= len(values) <= count / 2
        ):
            return place
    return None


def _dates(form: _Form) -> set[int]:
    """Return the columns with dates, times, years and sizes, which repeat by their nature."""
    values = [set(column) for column in form.columns]
    found = {
        place
        for place, some in enumerate(values)
        if all(_DATE.fullmatch(value) or _SIZE.fullmatch(value) for value in some)
        and not _are_ids_like_years(form, place)
    }
    for first in range(len(values) - 2):  # folders of years and months
        if first in found and _is_date([values[first], values[first + 1], {"1"}]):
            found.add(first + 1)
    for first in range(len(values) - 2):
        three = values[first : first + 3]
        if any(_is_date(order) for order in (three, three[::-1], [three[2], three[0], three[1]])):
            # Hours, minutes and seconds follow a date.
            rest = range(first + 3, len(values) - 1)
            times = (place for place in rest if all(_is_below(value, 60) for value in values[place]))
            found |= {first, first + 1, first + 2, *times}
    return found


def _are_ids_like_years(form: _Form, place: int) -> bool:
    """Return whether four digits are ids: there are more of them than images of each, and the same count restarts."""
    column = form.columns[place]
    several = len(set(column))
    inner = [other for other in form.columns[place + 1 : -1] if len(set(other)) > 1]
    return (
        all(len(value) == 4 for value in set(column))
        and len(inner) == 1
        and several > len(set(inner[0]))
        and len(set(inner[0])) <= len(column) / 2
        and _restarts(column, inner[0])
    )


def _is_date(values: Sequence[set[str]]) -> bool:
    """Return whether sets of values are years, months and days."""
    years, months, days = values
    is_year = all(re.fullmatch(r"(19|20)\d\d", value) for value in years)
    return (
        is_year
        and all(_is_below(value, 13) for value in months)
        and all(_is_below(value, 32) for value in days)
    )


def _is_below(value: str, limit: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 2 and int(value) < limit


def _is_class_or_split(rows: Sequence[ImageFacts], values: Mapping[str, str]) -> bool:
    """Return whether values name the class or the split: there is one value for each class, or all are splits."""
    if all(is_split_name(value) for value in set(values.values())):
        return True
    pairs = {(values[row.source], row.classes) for row in rows if row.source in values}
    classes = {name for _, name in pairs}
    return len(classes) > 1 and len(pairs) == len(classes) == len(set(values.values()))


def _inner_counts(form: _Form, place: int, varied: Sequence[int]) -> bool:
    """Return whether an inner column counts within the values of this one, so that the repeats are no chance."""
    column = form.columns[place]
    counts = Counter(column)
    repeated = {value for value, number in counts.items() if number > 1}
    in_groups = sum(counts[value] for value in repeated)
    if len(counts) < 2 or in_groups < max(2, _LEAST_SHARE * len(column)):
        return False
    inner = [form.columns[other] for other in varied if other > place]
    if any(_are_blocks(column, other) for other in inner):
        return False
    if any(_is_counter(column, other, repeated) for other in inner):
        return True
    are_many = 2 * in_groups >= len(column) and any(len(set(other)) <= len(other) / 2 for other in inner)
    return bool(inner) and (are_many or _is_no_chance(counts))


def _are_blocks(column: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a column is the start of another, as folders of a large set are: 00012/00012345.png."""
    if all(whole.startswith(start) and whole != start for start, whole in zip(column, other, strict=True)):
        return True
    digits = [
        (re.fullmatch(r"[^\W\d_]*(\d+)", start), re.fullmatch(r"\d+", whole))
        for start, whole in zip(column, other, strict=True)
    ]
    numbers = [(int(start[1]), int(whole[0])) for start, whole in digits if start and whole]
    if len(numbers) < len(digits):
        return False
    return any(all(whole // size == start for start, whole in numbers) for size in _BLOCKS)


def _is_counter(column: Sequence[str], other: Sequence[str], repeated: set[str]) -> bool:
    """Return whether numbers repeat over the groups or are neighbors within them."""
    within: dict[str, list[int]] = {}
    for value, text in zip(column, other, strict=True):
        if (match := re.fullmatch(r"[^\W\d_]*(\d+)[^\W\d_]*", text)) is None:
            return False
        if value in repeated:
            within.setdefault(value, []).append(int(match[1]))
    if 1 < len(set(other)) <= len(other) / 2:
        return True
    dense = sum(max(some) - min(some) < 4 * len(some) for some in within.values() if len(set(some)) > 1)
    return 2 * dense > len(repeated)


def _is_no_chance(counts: Counter[str]) -> bool:
    """Return whether values are equal more often, or more evenly often, than random numbers of the same range are."""
    numbers = [int(match[0]) for value in counts if (match := re.search(r"\d+", value))]
    if len(numbers) < len(counts):
        return False
    total, spread = counts.total(), max(numbers) - min(numbers) + 1
    pairs = sum(number * (number - 1) // 2 for number in counts.values())
    mean = total / len(counts)
    variance = sum((number - mean) ** 2 for number in counts.values()) / len(counts)
    # Sizes of random groups have their mean as variance, with a deviation of sqrt(2 / groups) of it.
    even = max(_EVEN, 1 - 4 * math.sqrt(2 / len(counts)))
    return pairs > _CHANCE * (1 + total * total / 2 / spread) or (mean >= 2 and variance < even * mean)


def _patterns(found: Sequence[tuple[_Form, int]], count: int) -> Iterable[str]:
    """Yield patterns for --group-pattern, simple ones first."""
    parts = []
    for form, place in found:
        rest = re.escape(form.separators[place + 1]) + "".join(
            _written(form, other) + re.escape(form.separators[other + 1])
            for other in range(place + 1, len(form.columns))
        )
        parts.append((_written(form, place), rest))
    if len(parts) == 1 and len(found[0][0].sources) == count:
        (head, rest), (form, place) = parts[0], found[0]
        yield f"({head}){rest}$"
        yield f"^{_before(form, place)}({head}){rest}$"
    parts = list(dict.fromkeys(parts))
    heads = "|".join(f"{head}(?={rest}$)" for head, rest in parts)
    wholes = "|".join(f"{head}{rest}" for head, rest in parts)
    wholes = f"(?:{wholes})" if len(parts) > 1 else wholes
    yield f"({heads}|^(?!.*{wholes}$).+)"
    yield f"(?<![^/])({heads}|^(?!(?:.*/)?{wholes}$).+)"


def _before(form: _Form, place: int) -> str:
    return re.escape(form.separators[0]) + "".join(
        _written(form, other) + re.escape(form.separators[other + 1]) for other in range(place)
    )


def _written(form: _Form, place: int) -> str:
    """Return a pattern for the values of a column: the value itself, numbers, or letters and digits."""
    values = set(form.columns[place])
    if len(values) == 1:
        return re.escape(next(iter(values)))
    if all(value.isascii() and value.isdigit() for value in values):
        return "[0-9]+"
    if not all(map(_FIELD.fullmatch, values)):
        return "[^/]+"
    heads = {re.split(r"\d", value, maxsplit=1)[0] for value in values}
    if len(heads) == 1 and all(re.fullmatch(r"[^\W\d_]*[0-9]+", value) for value in values):
        return f"{re.escape(next(iter(heads)))}[0-9]+"
    # Where letters are cut from digits, nothing stands between two columns.
    is_cut = not form.separators[place + 1] or (place and not form.separators[place])
    return r"[^\W\d_]+" if is_cut and all(map(str.isalpha, values)) else r"[^\W_]+"


def _checked_pattern(
    rows: Sequence[ImageFacts], patterns: Iterable[str], total: int | None
) -> tuple[tuple[str, str], int]:
    """Return the first pattern that matches all sources and makes so many groups of them, and their number."""
    for pattern in patterns:
        compiled = Expression(option="--group-pattern", text=pattern)
        groups = set()
        for row in rows:
            match = compiled.search(row.source)
            if match is None or match[1] is None:
                break
            groups.add(match[1])
        else:
            if total is None or len(groups) == total:
                return ("--group-pattern", pattern), len(groups)
    return ("", ""), total or 0


def _found(
    by_source: Mapping[str, str],
    counts: Counter[str],
    option: tuple[str, str],
    what: str,
    is_named: bool,
    total: int,
) -> GroupsFound:
    repeated = {value for value, number in counts.items() if number > 1}
    value = next(value for value in by_source.values() if value in repeated)
    pair = [source for source, other in by_source.items() if other == value][:2]
    return GroupsFound(
        option=option,
        groups=len(repeated),
        images=sum(counts[value] for value in repeated),
        example=(pair[0], pair[1]),
        what=what,
        is_named=is_named,
        all_groups=total,
    )


def describe(found: GroupsFound, level: int = 0) -> str:
    """Return a sentence about groups with the option that keeps them together."""
    one, other = found.example
    sample = f" (in a sample of one of {1 << level} images)" if level else ""
    fix = (
        f"say {shlex.join(found.option)} to keep those together, which makes "
        f"{plural(found.all_groups, 'group')}"
        + (f" ({plural(found.alone, 'image')} with other names are each one)" if found.alone else "")
        if found.option[0]
        else "write the group of each image in a column group of a table"
    )
    return (
        f"{one} and {other} might come into different splits: {found.what}; {plural(found.groups, 'such group')} with "
        f"{plural(found.images, 'image')}{sample}; {fix}"
    )
