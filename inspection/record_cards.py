"""Records as cards of a page: what is searched in them, and their picture with boxes, or their slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.card_predictions import (
    CardPrediction,
    SharesOfSides,
    describe_classes,
    describe_mask,
    draw_boxes,
    mark_missed,
    stored_boxes,
)
from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.planes import Display, ShownVolume, center_of, display_of
from halofeed.inspection.review.kept_predictions import KeptPredictions, RecordPrediction
from halofeed.inspection.review.reviewed_set import ReviewedSet
from halofeed.inspection.review.suspects import RecordPlace
from halofeed.inspection.samples import (
    MAX_OBJECTS,
    Picture,
    clamped_side,
    draw_label,
    draw_stored,
    object_corners_of,
    scan_of,
)
from halofeed.inspection.scan_objects import StoredObjects
from halofeed.inspection.slice_sheet import SliceSheet, chosen_depths, draw_classes, draw_sheet
from halofeed.inspection.stored_records import (
    array_of,
    class_counts,
    integer_of,
    is_volumetric,
    shown_classes,
    text_of,
)
from halofeed.inspection.thumbnails import PlacedBox, lay_out_boxes, lay_out_regions
from halofeed.inspection.words import times
from halofeed.schemas import keys
from halofeed.schemas.limits import SIDE
from halofeed.schemas.tfexample import Decoded
from halofeed.system.errors import CorruptFileError

SIZE_ENDS = (128, 256, 512, 1024, 2048, 4096)
"""Ends of the ranges by which records are searched: longer side of the source in pixels."""
SEARCHED_KEYS = frozenset(
    {
        keys.FILENAME,
        keys.CLASS_LABEL,
        keys.OBJECT_CLASS_LABEL,
        keys.SOURCE_SHAPE,
        *keys.SOURCE_SIDES,
        *keys.SIDES,
    }
)
"""Keys of the small values that are searched."""
DRAWN_KEYS = SEARCHED_KEYS | {
    keys.LABELLED,
    *keys.UNPADDED_SIDES,
    *keys.BOX_CORNERS,
    *keys.IGNORED_CORNERS,
    *keys.CORNER_POINTS,
}
_LONGEST_NAME = 4096
_MAX_BOXES = 300
"""Most boxes over one small picture."""
_MAX_SLICES = 64
_ENLARGED = 4


@dataclass(frozen=True, kw_only=True)
class RecordFacts:
    """Values of a record that are searched.

    Args:
        source: path of its source.
        labels: class ids of its boxes, or its classes, each as often as it occurs.
        sides: (height, width) of its source, or its depth first.
    """

    source: str
    labels: tuple[int, ...]
    sides: tuple[int, ...]

    @property
    def size(self) -> str:
        """Return the size of its source."""
        return times(self.sides)

    @property
    def size_range(self) -> int:
        """Return the number of the range of `SIZE_ENDS` that its longer side is in."""
        return int(np.searchsorted(SIZE_ENDS, max(self.sides[-2:])))

    @property
    def classes(self) -> list[tuple[int, int]]:
        """Return each class with its count, the most frequent first."""
        return Counter(self.labels).most_common()


def size_words(number: int) -> str:
    """Return the words for a range of `SIZE_ENDS`.

    >>> size_words(0), size_words(1), size_words(6)
    ('up to 128 pixels', '129 to 256 pixels', 'above 4096 pixels')
    """
    if number == len(SIZE_ENDS):
        return f"above {SIZE_ENDS[-1]} pixels"
    return f"{SIZE_ENDS[number - 1] + 1} to {SIZE_ENDS[number]} pixels" if number else "up to 128 pixels"


def facts_of(features: Decoded) -> RecordFacts:
    """Return what is searched in a record; values that are missing or of another type are left out."""
    key = keys.OBJECT_CLASS_LABEL if keys.OBJECT_CLASS_LABEL in features else keys.CLASS_LABEL
    labels = array_of(features, key, "i")
    shape = array_of(features, keys.SOURCE_SHAPE, "i")
    if shape is not None and shape.shape == (3,):
        sides = tuple(min(max(1, side), SIDE) for side in shape.tolist())
    else:
        named = keys.SOURCE_SIDES if keys.SOURCE_HEIGHT in features else keys.SIDES
        sides = tuple(clamped_side(features, key) for key in named)
    return RecordFacts(
        source=(text_of(features, keys.FILENAME) or "")[:_LONGEST_NAME],
        labels=() if labels is None else tuple(labels[:MAX_OBJECTS].tolist()),
        sides=sides,
    )


@dataclass(frozen=True, kw_only=True)
class CardPicture:
    """Picture of a record with its layers.

    Args:
        uri: address of the picture.
        mask: address of its classes, to lay over it; None without any.
        size: (height, width) in any unit; its ratio is that of the picture.
        boxes: boxes to draw over it.
        sheet: the slices of a volume; None for other pictures.
        is_tiny: whether single pixels are shown.
        is_fitted: whether the picture may have another ratio than `size`, so that it must be fitted into its frame.
    """

    uri: str
    mask: str | None
    size: tuple[int, int]
    boxes: Sequence[PlacedBox] = ()
    sheet: SliceSheet | None = None
    is_tiny: bool = False
    is_fitted: bool = False

    @property
    def bytes(self) -> int:
        """Return the characters of its addresses, which are most of its card."""
        return len(self.uri) + len(self.mask or "")


@dataclass(frozen=True, kw_only=True)
class RecordCard:
    """A record as it is shown and searched.

    Args:
        number: number of the record in the data set.
        place: its split, and its number there.
        facts: what is searched in it.
        findings: numbers of the kinds of suspects that it is among.
        picture: its picture; None to show none.
        prediction: what a run predicts for it; None without a run.
    """

    number: int
    place: RecordPlace
    facts: RecordFacts
    findings: tuple[int, ...] = ()
    picture: CardPicture | None = None
    prediction: CardPrediction | None = None

    @property
    def bytes(self) -> int:
        """Return the characters of the addresses of its pictures."""
        return sum(one.bytes for one in (self.picture, self.prediction) if one is not None)


@dataclass(frozen=True, kw_only=True, eq=False)
class CardDrawer:
    """Drawing of the records of one data set.

    Args:
        reviewed: its records.
        facts: facts from its manifest.
        findings: numbers of the kinds of suspects of each record that is a suspect.
        predictions: predictions of its records by a run; None without one.
    """

    reviewed: ReviewedSet
    facts: DatasetFacts
    findings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    predictions: KeptPredictions | None = None

    @cached_property
    def display(self) -> Display:
        """Return the display of its volumes."""
        return display_of(self.facts.manifest, self.facts.total)

    @cached_property
    def is_volumetric(self) -> bool:
        """Return whether its records are volumes."""
        return is_volumetric(self.facts.manifest)

    @cached_property
    def record_pixels(self) -> int:
        """Return the values of one record's image, at most, as a measure of the time to draw it."""
        return int(np.prod([float(side) for side in self.facts.image.shape]))

    def draw(
        self,
        number: int,
        side: int,
        *,
        depth: int | None = None,
        slices: int = 1,
        near: SharesOfSides | None = None,
        tags: bool = False,
    ) -> RecordCard:
        """Read a record and draw it, with the prediction for it if there is one.

        Args:
            number: number of the record in the data set.
            side: longer side of the picture in pixels.
            depth: the slice of a volume to show first; None for one through its classes.
            slices: most slices of a volume to draw.
            near: place where predicted boxes of low scores are drawn too; see `draw_boxes`.
            tags: whether predicted boxes have names.

        Raises:
            CorruptFileError: the record is not what was written.
        """
        features = self.reviewed.features(number)
        card = self.card(number, features)
        prediction = self.predictions.of(card.place.id) if self.predictions is not None else None
        if self.is_volumetric:
            return self._with_slices(card, features, side, depth, min(slices, _MAX_SLICES), prediction)
        manifest, ranks = self.facts.manifest, self.facts.ranks
        drawn = draw_stored(features, manifest, self.reviewed.files, ranks, side)
        picture = drawn.picture
        facts = card.facts
        if drawn.voxels is not None:
            facts = replace(facts, labels=tuple(filter(None, drawn.voxels)))
        predicted = None
        if prediction is not None:
            predicted = self._predicted(prediction, features, facts, picture, side, (near, tags))
        boxes = self._placed(facts, picture.boxes, picture.regions, picture.size, picture.corners)
        return replace(
            card,
            facts=facts,
            picture=CardPicture(
                uri=picture.uri,
                mask=picture.mask,
                size=picture.size,
                boxes=boxes if predicted is None else mark_missed(boxes, predicted.missed),
                is_tiny=max(picture.size) <= 64,
            ),
            prediction=predicted,
        )

    def _predicted(
        self,
        prediction: RecordPrediction,
        features: Decoded,
        facts: RecordFacts,
        picture: Picture,
        side: int,
        boxes: tuple[SharesOfSides | None, bool],
    ) -> CardPrediction:
        """Draw the prediction for a record over its picture; `boxes` are `near` and `tags` of `draw`."""
        if prediction.label is not None:
            manifest, ranks = self.facts.manifest, self.facts.ranks
            mask = draw_label(features, manifest, prediction.label, ranks, picture.size, side)
            return describe_mask(self.facts, prediction, mask)
        if prediction.probabilities is not None:
            return describe_classes(self.facts, prediction, next(iter(facts.labels), None))
        truth = stored_boxes(features, picture.boxes, picture.regions, facts.labels)
        near, tags = boxes
        return draw_boxes(self.facts, prediction, truth, picture.size, near, tags=tags)

    def card(self, number: int, features: Decoded) -> RecordCard:
        """Return a record without its picture, from its small values."""
        facts = facts_of(features)
        place = replace(self.reviewed.place_of(number), source=facts.source)
        return RecordCard(number=number, place=place, facts=facts, findings=self.findings.get(number, ()))

    def linked(self, number: int) -> RecordCard:
        """Return a record whose picture has an address of its own: `thumbnail/NUMBER`, and `mask/NUMBER`."""
        features = self.reviewed.small_features(number, DRAWN_KEYS)
        card = self.card(number, features)
        height, width = (clamped_side(features, key) for key in keys.SIDES)
        # A slice is drawn in mm and without padding, and the frames of a clip are a contact sheet.
        is_fitted = self.is_volumetric or self.facts.kind.is_sheet
        boxes = [] if is_fitted else self._stored_boxes(card, features)
        return replace(
            card,
            picture=CardPicture(
                uri=f"thumbnail/{number}",
                mask=f"mask/{number}" if self.has_masks else None,
                size=(height, width),
                boxes=boxes,
                is_tiny=max(height, width) <= 64,
                is_fitted=is_fitted,
            ),
        )

    @property
    def has_masks(self) -> bool:
        """Return whether classes are laid over pictures."""
        return self.facts.task.has_label_map or (self.is_volumetric and self.facts.task.has_boxes)

    def _stored_boxes(self, card: RecordCard, features: Decoded) -> list[PlacedBox]:
        corners, regions = (_stacked(features, names) for names in (keys.BOX_CORNERS, keys.IGNORED_CORNERS))
        size = tuple(clamped_side(features, key) for key in keys.SIDES)
        outlines = object_corners_of(features, min(len(corners), MAX_OBJECTS))
        return self._placed(card.facts, corners, regions, (size[0], size[1]), outlines)

    def _placed(
        self, facts: RecordFacts, boxes: Any, regions: Any, size: tuple[int, int], corners: Any
    ) -> list[PlacedBox]:
        """Lay out boxes without their names, for which a small picture has no room."""
        names = [
            (self.facts.label_name(label), self.facts.ranks.get(label, 0))
            for label in facts.labels[:_MAX_BOXES]
        ]
        placed = lay_out_boxes(boxes[:_MAX_BOXES], names, size, tags=False, outlines=corners)
        return [*(replace(one, tag="") for one in lay_out_regions(regions[:_MAX_BOXES], size)), *placed]

    def _with_slices(
        self,
        card: RecordCard,
        features: Decoded,
        side: int,
        depth: int | None,
        slices: int,
        prediction: RecordPrediction | None,
    ) -> RecordCard:
        manifest = self.facts.manifest
        scan = scan_of(features, manifest)
        objects = StoredObjects.of(features) if self.facts.task.has_boxes else None
        if scan is None or (scan.extent[1] <= scan.extent[0]).any():
            raise CorruptFileError(
                f"{card.place}: the record is not a volume; run `halofeed verify {self.reviewed.files}`"
            )
        has_label = scan.label is not None and integer_of(features, keys.LABELLED) != 0
        labels = card.facts.labels
        label = None
        middle = int(scan.extent[:, 0].sum() // 2)
        if objects is not None:
            label, middle = objects.outlines, objects.middle(scan.extent)[0]
            labels = tuple(objects.ids.tolist())
        elif has_label:
            label = lambda at: shown_classes(scan.label[at], manifest)  # noqa: E731
            middle = center_of(scan.label, scan.extent)[0]
            labels = tuple(filter(None, class_counts(scan.label, manifest).voxels))
        first, stop = scan.extent[:, 0].tolist()
        wanted = min(max(first, middle if depth is None else depth), stop - 1)
        volume = ShownVolume(
            voxels=scan.volume,
            ranges=tuple(slice(int(low), int(high)) for low, high in zip(*scan.extent, strict=True)),
            steps_mm=scan.steps_mm,
            directions=(),
        )
        depths = chosen_depths(first, stop, slices, wanted)
        longest = _ENLARGED * int((scan.extent[1] - scan.extent[0])[1:].max())
        drawing = (self.display, self.facts.ranks)
        sheet = draw_sheet(volume, label, depths, wanted, drawing, min(side, longest))
        picture = CardPicture(uri=sheet.uri, mask=sheet.mask, size=sheet.size, sheet=sheet)
        predicted = None
        if prediction is not None and prediction.label is not None:
            mask = draw_classes(sheet, volume, prediction.label.__getitem__, self.facts.ranks)
            predicted = describe_mask(self.facts, prediction, mask)
        elif prediction is not None:
            predicted = describe_classes(self.facts, prediction, next(iter(card.facts.labels), None))
        facts = replace(card.facts, labels=labels)
        return replace(card, facts=facts, picture=picture, prediction=predicted)


def _stacked(features: Decoded, names: Sequence[str]) -> NDArray[np.float64]:
    """Return lists of numbers as columns, [n, name]; [0, name] unless they have one length."""
    lists = [value for name in names if isinstance(value := features.get(name), np.ndarray)]
    if len(lists) < len(names) or len({len(one) for one in lists}) > 1:
        return np.zeros((0, len(names)))
    return np.stack(lists, axis=-1).astype(np.float64)
