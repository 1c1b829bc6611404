"""Text descriptions of a data set and of a training plan, for a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halofeed.inspection.dataset_facts import DatasetFacts
from halofeed.inspection.dataset_files import open_manifest
from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.display import counts_of, display_of
from halofeed.inspection.plan_words import (
    figures,
    gibibytes,
    images_per_replica,
    memory_totals,
    name_of_split,
    reasons,
    recommendation,
    search_lines,
    verdict,
)
from halofeed.inspection.stored_records import class_channels
from halofeed.inspection.words import escape_unprintable, percent, table, titled_lines
from halofeed.pipelines.source_registry import recall
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.prep.voxels.counts import mean_and_deviation, percentile
from halofeed.schemas.fields import Field
from halofeed.schemas.files import REJECTED
from halofeed.schemas.statistics import Padding
from halofeed.system.addresses import address_of
from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

__all__ = ["describe_dataset", "describe_record"]

_BAR_WIDTH = 30
_MOST = 40


def describe_dataset(path: str | os.PathLike[str]) -> str:
    """Describe a data set: fields, splits, shards, labels, boxes or scans, rejects, padding and recipe.

    Only the manifest is read, so this is fast for any size. The path of the sources is included if this user
    converted the data set on this machine.
    """
    path = address_of(path) or path
    manifest = open_manifest(path)
    facts = DatasetFacts(path=str(path), manifest=manifest, origin=recall(str(path), manifest))
    where = {"source": facts.origin.source, "images": facts.origin.images} if facts.origin else {}
    inputs = {**manifest.inputs, **where}
    fields = table(
        ("name", "dtype", "shape", "axes", "encoding", "stored as"), map(_field_row, manifest.fields)
    )
    splits = table(("split", "records", "shards", "bytes", "per shard"), _split_rows(facts), right=(1, 2, 3))
    lines = [
        f"{manifest.name} {manifest.version}: {manifest.task}, {plural(facts.records, 'record')}, "
        f"{human_bytes(facts.bytes)}",
        f"in {path}",
        *titled_lines("Fields", fields),
        "  (*) loaded on request: include=[...]",
        *titled_lines("Splits", splits),
        *titled_lines("Labels", (_class_lines if facts.task.has_label_map else _label_lines)(facts)),
    ]
    if "findings" in facts.kind.sections:
        lines += titled_lines("Scans", _scan_lines(facts))
        found = sorted(facts.counter("findings").items(), key=lambda item: (-item[1], item[0]))
        lines += titled_lines("Findings and corrections", [f"{count:,} x {name}" for name, count in found])
    if facts.boxes().per_image:
        lines += titled_lines("Boxes", _box_lines(facts))
    lines += titled_lines(facts.kind.unit.capitalize(), _pixel_lines(facts))
    rejects = [f"{entry.count:,} x {entry.stage}: {entry.reason}" for entry in facts.reasons()]
    lines += titled_lines("Rejected", [*rejects, f"each is named in {REJECTED}"] if rejects else [])
    lines += titled_lines("Recipe", [f"{name}: {_json(value)}" for name, value in manifest.recipe.items()])
    lines += titled_lines("Source", [f"{name}: {_json(value)}" for name, value in inputs.items()])
    software = ", ".join(f"{name} {version}" for name, version in manifest.software.items())
    return escape_unprintable("\n".join([*lines, "", f"Written by {software}"]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _field_row(field: Field) -> tuple[str, ...]:
    shape = " x ".join(map(str, field.shape)) or "-"
    keys = field.keys[0] if len(field.keys) == 1 else f"{field.keys[0]} and {len(field.keys) - 1} more"
    name = field.name + ("*" if field.optional else "")
    return name, field.dtype, shape, ", ".join(field.axes) or "-", field.encoding, keys


def _split_rows(facts: DatasetFacts) -> Iterator[tuple[str, ...]]:
    for name, split in facts.manifest.splits.items():
        counts = [shard.records for shard in split.shards]
        spread = f"{min(counts):,} to {plural(max(counts), 'record')}" if counts else "-"
        yield name, f"{split.records:,}", str(len(counts)), human_bytes(facts.bytes_of(name)), spread


def _class_table(
    facts: DatasetFacts, order: Sequence[int], head: Sequence[str], cells: Any, right: int
) -> list[str]:
    """Format a table of classes: id, name, count in each split, and `cells`, of which the first `right` are numbers."""
    splits = facts.manifest.splits
    counts = [facts.counter("labels", split) for split in splits]
    rows = [
        (label, facts.manifest.labels[label], *(f"{of.get(str(label), 0):,}" for of in counts), *cells(label))
        for label in order[:_MOST]
    ]
    shown = table(("id", "name", *splits, *head), rows, right=(0, *range(2, 2 + len(splits) + right)))
    left = len(order) - len(rows)
    return [*shown, f"and {left:,} more"] if left else shown


def _label_lines(facts: DatasetFacts) -> list[str]:
    totals = {label: sum(facts.label_counts[label]) for label in facts.manifest.labels}
    most = max(totals.values(), default=0) or 1
    order = sorted(totals, key=lambda label: (-totals[label], label))
    unit = facts.task.counted or "images"
    return _class_table(
        facts, order, (unit,), lambda label: ("#" * -(-totals[label] * _BAR_WIDTH // most),), 0
    )


def _class_lines(facts: DatasetFacts) -> list[str]:
    """Describe each class by its records, its pixels or voxels, and its share of the foreground."""
    voxels, foreground, unit = facts.integers("label_voxels"), facts.foreground, facts.kind.unit
    names = facts.manifest.labels

    def cells(label: int) -> tuple[str, str]:
        count = voxels.get(label, 0)
        return f"{count:,}", percent(count / foreground) if label and foreground else "-"

    order = sorted(names, key=lambda label: (label == 0, -voxels.get(label, 0), label))
    share = percent(foreground / facts.labelled_voxels) if facts.labelled_voxels else "0 %"
    without = facts.records - facts.labelled
    have = "has" if facts.labelled == 1 else "have"
    has_label = f"{facts.labelled:,} of {plural(facts.records, 'record')} {have} a label"
    if without:
        has_label += f"; {without:,} without, for prediction: all values of their label are 0"
    lines = [
        *_class_table(facts, order, (unit, "of the foreground"), cells, 2),
        f"(counts per split are records) foreground: {share} of the {unit} of labelled records",
        has_label,
    ]
    if facts.manifest.ignore_label is not None:
        lines.append(
            f"{facts.manifest.ignore_label} in a label is ignored: it is not a class, and not counted"
        )
    if channels := class_channels(facts.manifest):
        lines.append(
            "classes overlap: a voxel counts for each of them, so shares may add up to more than 100 %"
        )
        lines.append(f"channels of the label, in order: {', '.join(names[label] for label in channels)}")
    return lines


def _scan_lines(facts: DatasetFacts) -> list[str]:
    """Describe modality, spacing and shape of the sources, and the stored shape and values."""
    recipe, image = facts.manifest.recipe, facts.image
    shape = " x ".join(map(str, image.shape))
    spacing = " x ".join(f"{value:g}" for value in recipe.get("spacing_mm") or ())
    lines = [
        f"stored: {shape} {image.dtype} (depth x height x width x channel), "
        + (f"every {spacing} mm" if spacing else "each scan at its own spacing")
        + f", by {recipe.get('fit', 'an unknown way')}",
        display_of(facts.manifest, facts.total).words,
    ]
    if facts.scans < facts.records:
        lines.append(f"{plural(facts.records, 'tile')} of {plural(facts.scans, 'scan')}")
    named = {"modalities": "modality", "spacings_mm": "spacing in mm", "source_shapes": "shape"}
    for name, what in named.items():
        found = sorted(facts.counter(name).items(), key=lambda item: (-item[1], item[0]))
        lines.append(f"sources' {what}: " + (_counted(found) or "not counted"))
    return lines


def _box_lines(facts: DatasetFacts) -> list[str]:
    lines = []
    for name, split in facts.manifest.splits.items():
        found = facts.boxes(name)
        if not found.images:
            continue
        lines.append(
            f"{name}: {plural(found.boxes, 'box', 'boxes')} in {plural(found.images, 'image')}, "
            f"{min(found.per_image)} to {max(found.per_image)} per image, {found.average:.1f} on average, "
            f"{plural(found.empty, 'image')} without"
        )
        if (cut := split.statistics.cut) and cut.images:
            boxes, images = plural(cut.boxes, "box", "boxes"), plural(cut.images, "image")
            lines.append(f"  beyond max_boxes, and cut by the loader: {boxes} in {images}")
        lines += [f"  {what}: {count:,}" for what, count in facts.counter("boxes", name).items()]
    return lines


def _pixel_lines(facts: DatasetFacts) -> list[str]:
    lines = []
    for name, split in facts.manifest.splits.items():
        statistics = split.statistics
        padding = statistics.padding or Padding()
        if not padding.stored_pixels:
            continue
        share = f"{name}: {padding.stored_pixels:,} stored, {100 * padding.share:.1f} % of them padding"
        if "pixels" in facts.kind.sections:
            share += "; largest {} x {}".format(*statistics.largest or (0, 0))
        lines.append(share)
        if (sums := statistics.pixels) and sums.sum:
            means, deviations = (
                " ".join(f"{value:.2f}" for value in values) for values in sums.mean_and_deviation()
            )
            lines.append(
                f"  mean {means}, standard deviation {deviations} "
                f"(per channel, of every {ROW_STEP}th row, without padding)"
            )
        for kind in ("body", "foreground"):
            counts = counts_of(statistics, kind)
            if counts.total:
                mean, deviation = mean_and_deviation(counts)
                lines.append(
                    f"  {kind}: mean {mean:.2f}, standard deviation {deviation:.2f}, percentiles 0.5 and 99.5 "
                    f"at {percentile(counts, 0.5):g} and {percentile(counts, 99.5):g} "
                    f"(as stored, of every {ROW_STEP}th row)"
                )
        lines += [f"  {note}: {count:,}" for note, count in facts.counter("notes", name).items()]
        lines += [f"  warning: {text}: {count:,}" for text, count in facts.counter("warnings", name).items()]
    return lines


def _counted(found: list[tuple[str, Any]], most: int = 8) -> str:
    shown = ", ".join(f"{name.replace('x', ' x ')} ({count:,})" for name, count in found[:most])
    return shown + (f" and {len(found) - most:,} more" if len(found) > most else "")


def describe_plan(plan: Mapping[str, Any]) -> str:
    """Describe a plan: each split with its verdict and figures, the recommendation, and the reasons."""
    topology, config = plan["topology"], plan["config"]
    chip = topology["chip"]
    unit = "MiB" if max(memory_totals(plan), default=0) < 2**28 else "GiB"
    head = ("split", "verdict", "images", unit, *_MEMORY, "halos", "sums", "gathers", "TFLOP", "at best")
    lines = [
        f"{config['model']}, {' x '.join(map(str, plan['image_shape']))}, {config['compute_dtype']}, "
        f"{config['optimizer']}{', rematerialized' if config['remat'] else ''}, on {topology['name']}: "
        + plural(topology["cores"], "core")
        + (f" of {gibibytes(chip['memory_bytes'])}" if chip else ""),
        "",
        *table(head, [_row(split, unit) for split in plan["splits"]], right=range(2, len(head))),
        "",
        recommendation(plan),
    ]
    for split in plan["splits"]:
        if why := reasons(split):
            lines += titled_lines(name_of_split(split), why)
    if savings := plan.get("savings"):
        lines += titled_lines("Options that save memory, compiled", list(_saving_lines(savings)))
    if search := plan.get("search"):
        lines += titled_lines(f"The largest {search['of']} that fits", search_lines(search))
    if chip:
        peaks = f"the published peaks ({chip['source']})"
        bound = (
            f"At best: FLOP, memory traffic and bytes sent, divided by {peaks}; a lower bound of the time."
        )
        lines += ["", bound]
    compiler, versions = "libtpu" if topology["platform"] == "tpu" else "jaxlib", plan["versions"]
    lines.append(
        f"Reported by {compiler} {versions[compiler]} with jax {versions['jax']}; all figures are for one core."
    )
    return escape_unprintable("\n".join(lines))


_MEMORY = {"params": "parameters", "optim.": "optimizer", "activ.": "activations", "padding": "padding"}
_UNITS = {"GiB": 2**30, "MiB": 2**20}


def _row(split: Mapping[str, Any], unit: str) -> tuple[str, ...]:
    memory = split.get("memory", {})
    sizes = [memory.get(name) for name in ("total", *_MEMORY.values())]
    shown = ("" if size is None else f"{size / _UNITS[unit]:.2f}" for size in sizes)
    step = figures(split) if split["fits"] else ("",) * 5
    return (name_of_split(split), verdict(split), images_per_replica(split), *shown, *step)


def _saving_lines(savings: Mapping[str, Any]) -> Iterator[str]:
    before = savings["before"]
    yield f"{name_of_split(before)} as it is: {verdict(before)}, {gibibytes(before['memory']['total'])}"
    for entry in savings["changes"]:
        after = entry["split"]
        if "memory" not in after:
            yield f"{entry['change']}: {after['refused']}"
            continue
        line = f"{entry['change']}: {verdict(after)}, {gibibytes(after['memory']['total'])}"
        if after["fits"] and before["fits"] and before["flops"]:
            line += f", {percent(after['flops'] / before['flops'] - 1)} more FLOP"
        yield line
