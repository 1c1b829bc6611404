"""Choice of the column that names a group in paths of one form: the outermost that repeats while another one counts.

Every test here tells a group from what repeats by its nature: dates, sizes, classes, splits, blocks of numbered files,
and counters that restart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from halofeed.prep.annotations.contract import is_split_name
from halofeed.prep.annotations.path_forms import IMAGE_SIZE, PathForm, are_whole_numbers

_COUNTER = re.compile(r"(frame|frm|slice|slc|tile|crop|layer|z|t)\d*", re.IGNORECASE)
"""Hints: a number behind such a word counts within a group, although it is first in the path."""
_SIDES = frozenset({"left", "right", "l", "r", "od", "os", "lt", "rt"})
"""Hints: two pictures of one person, whose equal numbers are not due to chance."""
_DATE = re.compile(
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])\d{0,9}|1[2-9][0-9]{8}|1[2-9][0-9]{11}|19[89]\d|20[0-3]\d"
)
"""A day with or without a time, seconds or milliseconds since 1970, or a year, as in VOC's 2007_000027.jpg."""
# The thresholds from here on are estimates: they were chosen on the real sets of the tests and on about 190 drawn sets
# of names, and were measured on no others.
LEAST_SHARE = 0.02
"""Share of the images that must be in groups of several; fewer are chance."""
_EVEN = 0.02
"""Variance of the sizes of groups, compared with their mean, below which even few groups are not due to chance."""
_BLOCKS = (10, 100, 500, 1000, 5000, 10_000, 100_000)
"""Usual numbers of files in a folder of a large set."""
_LEAST_FOLDERS, _LEAST_WORDS = 3, 4
"""Least number of different folders and of other words that may be names of groups."""
_CHANCE = 3.0
"""Number of equal pairs, compared with pairs of random numbers, from which they are not due to chance."""


def group_place(form: PathForm, classes: Mapping[str, str], class_names: set[str]) -> int | None:
    """Return the column that names a group; None if there is none.

    The outermost column with numbers comes first, then folders, then words. Numbers that restart under an outer word,
    such as sequences of a city, belong to that word.

    Args:
        form: paths of one form.
        classes: classes of all paths of the source.
        class_names: names of all classes, in lower case.
    """
    # The last column is the extension.
    varied = [place for place, column in enumerate(form.columns[:-1]) if len(set(column)) > 1]
    skipped = _dates(form)
    candidates = [place for place in varied if place not in skipped]
    fitting = [place for place in candidates if _repeats_as_groups(form, place, varied, classes)]
    if (behind := _behind_counter(form, fitting, varied, class_names)) is not None:
        return behind
    numbered = [place for place in fitting if _has_numbers(form.columns[place])]
    words = [place for place in fitting if place not in numbered and _may_be_names(form, place, class_names)]
    # Numbers count persons and cases more often than words do.
    if numbered:
        return _outer_word(form, words, numbered[0])
    if (shared := _shared_numbers(form, varied, skipped)) is not None:
        return shared
    folders = [place for place in words if "/" in form.separators[place + 1]]
    return next(iter([*folders, *words]), _named_after_counter(form, varied, skipped))


def _repeats_as_groups(form: PathForm, place: int, varied: Sequence[int], classes: Mapping[str, str]) -> bool:
    """Return whether a column repeats while an inner one counts, and names neither a class nor a split."""
    return (
        not _names_class_or_split(form, place, classes)
        and not _counts_within_classes(form, place)
        and _inner_counts(form, place, varied)
    )


def _outer_word(form: PathForm, words: Sequence[int], numbered: int) -> int:
    """Return the first word in front of a column of numbers under which these restart; else that column."""
    restarting = (
        place
        for place in words
        if place < numbered and _restarts(form.columns[place], form.columns[numbered])
    )
    return next(restarting, numbered)


def _behind_counter(
    form: PathForm, fitting: Sequence[int], varied: Sequence[int], class_names: set[str]
) -> int | None:
    """Return the column that names a group behind a counter of frames or slices: frame_0001_videoA.png.

    In a grid of frames and videos both columns repeat, and the order alone would take the frames for groups.
    """
    # Without such a word the outermost column that fits is the group.
    if not fitting or not _is_hinted_counter(form, fitting[0]):
        return None
    for place in varied:
        values = [value.lower() for value in form.columns[place]]
        if place > fitting[0] and len(set(values)) < len(values) and not _is_hinted_counter(form, place):
            return None if class_names.issuperset(values) else place
    return None


def _counts_within_classes(form: PathForm, place: int) -> bool:
    """Return whether a column numbers the pictures of each class from 0 or 1: 002.Laysan/Laysan_0001_1033.jpg."""
    column = form.columns[place]
    if not are_whole_numbers(column):
        return False
    by_class: dict[str, list[int]] = {}
    for source, value in zip(form.sources, column, strict=True):
        by_class.setdefault(form.classes[source], []).append(int(value))
    return len(by_class) > 1 and all(
        min(some) in (0, 1) and sorted(some) == [*range(min(some), min(some) + len(some))]
        for some in by_class.values()
    )


def _is_hinted_counter(form: PathForm, place: int) -> bool:
    """Return whether the letters of a column, or the constant word before its numbers, say that it counts."""
    values = form.columns[place]
    # frame_0001 has its word in the column before, frame0001 in the same one.
    if place and all(map(str.isdigit, values)) and len(set(form.columns[place - 1])) == 1:
        return _COUNTER.fullmatch(form.columns[place - 1][0]) is not None
    return all(_COUNTER.fullmatch(value) and value[-1].isdigit() for value in values)


def _shared_numbers(form: PathForm, varied: Sequence[int], skipped: set[int]) -> int | None:
    """Return a column of numbers that come under several outer words: left_12.png, right_12.png."""
    if not varied or varied[-1] in skipped:
        return None
    place = varied[-1]  # what counts behind such a number would make it a group by itself
    outer = [other for other in varied[:-1] if not _has_numbers(form.columns[other])]
    if len(outer) != 1 or not are_whole_numbers(form.columns[place]):
        return None
    within: dict[str, set[int]] = {}
    for word, value in zip(form.columns[outer[0]], form.columns[place], strict=True):
        within.setdefault(word, set()).add(int(value))
    words = {word.lower() for word in within}
    return place if _are_of_same_things(list(within.values()), words) else None


def _are_of_same_things(sets: Sequence[set[int]], words: set[str]) -> bool:
    """Return whether the numbers under several words are those of the same persons or places.

    Classes and folders number their pictures from 0 or 1 without gaps, so that such numbers are the same by their
    nature. Equal numbers with gaps, or from another start, are not chance; words for sides are no classes.
    """
    first = sets[0]
    if len(sets) < 2 or len(first) < 2:
        return False
    counts_up = set(range(len(first))) in (first, {number - 1 for number in first})
    if not counts_up and all(some == first for some in sets):
        return True
    # Of some persons one side may be missing.
    return words <= _SIDES and len(set.intersection(*sets)) > len(first) / 2


def _has_numbers(column: Sequence[str]) -> bool:
    """Return whether most values of a column have a digit."""
    return 2 * sum(any(map(str.isdigit, value)) for value in column) > len(column)


def _may_be_names(form: PathForm, place: int, class_names: set[str]) -> bool:
    """Return whether words may be names of persons or scenes: no class, no split, and not few words of a flat folder.

    Few words, such as left and right, benign and normal, or makers of cameras, are categories. Numbers that restart
    under each word are a counter of each, so that fewer words suffice. Two folders suffice if each has several classes,
    because a folder of a category mostly has one.
    """
    column = form.columns[place]
    values = set(column)
    # A folder is called like a class, a split or a person, and only the first two are known.
    if all(value.lower() in class_names or is_split_name(value) for value in values):
        return False
    if "/" in form.separators[place + 1]:
        return len(values) >= _LEAST_FOLDERS or _have_several_classes(form, column)
    # Numbers that begin anew under each word are counters of what it names, so that three words suffice.
    restarts = any(_restarts(column, inner) for inner in form.columns[place + 1 : -1] if len(set(inner)) > 1)
    return len(values) >= (_LEAST_WORDS - restarts)


def _have_several_classes(form: PathForm, column: Sequence[str]) -> bool:
    classes: dict[str, set[str]] = {}
    for source, value in zip(form.sources, column, strict=True):
        classes.setdefault(value, set()).add(form.classes[source])
    # Folders of coarse classes, such as animals and plants, have several classes and none in common.
    return all(len(some) > 1 for some in classes.values()) and bool(set.intersection(*classes.values()))


def _names_class_or_split(form: PathForm, place: int, classes: Mapping[str, str]) -> bool:
    column = form.columns[place]
    if place and len(set(form.columns[place - 1])) == 1:  # fold_0, fold_1
        before = form.columns[place - 1][0] + form.separators[place]
        # Long numbers count cases: BraTS20_Training_001.
        if all(len(value) < 3 and is_split_name(before + value) for value in set(column)):
            return True
    return is_class_or_split(classes, dict(zip(form.sources, column, strict=True)))


def is_class_or_split(classes: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Return whether values by path name the class or the split: there is one for each class, or all are splits."""
    # train and test are what groups are divided between.
    if all(is_split_name(value) for value in set(values.values())):
        return True
    pairs = {(values[source], names) for source, names in classes.items() if source in values}
    found = {names for _, names in pairs}
    return len(found) > 1 and len(pairs) == len(found) == len(set(values.values()))


def _restarts(outer: Sequence[str], inner: Sequence[str]) -> bool:
    """Return whether most values of a column come under several values of an outer one."""
    pairs = Counter(value for _, value in set(zip(outer, inner, strict=True)))
    return 2 * sum(count > 1 for count in pairs.values()) > len(pairs)


def _named_after_counter(form: PathForm, varied: Sequence[int], skipped: set[int]) -> int | None:
    """Return a column such as P003 behind a number that counts all files: 0001_P003.png."""
    count = len(form.sources)
    counters = [place for place in varied if len(set(form.columns[place])) == count and place not in skipped]
    behind = [place for place in varied if counters and place > counters[0] and place not in skipped]
    return next((place for place in behind if _are_ids(form.columns[place])), None)


def _are_ids(column: Sequence[str]) -> bool:
    """Return whether the values are a few texts such as P003, each of several images on average."""
    values = set(column)
    has_form = all(re.fullmatch(r"[^\W\d_]+[0-9]+", value) for value in values)
    return has_form and _LEAST_FOLDERS <= len(values) <= len(column) / 2


# Dates ----------------------------------------------------------------------------------------------------


def _dates(form: PathForm) -> set[int]:
    """Return the columns with dates, times, years and sizes, which repeat by their nature."""
    values = [set(column) for column in form.columns]
    found = {
        place
        for place, some in enumerate(values)
        if all(map(_is_date_or_size, some)) and not _are_ids_like_years(form, place)
    }
    # Folders of months are below those of years, without a day.
    months = {
        year + 1 for year in found if year + 2 < len(values) and _is_date([*values[year : year + 2], {"1"}])
    }
    found |= months
    for first in range(len(values) - 2):
        three = values[first : first + 3]
        # ISO 8601 begins with the year, Europe with the day, the United States with the month.
        if any(_is_date(order) for order in (three, three[::-1], [three[2], three[0], three[1]])):
            found |= {first, first + 1, first + 2, *_times(values, first + 3)}
    return found


def _is_date_or_size(value: str) -> bool:
    return _DATE.fullmatch(value) is not None or IMAGE_SIZE.fullmatch(value) is not None


def _times(values: Sequence[set[str]], start: int) -> list[int]:
    """Return the columns behind a date that may be hours, minutes and seconds; the last column is the extension."""
    rest = range(start, len(values) - 1)
    return [place for place in rest if all(_is_below(value, 60) for value in values[place])]


def _are_ids_like_years(form: PathForm, place: int) -> bool:
    """Return whether four digits are ids: there are more of them than images of each, and the same count restarts."""
    column = form.columns[place]
    several = len(set(column))
    inner = [other for other in form.columns[place + 1 : -1] if len(set(other)) > 1]
    return (
        all(len(value) == 4 for value in set(column))
        and len(inner) == 1
        and several > len(set(inner[0]))
        and _repeats(inner[0])
        and _restarts(column, inner[0])
    )


def _is_date(values: Sequence[set[str]]) -> bool:
    """Return whether sets of values are years, months and days."""
    years, months, days = values
    return (
        all(re.fullmatch(r"(19|20)\d\d", value) for value in years)
        and all(_is_below(value, 13) for value in months)
        and all(_is_below(value, 32) for value in days)
    )


def _is_below(value: str, limit: int) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 2 and int(value) < limit


# Chance ---------------------------------------------------------------------------------------------------


def _inner_counts(form: PathForm, place: int, varied: Sequence[int]) -> bool:
    """Return whether an inner column counts within the values of this one, so that the repeats are not chance."""
    column = form.columns[place]
    counts = Counter(column)
    inner = [form.columns[other] for other in varied if other > place]
    if not inner or len(counts) < 2 or in_groups(counts) < max(2, LEAST_SHARE * len(column)):
        return False
    if any(_are_blocks(column, other) for other in inner):
        return False
    # Frames, slices and tiles of one thing are numbered.
    if any(_is_counter(column, other, counts) for other in inner):
        return True
    most_are_grouped = 2 * in_groups(counts) >= len(column)
    return (most_are_grouped and any(map(_repeats, inner))) or _is_no_chance(counts)


def in_groups(counts: Counter[str]) -> int:
    """Return the number of images in groups of several, from the number of images by group."""
    return sum(count for count in counts.values() if count > 1)


def _repeats(column: Sequence[str]) -> bool:
    """Return whether each value of a column occurs twice on average."""
    return len(set(column)) <= len(column) / 2


def _are_blocks(column: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a column is the start of another, as folders of a large set are: 00012/00012345.png."""
    # The folder is the first characters of the name: ab/ab12cd.png.
    if all(whole.startswith(start) and whole != start for start, whole in zip(column, other, strict=True)):
        return True
    digits = [
        (re.fullmatch(r"[^\W\d_]*(\d+)", start), re.fullmatch(r"\d+", whole))
        for start, whole in zip(column, other, strict=True)
    ]
    numbers = [(int(start[1]), int(whole[0])) for start, whole in digits if start and whole]
    # Blocks are made of numbers.
    if len(numbers) < len(digits):
        return False
    return any(all(whole // size == start for start, whole in numbers) for size in _BLOCKS)


def _is_counter(column: Sequence[str], other: Sequence[str], counts: Counter[str]) -> bool:
    """Return whether numbers repeat over the groups or are neighbors within them."""
    within: dict[str, list[int]] = {}
    for value, text in zip(column, other, strict=True):
        # A counter has one number, as in frame12b; hashes and words do not.
        if (match := re.fullmatch(r"[^\W\d_]*(\d+)[^\W\d_]*", text)) is None:
            return False
        if counts[value] > 1:
            within.setdefault(value, []).append(int(match[1]))
    # Each group begins again at the same numbers.
    if len(set(other)) > 1 and _repeats(other):
        return True
    # Frames that were left out make gaps: the numbers may extend over four times their count (an estimate).
    dense = sum(max(some) - min(some) < 4 * len(some) for some in within.values() if len(set(some)) > 1)
    return 2 * dense > len(within)


def _is_no_chance(counts: Counter[str]) -> bool:
    """Return whether values are equal more often, or more evenly often, than random numbers of the same range are."""
    numbers = [int(match[0]) for value in counts if (match := re.search(r"\d+", value))]
    # The range of words is unknown, and so is the chance of equal ones.
    if len(numbers) < len(counts):
        return False
    total, spread = counts.total(), max(numbers) - min(numbers) + 1
    pairs = sum(number * (number - 1) // 2 for number in counts.values())
    mean = total / len(counts)
    variance = sum((number - mean) ** 2 for number in counts.values()) / len(counts)
    # Sizes of random groups have their mean as variance, with a deviation of sqrt(2 / groups) of it.
    even = max(_EVEN, 1 - 4 * math.sqrt(2 / len(counts)))
    return pairs > _CHANCE * (1 + total * total / 2 / spread) or (mean >= 2 and variance < even * mean)
