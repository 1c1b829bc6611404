"""What does a report say of the counts, sizes and pixels of a data set? One function per section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from halofeed.inspection import charts
from halofeed.inspection.facts import (
    CORES,
    Facts,
    count_failures,
    count_stage,
    padding_choices,
    source_sizes,
    split_reason,
)
from halofeed.inspection.layout import card, colour_of, legend, section
from halofeed.inspection.lines import percent, plural
from halofeed.inspection.markup import Markup, element, join, table
from halofeed.inspection.volume_sections import class_voxels, split_legend
from halofeed.prep.statistics import ROW_STEP, mean_and_deviation
from halofeed.schemas.layout import OBJECT, REJECTED, SELECTION
from halofeed.schemas.partition import nearest, splits_that_divide
from halofeed.schemas.sizes import human_bytes

_MOST_LABELS = 90
_LAST_LABELS = 20
_MOST_SPLITS = 8
_CHANNELS = {1: ("grey",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}


def header(facts: Facts) -> Markup:
    """Title, the summary in a sentence, and the figures that people ask for first."""
    manifest, shape = facts.manifest, facts.image.shape
    boxes = sum(int(count) * images for count, images in facts.total.get("boxes_per_image", {}).items())
    what = plural(facts.records, *facts.noun)
    if facts.is_detection:
        what = f"{plural(boxes, 'box', 'boxes')} in {what}"
    size = " × ".join(map(str, facts.size))
    classes = len(set(manifest.labels) - {0}) if facts.is_segmentation else len(manifest.labels)
    sentence = (
        f"A {manifest.task} data set: {what} of {plural(classes, 'class', 'classes')}, "
        f"in {plural(len(facts.splits), 'split')}, stored as {size} {facts.image.dtype} ({facts.image.encoding}) "
        f"in {human_bytes(facts.bytes)}."
    )
    tiles = [
        (f"{facts.records:,}", "records"),
        *([(f"{boxes:,}", "boxes")] if facts.is_detection else []),
        (f"{classes:,}", "classes beside the background" if facts.is_segmentation else "classes"),
        (size, f"{' × '.join(facts.image.axes[:-1])}, {plural(shape[-1], 'channel')}"),
        (human_bytes(facts.bytes), plural(sum(len(s.shards) for s in manifest.splits.values()), "shard")),
        (f"{count_failures(facts):,}", "rejected"),
    ]
    return element(
        "header",
        None,
        element("p", "kind", "halofeed data set"),
        element("h1", None, manifest.name, " ", element("small", None, manifest.version)),
        element("p", "lead", sentence),
        element(
            "dl",
            "tiles",
            [
                element("div", None, element("dt", None, words), element("dd", None, value))
                for value, words in tiles
            ],
        ),
    )


def conversion(facts: Facts) -> Markup:
    """What was converted into which split, and what was not, and why."""
    manifest = facts.manifest
    failures = count_failures(facts)
    left_out, objects = count_stage(facts, SELECTION), count_stage(facts, OBJECT)
    parts = [(f"s{at}", manifest.splits[name].records) for at, name in enumerate(facts.splits)]
    entries = [
        *((f"s{at}", f"{name} {manifest.splits[name].records:,}") for at, name in enumerate(facts.splits)),
        *([("bad", f"rejected {failures:,}")] if failures else []),
        *([("left", f"left out on purpose {left_out:,}")] if left_out else []),
    ]
    rows = []
    for name in facts.splits:
        split = manifest.splits[name]
        size = sum(shard.bytes for shard in split.shards)
        each = human_bytes(size // split.records) if split.records else "–"
        rows.append([name, f"{split.records:,}", f"{len(split.shards):,}", human_bytes(size), each])
    inputs = manifest.inputs.get("count")
    lead = (
        f"{plural(inputs, 'input')} gave {plural(facts.records, 'record')}"
        if isinstance(inputs, int)
        else f"There are {plural(facts.records, 'record')}"
    )
    lead += (
        f"; {failures:,} could not be converted" if failures else "; every one that was to be converted was"
    )
    lead += f", and {left_out:,} were left out on purpose." if left_out else "."
    if objects:
        were = "was" if objects == 1 else "were"
        lead += f" {plural(objects, 'object')} of these records could not be used and {were} dropped."
    return section(
        "conversion",
        "Converted and rejected",
        charts.shares([*parts, ("bad", failures), ("left", left_out)]),
        legend(entries),
        card("Splits", table(("split", "records", "shards", "size", "a record"), rows, numbers=(1, 2, 3, 4))),
        _reject_card(facts, "Rejected", lambda stage: stage not in (SELECTION, OBJECT)) if failures else None,
        _reject_card(facts, "Objects dropped", lambda stage: stage == OBJECT) if objects else None,
        _reject_card(facts, "Left out on purpose", lambda stage: stage == SELECTION) if left_out else None,
        lead=lead,
    )


def labels(facts: Facts) -> Markup:
    """How often each class occurs, per split."""
    counts = facts.label_counts()
    present = {label: values for label, values in counts.items() if sum(values)}
    absent = [facts.label_name(label) for label, values in counts.items() if not sum(values)]
    ranks = {label: rank for rank, label in enumerate(counts)}

    def row(label: int) -> tuple[Markup, Mapping[int, int]]:
        swatch = element("i", {"class": "swatch", "style": colour_of(ranks[label])})
        name = element(
            "span", {"title": f"{label}: {facts.label_name(label)}"}, swatch, facts.label_name(label)
        )
        return name, dict(enumerate(counts[label]))

    order = list(present)
    hidden = 0
    if len(order) > _MOST_LABELS + _LAST_LABELS:
        hidden = len(order) - _MOST_LABELS - _LAST_LABELS
        first, last = order[:_MOST_LABELS], order[-_LAST_LABELS:]
    else:
        first, last = order, []
    kind = "bars" if len(first) <= 14 else "bars many"
    unit = "boxes" if facts.is_detection else facts.noun[1]
    lead = (
        f"{plural(len(present), 'class', 'classes')} {'occur in' if facts.is_segmentation else 'with'} {unit}"
    )
    if len(present) > 1:
        most, least = order[0], order[-1]
        verb = "in" if facts.is_segmentation else "has"
        lead += (
            f": the most frequent, {facts.label_name(most)}, {verb} {sum(counts[most]):,}; "
            f"the rarest, {facts.label_name(least)}, {'in ' * facts.is_segmentation}{sum(counts[least]):,}"
        )
    missing = _missing_in_splits(facts, counts)
    return section(
        "labels",
        "Labels",
        split_legend(facts),
        element(
            "div",
            "card",
            element("h3", None, f"{facts.noun[1].capitalize()} that a class is in")
            if facts.is_segmentation or facts.has_several_classes
            else None,
            charts.bars([row(label) for label in first], kind),
            element("p", "gap", f"{plural(hidden, 'class', 'classes')} between them not shown")
            if last
            else None,
            charts.bars([row(label) for label in last], kind) if last else None,
            element("p", "note", missing) if missing else None,
            element("p", "note", "Never seen: ", _listed(absent)) if absent else None,
            None if present or absent else element("p", "note", "No class is named."),
        ),
        class_voxels(facts, ranks) if facts.is_segmentation else None,
        lead=lead + ".",
    )


def boxes(facts: Facts) -> Markup | None:
    """Boxes per image, what the loader cuts, and what became of boxes; None where records have none."""
    per_image = {int(value): counts for value, counts in facts.per_split("boxes_per_image").items()}
    if not per_image:
        return None
    field = next((field for field in facts.manifest.fields if field.name == "boxes"), None)
    limit = field.shape[0] if field else 0
    total = sum(value * sum(counts) for value, counts in per_image.items())
    images = sum(map(sum, per_image.values())) or 1
    cut = facts.total.get("cut", {})
    empty = sum(per_image.get(0, [0]))
    if cut.get("images"):
        note = (
            f"The loader gives {limit} boxes an image (max_boxes) and would cut {cut['boxes']:,} boxes of "
            f"{plural(cut['images'], 'image')}; convert with --max-boxes {max(per_image)} to keep them all."
        )
    else:
        note = f"No image has more than max_boxes = {limit}, so the loader cuts none."
        if max(per_image) * 3 <= limit:
            note += f" At most {max(per_image)} are used; a smaller --max-boxes makes smaller batches."
    rows: list[list[str | int]] = []
    for at, name in enumerate(facts.splits):
        held = {value: counts[at] for value, counts in per_image.items() if counts[at]}
        pictures, count = sum(held.values()), sum(value * images for value, images in held.items())
        average = f"{count / pictures:.1f}" if pictures else "–"
        rows.append([name, f"{count:,}", average, max(held, default=0), f"{held.get(0, 0):,}"])
    fates = [(name, dict(enumerate(counts))) for name, counts in facts.per_split("boxes").items()]
    return section(
        "boxes",
        "Boxes",
        split_legend(facts),
        element(
            "div",
            "columns",
            card(
                "Boxes per image",
                charts.histogram(per_image, unit="boxes per image", marker=(limit, f"max_boxes {limit}")),
                note=note,
            ),
            card(
                "Boxes per split",
                table(("split", "boxes", "an image", "most", "images without"), rows, numbers=(1, 2, 3, 4)),
                [element("h3", "above", "Changed or dropped"), charts.bars(fates, "bars wide")]
                if fates
                else None,
                note=None
                if fates
                else "Every annotated box is stored as it was: none clipped, none dropped.",
            ),
        ),
        lead=f"{plural(total, 'box', 'boxes')}, {total / images:.1f} an image; "
        + (f"{plural(empty, 'image')} without any." if empty else "no image without any."),
    )


def sizes(facts: Facts) -> Markup:
    """Sizes and shapes of the sources, what padding costs now and what it would cost otherwise."""
    binned = source_sizes(facts)
    static = facts.image.encoding == "raw" or facts.manifest.recipe.get("pad") is True
    stored = (facts.image.shape[0], facts.image.shape[1])
    shape = {float(key): counts for key, counts in facts.per_split("aspect_ratios").items()}
    choices = padding_choices(facts)
    now = choices[0][2]
    rows = [
        [
            name,
            f"{size[0]} × {size[1]}",
            percent(share),
            f"{size[0] * size[1] / (stored[0] * stored[1]):.2f}×",
        ]
        for name, size, share in choices
    ]
    notes = {**facts.per_split("warnings"), **facts.per_split("notes")}
    note_rows = [(name, dict(enumerate(counts))) for name, counts in notes.items()]
    quiet = "No picture was turned by EXIF, scaled in depth or changed in colour when it was read."
    what = (
        "of the stored pixels are padding"
        if static
        else "of a batch's pixels are padding, which the loader adds"
    )
    return section(
        "sizes",
        "Sizes and padding",
        split_legend(facts),
        element(
            "div",
            "columns three",
            card(
                "Source sizes",
                charts.bubbles(binned, stored),
                note="Height over width; area is the count. The frame is the stored size.",
            ),
            card(
                "Aspect ratios",
                charts.ratios(shape),
                note="Left of the line stand portraits, right landscapes.",
            ),
            card("What reading did", charts.bars(note_rows, "bars wide")) if note_rows else None,
        ),
        card(
            "What padding costs",
            table(("sizing", "height × width", "padding", "pixels"), rows, numbers=(1, 2, 3)),
            note="The first line is counted; the others are estimates from the source sizes above, which are "
            "binned to about 3 %. “Pixels” is one picture's, against now.",
        ),
        lead=f"{percent(now)} {what}." + ("" if note_rows else f" {quiet}") if facts.records else None,
    )


def pixels(facts: Facts) -> Markup:
    """The distribution of the pixels' values per channel, and the numbers for normalisation."""
    counted = facts.total.get("pixels", {})
    names = _CHANNELS.get(facts.image.shape[-1], tuple(f"channel{at}" for at in range(facts.image.shape[-1])))
    if not counted.get("count"):
        return section("pixels", "Pixels", element("p", "note", "No pixels were counted."))
    peak = int(np.iinfo(facts.image.dtype).max)
    means, deviations = mean_and_deviation(facts.total)
    rows: list[list[str | int]] = []
    for at, name in enumerate(names):
        for split in facts.splits:
            statistics = facts.manifest.splits[split].statistics
            if statistics.get("pixels", {}).get("count"):
                mean, deviation = (values[at] for values in mean_and_deviation(statistics))
                rows.append([_channel(name), split, f"{mean:,.2f}", f"{deviation:,.2f}"])
    scaled = [", ".join(f"{value / peak:.4f}" for value in values) for values in (means, deviations)]
    code = f"mean = ({scaled[0]}{',' * (len(names) == 1)})\nstd = ({scaled[1]}{',' * (len(names) == 1)})"
    return section(
        "pixels",
        "Pixels",
        element(
            "div",
            "columns",
            card(
                "Values per channel",
                charts.curves(counted["histogram"], means, names, peak),
                note="Dashed: the mean. Padding is not counted; spikes above the scale are cut off.",
            ),
            card(
                "Mean and standard deviation",
                table(("channel", "split", "mean", "deviation"), rows, numbers=(2, 3)),
                element("p", "note", "Of all splits, for pixels scaled to 0 … 1:"),
                element("pre", None, element("code", None, code)),
            ),
        ),
        lead=f"{plural(counted['count'], 'pixel')}, of every {ROW_STEP}th row of {plural(facts.records, 'picture')}.",
    )


def partitions(facts: Facts) -> Markup:
    """Over how many cores one image can be split, and how."""
    size = facts.size
    found = splits_that_divide((1, *facts.image.shape), CORES, axes=range(1, len(size) + 1))
    rows = []
    for cores, every in found.items():
        splits = every[:_MOST_SPLITS]
        cells = [
            element(
                "div",
                "split",
                charts.tiling(size, dims[1:-1]),
                element(
                    "span",
                    None,
                    element("code", None, ",".join(map(str, dims))),
                    element("small", None, f"{_parts(size, dims[1:-1])} a core"),
                ),
            )
            for dims in splits
        ]
        if not cells:
            cure = " or ".join(map(str, nearest(size[-2], cores)))
            cells = [element("span", "none", f"none divides; a height of {cure} would")]
        if len(every) > len(splits):
            cells.append(element("span", "none", f"and {len(every) - len(splits)} more"))
        rows.append([element("b", None, str(cores)), element("div", "splits", cells)])
    return section(
        "partitions",
        "Splitting a volume over cores" if facts.is_volume else "Splitting an image over cores",
        element(
            "div",
            "card",
            table(("cores", f"parts along batch, {', '.join(facts.image.axes)}; the least halo first"), rows),
        ),
        lead=f"How to cut {' × '.join(map(str, size))} so that each core of a replica gets the same shape.",
    )


def _reject_card(facts: Facts, title: str, has: Callable[[str], bool]) -> Markup:
    ordered = sorted(facts.manifest.rejected.items(), key=lambda item: (-item[1], item[0]))
    entries = []
    for key, count in ordered:
        stage, reason = split_reason(key)
        if not has(stage):
            continue
        lines = [
            element(
                "li",
                None,
                element("code", None, entry.get("source", "")),
                element("span", None, f" {entry['detail']}") if entry.get("detail") else None,
            )
            for entry in facts.rejects.get((stage, reason), ())
        ]
        more = count - len(lines)
        if lines and more > 0:
            lines.append(element("li", "more", f"and {more:,} more"))
        entries.append(
            element(
                "div",
                "reject",
                element("b", None, f"{count:,}"),
                element(
                    "div",
                    None,
                    element("p", None, reason, " ", element("span", "stage", stage)),
                    element("ul", None, lines),
                ),
            )
        )
    return card(
        title,
        element("div", "rejects", entries),
        note=join(["All are named in ", element("code", None, REJECTED), "."]),
    )


def _parts(size: Sequence[int], dims: Sequence[int]) -> str:
    return " × ".join(str(side // parts) for side, parts in zip(size, dims, strict=True))


def _missing_in_splits(facts: Facts, counts: Mapping[int, Sequence[int]]) -> str | None:
    found = []
    for at, split in enumerate(facts.splits):
        lacking = [
            facts.label_name(label) for label, values in counts.items() if sum(values) and not values[at]
        ]
        statistics = facts.manifest.splits[split].statistics
        seen = (
            statistics.get("labelled", 0) if facts.is_segmentation else facts.manifest.splits[split].records
        )
        if lacking and seen:
            found.append(f"not in {split}: {_listed(lacking)}")
        elif facts.is_segmentation and facts.manifest.splits[split].records and not seen:
            found.append(f"no labels at all in {split}")
    joined = "; ".join(found)
    return joined[:1].upper() + joined[1:] + "." if joined else None


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _channel(name: str) -> Markup:
    return element("span", f"channel {name}", name)
