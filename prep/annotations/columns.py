"""Which column of a table means what: known spellings, how a box is written, and what is not read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from halofeed.errors import AnnotationsError

CORNERS = ("xmin", "ymin", "xmax", "ymax")
FORMS = ("auto", "corners", "corner-size", "center-size")

# Column: its spellings in ranks, without case, blanks and signs; a later rank counts where no earlier one is there.
SPELLINGS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "filename": (
        ("filename",),
        ("filepath", "imagepath", "imgpath", "imagename", "imgname", "imagefile", "imgfile", "imagefilename"),
        ("file", "path", "img"),
        ("imageid", "imgid"),
    ),
    "class": (
        ("class",),
        ("classname", "label", "labelname", "category", "categoryname", "cls", "classlabel"),
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
}
# How a box may be written otherwise; the same ranks.
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
_LISTS = ("bbox", "box", "boundingbox")
_GEOMETRY = re.compile(
    r"[xywh]|[xy]\d+|[xy](min|max|tl|br|c|center|centre|mid)|(c|min|max|center|centre)[xy]|left|top|right|bottom"
    r"|b?box(es)?([xywh]\d?|width|height|xmin|ymin|xmax|ymax)?|boundingbox(es)?|rect(angles?)?|roi|points?|polygons?"
    r"|poly|segmentations?|masks?|rle|keypoints?|vertices|coordinates|coords|geometry|regionshapeattributes"
    r"|annotations|objects|detections|rotation|angle|theta|rbox|obb"
)


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """How the columns of one table are read.

    Args:
        columns: from a column that is known to the column of the table that holds it.
        form: how `box` is written: "corners", "corner-size", "center-size"; "" where the to_corners have columns of their
            own, or where there is no box.
        box: the columns of x, y, w and h, or of the list that holds all four.
        unread: columns that nothing is made of, as they are written.
        one_hot: columns of which each is a class, with 1 for the pictures that have it.
    """

    columns: Mapping[str, str]
    form: str = ""
    box: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The columns that a row has after `cells`."""
        return (*self.columns, *CORNERS) if self.box else tuple(self.columns)

    def cells(self, written: Mapping[str, str]) -> dict[str, str]:
        """The cells of a row by the columns that are known."""
        known = {name: written[column] for name, column in self.columns.items() if column in written}
        if not self.box:
            return known
        values = [written.get(column, "") for column in self.box]
        if len(values) == 1:
            values = _split_list(values[0])
        return {**known, **dict(zip(CORNERS, _corner_cells(values, self.form), strict=True))}


def read_columns(
    name: str, header: Sequence[str], boxes: bool | None, form: str = "auto", ignored: Sequence[str] = ()
) -> ColumnMapping:
    """What the columns of a table mean.

    Args:
        name: the table, for messages.
        header: its columns as they are written.
        boxes: whether they are asked for; None: where there are any.
        form: one of FORMS.
        ignored: columns that shall not be read.

    Raises:
        AnnotationsError: two columns can be one, a box is written so that it can be read in two ways, or a column looks
            like a box or an outline and would not be read.

    >>> reading = read_columns("t.csv", ["File Name", "label", "x1", "y1", "x2", "y2", "color"], None)
    >>> reading.columns["filename"], reading.columns["xmax"], reading.form, reading.unread
    ('File Name', 'x2', '', ('color',))
    """
    left = _remove_ignored(header, ignored)
    spellings = dict(SPELLINGS)
    normalized = {normalize_name(column) for column in left}
    if {"x0", "y0", "x1", "y1"} <= normalized and not {"x2", "y2"} & normalized:
        for side, low, high in (("x", "x0", "x1"), ("y", "y0", "y1")):
            spellings[f"{side}min"], spellings[f"{side}max"] = ((low,),), ((high,),)
    if boxes is not None or any(map(is_geometry, left)):
        spellings["filename"] = (*spellings["filename"], ("image",))
    box_form, box = ("", ()) if boxes is False else _find_box(name, left, form)
    if box:
        spellings = {key: ranks for key, ranks in spellings.items() if key not in CORNERS}
    reading = match_columns(name, header, spellings, (*ignored, *box))
    unread = tuple(column for column in reading.unread if column not in box)
    found = [column for column in unread if column in left and is_geometry(column)]
    if found and boxes is not False and {"filename", "class"} <= reading.columns.keys():
        raise AnnotationsError(
            f"{name}: column {', '.join(found)} would not be read, and may hold boxes or outlines; expected "
            "xmin,ymin,xmax,ymax, or say with --box-form how a box is written in x,y,w,h or bbox (corners, "
            f"corner-size, center-size); --ignore-columns {','.join(found)} goes on without"
        )
    return replace(reading, form=box_form, box=box, unread=unread)


def match_columns(
    name: str,
    header: Sequence[str],
    spellings: Mapping[str, Sequence[Sequence[str]]],
    ignored: Sequence[str] = (),
) -> ColumnMapping:
    """What the columns of a table mean by their spellings alone; see `read_columns`."""
    left = _remove_ignored(header, ignored)
    chosen = {known: _find_column(name, left, ranks, known) for known, ranks in spellings.items()}
    columns = {known: column for known, column in chosen.items() if column is not None}
    unread = tuple(column for column in header if column not in columns.values())
    return ColumnMapping(columns=columns, unread=unread)


def _remove_ignored(header: Sequence[str], ignored: Sequence[str]) -> list[str]:
    passed = {normalize_name(column) for column in ignored}
    return [column for column in header if normalize_name(column) not in passed]


def has_columns(
    header: Sequence[str], required: Sequence[str], spellings: Mapping[str, Sequence[Sequence[str]]]
) -> bool:
    """Whether all the required columns are there in some spelling."""
    normalized = {normalize_name(column) for column in header}
    return all(any(normalized.intersection(rank) for rank in spellings[known]) for known in required)


@lru_cache(maxsize=4096)
def normalize_name(column: str) -> str:
    """A column's name without what people spell differently: case, blanks, and signs.

    >>> normalize_name("Is_Crowd"), normalize_name("x-min")
    ('iscrowd', 'xmin')
    """
    return re.sub(r"[^a-z0-9]", "", column.lower()) or column


def _find_column(name: str, header: Sequence[str], ranks: Sequence[Sequence[str]], known: str) -> str | None:
    """The column of the table that is meant by the first rank of which there is one."""
    for rank in ranks:
        found = [column for column in header if normalize_name(column) in rank]
        if len(found) > 1:
            raise AnnotationsError(
                f"{name}: columns {' and '.join(found)} can both be {known}; rename one to {known}, or say "
                f"--ignore-columns {found[-1]}"
            )
        if found:
            return found[0]
    return None


def _find_box(name: str, header: Sequence[str], form: str) -> tuple[str, tuple[str, ...]]:
    """How boxes are written and in which columns, where it is otherwise than by two corners."""
    if form == "auto" and has_columns(header, ("xmax",), SPELLINGS):
        return "", ()
    sizes = {side: ranks[:1] for side, ranks in _SIZES.items()}
    if (
        form == "corner-size"
        and has_columns(header, CORNERS, SPELLINGS)
        and not has_columns(header, "wh", sizes)
    ):
        named = [_find_column(name, header, SPELLINGS[side], side) for side in CORNERS]
        return form, tuple(column for column in named if column is not None)
    lists = [column for column in header if normalize_name(column) in _LISTS]
    for kind, spellings in (("corner-size", _CORNER_SIZE), ("center-size", _CENTER_SIZE)):
        if form not in ("auto", kind):
            continue
        # Without a word only columns that cannot mean anything else: left and top, or the center, with w and h.
        ranks = {side: one if form == kind else one[:1] for side, one in spellings.items()}
        found = [_find_column(name, header, one, f"{side} of a box") for side, one in ranks.items()]
        if all(found):
            return kind, tuple(column for column in found if column is not None)
    if form != "auto" and len(lists) == 1:
        return form, (lists[0],)
    if form not in ("auto", "corners"):
        raise AnnotationsError(
            f"{name}: --box-form {form} needs columns x, y, w and h, or one called bbox; found "
            f"{', '.join(header)}; leave --box-form out if none is meant"
        )
    return "", ()


def is_geometry(column: str) -> bool:
    """Whether a column's name says that it holds a box, an outline, or a part of one.

    >>> is_geometry("bbox_x"), is_geometry("Points"), is_geometry("color")
    (True, True, False)
    """
    return _GEOMETRY.fullmatch(normalize_name(column)) is not None


def _split_list(text: str) -> list[str]:
    """The four numbers of a list as text; the whole text four times where it holds no four, to be refused.

    >>> _split_list("[1, 2.5, 3, 4]"), _split_list("1 2 3 4"), _split_list("")
    (['1', '2.5', '3', '4'], ['1', '2', '3', '4'], ['', '', '', ''])
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = re.split(r"[\s,;]+", text.strip("[]() \t"))
    is_flat = isinstance(values, list) and not any(isinstance(one, dict | list) for one in values)
    return list(map(str, values)) if is_flat and len(values) == 4 else [text] * 4


def _corner_cells(values: Sequence[str], form: str) -> list[str]:
    """The cells of the two corners; cells that are no numbers stay as they are, to be refused."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return list(values)
    if form == "corners" or not all(map(math.isfinite, numbers)):
        return list(values)
    return [repr(value) for value in to_corners(numbers, form)]


def to_corners(numbers: Sequence[float], form: str) -> tuple[float, float, float, float]:
    """xmin, ymin, xmax, ymax of a box whose four numbers are written in this form.

    >>> to_corners((1, 2, 3, 5), "corners"), to_corners((1, 2, 2, 3), "corner-size"), to_corners((2, 3.5, 2, 3), "center-size")
    ((1, 2, 3, 5), (1, 2, 3, 5), (1.0, 2.0, 3.0, 5.0))
    """
    x, y, third, fourth = numbers
    if form == "corners":
        return x, y, third, fourth
    if form == "center-size":
        x, y = x - third / 2, y - fourth / 2
    return x, y, x + third, y + fourth
