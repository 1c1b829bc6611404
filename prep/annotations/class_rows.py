"""Classes that a file names: their values, names and colors, and which of them are background or ignored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

BACKGROUND_NAMES = ("background", "__background__", "_background_")
"""Names of the background: nnU-Net's, Fast R-CNN's and labelme's."""
IGNORE_NAMES = ("ignore", "__ignore__", "_ignore_")
"""Names that mean pixels without a class wherever they are: nnU-Net's and labelme's."""
VOID_NAMES = (
    *IGNORE_NAMES,
    "void",
    "unlabeled",
    "unlabelled",
    "ignored",
    "dontcare",
    "don't care",
    "ignore label",
)
"""Names that only hint at pixels without a class: some data sets train on them."""
IGNORED_VALUES = (255, 65535)
"""What -1 becomes in unsigned label images of 8 and 16 bits."""


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """Class of a table.

    Args:
        value: value in label files.
        name: its name.
        color: RRGGBB as an integer; None if the table has no colors.
        place: the file and the place in it, for messages.
        alias: another name of the class, or None.
    """

    value: int
    name: str
    color: int | None = None
    place: str = ""
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClassTable:
    """Classes that a file names, in its order.

    Args:
        where: the file, for messages.
        rows: the classes; values and names are checked by `LabelMap`.
        is_numbered: whether the file has the values; else they follow from the order of the rows.
        is_in_order: whether the values of a table without numbers are the positions of its rows, from 0.

    >>> from halofeed.prep.annotations.class_tables import read_class_table
    >>> table = read_class_table("labelmap.txt", "# label:color_rgb:parts:actions\\nbackground:0,0,0::\\ncat:255,0,0::")
    >>> table.names, table.colors
    ({0: 'background', 1: 'cat'}, {0: 0, 16711680: 1})
    >>> read_class_table("labels.txt", "__ignore__\\n_background_\\ncat").ignored
    {-1: '__ignore__'}
    """

    where: str
    rows: tuple[ClassRow, ...]
    is_numbered: bool
    is_in_order: bool = True

    @cached_property
    def names(self) -> dict[int, str]:
        """Return the names by value, with the background and ignored values."""
        return {row.value: row.name for row in self.rows}

    @cached_property
    def colors(self) -> dict[int, int]:
        """Return the value of each color; {} if some rows have no color or two share one."""
        colors = {row.color: row.value for row in self.rows if row.color is not None}
        return colors if len(colors) == len(self.rows) else {}

    @cached_property
    def ignored(self) -> dict[int, str]:
        """Return the names by value of pixels without a class.

        A negative value cannot be a class. The word "ignore" marks ignored pixels; words such as "void" do so for a
        value that is -1 of an unsigned type.
        """
        return {row.value: row.name for row in self.rows if is_ignored(row.value, row.name)}

    @cached_property
    def background(self) -> int | None:
        """Return the value of the background; None if the table does not name it."""
        return next((row.value for row in self.rows if is_background(row.name)), None)

    def with_background(self) -> ClassTable:
        """Return the table whose value 0 is called background."""
        rows = (row if row.value else replace(row, name=BACKGROUND_NAMES[0]) for row in self.rows)
        return replace(self, rows=tuple(rows))

    def counted_from_1(self) -> ClassTable:
        """Return the table with each value one higher."""
        return replace(self, rows=tuple(replace(row, value=row.value + 1) for row in self.rows))

    def place(self, value: int) -> str:
        """Return the file and the place in it that name a value, for messages."""
        return next((row.place for row in self.rows if row.value == value), self.where)


def is_background(name: str) -> bool:
    """Return whether a name means the background."""
    return name.strip().lower() in BACKGROUND_NAMES


def is_ignored(value: int, name: str) -> bool:
    """Return whether a row of a table is not a class but ignored pixels, which no loss may count.

    >>> is_ignored(-1, "other"), is_ignored(3, "ignore"), is_ignored(255, "void"), is_ignored(11, "void")
    (True, True, True, False)
    """
    word = name.strip().lower()
    return (
        value < 0 or (value > 0 and word in IGNORE_NAMES) or (value in IGNORED_VALUES and word in VOID_NAMES)
    )


def first_value(name: str, first: int) -> int:
    """Return the value of the first name of a list without values: labelme2voc.py gives `__ignore__` the value -1."""
    return -1 if name.lower() in IGNORE_NAMES else first


def is_void_name(name: str) -> bool:
    """Return whether a name hints at pixels without a class."""
    return name.strip().lower() in VOID_NAMES


def describe_colors(table: ClassTable) -> str:
    """Return the value of --label-colors that a table's colors are.

    >>> from halofeed.prep.annotations.class_tables import read_class_table
    >>> describe_colors(read_class_table("c.csv", "name,r,g,b\\nsky,0,0,255\\nvoid,0,0,0"))
    '0000ff=sky'
    """
    pairs = [(row.color, row.name) for row in table.rows if row.color]
    return ",".join(f"{color:06x}={name}" for color, name in pairs)
