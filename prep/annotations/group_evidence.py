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
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
_COLUMN_ENDS = ("", "id", "uid", "no", "number", "nr", "name", "key", "code", "instanceuid")
_IDENTITY_ENDS = ("id", "uid", "uuid", "guid", "key", "code", "group", "number", "name")
"""Hints: the name of a column that identifies something ends like this."""
_FIELD = re.compile(r"[^\W_]+")
_TWO_NUMBERS = re.compile(r"([^\W\d_]*)(\d+)([^\W\d_]+)(\d+)([^\W\d_]*)")
_SIZE = re.compile(r"\d{2,5}x\d{2,5}")
_DATE = re.compile(
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])\d{0,9}|1[0-9]{9}|1[0-9]{12}|19[89]\d|20[0-3]\d"
)
"""A day with or without a time, seconds or milliseconds since 1970, or a year, as in VOC's 2007_000027.jpg."""
_LEAST_SHARE = 0.02
"""Share of the images that must be in groups of several; fewer are chance."""
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
    """

    option: tuple[str, str]
    groups: int
    images: int
    example: tuple[str, str]
    what: str
    is_named: bool
    all_groups: int


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
        columns = _repeated_columns(rows)
        candidates = [*columns, *_named_parts(rows), *_repeated_parts(rows)]
        candidates.sort(key=lambda one: not one.is_named)
        return next(iter(candidates), None)


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
    """Return whether a column or key is named like a group.

    >>> [is_group_name(name) for name in ("patient_id", "VideoName", "StudyInstanceUID", "scenery", "grid")]
    [True, True, True, False, False]
    """
    normalized = normalize_name(name)
    return any(normalized == word + end for word in _WORDS for end in _COLUMN_ENDS)


def _named_parts(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups that a standard word with a number names in several paths, the first word in the path."""
    by_source: dict[str, str] = {}
    forms: dict[str, str] = {}
    written: dict[str, str] = {}
    for row in rows:
        if match := _NAMED.search(row.source):
            by_source[row.source] = match[0].lower()
            written.setdefault(match[0].lower(), match[0])
            forms.setdefault(match[0].lower(), f"{match['word']}{re.escape(match['sign'])}[0-9]+")
    counts = Counter(by_source.values())
    repeated = [value for value in by_source.values() if counts[value] > 1]
    if not repeated or _is_class_or_split(rows, by_source):
        return []
    found = "|".join(dict.fromkeys(forms[value] for value in repeated))
    part = f"(?:{found})" if "|" in found else found
    pattern = f"({part}|^(?!.*{part}).+)"
    option, total = _checked_pattern(rows, [pattern], None)
    return [
        _found(by_source, counts, option, f"they are named after one {written[repeated[0]]!r}", True, total)
    ]


@dataclass(frozen=True, kw_only=True)
class _Form:
    """Paths of one form, as a table with a column for each field."""

    sources: Sequence[str]
    classes: Mapping[str, str]
    columns: Sequence[Sequence[str]]
    separators: tuple[str, ...]


def _fields(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a path and the text around them; a field with two numbers is cut.

    >>> _fields("a/P1_0.png"), _fields("v1f20.png")[0]
    ((('a', 'P1', '0', 'png'), ('', '/', '_', '.', '')), ('v1', 'f20', 'png'))
    """
    fields: list[str] = []
    separators: list[str] = [""]
    end = 0
    for match in _FIELD.finditer(path):
        separators[-1] = path[end : match.start()]
        two = None if _SIZE.fullmatch(match[0]) else _TWO_NUMBERS.fullmatch(match[0])
        if two is not None and two[1] + two[3] != "" and len(two[3]) < 9 and not two[5]:
            fields += [two[1] + two[2], two[3] + two[4]]
            separators += ["", ""]
        else:
            fields.append(match[0])
            separators.append("")
        end = match.end()
    separators[-1] = path[end:]
    return tuple(fields), tuple(separators)


def _forms(rows: Sequence[ImageFacts]) -> list[_Form]:
    """Return the tables of paths that have the same text between their fields."""
    by_form: dict[tuple[str, ...], list[tuple[ImageFacts, tuple[str, ...]]]] = {}
    for row in rows:
        fields, separators = _fields(row.source)
        by_form.setdefault(separators, []).append((row, fields))
    return [
        _Form(
            sources=[row.source for row, _ in some],
            classes={row.source: row.classes for row, _ in some},
            columns=list(zip(*(fields for _, fields in some), strict=True)),
            separators=separators,
        )
        for separators, some in by_form.items()
        if len(some) > 1
    ]


def _repeated_parts(rows: Sequence[ImageFacts]) -> list[GroupsFound]:
    """Return the groups that parts of paths show: of each form of paths the outermost part that repeats."""
    found = []
    class_names = {name.lower() for row in rows for name in row.classes.split("\n") if name}
    for form in _forms(rows):
        place = _group_place(form, rows, class_names)
        if place is None:
            continue
        by_source = dict(zip(form.sources, form.columns[place], strict=True))
        counts = Counter(by_source.values())
        total = len(counts) + len(rows) - len(form.sources)
        option, _ = _checked_pattern(rows, _patterns(form, place, len(rows)), total)
        value = next(value for value in by_source.values() if counts[value] > 1)
        found.append(
            _found(by_source, counts, option, f"{value!r} repeats while the rest counts", False, total)
        )
    found = [one for one in found if one.images >= _LEAST_SHARE * len(rows)]
    return sorted(found, key=lambda one: (not one.option[0], -one.images))


def _group_place(form: _Form, rows: Sequence[ImageFacts], class_names: set[str]) -> int | None:
    """Return the column that names a group; None if there is none.

    Columns with numbers come first, from the outermost; then folders, then words.
    """
    count = len(form.sources)
    varied = [place for place, column in enumerate(form.columns[:-1]) if len(set(column)) > 1]
    skipped = _dates(form, varied)
    fitting = []
    for place in varied:
        column = form.columns[place]
        if place in skipped or len(set(column)) == count:
            continue
        if _is_class_or_split(rows, dict(zip(form.sources, column, strict=True))):
            continue
        has_numbers = sum(any(map(str.isdigit, value)) for value in column) > count / 2
        names_classes = all(value.lower() in class_names or is_split_name(value) for value in set(column))
        # A flat folder with few words, such as left and right, shows no identity.
        if not has_numbers and (
            names_classes or ("/" not in form.separators[place + 1] and len(set(column)) < 3)
        ):
            continue
        if _others_count(form, place, varied):
            fitting.append(
                (not has_numbers, "/" not in form.separators[place + 1] and not has_numbers, place)
            )
    return min(fitting)[-1] if fitting else None


def _dates(form: _Form, varied: Sequence[int]) -> set[int]:
    """Return the columns with dates, times, years and sizes, which repeat by their nature."""
    found = set()
    for place in varied:
        column = set(form.columns[place])
        if all(_DATE.fullmatch(value) or _SIZE.fullmatch(value) for value in column):
            found.add(place)
    for place in range(len(form.columns) - 2):
        years, months, days = (set(form.columns[place + step]) for step in range(3))
        is_year = all(re.fullmatch(r"(19|20)\d\d", value) for value in years)
        if (
            is_year
            and all(_is_below(value, 12) for value in months)
            and all(_is_below(value, 31) for value in days)
        ):
            found |= {place, place + 1, place + 2}
    return found


def _is_below(value: str, limit: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 2 and 1 <= int(value) <= limit


def _is_class_or_split(rows: Sequence[ImageFacts], values: Mapping[str, str]) -> bool:
    """Return whether values name the class or the split: there is one value for each class, or all are splits."""
    if all(is_split_name(value) for value in set(values.values())):
        return True
    pairs = {(values[row.source], row.classes) for row in rows if row.source in values}
    classes = {name for _, name in pairs}
    return len(classes) > 1 and len(pairs) == len(classes) == len(set(values.values()))


def _others_count(form: _Form, place: int, varied: Sequence[int]) -> bool:
    """Return whether another column counts within the values of this one, so that the repeats are no chance."""
    column = form.columns[place]
    counts = Counter(column)
    repeated = {value for value, number in counts.items() if number > 1}
    in_groups = sum(counts[value] for value in repeated)
    if in_groups < max(2, _LEAST_SHARE * len(column)):
        return False
    others = [other for other in varied if other != place]
    # Folders of a large set hold so many files each: 00012/00012345.png.
    if any(
        all(b.startswith(a) and a != b for a, b in zip(column, form.columns[other], strict=True))
        for other in others
    ):
        return False
    if any(_is_counter(column, form.columns[other], repeated) for other in others):
        return True
    return _is_no_chance(counts)


def _are_prefixes(column: Sequence[str], other: Sequence[str]) -> bool:
    return all(whole.startswith(start) and whole != start for start, whole in zip(column, other, strict=True))


def _is_counter(column: Sequence[str], other: Sequence[str], repeated: set[str]) -> bool:
    """Return whether a column repeats over the groups or has neighboring numbers within them."""
    if 1 < len(set(other)) <= len(other) / 2:
        return True
    within: dict[str, list[int]] = {}
    for value, text in zip(column, other, strict=True):
        if value in repeated and (match := re.search(r"\d+", text)):
            within.setdefault(value, []).append(int(match[0]))
    dense = sum(max(some) - min(some) < 4 * len(some) for some in within.values() if len(set(some)) > 1)
    return 2 * dense > len(repeated)


def _is_no_chance(counts: Counter[str]) -> bool:
    """Return whether values are equal more often than random numbers of the same range are."""
    numbers = [int(match[0]) for value in counts if (match := re.search(r"\d+", value))]
    if len(numbers) < len(counts):
        return False
    total, spread = counts.total(), max(numbers) - min(numbers) + 1
    pairs = sum(number * (number - 1) // 2 for number in counts.values())
    return pairs > _CHANCE * (1 + total * total / 2 / spread)


def _patterns(form: _Form, place: int, count: int) -> Iterable[str]:
    """Yield patterns for --group-pattern, simple ones first."""
    rest = "".join(
        _written(form, other) + re.escape(form.separators[other + 1])
        for other in range(place + 1, len(form.columns))
    )
    rest = re.escape(form.separators[place + 1]) + rest
    head = _written(form, place)
    if len(form.sources) == count:
        yield f"({head}){rest}$"
        yield f"^{_before(form, place)}({head}){rest}$"
    yield f"({head}(?={rest}$)|^(?!.*{head}{rest}$).+)"
    yield f"(?<![^/])({head}(?={rest}$)|^(?!(?:.*/)?{head}{rest}$).+)"


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
    heads = {re.split(r"\d", value, maxsplit=1)[0] for value in values}
    if len(heads) == 1 and all(re.fullmatch(r"[^\W\d_]*[0-9]+", value) for value in values):
        return f"{re.escape(next(iter(heads)))}[0-9]+"
    return r"[^\W_]+"


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
        f"say {found.option[0]} '{found.option[1]}' to keep those together, which makes "
        f"{plural(found.all_groups, 'group')}"
        if found.option[0]
        else "write the group of each image in a column group of a table"
    )
    return (
        f"{one} and {other} might come into different splits: {found.what}; {plural(found.groups, 'such group')} with "
        f"{plural(found.images, 'image')}{sample}; {fix}"
    )
