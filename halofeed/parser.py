"""Parser of the command line: the form of its help, and what it says of wrong words."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from halofeed.options import meaning_of, unknown_choice, wrong_text
from halofeed.system.addresses import redacted
from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean, meanings_of

HELP_COLUMNS = 100


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of at most 100 columns that never breaks the name of an option, so that it can be copied."""

    def __init__(self, prog: str) -> None:
        width = min(HELP_COLUMNS, shutil.get_terminal_size((HELP_COLUMNS, 24)).columns)
        super().__init__(prog, max_help_position=26, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class CommandParser(argparse.ArgumentParser):
    """Parser whose error messages hide passwords of addresses and say what a wrong word may mean.

    Attributes:
        full_epilog: end of the complete help, if it differs from the short one's.
    """

    full_epilog: str | None = None
    _given: Sequence[str] = ()

    # argparse gives an error as text alone, so its kind is told by its words, which are those of Python 3.11 to 3.14.
    def error(self, message: str) -> NoReturn:
        if "arguments are required" in message:
            message += (
                f"; {self._meant(self._given) or self._example(message.partition(': ')[2].split(', '))}"
            )
        flag = message.removeprefix("argument ").partition(":")[0]
        if message.endswith(": expected one argument") and (action := self._option_string_actions.get(flag)):
            value = action.metavar or "|".join(map(str, action.choices or ()))
            message += f"; write {flag} {value}{meaning_of(action.help)}"
        elif meant := self._meant_dashes(self._given):
            message = f"{meant.partition(': ')[2].removeprefix('-')}: {meant}"
        elif "ignored explicit argument" in message:
            message += f"; it takes no value: write {flag} alone, or leave it out"
        super().error(redacted(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, surplus = self.parse_known_args(args, namespace)
        # argparse reports surplus words in the name of the main parser, which knows no option of a command.
        if surplus:
            command = subparsers(self)[parsed.command]
            meant = command._meant(surplus) or "leave out what is too much, or name one folder that holds all"
            command.error(f"unrecognized arguments: {' '.join(surplus)}; {meant}")
        return parsed

    def _example(self, missing: Sequence[str]) -> str:
        """Return a command line with the missing arguments."""
        words = [self.prog]
        for action in self._actions:
            value = action.metavar or (next(iter(action.choices)) if action.choices else action.dest.upper())
            if action.option_strings and action.option_strings[0] in missing:
                words.append(f"{action.option_strings[0]} {value}")
            elif not action.option_strings and (action.metavar or action.dest) in missing:
                words.append(str(value))
        return f"write {' '.join(words)}"

    def _meant(self, words: Sequence[str]) -> str:
        """Return what the first unknown option may mean; "" if there is none."""
        unknown = [
            number
            for number, word in enumerate(words)
            if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions
        ]
        # A surplus word without an unknown option is a value too much, or an option with one dash.
        if not unknown:
            return self._meant_dashes(words) or self._meant_words(words)
        flag = words[unknown[0]].partition("=")[0]
        if self.prog.endswith(" convert") and is_beam_option(flag):
            return f"Beam's options follow two dashes, at the end of the command: -- {shlex.join(words)}"
        # The complete help of the program would be that of all commands.
        which = "--help-all" if " " in self.prog else "--help"
        return (
            self._meant_setting(words[unknown[0] :])
            or meant_option(flag, self._option_string_actions)
            or f"`{self.prog} {which}` lists the options"
        )

    def _meant_setting(self, words: Sequence[str]) -> str:
        """Return the setting of a training recipe that the first word, an unknown option, may mean; "" for none."""
        if "--set" not in self._option_string_actions:
            return ""
        from halofeed.trainer.config import TrainConfig

        flag, _, value = words[0].partition("=")
        meant = meant_setting(flag, TrainConfig.__dataclass_fields__)
        if meant is None or f"--{meant.replace('_', '-')}" in self._option_string_actions:
            return ""
        value = '[{name="FlipLeftRight"}]' if "augment" in meant else value or "".join(words[1:2])
        setting = shlex.quote(f"{meant}={value or 'VALUE'}")
        return f"did you mean --set {setting}?"

    def _meant_dashes(self, words: Sequence[str]) -> str:
        """Return the first option that was written with one dash, as a clause; "" if there is none."""
        flags = (f"-{word}" for word in words if re.match(r"-[a-z]{2}", word))
        return next(
            (f"options have two dashes: {one}" for one in flags if one in self._option_string_actions), ""
        )

    def _meant_words(self, words: Sequence[str]) -> str:
        """Return what words without an option may mean; "" if that cannot be said."""
        at = self._given.index(words[0]) if words and words[0] in self._given else 0
        begin = max(
            (place for place, word in enumerate(self._given[:at]) if word.startswith("--")), default=-1
        )
        # Words before the first option: a conversion has no positional arguments, but other tools have.
        if begin < 0:
            pairs = zip(("--source", "--out", "--name"), words, strict=False)
            named = " ".join(f"{flag} {shlex.quote(word)}" for flag, word in pairs)
            return f"each value follows its option: {named}" if self.prog.endswith(" convert") else ""
        flag, *values = self._given[begin:at]
        values += itertools.takewhile(lambda word: not word.startswith("-"), self._given[at:])
        action = self._option_string_actions.get(flag)
        if action is not None and action.nargs == 0:
            return f"{flag} takes no value: leave out {' '.join(values)}"
        return _meant_values(flag, values)

    # The next two replace private methods: argparse has no public way to word a wrong value.
    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            if (said := wrong_text(getattr(action.type, "__name__", ""), arg_string, action.help)) is None:
                raise
            raise argparse.ArgumentError(action, said) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, unknown_choice(value, list(action.choices)))


def _meant_values(flag: str, values: Sequence[str]) -> str:
    """Return what several words after an option that takes one value may mean."""
    # "--window-hu -160, 240" comes as two words.
    if any(value.endswith(",") for value in values):
        return f"a list has no blanks: {flag} {','.join(value.strip(',') for value in values)}"
    # Several words that are all files come from a pattern that the shell expanded.
    if not all(map(os.path.exists, values)):
        return f"{flag} takes one value: quote it if it has blanks, {flag} {shlex.quote(' '.join(values))}"
    above = os.path.commonpath([*map(os.path.abspath, values)])
    return f"{flag} takes one path, and a shell writes several for *: name the folder above, {flag} {above}"


@dataclass(frozen=True, kw_only=True)
class Command:
    """Command of the command line.

    Args:
        summary: one line of the help of all commands, in lower case.
        example: end of the command's help.
        add: function that adds the command's arguments to its parser.
        add_saved: the same for a help text, from the saved rows, without an import of the options' classes.
        run: function that runs the parsed command with Beam's own options, and returns the exit status.
    """

    summary: str
    example: str
    add: Callable[[CommandParser], None]
    add_saved: Callable[[CommandParser], None] | None = None
    run: Callable[[argparse.Namespace, list[str]], int]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """Return the parsers of the commands by name."""
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


def join_values(given: Sequence[str]) -> list[str]:
    """Join values that begin with a minus to their options, so that argparse does not read them as options.

    Of a conversion, which has no positional arguments, numbers that follow a number are joined by commas.

    Raises:
        UsageError: other words than numbers follow one option of a conversion.

    >>> join_values(["convert", "--window-hu", "-160", "240", "--spacing-mm", "2", "1.5", "1.5"])
    ['convert', '--window-hu=-160,240', '--spacing-mm', '2,1.5,1.5']
    >>> join_values(["convert", "--height=96", "--width=96"])
    ['convert', '--height=96', '--width=96']
    """
    is_conversion = given[:1] == ["convert"]
    joined: list[str] = []
    for word in given:
        before = joined[-1] if joined else ""
        # argparse reads -160 as an option, even after an option that needs a value.
        if re.match(r"-\.?\d", word) and re.fullmatch(r"--[a-z-]+", before):
            joined[-1] += f"={word}"
        elif is_conversion and word[:2] != "--" and _NUMBERS.fullmatch(before) and _NUMBERS.fullmatch(word):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    if is_conversion:
        _check_values(joined)
    return joined


_NUMBERS = re.compile(r"(--[a-z-]+=)?-?[\d.]+(,-?[\d.]+)*")


def _check_values(given: Sequence[str]) -> None:
    """Refuse several words after one option of a conversion, such as files for which the shell replaced a pattern.

    >>> _check_values(["convert", "--image-pattern", "ct/a.nii", "ct/b.nii"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    halofeed.system.errors.UsageError: --image-pattern takes one value, got ct/a.nii ct/b.nii; put ...
    """
    option, values = "", list[str]()
    for word in (*given[1:], "--"):  # the last word ends the values before it
        if not word.startswith("-"):
            values.append(word)
            continue
        if option.startswith("--") and len(values) > ("=" not in option):
            name = option.partition("=")[0]
            if name in ("--source", "--images") or values[0].endswith(","):
                return  # the parser's own answer names the folder, or the list without blanks
            raise UsageError(
                f"{name} takes one value, got {' '.join(values)}; put a pattern with * and a text with blanks in "
                "quotes, and commas between the values of a list"
            )
        option, values = word, []


_BEAM_OPTIONS: Final = frozenset(
    (
        *(
            "runner",
            "project",
            "region",
            "temp-location",
            "staging-location",
            "template-location",
            "job-name",
        ),
        *("job-endpoint", "parallelism", "environment-type", "environment-config", "sdk-container-image"),
        *("extra-package", "setup-file", "requirements-file", "flink-master", "spark-master-url"),
        *("worker-machine-type", "machine-type", "max-num-workers", "service-account-email", "streaming"),
        *("prism-location", "network", "subnetwork", "experiments", "disk-size-gb", "no-use-public-ips"),
    )
)


_OTHERWISE: Final = {
    "source": "the folder is given without an option",
    "split-shares": "`halofeed convert` makes the splits",
}
"""What to do in commands without these options."""


def is_beam_option(flag: str) -> bool:
    """Return whether Beam has an option of this name, which follows two dashes.

    >>> is_beam_option("--temp_location"), is_beam_option("--height")
    (True, False)
    """
    # Beam spells --temp_location; its users write both.
    return flag.strip("-").replace("_", "-") in _BEAM_OPTIONS


def meant_option(flag: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the option that a misspelled or foreign one may mean; "" for none.

    >>> meant_option("--epochs", ["--steps", "--seed"]), meant_option("--sede", ["--steps", "--seed"])
    ('did you mean --steps?', 'did you mean --seed?')
    """
    options = list(known)
    meant = meanings_of(flag)
    if not meant or any(f"--{one}" in options for one in meant):
        return did_you_mean(flag, options).rstrip()
    return "".join(_OTHERWISE.get(one, "") for one in meant)


def meant_setting(flag: str, known: Iterable[str]) -> str | None:
    """Return the setting of a recipe that an option's name means; None if it means none.

    >>> meant_setting("--lr", ["learning_rate"]), meant_setting("--batch", ["steps"])
    ('learning_rate', None)
    """
    fields = [one.replace("-", "_") for one in (*meanings_of(flag), flag.strip("-"))]
    return next((name for name in fields if name in known), None)
