"""Readers of image files: `read_image`, and one file per format."""

from halofeed.prep.formats.picture.image import DecodedImage, ReadOptions
from halofeed.prep.formats.picture.picture_formats import (
    FIRST_OF_SEVERAL,
    FORMATS,
    Footprint,
    read_image,
    size_and_orientation,
    sniff,
)

__all__ = [
    "FIRST_OF_SEVERAL",
    "FORMATS",
    "DecodedImage",
    "Footprint",
    "ReadOptions",
    "read_image",
    "size_and_orientation",
    "sniff",
]
