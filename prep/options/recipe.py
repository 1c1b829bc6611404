"""What did earlier versions call the options of a recipe?

What each option of a conversion needs to have an effect, and which of those that were given have none.

Which options a conversion has: one frozen dataclass, from which the command line is made too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from halofeed.errors import UsageError
from halofeed.prep.annotations.columns import FORMS
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.splits import compile_group_pattern
from halofeed.prep.geometry.resize import KERNEL_NAMES
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.options import clips, pictures, volumes
from halofeed.prep.options.clips import ClipOptions
from halofeed.prep.options.option import KindRules, derived, flag, option, refusal
from halofeed.prep.options.volumes import INTERPOLATIONS, VolumeOptions
from halofeed.prep.sources.file_names import is_image_name, is_scan_name
from halofeed.prep.sources.reference import FileSelection
from halofeed.schemas.fields import SETS
from halofeed.schemas.kinds import in_todays_names
from halofeed.schemas.tasks import KEPT, TASKS
from halofeed.system.memory import MEBIBYTE, PICTURES_MIB, VOLUMES_MIB, MemoryBudget, Need, budget_of_process


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


DEFAULT_JPEG_QUALITY = 95
_LARGEST_NUMBER = 1e18
RULES: dict[str, KindRules] = {module.RULES.kind.name: module.RULES for module in (clips, volumes, pictures)}
"""Per kind of image, what a recipe means for it; a recipe is of the first one whose option it gives."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ClipOptions, VolumeOptions):
    """Everything that decides the bytes of a converted data set, beside the sources and their labels.

    Raises:
        UsageError: with every option that is wrong or does not go with another.

    >>> Recipe(layout="voc", resize="keep-aspect", min_dimension=640, max_dimension=640, pad=True).static_shape()
    (640, 640)
    """

    layout: str = option("", "how the source is laid out: one of the layouts listed below")
    task: str | None = option(
        None, "what the records are for; default: the layout's own", choices=tuple(TASKS)
    )
    box_origin: int | None = option(
        None,
        "boxes in pixels: the number of the first pixel, 0 or 1 (then both ends are within the box, as in VOC); "
        "default: 0 for tables; for voc 0 where boxes have fractions, else 1, refused where boxes begin below 1",
        choices=(0, 1),
    )
    box_units: str = option(
        "auto",
        "what boxes count: pixels, or normalized, shares of the picture's width and height; auto takes a file whose "
        "boxes all lie within 0 to 1 as normalized",
        choices=("auto", "pixels", "normalized"),
    )

    box_form: str = option(
        "auto",
        "how a box is written in columns x,y,w,h, in a list called bbox, or in VOC's xmin,ymin,xmax,ymax: corners "
        "(xmin,ymin,xmax,ymax), corner-size (upper left x,y, then width,height, as in COCO), center-size (center x,y, "
        "then width,height); auto takes columns whose names say it, and refuses others",
        choices=FORMS,
    )
    ignore_columns: tuple[str, ...] = option(
        (),
        "tables and COCO: columns or keys to leave out that would be refused because they may hold boxes or outlines; "
        "rotation, COCO and VOC: take boxes as they are before they are turned",
    )
    annotation_grid: str = option(
        "auto",
        "pictures with an EXIF orientation: whether boxes and label images were drawn on the pixels as the file stores "
        "them or on the picture as displayed; auto finds out by declared sizes, and warns where nothing proves it",
        choices=("auto", "stored", "displayed"),
    )
    split_folders: str = option(
        "auto",
        "class folders: whether the first folder names a split; auto decides by its name",
        choices=("auto", "yes", "no"),
    )
    folders_are_classes: bool = option(
        False,
        "class folders: take each folder for a class even where annotations of another layout lie beside the images",
    )
    voc_images: str = option(
        "auto",
        "VOC: which image is meant where <filename> and the name of the XML file are those of two images; auto finds "
        "out by the declared sizes and by the other XML files, and rejects those for which nothing proves it",
        choices=("auto", "filename", "xml-name"),
    )
    image_sets: tuple[str, ...] = option(
        (),
        "VOC: the lists of ImageSets/Main to follow, e.g. trainval,test; default: train, val and test, and none where "
        "--split-shares or --split-lists make the splits",
    )

    resize: str = option(
        "fixed-shape",
        "fixed-shape stretches to --height x --width; keep-aspect scales into --min-dimension, --max-dimension; "
        "none leaves the size alone",
        choices=("fixed-shape", "keep-aspect", "none"),
    )
    height: int = option(300, "rows of a fixed shape", least=1)
    width: int = option(300, "columns of a fixed shape", least=1)
    min_dimension: int = option(600, "keep-aspect: the shorter side is scaled to this ...", least=1)
    max_dimension: int = option(1024, "keep-aspect: ... unless the longer side would pass this", least=1)
    pad: bool = option(False, "keep-aspect: pad to max x max at the bottom and right")
    pad_value: tuple[int, ...] = option(
        (),
        "what padding holds, one value or one per channel, e.g. 124,116,104 (default: 0); volumes: in HU (default: the "
        "scan's least value)",
    )
    interpolation: str = option(
        "",
        "how images are resized and resampled. Pictures and clips: tf1-* and tf2-* give TensorFlow's own pixels "
        "(default: antialias). Volumes: linear or cubic, and what shrinks is smoothed first (default: linear)",
        choices=(*KERNEL_NAMES, *INTERPOLATIONS),
        earlier_flag="--kernel",
    )

    channels: int = option(
        0,
        "pictures: 1 gray, 3 color (default), 4 color and alpha; volumes: how many each scan has (default: 1)",
    )
    dtype: str = option(
        "",
        "stored type. Pictures: uint8 scales 16-bit sources down, uint16 keeps them (default: uint8). Volumes: int16 "
        "whole HU (default), uint8 the window (default with one), float32, bfloat16",
        choices=("uint8", "uint16", "int16", "float32", "bfloat16"),
        earlier_flag="--store",
    )
    sample_bits: int = option(
        0,
        "pictures and clips of 16 bits stored as uint8: how many bits their samples use, e.g. 12: 0 to 4095 becomes 0 "
        "to 255; default: 16, and a picture whose largest value is below 4096 is refused, as it would be nearly black",
        choices=(0, *range(8, 17)),
    )
    alpha: str = option(
        "drop", "transparency: drop ignores it, blend puts --background behind it", choices=("drop", "blend")
    )
    background: tuple[int, ...] = option((0, 0, 0), "the color behind transparent pixels, 0 to 255")
    max_pixels: int = option(
        178_956_970, "a source with more pixels is rejected before it is decoded", least=1
    )
    max_memory: int = option(
        0,
        "MiB that a worker takes for all that it decodes at a time; a source that takes more, which its header says "
        f"before it is decoded, is rejected (default: {PICTURES_MIB}; volumes: {VOLUMES_MIB})",
        least=1,
    )

    encoding: str = option(
        "raw",
        "how the image is stored: raw is the fastest to load, by halofeed's loader alone; jpeg (the smallest) and png "
        "are what the TF Object Detection API's and Model Garden's decoders read",
        choices=("raw", "jpeg", "png"),
    )
    jpeg_quality: int = option(
        DEFAULT_JPEG_QUALITY,
        "quality of stored JPEGs, 1 to 100; with the default a JPEG to which nothing is done keeps its own bytes, "
        "EXIF data included",
    )

    max_boxes: int = option(
        100, "static number of boxes that the loader pads to; the report says what it cuts", least=1
    )
    boxes_outside: Literal["clip", "drop", "fail"] = option(
        "clip", "boxes that leave the picture", choices=("clip", "drop", "fail")
    )
    boxes_zero_area: Literal["drop", "keep", "fail"] = option(
        "drop", "boxes without height or width", choices=("drop", "keep", "fail")
    )
    boxes_crowd: Literal["keep", "drop"] = option(
        "keep", "boxes that stand for a crowd (kept ones are flagged)", choices=("keep", "drop")
    )
    boxes_difficult: Literal["keep", "drop"] = option(
        "keep", "boxes flagged as difficult", choices=("keep", "drop")
    )
    on_bad_object: Literal["drop", "reject"] = option(
        "drop",
        "COCO, VOC and tables: one object that cannot be used (inverted or NaN box, no class; under --masks no usable "
        "segmentation): drop it alone and list it in rejected.jsonl, or reject its image",
        choices=("drop", "reject"),
    )
    keep: tuple[str, ...] = option(
        (),
        "what else of each object to keep: category_id (COCO's own number of the class), occluded (COCO, VOC, tables), "
        "group_of (tables, Open Images' IsGroupOf), view (VOC's pose), keypoints (COCO; as "
        "many an object, those it lacks with visibility 0). The loader gives them with include=, but for view and "
        "keypoints, which are for readers of the TF Object Detection API's keys",
    )
    several_classes: Literal["refuse", "keep"] = option(
        "refuse",
        "tables of classes: a picture with several (in several rows, or in a list): refuse it, or keep them all; then "
        "the loader gives `labels`, a 0 or 1 for each class, and `halofeed train` takes no such set",
        choices=("refuse", "keep"),
    )
    class_separator: str = option(
        "auto",
        "tables of classes: the text that parts several classes in one cell, such as |; none: a cell is one class; "
        "auto refuses cells whose parts are classes of other rows",
    )
    masks: bool = option(False, "carry the objects' masks (COCO) as one PNG each")

    shards: int = option(1, "files per split", least=1)
    split_shares: tuple[str, ...] = option(
        (),
        "split by a stable hash of the group, e.g. train=0.8,validation=0.1,test=0.1; default: the source's. A group "
        "is a table's column group, a DICOM patient, a BIDS subject, {group} of --image-pattern, or that of "
        "--group-pattern",
    )
    split_seed: int = option(0, "another seed gives another split by hash")
    group_pattern: str | None = option(
        None,
        "regular expression with one (group) in the source's path: what must not be divided over splits, e.g. "
        "'(patient[0-9]+)'; '(.+)' takes each source for a group of its own",
    )

    def __post_init__(self) -> None:
        for name, value in self.rules.defaults(self).items():
            object.__setattr__(self, name, getattr(self, name) or value)
        if problems := self._problems():
            raise UsageError("\n".join(problems))

    def _problems(self) -> list[str]:
        found = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            choices, least = field.metadata.get("choices"), field.metadata.get("least")
            if choices and value is not None and value not in choices:
                known = ", ".join(map(str, choices))
                found.append(f"{flag(field.name)} {value!r}: expected one of {known}")
            if least is not None and value is not None and value < least:
                found.append(f"{flag(field.name)} {value}: expected {least} or more")
        found += [*self.volume_problems(), *self.clip_problems()]
        found += self.rules.problems(self)
        if self.shards > 99_999:
            found.append(
                f"--shards {self.shards}: expected at most 99,999, which is what fits the file names"
            )
        if not self.class_separator:
            found.append("--class-separator: expected a text, none or auto, got an empty one")
        if unknown := [name for name in self.keep if name not in KEPT]:
            found.append(f"--keep {','.join(unknown)}: expected some of {', '.join(KEPT)}")
        if (pattern := self.group_pattern) is not None:
            found += refusal(lambda: compile_group_pattern(pattern))
        return found

    def check_used(self) -> None:
        """Refuse options that were given, differ from their defaults, and change nothing.

        It is for what a person types; a manifest's recipe, or one made by a program, may hold such values.

        Raises:
            UsageError: with each of them and what it needs.
        """
        if found := unused_options(self):
            raise UsageError("\n".join(found))

    @property
    def rules(self) -> KindRules:
        """What this means for the kind of image that it is for."""
        return next(
            rules
            for rules in RULES.values()
            if not rules.chosen_by or getattr(self, rules.chosen_by) is not None
        )

    def of_defaults(self) -> Recipe:
        """A recipe of the same kind of image, with the default of every other option."""
        name = self.rules.chosen_by
        return type(self)(**{name: getattr(self, name)} if name else {})

    def settled_task(self) -> str | None:
        """What the records are for, as far as the options say it: the task, or the kind's first that the layout has."""
        layout = LAYOUTS.get(self.layout)
        fitting = [task for task in self.rules.tasks if layout is None or task in layout.tasks]
        return self.task or next(iter([*fitting, *self.rules.tasks]), None)

    def _possible_tasks(self) -> tuple[str, ...]:
        """What the records can be for, as far as task, kind and layout say it."""
        if one := self.settled_task():
            return (one,)
        layout = LAYOUTS.get(self.layout)
        return tuple(TASKS) if layout is None else layout.tasks

    def may_hold_boxes(self) -> bool:
        """Whether records can have boxes."""
        layout = LAYOUTS.get(self.layout)
        return "detection" in self._possible_tasks() and (layout is None or "detection" in layout.tasks)

    def may_hold_label_images(self) -> bool:
        """Whether records have a class for each voxel or pixel."""
        return self._possible_tasks() == ("segmentation",)

    def memory_budget(self, room_bytes: int | None) -> MemoryBudget:
        """What the inputs that this process decodes at once may take together, where it has so much room."""
        return budget_of_process(self.max_memory * MEBIBYTE, room_bytes)

    def lone_need(self) -> Need:
        """What an input may take that is converted alone."""
        return MemoryBudget(self.max_memory * MEBIBYTE).share().need

    def static_shape(self) -> tuple[int, ...] | None:
        """The size of every stored image along its kind's axes, or None where the recipe does not fix it."""
        return self.rules.shape(self)

    def layout_options(
        self,
        salt: str = "",
        *,
        source_splits: bool = True,
        listing: FileSelection | None = None,
    ) -> LayoutOptions:
        """What the layout needs to know; `salt` is mixed into the hashes of patient ids, see `SeriesPolicy`.

        Args:
            listing: of the source, where that says which paths are images.
        """
        return derived(
            LayoutOptions,
            self,
            regions=SETS if self.holds_class_sets() else self.regions,
            series=dataclasses.replace(self.series_policy(), salt=salt),
            task=self.settled_task(),
            split_folders={"auto": None, "yes": True, "no": False}[self.split_folders],
            source_splits=source_splits,
            needs_groups=bool(self.split_shares) and self.group_pattern is None,
            takes=listing.takes if listing else is_image_name,
            takes_scan=listing.takes_scan if listing else is_scan_name,
            list_series=None,
        )

    def padding(self) -> tuple[int, ...]:
        """What padding holds, per channel."""
        return (self.pad_value or (0,)) * (self.channels // max(1, len(self.pad_value)))

    def backdrop(self) -> tuple[int, ...]:
        """The color behind transparent pixels: red, green, blue."""
        return self.background * (3 // len(self.background))

    def shares(self) -> dict[str, float]:
        """--split-shares as numbers: {"train": 0.8, ...}."""
        found = {}
        for part in self.split_shares:
            name, _, share = part.partition("=")
            try:
                found[name] = float(share)
            except ValueError as error:
                raise UsageError(f"--split-shares {part!r}: expected name=share, e.g. train=0.8") from error
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
            if not (field.metadata.get("omitted") and getattr(self, field.name) == field.default)
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Recipe:
        """The recipe of a manifest or of a trained run, of earlier versions too.

        Raises:
            UsageError: it is none of this version.
        """
        document = in_todays_names(document)
        problems = [f"{flag(name)}: {problem}" for name, problem in recipe_problems(document)]
        known = {field.name for field in dataclasses.fields(cls)}
        problems += [f"{flag(name)}: no option of this version" for name in document if name not in known]
        if problems:
            raise UsageError("\n".join(["the recipe of the data set cannot be followed:", *problems]))
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
        }
        return cls(**values)

    def difference(self, other: Mapping[str, Any]) -> list[str]:
        """Where this recipe and another's JSON form differ, one readable line each.

        An option that the other was written without had today's default.
        """
        ours = self.to_json()
        other = self.of_defaults().to_json() | dict(other)
        return [
            f"{flag(key)}: was {other.get(key)!r}, now {ours.get(key)!r}"
            for key in dict.fromkeys([*ours, *other])
            if ours.get(key) != other.get(key)
        ]


def recipe_problems(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every (option, what is wrong) of a manifest's recipe that is not of its kind; unknown ones are passed over.

    >>> list(recipe_problems({"height": "300", "pad_value": [0, None], "another": {}}))
    [('height', "expected int, got '300'"), ('pad_value', 'expected several int, got [0, None]')]
    """
    kinds = get_type_hints(Recipe)
    for name, value in document.items():
        if name in kinds and not _is_of_kind(value, kinds[name]):
            kind = kinds[name]
            several = get_origin(kind) is tuple
            words = f"several {get_args(kind)[0].__name__}" if several else getattr(kind, "__name__", kind)
            yield name, f"expected {words}, got {value!r:.60}"


def _is_of_kind(value: Any, kind: Any) -> bool:
    """Whether a plain JSON value is of an option's kind; of numbers those that can be reckoned with."""
    if get_origin(kind) is tuple:
        return isinstance(value, list | tuple) and all(_is_of_kind(one, get_args(kind)[0]) for one in value)
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    if isinstance(kind, UnionType):
        return any(_is_of_kind(value, one) for one in get_args(kind))
    if kind in (int, float):
        return type(value) in (int, kind) and abs(value) < _LARGEST_NUMBER
    return type(value) is kind
