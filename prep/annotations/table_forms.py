"""Published forms of tables whose rows are converted first: Hugging Face, Google, Open Images and Kaggle's wheat.

The converted rows have columns that `columns` knows, so that all tables are read by the same rules.
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from halofeed.prep.annotations.class_names import class_number
from halofeed.prep.annotations.columns import CORNERS, normalize_name, parse_literal
from halofeed.prep.annotations.contract import read_required
from halofeed.prep.annotations.stated_columns import check_stated
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError

GOOGLE_SETS = {
    **dict.fromkeys(("train", "training", "unassigned", ""), "train"),
    **dict.fromkeys(("validation", "validate"), "validation"),
    "test": "test",
}
"""Split of each name of a set in a table of Google's AutoML and Vertex AI."""
WHEAT_COLUMNS = frozenset(("image_id", "width", "height", "bbox", "source"))
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables of a Hugging Face image folder, each for the pictures in its own folder and below."""
BOX_LIST = "bbox_xywh"
"""Column with x, y, width and height of a box in one list."""
_NO_SET = "rows without a set (UNASSIGNED) were taken for train"
_WHEAT = "all boxes were taken for the class wheat, as Kaggle's table names none"
_ABSENT = "rows with Confidence 0, which say that a class is absent, were left out"
_DESCRIPTIONS = re.compile(r"(.*[-_])?class-descriptions[^/]*\.csv", re.IGNORECASE)
_ML_USE = "aiplatform.googleapis.com/ml_use"
_VERTEX_KEYS = {"boundingBoxAnnotations", "classificationAnnotation", "classificationAnnotations"}
_SIDES = ("xMin", "yMin", "xMax", "yMax")
_CLASS_KEYS = ("category", "categories", "class", "classes", "label", "labels", "categoryname", "categoryid")
_PICTURE_KEYS = ("id", "image_id", "file_name", "width", "height", "split", "group")
"""Keys that mean the picture in a row, and an object inside `objects`."""
_BOX_KEYS = ("bbox", "bboxes", "box", "boxes")

Row = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """Conversion of the rows of a published form.

    Args:
        convert: maps (file and line, row) to the converted rows.
        columns: columns of the converted rows; () if they depend on the rows.
        note: remark for the user.
        classes: all classes of the table in their order, where its header names them.
        resolves: meanings that the user may name by `--column`, and that the conversion resolves by itself.
        named: column of each meaning that the conversion knows, see `stated_columns`.
    """

    convert: Callable[[str, Row], Iterable[Row]]
    columns: tuple[str, ...] = ()
    note: str = ""
    classes: tuple[str, ...] = ()
    resolves: frozenset[str] = frozenset()
    named: Mapping[str, str] = field(default_factory=dict)


def find_form(
    files: SourceFiles, name: str, header: Sequence[str], stated: Mapping[str, str]
) -> TableForm | None:
    """Return the published form of a table with this header, or None for a plain table; the user may name columns."""
    known = {normalize_name(column): column for column in header}
    known |= {
        title: stated[meaning]
        for meaning, title in (("image", "filename"), ("objects", "objects"))
        if stated.get(meaning) in header
    }
    if "imageGcsUri" in header:
        return TableForm(convert=_vertex_rows)
    # The `objects` of an image folder of Hugging Face with boxes.
    if "filename" in known and "objects" in known:
        inner = {meaning: stated[meaning] for meaning in ("bbox", "label") if meaning in stated}
        return TableForm(
            convert=lambda place, row: _hugging_face_rows(place, row, known["objects"], inner),
            resolves=frozenset(("bbox", "label", "objects")),
        )
    if set(header) == WHEAT_COLUMNS:
        columns = (*(column for column in header if column != "bbox"), BOX_LIST, "class")
        return TableForm(convert=_wheat_row, columns=columns, note=_WHEAT)
    if {"imageid", "labelname"} <= known.keys():
        return _open_images(files, name, header, known)
    return None


def is_description(path: str) -> bool:
    """Return whether a file is a list of the class names of Open Images, and no table of pictures."""
    return _DESCRIPTIONS.fullmatch(posixpath.basename(path)) is not None


def is_metadata(table: str) -> bool:
    """Return whether a table is the metadata of a Hugging Face image folder, by its name."""
    return table.rpartition("/")[2] in METADATA_NAMES


# Hugging Face ---------------------------------------------------------------------------------------------


def _hugging_face_rows(place: str, row: Row, column: str, stated: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each object of {"bbox": [...], "categories": [...]} or of a list of objects.

    The convention is that of the object detection guides of Hugging Face datasets: a box is x, y, width, height. The
    user may name the keys of the boxes and of the classes.
    """
    rest = {key: value for key, value in row.items() if key != column}
    objects = _by_key(row.get(column))
    if _are_no_objects(objects):
        yield {**rest, BOX_LIST: "", "class": ""}
        return
    box_key, class_key = _keys_of_objects(f"{place}: {column}", objects, stated)
    for values in zip(*objects.values(), strict=True):
        own = dict(zip(objects, values, strict=True))
        box, label = own.pop(box_key), own.pop(class_key)
        # An object may also have an id and a width; those of the row are the picture's.
        more = {f"object_{key}" if key in _PICTURE_KEYS else key: value for key, value in own.items()}
        yield {**more, **rest, BOX_LIST: box, "class": label}
    if not objects[box_key]:  # a picture without objects still is a row
        yield {**rest, BOX_LIST: "", "class": ""}


def _by_key(objects: Any) -> Any:
    """Return objects as a dict of lists, in which Hugging Face stores a list of dicts; others unchanged."""
    if isinstance(objects, str):  # a cell of metadata.csv
        objects = parse_literal(objects, objects.strip())
    if isinstance(objects, list) and all(isinstance(one, dict) for one in objects):
        keys = dict.fromkeys(key for one in objects for key in one)
        return {key: [one.get(key) for one in objects] for key in keys}
    return objects


def _are_no_objects(objects: Any) -> bool:
    """Return whether a cell says that there are none: it is empty, or null for each key, as in Parquet."""
    if objects in (None, "", {}):
        return True
    return isinstance(objects, dict) and all(one is None for one in objects.values())


def _keys_of_objects(place: str, objects: Any, stated: Mapping[str, str]) -> tuple[str, str]:
    """Return the keys of the boxes and of the classes; raise AnnotationsError if the lists are not of one length."""
    expected = (
        'expected {"bbox": [[x, y, width, height], ...], "category": [...]} with one value for each object'
    )
    # A dict of single values is one object, or a mistake.
    if not isinstance(objects, dict) or not all(isinstance(one, list) for one in objects.values()):
        raise AnnotationsError(f"{place}: {expected}, got {objects!r:.80}")
    check_stated(place, list(objects), {meaning: (key,) for meaning, key in stated.items()})
    boxes, classes = (
        [stated[meaning]] if meaning in stated else [key for key in objects if normalize_name(key) in known]
        for meaning, known in (("bbox", _BOX_KEYS), ("label", _CLASS_KEYS))
    )
    lengths = {len(one) for one in objects.values()}
    if not len(boxes) == len(classes) == len(lengths) == 1:
        found = ", ".join(f"{len(one)} {key}" for key, one in objects.items())
        raise AnnotationsError(f"{place}: {expected}, got {found}")
    return boxes[0], classes[0]


# Google ---------------------------------------------------------------------------------------------------


def find_google_form(name: str, rows: Callable[[], Iterable[tuple[int, Sequence[str]]]]) -> TableForm | None:
    """Return the form of a table of Google's AutoML or Vertex AI, which has no header; None for another table.

    A row is `[SET,]gs://bucket/a.jpg[,class...]`. For boxes it has one class and eight cells with fractions:
    `xmin,ymin,,,xmax,ymax,,` or four corners. `convert` takes the cells as the values of a row.
    """
    if not _begins_like_google(next(iter(rows()), (0, ()))[1]):
        return None
    boxed = lacking = False
    for line, cells in rows():
        at = _picture_cell(cells)
        if at is None:
            raise AnnotationsError(
                f"{name}:{line}: expected a set (TRAIN, VALIDATION, TEST or UNASSIGNED) and the path of a picture, as "
                f"in the first line, got {','.join(cells)[:80]}; correct the row"
            )
        lacking = lacking or at == 0 or cells[0].strip().lower() in ("", "unassigned")
        # A picture without an object has no box in a table of boxes, so that all rows are looked at.
        boxed = boxed or _holds_box(cells, at)
    return TableForm(
        convert=lambda _, row: [_google_row([str(cell).strip() for cell in row.values()], boxed)],
        columns=("filename", "class", "split", *(CORNERS if boxed else ())),
        note=_NO_SET if lacking else "",
    )


def _begins_like_google(first: Sequence[str]) -> bool:
    """Return whether a first row has a path in a store of Google, or a set and a box, since paths may be rewritten."""
    at = _picture_cell(first)
    if at is None:
        return False
    return first[at].strip().startswith("gs://") or (at == 1 and _holds_box(first, at))


def _picture_cell(cells: Sequence[str]) -> int | None:
    """Return the place of the picture in a row: behind the name of a set, or first; None for another row."""
    for place, cell in enumerate(cells[:2]):
        # Only the first two cells: classes further on may end like file names.
        if cell.strip().startswith("gs://") or is_image_name(cell.strip()):
            return place if place == 0 or cells[0].strip().lower() in GOOGLE_SETS else None
    return None


def _holds_box(cells: Sequence[str], at: int) -> bool:
    corners = cells[at + 2 :]
    return len(corners) == 8 and all(
        class_number(corners[place].strip()) is not None for place in (0, 1, 4, 5)
    )


def _google_row(cells: Sequence[str], boxed: bool) -> Row:
    at = _picture_cell(cells) or 0
    row = {"filename": cells[at], "split": GOOGLE_SETS[cells[0].lower() if at else ""]}
    if not boxed:
        return {**row, "class": _classes(list(filter(None, cells[at + 1 :])))}
    label = "".join(cells[at + 1 : at + 2])
    return {**row, "class": label, **dict(zip(CORNERS, _google_sides(cells[at + 2 :]), strict=True))}


def _google_sides(corners: Sequence[str]) -> list[str]:
    """Return xmin, ymin, xmax and ymax of two or four corners."""
    x, y = corners[0::2], corners[1::2]
    # Two corners: the cells of the other two are empty.
    if len(corners) == 8 and not any((*corners[2:4], *corners[6:])):
        return [*corners[:2], *corners[4:6]]
    # Four corners, clockwise from the top left; others are no upright rectangle.
    if len(corners) == 8 and (x[0], x[1], y[0], y[2]) == (x[3], x[2], y[1], y[3]):
        return [x[0], y[0], x[2], y[2]]
    # A text that is no number makes the object a named fault.
    return [f"no rectangle: {','.join(corners)}" if any(corners) else ""] * 4


def _classes(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else json.dumps(labels)


def _vertex_rows(place: str, row: Row) -> Iterator[Row]:
    """Yield the rows of a line of Vertex AI's import files (image_bounding_box_io_format_1.0.0.yaml and others)."""
    key = _vertex_key(place, row)
    known = {"filename": row.get("imageGcsUri"), "split": _vertex_split(place, row)}
    objects = _vertex_objects(f"{place}: {key}", row[key]) if key else []
    names = [str(one.get("displayName") or "") for one in objects]
    if key == "boundingBoxAnnotations":
        for one, label in zip(objects, names, strict=True):
            sides = {side: one.get(written) for side, written in zip(CORNERS, _SIDES, strict=True)}
            yield {**known, "class": label, **sides}
        return
    # An empty list means that the picture has no class; without a list its classes are unknown.
    has_list = "classificationAnnotations" in row
    yield {**known, "class": _classes(names) if names or has_list else ""}


def _vertex_key(place: str, row: Row) -> str:
    """Return the key of the annotations in a row; "" without any."""
    keys = [key for key in row if key.lower().endswith(("annotation", "annotations")) and row[key]]
    # Texts and actions in videos have keys of the same form.
    if len(keys) > 1 or not set(keys) <= _VERTEX_KEYS:
        raise AnnotationsError(
            f"{place}: expected one of {', '.join(sorted(_VERTEX_KEYS))}, got {', '.join(keys)}; export boxes or "
            "classes alone"
        )
    return keys[0] if keys else ""


def _vertex_objects(place: str, written: Any) -> list[Any]:
    objects = written if isinstance(written, list) else [written]
    if not all(isinstance(one, dict) for one in objects):
        raise AnnotationsError(f"{place}: expected objects with displayName, got {written!r:.80}")
    return objects


def _vertex_split(place: str, row: Row) -> str:
    labels = row.get("dataItemResourceLabels")
    use = str(labels.get(_ML_USE, "")).lower() if isinstance(labels, dict) else ""
    if use not in GOOGLE_SETS:
        raise AnnotationsError(f"{place}: {_ML_USE}: expected training, validation or test, got {use!r}")
    return GOOGLE_SETS[use]


# Open Images and Kaggle -----------------------------------------------------------------------------------


def _wheat_row(_: str, row: Row) -> tuple[Row]:
    return (
        {
            **{key: value for key, value in row.items() if key != "bbox"},
            BOX_LIST: row.get("bbox"),
            "class": "wheat",
        },
    )


def _open_images(
    files: SourceFiles, name: str, header: Sequence[str], known: Mapping[str, str]
) -> TableForm | None:
    """Return the form of a table whose classes are codes such as /m/011k07, with their names in a file beside it."""
    label, confidence = known["labelname"], known.get("confidence")
    names = _names_of_codes(files, name)
    # Image-level labels say with confidence 0 that a person looked and found no such object
    # (https://storage.googleapis.com/openimages/web/download_v7.html); boxes have a confidence too, which is 1.
    may_be_absent = confidence is not None and "xmin" not in known
    # Without names and absent objects there is nothing to convert, and the codes are the classes.
    if not names and not may_be_absent:
        return None

    def convert(_: str, row: Row) -> Iterator[Row]:
        if not may_be_absent or class_number(str(row.get(confidence or "")).strip()) != 0:
            code = row.get(label)
            yield {**row, label: names.get(code.strip(), code) if isinstance(code, str) else code}

    return TableForm(convert=convert, columns=tuple(header), note=_ABSENT if may_be_absent else "")


def _names_of_codes(files: SourceFiles, name: str) -> dict[str, str]:
    """Return the class name of each code in the files beside a table; a name of several codes is no name."""
    names: dict[str, str] = {}
    for path in filter(is_description, files.files_in(posixpath.dirname(name))):
        try:
            lines = read_required(files, path).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise AnnotationsError(f"{path}: expected UTF-8 text: {error}; save it as UTF-8") from error
        names.update((cells[0], cells[1].strip()) for cells in csv.reader(lines) if len(cells) == 2)
    counts = Counter(names.values())
    return {code: written for code, written in names.items() if written and counts[written] == 1}
