"""Which listed files are images, and which files one image consists of, where that differs by the kind of image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.reference import Reference
from halofeed.prep.sources.volume_files import is_scan_name


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The source files as annotation layouts are to see them.

    Args:
        files: that are listed.
        takes: whether a listed path is that of an image of a class or of boxes.
        takes_scan: whether one is that of an image that may have masks, or of a mask.
        complete: the reference of an image with those of its files that its name does not tell.
    """

    files: SourceFiles
    takes: Callable[[str], bool] = is_image_name
    takes_scan: Callable[[str], bool] = is_scan_name
    complete: Callable[[Reference], Reference] = lambda reference: reference
