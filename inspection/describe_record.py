"""Text description of one record of a data set, for a terminal."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import open_files, open_manifest
from halofeed.inspection.scan_objects import TABLE_HEADER, table_rows
from halofeed.inspection.stored_records import (
    VOLUME_AXES,
    ClassCounts,
    StoredShard,
    affine_of,
    array_of,
    bytes_of,
    class_counts,
    extent_of,
    integer_of,
    is_volumetric,
    label_map,
    oblique_degrees,
    orientation_of,
    stored_image,
    text_of,
)
from halofeed.inspection.words import escape_unprintable, percent, table, titled_lines
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from halofeed.schemas.kinds import SPACING
from halofeed.schemas.manifest import Manifest, Shard
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Decoded
from halofeed.system.console import human_bytes
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

_RECORD = re.compile(r"(.+):([0-9]{1,18})")
_SHOWN_BYTES = 12
_MAX_BOXES = 1000
_UPRIGHT_DEGREES = 0.5
"""Angle up to which an object counts as upright, as its corners may be rounded."""
_SHOWN_NUMBERS = 6
_SHOWN_TEXT = 60
_SLICES_AT_ONCE = 16


def describe_record(path: str | os.PathLike[str], record: str) -> str:
    """Describe one record: its place and source, its features, and its boxes or its classes and geometry.

    Args:
        path: folder or address of the data set.
        record: `split:number`; numbers begin at 0 and follow the order of the shards.

    Raises:
        UsageError: there is no such record; the message gives the valid numbers.
        CorruptFileError: its bytes are not what was written.
    """
    files = open_files(path)
    manifest = open_manifest(files)
    shard, number = find_record(manifest, record)
    stored = StoredShard(files, shard)
    (offset, _), features = stored.byte_range(number), stored.features(number)
    lines = [
        f"{manifest.name} {manifest.version}, record {record}",
        "",
        f"  file    {shard.file}, record {number}, byte {offset:,}",
        f"  id      {text_of(features, keys.SOURCE_ID)!s:.80}",
        f"  source  {text_of(features, keys.FILENAME)!s:.4096} "
        f"(key {text_of(features, keys.KEY_SOURCE)!r:.4096})",
        *_image_lines(features, manifest),
    ]
    classes = features.get(keys.CLASS_LABEL)
    if isinstance(classes, np.ndarray) and classes.dtype == np.int64:
        labels = classes[:_MAX_BOXES].tolist()
        named = [f"{label} {manifest.labels.get(label, '(not in the label map)')}" for label in labels]
        lines.append(f"  label   {', '.join(named) or 'no class'}")
    lines += record_lines(features, manifest)
    if keys.OBJECT_CLASS_LABEL in features:
        in_volume = is_volumetric(manifest)
        title = (
            "Boxes, in voxels of the stored volume" if in_volume else "Boxes, in pixels of the stored image"
        )
        rows_of = _scan_boxes_table if in_volume else _boxes_table
        lines += titled_lines(title, rows_of(features, manifest))
    rows = [(key, *_shortened(value)) for key, value in sorted(features.items())]
    lines += titled_lines("Features", table(("key", "dtype", "length", "values"), rows, right=(2,)))
    return escape_unprintable("\n".join(lines))


def find_record(manifest: Manifest, record: str) -> tuple[Shard, int]:
    """Return the shard of `split:number`, and the number of the record within it.

    Raises:
        UsageError: the text has another form, or there is no such record.
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
            f"record {record}: {matched[1]} has {plural(split.records, 'record')}; known numbers: {known}"
        )
    for shard in split.shards:
        if number < shard.records:
            return shard, number
        number -= shard.records
    raise AssertionError("the split's records are the sum of its shards'")


def _image_lines(features: Decoded, manifest: Manifest) -> list[str]:
    image, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    if data is None or is_volumetric(manifest):
        return []
    sizes = [
        " x ".join(str(integer_of(features, key)) for key in sides)
        for sides in (keys.SIDES, keys.UNPADDED_SIDES, keys.SOURCE_SIDES)
    ]
    share = _share_of_plain(data, image, math.prod(integer_of(features, key) or 0 for key in keys.SIDES))
    return [
        f"  image   {sizes[0]} x {image.shape[-1]} {image.dtype}, {text_of(features, keys.FORMAT)}, "
        f"{human_bytes(len(data))}{share} (height x width)",
        f"          {sizes[1]} without padding, {sizes[2]} in the source",
        *_stated_lines(features, manifest),
    ]


def _stated_lines(features: Decoded, manifest: Manifest) -> list[str]:
    """Describe the fields that records may lack: spacing, laterality, view and body part of a picture."""
    lines, words = [], []
    for field in manifest.fields:
        if not field.may_be_absent:
            continue
        if field.name == SPACING:
            spacing = array_of(features, field.keys[0])
            lines = [
                f"  spacing {'not stated' if spacing is None else f'{_numbers(spacing)} mm, of stored pixels'}"
            ]
        elif word := text_of(features, field.keys[0]):
            words.append(f"{field.name.replace('_', ' ')} {word:.80}")
    return [*lines, *([f"  shows   {', '.join(words)}"] if words else [])]


def _share_of_plain(data: memoryview, image: Field, pixels: int) -> str:
    """Return the size of an image as a share of its plain numbers; "" for raw ones.

    Args:
        pixels: pixels of an image of its own size.
    """
    count = math.prod(image.shape) if image.form.has_one_shape else pixels * image.shape[-1]
    if image.is_raw or not count:
        return ""
    item_bytes = 2 if image.dtype == "bfloat16" else np.dtype(image.dtype).itemsize
    unit = "voxels" if "depth" in image.axes else "pixels"
    return f", {100 * len(data) / (count * item_bytes):.0f} % of the plain {unit}"


def _boxes_table(features: Decoded, manifest: Manifest) -> list[str]:
    labels = np.nan_to_num(_list_of(features, keys.OBJECT_CLASS_LABEL)).astype(np.int64)
    regions = _region_rows(features)
    if not len(labels) and not regions:
        return []
    rows = [
        (
            number,
            f"{label} {manifest.labels.get(label, '(not in the label map)')}",
            *_box_cells(features, number),
        )
        for number, label in enumerate(labels[:_MAX_BOXES].tolist())
    ]
    shown = table(
        ("", "label", "ymin", "xmin", "ymax", "xmax", "area", "flags"),
        [*rows, *regions],
        right=(0, 2, 3, 4, 5, 6),
    )
    return [*shown, f"and {len(labels) - len(rows):,} more"] if len(labels) > len(rows) else shown


def _region_rows(features: Decoded) -> list[tuple[object, ...]]:
    """Return a row of the table of boxes for each ignored region."""
    sides = np.array([integer_of(features, key) or 0 for key in keys.SIDES] * 2)
    columns = [_list_of(features, key) for key in keys.IGNORED_CORNERS]
    rows = list(zip(*(column[:_MAX_BOXES].tolist() for column in columns), strict=False))
    return [
        (
            "-",
            "ignored region",
            *(f"{share * side:.1f}" for share, side in zip(row, sides, strict=True)),
            "-",
            "",
        )
        for row in rows
    ]


def _scan_boxes_table(features: Decoded, manifest: Manifest) -> list[str]:
    labels = np.nan_to_num(_list_of(features, keys.OBJECT_CLASS_LABEL)).astype(np.int64).tolist()
    cells = list(table_rows(features))
    rows = [
        (number, f"{label} {manifest.labels.get(label, '(not in the label map)')}", *of_box)
        for number, (label, of_box) in enumerate(zip(labels, cells, strict=False))
    ]
    if not rows:
        return []
    shown = table(("", "label", *TABLE_HEADER), rows, right=(0, 2, 3, 4))
    return [*shown, f"and {len(labels) - len(rows):,} more"] if len(labels) > len(rows) else shown


def _list_of(features: Decoded, key: str) -> NDArray[Any]:
    """Return the numbers of a key; none if it is missing or holds bytes."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) else np.zeros(0)


def _box_cells(features: Decoded, box: int) -> tuple[str, ...]:
    """Return the sides in pixels, the area and the flags of a box as text; "-" for a number that is missing."""
    height, width = (integer_of(features, key) or 0 for key in keys.SIDES)
    scales = dict(zip((*keys.BOX_CORNERS, keys.OBJECT_AREA), (height, width, height, width, 1), strict=True))
    columns = {key: _list_of(features, key) for key in scales}
    numbers = [
        f"{float(columns[key][box]) * scale:.1f}" if box < len(columns[key]) else "-"
        for key, scale in scales.items()
    ]
    flags = [name for name, key in keys.OBJECT_FLAGS.items() if _list_of(features, key)[box : box + 1].any()]
    return (
        *numbers,
        ", ".join(filter(None, [*flags, turn_of(features, box), labeled_keypoints(features, box)])),
    )


def _shortened(value: Any) -> tuple[str, int, str]:
    """Return the dtype, length and values of a feature, shortened to fit a line."""
    if isinstance(value, np.ndarray):
        number = "{:.6g}" if value.dtype.kind == "f" else "{}"
        shown = [number.format(item) for item in value[:_SHOWN_NUMBERS].tolist()]
        return str(value.dtype), len(value), _joined(shown, len(value))
    if len(value) == 1 and _as_text(value[0]) is None:
        data = value[0]
        ending = " ..." if len(data) > _SHOWN_BYTES else ""
        return "bytes", 1, f"{plural(len(data), 'byte')}: {bytes(data[:_SHOWN_BYTES]).hex(' ')}{ending}"
    shown = [_as_text(item) or plural(len(item), "byte") for item in value[:_SHOWN_NUMBERS]]
    return "bytes", len(value), _joined(shown, len(value))


def _joined(shown: list[str], count: int) -> str:
    """Join the first of `count` values."""
    return ", ".join(shown) + (", ..." if count > _SHOWN_NUMBERS else "")


def _as_text(data: memoryview) -> str | None:
    """Return a value as quoted text, shortened; None if it is not text."""
    # A longer value is a file or an array.
    if len(data) > 4096:
        return None
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        return None
    # Bytes may be valid UTF-8 and no text.
    if not text.isprintable():
        return None
    return json.dumps(
        text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "...", ensure_ascii=False
    )


def turn_of(features: Decoded, box: int) -> str:
    """Return how far the first side of an object is turned, from its corners; "" for an upright one or without corners.

    The angle is clockwise, in pixels of the stored picture. All corners are among the values of the record.

    >>> sides = {"image/height": np.array([10]), "image/width": np.array([20])}
    >>> points = zip(keys.CORNER_POINTS, (0.0, 0.5, 0.5, 0.75, 1.0, 0.5, 0.5, 0.25))
    >>> turn_of(sides | {key: np.array([side]) for key, side in points}, 0)
    'turned by 45°'
    """
    columns = [_list_of(features, key)[box : box + 1] for key in keys.CORNER_POINTS]
    if any(len(column) != 1 for column in columns):
        return ""
    shares = np.concatenate(columns).astype(np.float64).reshape(4, 2)
    points = shares * [integer_of(features, key) or 0 for key in keys.SIDES]
    down, across = points[1] - points[0]
    angle = math.degrees(math.atan2(down, across))
    is_upright = abs(angle - 90 * round(angle / 90)) < _UPRIGHT_DEGREES
    return "" if is_upright or not math.isfinite(angle) else f"turned by {angle:.0f}°"


def labeled_keypoints(features: Decoded, box: int) -> str:
    """Return the number of labeled keypoints of a box and of all; "" for a record without keypoints.

    >>> features = {"image/object/keypoint/num": [3, 0], "image/object/keypoint/x": [0.5] * 34}
    >>> labeled_keypoints(features, 0)
    '3 of 17 keypoints'
    """
    key = OPTIONAL_ATTRIBUTES["keypoints"]
    labeled: Any = features.get(f"{key}/num", ())
    # A record of a stranger may hold anything here.
    if box >= len(labeled) or isinstance(labeled[0], memoryview):
        return ""
    return f"{int(labeled[box])} of {len(features.get(f'{key}/x', ())) // len(labeled)} keypoints"


def record_lines(features: Decoded, manifest: Manifest) -> list[str]:
    """Describe the geometry and values of a volume, and the classes of a segmentation; [] for other records."""
    label = label_map(features, manifest)
    volume = stored_image(features, manifest) if keys.DEPTH in features else None
    lines = [] if volume is None else _geometry_lines(features, manifest, volume)
    if label is None:
        return lines
    if not integer_of(features, keys.LABELLED):
        return [*lines, "  label   none: the source has no mask, so all its values are 0"]
    unit = "pixels" if volume is None else "voxels"
    return [*lines, *_class_lines(class_counts(label, manifest), manifest, unit, label.size)]


def _class_lines(classes: ClassCounts, manifest: Manifest, unit: str, size: int) -> list[str]:
    """Describe the classes of a label map of `size` values, the most frequent first and the background last."""
    order = sorted(classes.voxels.items(), key=lambda item: (item[0] == 0, -item[1]))
    rows = [
        (
            value,
            _name(manifest, value),
            f"{count:,}",
            percent(count / classes.foreground) if value else "-",
        )
        for value, count in order
    ]
    found = ", ".join(_name(manifest, value) for value in classes.voxels if value)
    share = f"{percent(classes.foreground / size)} of the {unit} are foreground"
    shown = table(("id", "name", unit, "of the foreground"), rows, right=(0, 2, 3))
    head = f"  label   {found or 'nothing but background'}; {share}"
    return [head, "", "Classes", *(f"  {line}" for line in shown)]


def _geometry_lines(features: Decoded, manifest: Manifest, volume: NDArray[Any]) -> list[str]:
    field = manifest.field("image")
    size = " x ".join(map(str, volume.shape))
    data = bytes_of(features, keys.ENCODED) or memoryview(b"")
    return [
        f"  image   {size} {field.dtype}, {text_of(features, keys.FORMAT)}, {human_bytes(len(data))}"
        f"{_share_of_plain(data, field, 0)} (depth x height x width x channel)",
        f"  spacing {_numbers(array_of(features, keys.SPACING_MM))} mm",
        *_affine_lines(affine_of(features)),
        *_source_lines(features),
        *_extent_lines(features, volume),
        *_tile_lines(features),
        *_value_lines(volume, field.dtype),
    ]


def _affine_lines(affine: NDArray[np.float64] | None) -> list[str]:
    """Describe the directions of the axes, and the matrix."""
    if affine is None or not np.isfinite(affine).all():
        return []
    directions = zip(VOLUME_AXES, orientation_of(affine), strict=True)
    grows = ", ".join(f"{axis} to {to}" for axis, (_, to) in directions)
    tilt = oblique_degrees(affine)
    oblique = f"; {tilt:.1f} degrees oblique" if tilt >= 0.05 else ""
    rows = ["  ".join(f"{value:11.4f}" for value in row) for row in affine]
    first, *others = rows
    return [f"  axes    {grows}{oblique}", f"  affine  [{first}]", *(f"          [{row}]" for row in others)]


def _source_lines(features: Decoded) -> list[str]:
    source, affine = array_of(features, keys.SOURCE_SHAPE, "i"), affine_of(features, keys.SOURCE_AFFINE)
    if source is None:
        return []
    spacing = "" if affine is None else f" every {_numbers(np.linalg.norm(affine[:3, :3], axis=0))} mm"
    return [f"  source  {' x '.join(map(str, source.tolist()))}{spacing}, as its file lists them"]


def _extent_lines(features: Decoded, volume: NDArray[Any]) -> list[str]:
    extent = extent_of(features)
    if extent is None:
        return []
    ends = zip(VOLUME_AXES, *extent.tolist(), strict=True)
    spans = ", ".join(f"{axis} {first} to {last}" for axis, first, last in ends)
    padding = 1 - int(np.prod(extent[1] - extent[0])) / max(1, int(np.prod(volume.shape[:3])))
    return [f"  extent  {spans}; {percent(padding)} of the voxels are padding"]


def _tile_lines(features: Decoded) -> list[str]:
    tile, origin = integer_of(features, keys.TILE), array_of(features, keys.TILE_ORIGIN, "i")
    # A scan that is one record is tile 0 at the origin, which is not worth a line.
    if origin is None or not (tile or origin.any()):
        return []
    return [f"  tile    {tile}, from voxel {_numbers(origin)} of the scan's grid"]


def _value_lines(volume: NDArray[Any], dtype: str) -> list[str]:
    """Describe the least, greatest and mean value of each channel, in groups of slices to bound the memory."""
    lines = []
    for channel in range(volume.shape[3]):
        low, high, total = np.inf, -np.inf, 0.0
        for start in range(0, len(volume), _SLICES_AT_ONCE):
            part = as_numbers(volume[start : start + _SLICES_AT_ONCE, ..., channel], dtype)
            low, high = min(low, float(part.min())), max(high, float(part.max()))
            total += float(part.sum(dtype=np.float64))
        which = f" of channel {channel}" if volume.shape[3] > 1 else ""
        mean = total / (volume.size // volume.shape[3])
        lines.append(f"  values  {low:.6g} to {high:.6g}, mean {mean:.6g}{which}, padding included")
    return lines


def _name(manifest: Manifest, value: int) -> str:
    return manifest.labels.get(value, f"{value} (not in the label map)")


def _numbers(values: NDArray[Any] | None) -> str:
    return "unknown" if values is None else " x ".join(f"{value:.4g}" for value in values.tolist())
