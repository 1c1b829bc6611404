"""Parser of protobuf's text format: label maps (.pbtxt) and configurations of training (.config).

It needs no schema: every field is a list of what its occurrences say, scalars as text and messages as fields. `Message`
reads configurations and must know every field of them.
Source: the Text Format Language Specification of Protocol Buffers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from halofeed.system.errors import UsageError

ProtoFields = dict[str, list[Union[str, "ProtoFields"]]]
_Tokens = list[tuple[str, str]]

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*') | (?P<mark>[{}:;,<>\[\]])
      | (?P<word>[^\s{}:;,<>\[\]"'\#]+)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_CLOSING = {"{": "}", "<": ">"}
_END = "the end of the file"


def parse_text_proto(text: str) -> ProtoFields:
    """Return the fields of a message, by name, each with the values of all its occurrences.

    Raises:
        ValueError: the text is not in this format, or nested too deep; the message is the end of a sentence that begins
            with a file's name.

    >>> parse_text_proto("item { id: 1, name: 'hat' } sizes: [3, 4]  # comment")
    {'item': [{'id': ['1'], 'name': ['hat']}], 'sizes': ['3', '4']}
    """
    tokens = _tokenize(text)
    try:
        return _parse_fields(tokens, 0, None)[0]
    except RecursionError as error:
        raise ValueError(": messages are nested too deep") from error


def _tokenize(text: str) -> _Tokens:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise ValueError(f":{line}: not readable from here: {text[position : position + 20]!r}")
        if match.lastgroup:
            tokens.append((match.lastgroup, match.group()))
        position = match.end()
    return tokens


def _parse_fields(tokens: _Tokens, position: int, closing: str | None) -> tuple[ProtoFields, int]:
    """Return the fields up to the closing mark (None for the end of the text), and the position after it."""
    fields: ProtoFields = {}
    while position < len(tokens):
        kind, written = tokens[position]
        position += 1
        if kind == "mark" and written == closing:
            return fields, position
        if kind == "mark" and written in ",;":  # separators of fields are optional
            continue
        if kind != "word":
            raise ValueError(f": expected the name of a field, got {written!r}")
        # The specification lets writers leave the colon out before a message.
        if tokens[position : position + 1] == [("mark", ":")]:
            position += 1
        values, position = _parse_value(tokens, position)
        fields.setdefault(written, []).extend(values)
    if closing is not None:
        raise ValueError(f": the file ends inside a message; expected {closing!r}")
    return fields, position


def _parse_value(tokens: _Tokens, position: int) -> tuple[list[str | ProtoFields], int]:
    """Return the value at `position`, or the values of a list, and the position after it."""
    kind, written = tokens[position] if position < len(tokens) else ("end", _END)
    if kind == "word":
        return [written], position + 1
    if kind == "string":
        return _parse_strings(tokens, position)
    if written in _CLOSING:
        fields, position = _parse_fields(tokens, position + 1, _CLOSING[written])
        return [fields], position
    if written == "[":
        return _parse_list(tokens, position + 1)
    raise ValueError(f": expected a value, got {written!r}")


def _parse_strings(tokens: _Tokens, position: int) -> tuple[list[str | ProtoFields], int]:
    """Return the text of adjacent strings, which are one value, as in C; and the position after them."""
    text = b""
    while position < len(tokens) and tokens[position][0] == "string":
        text += _ESCAPE.sub(_decode_escape, tokens[position][1][1:-1].encode())
        position += 1
    return [text.decode("utf-8", "replace")], position


def _parse_list(tokens: _Tokens, position: int) -> tuple[list[str | ProtoFields], int]:
    """Return the values up to the closing bracket, and the position after it."""
    values: list[str | ProtoFields] = []
    while position < len(tokens) and tokens[position][1] != "]":
        if tokens[position][1] == ",":
            position += 1
            continue
        found, position = _parse_value(tokens, position)
        values += found
    if position == len(tokens):
        raise ValueError(f": expected a value, got {_END!r}")
    return values, position + 1


def _decode_escape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 255])
    if code[:1] in b"xX" and len(code) > 1:  # \x without a digit is the letter x
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code)


@dataclass
class Message:
    """Fields of one message; each is taken by its name, and those that nobody took are refused.

    Args:
        path: names of the message and those around it.
        fields: what the file says.
        problems: list to which every problem is added.
        mapped: list to which every translated field is added, as a line for people.
    """

    path: str
    fields: ProtoFields
    problems: list[str] = field(default_factory=list)
    mapped: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    inner: list[Message] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Message:
        """Read a file's text; UsageError if it is not in this format."""
        try:
            return cls("", parse_text_proto(text))
        except ValueError as error:
            raise UsageError(f"not a text proto{error}") from error

    def messages(self, name: str) -> list[Message]:
        """Return all messages of a name."""
        self.taken.add(name)
        found = []
        for value in self.fields.get(name, ()):
            if isinstance(value, str):
                self.problems.append(f"{self._named(name)}: expected a message in {{ }}, got {value}")
                value = {}
            found.append(Message(self._named(name), value, self.problems, self.mapped))
        self.inner += found
        return found

    def message(self, name: str) -> Message:
        """Return the message of a name, empty if there is none."""
        return (self.messages(name) or [Message(self._named(name), {}, self.problems, self.mapped)])[-1]

    def only(self, *known: str) -> tuple[str, Message]:
        """Return the name of the one message that is given, and the message; ("", empty) if it is not known."""
        given = [name for name in known if name in self.fields]
        if len(given) != 1:
            got = ", ".join(self.fields) or "nothing"
            self.problems.append(f"{self.path}: expected one of {', '.join(known)}, got {got}")
            self.taken |= set(self.fields)
            return "", Message(self.path, {}, self.problems, self.mapped)
        return given[0], self.message(given[0])

    def value(self, name: str, default: Any, to: str = "") -> Any:
        """Return a scalar in the type of its default; `to` names the setting that it becomes."""
        values = self.values(name, [default])
        if to:
            self.mapped.append(f"{self._named(name)} -> {to} = {values[-1]}")
        return values[-1]

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        """Return a text that is one of the known ones; the first of these if it is not, which is a problem."""
        if (found := self.value(name, default)) in known:
            return str(found)
        self.problems.append(
            f"{self._named(name)}: expected one of {', '.join(known)}, got {found or 'nothing'}"
        )
        return next(iter(known))

    def values(self, name: str, default: Sequence[Any]) -> list[Any]:
        """Return all scalars of a name in the type of the first default; the default if there is none."""
        self.taken.add(name)
        kind, found = type(default[0]), []
        for value in self.fields.get(name, ()):
            try:
                found.append(_CONVERT[kind](value))
            except (KeyError, ValueError, TypeError):
                self.problems.append(f"{self._named(name)}: expected a {kind.__name__}, got {value}")
        return found or list(default)

    def expect(self, name: str, expected: Any, default: Any) -> None:
        """Refuse any other value than the one that the trainer has."""
        if (found := self.value(name, default)) != expected:
            only = f"expected {_written(expected)}, the only one that halofeed has"
            self.problems.append(f"{self._named(name)}: {only}, got {_written(found)}")

    def ignore(self, *names: str) -> None:
        """Take fields that have no effect here."""
        self.taken |= set(names)

    def refuse_others(self) -> None:
        """Add a problem for every field that was not taken, also of the messages inside."""
        for name in self.fields:
            if name not in self.taken:
                self.problems.append(f"{self._named(name)}: has no counterpart in halofeed; remove it")
        for message in self.inner:
            message.refuse_others()

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


_CONVERT: dict[type, Callable[[Any], Any]] = {
    bool: lambda text: {"true": True, "false": False, "1": True, "0": False}[text],
    int: int,
    float: lambda text: float(text.rstrip("fF") if not text.lower().endswith("inf") else text),
    str: str,
}


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
