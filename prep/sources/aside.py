"""Things that are to be gone through again, of which there may be more than memory holds: they wait on the disk."""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
AT_ONCE = 20_000
"""Things that are held at once; fewer than that never touch the disk."""
_CHUNK = 200


class Aside(Generic[T]):
    """Things in the order in which they were added; first they are added, then gone through, one loop at a time.

    >>> aside = Aside()
    >>> for number in range(3):
    ...     aside.add(number)
    >>> list(aside)
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._held: list[T] = []
        self._file: Any = None
        self._chunks = 0

    def add(self, thing: T) -> None:
        """Take one more."""
        self._held.append(thing)
        if len(self._held) >= AT_ONCE:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - gone with this object
                weakref.finalize(self, self._file.close)
            for first in range(0, len(self._held), _CHUNK):
                pickle.dump(self._held[first : first + _CHUNK], self._file)
                self._chunks += 1
            self._held = []

    def __iter__(self) -> Iterator[T]:
        if self._file is not None:
            self._file.seek(0)
            for _ in range(self._chunks):
                yield from pickle.load(self._file)  # noqa: S301 - written above
        yield from self._held
