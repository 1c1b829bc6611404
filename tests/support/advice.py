"""Advice in messages: every text of the product that suggests an option, and cases that type what is suggested."""

import ast
import contextlib
import functools
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from halofeed.cli import main
from halofeed.errors import HalofeedError
from tests.support.mistakes import Prepare, split_words, written_shards

ROOT = Path(__file__).parents[2]
FOLDERS = ("system", "storage", "prep", "pipelines", "loader", "inspection", "trainer", "schemas", "halofeed")
OPTION = r"(?<![\w-])--[a-z][a-z_-]*[a-z]"
_HELP = {"add_argument", "add_parser", "option", "ArgumentParser", "command"}
"""Functions whose texts `--help` prints."""
_HOLE = "\0"
_LEAVE = re.compile(r"\b[Ll]eave\b|\bgive one\b")
_LEAVE_IT = re.compile(r"\b[Ll]eave (it|one|them|that|those)\b|\bgive one\b")
_SUBJECT = re.compile(
    rf"(?:halofeed convert: |after --, |{_HOLE}: )*{OPTION}[^:;]*?"
    "(?::| (?:goes with|needs|expects|is for|is more than|has no effect)) "
)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax tree of each module of the product; halofeed's links are left out."""
    for folder in FOLDERS:
        pattern = "*.py" if folder == "halofeed" else "**/*.py"
        for file in sorted((ROOT / folder).glob(pattern)):
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


@dataclass(frozen=True, kw_only=True)
class Template:
    """A text of the product that suggests options."""

    file: str
    text: str
    """The literal text, a hole for each value in it."""

    @property
    def name(self) -> str:
        """The file and the first words."""
        text = " ".join(self.text.replace(_HOLE, "{}").split())
        return f"{self.file}: {text if len(text) <= 72 else text[:72].rsplit(' ', 1)[0]}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What the text may become in a message."""
        literal = self.text.strip(_HOLE + "\n ")
        return re.compile(r"[^\n]*?".join(map(re.escape, literal.split(_HOLE))))

    @property
    def advised(self) -> set[str]:
        """The options that it suggests: without those that it is about, unless one is to be left out."""
        subject = _SUBJECT.match(self.text)
        rest = self.text[subject.end() :] if subject and not _LEAVE_IT.search(self.text) else self.text
        return set(re.findall(OPTION, rest))


def _literal(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) or _HOLE for value in values)
    return None


def _without_help(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without documentation, the texts of --help and the words of a command line."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Expr(value=ast.Constant() | ast.JoinedStr()):
                continue
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), keywords=more) if name in _HELP:
                for needs in (one for one in more if one.arg == "needs"):
                    yield from _without_help(needs)
                continue
            case ast.Assign(targets=[ast.Attribute(attr="usage")]):
                continue
            case ast.Call(func=ast.Attribute(attr="split")):
                continue
        yield child
        if not isinstance(child, ast.JoinedStr):
            yield from _without_help(child)
        else:
            for value in child.values:
                yield from _without_help(value)


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and content of each string of a module, documentation left out."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


@functools.cache
def templates() -> dict[str, Template]:
    """Each text that suggests options, by its name."""
    found: dict[str, Template] = {}
    for file, tree in modules():
        for node in _without_help(tree):
            text = _literal(node)
            if text is None or re.match(rf"\s*examples?:|{OPTION}[ {_HOLE}]*\Z", text):
                continue
            template = Template(file=file, text=text)
            if template.advised:
                same = found.setdefault(template.name, template)
                assert same.text == text, f"{template.name}: two texts begin so; word one otherwise"
    return found


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A message that suggests options, and what is typed because of it.

    `prepare` draws into an empty folder and gives the words of the command: all of them, or the options of a
    conversion beside --out and --name; or a call that a program makes, or runs as a process, and its arguments.
    `types` are patterns of the message: the groups of each are typed, or taken away where the message says
    "leave", and after them `more` and the words beside the pattern; {source} in them is the folder that was drawn
    into, and {folder} the one above it, the working directory. A group may be a whole command, from `halofeed` on.
    Each pattern is tried by itself.
    """

    prepare: Prepare
    exit_code: int
    types: tuple[str | tuple[str, ...], ...]
    more: tuple[object, ...] = ()
    """What stands behind the words of the message: a value that the user has to know."""
    without: tuple[str, ...] = ()
    """Options that the message tells to take away besides."""
    first: Callable[[Path], object] | None = None
    """What the message tells to do with the source before."""
    read: Callable[[Path], str] | None = None
    """Gives what else a person reads, such as a report, from the output folder."""
    proves: Callable[[Path, str], object] | str = ""
    """Checks, from the output folder and what was printed, that it did what the message says; or a pattern of that."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """What holds while the command gets the message."""
    throughout: Callable[[], AbstractContextManager[object]] = nullcontext
    """What holds while the advice is typed, too."""
    into: Prepare | None = None
    """The command that the advice is for, where it is another; after it the first one has to succeed."""
    writes: bool = False
    """Whether the command fails only when records are written."""
    ends: int = 0
    """With what the command ends then; where it fails as before, it may give the same advice."""


def refused(prepare: Prepare, *types: str | tuple[str, ...], exit_code: int = 1, **more: Any) -> Advice:
    """Advice of a command that fails."""
    return Advice(prepare=prepare, exit_code=exit_code, types=types, **more)


usage = functools.partial(refused, exit_code=2)
"""Advice of a command that cannot be typed so."""
noted = functools.partial(refused, exit_code=0)
"""Advice in the notes of a command that succeeds."""


def run(given: list[Any], out: Path) -> tuple[int, str]:
    """The exit code of a command or a program's call, and all that it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if not callable(given[0]):
            whole = not str(given[0]).startswith("--")
            words = given if whole else ["convert", "--out", out, "--name", "set", *given]
            return main([str(word) for word in words]), printed.getvalue()
        try:
            made = given[0](*given[1:])
            is_process = isinstance(made, subprocess.CompletedProcess)
            return (made.returncode, made.stdout + made.stderr) if is_process else (0, f"{made}")
        except HalofeedError as error:
            return error.exit_code, str(error)


def _take_away(words: list[str], option: str) -> list[str]:
    if option not in words:
        return words
    at = words.index(option)
    end = at + 1
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    return words[:at] + words[end:]


def cured(words: list[Any], found: re.Match[str], advice: Advice, more: Iterable[str]) -> list[Any]:
    """The command with what the message suggests, before the options of Beam."""
    leave = _LEAVE.search(found.string[max(0, found.start() - 6) : found.end()])
    text = " ".join(filter(None, found.groups()))
    if text.startswith("halofeed "):
        return [*shlex.split(text.replace("\\\n", " "))[1:], *more]
    typed = text.split(" ")
    another = ["--source"] if "--source " in " ".join(map(str, [*advice.more, *more])) else []
    for option in (
        *(*advice.without, *another),
        *(word for word in typed if word.startswith("--") and word != "--set"),
    ):
        words = _take_away(words, option)
    at = words.index("--") if "--" in words else len(words)
    return words if leave else [*words[:at], *typed, *map(str, advice.more), *more, *words[at:]]


SUGGESTED = re.compile(r"\buse (--[a-z].+?), which ")
"""Words that `halofeed.prep.annotations.advice` suggests: they were tried, so each works as it is."""


def type_suggestions(words: list[Any], folder: Path) -> dict[str, str]:
    """Run a conversion, then again with each suggestion of its message; return the outputs by suggestion.

    Args:
        words: options of the conversion beside --out and --name.
        folder: an empty folder.

    Raises:
        AssertionError: a suggestion does not work.
    """
    _, message = run(words, folder / "first")
    outputs = {}
    for number, typed in enumerate(dict.fromkeys(SUGGESTED.findall(message))):
        code, after = run([*words, *shlex.split(typed)], folder / str(number))
        assert code == 0, f"{typed}:\n{after}"
        outputs[typed] = after
    return outputs


def try_advice(advice: Advice, folder: Path, known: dict[str, Template]) -> set[tuple[str, str]]:
    """Type what a message suggests; return the templates and options that were tried.

    Args:
        advice: the case.
        folder: an empty folder.
        known: the templates that are looked for in the message.

    Raises:
        AssertionError: where the message is another, the command fails, or gives the same advice again.
    """
    tried = set()
    for number, given_type in enumerate(advice.types):
        pattern, *more = (given_type,) if isinstance(given_type, str) else given_type
        beside = [*advice.without, *map(str, advice.more), *more]
        source, out = folder / str(number) / "source", folder / str(number) / "out"
        source.mkdir(parents=True)
        given = [one if callable(one) else str(one) for one in split_words(advice.prepare(source))]
        before = written_shards(out)
        with contextlib.chdir(source.parent):
            with advice.around(), advice.throughout():
                code, message = run(given, out)
            assert advice.writes or not code or written_shards(out) == before, "records were written"
            message += advice.read(out) if advice.read else ""
            found = re.search(pattern, message)
            assert code == advice.exit_code and found, f"exit {code}, {pattern!r}:\n{message}"
            if advice.first:
                advice.first(source)
            out = out if code else out.with_name("again")
            words = given if advice.into is None else [*map(str, advice.into(source))]
            words = split_words(cured(words, found, advice, more))
            for hole, place in (("{source}", source), ("{folder}", source.parent)):
                words = [word if callable(word) else word.replace(hole, str(place)) for word in words]
            with advice.throughout():
                code, after = run(words, out)
            assert code == advice.ends, f"{' '.join(map(str, words))}:\n{after}"
            if advice.into is not None and advice.exit_code:
                code, again = run(given, out)
                assert code == 0, again
        if isinstance(advice.proves, str):
            assert re.search(advice.proves, after), f"no {advice.proves!r} in:\n{after}"
        else:
            advice.proves(out, after)
        spans = [found.span(group) for group in range(1, len(found.groups()) + 1) if found[group]]
        for template in known.values():
            places = [
                (one, slice(max(begin, one.start()), min(end, one.end())))
                for one in template.pattern.finditer(message)
                for begin, end in spans
            ]
            met = [one for one, place in places if place.start < place.stop]
            typed = [message[place] for _, place in places]
            options = re.findall(OPTION, " ".join([*typed, *(beside if met else ())]))
            tried |= {(template.name, option) for option in template.advised.intersection(options)}
            again = [one[0] for one in met if one[0] in after and one[0] not in " ".join(map(str, words))]
            assert not again or code, f"the same advice again:\n{after}"
    return tried
