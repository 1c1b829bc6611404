"""Keywords of the Python API: values of a command's options, which are checked without becoming words first.

A value has the type of its option. A text is parsed as on the command line, so "train=0.8,test=0.2" and
{"train": 0.8, "test": 0.2} are the same.
"""

from __future__ import annotations

import argparse
import functools
import keyword
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from halofeed.cli import add_common, command_parser
from halofeed.conversion import RECIPE
from halofeed.option_rows import convert_rows, train_rows
from halofeed.options import Option, Setting, meaning_of, option_of_action, unknown_choice, wrong_text
from halofeed.parser import CommandParser, is_beam_option, meant_option
from halofeed.system.arguments import truth_value, whole_number
from halofeed.system.errors import UsageError

_SEVERAL = (Mapping, list, tuple, set)


@functools.cache
def keywords_of(command: str) -> Mapping[str, Option]:
    """Return the options of a command by keyword; an option that has earlier names is there under them too.

    >>> keywords_of("convert")["kernel"].name, keywords_of("show")["batch_size"].type
    ('interpolation', <class 'int'>)
    """
    found: dict[str, Option] = {}
    for action in _parser(command)._actions:
        row = option_of_action(action)
        found |= {_keyword(flag): row for flag in action.option_strings if flag.startswith("--")}
    for row in _described_rows(command):
        earlier = row.more.get("earlier_flag")
        found |= {row.name: row, **({_keyword(earlier): row} if earlier else {})}
    return {name: row for name, row in found.items() if name not in ("help", "help_all")}


def _parser(command: str) -> CommandParser:
    """Return a parser with the options that the command adds by itself, not by the rows of a dataclass."""
    if command != "convert":
        return command_parser(command)
    parser = CommandParser(prog="halofeed convert", add_help=False)
    add_common(parser)
    return parser


def _described_rows(command: str) -> list[Option]:
    if command == "convert":
        return [RECIPE, *convert_rows()]
    return train_rows() if command == "train" else []


def _keyword(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def check_keywords(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command by the names that a parsed command line has for them; None is not given.

    Args:
        command: name of the command.
        given: value by keyword.

    Raises:
        UsageError: a keyword is unknown, a value has a wrong type, or two keywords exclude each other.

    >>> check_keywords("convert", {"height": 16, "window_hu": [-160, 240], "split_shares": {"train": 0.8, "test": 0.2}})
    {'quiet': False, 'verbose': False, 'debug': False, 'height': 16, 'window_hu': (-160.0, 240.0), \
'split_shares': ('train=0.8', 'test=0.2')}
    >>> check_keywords("convert", {"height": "x"})
    Traceback (most recent call last):
        ...
    halofeed.system.errors.UsageError: height: expected a whole number, got 'x'; meaning: rows ...
    """
    known, parser = keywords_of(command), _parser(command)
    values = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(_unknown(command, name, value, known))
        if value is not None:
            values[known[name].dest] = _CHECKS.get(name, check_value)(known[name], value)
    _refuse_both(parser, values)
    defaults = {
        action.dest: action.default for action in parser._actions if action.default is not argparse.SUPPRESS
    }
    return {**defaults, **values}


def _unknown(command: str, name: str, value: Any, known: Mapping[str, Option]) -> str:
    """Return the message for an unknown keyword."""
    flag = f"--{name.replace('_', '-')}"
    if command == "convert" and is_beam_option(flag):
        meant = f"it is an option of Beam: beam_options=['--{name}={value}']"
    else:
        meant = name_parameters(meant_option(flag, (f"--{one.replace('_', '-')}" for one in known)))
    return f"{name}: {command} has no such parameter" + (f"; {meant}" if meant else "")


def _refuse_both(parser: CommandParser, values: Mapping[str, Any]) -> None:
    """Refuse two keywords that exclude each other, and one that a setting of `set` repeats."""
    for group in parser._mutually_exclusive_groups:
        given = [one.dest for one in group._group_actions if values.get(one.dest)]
        if len(given) > 1:
            raise UsageError(f"{given[1]}: not allowed with argument {given[0]}")
    for setting in values.get("settings", ()):
        name = setting[0] if isinstance(setting, tuple) else setting.partition("=")[0].strip()
        if name in values:
            raise UsageError(f"{name}: given by itself and in set; leave one of them out")


def check_value(option: Option, value: Any) -> Any:
    """Return a keyword's value in the form of its command; raise UsageError for a value that its option cannot have.

    >>> check_value(Option(name="spacing_mm", type=float, is_list=True), (2, 1.5, 1.5))
    (2.0, 1.5, 1.5)
    """
    if option.type is bool:
        return truth_value(option.name, value)
    meaning = meaning_of(option.help)
    if isinstance(value, bool):
        raise UsageError(f"{option.name}: expected a value, got {value!r}{meaning}")
    if option.is_list:
        return _check_list(option, value)
    if isinstance(value, _SEVERAL):
        raise UsageError(f"{option.name}: expected one value, got {value!r:.80}{meaning}")
    checked = _check_item(option, value)
    if option.choices and checked not in option.choices:
        raise UsageError(f"{option.name}: {unknown_choice(checked, option.choices)}")
    return checked


def _check_list(option: Option, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return _read(option, value)  # type: ignore[no-any-return]
    if isinstance(value, Mapping):
        value = [f"{key}={one}" for key, one in value.items()]
    # A set is refused: its order differs between processes, and the order of classes decides their numbers.
    is_list = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
    return tuple(_check_item(option, one) for one in (value if is_list else [value]))


def _check_item(option: Option, value: Any) -> Any:
    """Return one value, or one of several, with the type of its option."""
    if isinstance(value, str) and option.type is not str:
        return _read(option, value)
    return _ITEM_CHECKS[option.type](option, value)


def _read(option: Option, text: str) -> Any:
    """Return the value of a text that the command line would take too."""
    try:
        return option.read(text)
    except ValueError as error:
        raise UsageError(
            f"{option.name}: {wrong_text(option.type_name, text, option.help) or error}"
        ) from error


def _check_whole(option: Option, value: Any) -> int:
    return whole_number(option.name, value)


def _check_number(option: Option, value: Any) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise UsageError(f"{option.name}: expected a number, got {value!r:.80}{meaning_of(option.help)}")
    # A NumPy float32 of 0.1 means 0.1, which its text is, and not the nearest double of its bits.
    return float(str(value)) if type(value).__module__ == "numpy" else float(value)


def _check_text(option: Option, value: Any) -> str:
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    # A number where a name is expected, such as the fold or the class 3, is written as it is shown.
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{option.name}: expected a text, got {value!r:.80}{meaning_of(option.help)}")


_ITEM_CHECKS: dict[type[Any], Callable[[Option, Any], Any]] = {
    int: _check_whole,
    float: _check_number,
    str: _check_text,
}


def _check_file_or_mapping(option: Option, value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{option.name}: expected a value, got {value!r:.80}{meaning_of(option.help)}")
    return check_value(option, value)


def _check_label_map(option: Option, value: Any) -> Any:
    if isinstance(value, _SEVERAL):
        raise UsageError(
            f"{option.name}: expected one value, got {value!r:.80}; write a file, json.dump(names, "
            "open('labels.json', 'w')), and give its path"
        )
    return check_value(option, value)


def _check_config(option: Option, value: Any) -> Any:
    if isinstance(value, Mapping):
        raise UsageError(
            f"{option.name}: expected a recipe's name or a .toml file, got {value!r}; write set={value!r}"
        )
    return check_value(option, value)


def _check_settings(option: Option, value: Any) -> list[Setting]:
    """Return settings of a training recipe: texts NAME=VALUE, or names with values as they are.

    >>> _check_settings(Option(name="set"), {"model": {"width": 8}, "optimizer": "adam"})
    [('model.width', 8), 'optimizer=adam']
    """
    items = [value] if isinstance(value, str) else value.items() if isinstance(value, Mapping) else value
    try:
        return [one for item in items for one in ([item] if isinstance(item, str) else _settings(*item))]
    except TypeError:
        raise UsageError(
            f"{option.name}: expected settings by name, such as {{'steps': 1000}}, got {value!r:.80}"
        ) from None


def _settings(name: str, value: Any) -> Iterator[Setting]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _settings(f"{name}.{key}", one)
    else:
        # A text may be the TOML of a value: "[8, 16]".
        yield f"{name}={value}" if isinstance(value, str) else (name, _plain(value))


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if type(value).__module__ == "numpy" else value


_CHECKS: dict[str, Callable[[Option, Any], Any]] = {
    "config": _check_config,
    "label_map": _check_label_map,
    "findings": _check_file_or_mapping,
    "recipe": _check_file_or_mapping,
    "set": _check_settings,
}
"""Checks of keywords that take other values than the command line."""


def name_parameters(text: str) -> str:
    """Return a text that names parameters in place of the command line's options.

    >>> name_parameters("--batch-size needs --steps"), name_parameters("without --from")
    ('batch_size needs steps', 'without from_')
    """

    def parameter(flag: re.Match[str]) -> str:
        # Python has `from` for itself.
        return f"{flag[1]}_" if keyword.iskeyword(flag[1]) else flag[1].replace("-", "_")

    return re.sub(r"--([a-z][a-z-]*[a-z])", parameter, text)
