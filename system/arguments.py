"""Arguments of the Python API: calls that a signature does not take, whole numbers, truth values."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from halofeed.errors import ArgumentsError, UsageError
from halofeed.system.wording import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


def explains_calls(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function so that a call which its signature does not take raises ArgumentsError with a fix.

    >>> explains_calls(lambda *, batch_size: None)(batch=8)
    Traceback (most recent call last):
        ...
    halofeed.errors.ArgumentsError: <lambda>: batch: no such argument; did you mean batch_size? it takes batch_size
    """

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> T:
        try:
            return function(*given, **named)
        except TypeError:
            if problem := _call_problem(function, given, named):
                raise ArgumentsError(problem) from None
            raise

    return call


def explains_fields(kind: type[T]) -> type[T]:
    """Do the same for the arguments of a class; for dataclasses, above their decorator."""
    setattr(kind, "__init__", explains_calls(kind.__init__))  # noqa: B010 - mypy refuses the assignment
    return kind


def _call_problem(function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments of a call, and how to write it; "" if the signature takes them."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        reason = str(error)
    else:
        return ""
    parameters, who = dict(signature.parameters), function.__name__
    if parameters.pop("self", parameters.pop("cls", None)) is not None:
        who, given = (type(given[0]).__name__ if who == "__init__" else who), given[1:]
    by_name = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
    by_place = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    several = [f"*{one.name}" for one in parameters.values() if one.kind is one.VAR_POSITIONAL]
    known = [*by_place, *by_name]
    takes = f"it takes {', '.join([*several, *known]) or 'none'}"
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if not takes_any and (unknown := [name for name in named if name not in parameters]):
        near = did_you_mean(unknown[0], known) or "leave it out; "
        return f"{who}: {unknown[0]}: no such argument; {near}{takes}"
    if len(given) > len(by_place) and (by_name or takes_any):
        example = ", ".join(f"{name}=..." for name in by_name[:2] or ["name"])
        after = f" after {by_place[-1]}" if by_place else ""
        return f"{who}: every argument{after} is given by its name, such as {example}; {takes}"
    empty = [name for name in known if parameters[name].default is inspect.Parameter.empty]
    if missing := [name for name in empty if name not in (*by_place[: len(given)], *named)]:
        return f"{who}: {', '.join(missing)}: missing; {takes}"
    return f"{who}: {reason}; {takes}"


def whole_number(name: str, value: Any, example: int = 8) -> int:
    """Return an argument as Python's int, because products of NumPy's integers may overflow.

    >>> whole_number("batch_size", "16")
    Traceback (most recent call last):
        ...
    halofeed.errors.UsageError: batch_size: expected a whole number such as 16, got '16'
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float(example)
        likely = math.floor(number) if math.isfinite(number) else example
        raise UsageError(f"{name}: expected a whole number such as {likely}, got {value!r:.80}") from None


def path_text(name: str, value: Any, fix: str = "name the folder of the data set") -> str:
    """Return a path as text; raise UsageError with the fix for anything else.

    >>> path_text("path", None)
    Traceback (most recent call last):
        ...
    halofeed.errors.UsageError: path: expected a path, got NoneType; name the folder of the data set
    """
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    raise UsageError(f"{name}: expected a path, got {type(value).__name__}; {fix}")


def truth_value(name: str, value: Any, reason: str = "") -> bool:
    """Return an argument as Python's bool; UsageError for anything but True, False, 1 and 0.

    >>> truth_value("shuffle", 1)
    True
    """
    is_numpys = type(value).__module__ == "numpy" and value.shape == ()
    if (isinstance(value, int) or is_numpys) and value in (0, 1):
        return bool(value)
    raise UsageError(f"{name}: expected True or False, got {value!r:.80}{reason}")
