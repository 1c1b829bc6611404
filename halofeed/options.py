"""How the command line's options are made from frozen dataclasses, so that each is said once."""

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
    """Add a --flag per field of a dataclass that has a `help` in its metadata.

    Defaults are shown in the help, unless something else than the dataclass decides them. A boolean becomes --flag, a
    tuple takes values between commas or the `separator` of its metadata, and one of text may be repeated. Fields
    that were inherited come last, each class's in a group that its OPTION_GROUP names.
    """
    hints = typing.get_type_hints(kind)
    groups: dict[type[Any], Any] = {kind: parser.add_argument_group(title) if title else parser}
    for home, field in _by_home(kind):
        if "help" not in field.metadata:
            continue
        if home not in groups:
            groups[home] = parser.add_argument_group(getattr(home, "OPTION_GROUP", home.__name__))
        _add_option(groups[home], field, hints[field.name], show_defaults)


def _by_home(kind: type[Any]) -> list[tuple[type[Any], dataclasses.Field[Any]]]:
    """The fields, each after the class that declares it; the class's own first."""
    homes = {name: home for home in reversed(kind.__mro__) for name in inspect.get_annotations(home)}
    pairs = [(homes[field.name], field) for field in dataclasses.fields(kind)]
    return sorted(pairs, key=lambda pair: kind.__mro__.index(pair[0]))


def _add_option(parser: Any, field: dataclasses.Field[Any], hint: Any, show_default: bool) -> None:
    flag, hint = "--" + field.name.replace("_", "-"), _without_none(hint)
    text = field.metadata["help"]
    if show_default and field.default not in (None, (), "", False, True, dataclasses.MISSING):
        text += f" (default: {_written(field.default)})"
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
    """Add --set, which changes any setting of a training recipe."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action=_Setting,
        default=[],
        dest="settings",
        help=f"change any setting of the recipe, e.g. {examples}; may be repeated",
    )


class _Setting(argparse.Action):
    """Takes one more setting, in place of what an option of that name said before."""

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
    """The dataclass of what was parsed; options that were not given keep the dataclass's defaults."""
    names = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    given = {name: value for name, value in vars(parsed).items() if name in names}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}, **more)


def _written(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else f"{default}"


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
