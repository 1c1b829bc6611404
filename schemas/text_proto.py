"""Parser of protobuf's text format: label maps (.pbtxt) and configurations of training (.config).

It needs no schema: every field is a list of what its occurrences say, scalars as text and messages as fields.
Source: the Text Format Language Specification of Protocol Buffers.
"""

from __future__ import annotations

import re
from typing import Union

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
        if kind == "mark" and written in ",;":
            continue
        if kind != "word":
            raise ValueError(f": expected the name of a field, got {written!r}")
        if tokens[position : position + 1] == [("mark", ":")]:
            position += 1
        values, position = _parse_value(tokens, position)
        fields.setdefault(written, []).extend(values)
    if closing is not None:
        raise ValueError(f": the file ends inside a message; expected {closing!r}")
    return fields, position


def _parse_value(tokens: _Tokens, position: int) -> tuple[list[str | ProtoFields], int]:
    """Return the value at `position`, or the values of a list, and the position after it."""
    kind, written = tokens[position] if position < len(tokens) else ("end", "the end of the file")
    if kind == "word":
        return [written], position + 1
    if kind == "string":
        text = b""
        while position < len(tokens) and tokens[position][0] == "string":
            text += _ESCAPE.sub(_decode_escape, tokens[position][1][1:-1].encode())
            position += 1
        return [text.decode("utf-8", "replace")], position
    if written in _CLOSING:
        fields, position = _parse_fields(tokens, position + 1, _CLOSING[written])
        return [fields], position
    if written == "[":
        position, values = position + 1, []
        while position < len(tokens) and tokens[position][1] != "]":
            if tokens[position][1] == ",":
                position += 1
                continue
            found, position = _parse_value(tokens, position)
            values += found
        if position < len(tokens):
            return values, position + 1
        written = "the end of the file"
    raise ValueError(f": expected a value, got {written!r}")


def _decode_escape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 255])
    if code[:1] in b"xX" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code)
