"""Which ranges of files are asked for, and where what they gave is found: planned on numbers alone.

wanted        ▇▇  ▇▇▇ ▇      ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
asked for     └─ one ──┘     └─ one ──┘└─ another ──┘
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from halofeed.loader.store.base import PIECE_BYTES, Span

GAP_BYTES = 128 << 10
"""What is read for nothing rather than left out by one more request."""
_LEAST_BYTES = 1 << 20


def joined(spans: Iterable[Span], side_by_side: int) -> list[Span]:
    """The ranges to ask for: those that lie close together as one, what is large in parts.

    Args:
        spans: what is needed, in the order in which it is.
        side_by_side: so many are asked for at a time, over which the bytes are spread.

    Returns:
        ranges that have all bytes of the spans, none twice, of at most `PIECE_BYTES`; first those needed first.

    >>> joined([("b", 5, 9), ("a", 300_000, 300_010), ("a", 0, 10), ("a", 20, 40)], 4)
    [('b', 5, 9), ('a', 300000, 300010), ('a', 0, 40)]
    """
    order = sorted(
        (name, start, stop, rank) for rank, (name, start, stop) in enumerate(spans) if start < stop
    )
    each = sum(stop - start for _, start, stop, _ in order) // max(1, side_by_side)
    most = min(PIECE_BYTES, max(_LEAST_BYTES, each))
    found: list[tuple[int, Span]] = []
    for name, start, stop, rank in order:
        if found:
            first, (last_name, last_start, last_stop) = found[-1]
            if (
                name == last_name
                and start <= last_stop + GAP_BYTES
                and max(stop, last_stop) - last_start <= most
            ):
                found[-1] = min(first, rank), (name, last_start, max(stop, last_stop))
                continue
            if name == last_name:
                start = max(start, last_stop)
        for begin in range(start, stop, PIECE_BYTES):
            found.append((rank, (name, begin, min(begin + PIECE_BYTES, stop))))
    return [span for _, span in sorted(found, key=lambda one: one[0])]


class Part(NamedTuple):
    """Some bytes of a file, from `start` to before `stop`, here or on their way."""

    start: int
    stop: int
    bytes: Future[bytes | bytearray]


class Window:
    """The parts that were asked for together, by their places."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}

    def add(self, name: str, part: Part) -> None:
        """Take one more."""
        bisect.insort(self._parts.setdefault(name, []), part, key=lambda one: one.start)

    def find(self, name: str, offset: int) -> Part | None:
        """The part that has the byte at `offset`."""
        parts = self._parts.get(name, ())
        at = bisect.bisect_right(parts, offset, key=lambda one: one.start) - 1
        return parts[at] if at >= 0 and offset < parts[at].stop else None

    def renew(self, name: str, start: int, stop: int, ask: Callable[[str, int, int], Part]) -> None:
        """Ask again for the parts that have one of these bytes."""
        if name in self._parts:
            self._parts[name] = [
                part if part.stop <= start or part.start >= stop else ask(name, part.start, part.stop)
                for part in self._parts[name]
            ]

    def cancel(self) -> None:
        """Ask for no more of them."""
        for parts in self._parts.values():
            for part in parts:
                part.bytes.cancel()
