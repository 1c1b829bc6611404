"""How a clip is shown: frames of it side by side, in reading order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.clip.choose import choose_frames
from halofeed.prep.formats.clip.clip import ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.manifest import Manifest

MOST_FRAMES = 16
_GAP = 2
_GROUND = 128


def shown_frames(count: int) -> NDArray[np.int64]:
    """Which of so many frames a sheet shows: all, or the first, the last and some evenly between.

    >>> shown_frames(3).tolist(), shown_frames(31).tolist()[:4]
    ([0, 1, 2], [0, 2, 4, 6])
    """
    return np.linspace(0, count - 1, min(count, MOST_FRAMES)).astype(np.int64)


def contact_sheet(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Frames [frame, height, width, channel] as one picture [height, width, channel], about as wide as high.

    >>> contact_sheet(np.zeros((3, 10, 20, 3), np.uint8)).shape
    (34, 20, 3)
    """
    count, height, width, channels = frames.shape
    columns = max(1, min(count, round(math.sqrt(count * (height + _GAP) / (width + _GAP)))))
    rows = -(-count // columns)
    shape = (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, channels)
    sheet = np.full(shape, _GROUND, np.uint8)
    for number, frame in enumerate(frames):
        row, column = divmod(number, columns)
        top, left = row * (height + _GAP), column * (width + _GAP)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def source_sheet(
    sources: SourceFiles, path: str, tile: int, manifest: Manifest
) -> tuple[NDArray[np.uint8], tuple[int, int, int]]:
    """The frames of a record's source that the sheet of the record shows, and the source's (frame, height, width).

    Raises:
        SourceError: the source cannot be read, or no longer has as many frames.
    """
    recipe = Recipe.from_json(manifest.recipe)
    options = ClipOptions(
        picture=ReadOptions(max_pixels=recipe.max_pixels), frame_rate=recipe.folder_frame_rate
    )
    members = () if sources.size(path) is not None else sources.files_in(path)
    clip = open_clip(sources, path, members, options)
    windows = choose_frames(clip.frames, clip.times_s, recipe.frame_choice()).windows
    window = windows[min(tile, len(windows) - 1)]
    wanted = window[shown_frames(len(window))]
    read = dict(zip(np.unique(wanted).tolist(), clip.read(wanted), strict=True))
    sheet = contact_sheet(np.stack([read[index] for index in wanted.tolist()]))
    return sheet, (clip.frames, clip.height, clip.width)
