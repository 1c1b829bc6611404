"""Which errors does libtiff state while Pillow decodes with it, and how are they kept off standard error?

Pillow silences libtiff's warnings, but not its errors, and passes on no more than that there was one. libtiff
has one place for the whole process to send them to: it is set here once, at the first TIFF.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import _imaging

_HEARD = threading.local()
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)


def _hear(module: bytes | None, message_format: bytes | None, _: Any) -> None:
    messages = getattr(_HEARD, "messages", None)
    if messages is not None and len(messages) < 10:
        parts = [part.decode("utf-8", "replace") for part in (module, message_format) if part]
        messages.append(": ".join(parts))


_HEAR = _HANDLER(_hear)  # libtiff keeps its address, so it must live as long as the process


@functools.cache
def _listen() -> bool:
    try:
        library = ctypes.CDLL(_imaging.__file__)
        setter = library.TIFFSetErrorHandler
    except (OSError, AttributeError):
        return False
    setter.argtypes, setter.restype = [_HANDLER], ctypes.c_void_p
    setter(_HEAR)
    return True


@contextmanager
def libtiff_messages() -> Iterator[list[str]]:
    """Collect the errors that libtiff states on this thread; none where Pillow's libtiff cannot be reached.

    The messages are libtiff's format strings, without the values.
    """
    _listen()
    _HEARD.messages = []
    try:
        yield _HEARD.messages
    finally:
        _HEARD.messages = None
