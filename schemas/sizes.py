"""How a number of bytes is written for people."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """A size that can be read.

    >>> human_bytes(999), human_bytes(123_456), human_bytes(5_000_000_000)
    ('999 B', '123 kB', '5.00 GB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size >= 100 else f"{size:#.3g} {unit}"
