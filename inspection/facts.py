"""What is known of a data set that a report speaks of, as plain numbers?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halofeed.inspection.records import IMAGE_KEY
from halofeed.inspection.segmentation import is_volumetric
from halofeed.prep.resize import keep_aspect_sizes
from halofeed.prep.statistics import merge_statistics
from halofeed.schemas.fields import Field
from halofeed.schemas.layout import OBJECT, SELECTION
from halofeed.schemas.manifest import Manifest

CORES = (2, 4, 8, 16)

_USUAL_ORDER = ("train", "training", "val", "valid", "validation", "test", "testing")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What all sections speak of.

    Args:
        path: of the data set, as it is shown in commands.
        manifest: its manifest.
        splits: names in the order in which people read them.
        total: the statistics of all splits together.
        image: the field that holds the picture.
        rejects: by (stage, reason) some examples of rejected.jsonl.
    """

    path: str
    manifest: Manifest
    splits: tuple[str, ...]
    total: Mapping[str, Any]
    image: Field
    rejects: Mapping[tuple[str, str], Sequence[Mapping[str, str]]]

    @classmethod
    def of(
        cls, path: str, manifest: Manifest, rejects: Mapping[tuple[str, str], Sequence[Mapping[str, str]]]
    ) -> Facts:
        """The facts of a manifest."""
        known = {name: at for at, name in enumerate(_USUAL_ORDER)}
        splits = sorted(manifest.splits, key=lambda name: (known.get(name, len(known)), name))
        return cls(
            path=path,
            manifest=manifest,
            splits=tuple(splits),
            total=merge_statistics(manifest.splits[name].statistics for name in splits),
            image=next(field for field in manifest.fields if IMAGE_KEY in field.keys),
            rejects=rejects,
        )

    @property
    def records(self) -> int:
        """Of all splits."""
        return sum(split.records for split in self.manifest.splits.values())

    @property
    def bytes(self) -> int:
        """Of all shards, without their indexes."""
        return sum(shard.bytes for split in self.manifest.splits.values() for shard in split.shards)

    @property
    def is_detection(self) -> bool:
        """Whether records have boxes."""
        return self.manifest.task == "detection"

    @property
    def has_several_classes(self) -> bool:
        """Whether a picture may have several classes."""
        return any(field.encoding == "classes" for field in self.manifest.fields)

    @property
    def is_segmentation(self) -> bool:
        """Whether records have a label map."""
        return self.manifest.task == "segmentation"

    @property
    def is_volume(self) -> bool:
        """Whether records are volumes."""
        return is_volumetric(self.manifest)

    @property
    def size(self) -> tuple[int, ...]:
        """(height, width) of a record's image, or (depth, height, width)."""
        return self.image.shape[:-1]

    @property
    def noun(self) -> tuple[str, str]:
        """What one record shows, and several."""
        if self.total.get("tiles"):
            return "tile", "tiles"
        return ("scan", "scans") if self.is_volume else ("picture", "pictures")

    def per_split(self, key: str) -> dict[str, list[int]]:
        """A counter of the statistics as [split] lists by its keys, in the splits' order."""
        counters = [self.manifest.splits[name].statistics.get(key, {}) for name in self.splits]
        return {name: [int(counter.get(name, 0)) for counter in counters] for name in self.total.get(key, {})}

    def label_counts(self) -> dict[int, list[int]]:
        """Per label id its count in each split, zeros included; the most frequent first.

        Of segmentation these are the records that it occurs in, and the background is left out.
        """
        counted = self.per_split("labels")
        every = {
            label: counted.get(str(label), [0] * len(self.splits))
            for label in {*self.manifest.labels, *map(int, counted)}
            - ({0} if self.is_segmentation else set())
        }
        return dict(sorted(every.items(), key=lambda item: (-sum(item[1]), item[0])))

    def label_name(self, label: int) -> str:
        """The name of a label id."""
        name = self.manifest.labels.get(label, f"label {label}")
        # Where nothing names the classes of label maps, each is called by its value.
        return f"class {name}" if self.is_segmentation and name == str(label) else name


def source_sizes(facts: Facts) -> dict[tuple[int, int], int]:
    """Images per source size (height, width) as displayed, binned to about 3 %."""
    found = {}
    for key, count in facts.total.get("source_sizes", {}).items():
        height, _, width = key.partition("x")
        found[int(height), int(width)] = int(count)
    return found


def padding_choices(facts: Facts) -> list[tuple[str, tuple[int, int], float]]:
    """What padding costs: (name, stored (height, width), share of its pixels), counted now, then estimates."""
    height, width = facts.image.shape[:2]
    padding = facts.total.get("padding", {})
    filled = padding.get("stored_pixels", 0) - padding.get("padded_pixels", 0)
    stored = facts.records * height * width
    choices = [("as it is now", (height, width), 1 - filled / stored if stored else 0.0)]
    binned = source_sizes(facts)
    if not binned:
        return choices
    sources, counts = np.array(list(binned)), np.array(list(binned.values()))
    asked = facts.manifest.recipe
    if asked.get("resize") == "keep-aspect" and "min_dimension" in asked and "max_dimension" in asked:
        shortest, longest = int(asked["min_dimension"]), int(asked["max_dimension"])
    elif asked.get("resize") == "fixed-shape":
        shortest = longest = max(height, width)
    else:
        shortest = longest = int(np.median(np.repeat(sources.max(axis=1), np.minimum(counts, 1000))))
    resized = keep_aspect_sizes(sources[:, 0], sources[:, 1], shortest, longest)
    area = float((resized.prod(axis=1) * counts).sum())

    def estimate(name: str, size: tuple[int, int]) -> None:
        if size not in [known for _, known, _ in choices]:
            choices.append((name, size, max(0.0, 1 - area / (int(counts.sum()) * size[0] * size[1]))))

    estimate(f"aspect kept within {longest}, padded to a square (--pad)", (longest, longest))
    tight = (int(resized[:, 0].max()), int(resized[:, 1].max()))
    estimate(f"aspect kept within {longest}, jpeg or png, padded to the largest by the loader", tight)
    if asked.get("resize") != "fixed-shape":
        choices.append(("stretched to the same (fixed-shape), aspect lost", (height, width), 0.0))
    return choices


def count_failures(facts: Facts) -> int:
    """Inputs that could not be converted."""
    return sum(facts.manifest.rejected.values()) - count_stage(facts, SELECTION) - count_stage(facts, OBJECT)


def count_stage(facts: Facts, stage: str) -> int:
    """Entries of rejected.jsonl with this stage."""
    return sum(count for key, count in facts.manifest.rejected.items() if split_reason(key)[0] == stage)


def split_reason(key: str) -> tuple[str, str]:
    stage, _, reason = key.partition(": ")
    return stage, reason


def source_shapes(facts: Facts) -> dict[tuple[int, int, int], int]:
    """Scans per shape (depth, height, width) of the source, in canonical axes."""
    found = {}
    for key, count in facts.total.get("source_shapes", {}).items():
        depth, height, width = map(int, key.split("x"))
        found[depth, height, width] = int(count)
    return found


def source_spacings(facts: Facts) -> dict[tuple[float, float, float], list[int]]:
    """Scans of each split per spacing in mm (depth, height, width) of the source, in canonical axes."""
    found = {}
    for key, counts in facts.per_split("spacings_mm").items():
        depth, height, width = map(float, key.split("x"))
        found[depth, height, width] = counts
    return found


def volume_sizings(facts: Facts) -> list[tuple[str, tuple[int, ...], float, float | None]]:
    """What padding and cropping cost: (name, static shape, share padded, share of the sources cut off or None).

    The first is counted, its cut in mm³ where the manifest has it. The others are worked out from the sources' shapes,
    where scans keep their spacing and are cropped or padded about their middle.
    """
    padding = facts.total.get("padding", {})
    stored = padding.get("stored_pixels", 0)
    shapes = source_shapes(facts)
    recipe = facts.manifest.recipe
    scan_mm3 = facts.total.get("scan_mm3", 0)
    counted_cut = facts.total["scan_cut_mm3"] / scan_mm3 if scan_mm3 else None
    own = (
        not recipe.get("spacing_mm")
        and recipe.get("fit") == "crop-or-pad"
        and not recipe.get("crop_foreground")
    )
    if not shapes or not own:
        return [
            (
                "as it is now",
                facts.size,
                padding.get("padded_pixels", 0) / stored if stored else 0.0,
                counted_cut,
            )
        ]
    sides, counts = np.array(list(shapes)), np.array(list(shapes.values()))

    def cost(static: tuple[int, ...]) -> tuple[float, float]:
        kept = (np.minimum(sides, static).prod(axis=1) * counts).sum()
        padded = 1 - kept / (counts.sum() * np.prod(static))
        return float(padded), float(1 - kept / (sides.prod(axis=1) * counts).sum())

    each = np.repeat(sides, np.minimum(counts, 1000), axis=0)
    choices: list[tuple[str, tuple[int, ...], float, float | None]] = [
        (
            "as it is now",
            facts.size,
            padding.get("padded_pixels", 0) / stored if stored else 0.0,
            cost(facts.size)[1] if counted_cut is None else counted_cut,
        )
    ]
    for name, shape in (
        ("the largest of each side: nothing is cut off", tuple(sides.max(axis=0).tolist())),
        ("the median of each side", tuple(int(side) for side in np.median(each, axis=0))),
    ):
        if shape not in [known for _, known, _, _ in choices]:
            choices.append((name, shape, *cost(shape)))
    return choices
