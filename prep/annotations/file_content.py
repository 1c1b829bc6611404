"""Measures of pixels and voxels that show whether a file may be the label of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.sources.file_names import is_image_name, is_volume_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

# The thresholds are estimates: they were chosen on the drawn and real sources of tests/prep/layouts, and were measured
# on no others.
_MAX_BYTES = 1 << 28
"""Largest file to open for evidence."""
_MAX_VALUES = 1 << 27
"""Largest number of values to decode for evidence."""
_MEASURED_VALUES = 1 << 22
"""Number of values of a volume to measure."""
_FEW_VALUES = 64
"""Most values of a label of classes."""
_FLAT = 0.6
"""Least share of neighbors with equal values in a label. Two balls in 24 x 20 x 16 voxels have 0.9, noise 0.1."""

_MANY_TIMES = 16
"""Times as many values as the label's that prove an image, also where the label has no large areas."""
_FLAT_OF_MANY = 0.9
"""Least share if a label has more values than classes need: numbers of objects."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FileContent:
    """Measures of one picture or volume.

    Args:
        shape: (height, width) or (depth, height, width).
        channels: number of channels.
        distinct: number of different values, or of different colors.
        flat: share of neighbors with equal values, along a row or along a column, whichever is less.
        may_be_label: whether a label reader takes it: integers, in one channel or in three equal ones, without loss.
        values: the different values, if a label has so few.
        area: where the values are not 0, if there are two values at most; else None.
    """

    shape: tuple[int, ...]
    channels: int
    distinct: int
    flat: float
    may_be_label: bool
    values: frozenset[int] = frozenset()
    area: NDArray[np.bool_] | None = None


def read_content(files: SourceFiles, path: str) -> FileContent | None:
    """Return the measures of a picture or volume; None if it cannot be read or is larger than evidence is worth."""
    size = files.size(path) or 0
    # Evidence for a hint is not worth the time and memory of a huge file.
    if not 0 < size <= _MAX_BYTES:
        return None
    try:
        if is_image_name(path):
            return _read_picture(files.read(path))
        return _read_volume(files, path) if is_volume_name(path) else None
    except SourceError:
        return None


def _read_picture(data: bytes) -> FileContent | None:
    from halofeed.prep.formats.picture.picture_formats import FORMATS, sniff
    from halofeed.prep.formats.picture.png import PALETTE, read_png_header

    name = sniff(data)
    opened = FORMATS[name][1](data)
    height, width = opened.stored_size
    if not 0 < height * width <= _MAX_VALUES:
        return None
    pixels = opened.load(False, opened.stored_size).pixels
    # Labels with an alpha channel of one value are what drawing programs save.
    if pixels.shape[2] == 4 and bool((pixels[..., 3] == pixels[0, 0, 3]).all()):
        pixels = pixels[..., :3]
    is_gray = all(np.array_equal(pixels[..., 0], pixels[..., n]) for n in range(1, pixels.shape[2]))
    # A palette is a coding of classes, as VOC's; JPEG and lossy WebP blur the values at the borders of classes.
    has_palette = name == "png" and read_png_header(data).color_type == PALETTE
    values = pixels[..., 0] if is_gray else _packed(pixels)
    return _measure(
        values,
        1 if is_gray else pixels.shape[2],
        may_be_label=(is_gray or has_palette) and name not in ("jpeg", "webp"),
    )


def _packed(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return one number for each color [height, width] of pixels [height, width, channel]."""
    packed = np.zeros(pixels.shape[:2], np.uint64)
    for channel in range(pixels.shape[2]):
        packed = packed << np.uint64(16) | pixels[..., channel]
    return packed


def _read_volume(files: SourceFiles, path: str) -> FileContent | None:
    from halofeed.prep.formats.volume_formats import ScanOptions, open_scan

    scan = open_scan(files, path, options=ScanOptions(non_finite_value=0.0))
    depth, height, width = scan.grid.shape
    if depth * height * width * scan.channels > _MAX_VALUES:
        return None
    voxels = scan.read()
    if scan.channels > 1:
        return _measure(voxels[..., 0], scan.channels, may_be_label=False)
    values = voxels[..., 0]
    whole = bool(np.array_equal(values, np.round(values)))
    return _measure(values, 1, may_be_label=whole)


def _measure(values: NDArray[Any], channels: int, *, may_be_label: bool) -> FileContent:
    # A few planes show what all do; np.unique of a whole CT takes 5 s.
    step = max(1, round(values.size / _MEASURED_VALUES)) if values.ndim == 3 else 1
    part = values[::step]
    alike = [
        part[..., 1:] == part[..., :-1],
        part[..., 1:, :] == part[..., :-1, :],
    ]  # a gradient has one direction
    different = np.unique(part)
    distinct = len(different)
    return FileContent(
        shape=values.shape,
        channels=channels,
        distinct=distinct,
        flat=min((float(one.mean()) for one in alike if one.size), default=1.0),
        may_be_label=may_be_label,
        values=frozenset(map(int, different)) if may_be_label and distinct <= _FEW_VALUES else frozenset(),
        area=part != 0 if distinct <= 2 else None,
    )


def is_label_of(label: FileContent, image: FileContent) -> bool | None:
    """Return whether one file is the label of another by what both hold; None if the measures do not decide.

    A label has the shape of its image, integers, and few values or large areas of one value. Its image has more values,
    or colors. Two images, such as T1 and T2, have about as many values each.

    >>> def content(distinct, flat=0.9, **more):
    ...     facts = {"shape": (9, 9), "channels": 1, "may_be_label": True, **more}
    ...     return FileContent(distinct=distinct, flat=flat, **facts)
    >>> is_label_of(content(3), content(200, 0.1)), is_label_of(content(180, 0.1), content(200, 0.1))
    (True, False)
    >>> is_label_of(content(2), content(3)) is None
    True
    """
    # A label has a class for each pixel of its image.
    if label.shape != image.shape or not label.may_be_label:
        return False
    if label.distinct > _FEW_VALUES and label.flat < _FLAT_OF_MANY:  # depth, heat and gray pictures
        return False
    # A gray file of the size of a color picture is its label: two pictures of a set have equal channels.
    if image.channels > 1 and label.channels == 1:
        return True
    # With as many values, the flatter one is the label, or both are labels.
    if (label.distinct, -label.flat) > (image.distinct, -image.flat):
        return False
    # Speckled labels have small areas, but photographs have far more values.
    if image.distinct > _MANY_TIMES * label.distinct:
        return True
    return True if label.flat >= _FLAT and _is_simpler(label, image) else None


def _is_simpler(label: FileContent, image: FileContent) -> bool:
    """Return whether a label has clearly fewer values, or fewer values and larger areas; the factors are estimates."""
    is_flatter = image.flat < _FLAT <= label.flat
    return image.distinct > 4 * label.distinct or (is_flatter and image.distinct > 1.5 * label.distinct)
