"""Command-line options that are generated from frozen dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
_METAVARS = {int: "N", float: "X"}


def add_options(
    parser: argparse.ArgumentParser,
    kind: type[Any],
    *,
    title: str | None = None,
    show_defaults: bool = True,
) -> None:
    """Add an option for each field of a dataclass that has a `help` in its metadata.

    A boolean becomes --flag. A tuple takes values separated by commas or by the `separator` of its metadata; the option
    of a tuple of texts may be repeated. Inherited fields come last, in a group per class that its OPTION_GROUP names.

    Args:
        parser: parser to which the options are added.
        kind: the dataclass.
        title: title of the group for the class's own fields; default: no group.
        show_defaults: show the dataclass's defaults in the help.
    """
    hints = typing.get_type_hints(kind)
    groups: dict[type[Any], Any] = {kind: parser.add_argument_group(title) if title else parser}
    for declaring_class, field in _fields_by_class(kind):
        if "help" not in field.metadata:
            continue
        if declaring_class not in groups:
            groups[declaring_class] = parser.add_argument_group(declaring_class.OPTION_GROUP)
        _add_option(groups[declaring_class], field, hints[field.name], show_defaults)


def _fields_by_class(kind: type[Any]) -> list[tuple[Any, dataclasses.Field[Any]]]:
    """Return the fields with the classes that declare them, in method resolution order."""
    classes = {name: base for base in reversed(kind.__mro__) for name in inspect.get_annotations(base)}
    pairs = [(classes[field.name], field) for field in dataclasses.fields(kind)]
    return sorted(pairs, key=lambda pair: kind.__mro__.index(pair[0]))


def _add_option(parser: Any, field: dataclasses.Field[Any], hint: Any, show_default: bool) -> None:
    flag, hint = "--" + field.name.replace("_", "-"), _without_none(hint)
    text = field.metadata["help"]
    if show_default and field.default not in (None, (), "", False, True, dataclasses.MISSING):
        default = field.default
        text += f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default})"
    text = text.replace("%", "%%")
    if hint is bool:
        action = argparse.BooleanOptionalAction if field.default else "store_true"
        parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=text)
        return
    choices = field.metadata.get("choices")
    metavar = None if choices else _METAVARS.get(hint, field.name.rpartition("_")[2].upper())
    earlier = field.metadata.get("earlier_flag")
    may_repeat = typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str
    for name, said in ((flag, text), *([(earlier, argparse.SUPPRESS)] if earlier else [])):
        parser.add_argument(
            name,
            dest=field.name,
            action="extend" if may_repeat else "store",
            type=_parser_of(hint, field.metadata.get("separator", ",")),
            choices=choices,
            metavar=metavar,
            default=argparse.SUPPRESS,
            help=said,
        )


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
        if any(one.dest == name and one.default is argparse.SUPPRESS for one in parser._actions):
            vars(namespace).pop(name, None)
        namespace.settings = [*namespace.settings, values]


def from_options(kind: type[T], parsed: argparse.Namespace, **more: Any) -> T:
    """Build a dataclass from parsed options; options that were not given keep the dataclass's defaults."""
    names = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    given = {name: value for name, value in vars(parsed).items() if name in names}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}, **more)


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
