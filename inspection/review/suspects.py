"""Suspects: records that may hurt training, each with the kind of fault and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class SuspectKind(StrEnum):
    """Kind of what may be wrong with a record, as texts and files spell it.

    Attributes:
        meaning: sentence that says what is measured, and why it matters.
        fix: sentence with what to do; options and commands in it work when typed.
    """

    meaning: str
    fix: str

    def __new__(cls, name: str, meaning: str, fix: str) -> SuspectKind:
        member = str.__new__(cls, name)
        member._value_, member.meaning, member.fix = name, meaning, fix
        return member


@dataclass(frozen=True, kw_only=True)
class RecordPlace:
    """A record of a data set.

    Args:
        split: name of its split.
        number: its number in the split, from 0, as in `halofeed inspect --record SPLIT:NUMBER`.
        id: its example id.
        source: path of its source, as the record states it.
    """

    split: str
    number: int
    id: int
    source: str

    def __str__(self) -> str:
        return f"{self.source} ({self.split}:{self.number})"


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Records with a likely fault.

    Args:
        kind: the kind of the fault.
        places: the records; several where the fault is between them, as for copies.
        score: how far it is from what is usual; larger is worse. It orders suspects of one kind only.
        words: what was measured, with numbers and units, and without the names of the records.
        box: where in the first record, ymin, xmin, ymax, xmax as fractions of the stored picture; None for all of it.
        depth: the slice of a volume in which it is best seen; None for pictures.
    """

    kind: SuspectKind
    places: tuple[RecordPlace, ...]
    score: float
    words: str
    box: tuple[float, float, float, float] | None = None
    depth: int | None = None

    def to_json(self) -> Mapping[str, Any]:
        """Return it as JSON values; `box` and `depth` only where they are known."""
        where = {"box": self.box and list(self.box), "depth": self.depth}
        return {
            "kind": str(self.kind),
            "records": [vars(place) for place in self.places],
            "score": self.score,
            "words": self.words,
            **{name: value for name, value in where.items() if value is not None},
        }
