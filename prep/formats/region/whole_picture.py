"""Pictures that are decoded whole, behind the protocol of the readers of regions.

WebP, GIF and BMP have no decoder that yields rows, interlaced PNG has no rows before its end, and a small JPEG or PNG
is decoded at once in less time than by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import OpenedImage, PixelArray, damaged_error
from halofeed.prep.formats.picture.picture_formats import FIRST_OF_SEVERAL, FORMATS, sniff
from halofeed.prep.formats.region.region_reader import RegionFacts, check_window
from halofeed.prep.sources.files import SourceFiles

WHOLE_BYTES = 256 << 20
"""Largest decoded JPEG or PNG that is decoded whole: a quarter of the 1 GiB that a worker may take."""
COLOR_OF_BANDS = {1: "gray", 2: "gray-alpha", 3: "rgb", 4: "rgba"}


class WholePicture:
    """Reader of a picture that is decoded at the first `read`, and then kept.

    Args:
        facts: facts of its header.
        load: function that returns the pixels [height, width, bands] of level 0.
        peak_bytes: maximum memory of `load`, with its result, and with what it keeps of the file.
    """

    def __init__(self, facts: RegionFacts, load: Callable[[], NDArray[Any]], peak_bytes: int) -> None:
        self.facts = facts
        self._load: Callable[[], NDArray[Any]] | None = load
        self._peak_bytes = peak_bytes
        self._pixels: NDArray[Any] | None = None

    def read_bytes(self, level: int, height: int, width: int) -> int:
        return self._peak_bytes

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        check_window(self.facts, level, top, left, height, width)
        if self._pixels is None:
            assert self._load is not None, "read after close"
            self._pixels = self._loaded(self._load())
            self._load = None  # it holds the bytes of the file
        return self._pixels[top : top + height, left : left + width].copy()

    def _loaded(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return the pixels with the bands of the facts."""
        size, facts = pixels.shape[:2], self.facts
        # Memory was reserved for the size in the header, so a decoder must not return another one.
        if size != facts.size or pixels.dtype != facts.dtype:
            raise damaged_error(
                f"header says {facts.size} of {facts.dtype}, decoded are {size} of {pixels.dtype}"
            )
        return with_bands(pixels, facts.bands)

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        return None

    def close(self) -> None:
        self._load = self._pixels = None


def with_bands(pixels: NDArray[Any], bands: int) -> NDArray[Any]:
    """Return pixels [height, width, band] with as many bands as the header let expect: gray as color, opaque alpha.

    A header does not say whether the alpha that it allows is used.

    Raises:
        SourceError: there are more bands than expected.

    >>> with_bands(np.array([[[7]]], np.uint8), 4).tolist()
    [[[7, 7, 7, 255]]]
    """
    found = pixels.shape[2]
    if found == bands:
        return pixels
    if found > bands:
        raise damaged_error(f"decoded are {found} bands, the header lets expect {bands}")
    colors, alpha = (pixels[..., :-1], pixels[..., -1:]) if found in (2, 4) else (pixels, None)
    wanted_colors = bands - (bands in (2, 4))
    widened = np.empty((*pixels.shape[:2], bands), pixels.dtype)
    widened[..., :wanted_colors] = colors
    if bands in (2, 4):
        widened[..., -1:] = np.iinfo(pixels.dtype).max if alpha is None else alpha
    return widened


def open_whole_picture(files: SourceFiles, path: str, threads: int = 1) -> WholePicture:
    """Open a picture that is decoded whole, by the decoder of `halofeed.prep.formats.picture`.

    Raises:
        SourceError: the file cannot be read, or has another format (stages `read` and `decode`).
    """
    data = files.read(path)
    return whole_picture(data, FORMATS[sniff(data)][1](data))


def whole_picture(data: bytes, opened: OpenedImage, notes: tuple[str, ...] = ()) -> WholePicture:
    """Return the reader of an opened picture.

    Args:
        data: bytes of the file.
        opened: the picture, as a function of `picture_formats.FORMATS` opens it.
        notes: conversions of its decoder that the header shows.
    """
    estimate = opened.estimate(False, opened.stored_size)
    bands = _bands(data, estimate.channels)
    size = opened.stored_size
    # A picture that lacks the expected alpha is copied once more, to get it.
    copied_bytes = size[0] * size[1] * bands * estimate.sample_bytes if bands in (2, 4) else 0

    def load() -> PixelArray:
        return opened.load(False, size).pixels

    facts = RegionFacts(
        levels=(size,),
        bands=bands,
        dtype="uint16" if estimate.sample_bytes == 2 else "uint8",
        color=COLOR_OF_BANDS[bands],
        row_steps=(size[0],),
        orientation=opened.orientation,
        notes=(FIRST_OF_SEVERAL,) * opened.more + notes,
    )
    peak_bytes = len(data) + max(estimate.peak_bytes, estimate.raster_bytes + copied_bytes)
    return WholePicture(facts, load, peak_bytes)


def _bands(data: bytes, estimated: int) -> int:
    """Return the bands of a picture; the estimate of a WebP leaves alpha out."""
    return 4 if data[:4] == b"RIFF" and _webp_has_alpha(data) else estimated


def _webp_has_alpha(data: bytes) -> bool:
    """Return whether the first chunk of a WebP file declares alpha (RFC 9649, 2.7.1 and 3.4)."""
    kind = data[12:16]
    if kind == b"VP8X":
        return bool(data[20] & 0x10)
    return kind == b"VP8L" and bool(data[24] & 0x10)
