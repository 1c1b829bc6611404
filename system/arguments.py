"""Arguments of the Python API: calls that a signature does not take, whole numbers, paths, truth values."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from halofeed.system.errors import ArgumentsError, UsageError
from halofeed.system.wording import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


def explains_calls(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function so that a call which its signature does not take raises ArgumentsError with a fix.

    >>> explains_calls(lambda *, batch_size: None)(batch=8)
    Traceback (most recent call last):
        ...
    halofeed.system.errors.ArgumentsError: <lambda>: batch: no such argument; did you mean ...
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
    """Return the class so that wrong arguments raise ArgumentsError; for dataclasses, above their decorator."""
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
        return ""  # the TypeError came from inside the function
    parameters, who = dict(signature.parameters), function.__name__
    if parameters.pop("self", parameters.pop("cls", None)) is not None:
        who, given = (type(given[0]).__name__ if who == "__init__" else who), given[1:]
    takes = _Parameters.of(parameters)
    problem = takes.unknown(named) or takes.too_many(len(given)) or takes.missing(len(given), named)
    return f"{who}: {problem or f'{reason}; '}{takes}"


@dataclass(frozen=True, kw_only=True)
class _Parameters:
    """Parameters of a function by how calls give them; its methods return the beginning of a message.

    Args:
        by_place, by_name: names of positional and of keyword-only parameters.
        several: the name of *args, if there is one.
        takes_any: whether there is a **kwargs.
        required: names of parameters without a default.
    """

    by_place: Sequence[str]
    by_name: Sequence[str]
    several: Sequence[str]
    takes_any: bool
    required: Sequence[str]

    @classmethod
    def of(cls, parameters: Mapping[str, inspect.Parameter]) -> _Parameters:
        def named(kind: Any) -> list[str]:
            return [one.name for one in parameters.values() if one.kind is kind]

        by_place, by_name = (
            named(inspect.Parameter.POSITIONAL_OR_KEYWORD),
            named(inspect.Parameter.KEYWORD_ONLY),
        )
        return cls(
            by_place=by_place,
            by_name=by_name,
            several=named(inspect.Parameter.VAR_POSITIONAL),
            takes_any=bool(named(inspect.Parameter.VAR_KEYWORD)),
            required=[
                name for name in (*by_place, *by_name) if parameters[name].default is inspect.Parameter.empty
            ],
        )

    def __str__(self) -> str:
        several = [f"*{name}" for name in self.several]
        return f"it takes {', '.join([*several, *self.by_place, *self.by_name]) or 'none'}"

    def unknown(self, named: Mapping[str, Any]) -> str:
        """Return what is wrong with the first name that is no parameter; "" without one."""
        known = [*self.by_place, *self.by_name]
        absent = [name for name in named if name not in (*known, *self.several)]
        if self.takes_any or not absent:
            return ""
        return f"{absent[0]}: no such argument; {did_you_mean(absent[0], known) or 'leave it out; '}"

    def too_many(self, count: int) -> str:
        """Return what is wrong if more arguments are given by place than there are such parameters; else ""."""
        if count <= len(self.by_place) or not (self.by_name or self.takes_any):
            return ""
        example = ", ".join(f"{name}=..." for name in self.by_name[:2] or ["name"])
        after = f" after {self.by_place[-1]}" if self.by_place else ""
        return f"every argument{after} is given by its name, such as {example}; "

    def missing(self, count: int, named: Mapping[str, Any]) -> str:
        """Return which required parameters a call leaves out; "" without one."""
        absent = [name for name in self.required if name not in (*self.by_place[:count], *named)]
        return f"{', '.join(absent)}: missing; " if absent else ""


def whole_number(name: str, value: Any, example: int = 8) -> int:
    """Return an argument as Python's int, because products of NumPy's integers may overflow.

    >>> whole_number("batch_size", "16")
    Traceback (most recent call last):
        ...
    halofeed.system.errors.UsageError: batch_size: expected a whole number such as 16, got '16'
    """
    try:
        if isinstance(value, bool):  # batch_size=True would be 1
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
    halofeed.system.errors.UsageError: path: expected a path, got NoneType; name the folder of the data set
    """
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    raise UsageError(f"{name}: expected a path, got {type(value).__name__}; {fix}")


def truth_value(name: str, value: Any, reason: str = "") -> bool:
    """Return an argument as Python's bool; UsageError for anything but True, False, 1 and 0.

    >>> truth_value("shuffle", 1)
    True
    """
    # Configurations and NumPy give 1 and np.True_; "no" and [] are true or false in Python by accident.
    is_numpys = type(value).__module__ == "numpy" and value.shape == ()
    if (isinstance(value, int) or is_numpys) and value in (0, 1):
        return bool(value)
    raise UsageError(f"{name}: expected True or False, got {value!r:.80}{reason}")
