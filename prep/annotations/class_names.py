"""Class names: sort order, selection and renaming, and notes on names that look alike."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from halofeed.prep.sources.example import SourceExample
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import did_you_mean

# Cyrillic, Greek and other letters that look like Latin letters in at least one case.
_LATIN_LOOKALIKES = str.maketrans(
    "авекмнорстухіјѕһԁԛԝ" + "αβεζηικμνορτυχ" + "ɑɡı×" + "’‘ʼ´`" + "“”",
    "abekmhopctyxijshdqw" + "abezhikmnoptyx" + "agix" + "'''''" + '""',
)
_INVISIBLE_CATEGORIES = ("Cf", "Cc")
"""Format and control characters, such as a zero width space and a byte order mark within a file."""
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Default ignorable characters of other categories: grapheme joiner, Hangul fillers, Khmer inherent vowels."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
BACKGROUND = "background"


def _visual_form(name: str) -> str:
    """Return a canonical form that is equal for names that look alike.

    >>> _visual_form("Red  hat") == _visual_form("red_hat") == _visual_form("red\\u00a0h\\u0430t")
    True
    >>> _visual_form("red_hat") == _visual_form("red\\u200b\\u2011hat")
    True
    >>> _visual_form("caf\\u00e9") == _visual_form("cafe\\u0301") != _visual_form("cafe")
    True
    """
    # A dash looks like a blank below, which would make "-1" equal to "1". `labels` refuses two spellings of a number.
    if class_number(name) is not None:
        return name
    # Case folding can undo the normal form, so it is between two of them (Unicode 3.13, compatibility caseless match).
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).translate(
        _LATIN_LOOKALIKES
    )
    return " ".join("".join(map(_visible_form, folded)).split())


def _visible_form(character: str) -> str:
    """Return a character as its reader sees it: a blank for every kind of blank and dash, "" for invisible ones."""
    category = unicodedata.category(character)
    # Names of one class differ in "_", "-" and " " from tool to tool; U+2212 is the minus sign.
    if character.isspace() or category == "Pd" or character in "_\u2212":
        return " "
    # Variation selectors choose between forms of the character before them (Unicode 23.4).
    is_variation = 0xFE00 <= ord(character) <= 0xFE0F
    is_invisible = category in _INVISIBLE_CATEGORIES or character in _INVISIBLE_LETTERS
    return "" if is_invisible or is_variation else character


def _find_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of two or more names that look alike, each group sorted."""
    by_form: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        by_form.setdefault(_visual_form(name), []).append(name)
    return [group for group in by_form.values() if len(group) > 1]


def _describe_differences(names: Iterable[str]) -> str:
    """Return names that look alike as text, with the code points of the non-ASCII characters that differ.

    >>> _describe_differences(["dog", "d\\u043eg"])
    "'dog', 'd\u043eg' (U+043E)"
    """
    names = list(names)
    common = set.intersection(*map(set, names))
    shown = []
    for name in names:
        own = [f"U+{ord(one):04X}" for one in dict.fromkeys(name) if one not in common and not one.isascii()]
        shown.append(f"{name!r} ({' '.join(own)})" if own else repr(name))
    return ", ".join(shown)


def note_similar_classes(listed: Sequence[SourceExample]) -> list[SourceExample]:
    """Return the examples with a note on each class that looks like another, which is mostly a typing error."""
    return list(
        add_class_notes(listed, similar_class_notes(label for one in listed for label in classes_in(one)))
    )


def similar_class_notes(found: Iterable[str]) -> dict[str, str]:
    """Return a note for each class that looks like another."""
    messages = {}
    for labels in _find_similar_names(found):
        # Code points help only where characters of other alphabets, or invisible ones, make the difference.
        plain = len({" ".join(label.casefold().split()) for label in labels}) == 1
        differ = "differ in case or blanks alone" if plain and all(map(str.isascii, labels)) else "look alike"
        messages.update(
            dict.fromkeys(labels, f"classes of their own that {differ}: {_describe_differences(labels)}")
        )
    return messages


def add_class_notes(examples: Iterable[SourceExample], notes: Mapping[str, str]) -> Iterator[SourceExample]:
    """Yield the examples with the notes of their classes."""
    for one in examples:
        messages = dict.fromkeys(notes[label] for label in classes_in(one) if label in notes) if notes else {}
        yield replace(one, notes=(*one.notes, *messages)) if messages else one


def classes_in(example: SourceExample) -> list[str]:
    """Return the classes of an example: those of its boxes if it may have boxes; [] if it has a problem."""
    # A rejected image adds no class to the data set.
    if example.problem is not None:
        return []
    of_boxes = {box.label for box in example.boxes or ()}
    return sorted(of_boxes) if example.boxes is not None else list(example.classes)


def sort_class_names(names: Iterable[str]) -> list[str]:
    """Return the distinct names: numbers first, sorted by value, then other names as text.

    >>> sort_class_names(["10", "2", "hat", "9", "coat", "2"])
    ['2', '9', '10', 'coat', 'hat']
    """
    return sorted(set(names), key=lambda name: (class_number(name) is None, class_number(name) or 0.0, name))


def shorten_list(names: Iterable[str]) -> str:
    """Return the first twenty names as text for a message, with the total if there are more."""
    listed = list(names)
    return ", ".join(listed[:20]) + (f", ... ({len(listed)} in all)" if len(listed) > 20 else "")


def class_number(name: str) -> float | None:
    """Return the number that a class name consists of, or None.

    >>> class_number("10"), class_number("2.0"), class_number("hat 2")
    (10.0, 2.0, None)
    """
    return float(name) if _NUMBER.fullmatch(name) else None


_RANGE: Final = re.compile(r"(\d{1,5})\.\.(\d{1,5})")
"""Range of values of a label image; five digits reach 65535, the largest of 16 bits."""


def _expand_range(name: str) -> Iterable[str]:
    """Return the values of a range such as 1..300, for labels that number their objects; else the name itself."""
    found = _RANGE.fullmatch(name)
    return map(str, range(int(found[1]), int(found[2]) + 1)) if found else (name,)


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """Selection and renaming of the source's classes.

    Args:
        keep: classes of the data set; () keeps all, otherwise all others are left out.
        renamed: (class of the source by name or value, class of the data set). Several source classes may become one.
            A class that becomes "background" is left out.
        dropped: classes of `renamed` that --drop-classes names.

    In `keep` and `renamed`, a class of the source may be a pattern with * for any characters, in upper or lower case,
    or the code of a segment or structure (`halofeed.prep.formats.dicom.mask_codes`). A name counts before a value, that
    before a code, and that before a pattern.
    """

    keep: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, classes: tuple[str, ...], map_classes: tuple[str, ...], drop_classes: tuple[str, ...] = ()
    ) -> ClassChoice:
        """Return the choice that --classes, --map-classes and --drop-classes define.

        1..300=cell maps each of these values.

        >>> ClassChoice.of((), ("kidney left=kidney", "1..2=cell"), ("500",)).renamed
        (('kidney left', 'kidney'), ('1', 'cell'), ('2', 'cell'), ('500', 'background'))
        """
        pairs = (part.rpartition("=") for part in map_classes)
        renamed = [(one, target.strip()) for name, _, target in pairs for one in _expand_range(name.strip())]
        dropped = [one for name in drop_classes for one in _expand_range(name)]
        return cls(
            keep=classes,
            renamed=(*renamed, *((name, BACKGROUND) for name in dropped)),
            dropped=frozenset(dropped),
        )

    @cached_property
    def _renamed(self) -> dict[str, str]:
        return dict(self.renamed)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        """Patterns of `renamed`, in order, and the class of the data set of each."""
        return [(_pattern(name), target) for name, target in self.renamed if "*" in name]

    @cached_property
    def _kept_patterns(self) -> list[re.Pattern[str]]:
        return [_pattern(name) for name in self.keep if "*" in name]

    def _keeps(self, name: str) -> bool:
        return name in self.keep or any(pattern.fullmatch(name) for pattern in self._kept_patterns)

    def written(self) -> tuple[str, ...]:
        """Return what the user wrote for classes of the source: those to keep, and those to rename."""
        return (*self.keep, *(name for name, _ in self.renamed))

    def with_names(self, names: Iterable[str]) -> ClassChoice:
        """Return the choice with the classes that its patterns keep in place of the patterns, sorted.

        >>> ClassChoice(keep=("heart", "gtv*")).with_names(["GTV-2", "GTV-1", "heart", "lung"]).keep
        ('heart', 'GTV-1', 'GTV-2')
        """
        if not self._kept_patterns:
            return self
        targets = sort_class_names(target for name in names if (target := self.target(name)) is not None)
        kept: dict[str, None] = {}
        for one in self.keep:
            pattern = _pattern(one)
            is_name = one in targets or "*" not in one
            kept |= dict.fromkeys([one] if is_name else filter(pattern.fullmatch, targets))
        return replace(self, keep=tuple(kept))

    def __bool__(self) -> bool:
        return bool(self.keep or self.renamed)

    def without(self, name: str) -> ClassChoice:
        """Return the choice without the renaming of a class of the source."""
        renamed = tuple(pair for pair in self.renamed if pair[0] != name)
        return replace(self, renamed=renamed, dropped=self.dropped - {name})

    def problems(self, *, of_label_images: bool) -> Iterator[str]:
        """Yield a message for each contradiction within the choice.

        Args:
            of_label_images: whether classes are values of label images, which have a background.
        """
        yield from self._renaming_problems()
        # With --map-classes liver=background lesion=liver, --classes liver keeps the lesions; that is no contradiction.
        targets = {target for _, target in self.renamed}
        if both := [name for name in self.keep if (name, BACKGROUND) in self.renamed and name not in targets]:
            option = "--drop-classes" if self.dropped.issuperset(both) else "--map-classes"
            yield f"--classes: {', '.join(both)} is left out by {option}; take it out of --classes or of that"
        if len(set(self.keep)) < len(self.keep) or "" in self.keep:
            yield f"--classes: expected different names, got {','.join(self.keep)}"
        if BACKGROUND in self.keep and of_label_images:
            yield f"--classes: {BACKGROUND} is always there, with id 0; leave it out"

    def _renaming_problems(self) -> Iterator[str]:
        for name, target in self.renamed:
            if name in self.dropped and not name:
                yield "--drop-classes: expected names of classes, got an empty one"
            elif not name or not target:
                written = f"{name}={target}" if name else target
                # Other tools write 500:1; the answer is the same pair in the form that is read.
                likely = "=".join(written.split(":")) if written.count(":") == 1 and not name else "500=1"
                yield (
                    f"--map-classes {written}: expected FROM=TO, such as 'kidney left=kidney' or {likely}; "
                    f"TO {BACKGROUND} leaves the class out"
                )
        counts = Counter(name for name, _ in self.renamed if name)
        # One source class cannot become two; several may become one.
        if twice := sorted(name for name, count in counts.items() if count > 1):
            options = "--map-classes and --drop-classes" if self.dropped & {*twice} else "--map-classes"
            yield f"{options}: {', '.join(twice)} comes twice; say once what becomes of it"

    def target(self, name: str, value: int | None = None, codes: Sequence[str] = ()) -> str | None:
        """Return the data set class of a source class; None if the choice leaves it out.

        Args:
            name: name of the class.
            value: its value, if voxels have it.
            codes: its codes, the most specific first.

        >>> choice = ClassChoice(keep=("kidney",), renamed=(("left", "kidney"), ("7", "kidney")))
        >>> [choice.target("left"), choice.target("right", 7), choice.target("liver")]
        ['kidney', 'kidney', None]
        """
        renamed = self._renamed
        written = (name, *(() if value is None else (str(value),)), *codes)
        found = next((renamed[one] for one in written if one in renamed), None)
        if found is None:
            found = next((target for pattern, target in self._patterns if pattern.fullmatch(name)), name)
        if found == BACKGROUND:
            return None
        # With --classes only the named classes stay; the rest is background.
        if not self.keep or self._keeps(found):
            return found
        return next((code for code in codes if code in self.keep), None)

    def takes(self, name: str, codes: Sequence[str] = ()) -> bool:
        """Return whether the choice keeps a named class of a label file.

        Raises:
            SourceError: the class is left out, but differs from a chosen class only in spelling (case, spaces and
                similar).

        >>> choice = ClassChoice(keep=("tumor",), renamed=(("left kidney", "tumor"), ("Tumor", "background")))
        >>> choice.takes("tumor"), choice.takes("Tumor"), choice.takes("liver")
        (True, False, False)
        """
        if self.target(name, None, codes) is not None:
            return True
        renamed = self._renamed
        # A named class that no option mentions is left out, which would be silent for "Kidney" beside "kidney".
        if name not in renamed:
            chosen = {kept: kept for kept in self.keep} | renamed
            if twin := next(
                (other for other in chosen if normalize_class_name(other) == normalize_class_name(name)), None
            ):
                raise SourceError(
                    "annotation",
                    "class is that of the choice but for its spelling",
                    f"{name!r} and {twin!r}; --map-classes '{name}={chosen[twin]}' takes it, '{name}={BACKGROUND}' "
                    "leaves it out",
                )
        return False

    def check_known(self, known: Iterable[str], where: str) -> None:
        """Raise AnnotationsError for names that are not classes of the source; they would have no effect.

        Args:
            known: names and values of the source's classes.
            where: description of the source, for the message.

        Raises:
            AnnotationsError: lists the unknown names and the existing classes.
        """
        names = list(dict.fromkeys(known))

        def message(option: str, absent: Sequence[str]) -> str:
            near = "".join(did_you_mean(name, names) for name in absent[:1])
            return (
                f"{option}: {', '.join(absent)}: no such class in {where}; {near}found {shorten_list(names)}"
            )

        existing = frozenset(names)
        if unknown := [name for name, _ in self.renamed if not _is_among(name, existing)]:
            option = "--drop-classes" if self.dropped.issuperset(unknown) else "--map-classes"
            raise AnnotationsError(message(option, unknown))
        targets = {target for target in map(self.target, names) if target is not None}
        # A kept class may be the target of a renaming, so the names after it count.
        if absent := [name for name in self.keep if not _is_among(name, targets)]:
            raise AnnotationsError(message("--classes", absent))


def _pattern(written: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, written.split("*"))), re.IGNORECASE | re.DOTALL)


def _is_among(written: str, names: Set[str]) -> bool:
    """Return whether a name is one of some names, or a pattern that one of them fits."""
    return written in names or ("*" in written and any(map(_pattern(written).fullmatch, names)))


def normalize_class_name(name: str) -> str:
    """Return a name without case, spaces and other differences in spelling.

    >>> normalize_class_name("Left_Kidney") == normalize_class_name("left kidney ")
    True
    """
    return _visual_form(name).replace(" ", "")


_COLOR_OF_CLASS = re.compile(r"([0-9A-Fa-f]{6})=(.+)")
_COLOR = re.compile(r"#?([0-9A-Fa-f]{6})")


def is_whole_number(text: str) -> bool:
    """Return whether a text is a value of label images, which may be negative.

    >>> is_whole_number("255"), is_whole_number("-1"), is_whole_number("void")
    (True, True, False)
    """
    return re.fullmatch(r"-?[0-9]+", text) is not None


def parse_color(text: str) -> int | None:
    """Return a color in hexadecimal, RRGGBB with or without #, as an integer; None for any other text.

    >>> parse_color("#e0e0c0"), parse_color("255")
    (14737600, None)
    """
    found = _COLOR.fullmatch(text)
    return int(found[1], 16) if found else None


@dataclass(frozen=True, kw_only=True)
class LabelCoding:
    """Classes of label files that do not store class numbers: one channel or one color per class.

    Args:
        channels: class of each channel, in order; "background" is no class.
        colors: RRGGBB=CLASS for each color; black is the background unless it is named.
        ignored: values and colors of --ignore-label; each color gets a number above those of the classes.

    >>> coding = LabelCoding(colors=("ff0000=liver", "00ff00=spleen", "ffffff=background"))
    >>> coding.names, coding.numbers[0xFF00], coding.numbers[0xFFFFFF]
    ({1: 'liver', 2: 'spleen'}, 2, 0)
    """

    channels: tuple[str, ...] = ()
    colors: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.channels or self.colors)

    def _pairs(self) -> list[tuple[str, str]]:
        found = (_COLOR_OF_CLASS.fullmatch(one) for one in self.colors)
        return [(one[1], one[2].strip()) for one in found if one]

    @property
    def names(self) -> dict[int, str]:
        """Class of each number from 1."""
        names = self.channels or [name for _, name in self._pairs()]
        return dict(enumerate((name for name in names if name != BACKGROUND), start=1))

    @property
    def numbers(self) -> dict[int, int]:
        """Number of each color, as an integer RRGGBB; {} without colors."""
        ids = {name: number for number, name in self.names.items()} | {BACKGROUND: 0}
        if not self.colors:
            return {}
        named = {int(code, 16): ids[name] for code, name in self._pairs()}
        # Ignored colors need separate numbers until the label map drops them; black is 0 unless it is named.
        colors = (parse_color(one) for one in self.ignored)
        more = dict.fromkeys(color for color in colors if color is not None and color not in named)
        return {0: 0, **named, **{color: len(self.names) + at for at, color in enumerate(more, start=1)}}

    def problems(self) -> Iterator[str]:
        """Yield a message for each contradiction."""
        # A channel per class and a color per class are two codings of the same pixels.
        if self.channels and self.colors:
            yield "--label-channels and --label-colors: a label has channels or colors; leave one out"
        for one in self.colors:
            if _COLOR_OF_CLASS.fullmatch(one) is None:
                yield f"--label-colors {one!r}: expected RRGGBB=CLASS in hexadecimal, such as ff0000=liver"
        codes, names = [code.lower() for code, _ in self._pairs()], [*self.names.values()]
        # Two colors of one class, or two classes of one color, would lose one of them in the dicts of `names` and
        # `numbers`.
        if twice := sorted({one for one in (*codes, *names) if (codes + names).count(one) > 1}):
            option = "--label-colors" if self.colors else "--label-channels"
            yield f"{option}: {', '.join(twice)} comes twice; name it once, and join classes with --map-classes"
