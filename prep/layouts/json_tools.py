"""Readers of the JSON files of annotation tools: labelme, Supervisely, Create ML, Label Studio and VIA."""

from __future__ import annotations

import base64
import csv
import io
import math
import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_mapping as _mapping
from halofeed.prep.annotations.documents import parse_json_document
from halofeed.prep.annotations.written_boxes import (
    angle_of,
    bitmap_of,
    class_of,
    declared_size,
    ellipse_of,
    make_box,
    no_box,
    numbers_of,
    parse_number,
    points_of,
    polygon_of,
    rectangle_of,
    share_of_turned_rectangle,
    turned_box,
    unite_parts,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import SourceError

_PNG_HEAD_BYTES = 33
"""First bytes of a PNG file, which hold its size."""


# labelme --------------------------------------------------------------------------------------------------
#
# The rules are those of labelme (github.com/wkentaro/labelme, `_label_file.py`, `_utils/shape.py`, and its converters
# in `examples/`): pictures are shown with their EXIF orientation applied. Shapes other than rectangles that share a
# label and a group_id are parts of one object. Shapes called `__ignore__` are no objects. Points and lines have no box.

_OUTLINES = ("polygon", "oriented_rectangle", "rotation")
"""Shapes whose points are corners; X-AnyLabeling calls a turned rectangle `rotation`."""
_GROUPED = "shapes with one label and group_id are one object, as labelme's converters have it"
_IGNORED = "shapes called __ignore__ are left out, as labelme's converters do"


def _read_labelme(path: str, data: bytes) -> list[FilePicture] | None:
    document = parse_json_document(data)
    if not isinstance(document, dict) or not {"shapes", "imagePath"} <= document.keys():
        return None
    written, name = document["shapes"], document["imagePath"]
    # The two keys are labelme's, so this is a damaged labelme file and not another format.
    if not isinstance(written, list) or not isinstance(name, str | None):
        raise SourceError("annotation", "not a labelme annotation", "shapes is no list, or imagePath no text")
    objects = _objects_of_shapes(written)
    picture = FilePicture(
        name=name or "",
        stem=posixpath.splitext(path)[0],
        size=(document.get("imageHeight"), document.get("imageWidth")),
        objects=objects,
        classes=[name for name, is_set in _mapping(document.get("flags")).items() if is_set is True],
        notes=(_GROUPED,) * (len(objects) < len(written)) + (_IGNORED,) * any(map(_is_ignored, written)),
        attributes={key: value for key, value in document.items() if key not in _LABELME_KEYS},
    )
    return [picture]


def _objects_of_shapes(written: Sequence[Any]) -> list[list[Any]]:
    """Return the shapes of each object: those that share a label and a group_id, except rectangles.

    Two rectangles of one group_id, such as a person and a bag, are related objects, not parts of one.
    """
    objects: dict[Any, list[Any]] = {}
    for place, shape in enumerate(written):
        group = _mapping(shape).get("group_id")
        is_part = isinstance(group, int | str) and shape.get("shape_type") != "rectangle"
        objects.setdefault((str(shape.get("label")), group) if is_part else place, []).append(shape)
    return list(objects.values())


def _is_ignored(shape: Any) -> bool:
    return _mapping(shape).get("label") == "__ignore__"


def _box_of_labelme(parts: list[Any], what: str, options: LayoutOptions) -> Box | None:
    # labelme's converters skip the label __ignore__.
    if _is_ignored(parts[0]):
        return None
    return unite_parts(parts, lambda shape: _box_of_part(shape, what, options), options)


def _box_of_part(shape: Any, what: str, options: LayoutOptions) -> Box:
    if not isinstance(shape, dict):
        raise SourceError("annotation", "shape is no object", f"{what} is {shape!r:.80}")
    label = class_of(shape.get("label"), what)
    kind = shape.get("shape_type") or "polygon"  # older versions of labelme wrote polygons without a type
    # labelme's points, lines and linestrips have no area.
    if kind not in (*_OUTLINES, "rectangle", "circle", "mask"):
        raise no_box(kind, f"{what} {label!r}")
    points = points_of(shape.get("points"), what)
    x, y = points[::2], points[1::2]
    # A turned rectangle is measured as an outline, even if the tool calls it a box.
    if kind in _OUTLINES or (kind == "rectangle" and share_of_turned_rectangle(points) is not None):
        return polygon_of(label, points, what, options)
    # Tools that follow labelme write rectangles with four corners, which may be turned.
    is_upright = kind == "rectangle" and len(x) == 4 and len(set(x)) == len(set(y)) == 2
    if len(x) != 2 and not is_upright:
        raise SourceError("annotation", "shape has no 2 points", f"{what} {label!r} has {len(x)}")
    if kind == "circle":  # its center and a point on it
        radius = math.dist(points[:2], points[2:])
        return ellipse_of(label, [*points[:2], radius, radius, 0], what, options)
    # Its points are the corners of the picture that it holds.
    if kind == "mask":
        corner = [round(x[0]), round(y[0])]
        return bitmap_of(label, corner, _head_of_labelme(shape.get("mask"), what), what, options)
    return rectangle_of(label, [min(x), min(y), max(x), max(y)], what, options)


def _head_of_labelme(mask: Any, what: str) -> bytes:
    """Return the first bytes of a mask, which labelme writes as a PNG of the size of the object in base64."""
    try:
        return base64.b64decode(str(mask)[: _PNG_HEAD_BYTES * 4 // 3], validate=True)
    except ValueError as error:
        raise SourceError("annotation", "bitmap is no PNG", f"{what}: {error}") from error


_LABELME_KEYS = frozenset(("shapes", "imagePath", "imageData", "imageHeight", "imageWidth", "version"))


LABELME = DocumentFormat(
    layout="labelme",
    summary="labelme: a JSON file with shapes for each picture",
    extensions=(".json",),
    expected="a JSON file of labelme for each picture, with imagePath and shapes",
    read=_read_labelme,
    box_of=_box_of_labelme,
    of_one_picture=True,
    grid="displayed",
    keeps=("corners",),
    has_classes=True,
)


# Supervisely: meta.json, DATASET/ann/NAME.json and DATASET/img/NAME ---------------------------------------
#
# The rules are those of Supervisely's SDK (github.com/supervisely/supervisely, `geometry/`) and of its page on the
# coordinate system: whole numbers are pixels, so that a rectangle includes its last row and column, and points are in
# the middle of their pixels. Numbers with fractions are positions. Points, lines, graphs and cuboids have no box.


def _read_supervisely(path: str, data: bytes) -> list[FilePicture] | None:
    document = _mapping(parse_json_document(data))
    objects, size = document.get("objects"), document.get("size")
    if not isinstance(objects, list) or not isinstance(size, dict):
        return None
    above, mark, below = f"/{posixpath.splitext(path)[0]}".rpartition("/ann/")
    image = f"{above}/img/{below}".lstrip("/") if mark else posixpath.splitext(path)[0]
    is_named = is_image_name(image)
    is_whole = not any(_has_fractions(_mapping(one).get("points")) for one in objects)
    picture = FilePicture(
        name=image if is_named else "",
        stem=posixpath.splitext(image)[0] if is_named else image,
        size=(size.get("height"), size.get("width")),
        objects=[(_mapping(one), is_whole) for one in objects],
        classes=_names_of(document.get("tags"), "name"),
    )
    return [picture]


def _names_of(entries: Any, key: str) -> list[str]:
    """Return the names that entries of a list have below a key."""
    listed = entries if isinstance(entries, list) else []
    return [
        name.strip() for one in listed if isinstance(name := _mapping(one).get(key), str) and name.strip()
    ]


def _has_fractions(value: Any) -> bool:
    # Points are nested in lists whose depth differs by geometry.
    if isinstance(value, dict | list):
        return any(map(_has_fractions, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not value.is_integer()


def _box_of_supervisely(written: tuple[Mapping[str, Any], bool], what: str, options: LayoutOptions) -> Box:
    entry, is_whole = written
    label, kind = class_of(entry.get("classTitle"), what), entry.get("geometryType")
    what = f"{what} {label!r}"
    # A bitmap has no points, and an origin for its first pixel.
    if kind == "bitmap":
        return _box_of_bitmap(label, _mapping(entry.get("bitmap")), what, options)
    # Supervisely's points, lines, graphs and cuboids have no area.
    if kind not in ("rectangle", "polygon"):
        raise no_box(kind, what)
    points = _mapping(entry.get("points"))
    corners = points_of(points.get("exterior"), what)
    # Two corners in any order, each a pixel that belongs to it: see the rules above.
    if kind == "rectangle":
        x, y = sorted(corners[::2]), sorted(corners[1::2])
        if len(x) != 2:
            raise SourceError("annotation", "shape has no 2 points", f"{what} has {len(x)}")
        return rectangle_of(label, [x[0], y[0], x[1] + is_whole, y[1] + is_whole], what, options)
    # Masks are stored as polygons without holes, so one would be filled.
    if options.masks and points.get("interior"):
        raise SourceError("annotation", "polygon has a hole", f"{what}: masks of polygons have none")
    return polygon_of(label, [side + is_whole / 2 for side in corners], what, options)


def _box_of_bitmap(label: str, bitmap: Mapping[str, Any], what: str, options: LayoutOptions) -> Box:
    corner = points_of([bitmap.get("origin")], what)
    try:
        packed = base64.b64decode(str(bitmap.get("data")), validate=True)
        head = zlib.decompressobj().decompress(packed, _PNG_HEAD_BYTES)
    except (ValueError, zlib.error) as error:
        raise SourceError("annotation", "bitmap is no PNG", f"{what}: {error}") from error
    return bitmap_of(label, corner, head, what, options)


SUPERVISELY = DocumentFormat(
    layout="supervisely",
    summary="Supervisely: meta.json, DATASET/ann/a.jpg.json with DATASET/img/a.jpg",
    extensions=(".json",),
    expected="a project of Supervisely: DATASET/ann/a.jpg.json with size and objects, and DATASET/img/a.jpg",
    read=_read_supervisely,
    box_of=_box_of_supervisely,
    of_one_picture=True,
    has_classes=True,
    keeps=("corners",),
)


# Create ML: a list of pictures with boxes, each by its center and its size in pixels ----------------------
#
# The rules are those of Apple ("Building an object detector data source"). Roboflow writes one such file for each
# split.

_PICTURE_KEYS = ("image", "imagefilename")
_OBJECT_LISTS = ("annotations", "annotation")
_SIDES = ("x", "y", "width", "height")


def _read_createml(path: str, data: bytes) -> Iterator[FilePicture] | None:
    document = parse_json_document(data)
    entries = list(map(_mapping, document)) if isinstance(document, list) else []
    if not any({*_PICTURE_KEYS} & one.keys() and {*_OBJECT_LISTS} & one.keys() for one in entries):
        return None
    return (_picture_of_createml(place, one) for place, one in enumerate(entries))


def _picture_of_createml(place: int, entry: Mapping[str, Any]) -> FilePicture:
    name = next((entry[key] for key in _PICTURE_KEYS if isinstance(entry.get(key), str)), "")
    objects = next((entry[key] for key in _OBJECT_LISTS if isinstance(entry.get(key), list)), None)
    fault = None
    # One entry without its keys is damaged; a file without any is another format.
    if not name or objects is None:
        detail = f"entry {place}: expected image and annotations"
        fault = SourceError("annotation", "entry is no picture with annotations", detail)
    # An object has coordinates; labels alone are classes of the picture.
    if objects and all(map(_is_class_alone, objects)):
        classes = _names_of(objects, "label")
        return FilePicture(name=name, classes=classes, fault=fault, attributes=entry)
    return FilePicture(name=name, objects=objects or (), fault=fault, attributes=entry)


def _is_class_alone(written: Any) -> bool:
    return isinstance(written, dict) and "label" in written and "coordinates" not in written


def _box_of_createml(written: Any, what: str, options: LayoutOptions) -> Box:
    sides = _mapping(written).get("coordinates")
    if not isinstance(sides, dict):
        raise SourceError("annotation", "object has no box", f"{what}: {written!r:.80}")
    numbers = numbers_of(map(sides.get, _SIDES), what)
    return rectangle_of(class_of(written.get("label"), what), numbers, what, options, form="center-size")


CREATEML = DocumentFormat(
    layout="createml",
    summary="Create ML's JSON: a list of pictures with boxes by their centers",
    extensions=(".json",),
    expected="a JSON file of Create ML: a list with image and annotations for each picture",
    read=_read_createml,
    box_of=_box_of_createml,
    has_masks=False,
    has_classes=True,
)


# Label Studio: tasks with rectangles and polygons in percent of the picture's sides -----------------------
#
# The rules are those of Label Studio (labelstud.io/guide/export, labelstud.io/tags) and of label-studio-converter. The
# browser shows pictures with their EXIF orientation applied. Predictions and cancelled annotations are ignored. A brush
# has the box around its pixels. Shapes that its converter does not export as boxes (ellipses, keypoints) have none.

_UPLOAD = re.compile(r"^/data/upload/(\d+/)?")
_MARK = re.compile(r"^[0-9a-f]{8}-")
"""Mark that Label Studio puts before the names of uploaded files."""
_RESULTS = ("annotations", "completions")
_GEOMETRY = frozenset(("x", "points", "rle"))
_NOT_READ = "results that are no regions and no choices, such as texts, are not read"


def _read_label_studio(path: str, data: bytes) -> Iterator[FilePicture] | None:
    document = parse_json_document(data)
    tasks = document if isinstance(document, list) else [document]
    # labelstud.io/guide/export: JSON-MIN has no annotations; its keys are the names of the user's controls.
    if not any("data" in one and {*_RESULTS} & one.keys() for one in map(_mapping, tasks)):
        return None
    return (_picture_of_task(place, one) for place, one in enumerate(tasks))


def _picture_of_task(place: int, task: Any) -> FilePicture:
    name = stem = ""
    try:
        # A task without data has no picture, and fails alone.
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise SourceError("annotation", "task has no data", f"task {place}: {task!r:.80}")
        name = _image_of_task(task["data"], f"task {place}")
        # An export names uploaded files with their mark, and users have the files as they were.
        base = posixpath.basename(name)
        stem = posixpath.splitext(_MARK.sub("", base))[0] if _MARK.match(base) else ""
        results = _results_of(task, name)
    except SourceError as error:
        return FilePicture(name=name, stem=stem, fault=error)
    regions = _regions_of(filter(_is_drawn, results))
    first = regions[0] if regions else {}
    others = [one for one in results if not _is_drawn(one)]
    return FilePicture(
        name=name,
        stem=stem,
        size=(first.get("original_height"), first.get("original_width")),
        objects=regions,
        classes=[name for one in others for name in _choices_of(one)],
        notes=() if all(map(_choices_of, others)) else (_NOT_READ,),
        attributes={**_mapping(task.get("meta")), **task["data"]},
    )


def _is_drawn(result: Any) -> bool:
    """Return whether a result is a region of the picture, and not a choice or a text for all of it."""
    return bool(_GEOMETRY & _mapping(_mapping(result).get("value")).keys())


def _regions_of(drawn: Iterable[Any]) -> list[dict[str, Any]]:
    """Return each region with the values of its results: with Labels beside Rectangle, it has several of one id."""
    regions: dict[Any, dict[str, Any]] = {}
    for number, result in enumerate(drawn):
        key = result["id"] if isinstance(result.get("id"), str) else number
        regions.setdefault(key, dict(result)).update(result["value"])
    return list(regions.values())


def _choices_of(result: Any) -> list[str]:
    """Return the classes that a result gives the complete picture: its choices, or the ends of paths of a taxonomy."""
    value = _mapping(_mapping(result).get("value"))
    choices, paths = value.get("choices"), value.get("taxonomy")
    names = choices if isinstance(choices, list) else []
    # A taxonomy's choice is the path from the root to a leaf, whose last part is the class.
    if isinstance(paths, list):
        names = [*names, *(path[-1] for path in paths if isinstance(path, list) and path)]
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]


def _image_of_task(data: dict[str, Any], what: str) -> str:
    """Return the path of a task's picture, which is an upload, a local file or an address."""
    paths = {key: _path_of_address(value) for key, value in data.items() if isinstance(value, str)}
    found = {key: _UPLOAD.sub("", path).lstrip("/") for key, path in paths.items() if is_image_name(path)}
    # `image` is the name in Label Studio's templates; others are free.
    if "image" in found:
        return found["image"]
    if len(found) != 1:
        raise SourceError("annotation", "task has no single picture", f"{what}: {data!r:.80}")
    return next(iter(found.values()))


def _path_of_address(value: str) -> str:
    """Return the path of an address; Label Studio's local storage has it in the query, as in d=photos/a.jpg."""
    parts = urlsplit(value)
    if parts.path.endswith("/data/local-files/"):
        return parse_qs(parts.query).get("d", [""])[0]
    return unquote(parts.path)


def _results_of(task: dict[str, Any], name: str) -> list[Any]:
    """Return the results of a task's only annotation, or of its ground truth."""
    listed: list[Any] = next((task[key] for key in _RESULTS if isinstance(task.get(key), list)), [])
    # A cancelled annotation is a skipped task, whose regions are unfinished.
    used = [one for one in listed if isinstance(one, dict) and not one.get("was_cancelled")]
    if not used:
        raise SourceError("selection", "image has no annotation", f"{name}: all are canceled")
    # Several people may label one task; merging them would give each object several boxes.
    truth = [one for one in used if one.get("ground_truth") is True]
    used = truth if len(used) > 1 and truth else used
    if len(used) > 1:
        detail = f"{name}: {len(used)}; keep one of them, or mark one as ground truth"
        raise SourceError("annotation", "task has several annotations", detail)
    results = used[0].get("result")
    if not isinstance(results, list):
        raise SourceError("annotation", "annotation has no result", name)
    return results


def _box_of_region(region: dict[str, Any], what: str, options: LayoutOptions) -> Box:
    label = _class_of_region(region, what)
    what = f"{what} {label!r}"
    # Regions are relative to the turned picture, and the file is not turned.
    if numbers_of([region.get("image_rotation") or 0], what) != [0]:
        raise SourceError("annotation", "picture was turned in Label Studio", f"{what}: turn it back there")
    # Sides are in percent of the picture's sides (labelstud.io/guide/export, "Units of image annotations").
    if isinstance(region.get("points"), list):
        return polygon_of(label, [side / 100 for side in points_of(region["points"], what)], what, options)
    if "rle" in region:
        return _box_of_brush(label, region, what, options)
    # labelstud.io/tags: ellipses have radiusX and radiusY, keypoints a width alone.
    if not {"width", "height"} <= region.keys():
        raise no_box(region.get("type"), what)
    sides = [side / 100 for side in numbers_of(map(region.get, _SIDES), what)]
    box = rectangle_of(label, sides, what, options, form="corner-size")
    turn = angle_of(region.get("rotation"), what, options)
    return _turned_region(box, turn, region, what, options) if turn % 360 else box


def _box_of_brush(label: str, region: Mapping[str, Any], what: str, options: LayoutOptions) -> Box:
    """Return the box around a region of a brush, with its mask if the options ask for masks."""
    from halofeed.prep.voxels.run_lengths import mask_of_brush

    size = declared_size(region.get("original_height"), region.get("original_width"))
    if size is None:
        detail = f"{what}: a brush without original_width and original_height; export it again"
        raise SourceError("annotation", "size of the picture is missing", detail)
    packed = region["rle"]
    if not isinstance(packed, list) or not all(isinstance(one, int) and 0 <= one < 256 for one in packed):
        raise SourceError("annotation", "brush is no list of bytes", f"{what}: {packed!r:.60}")
    try:
        mask = mask_of_brush(bytes(packed), size)
    except SourceError as error:
        raise error.at(what) from error
    if mask is None:
        raise SourceError("annotation", "mask is empty", f"{what}: it has no pixel; delete it")
    ymin, xmin, ymax, xmax = mask.box
    code = mask.code if options.masks else None
    box = make_box(label, (xmin, ymin, xmax, ymax), what, area=mask.area, mask=code)
    return _scaled(box, 1 / size[1], 1 / size[0])


def _class_of_region(region: Mapping[str, Any], what: str) -> str:
    """Return the class of a region, which is in rectanglelabels, polygonlabels or labels, as its control is called."""
    lists = (value for key, value in region.items() if key.endswith("labels") and isinstance(value, list))
    labels = [*dict.fromkeys(str(label) for labels in lists for label in labels)]
    # A control with choice=multiple gives a region several labels.
    if len(labels) > 1:
        raise SourceError("annotation", "object has several classes", f"{what}: {labels!r:.80}")
    return class_of(labels[0] if labels else None, what)


def _turned_region(
    box: Box, turn: float, region: Mapping[str, Any], what: str, options: LayoutOptions
) -> Box:
    """Return the upright box of a region, which Label Studio turns about its first corner, in pixels."""
    # Percent of width and height are different units, so a turn needs pixels.
    if region.get("original_width") is None or region.get("original_height") is None:
        detail = (
            f"{what}: turned by {turn:g} degrees without original_width and original_height; export it again"
        )
        raise SourceError("annotation", "size of the picture is missing", detail)
    width, height = (
        parse_number(region.get(f"original_{side}"), f"{what} {side}") for side in ("width", "height")
    )
    if width <= 0 or height <= 0:
        raise SourceError("annotation", "size of the picture is missing", f"{what}: {width:g} x {height:g}")
    in_pixels = _scaled(box, width, height)
    turned = turned_box(in_pixels, (in_pixels.xmin, in_pixels.ymin), turn, what, options)
    return _scaled(turned, 1 / width, 1 / height)


def _scaled(box: Box, x: float, y: float) -> Box:
    return replace(
        box,
        xmin=box.xmin * x,
        xmax=box.xmax * x,
        ymin=box.ymin * y,
        ymax=box.ymax * y,
        area=None if box.area is None else box.area * x * y,
        corners=tuple(side * (y if at % 2 else x) for at, side in enumerate(box.corners)),
    )


LABEL_STUDIO = DocumentFormat(
    layout="label-studio",
    summary="Label Studio's JSON export: rectangles, polygons and brushes",
    extensions=(".json",),
    expected="a JSON export of Label Studio (not JSON-MIN), a list with data and annotations for each task",
    read=_read_label_studio,
    box_of=_box_of_region,
    grid="displayed",
    is_normalized=True,
    keeps=("corners",),
    has_classes=True,
)


# VGG Image Annotator, version 1 and 2: projects and exports in JSON, and exports in CSV -------------------
#
# The rules are those of VIA (gitlab.com/vgg/via, `via-2.x.y/src/via.js`). Circles and ellipses have the box around
# them, as in VIA's export to COCO. Points and polylines have none. The class of a region is its only attribute, or the
# one with a name such as class or label. Regions without any attribute are of one class, object.

_CLASS_NAMES = frozenset((*(name for rank in SPELLINGS["class"] for name in rank), "name", "type", "object"))
_VIA_SIDES = {
    "rect": _SIDES,
    "circle": ("cx", "cy", "r", "r"),
    "ellipse": ("cx", "cy", "rx", "ry", "theta"),
}
_ONE_CLASS = "all regions were taken for the class object, as none of their file has an attribute"
_DEFAULTS = {"theta": 0}  # version 1 does not turn ellipses


def _read_via(path: str, data: bytes) -> Iterator[FilePicture] | None:
    entries = _entries_of_csv(data) if path.lower().endswith(".csv") else _entries_of_json(data)
    if not entries:
        return None
    attribute = _class_attribute(region for _, regions, _ in entries for region in regions or ())
    of_files = _file_attribute([described for *_, described in entries])
    return (_picture_of_via(entry, attribute, of_files) for entry in entries)


def _picture_of_via(entry: _ViaEntry, attribute: str | None, of_files: str | None) -> FilePicture:
    """Return the picture of an entry, with the attributes that hold the classes of regions and of pictures."""
    name, regions, described = entry
    fault = None
    if regions is None:
        detail = (
            f"{name}: expected a list, which is [] for a picture without objects; export the project again"
        )
        fault = SourceError("annotation", "entry has no regions", detail)
    return FilePicture(
        name=name,
        objects=[(region, attribute) for region in regions or ()],
        classes=_marked_values(described.get(of_files)) if of_files else (),
        notes=(_ONE_CLASS,) if attribute is None and regions else (),
        fault=fault,
    )


_ViaEntry = tuple[str, list[Any] | None, Mapping[str, Any]]
"""File name, regions (None if the entry is damaged), and attributes of one picture."""


def _entries_of_json(data: bytes) -> list[_ViaEntry]:
    """Return the pictures of a project or of an export in JSON."""
    document = _mapping(parse_json_document(data))
    listed = [
        one for one in _mapping(document.get("_via_img_metadata", document)).values() if isinstance(one, dict)
    ]
    # Any JSON object of objects may be one of VIA, so its two keys decide.
    if not any({"filename", "regions"} <= one.keys() for one in listed):
        return []
    entries = []
    for entry in listed:
        regions = entry.get("regions")
        regions = list(regions.values()) if isinstance(regions, dict) else regions  # version 1 numbers them
        listed_regions = regions if isinstance(regions, list) else None
        entries.append(
            (str(entry.get("filename", "")), listed_regions, _mapping(entry.get("file_attributes")))
        )
    return entries


def _entries_of_csv(data: bytes) -> list[_ViaEntry]:
    """Return the same of a CSV export, which has a row for each region, or one for a picture without any."""
    entries: dict[str, tuple[list[Any], Mapping[str, Any]]] = {}
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        name = _file_column(rows.fieldnames or ())
        if name is None:
            return []
        for row in rows:
            shape, attributes = (
                _json_cell(row, "region_shape_attributes"),
                _json_cell(row, "region_attributes"),
            )
            described = _mapping(_json_cell(row, "file_attributes"))
            regions, _ = entries.setdefault(row[name] or "", ([], described))
            # A row with {} is a picture without regions.
            if shape:
                regions.append({"shape_attributes": shape, "region_attributes": attributes})
    except (csv.Error, UnicodeError) as error:
        raise SourceError("annotation", "malformed CSV", str(error)) from error
    return [(file, regions, described) for file, (regions, described) in entries.items()]


def _file_column(header: Sequence[str]) -> str | None:
    """Return the column of file names, which version 1 calls #filename; None if the table is not VIA's."""
    if not {"region_shape_attributes", "region_attributes"} <= {*header}:
        return None
    return next((name for name in header if name.lstrip("#") == "filename"), None)


def _json_cell(row: Mapping[str, str | None], column: str) -> Any:
    """Return the JSON document in a cell; {} for an empty cell."""
    return parse_json_document((row.get(column) or "{}").encode())


def _marked_values(value: Any) -> list[str]:
    """Return the value of an attribute, or the marked ones of checkboxes."""
    names = [name for name, is_marked in value.items() if is_marked] if isinstance(value, dict) else [value]
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]


def _file_attribute(described: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the attribute of pictures that holds their class; None if no attribute does.

    It has a name such as class, or is the only one with values, and these repeat, which captions and addresses do not.
    """
    values: dict[str, list[str]] = {}
    for one in described:
        for name, value in one.items():
            values.setdefault(name, []).extend(_marked_values(value))
    used = {name: found for name, found in values.items() if found}
    named = [name for name in used if normalize_name(name) in _CLASS_NAMES]
    # A single attribute is the class if values repeat, see above.
    if not named and len(used) == 1:
        named = [name for name, found in used.items() if len(set(found)) < len(found)]
    return named[0] if len(named) == 1 else None


def _class_attribute(regions: Iterable[Any]) -> str | None:
    """Return the attribute of a file's regions that holds the class; None if no region has any attribute.

    VIA has no classes: users define attributes, and one of them is the class.
    """
    found: dict[str, None] = {}
    for region in regions:
        found |= dict.fromkeys(_mapping(_mapping(region).get("region_attributes")))
    names = [name for name in found if len(found) == 1 or normalize_name(name) in _CLASS_NAMES]
    # Two attributes, such as class and color, are both possible, and a wrong one renames every object.
    if len(names) > 1 or (found and not names):
        detail = f"regions have the attributes {', '.join(found)}; rename the one of the class to class"
        raise SourceError("annotation", "class of regions is ambiguous", detail)
    return names[0] if names else None


def _box_of_via(written: tuple[Any, str | None], what: str, options: LayoutOptions) -> Box:
    region, attribute = written
    shape, attributes = (_mapping(region).get(part) for part in ("shape_attributes", "region_attributes"))
    if not isinstance(shape, dict) or not isinstance(attributes, dict):
        raise SourceError("annotation", "region has no shape", f"{what}: {region!r:.80}")
    value = "object" if attribute is None else _only_marked(attributes.get(attribute))
    label = class_of(value, f"{what}: {attribute} is {value!r:.80}")
    kind = str(shape.get("name"))
    # VIA writes polygons as two lists, and the other shapes as numbers of these names.
    if kind == "polygon":
        return polygon_of(label, _points_of_via(shape, what), what, options)
    if kind not in _VIA_SIDES:
        raise no_box(kind, f"{what} {label!r}")
    sides = numbers_of((shape.get(side, _DEFAULTS.get(side)) for side in _VIA_SIDES[kind]), what)
    if kind == "rect":
        return rectangle_of(label, sides, what, options, form="corner-size")
    # A circle has no angle, so 0 follows its four numbers.
    return ellipse_of(label, [*sides, 0][:5], what, options)


def _only_marked(value: Any) -> Any:
    """Return the value of an attribute; for checkboxes, which are an object, the only marked one or None."""
    # VIA's checkboxes are {name: true}; several marked ones are no single class.
    if not isinstance(value, dict):
        return value
    marked = [name for name, is_marked in value.items() if is_marked]
    return marked[0] if len(marked) == 1 else None


def _points_of_via(shape: Mapping[str, Any], what: str) -> list[float]:
    """Return the points of a polygon, which VIA writes as a list of x and one of y."""
    x, y = (shape.get(f"all_points_{axis}") for axis in "xy")
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise SourceError("annotation", "points are no two lists", f"{what}: {shape!r:.80}")
    return points_of([list(point) for point in zip(x, y, strict=True)], what)


VIA = DocumentFormat(
    layout="via",
    summary="VGG Image Annotator 1 and 2: a project or an export in JSON or CSV",
    extensions=(".json", ".csv"),
    expected="a JSON or CSV file of the VGG Image Annotator, version 1 or 2, with filename and regions",
    read=_read_via,
    box_of=_box_of_via,
    keeps=("corners",),
    has_classes=True,
)
