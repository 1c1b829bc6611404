"""Annotations of a picture in its tiles, for each task.

Rules about unwanted objects apply once, to the complete picture; then each tile gets the part that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.picture_tasks import BadObjects, class_features
from halofeed.prep.convert.tallies import PictureFacts
from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.tfexample import Value
from halofeed.system.memory import ReserveMemory


@dataclass(frozen=True, kw_only=True)
class TiledPicture:
    """A picture whose header was read, its tiles and its annotations.

    Args:
        image: facts of the header, without pixels.
        grid: grid of the annotations, "stored" or "displayed"; None if neither the user nor other pictures show it.
        orientation: EXIF orientation, 1 to 8, from the annotations to the displayed picture.
        warning: warning about the grid of boxes; None without one.
    """

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    image: DecodedImage
    tiles: PictureTiles
    grid: str | None
    orientation: int
    warning: str | None


class TileAnnotations(Protocol):
    """Annotations of one picture, of which each tile gets its part. `add` is called in threads."""

    @property
    def held_bytes(self) -> int:
        """Maximum memory that the annotations take while tiles are made."""

    def add(self, tile: PictureTile, features: dict[str, Value], facts: PictureFacts) -> bool:
        """Add a tile's annotations to its features and facts, and return whether it shows an object or a label."""

    def finish(self) -> BadObjects:
        """Return (reason, detail) of each dropped object, after the last tile."""


class ClassesOfTiles:
    """Classes of a picture, which each of its tiles has."""

    held_bytes = 0

    def __init__(
        self, picture: TiledPicture, files: SourceFiles, reserve: ReserveMemory, threads: int
    ) -> None:
        self._features, self._labels = class_features(picture.reference, picture.labels)

    def add(self, tile: PictureTile, features: dict[str, Value], facts: PictureFacts) -> bool:
        """Add the classes."""
        features |= self._features
        facts.labels = list(self._labels)
        return True

    def finish(self) -> BadObjects:
        """Return no dropped object."""
        return ()


ANNOTATIONS: Mapping[str, Callable[[TiledPicture, SourceFiles, ReserveMemory, int], TileAnnotations]] = {
    "classification": ClassesOfTiles,
}
"""Annotations by the names of `halofeed.schemas.tasks.TASKS`."""
