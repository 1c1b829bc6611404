"""Hints about the format of a file, and the beginnings of files that show it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from posixpath import basename, splitext
from typing import Protocol

from halofeed.system.errors import SourceError

HEAD_BYTES = 1 << 16
"""Bytes of a file to read. The keys of a document and the header of a table are in its first kilobytes."""
MAX_OPENED = 8
"""Most files of each kind to open (an estimate); reading all files would take as long as the conversion."""
_JSON_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\],]')
_JSON_LEVELS = 3
"""COCO's and Label Studio's marks are at most three levels deep; below are coordinates."""
_BOX_TABLE = (
    "write its boxes into a table with the columns filename,class,xmin,ymin,xmax,ymax, in pixels, then name that table "
    "with --source and take --layout csv"
)


class ListedFiles(Protocol):
    """Files whose names and beginnings can be read, as `SourceFiles` has them."""

    def sizes(self) -> Mapping[str, int]: ...
    def head(self, path: str, size: int) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Format of a file, and the way to convert it.

    Args:
        what: the file and its format.
        layouts: layouts that read it and do not need the hint; () if no layout reads it.
        fix: advice as one clause. The default suits formats of boxes, since a table can hold the same content.
        is_certain: whether the fix is needed whatever the layout is, so that it holds after layouts were tried.
    """

    what: str
    layouts: tuple[str, ...] = ()
    fix: str = _BOX_TABLE
    is_certain: bool = False

    def __str__(self) -> str:
        unread = "" if self.layouts else ", which halofeed does not read"
        return f"{self.what}{unread}: {self.fix}"


def hint_of_layout(what: str, layout: str | None, more: str = "") -> Hint:
    """Return the hint to take a layout; with None, that no layout reads the file."""
    if layout is None:
        return Hint(what=what)
    return Hint(what=what, layouts=(layout,), fix=f"take --layout {layout}{more}")


def unpack_advice(command: str, path: str) -> str:
    """Return what to do about a compressed file."""
    return f"unpack it, and others like it, with {command} {shlex.quote(path)}"


def name_stem(path: str) -> str:
    """Return the file name without its last extension, which annotations share with their image."""
    return splitext(basename(path))[0]


def read_heads(files: ListedFiles, paths: Iterable[str], *extensions: str) -> Iterator[tuple[str, str]]:
    """Yield (path, first bytes as text) of a few files with one of these extensions, the topmost first."""
    chosen = sorted((path for path in paths if path.lower().endswith(extensions)), key=lambda p: p.count("/"))
    for path in islice(chosen, MAX_OPENED):
        try:
            yield path, files.head(path, HEAD_BYTES).decode("utf-8", "replace")
        except SourceError:
            continue


def is_datalist(text: str) -> bool:
    """Return whether the beginning of a JSON document is that of a datalist, which MONAI and the Decathlon have.

    >>> is_datalist('{"training": [{"image": "a.nii.gz", "label": "b.nii.gz", "fold": 0}, {"ima')
    True
    """
    return "training[].image" in json_keys(text)


def json_keys(text: str) -> set[str]:
    """Return the paths of the keys in the beginning of a JSON document, such as "images[].id", three levels deep.

    >>> sorted(json_keys('{"images": [{"id": 1}, {"id": 2}], "a": {"b": {"c": {"d'))
    ['a', 'a.b', 'a.b.c', 'images', 'images[].id']
    """
    found: set[str] = set()
    frames: list[tuple[str, str]] = []  # the kind of each open list or object, and the path of what it holds
    path = ""
    for token in _JSON_TOKEN.finditer(text):
        mark, name, colon = token[0], token[1], token[2]
        kind, above = frames[-1] if frames else ("", "")
        if mark == "{":
            frames.append(("{", path))
        elif mark == "[":
            path = f"{path}[]"
            frames.append(("[", path))
        elif mark in ("}", "]"):
            frames = frames[:-1]
        elif mark == ",":
            path = above if kind == "[" else ""
        elif colon and kind == "{":
            path = f"{above}.{name}".removeprefix(".")
            # Coordinates and texts at deeper levels would only fill the set.
            if len(frames) <= _JSON_LEVELS:
                found.add(path)
    return found
