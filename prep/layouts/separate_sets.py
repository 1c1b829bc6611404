"""Sets that are side by side below one folder: which folders, and the command that converts each by itself.

    data/TestVolumes/Study1/*.dcm      DICOM series
    data/TrainingSet/images/*.nii.gz   volumes, of which another layout finds images with labels

One conversion has one layout, which rejects each file of the other set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from posixpath import dirname, splitext

from halofeed.prep.annotations.advice import Suggestion, advise, suggest
from halofeed.prep.sources.file_names import is_dicom_name, is_volume_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError
from halofeed.system.wording import plural

_SHARE = 0.9
"""Share of the files of a kind that are below the folder of their set; a few may be elsewhere, such as an example."""
_MOST_FOLDERS = 8
"""Most folders that are tried one by one (an estimate): each trial reads the beginnings of some files."""
_LEAST = 2
"""Fewest files of each of two sets: a single scan or series is often an example of a tool."""

TryFolder = Callable[[str], "tuple[str, str] | None"]
"""Function that recognizes the layout of a folder below the source: its name, and what it does as a verb phrase."""


def folder_of_most(paths: Sequence[str]) -> str:
    """Return the deepest folder with nearly all of some paths; "" for the source itself.

    >>> folder_of_most(["a/b/1.dcm", "a/b/2.dcm"]), folder_of_most(["a/b/1.dcm", "a/c/1.dcm"])
    ('a/b', 'a')
    >>> folder_of_most([f"a/b/{number}.dcm" for number in range(20)] + ["c/0.dcm"])
    'a/b'
    """
    counts = Counter(above for path in paths for above in _folders_above(path))
    full = [folder for folder, count in counts.items() if count >= _SHARE * len(paths)]
    return max(full, key=len, default="")


def _folders_above(path: str) -> Iterable[str]:
    """Yield each folder that holds a path, the deepest first, without the source itself."""
    while path := dirname(path):
        yield path


def refuse_two_sets(images: SourceFiles, uses_volumes: Callable[[], int], try_folder: TryFolder) -> None:
    """Refuse a source of DICOM files beside which there is a set of volumes in another folder.

    The volumes are masks of the DICOM series where its layout uses most of them, whatever their folder is.

    Args:
        uses_volumes: returns how many of the volumes the layout of DICOM series uses. It reads the headers of all
            files, so it is called only where the volumes are a set.

    Raises:
        AnnotationsError: there are two sets; the message has both folders and a command for each.
    """
    paths = [*images.sizes()]
    series, volumes = _series_files(paths), [path for path in paths if is_volume_name(path)]
    if min(len(series), len(volumes)) < _LEAST:
        return
    folders = folder_of_most(series), folder_of_most(volumes)
    if not are_apart(*folders):
        return
    suggested = _suggest(images.root, (folders[1],), try_folder)
    if not suggested or 2 * uses_volumes() >= len(volumes):
        return
    both = [*_suggest(images.root, (folders[0],), try_folder), *suggested]
    one, other = (
        f"{plural(sum(path.startswith(f'{folder}/') for path in kind), name)} in {folder}"
        for kind, folder, name in zip((series, volumes), folders, ("DICOM file", "volume"), strict=True)
    )
    raise AnnotationsError(
        f"{images.root}: two sets in two folders, and a conversion takes one: {one}, and {other}; {advise(both, '')}"
    )


def _series_files(paths: Sequence[str]) -> list[str]:
    """Return the files that may be DICOM by their names: with .dcm, or else without an extension or ending in a UID.

    A single file without an extension is a LICENSE; slices have others beside them.

    >>> _series_files(["LICENSE", "p1/IM1", "p1/IM2", "p1/notes.txt"])
    ['p1/IM1', 'p1/IM2']
    """
    if named := [path for path in paths if is_dicom_name(path)]:
        return named
    bare = [path for path in paths if re.fullmatch(r"(\.\d+)?", splitext(path)[1])]
    counts = Counter(map(dirname, bare))
    return [path for path in bare if counts[dirname(path)] > 1]


def are_apart(one: str, other: str) -> bool:
    """Return whether neither of two folders holds the other; "" is the source itself, which holds all.

    >>> are_apart("a/b", "a/c"), are_apart("a", "a/b"), are_apart("", "a")
    (True, False, False)
    """
    return (
        bool(one and other)
        and not f"{one}/".startswith(f"{other}/")
        and not f"{other}/".startswith(f"{one}/")
    )


def suggest_folders(files: SourceFiles, try_folder: TryFolder) -> tuple[Suggestion, ...]:
    """Return how to convert each folder of a source by itself; () unless these have several layouts."""
    paths = [*files.sizes()]
    above = folder_of_most(paths) if paths else ""
    inside = f"{above}/" if above else ""
    below = Counter(path[len(inside) :].split("/")[0] for path in paths if path.startswith(inside))
    folders = [f"{inside}{name}" for name in below if f"{inside}{name}" not in files.sizes()]
    if not 1 < len(folders) <= _MOST_FOLDERS:
        return ()
    found = _suggest(files.root, sorted(folders), try_folder)
    return found if len({one.words[-1] for one in found}) > 1 else ()


def _suggest(root: str, folders: Sequence[str], try_folder: TryFolder) -> tuple[Suggestion, ...]:
    """Return the source and the layout of each folder whose layout is recognized."""
    shown = {folder: found for folder in folders if (found := try_folder(folder)) is not None}
    sources = {f"{root.rstrip('/')}/{folder}": found for folder, found in shown.items()}
    words = [("--source", source, "--layout", name) for source, (name, _) in sources.items()]
    return suggest(words, partial(_effect, sources), len(words)) if words else ()


def _effect(sources: dict[str, tuple[str, str]], words: Sequence[str]) -> str:
    return sources[words[1]][1]
