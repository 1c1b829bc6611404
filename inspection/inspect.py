"""What is in a data set, or in one of its records, as text for a terminal?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halofeed.inspection.display import counts_of
from halofeed.inspection.inspect_segmentation import class_lines, finding_lines, record_lines, scan_lines
from halofeed.inspection.kept import labeled_keypoints
from halofeed.inspection.lines import plural, table
from halofeed.inspection.records import IMAGE_KEY, bytes_of, integer_of, item_bytes, text_of
from halofeed.inspection.segmentation import is_volumetric, label_field
from halofeed.prep.statistics import ROW_STEP, mean_and_deviation
from halofeed.prep.volume.counts import mean_and_deviation as volume_mean_and_deviation
from halofeed.prep.volume.counts import percentile
from halofeed.prep.volume.statistics import ROW_STEP as VOLUME_ROW_STEP
from halofeed.schemas.errors import CorruptFileError, UsageError
from halofeed.schemas.fields import Field
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.layout import REJECTED, index_file
from halofeed.schemas.manifest import Manifest, Shard, Split, read_manifest
from halofeed.schemas.sizes import human_bytes
from halofeed.schemas.tfexample import Decoded, decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record

_RECORD = re.compile(r"(.+):([0-9]{1,18})")
_BAR_WIDTH = 30
_LONGEST_TABLE = 40
_SHOWN_BYTES = 12
_SHOWN_NUMBERS = 6
_SHOWN_TEXT = 60


def describe(path: str | Path) -> str:
    """What is in a data set: fields, splits, shards, labels, boxes or scans, rejects, padding and recipe.

    Only the manifest is read, so this is quick for any size.
    """
    manifest = read_manifest(path)
    splits = manifest.splits
    records = sum(split.records for split in splits.values())
    size = sum(map(_bytes, splits.values()))
    lines = [
        f"{manifest.name} {manifest.version}: {manifest.task}, {records:,} records, {human_bytes(size)}",
        f"in {path}",
        *_section(
            "Fields",
            table(
                ("name", "dtype", "shape", "axes", "encoding", "stored as"), map(_field_row, manifest.fields)
            ),
        ),
        "  (*) loaded on request: include=[...]",
        *_section(
            "Splits",
            table(("split", "records", "shards", "bytes", "per shard"), _split_rows(splits), right=(1, 2, 3)),
        ),
        *_section(
            "Labels", _label_lines(manifest) if label_field(manifest) is None else class_lines(manifest)
        ),
    ]
    if is_volumetric(manifest):
        lines += _section("Scans", scan_lines(manifest))
        lines += _section("Findings and corrections", finding_lines(manifest))
    if any(split.statistics.get("boxes_per_image") for split in splits.values()):
        lines += _section("Boxes", _box_lines(splits))
    volumes = is_volumetric(manifest)
    lines += _section("Voxels" if volumes else "Pixels", _pixel_lines(splits, volumes=volumes))
    lines += _section("Rejected", _reject_lines(manifest))
    lines += _section("Recipe", [f"{name}: {_json(value)}" for name, value in manifest.recipe.items()])
    lines += _section("Source", [f"{name}: {_json(value)}" for name, value in manifest.inputs.items()])
    lines += [
        "",
        "Written by " + ", ".join(f"{name} {version}" for name, version in manifest.software.items()),
    ]
    return printable("\n".join(lines))


def describe_record(path: str | Path, record: str) -> str:
    """One record: where it lies, where it came from, its features, and its boxes or its classes and its geometry.

    Args:
        path: the data set's folder.
        record: `split:number`; numbers begin at 0 and follow the shards' order.

    Raises:
        UsageError: there is no such record; says which there are.
        CorruptFileError: its bytes are not what was written.
    """
    manifest = read_manifest(path)
    shard, number = find_record(manifest, record)
    offset, features = _read_record(Path(path), shard, number)
    lines = [
        f"{manifest.name} {manifest.version}, record {record}",
        "",
        f"  file    {shard.file}, record {number}, byte {offset:,}",
        f"  id      {text_of(features, 'image/source_id')}",
        f"  source  {text_of(features, 'image/filename')} (key {text_of(features, 'image/key/source')!r})",
        *_image_lines(features, manifest),
    ]
    if "image/class/label" in features:
        labels = [int(label) for label in features["image/class/label"]]
        named = [f"{label} {manifest.labels.get(label, '(not in the label map)')}" for label in labels]
        lines.append(f"  label   {', '.join(named) or 'no class'}")
    lines += record_lines(features, manifest)
    if "image/object/class/label" in features:
        lines += _section("Boxes, in pixels of the stored image", _boxes_table(features, manifest))
    rows = [(key, *_shortened(value)) for key, value in sorted(features.items())]
    lines += _section("Features", table(("key", "dtype", "length", "values"), rows, right=(2,)))
    return printable("\n".join(lines))


def find_record(manifest: Manifest, record: str) -> tuple[Shard, int]:
    """The shard of `split:number`, and the record's number within it.

    Raises:
        UsageError: the text is not of that form, or there is no such record.
    """
    matched = _RECORD.fullmatch(record)
    if not matched:
        raise UsageError(
            f"record {record!r}: expected SPLIT:NUMBER, such as {next(iter(manifest.splits), 'train')}:0"
        )
    split, number = manifest.split(matched[1]), int(matched[2])
    if number >= split.records:
        known = f"0 to {split.records - 1}" if split.records else "none"
        raise UsageError(
            f"record {record}: {matched[1]} has {split.records:,} records; known numbers: {known}"
        )
    for shard in split.shards:
        if number < shard.records:
            return shard, number
        number -= shard.records
    raise AssertionError("the split's records are the sum of its shards'")


def printable(text: str) -> str:
    """The text without what a terminal would obey or could not show: control characters, lone surrogates.

    >>> printable("a\\x1b[31m\\udcff")
    'a\\\\x1b[31m\\\\udcff'
    """
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _read_record(folder: Path, shard: Shard, number: int) -> tuple[int, Decoded]:
    index_name = index_file(shard.file)
    try:
        index = ShardIndex.from_bytes((folder / index_name).read_bytes(), str(folder / index_name))
        if number >= len(index):
            raise CorruptFileError(
                f"{folder / index_name}: holds {len(index)} records, the manifest says {shard.records}"
            )
        offset = int(index.offsets[number])
        with (folder / shard.file).open("rb") as stream:
            stream.seek(offset)
            data = stream.read(int(index.lengths[number]) + HEADER_BYTES + FOOTER_BYTES)
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{folder / shard.file}: record {number} cannot be read: {error}") from error
    try:
        return offset, decode_example(check_record(memoryview(data), 0, shard.file))
    except CorruptFileError as error:
        message = str(error).removeprefix(f"{shard.file}: record at byte 0: ")
        place = f"{folder / shard.file}: record {number} at byte {offset:,}"
        raise CorruptFileError(f"{place}: {message}; run `halofeed verify {folder}`") from error


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in (lines or ["none"]))]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bytes(split: Split) -> int:
    return sum(shard.bytes for shard in split.shards)


def _field_row(field: Field) -> tuple[str, ...]:
    shape = " x ".join(map(str, field.shape)) or "-"
    keys = field.keys[0] if len(field.keys) == 1 else f"{field.keys[0]} and {len(field.keys) - 1} more"
    return (
        field.name + ("*" if field.optional else ""),
        field.dtype,
        shape,
        ", ".join(field.axes) or "-",
        field.encoding,
        keys,
    )


def _split_rows(splits: Mapping[str, Split]) -> Iterator[tuple[str, ...]]:
    for name, split in splits.items():
        counts = [shard.records for shard in split.shards]
        spread = f"{min(counts):,} to {max(counts):,} records" if counts else "-"
        yield name, f"{split.records:,}", str(len(counts)), human_bytes(_bytes(split)), spread


def _label_lines(manifest: Manifest) -> list[str]:
    splits = manifest.splits
    counts = {name: split.statistics.get("labels", {}) for name, split in splits.items()}
    totals = {
        label: sum(int(count.get(str(label), 0)) for count in counts.values()) for label in manifest.labels
    }
    most = max(totals.values(), default=0) or 1
    rows = [
        (
            label,
            manifest.labels[label],
            *(f"{int(counts[name].get(str(label), 0)):,}" for name in splits),
            "#" * -(-total * _BAR_WIDTH // most),
        )
        for label, total in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    ]
    unit = "boxes" if manifest.task == "detection" else "images"
    shown = table(("id", "name", *splits, unit), rows[:_LONGEST_TABLE], right=(0, *range(2, 2 + len(splits))))
    left = rows[_LONGEST_TABLE:]
    return [*shown, f"and {len(left):,} more"] if left else shown


def _box_lines(splits: Mapping[str, Split]) -> list[str]:
    lines = []
    for name, split in splits.items():
        per_image = {
            int(boxes): images for boxes, images in split.statistics.get("boxes_per_image", {}).items()
        }
        total, pictures = sum(boxes * count for boxes, count in per_image.items()), sum(per_image.values())
        if not pictures:
            continue
        empty = plural(per_image.get(0, 0), "image")
        lines.append(
            f"{name}: {plural(total, 'box', 'boxes')} in {plural(pictures, 'image')}, {min(per_image)} to "
            f"{max(per_image)} per image, {total / pictures:.1f} on average, {empty} without"
        )
        cut = split.statistics.get("cut", {})
        if cut.get("images"):
            boxes, images = plural(cut["boxes"], "box", "boxes"), plural(cut["images"], "image")
            lines.append(f"  beyond max_boxes, and cut by the loader: {boxes} in {images}")
        lines += [f"  {what}: {count:,}" for what, count in split.statistics.get("boxes", {}).items()]
    return lines


def _pixel_lines(splits: Mapping[str, Split], *, volumes: bool) -> list[str]:
    def largest(split: Split) -> str:
        height, width = split.statistics.get("largest", (0, 0))
        return "" if volumes else f"; largest {height} x {width}"

    lines = []
    for name, split in splits.items():
        padding = split.statistics.get("padding", {})
        stored, padded = padding.get("stored_pixels", 0), padding.get("padded_pixels", 0)
        if not stored:
            continue
        lines.append(
            f"{name}: {stored:,} stored, {100 * padded / stored:.1f} % of them padding" + largest(split)
        )
        pixels = split.statistics.get("pixels", {})
        if pixels.get("sum"):
            means, deviations = mean_and_deviation(split.statistics)
            lines.append(
                f"  mean {_joined(means)}, standard deviation {_joined(deviations)} "
                f"(per channel, of every {ROW_STEP}th row, without padding)"
            )
        lines += _intensity_lines(split)
        lines += [f"  {note}: {count:,}" for note, count in split.statistics.get("notes", {}).items()]
        lines += [
            f"  warning: {text}: {count:,}" for text, count in split.statistics.get("warnings", {}).items()
        ]
    return lines


def _intensity_lines(split: Split) -> list[str]:
    """The figures for normalising volumes: of what lies above a scan's least value, and of what is labelled."""
    lines = []
    for kind in split.statistics.get("intensities", {}):
        counts = counts_of(split.statistics, kind)
        if counts.total:
            mean, deviation = volume_mean_and_deviation(counts)
            ends = percentile(counts, 0.5), percentile(counts, 99.5)
            lines.append(
                f"  {kind}: mean {mean:.2f}, standard deviation {deviation:.2f}, percentiles 0.5 and 99.5 "
                f"at {ends[0]:g} and {ends[1]:g} (as stored, of every {VOLUME_ROW_STEP}th row)"
            )
    return lines


def _joined(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _reject_lines(manifest: Manifest) -> list[str]:
    ordered = sorted(manifest.rejected.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{count:,} x {reason}" for reason, count in ordered]
    return [*lines, f"each is named in {REJECTED}"] if lines else []


def _image_lines(features: Decoded, manifest: Manifest) -> list[str]:
    image = next((field for field in manifest.fields if IMAGE_KEY in field.keys), None)
    data = bytes_of(features, IMAGE_KEY)
    if image is None or data is None or "depth" in image.axes:
        return []
    sizes = [
        " x ".join(str(integer_of(features, f"image/{prefix}{side}")) for side in ("height", "width"))
        for prefix in ("", "unpadded/", "source/")
    ]
    pixels = (integer_of(features, "image/height") or 0) * (integer_of(features, "image/width") or 0)
    plain = pixels * image.shape[-1] * item_bytes(image.dtype)
    share = (
        f", {100 * len(data) / plain:.0f} % of the plain pixels" if image.encoding != "raw" and plain else ""
    )
    return [
        f"  image   {sizes[0]} x {image.shape[-1]} {image.dtype}, {text_of(features, 'image/format')}, "
        f"{human_bytes(len(data))}{share} (height x width)",
        f"          {sizes[1]} without padding, {sizes[2]} in the source",
    ]


def _boxes_table(features: Decoded, manifest: Manifest) -> list[str]:
    sides = [integer_of(features, "image/height") or 0, integer_of(features, "image/width") or 0] * 2
    corners = [features.get(f"image/object/bbox/{name}", []) for name in ("ymin", "xmin", "ymax", "xmax")]
    labels = features["image/object/class/label"]
    flags = {
        name: features.get(f"image/object/{name}", []) for name in ("is_crowd", "difficult", "truncated")
    }
    areas = features.get("image/object/area", [])
    if not len(labels):
        return []
    rows = [
        (
            number,
            f"{int(label)} {manifest.labels.get(int(label), '(not in the label map)')}",
            *(
                f"{float(column[number]) * side:.1f}" if number < len(column) else "-"
                for column, side in zip(corners, sides, strict=True)
            ),
            f"{float(areas[number]):.1f}" if number < len(areas) else "-",
            ", ".join(
                [
                    *(name for name, values in flags.items() if number < len(values) and values[number]),
                    *filter(None, [labeled_keypoints(features, number)]),
                ]
            ),
        )
        for number, label in enumerate(labels)
    ]
    return table(
        ("", "label", "ymin", "xmin", "ymax", "xmax", "area", "flags"), rows, right=(0, 2, 3, 4, 5, 6)
    )


def _shortened(value: Any) -> tuple[str, int, str]:
    """A feature's dtype, length and values, cut to fit a line."""
    if isinstance(value, np.ndarray):
        shown = ", ".join(
            f"{item:.6g}" if value.dtype.kind == "f" else str(item)
            for item in value[:_SHOWN_NUMBERS].tolist()
        )
        return str(value.dtype), len(value), shown + (", ..." if len(value) > _SHOWN_NUMBERS else "")
    if len(value) == 1 and _as_text(value[0]) is None:
        data = value[0]
        ending = " ..." if len(data) > _SHOWN_BYTES else ""
        return "bytes", 1, f"{len(data):,} bytes: {bytes(data[:_SHOWN_BYTES]).hex(' ')}{ending}"
    texts = [_as_text(item) for item in value[:_SHOWN_NUMBERS]]
    shown = ", ".join(
        f"{len(item):,} bytes" if text is None else text for item, text in zip(value, texts, strict=False)
    )
    return "bytes", len(value), shown + (", ..." if len(value) > _SHOWN_NUMBERS else "")


def _as_text(data: memoryview) -> str | None:
    """The value as quoted text, shortened; None where it is no text."""
    if len(data) > 4096:
        return None
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return None
    if not text.isprintable():
        return None
    return _json(text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "...")
