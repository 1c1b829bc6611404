"""Reader of single DICOM pictures: radiographs, mammograms, ultrasound, angiograms, secondary captures.

Gray values are displayed as `halofeed.prep.formats.dicom.display_values` says: modality LUT, VOI LUT or window,
MONOCHROME1. Colors become red, green and blue. Each frame of a file is a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.color_pixels import read_colors
from halofeed.prep.formats.dicom.display_values import GrayPlan, plan_gray
from halofeed.prep.formats.dicom.headers import damaged_file
from halofeed.prep.formats.dicom.picture_frames import BIT_DEPTHS, FramesOfFile, frames_of_file
from halofeed.prep.formats.dicom.picture_header import GRAY, PALETTE, PictureHeader, read_picture_header
from halofeed.prep.formats.dicom.picture_words import picture_words
from halofeed.prep.formats.dicom.pixels import (
    PLUGINS,
    FrameReader,
    extract_values,
    read_frames,
)
from halofeed.prep.formats.dicom.values import padding_mask
from halofeed.prep.formats.picture.image import (
    BURNED_IN_TEXT,
    IGNORED_WINDOWS,
    INVERTED,
    NARROW_VALUES,
    OVERLAYS_LEFT_OUT,
    PADDING_IN_BLACK,
    SEVERAL_VIEWS,
    SPACING_AT_DETECTOR,
    MemoryEstimate,
    OpenedImage,
    Raster,
    ReadOptions,
    StatedFacts,
    estimate_decoding,
)
from halofeed.prep.sources.files import SourceFiles

_NARROW = 1 << 14
"""Levels of 65536 below which a range of values is narrow."""
_PLAIN_BYTES, _COMPRESSED_BYTES = 8, 20
"""Bytes per sample while a frame is decoded and converted: 6 and 8 measured for gray, 2 for colors. OpenJPEG takes 4
bytes per value and more beside these.
"""


def open_dicom(data: bytes) -> OpenedImage:
    """Open a DICOM picture, at its first frame and with its first window.

    Raises:
        SourceError: the header is damaged, or the file holds no picture. `load` also reports damaged pixels.
    """
    header, body = read_picture_header(data)
    inflated_bytes = 0 if body is data else len(body)

    def open_frame(options: ReadOptions, frame: int) -> OpenedImage:
        reader = partial(read_frames, body, header, BIT_DEPTHS)
        return replace(_opened(header, reader, inflated_bytes, options, frame), opened_for=open_frame)

    return open_frame(ReadOptions(), 0)


@dataclass(frozen=True, kw_only=True)
class FramePicture:
    """Frame of a DICOM file, of which only the header was read.

    Args:
        frames: header and reader of the file.
        frame: number of the frame, from 0.
    """

    frames: FramesOfFile
    frame: int

    @property
    def byte_count(self) -> int:
        """Bytes of the frame in the file."""
        return self.frames.reader.frame_bytes(self.frame)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that the header shows, see `notes_of_frame`."""
        return _notes_of_header(self.frames.header, self.frame)

    def opened(self, options: ReadOptions) -> OpenedImage:
        """Return the picture with these options, whose pixels are read when they are decoded."""
        return _opened(self.frames.header, lambda: self.frames.reader, self.byte_count, options, self.frame)


def frame_of_file(files: SourceFiles, path: str, frame: int) -> FramePicture | None:
    """Return a frame of a DICOM file; None where the complete file has to be read, see `frames_of_file`.

    Raises:
        SourceError: the file holds no picture or not so many frames, or is damaged or truncated.
    """
    found = frames_of_file(files, path)
    if found is None:
        return None
    if frame >= len(found.header.frames):
        raise damaged_file(f"frame {frame + 1} of {len(found.header.frames)}")
    return FramePicture(frames=found, frame=frame)


def _opened(
    header: PictureHeader,
    reader: Callable[[], FrameReader],
    held_bytes: int,
    options: ReadOptions,
    frame: int,
) -> OpenedImage:
    estimate, spacing = _estimate(header, held_bytes), header.spacing(frame)
    return OpenedImage(
        stored_size=header.stored.size,
        orientation=1,
        estimate=lambda *_: estimate,
        load=lambda *_: _load(header, reader(), options, frame),
        frames=len(header.frames),
        stated=StatedFacts(
            spacing_mm=None if spacing is None else spacing.sides_mm,
            words=tuple(picture_words(header.elements).items()),
        ),
    )


def _estimate(header: PictureHeader, held_bytes: int) -> MemoryEstimate:
    has_bytes = header.stored.bits_stored <= 8 and header.color not in (*GRAY, PALETTE)
    sample_bytes = _COMPRESSED_BYTES if header.syntax in PLUGINS else _PLAIN_BYTES
    return estimate_decoding(
        header.stored.size,
        1 if header.is_gray else 3,
        1 if has_bytes else 2,
        extra_pixel_bytes=header.stored.samples * sample_bytes,
        held_bytes=held_bytes,
    )


def notes_of_frame(data: bytes, frame: int) -> tuple[str, ...]:
    """Return the notes on a frame of a DICOM picture that its header shows, without those on its values.

    Raises:
        SourceError: the header is damaged, or the file holds no picture.
    """
    return _notes_of_header(read_picture_header(data)[0], frame)


def _notes_of_header(header: PictureHeader, frame: int) -> tuple[str, ...]:
    notes = tuple(_header_notes(header, frame))
    if not header.is_gray:
        return notes
    options = ReadOptions()
    return (*notes, *_plan_notes(plan_gray(header, frame, options.window), options))


def _load(header: PictureHeader, reader: FrameReader, options: ReadOptions, frame: int) -> Raster:
    notes = tuple(_header_notes(header, frame))
    if not header.is_gray:
        return Raster(pixels=read_colors(header, reader, frame), notes=notes, fills_depth=True)
    plan = plan_gray(header, frame, options.window)
    words, near = reader.words(frame)
    values = extract_values(words, header.stored)
    levels = plan.levels(values)
    shown = levels
    if header.stored.padding is not None:
        padding = padding_mask(words, values, header.stored, near)
        shown = levels[~padding]
        # The background of the display, whatever gray the value would be (PS3.3 C.7.5.1.1.2).
        if levels[padding].any():
            levels[padding] = 0
            notes += (PADDING_IN_BLACK,)
    return Raster(
        pixels=np.ascontiguousarray(levels[..., None]),
        notes=(*notes, *_plan_notes(plan, options), *_value_notes(shown, plan, options)),
        fills_depth=plan.fills_depth,
    )


def _header_notes(header: PictureHeader, frame: int) -> Iterator[str]:
    if (spacing := header.spacing(frame)) is not None and spacing.at_detector:
        yield SPACING_AT_DETECTOR
    if headers.text(header.elements, headers.BURNED_IN).upper() == "YES":
        yield BURNED_IN_TEXT
    if any(tag in header.elements for tag in headers.OVERLAY_ROWS):
        yield OVERLAYS_LEFT_OUT


def _value_notes(levels: NDArray[Any], plan: GrayPlan, options: ReadOptions) -> Iterator[str]:
    """Yield the note on a picture whose values would become few of 256 levels."""
    if plan.view is not None or plan.is_plain or not plan.fills_depth or options.dtype != "uint8":
        return
    if levels.size and 0 < int(levels.max()) - int(levels.min()) < _NARROW:
        yield NARROW_VALUES


def _plan_notes(plan: GrayPlan, options: ReadOptions) -> Iterator[str]:
    if plan.inverted:
        yield INVERTED
    if plan.views > 1 and options.window is None:
        yield SEVERAL_VIEWS
    if plan.ignored_windows:
        yield IGNORED_WINDOWS
