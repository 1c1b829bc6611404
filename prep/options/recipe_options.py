"""Options of a conversion: one frozen dataclass, from which the command line is made too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from halofeed.prep.annotations.columns import BOX_FORMS
from halofeed.prep.annotations.stated_columns import MEANINGS
from halofeed.prep.formats.clip.frame_choice import INCOMPLETE_CLIP_CHOICES, SHORT_CLIP_CHOICES, FrameChoice
from halofeed.prep.geometry.resize import KERNEL_NAMES
from halofeed.prep.options.option import OUTPUT, RUNNING, SHAPE, SOURCE, Need, of_layouts, option, refusal
from halofeed.prep.options.tiles import TileOptions
from halofeed.prep.options.volumes import INTERPOLATIONS, VolumeOptions
from halofeed.schemas.tasks import TASKS
from halofeed.system.errors import UsageError
from halofeed.system.memory import PICTURES_MIB, VOLUMES_MIB

DEFAULT_JPEG_QUALITY = 95
_TOOL_LAYOUTS = ("labelme", "cvat", "createml", "kitti", "via", "supervisely")
"""Layouts of annotation tools that write boxes in pixels."""
_BOX_FORMS = of_layouts("csv", "jsonl", "webdataset", "croissant", "coco", "voc", *_TOOL_LAYOUTS)
_TABLES = of_layouts("csv", "jsonl", "tfrecord", "webdataset", "croissant", "scan-boxes")
_BOXES = Need("a layout with boxes and --task detection", lambda recipe: recipe.may_hold_boxes())
_CLASS_TABLES = Need(
    "--layout csv, jsonl, tfrecord, webdataset or croissant and --task classification",
    lambda recipe: (
        recipe.layout in ("csv", "jsonl", "tfrecord", "webdataset", "croissant")
        and recipe.task in (None, "classification")
    ),
)
_CLASSES_OF_PICTURES = Need(
    "--task classification and another layout than folders",
    lambda recipe: recipe.layout != "folders" and recipe.task in (None, "classification"),
)
_PICTURES = Need("", lambda recipe: recipe.depth is None, why="with --depth; leave one of them out")
"""Need of the options of pictures, which are those of the frames of a clip too."""
_FIXED_SIZE = Need(
    "--resize fixed-shape or --depth",
    lambda recipe: recipe.resize == "fixed-shape" or recipe.depth is not None,
)
_SCALED = Need(
    "--resize keep-aspect (with --pad or --encoding jpeg)", lambda recipe: recipe.resize == "keep-aspect"
)


_SEQUENCES = ("mot", "visdrone-video", "cvat")
"""Layouts of boxes on the frames of sequences."""

DUPLICATES = ("report", "group", "drop", "drop-conflicts")
"""What becomes of inputs that show the same."""


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """Options of clips: videos, animations and folders of frames. --frames of them make a record."""

    OPTION_GROUP: ClassVar[str] = "clips"
    NEEDS: ClassVar[Need] = Need("--frames", lambda recipe: recipe.frames is not None)

    frames: int | None = option(
        None,
        "frames of a record: every source is a clip (a video, an animated GIF, WebP or PNG, a folder of frames), "
        "brought to --frames x --height x --width; for segmentation each frame needs a mask (a folder of PNG files, "
        "or an animated PNG, GIF or lossless WebP)",
        least=1,
        brief="frames of a record; every source is a clip",
        group=SHAPE,
    )
    frame_stride: int | None = option(
        None,
        "use every N-th frame (default: 1, every frame); of sequences of pictures with boxes too (mot, visdrone-video, "
        "cvat), whose frames are near copies",
        needs=Need(
            "--frames, or --layout mot, visdrone-video or cvat",
            lambda recipe: recipe.frames is not None or recipe.layout in _SEQUENCES,
        ),
    )
    frame_rate: float | None = option(
        None,
        "use this many frames per second instead, by the frames' time stamps: at each of these times the frame that "
        "is shown then",
        group=SHAPE,
    )
    folder_frame_rate: float | None = option(
        None, "frames per second of folders of frames, which have no time stamps"
    )
    clips_per_source: str = option(
        "all",
        "which parts of a source become records: all, one after the other, without the incomplete rest at the end; "
        "or a number of evenly spaced parts",
    )
    short_clips: str = option(
        "refuse",
        "a source with fewer frames than --frames is rejected, or its last frame is repeated",
        choices=SHORT_CLIP_CHOICES,
    )
    incomplete_clips: str = option(
        "refuse",
        "a truncated source, or one with missing frames, is rejected, or its available frames are kept and a warning "
        "counts them",
        choices=INCOMPLETE_CLIP_CHOICES,
    )

    def clip_problems(self) -> Iterator[str]:
        """Yield a message for each of these options that has a wrong value."""
        # `frame_choice` reads this number, so that nothing else is checked without it.
        if self.clips_per_source != "all" and not (
            self.clips_per_source.isdecimal() and int(self.clips_per_source) > 0
        ):
            yield f"--clips-per-source {self.clips_per_source}: expected all, or how many of each source"
            return
        if self.folder_frame_rate is not None and not 0 < self.folder_frame_rate < float("inf"):
            yield f"--folder-frame-rate {self.folder_frame_rate}: expected frames per second above 0"
        yield from refusal(self.frame_choice)

    def frame_choice(self) -> FrameChoice:
        """Return the rule by which frames of a source are selected."""
        return FrameChoice(
            frames=self.frames or 1,
            stride=self.frame_stride,
            frame_rate=self.frame_rate,
            starts=self.clips_per_source if self.clips_per_source == "all" else int(self.clips_per_source),
            short=self.short_clips,
        )


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(ClipOptions, VolumeOptions, TileOptions):
    """Every option of a conversion, and the values that follow from single options.

    `halofeed.prep.options.recipe.Recipe` adds the defaults and the checks of each kind of image.
    """

    OPTION_GROUP: ClassVar[str] = SOURCE

    layout: str = option(
        "",
        "layout of the source: one of the layouts listed below; default: auto, the only one that fits its files, "
        "which is printed with the reason",
        brief="layout, see below (default: the one that fits)",
    )
    task: str | None = option(
        None,
        "task that the records serve; default: the layout's own",
        choices=tuple(TASKS),
    )
    box_origin: int | None = option(
        None,
        "boxes in pixels: the number of the first pixel, 0 or 1 (then both ends are within the box, as in VOC); "
        "default: 0 for tables; for voc 0 where boxes have fractions, else 1, refused where boxes begin below 1; for "
        "mot 0 where boxes have fractions or begin at 0, else 1",
        choices=(0, 1),
        needs=of_layouts("voc", "csv", "jsonl", "webdataset", "mot"),
    )
    box_units: str = option(
        "auto",
        "unit of boxes: pixels, or normalized, fractions of the picture's width and height; auto reads a file whose "
        "boxes are all within 0 to 1 as normalized",
        choices=("auto", "pixels", "normalized"),
        needs=(_BOXES, _BOX_FORMS),
    )
    box_form: str = option(
        "auto",
        "form of a box in columns x,y,w,h, in a list called bbox, or in VOC's xmin,ymin,xmax,ymax: corners "
        "(xmin,ymin,xmax,ymax), corner-size (upper left x,y, then width,height, as in COCO), center-size (center x,y, "
        "then width,height); auto accepts columns whose names are unambiguous, and refuses others",
        choices=BOX_FORMS,
        needs=_BOX_FORMS,
    )
    ignore_columns: tuple[str, ...] = option(
        (),
        "tables and COCO: columns or keys to ignore that would be refused because they may hold boxes or outlines; "
        "rotation (COCO, VOC, CVAT, Label Studio): use boxes as they are before their rotation",
        needs=of_layouts("csv", "jsonl", "webdataset", "coco", "voc", "cvat", "label-studio", "run-lengths"),
    )
    column: tuple[str, ...] = option(
        (),
        "tables: the column, key or feature that has a meaning, as MEANING=COLUMN, e.g. "
        "label=fine_label,image=isic_id; meanings: "
        f"{', '.join(MEANINGS)}. Several columns as label are a class each",
        needs=_TABLES,
        omitted=(),
    )
    class_marks: tuple[str, ...] = option(
        (),
        "tables with a column for each class: what a value in these columns means, as yes=VALUE, no=VALUE or "
        "reject=VALUE (the picture is left out), e.g. no=-1,reject=blank; default: 1 is yes and 0 is no; -1 is no "
        "where no column holds 0; blank is no where all hold blank or 1",
        needs=_CLASS_TABLES,
        omitted=(),
    )
    annotation_grid: str = option(
        "auto",
        "pictures with an EXIF orientation: whether boxes and label images refer to the pixels as the file stores "
        "them or to the picture as displayed; auto decides by declared sizes and the tool's own way, and warns where "
        "nothing shows it",
        choices=("auto", "stored", "displayed"),
        needs=_PICTURES,
    )
    split_folders: str = option(
        "auto",
        "class folders: whether the first folder names a split; auto decides by its name",
        choices=("auto", "yes", "no"),
        needs=of_layouts("folders", "pairs", "lits", "class-masks", "dicom"),
    )
    folders_are_classes: bool = option(
        False,
        "class folders: read each folder as a class even if annotations of another layout are beside the images",
        needs=of_layouts("folders"),
    )
    voc_images: str = option(
        "auto",
        "VOC: which image an XML file describes if <filename> and the file's own name are those of two images; auto "
        "decides by the declared sizes and by the other XML files, and rejects those for which nothing proves it",
        choices=("auto", "filename", "xml-name"),
        needs=of_layouts("voc"),
    )
    image_sets: tuple[str, ...] = option(
        (),
        "VOC: the lists of ImageSets/Main to follow, e.g. trainval,test; default: train, val and test, and none where "
        "--split-shares or --split-lists make the splits",
        needs=of_layouts("voc"),
    )
    resize: str = option(
        "fixed-shape",
        "fixed-shape stretches to --height x --width; keep-aspect scales into --min-dimension, --max-dimension; "
        "none keeps the size",
        choices=("fixed-shape", "keep-aspect", "none"),
        brief="stretch, scale into --max-dimension, or neither",
        group=SHAPE,
        needs=_PICTURES,
    )
    height: int = option(
        300,
        "rows of a fixed shape",
        least=1,
        brief="rows of a fixed shape (default: 300)",
        group=SHAPE,
        needs=_FIXED_SIZE,
    )
    width: int = option(
        300,
        "columns of a fixed shape",
        least=1,
        brief="columns of a fixed shape (default: 300)",
        group=SHAPE,
        needs=_FIXED_SIZE,
    )
    min_dimension: int = option(
        600,
        "keep-aspect: the shorter side is scaled to this ...",
        least=1,
        brief="keep-aspect: the shorter side (default: 600)",
        group=SHAPE,
        needs=(_PICTURES, _SCALED),
    )
    max_dimension: int = option(
        1024,
        "keep-aspect: ... unless the longer side would pass this",
        least=1,
        brief="keep-aspect: limit of the longer side (default: 1024)",
        group=SHAPE,
        needs=(_PICTURES, _SCALED),
    )
    pad: bool = option(
        False,
        "keep-aspect: pad to max x max at the bottom and right",
        brief="keep-aspect: pad to a square of --max-dimension",
        group=SHAPE,
        needs=_PICTURES,
    )
    pad_value: tuple[int, ...] = option(
        (),
        "value of padding, one value or one per channel, e.g. 124,116,104 (default: 0); volumes: in HU (default: the "
        "smallest value of each channel)",
        group=SHAPE,
        needs=Need(
            "--resize keep-aspect --pad, --fit tiles, or --depth",
            lambda recipe: recipe.pad or recipe.depth is not None or recipe.fit == "tiles",
        ),
    )
    interpolation: str = option(
        "",
        "how images are resized and resampled. Pictures and clips: tf1-* and tf2-* give TensorFlow's own pixels "
        "(default: antialias). Volumes: linear or cubic, with smoothing before downsampling (default: linear)",
        choices=(*KERNEL_NAMES, *INTERPOLATIONS),
        earlier_flag="--kernel",
        group=SHAPE,
        needs=Need(
            "--resize fixed-shape or keep-aspect",
            lambda recipe: recipe.resize != "none" or recipe.depth is not None,
        ),
    )
    channels: int = option(
        0,
        "pictures: 1 gray, 3 color (default), 4 color and alpha; tiles: any number of bands, see --bands; volumes: "
        "channels of each scan (default: 1)",
        group=SHAPE,
    )
    dtype: str = option(
        "",
        "stored type. Pictures: uint8 scales 16-bit sources down, uint16 keeps them (default: uint8). Volumes: int16 "
        "whole HU (default), uint8 the window (default with one), float32, bfloat16",
        choices=("uint8", "uint16", "int16", "float32", "bfloat16"),
        earlier_flag="--store",
        group=SHAPE,
    )
    sample_bits: int = option(
        0,
        "pictures and clips of 16 bits stored as uint8: number of bits that their samples use, e.g. 12 maps 0 to 4095 "
        "to 0 to 255; default: 16, and a picture whose largest value is below 4096 is refused, as it would be nearly "
        "black",
        choices=(0, *range(8, 17)),
        group=SHAPE,
        needs=Need(
            "pictures or clips stored as uint8",
            lambda recipe: recipe.dtype == "uint8" and recipe.depth is None,
        ),
    )
    alpha: str = option(
        "drop",
        "transparency: drop ignores it, blend puts --background behind it",
        choices=("drop", "blend"),
        group=SHAPE,
        needs=(_PICTURES, Need("--channels 1 or 3", lambda recipe: recipe.channels != 4)),
    )
    background: tuple[int, ...] = option(
        (0, 0, 0),
        "the color behind transparent pixels, 0 to 255",
        group=SHAPE,
        needs=(_PICTURES, Need("--alpha blend", lambda recipe: recipe.alpha == "blend")),
    )
    max_pixels: int = option(
        178_956_970,
        "a source with more pixels is rejected before it is decoded",
        least=1,
        group=RUNNING,
        needs=_PICTURES,
    )
    max_memory: int = option(
        0,
        "MiB of memory that a worker may use for all images that it decodes at the same time; a source whose header "
        f"shows that it needs more is rejected (default: {PICTURES_MIB}; volumes: {VOLUMES_MIB})",
        least=1,
        group=RUNNING,
    )
    encoding: str = option(
        "raw",
        "encoding of the stored image and its label: raw is the fastest to load from memory; packed has the same "
        "numbers in about half of the bytes, which a disk or a bucket delivers faster; yuv420 is half of raw, with "
        "colors of half the resolution, for pictures. Only halofeed's loader reads these. The decoders of the TF "
        "Object Detection API and Model Garden read jpeg (the smallest) and png, which are for pictures",
        choices=("raw", "packed", "yuv420", "jpeg", "png"),
        brief="packed: exact, half of raw; jpeg, png: any program",
        group=OUTPUT,
    )
    jpeg_quality: int = option(
        DEFAULT_JPEG_QUALITY,
        "quality of stored JPEGs, 1 to 100; with the default, an unchanged JPEG keeps its own bytes, including EXIF "
        "data",
        group=OUTPUT,
        needs=Need("--encoding jpeg", lambda recipe: recipe.encoding == "jpeg"),
    )
    max_boxes: int = option(
        100,
        "static number of boxes that the loader pads to; the report counts the boxes beyond it",
        least=1,
        brief="boxes that the loader pads to (default: 100)",
        group=OUTPUT,
        needs=_BOXES,
    )
    boxes_outside: Literal["clip", "drop", "fail"] = option(
        "clip", "boxes that leave the picture", choices=("clip", "drop", "fail"), needs=_BOXES
    )
    boxes_zero_area: Literal["drop", "keep", "fail"] = option(
        "drop", "boxes without height or width", choices=("drop", "keep", "fail"), needs=_BOXES
    )
    boxes_crowd: Literal["keep", "drop", "objects"] = option(
        "keep",
        "boxes that mark a crowd or a group (Open Images' IsGroupOf): keep them with their flag, by which training "
        "leaves them out; drop them; or take them as objects, for tools that flag every object",
        choices=("keep", "drop", "objects"),
        needs=_BOXES,
    )
    boxes_difficult: Literal["keep", "drop", "objects"] = option(
        "keep",
        "boxes flagged as difficult: keep them with their flag, drop them, or take them as objects without it",
        choices=("keep", "drop", "objects"),
        needs=_BOXES,
    )
    on_bad_object: Literal["drop", "reject"] = option(
        "drop",
        "COCO, VOC and tables: an object that cannot be used (inverted or NaN box, no class; with --masks no usable "
        "segmentation): drop only the object and list it in rejected.jsonl, or reject its image",
        choices=("drop", "reject"),
        needs=_BOXES,
    )
    oriented_boxes: Literal["upright", "drop"] = option(
        "upright",
        "boxes that are turned (DOTA, YOLO's OBB, CVAT, Label Studio, labelme, roLabelImg, rotation in COCO and VOC): "
        "the upright box around each, or leave them out; both are counted. --ignore-columns rotation takes boxes as "
        "they are before they are turned. --keep corners keeps their corners too",
        choices=("upright", "drop"),
        needs=_BOXES,
        omitted="upright",
    )
    class_property: str | None = option(
        None,
        "GeoJSON: property with the class; default: QuPath's classification, class, label, category, type_id and "
        "other usual names, or the only one whose texts repeat",
        needs=of_layouts("geojson"),
        omitted=True,
    )
    one_class: str | None = option(
        None,
        "GeoJSON, masks of objects, and tables of run lengths without classes: all are objects of this class, e.g. "
        "building",
        needs=of_layouts("geojson", "object-masks", "run-lengths"),
        omitted=True,
    )
    person_box: Literal["full", "visible", "head"] = option(
        "full",
        "CrowdHuman: the box of each person: the full body, which may extend beyond the picture, its visible part, or "
        "the head",
        choices=("full", "visible", "head"),
        needs=of_layouts("crowdhuman"),
        omitted="full",
    )
    run_lengths: Literal["auto", "columns", "rows"] = option(
        "auto",
        "tables of run lengths: whether pixels count down the columns, as Kaggle's mostly do, or along the rows. auto: "
        "the masks of pictures that are no squares show it, else columns",
        choices=("auto", "columns", "rows"),
        needs=of_layouts("run-lengths"),
        omitted="auto",
    )
    coordinates: str = option(
        "auto",
        "GeoJSON: what its numbers are: pixels of the picture; picture, the coordinate system of each picture; "
        "lat-lon, latitude before longitude; or a system such as EPSG:32633. auto: the file's own member crs, else "
        "longitude and latitude; pixels for QuPath, and for pictures without a georeference",
        needs=of_layouts("geojson"),
        omitted="auto",
    )
    empty_classes: tuple[str, ...] = option(
        (),
        "classes of pictures (tags, choices, annotations without a box) that mean that there is no object, beside "
        "usual names such as empty. A picture with another class and without a box of it is rejected",
        needs=_BOXES,
        omitted=(),
    )
    keep: tuple[str, ...] = option(
        (),
        "further attributes of each object to keep: category_id (COCO's own number of the class), corners (the four "
        "corners of oriented boxes and outlines of four points, in the order of the annotation, and those of the box "
        "of other objects; resizing with two scales moves each corner exactly, which may skew a rectangle), "
        "occluded (COCO, VOC, tables), group_of (tables, Open Images' IsGroupOf), view (VOC's pose), keypoints (COCO; "
        "the same number for each object, missing ones with visibility 0). The loader gives them with include=, except "
        "view and keypoints, which are for readers of the TF Object Detection API's keys",
        needs=_BOXES,
    )
    several_classes: Literal["refuse", "keep"] = option(
        "refuse",
        "classification, not from folders: refuse a picture with several classes (in several rows, or in a list), or "
        "keep all of them; then the loader gives `labels`, a 0 or 1 for each class, and `halofeed train` learns each "
        "class by itself, as multi-label classification",
        choices=("refuse", "keep"),
        needs=_CLASSES_OF_PICTURES,
    )
    class_separator: str = option(
        "auto",
        "tables of classes: the text that separates several classes in one cell, such as |; none: a cell is one "
        "class; auto refuses cells whose parts are classes of other rows",
        needs=_CLASS_TABLES,
    )
    masks: bool = option(
        False,
        "store the objects' masks (COCO) as one PNG each",
        group=OUTPUT,
    )
    shards: int = option(1, "files per split", least=1, brief="files per split (default: 1)", group=OUTPUT)
    limit: int | None = option(
        None,
        "convert only about this many inputs, a random sample of each split in proportion, at least one of each; "
        "classes are those of all inputs",
        least=1,
        omitted=True,
        group=OUTPUT,
    )
    license: str = option(
        "", "license of the data, such as CC-BY-4.0, for the manifest and TFDS", group=OUTPUT
    )
    citation: str = option(
        "", "how to cite the data, such as a BibTeX entry, for the manifest and TFDS", group=OUTPUT
    )
    split_shares: tuple[str, ...] = option(
        (),
        "split by a stable hash of the group, with the shares of all and of each class, e.g. "
        "train=0.8,validation=0.1,test=0.1; default: the source's splits. A group is a table's column group, a DICOM "
        "patient, a BIDS subject, {group} of --image-pattern, or the group of --group-pattern or --group-column",
        brief="at random: train=0.8,validation=0.1,test=0.1",
    )
    split_seed: int = option(
        0,
        "seed of the hash that makes the splits",
        needs=Need(
            "--split-shares or --folds", lambda recipe: bool(recipe.split_shares) or recipe.folds is not None
        ),
    )
    folds: int | None = option(
        None,
        "divide the groups into this many folds of equal size, as splits fold0, fold1, ..., with all classes in each; "
        "`halofeed train --fold 2` and Loader(..., fold=2) validate with one fold and train with the others",
        least=2,
        omitted=True,
    )
    group_column: str | None = option(
        None,
        "column of a table or key of an image entry, such as video_id, whose value is the group that stays in one "
        "split",
        omitted=True,
    )
    group_pattern: str | None = option(
        None,
        "regular expression with one (group) in the source's path, whose sources stay in one split, e.g. "
        "'(patient[0-9]+)'; '(.+)' makes each source a group of its own",
    )
    duplicates: str = option(
        "report",
        "inputs that show the same, also resized, recompressed, mirrored, turned, brightened or cropped by a tenth. "
        "report: warn at the end where copies are in several splits; group: keep copies, with their groups, in one "
        "split of --split-shares or --folds; drop: convert one of each (labeled before unlabeled, test before train, "
        "the largest, the first by path), and all where labels differ; drop-conflicts: none where labels differ",
        choices=DUPLICATES,
        omitted=True,
    )

    def picture_shape(self) -> tuple[int, int] | None:
        """Return the (height, width) of every stored picture or frame; None where the options do not fix it."""
        if self.resize == "fixed-shape":
            return self.height, self.width
        return (self.max_dimension, self.max_dimension) if self.pad else None

    def padding(self) -> tuple[int, ...]:
        """Return the padding value per channel."""
        return (self.pad_value or (0,)) * (self.channels // max(1, len(self.pad_value)))

    def backdrop(self) -> tuple[int, ...]:
        """Return the color behind transparent pixels: red, green, blue."""
        return self.background * (3 // len(self.background))

    def shares(self) -> dict[str, float]:
        """Return --split-shares as numbers: {"train": 0.8, ...}."""
        found = {}
        for part in self.split_shares:
            name, _, share = part.partition("=")
            # A split that is named twice would lose one of its shares.
            if name in found:
                raise UsageError(
                    f"--split-shares {','.join(self.split_shares)}: {name} comes twice; name each once"
                )
            try:
                found[name] = float(share)
            except ValueError as error:
                raise UsageError(f"--split-shares {part!r}: expected name=share, e.g. train=0.8") from error
        return found
