"""What is known of a picture when the features of its task are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halofeed.prep.formats.picture import DecodedImage
from halofeed.prep.geometry.resize import ResizePlan
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.reference import Reference
from halofeed.prep.statistics.pictures import Facts
from halofeed.prep.tasks.labels import LabelMap
from halofeed.schemas.tfexample import Value


@dataclass(frozen=True, kw_only=True)
class AnnotatedPicture:
    """A picture that was read and resized, and its annotations.

    Args:
        reference: the picture's source and annotations.
        label: the class indices of its label images on the grid of the label's file, where it has some.
        image: what is known of the picture; its pixels are gone.
        grid: of the annotations, "stored" or "displayed", where the user or other pictures say it.
        orientation: what lies between its annotations and the displayed picture, 1 to 8 as in EXIF.
    """

    recipe: Recipe
    labels: LabelMap
    reference: Reference
    label: NDArray[Any] | None
    image: DecodedImage
    plan: ResizePlan
    grid: str | None
    orientation: int


BadObjects = tuple[tuple[str, str], ...]
Add = Callable[[AnnotatedPicture, dict[str, Value], Facts], BadObjects]
"""Adds a task's features to a record's, by key, and its labels and counts to the record's facts.

It returns (reason, detail) of each object that cannot be used and was dropped; SourceError where the picture cannot."""
