"""Reader of regions of TIFF files: GeoTIFF, COG, OME-TIFF, slides in TIFF, and any other, also BigTIFF.

tifffile parses the directories and imagecodecs decodes blocks. Blocks are copied into the window here, because
tifffile's own access through zarr decodes a block anew for each window and holds no mask.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.prep.formats.picture.tiff import ORIENTATION, valid_orientation
from halofeed.prep.formats.region.ground_positions import ground_of
from halofeed.prep.formats.region.region_reader import RegionFacts, check_window
from halofeed.prep.formats.region.tiff_blocks import PageBlocks, Window
from halofeed.prep.formats.region.tiff_pages import TiffPicture, choose_pages
from halofeed.prep.formats.region.tiff_samples import SampleForm, sample_form
from halofeed.prep.sources.files import SourceFiles, SourceRanges
from halofeed.prep.sources.range_stream import RangeStream
from halofeed.system.errors import require_extra
from halofeed.system.threads import OrderedThreads

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

_Valid = NDArray[np.bool_]
_HEADER_BLOCK_BYTES = 64 << 10
"""Bytes that are read at once of the directories, which may be anywhere in the file."""
LARGE_BLOCK_BYTES = 256 << 20
LARGE_BLOCKS = (
    f"a TIFF has compressed blocks of more than {LARGE_BLOCK_BYTES >> 20} MiB, each of which is decoded whole; "
    "`gdal_translate -co TILED=YES -co COMPRESS=DEFLATE a.tif b.tif` writes small ones"
)
NODATA = 42113
"""Tag GDAL_NODATA: the value as text."""


@dataclass(frozen=True, kw_only=True)
class _Level:
    """Blocks of the pages of one resolution, and of the page of its mask."""

    pages: tuple[PageBlocks, ...]
    mask: PageBlocks | None


class TiffRegions:
    """Open TIFF file; see `halofeed.prep.formats.region.region_reader.RegionReader`."""

    def __init__(self, source: SourceRanges, name: str, threads: int, as_indices: bool) -> None:
        self._source, self._threads = source, threads
        self._pool = OrderedThreads(threads)
        with decoder_failures():
            self._file = _open_file(source, name)
            picture = choose_pages(self._file)
            height, width = picture.levels[0].size
            if not height or not width:
                raise decode_error("image has no pixels", f"{height} x {width} pixels (height x width)")
            self._levels = _open_levels(picture, source)
            page = picture.levels[0].pages[0]
            if as_indices:
                _check_label(picture, page)
            self._form = sample_form(picture.levels[0].pages, as_indices)
            self._nodata = _nodata_of(page, self._levels[0].pages[0].dtype)
            self.facts = self._facts_of(picture, page)
        self._last: tuple[tuple[int, Window], _Valid | None] | None = None

    def _facts_of(self, picture: TiffPicture, page: TiffPage) -> RegionFacts:
        form, ground = self._form, ground_of(self._file, page)
        is_large = any(page.block_bytes > LARGE_BLOCK_BYTES for page in self._levels[0].pages)
        return RegionFacts(
            levels=tuple(level.size for level in picture.levels),
            bands=form.bands,
            dtype=form.dtype.name,
            color=form.color,
            row_steps=tuple(max(page.row_step for page in level.pages) for level in self._levels),
            column_steps=tuple(max(page.column_step for page in level.pages) for level in self._levels),
            orientation=valid_orientation(int(page.tags.valueof(ORIENTATION, 1))),
            georeference=ground.georeference,
            nodata=_shown_nodata(self._nodata, form),
            pixel_size_m=ground.pixel_size_m,
            notes=(*picture.notes, *form.notes, *ground.notes, *[LARGE_BLOCKS] * is_large),
        )

    def read_bytes(self, level: int, height: int, width: int) -> int:
        """Return the memory of the decoder, of the stored samples, and of what `read_valid` keeps."""
        chosen = self._levels[level]
        decoding = max(page.read_bytes(height, width, self._threads) for page in chosen.pages)
        samples = sum(page.samples * page.dtype.itemsize for page in chosen.pages)
        held = samples if not self._form.keeps_values or len(chosen.pages) > 1 else 0
        # Comparing with nodata takes a bool per sample; the result and the mask take one per pixel.
        held += 2 + (sum(page.samples for page in chosen.pages) if self._marks_values else 0)
        return decoding + height * width * held

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window, see `RegionReader.read`.

        Raises:
            SourceError: a block is damaged, or the file has changed.
        """
        check_window(self.facts, level, top, left, height, width)
        window = Window(top=top, left=left, height=height, width=width)
        samples = self._samples(level, window)
        self._last = (level, window), self._valid(level, window, samples)
        return samples if self._form.convert is None else self._form.convert(samples)

    def read_valid(self, level: int, top: int, left: int, height: int, width: int) -> _Valid | None:
        """Return which pixels exist, see `RegionReader.read_valid`; without decoding after a `read` of the window."""
        check_window(self.facts, level, top, left, height, width)
        window = Window(top=top, left=left, height=height, width=width)
        if self._last is None or self._last[0] != (level, window):
            samples = self._samples(level, window) if self._marks_values else None
            self._last = (level, window), self._valid(level, window, samples)
        valid = self._last[1]
        mask = self._levels[level].mask
        if mask is not None:
            shown = mask.read(window, self._pool, 0)[..., 0] != 0
            valid = shown if valid is None else valid & shown
        return None if valid is None or valid.all() else valid

    @property
    def _marks_values(self) -> bool:
        """True if a value of a pixel can say that it is missing."""
        return (
            self._nodata is not None
            or self._form.alpha is not None
            or self._levels[0].pages[0].dtype.kind == "f"
        )

    def _samples(self, level: int, window: Window) -> NDArray[Any]:
        """Return the stored samples [height, width, sample] of a window."""
        self._source.check_unchanged()
        pages, fill = self._levels[level].pages, self._nodata if self._nodata is not None else 0
        if len(pages) == 1:
            return pages[0].read(window, self._pool, fill)
        samples = np.empty((window.height, window.width, len(pages)), pages[0].dtype)
        for band, page in enumerate(pages):
            samples[..., band] = page.read(window, self._pool, fill)[..., 0]
        return samples

    def _valid(self, level: int, window: Window, samples: NDArray[Any] | None) -> _Valid | None:
        """Return which pixels exist by their values and blocks; None for all."""
        invalid = self._levels[level].pages[0].missing(window)
        if samples is not None and self._marks_values:
            marked = _is_marked(samples, self._nodata, self._form.alpha)
            invalid = marked if invalid is None else invalid | marked
        return None if invalid is None or not invalid.any() else ~invalid

    def close(self) -> None:
        """Close the file and end the threads."""
        self._last = None
        self._pool.close()
        self._file.close()
        self._source.close()


def _check_label(picture: TiffPicture, page: TiffPage) -> None:
    """Refuse label images as `halofeed.prep.convert.label_image` does: turned, or one of several."""
    cure = "save it as an upright picture of its own with one value for each class, by the tool that drew it"
    if FIRST_OF_SEVERAL in picture.notes:
        raise decode_error("label image holds several pictures", f"only the first would be read; {cure}")
    orientation = page.tags.valueof(ORIENTATION, 1)
    if orientation != 1:
        raise decode_error("label image is ambiguous", f"TIFF of orientation {orientation}; {cure}")


def _is_marked(samples: NDArray[Any], nodata: float | None, alpha: int | None) -> _Valid:
    """Return where all values of a pixel are nodata or NaN, or where its alpha is zero.

    A single band may be missing where others exist, so one value is not enough, as in GDAL's mask of a data set.
    """
    marked = np.zeros(samples.shape[:2], np.bool_)
    if nodata is not None or samples.dtype.kind == "f":
        colors = samples if alpha is None else np.delete(samples, alpha, axis=2)
        is_missing = np.isnan(colors) if samples.dtype.kind == "f" else np.zeros(colors.shape, np.bool_)
        if nodata is not None and nodata == nodata:
            is_missing |= colors == samples.dtype.type(nodata)
        marked |= is_missing.all(axis=2)
    if alpha is not None:
        marked |= samples[..., alpha] == 0
    return marked


def _nodata_of(page: TiffPage, dtype: np.dtype[Any]) -> float | None:
    """Return the value of the tag GDAL_NODATA; None if no sample can have it."""
    text = page.tags.valueof(NODATA)
    if not isinstance(text, str):
        return None
    try:
        value = float(text.strip(" \0").replace(",", "."))
    except ValueError:
        return None
    if dtype.kind == "f":
        # GDAL writes the decimal digits of the nearest double of a 32-bit number.
        with np.errstate(over="ignore"):
            return float(dtype.type(value))
    limits = np.iinfo(dtype)
    is_value = np.isfinite(value) and value == int(value) and limits.min <= value <= limits.max
    return value if is_value else None


def _shown_nodata(nodata: float | None, form: SampleForm) -> tuple[float, ...] | None:
    """Return nodata as a value of each band of the converted pixels; None where conversion leaves no such value."""
    if nodata is None:
        return None
    if form.keeps_values:
        return (nodata,) * form.bands
    if form.peak is not None and form.peak > 15:
        return (form.peak - nodata,) * form.bands
    return None


def _open_levels(picture: TiffPicture, source: SourceRanges) -> tuple[_Level, ...]:
    levels = []
    for number, level in enumerate(picture.levels):
        name = "the picture" if number == 0 else f"level {number}"
        pages = tuple(PageBlocks(page, source, name) for page in level.pages)
        mask = None if level.mask is None else PageBlocks(level.mask, source, f"the mask of {name}")
        levels.append(_Level(pages=pages, mask=mask))
    return tuple(levels)


def _open_file(source: SourceRanges, name: str) -> TiffFile:
    from tifffile import TiffFile

    # tifffile logs what it ignores in a header; without a handler Python prints it to stderr.
    logger = logging.getLogger("tifffile")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    stream: Any = RangeStream(source.size, source.read, _HEADER_BLOCK_BYTES)
    # The name tells NDPI, whose offsets tifffile reads in another way. Other files of an OME-TIFF are not opened.
    return TiffFile(stream, name=name.rpartition("/")[2], _multifile=False)


def open_tiff_regions(
    files: SourceFiles, path: str, threads: int = 1, as_indices: bool = False
) -> TiffRegions:
    """Open a TIFF file of any size, of which only the directories are read.

    Args:
        files: source files.
        path: path of the file.
        threads: threads that decode blocks.
        as_indices: whether it is a label image: palette indices and single bits stay as they are.

    Raises:
        SourceError: the file is damaged, or its pixels are of a kind that is not supported.
        MissingExtraError: tifffile or imagecodecs is not installed.

    Source: TIFF 6.0; BigTIFF; GeoTIFF 1.1; OME-TIFF; GDAL's notes on its tags.
    """
    # An error about a missing library must not become one about the file.
    with require_extra("large", "tifffile", "imagecodecs"):
        import imagecodecs  # noqa: F401
        import tifffile  # noqa: F401
    source = files.open_ranges(path)
    try:
        return TiffRegions(source, path, threads, as_indices)
    except BaseException:
        source.close()
        raise
