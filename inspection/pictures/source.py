"""What is shown of a record's source: a picture, or those frames of a clip that the sheet of the record shows?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.sheet import contact_sheet, shown_frames
from halofeed.prep.formats.clip.choose import choose_frames
from halofeed.prep.formats.clip.clip import ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions, read_image
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles, SourceFiles
from halofeed.schemas.errors import SourceError, UsageError
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.origin import Origin

_FULL_SIZE_PICTURES = 24
"""Up to so many pictures have the largest side, so that a page stays below 5 MB."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is shown of a source.

    Args:
        pixels: [height, width, 1, 3 or 4], upright.
        shape: the size to name where they are a sheet of frames, the source's (frame, height, width).
        digest: the SHA-256 of a file of which a record says it too.
        notes: what was done to the pixels that reading alone did not ask for.
    """

    pixels: NDArray[Any]
    shape: tuple[int, ...] = ()
    digest: str = ""
    notes: tuple[str, ...] = ()


def open_sources(origin: Origin | None, named: str | None) -> tuple[SourceFiles | None, str]:
    """The source pictures, or why they are not shown.

    A data set of someone else decides on no folder of this machine: it would have its reader's own pictures shown.

    Args:
        origin: where they lay when this user converted them here, if that was so.
        named: the folder that the user names.

    Raises:
        UsageError: there is no folder as the user names it.
    """
    if named is not None:
        return LocalFiles(named), ""
    if origin is None:
        return None, (
            "Where the source pictures lie is no part of a data set, and it was not you who converted this one in this "
            "place"
        )
    if "://" in origin.images:
        return None, f"The source pictures lie at {origin.images}, where a report does not read"
    if not Path(origin.images).is_dir():
        return None, f"The source pictures are no longer at {origin.images}"
    return LocalFiles(origin.images), ""


def thumbnail_side(pictures: int, largest: int, smallest: int) -> int:
    """The longer side of so many thumbnails: less than the largest where there are many, so that a page is small."""
    shrunk = math.sqrt(min(1.0, _FULL_SIZE_PICTURES / max(1, pictures)))
    return max(smallest, round(largest * shrunk))


def thumbnail_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """The (height, width) of a thumbnail whose longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _read_picture(sources: SourceFiles, path: str, tile: int, manifest: Manifest, side: int) -> Source:
    data = sources.read(path)
    most = int(manifest.recipe.get("max_pixels", ReadOptions.max_pixels))
    options = ReadOptions(channels=4, max_pixels=most)
    image = read_image(data, options, lambda height, width: thumbnail_size((height, width), side))
    # What this reading alone did is no note of the conversion.
    own = ["opaque alpha added", "decoded at"]
    own += ["16 bit scaled"] if manifest.recipe.get("dtype") == "uint16" else []
    notes = tuple(note for note in image.notes if not note.startswith(tuple(own)))
    return Source(pixels=image.pixels, digest=hashlib.sha256(data).hexdigest(), notes=notes)


def _read_frames(sources: SourceFiles, path: str, tile: int, manifest: Manifest, side: int) -> Source:
    try:
        recipe = Recipe.from_json(manifest.recipe)
        options = ClipOptions(
            picture=ReadOptions(max_pixels=recipe.max_pixels),
            frame_rate=recipe.folder_frame_rate,
            incomplete=recipe.incomplete_clips,
        )
        members = () if sources.size(path) is not None else sources.files_in(path)
        clip = open_clip(sources, path, members, options)
        windows = choose_frames(clip.frames, clip.times_s, recipe.frame_choice()).windows
        window = windows[min(tile, len(windows) - 1)]
        wanted = window[shown_frames(len(window))]
        read = dict(zip(np.unique(wanted).tolist(), clip.read(wanted), strict=True))
    except UsageError as error:
        raise SourceError("read", "the recipe of the data set cannot be followed", str(error)) from error
    sheet = contact_sheet(np.stack([read[index] for index in wanted.tolist()]))
    return Source(pixels=sheet, shape=(clip.frames, clip.height, clip.width))


SOURCES: dict[str, Callable[[SourceFiles, str, int, Manifest, int], Source]] = {
    "picture": _read_picture,
    "clip": _read_frames,
}
"""Per kind of image, from the files, the path, the record's number among those of its source, the manifest and the
longer side of the thumbnail; SourceError. Scans are shown as stored, by `halofeed.inspection.pictures.planes`."""
