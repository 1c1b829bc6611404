"""Reader of a single DICOM picture, such as a mammogram of 4,000 x 3,000 pixels, behind the protocol of regions.

The picture is decoded whole, because most frames are one codestream, and one of the largest has 24 MB. What its display
does (modality LUT, window, padding in black) depends on the file and on single values only, so that tiles have the
pixels of the complete picture.
"""

from __future__ import annotations

from dataclasses import replace

from halofeed.prep.formats.picture.dicom_picture import notes_of_header, open_dicom
from halofeed.prep.formats.picture.image import decode_error
from halofeed.prep.formats.region.region_reader import RegionReader
from halofeed.prep.formats.region.slide_headers import SLIDE_HEAD_BYTES, is_single_picture
from halofeed.prep.formats.region.slide_regions import open_slide_regions
from halofeed.prep.formats.region.whole_picture import WholePicture, whole_picture
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.wording import plural


def open_dicom_regions(files: SourceFiles, path: str, threads: int = 1) -> RegionReader:
    """Open a DICOM file: a slide by its regions, and a single picture whole.

    Raises:
        SourceError: the file holds neither, or a picture of several frames; see `open_slide_regions`.
    """
    # Slices of a scan and other objects are refused as no slides.
    if not is_single_picture(files.head(path, SLIDE_HEAD_BYTES)):
        return open_slide_regions(files, path, threads)
    return _open_picture(files.read(path))


def _open_picture(data: bytes) -> WholePicture:
    opened = open_dicom(data)
    # A tile names its source, and no frame of it.
    if opened.frames > 1:
        detail = f"{plural(opened.frames, 'frame')}; leave --fit tiles out, or save each frame as a file of its own"
        raise decode_error("file of several frames is not cut into tiles", detail)
    reader = whole_picture(data, opened, notes_of_header(data))
    spacing_mm = opened.stated.spacing_mm
    size_m = None if spacing_mm is None else (spacing_mm[0] / 1000, spacing_mm[1] / 1000)
    reader.facts = replace(reader.facts, pixel_size_m=size_m, fills_depth=True, stated=opened.stated)
    return reader
