"""Reader of a single DICOM picture, such as a mammogram of 4,000 x 3,000 pixels, behind the protocol of regions.

The picture is decoded whole, because most frames are one codestream, and one of the largest has 24 MB. What its display
does (modality LUT, window, padding in black) depends on the file and on single values only, so that tiles have the
pixels of the complete picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from halofeed.prep.formats.picture.dicom_picture import frame_of_file, notes_of_frame
from halofeed.prep.formats.picture.image import OpenedImage, Raster, ReadOptions, Size, scale_depth
from halofeed.prep.formats.picture.picture_formats import open_picture
from halofeed.prep.formats.region.region_reader import RegionReader
from halofeed.prep.formats.region.slide_headers import SLIDE_HEAD_BYTES, is_single_picture
from halofeed.prep.formats.region.slide_regions import open_slide_regions
from halofeed.prep.formats.region.whole_picture import whole_picture
from halofeed.prep.sources.files import SourceFiles


def open_dicom_regions(files: SourceFiles, path: str, threads: int = 1) -> RegionReader:
    """Open a DICOM file: a slide by its regions, and a single picture, or the first frame of several, whole.

    Raises:
        SourceError: the file holds neither; see `open_slide_regions`.
    """
    # Slices of a scan and other objects are refused as no slides.
    if not is_single_picture(files.head(path, SLIDE_HEAD_BYTES)):
        return open_slide_regions(files, path, threads)
    return open_frame_regions(files, path, 0)


def open_frame_regions(files: SourceFiles, path: str, frame: int) -> RegionReader:
    """Open a frame of a DICOM picture, from 0, which is decoded whole.

    Raises:
        SourceError: the file holds no picture or not so many frames, or is damaged.
    """
    found = frame_of_file(files, path, frame)
    data = b"" if found is not None else files.read(path)
    opened = open_picture(data, ReadOptions(), frame) if found is None else found.opened(ReadOptions())
    opened = replace(opened, load=_of_one_depth(opened))
    reader = whole_picture(data, opened, notes_of_frame(data, frame) if found is None else found.notes)
    spacing_mm = opened.stated.spacing_mm
    size_m = None if spacing_mm is None else (spacing_mm[0] / 1000, spacing_mm[1] / 1000)
    reader.facts = replace(reader.facts, pixel_size_m=size_m, fills_depth=True, stated=opened.stated)
    return reader


def _of_one_depth(opened: OpenedImage) -> Callable[[bool, Size], Raster]:
    """Return the loader of a picture with the depth that its estimate states.

    Only decoding shows whether gray values of 8 bits stay so; scaled to 16 bits and back they are the same.
    """
    dtype = {1: "uint8", 2: "uint16"}[opened.estimate(False, opened.stored_size).sample_bytes]

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        raster = opened.load(gray_is_enough, needed_size)
        return replace(raster, pixels=scale_depth(raster.pixels, dtype))

    return load
