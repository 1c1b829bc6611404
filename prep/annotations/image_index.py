"""Index of the images of a source, in which the image file that an annotation names is found."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from posixpath import splitext
from typing import Generic, TypeVar

from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.file_names import IMAGE_EXTENSIONS, is_image_name
from halofeed.prep.sources.files import (
    BELOW_IMAGES_FOLDER,
    UNREADABLE_FILE,
    SourceFiles,
    outside_message,
    path_below,
    path_exists,
    path_from,
)
from halofeed.storage.atomic_files import decode_name
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, SourceError, UsageError

ImageKey = TypeVar("ImageKey", bound=Hashable)
_ROOT_ONLY = (("",),)
"""Places of a query that names paths from the root."""
_PLAIN_PATH = re.compile(r"(?:[^/\\.:][^/\\:]*/)*[^/\\.:][^/\\:]*")
"""Relative paths that need no normalization, as most names are."""
_AMBIGUOUS = "file name is ambiguous"
_ELSEWHERE = "found by the end of its path, in another folder than the annotations write"


@dataclass(kw_only=True, slots=True)  # not frozen: creation takes a third of the time
class ImageQuery:
    """Location of an image according to one annotation.

    Args:
        name: path or file name from the annotation; "" if it has none.
        places: folders below the root ("" is the root) that `name` may be relative to, grouped by rank. Only one
            folder of a rank may contain the file.
        beside: folders in which the file name alone is sufficient, such as the folder of the annotation.
        stem: path without extension of an image to use if `name` is not found, with any image extension.
    """

    name: str
    places: tuple[tuple[str, ...], ...] = _ROOT_ONLY
    beside: tuple[str, ...] = ()
    stem: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageMatch:
    """File that an annotation names; `note` tells the user about an unusual match."""

    path: str
    note: str = ""


@dataclass(kw_only=True, slots=True)
class _Candidate:
    """File that an annotation may name.

    `shared` is the number of trailing path components that it shares with the name. `is_complete` tells whether the
    complete name matches.
    """

    path: str
    name: str
    shared: int
    is_complete: bool

    @property
    def has_folders(self) -> bool:
        return len(_split_path(self.name)) > 1


@dataclass(frozen=True, kw_only=True)
class _FileIndex:
    """Files below the root by name and by stem, and the folders that contain images."""

    by_name: Mapping[str, list[str]]
    by_stem: Mapping[str, list[str]]
    folders: AbstractSet[str]

    def named(self, name: str) -> list[str]:
        return self.by_name.get(_fold_extension(name), [])

    def with_stem(self, stem: str) -> list[str]:
        return self.by_stem.get(_normalize_unicode(stem), [])


class ImageIndex:
    """Index of the files below the images' folder, searched by the names in annotations.

    A name that is a path from the root, or from a folder of the layout, is that file; this needs no listing. Other
    names are matched from their end. A file whose full path ends with the full name comes first (`a.jpg` may be
    `a.JPG`). The next choice is the one file that shares the most trailing folders.

    The latter is a guess. It is rejected if another annotation names that file, if another annotation names its
    folder, or if the folder in the name exists. `ImageMatch.note` reports accepted guesses.

    Args:
        images: files to search.
        annotations_root: folder of the annotations, which paths in them may be relative to.
        takes: returns whether a path is an image.
    """

    def __init__(
        self,
        images: SourceFiles,
        annotations_root: str = "",
        takes: Callable[[str], bool] = is_image_name,
    ) -> None:
        self.takes = takes
        self.root = images.root
        self._files = images
        self._annotations_root = annotations_root
        self._folded: dict[str, dict[str, list[str]]] = {}
        # The real path, so that a symbolic link to the folder has no effect.
        is_url = is_remote(images.root)
        self._root_parts = _split_path(images.root if is_url else decode_name(os.path.realpath(images.root)))

    @property
    def paths(self) -> AbstractSet[str]:
        """Return the paths of all files below the root."""
        return self._files.sizes().keys()

    @property
    def _file_index(self) -> _FileIndex:
        """Return the index of all folders; raise SourceError if the source does not allow listing."""
        try:
            return self._built_file_index
        except UsageError as error:
            raise SourceError("annotation", "image file not found", str(error)) from error

    @cached_property
    def _built_file_index(self) -> _FileIndex:
        by_name: dict[str, list[str]] = {}
        by_stem: dict[str, list[str]] = {}
        folders: set[str] = set()
        for path in self.paths:
            *above, name = path.split("/")
            by_name.setdefault(_fold_extension(name), []).append(path)
            # Only images can be meant by a stem; a full name may mean any file.
            if self.takes(path):
                by_stem.setdefault(_normalize_unicode(splitext(name)[0]), []).append(path)
                folders.update(above)
        return _FileIndex(by_name=by_name, by_stem=by_stem, folders=folders)

    def relative(self, name: str) -> str:
        """Return a name from an annotation without the images' folder, if it begins with that."""
        return path_below(self.root, name) or name

    def match(self, queries: Mapping[ImageKey, ImageQuery]) -> dict[ImageKey, ImageMatch | SourceError]:
        """Return the file for each query, or the error; together, since one query can contradict another."""
        matcher: ImageMatcher[ImageKey] = ImageMatcher(self)
        paths = {key: ImageMatch(path=one.name) for key, one in queries.items() if matcher.is_path(key, one)}
        return {**paths, **matcher.match_remaining(lambda: (found.path for found in paths.values()))}

    def candidate(self, query: ImageQuery) -> _Candidate:
        """Return the file that may match one query; raise SourceError if there is none."""
        name = query.name
        # Most names are paths from the root: this test is all that they cost.
        if query.places == _ROOT_ONLY and _PLAIN_PATH.fullmatch(name) and self._is_file(name):
            return _Candidate(path=name, name=name, shared=name.count("/") + 1, is_complete=True)
        parts = _split_path(name)
        if not parts:
            if not query.stem:
                raise SourceError("annotation", "image file not found", f"no file is named {name!r}")
            return self._find_by_stem(query, None)
        path = self._find_by_path(query, parts)
        if path is not None:
            shared = self._shared(parts, path.split("/"))
            return _Candidate(path=path, name=name, shared=shared, is_complete=True)
        try:
            return self._find_by_suffix(name, parts, self._file_index.named(parts[-1]))
        except SourceError as error:
            # Of several files with the name none may be taken; the stem would be a worse guess.
            if not query.stem or error.reason == _AMBIGUOUS:
                raise self._with_namesake(error, parts) from None
            caught = error
        return self._find_by_stem(query, caught)

    def _with_namesake(self, error: SourceError, parts: list[str]) -> SourceError:
        """Return the error, extended by an image with the same name and another extension."""
        others = self._file_index.with_stem(splitext(parts[-1])[0])
        # The detail names another file already.
        if not others or "; " in error.detail or error.reason == _AMBIGUOUS:
            return error
        detail = f"{error.detail}; {others[0]} has that name and another extension: correct the names"
        return SourceError(error.stage, error.reason, detail)

    def _find_by_path(self, query: ImageQuery, parts: list[str]) -> str | None:
        """Return the file at the path `name`, from the root or a layout folder, or the file in a `beside` folder."""
        name = query.name
        if (below := path_below(self.root, name)) is not None:
            return self._find_below_root(below)
        is_absolute = name.startswith(("/", "\\")) or is_remote(name)
        path = posixpath.normpath("/".join(_split_path(name, keep_up=True)))
        # An absolute path of another machine, and one out of the root, are below no folder of the layout.
        ranks = () if is_absolute or path.split("/")[0] == ".." else query.places
        found = self._find_in_places(name, path, ranks) or self._find_absolute(name)
        found = found or self._find_near_annotations(query, "" if is_absolute else path, parts)
        # A file in a folder that cannot be listed may exist, so that it is not called missing.
        if found is None:
            self._check_listable(posixpath.join(place, path) for rank in ranks for place in rank)
            self._check_listable(posixpath.join(folder, parts[-1]) for folder in query.beside)
        return found

    def _find_near_annotations(self, query: ImageQuery, path: str, parts: list[str]) -> str | None:
        """Return the file at a path from the annotations' folder, or the file of that name in a `beside` folder.

        Raises:
            SourceError: the only such file is outside of the root.
        """
        # A file name alone is looked for in the folders of the layout.
        found = self._find_from_annotations(path) if path and len(parts) > 1 else None
        if found is not None and not found.startswith("../"):
            return found
        in_folders = (self.at(folder, parts[-1]) for folder in query.beside)
        near = next(filter(None, in_folders), None)
        # Reading files beside --images would take pictures that the user did not name.
        if near is None and found is not None:
            raise SourceError("annotation", "image file lies outside --images", outside_message(query.name))
        return near

    def _find_below_root(self, below: str) -> str:
        """Return the file that a name beginning with the images' folder is; raise SourceError if there is none."""
        if (found := self.at("", below)) is None:
            self._check_listable([below])
            raise SourceError("annotation", "image file not found", f"{below!r} {BELOW_IMAGES_FOLDER}")
        return found

    def _find_in_places(self, name: str, path: str, ranks: Sequence[Sequence[str]]) -> str | None:
        """Return the one file at a path in the folders of the first rank that has it."""
        # A file name may contain a backslash on Linux.
        if ranks and "\\" in name and ".." not in name and self._is_file(name):
            return name
        for rank in ranks:
            hits = self._files_at(rank, path)
            # Equal names in train/ and val/ are different pictures.
            if len(hits) > 1:
                raise SourceError("annotation", _AMBIGUOUS, f"{name!r}: {', '.join(hits)}")
            if hits:
                return hits[0]
        return None

    def _files_at(self, folders: Sequence[str], path: str) -> list[str]:
        """Return the files at a path in some folders, or else those whose extension differs in case."""
        # A layout may name one folder in two ways.
        folders = list(dict.fromkeys(folders))
        exact = [found for folder in folders if self._is_file(found := posixpath.join(folder, path))]
        return exact or [alike for folder in folders if (alike := self.at(folder, path)) is not None]

    def _find_absolute(self, name: str) -> str | None:
        """Return a file of this machine that the annotations name by its absolute path, which may be anywhere."""
        is_file = not is_remote(self.root) and os.path.isabs(name) and path_exists(name, regular=True)
        return os.path.normpath(name) if is_file else None

    def _find_from_annotations(self, path: str) -> str | None:
        """Return the file at a path from the annotations' folder, relative to the root, or None."""
        # `path_from` compares folders of this machine.
        if not self._annotations_root or is_remote(self._annotations_root):
            return None
        found = path_from(self._annotations_root, path, self.root)
        return found if self._is_file(found) else None

    def _check_listable(self, paths: Iterable[str]) -> None:
        """Raise SourceError for the first path whose existence is unknown because of a read error."""
        for path in paths:
            if refusal := self._files.refusal(path):
                raise SourceError("read", UNREADABLE_FILE, f"{path}: {refusal}")

    def _is_file(self, path: str) -> bool:
        return self._files.size(path) is not None

    def at(self, folder: str, name: str) -> str | None:
        """Return the file `name` in exactly this folder ("" is the root), or None; `a.jpg` may be `a.JPG`."""
        path = f"{folder}/{name}" if folder else name
        if self._is_file(path):
            return path
        above = path.rpartition("/")[0]
        # A folder is listed once, however many names are looked for in it.
        if above not in self._folded:
            folded = self._folded.setdefault(above, {})
            for found in self._files.files_in(above):
                folded.setdefault(_fold_extension(found), []).append(found)
        spelled = self._folded[above].get(_fold_extension(path), [])
        return spelled[0] if len(spelled) == 1 else None

    def _find_by_stem(self, query: ImageQuery, error: SourceError | None) -> _Candidate:
        parts = _split_path(query.stem)
        try:
            return self._find_by_suffix(query.stem, parts, self._file_index.with_stem(parts[-1]))
        except SourceError as caught:
            if caught.reason == _AMBIGUOUS:
                raise
            other = f"; {error.detail.partition('; ')[2]}" if error and "; " in error.detail else ""
            detail = f"neither {query.name!r} nor an image called {parts[-1]!r} {BELOW_IMAGES_FOLDER}{other}"
            raise SourceError("annotation", "image file not found", detail) from None

    def _find_by_suffix(self, name: str, parts: list[str], paths: list[str]) -> _Candidate:
        """Return the file that shares most of the end of a name; raise SourceError if there is none or several."""
        ranked = {path: self._rank(parts, path.split("/")) for path in paths}
        best = max(ranked.values(), default=(0, False))
        # Every file of that name is in a folder that the name contradicts, see `_rank`.
        if best[0] == 0:
            other = f"; {paths[0]} lies in another folder" if paths else ""
            raise SourceError("annotation", "image file not found", f"{name!r} {BELOW_IMAGES_FOLDER}{other}")
        chosen = [path for path in paths if ranked[path] == best]
        # A guess between equal files would put boxes on the wrong picture.
        if len(chosen) > 1:
            raise SourceError("annotation", _AMBIGUOUS, f"{name!r}: {', '.join(chosen[:3])}")
        is_complete = 1 < len(parts) == best[0]
        return _Candidate(path=chosen[0], name=name, shared=best[0], is_complete=is_complete)

    def _rank(self, parts: list[str], path: list[str]) -> tuple[int, bool]:
        shared = self._shared(parts, path)
        # The next folder of the name exists elsewhere: b/1.jpg is not a/1.jpg if there is a folder b.
        if shared < len(parts) and parts[-1 - shared] in self._file_index.folders:
            return (0, False)
        return (shared, parts[-1] == path[-1])

    def _shared(self, parts: list[str], path: list[str]) -> int:
        """Return the number of trailing components (at least 1) that a name and a file's full path share."""
        whole = [*self._root_parts, *path]
        shared = 1
        while shared < min(len(parts), len(whole)) and parts[-1 - shared] == whole[-1 - shared]:
            shared += 1
        return shared

    def neighbors(self, query: ImageQuery) -> list[str]:
        """Return the images with the name of the annotation, from the first `beside` folder that contains any."""
        name = _split_path(query.stem)[-1]
        paths = self._file_index.with_stem(name) or self._file_index.named(name)
        found = ([path for path in paths if path.rpartition("/")[0] == folder] for folder in query.beside)
        return next(filter(None, found), [])

    def check_any_image(self, what: str) -> None:
        """Raise AnnotationsError if the folder contains no image file, so the images must be elsewhere."""
        if not any(self.takes(path) for path in self.paths):
            raise AnnotationsError(
                f"{what}: no image file lies below {self.root} "
                f"(known extensions: {' '.join(IMAGE_EXTENSIONS)}); name the folder that holds the images with --images"
            )

    def _images_in(self, folders: Iterable[str] | None) -> Iterator[str]:
        """Yield the image files directly in these folders, or all below the root if `folders` is None."""
        inside = (path for folder in sorted(folders or ()) for path in self._files.files_in(folder))
        return filter(self.takes, self.paths if folders is None else inside)

    def all_images_are_named(self, comparison: PathComparison, *, only_used_folders: bool) -> bool:
        """Return whether annotations name each image file exactly once; else `without_annotation` finds the rest.

        Args:
            comparison: comparison that contains each named file with sign -1; this call modifies it.
            only_used_folders: compare only the folders of named files.
        """
        for path in self._images_in(list(comparison.folders) if only_used_folders else None):
            comparison.add(path, 1)
        return not comparison.different_folders()

    def without_annotation(
        self, used_files: Callable[[], Iterable[tuple[str, str]]], *, only_used_folders: bool
    ) -> Iterator[SourceExample]:
        """Yield an example with a problem for each image file that no annotation names.

        Its split is that of the other images in its folder, or of all images; "train" if these have several splits.

        Args:
            used_files: returns (path, split) of each file that annotations name, once each; repeatable.
            only_used_folders: use only folders that contain a named file and list no others. This applies if the
                user named one of several annotation files.
        """
        by_folder: dict[str, set[str]] = {}
        comparison = PathComparison()
        for path, split in used_files():
            by_folder.setdefault(path.rpartition("/")[0], set()).add(split)
            comparison.add(path, -1)
        everywhere = set().union(*by_folder.values())
        if self.all_images_are_named(comparison, only_used_folders=only_used_folders):
            return
        different_folders = comparison.different_folders()
        used = {path for path, _ in used_files() if path.rpartition("/")[0] in different_folders}
        for path in self._images_in(by_folder if only_used_folders else None):
            folder = path.rpartition("/")[0]
            if folder in different_folders and path not in used:
                beside = by_folder.get(folder, everywhere)
                split = next(iter(beside)) if len(beside) == 1 else "train"
                fault = ("selection", "image has no annotation", "")
                yield SourceExample(source=path, key=path, split=split, problem=fault)


class ImageMatcher(Generic[ImageKey]):
    """Matcher for a stream of names: it confirms full paths at once and resolves all other names at the end."""

    def __init__(self, index: ImageIndex) -> None:
        self._index = index
        self._other_files: dict[ImageKey, _Candidate | SourceError] = {}
        self._depths: dict[str, int] = {}  # the most components that an annotation shares with each folder
        self._last: ImageKey | None = None

    def is_path(self, key: ImageKey, query: ImageQuery) -> bool:
        """Return whether the query's name is the path of its file. Repeated queries must use the same key."""
        # Rows of one image mostly follow each other, so of the keys with full paths only the last one is kept.
        if key == self._last or key in self._other_files:
            return key == self._last
        try:
            candidate = self._index.candidate(query)
        except SourceError as error:
            # A traceback would keep the frames of each error in memory.
            self._other_files[key] = error.with_traceback(None)
            return False
        folder = candidate.path.rpartition("/")[0]
        self._depths[folder] = max(self._depths.get(folder, 0), candidate.shared)
        # Most names of a large set are full paths, which are confirmed here and not stored.
        if candidate.is_complete and candidate.path == query.name:
            self._last = key
            return True
        self._other_files[key] = candidate
        return False

    def match_remaining(
        self, list_paths: Callable[[], Iterable[str]]
    ) -> dict[ImageKey, ImageMatch | SourceError]:
        """Return the file of each remaining query, or the error.

        Args:
            list_paths: returns the names that are paths of their files; repeatable.
        """
        # Names that annotations use for each file, and whether the complete name matches.
        claims: dict[str, dict[str, bool]] = {}
        for other in self._other_files.values():
            if isinstance(other, _Candidate):
                names = claims.setdefault(other.path, {})
                names[other.name] = names.get(other.name, False) or other.is_complete
        for path in list_paths() if claims else ():
            if path in claims:
                claims[path][path] = True
        return {
            key: other if isinstance(other, SourceError) else self._judge(other, claims[other.path])
            for key, other in self._other_files.items()
        }

    def _judge(self, candidate: _Candidate, names: Mapping[str, bool]) -> ImageMatch | SourceError:
        """Return the file of a candidate unless another annotation contradicts it."""
        if candidate.is_complete:
            return ImageMatch(path=candidate.path)
        # A guess by the end of a path: two names for one file mean two images, one of which is missing.
        others = sorted(name for name, is_complete in names.items() if is_complete or name != candidate.name)
        if others:
            against = f"{candidate.path} is the image of {others[0]!r}"
        elif candidate.has_folders and self._depths[candidate.path.rpartition("/")[0]] > candidate.shared:
            # Annotations that name the folder itself mean its files; this one names another folder.
            against = f"{candidate.path} lies in a folder that other annotations name"
        else:
            return ImageMatch(path=candidate.path, note=_ELSEWHERE if candidate.has_folders else "")
        return SourceError(
            "annotation", "image file not found", f"{candidate.name!r} {BELOW_IMAGES_FOLDER}; {against}"
        )


class PathComparison:
    """Comparison of two lists of paths per folder, by the count and the sum of hashes.

    It takes no memory per path, so that a source whose images are all annotated needs no set of their paths.
    """

    def __init__(self) -> None:
        self._balances: dict[str, list[int]] = {}

    def add(self, path: str, sign: int) -> None:
        """Add a path of the first list (sign 1) or of the second list (sign -1)."""
        balance = self._balances.setdefault(path.rpartition("/")[0], [0, 0])
        balance[0] += sign
        balance[1] += sign * hash(path)

    @property
    def folders(self) -> AbstractSet[str]:
        """Return the folders of all paths so far."""
        return self._balances.keys()

    def different_folders(self) -> set[str]:
        """Return the folders whose paths differ between the two lists."""
        return {folder for folder, balance in self._balances.items() if balance != [0, 0]}


def _fold_extension(name: str) -> str:
    """Return a name for comparisons: with a lowercase extension and composed accents (macOS decomposes them)."""
    stem, dot, extension = _normalize_unicode(name).rpartition(".")
    return f"{stem}{dot}{extension.lower()}" if dot else extension


def _normalize_unicode(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _split_path(name: str, *, keep_up: bool = False) -> list[str]:
    """Return the components of a path in any notation.

    >>> _split_path(r"C:\\data\\.\\a.jpg"), _split_path("../images/a.jpg"), _split_path("x/../images/a.jpg")
    (['C:', 'data', 'a.jpg'], ['images', 'a.jpg'], ['images', 'a.jpg'])
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if keep_up:
        return parts
    inside: list[str] = []
    for part in parts:
        if part != "..":
            inside.append(part)
        elif inside:
            # Above the first folder there is nothing to match.
            inside.pop()
    return inside
