"""Findings about what a conversion lost: one table of rules, which read the ledger of losses.

A rule compares a count of the ledger with its base, and says what the loss means and which option avoids it. Thresholds
have their reason beside them. docs/conversion-findings.md explains each rule, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.schemas.ledger import Ledger
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Statistics
from halofeed.system.wording import plural

MAX_RECORDS: Final = 0.5
"""Share of records above which a loss that makes a record useless refuses the conversion."""


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Facts about a conversion that the rules read.

    Args:
        statistics: statistics of all splits.
        recipe: options by name, as the manifest has them.
        labels: class name by id.
        task: task of the records.
        kind: kind of image: "picture", "volume" or "clip".
    """

    statistics: Statistics
    recipe: Mapping[str, Any]
    labels: Mapping[int, str]
    task: str
    kind: str

    @classmethod
    def of(cls, manifest: Manifest) -> Converted:
        """Return what a manifest says."""
        return cls(
            statistics=Statistics.total(split.statistics for split in manifest.splits.values()),
            recipe=manifest.recipe,
            labels=manifest.labels,
            task=manifest.task,
            kind=manifest.kind.name,
        )

    @property
    def ledger(self) -> Ledger:
        """Return the ledger; an empty one for data sets of earlier versions."""
        return self.statistics.ledger or Ledger()


@dataclass(frozen=True, kw_only=True)
class LossFinding:
    """One loss of a conversion, with its numbers.

    Args:
        name: name of its rule.
        count: how many records, objects or structures are hit.
        of: how many there are.
        text: sentence with the numbers and an example.
        fix: options of another conversion that avoid the loss.
        is_useless: whether a record that is hit is of no use for training.
        is_said: whether the summary of a conversion prints it on a separate line.
    """

    name: str
    count: int
    of: int
    text: str
    fix: str
    is_useless: bool
    is_said: bool

    @property
    def share(self) -> float:
        """Share that is hit."""
        return self.count / self.of

    @property
    def refuses(self) -> bool:
        """Return whether most records are useless."""
        return self.is_useless and self.share > MAX_RECORDS

    def __str__(self) -> str:
        return f"{self.text}; {self.fix}"


Counted = Callable[[Converted], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class LossRule:
    """Rule that turns counts into a finding.

    Args:
        name: name of the finding in reports and on the page of findings.
        meaning: what the loss means for training.
        counted: function that returns how many are hit, and of how many.
        from_share: share from which the loss is reported.
        words: sentence, with {count} and {of}.
        example: name of the count in the ledger whose example is given.
        fix: function that returns the options that avoid the loss.
        is_useless: whether a record that is hit is of no use.
        is_said: whether the summary of a conversion prints it on a separate line.
    """

    name: str
    meaning: str
    counted: Counted
    words: str
    fix: Callable[[Converted], str]
    from_share: float = 0.0
    example: str = ""
    is_useless: bool = False
    is_said: bool = False

    def finding(self, converted: Converted) -> LossFinding | None:
        """Return the finding, or None where the loss is smaller."""
        count, of = self.counted(converted)
        # Each rule has the share that sound data sets reach; see the comments of `LOSS_RULES`.
        if not count or count < self.from_share * of:
            return None
        example = converted.ledger.examples.get(self.example, "")
        words = self.words.format(count=f"{count:,}", of=f"{of:,}", **_figures(converted))
        return LossFinding(
            name=self.name,
            count=count,
            of=of,
            text=f"{words}, such as {example}" if example else words,
            fix=self.fix(converted),
            is_useless=self.is_useless,
            is_said=self.is_said,
        )


def loss_findings(converted: Converted) -> list[LossFinding]:
    """Return the findings of a conversion, the worst first: those that make records useless, then by share."""
    found = [one for one in (rule.finding(converted) for rule in LOSS_RULES) if one is not None]
    return sorted(found, key=lambda one: (-one.is_useless, -one.share))


def refusing_finding(
    statistics: Statistics, recipe: Mapping[str, Any], task: str, kind: str, *, of_all: bool = False
) -> LossFinding | None:
    """Return the finding that refuses a conversion; None without one.

    Args:
        statistics: statistics of the records so far.
        of_all: whether every record must be hit, for a decision after the first records.
    """
    converted = Converted(statistics=statistics, recipe=recipe, labels={}, task=task, kind=kind)
    found = (rule.finding(converted) for rule in LOSS_RULES if rule.is_useless)
    return next((one for one in found if one and (one.count == one.of if of_all else one.refuses)), None)


def _of(hit: str, base: str, said: str = "") -> Counted:
    """Return the function that compares two counts, less the records of which a graver finding says the same."""

    def counted(converted: Converted) -> tuple[int, int]:
        ledger = converted.ledger
        return max(0, ledger.count(hit) - ledger.count(said)), ledger.count(base)

    return counted


def _figures(converted: Converted) -> dict[str, str]:
    ledger = converted.ledger
    return {"most": str(max(map(int, ledger.histograms.get("values_in_label", {"0": 0}))))}


# Fixes


def _whole(low: float, high: float) -> str:
    """Return a window as --window-hu takes it; whole numbers where that keeps at least ten of them."""
    if high - low >= 10:
        return f"{math.floor(low)},{math.ceil(high)}"
    return f"{low:g},{high:g}"


def _keep_values(converted: Converted) -> str:
    """Return the options that keep the values of the sources apart."""
    if converted.kind == "clip":
        # Frames are stored with 8 bits (`CLIP_RULES`).
        return "save the frames with their values scaled to all 16 bits, 0 to 65535, or to 8 bits, 0 to 255"
    return _keep_picture_values(converted) if converted.kind == "picture" else _keep_scan_values(converted)


def _keep_picture_values(converted: Converted) -> str:
    recipe, ledger = converted.recipe, converted.ledger
    # Without 16-bit sources, what flattens a picture is its size.
    if not ledger.count("level_records"):
        return _larger_shape(converted)
    png = " --encoding png" if recipe.get("encoding") == "jpeg" else ""
    bits = " in place of --sample-bits" if recipe.get("sample_bits") else ""
    return f"keep the values with --dtype uint16{png}{bits}"


def _keep_scan_values(converted: Converted) -> str:
    recipe, ledger = converted.recipe, converted.ledger
    low, high = ledger.ranges.get("values_before", (0.0, 0.0))
    if recipe.get("window_percentiles"):
        return "take --window-percentiles 0,100, or --dtype float32 without them"
    # bfloat16 has 8 significant bits.
    if recipe.get("dtype") == "bfloat16":
        return "take --dtype float32"
    if not (recipe.get("window") or recipe.get("window_hu")) or low >= high:
        return "take --dtype float32"
    replaced = " in place of --window" if recipe.get("window") else ""
    return (
        f"take --window-hu {_whole(low, high)}{replaced}, which holds all values, or --window-percentiles 0.5,99.5 in "
        "place of the window"
    )


_WANTED_SIDE: Final = 8
"""Stored pixels of the median object after a fix: one cell of a detector's finest feature level, at stride 8."""


def _larger_shape(converted: Converted) -> str:
    """Return options for larger records: the median object gets `_WANTED_SIDE` pixels, at most those of its source."""
    recipe, ledger = converted.recipe, converted.ledger
    # Tiles keep the pixels of the scaled picture, whatever their size is.
    if recipe.get("fit") == "tiles" and converted.kind == "picture":
        return _finer_tiles(converted)
    names = {"keep-aspect": ("min_dimension", "max_dimension"), "none": ()}.get(
        str(recipe.get("resize")), ("height", "width")
    )
    if not names:
        return "leave the pictures out whose objects are that small"
    sides = ledger.median("object_sides_after") or 0.5
    # Labels and keypoints are kept for certain at the size of the sources.
    factor = _WANTED_SIDE / sides if ledger.count("objects") else math.inf
    largest = _largest_source_side(converted) or 1 << 12

    def larger(name: str) -> int:
        side = int(recipe.get(name) or 300)
        return max(side + 1, largest if math.isinf(factor) else min(math.ceil(side * factor), largest))

    listed = " ".join(f"--{name.replace('_', '-')} {larger(name)}" for name in names)
    if converted.kind != "picture":
        parts = "cut the pictures into parts before the conversion"
    elif names == ("height", "width"):
        parts = "add --fit tiles, which cuts the pictures into such records and keeps their pixels"
    else:
        parts = (
            "cut the pictures with --fit tiles --height 640 --width 640 in place of --resize and its sizes"
        )
    return f"take larger records, such as {listed}, or {parts}"


def _finer_tiles(converted: Converted) -> str:
    """Return the option by which tiles show more pixels of the median object, at most those of its source."""
    recipe, ledger = converted.recipe, converted.ledger
    if gsd := float(recipe.get("gsd_m") or 0):
        before, after = (ledger.median(f"object_sides_{when}") or 0.5 for when in ("before", "after"))
        # Pixels smaller than the source's show nothing more.
        wanted = min(gsd / 2, gsd * after * max(1 / before, 1 / _WANTED_SIDE))
        return f"take a smaller --gsd-m, such as {wanted:.2g}"
    scale = min(1.0, 2 * float(recipe.get("scale") or 1))
    return f"take a larger --scale, such as {scale:g}"


def _largest_source_side(converted: Converted) -> int:
    """Return the longest side of all source pictures; 0 if no size is known."""
    sizes = converted.statistics.source_sizes or ()
    return max((int(side) for size in sizes for side in size.split("x")), default=0)


def _hold_objects(name: str) -> Callable[[Converted], str]:
    """Return the function of the options whose tiles hold the objects of a range of the ledger.

    An object that is not longer than the overlap is whole in some tile, wherever it is.
    """

    def fix(converted: Converted) -> str:
        recipe, ranges = converted.recipe, converted.ledger.ranges
        given = tuple(map(int, recipe.get("tile_overlap") or (0, 0)))
        needed = [
            max(overlap, math.ceil(ranges.get(f"{name}_{sides}", (0.0, 0.0))[1]))
            for overlap, sides in zip(given, ("heights", "widths"), strict=True)
        ]
        # Tiles of twice the overlap show most pixels at most twice along an axis.
        larger = [
            f" --{side} {2 * overlap}"
            for side, overlap, before in zip(("height", "width"), needed, given, strict=True)
            if overlap > before and 2 * overlap > int(recipe.get(side) or 1)
        ]
        options = f"--tile-overlap {needed[0]},{needed[1]}{''.join(larger)}"
        smaller = ", or scale the pictures down with --scale" if larger else ""
        return f"take {options}, whose tiles hold each of them whole{smaller}"

    return fix


def _keep_structures(converted: Converted) -> str:
    if converted.kind != "volume":
        return _larger_shape(converted)
    recipe = converted.recipe
    if spacing := recipe.get("spacing_mm"):
        sources = [tuple(map(float, size.split("x"))) for size in converted.statistics.spacings_mm or ()]
        finest = (
            map(min, *sources) if len(sources) > 1 else sources[0] if sources else [s / 2 for s in spacing]
        )
        finer = ",".join(f"{side:g}" for side in finest)
        return f"take a finer spacing, such as --spacing-mm {finer} (that of the sources), with --fit tiles"
    # Tiles lose nothing at their borders, so that the interpolation removed the structure.
    if recipe.get("fit") == "tiles":
        return "take --mask-interpolation nearest"
    return "take --fit tiles, a larger --depth, --height and --width, or --center label"


def _leave_out_emptied(converted: Converted) -> str:
    """Return the options that reject pictures of which no object can be used."""
    boxes, recipe = converted.statistics.boxes or {}, converted.recipe
    counted = {
        "--boxes-outside fail": "dropped outside" in boxes and recipe.get("boxes_outside") == "clip",
        "--boxes-zero-area fail": "dropped zero area" in boxes,
        "--on-bad-object reject": any(what.startswith("dropped as ") for what in boxes),
    }
    listed = " ".join(words for words, is_counted in counted.items() if is_counted)
    return f"correct them, or leave pictures with such objects out with {listed}"


_TAKES_FLAGGED: Final = {
    "boxes_crowd": "--boxes-crowd objects takes those flagged as crowds",
    "boxes_difficult": "--boxes-difficult objects takes those flagged as difficult",
}


def _map_instances(converted: Converted) -> str:
    most = max(map(int, converted.ledger.histograms.get("values_in_label", {"1": 0})))
    return (
        f"if they number objects, --map-classes 1..{most}=object makes them one class; if they are classes, name them "
        "in a file for --label-map"
    )


# Counts that are no plain ratio


def _dropped(converted: Converted) -> tuple[int, int]:
    boxes = converted.statistics.boxes or {}
    dropped = boxes.get("dropped outside", 0) + boxes.get("dropped zero area", 0)
    return dropped, dropped + _stored_objects(converted)


def _dropped_flagged(converted: Converted) -> tuple[int, int]:
    boxes = converted.statistics.boxes or {}
    dropped = boxes.get("dropped crowd", 0) + boxes.get("dropped difficult", 0)
    return dropped, dropped + _stored_objects(converted)


def _without_class(converted: Converted) -> tuple[int, int]:
    """Return the labels of a data set that has no class at all; single labels are often empty."""
    labeled = converted.statistics.labelled or 0
    is_empty = converted.ledger.count("sources") and not converted.ledger.count("classed_records")
    return (labeled if is_empty else 0), labeled


def _chooses(converted: Converted) -> bool:
    return any(converted.recipe.get(name) for name in ("classes", "map_classes", "ignore_label"))


def _stored_objects(converted: Converted) -> int:
    counts = converted.statistics.boxes_per_image or {}
    return sum(int(boxes) * images for boxes, images in counts.items())


def _without_objects(converted: Converted) -> tuple[int, int]:
    by_count = converted.statistics.boxes_per_image or {}
    images = sum(by_count.values())
    # New files that are predicted have no annotations.
    if converted.recipe.get("missing_masks") == "prediction":
        return 0, images
    # Other findings cover objects that existed and were dropped.
    has_cause = _dropped(converted)[0] or _dropped_flagged(converted)[0] or _emptied_pictures(converted)[0]
    return images if set(map(str, by_count)) == {"0"} and not has_cause else 0, images


def _emptied_pictures(converted: Converted) -> tuple[int, int]:
    emptied = converted.ledger.count("emptied_object_records")
    return emptied, emptied + converted.ledger.count("object_records")


def _unused_classes(converted: Converted) -> tuple[int, int]:
    shown = converted.statistics.labels or {}
    named = [key for key, name in converted.labels.items() if name != BACKGROUND]
    return sum(str(key) not in shown for key in named) if shown else 0, len(named)


def _cut(converted: Converted) -> tuple[int, int]:
    total, lost = converted.statistics.label_mm3 or {}, converted.statistics.label_cut_mm3 or {}
    cut = [value for value, mm3 in total.items() if lost.get(value, 0) > _CUT_SHARE * mm3]
    return len(cut), len(total)


def _cut_bodies(converted: Converted) -> tuple[int, int]:
    counts = converted.statistics.body_cut_percents or {}
    # Percentages are rounded up.
    return sum(count for percent, count in counts.items() if int(percent) > 1), sum(counts.values())


def _instances(converted: Converted) -> tuple[int, int]:
    """Return the labels whose values may number objects; 0 where the numbers of all labels do not show it together.

    Values that number objects count up from 1 in nearly every label, each one connected region, and few labels have as
    many as the fullest. Where labels have several, these lie apart and are alike in size. Organs differ in it: most
    labels have all of them, and numbers are left out where an organ is not in the picture; a tumor touches its organ;
    and a large organ has more than 16 times the voxels of a small one.
    """
    ledger = converted.ledger
    of, numbered = ledger.count("valued_records"), ledger.count("numbered_records")
    several = ledger.count("several_numbered_records")
    numbers = {int(number): count for number, count in ledger.histograms.get("values_in_label", {}).items()}
    differ = len(numbers) > 1 and numbers[max(numbers)] <= _COMPLETE_SHARE * of
    evident = (
        not converted.recipe.get("map_classes")
        and differ
        and of >= _LEAST_LABELS
        and numbered >= _NUMBERED_SHARE * of
        and ledger.count("apart_records") >= _APART_SHARE * several
        and ledger.count("alike_records") >= _APART_SHARE * several
    )
    return (numbered, of) if evident else (0, of)


_CUT_SHARE: Final = 0.01
_LEAST_LABELS: Final = 3
_NUMBERED_SHARE: Final = 0.9
"""Some objects are divided by others in front of them, so a few labels may have a value of two regions."""
_APART_SHARE: Final = 0.7
_COMPLETE_SHARE: Final = 0.5

LOSS_RULES: Final = (
    LossRule(
        name="records became one value",
        meaning="All pixels or voxels of a record are equal, and those of its source are not. Nothing can be learned "
        "from it.",
        counted=_of("flattened_records", "sources"),
        words="{count} of {of} sources became records of one value",
        example="flattened_records",
        fix=_keep_values,
        is_useless=True,
    ),
    LossRule(
        name="contrast is lost",
        meaning="Values that differ in the source are equal in the record, because 8 bits or a window step over them: "
        "rounding moves the values by more than 1/16 of their spread.",
        counted=_of("contrast_lost_records", "sources", said="flattened_records"),
        from_share=0.01,
        words="contrast is lost in {count} of {of} sources",
        example="contrast_lost_records",
        fix=_keep_values,
        is_useless=True,
    ),
    LossRule(
        name="objects became one value",
        meaning="16-bit values differ within the box of an object or a labeled region, and the stored 8-bit values do "
        "not.",
        counted=_of("flattened_objects", "level_objects"),
        from_share=0.01,
        words="{count} of {of} objects became one value",
        example="flattened_objects",
        fix=_keep_values,
    ),
    LossRule(
        name="contrast of objects is lost",
        meaning="Within the box of an object or a labeled region, rounding 16 bits to 8 moves the values by more than "
        "1/16 of their spread.",
        counted=_of("contrast_lost_objects", "level_objects"),
        # An estimate: the noise of plain objects may be as small; where most have some structure, few are hit.
        from_share=0.1,
        words="contrast is lost in {count} of {of} objects",
        example="contrast_lost_objects",
        fix=_keep_values,
    ),
    LossRule(
        name="values outside of the window",
        meaning="Fewer than 5 of 1,000 values above a scan's background are within the window, so a record shows "
        "two levels nearly everywhere.",
        counted=_of("outside_window_records", "sources", said="flattened_records"),
        from_share=0.01,
        words="nearly all values of {count} of {of} sources are outside of the window",
        example="outside_window_records",
        fix=_keep_values,
        is_useless=True,
    ),
    LossRule(
        name="labeled voxels became one value",
        meaning="More than 99 % of the labeled voxels are beyond one end of the window, so nothing within a structure "
        "can be seen.",
        counted=_of("flattened_label_records", "windowed_label_records", said="outside_window_records"),
        from_share=0.1,
        words="the labeled voxels of {count} of {of} scans became one value",
        example="flattened_label_records",
        fix=_keep_values,
    ),
    LossRule(
        name="values that no scanner measures",
        meaning="Nearly all values are below -50, or many are below -4096. A body holds water, which has 0 HU, and "
        "air has -1000 HU. An intercept was subtracted twice, or the values are in another unit. Scans whose files "
        "name another modality than CT are not judged.",
        counted=_of("implausible_scans", "sources"),
        words="{count} of {of} scans have values that no scanner measures",
        example="implausible_scans",
        fix=lambda converted: (
            "convert the scans to files again, or scale each by itself with --window-percentiles 0.5,99.5"
        ),
    ),
    LossRule(
        name="objects below 2 pixels",
        meaning="Resizing left less than 2 stored pixels of an object's shorter side. Such an object shows nothing of "
        "its class: the antialiasing filter alone is 2 pixels wide.",
        counted=_of("tiny_objects", "objects"),
        # Photographs of COCO at 300 x 300 have less than 3 % of such objects, and at 96 x 96 17 %.
        from_share=0.1,
        words="{count} of {of} objects have less than 2 stored pixels on a side",
        example="tiny_objects",
        fix=_larger_shape,
        is_useless=True,
    ),
    LossRule(
        name="records whose objects are all below 2 pixels",
        meaning="No object of the record is large enough to be seen.",
        counted=_of("tiny_object_records", "object_records"),
        from_share=0.1,
        words="all objects of {count} of {of} records have less than 2 stored pixels on a side",
        example="tiny_object_records",
        fix=_larger_shape,
        is_useless=True,
    ),
    LossRule(
        name="objects below 4 pixels",
        meaning="Most objects have less than 4 stored pixels on their shorter side, half a cell of a detector's finest "
        "feature level (stride 8). COCO calls objects below 32 x 32 pixels small; detectors find few of these.",
        counted=_of("small_objects", "objects"),
        from_share=0.5,
        words="{count} of {of} objects have less than 4 stored pixels on a side",
        example="small_objects",
        fix=_larger_shape,
    ),
    LossRule(
        name="objects ignored in every tile",
        meaning="No tile shows as much of an object as --min-visible says, so the object is flagged as ignored in "
        "each, and a detector cannot learn it.",
        counted=_of("ignored_objects", "tiled_objects"),
        words="{count} of {of} objects are ignored in every tile: none shows as much of them as --min-visible says",
        example="ignored_objects",
        fix=_hold_objects("ignored_object"),
    ),
    LossRule(
        name="objects cut in every tile",
        meaning="No tile shows all of an object, because the object is longer than the overlap of the tiles.",
        counted=_of("cut_objects", "tiled_objects"),
        # A tile with an overlap of an eighth of its side cuts few objects of its overlap's size everywhere.
        from_share=0.05,
        words="{count} of {of} objects are cut in every tile",
        example="cut_objects",
        fix=_hold_objects("cut_object"),
    ),
    LossRule(
        name="no record with an object",
        meaning="No picture of the data set has an object, so that a detector can learn none.",
        counted=_without_objects,
        words="none of {of} pictures has an object",
        fix=lambda converted: (
            "check that the annotations are those of these pictures, and that objects are drawn in them"
        ),
    ),
    LossRule(
        name="objects flagged as crowds",
        meaning="Training leaves crowds out. Some exporters flag every object that has a mask, or a mask of several "
        "parts.",
        counted=_of("crowd_objects", "objects"),
        # COCO has 1 % of crowds (10 of 576 in 53 pictures).
        from_share=0.5,
        words="{count} of {of} objects are flagged as crowds, which training leaves out",
        example="crowd_objects",
        fix=lambda converted: "--boxes-crowd objects takes them as objects",
    ),
    LossRule(
        name="objects flagged as difficult",
        meaning="Evaluation and many trainers leave difficult objects out.",
        counted=_of("difficult_objects", "objects"),
        # In surveys of small objects most may be difficult; a flag on nearly all says nothing about them.
        from_share=0.9,
        words="{count} of {of} objects are flagged as difficult, which many programs leave out",
        example="difficult_objects",
        fix=lambda converted: "--boxes-difficult objects takes them without the flag",
    ),
    LossRule(
        name="objects flagged as groups",
        meaning="Open Images flags a box around more than five objects as a group; training leaves these out.",
        counted=lambda converted: (
            converted.ledger.count("group_objects") if "group_of" in converted.recipe.get("keep", ()) else 0,
            converted.ledger.count("objects"),
        ),
        from_share=0.9,
        words="{count} of {of} objects are flagged as groups, which training leaves out",
        example="group_objects",
        fix=lambda converted: "--boxes-crowd objects takes them as objects",
    ),
    LossRule(
        name="objects dropped",
        meaning="Boxes lie outside of their pictures or have no area. Often the unit, the origin or the form of the "
        "boxes is another one.",
        counted=_dropped,
        from_share=0.1,
        words="{count} of {of} objects were dropped, because they lie outside of their picture or have no area",
        fix=lambda converted: "correct the boxes, or their unit, origin or form, in the annotations",
    ),
    LossRule(
        name="pictures lost all their objects",
        meaning="No object of a picture can be used, so that its record shows training that nothing is there.",
        counted=_emptied_pictures,
        words="{count} of {of} pictures with objects became records without objects, because none of these can be used",
        example="emptied_object_records",
        fix=_leave_out_emptied,
    ),
    LossRule(
        name="flagged objects dropped",
        meaning="Crowds or difficult objects were dropped as asked, and few or no objects are left.",
        counted=_dropped_flagged,
        # As many as for a warning where they are kept.
        from_share=0.5,
        words="{count} of {of} objects were dropped, because they are flagged as crowds or difficult",
        fix=lambda converted: " and ".join(
            words for name, words in _TAKES_FLAGGED.items() if converted.recipe.get(name) == "drop"
        ),
    ),
    LossRule(
        name="object masks became empty",
        meaning="No stored pixel belongs to the mask of an object.",
        counted=_of("empty_masks", "objects"),
        from_share=0.05,
        words="the masks of {count} of {of} objects became empty",
        example="empty_masks",
        fix=_larger_shape,
    ),
    LossRule(
        name="keypoints fall onto one pixel",
        meaning="All labeled keypoints of an object are within one stored pixel.",
        counted=_of("one_pixel_keypoint_objects", "keypoint_objects"),
        from_share=0.1,
        words="the keypoints of {count} of {of} objects fall onto one stored pixel",
        example="one_pixel_keypoint_objects",
        fix=_larger_shape,
    ),
    LossRule(
        name="labels without a class",
        meaning="All labels of the data set are background, in the sources too.",
        counted=_without_class,
        words="{count} of {of} labels have no class: they are background everywhere, in the sources too",
        fix=lambda converted: (
            "check that these are the label files"
            + (
                " and that --classes, --map-classes and --ignore-label leave classes"
                if _chooses(converted)
                else ""
            )
        ),
    ),
    LossRule(
        name="labels became empty",
        meaning="A source has labeled pixels or voxels, and its records have none: the shape cuts them off, or "
        "resizing removes them.",
        counted=_of("emptied_label_records", "classed_records"),
        from_share=0.01,
        words="the labels of {count} of {of} sources became empty",
        example="emptied_label_records",
        fix=_keep_structures,
        is_useless=True,
    ),
    LossRule(
        name="structures vanished",
        meaning="A class is in the label of a source and in none of its records.",
        counted=_of("vanished_structures", "structures"),
        from_share=0.05,
        words="{count} of {of} structures vanished",
        example="vanished_structures",
        fix=_keep_structures,
    ),
    LossRule(
        name="values may number objects",
        meaning="In nearly every label the values count up from 1, each is one connected region, and their number "
        "differs between labels. They may be numbers of objects rather than classes.",
        counted=_instances,
        words="in {count} of {of} labels the values count up from 1, at most to {most}, and each is one region: they "
        "may number objects and be no classes",
        example="numbered_records",
        fix=_map_instances,
    ),
    LossRule(
        name="classes in no record",
        meaning="The data set has these classes and shows none of them.",
        counted=_unused_classes,
        words="{count} of {of} classes are in no record",
        fix=lambda converted: (
            "leave them out of the file or the columns that name them, or add sources that show them"
        ),
        is_said=True,
    ),
    LossRule(
        name="classes cut off",
        meaning="More than 1 % of a class lies outside of the static shape and is in no record.",
        counted=_cut,
        words="more than 1 % of {count} of {of} classes is outside of the records' shape",
        fix=lambda converted: cure_of_cuts(converted.recipe, has_labels=True),
        is_said=True,
    ),
    LossRule(
        name="bodies cut off",
        meaning="More than 1 % of a scan's body lies outside of the static shape and is in no record.",
        counted=_cut_bodies,
        from_share=0.01,
        words="more than 1 % of the body is outside of the records' shape in {count} of {of} scans",
        fix=lambda converted: cure_of_cuts(converted.recipe, has_labels=False),
        is_said=True,
    ),
)
"""Every finding about losses, in the order of the page that explains them."""


def cure_of_cuts(recipe: Mapping[str, Any], *, has_labels: bool) -> str:
    """Return what keeps more of a scan than the recipe does; an option that is in use cures nothing."""
    spacing = recipe["spacing_mm"]
    coarser = (
        f"coarser than {','.join(f'{side:g}' for side in spacing)}" if spacing else "coarser than the scans'"
    )
    cures = [f"a larger --depth, --height and --width, a --spacing-mm {coarser}"]
    # Tiles cover the whole scan, whatever their shape is.
    if recipe["fit"] != "tiles":
        cures.append("--fit tiles")
    # Stretched records and tiles have no center to choose.
    if has_labels and recipe["center"] != "label" and recipe["fit"] == "crop-or-pad":
        cures.append("--center label")
    return f"take {', '.join(cures[:-1])}, or {cures[-1]}" if len(cures) > 1 else f"take {cures[0]}"


def describe_findings(manifest: Manifest) -> Iterator[str]:
    """Yield a line for each finding of a data set, the worst first."""
    for finding in loss_findings(Converted.of(manifest)):
        yield str(finding)


def tiles_of_pictures(manifest: Manifest) -> str:
    """Return the numbers of tiles and of their pictures as text; "" for other data sets."""
    if manifest.kind.name != "picture" or manifest.recipe.get("fit") != "tiles":
        return ""
    total = Statistics.total(split.statistics for split in manifest.splits.values())
    ledger = total.ledger or Ledger()
    dropped = ledger.count("empty_tiles_dropped")
    text = f"{plural(total.records or 0, 'tile')} of {plural(ledger.count('sources'), 'picture')}"
    return f"{text}; {plural(dropped, 'empty tile was', 'empty tiles were')} dropped" if dropped else text
