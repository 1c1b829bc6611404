"""Command line: `halofeed COMMAND ...`. Each command imports its package when it runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import re
import shlex
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from halofeed import __version__, planning, training
from halofeed.completion import COMPLETION_EXAMPLE, SHELLS, completion_script
from halofeed.errors import HalofeedError, UsageError, require_extra
from halofeed.options import (
    add_help,
    add_options,
    from_options,
    given_options,
    is_beam_option,
    meaning_of,
    meant_option,
    meant_setting,
    option_group,
)
from halofeed.streams import output_error, output_status
from halofeed.system import signals
from halofeed.system.addresses import Address, address_of, meant_address, redacted
from halofeed.system.console import NORMAL, QUIET, VERBOSE, print_error, print_status, status_level
from halofeed.system.resource_errors import check_least_memory, describe_error
from halofeed.system.wording import did_you_mean
from halofeed.training import add_training_commands, unlogged

if TYPE_CHECKING:
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.annotations.contract import LayoutOptions
    from halofeed.prep.options.recipe import Recipe
    from halofeed.trainer.config import TrainConfig

CONVERT_EXAMPLES = """\
examples:
  a folder per class:
    halofeed convert --layout folders --source photos --out data --name photos \\
        --height 224 --width 224
  boxes, padded to 640 x 640:
    halofeed convert --layout voc --source cards --out data --name cards --resize keep-aspect \\
        --min-dimension 640 --max-dimension 640 --pad --shards 4
  volumes with masks:
    halofeed convert --layout nnunet --source Dataset009_Spleen --out data --name spleen \\
        --depth 64 --height 128 --width 128 --window abdomen
  clips of 16 frames:
    halofeed convert --layout folders --source videos --out data --name videos --frames 16 \\
        --height 112 --width 112
"""
CONVERT_END = """
example: on a cluster, where Beam's options follow --
  halofeed convert --layout coco --source gs://bucket/coco --out gs://bucket/data --name coco \\
      --max-rejected 100 -- --runner=DataflowRunner --project=PROJECT --region=europe-west4 \\
      --temp_location=gs://bucket/temporary --extra_package=halofeed-0.1.0-py3-none-any.whl

Killed or failed? Run the same command again: finished shards are kept, and the result is the same.
OUT/NAME/VERSION/rejected.jsonl lists every rejected input with its reason.
"""


def _join_negative(given: Sequence[str]) -> list[str]:
    """Join values that begin with a minus to their options, so that argparse does not read them as options.

    Of a conversion, which has no positional arguments, numbers that follow a number are joined by commas.

    >>> _join_negative(["convert", "--window-hu", "-160", "240", "--spacing-mm", "2", "1.5", "1.5"])
    ['convert', '--window-hu=-160,240', '--spacing-mm', '2,1.5,1.5']
    >>> _join_negative(["convert", "--height=96", "--width=96"])
    ['convert', '--height=96', '--width=96']
    """
    joined: list[str] = []
    for word in given:
        if joined and re.match(r"-\.?\d", word) and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={word}"
        elif (
            given[0] == "convert"
            and joined
            and _NUMBERS.fullmatch(joined[-1])
            and word[:2] != "--"
            and _NUMBERS.fullmatch(word)
        ):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined


_NUMBERS = re.compile(r"(--[a-z-]+=)?-?[\d.]+(,-?[\d.]+)*")


def _check_values(given: Sequence[str]) -> None:
    """Refuse several words after one option of a conversion, such as files for which the shell replaced a pattern.

    >>> _check_values(["convert", "--image-pattern", "ct/a.nii", "ct/b.nii"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    halofeed.errors.UsageError: --image-pattern takes one value, got ct/a.nii ct/b.nii; put ...
    """
    option, values = "", list[str]()
    for word in (*given[1:], "--"):
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


def main(arguments: Sequence[str] | None = None, *, alone: bool = False) -> int:
    """Run one command and return its exit status: 0 success, 1 the data or the job failed, 2 wrong usage.

    Args:
        arguments: words of the command line; default: those of this process.
        alone: True if this process does nothing else and may fork workers.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = argparse.Namespace(alone=alone, command="", debug=False)
    for word in given:
        for text in (word, word.partition("=")[2]):
            address_of(text)  # registers the secrets that messages must hide
    try:
        code = _run(given, parsed)
        if alone and code == 0 and (failed := output_error()) is not None:
            return _output_failed(parsed.command, failed)
        return code
    except Exception as error:
        signals.wait_if_ending()
        if isinstance(error, OSError) and (failed := output_error()) is not None:
            return _output_failed(parsed.command, failed)
        if parsed.debug:
            print_error(traceback.format_exc().rstrip())
        if not isinstance(error, HalofeedError):
            text = describe_error(error)
            raw = text.startswith(f"{type(error).__name__}: ")
            error = HalofeedError(f"{text} (--debug shows where)" if raw else text)
        return _fail(parsed.command, error)
    except KeyboardInterrupt:  # in a program that calls `main` without halofeed's signal handlers
        print_error(f"{_who(parsed.command)}: stopped")
        return 130


def run_and_exit() -> NoReturn:
    """Run the command line and exit, even if a library left a thread running."""
    _take_arguments_as_utf8()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream of another class
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries; ours are status lines
    logging.disable(logging.WARNING)
    os._exit(main(alone=True))


def _take_arguments_as_utf8() -> None:
    """Restart this process in Python's UTF-8 mode if the locale has another encoding.

    Records contain text from the command line (names of classes, patterns), which must not depend on the locale.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1" or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"
    with (
        contextlib.suppress(OSError),
        signals.block_signals(),
    ):  # until the new process calls `install_handlers`
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is needed


def _run(given: list[str], parsed: argparse.Namespace) -> int:
    """Parse the command line into the namespace and run its command."""
    beam_arguments: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, beam_arguments = given[:cut], given[cut + 1 :]
    parsed.command = next((word for word in given[:1] if word in _COMMANDS), "")
    check_least_memory(parsed.command)
    try:
        given = _join_negative(given)
        if parsed.command == "convert":
            _check_values(given)
        _parser(parsed.command).parse_args(given, parsed)
    except SystemExit as stop:
        return int(stop.code or 0)
    signals.set_stop_message(_who(parsed.command))
    if beam_arguments and parsed.command != "convert":
        raise UsageError("only convert takes options after --")
    return _dispatch(parsed, beam_arguments)


def _dispatch(parsed: argparse.Namespace, beam_arguments: Sequence[str]) -> int:
    _refuse_addresses(parsed)
    if hasattr(parsed, "redirects") and "://" in parsed.path:
        hosts = tuple(filter(None, map(str.strip, parsed.redirects.split(","))))
        parsed.path = Address(parsed.path, hosts)
    for name in ("path", "data"):
        path = getattr(parsed, name, None)
        if isinstance(path, str) and os.path.isdir(path) and not os.path.exists(f"{path}/manifest.json"):
            from halofeed.schemas.manifest import only_version

            setattr(parsed, name, only_version(path))
    # C++ libraries (TensorFlow, XLA) print banners, and XLA a warning about slow compilations; their errors are raised.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    level = QUIET if parsed.quiet else VERBOSE if parsed.verbose else NORMAL
    with status_level(level):
        return _COMMANDS[parsed.command](parsed, list(beam_arguments))


def options_of(command: str) -> dict[str, argparse.Action]:
    """Return the actions of a command by option, such as --layout."""
    return _subparsers(_parser(command))[command]._option_string_actions


def run_words(words: Sequence[str], beam_arguments: Sequence[str] = (), **values: Any) -> argparse.Namespace:
    """Run a command for a program, and return its parsed options.

    Args:
        words: the command and its options.
        beam_arguments: Beam's own options.
        **values: values of options that are no text.

    Raises:
        UsageError: the words are no command; and what the command raises.
    """
    parsed = argparse.Namespace(alone=False, command=words[0], debug=False, **values)
    _parser(words[0], _RaisingParser).parse_args(words, parsed)
    _dispatch(parsed, beam_arguments)
    return parsed


_HELP_COLUMNS = 100
_LOCAL_PATHS = (
    *("run", "out", "output", "source", "sources", "json", "html", "folder", "config"),
    "backbone_weights",
)
"""Arguments that must be local paths in all commands except convert."""


def _refuse_addresses(parsed: argparse.Namespace) -> None:
    """Refuse addresses for local paths, and with one slash, where a folder `s3:` would be made otherwise."""
    for name, value in vars(parsed).items():
        if isinstance(value, str) and (meant := meant_address(value)) is not None:
            flag = "" if name in ("path", "data", "run") else f"--{name.replace('_', '-')} "
            raise UsageError(
                f"{flag}{value}: an address has two slashes; write {meant}, or ./{value} for a path"
            )
    for name in _LOCAL_PATHS if parsed.command != "convert" else ():
        value = getattr(parsed, name, None)
        if isinstance(value, str) and (address := address_of(value)) is not None:
            flag = name if name == "run" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} {address}: expected a path on local disk, got an address; copy it there, and name the copy"
            )


def _fail(command: str, error: HalofeedError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    print_error("\n".join([f"{_who(command)}: {lines[0]}", *(f"  {line}" for line in lines[1:])]))
    return error.exit_code


def _output_failed(command: str, error: OSError) -> int:
    status, text = output_status(error)
    if text is not None:
        print_error(f"{_who(command)}: {text}")
    return status


def _who(command: str) -> str:
    return f"halofeed {command}".strip()


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of at most 100 columns that never breaks the name of an option, so that it can be copied."""

    def __init__(self, prog: str) -> None:
        width = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 24)).columns)
        super().__init__(prog, max_help_position=26, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


_LISTS = "numbers separated by commas, such as 1,2,4"
_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "list of int": f"whole {_LISTS}",
    "list of numbers": f"whole {_LISTS}",
    "list of float": _LISTS,
}
"""Words for a type's name in messages."""


class _Parser(argparse.ArgumentParser):
    """Parser whose error messages hide passwords of addresses and say what a wrong word may mean."""

    _given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if "arguments are required" in message:
            message += (
                f"; {self._meant(self._given) or self._example(message.partition(': ')[2].split(', '))}"
            )
        flag = message.removeprefix("argument ").partition(":")[0]
        if message.endswith(": expected one argument") and (action := self._option_string_actions.get(flag)):
            value = action.metavar or "|".join(map(str, action.choices or ()))
            message += f"; write {flag} {value}{meaning_of(action)}"
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
        if surplus:
            command = _subparsers(self)[parsed.command]
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
        if not unknown:
            return self._meant_dashes(words) or self._meant_words(words)
        flag, _, value = words[unknown[0]].partition("=")
        if self.prog.endswith(" convert") and is_beam_option(flag):
            return f"Beam's options follow two dashes, at the end of the command: -- {shlex.join(words)}"
        if "--set" in self._option_string_actions:
            from halofeed.trainer.config import TrainConfig

            following = words[unknown[0] + 1 : unknown[0] + 2]
            meant = meant_setting(flag, TrainConfig.__dataclass_fields__)
            if meant is not None and f"--{meant.replace('_', '-')}" not in self._option_string_actions:
                value = '[{name="FlipLeftRight"}]' if "augment" in meant else value or "".join(following)
                setting = shlex.quote(f"{meant}={value or 'VALUE'}")
                return f"did you mean --set {setting}?"
        return meant_option(flag, self._option_string_actions) or f"`{self.prog} --help` lists the options"

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
        if begin < 0:
            pairs = zip(("--source", "--out", "--name"), words, strict=False)
            named = " ".join(f"{flag} {shlex.quote(word)}" for flag, word in pairs)
            return f"each value follows its option: {named}" if self.prog.endswith(" convert") else ""
        flag, *values = self._given[begin:at]
        values += itertools.takewhile(lambda word: not word.startswith("-"), self._given[at:])
        action = self._option_string_actions.get(flag)
        if action is not None and action.nargs == 0:
            return f"{flag} takes no value: leave out {' '.join(values)}"
        if any(value.endswith(",") for value in values):
            return f"a list has no blanks: {flag} {','.join(value.strip(',') for value in values)}"
        if not all(map(os.path.exists, values)):
            return (
                f"{flag} takes one value: quote it if it has blanks, {flag} {shlex.quote(' '.join(values))}"
            )
        above = os.path.commonpath([*map(os.path.abspath, values)])
        return (
            f"{flag} takes one path, and a shell writes several for *: name the folder above, {flag} {above}"
        )

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            if (expected := _TYPE_WORDS.get(getattr(action.type, "__name__", ""))) is None:
                raise
            like = re.match(r"\d+(?![\d.])", arg_string) if expected == _TYPE_WORDS["int"] else None
            such = f", such as {like[0]}" if like else ""
            said = f"expected {expected}{such}, got {arg_string!r}{meaning_of(action)}"
            raise argparse.ArgumentError(action, said) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            near = did_you_mean(str(value), known)
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}; {near}choose from {', '.join(known)}"
            )


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, _Parser]:
    """Return the parsers of the commands by name."""
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


class _RaisingParser(_Parser):
    """Parser for programs, which raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument ")) from None


def _parser(only: str | None = None, kind: type[_Parser] = _Parser) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        only: command that will run. The parser leaves out options of other commands that take a second to import.
        kind: class of the parser.
    """
    parser = kind(
        prog="halofeed",
        description="From camera and scanner files to spatially partitioned training steps.",
        epilog="`halofeed COMMAND --help` shows an example of each. `halofeed demo` runs all steps.",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"halofeed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=textwrap.dedent(example),
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )

    convert = command("convert", "turn images and annotations into sharded TFRecords", CONVERT_END)
    full_epilog = _add_convert(convert) if only in (None, "convert") else None

    verify = command(
        "verify",
        "check every checksum, record, index entry and promise of a data set",
        "example:\n  halofeed verify data/cards/1.0.0      # exit 1 and the location, if anything is wrong",
    )
    verify.add_argument(
        "path", metavar="FOLDER", help="the data set's version folder or address, e.g. data/cards/1.0.0"
    )
    _add_redirects(verify)

    inspect = command(
        "inspect",
        "describe a data set, or one record of it",
        "examples:\n  halofeed inspect data/cards/1.0.0\n  halofeed inspect data/cards/1.0.0 --record train:17",
    )
    inspect.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    _add_redirects(inspect)
    shown = inspect.add_mutually_exclusive_group()
    shown.add_argument("--record", metavar="SPLIT:NUMBER", help="show one record, counted from 0")
    shown.add_argument(
        "--parser",
        action="store_true",
        help="print a Python function that reads the records with TensorFlow alone",
    )

    report = command(
        "report",
        "write one self-contained HTML file about a data set or a training run",
        "examples:\n  halofeed report data/cards/1.0.0 --output cards.html\n  halofeed report runs/cards",
    )
    report.add_argument(
        "path", metavar="FOLDER", help="the data set's version folder or address, or a run's folder"
    )
    report.add_argument(
        "--output",
        metavar="FILE",
        help="default: VERSION-report.html beside the version's folder; report.html in a run's",
    )
    report.add_argument(
        "--sources",
        "--source",
        metavar="FOLDER",
        help="the folder of the source pictures, to show them beside the stored ones; default: the folder from which "
        "this machine converted them; without one they are not shown",
    )
    _add_redirects(report)
    report.add_argument("--samples", type=int, default=12, metavar="N", help="pictures to show (default: 12)")

    show = command(
        "show",
        "draw a batch as a model gets it: augmented, with boxes, masks, ids and the borders between cores",
        """\
        examples:
          halofeed show data/cards/1.0.0                                     # the first batch, into batch.png
          halofeed show data/cards/1.0.0 --config retinanet_small --step 12 --output step12.png
          halofeed show data/spleen/1.0.0 --batch-size 2 --partition image=1,4,1,1,1""",
    )
    _add_batches(show, 8, "augmentations, batch size and partition are shown")
    show.add_argument(
        "--step", type=int, default=0, metavar="N", help="number of the batch, from 0 (default: 0)"
    )
    show.add_argument("--seed", type=int, metavar="N", help="default: the config's, or 0")
    show.add_argument(
        "--partition", metavar="PARTS", help="parts along each axis of the image, such as image=1,4,1,1"
    )
    show.add_argument(
        "--side",
        type=int,
        default=320,
        metavar="PIXELS",
        help="the longer side of each image shown (default: 320)",
    )
    show.add_argument(
        "--output", "-o", default="batch.png", metavar="FILE", help="a .png (default: batch.png)"
    )

    bench = command(
        "bench",
        "measure how fast this host feeds a trainer from a data set, and find the bottleneck",
        """\
        examples:
          halofeed bench data/cards/1.0.0
          halofeed bench data/coco640/1.0.0 --config retinanet_resnet50_fpn_640 --appetite 300""",
    )
    _add_batches(bench, 32, "augmentations and batch size are used")
    bench.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="duration of each part in each of 3 rounds (default: 1)",
    )
    bench.add_argument(
        "--appetite",
        type=float,
        metavar="N",
        help="images/s that one accelerator consumes, to compute how many accelerators this host feeds",
    )

    add_training_commands(command, only)
    planning.add_plan_command(command)

    demo = command(
        "demo",
        "draw pictures and CT scans and run all steps on them: convert, verify, load, train, report",
        "example:\n  halofeed demo --folder demo",
    )
    demo.add_argument("--folder", default="demo", help="folder of all files (default: demo)")
    demo.add_argument("--images", type=int, default=400, help="number of pictures (default: 400)")

    package = command(
        "package",
        "write halofeed's wheel and sdist for Beam's --extra_package",
        """\
        example:
          halofeed package --output .
          halofeed convert ... -- --runner=DataflowRunner --extra_package=halofeed-0.1.0-py3-none-any.whl""",
    )
    package.add_argument("--output", default=".", metavar="FOLDER", help="output folder (default: here)")
    completion = command(
        "completion", "print the script that completes halofeed's words in a shell", COMPLETION_EXAMPLE
    )
    completion.add_argument("shell", choices=tuple(SHELLS), help="the shell")
    for added in commands.choices.values():
        _add_common(added, *(("running", full_epilog) if added is convert else ()))
    return parser


def _add_common(parser: argparse.ArgumentParser, title: str = "", full_epilog: str | None = None) -> None:
    """Add the options that every command has, to the group of this title if there is one."""
    group: Any = option_group(parser, title) if title else parser
    how = group.add_mutually_exclusive_group()
    how.add_argument("-q", "--quiet", action="store_true", help="print results and errors, and no status")
    how.add_argument("-v", "--verbose", action="store_true", help="print more of what is done, with times")
    group.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    add_help(parser, group, full_epilog)


def _add_redirects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redirects",
        default="",
        metavar="HOST,HOST",
        help="http addresses: hosts to which the server may redirect, or * for any (default: only itself)",
    )


def _add_batches(parser: argparse.ArgumentParser, batch_size: int, recipe_use: str) -> None:
    """Add the options that select the data and the form of batches, see `_batch_options`."""
    parser.add_argument("path", metavar="FOLDER", help="the data set's version folder or address")
    parser.add_argument("--split", default="train", help="name of the split (default: train)")
    parser.add_argument("--batch-size", type=int, metavar="N", help=f"default: the config's, or {batch_size}")
    parser.add_argument("--config", metavar="NAME", help=f"a training recipe, whose {recipe_use}")
    _add_redirects(parser)


def _add_convert(parser: argparse.ArgumentParser) -> str:
    """Add the options of a conversion, and return the end of the complete help."""
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.layouts import LAYOUTS
    from halofeed.prep.options.option import HELP_GROUPS
    from halofeed.prep.options.recipe import Recipe

    names = textwrap.fill(", ".join(LAYOUTS), _HELP_COLUMNS - 2, initial_indent="  ", subsequent_indent="  ")
    summaries = "\n".join(f"  {layout.name:<12} {layout.summary}" for layout in LAYOUTS.values())
    parser.epilog = f"layouts, which the complete help describes:\n{names}\n{CONVERT_END}"
    parser.usage = (
        "halofeed convert --source SOURCE --out OUT --name NAME [--layout LAYOUT] [options]\n"
        f"{'[-- BEAM OPTIONS]':>40}"
    )
    parser.description = f"{parser.description}\n\n{CONVERT_EXAMPLES}"
    for title in HELP_GROUPS:
        option_group(parser, title)
    option_group(parser, HELP_GROUPS[0]).add_argument(
        "--recipe",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="recipe of an earlier conversion: its manifest.json, or options in JSON or YAML; or a pipeline.config of "
        "the TF Object Detection API, for its resizer; options given here win",
    )
    add_options(parser, JobOptions)
    add_options(parser, Recipe)
    return f"layouts:\n{summaries}\n{CONVERT_END}"


def _convert(parsed: argparse.Namespace, beam_arguments: list[str]) -> int:
    from halofeed.pipelines.job import JobOptions
    from halofeed.prep.options.recipe import Recipe
    from halofeed.prep.options.recipe_file import read_recipe

    options = from_options(JobOptions, parsed)
    file = getattr(parsed, "recipe", None)
    parsed.repeated = repeated = read_recipe(file) if file else None
    if repeated and repeated.mapped:
        options = dataclasses.replace(options, label_map=options.label_map or repeated.label_map)
        print_status("\n".join(repeated.mapped))
    given = given_options(Recipe, parsed)
    if beam_arguments or any("://" in path for path in (options.source, options.images or "", options.out)):
        with require_extra("convert", "apache_beam"), unlogged():
            from halofeed.pipelines.convert import prepare_stores
        prepare_stores(options, beam_arguments)
    stated = {**repeated.document, **given} if repeated else given
    if stated.get("layout", "auto") == "auto":
        parsed.layout = _detect_layout(options, parsed)
    recipe = _recipe_of(parsed)
    if repeated:
        repeated.check_used(recipe, given)
    else:
        recipe.check_used()
    if stated.get("depth") is not None and not {"height", "width"} <= stated.keys():
        raise UsageError(
            "--depth: volumes have no default size; give --height and --width too. --dry-run without the three "
            "proposes them"
        )
    from halofeed.system.memory import heavy_imports, keep_freed_memory

    with require_extra("convert", "apache_beam"), unlogged(), heavy_imports():
        from halofeed.pipelines.convert import convert
        from halofeed.pipelines.workers import fork_workers
        from halofeed.system.scratch import temporary_files_in_scratch
    from halofeed.pipelines.summary import summary

    if options.dry_run:
        return _dry_run(options, parsed)
    with contextlib.ExitStack() as stack:
        if parsed.alone:
            stack.enter_context(fork_workers(options, recipe, beam_arguments))
            stack.enter_context(temporary_files_in_scratch())
        keep_freed_memory()
        signals.set_stop_message(outlook="the same command resumes where this one ended")
        done = convert(options, recipe, beam_arguments)
    print(summary(done, warn_cut=options.warn_cut))
    if repeated and repeated.labels not in (None, done.manifest.labels):
        print_status(
            f"halofeed convert: the classes differ from those of {repeated.where}; if a file of class "
            "names was given then, give it again"
        )
    return 0


def _recipe_of(parsed: argparse.Namespace, **more: Any) -> Recipe:
    """Return the recipe of a command line with further options."""
    from halofeed.prep.options.recipe import Recipe

    given = {**given_options(Recipe, parsed), **more}
    return parsed.repeated.changed(given) if parsed.repeated else Recipe(**given)


def _dry_run(options: JobOptions, parsed: argparse.Namespace) -> int:
    from halofeed.pipelines.dry_run import dry_run
    from halofeed.system.scratch import scratch_folder

    with scratch_folder() as folder:
        found = dry_run(options, functools.partial(_recipe_of, parsed), folder)
        print(found.text)
        if options.preview is not None and found.sample is not None:
            from halofeed.inspection.batch import write_batch

            splits = found.sample.manifest.splits
            split = max(splits, key=lambda name: splits[name].records)
            count = min(10, splits[split].records)
            print(write_batch(found.sample.folder, options.preview, split=split, batch_size=count))
    return 0 if found.sample is not None else 1


def _detect_layout(options: JobOptions, parsed: argparse.Namespace) -> str:
    """Return the name of the layout that the source's files show, and print the reason."""
    from halofeed.prep.layouts.detect import detect_layout

    with require_extra("convert", "apache_beam"), unlogged():
        from halofeed.pipelines.plan import open_sources
    sources = open_sources(options)

    def options_of(layout: str) -> LayoutOptions:
        return _recipe_of(parsed, layout=layout).layout_options(options.salt)

    found = detect_layout(sources.annotations, sources.images, sources.annotation_file, options_of)
    print_status(f"halofeed convert: --layout {found.name}: {found.reason}")
    return found.name


def _verify(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.verify import verify

    report = verify(parsed.path)
    print(report)
    return 0 if report.ok else 1


def _inspect(parsed: argparse.Namespace, _: list[str]) -> int:
    if parsed.parser:
        from halofeed.inspection.parser_code import parser_code

        print(parser_code(parsed.path), end="")
        return 0
    from halofeed.inspection.describe_dataset import describe_dataset, describe_record

    print(
        describe_dataset(parsed.path)
        if parsed.record is None
        else describe_record(parsed.path, parsed.record)
    )
    return 0


def _report(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.schemas.files import RUN_FILE

    if os.path.isfile(os.path.join(parsed.path, RUN_FILE)):
        from halofeed.inspection.html.run_report import write_run_report

        print(write_run_report(parsed.path, parsed.output))
        return 0
    from halofeed.inspection.html.report import write_report

    print(write_report(parsed.path, output=parsed.output, sources=parsed.sources, samples=parsed.samples))
    return 0


def _batch_options(parsed: argparse.Namespace, batch_size: int) -> tuple[TrainConfig | None, dict[str, Any]]:
    """Return the training recipe of --config, if there is one, and the options of the batches."""
    from halofeed.trainer.platform import configure_platform

    configure_platform(None)
    config = None
    if parsed.config:
        from halofeed.trainer.config import load_config

        config = load_config(parsed.config)
    device_augment = config.device_augment if config else ()
    return config, {
        "split": parsed.split,
        "batch_size": _or_default(parsed.batch_size, config.batch_size if config else batch_size),
        "augment": config.augment if config else (),
        "device_augment": device_augment,
        "values": _value_range(config, parsed) if config and device_augment else None,
    }


def _value_range(config: TrainConfig, parsed: argparse.Namespace) -> tuple[float, float] | None:
    """Return the values of black and white for augmentations on the device; None if the stored type defines them."""
    from halofeed.loader.store.choose import open_store
    from halofeed.trainer.task import data_facts
    from halofeed.trainer.training_setup import normalization_of

    manifest = open_store(parsed.path).manifest()
    if manifest.field("image").dtype == "uint8":
        return None
    return normalization_of(config, data_facts(manifest, parsed.split)).values()


def _show(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.batch import write_batch

    if not 16 <= parsed.side <= 4096:
        raise UsageError(f"--side {parsed.side}: expected 16 to 4096 pixels")
    config, batches = _batch_options(parsed, 8)
    file = write_batch(
        parsed.path,
        parsed.output,
        step=parsed.step,
        seed=_or_default(parsed.seed, config.seed if config else 0),
        partition=parsed.partition or (config.partition if config else ""),
        side=parsed.side,
        **batches,
    )
    print(file)
    return 0


def _or_default(given: int | None, default: int) -> int:
    return default if given is None else given


def _bench(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.inspection.bench import bench

    if parsed.appetite is not None and parsed.appetite <= 0:
        raise UsageError(f"--appetite {parsed.appetite:g}: expected images per second above 0")
    batches = _batch_options(parsed, 32)[1]
    found = bench(parsed.path, seconds=parsed.seconds, **batches)
    print(found, *([] if parsed.appetite is None else [found.feeds(parsed.appetite)]), sep="\n")
    return 0


def _demo(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.demo import run_demo

    return run_demo(parsed.folder, images=parsed.images)


def _package(parsed: argparse.Namespace, _: list[str]) -> int:
    from halofeed.packaging import write_packages

    print(*write_packages(parsed.output), sep="\n")
    return 0


def _completion(parsed: argparse.Namespace, _: list[str]) -> int:
    print(completion_script(parsed.shell, _subparsers(_parser())), end="")
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "convert": _convert,
    "verify": _verify,
    "inspect": _inspect,
    "report": _report,
    "show": _show,
    "bench": _bench,
    "train": training.run_train,
    "evaluate": training.run_evaluate,
    "predict": training.run_predict,
    "export": training.run_export,
    "configs": training.run_configs,
    "plan": planning.run_plan,
    "demo": _demo,
    "package": _package,
    "completion": _completion,
}
