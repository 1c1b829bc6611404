"""What a recipe means for clips: each frame is a picture, and a record holds as many as --frames says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.pictures import DEFAULTS, interpolation_problems, shape_of_pictures
from halofeed.prep.options.rules import KindRules
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.listing import Listing
from halofeed.prep.sources.memory import VOLUMES_MIB
from halofeed.schemas.kinds import KINDS

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe

TASKS = ("classification", "segmentation")


def _defaults(recipe: Recipe) -> Mapping[str, Any]:
    return {**DEFAULTS, "max_memory": VOLUMES_MIB}


def _problems(recipe: Recipe) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    if layout is not None and not layout.takes_clips:
        fitting = ", ".join(name for name, other in LAYOUTS.items() if other.takes_clips)
        yield f"--frames is for clips and layout {recipe.layout} holds none; leave it out, or take one of {fitting}"
    if recipe.task not in (None, *TASKS):
        yield f"--frames goes with --task {' or '.join(TASKS)}, not with {recipe.task}"
    if recipe.holds_class_sets():
        yield "--class-overlap channels is for volumes, that is with --depth; clips take last or first"
    if recipe.depth is not None:
        yield "--frames is for clips and --depth for volumes; leave one of them out"
    if recipe.encoding != "raw":
        yield f"--encoding {recipe.encoding}: clips are stored raw"
    if recipe.dtype != "uint8":
        yield f"--dtype {recipe.dtype}: clips are stored as uint8"
    yield from interpolation_problems(recipe)
    if recipe.channels != 3:
        yield f"--channels {recipe.channels}: clips have 3"
    if shape_of_pictures(recipe) is None:
        yield f"--resize {recipe.resize}: all clips have one size; add --pad (keep-aspect), or take fixed-shape"
    if len(recipe.pad_value) not in (1, 3) or any(not 0 <= value <= 255 for value in recipe.pad_value):
        yield f"--pad-value {','.join(map(str, recipe.pad_value))}: expected 1 or 3 values from 0 to 255"


def _listing(files: SourceFiles) -> Listing:
    from halofeed.prep.formats.clip.listing import list_clips  # its readers take a tenth of a second to load

    return list_clips(files)


def _shape(recipe: Recipe) -> tuple[int, ...] | None:
    size = shape_of_pictures(recipe)
    return None if size is None else (recipe.frames or 1, *size)


RULES = KindRules(
    kind=KINDS["clip"],
    chosen_by="frames",
    tasks=TASKS,
    is_heavy=True,
    is_fitted=False,
    joins_files=False,
    listing=_listing,
    defaults=_defaults,
    problems=_problems,
    shape=_shape,
    padding=lambda recipe: recipe.padding(),
    is_scaled=lambda recipe: False,
    refuses=lambda recipe, volume, picture: "",
)
