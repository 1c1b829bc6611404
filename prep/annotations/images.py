"""Which of the source files an annotation means."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from posixpath import splitext
from typing import Generic, TypeVar

from halofeed.errors import AnnotationsError, SourceError, UsageError
from halofeed.prep.sources.file_names import IMAGE_EXTENSIONS, is_image_name
from halofeed.prep.sources.files import (
    BELOW,
    UNREAD,
    SourceFiles,
    is_there,
    lies_outside,
    path_below,
    path_from,
)
from halofeed.prep.sources.reference import SourceExample
from halofeed.system.atomic_files import text_of_name

Key = TypeVar("Key", bound=Hashable)
_ROOT_ONLY = (("",),)
_PLAIN_PATH = re.compile(r"(?:[^/\\.:][^/\\:]*/)*[^/\\.:][^/\\:]*")
"""What is a path from the root without more ado, as most names are."""
ELSEWHERE = "found by the end of its path, in another folder than the annotations write"


@dataclass(kw_only=True, slots=True)  # to be made in a third of the time that a frozen one takes
class ImageQuery:
    """What one annotation says of its image's place.

    Args:
        name: the path or file name as it is written; "" where none is.
        places: folders below the root ("" is the root) from which `name` is a path, in the order of their rank;
            in folders of one rank it may be only once.
        beside: folders in which the last component alone is enough, such as that of the annotation itself.
        stem: the path without extension of an image that is meant where `name` is none; of any image extension.
    """

    name: str
    places: tuple[tuple[str, ...], ...] = _ROOT_ONLY
    beside: tuple[str, ...] = ()
    stem: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageMatch:
    """The file that an annotation means; `note` is what a person should know of how it was found."""

    path: str
    note: str = ""


@dataclass(kw_only=True, slots=True)
class _Candidate:
    """A file that may be meant: how much of the name's end its path shares, and whether that is the whole name."""

    path: str
    name: str
    shared: int
    is_whole: bool
    has_folders: bool


@dataclass(frozen=True, kw_only=True)
class _FileIndex:
    """The files below the root by their names, and the folders that hold images."""

    by_name: Mapping[str, list[str]]
    by_stem: Mapping[str, list[str]]
    folders: AbstractSet[str]


class ImageIndex:
    """The files below the images' folder, found by the names that annotations give them.

    A name that is a path from the root, or from a folder where the layout puts images, is that file, and nothing
    is listed for it. Any other is looked up by its end: first a file whose whole path ends in the whole name
    (`a.jpg` may be `a.JPG`), then the one file that shares the most trailing folders. The latter is a guess, and
    holds only where nothing speaks against it: no other annotation names that file, none names its folder, and
    the folder that the name gives does not exist. It is counted by `Found.note`.
    """

    def __init__(
        self,
        images: SourceFiles,
        annotations_root: str = "",
        takes: Callable[[str], bool] = is_image_name,
    ) -> None:
        """Args:
        images: the files.
        annotations_root: the folder of the annotations, from which their paths may start as well.
        takes: whether a path is that of an image.
        """
        self._takes = takes
        self.root = images.root
        self._files = images
        self._annotations_root = annotations_root
        local = "://" not in images.root
        self._folded: dict[str, dict[str, list[str]]] = {}
        # The folder's own names, so that a link to it changes nothing.
        self._above = _split_path(text_of_name(os.path.realpath(images.root)) if local else images.root)

    @property
    def paths(self) -> AbstractSet[str]:
        """Every file below the root."""
        return self._files.sizes().keys()

    @property
    def _file_index(self) -> _FileIndex:
        """The files of all folders, for a name that is no path; SourceError where they are never listed."""
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
            if self._takes(path):
                by_stem.setdefault(_normalize_unicode(splitext(name)[0]), []).append(path)
                folders.update(above)
        return _FileIndex(by_name=by_name, by_stem=by_stem, folders=folders)

    def relative(self, name: str) -> str:
        """A name as annotations write it, without the images' folder where it begins with that."""
        return path_below(self.root, name) or name

    def match(self, queries: Mapping[Key, ImageQuery]) -> dict[Key, ImageMatch | SourceError]:
        """The file that each annotation means, or why there is none; all at once, as one can speak against another."""
        matching: ImageMatcher[Key] = ImageMatcher(self)
        paths = {key: ImageMatch(path=one.name) for key, one in queries.items() if matching.is_path(key, one)}
        return {**paths, **matching.others(lambda: (found.path for found in paths.values()))}

    def candidate(self, query: ImageQuery) -> _Candidate:
        """The file that may be meant by one annotation; SourceError where there is none."""
        name = query.name
        if query.places == _ROOT_ONLY and _PLAIN_PATH.fullmatch(name) and self._is_file(name):
            above = name.count("/")
            return _Candidate(path=name, name=name, shared=above + 1, is_whole=True, has_folders=above > 0)
        parts = _split_path(name)
        if not parts and not query.stem:
            raise SourceError("annotation", "image file not found", f"no file is named {name!r}")
        path = self._find_by_path(query, parts) if parts else None
        if path is not None:
            return _Candidate(
                path=path,
                name=name,
                shared=self._shared(parts, path.split("/")),
                is_whole=True,
                has_folders=len(parts) > 1,
            )
        error: SourceError | None = None
        if parts:
            try:
                return self._find_by_suffix(
                    name, parts, self._file_index.by_name.get(_fold_extension(parts[-1]), [])
                )
            except SourceError as caught:
                if not query.stem or caught.reason == "file name is ambiguous":
                    raise self._with_namesake(caught, parts) from None
                error = caught
        return self._find_by_stem(query, error)

    def _with_namesake(self, error: SourceError, parts: list[str]) -> SourceError:
        """The error, and the image of that name but another extension, if there is one: what was converted since."""
        others = self._file_index.by_stem.get(_normalize_unicode(splitext(parts[-1])[0]), [])
        if not others or "; " in error.detail or error.reason == "file name is ambiguous":
            return error
        return SourceError(
            error.stage,
            error.reason,
            f"{error.detail}; {others[0]} has that name and another extension: correct the names",
        )

    def _find_by_path(self, query: ImageQuery, parts: list[str]) -> str | None:
        """The file of which the name is a path, from the root or a place of the layout, or that lies beside."""
        name = query.name
        below = path_below(self.root, name)
        if below is not None:
            if (found := self.at("", below)) is None:
                self._check_listable([below])
                raise SourceError("annotation", "image file not found", f"{below!r} {BELOW}")
            return found
        is_absolute = name.startswith(("/", "\\")) or "://" in name
        path = posixpath.normpath("/".join(_split_path(name, keep_up=True)))
        leads_up = path.split("/")[0] == ".."
        if not is_absolute and not leads_up:
            if "\\" in name and ".." not in name and self._is_file(name):
                return name
            for rank in query.places:
                hits = [found for place in rank if self._is_file(found := posixpath.join(place, path))]
                hits = hits or [found for place in rank if (found := self.at(place, path)) is not None]
                if len(hits) > 1:
                    raise SourceError("annotation", "file name is ambiguous", f"{name!r}: {', '.join(hits)}")
                if hits:
                    return hits[0]
        is_local = "://" not in self.root
        if is_local and os.path.isabs(name) and is_there(name, regular=True):
            return os.path.normpath(name)
        outside = None
        if self._annotations_root and "://" not in self._annotations_root and not is_absolute:
            below = path_from(self._annotations_root, path, self.root)
            if len(parts) > 1 and self._is_file(below):
                if not below.startswith("../"):
                    return below
                outside = name
        for folder in query.beside:
            if (found := self.at(folder, parts[-1])) is not None:
                return found
        if outside is not None:
            raise SourceError("annotation", "image file lies outside --images", lies_outside(outside))
        places = [] if is_absolute or leads_up else [place for rank in query.places for place in rank]
        self._check_listable(posixpath.join(place, path) for place in places)
        self._check_listable(posixpath.join(folder, parts[-1]) for folder in query.beside)
        return None

    def _check_listable(self, paths: Iterable[str]) -> None:
        """SourceError for the first of these paths at which there may be a file for all that is known."""
        for path in paths:
            if refusal := self._files.refusal(path):
                raise SourceError("read", UNREAD, f"{path}: {refusal}")

    def _is_file(self, path: str) -> bool:
        return self._files.size(path) is not None

    def at(self, folder: str, name: str) -> str | None:
        """The file `name` in exactly this folder ("" is the root), or None; `a.jpg` may be `a.JPG`."""
        path = f"{folder}/{name}" if folder else name
        if self._is_file(path):
            return path
        above = path.rpartition("/")[0]
        if above not in self._folded:
            folded = self._folded.setdefault(above, {})
            for found in self._files.files_in(above):
                folded.setdefault(_fold_extension(found), []).append(found)
        spelled = self._folded[above].get(_fold_extension(path), [])
        return spelled[0] if len(spelled) == 1 else None

    def _find_by_stem(self, query: ImageQuery, error: SourceError | None) -> _Candidate:
        parts = _split_path(query.stem)
        try:
            return self._find_by_suffix(
                query.stem, parts, self._file_index.by_stem.get(_normalize_unicode(parts[-1]), [])
            )
        except SourceError as caught:
            if caught.reason == "file name is ambiguous":
                raise
            other = f"; {error.detail.partition('; ')[2]}" if error and "; " in error.detail else ""
            detail = f"neither {query.name!r} nor an image called {parts[-1]!r} {BELOW}{other}"
            raise SourceError("annotation", "image file not found", detail) from None

    def _find_by_suffix(self, name: str, parts: list[str], paths: list[str]) -> _Candidate:
        """The one file that shares most of the end of a name; SourceError where none or several do."""
        ranked = {path: self._rank(parts, path.split("/")) for path in paths}
        best = max(ranked.values(), default=(0, False))
        if best[0] == 0:
            other = f"; {paths[0]} lies in another folder" if paths else ""
            raise SourceError("annotation", "image file not found", f"{name!r} {BELOW}{other}")
        chosen = [path for path in paths if ranked[path] == best]
        if len(chosen) > 1:
            raise SourceError("annotation", "file name is ambiguous", f"{name!r}: {', '.join(chosen[:3])}")
        return _Candidate(
            path=chosen[0],
            name=name,
            shared=best[0],
            is_whole=1 < len(parts) == best[0],
            has_folders=len(parts) > 1,
        )

    def _rank(self, parts: list[str], path: list[str]) -> tuple[int, bool]:
        shared = self._shared(parts, path)
        if shared < len(parts) and parts[-1 - shared] in self._file_index.folders:
            return (0, False)
        return (shared, parts[-1] == path[-1])

    def _shared(self, parts: list[str], path: list[str]) -> int:
        """How many of the last components a name and the whole path of a file share, the file name counted anyway."""
        whole = [*self._above, *path]
        shared = 1
        while shared < min(len(parts), len(whole)) and parts[-1 - shared] == whole[-1 - shared]:
            shared += 1
        return shared

    def neighbors(self, query: ImageQuery) -> list[str]:
        """The images called as the annotation itself, in the first of the folders beside it that holds any."""
        name = _split_path(query.stem)[-1]
        paths = self._file_index.by_stem.get(_normalize_unicode(name), [])
        paths = paths or self._file_index.by_name.get(_fold_extension(name), [])
        found = ([path for path in paths if path.rpartition("/")[0] == folder] for folder in query.beside)
        return next(filter(None, found), [])

    def check_any_image(self, what: str) -> None:
        """Refuse a folder without any image file: the annotations' images must lie elsewhere."""
        if not any(self._takes(path) for path in self.paths):
            raise AnnotationsError(
                f"{what}: no image file lies below {self.root} "
                f"(known extensions: {' '.join(IMAGE_EXTENSIONS)}); name the folder that holds the images"
            )

    def _images_in(self, folders: Iterable[str] | None) -> Iterator[str]:
        """The image files straight in these folders; below the root where they are None."""
        inside = (path for folder in sorted(folders or ()) for path in self._files.files_in(folder))
        return filter(self._takes, self.paths if folders is None else inside)

    def all_images_are_named(self, tally: PathComparison, *, beside_used: bool) -> bool:
        """Whether annotations name each image file exactly once; else `without_annotation` tells which they do not.

        Args:
            tally: has each name that they give as one of its second list, and is used up.
        """
        for path in self._images_in(list(tally.folders) if beside_used else None):
            tally.add(path, 1)
        return not tally.different_folders()

    def without_annotation(
        self, list_used: Callable[[], Iterable[tuple[str, str]]], *, beside_used: bool
    ) -> Iterator[SourceExample]:
        """A problem for each image file that no annotation names.

        Args:
            list_used: gives each file that annotations name once, with its split, the same each time. A file that none
                names has that of the others in its folder, or of all; "train" where these have several.
            beside_used: only those in folders that hold a used file, for when one of several annotation files
                was read; no other folder is listed.
        """
        by_folder: dict[str, set[str]] = {}
        tally = PathComparison()
        for path, split in list_used():
            by_folder.setdefault(path.rpartition("/")[0], set()).add(split)
            tally.add(path, -1)
        everywhere = set().union(*by_folder.values())
        if self.all_images_are_named(tally, beside_used=beside_used):
            return
        different_folders = tally.different_folders()
        used = {path for path, _ in list_used() if path.rpartition("/")[0] in different_folders}
        for path in self._images_in(by_folder if beside_used else None):
            folder = path.rpartition("/")[0]
            if folder in different_folders and path not in used:
                beside = by_folder.get(folder, everywhere)
                split = next(iter(beside)) if len(beside) == 1 else "train"
                fault = ("selection", "image has no annotation", "")
                yield SourceExample(source=path, key=path, split=split, problem=fault)


class ImageMatcher(Generic[Key]):
    """Of names in any order those that are the path of their file, told at once, and the others, judged at the end."""

    def __init__(self, index: ImageIndex) -> None:
        self._index = index
        self._other_files: dict[Key, _Candidate | SourceError] = {}
        self._depths: dict[str, int] = {}  # how many of a folder's names an annotation shares
        self._last: Key | None = None

    def is_path(self, key: Key, query: ImageQuery) -> bool:
        """Whether a name is the path of its file; equal ones may come again, under the same key."""
        if key == self._last or key in self._other_files:
            return key == self._last
        try:
            candidate = self._index.candidate(query)
        except SourceError as error:
            # With its traceback each would hold the frames in which it came to be.
            self._other_files[key] = error.with_traceback(None)
            return False
        folder = candidate.path.rpartition("/")[0]
        self._depths[folder] = max(self._depths.get(folder, 0), candidate.shared)
        if candidate.is_whole and candidate.path == query.name:
            self._last = key
            return True
        self._other_files[key] = candidate
        return False

    def others(self, list_paths: Callable[[], Iterable[str]]) -> dict[Key, ImageMatch | SourceError]:
        """The file that each of the other names means, or why there is none.

        Args:
            list_paths: gives the names that are the path of their file, as often as one likes.
        """
        # By which names each file is meant, and whether by its whole name.
        claims: dict[str, dict[str, bool]] = {}
        for other in self._other_files.values():
            if isinstance(other, _Candidate):
                names = claims.setdefault(other.path, {})
                names[other.name] = names.get(other.name, False) or other.is_whole
        for path in list_paths() if claims else ():
            if path in claims:
                claims[path][path] = True
        return {
            key: other if isinstance(other, SourceError) else self._judge(other, claims[other.path])
            for key, other in self._other_files.items()
        }

    def _judge(self, candidate: _Candidate, names: Mapping[str, bool]) -> ImageMatch | SourceError:
        """The file of a candidate that nothing speaks against."""
        if candidate.is_whole:
            return ImageMatch(path=candidate.path)
        others = sorted(name for name, is_whole in names.items() if is_whole or name != candidate.name)
        if others:
            against = f"{candidate.path} is the image of {others[0]!r}"
        elif candidate.has_folders and self._depths[candidate.path.rpartition("/")[0]] > candidate.shared:
            against = f"{candidate.path} lies in a folder that other annotations name"
        else:
            return ImageMatch(path=candidate.path, note=ELSEWHERE if candidate.has_folders else "")
        return SourceError("annotation", "image file not found", f"{candidate.name!r} {BELOW}; {against}")


class PathComparison:
    """Whether two lists of paths are of the same ones: told for each folder by their number and the sum of hashes."""

    def __init__(self) -> None:
        self._left: dict[str, list[int]] = {}

    def add(self, path: str, sign: int) -> None:
        """Take a path of the one list (1) or the other (-1)."""
        left = self._left.setdefault(path.rpartition("/")[0], [0, 0])
        left[0] += sign
        left[1] += sign * hash(path)

    @property
    def folders(self) -> AbstractSet[str]:
        """Of all paths so far."""
        return self._left.keys()

    def different_folders(self) -> set[str]:
        """The folders whose paths are not the same in both lists."""
        return {folder for folder, left in self._left.items() if left != [0, 0]}


def _fold_extension(name: str) -> str:
    """A name as names are compared: its extension in small letters, its accents composed, which macOS takes apart."""
    stem, dot, extension = _normalize_unicode(name).rpartition(".")
    return f"{stem}{dot}{extension.lower()}" if dot else extension


def _normalize_unicode(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _split_path(name: str, *, keep_up: bool = False) -> list[str]:
    """The components of a path, however it is written.

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
            inside.pop()
    return inside
