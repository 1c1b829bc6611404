"""Which records of a split are meant, where a loader takes some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.errors import UsageError
from halofeed.schemas.identity import example_id

Integers = NDArray[np.int64]
Where = Callable[[Integers], NDArray[np.bool_]] | Sequence[int | str]
"""Ids of records or keys of their sources; or a function from all ids to whether each is taken."""


def id_of(key: int | str) -> int:
    """The id of a record, which `key` is itself, or whose source's key it is."""
    return example_id(key) if isinstance(key, str) else int(key)


def chosen_records(where: Where, ids: Integers, split: str) -> Integers:
    """The numbers of the records that are meant, int64, ascending.

    Raises:
        UsageError: a record that is not there, or stands there twice; a function that gives something else; or none.

    >>> chosen_records([12, 10], np.array([10, 11, 12]), "train").tolist()
    [0, 2]
    >>> chosen_records(lambda ids: ids % 2 == 1, np.array([10, 11, 12]), "train").tolist()
    [1]
    """
    if isinstance(where, str):
        raise UsageError(f"where: expected a list of ids or keys, or a function, got {where!r}")
    if callable(where):
        taken = np.asarray(where(ids))
        if taken.dtype != np.bool_ or taken.shape != ids.shape:
            raise UsageError(
                f"where: expected bool {ids.shape} of ids int64 {ids.shape}, got {taken.dtype} {taken.shape}"
            )
        chosen = np.flatnonzero(taken)
    else:
        wanted = np.array([id_of(key) for key in where], np.int64)
        if len(np.unique(wanted)) < len(wanted):
            raise UsageError("where: a record stands there twice; name each once")
        if len(missing := np.setdiff1d(wanted, ids)):
            names = [str(key) for key in where if id_of(key) in missing]
            raise UsageError(
                f"where: split {split!r} has no record {', '.join(names[:3])}"
                f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
            )
        chosen = np.flatnonzero(np.isin(ids, wanted))
    if not len(chosen):
        raise UsageError(f"where: no record of split {split!r} is taken")
    return chosen
