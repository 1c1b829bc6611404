"""What is known of a data set that a report speaks of, as plain numbers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.record_words import KindWords, TaskWords, kind_words, task_words
from halofeed.pipelines.source_registry import Origin
from halofeed.prep.geometry.resize import keep_aspect_sizes
from halofeed.schemas.fields import Field
from halofeed.schemas.files import OBJECT, SELECTION
from halofeed.schemas.limits import SIDE
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Padding, Statistics

CORES = (2, 4, 8, 16)
Rejects = Mapping[tuple[str, str], Sequence[Mapping[str, str]]]
_USUAL_ORDER = ("train", "training", "val", "valid", "validation", "test", "testing")


@dataclass(frozen=True, kw_only=True)
class BoxCounts:
    """How many images of one split, or of all, have how many boxes."""

    per_image: Mapping[int, int]

    @property
    def images(self) -> int:
        """Images that are counted."""
        return sum(self.per_image.values())

    @property
    def boxes(self) -> int:
        """Boxes of all of them."""
        return sum(boxes * images for boxes, images in self.per_image.items())

    @property
    def average(self) -> float:
        """Boxes an image."""
        return self.boxes / (self.images or 1)

    @property
    def empty(self) -> int:
        """Images without any."""
        return self.per_image.get(0, 0)


@dataclass(frozen=True, kw_only=True)
class RejectReason:
    """Why so many inputs or objects are in rejected.jsonl, with some of them."""

    count: int
    stage: str
    reason: str
    examples: Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """What all sections speak of.

    Args:
        path: of the data set, as it is shown in commands.
        manifest: its manifest.
        rejects: by (stage, reason) some examples of rejected.jsonl.
        origin: where its sources lie, if this user converted them on this machine.
    """

    path: str
    manifest: Manifest
    rejects: Rejects = field(default_factory=dict)
    origin: Origin | None = None

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names in the order in which people read them."""
        known = {name: at for at, name in enumerate(_USUAL_ORDER)}
        return tuple(sorted(self.manifest.splits, key=lambda name: (known.get(name, len(known)), name)))

    @cached_property
    def total(self) -> Statistics:
        """The statistics of all splits together."""
        return Statistics.total(self.manifest.splits[name].statistics for name in self.splits)

    @property
    def image(self) -> Field:
        """The field that holds the picture."""
        return self.manifest.field("image")

    @property
    def records(self) -> int:
        """Of all splits."""
        return sum(split.records for split in self.manifest.splits.values())

    @property
    def bytes(self) -> int:
        """Of all shards, without their indexes."""
        return sum(map(self.bytes_of, self.manifest.splits))

    def bytes_of(self, split: str) -> int:
        """Of the shards of a split."""
        return sum(shard.bytes for shard in self.manifest.splits[split].shards)

    def boxes(self, split: str | None = None) -> BoxCounts:
        """The boxes of a split, or of all."""
        statistics = self.total if split is None else self.manifest.splits[split].statistics
        counted = statistics.boxes_per_image or {}
        return BoxCounts(per_image={int(boxes): images for boxes, images in counted.items()})

    def reasons(self) -> list[RejectReason]:
        """What was rejected and why, the most frequent first."""
        ordered = sorted(self.manifest.rejected.items(), key=lambda item: (-item[1], item[0]))
        named = [(count, *split_reason(key)) for key, count in ordered]
        return [
            RejectReason(
                count=count, stage=stage, reason=reason, examples=self.rejects.get((stage, reason), ())
            )
            for count, stage, reason in named
        ]

    def rejected(self, *stages: str) -> int:
        """Entries of rejected.jsonl of these stages; without any, inputs that could not be converted."""
        return sum(
            entry.count
            for entry in self.reasons()
            if (entry.stage in stages if stages else entry.stage not in (SELECTION, OBJECT))
        )

    def counter(self, key: str, split: str | None = None) -> Mapping[str, int]:
        """A counter of the statistics of a split, or of all, by the name of its figure; empty where it is not there."""
        statistics = self.total if split is None else self.manifest.splits[split].statistics
        return getattr(statistics, key) or {}

    def integers(self, key: str) -> dict[int, int]:
        """A counter of all splits' statistics whose keys are numbers, such as ids of classes."""
        return {int(value): count for value, count in self.counter(key).items()}

    @property
    def labelled(self) -> int:
        """Records with a label map."""
        return self.total.labelled or 0

    @property
    def foreground(self) -> int:
        """Pixels or voxels of labelled records that are of any class."""
        return self.total.foreground_voxels or 0

    @property
    def labelled_voxels(self) -> int:
        """Pixels or voxels of labelled records, background and padding included."""
        return self.foreground + self.integers("label_voxels").get(0, 0)

    @property
    def scans(self) -> int:
        """Records, the tiles of a scan counted once."""
        return self.records - (self.total.tiles or 0)

    @cached_property
    def kind(self) -> KindWords:
        """How its records are spoken of."""
        return kind_words(self.manifest)

    @cached_property
    def task(self) -> TaskWords:
        """How its task is spoken of."""
        return task_words(self.manifest)

    @cached_property
    def ranks(self) -> dict[int, int]:
        """Which color each class has: the most frequent the first."""
        return {label: rank for rank, label in enumerate(self.label_counts)}

    @property
    def size(self) -> tuple[int, ...]:
        """(height, width) of a record's image, or (depth, height, width)."""
        return self.image.shape[:-1]

    @property
    def noun(self) -> tuple[str, str]:
        """What one record shows, and several."""
        return self.kind.part if self.total.tiles else self.kind.noun

    def per_split(self, key: str) -> dict[str, list[int]]:
        """A counter of the statistics as [split] lists by its keys, in the splits' order."""
        counters = [self.counter(key, split) for split in self.splits]
        return {name: [counter.get(name, 0) for counter in counters] for name in self.counter(key)}

    @cached_property
    def label_counts(self) -> dict[int, list[int]]:
        """Per label id its count in each split, zeros included; the most frequent first.

        Of segmentation these are the records that it occurs in, and the background is left out.
        """
        counted = self.per_split("labels")
        every = {
            label: counted.get(str(label), [0] * len(self.splits))
            for label in {*self.manifest.labels, *map(int, counted)}
            - ({0} if self.task.has_background else set())
        }
        return dict(sorted(every.items(), key=lambda item: (-sum(item[1]), item[0])))

    def label_name(self, label: int) -> str:
        """The name of a label id."""
        name = self.manifest.labels.get(label, f"label {label}")
        # Where nothing names the classes of label maps, each is called by its value.
        return f"class {name}" if self.task.has_label_map and name == str(label) else name


def source_sizes(facts: DatasetFacts) -> dict[tuple[int, int], int]:
    """Images per source size (height, width) as displayed, binned to about 3 %."""
    return {_sides(key, int): int(count) for key, count in facts.counter("source_sizes").items()}


def padding_choices(facts: DatasetFacts) -> list[tuple[str, tuple[int, int], float]]:
    """What padding costs: (name, stored (height, width), share of its pixels), counted now, then estimates."""
    height, width = facts.size[-2:]
    padding = facts.total.padding or Padding()
    filled = padding.stored_pixels - padding.padded_pixels
    stored = facts.records * height * width
    choices = [("as it is now", (height, width), 1 - filled / stored if stored else 0.0)]
    binned = source_sizes(facts)
    if not binned:
        return choices
    sources, counts = np.array(list(binned)), np.array(list(binned.values()))
    asked = facts.manifest.recipe
    limits = [asked.get(name, 0) for name in ("min_dimension", "max_dimension")]
    if asked.get("resize") == "keep-aspect" and all(1 <= limit <= SIDE for limit in limits):
        shortest, longest = limits
    elif asked.get("resize") == "fixed-shape":
        shortest = longest = max(height, width)
    else:
        shortest = longest = int(_median(sources.max(axis=1), counts))
    resized = keep_aspect_sizes(sources[:, 0], sources[:, 1], shortest, longest)
    area = float((resized.prod(axis=1) * counts).sum())
    tight = (int(resized[:, 0].max()), int(resized[:, 1].max()))
    for how, size in (
        ("padded to a square (--pad)", (longest, longest)),
        ("jpeg or png, padded to the largest by the loader", tight),
    ):
        if size not in [known for _, known, _ in choices]:
            share = max(0.0, 1 - area / (int(counts.sum()) * size[0] * size[1]))
            choices.append((f"aspect kept within {longest}, {how}", size, share))
    if asked.get("resize") != "fixed-shape":
        choices.append(("stretched to the same (fixed-shape), aspect lost", (height, width), 0.0))
    return choices


def _median(values: NDArray[Any], counts: NDArray[Any]) -> float:
    """The median of values that occur so often each, of which a thousand count at most.

    >>> _median(np.array([9, 1, 2]), np.array([1, 2, 5000]))
    2.0
    """
    order = np.argsort(values)
    ends = np.cumsum(np.minimum(counts, 1000)[order])
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(values[order][middle].mean())


def split_reason(key: str) -> tuple[str, str]:
    stage, _, reason = key.partition(": ")
    return stage, reason


def source_shapes(facts: DatasetFacts) -> dict[tuple[int, int, int], int]:
    """Scans per shape (depth, height, width) of the source, in canonical axes."""
    return {_sides(key, int): int(count) for key, count in facts.counter("source_shapes").items()}


def source_spacings(facts: DatasetFacts) -> dict[tuple[float, float, float], list[int]]:
    """Scans of each split per spacing in mm (depth, height, width) of the source, in canonical axes."""
    return {_sides(key, float): counts for key, counts in facts.per_split("spacings_mm").items()}


def _sides(key: str, number: type) -> tuple[Any, ...]:
    return tuple(number(side) for side in key.split("x"))


def volume_sizings(facts: DatasetFacts) -> list[tuple[str, tuple[int, ...], float, float | None]]:
    """What padding and cropping cost: (name, static shape, share padded, share of the sources cut off or None).

    The first is counted, its cut in mm³ where the manifest has it. The others are worked out from the sources' shapes,
    where scans keep their spacing and are cropped or padded about their middle.
    """
    padded_now = (facts.total.padding or Padding()).share
    cut_now = (facts.total.scan_cut_mm3 or 0) / facts.total.scan_mm3 if facts.total.scan_mm3 else None
    shapes, recipe = source_shapes(facts), facts.manifest.recipe
    keeps_spacing = not recipe.get("spacing_mm") and not recipe.get("crop_foreground")
    if not shapes or not keeps_spacing or recipe.get("fit") != "crop-or-pad":
        return [("as it is now", facts.size, padded_now, cut_now)]
    # As floats, whose products do not pass 63 bits.
    sides, counts = np.array(list(shapes), np.float64), np.array(list(shapes.values()), np.float64)

    def cost(static: tuple[int, ...]) -> tuple[float, float]:
        kept = (np.minimum(sides, static).prod(axis=1) * counts).sum()
        padded = 1 - kept / (counts.sum() * np.prod(static))
        return float(padded), float(1 - kept / (sides.prod(axis=1) * counts).sum())

    choices: list[tuple[str, tuple[int, ...], float, float | None]] = [
        ("as it is now", facts.size, padded_now, cost(facts.size)[1] if cut_now is None else cut_now)
    ]
    for name, shape in (
        ("the largest of each side: nothing is cut off", tuple(map(int, sides.max(axis=0)))),
        ("the median of each side", tuple(int(_median(side, counts)) for side in sides.T)),
    ):
        if shape not in [known for _, known, _, _ in choices]:
            choices.append((name, shape, *cost(shape)))
    return choices
