"""Reader of regions of formats that are decoded whole, by the decoders of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.picture_formats import FORMATS, sniff
from halofeed.prep.formats.region.region_reader import COLOR_BANDS, RegionFacts, check_window
from halofeed.prep.sources.files import SourceFiles

_COLORS = {bands: color for color, bands in COLOR_BANDS.items()}


class DecodedPicture:
    """Picture that is decoded at its first read and held until `close`."""

    def __init__(self, data: bytes) -> None:
        self._opened = FORMATS[sniff(data)][1](data)
        size = self._opened.stored_size
        self._estimate = self._opened.estimate(False, size)
        self._pixels: NDArray[Any] | None = None
        self._file_bytes = len(data)
        estimate = self._estimate
        self.facts = RegionFacts(
            levels=(size,),
            bands=estimate.channels,
            dtype=f"uint{8 * estimate.sample_bytes}",
            color=_COLORS[estimate.channels],
            row_steps=(1,),
            orientation=self._opened.orientation,
        )

    def read_bytes(self, level: int, height: int, width: int) -> int:
        """Return the memory of the complete picture and of its decoding."""
        return self._file_bytes + self._estimate.peak_bytes

    def read(self, level: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a copy of a window."""
        check_window(self.facts, level, top, left, height, width)
        if self._pixels is None:
            self._pixels = self._opened.load(False, self.facts.size).pixels
        return np.ascontiguousarray(self._pixels[top : top + height, left : left + width])

    def read_valid(
        self, level: int, top: int, left: int, height: int, width: int
    ) -> NDArray[np.bool_] | None:
        """Return None: these formats mark no pixel as missing."""
        return None

    def close(self) -> None:
        """Release the pixels."""
        self._pixels = None


def open_decoded(files: SourceFiles, path: str, threads: int = 1) -> DecodedPicture:
    """Open a picture; the file is read completely."""
    return DecodedPicture(files.read(path))
