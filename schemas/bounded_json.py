"""JSON of unknown origin, parsed within limits, and JSON with its own checksum."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from halofeed.schemas.limits import DIGITS, NESTING
from halofeed.system.checksum import crc32c


def parse_json(text: str | bytes, most_values: int, *, finite: bool = True) -> Any:
    """A JSON document of at most so many values, the names in an object each once.

    Args:
        finite: whether numbers must be; else NaN and Infinity are read as Python writes them.

    Raises:
        ValueError: it is none, or more than `halofeed.schemas.limits` allow; says what is wrong.

    >>> parse_json('{"a": [1, 2.5]}', 10)
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1e400}', 10)
    Traceback (most recent call last):
        ...
    ValueError: 1e400 is beyond what numbers are here
    """
    # Each value but the first follows one of these.
    marks: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if sum(map(text.count, marks)) > most_values:
        raise ValueError(f"it holds more than {most_values:,} values")
    try:
        document = json.loads(
            text,
            object_pairs_hook=_refuse_repeated,
            parse_constant=_refuse_constant if finite else float,
            parse_float=_finite if finite else float,
            parse_int=_short,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_nesting(document)
    return document


def _check_nesting(document: Any) -> None:
    level = [document]
    for _ in range(NESTING + 1):
        level = [value for value in level if isinstance(value, dict | list)]
        if not level:
            return
        members = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for inside in members for value in inside if isinstance(value, dict | list)]
    raise ValueError(f"it is nested deeper than {NESTING}")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r:.60} is there twice in one object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.60} is beyond what numbers are here")
    return value


def _short(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"{text:.20}... has {len(text):,} digits; at most {DIGITS} are read")
    return int(text)


CHECKSUM = "crc32c"


def checksum_of(document: Mapping[str, Any]) -> int:
    """CRC32C of the document's members but `crc32c`, in one fixed form."""
    members = {name: value for name, value in document.items() if name != CHECKSUM}
    return crc32c(json.dumps(members, sort_keys=True, separators=(",", ":")).encode())


def with_json_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum, which is that of what JSON makes of it: names that are numbers become text.

    >>> sealed({"step": 10})
    {'step': 10, 'crc32c': 538019656}
    """
    return {**document, CHECKSUM: checksum_of(json.loads(json.dumps(document)))}


def check_json_checksum(document: Any, *, required: bool = False) -> Any:
    """The document without its checksum; whatever is no object, or states none, as it is.

    Args:
        required: refuse a document without a checksum.

    Raises:
        ValueError: the checksum is another than that of the document.

    >>> unsealed({"step": 11, "crc32c": 538019656})
    Traceback (most recent call last):
        ...
    ValueError: its checksum is wrong, so it was changed after it was written
    """
    if not isinstance(document, dict) or (CHECKSUM not in document and not required):
        return document
    if document.get(CHECKSUM) != checksum_of(document):
        raise ValueError("its checksum is wrong, so it was changed after it was written")
    return {name: value for name, value in document.items() if name != CHECKSUM}
