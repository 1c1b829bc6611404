"""Ids of examples, and the shard of each id."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from halofeed.system.errors import AnnotationsError, UsageError
from halofeed.system.wording import plural

ID_LIMIT = 2**63
SHARD_LIMIT = 2**32
_CANONICAL_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_MASK = 2**64 - 1
_MAX_SHOWN = 10


def example_id(key: str | int, number: int = 0) -> int:
    """Return the id of an example: an integer from 0 to 2**63 - 1.

    The id of an integer key in that range, or of its plain decimal string, is the integer. The id of any other key is
    the first 63 bits of the SHA-256 of its UTF-8 text. For further records of one source, such as tiles, the text is
    the key, a zero byte and the number. No key that a user gives contains a zero byte.

    Args:
        key: key of the source.
        number: number of the record within its source, from 0.

    >>> example_id(408805), example_id("408805")
    (408805, 408805)
    >>> example_id("007") == example_id("7"), example_id("train/hat/a.jpg")
    (False, 7984840532960644906)
    >>> example_id("a", 1) in (example_id("a"), example_id("a1"), example_id("a#1"))
    False
    """
    text = f"{key}\0{number}" if number else str(key)
    # COCO's evaluators compare ids of images, so an id of the annotations stays what it is.
    if _CANONICAL_DECIMAL.fullmatch(text) and int(text) < ID_LIMIT:
        return int(text)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def splitmix64(number: int) -> int:
    """Return the SplitMix64 finalizer of a 64-bit number, a bijection (Steele, Lea, Flood, OOPSLA 2014).

    >>> hex(splitmix64(0)), hex(splitmix64(1))
    ('0xe220a8397b1dcdaf', '0x910a2dec89025cc1')
    """
    mixed = (number + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def shard_of(identity: int, shard_count: int) -> int:
    """Return the shard of an example id, from 0 to shard_count - 1.

    >>> [shard_of(number, 4) for number in range(8)]
    [3, 2, 2, 0, 1, 1, 2, 1]
    """
    _check_shard_count(shard_count)
    return ((splitmix64(identity) >> 32) * shard_count) >> 32


def shards_of(identities: npt.ArrayLike, shard_count: int) -> npt.NDArray[np.int64]:
    """Return `shard_of` for an array of ids, int64 of the same shape."""
    _check_shard_count(shard_count)
    mixed: Any = np.asarray(identities).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    shards = ((mixed >> np.uint64(32)) * np.uint64(shard_count)) >> np.uint64(32)
    return np.asarray(shards, dtype=np.int64)


def _check_shard_count(shard_count: int) -> None:
    if not 1 <= shard_count < SHARD_LIMIT:
        raise UsageError(f"shard count: expected 1 to {SHARD_LIMIT - 1}, got {shard_count}")


def refuse_repeated(collected: array[int], list_keys: Callable[[], Iterable[tuple[str | int, str]]]) -> None:
    """Refuse two sources with the same id.

    Args:
        collected: ids of all sources; this function sorts them in place.
        list_keys: function that lists every (key, source name); it is called only if an id is repeated.

    Raises:
        AnnotationsError: names the sources of each repeated id.
    """
    identities = np.frombuffer(collected, dtype=np.int64) if collected else np.zeros(0, np.int64)
    identities.sort()
    repeated = set(np.unique(identities[1:][identities[1:] == identities[:-1]]).tolist())
    if repeated:
        raise AnnotationsError(_describe_repeated(list_keys(), repeated))


def _describe_repeated(pairs: Iterable[tuple[str | int, str]], repeated: set[int]) -> str:
    named: dict[int, list[str]] = {}
    for key, source in pairs:
        identity = example_id(key)
        if identity in repeated:
            named.setdefault(identity, []).append(f"{source} (key {key!r})")
    shown = [
        f"  id {identity}: {' and '.join(named[identity][:3])}" for identity in sorted(named)[:_MAX_SHOWN]
    ]
    more = [f"  and {len(named) - _MAX_SHOWN} more ids"] if len(named) > _MAX_SHOWN else []
    head = (
        f"{plural(len(named), 'id belongs', 'ids belong')} to more than one source; give each source a "
        f"key of its own:"
    )
    return "\n".join([head, *shown, *more])
