"""Table of the formats whose regions are read, and the function that opens a file of any of them.

To add a format, write one file here, and extend FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from posixpath import splitext

from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.picture.picture_formats import sniff
from halofeed.prep.formats.region.dicom_picture_regions import open_dicom_regions
from halofeed.prep.formats.region.jpeg_rows import open_jpeg_regions
from halofeed.prep.formats.region.png_rows import open_png_regions
from halofeed.prep.formats.region.region_reader import RegionReader
from halofeed.prep.formats.region.tiff_regions import open_tiff_regions
from halofeed.prep.formats.region.whole_picture import open_whole_picture
from halofeed.prep.sources.files import SourceFiles

_HEAD_BYTES = 4096
_SLIDES = {
    ".mrxs": "MIRAX",
    ".vms": "Hamamatsu",
    ".vmu": "Hamamatsu",
    ".bif": "Ventana",
    ".czi": "Zeiss",
    ".svslide": "Sakura",
}
"""Slides whose pixels are in other files or in formats of their own. A .mrxs file itself is a JPEG thumbnail."""

# Name of the format by its first bytes: function of the files, the path and the number of threads.
FORMATS: Mapping[str, Callable[[SourceFiles, str, int], RegionReader]] = {
    "jpeg": open_jpeg_regions,
    "png": open_png_regions,
    "tiff": open_tiff_regions,
    "webp": open_whole_picture,
    "gif": open_whole_picture,
    "bmp": open_whole_picture,
    "dicom": open_dicom_regions,
}


def open_regions(files: SourceFiles, path: str, threads: int = 1) -> RegionReader:
    """Open a picture file, of which only the header is read now.

    Raises:
        SourceError: the file is missing or damaged, or has another format.
    """
    extension = splitext(path)[1].lower()
    if extension in _SLIDES:
        raise decode_error(
            "kind of slide is not supported",
            f"{_SLIDES[extension]} {extension}; `vips copy a{extension} "
            "'a.tif[tile,pyramid,bigtiff,compression=jpeg]'` writes a TIFF, by a libvips with OpenSlide",
        )
    head = files.head(path, _HEAD_BYTES)
    name = "dicom" if head[128:132] == b"DICM" else sniff(head)  # DICOM PS3.10, 7.1
    return FORMATS[name](files, path, threads)
