"""Evidence of label images about their classes: colors, positions of names, forms of gray values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.class_names import BACKGROUND
from halofeed.prep.annotations.class_rows import ClassTable, describe_colors, is_background, is_void_name
from halofeed.prep.annotations.documents import parse_json_document, read_limited
from halofeed.prep.annotations.labels import TEXT_TABLES, read_table
from halofeed.prep.convert.label_image import GRAY_FIX, gray_form, palette_colors, read_label_image
from halofeed.prep.formats.picture.gray_forms import GrayForm, bits_to_show
from halofeed.prep.sources.file_names import VOLUME_FILE_EXTENSIONS
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError

_MAX_TABLE_BYTES = 1 << 16
_MAX_TABLES = 50
_BACKGROUND_HINTS = (
    "bg",
    "none",
    "empty",
    "nothing",
    "unknown",
    "other",
    "others",
    "clear label",
    "no label",
    "exterior",
)
"""Words that other tools use for the background; they decide only what a message suggests."""
_BORDER_SHARE = 0.9
"""Share of the border of every label image that value 0 covers where it is the background."""


def colors_in(
    files: SourceFiles, paths: Iterable[str], max_pixels: int, *, of_palettes: bool = False
) -> set[int]:
    """Return all colors of those label images that are in color, as integers RRGGBB.

    Args:
        files: source files.
        paths: label images.
        max_pixels: see `read_label_image`.
        of_palettes: whether an image with a palette counts as one in color; otherwise its numbers are the classes.
    """
    found: set[int] = set()

    def note(values: NDArray[Any]) -> NDArray[Any]:
        # `read_label_image` expects the classes of the colors, which nobody uses here.
        red, green, blue = (values[..., band].astype(np.int32) for band in range(3))
        found.update(np.unique(red << 16 | green << 8 | blue).tolist())
        return np.zeros(values.shape[:2], np.uint8)

    for path in paths:
        try:
            data = files.read(path)
            # An image with a palette can be read both ways; its numbers are the classes unless a table of colors is
            # to be compared with them.
            if not of_palettes and _has_values(data, max_pixels):
                continue
            read_label_image(data, max_pixels, decode_colors=note)
        except (SourceError, MemoryError):  # not in color, or the conversion rejects the file with its reason
            continue
    return found


def _has_values(data: bytes, max_pixels: int) -> bool:
    try:
        read_label_image(data, max_pixels)
    except SourceError:  # in color, or damaged, which the caller finds by reading it again
        return False
    return True


def find_color_table(files: SourceFiles, paths: Sequence[str], max_pixels: int) -> ClassTable | None:
    """Return the class table beside label images that names all their colors; None without label images in color.

    Raises:
        AnnotationsError: several tables name all colors, in different ways, or none names all and one names some.
    """
    # Black is the background unless a table names it.
    colors = {color for color in colors_in(files, paths, max_pixels) if color}
    # Gray in three equal channels, as editors save masks, has values and no colors of classes.
    if not colors or all(color % 0x010101 == 0 for color in colors):
        return None
    tables = _tables_beside(files)
    fitting = [table for table in tables if colors <= table.colors.keys()]
    if not fitting:
        _check_no_partial_table(tables, colors, paths[0])
        return None
    if len({describe_colors(table) for table in fitting}) > 1:
        listed = " and ".join(table.where for table in fitting[:3])
        raise AnnotationsError(
            f"{listed} name the colors of {paths[0]} in different ways; choose one with --label-map, or use "
            f"--label-colors '{describe_colors(fitting[0])}'"
        )
    return fitting[0]


def _check_no_partial_table(tables: Sequence[ClassTable], colors: Set[int], example: str) -> None:
    """Refuse a table that names only some colors of the label images; it may be incomplete, or belong to others."""
    partial = next((one for one in tables if colors & one.colors.keys() - {0}), None)
    if partial is None:
        return
    absent = [f"{color:06x}" for color in sorted(colors - partial.colors.keys())]
    more = ",".join([describe_colors(partial), *[f"{color}=background" for color in absent[:20]]])
    raise AnnotationsError(
        f"{partial.where} names colors of label images such as {example}, and not {', '.join(absent[:20])}; add "
        f"them there, or name all with --label-colors '{more}', where background or a class stands for each"
    )


def _tables_beside(files: SourceFiles) -> list[ClassTable]:
    """Return the class tables with colors in the root of a source and its folders; skip other documents."""
    found = []
    paths = [
        path
        for path, size in files.sizes().items()
        if path.lower().endswith((*TEXT_TABLES, ".json"))
        and path.count("/") <= 1
        and 0 < (size or 0) <= _MAX_TABLE_BYTES
    ]
    for path in paths[:_MAX_TABLES]:
        try:
            table = read_table(path, files.read(path))
        # Any other document fails here too. --label-map reports what is wrong with a table.
        except (AnnotationsError, SourceError):
            continue
        if table.colors:
            found.append(table)
    return found


def check_positions(table: ClassTable, files: SourceFiles, paths: Sequence[str], max_pixels: int) -> None:
    """Refuse a list of names whose positions are not the values of label images.

    Args:
        table: classes of the user's file.
        files: source files.
        paths: some label images.
        max_pixels: see `read_label_image`.

    Raises:
        AnnotationsError: value 0 gets the name of an object, and is the background in all of these images; or the
            table has colors and no values, and the images have no colors.
    """
    # A table with numbers does not depend on positions, and without label images there is nothing to compare.
    if table.is_numbered or not paths:
        return
    if table.colors:
        _check_has_colors(table, files, paths, max_pixels)
        return
    first = _first_object(table)
    if not first:
        return
    borders = [
        share for path in paths if (share := _share_of_zero_in_border(files, path, max_pixels)) is not None
    ]
    if borders and min(borders) >= _BORDER_SHARE:
        raise AnnotationsError(
            f"{table.where}: value 0 would be {first!r}, the first name, and 0 is the border of every label image "
            f"looked at, such as {paths[0]}, as the background is{_way_to_background(table)}"
        )


def _check_has_colors(table: ClassTable, files: SourceFiles, paths: Sequence[str], max_pixels: int) -> None:
    """Refuse a table of colors for label images without them, unless the positions of its rows are values."""
    colors = colors_in(files, paths, max_pixels, of_palettes=True)
    if not table.is_in_order and not colors & (table.colors.keys() - {0}):
        raise AnnotationsError(
            f"{table.where}: it names colors and no values, and label images such as {paths[0]} hold values; write "
            f"a .json file with the value of each class, such as {_as_json(table)}"
        )


def _first_object(table: ClassTable) -> str:
    """Return the name of value 0 if it is an object; "" for a background, or for pixels without a class."""
    first = table.names.get(0, "")
    return "" if is_background(first) or is_void_name(first) else first


def check_has_background(table: ClassTable) -> None:
    """Refuse a list for label volumes that has no background: air around the body is no organ.

    Raises:
        AnnotationsError: the first name of a list would be the class of value 0.
    """
    # Numbered tables and tables of colors define value 0; a list only has a first name.
    first = "" if table.is_numbered or table.colors else _first_object(table)
    if not first:
        return
    raise AnnotationsError(
        f"{table.where}: value 0 would be {first!r}, the first name, and in label volumes 0 is what no organ fills"
        f"{_way_to_background(table)}"
    )


def is_of_objects(table: ClassTable, files: SourceFiles) -> bool:
    """Return whether a table counts classes from 0 and label volumes number objects, as nnDetection's do.

    nnDetection's dataset.json has {"labels": {"0": "aneurysm"}}, and CASE.json beside CASE.nii.gz gives the class of
    each object; 0 in the label is the background.
    """
    # nnU-Net's table has the same form, with 0 as the background.
    if not table.is_numbered or is_background(table.names.get(0, BACKGROUND)):
        return False
    paths = files.sizes()
    documents = (path for path in paths if any(path[:-5] + end in paths for end in VOLUME_FILE_EXTENSIONS))
    first = next((path for path in documents if path.endswith(".json")), None)
    if first is None:
        return False
    try:
        document = parse_json_document(read_limited(files, first, "document of a label", _MAX_TABLE_BYTES))
    except SourceError:  # the conversion rejects the label with its reason
        return False
    return isinstance(document, dict) and isinstance(document.get("instances"), dict)


def _way_to_background(table: ClassTable) -> str:
    """Return advice on a list of names whose first name is the class of value 0.

    The advice is an option only if that name hints at a background. Otherwise the option might drop an object.
    """
    first = table.names[0]
    if first.lower() in _BACKGROUND_HINTS:
        return f"; --map-classes '{first}={BACKGROUND}' says that {first!r} is the background"
    return (
        f"; if value 1 is {first!r}, insert the line '{BACKGROUND}' above it; if {first!r} is another word for the "
        f"background, write '{BACKGROUND}' in its place; if value 0 is an object, write a .json file with the value of "
        f"each class, such as {_as_json(table)}"
    )


def _as_json(table: ClassTable) -> str:
    pairs = ", ".join(f'"{row.name}": {row.value}' for row in table.rows[:3])
    return "{" + pairs + (", ...}" if len(table.rows) > 3 else "}")


def _share_of_zero_in_border(files: SourceFiles, path: str, max_pixels: int) -> float | None:
    try:
        values = read_label_image(files.read(path), max_pixels)
    except (SourceError, MemoryError):  # the conversion rejects the file with its reason
        return None
    # Objects rarely touch most of a border, and the background nearly always does.
    border = np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])
    return float(np.mean(border == 0))


def gray_reading(
    files: SourceFiles,
    paths: Sequence[str],
    named: Iterable[int],
    choice: str,
    max_pixels: int,
    *,
    colors_are_classes: bool = False,
) -> tuple[int, tuple[str, ...]]:
    """Return how to read gray label images: `LabelMap.shown_bits` and `LabelMap.forms`, which `LabelMap` defines.

    Args:
        files: source files.
        paths: label images to look at.
        named: values that a table names; empty without one.
        choice: --label-values.
        max_pixels: see `read_label_image`.
        colors_are_classes: whether a table or the user names the colors, so that the order of palettes means nothing.

    Raises:
        AnnotationsError: the files have several forms, and nothing proves which values they mean; or palettes give one
            color different numbers.
    """
    forms, palettes = _forms(files, paths)
    if choice == "auto" and not colors_are_classes:
        _check_palettes(files, palettes, max_pixels)
    # The user's choice needs no evidence.
    if choice == "stored":
        return 0, ()
    if choice == "shown":
        return 16 if any(form.bits == 16 for form in forms.values()) else 8, ()
    names = tuple(sorted({form.name for form in forms.values()}))
    # In files of one full depth, the stored numbers are the gray values, so there is nothing to decide.
    if not {*names} - {"gray8"} or not {*names} - {"gray16"}:
        return 0, names
    bits = bits_to_show(_values_by_form(files, forms, max_pixels), {value for value in named if value})
    if bits is None:
        raise _unproven_error(forms, names)
    return bits, () if bits else names


def _unproven_error(forms: Mapping[str, GrayForm], names: Sequence[str]) -> AnnotationsError:
    """Return the error for label images of several forms, which names two that differ."""
    low = next(path for path, form in forms.items() if form.name not in ("gray8", "gray16"))
    other = next((path for path, form in forms.items() if form.name != forms[low].name), low)
    return AnnotationsError(
        f"{low} and {other}: label images are stored in several forms ({', '.join(names[:4])}), and nothing proves "
        f"which values they mean; {GRAY_FIX}"
    )


def _values_by_form(
    files: SourceFiles, forms: Mapping[str, GrayForm], max_pixels: int
) -> list[tuple[GrayForm, set[int]]]:
    """Return the form and the values of each readable label image."""
    found: list[tuple[GrayForm, set[int]]] = []
    for path, form in forms.items():
        try:
            values = read_label_image(files.read(path), max_pixels)
        except (SourceError, MemoryError):  # the conversion rejects the file with its reason
            continue
        found.append((form, set(np.unique(values).tolist())))
    return found


def _forms(
    files: SourceFiles, paths: Sequence[str]
) -> tuple[Mapping[str, GrayForm], Mapping[str, NDArray[np.uint8]]]:
    """Return the form of each gray label image, and the palette [index, band] of each PNG with one of colors."""
    forms: dict[str, GrayForm] = {}
    palettes: dict[str, NDArray[np.uint8]] = {}
    for path in paths:
        try:
            data = files.read(path)
            form = gray_form(data)
            colors = palette_colors(data) if form is None else None
        except (SourceError, MemoryError):  # the conversion rejects the file with its reason
            continue
        if form is not None:
            forms[path] = form
        elif colors is not None:
            palettes[path] = colors
    return forms, palettes


def _check_palettes(files: SourceFiles, palettes: Mapping[str, NDArray[np.uint8]], max_pixels: int) -> None:
    """Refuse label images in which one color has different numbers, as optimizers order palettes anew file by file.

    Args:
        files: source files.
        palettes: colors [index, band] of each label image.
        max_pixels: see `read_label_image`.
    """
    # Files of one tool have one palette, and nothing has to be decoded.
    if len({colors.tobytes() for colors in palettes.values()}) < 2:
        return
    seen: dict[int, tuple[str, set[int]]] = {}
    for path, colors in palettes.items():
        try:
            used = np.unique(read_label_image(files.read(path), max_pixels)).tolist()
        except (SourceError, MemoryError):  # the conversion rejects the file with its reason
            continue
        # Palettes are often filled up with black, so that only numbers of pixels count.
        numbers: dict[int, set[int]] = {}
        for index in used:
            if index < len(colors):
                red, green, blue = colors[index].tolist()
                numbers.setdefault(red << 16 | green << 8 | blue, set()).add(index)
        for color, own in numbers.items():
            other, known = seen.setdefault(color, (path, own))
            if not own & known:
                raise AnnotationsError(
                    f"{other} and {path}: color {color:06x} of the palette has number {min(known)} in the first label "
                    f"image and {min(own)} in the second, so that either the colors or the numbers are the classes; "
                    f"{_names_of_colors({*seen, *numbers})} takes the colors, --label-values stored takes the numbers"
                )


def _names_of_colors(colors: Iterable[int]) -> str:
    """Return the option that names colors; black is the background."""
    named = ",".join(f"{color:06x}=class{number}" for number, color in enumerate(sorted({*colors} - {0}), 1))
    return f"--label-colors {named}, with your names,"
