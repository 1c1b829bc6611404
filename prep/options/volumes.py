"""What a recipe means for CT and MR volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options.rules import KindRules
from halofeed.prep.options.volume import INTERPOLATIONS, default_dtype
from halofeed.prep.sources.data_files import with_data_files
from halofeed.prep.sources.listing import Listing
from halofeed.prep.sources.memory import VOLUMES_MIB
from halofeed.prep.voxels.intensity import STORES, IntensityPlan
from halofeed.schemas.kinds import KINDS

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe

TASK = "segmentation"


def _defaults(recipe: Recipe) -> Mapping[str, Any]:
    return {
        "dtype": default_dtype(recipe),
        "interpolation": INTERPOLATIONS[0],
        "channels": 1,
        "pad_value": (),
        "max_memory": VOLUMES_MIB,
    }


def _problems(recipe: Recipe) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    if layout is not None and TASK not in layout.tasks:
        fitting = ", ".join(name for name, other in LAYOUTS.items() if TASK in other.tasks)
        yield (
            f"--depth is for volumes and layout {recipe.layout} holds pictures; leave it out, or take one of "
            f"{fitting}"
        )
    if recipe.holds_class_sets() and recipe.regions == "combine":
        yield (
            "--regions combine makes classes that do not overlap, and --class-overlap channels takes each region "
            "as it is; leave one of them out"
        )
    if recipe.task not in (None, TASK):
        yield f"--depth goes with --task {TASK}, not with {recipe.task}"
    if recipe.encoding != "raw":
        yield f"--encoding {recipe.encoding}: volumes are stored raw"
    if recipe.dtype not in STORES:
        yield f"--dtype {recipe.dtype}: of volumes expected one of {', '.join(STORES)}"
    if recipe.interpolation not in INTERPOLATIONS:
        yield f"--interpolation {recipe.interpolation}: of volumes expected one of {', '.join(INTERPOLATIONS)}"
    if recipe.normalize and recipe.dtype not in ("float32", "bfloat16"):
        yield f"--dtype {recipe.dtype}: --normalize needs float32 or bfloat16"
    elif recipe.dtype == "uint8" and default_dtype(recipe) != "uint8":
        yield "--dtype uint8 needs a window: give --window, --window-hu or --window-percentiles"
    if recipe.channels < 1:
        yield f"--channels {recipe.channels}: expected 1 or more"
    if len(recipe.pad_value) > 1:
        yield f"--pad-value: expected one value of volumes, got {len(recipe.pad_value)}"
    shape = _shape(recipe)
    if recipe.fit == "tiles" and any(
        shared >= side for shared, side in zip(recipe.overlap(), shape, strict=True)
    ):
        yield f"--tile-overlap {recipe.overlap()}: expected less than {shape} along each axis"


def _shape(recipe: Recipe) -> tuple[int, int, int]:
    return recipe.depth or 1, recipe.height, recipe.width


def _padding(recipe: Recipe) -> tuple[float, ...]:
    """0 where each scan has its own."""
    if not recipe.pad_value or recipe.scales_each_scan():
        return (0,) * recipe.channels
    plan = IntensityPlan(store=recipe.dtype, window=recipe.fixed_window(), standard=recipe.fixed_standard())
    return (plan.stored(float(recipe.pad_value[0])),) * recipe.channels


def _refuses(recipe: Recipe, volume: str, picture: str) -> str:
    if not picture or volume:
        return ""
    return (
        f"--depth {recipe.depth}: {picture} is a picture, and nothing else than pictures is listed; leave --depth out, "
        "or stack slices into one volume file first"
    )


RULES = KindRules(
    kind=KINDS["volume"],
    chosen_by="depth",
    tasks=(TASK,),
    is_heavy=True,
    is_fitted=True,
    joins_files=True,
    listing=lambda files: Listing(files=files, complete=lambda one: with_data_files(one, files)),
    defaults=_defaults,
    problems=_problems,
    shape=_shape,
    padding=_padding,
    is_scaled=lambda recipe: recipe.scales_each_scan(),
    refuses=_refuses,
)
