"""What is in a segmentation data set, or in one of its records, as lines for a terminal?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.display import display_of
from halofeed.inspection.lines import percent, plural, table
from halofeed.inspection.records import IMAGE_KEY, bytes_of, integer_of, text_of
from halofeed.inspection.segmentation import (
    AXES,
    affine_of,
    class_channels,
    class_counts,
    extent_of,
    image_voxels,
    label_map,
    oblique_degrees,
    orientation_of,
    triple_of,
)
from halofeed.prep.statistics import merge_statistics
from halofeed.prep.volume.intensity import as_numbers
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.sizes import human_bytes
from halofeed.schemas.tfexample import Decoded

_MOST = 40
_SLICES = 16


def class_lines(manifest: Manifest) -> list[str]:
    """Per class in how many records it is, its pixels or voxels, and its share of all that are labelled."""
    splits = manifest.splits
    total = merge_statistics(split.statistics for split in splits.values())
    voxels = {int(value): int(count) for value, count in total.get("label_voxels", {}).items()}
    foreground = int(total.get("foreground_voxels", 0))
    unit = "voxels" if total.get("intensities") else "pixels"
    order = sorted(manifest.labels, key=lambda label: (label == 0, -voxels.get(label, 0), label))
    rows = [
        (
            label,
            manifest.labels[label],
            *(f"{int(split.statistics.get('labels', {}).get(str(label), 0)):,}" for split in splits.values()),
            f"{voxels.get(label, 0):,}",
            percent(voxels.get(label, 0) / foreground) if label and foreground else "-",
        )
        for label in order
    ]
    lines = table(
        ("id", "name", *splits, unit, "of the foreground"),
        rows[:_MOST],
        right=(0, *range(2, 4 + len(splits))),
    )
    if len(rows) > _MOST:
        lines.append(f"and {len(rows) - _MOST:,} more")
    records = sum(split.records for split in splits.values())
    labelled, everything = int(total.get("labelled", 0)), foreground + voxels.get(0, 0)
    share = percent(foreground / everything) if everything else "0 %"
    lines.append(f"(counts per split are records) foreground: {share} of the {unit} of labelled records")
    lines.append(
        f"{labelled:,} of {plural(records, 'record')} have a label" + _unlabelled(records - labelled)
    )
    if channels := class_channels(manifest):
        lines.append("classes overlap: a voxel counts for each, so that shares may add to more than 100 %")
        lines.append(
            f"channels of the label, in order: {', '.join(manifest.labels[label] for label in channels)}"
        )
    return lines


def scan_lines(manifest: Manifest) -> list[str]:
    """The sources' modality, spacing and shape, the stored shape and what its values are."""
    total = merge_statistics(split.statistics for split in manifest.splits.values())
    image = next(field for field in manifest.fields if IMAGE_KEY in field.keys)
    display = display_of(manifest, total)
    shape = " x ".join(map(str, image.shape[:3]))
    spacing = manifest.recipe.get("spacing_mm") or ()
    stated = " x ".join(f"{value:g}" for value in spacing)
    lines = [
        f"stored: {shape} x {image.shape[3]} {image.dtype} (depth x height x width x channel), "
        + (f"every {stated} mm" if spacing else "each scan at its own spacing")
        + f", by {manifest.recipe.get('fit', 'an unknown way')}",
        display.words,
    ]
    if tiles := int(total.get("tiles", 0)):
        records = sum(split.records for split in manifest.splits.values())
        lines.append(f"{records:,} tiles of {plural(records - tiles, 'scan')}")
    for name, what in (
        ("modalities", "modality"),
        ("spacings_mm", "spacing in mm"),
        ("source_shapes", "shape"),
    ):
        found = sorted(total.get(name, {}).items(), key=lambda item: (-item[1], item[0]))
        lines.append(f"sources' {what}: " + (_counted(found) or "not counted"))
    return lines


def finding_lines(manifest: Manifest) -> list[str]:
    """What was found of the sources, and in how many scans."""
    total = merge_statistics(split.statistics for split in manifest.splits.values())
    ordered = sorted(total.get("findings", {}).items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:,} x {name}" for name, count in ordered]


def record_lines(features: Decoded, manifest: Manifest) -> list[str]:
    """The geometry, values and classes of one record; nothing of a record that is not segmentation's."""
    label = label_map(features, manifest)
    volume = image_voxels(features, manifest) if "image/depth" in features else None
    lines = [] if volume is None else _geometry_lines(features, manifest, volume)
    if label is None:
        return lines
    if not integer_of(features, "image/labelled"):
        return [*lines, "  label   none: the source has no mask, so that it is 0 throughout"]
    classes = class_counts(label, manifest)
    counts, foreground = {**classes.voxels}, classes.foreground
    unit = "pixels" if volume is None else "voxels"
    named = f"{', '.join(_name(manifest, value) for value in counts if value) or 'nothing but background'}"
    rows = [
        (value, _name(manifest, value), f"{count:,}", percent(count / foreground) if value else "-")
        for value, count in sorted(counts.items(), key=lambda item: (item[0] == 0, -item[1]))
    ]
    shown = table(("id", "name", unit, "of the foreground"), rows, right=(0, 2, 3))
    head = f"  label   {named}; {percent(foreground / label.size)} of the {unit} are foreground"
    return [*lines, head, "", "Classes", *(f"  {line}" for line in shown)]


def _geometry_lines(features: Decoded, manifest: Manifest, volume: NDArray[Any]) -> list[str]:
    field = next(field for field in manifest.fields if IMAGE_KEY in field.keys)
    size = " x ".join(map(str, volume.shape))
    data = bytes_of(features, IMAGE_KEY)
    lines = [
        f"  image   {size} {field.dtype}, {text_of(features, 'image/format')}, "
        f"{human_bytes(len(data or b''))} (depth x height x width x channel)",
        f"  spacing {_numbers(triple_of(features, 'image/spacing_mm'))} mm",
    ]
    affine = affine_of(features)
    if affine is not None and np.isfinite(affine).all():
        grows = ", ".join(
            f"{axis} to {to}" for axis, (_, to) in zip(AXES, orientation_of(affine), strict=True)
        )
        tilt = oblique_degrees(affine)
        lines.append(f"  axes    {grows}" + (f"; {tilt:.1f} degrees oblique" if tilt >= 0.05 else ""))
        lines += [
            f"  {'affine ' if row == 0 else '       '} [{'  '.join(f'{value:11.4f}' for value in affine[row])}]"
            for row in range(4)
        ]
    source = triple_of(features, "image/source/shape", "i")
    first = affine_of(features, "image/source/affine")
    if source is not None:
        spacing = "" if first is None else f" every {_numbers(np.linalg.norm(first[:3, :3], axis=0))} mm"
        lines.append(f"  source  {' x '.join(map(str, source.tolist()))}{spacing}, as its file lists them")
    extent = extent_of(features)
    if extent is not None:
        inside = int(np.prod(extent[1] - extent[0]))
        spans = ", ".join(f"{axis} {a} to {b}" for axis, a, b in zip(AXES, *extent.tolist(), strict=True))
        padding = percent(1 - inside / max(1, int(np.prod(volume.shape[:3]))))
        lines.append(f"  extent  {spans}; {padding} of the voxels are padding")
    tile, origin = integer_of(features, "image/tile"), triple_of(features, "image/tile/origin", "i")
    if origin is not None and (tile or origin.any()):
        lines.append(f"  tile    {tile}, from voxel {_numbers(origin)} of the scan's grid")
    return [*lines, *_value_lines(volume, field.dtype)]


def _value_lines(volume: NDArray[Any], dtype: str) -> list[str]:
    """Least, greatest and mean value of each channel, some slices at a time."""
    lines = []
    for channel in range(volume.shape[3]):
        low, high, total = np.inf, -np.inf, 0.0
        for start in range(0, len(volume), _SLICES):
            part = as_numbers(volume[start : start + _SLICES, ..., channel], dtype)
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


def _counted(found: list[tuple[str, Any]], most: int = 8) -> str:
    shown = ", ".join(f"{name.replace('x', ' x ')} ({count:,})" for name, count in found[:most])
    return shown + (f" and {len(found) - most:,} more" if len(found) > most else "")


def _unlabelled(count: int) -> str:
    return f"; {count:,} without, for prediction: their label is 0 throughout" if count else ""
