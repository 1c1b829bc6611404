"""Which listed files are images, and which files one image consists of, where that differs by the kind of image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.reference import Reference


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The source files as annotation layouts are to see them.

    Args:
        files: that are listed.
        takes: whether a listed path is that of an image.
        complete: the reference of an image with those of its files that its name does not tell.
    """

    files: SourceFiles
    takes: Callable[[str], bool] = is_image_name
    complete: Callable[[Reference], Reference] = lambda reference: reference
