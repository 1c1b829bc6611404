"""Table of converters by kind of image: pictures, CT and MR volumes, clips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.converted_record import Record
from halofeed.prep.convert.picture_records import PictureConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import cuts_pictures
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.statistics import Statistics
from halofeed.system.memory import ReserveMemory


class Tally(Protocol):
    """Statistics of the records of a shard."""

    def add(self, facts: Any) -> None:
        """Count one record by its facts."""

    def statistics(self) -> Statistics:
        """Return the statistics."""


class Converter(Protocol):
    """Converter of the files of one reference into records."""

    def records(
        self, reference: SourceExample, files: SourceFiles, reserve: ReserveMemory | None = None
    ) -> tuple[Record, ...]:
        """Return the records of one source; raise SourceError where it cannot be converted.

        Args:
            reserve: called with the number of bytes that this takes; default: the recipe's limit.
        """

    def new_tally(self) -> Tally:
        """Return a tally for the records of a shard."""


@runtime_checkable
class StreamingConverter(Converter, Protocol):
    """Converter of inputs that become more records than memory holds."""

    def stream(
        self,
        reference: SourceExample,
        files: SourceFiles,
        reserve: ReserveMemory,
        map_in_order: Callable[..., Iterator[Any]],
        threads: int,
    ) -> Iterator[Record]:
        """Yield the records of one source; raise SourceError where it cannot be converted, perhaps after some.

        Args:
            reserve: called with the number of bytes that this takes.
            map_in_order: function like `map`, which may call in threads.
            threads: number of threads.
        """


def converter_of(recipe: Recipe, task: str, labels: LabelMap) -> Converter:
    """Return the converter of a recipe."""
    return CONVERTERS[recipe.rules.kind.name](recipe, task, labels)


def _picture(recipe: Recipe, task: str, labels: LabelMap) -> Converter:
    if cuts_pictures(recipe):
        from halofeed.prep.convert.tile_records import TileConverter

        return TileConverter(recipe=recipe, task=task, labels=labels)
    return PictureConverter(recipe=recipe, task=task, labels=labels)


def _volume(recipe: Recipe, task: str, labels: LabelMap) -> Converter:
    from halofeed.prep.convert.volume_records import VolumeConverter

    return VolumeConverter(recipe=recipe, labels=labels, task=task)


def _clip(recipe: Recipe, task: str, labels: LabelMap) -> Converter:
    from halofeed.prep.convert.clip_records import ClipConverter

    return ClipConverter(recipe=recipe, task=task, labels=labels)


CONVERTERS: dict[str, Callable[[Recipe, str, LabelMap], Converter]] = {
    "picture": _picture,
    "volume": _volume,
    "clip": _clip,
}
"""Constructors by kind of image; each imports its converter when called."""
