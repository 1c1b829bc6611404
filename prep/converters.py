"""Which converter serves which sources: pictures, or CT and MR volumes."""

from __future__ import annotations

from typing import Any, Protocol

from halofeed.prep.annotations.reference import Reference
from halofeed.prep.labels import LabelMap
from halofeed.prep.picture import PictureConverter
from halofeed.prep.recipe import Recipe
from halofeed.prep.record import Record
from halofeed.prep.sources import SourceFiles


class Converter(Protocol):
    """Turns the files of one reference into records."""

    def records(self, reference: Reference, files: SourceFiles) -> tuple[Record, ...]:
        """The records of one source; SourceError where it cannot be converted."""

    def new_statistics(self) -> Any:
        """What the records' facts are added to."""


def converter_of(recipe: Recipe, task: str, labels: LabelMap) -> Converter:
    """The converter of a recipe."""
    if recipe.depth is None:
        return PictureConverter(recipe=recipe, task=task, labels=labels)
    from halofeed.prep.volume.converter import VolumeConverter

    return VolumeConverter(recipe=recipe, labels=labels)
