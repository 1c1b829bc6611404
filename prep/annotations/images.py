"""Which of the source files an annotation means, and which files are images at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from posixpath import splitext

from halofeed.prep.annotations.reference import Reference
from halofeed.prep.sources import SourceFiles
from halofeed.schemas.errors import AnnotationsError, SourceError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")
UNREAD_EXTENSIONS = (".avif", ".heic", ".heif", ".jp2", ".j2k", ".jxl")
"""Of pictures in formats that are not read: leaving one out is a failure, not a choice."""
_TEXT_EXTENSIONS = (
    *(".txt", ".md", ".rst", ".html", ".htm", ".pdf", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".xml"),
    *(".yaml", ".yml", ".toml", ".pbtxt", ".log", ".py", ".sh", ".ipynb"),
)
_DOCUMENT_NAME = re.compile(
    r"(.*[-_.])?(licen[sc]es?|readme|copying|notice|authors|changelog|_?source|citation)([-_.].*)?|thumbs\.db|desktop\.ini",
    re.IGNORECASE,
)


def is_image_name(path: str) -> bool:
    """Whether a file's extension is one of an image, in upper or lower case.

    >>> is_image_name("a/b.JPG"), is_image_name("a/b.dcm"), is_image_name("a/b")
    (True, False, False)
    """
    return splitext(path)[1].lower() in IMAGE_EXTENSIONS


def is_document_name(path: str) -> bool:
    """Whether a file's name says that it cannot be an image: a licence, a read-me, text or a table.

    >>> [is_document_name(path) for path in ("LICENSE", "x__LICENSE-MIT", "labels.csv", "0001", "a.heic")]
    [True, True, True, False, False]
    """
    name = path.rpartition("/")[2]
    return splitext(name)[1].lower() in _TEXT_EXTENSIONS or _DOCUMENT_NAME.fullmatch(name) is not None


def _fold_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return f"{stem}{dot}{extension.lower()}" if dot else name


def _parts(name: str) -> list[str]:
    return [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]


class ImageIndex:
    """The files below the images' folder, found by the names that annotations give them.

    A name is looked up as a path below the folder first, then by its last component anywhere below: the file
    that shares the most trailing folders with it wins, and `a.jpg` may be `a.JPG`. Folders that a name gives
    are believed where they exist: `test/a.jpg` is never `train/a.jpg` if there is a folder `test`.
    """

    def __init__(self, images: SourceFiles) -> None:
        self.root = images.root
        self.paths = images.sizes()
        self._by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._folders: set[str] = set()
        for path in self.paths:
            *folders, name = path.split("/")
            self._by_name.setdefault(_fold_extension(name), []).append(path)
            if is_image_name(name):
                self._by_stem.setdefault(splitext(name)[0], []).append(path)
            self._folders.update(folders)

    def at(self, folder: str, name: str) -> str | None:
        """The file `name` in exactly this folder ("" is the root), or None."""
        path = f"{folder}/{name}" if folder else name
        if path in self.paths:
            return path
        folded = [
            found
            for found in self._by_name.get(_fold_extension(path.rsplit("/", 1)[-1]), ())
            if _fold_extension(found) == _fold_extension(path)
        ]
        return folded[0] if len(folded) == 1 else None

    def find(self, name: str) -> str:
        """The file that an annotation calls `name`; SourceError where none or several can be meant."""
        if name in self.paths:
            return name
        parts = _parts(name)
        if not parts:
            raise SourceError("annotation", "image file not found", f"no file is named {name!r}")
        return self._choose(name, parts, self._by_name.get(_fold_extension(parts[-1]), []))

    def find_stem(self, stem: str) -> str:
        """The image file, of any image extension, that is called `stem`; SourceError as `find`."""
        parts = _parts(stem)
        return self._choose(stem, parts, self._by_stem.get(parts[-1], []) if parts else [])

    def _choose(self, name: str, parts: list[str], candidates: list[str]) -> str:
        ranked = {path: self._rank(parts, path.split("/")) for path in candidates}
        best = max(ranked.values(), default=(0, False))
        if best[0] == 0:
            other = f"; {candidates[0]} lies in another folder" if candidates else ""
            raise SourceError("annotation", "image file not found", f"{name!r} below {self.root}{other}")
        chosen = [path for path in candidates if ranked[path] == best]
        if len(chosen) > 1:
            raise SourceError("annotation", "file name is ambiguous", f"{name!r}: {', '.join(chosen[:3])}")
        return chosen[0]

    def _rank(self, parts: list[str], path: list[str]) -> tuple[int, bool]:
        shared = 1
        while shared < min(len(parts), len(path)) and parts[-1 - shared] == path[-1 - shared]:
            shared += 1
        if shared < len(parts) and parts[-1 - shared] in self._folders:
            return (0, False)
        return (shared, parts[-1] == path[-1])

    def check_any_image(self, what: str) -> None:
        """Refuse a folder without any image file: the annotations' images must lie elsewhere."""
        if not any(is_image_name(path) for path in self.paths):
            raise AnnotationsError(
                f"{what}: no image file lies below {self.root} "
                f"(known extensions: {' '.join(IMAGE_EXTENSIONS)}); name the folder that holds the images"
            )

    def without_annotation(self, used: AbstractSet[str], *, beside_used: bool) -> Iterator[Reference]:
        """A problem for each image file that no annotation names.

        Args:
            used: the files that annotations name.
            beside_used: only those in folders that hold a used file, for when one of several annotation files
                was read.
        """
        folders = {path.rpartition("/")[0] for path in used}
        for path in self.paths:
            if path in used or not is_image_name(path):
                continue
            if not beside_used or path.rpartition("/")[0] in folders:
                yield Reference(source=path, key=path, problem=("selection", "image has no annotation", ""))
