"""Text about a data set for `halofeed inspect`: its description, and a program that reads it with TensorFlow alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from halofeed.inspection.dataset_facts import (
    VALUE_PARTS,
    DatasetFacts,
    box_size_bins,
    color_errors,
    pixel_figures,
    value_figures,
)
from halofeed.inspection.dataset_files import open_manifest
from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.planes import display_of
from halofeed.inspection.portable_unpack import coloring_source, unpack_source
from halofeed.inspection.stored_records import class_channels
from halofeed.inspection.words import escape_unprintable, percent, table, titled_lines
from halofeed.pipelines.source_registry import recall
from halofeed.prep.convert.loss_findings import describe_findings, tiles_of_pictures
from halofeed.prep.convert.tallies import ROW_STEP
from halofeed.schemas.fields import Field
from halofeed.schemas.file_layout import MANIFEST, REJECTED
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Padding
from halofeed.system.addresses import address_of
from halofeed.system.console import human_bytes
from halofeed.system.wording import plural

__all__ = ["describe_dataset", "describe_record"]

_BAR_WIDTH = 30
_MOST = 40


def describe_dataset(path: str | os.PathLike[str]) -> str:
    """Describe a data set: fields, splits, shards, labels, boxes or scans, rejects, padding and changed options.

    Only the manifest is read, so this is fast for any size. The path of the sources is included if this user
    converted the data set on this machine.
    """
    path = address_of(path) or path
    manifest = open_manifest(path)
    facts = DatasetFacts(path=str(path), manifest=manifest, origin=recall(str(path), manifest))
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
    # Only scans are examined for flaws of their geometry and values.
    if "findings" in facts.kind.sections:
        lines += titled_lines("Scans", _scan_lines(facts))
        found = [f"{finding.count:,} x {finding.key}" for finding in facts.findings()]
        lines += titled_lines("Findings and corrections", found)
    lines += titled_lines("What the conversion lost", list(describe_findings(manifest)))
    if facts.boxes().per_image:
        lines += titled_lines("Boxes", _box_lines(facts))
    lines += titled_lines("Tiles", [tiles] if (tiles := tiles_of_pictures(manifest)) else [])
    lines += titled_lines(facts.kind.unit.capitalize(), _pixel_lines(facts))
    lines += titled_lines("Rejected", _reject_lines(facts))
    lines += titled_lines("Recipe", _recipe_lines(facts))
    where = {"source": facts.origin.source, "images": facts.origin.images} if facts.origin else {}
    lines += titled_lines("Source", _named_values({**manifest.inputs, **where}))
    return escape_unprintable("\n".join([*lines, "", f"Written by {facts.software}"]))


def _reject_lines(facts: DatasetFacts) -> list[str]:
    rejects = [f"{entry.count:,} x {entry.stage}: {entry.reason}" for entry in facts.reasons()]
    return [*rejects, f"each is named in {REJECTED}"] if rejects else []


def _recipe_lines(facts: DatasetFacts) -> list[str]:
    """List the options that differ from their defaults; a recipe has about 90, of which a user sets five or ten."""
    changed, others = facts.options
    rest = (
        [f"({plural(len(others), 'more option')} at the default: see recipe in {MANIFEST})"] if others else []
    )
    return [*_named_values(changed), *rest]


def _named_values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {_json(value)}" for name, value in values.items()]


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
        yield *facts.split_cells(name), spread


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
    unit, names = facts.kind.unit, facts.manifest.labels
    found = {row.label: row for row in facts.class_voxels() if row.label in names}

    def cells(label: int) -> tuple[str, str]:
        share = found[label].of_foreground
        return f"{found[label].voxels:,}", "-" if share is None else percent(share)

    share = percent(facts.foreground / facts.labelled_voxels) if facts.labelled_voxels else "0 %"
    without = facts.records - facts.labelled
    have = "has" if facts.labelled == 1 else "have"
    has_label = f"{facts.labelled:,} of {plural(facts.records, 'record')} {have} a label"
    if without:
        has_label += f"; {without:,} without, for prediction: all values of their label are 0"
    lines = [
        *_class_table(facts, list(found), (unit, "of the foreground"), cells, 2),
        f"(counts per split are records) foreground: {share} of the {unit} of labeled records",
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
        if regions := split.statistics.ignored_per_image:
            count = sum(int(number) * images for number, images in regions.items())
            lines.append(f"  ignored regions: {count:,} in {plural(sum(regions.values()), 'image')}")
        sizes = [f"{words}: {count:,}" for words, count in box_size_bins(split.statistics).items()]
        lines += [f"  longest side of the objects in mm: {', '.join(sizes)}"] if sizes else []
    return lines


def _pixel_lines(facts: DatasetFacts) -> list[str]:
    lines = []
    for name, split in facts.manifest.splits.items():
        statistics = split.statistics
        padding = statistics.padding or Padding()
        # A split may have no records.
        if not padding.stored_pixels:
            continue
        share = f"{name}: {padding.stored_pixels:,} stored, {100 * padding.share:.1f} % of them padding"
        # Volumes have one static shape.
        if "pixels" in facts.kind.sections:
            share += "; largest {} x {}".format(*statistics.largest or (0, 0))
        notes = [f"  {note}: {count:,}" for note, count in facts.counter("notes", name).items()]
        warnings = [
            f"  warning: {text}: {count:,}" for text, count in facts.counter("warnings", name).items()
        ]
        stated = [f"{field} in {count:,}" for field, count in facts.counter("stated", name).items()]
        of_records = [f"  stated by the sources: {', '.join(stated)} of {plural(split.records, 'record')}"]
        lines += [share, *_figure_lines(facts, name), *(of_records if stated else []), *notes, *warnings]
    return lines


def _figure_lines(facts: DatasetFacts, split: str) -> list[str]:
    """Describe the distribution of a split's stored values: of pictures per channel, of volumes per part."""
    lines = []
    if of_channels := pixel_figures(facts, split):
        means, deviations = (" ".join(f"{value:.2f}" for value in values) for values in of_channels)
        lines.append(
            f"  mean {means}, standard deviation {deviations} "
            f"(per channel, of every {ROW_STEP}th row, without padding)"
        )
    if errors := color_errors(facts.manifest.splits[split].statistics):
        lines.append(f"  stored colors differ from those of the pictures by {errors}")
    for part in VALUE_PARTS:
        if found := value_figures(facts, split, part):
            lines.append(
                f"  {part}: mean {found.mean:.2f}, standard deviation {found.deviation:.2f}, percentiles 0.5 and "
                f"99.5 at {found.percentiles[0.5]:g} and {found.percentiles[99.5]:g} "
                f"(as stored, of every {ROW_STEP}th row)"
            )
    return lines


def _counted(found: list[tuple[str, Any]], most: int = 8) -> str:
    shown = ", ".join(f"{name.replace('x', ' x ')} ({count:,})" for name, count in found[:most])
    return shown + (f" and {len(found) - most:,} more" if len(found) > most else "")


_FIXED_AXES = ("channel", "coordinate")
_PROGRAM = '''\
"""Reads {name} {version} with TensorFlow alone. Written by `halofeed inspect`."""
{imports}
import tensorflow as tf

FEATURES = {{
{features}
}}
{unpacking}

def parse(record):
    """Return the arrays of one serialized tf.train.Example.

{arrays}
    """
    values = tf.io.parse_single_example(record, FEATURES)
    return {{
{values}
    }}


if __name__ == "__main__":
    files = tf.data.Dataset.list_files({pattern!r}, shuffle=False)
    for example in tf.data.TFRecordDataset(files).map(parse).take(1):
        for name, value in example.items():
            print(name, value.dtype.name, value.shape)
'''


def parser_code(path: str | os.PathLike[str]) -> str:
    """Return a Python program that reads the data set at a path or address, with a function `parse`.

    The arrays have the names, dtypes and values of the loader's batches. Lists and images of varying size are not
    padded, and boxes are fractions of the stored image.

    Raises:
        UsageError, ManifestError: there is no data set.
    """
    place = address_of(path) or os.path.abspath(path)
    manifest = open_manifest(path)
    features = {key: _feature(field) for field in manifest.fields for key in field.keys}
    split = next(iter(manifest.splits))
    return _PROGRAM.format(
        name=manifest.name,
        version=manifest.version,
        features="\n".join(f"    {json.dumps(key)}: {kind}," for key, kind in features.items()),
        arrays="\n".join(f"    {_description(field)}" for field in manifest.fields),
        values="\n".join(
            f"        {json.dumps(field.name)}: {_expression(field, manifest)}," for field in manifest.fields
        ),
        pattern=f"{place}/{manifest.name}-{split}.tfrecord-*",
        imports=_imports(manifest),
        unpacking=_unpacking(manifest) + _coloring(manifest),
    )


def _imports(manifest: Manifest) -> str:
    """Return the imports of the decoders that the program holds."""
    if any(field.is_packed for field in manifest.fields):
        return "\nfrom typing import Any\n\nimport numpy as np"
    return "\nfrom typing import Any\n" if any(field.holds_planes for field in manifest.fields) else ""


def _coloring(manifest: Manifest) -> str:
    """Return the decoder of color planes; "" for a data set without such pictures."""
    return f"\n\n{coloring_source()}" if any(field.holds_planes for field in manifest.fields) else ""


def _unpacking(manifest: Manifest) -> str:
    """Return the decoders of packed arrays and the layouts that they take; "" for a data set without such arrays."""
    packed = [field for field in manifest.fields if field.is_packed]
    if not packed:
        return ""
    layouts = [
        f"    {json.dumps(field.name)}: ({', '.join(map(str, field.packed_layout.numbers.tolist()))}),"
        for field in packed
    ]
    with_numpy = [
        f"#     unpack_with_numpy(value, *PACKED[{json.dumps(field.name)}])"
        f'.view("{_little_dtype(field)}").reshape({list(field.stored_shape)})'
        for field in packed
    ]
    return "\n".join(
        [
            "",
            "# Planes, rows and columns of packed arrays, and bytes of a pixel and of a unit. With NumPy alone:",
            *with_numpy,
            "PACKED = {",
            *layouts,
            "}",
            "",
            "",
            unpack_source(),
        ]
    )


def _little_dtype(field: Field) -> str:
    """Return NumPy's name of the little-endian numbers of a field; bfloat16 is given as its bits."""
    return np.dtype({"bfloat16": "uint16"}.get(field.stored_dtype, field.stored_dtype)).newbyteorder("<").str


def _feature(field: Field) -> str:
    """Return the feature of one key of a field."""
    stored = {"str": "string", "float32": "float32", "float64": "float32", "bfloat16": "float32"}
    number = "string" if field.encoding == "png_list" else stored.get(field.dtype, "int64")
    if field.may_be_absent:
        absent = 'default_value=""' if number == "string" else 'default_value=[float("nan")] * 2'
        return f"tf.io.FixedLenFeature({list(field.shape)}, tf.{number}, {absent})"
    if field.encoding == "value":
        return f"tf.io.FixedLenFeature({list(field.shape)}, tf.{number})"
    if field.encoding in ("list", "classes", "png_list"):
        return f"tf.io.FixedLenSequenceFeature([], tf.{number}, allow_missing=True)"
    return "tf.io.FixedLenFeature([], tf.string)"


def _description(field: Field) -> str:
    """Return a line that names an array, its dtype and axes, with their sizes where all records have the same."""
    if field.encoding == "png_list":
        return f"{field.name}: uint8 [box, height, width]"
    if field.name == "id":
        return "id: uint32 [2], the high and low half of a number"
    # Lists and pictures in files differ in size from record to record.
    sizes = zip(field.axes, field.shape, strict=True)
    fixed = (
        f"{axis} {size}" if field.form.has_one_shape or axis in _FIXED_AXES else axis for axis, size in sizes
    )
    return f"{field.name}: {field.dtype} [{', '.join(fixed)}]"


def _expression(field: Field, manifest: Manifest) -> str:
    """Return the expression for a field's array."""
    values = [f"values[{json.dumps(key)}]" for key in field.keys]
    value = values[0] if len(values) == 1 else f"tf.stack([{', '.join(values)}], axis=-1)"
    # The loader's batches hold the 63 bits of an id as two halves: JAX has no 64-bit integers by default.
    if field.name == "id":
        return f"tf.reverse(tf.bitcast(tf.strings.to_number({value}, tf.int64), tf.uint32), [0])"
    return _EXPRESSIONS.get(field.encoding, _stored_number)(value, field, manifest)


def _raw(value: str, field: Field, manifest: Manifest) -> str:
    return f"tf.reshape(tf.io.decode_raw({value}, tf.{field.stored_dtype}), {list(field.stored_shape)})"


def _packed(value: str, field: Field, manifest: Manifest) -> str:
    unpacked = f"unpack_with_tensorflow({value}, *PACKED[{json.dumps(field.name)}])"
    size = field.packed_layout.unit_bytes
    if field.stored_dtype == "uint8":
        return f"tf.reshape({unpacked}, {list(field.stored_shape)})"
    numbers = f"tf.bitcast(tf.reshape({unpacked}, [-1, {size}]), tf.{field.stored_dtype})"
    return f"tf.reshape({numbers}, {list(field.stored_shape)})"


def _colors(value: str, field: Field, manifest: Manifest) -> str:
    height, width, _ = field.shape
    return f"colors_with_tensorflow({value}, {height}, {width})"


def _sets(value: str, field: Field, manifest: Manifest) -> str:
    bits = f"tf.range({field.shape[-1]})"
    stored = (_packed if field.is_packed else _raw)(value, field, manifest)
    return f"tf.cast(tf.bitwise.right_shift(tf.cast({stored}, tf.int32)[..., None], {bits}) & 1, tf.uint8)"


def _picture(value: str, field: Field, manifest: Manifest) -> str:
    has_channels = field.axes[-1] == "channel"
    # The default depends on the system (tf.io.decode_jpeg, `dct_method`); this one gives the loader's pixels.
    how = f"dtype=tf.{field.dtype}" if field.encoding == "png" else 'dct_method="INTEGER_ACCURATE"'
    channels = field.shape[-1] if has_channels else 1
    decoded = f"tf.io.decode_{field.encoding}({value}, channels={channels}, {how})"
    return decoded if has_channels else f"{decoded}[..., 0]"


def _pictures(value: str, field: Field, manifest: Manifest) -> str:
    decode = "lambda png: tf.io.decode_png(png, channels=1)[..., 0]"
    return f"tf.map_fn({decode}, {value}, fn_output_signature=tf.uint8)"


def _class_flags(value: str, field: Field, manifest: Manifest) -> str:
    ids = sorted(manifest.labels)
    return (
        f"tf.cast(tf.reduce_any({value}[:, None] == tf.constant({ids}, tf.int64), axis=0), tf.{field.dtype})"
    )


def _text(value: str, field: Field, manifest: Manifest) -> str:
    return value if field.dtype == "str" else f"tf.strings.to_number({value}, tf.{field.dtype})"


def _stored_number(value: str, field: Field, manifest: Manifest) -> str:
    # tf.train.Example has no other numbers than these two.
    return value if field.dtype in ("float32", "int64") else f"tf.cast({value}, tf.{field.dtype})"


_EXPRESSIONS = {
    "raw": _raw,
    "sets": _sets,
    "packed": _packed,
    "packed_sets": _sets,
    "yuv420": _colors,
    "jpeg": _picture,
    "png": _picture,
    "png_list": _pictures,
    "classes": _class_flags,
    "text": _text,
}
"""Expression of a field's array by its encoding; others are numbers."""
