"""Descriptions of annotation files of no known format that name pictures of the source."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from posixpath import basename, splitext

from halofeed.prep.annotations.class_columns import REAL
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.layout_hints import (
    Hint,
    ListedFiles,
    json_keys,
    name_stem,
    read_heads,
    unpack_advice,
)
from halofeed.prep.sources.containers import UNPACK_COMMANDS
from halofeed.prep.sources.file_names import is_image_name

_OTHER_TABLE = (
    "write what it says into a table with the columns filename,class for classes of pictures, or filename,class,xmin,"
    "ymin,xmax,ymax for boxes in pixels, then name that table with --source and take --layout csv"
)
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
_DOCUMENTS = (".json", ".ndjson", ".jsonl", ".geojson")
_TABLE_EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".xml", ".yaml", ".parquet")
_MAX_ROWS = 20
"""Lines to look at: the form of a table shows in its first rows."""
_LEAST_NUMBERS = 4
"""Numbers of a box; lines with fewer may be lists of files with a count."""


def describe_annotations(files: ListedFiles, named: str | None = None) -> Hint | None:
    """Return the content of a file of no known format that names pictures of the source; None without such a file.

    Args:
        named: annotation file that the user named, if any; no other file is examined.
    """
    pictures = _names_of_pictures(files)
    paths = [named] if named is not None else [path for path in files.sizes() if not is_image_name(path)]
    # The only document, or the one that the user names, may name pictures by their numbers.
    is_certain = named is not None or sum(path.lower().endswith(_DOCUMENTS) for path in paths) == 1
    if found := _describe_documents(files, paths, None if is_certain else pictures):
        return found
    for extensions, describe in _DESCRIBERS:
        for path, text in read_heads(files, paths, *extensions):
            if found := describe(path, text, pictures):
                return found
    return _describe_packed_table(paths)


def _names_of_pictures(files: ListedFiles) -> set[str]:
    """Return the file names of all images, with and without their extensions."""
    images = filter(is_image_name, files.sizes())
    return {name for path in images for name in (basename(path), name_stem(path))}


def _describe_documents(
    files: ListedFiles, paths: Sequence[str], pictures: Collection[str] | None
) -> Hint | None:
    """Return the keys of the first JSON document, or of the first one that names any of some pictures."""
    for path, text in read_heads(files, paths, *_DOCUMENTS):
        is_of_source = pictures is None or _names_pictures(path, text, pictures)
        if is_of_source and (found := _describe_document(path, text)):
            return found
    return None


def _names_pictures(path: str, text: str, pictures: Collection[str]) -> bool:
    """Return whether a text of a document, or the document's own name, is that of a picture."""
    return name_stem(path) in pictures or any(basename(one) in pictures for one in _JSON_STRING.findall(text))


def _describe_document(path: str, text: str) -> Hint | None:
    """Return the keys of a JSON document; None if it has none at its top."""
    keys = json_keys(text)
    top = dict.fromkeys(key for key in _JSON_KEY.findall(text) if {key, f"[].{key}"} & keys)
    # A list of only numbers or texts is not evidence.
    if not top:
        return None
    return Hint(what=f"{path} is JSON with the keys {shorten_list(list(top)[:12])}", fix=_OTHER_TABLE)


def _describe_packed_table(paths: Sequence[str]) -> Hint | None:
    """Return that a table or document is compressed, and how to unpack it."""
    packed = (path for path in paths if splitext(path)[1].lower() in UNPACK_COMMANDS)
    path = next((path for path in packed if splitext(path)[0].lower().endswith(_TABLE_EXTENSIONS)), "")
    command = UNPACK_COMMANDS.get(splitext(path)[1].lower(), "")
    return Hint(what=f"{path} is a compressed file", fix=unpack_advice(command, path)) if path else None


def _describe_table(path: str, text: str, pictures: Collection[str]) -> Hint | None:
    """Return which column of a table names pictures, if its header does not say so."""
    lines = _first_lines(text)
    if not lines:
        return None
    mark = max("\t,;|", key=lines[0].count)
    header, *rows = [[cell.strip(" \"'") for cell in line.split(mark)] for line in lines]
    for number, column in enumerate(header):
        # Paths may be those of another machine.
        cells = [basename(row[number].replace("\\", "/")) for row in rows if len(row) > number]
        if cells and all(cell in pictures for cell in cells):
            image = shlex.quote(f"image={column}")
            fix = (
                f"take --layout csv --column {image}, with label=COLUMN for that of the classes; corners of boxes in "
                "pixels are xmin=COLUMN and so on"
            )
            what = f"{path} is a table whose column {column!r} names pictures"
            return Hint(what=what, layouts=("csv",), fix=fix)
    return None


def _first_lines(text: str) -> list[str]:
    return [line for line in text.splitlines()[:_MAX_ROWS] if line.strip()]


def _describe_text(path: str, text: str, pictures: Collection[str]) -> Hint | None:
    """Return what a text file has: rows of numbers, or XML if it has the name of a picture.

    XML files are in many folders for other reasons; text files of only numbers are labels more often than not.
    """
    if path.lower().endswith(".xml"):
        return _describe_xml(path, text) if name_stem(path) in pictures else None
    # Text files of numbers are labels even if their names differ from those of the pictures.
    if not path.endswith(".txt") and name_stem(path) not in pictures:
        return None
    rows = [re.split(r"[\s,;]+", line.strip(" ,;")) for line in _first_lines(text)]
    counts = {len(row) for row in rows}
    if len(counts) != 1 or not all(sum(map(_is_number, row)) >= _LEAST_NUMBERS for row in rows):
        return None
    return Hint(
        what=f"{path} has rows of {counts.pop()} values, such as {' '.join(rows[0][:12])}", fix=_OTHER_TABLE
    )


def _describe_xml(path: str, text: str) -> Hint | None:
    root = re.search(r"<([A-Za-z][\w:.-]*)[\s>]", text)
    return Hint(what=f"{path} is XML with the root {root[1]}", fix=_OTHER_TABLE) if root else None


def _is_number(text: str) -> bool:
    return REAL.fullmatch(text) is not None


def _describe_lines(path: str, text: str, pictures: Collection[str]) -> Hint | None:
    """Return that lines name pictures and say more of them; lists of names alone say nothing."""
    lines = [line.strip() for line in _first_lines(text)]
    telling = [line for line in lines if _says_more_of_a_picture(line, pictures)]
    # Half of the lines: lists may have comments and blocks of another form.
    if 2 * len(telling) < len(lines) or not telling:
        return None
    return Hint(what=f"{path} has lines that name pictures, such as {telling[0][:60]!r}", fix=_OTHER_TABLE)


def _says_more_of_a_picture(line: str, pictures: Collection[str]) -> bool:
    words = [basename(word) for word in re.split(r"[\s,;:\"'=]+", line) if word]
    return len(words) > 1 and any(is_image_name(word) and word in pictures for word in words)


_DESCRIBERS: tuple[tuple[tuple[str, ...], Callable[[str, str, Collection[str]], Hint | None]], ...] = (
    ((".csv", ".tsv"), _describe_table),
    ((".txt", ".xml"), _describe_text),
    ((".txt", ".lst", ".csv", ".tsv", ".yaml", ".yml"), _describe_lines),
)
"""Extensions, and what describes a file of these from its path, its beginning and the names of the pictures."""
