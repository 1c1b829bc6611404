"""Which options the conversion of clips has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from halofeed.prep.formats.clip.choose import INCOMPLETE, SHORT, FrameChoice
from halofeed.prep.options.option import option
from halofeed.schemas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """What is done to clips: videos, animations and folders of frames."""

    OPTION_GROUP: ClassVar[str] = "clips"

    frames: int | None = option(
        None,
        "frames of a record: every source is a clip (a video, an animated GIF, WebP or PNG, a folder of frames), "
        "brought to --frames x --height x --width; for segmentation with a mask a frame (a folder of PNG files, or an "
        "animated PNG, GIF or lossless WebP)",
    )
    frame_stride: int | None = option(None, "take each so-many-th frame (default: 1, each)")
    frame_rate: float | None = option(
        None,
        "take so many frames a second instead, by the frames' time stamps: at each of these times the frame that is "
        "shown then",
    )
    folder_frame_rate: float | None = option(
        None, "frames a second of folders of frames, which have no time stamps of their own"
    )
    clips_per_source: str = option(
        "all",
        "which parts of a source become records: all, one after the other, what is left at the end is dropped; or a "
        "number: so many, evenly spread",
    )
    short_clips: str = option(
        "refuse",
        "a source with fewer frames than --frames is rejected, or its last frame is repeated",
        choices=SHORT,
    )
    incomplete_clips: str = option(
        "refuse",
        "a source that was cut off, or of which frames are missing, is rejected, or its frames that are there are "
        "kept and a warning counts them",
        choices=INCOMPLETE,
    )

    def clip_problems(self) -> Iterator[str]:
        """What is wrong with these options by themselves."""
        if self.frames is not None and self.frames < 1:
            yield f"--frames {self.frames}: expected 1 or more"
            return
        if self.clips_per_source != "all" and not (
            self.clips_per_source.isdecimal() and int(self.clips_per_source) > 0
        ):
            yield f"--clips-per-source {self.clips_per_source}: expected all, or how many of each source"
            return
        if self.folder_frame_rate is not None and not 0 < self.folder_frame_rate < float("inf"):
            yield f"--folder-frame-rate {self.folder_frame_rate}: expected frames per second above 0"
        try:
            self.frame_choice()
        except UsageError as error:
            yield str(error)

    def frame_choice(self) -> FrameChoice:
        """Which frames of a source are taken."""
        return FrameChoice(
            frames=self.frames or 1,
            stride=self.frame_stride,
            frame_rate=self.frame_rate,
            starts=self.clips_per_source if self.clips_per_source == "all" else int(self.clips_per_source),
            short=self.short_clips,
        )
