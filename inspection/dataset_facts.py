"""Figures about a data set for text and HTML reports, computed from its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.record_words import KindWords, TaskWords, kind_words, task_words
from halofeed.pipelines.source_registry import SourceLocations
from halofeed.prep.geometry.resize import keep_aspect_sizes
from halofeed.prep.options.recipe import RULES, Recipe
from halofeed.prep.voxels.counts import ValueCounts, mean_and_deviation, percentile
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import OBJECT, SELECTION
from halofeed.schemas.findings import explain_finding, split_finding
from halofeed.schemas.limits import SIDE
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Intensities, Padding, Statistics
from halofeed.system.console import human_bytes

VALUE_PARTS = {"body": "all", "foreground": "labeled"}
"""Parts of volumes whose values are counted, and what they are called in reports."""
CORES = (2, 4, 8, 16)
"""Numbers of cores for which reports show how to split an image."""
Rejects = Mapping[tuple[str, str], Sequence[Mapping[str, str]]]
_USUAL_ORDER = ("train", "training", "val", "valid", "validation", "test", "testing")


@dataclass(frozen=True, kw_only=True)
class BoxCounts:
    """Distribution of the number of boxes per image: `per_image` maps a number of boxes to its images."""

    per_image: Mapping[int, int]

    @property
    def images(self) -> int:
        """Return the number of images."""
        return sum(self.per_image.values())

    @property
    def boxes(self) -> int:
        """Return the number of boxes."""
        return sum(boxes * images for boxes, images in self.per_image.items())

    @property
    def average(self) -> float:
        """Return the mean number of boxes per image."""
        return self.boxes / (self.images or 1)

    @property
    def empty(self) -> int:
        """Return the number of images without boxes."""
        return self.per_image.get(0, 0)


_SIZE_ENDS_MM = (3, 6, 10, 20, 30, 50, 100)
"""Ends of the ranges of sizes of objects: those of lung nodules in screening, then larger ones."""


def box_size_bins(statistics: Statistics) -> dict[str, int]:
    """Return the number of objects in scans by ranges of their longest side; {} for other data sets.

    >>> box_size_bins(Statistics(box_sizes_mm={"3": 1, "4": 2, "6": 1, "120": 1}))
    {'up to 3': 1, 'above 3 to 6': 3, 'above 100': 1}
    """
    found: dict[str, int] = {}
    for side, count in (statistics.box_sizes_mm or {}).items():
        low, high = 0, 0
        for end in _SIZE_ENDS_MM:
            low, high = high, end
            if int(side) <= end:
                break
        words = f"above {low} to {high}" if low else f"up to {high}"
        words = f"above {high}" if int(side) > high else words
        found[words] = found.get(words, 0) + count
    return found


@dataclass(frozen=True, kw_only=True)
class FindingCount:
    """One finding about scans: its key in the manifest, and the number of scans in all and in each split."""

    key: str
    count: int
    per_split: Sequence[int]

    @property
    def parts(self) -> tuple[str, str]:
        """Return its name and its treatment."""
        return split_finding(self.key)

    @property
    def meaning(self) -> str:
        """Return the sentence that explains it, or ""."""
        return explain_finding(self.parts[0])


@dataclass(frozen=True, kw_only=True)
class ClassVoxels:
    """Pixels or voxels of one class.

    Args:
        label: id of the class.
        records: number of labeled records that contain it.
        voxels: pixels or voxels of all records.
        of_foreground, of_everything: their shares; None without a label.
        cut: share of the volume in the sources that is in no record; None if it is not known.
        is_counted: whether the statistics name it, with any voxels or none.
    """

    label: int
    is_counted: bool
    records: int
    voxels: int
    of_foreground: float | None
    of_everything: float | None
    cut: float | None


@dataclass(frozen=True, kw_only=True)
class ValueFigures:
    """Mean, standard deviation and percentiles of stored values."""

    mean: float
    deviation: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, kw_only=True)
class RejectReason:
    """One reason for rejects: the number of inputs or objects, and some entries of rejected.jsonl."""

    count: int
    stage: str
    reason: str
    examples: Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """Facts about a data set that all report sections share.

    Args:
        path: path of the data set, as commands show it.
        manifest: its manifest.
        rejects: some entries of rejected.jsonl by (stage, reason).
        origin: recorded place of its sources, if this user converted them on this machine.
    """

    path: str
    manifest: Manifest
    rejects: Rejects = field(default_factory=dict)
    origin: SourceLocations | None = None

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits: training, validation and test splits first."""
        known = {name: at for at, name in enumerate(_USUAL_ORDER)}
        return tuple(sorted(self.manifest.splits, key=lambda name: (known.get(name, len(known)), name)))

    @cached_property
    def total(self) -> Statistics:
        """Return the statistics of all splits together."""
        return Statistics.total(self.manifest.splits[name].statistics for name in self.splits)

    @property
    def image(self) -> Field:
        """Return the field of the image."""
        return self.manifest.field("image")

    @property
    def records(self) -> int:
        """Return the number of records of all splits."""
        return sum(split.records for split in self.manifest.splits.values())

    @property
    def bytes(self) -> int:
        """Return the bytes of all shards, without their indexes."""
        return sum(map(self.bytes_of, self.manifest.splits))

    def bytes_of(self, split: str) -> int:
        """Return the bytes of the shards of a split."""
        return sum(shard.bytes for shard in self.manifest.splits[split].shards)

    def boxes(self, split: str | None = None) -> BoxCounts:
        """Return the box counts of a split, or of all splits."""
        counted = self.counter("boxes_per_image", split)
        return BoxCounts(per_image={int(boxes): images for boxes, images in counted.items()})

    def reasons(self) -> list[RejectReason]:
        """Return the reasons of all rejects, the most frequent first."""
        found = []
        for key, count in sorted(self.manifest.rejected.items(), key=lambda item: (-item[1], item[0])):
            stage, reason = split_reason(key)
            examples = self.rejects.get((stage, reason), ())
            found.append(RejectReason(count=count, stage=stage, reason=reason, examples=examples))
        return found

    def rejected(self, *stages: str) -> int:
        """Count the rejects of some stages; without stages, the inputs that could not be converted."""
        return sum(
            entry.count
            for entry in self.reasons()
            if (entry.stage in stages if stages else entry.stage not in (SELECTION, OBJECT))
        )

    def findings(self) -> list[FindingCount]:
        """Return the findings about scans, the most frequent first."""
        counted = sorted(self.per_split("findings").items(), key=lambda item: (-sum(item[1]), item[0]))
        return [FindingCount(key=key, count=sum(counts), per_split=counts) for key, counts in counted]

    def split_cells(self, split: str) -> tuple[str, str, str, str]:
        """Return the name of a split, and its records, shards and bytes as text."""
        content = self.manifest.splits[split]
        return split, f"{content.records:,}", f"{len(content.shards):,}", human_bytes(self.bytes_of(split))

    @cached_property
    def options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of its recipe that differ from the defaults of its kind of image, and the others."""
        chosen_by = next(rules.chosen_by for rules in RULES if rules.kind == self.manifest.kind)
        # The option that selects a kind has no default there, so any value of it gives the defaults of the others.
        selected: dict[str, Any] = {chosen_by: 1} if chosen_by else {}
        defaults = Recipe(**selected).to_json() | {chosen_by: None}
        recipe = self.manifest.recipe
        changed = {name: value for name, value in recipe.items() if value != defaults.get(name)}
        return changed, {name: value for name, value in recipe.items() if name not in changed}

    @property
    def software(self) -> str:
        """Return the names and versions of the programs that wrote it."""
        return ", ".join(f"{name} {version}" for name, version in self.manifest.software.items())

    def counter(self, key: str, split: str | None = None) -> Mapping[str, int]:
        """Return the counter `key` of the statistics of a split, or of all splits; {} if it is missing."""
        statistics = self.total if split is None else self.manifest.splits[split].statistics
        return getattr(statistics, key) or {}

    def integers(self, key: str) -> dict[int, int]:
        """Return a counter of all splits whose keys are numbers, such as class ids."""
        return {int(value): count for value, count in self.counter(key).items()}

    @property
    def labelled(self) -> int:
        """Return the number of records with a label map."""
        return self.total.labelled or 0

    @property
    def foreground(self) -> int:
        """Return the pixels or voxels of labeled records that belong to any class."""
        return self.total.foreground_voxels or 0

    @property
    def labelled_voxels(self) -> int:
        """Return the pixels or voxels of labeled records, including background and padding."""
        return self.foreground + self.integers("label_voxels").get(0, 0)

    @property
    def scans(self) -> int:
        """Return the number of scans; the tiles of a scan count once."""
        return self.records - (self.total.tiles or 0)

    @cached_property
    def kind(self) -> KindWords:
        """Return the words for its kind of image."""
        return kind_words(self.manifest)

    @cached_property
    def task(self) -> TaskWords:
        """Return the words for its task."""
        return task_words(self.manifest)

    @cached_property
    def ranks(self) -> dict[int, int]:
        """Return the color number of each class; the most frequent class has 0."""
        return {label: rank for rank, label in enumerate(self.label_counts)}

    @property
    def size(self) -> tuple[int, ...]:
        """Return the (height, width) or (depth, height, width) of a record's image."""
        return self.image.shape[:-1]

    @property
    def noun(self) -> tuple[str, str]:
        """Return the singular and plural of what one record shows."""
        return self.kind.part if self.total.tiles else self.kind.noun

    def per_split(self, key: str) -> dict[str, list[int]]:
        """Return the counts of each key of a counter as a list in the order of `splits`."""
        counters = [self.counter(key, split) for split in self.splits]
        return {name: [counter.get(name, 0) for counter in counters] for name in self.counter(key)}

    @cached_property
    def label_counts(self) -> dict[int, list[int]]:
        """Return the count of each label id in each split, including zeros; the most frequent label first.

        For segmentation, a count is the number of records that contain the class, and the background is omitted.
        """
        counted = self.per_split("labels")
        every = {
            label: counted.get(str(label), [0] * len(self.splits))
            for label in {*self.manifest.labels, *map(int, counted)}
            - ({0} if self.task.has_background else set())
        }
        return dict(sorted(every.items(), key=lambda item: (-sum(item[1]), item[0])))

    def class_voxels(self) -> list[ClassVoxels]:
        """Return the pixels or voxels of each class, the most frequent first and the background last."""
        source, cut = self.integers("label_mm3"), self.integers("label_cut_mm3")
        voxels, records = self.integers("label_voxels"), self.integers("labels")
        order = sorted(
            {0, *self.manifest.labels, *source, *voxels},
            key=lambda label: (label == 0, -voxels.get(label, 0), label),
        )
        return [
            ClassVoxels(
                label=label,
                is_counted=label in voxels or label in source,
                records=records.get(label, 0),
                voxels=(count := voxels.get(label, 0)),
                of_foreground=count / self.foreground if label and self.foreground else None,
                of_everything=count / self.labelled_voxels if self.labelled_voxels else None,
                cut=cut.get(label, 0) / source[label] if source.get(label) else None,
            )
            for label in order
        ]

    def label_name(self, label: int) -> str:
        """Return the name of a label id."""
        name = self.manifest.labels.get(label, f"label {label}")
        # Classes of label maps without names are called by their value.
        return f"class {name}" if self.task.has_label_map and name == str(label) else name


def counts_of(statistics: Statistics, name: str) -> ValueCounts:
    """Return the counts of stored values in the "body" (all above each scan's minimum) or the "foreground"."""
    return ValueCounts.from_json(getattr(statistics.intensities or Intensities(), name))


def value_figures(facts: DatasetFacts, split: str, part: str) -> ValueFigures | None:
    """Return the figures about the stored values of one split and part; None if no values were counted."""
    counts = counts_of(facts.manifest.splits[split].statistics, part)
    if not counts.total:
        return None
    mean, deviation = mean_and_deviation(counts)
    percentiles = {at: percentile(counts, at) for at in (0.5, 50, 99.5)}
    return ValueFigures(mean=mean, deviation=deviation, percentiles=percentiles)


def pixel_figures(facts: DatasetFacts, split: str) -> tuple[list[float], list[float]] | None:
    """Return the mean and the standard deviation of each channel in a split; None if no pixels were counted."""
    sums = facts.manifest.splits[split].statistics.pixels
    return sums.mean_and_deviation() if sums and sums.count else None


@dataclass(frozen=True, kw_only=True)
class ColorErrors:
    """Difference of the pictures of color planes, as loaded, from the converted ones, in levels of 255."""

    mean: float
    largest: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} of 255 levels on average, by {self.largest} at most"


def color_errors(statistics: Statistics) -> ColorErrors | None:
    """Return the difference of the loaded from the converted pictures; None if they are equal by their encoding.

    >>> str(color_errors(Statistics(color_errors={0: 1, 3: 2})))
    '2.00 of 255 levels on average, by 3 at most'
    """
    counts = {int(level): count for level, count in (statistics.color_errors or {}).items() if count}
    if not counts:
        return None
    mean = sum(level * count for level, count in counts.items()) / sum(counts.values())
    return ColorErrors(mean=mean, largest=max(counts))


def source_sizes(facts: DatasetFacts) -> dict[tuple[int, int], int]:
    """Return the number of images per source size (height, width) as displayed, in bins of about 3 %."""
    return {_sides(key, int): int(count) for key, count in facts.counter("source_sizes").items()}


def padding_choices(facts: DatasetFacts) -> list[tuple[str, tuple[int, int], float]]:
    """Compare the cost of padding: (name, stored (height, width), share of padding), first counted, then estimated."""
    height, width = facts.size[-2:]
    padding = facts.total.padding or Padding()
    filled = padding.stored_pixels - padding.padded_pixels
    stored = facts.records * height * width
    choices = [("as it is now", (height, width), 1 - filled / stored if stored else 0.0)]
    binned = source_sizes(facts)
    # Without counted sizes there is nothing to estimate from. Tiles keep the resolution, which a resized picture loses.
    if not binned or facts.manifest.recipe.get("fit") == "tiles":
        return choices
    sources, counts = np.array(list(binned)), np.array(list(binned.values()))
    shortest, longest = _usual_limits(facts, sources, counts)
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
    # Stretched pictures are the first row already.
    if facts.manifest.recipe.get("resize") != "fixed-shape":
        choices.append(("stretched to the same (fixed-shape), aspect lost", (height, width), 0.0))
    return choices


def _usual_limits(facts: DatasetFacts, sources: NDArray[Any], counts: NDArray[Any]) -> tuple[int, int]:
    """Return limits of the shorter and the longer side for keep-aspect: the recipe's, or of about the same size."""
    recipe = facts.manifest.recipe
    limits = [recipe.get(name, 0) for name in ("min_dimension", "max_dimension")]
    # The recipe of a stranger's data set may hold any number.
    if recipe.get("resize") == "keep-aspect" and all(1 <= limit <= SIDE for limit in limits):
        shortest, longest = limits
        return shortest, longest
    if recipe.get("resize") == "fixed-shape":
        return (max(facts.size[-2:]),) * 2
    return (int(_median(sources.max(axis=1), counts)),) * 2


def _median(values: NDArray[Any], counts: NDArray[Any]) -> float:
    """Return the median of values with their counts; each value counts at most 1,000 times.

    >>> _median(np.array([9, 1, 2]), np.array([1, 2, 5000]))
    2.0
    """
    order = np.argsort(values)
    ends = np.cumsum(np.minimum(counts, 1000)[order])
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(values[order][middle].mean())


def split_reason(key: str) -> tuple[str, str]:
    """Split a key of the manifest's `rejected` into stage and reason."""
    stage, _, reason = key.partition(": ")
    return stage, reason


def source_shapes(facts: DatasetFacts) -> dict[tuple[int, int, int], int]:
    """Return the number of scans per source shape (depth, height, width), in canonical axes."""
    return {_sides(key, int): int(count) for key, count in facts.counter("source_shapes").items()}


def source_spacings(facts: DatasetFacts) -> dict[tuple[float, float, float], list[int]]:
    """Return the scans of each split per source spacing in mm (depth, height, width), in canonical axes."""
    return {_sides(key, float): counts for key, counts in facts.per_split("spacings_mm").items()}


def _sides(key: str, number: type) -> tuple[Any, ...]:
    return tuple(number(side) for side in key.split("x"))


def volume_sizings(facts: DatasetFacts) -> list[tuple[str, tuple[int, ...], float, float | None]]:
    """Compare the cost of padding and cropping: (name, static shape, share of padding, share cut off or None).

    The first entry is counted, its cut in mm³ if the manifest has it. The others are computed from the sources' shapes,
    if scans keep their spacing and are cropped or padded around their center.
    """
    padded_now = (facts.total.padding or Padding()).share
    cut_now = (facts.total.scan_cut_mm3 or 0) / facts.total.scan_mm3 if facts.total.scan_mm3 else None
    shapes, recipe = source_shapes(facts), facts.manifest.recipe
    keeps_spacing = not recipe.get("spacing_mm") and not recipe.get("crop_foreground")
    # Resampled or cropped scans have other shapes than their sources.
    if not shapes or not keeps_spacing or recipe.get("fit") != "crop-or-pad":
        return [("as it is now", facts.size, padded_now, cut_now)]
    # Floats, because products may exceed 63 bits.
    sides, counts = np.array(list(shapes), np.float64), np.array(list(shapes.values()), np.float64)
    cut = _sizing_cost(facts.size, sides, counts)[1] if cut_now is None else cut_now
    choices: dict[tuple[int, ...], tuple[str, float, float]] = {facts.size: ("as it is now", padded_now, cut)}
    for name, shape in (
        ("the largest of each side: nothing is cut off", tuple(map(int, sides.max(axis=0)))),
        ("the median of each side", tuple(int(_median(side, counts)) for side in sides.T)),
    ):
        choices.setdefault(shape, (name, *_sizing_cost(shape, sides, counts)))
    return [(name, shape, padded, cut_off) for shape, (name, padded, cut_off) in choices.items()]


def _sizing_cost(
    static: tuple[int, ...], sides: NDArray[np.float64], counts: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the shares of padding and of what is cut off, for scans of given sides brought to a static shape."""
    kept = (np.minimum(sides, static).prod(axis=1) * counts).sum()
    padded = 1 - kept / (counts.sum() * np.prod(static))
    return float(padded), float(1 - kept / (sides.prod(axis=1) * counts).sum())
