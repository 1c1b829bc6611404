"""How a header that is sound, and the bytes that hold its voxels, become a scan or a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume.segment_names import Segment, classes_of_layers
from halofeed.prep.formats.volume.volume_header import Content, StoredVoxels
from halofeed.prep.formats.volume.voxel_values import (
    check_byte_count,
    label_bytes,
    plan_conversion,
    read_labels,
    read_values,
    reads_in_place,
    value_bytes,
)
from halofeed.prep.geometry.scan import Finding, Grid, Mask, Overlap, Scan
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.memory import with_margin


@dataclass(frozen=True, kw_only=True)
class VolumeFile:
    """A header that is sound, and the bytes that hold its voxels, which are as many as it says.

    No file of these formats says that its values are Hounsfield units. A mask may hold integers, or floats that are
    whole numbers; it is rescaled where the header says so.

    Args:
        findings: what is odd about the file, in a fixed order.
        files: that were read: relative paths in any order.
        segments: the names that the file gives to values, if it is a mask.

    Raises:
        SourceError: voxels are missing or left over, as far as the header shows it; the rest shows when they are read.
    """

    stored: StoredVoxels
    grid: Grid
    findings: tuple[Finding, ...]
    content: Content
    files: tuple[str, ...]
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        check_byte_count(self.stored, self.content)

    def scan(self, options: ScanOptions) -> Scan:
        """The file as a scan, whose unit is not known.

        Raises:
            SourceError: of floats, where voxels that are no number are to be set, since they are then read at once.
        """
        stored, content, findings = self.stored, self.content, self.findings
        replacing = stored.dtype.kind == "f" and options.non_finite_value is not None
        conversion = plan_conversion(stored, options.non_finite_value if replacing else None)
        held: NDArray[Any] | None = None
        if replacing:
            options.need(with_margin(len(content.data) + value_bytes(stored, conversion)))
            # A correction is part of the findings, and only the voxels show whether there is one.
            held, replaced = read_values(stored, content, conversion)
            detail = f"{replaced} voxels set to {options.non_finite_value:g}"
            findings += (Finding.corrected("voxels that are no number", detail),) * (replaced > 0)
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
            held_bytes=len(content.data),
            read_bytes=0 if in_place else value_bytes(stored, conversion),
        )

    def mask(self, options: ScanOptions) -> Mask:
        """The file as a label volume.

        Raises:
            SourceError: it has several channels; or as `scan`, where such voxels are to be the background.
        """
        stored, content, findings = self.stored, self.content, self.findings
        is_layered = bool(self.segments) and all(one.layer < stored.channels for one in self.segments)
        if stored.channels > 1 and not is_layered:
            detail = f"{stored.channels} channels; a mask has one value a voxel"
            raise SourceError("decode", "mask has several channels", detail)
        held: NDArray[Any] | None = None
        read_bytes, item_bytes = label_bytes(stored)
        if options.non_finite_labels == "background" and stored.dtype.kind == "f":
            options.need(with_margin(len(content.data) + read_bytes))
            # A correction is part of the findings, and only the voxels show whether there is one.
            held, replaced = read_labels(stored, content, non_finite_is_background=True)
            detail = f"{replaced} voxels taken for the background"
            findings += (Finding.corrected("mask voxels that are no number", detail),) * (replaced > 0)

        def read() -> NDArray[Any]:
            return read_labels(stored, content)[0] if held is None else held

        numbered = self._numbered(options)
        if lost := [one.name for number, one in enumerate(self.segments, start=1) if number not in numbered]:
            findings += (Finding.noted("classes left out by choice", ", ".join(lost[:20])),)
        segments = dict(enumerate(self.segments, start=1))

        def read_classes(ids: Mapping[int, int], overlap: Overlap) -> tuple[NDArray[Any], int]:
            values = _arrange(stored, read())
            layers = [values[..., layer] for layer in range(stored.channels)]
            ignored = options.ignore_label
            more = {} if ignored is None or 0 not in ids else {ignored: ids[0]}

            def is_left_out(value: int) -> bool:
                return options.classes.target(str(value)) is None

            known = {**dict.fromkeys(segments, 0), **ids}
            return classes_of_layers(layers, segments, known, overlap, is_left_out, more)

        return Mask(
            grid=self.grid,
            names={number: one.name for number, one in numbered.items()},
            values={number: one.value for number, one in numbered.items()} if stored.channels == 1 else {},
            findings=findings,
            files=tuple(sorted(set(self.files))),
            read=lambda: read().reshape(stored.shape),
            read_classes=read_classes if segments else None,
            held_bytes=len(content.data),
            read_bytes=read_bytes
            + (8 * stored.value_count if segments else 0),  # ids, and those merged so far
            value_bytes=item_bytes,
        )

    def _numbered(self, options: ScanOptions) -> dict[int, Segment]:
        """The segments that are not left out by choice, by number.

        Raises:
            SourceError: two of them have one name, and the choice does not say what becomes of each value; or one is
                left out whose name differs from a chosen class in spelling alone.
        """
        classes, kept = options.classes, {}
        for number, one in enumerate(self.segments, start=1):
            by_value = classes.target(one.name, one.value) is not None
            if by_value or classes.takes(one.name):
                kept[number] = one
        names = [one.name for one in kept.values() if classes.target(one.name, one.value) == one.name]
        if twice := next((name for name in names if names.count(name) > 1), None):
            listed = ", ".join(str(one.value) for one in kept.values() if one.name == twice)
            detail = f"{twice!r} is values {listed}; rename one of them in the file"
            raise SourceError("annotation", "label gives one name to several values", detail)
        return kept


VolumeReader = Callable[[SourceFiles, str, ScanOptions], VolumeFile]
"""Reads the header of a format's file: of a path below where the files are, and of what is allowed.

It raises a SourceError of stage `read`: a file is missing; of stage `decode`: it is no such file, damaged, cut off, too
large, of a kind that is not read, or its header cannot be true.
"""


def _arrange(stored: StoredVoxels, values: NDArray[Any]) -> NDArray[Any]:
    """The flat values as a view [depth, height, width, channel]."""
    if stored.interleaved or stored.channels == 1:
        return values.reshape(*stored.shape, stored.channels)
    return np.moveaxis(values.reshape(stored.channels, *stored.shape), 0, -1)
