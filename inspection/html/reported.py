"""What is a data set's report made of? The facts, the folder, and the records that are shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from halofeed.inspection.facts.candidates import Candidate, choose, find_candidates
from halofeed.inspection.facts.dataset import Facts
from halofeed.inspection.facts.display import Display, display_of
from halofeed.inspection.pictures.source import thumbnail_side
from halofeed.inspection.stored.place import Place

_LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL = 360, 160


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is reported of: the facts, and which records are shown.

    Args:
        folder: of the data set.
        sources: the folder of the source pictures, where the user names it.
        samples: how many records are shown.
    """

    facts: Facts
    folder: Place
    sources: str | None
    samples: int

    @cached_property
    def chosen(self) -> list[tuple[Candidate, str | None]]:
        """The records that are shown, and what is awkward of each."""
        if not self.samples:
            return []
        found = find_candidates(self.folder, self.facts.manifest)
        return choose(found, self.samples, detection=self.facts.task.has_boxes)

    @property
    def side(self) -> int:
        """The longer side of a sample's picture."""
        return thumbnail_side(len(self.chosen), _LARGEST_THUMBNAIL, _SMALLEST_THUMBNAIL)

    @cached_property
    def display(self) -> Display:
        """How volumes are shown."""
        return display_of(self.facts.manifest, self.facts.total)
