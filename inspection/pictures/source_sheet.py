"""How the source of a clip is shown: those of its frames that the sheet of the record shows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.sheet import contact_sheet, shown_frames
from halofeed.prep.formats.clip.choose import choose_frames
from halofeed.prep.formats.clip.clip import ClipOptions
from halofeed.prep.formats.clip.table import open_clip
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import SourceFiles
from halofeed.schemas.manifest import Manifest


def source_sheet(
    sources: SourceFiles, path: str, tile: int, manifest: Manifest
) -> tuple[NDArray[np.uint8], tuple[int, int, int]]:
    """The frames of a record's source that the sheet of the record shows, and the source's (frame, height, width).

    Raises:
        SourceError: the source cannot be read, or no longer has as many frames.
    """
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
    sheet = contact_sheet(np.stack([read[index] for index in wanted.tolist()]))
    return sheet, (clip.frames, clip.height, clip.width)
