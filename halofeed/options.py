"""Options of commands: rows, from which flags of the command line and keywords of Python are made."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from halofeed.system.wording import did_you_mean

T = TypeVar("T")
Setting = str | tuple[str, Any]
"""Setting of a training recipe: a text NAME=VALUE, whose value is TOML, or a name and its value."""
_METAVARS = {int: "N", float: "X"}
_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in (bool, int, float, str)}
_LISTS = "numbers separated by commas, such as 1,2,4"
_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "list of int": f"whole {_LISTS}",
    "list of float": _LISTS,
}
"""Words for a type's name in messages."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Row that describes an option of a command.

    Args:
        name: name of the keyword, such as batch_size; the flag is --batch-size.
        type: type of the value, or of each value of a list; bool is a switch.
        is_list: whether the option takes several values.
        default: value without the option.
        help: text of the complete help.
        choices: the allowed values; () allows all.
        more: what few options have: `brief`, the text of the short help; `group`, its title in the help; `separator` of
            a list's values; `once`, True to refuse a second value; `earlier_flag`; `metavar`, the word for the value in
            the help; and `dest`, the attribute of the parsed command line if it has another name.

    >>> Option(name="shards", type=int, default=1).flag
    '--shards'
    """

    name: str
    type: type[Any] = str
    is_list: bool = False
    default: Any = None
    help: str = ""
    choices: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """Return the option's spelling on the command line; a name that Python has for itself, from_, is --from."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def dest(self) -> str:
        """Return the name of the attribute that holds the value in a parsed command line."""
        return str(self.more.get("dest", self.name))

    @property
    def type_name(self) -> str:
        """Return the name of the type, such as "list of int"."""
        return f"list of {self.type.__name__}" if self.is_list else self.type.__name__

    def read(self, text: str) -> Any:
        """Return the value that a text of the command line means; ValueError for a text that means none.

        >>> Option(name="spacing_mm", type=float, is_list=True).read("2, 1.5,1.5")
        (2.0, 1.5, 1.5)
        """
        if not self.is_list:
            return self.type(text)
        parts = map(str.strip, text.split(self.more.get("separator", ",")))
        return tuple(self.type(part) for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain JSON values, without empty ones."""
        document, empty = vars(self), vars(Option(name=""))
        given = {name: value for name, value in document.items() if value != empty[name]}
        return {**given, "type": self.type.__name__}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Option:
        """Return the row of a document that `to_json` made.

        >>> row = Option(name="window_hu", type=float, is_list=True, default=())
        >>> Option.from_json({**row.to_json(), "default": []}) == row
        True
        """
        values: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in document.items()
        }
        return cls(**{**values, "type": _TYPES[document.get("type", "str")]})


def wrong_text(type_name: str, text: str, help: str | None) -> str | None:
    """Return the message for a text that an option's type cannot read; None for a type without its own message.

    >>> wrong_text("int", "16px", None)
    "expected a whole number, such as 16, got '16px'"
    """
    if (expected := _TYPE_WORDS.get(type_name)) is None:
        return None
    whole = re.match(r"\d+(?![\d.])", text) if type_name == "int" else None
    such = f", such as {whole[0]}" if whole else ""
    return f"expected {expected}{such}, got {text!r}{meaning_of(help)}"


def unknown_choice(value: Any, choices: Collection[Any]) -> str:
    """Return the message for a value that is not one of an option's choices.

    >>> unknown_choice("jpg", ["raw", "jpeg"])
    "invalid choice: 'jpg'; did you mean jpeg? choose from raw, jpeg"
    """
    known = list(map(str, choices))
    return f"invalid choice: {value!r}; {did_you_mean(str(value), known)}choose from {', '.join(known)}"


def options_of_class(kind: type[Any], *, show_defaults: bool = True) -> list[Option]:
    """Return the row of each field of a dataclass that has a `help` in its metadata; inherited fields come last.

    An option is in the group that its metadata names, else in that of the class that declares it (OPTION_GROUP).

    Args:
        kind: the dataclass.
        show_defaults: end each help text with the default.
    """
    from halofeed.prep.options.option import fields_by_class

    hints, order = typing.get_type_hints(kind), kind.__mro__.index
    rows = (
        _option_of_field(one, hints[one.name], getattr(declaring_class, "OPTION_GROUP", ""))
        for declaring_class, one in sorted(fields_by_class(kind), key=lambda pair: order(pair[0]))
        if "help" in one.metadata
    )
    return [
        dataclasses.replace(row, help=row.help + default_text(row.default)) if show_defaults else row
        for row in rows
    ]


def _option_of_field(one: dataclasses.Field[Any], hint: Any, group: str) -> Option:
    more = {key: one.metadata[key] for key in ("brief", "group", *_RARE) if one.metadata.get(key)}
    hint = _without_none(hint)
    is_list = typing.get_origin(hint) is tuple
    item = typing.get_args(hint)[0] if is_list else hint
    return Option(
        name=one.name,
        # The values of a Literal have one type, which is the option's.
        type=type(typing.get_args(item)[0]) if typing.get_origin(item) is typing.Literal else item,
        is_list=is_list,
        default=one.default,
        help=one.metadata["help"],
        choices=tuple(one.metadata.get("choices") or ()),
        more={**({"group": group} if group else {}), **more},
    )


_RARE = ("separator", "once", "earlier_flag", "metavar")


def option_of_action(action: argparse.Action) -> Option:
    """Return the row of an option that a command adds to its parser by itself."""
    types = {f"list of {name}": kind for name, kind in _TYPES.items()} | _TYPES
    type_name = getattr(action.type, "__name__", "str") if action.nargs != 0 else "bool"
    return Option(
        name=action.option_strings[0].strip("-").replace("-", "_") if action.option_strings else action.dest,
        type=types[type_name],
        is_list=type_name.startswith("list of "),
        default=action.default,
        help=(action.help or "").replace("%%", "%"),
        choices=tuple(action.choices or ()),
        more={"dest": action.dest, "metavar": action.metavar},
    )


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to a parser. A parsed command line has only those that were given.

    A switch becomes --flag. A list takes values separated by commas or by its separator; the option of a list of texts
    may be repeated.
    """
    for option in options:
        group = option_group(parser, title) if (title := option.more.get("group")) else parser
        text = option.help.replace("%", "%%")
        brief = option.more.get("brief", "").replace("%", "%%")
        if option.type is bool:
            # A switch that is on by default needs --no-NAME.
            action: Any = argparse.BooleanOptionalAction if option.default else "store_true"
            added = group.add_argument(option.flag, action=action, default=argparse.SUPPRESS, help=text)
            _BRIEF[added] = brief
            continue
        _BRIEF[_add_value(group, option, option.flag, text)] = brief
        if earlier := option.more.get("earlier_flag"):
            _BRIEF[_add_value(group, option, earlier, argparse.SUPPRESS)] = ""


def default_text(default: Any) -> str:
    """Return the end of a help text that shows a default; "" for one that says nothing."""
    # A help that says "default: False" or an empty text tells nothing.
    if default in (None, (), "", False, True, dataclasses.MISSING):
        return ""
    return f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default})"


def _add_value(parser: Any, option: Option, flag: str, text: str) -> argparse.Action:
    """Add an option that takes a value, with its own flag."""
    # --classes liver --classes spleen adds; three numbers that are given twice are a mistake of the second.
    may_repeat = option.is_list and option.type is str
    added: argparse.Action = parser.add_argument(
        flag,
        dest=option.name,
        action="extend" if may_repeat else _Once if option.more.get("once") else "store",
        type=_type_of(option),
        choices=option.choices or None,
        metavar=None if option.choices else _metavar(option),
        default=argparse.SUPPRESS,
        help=text,
    )
    return added


def _metavar(option: Option) -> str:
    # The last word of a name describes the value: --min-dimension DIMENSION.
    last_word = option.more.get("metavar") or option.name.rpartition("_")[2].upper()
    return last_word if option.is_list else _METAVARS.get(option.type, last_word)


def _type_of(option: Option) -> Callable[[str], Any]:
    if not option.is_list:
        return option.type

    def read(text: str) -> Any:
        return option.read(text)

    read.__name__ = option.type_name  # the parser's messages begin from it
    return read


def option_group(parser: argparse.ArgumentParser, title: str) -> Any:
    """Return the parser's group of this title, made at the first call."""
    groups = {group.title: group for group in parser._action_groups}
    return groups.get(title) or parser.add_argument_group(title)


def not_in_brief(*actions: argparse.Action) -> None:
    """Leave options out of the short help."""
    for action in actions:
        _BRIEF[action] = ""


def add_help(parser: argparse.ArgumentParser, group: Any, full_epilog: str | None = None) -> None:
    """Add -h, --help and --help-all, which shows every option, or of a parser of commands those of every command.

    Args:
        parser: parser that has all other options.
        group: the parser, or a group of it.
        full_epilog: end of the complete help, if it differs from the parser's own.
    """
    commands = _commands_of(parser)
    shortens = any(action in _BRIEF for action in parser._actions)
    # Where both show the same, one line of the help is enough.
    if not (commands or shortens):
        group.add_argument("-h", "--help", "--help-all", action=_Help, nargs=0, help="show this help message")
        return
    usual = "show this help message" if commands else "show the usual options"
    group.add_argument("-h", "--help", action=_Help, nargs=0, help=usual)
    count = sum(bool(one.option_strings) and one.help != argparse.SUPPRESS for one in parser._actions)
    every = "show all options of all commands" if commands else f"show all {count} options in full"
    group.add_argument("--help-all", action=_Help, nargs=0, help=every, epilog=full_epilog)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands by name; {} for one without commands."""
    found = (one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return dict(next(found, {}))


_BRIEF: weakref.WeakKeyDictionary[argparse.Action, str] = weakref.WeakKeyDictionary()
"""Text of the short help by option, "" to leave it out; an option that is not here has its own text there too."""


class _Help(argparse.Action):
    """Action that prints the short help, or with --help-all the complete one, and exits."""

    def __init__(self, *, epilog: str | None = None, **more: Any) -> None:
        super().__init__(**{**more, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS})
        self._epilog = epilog

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, values: Any, flag: str | None = None
    ) -> NoReturn:
        if flag == "--help-all":
            self._print_all(parser)
        else:
            for action in filter(_BRIEF.__contains__, parser._actions):
                action.help = _BRIEF[action] or argparse.SUPPRESS
            parser.print_help()
        sys.exit()

    def _print_all(self, parser: argparse.ArgumentParser) -> None:
        """Print the complete help of a parser and of its commands."""
        parser.epilog = self._epilog or parser.epilog
        parser.print_help()
        for command in _commands_of(parser).values():
            print()
            action = command._option_string_actions["--help-all"]
            if isinstance(action, _Help):
                action._print_all(command)


def meaning_of(help: str | None) -> str:
    """Return the beginning of an option's help as a part of a message; "" for a hidden option."""
    if not help or help == argparse.SUPPRESS:
        return ""
    return f"; meaning: {help.replace('%%', '%').partition(';')[0]}"


class _Once(argparse.Action):
    """Action that stores a value and refuses a second one, which would silently replace the first."""

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


def text_of_setting(setting: Setting) -> str:
    """Return a setting as --set takes it.

    >>> text_of_setting("steps=3"), text_of_setting(("augment", [{"name": "FlipDepth"}]))
    ('steps=3', 'augment=[{name = "FlipDepth"}]')
    """
    return setting if isinstance(setting, str) else f"{setting[0]}={_toml(setting[1])}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A JSON text is a TOML text, and so are JSON's true and false.
    return json.dumps(value) if isinstance(value, str | bool) else str(value)


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
        # Of --steps 5 and --set steps=7 the later one applies, as for options that are given twice.
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
