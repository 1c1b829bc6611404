"""Lines of lists of images from another place: each means the image that shares the most of the end of its path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from posixpath import splitext

from halofeed.prep.sources.file_names import is_image_name


def match_ends(names: Iterable[str], sources: Iterable[str]) -> Mapping[str, list[int]]:
    """Return the positions of the images that each name may mean; one position if the name is unambiguous.

    Lists hold paths of the machine that wrote them: absolute ones, or those below a folder that was renamed. The
    image shares the file name, or the stem if pictures were saved in another format, and as many folders as possible.
    A folder of the name that exists elsewhere in the source contradicts a match.

    Args:
        names: paths from lists, with / between folders.
        sources: paths of the images, in their order.

    >>> found = match_ends(["C:/set/a/1.jpg", "b/1.jpg", "c/1.jpg"], ["a/1.jpg", "b/1.png", "d/2.jpg"])
    >>> found == {"C:/set/a/1.jpg": [0], "b/1.jpg": [1]}
    True
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for name in names:
        wanted[_stem(name)].append(name)
    folders: set[str] = set()
    best: dict[str, tuple[int, bool]] = {}
    found: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        folders.update(source.split("/")[:-1])
        for name in wanted.get(_stem(source), ()):
            shared = _shared_folders(name, source)
            if not shared and _shorter(name, source):
                continue  # b/1.jpg is not a/1.jpg
            rank = shared, name.rpartition("/")[2] == source.rpartition("/")[2]
            if rank > best.get(name, (-1, False)):
                best[name], found[name] = rank, []
            # A second image of the best rank makes the entry ambiguous.
            if rank == best[name]:
                found[name].append(position)
    return {name: places for name, places in found.items() if not _is_elsewhere(name, best[name][0], folders)}


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return splitext(name)[0] if is_image_name(name) else name


def _shared_folders(name: str, source: str) -> int:
    """Return the number of folders above the file in which two paths agree."""
    pairs = zip(reversed(name.split("/")[:-1]), reversed(source.split("/")[:-1]), strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), _shorter(name, source))


def _shorter(name: str, source: str) -> int:
    return min(name.count("/"), source.count("/"))


def _is_elsewhere(name: str, shared: int, folders: set[str]) -> bool:
    above = name.split("/")[:-1]
    return shared < len(above) and above[-1 - shared] in folders
