"""How a command on a case is judged: its records are right, or its words name the fact and a fix that works."""

import dataclasses
import functools
import re
import runpy
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.cli import options_of
from halofeed.schemas.manifest import Manifest, only_version, read_manifest
from tests.support.conversions import boxes_in_source, halofeed_here, read_split

_BACKGROUND = {"background", "_background_", "unknown", "clear label", "unlabeled"}
"""What value 0 is called in the tables of common tools."""
_STEPS = 3
"""How many messages in a row may each lead to the next."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """One written record.

    Args:
        objects: class names and boxes (ymin, xmin, ymax, xmax) in pixels of the source, sorted.
        label: pixels or voxels of each class but the background; "ignored" is the ignore label.
    """

    split: str
    name: str
    key: str
    classes: tuple[str, ...]
    objects: tuple[tuple[str, tuple[float, ...]], ...]
    features: Mapping[str, Any]
    label: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a command left."""

    folder: Path
    code: int
    message: str

    @functools.cached_property
    def manifest(self) -> Manifest:
        return read_manifest(only_version(self.folder / "set"))

    @functools.cached_property
    def records(self) -> list[Record]:
        return [
            self._record(split, features)
            for split in self.manifest.splits
            for features in read_split(Path(only_version(self.folder / "set")), split)
        ]

    def _record(self, split: str, features: Mapping[str, Any]) -> Record:
        texts = {name: bytes(features[f"image/{name}"][0]).decode() for name in ("filename", "key/source")}
        kinds = [name for name in ("image/class/text", "image/object/class/text") if name in features]
        names = tuple(bytes(one).decode() for kind in kinds for one in features[kind])
        boxes = boxes_in_source(features) if "image/object/bbox/xmin" in features else np.zeros((0, 4))
        objects = zip(names, (tuple(map(float, box)) for box in boxes), strict=False)
        return Record(
            split=split,
            name=texts["filename"],
            key=texts["key/source"],
            classes=tuple(sorted(set(names))),
            objects=tuple(sorted(objects)),
            features=features,
            label=self._label(features) if "image/label" in features else {},
        )

    def _label(self, features: Mapping[str, Any]) -> dict[str, int]:
        values = self._array("label", features)
        names = {**self.manifest.labels, self.manifest.ignore_label: "ignored"}
        if self.manifest.field("label").encoding == "sets":  # bit k is class k + 1, see schemas/fields.py
            counts = {value: int((values >> (value - 1) & 1).sum()) for value in names if value}
        else:
            counts = dict(
                zip(*(each.tolist() for each in np.unique(values, return_counts=True)), strict=True)
            )
        named = {names.get(value, f"unnamed {value}"): count for value, count in counts.items() if count}
        return {name: count for name, count in named.items() if name.lower() not in _BACKGROUND}

    def image(self, record: Record) -> NDArray[Any]:
        """The stored values of a raw image [..., channel]."""
        return self._array("image", record.features)

    def _array(self, name: str, features: Mapping[str, Any]) -> NDArray[Any]:
        stored = self.manifest.field(name)
        sides = ("depth", "height", "width") if "depth" in stored.axes else ("height", "width")
        shape = [int(features[f"image/{side}"][0]) for side in sides]
        data = features[stored.keys[0]][0]
        if stored.encoding not in ("raw", "sets"):
            return _decoded(data)
        values = np.frombuffer(data, np.dtype(stored.dtype).newbyteorder("<"))
        return values.reshape(*shape, *([-1] if name == "image" else []))


def _decoded(data: Any) -> NDArray[Any]:
    import cv2

    # OpenCV returns the stored values of every bit depth; color as blue, green, red.
    values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return values[..., None] if values.ndim == 2 else values[..., ::-1]


Check = Callable[[Written], None]
"""Raises AssertionError where the written records are wrong."""


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """A fix that no option makes: where the message matches, `change` edits the source; then `words` are added."""

    says: str
    change: Callable[[Path], object] = lambda source: None
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command on one folder, and what it must give.

    Args:
        folder: of shared/data/cases.
        source: below the folder; the folder itself by default.
        words: further words of the command; {case} in them is the folder.
        right: checks of the records, after the command or after a fix that its message names.
        says: patterns that its message must hold where the records are not right at once.
        known: values that only the user knows, by the option that the message names without one.
        by_hand: fixes that are no options.
        ends: whether words without a fix are enough, because the input is outside the scope of the product or no option
            can mend it; what they suggest must not be refused, either.
        follows: whether it is tried what the words of such a case suggest.
        never: patterns that no message may hold.
        strict: whether each suggested fix that writes records must write the right ones.
    """

    folder: str
    source: str = ""
    words: str = ""
    right: tuple[Check, ...] = ()
    says: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    by_hand: tuple[ByHand, ...] = ()
    ends: bool = False
    follows: bool = True
    never: tuple[str, ...] = ()
    strict: bool = False

    @property
    def name(self) -> str:
        """The folder, the source in it and the options, shortened."""
        usual = r"--(resize none|encoding png|(depth|height|width) \d+|layout (csv|pairs)|task segmentation)|\{case\}/"
        options = re.sub(usual, "", self.words).split()
        return " ".join([self.folder, self.source, *options])[:110]


def draw(case: Path, into: Path) -> Path:
    """Give a copy of a case's files, or what its make.py draws."""
    if not (case / "make.py").exists():
        return shutil.copytree(case, into)
    into.mkdir(parents=True)
    arguments, path, modules = sys.argv, sys.path[:], {*sys.modules}
    try:
        sys.argv = ["make.py", str(into)]
        sys.path[:0] = [str(case), str(case.parent)]
        with warnings.catch_warnings(action="ignore"):  # of files that a drawing leaves open
            runpy.run_path(str(case / "make.py"), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = arguments, path
        for name in {"draw"} - modules:  # it keeps the folder that it was imported for
            sys.modules.pop(name, None)
    return into


def command(case: Case, drawn: Path) -> list[str]:
    """The words of the case's command, without --out and --name."""
    source = drawn / case.source if case.source else drawn
    return ["--source", str(source), *shlex.split(case.words.replace("{case}", str(drawn)))]


def run(words: Sequence[str], out: Path) -> Written:
    """Run a conversion into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    done = halofeed_here("convert", *words, "--out", out, "--name", "set")
    message = done.stdout + done.stderr
    assert "Traceback" not in message, message
    return Written(folder=out, code=done.returncode, message=message)


def fault_of(case: Case, written: Written) -> str:
    """Say what is wrong with the records; "" where they are right."""
    if written.code:
        return f"exit {written.code}"
    try:
        for check in case.right:
            check(written)
    except AssertionError as error:
        return f"{error}".split("\n")[0] or "a check failed"
    return ""


def judge(case: Case, drawn: Path, out: Path) -> None:
    """Assert that a case comes out right, or with words and a fix that works when it is typed."""
    words = command(case, drawn)
    written = run(words, out)
    if not (fault := fault_of(case, written)):
        return
    about = f"{shlex.join(words)}\n{fault}; the message:\n{written.message}"
    for pattern in case.says:
        assert re.search(pattern, written.message), f"nothing says {pattern!r}: {about}"
    for pattern in case.never:
        assert not re.search(pattern, written.message), f"it says {pattern!r}: {about}"
    tried: list[str] = []
    if case.ends:
        table = re.search(r"\btable\b", written.message)
        for fix in suggestions(written.message, case.known):
            if table and fix == ["--layout", "csv"]:  # of a table that is to be written first
                continue
            fixed = typed(words, fix)
            if fixed == words or not case.follows:
                continue
            again = run(fixed, out)
            assert not again.code, f"a fix is refused: {about}\n{shlex.join(fix)}:\n{again.message}"
        return
    works = _works(case, drawn, (words, written), out, tried)
    assert works, f"no fix works: {about}\ntried:\n" + "\n".join(tried)


def _works(
    case: Case, drawn: Path, came: tuple[list[str], Written], out: Path, tried: list[str], step: int = 1
) -> bool:
    """Whether a fix of the message, or of the message that it leads to, gives the right records."""
    words, written = came
    worked = False
    for fixed, rest in _fixes(case, drawn, words, written.message):
        again = run(fixed, out)
        fault = fault_of(case, again)
        tried.append(f"  {shlex.join(fixed)}: {fault or 'right'}")
        assert not (case.strict and fault and not again.code), "a fix gives wrong records:\n" + "\n".join(
            tried
        )
        if fault and again.code and step < _STEPS:
            fault = "" if _works(rest, drawn, (fixed, again), out, tried, step + 1) else fault
        worked = worked or not fault
        if worked and not case.strict:
            return True
    return worked


def _fixes(case: Case, drawn: Path, words: list[str], message: str) -> Iterator[tuple[list[str], Case]]:
    """Each command that a message leads to, and the case without the fix by hand that was made for it."""
    for fix in suggestions(message, case.known):
        if (fixed := typed(words, fix)) != words:
            yield fixed, case
    for by_hand in case.by_hand:
        if re.search(by_hand.says, message):
            by_hand.change(drawn)
            others = tuple(one for one in case.by_hand if one is not by_hand)
            fixed = typed(words, shlex.split(by_hand.words.replace("{case}", str(drawn))))
            yield fixed, dataclasses.replace(case, by_hand=others)


_ITEM = re.compile(
    r"(?<![\w-])(?P<leave>(?:leave|without) )?(?P<option>--[a-z][a-z-]*[a-z])"
    r"(?P<rest>[= ](?:'[^']*'|\"[^\"]*\"|[^\s;)`]+))?"
)
_BETWEEN = re.compile(r"[\s,]*(?:and |with )?\Z")
_WHOLE = re.compile(r"halofeed convert (--[^`\n]*)")
_SUBJECT = re.compile(r"(?m)^halofeed convert: --[a-z-]+ [a-z-]+: ")
"""What a status line is about, which is no suggestion."""
_PROSE = {
    "and",
    "and:",
    "or",
    "with",
    "in",
    "if",
    "to",
    "is",
    "of",
    "for",
    "where",
    "as",
    "takes",
    "has",
    "needs",
}
"""What follows an option that is named without a value."""
_INSTEAD = re.compile(r" ?in place of (?:the |--)(?P<option>[a-z-]+)")


def suggestions(message: str, known: Mapping[str, str]) -> Iterator[list[str]]:
    """Give the options that a message suggests, each group as the words that are typed.

    A word that ends in an exclamation mark is an option to take away, with all whose names begin so.

    >>> list(suggestions("no class; take --layout csv --task segmentation or leave --depth out", {}))
    [['--layout', 'csv', '--task', 'segmentation'], ['--depth!']]
    """
    for whole in _WHOLE.finditer(message):
        yield shlex.split(whole[1])
    message = _SUBJECT.sub("", message)
    group: list[str] = []
    end = 0
    for found in _ITEM.finditer(message):
        if group and not _BETWEEN.match(message[end : found.start()]):
            yield group
            group = []
        item, used = _item(found, known)
        end = found.start() + used
        if instead := _INSTEAD.match(message, end):
            item = [f"--{instead['option']}!", *item]
        if found["leave"] and item:
            yield [f"{item[0]}!"]
        elif not item and option_needs_value(found["option"]):
            group, end = [], -1  # the group cannot be typed without what only the user knows
        else:
            group += item
    if group:
        yield group


def option_needs_value(option: str) -> bool:
    """Whether an option of convert takes a value."""
    action = options_of("convert").get(option)
    return action is not None and action.nargs != 0


def _item(found: re.Match[str], known: Mapping[str, str]) -> tuple[list[str], int]:
    """The words of one option, and how many characters of the match they took; none where its value is missing."""
    option, rest = found["option"], found["rest"] or ""
    bare = len(found[0]) - len(rest)
    action = options_of("convert").get(option)
    if action is None:
        return [], bare
    if action.nargs == 0 or found["leave"]:
        return [option], bare
    quoted = rest[1:].startswith(("'", '"'))
    value = rest[2:-1] if quoted else rest[1:].rstrip(",.:")
    used = bare + (len(rest) if quoted else 1 + len(value))
    if option in known:
        return [option, known[option]], used if re.search(r"[=\d'\"]", rest) else bare
    if (
        not rest
        or (not quoted and rest[1:] in _PROSE)
        or (action.choices is not None and value not in map(str, action.choices))
    ):
        return [], bare
    return [option, value], used


def typed(words: Sequence[str], fix: Sequence[str]) -> list[str]:
    """A command with what is typed because of a message: options of the same name give way.

    >>> typed(["--window", "lung", "--depth", "9"], ["--window!", "--depth", "8"])
    ['--depth', '8']
    """
    named = {word.partition("=")[0] for word in fix if word.startswith("--")}
    away = tuple(word[:-1] for word in fix if word.startswith("--") and word.endswith("!"))
    kept: list[str] = []
    skips = False
    for word in words:
        if word.startswith("--"):
            skips = word.partition("=")[0] in named or (bool(away) and word.startswith(away))
        if not skips:
            kept.append(word)
    return [*kept, *(word for word in fix if not (word.startswith("--") and word.endswith("!")))]
