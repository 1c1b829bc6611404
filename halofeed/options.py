"""Command-line options that are generated from frozen dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
import weakref
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_METAVARS = {int: "N", float: "X"}


def add_options(parser: argparse.ArgumentParser, kind: type[Any], *, show_defaults: bool = True) -> None:
    """Add an option for each field of a dataclass that has a `help` in its metadata.

    A boolean becomes --flag. A tuple takes values separated by commas or by the `separator` of its metadata; the option
    of a tuple of texts may be repeated. Inherited fields come last. An option is in the group that its metadata names,
    else in that of the class that declares it (OPTION_GROUP), else in none.

    Args:
        parser: parser to which the options are added.
        kind: the dataclass.
        show_defaults: show the dataclass's defaults in the help.
    """
    from halofeed.prep.options.option import fields_by_class

    hints, order = typing.get_type_hints(kind), kind.__mro__.index
    for declaring_class, field in sorted(fields_by_class(kind), key=lambda pair: order(pair[0])):
        if "help" in field.metadata:
            title = field.metadata["group"] or getattr(declaring_class, "OPTION_GROUP", "")
            group = option_group(parser, title) if title else parser
            _add_option(group, field, hints[field.name], show_defaults)


def option_group(parser: argparse.ArgumentParser, title: str) -> Any:
    """Return the parser's group of this title, made at the first call."""
    groups = {group.title: group for group in parser._action_groups}
    return groups.get(title) or parser.add_argument_group(title)


def not_in_brief(*actions: argparse.Action) -> None:
    """Leave options out of the short help."""
    for action in actions:
        _BRIEF[action] = ""


def add_help(parser: argparse.ArgumentParser, group: Any, full_epilog: str | None = None) -> None:
    """Add -h, --help and, where it leaves out an option, --help-all.

    Args:
        parser: parser that has all other options.
        group: the parser, or a group of it.
        full_epilog: end of the complete help, if it differs from the parser's own.
    """
    shortens = any(action in _BRIEF for action in parser._actions)
    text = "show the usual options" if shortens else "show this help message"
    group.add_argument("-h", "--help", action=_Help, is_brief=True, nargs=0, help=text)
    if shortens:
        count = sum(bool(one.option_strings) and one.help != argparse.SUPPRESS for one in parser._actions)
        text = f"show all {count} options in full"
        group.add_argument("--help-all", action=_Help, is_brief=False, nargs=0, help=text, epilog=full_epilog)


_BRIEF: weakref.WeakKeyDictionary[argparse.Action, str] = weakref.WeakKeyDictionary()
"""Text of the short help by option, "" to leave it out; an option that is not here has its own text there too."""


class _Help(argparse.Action):
    """Action that prints the help, short or complete, and exits."""

    def __init__(self, *, is_brief: bool, epilog: str | None = None, **more: Any) -> None:
        super().__init__(**{**more, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS})
        self._is_brief, self._epilog = is_brief, epilog

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        for action in parser._actions if self._is_brief else ():
            action.help = _BRIEF.get(action, action.help) or argparse.SUPPRESS
        parser.epilog = self._epilog or parser.epilog
        parser.print_help()
        sys.exit()


def _add_option(parser: Any, field: dataclasses.Field[Any], hint: Any, show_default: bool) -> None:
    flag, hint = "--" + field.name.replace("_", "-"), _without_none(hint)
    text = field.metadata["help"]
    if show_default and field.default not in (None, (), "", False, True, dataclasses.MISSING):
        default = field.default
        text += f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default})"
    text = text.replace("%", "%%")
    brief = field.metadata["brief"].replace("%", "%%")
    if hint is bool:
        action = argparse.BooleanOptionalAction if field.default else "store_true"
        _BRIEF[parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=text)] = brief
        return
    choices = field.metadata.get("choices")
    metavar = None if choices else _METAVARS.get(hint, field.name.rpartition("_")[2].upper())
    earlier = field.metadata.get("earlier_flag")
    may_repeat = typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str
    for name, said in ((flag, text), *([(earlier, argparse.SUPPRESS)] if earlier else [])):
        added = parser.add_argument(
            name,
            dest=field.name,
            action="extend" if may_repeat else _Once if field.metadata.get("once") else "store",
            type=_parser_of(hint, field.metadata.get("separator", ",")),
            choices=choices,
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=said,
        )
        _BRIEF[added] = brief if name == flag else ""


def meaning_of(action: argparse.Action) -> str:
    """Return the beginning of an option's help as a part of a message; "" for a hidden option."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    return f"; it is: {action.help.replace('%%', '%').partition(';')[0]}"


class _Once(argparse.Action):
    """Action that stores a value and refuses a second one, which would replace the first without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _: str | None = None,
    ) -> None:
        if (first := getattr(namespace, self.dest, values)) != values:
            raise argparse.ArgumentError(
                self,
                f"given twice: {first} and {values}; name one folder that holds both, or convert each by itself",
            )
        setattr(namespace, self.dest, values)


def add_settings(parser: argparse.ArgumentParser, examples: str) -> None:
    """Add --set, which changes any setting of a training recipe; `examples` are shown in its help."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action=_Setting,
        default=[],
        dest="settings",
        help=f"change any setting of the recipe, e.g. {examples}; may be repeated",
    )


class _Setting(argparse.Action):
    """Action that adds a setting and removes the value of an earlier option with the same name."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _: str | None = None,
    ) -> None:
        name = values.partition("=")[0].strip().replace("-", "_")
        if "=" not in values:
            raise argparse.ArgumentError(self, f"{values}: expected name=value, e.g. steps=1000")
        if any(one.dest == name and one.default is argparse.SUPPRESS for one in parser._actions):
            vars(namespace).pop(name, None)
        namespace.settings = [*namespace.settings, values]


def from_options(kind: type[T], parsed: argparse.Namespace, **more: Any) -> T:
    """Build a dataclass from parsed options; options that were not given keep the dataclass's defaults."""
    return kind(**given_options(kind, parsed), **more)


def given_options(kind: type[Any], parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the dataclass's fields that were given as options."""
    names = {field.name for field in dataclasses.fields(kind)}
    given = {name: value for name, value in vars(parsed).items() if name in names}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _parser_of(hint: Any, separator: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        return type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is not tuple:
        return hint
    item = typing.get_args(hint)[0]

    def split(text: str) -> tuple[Any, ...]:
        return tuple(item(part.strip()) for part in text.split(separator) if part.strip())

    split.__name__ = f"list of {item.__name__}"
    return split
