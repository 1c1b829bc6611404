"""Header of a single DICOM picture: radiograph, mammogram, ultrasound, frame of an angiogram, secondary capture.

`read_picture_header` is the entry point. The header keeps the elements that its values, its colors, its display and its
patient's hash need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.header_fields import PixelFormat, pixel_format
from halofeed.prep.formats.dicom.headers import (
    PICTURE_VRS,
    Elements,
    PixelLocation,
    finite_number,
    integer,
    items,
    parse_dicom_header,
)
from halofeed.prep.formats.dicom.pixel_spacing import PixelSpacing, pixel_spacing
from halofeed.prep.formats.dicom.sop_classes import MASK_KINDS, SLIDE_CLASS, STRUCTURE_SET, object_kind
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

MAX_PICTURE_FRAMES = 1 << 16
"""Limit on the frames of a picture; an angiogram has hundreds."""
GRAY = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"
SUBSAMPLED = "YBR_FULL_422"
COLOR_INTERPRETATIONS = ("RGB", "YBR_FULL", SUBSAMPLED, "YBR_ICT", "YBR_RCT")
"""Photometric Interpretations of three samples per pixel (PS3.3 C.7.6.3.1.2) that are read."""


@dataclass(frozen=True, kw_only=True)
class PictureHeader:
    """Header of a single picture or of several frames.

    Args:
        stored: storage format of the pixels, with the samples per pixel that the file holds.
        pixels: location of the pixels.
        syntax: UID of the transfer syntax.
        frames: numbers of the frames, from 0.
        color: Photometric Interpretation.
        is_planar: whether uncompressed colors are in separate planes.
        elements: the elements of `PICTURE_VRS`.
    """

    stored: PixelFormat
    pixels: PixelLocation
    syntax: str
    frames: range
    color: str
    is_planar: bool
    elements: Elements

    @property
    def is_gray(self) -> bool:
        """True if a pixel is one value that is displayed as gray."""
        return self.color in GRAY

    @property
    def is_subsampled(self) -> bool:
        """True if two pixels share their chroma in an uncompressed file."""
        return self.stored.samples == 2

    def groups(self, frame: int) -> tuple[Elements, ...]:
        """Return the elements that describe a frame: its functional groups, those of all frames, and the file's.

        Source: PS3.3 C.7.6.16.2.9 (pixel value transformation), C.7.6.16.2.10 (frame VOI LUT).
        """
        return self._groups(frame, (headers.VALUE_TRANSFORMATION, headers.FRAME_VOI))

    def spacing(self, frame: int) -> PixelSpacing | None:
        """Return the spacing of a frame's pixels; None if the file does not state it.

        Source: PS3.3 C.7.6.16.2.1 (pixel measures), C.8.19.6.4 and C.8.19.6.14 (enhanced XA).
        """
        tags = (headers.PIXEL_MEASURES, headers.FRAME_PIXEL_DATA, headers.RAY_GEOMETRY)
        return pixel_spacing(self._groups(frame, tags), self.stored.size)

    def _groups(self, frame: int, tags: Sequence[int]) -> tuple[Elements, ...]:
        own = items(self.elements, headers.FRAME_GROUPS)[frame : frame + 1]
        shared = items(self.elements, headers.SHARED_GROUPS)[:1]
        described = (part for group in (*own, *shared) for tag in tags for part in items(group, tag)[:1])
        return (*described, self.elements)


def read_picture_header(data: bytes, *, complete: bool = True) -> tuple[PictureHeader, bytes]:
    """Read the header of a single picture.

    Args:
        data: the file, or its first bytes.
        complete: whether `data` is the complete file.

    Returns:
        The header, and the bytes that hold the pixels: `data`, or the inflated data set.

    Raises:
        HeaderContinuesError: the header is longer than `data`, which is not the complete file.
        SourceError: the file is not DICOM, damaged or truncated, or holds no picture.
    """
    header, body = parse_dicom_header(data, complete, PICTURE_VRS)
    elements = header.elements
    if (kind := other_kind(elements, has_pixels=header.pixels is not None)) is not None:
        raise SourceError("decode", "DICOM file holds no picture", describe_other(kind))
    assert header.pixels is not None
    color = headers.text(elements, headers.PHOTOMETRIC).upper() or GRAY[1]
    stored = pixel_format(elements, header.pixels)
    _check_samples(stored, color)
    frames = integer(elements, headers.FRAMES, 1)
    if not 1 <= frames <= MAX_PICTURE_FRAMES:
        raise headers.damaged_file(plural(frames, "frame"))
    if color == SUBSAMPLED and header.pixels.length is not None:
        stored = _subsampled(stored, frames, header.pixels.length)
    return (
        PictureHeader(
            stored=stored,
            pixels=header.pixels,
            syntax=header.syntax,
            frames=range(frames),
            color=color,
            is_planar=integer(elements, headers.PLANAR, 0) == 1,
            elements=elements,
        ),
        body,
    )


def size_of_head(head: bytes) -> tuple[int, int] | None:
    """Return the (height, width) of a picture from the first bytes of its file; None if they do not tell."""
    try:
        return read_picture_header(head, complete=False)[0].stored.size
    except (headers.HeaderContinuesError, SourceError):
        return None


def patient_of_head(head: bytes) -> bytes:
    """Return the patient's id from the first bytes of a file; b"" if they do not tell. Never write it anywhere."""
    try:
        elements = parse_dicom_header(head, False, PICTURE_VRS)[0].elements
    except (headers.HeaderContinuesError, SourceError):
        return b""
    return headers.raw_value(elements, headers.PATIENT_ID).strip(b" \0")


def other_kind(elements: Elements, *, has_pixels: bool) -> str | None:
    """Return the kind of an object that is no picture, such as "report"; None for a picture.

    A slice of CT, MR or PET is a picture too, where annotations or folders name it alone.
    """
    classes = (headers.text(elements, headers.SOP_CLASS), headers.text(elements, headers.MEDIA_SOP_CLASS))
    kind = object_kind(classes, headers.text(elements, headers.MODALITY), has_pixels)
    if SLIDE_CLASS in classes:
        return kind
    # A structure set and a report have no pixels, and masks and doses have pixels that show nothing.
    return kind if not has_pixels or kind in (*MASK_KINDS, "dose") else None


def describe_other(kind: str) -> str:
    """Return what a kind of object is, with what to do about it."""
    if kind == "whole-slide image":
        return "it is a whole-slide image: cut it with --fit tiles --height 1024 --width 1024"
    if kind == STRUCTURE_SET or kind in MASK_KINDS:
        return f"it is a {kind}, which labels the series that it was drawn on; move it to another folder"
    return f"it is of the kind {kind}; move it to another folder"


def _check_samples(stored: PixelFormat, color: str) -> None:
    """Refuse colors that are not read, and a number of samples that does not fit the color."""
    expected = 1 if color in (*GRAY, PALETTE) else 3 if color in COLOR_INTERPRETATIONS else 0
    if not expected:
        # A text that is no interpretation of the standard might identify someone.
        raise SourceError(
            "decode",
            "colors of the DICOM file are not supported",
            f"read are {', '.join(COLOR_INTERPRETATIONS)}",
        )
    if stored.samples != expected:
        raise headers.damaged_file(f"{plural(stored.samples, 'sample')} per pixel of {color}")


def _subsampled(stored: PixelFormat, frames: int, length: int) -> PixelFormat:
    """Return the format of uncompressed YBR_FULL_422, whose length shows whether the chroma is subsampled.

    PS3.3 C.7.6.3.1.2: two pixels are Y1 Y2 Cb Cr. Some writers name it so and store all samples of each pixel.
    """
    complete = stored.size[0] * stored.size[1] * stored.word_bytes * 3 * frames
    return stored if length >= complete else replace(stored, samples=2)


def window_pairs(groups: Sequence[Elements]) -> list[tuple[float, float]]:
    """Return the (center, width) of each window of a frame.

    Raises:
        SourceError: a center or a width is no number.
    """
    for elements in groups:
        centers = headers.numbers(elements, headers.WINDOW_CENTER, None)
        widths = headers.numbers(elements, headers.WINDOW_WIDTH, None)
        if centers and widths:
            return list(zip(centers, widths, strict=False))
    return []


def rescale_of(groups: Sequence[Elements]) -> tuple[float, float] | None:
    """Return the slope and the intercept of a frame; None without both (PS3.3 C.11.1)."""
    for elements in groups:
        slope, intercept = (finite_number(elements, tag) for tag in (headers.SLOPE, headers.INTERCEPT))
        if slope is not None and intercept is not None:
            return slope, intercept
    return None
