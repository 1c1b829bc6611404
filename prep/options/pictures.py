"""What a recipe means for pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halofeed.prep.geometry.resize import KERNEL_NAMES
from halofeed.prep.options.option import KindRules
from halofeed.schemas.kinds import KINDS
from halofeed.system.memory import PICTURES_MIB

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe


DEFAULTS: Mapping[str, Any] = {
    "dtype": "uint8",
    "interpolation": KERNEL_NAMES[0],
    "channels": 3,
    "pad_value": (0,),
}
"""Of pictures and of a clip's frames."""

PADDED = "--resize keep-aspect --pad in place of --height and --width"


def _problems(recipe: Recipe) -> Iterator[str]:
    if recipe.channels not in (1, 3, 4):
        yield f"--channels {recipe.channels}: expected 1, 3 or 4 of pictures"
    if recipe.dtype not in ("uint8", "uint16"):
        yield (
            f"--dtype {recipe.dtype}: of pictures expected uint8 or uint16; of volumes say --depth, --height "
            "and --width"
        )
    yield from interpolation_problems(recipe)
    if recipe.resize == "keep-aspect" and recipe.min_dimension > recipe.max_dimension:
        low, high = recipe.max_dimension, recipe.min_dimension
        yield (
            f"--min-dimension {high} is more than --max-dimension {low}; swap them: --min-dimension {low} "
            f"--max-dimension {high}"
        )
    if recipe.holds_class_sets():
        yield (
            "--class-overlap channels is for volumes; leave it out, or of label images take "
            "--class-overlap last"
        )
    if recipe.pad and recipe.resize != "keep-aspect":
        yield f"--pad: has no effect with --resize {recipe.resize}; take {PADDED}, or leave --pad out"
    if recipe.encoding == "raw" and shape_of_pictures(recipe) is None:
        yield (
            f"--encoding raw needs one size for all, and --resize {recipe.resize} without padding has none; "
            f"take {PADDED}, --resize fixed-shape, or --encoding jpeg or png and let the loader pad"
        )
    if recipe.encoding == "jpeg" and (recipe.dtype != "uint8" or recipe.channels == 4):
        yield "--encoding jpeg holds 8 bits and 1 or 3 channels; take --encoding png or raw"
    if not 1 <= recipe.jpeg_quality <= 100:
        yield f"--jpeg-quality {recipe.jpeg_quality}: expected 1 to 100"
    if len(recipe.pad_value) not in (1, recipe.channels):
        yield f"--pad-value: expected 1 or {recipe.channels} values, got {len(recipe.pad_value)}"
    limit = 255 if recipe.dtype == "uint8" else 65_535
    if any(not 0 <= value <= limit for value in recipe.pad_value):
        yield f"--pad-value {','.join(map(str, recipe.pad_value))}: expected 0 to {limit}"
    if len(recipe.background) not in (1, 3) or any(not 0 <= value <= 255 for value in recipe.background):
        yield f"--background {','.join(map(str, recipe.background))}: expected 1 or 3 values from 0 to 255"


def interpolation_problems(recipe: Recipe) -> Iterator[str]:
    """What is wrong where pictures, or frames, cannot be resized so."""
    if recipe.interpolation not in KERNEL_NAMES:
        kind = recipe.rules.kind.name
        yield f"--interpolation {recipe.interpolation}: of {kind}s expected one of {', '.join(KERNEL_NAMES)}"


def shape_of_pictures(recipe: Recipe) -> tuple[int, int] | None:
    """The (height, width) of every stored picture, or None where the recipe does not fix it."""
    if recipe.resize == "fixed-shape":
        return recipe.height, recipe.width
    return (recipe.max_dimension, recipe.max_dimension) if recipe.pad else None


def _refuses(recipe: Recipe, volume: str, picture: str) -> str:
    return volume and f"{volume} is a volume: say its static shape with --depth, --height and --width"


RULES = KindRules(
    kind=KINDS["picture"],
    chosen_by="",
    tasks=(),
    defaults=lambda recipe: {**DEFAULTS, "max_memory": PICTURES_MIB},
    problems=_problems,
    shape=shape_of_pictures,
    refuses=_refuses,
)
