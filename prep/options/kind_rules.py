"""Rules of each kind of image: its defaults, which options go together, and the shape of its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ge
from typing import Any

from halofeed.prep.geometry.resize import KERNEL_NAMES
from halofeed.prep.layouts import LAYOUTS, Layout
from halofeed.prep.options.option import problems_of
from halofeed.prep.options.recipe_options import RecipeOptions
from halofeed.prep.options.tiles import cuts_pictures, tile_overlap_of
from halofeed.prep.options.volumes import INTERPOLATIONS, default_dtype
from halofeed.prep.sources.dicom_names import PictureNames
from halofeed.prep.sources.example import FileSelection, with_data_files
from halofeed.prep.sources.file_names import is_dicom_name, is_scan_name, is_still_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.intensity import STORES, IntensityPlan
from halofeed.schemas.encodings import ENCODINGS
from halofeed.schemas.kinds import KINDS, Kind
from halofeed.system.memory import PICTURES_MIB, VOLUMES_MIB
from halofeed.system.wording import plural


@dataclass(frozen=True, kw_only=True, eq=False)
class KindRules:
    """Rules of one kind of image. The functions take the recipe's options.

    Args:
        kind: the kind of image.
        chosen_by: the option that selects this kind; "" for the kind that is used without such an option.
        tasks: tasks that its records can serve. The first one is the default where neither --task nor the layout
            names a task; () leaves the choice to the layout.
        is_heavy: True if one input takes as much memory as hundreds of pictures.
        is_fitted: True if --fit decides how an image is brought to its shape.
        joins_files: True if an image may have channels in separate files.
        select_files: return the files that may be sources, of the recipe and all files.
        defaults: return the values of options that were left out.
        problems: yield a message for each combination of options that cannot work.
        shape: return the static size along the kind's axes; None where the options do not fix it.
        padding: return the padding value of a record per channel.
        is_scaled: return True if each record states the scale of its values.
        refuses: return a message that refuses the sources, or "". It takes the first volume and the first picture
            among the sources, each "" where there is none.
    """

    kind: Kind
    chosen_by: str
    tasks: tuple[str, ...]
    is_heavy: bool = False
    is_fitted: bool = False
    joins_files: bool = False
    select_files: Callable[[RecipeOptions, SourceFiles], FileSelection] = lambda _, files: FileSelection(
        files=files
    )
    defaults: Callable[[RecipeOptions], Mapping[str, Any]]
    problems: Callable[[RecipeOptions], Iterator[str]]
    shape: Callable[[RecipeOptions], tuple[int, ...] | None]
    padding: Callable[[RecipeOptions], tuple[float, ...]] = lambda recipe: recipe.padding()
    is_scaled: Callable[[RecipeOptions], bool] = lambda recipe: False
    refuses: Callable[[RecipeOptions, str, str], str] = lambda recipe, volume, picture: ""


PICTURE_DEFAULTS: Mapping[str, Any] = {
    "dtype": "uint8",
    "interpolation": KERNEL_NAMES[0],
    "channels": 3,
    "pad_value": (0,),
}
"""Defaults of pictures and of the frames of a clip."""

PICTURE_DTYPES = ("uint8", "uint16")
MAX_BANDS = 256
"""Channels of a record; hyperspectral pictures have up to about 250 bands."""
_PADDED = "--resize keep-aspect --pad in place of --height and --width"


def _picture_defaults(recipe: RecipeOptions) -> Mapping[str, Any]:
    channels = {"channels": len(recipe.bands)} if recipe.bands else {}
    return {**PICTURE_DEFAULTS, "max_memory": PICTURES_MIB, **channels}


def _picture_problems(recipe: RecipeOptions) -> Iterator[str]:
    yield from _tile_problems(recipe) if cuts_pictures(recipe) else _whole_picture_problems(recipe)
    yield from interpolation_problems(recipe, "picture")
    yield from _resize_problems(recipe)
    yield from _encoding_problems(recipe)
    yield from _color_problems(recipe)


def _whole_picture_problems(recipe: RecipeOptions) -> list[str]:
    return problems_of(
        (
            recipe.channels not in (1, 3, 4),
            f"--channels {recipe.channels}: expected 1, 3 or 4 for pictures; other bands need --fit tiles",
        ),
        (
            recipe.dtype not in PICTURE_DTYPES,
            f"--dtype {recipe.dtype}: expected uint8 or uint16 for pictures; for volumes give --depth, --height "
            "and --width",
        ),
    )


def _tile_problems(recipe: RecipeOptions) -> Iterator[str]:
    """Yield a message for each setting that tiles of pictures cannot have."""
    yield from recipe.tile_problems()
    yield from _tile_size_problems(recipe)
    yield from _band_problems(recipe)
    yield from _range_problems(recipe)


def _tile_size_problems(recipe: RecipeOptions) -> list[str]:
    tile, overlap = (recipe.height, recipe.width), tile_overlap_of(recipe)
    is_scaled = recipe.scale != 1 or recipe.gsd_m
    return problems_of(
        (
            recipe.resize != "fixed-shape",
            f"--resize {recipe.resize}: --fit tiles keeps the pixels, and --scale scales them; leave --resize out",
        ),
        (
            any(map(ge, overlap, tile)),
            f"--tile-overlap {overlap[0]},{overlap[1]}: expected less than --height {tile[0]} and --width {tile[1]}",
        ),
        (
            is_scaled and recipe.interpolation != KERNEL_NAMES[0],
            f"--interpolation {recipe.interpolation}: tiles are scaled with {KERNEL_NAMES[0]}; leave it out",
        ),
    )


def _band_problems(recipe: RecipeOptions) -> list[str]:
    return problems_of(
        (
            recipe.bands and recipe.channels != len(recipe.bands),
            f"--channels {recipe.channels}: --bands names {plural(len(recipe.bands), 'band')}; leave one of them out",
        ),
        (
            not 1 <= recipe.channels <= MAX_BANDS,
            f"--channels {recipe.channels}: expected 1 to {MAX_BANDS}; choose bands with --bands",
        ),
        (
            recipe.encoding == "png" and recipe.channels not in (1, 3, 4),
            f"--encoding png holds 1, 3 or 4 channels, and there are {recipe.channels}; take --encoding raw",
        ),
    )


def _range_problems(recipe: RecipeOptions) -> list[str]:
    """Return a message for each type of stored values that the values cannot have."""
    return problems_of(
        (
            recipe.value_range and recipe.window_percentiles,
            "--value-range and --window-percentiles both set the range of the values; give one of them",
        ),
        (
            recipe.ranges_values() and recipe.dtype != "uint8",
            f"--dtype {recipe.dtype}: a range of values becomes 0 to 255 of uint8; leave --dtype or the range out",
        ),
        (
            recipe.dtype not in PICTURE_DTYPES,
            f"--dtype {recipe.dtype}: expected uint8 or uint16 for tiles of pictures; other values become uint8 by "
            "--value-range LOW,HIGH or --window-percentiles 2,98",
        ),
    )


def _resize_problems(recipe: RecipeOptions) -> list[str]:
    """Return a message for each way to one size that cannot work."""
    keeps_aspect, (low, high) = recipe.resize == "keep-aspect", (recipe.max_dimension, recipe.min_dimension)
    return problems_of(
        (
            keeps_aspect and high > low,
            f"--min-dimension {high} is more than --max-dimension {low}; swap them: --min-dimension {low} "
            f"--max-dimension {high}",
        ),
        (
            recipe.holds_class_sets(),
            "--class-overlap channels is for volumes; leave it out, or of label images take "
            "--class-overlap last",
        ),
        (
            recipe.pad and not keeps_aspect,
            f"--pad: has no effect with --resize {recipe.resize}; take {_PADDED}, or leave --pad out",
        ),
        (
            ENCODINGS[recipe.encoding].has_one_shape and recipe.picture_shape() is None,
            f"--encoding {recipe.encoding} needs one size for all, and --resize {recipe.resize} without padding has "
            f"none; take {_PADDED}, --resize fixed-shape, or --encoding jpeg or png and let the loader pad",
        ),
    )


def _encoding_problem(recipe: RecipeOptions, kind: Kind) -> tuple[bool, str]:
    """Return whether records of a kind cannot have the encoding, and the message for that."""
    known = " or ".join(kind.stored)
    # Who asks for another encoding wants smaller records, which the default is not.
    fix = "take --encoding packed, about half of raw's bytes" if "packed" in kind.stored else "leave it out"
    return (
        recipe.encoding not in kind.stored,
        f"--encoding {recipe.encoding}: {kind.name}s are stored {known}; {fix}",
    )


def _encoding_problems(recipe: RecipeOptions) -> list[str]:
    """Return a message for each setting that JPEG does not have."""
    holds_jpeg = recipe.dtype == "uint8" and recipe.channels in (1, 3)
    return problems_of(
        (
            # Baseline JPEG has 8 bits (ITU-T T.81); its fourth channel is black ink, not transparency.
            recipe.encoding == "jpeg" and not holds_jpeg,
            "--encoding jpeg holds 8 bits and 1 or 3 channels; take --encoding png or raw",
        ),
        (not 1 <= recipe.jpeg_quality <= 100, f"--jpeg-quality {recipe.jpeg_quality}: expected 1 to 100"),
        *_plane_problems(recipe),
    )


def _plane_problems(recipe: RecipeOptions) -> Iterator[tuple[object, str]]:
    """Yield a problem for each setting that color planes do not have."""
    if not ENCODINGS[recipe.encoding].holds_planes:
        return
    name, shape = f"--encoding {recipe.encoding}", recipe.picture_shape()
    if recipe.dtype != "uint8" or recipe.channels != 3:
        # Another encoding has no rule for the size, which is not named then.
        yield True, f"{name} holds three colors of 8 bits; take --encoding packed"
        return
    height, width = shape or (0, 0)
    high, wide = height + height % 2, width + width % 2
    sizes = f"--height {high} --width {wide}" if recipe.resize == "fixed-shape" else f"--max-dimension {high}"
    yield (
        height % 2 or width % 2,
        f"{name} needs an even height and width, because four pixels share their chroma, and the stored size is "
        f"{height} x {width}; take {sizes}, or --encoding packed",
    )


def _color_problems(recipe: RecipeOptions) -> list[str]:
    """Return a message for each color that does not fit the recipe's channels and dtype."""
    limit = {"uint8": 255, "uint16": 65_535}.get(recipe.dtype, math.inf)
    return problems_of(
        (
            len(recipe.pad_value) not in (1, recipe.channels),
            f"--pad-value: expected 1 or {plural(recipe.channels, 'value')}, got {len(recipe.pad_value)}",
        ),
        (
            _is_outside(recipe.pad_value, limit),
            f"--pad-value {','.join(map(str, recipe.pad_value))}: expected 0 to {limit:g}",
        ),
        (
            len(recipe.background) not in (1, 3) or _is_outside(recipe.background, 255),
            f"--background {','.join(map(str, recipe.background))}: expected 1 or 3 values from 0 to 255",
        ),
    )


def _is_outside(values: Sequence[float], limit: float) -> bool:
    """Return whether a value is below 0 or above the limit."""
    return any(not 0 <= value <= limit for value in values)


def interpolation_problems(recipe: RecipeOptions, kind: str) -> Iterator[str]:
    """Refuse an interpolation that cannot resize pictures or frames; `kind` is the kind's name, for the message."""
    if recipe.interpolation not in KERNEL_NAMES:
        yield f"--interpolation {recipe.interpolation}: expected one of {', '.join(KERNEL_NAMES)} for {kind}s"


def _picture_refuses(recipe: RecipeOptions, volume: str, picture: str) -> str:
    return (
        volume
        and f"{volume} is a volume: set its static shape with --depth, --height and --width; --dry-run proposes one"
    )


def _select_pictures(recipe: RecipeOptions, files: SourceFiles) -> FileSelection:
    names = PictureNames(files=files)
    if not cuts_pictures(recipe):
        return FileSelection(files=files, takes=names.__contains__, takes_scan=names.takes_scan)
    from halofeed.prep.formats.region.slide_headers import SlideIndex

    slides = SlideIndex(files)

    def is_slide(path: str) -> bool:
        return is_dicom_name(path) and path in slides

    return FileSelection(
        files=files,
        takes=lambda path: is_still_name(path) or is_slide(path),
        takes_scan=lambda path: is_scan_name(path) or is_slide(path),
    )


PICTURE_RULES = KindRules(
    kind=KINDS["picture"],
    chosen_by="",
    tasks=(),
    select_files=_select_pictures,
    defaults=_picture_defaults,
    problems=_picture_problems,
    shape=RecipeOptions.picture_shape,
    is_scaled=lambda recipe: cuts_pictures(recipe) and recipe.ranges_values(),
    refuses=_picture_refuses,
)


_VOLUME_TASKS = ("segmentation", "detection")


def takes_volumes(layout: Layout) -> bool:
    """Return whether the images of a layout can be volumes: with label volumes, or with boxes in volumes."""
    return layout.takes_scan_boxes or (_VOLUME_TASKS[0] in layout.tasks and layout.takes_volumes)


def _volume_task(layout: Layout | None) -> str:
    """Return the task of a layout's volumes."""
    return _VOLUME_TASKS[layout is not None and layout.takes_scan_boxes]


def _volume_defaults(recipe: RecipeOptions) -> Mapping[str, Any]:
    return {
        "dtype": default_dtype(recipe),
        "interpolation": INTERPOLATIONS[0],
        "channels": 1,
        "pad_value": (),
        "max_memory": VOLUMES_MIB,
    }


def _volume_problems(recipe: RecipeOptions) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    of_volumes = [name for name, one in LAYOUTS.items() if takes_volumes(one)]
    with_boxes = [name for name, one in LAYOUTS.items() if one.takes_scan_boxes]
    yield from problems_of(
        (
            layout is not None and layout.name not in of_volumes,
            f"--depth is for volumes and layout {recipe.layout} holds pictures; leave it out, or take one of "
            f"{', '.join(of_volumes)}",
        ),
        (
            recipe.holds_class_sets() and recipe.regions == "combine",
            "--regions combine makes classes that do not overlap, and --class-overlap channels takes each region "
            "as it is; leave one of them out",
        ),
        (
            recipe.task not in (None, *_VOLUME_TASKS),
            f"--depth goes with --task {_volume_task(layout)}, not with {recipe.task}; take that, or leave --depth out",
        ),
        (
            recipe.task == "detection" and layout is not None and not layout.takes_scan_boxes,
            f"--depth --task detection: boxes in volumes are read from --layout {', '.join(with_boxes)}; take one of "
            "them, --task segmentation, or leave --depth out",
        ),
        _encoding_problem(recipe, KINDS["volume"]),
        (
            recipe.dtype not in STORES,
            f"--dtype {recipe.dtype}: expected one of {', '.join(STORES)} for volumes",
        ),
        (
            recipe.interpolation not in INTERPOLATIONS,
            f"--interpolation {recipe.interpolation}: expected one of {', '.join(INTERPOLATIONS)} for volumes",
        ),
    )
    yield from _intensity_problems(recipe)
    yield from problems_of(
        (recipe.channels < 1, f"--channels {recipe.channels}: expected 1 or more"),
        (
            len(recipe.pad_value) not in (0, 1, recipe.channels),
            f"--pad-value: expected 1 or {plural(recipe.channels, 'value')}, got {len(recipe.pad_value)}",
        ),
    )
    shape = _volume_shape(recipe)
    if recipe.fit == "tiles" and any(map(ge, recipe.overlap(), shape)):
        yield f"--tile-overlap {recipe.overlap()}: expected less than {shape} along each axis"


def _intensity_problems(recipe: RecipeOptions) -> Iterator[str]:
    """Yield a message for a dtype that cannot hold the values: integers for fractions, or 8 bits without a window."""
    if recipe.normalize and recipe.dtype not in ("float32", "bfloat16"):
        yield (
            f"--dtype {recipe.dtype}: --normalize needs float32 or bfloat16; take --dtype float32 or leave --normalize "
            "out"
        )
    elif recipe.dtype == "uint8" and default_dtype(recipe) != "uint8":
        yield "--dtype uint8 needs a window: give --window, --window-hu or --window-percentiles"


def _volume_shape(recipe: RecipeOptions) -> tuple[int, int, int]:
    return recipe.depth or 1, recipe.height, recipe.width


def _volume_padding(recipe: RecipeOptions) -> tuple[float, ...]:
    """Return the stored value of --pad-value; 0 where each scan is scaled by its own values."""
    # Where each scan has its own scale, each record states the value of its padding.
    if not recipe.pad_value or recipe.scales_each_scan():
        return (0,) * recipe.channels
    plan = IntensityPlan(store=recipe.dtype, window=recipe.fixed_window(), standard=recipe.fixed_standard())
    return tuple(plan.stored(float(value)) for value in recipe.padding())


def _volume_refuses(recipe: RecipeOptions, volume: str, picture: str) -> str:
    # Pictures beside volumes are labels or previews.
    if not picture or volume:
        return ""
    return (
        f"--depth {recipe.depth}: {picture} is a picture, and the sources are pictures only; leave --depth out, "
        "or, if they are slices, save those of each scan as one NRRD or NIfTI file with its voxel size first"
    )


VOLUME_RULES = KindRules(
    kind=KINDS["volume"],
    chosen_by="depth",
    tasks=_VOLUME_TASKS,
    is_heavy=True,
    is_fitted=True,
    joins_files=True,
    select_files=lambda _, files: FileSelection(
        files=files, complete=lambda one: with_data_files(one, files)
    ),
    defaults=_volume_defaults,
    problems=_volume_problems,
    shape=_volume_shape,
    padding=_volume_padding,
    is_scaled=lambda recipe: recipe.scales_each_scan(),
    refuses=_volume_refuses,
)


_CLIP_TASKS = ("classification", "segmentation")


def _clip_problems(recipe: RecipeOptions) -> Iterator[str]:
    layout = LAYOUTS.get(recipe.layout)
    of_clips = [name for name, other in LAYOUTS.items() if other.takes_clips]
    yield from problems_of(
        (
            layout is not None and not layout.takes_clips,
            f"--frames is for clips and layout {recipe.layout} holds none; leave it out, or take one of "
            f"{', '.join(of_clips)}",
        ),
        (
            recipe.task not in (None, *_CLIP_TASKS),
            f"--frames goes with --task {' or '.join(_CLIP_TASKS)}, not with {recipe.task}; take one of them, or leave "
            "--frames out",
        ),
        (
            recipe.holds_class_sets(),
            "--class-overlap channels is for volumes; leave it out, or of masks take --class-overlap last",
        ),
        (recipe.depth is not None, "--frames is for clips and --depth for volumes; leave one of them out"),
        _encoding_problem(recipe, KINDS["clip"]),
        (recipe.dtype != "uint8", f"--dtype {recipe.dtype}: clips are stored as uint8; leave it out"),
    )
    yield from interpolation_problems(recipe, "clip")
    yield from problems_of(
        (recipe.channels != 3, f"--channels {recipe.channels}: clips have 3; leave it out"),
        (
            recipe.picture_shape() is None,
            f"--resize {recipe.resize}: all clips have one size; take {_PADDED}, or --resize fixed-shape",
        ),
        (
            len(recipe.pad_value) not in (1, 3) or _is_outside(recipe.pad_value, 255),
            f"--pad-value {','.join(map(str, recipe.pad_value))}: expected 1 or 3 values from 0 to 255",
        ),
    )


def _select_clips(_: RecipeOptions, files: SourceFiles) -> FileSelection:
    # The readers of clips take 0.1 s to import.
    from halofeed.prep.formats.clip.frame_folder import list_clips

    return list_clips(files)


def _clip_shape(recipe: RecipeOptions) -> tuple[int, ...] | None:
    size = recipe.picture_shape()
    return None if size is None else (recipe.frames or 1, *size)


CLIP_RULES = KindRules(
    kind=KINDS["clip"],
    chosen_by="frames",
    tasks=_CLIP_TASKS,
    is_heavy=True,
    select_files=_select_clips,
    defaults=lambda recipe: {**PICTURE_DEFAULTS, "max_memory": VOLUMES_MIB},
    problems=_clip_problems,
    shape=_clip_shape,
)
