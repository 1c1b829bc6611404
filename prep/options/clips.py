"""Which options clips have, and what a recipe means for them: each frame is a picture, --frames of them a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from halofeed.prep.formats.clip.frame_choice import INCOMPLETE, SHORT, FrameChoice
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.option import KindRules, option, refusal
from halofeed.prep.options.pictures import DEFAULTS, PADDED, interpolation_problems, shape_of_pictures
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import FileSelection
from halofeed.schemas.kinds import KINDS
from halofeed.system.memory import VOLUMES_MIB

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe

TASKS = ("classification", "segmentation")


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """What is done to clips: videos, animations and folders of frames."""

    OPTION_GROUP: ClassVar[str] = "clips"

    frames: int | None = option(
        None,
        "frames of a record: every source is a clip (a video, an animated GIF, WebP or PNG, a folder of frames), "
        "brought to --frames x --height x --width; for segmentation with a mask a frame (a folder of PNG files, or an "
        "animated PNG, GIF or lossless WebP)",
        least=1,
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
        if self.clips_per_source != "all" and not (
            self.clips_per_source.isdecimal() and int(self.clips_per_source) > 0
        ):
            yield f"--clips-per-source {self.clips_per_source}: expected all, or how many of each source"
            return
        if self.folder_frame_rate is not None and not 0 < self.folder_frame_rate < float("inf"):
            yield f"--folder-frame-rate {self.folder_frame_rate}: expected frames per second above 0"
        yield from refusal(self.frame_choice)

    def frame_choice(self) -> FrameChoice:
        """Which frames of a source are taken."""
        return FrameChoice(
            frames=self.frames or 1,
            stride=self.frame_stride,
            frame_rate=self.frame_rate,
            starts=self.clips_per_source if self.clips_per_source == "all" else int(self.clips_per_source),
            short=self.short_clips,
        )


def _problems(recipe: Recipe) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    if layout is not None and not layout.takes_clips:
        fitting = ", ".join(name for name, other in LAYOUTS.items() if other.takes_clips)
        yield f"--frames is for clips and layout {recipe.layout} holds none; leave it out, or take one of {fitting}"
    if recipe.task not in (None, *TASKS):
        yield (
            f"--frames goes with --task {' or '.join(TASKS)}, not with {recipe.task}; take one of them, or leave "
            "--frames out"
        )
    if recipe.holds_class_sets():
        yield ("--class-overlap channels is for volumes; leave it out, or of masks take --class-overlap last")
    if recipe.depth is not None:
        yield "--frames is for clips and --depth for volumes; leave one of them out"
    if recipe.encoding != "raw":
        yield f"--encoding {recipe.encoding}: clips are stored raw; leave it out"
    if recipe.dtype != "uint8":
        yield f"--dtype {recipe.dtype}: clips are stored as uint8; leave it out"
    yield from interpolation_problems(recipe)
    if recipe.channels != 3:
        yield f"--channels {recipe.channels}: clips have 3; leave it out"
    if shape_of_pictures(recipe) is None:
        yield f"--resize {recipe.resize}: all clips have one size; take {PADDED}, or --resize fixed-shape"
    if len(recipe.pad_value) not in (1, 3) or any(not 0 <= value <= 255 for value in recipe.pad_value):
        yield f"--pad-value {','.join(map(str, recipe.pad_value))}: expected 1 or 3 values from 0 to 255"


def _listing(files: SourceFiles) -> FileSelection:
    from halofeed.prep.formats.clip.frame_folder import (
        list_clips,  # its readers take a tenth of a second to load
    )

    return list_clips(files)


def _shape(recipe: Recipe) -> tuple[int, ...] | None:
    size = shape_of_pictures(recipe)
    return None if size is None else (recipe.frames or 1, *size)


RULES = KindRules(
    kind=KINDS["clip"],
    chosen_by="frames",
    tasks=TASKS,
    is_heavy=True,
    listing=_listing,
    defaults=lambda recipe: {**DEFAULTS, "max_memory": VOLUMES_MIB},
    problems=_problems,
    shape=_shape,
)
