"""Volume file with a checked header, and its conversion into a scan or a mask.

The readers of NIfTI, NRRD, MetaImage, MGH and MINC return a `VolumeFile`. They raise SourceError of stage `read` if a
file is missing. They raise SourceError of stage `decode` if the file has another format or an unsupported type, or is
damaged, truncated or too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.annotations.class_names import BACKGROUND, LabelCoding
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.segment_names import LabelSegment, merge_layers
from halofeed.prep.formats.volume.volume_header import Content, StoredVoxels
from halofeed.prep.formats.volume.voxel_values import (
    check_byte_count,
    label_memory,
    plan_conversion,
    read_labels,
    read_values,
    reads_in_place,
    value_bytes,
)
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan, OverlapRule, Scan
from halofeed.prep.voxels.label_volumes import classes_of_colors
from halofeed.schemas.findings import FindingName
from halofeed.system.memory import with_margin
from halofeed.system.wording import plural


@dataclass(frozen=True, kw_only=True)
class VolumeFile:
    """Checked header of a volume file, and the bytes that hold its voxels.

    These formats do not state whether values are Hounsfield units. A mask may hold integers or floats without a
    fraction; it is rescaled if the header has a slope or an intercept.

    Args:
        stored: storage format of the voxels.
        grid: grid of the volume.
        findings: flaws and other observations, in a fixed order.
        content: the bytes with the voxels.
        files: relative paths of the files that were read, in any order.
        segments: names that the file gives to the values of a mask.

    Raises:
        SourceError: the file has too few or too many bytes. Compressed files are checked again when they are read.
    """

    stored: StoredVoxels
    grid: Grid
    findings: tuple[Finding, ...]
    content: Content
    files: tuple[str, ...]
    segments: tuple[LabelSegment, ...] = ()

    def __post_init__(self) -> None:
        check_byte_count(self.stored, self.content)

    def scan(self, options: ScanOptions) -> Scan:
        """Return the file as a scan of unknown unit.

        Raises:
            SourceError: the voxels cannot be read. They are read at once if `non_finite_value` may replace some.
        """
        stored, content, findings = self.stored, self.content, self.findings
        replacing = stored.dtype.kind == "f" and options.non_finite_value is not None
        conversion = plan_conversion(stored, options.non_finite_value if replacing else None)
        held: NDArray[Any] | None = None
        if replacing:
            options.reserve(with_margin(content.held_bytes + value_bytes(stored, conversion)))
            # The finding about replaced voxels must be known now, so all voxels are read.
            held, replaced = read_values(stored, content, conversion)
            detail = f"{plural(replaced, 'voxel')} set to {options.non_finite_value:g}"
            findings += (Finding.corrected(FindingName.VOXELS_NOT_FINITE, detail),) * (replaced > 0)
        in_place = reads_in_place(stored, content, conversion)
        return Scan(
            grid=self.grid,
            channels=stored.channels,
            dtype=conversion.dtype,
            unit="",
            modality="",
            findings=findings,
            files=tuple(sorted(set(self.files))),
            read=lambda: _arrange(
                stored, read_values(stored, content, conversion)[0] if held is None else held
            ),
            held_bytes=content.held_bytes,
            read_bytes=0 if in_place else value_bytes(stored, conversion),
        )

    def mask(self, options: ScanOptions) -> MaskScan:
        """Return the file as a label volume.

        Raises:
            SourceError: the file has several channels without segments; or the voxels cannot be read. They are read at
                once if voxels that are not numbers become background.
        """
        stored, content, findings = self.stored, self.content, self.findings
        coding = options.coding if not self.segments else LabelCoding()
        listed = _coded_segments(coding, stored) or self.segments
        has_layers = bool(listed) and (bool(coding) or all(one.layer < stored.channels for one in listed))
        if stored.channels > 1 and not has_layers:
            raise _several_channels(stored)
        held: NDArray[Any] | None = None
        read_bytes, item_bytes = label_memory(stored)
        if options.non_finite_labels == "background" and stored.dtype.kind == "f":
            options.reserve(with_margin(content.held_bytes + read_bytes))
            # The finding about replaced voxels must be known now, so all voxels are read.
            held, replaced = read_labels(stored, content, non_finite_is_background=True)
            detail = f"{plural(replaced, 'voxel')} became background"
            findings += (Finding.corrected(FindingName.MASK_VOXELS_NOT_FINITE, detail),) * (replaced > 0)

        def read() -> NDArray[Any]:
            return read_labels(stored, content)[0] if held is None else held

        def read_single() -> NDArray[Any]:
            if stored.channels > 1:
                raise _several_channels(stored)
            return read().reshape(stored.shape)

        segments = dict(enumerate(listed, start=1))
        kept = self._select(segments, options)
        if lost := [one.name for number, one in segments.items() if number not in kept]:
            findings += (Finding.noted(FindingName.CLASSES_LEFT_OUT, ", ".join(lost[:20])),)

        def read_classes(ids: Mapping[int, int], overlap: OverlapRule) -> tuple[NDArray[Any], int]:
            values = _arrange(stored, read())
            layers = _layers(values, coding)
            ignored = options.ignore_label
            more = {} if ignored is None or 0 not in ids else {ignored: ids[0]}

            def is_left_out(value: int) -> bool:
                return options.classes.target(str(value)) is None

            known = {**dict.fromkeys(segments, 0), **ids}
            return merge_layers(layers, segments, known, overlap, is_left_out, more)

        return MaskScan(
            grid=self.grid,
            names={number: one.name for number, one in kept.items()},
            values={number: one.value for number, one in kept.items()} if stored.channels == 1 else {},
            findings=findings,
            files=tuple(sorted(set(self.files))),
            read=read_single,
            read_classes=read_classes if segments else None,
            held_bytes=content.held_bytes,
            # Segments need two more arrays: the ids of a layer, and those of the layers before it.
            read_bytes=read_bytes + (8 * stored.value_count if segments else 0),
            value_bytes=item_bytes,
        )

    @staticmethod
    def _select(segments: Mapping[int, LabelSegment], options: ScanOptions) -> dict[int, LabelSegment]:
        """Return the segments that the user's choice keeps, by number.

        Raises:
            SourceError: two of them have one name, and the choice does not distinguish their values; or the choice
                names a class whose name differs only in spelling from a segment that it drops.
        """
        classes = options.classes
        kept = {
            number: one
            for number, one in segments.items()
            if classes.target(one.name, one.value) is not None or classes.takes(one.name)
        }
        names = [one.name for one in kept.values() if classes.target(one.name, one.value) == one.name]
        if twice := next((name for name in names if names.count(name) > 1), None):
            listed = ", ".join(str(one.value) for one in kept.values() if one.name == twice)
            detail = f"{twice!r} has values {listed}; rename one of them in the file"
            raise SourceError("annotation", "label gives one name to several values", detail)
        return kept


def _several_channels(stored: StoredVoxels) -> SourceError:
    detail = (
        f"{plural(stored.channels, 'channel')}; a mask has one value per voxel. If a channel is a class, "
        "name them in order with "
        "--label-channels, such as background,liver; if colors are classes, with --label-colors, such as ff0000=liver"
    )
    return SourceError("decode", "mask has several channels", detail)


def _coded_segments(coding: LabelCoding, stored: StoredVoxels) -> tuple[LabelSegment, ...]:
    """Return the classes of a mask with a channel or a color per class; () without such a coding.

    Raises:
        SourceError: the file has another number of channels, or colors of more than 8 bits.
    """
    expected = 3 if coding.colors else len(coding.channels)
    if coding and stored.channels != expected:
        named = "red, green, blue" if coding.colors else ", ".join(coding.channels)
        detail = f"expected {expected} ({named}), got {stored.channels}"
        raise SourceError("annotation", "label has another number of channels", detail)
    if coding.colors and stored.dtype.itemsize > 1:
        raise SourceError("annotation", "colors of more than 8 bits are no classes", f"{stored.dtype.name}")
    if coding.colors:
        return tuple(LabelSegment(name=name, value=number) for number, name in coding.names.items())
    return tuple(LabelSegment(name=name, value=1, layer=number - 1) for number, name in coding.names.items())


def _layers(values: NDArray[Any], coding: LabelCoding) -> list[NDArray[Any]]:
    """Return the layers of stored values [depth, height, width] of a mask [depth, height, width, channel].

    Raises:
        SourceError: a channel of one class holds several values besides 0, or a color has no class.
    """
    if coding.colors:
        return [np.stack([classes_of_colors(plane, coding.numbers) for plane in values])]
    layers = [values[..., channel] for channel in range(values.shape[-1])]
    if not coding:
        return layers
    kept = [(name, layer) for name, layer in zip(coding.channels, layers, strict=True) if name != BACKGROUND]
    for name, layer in kept:
        if ((layer != 0) & (layer != layer.max())).any():
            raise SourceError(
                "annotation", "channel of a class holds several values", f"{name}: 0 and one other"
            )
    return [(layer != 0).astype(np.uint8) for _, layer in kept]


def _arrange(stored: StoredVoxels, values: NDArray[Any]) -> NDArray[Any]:
    """Return the flat values as a view [depth, height, width, channel]."""
    if stored.interleaved or stored.channels == 1:
        return values.reshape(*stored.shape, stored.channels)
    return np.moveaxis(values.reshape(stored.channels, *stored.shape), 0, -1)
