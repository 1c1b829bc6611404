"""Conditions on records, such as `class=tumor and boxes>2`: a small language, its parser and its values.

    condition   = all { "or" all }
    all         = one { "and" one }
    one         = "not" one | "(" condition ")" | test
    test        = name sign value | name [ "not" ] "in" "(" value { "," value } ")"
    sign        = "=" | "!=" | "<" | "<=" | ">" | ">="
    value       = a number, a word, or a text in single or double quotes

A name that has several values in a record, such as `class`, meets a test if one of them does; `!=` and `not in` are the
opposites of `=` and `in`. A word without quotes may hold `*` for any characters. Words of the language are in lower
case; in quotes they are texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halofeed.system.errors import UsageError
from halofeed.system.wording import did_you_mean

FoundValues = Collection[str | int | float]
ValuesOf = Callable[[str], FoundValues]
"""Function that returns the values of a name in a record."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign>!=|<=|>=|=|<|>)|(?P<mark>[(),])"""
    r"""|(?P<word>[^\s()<>=!,'"]+)|(?P<wrong>\S))"""
)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_RESERVED = ("and", "or", "not", "in")
_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
_MOST_NESTED = 100
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class _Token:
    kind: str
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        """Return whether this is one of the words of the language."""
        return self.kind == "word" and self.text in words


@dataclass(frozen=True, kw_only=True)
class Value:
    """Value of a test: its text, its number if it is one, and the pattern of a word with a star."""

    text: str
    number: float | None
    pattern: re.Pattern[str] | None = None

    def equals(self, found: str | int | float) -> bool:
        """Return whether a value of a record is this one; a number is compared as a number."""
        if isinstance(found, int | float):
            return self.number is not None and found == self.number
        return found == self.text if self.pattern is None else bool(self.pattern.fullmatch(found))


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Parsed condition.

    Args:
        text: the condition as it was written.
        names: names that it tests.
        meets: function of the values of a record that returns whether it meets the condition.
    """

    text: str
    names: frozenset[str]
    meets: Callable[[ValuesOf], bool]


def parse_condition(
    text: str,
    known: Collection[str] = (),
    *,
    others: str = "",
    values: Mapping[str, Collection[str]] | None = None,
) -> Condition:
    """Return the condition of a text.

    Args:
        text: the text.
        known: names that it may test; () allows any.
        others: what else a name may be, for the message about an unknown one; a name with a slash is never unknown.
        values: all values of names that have few. A test of equality with another one is refused, because it would meet
            no record, or with `!=` all of them; a word with a star may meet none.

    Raises:
        UsageError: the text is no condition; the message points at the place.

    >>> condition = parse_condition("class in (hat, 'old coat') and not boxes > 2")
    >>> condition.meets({"class": ["old coat"], "boxes": [1]}.__getitem__)
    True
    >>> parse_condition("class=hat and")
    Traceback (most recent call last):
    ...
    halofeed.system.errors.UsageError: --where: expected a name after and
      class=hat and
                   ^
    """
    return _Parser(text, known, others, values or {}).condition()


class _Parser:
    """Parser of one condition, which reads its tokens from left to right."""

    def __init__(
        self, text: str, known: Collection[str], others: str, values: Mapping[str, Collection[str]]
    ) -> None:
        self._text, self._known, self._others, self._values = text, known, others, values
        self._tokens = list(self._split())
        self._next = 0
        self._names: set[str] = set()

    def _split(self) -> Iterator[_Token]:
        at = 0
        while match := _TOKEN.match(self._text, at):
            kind = match.lastgroup or ""
            if kind == "wrong":
                wrong = match[kind]
                what = f"the quote {wrong} is not closed" if wrong in "'\"" else f"unexpected {wrong}"
                raise self._error(what, match.start(kind))
            yield _Token(kind=kind, text=match[kind], at=match.start(kind))
            at = match.end()
        yield _Token(kind="end", text="", at=len(self._text))

    def _error(self, what: str, at: int) -> UsageError:
        shown = self._text.replace("\n", " ")
        return UsageError(f"--where: {what}\n  {shown}\n  {' ' * at}^")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def condition(self) -> Condition:
        """Return the whole condition."""
        meets = self._any(0)
        if self._token.kind != "end":
            raise self._error(f"expected and, or, or the end, got {self._token.text}", self._token.at)
        return Condition(text=self._text, names=frozenset(self._names), meets=meets)

    def _any(self, depth: int) -> Callable[[ValuesOf], bool]:
        parts = [self._all(depth)]
        while self._token.is_word("or"):
            self._take()
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else lambda values: any(part(values) for part in parts)

    def _all(self, depth: int) -> Callable[[ValuesOf], bool]:
        parts = [self._one(depth)]
        while self._token.is_word("and"):
            self._take()
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda values: all(part(values) for part in parts)

    def _one(self, depth: int) -> Callable[[ValuesOf], bool]:
        token = self._token
        if depth > _MOST_NESTED:
            raise self._error(f"more than {_MOST_NESTED} conditions are inside of each other", token.at)
        if token.is_word("not"):
            self._take()
            part = self._one(depth + 1)
            return lambda values: not part(values)
        if token.text == "(" and token.kind == "mark":
            self._take()
            part = self._any(depth + 1)
            if self._token.text != ")":
                raise self._error("expected )", self._token.at)
            self._take()
            return part
        return self._test()

    def _test(self) -> Callable[[ValuesOf], bool]:
        name = self._name()
        token = self._take()
        if token.kind == "sign":
            return _comparison(name, token.text, self._value(name, token))
        is_not = token.is_word("not")
        if is_not:
            token = self._take()
        if not token.is_word("in"):
            expected = "in after not" if is_not else "=, !=, <, >, <=, >= or in"
            raise self._error(f"expected {expected} after {name}", token.at)
        allowed = self._list(name)
        return _membership(name, allowed, is_not=is_not)

    def _name(self) -> str:
        token = self._token
        if token.kind not in ("word", "quoted") or token.is_word(*_RESERVED):
            before = self._tokens[self._next - 1].text if self._next else ""
            raise self._error(f"expected a name{f' after {before}' if before else ''}", self._token.at)
        self._take()
        name = _unquoted(token.text) if token.kind == "quoted" else token.text
        if self._known and name not in self._known and "/" not in name:
            near = did_you_mean(name, self._known)
            raise self._error(
                f"no name {name!r}; {near}known: {', '.join(self._known)}{self._others}", token.at
            )
        self._names.add(name)
        return name

    def _value(self, name: str, after: _Token) -> Value:
        """Take a value of a name, after a sign, a parenthesis or a comma."""
        token = self._token
        value = self._any_value(after)
        known = self._values.get(name)
        if not known or after.text in _ORDER or value.pattern is not None or value.text in known:
            return value
        near = did_you_mean(value.text, known)
        listed = ", ".join([_as_written(one) for one in known][:_SHOWN]) + (
            ", ..." if len(known) > _SHOWN else ""
        )
        raise self._error(f"no {name} {value.text!r}; {near}known: {listed}", token.at)

    def _any_value(self, after: _Token) -> Value:
        token = self._token
        if token.kind not in ("word", "quoted") or token.is_word(*_RESERVED):
            reserved = f"; write '{token.text}' for the text" if token.is_word(*_RESERVED) else ""
            raise self._error(f"expected a value after {after.text}{reserved}", token.at)
        self._take()
        if token.kind == "quoted":
            text = _unquoted(token.text)
            return Value(text=text, number=_number_of(text))
        if after.text in _ORDER and _number_of(token.text) is None:
            raise self._error(f"expected a number after {after.text}, got {token.text}", token.at)
        pattern = None
        if "*" in token.text:
            pattern = re.compile(".*".join(map(re.escape, token.text.split("*"))), re.DOTALL)
        return Value(text=token.text, number=_number_of(token.text), pattern=pattern)

    def _list(self, name: str) -> list[Value]:
        before = self._tokens[self._next - 1]
        if self._token.text != "(":
            raise self._error("expected ( after in, such as in (hat, coat)", self._token.at)
        values, before = [], self._take()
        while True:
            values.append(self._value(name, before))
            before = self._take()
            if before.text == ")" and before.kind == "mark":
                return values
            if before.text != ",":
                raise self._error("expected , or )", before.at)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)


def _as_written(value: str) -> str:
    """Return a value as a condition has it: in quotes where it is no plain word."""
    match = _TOKEN.fullmatch(value)
    is_word = match is not None and match.lastgroup == "word" and "*" not in value and value not in _RESERVED
    return value if is_word else "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"


def _number_of(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    # Ids have 63 bits, and a float 53.
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _comparison(name: str, sign: str, value: Value) -> Callable[[ValuesOf], bool]:
    if sign == "=":
        return lambda values: any(map(value.equals, values(name)))
    if sign == "!=":
        return lambda values: not any(map(value.equals, values(name)))
    compare, limit = _ORDER[sign], value.number
    assert limit is not None or value.text

    def meets(values: ValuesOf) -> bool:
        return limit is not None and any(
            compare(one, limit) for one in map(_as_number, values(name)) if one is not None
        )

    return meets


def _as_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else _number_of(value)


def _membership(name: str, allowed: list[Value], *, is_not: bool) -> Callable[[ValuesOf], bool]:
    def meets(values: ValuesOf) -> bool:
        return any(one.equals(found) for found in values(name) for one in allowed) != is_not

    return meets
