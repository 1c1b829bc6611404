"""Folders with a mask file for each object: ID/images/a.png with ID/masks, or images/a.png with masks/a."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename, dirname, join, splitext

from halofeed.prep.annotations.contract import grouped

_IMAGES = re.compile(r"(?:\w*images?|imgs?)", re.IGNORECASE)
_MASKS = re.compile(r"(?:\w*masks?|instances?|objects?|segmentations?)", re.IGNORECASE)
_NUMBERED = re.compile(r".*\d|[0-9a-f]{8,}")
"""End of the name of an object: its number, or a digest."""


@dataclass(frozen=True, kw_only=True)
class FolderedMasks:
    """Pictures of a source, the masks of their objects, and pictures that are neither.

    Args:
        pictures: pictures in folders for images, with masks or without.
        masks: masks of each picture that has any.
        others: other pictures.
    """

    pictures: Sequence[str]
    masks: Mapping[str, Sequence[str]]
    others: Sequence[str]


def find_masks(paths: Iterable[str]) -> FolderedMasks:
    """Return which pictures are masks of which others, by folders; without masks if the masks are those of classes.

    Args:
        paths: paths of all pictures.

    >>> find_masks(["x/images/x.png", "x/masks/1.png", "x/masks/2.png", "y/images/y.png"]).masks
    {'x/images/x.png': ['x/masks/1.png', 'x/masks/2.png']}
    >>> find_masks(["x/images/x.png", "x/masks/liver.png", "y/images/y.png", "y/masks/liver.png"]).masks
    {}
    """
    folders = grouped((dirname(path), path) for path in paths)
    pictures = [path for folder in folders if _IMAGES.fullmatch(basename(folder)) for path in folders[folder]]
    masks = _beside_single_pictures(folders) or _in_folders_of_pictures(folders, pictures)
    # A class has one name in all pictures, as liver in liver.png; numbers and digests name objects.
    if _are_classes(masks):
        masks = {}
    used = {*pictures, *(path for found in masks.values() for path in found)}
    others = [path for found in folders.values() for path in found if path not in used]
    return FolderedMasks(pictures=pictures, masks=masks, others=others)


def holds_masks(folder: str) -> bool:
    """Return whether a folder, or the one above it, has a name for masks of objects."""
    return any(_MASKS.fullmatch(name) for name in folder.split("/")[-2:])


def _beside_single_pictures(folders: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the masks of pictures that are alone in their folder, which has a folder of masks beside it."""
    of_masks = grouped((dirname(one), one) for one in folders if _MASKS.fullmatch(basename(one)))
    found: dict[str, list[str]] = {}
    for folder, paths in folders.items():
        # Only one picture can have all masks of a folder.
        if _IMAGES.fullmatch(basename(folder)) and len(paths) == 1:
            masks = [path for one in of_masks.get(dirname(folder), ()) for path in folders[one]]
            found |= {paths[0]: masks} if masks else {}
    return found


def _in_folders_of_pictures(
    folders: Mapping[str, Sequence[str]], pictures: Iterable[str]
) -> dict[str, list[str]]:
    """Return the masks of pictures that have a folder of masks of their name: masks/a for images/a.png."""
    found = {}
    above = [dirname(folder) for folder in folders if _MASKS.fullmatch(basename(dirname(folder)))]
    for path in pictures:
        stem = splitext(basename(path))[0]
        places = [join(one, stem) for one in dict.fromkeys(above) if dirname(one) == dirname(dirname(path))]
        if masks := [mask for place in places for mask in folders.get(place, ())]:
            found[path] = masks
    return found


def _are_classes(masks: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the names of masks are those of classes: most of them repeat, and are no numbers."""
    names = [splitext(basename(path))[0] for found in masks.values() for path in found]
    counts = Counter(names)
    words = [name for name in names if counts[name] > 1 and not _NUMBERED.fullmatch(name)]
    return 2 * len(words) > len(names)
