"""How are files without annotations converted so that a model can predict them?

By the recipe that its data set was converted with: the same geometry, intensity and encoding. Only what speaks of
annotations, splits and shards is replaced, and a list of the files stands for the annotations.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halofeed.errors import SourceError, UsageError
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.file_names import (
    UNREAD_EXTENSIONS,
    files_of,
    is_document_name,
    is_image_name,
    is_volume_name,
    stem_of,
    whole_scans,
)
from halofeed.prep.sources.files import LocalFiles, check_source
from halofeed.prep.sources.reference import FileSelection, data_files
from halofeed.schemas.files import REJECTED

TABLE, LINKS = "files.jsonl", "files"
WINDOW_OVERLAP = 0.25
"""The share of a window that its neighbor sees too, along each axis."""
_CHANNEL = re.compile(r"(.+)_(\d{4})")


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """What `halofeed.pipelines.convert` needs to convert files without annotations.

    Args:
        recipe: of the conversion; `layout` and `task` are chosen to need no annotations.
        source, images: for `JobOptions`; `images` may be None.
        count: of the pictures or scans that were found; None where the conversion will find DICOM series.
        passed_over: files that are neither pictures, scans nor documents by their names, below the folder.
        rejected: folders that could not be listed, and links that were not followed.
    """

    recipe: Recipe
    source: str
    images: str | None
    count: int | None
    passed_over: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file that could not be converted: which one, and why in words."""

    source: str
    reason: str


def _pictures(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    paths = listing.files.sizes()
    return [[path] for path in paths if is_image_name(path) or path.lower().endswith(UNREAD_EXTENSIONS)]


def _scans(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    scans = [path for path in whole_scans(listing.files.sizes()) if is_volume_name(path)]
    return channels_of(scans, recipe.channels)


def _clips(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    return [[path] for path in listing.files.sizes() if listing.takes(path)]


@dataclass(frozen=True)
class _Search:
    """How images of one kind are found: what they are called, the files of each, and whether DICOM series are some.

    Args:
        may_be_folder: whether a folder may be one image, of the files in it.
        unlabeled: per task of a data set that has another, the task for which these images need no labels.
    """

    noun: str
    listed: Callable[[FileSelection, Recipe], list[list[str]]]
    takes_series: bool = False
    may_be_folder: bool = False
    unlabeled: Mapping[str, str] = field(default_factory=dict)


_SEARCHES = {
    "picture": _Search("picture", _pictures, unlabeled={"classification": "detection"}),
    "volume": _Search("NIfTI, Analyze, NRRD, MetaImage or DICOM file", _scans, takes_series=True),
    "clip": _Search(
        "video, animation or folder of frames",
        _clips,
        may_be_folder=True,
        unlabeled={"classification": "segmentation"},
    ),
}
"""Per kind of image."""


_COLUMNS = {
    "detection": ("filename", "class", "xmin", "ymin", "xmax", "ymax"),
    "segmentation": ("image", "label"),
}
"""Per task for which images need no labels: the columns of its table, all but the first empty."""


def recipe_for_new_files(recipe: Mapping[str, Any], task: str, *, windows: bool = True) -> Recipe:
    """The recipe of a data set, changed to take files without annotations.

    Scans that the recipe would crop to its shape are cut into windows of that shape that overlap, so that all of a
    scan is predicted.

    Args:
        recipe: the manifest's.
        task: the data set's.
        windows: False crops or pads scans as the recipe says.

    Raises:
        UsageError: the recipe stores pictures in sizes of their own.

    >>> changed = recipe_for_new_files(Recipe(layout="msd", depth=32, height=64, width=64).to_json(), "segmentation")
    >>> changed.fit, changed.tile_overlap, changed.missing_masks
    ('tiles', (8, 16, 16), 'prediction')
    """
    before = Recipe.from_json(recipe)
    if before.rules.kind.name not in _SEARCHES:
        raise UsageError(
            f"--source is for {' and '.join(f'{kind}s' for kind in _SEARCHES)}; convert the {before.rules.kind.name}s "
            "with the options of the model's data set and name that folder instead: halofeed predict RUN FOLDER"
        )
    sides = before.static_shape()
    if sides is None:
        raise UsageError(
            "the model's data set stores each picture in a size of its own, and other files would have other sizes; "
            "train on a data set of one size (--resize fixed-shape, or --resize keep-aspect --pad) to predict new files"
        )
    changes: dict[str, Any] = {
        "layout": "jsonl",
        "task": _SEARCHES[before.rules.kind.name].unlabeled.get(task, task),
        **dict.fromkeys(("image_sets", "split_shares", "classes"), ()),
        **dict.fromkeys(("group_pattern", "image_pattern", "label_pattern")),
        "masks": False,
        "shards": 1,
        "missing_masks": "prediction",
    }
    if before.rules.is_fitted and before.fit == "crop-or-pad" and windows:
        changes |= {"fit": "tiles", "tile_overlap": tuple(int(side * WINDOW_OVERLAP) for side in sides)}
    elif before.center == "label":
        changes["center"] = "volume"
    return dataclasses.replace(before, **changes)


def list_new_files(
    recipe: Mapping[str, Any], task: str, source: str | Path, scratch: str | Path, *, windows: bool = True
) -> NewFiles:
    """Find the pictures, scans or clips of a folder, or take one file, and list them for a conversion.

    Of a data set of volumes, those in files are taken; where a folder holds none, its DICOM series. Of one of clips, a
    folder that holds nothing but pictures is the frames of one. A folder's hidden files are left out.

    Args:
        recipe, task, windows: as `recipe_for_new_files`.
        source: a folder or a file on local disk.
        scratch: an existing empty folder for the list; it must stand until the conversion is done.

    Raises:
        UsageError: there is no such file or folder, or nothing in it that can be predicted.
    """
    changed = recipe_for_new_files(recipe, task, windows=windows)
    source, scratch = Path(source), Path(scratch)
    is_file = check_source("--source", str(source))
    search = _SEARCHES[changed.rules.kind.name]
    root = _linked(source, scratch / LINKS) if is_file else str(source)
    listing = changed.rules.listing(LocalFiles(root))
    listed = search.listed(listing, changed)
    if search.may_be_folder and not (listed or is_file):
        root = _linked(source.resolve(), scratch / LINKS)
        listing = changed.rules.listing(LocalFiles(root))
        listed = search.listed(listing, changed)
    files = listing.files
    paths = list(files.sizes())
    faults = files.faults().items()
    rejected = tuple(Rejected(source=path, reason=str(SourceError(*fault))) for path, fault in faults)
    used = {part for entry in listed for path in entry for part in files_of(path)}
    used |= data_files(files, used)
    others = tuple(path for path in paths if path not in used and not is_document_name(path))
    if listed:
        table = scratch / TABLE
        _write_table(table, listed, changed.task or "")
        return NewFiles(
            recipe=changed,
            source=str(table),
            images=root,
            count=len(listed),
            passed_over=others,
            rejected=rejected,
        )
    if search.takes_series and others:
        series = dataclasses.replace(changed, layout="dicom")
        return NewFiles(recipe=series, source=root, images=None, count=None)
    unlisted = "".join(f"\n{one.source}: {one.reason}" for one in rejected[:3])
    raise UsageError(f"--source {source}: holds no {search.noun}; name a file or folder to predict{unlisted}")


def channels_of(paths: Sequence[str], channels: int) -> list[list[str]]:
    """The files of each scan: those that are alike but for _0000, _0001, ... where a scan has several channels.

    >>> channels_of(["a_0000.nii", "a_0001.nii", "b.nii"], 2)
    [['a_0000.nii', 'a_0001.nii'], ['b.nii']]
    >>> channels_of(["a_0000.nii", "a_0001.nii"], 1)
    [['a_0000.nii'], ['a_0001.nii']]
    """
    scans: dict[str, list[str]] = {}
    for path in sorted(paths):
        found = _CHANNEL.fullmatch(stem_of(path)) if channels > 1 else None
        name = path if found is None else f"{path.rpartition('/')[0]}/{found[1]}"
        scans.setdefault(name, []).append(path)
    return list(scans.values())


def rejected_new_files(folder: str | Path) -> tuple[Rejected, ...]:
    """What a conversion did not take, by its rejected.jsonl, to be told to the user.

    Args:
        folder: the version's.
    """
    text = (Path(folder) / REJECTED).read_text("utf-8", "surrogateescape")
    found = []
    for entry in map(json.loads, text.rstrip("\n").split("\n") if text else ()):
        error = SourceError(entry["stage"], entry["reason"], entry["detail"])
        found.append(Rejected(source=entry["source"], reason=str(error)))
    return tuple(found)


def _write_table(file: Path, listed: Iterable[Sequence[str]], task: str) -> None:
    """One row a picture or scan: without a label, or without a box."""
    with file.open("x", encoding="utf-8") as stream:
        for paths in listed:
            image, *empty = _COLUMNS[task]
            row = {image: paths[0] if len(paths) == 1 else list(paths), **dict.fromkeys(empty)}
            stream.write(json.dumps(row) + "\n")


def _linked(file: Path, folder: Path) -> str:
    """A folder in which a file or a folder stands alone, so that what lies beside it is not looked through."""
    folder.mkdir()
    if file.is_dir():
        os.symlink(file, folder / file.name)
        return str(folder)
    parts = {*files_of(file.name), *data_files(LocalFiles(file.parent), [file.name])}
    for part in sorted(parts):
        if (file.parent / part).is_file():
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            os.symlink((file.parent / part).resolve(), folder / part)
    return str(folder)
