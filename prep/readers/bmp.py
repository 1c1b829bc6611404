"""How a BMP file is read: by Pillow."""

from __future__ import annotations

from PIL import BmpImagePlugin

from halofeed.prep.readers.image import OpenedImage, Raster, Size
from halofeed.prep.readers.pillow import load_raster, open_with


def open_bmp(data: bytes) -> OpenedImage:
    """Open a BMP file: palette, RGB or RGBA, plain or run-length encoded.

    Raises:
        SourceError: the header is damaged or of a kind that is not read; when loaded, the pixels are.
    """
    image = open_with(BmpImagePlugin.BmpImageFile, data)

    def load(grey_is_enough: bool, needed_size: Size) -> Raster:
        return load_raster(image)

    return OpenedImage(stored_size=(image.height, image.width), orientation=1, load=load)
