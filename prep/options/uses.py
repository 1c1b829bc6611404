"""What each option of a conversion needs to have an effect, and which of those that were given have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from halofeed.prep.options.clips import ClipOptions
from halofeed.prep.options.option import flag

if TYPE_CHECKING:
    from halofeed.prep.options.recipe import Recipe


@dataclass(frozen=True)
class _Use:
    """What some options need to have an effect: in words, and as a test of a recipe."""

    names: tuple[str, ...]
    needs: str
    has_effect: Callable[[Recipe], bool]
    why: str = "without {}; add that, or leave it out"


def _is_of(*kinds: str) -> Callable[[Recipe], bool]:
    return lambda recipe: recipe.rules.kind.name in kinds


def _of_layouts(names: tuple[str, ...], *layouts: str) -> _Use:
    listed = " or ".join(filter(None, (", ".join(layouts[:-1]), layouts[-1])))
    return _Use(names, f"--layout {listed}", lambda recipe: recipe.layout in layouts)


_BOX_OPTIONS = (
    *("max_boxes", "boxes_outside", "boxes_zero_area", "boxes_crowd", "boxes_difficult", "on_bad_object"),
    *("box_units", "keep"),
)
_PICTURE_OPTIONS = (
    *("resize", "min_dimension", "max_dimension", "pad", "alpha", "background", "max_pixels"),
    "annotation_grid",
)
_SERIES_OPTIONS = (
    *("min_slices", "secondary_captures", "series_identity", "series_split", "alternating_slices"),
    *("series_modality", "series_description", "series_choice"),
)
_VOLUME_OPTIONS = (
    *("spacing_mm", "fit", "center", "crop_foreground", "tile_overlap", "mask_interpolation", "slice_wise"),
    *("window", "window_hu", "window_percentiles", "normalize", "mask_grid", "mask_grid_tolerance"),
    "mask_references",
    *("refuse_flaws", "fill_missing_slices", "non_finite_value", "non_finite_labels", "sform_qform"),
    *("unoriented", "max_voxels", *_SERIES_OPTIONS),
)
_CLIP_OPTIONS = tuple(field.name for field in fields(ClipOptions) if field.name != "frames")
_CLASS_OPTIONS = ("class_overlap", "classes", "map_classes", "ignore_label")
_is_volume = _is_of("volume")
_USES = (
    _of_layouts(("image_sets", "voc_images"), "voc"),
    _of_layouts(("box_form",), "csv", "jsonl", "coco", "voc"),
    _of_layouts(("ignore_columns",), "csv", "jsonl", "coco", "voc"),
    _of_layouts(("box_origin",), "voc", "csv", "jsonl"),
    _of_layouts(("folders_are_classes",), "folders"),
    _of_layouts(("split_folders",), "folders", "pairs", "lits", "class-masks", "dicom"),
    _Use(
        ("height", "width"),
        "--resize fixed-shape or --depth",
        lambda recipe: recipe.resize == "fixed-shape" or _is_volume(recipe),
    ),
    _Use(
        ("min_dimension", "max_dimension"),
        "--resize keep-aspect (with --pad or --encoding jpeg)",
        lambda recipe: recipe.resize == "keep-aspect",
    ),
    _Use(
        ("interpolation",),
        "--resize fixed-shape or keep-aspect",
        lambda recipe: recipe.resize != "none" or _is_volume(recipe),
    ),
    _Use(
        ("pad_value",),
        "--resize keep-aspect --pad, or --depth",
        lambda recipe: recipe.pad or _is_volume(recipe),
    ),
    _Use(_PICTURE_OPTIONS, "", _is_of("picture", "clip"), "with --depth; leave one of them out"),
    _Use(
        ("sample_bits",),
        "pictures or clips stored as uint8",
        lambda recipe: recipe.dtype == "uint8" and not _is_volume(recipe),
    ),
    _Use(_CLIP_OPTIONS, "--frames", _is_of("clip")),
    _Use(_VOLUME_OPTIONS, "--depth", _is_volume),
    _Use(("window_unit",), "--window or --window-hu", lambda recipe: recipe.fixed_window() is not None),
    _Use(("center",), "--fit crop-or-pad", lambda recipe: recipe.fit == "crop-or-pad"),
    _Use(("tile_overlap",), "--fit tiles", lambda recipe: recipe.fit == "tiles"),
    _of_layouts(("missing_classes",), "class-masks", "dicom", "csv", "jsonl", "pairs"),
    _of_layouts(_SERIES_OPTIONS, "dicom", "csv", "jsonl"),
    _Use(
        _CLASS_OPTIONS,
        "labels for segmentation: --depth, or --task segmentation",
        lambda recipe: recipe.may_hold_label_images(),
    ),
    _of_layouts(("regions",), "nnunet"),
    _Use(
        ("channel_order",),
        "{channel} in --image-pattern",
        lambda recipe: "{channel}" in (recipe.image_pattern or ""),
    ),
    _of_layouts(("several_masks",), "pairs", "dicom"),
    _of_layouts(("image_pattern", "label_pattern"), "pairs", "class-masks", "dicom"),
    _Use(("alpha",), "--channels 1 or 3", lambda recipe: recipe.channels != 4),
    _Use(("background",), "--alpha blend", lambda recipe: recipe.alpha == "blend"),
    _Use(("jpeg_quality",), "--encoding jpeg", lambda recipe: recipe.encoding == "jpeg"),
    _Use(_BOX_OPTIONS, "a layout with boxes and --task detection", lambda recipe: recipe.may_hold_boxes()),
    _Use(
        ("several_classes", "class_separator"),
        "--layout csv or jsonl and --task classification",
        lambda recipe: recipe.layout in ("csv", "jsonl") and recipe.task in (None, "classification"),
    ),
    _Use(("split_seed",), "--split-shares", lambda recipe: bool(recipe.split_shares)),
)
"""Options that do nothing by themselves. Those of a combination that is refused anyway are not here."""


def unused_options(recipe: Recipe) -> list[str]:
    """The options that differ from their defaults and change nothing, each with what it needs."""
    given, blank = recipe.to_json(), recipe.of_defaults().to_json()
    why = {
        name: use.why.format(use.needs) for use in _USES if not use.has_effect(recipe) for name in use.names
    }
    return [
        f"{flag(name)} has no effect {why[name]}"
        for name in given
        if name in why and given[name] != blank.get(name)
    ]
