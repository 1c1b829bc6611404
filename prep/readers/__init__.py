"""How image files become pixels: `read_image`, and one file per format."""

from halofeed.prep.readers.image import DecodedImage, ReadOptions
from halofeed.prep.readers.table import FORMATS, read_image, read_size, size_and_orientation, sniff

__all__ = [
    "FORMATS",
    "DecodedImage",
    "ReadOptions",
    "read_image",
    "read_size",
    "size_and_orientation",
    "sniff",
]
