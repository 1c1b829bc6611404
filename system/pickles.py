"""Values on their way between this project's own processes: pickles in which only named classes are believed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from halofeed.system.checksum import with_checksum, without_checksum


def to_bytes(value: object) -> bytes:
    """Plain values and instances of classes, to be read by `from_bytes`."""
    return with_checksum(pickle.dumps(value, protocol=5))


def from_bytes(data: bytes, believed: Iterable[type | Callable[..., Any]]) -> Any:
    """What `to_bytes` was given; nothing in it is executed but what makes instances of these classes.

    Raises:
        UnpicklingError: it holds anything else, or was changed on its way.

    >>> from_bytes(to_bytes({"a": (1, b"x")}), ())
    {'a': (1, b'x')}
    """
    try:
        pickled = without_checksum(data)
    except ValueError as error:
        raise pickle.UnpicklingError(str(error)) from None
    return _Unpickler(pickled, believed).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, believed: Iterable[type | Callable[..., Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._believed = {(one.__module__, one.__name__): one for one in believed}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._believed:
            raise pickle.UnpicklingError(f"{module}.{name} is nothing that is sent here")
        return self._believed[module, name]
