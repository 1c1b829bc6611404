"""Annotations of a picture in its tiles, for each task.

Rules about unwanted objects apply once, to the complete picture; then each tile gets the part that it shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.picture_tasks import BadObjects, class_features
from halofeed.prep.convert.tallies import PictureFacts
from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles
from halofeed.prep.geometry.resize import ResizePlan
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

    @property
    def whole(self) -> ResizePlan:
        """Return the plan of a record that would show the complete scaled picture."""
        scaled = self.tiles.scaled_size
        return ResizePlan(source_size=self.tiles.source_size, resized_size=scaled, output_size=scaled)


class TileAnnotations(Protocol):
    """Annotations of one picture, of which each tile gets its part.

    `cut` is called for one tile after the other, in the order of the file's rows, and `add` in threads.
    """

    @property
    def held_bytes(self) -> int:
        """Maximum memory that the annotations take while tiles are made."""

    def cut(self, tile: PictureTile) -> Any:
        """Return the part of the annotations that a tile shows, for `add`."""

    def add(self, tile: PictureTile, part: Any, features: dict[str, Value], facts: PictureFacts) -> bool:
        """Add a tile's annotations to its features and facts, and return whether it shows an object or a label.

        Args:
            part: what `cut` returned for the tile.
        """

    def finish(self, facts: PictureFacts) -> BadObjects:
        """Add what concerns the complete picture to the facts of its last tile.

        Returns:
            (reason, detail) of each dropped object.
        """


CLASSES_OF_TILES = "tiles have the classes of their complete picture, whether they show them or not"


class ClassesOfTiles:
    """Classes of a picture, which each of its tiles has."""

    held_bytes = 0

    def __init__(
        self, picture: TiledPicture, files: SourceFiles, reserve: ReserveMemory, threads: int
    ) -> None:
        self._features, self._labels = class_features(picture.reference, picture.labels)

    def cut(self, tile: PictureTile) -> None:
        """Return nothing: each tile has all classes."""

    def add(self, tile: PictureTile, part: None, features: dict[str, Value], facts: PictureFacts) -> bool:
        """Add the classes."""
        features |= self._features
        facts.labels = list(self._labels)
        return True

    def finish(self, facts: PictureFacts) -> BadObjects:
        """Note that the classes are those of the complete picture, and return no dropped object."""
        facts.notes += (CLASSES_OF_TILES,)
        return ()
