"""Choice of the pages of a TIFF file that are its levels, the planes of its bands, and its masks.

A file has a chain of pages, and pages below a page (SubIFDs). Some are the same picture at lower resolution; others are
thumbnails, labels of the slide, photographs of it, masks, or other pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from halofeed.prep.formats.picture.image import Size, damaged_error, decode_error
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage, TiffPageSeries

REDUCED, MASK = 1, 4
"""Bits of the tag NewSubfileType (254), TIFF 6.0, section 8."""
_MAX_PAGES = 64
"""Pages of the chain that are looked at where no metadata name the levels."""
_KINDS = ("ome", "imagej", "svs", "scn", "qpi", "ndpi", "philips", "lsm", "avs", "shaped")
"""Kinds of files whose own metadata tell tifffile the levels and the planes."""
_PLANES = "C"
"""tifffile's letter for the axis of channels; others are depth (Z), time (T), or unknown (I, Q)."""


@dataclass(frozen=True, kw_only=True)
class PictureLevel:
    """Pages of one resolution: one page, or a page per band; and the page of its mask."""

    pages: tuple[TiffPage, ...]
    mask: TiffPage | None = None

    @property
    def size(self) -> Size:
        """(height, width)."""
        return page_size(self.pages[0])


@dataclass(frozen=True, kw_only=True)
class TiffPicture:
    """Levels of one picture, the largest first, and notes about pages that are not read."""

    levels: tuple[PictureLevel, ...]
    notes: tuple[str, ...] = ()


def page_size(page: TiffPage) -> Size:
    """Return the (height, width) of a page."""
    return page.imagelength, page.imagewidth


def is_reduction(size: Size, whole: Size) -> bool:
    """Return whether a picture of this size may be a whole that was reduced by one factor for both axes.

    Writers round up, down or to the nearest pixel, and reduce level by level, so each side may be off by 2 pixels.

    >>> is_reduction((150, 201), (301, 401)), is_reduction((150, 150), (300, 400)), is_reduction((300, 400), (300, 400))
    (True, False, False)
    """
    if not (0 < size[0] <= whole[0] and 0 < size[1] <= whole[1] and size != whole):
        return False
    smallest = [full / (side + 2) for side, full in zip(size, whole, strict=True)]
    largest = [full / max(side - 2, 0.5) for side, full in zip(size, whole, strict=True)]
    return max(smallest) <= min(largest)


def choose_pages(file: TiffFile) -> TiffPicture:
    """Return the levels of the first picture of a file.

    Raises:
        SourceError: the file has no page, its picture is spread over several files, or its pages do not form a picture.
    """
    _check_single_file(file)
    if not len(file.pages):
        raise damaged_error("the TIFF has no page")
    if file.is_bif:
        # Tiles of a scan overlap, and their places are in the metadata (tifffile: "tiles are not stitched").
        raise decode_error(
            "Ventana slide is not supported",
            "its tiles overlap; `vips copy a.bif 'b.tif[tile,pyramid,bigtiff,compression=jpeg]'` writes one picture",
        )
    is_named = any(getattr(file, f"is_{kind}") for kind in _KINDS)
    found = _by_metadata(file) if is_named else None
    return found or _by_flags(file)


def _check_single_file(file: TiffFile) -> None:
    """Refuse an OME-TIFF whose pixels are in other files too (OME-TIFF specification, "Multi-file OME-TIFF")."""
    metadata = file.ome_metadata or ""
    names = set(re.findall(r"""<(?:\w+:)?UUID[^>]*\bFileName\s*=\s*["']([^"']+)["']""", metadata))
    held = re.search(r"""<(?:\w+:)?BinaryOnly[^>]*\bMetadataFile\s*=\s*["']([^"']+)["']""", metadata)
    if len(names) > 1 or held:
        where = f"the metadata are in {held[1]}" if held else f"its pixels are in {len(names)} files"
        raise decode_error(
            "OME-TIFF of several files is not supported",
            f"{where}; `bfconvert a.ome.tif whole.ome.tif` (Bio-Formats) writes one file",
        )


def _by_metadata(file: TiffFile) -> TiffPicture | None:
    """Return the levels by the metadata of the format; None if they say nothing about several pages."""
    series = [one for one in file.series if one.levels[0].keyframe is not None]
    if not series:
        return None
    # A Leica file may begin with the photograph of the slide.
    main = max(series, key=lambda one: int(np.prod(page_size(one.keyframe)))) if file.is_scn else series[0]
    planes = _plane_numbers(main)
    # tifffile's own description names axes, but not the pages that are reductions.
    if planes is None or (main.kind == "shaped" and len(planes[0]) == 1):
        return None
    numbers, is_one_of_several = planes
    levels = [PictureLevel(pages=_pages_of(level, numbers)) for level in main.levels]
    notes = (FIRST_OF_SEVERAL,) if is_one_of_several else ()
    return TiffPicture(levels=_reductions(levels), notes=notes)


def _plane_numbers(series: TiffPageSeries) -> tuple[list[int], bool] | None:
    """Return the numbers of the pages that are bands of the first picture, and whether there are other pictures.

    None if the axes of the series do not agree with its pages.
    """
    axes, shape = series.get_axes(False), series.get_shape(False)
    outer = [(axis, count) for axis, count in zip(axes, shape, strict=True) if axis not in "YXS"]
    counts = [count for _, count in outer]
    if int(np.prod(counts, dtype=np.int64)) != len(series):
        return None
    chosen: Any = np.arange(len(series)).reshape(counts)
    for axis, (name, _) in reversed(list(enumerate(outer))):
        if name != _PLANES:
            chosen = chosen.take(0, axis=axis)
    numbers = chosen.ravel().tolist()
    return numbers, len(numbers) < len(series)


def _pages_of(level: TiffPageSeries, numbers: Sequence[int]) -> tuple[TiffPage, ...]:
    pages = []
    for number in numbers:
        page = level[number] if number < len(level) else None
        if page is None:
            raise damaged_error(f"page {number} of {len(numbers)} planes is missing")
        pages.append(page.aspage())
    return tuple(pages)


def _reductions(levels: Sequence[PictureLevel]) -> tuple[PictureLevel, ...]:
    """Return the first level, and those that show the same picture, from the largest."""
    first = levels[0]
    alike = [
        level
        for level in levels[1:]
        if is_reduction(level.size, first.size) and _is_like(level.pages[0], first.pages[0])
    ]
    chosen = {level.size: level for level in reversed(alike)}
    return (first, *sorted(chosen.values(), key=lambda level: level.size, reverse=True))


def _is_like(page: TiffPage, other: TiffPage) -> bool:
    """Return whether the samples of two pages have the same meaning."""
    return (page.samplesperpixel, page.dtype, page.extrasamples) == (
        other.samplesperpixel,
        other.dtype,
        other.extrasamples,
    )


def _pages(file: TiffFile) -> Iterator[TiffPage]:
    """Yield the first pages of the chain."""
    for page in islice(file.pages, _MAX_PAGES):
        yield page.aspage()


def _by_flags(file: TiffFile) -> TiffPicture:
    """Return the levels by the flags of the pages, as GDAL, libvips and libtiff write them."""
    chain = list(_pages(file))
    pictures = [page for page in chain if not page.subfiletype & (REDUCED | MASK)]
    first = (pictures or chain)[0]
    below = [page.aspage() for page in first.pages] if first.pages is not None else []
    # Pages below a page are its reductions (Adobe PageMaker 6.0 technical notes), whether or not they are flagged.
    reduced = [page for page in chain if page.subfiletype & REDUCED] + below
    masks = {page_size(page): page for page in chain + below if page.subfiletype & MASK}
    levels = [
        PictureLevel(pages=(page,), mask=masks.get(page_size(page)))
        for page in [first, *reduced]
        if page is first or not page.subfiletype & MASK
    ]
    notes = (FIRST_OF_SEVERAL,) if len(pictures) > 1 else ()
    return TiffPicture(levels=_reductions(levels), notes=notes)
