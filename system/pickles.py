"""Pickles between halofeed's own processes that accept only named classes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from halofeed.system.checksum import with_checksum, without_checksum


def to_bytes(value: object) -> bytes:
    """Pickle plain values and instances of classes for `from_bytes`."""
    return with_checksum(pickle.dumps(value, protocol=5))


def from_bytes(data: bytes, allowed: Iterable[type | Callable[..., Any]]) -> Any:
    """Return the value that `to_bytes` was given; only the allowed classes and functions are called.

    Raises:
        UnpicklingError: the bytes name anything else, or were changed.

    >>> from_bytes(to_bytes({"a": (1, b"x")}), ())
    {'a': (1, b'x')}
    """
    try:
        pickled = without_checksum(data)
    except ValueError as error:
        raise pickle.UnpicklingError(str(error)) from None
    return _Unpickler(pickled, allowed).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Iterable[type | Callable[..., Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = {(one.__module__, one.__name__): one for one in allowed}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in this pickle")
        return self._allowed[module, name]
