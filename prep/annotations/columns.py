"""Mapping from table columns to their meaning: known spellings, forms of boxes, and unread columns."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from halofeed.system.errors import AnnotationsError

CORNERS = ("xmin", "ymin", "xmax", "ymax")
BOX_FORMS = ("auto", "corners", "corner-size", "center-size")

# Spellings of each column as `normalize_name` returns them, in ranks; the first rank with a match decides.
SPELLINGS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "filename": (
        ("filename",),
        (
            "filepath",
            "imagepath",
            "imgpath",
            "imagename",
            "imgname",
            "imagefile",
            "imgfile",
            "imagefilename",
            "imagefilepath",
        ),
        ("file", "path", "img"),
        ("imageid", "imgid"),
    ),
    "class": (
        ("class",),
        ("classname", "label", "labelname", "category", "categoryname", "cls", "classlabel"),
        ("labels", "classes", "tags", "categories"),
        ("classid", "labelid", "categoryid"),
    ),
    "xmin": (("xmin",), ("x1", "left", "xtl", "minx", "bboxxmin", "bboxx1", "boxxmin")),
    "ymin": (("ymin",), ("y1", "top", "ytl", "miny", "bboxymin", "bboxy1", "boxymin")),
    "xmax": (("xmax",), ("x2", "right", "xbr", "maxx", "bboxxmax", "bboxx2", "boxxmax")),
    "ymax": (("ymax",), ("y2", "bottom", "ybr", "maxy", "bboxymax", "bboxy2", "boxymax")),
    "width": (("width",), ("imagewidth", "imgwidth", "imwidth", "picturewidth")),
    "height": (("height",), ("imageheight", "imgheight", "imheight", "pictureheight")),
    "split": (("split",), ("subset", "set")),
    "group": (("group",), ("groupid",)),
    "id": (("id",),),
    "area": (("area",), ("bboxarea", "boxarea")),
    "is_crowd": (("iscrowd",), ("crowd",)),
    "difficult": (("difficult",), ("isdifficult",)),
    "truncated": (("truncated",), ("istruncated",)),
    "occluded": (("occluded",), ("isoccluded",)),
    "group_of": (("groupof",), ("isgroupof",)),
    "ignored": (("ignored",), ("isignored",)),
    "corners": (("corners",),),
    "mask": (("instancerle",),),
}
_FILE_NAMES = (*SPELLINGS["filename"], ("image",))
LABEL_NAMES = frozenset(
    (*chain(*SPELLINGS["class"]), "labelpath", "labelfile", "mask", "maskpath", "segmentation", "seg")
)
"""Spellings of classes and of label images."""
FILE_NAMES = frozenset(chain(*_FILE_NAMES))
"""Spellings of the name of a picture's file."""
# Spellings of the parts of a box that is not written as two corners, in ranks.
_SIZES = {
    "w": (("w", "boxw", "bboxw", "boxwidth", "bboxwidth"), ("width",)),
    "h": (("h", "boxh", "bboxh", "boxheight", "bboxheight"), ("height",)),
}
_CORNER_SIZE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "x": (("left", "xmin", "xtl", "x1"), ("x", "boxx", "bboxx")),
    "y": (("top", "ymin", "ytl", "y1"), ("y", "boxy", "bboxy")),
    **_SIZES,
}
_CENTER_SIZE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "x": (("cx", "xc", "xcenter", "centerx", "xcentre", "centrex"), ("x", "boxx", "bboxx")),
    "y": (("cy", "yc", "ycenter", "centery", "ycentre", "centrey"), ("y", "boxy", "bboxy")),
    **_SIZES,
}
_SIDES_OF_FORM = {"corner-size": _CORNER_SIZE, "center-size": _CENTER_SIZE}
_LIST_OF_SIZE = "bboxxywh"
_LISTS = ("bbox", "box", "boundingbox", _LIST_OF_SIZE)
_BOX_COLUMNS = (CORNERS, ("x", "y", "w", "h"), ("bbox",))
"""Columns that are a box together: two corners, a place and a size, or one list."""
_SPELLINGS_OF_BOXES: Mapping[str, frozenset[str]] = {
    **{side: frozenset(chain(*SPELLINGS[side])) for side in CORNERS},
    **{side: frozenset(chain(*_CORNER_SIZE[side], *_CENTER_SIZE[side])) for side in "xy"},
    # A column called width is the picture's, unless nothing else is the box's.
    **{side: frozenset(_SIZES[side][0]) for side in "wh"},
    "bbox": frozenset(_LISTS),
}
"""Spellings of each column of a box that the user may name."""
_TITLES = {"image": "filename", "label": "class"}
"""Columns of tables of pictures that `--column` calls otherwise."""
_GEOMETRY = re.compile(
    r"[xywh]|[xy]\d+|[xy](min|max|tl|br|c|center|centre|mid)|(c|min|max|center|centre)[xy]|left|top|right|bottom"
    r"|b?box(es)?([xywh]\d?|width|height|xmin|ymin|xmax|ymax)?|boundingbox(es)?|rect(angles?)?|roi|points?|polygons?"
    r"|poly|segmentations?|masks?|rle|keypoints?|vertices|coordinates|coords|geometry|regionshapeattributes"
    r"|annotations|objects|detections|rotation|angle|theta|rbox|obb"
)


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """Meaning of the columns of one table.

    Args:
        columns: maps each known column to the column of the table that contains it.
        form: form of `box`: "corners", "corner-size" or "center-size"; "" if the corners have their own columns or
            there is no box.
        box: columns of x, y, w and h, or the one column of a list with all four.
        unread: columns without a known meaning, in their original spelling.
    """

    columns: Mapping[str, str]
    form: str = ""
    box: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """Return the names of the columns in the result of `cells`."""
        return (*self.columns, *CORNERS) if self.box else tuple(self.columns)

    def cells(self, written: Mapping[str, str]) -> dict[str, str]:
        """Return the cells of a row by known column."""
        known = {name: written[column] for name, column in self.columns.items() if column in written}
        if not self.box:
            return known
        values = [written.get(column, "") for column in self.box]
        # One column holds the four numbers as a list.
        if len(values) == 1:
            values = _split_list(values[0])
        return {**known, **dict(zip(CORNERS, _corner_cells(values, self.form), strict=True))}


def read_columns(
    name: str,
    header: Sequence[str],
    boxes: bool | None,
    form: str = "auto",
    ignored: Sequence[str] = (),
    stated: Mapping[str, str] = MappingProxyType({}),
) -> ColumnMapping:
    """Return the meaning of the columns of a table.

    Args:
        name: name of the table, for messages.
        header: columns of the table in their original spelling.
        boxes: whether the task needs boxes; None reads boxes if the table has any.
        form: one of FORMS.
        ignored: columns to ignore.
        stated: column of each meaning that the user names, see `stated_columns`.

    Raises:
        AnnotationsError: two columns have the same meaning, the form of a box is ambiguous, or an unread column looks
            like a box or an outline.

    >>> mapping = read_columns("t.csv", ["File Name", "label", "x1", "y1", "x2", "y2", "color"], None)
    >>> mapping.columns["filename"], mapping.columns["xmax"], mapping.form, mapping.unread
    ('File Name', 'x2', '', ('color',))
    >>> read_columns("t.csv", ["isic_id", "label", "kind"], None, stated={"image": "isic_id", "label": "kind"}).columns
    {'filename': 'isic_id', 'class': 'kind'}
    """
    named = {_TITLES.get(meaning, meaning): column for meaning, column in stated.items()}
    titles = _titles(_remove_ignored(header, ignored), named, {**SPELLINGS, "filename": _FILE_NAMES})
    spellings = _spellings_for(list(titles), boxes, says_class="class" in named)
    box_form, box = ("", ()) if boxes is False else _find_box(name, list(titles), form)
    if box:  # titles such as left and xmin then mean x of the box, and no corner
        spellings = {key: ranks for key, ranks in spellings.items() if key not in CORNERS}
    found = _match(name, [title for title in titles if title not in box], spellings)
    # Classification reads no boxes, and another message covers a table without filename and class.
    if boxes is not False and {"filename", "class"} <= found.keys():
        unread = [title for title in titles if title not in box and title not in found.values()]
        _refuse_unread_geometry(name, [titles[title] for title in unread if is_geometry(title)])
    mapping = _as_written(header, found, titles)
    written_box = tuple(titles[title] for title in box)
    unread_columns = tuple(column for column in mapping.unread if column not in written_box)
    return replace(mapping, form=box_form, box=written_box, unread=unread_columns)


def _titles(
    header: Sequence[str], named: Mapping[str, str], spellings: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, str]:
    """Return the columns by the titles under which their meanings are found.

    A column that the user names has the title of its meaning. Others that could have this meaning are left out.
    """
    if not named:
        return {column: column for column in header}
    taken = {spelling for title in named for spelling in chain(*spellings.get(title, ()))}
    taken |= _spellings_of_other_boxes(named)
    chosen = set(named.values())
    others = (column for column in header if column not in chosen and normalize_name(column) not in taken)
    return {**named, **{column: column for column in others}}


def _spellings_of_other_boxes(named: Mapping[str, str]) -> set[str]:
    """Return the spellings of columns of boxes that a table with these named columns does not mean."""
    taken: set[str] = set()
    for together in _BOX_COLUMNS:
        own = [title for title in together if title in named]
        if own:
            others = chain(*(columns for columns in _BOX_COLUMNS if columns is not together))
            taken |= set().union(*(_SPELLINGS_OF_BOXES[title] for title in (*others, *own)))
            # One side is named, and the others have their usual titles.
            taken -= set().union(*(_SPELLINGS_OF_BOXES[title] for title in together if title not in own))
    return taken


def _spellings_for(
    header: Sequence[str], boxes: bool | None, *, says_class: bool
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the spellings of the columns in a table with this header; see `read_columns`."""
    spellings = dict(SPELLINGS)
    normalized = {normalize_name(column) for column in header}
    # x1 is the first corner beside x2, and the second one beside x0.
    if {"x0", "y0", "x1", "y1"} <= normalized and not {"x2", "y2"} & normalized:
        for side, low, high in (("x", "x0", "x1"), ("y", "y0", "y1")):
            spellings[f"{side}min"], spellings[f"{side}max"] = ((low,),), ((high,),)
    # image,label may be a table of label images: the word means the file only if the task or a box says what is read,
    # or if there is neither a label nor a class, as in a table with a column for each class, or the user names that.
    has_label = bool(normalized & LABEL_NAMES) and not says_class
    if boxes is not None or any(map(is_geometry, header)) or not has_label:
        spellings["filename"] = _FILE_NAMES
    return spellings


def _refuse_unread_geometry(name: str, found: Sequence[str]) -> None:
    """Refuse to leave a column of boxes or outlines unread: the pictures would become pictures of a class."""
    if found:
        raise AnnotationsError(
            f"{name}: column {', '.join(found)} would not be read, and may hold boxes or outlines; expected "
            "xmin,ymin,xmax,ymax, or state with --box-form how a box is written in x,y,w,h or bbox (corners, "
            f"corner-size, center-size); --ignore-columns {','.join(found)} ignores it"
        )


def match_columns(
    name: str,
    header: Sequence[str],
    spellings: Mapping[str, Sequence[Sequence[str]]],
    ignored: Sequence[str] = (),
    stated: Mapping[str, str] = MappingProxyType({}),
) -> ColumnMapping:
    """Return the meaning of the columns by their spellings, and by what the user states; see `read_columns`."""
    titles = _titles(_remove_ignored(header, ignored), stated, spellings)
    return _as_written(header, _match(name, list(titles), spellings), titles)


def _match(
    name: str, titles: Sequence[str], spellings: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, str]:
    """Return the title of each known column that a table has."""
    chosen = {known: _find_column(name, titles, ranks, known) for known, ranks in spellings.items()}
    return {known: title for known, title in chosen.items() if title is not None}


def _as_written(header: Sequence[str], found: Mapping[str, str], titles: Mapping[str, str]) -> ColumnMapping:
    columns = {known: titles[title] for known, title in found.items()}
    return ColumnMapping(
        columns=columns, unread=tuple(column for column in header if column not in columns.values())
    )


def _remove_ignored(header: Sequence[str], ignored: Sequence[str]) -> list[str]:
    passed = {normalize_name(column) for column in ignored}
    return [column for column in header if normalize_name(column) not in passed]


def has_columns(
    header: Sequence[str], required: Sequence[str], spellings: Mapping[str, Sequence[Sequence[str]]]
) -> bool:
    """Return whether a header contains all required columns in some spelling."""
    normalized = {normalize_name(column) for column in header}
    return all(any(normalized.intersection(rank) for rank in spellings[known]) for known in required)


@lru_cache(maxsize=4096)
def normalize_name(column: str) -> str:
    """Return a column's name without case, spaces and punctuation.

    >>> normalize_name("Is_Crowd"), normalize_name("x-min")
    ('iscrowd', 'xmin')
    """
    return re.sub(r"[^a-z0-9]", "", column.lower()) or column


def _find_column(name: str, header: Sequence[str], ranks: Sequence[Sequence[str]], known: str) -> str | None:
    """Return the column that matches the first rank with a match, or None."""
    for rank in ranks:
        found = [column for column in header if normalize_name(column) in rank]
        # Two columns of one rank, such as path and file, may name different files.
        if len(found) > 1:
            raise AnnotationsError(
                f"{name}: columns {' and '.join(found)} can both be {known}; rename one to {known}, or use "
                f"--ignore-columns {found[-1]}"
            )
        if found:
            return found[0]
    return None


def _find_box(name: str, header: Sequence[str], form: str) -> tuple[str, tuple[str, ...]]:
    """Return the form and the columns of boxes that are not written as two corners."""
    if form == "auto":
        return _find_evident_box(name, header)
    box = _find_stated_box(name, header, form)
    # Two corners in separate columns need no further form.
    if not box and form != "corners":
        raise AnnotationsError(
            f"{name}: --box-form {form} needs columns x, y, w and h, or one called bbox; found "
            f"{', '.join(header)}; leave --box-form out if none is meant"
        )
    return (form, box) if box else ("", ())


def _find_evident_box(name: str, header: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the form and the columns of boxes whose columns have only one meaning; ("", ()) without such."""
    # A right side is a corner, so that x and width beside it mean something else.
    if has_columns(header, ("xmax",), SPELLINGS):
        return "", ()
    lists = _list_columns(header)
    # A list called bbox may be in any form; this name states its form.
    if len(lists) == 1 and normalize_name(lists[0]) == _LIST_OF_SIZE:
        return "corner-size", lists
    for kind, spellings in _SIDES_OF_FORM.items():
        # x, y and width have other meanings in other tables (a center, the size of the picture), so that only the
        # first rank counts: left and top, or the center, with w and h.
        if box := _columns_of_sides(name, header, {side: ranks[:1] for side, ranks in spellings.items()}):
            return kind, box
    return "", ()


def _find_stated_box(name: str, header: Sequence[str], form: str) -> tuple[str, ...]:
    """Return the columns of boxes in the form that the user states; () without such."""
    sizes = {side: ranks[:1] for side, ranks in _SIZES.items()}
    # The titles may be xmin, ymin, xmax, ymax above x, y, width, height; the user states it with --box-form.
    is_titled_as_corners = has_columns(header, CORNERS, SPELLINGS) and not has_columns(header, "wh", sizes)
    if form == "corner-size" and is_titled_as_corners:
        named = [_find_column(name, header, SPELLINGS[side], side) for side in CORNERS]
        return tuple(column for column in named if column is not None)
    if form in _SIDES_OF_FORM and (box := _columns_of_sides(name, header, _SIDES_OF_FORM[form])):
        return box
    lists = _list_columns(header)
    return lists if len(lists) == 1 else ()


def _columns_of_sides(
    name: str, header: Sequence[str], sides: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[str, ...]:
    """Return the columns of x, y, w and h; () unless all of them exist."""
    found = [_find_column(name, header, ranks, f"{side} of a box") for side, ranks in sides.items()]
    columns = tuple(column for column in found if column is not None)
    return columns if len(columns) == len(found) else ()


def _list_columns(header: Sequence[str]) -> tuple[str, ...]:
    return tuple(column for column in header if normalize_name(column) in _LISTS)


def is_geometry(column: str) -> bool:
    """Return whether a column's name indicates a box, an outline, or a part of one.

    >>> is_geometry("bbox_x"), is_geometry("Points"), is_geometry("color")
    (True, True, False)
    """
    return _GEOMETRY.fullmatch(normalize_name(column)) is not None


def parse_literal(text: str, default: Any) -> Any:
    """Return the value that a cell holds in JSON or as a Python literal; the default for any other text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return default


def _split_list(text: str) -> list[str]:
    """Return the four numbers of a list as text; repeat a text without four numbers, so that parsing fails later.

    >>> _split_list("[1, 2.5, 3, 4]"), _split_list("1 2 3 4"), _split_list("")
    (['1', '2.5', '3', '4'], ['1', '2', '3', '4'], ['', '', '', ''])
    """
    try:
        values = json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # NumPy prints arrays with blanks, spreadsheets join cells with ; or ,
        values = re.split(r"[\s,;]+", text.strip("[]() \t"))
    is_flat = isinstance(values, list) and not any(isinstance(one, dict | list) for one in values)
    return list(map(str, values)) if is_flat and len(values) == 4 else [text] * 4


def _corner_cells(values: Sequence[str], form: str) -> list[str]:
    """Return the cells of the two corners; keep cells that are not numbers, so that parsing fails later."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return list(values)
    # Corners keep their text, which has digits that a float may lose.
    if form == "corners" or not all(map(math.isfinite, numbers)):
        return list(values)
    return [repr(value) for value in to_corners(numbers, form)]


def to_corners(numbers: Sequence[float], form: str) -> tuple[float, float, float, float]:
    """Return (xmin, ymin, xmax, ymax) of a box with four numbers in the given form.

    >>> to_corners((1, 2, 3, 5), "corners"), to_corners((1, 2, 2, 3), "corner-size")
    ((1, 2, 3, 5), (1, 2, 3, 5))
    >>> to_corners((2, 3.5, 2, 3), "center-size")
    (1.0, 2.0, 3.0, 5.0)
    """
    x, y, third, fourth = numbers
    if form == "corners":
        return x, y, third, fourth
    # YOLO's form: x and y are the middle.
    if form == "center-size":
        x, y = x - third / 2, y - fourth / 2
    return x, y, x + third, y + fourth
