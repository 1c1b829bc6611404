"""Conversion of files without annotations for prediction.

The recipe is the one of the model's data set: the same geometry, intensity and encoding. Only its settings of
annotations, splits and shards change, and a list of the files takes the place of the annotations.
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

from halofeed.prep.options.recipe import Recipe
from halofeed.prep.options.tiles import KEEP, cuts_pictures
from halofeed.prep.sources.example import FileSelection, data_files
from halofeed.prep.sources.file_names import (
    STACK_EXTENSIONS,
    UNREAD_EXTENSIONS,
    folder_of,
    is_document_name,
    is_image_name,
    is_volume_name,
    iterate_scans,
    stem_of,
    volume_files,
)
from halofeed.prep.sources.files import LocalFiles, check_source_path
from halofeed.schemas.file_layout import REJECTED
from halofeed.storage.paths import load_text, open_path
from halofeed.system.errors import SourceError, UsageError

TABLE, LINKS = "files.jsonl", "files"
WINDOW_OVERLAP = 0.25
"""Share of a window that overlaps its neighbor, along each axis."""
_HEAD_BYTES = 132
"""Bytes in which a DICOM file shows its kind: a preamble of 128, then DICM (PS3.10 7.1)."""
_CHANNEL_STEM = re.compile(r"(.+)_(\d{4})")


@dataclass(frozen=True, kw_only=True)
class NewFiles:
    """Arguments of `halofeed.pipelines.convert` for files without annotations.

    Args:
        recipe: recipe of the conversion; its `layout` and `task` need no annotations.
        source: `source` of `JobOptions`.
        images: `images` of `JobOptions`, or None.
        count: number of pictures or scans found; None if the conversion searches for DICOM series.
        passed_over: files in the folder whose names are not those of pictures, scans or documents.
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
    """A file that could not be converted, and the reason in words."""

    source: str
    reason: str


def _pictures(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    paths = listing.files.sizes()
    return [[path] for path in paths if is_image_name(path) or path.lower().endswith(UNREAD_EXTENSIONS)]


def _scans(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    paths = list(iterate_scans(listing.files.sizes()))
    # TIFF files may be stacks of slices, where no other file is a scan by its name.
    scans = [path for path in paths if is_volume_name(path)] or [
        path for path in paths if path.lower().endswith(STACK_EXTENSIONS)
    ]
    return channels_of(scans, recipe.channels)


def _clips(listing: FileSelection, recipe: Recipe) -> list[list[str]]:
    return [[path] for path in listing.files.sizes() if listing.takes(path)]


@dataclass(frozen=True)
class _Search:
    """Search for images of one kind.

    Args:
        noun: name of the images in messages.
        list_images: function that lists the files of each image.
        has_series: images may be DICOM series.
        may_be_folder: a folder may be one image, made of its files.
        unlabeled_task: task to convert for, by the data set's task, if the latter needs labels.
    """

    noun: str
    list_images: Callable[[FileSelection, Recipe], list[list[str]]]
    has_series: bool = False
    may_be_folder: bool = False
    unlabeled_task: Mapping[str, str] = field(default_factory=dict)


# A record of classification needs a class, so pictures and clips without one are converted for a task without labels.
_SEARCHES = {
    "picture": _Search("picture", _pictures, unlabeled_task={"classification": "detection"}),
    "volume": _Search("NIfTI, Analyze, NRRD, MetaImage or DICOM file", _scans, has_series=True),
    "clip": _Search(
        "video, animation or folder of frames",
        _clips,
        may_be_folder=True,
        unlabeled_task={"classification": "segmentation"},
    ),
}
"""Search by kind of image."""

_COLUMNS = {
    "detection": ("filename", "class", "xmin", "ymin", "xmax", "ymax"),
    "segmentation": ("image", "label"),
}
"""Columns of the table by tasks that need no labels; all except the first are empty."""


def recipe_for_new_files(recipe: Mapping[str, Any], task: str, *, windows: bool = True) -> Recipe:
    """Return the recipe of a data set, changed to convert files without annotations.

    Scans that the recipe would crop become overlapping windows of its shape, so that the complete scan is predicted.

    Args:
        recipe: recipe in the manifest of the data set.
        task: task of the data set.
        windows: False crops or pads scans as the recipe says.

    Raises:
        UsageError: the recipe stores pictures in different sizes, or is for another kind of image.

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
            "the model's data set stores each picture in its own size, and new files would have other sizes; "
            "train on a data set of one size (--resize fixed-shape, or --resize keep-aspect --pad) to predict new files"
        )
    changes: dict[str, Any] = {
        "layout": "jsonl",
        "task": _SEARCHES[before.rules.kind.name].unlabeled_task.get(task, task),
        **dict.fromkeys(("image_sets", "split_shares", "classes"), ()),
        **dict.fromkeys(("group_pattern", "image_pattern", "label_pattern")),
        "masks": False,
        "shards": 1,
        "missing_masks": "prediction",
    }
    # All tiles of new files are empty: they have no labels.
    if cuts_pictures(before):
        changes["empty_tiles"] = KEEP
    if before.rules.is_fitted and before.fit == "crop-or-pad" and windows:
        changes |= {"fit": "tiles", "tile_overlap": tuple(int(side * WINDOW_OVERLAP) for side in sides)}
    # New files have no label to center on.
    elif before.center == "label":
        changes["center"] = "volume"
    return dataclasses.replace(before, **changes)


def list_new_files(
    recipe: Mapping[str, Any], task: str, source: str | Path, scratch: str | Path, *, windows: bool = True
) -> NewFiles:
    """List the pictures, scans or clips of a folder, or one file, for a conversion.

    Volumes are files of scans; a folder without any is searched for DICOM series. Beside files of scans, each folder
    below that holds DICOM files is one series. For clips, a folder of pictures is one clip. Hidden files are skipped.

    Args:
        recipe: recipe in the manifest of the model's data set.
        task: task of that data set.
        source: folder or file on local disk.
        scratch: existing empty folder for the list, needed until the conversion ends.
        windows: False crops or pads scans as the recipe says.

    Raises:
        UsageError: the file or folder does not exist, or holds nothing that can be predicted.
    """
    changed = recipe_for_new_files(recipe, task, windows=windows)
    search = _SEARCHES[changed.rules.kind.name]
    found = _find_images(search, changed, Path(source), Path(scratch) / LINKS)
    if found.images:
        table = Path(scratch) / TABLE
        series = _series_folders(found) if search.has_series else []
        images = [*found.images, *([folder] for folder in series)]
        _write_table(table, images, changed.task or "")
        return NewFiles(
            recipe=changed,
            source=str(table),
            images=found.root,
            count=len(images),
            passed_over=tuple(path for path in found.others if folder_of(path) not in series),
            rejected=found.rejected,
        )
    # DICOM files need no extension, so files of other names may be series.
    if search.has_series and found.others:
        of_series = dataclasses.replace(changed, layout="dicom")
        return NewFiles(recipe=of_series, source=found.root, images=None, count=None)
    unlisted = "".join(f"\n{one.source}: {one.reason}" for one in found.rejected[:3])
    holds = f"; it holds {found.others[0]}" if found.others else ""
    raise UsageError(
        f"--source {source}: holds no {search.noun}, which the model takes{holds}; name a file or folder of those"
        f"{unlisted}"
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Files below a folder.

    Args:
        root: the folder, or one of links to a single source.
        images: files of each image.
        others: files of no image, without documents.
        rejected: folders that could not be listed, and links that were not followed.
    """

    root: str
    images: list[list[str]]
    others: tuple[str, ...]
    rejected: tuple[Rejected, ...]


def _series_folders(found: _Found) -> list[str]:
    """Return the folders below the root whose first file that is no scan by its name is DICOM."""
    from halofeed.prep.formats.dicom.headers import is_dicom  # imports pydicom, which --help does without

    first: dict[str, str] = {}
    for path in found.others:
        first.setdefault(folder_of(path), path)
    files = LocalFiles(found.root)
    return [
        folder
        for folder, path in sorted(first.items())
        if folder != "." and is_dicom(files.head(path, _HEAD_BYTES))
    ]


def _find_images(search: _Search, recipe: Recipe, source: Path, links: Path) -> _Found:
    """Search a folder for images, or find the files of one image; `links` is a folder to make if it is needed."""
    is_file = check_source_path("--source", str(source))
    root = _link_alone(source, links) if is_file else str(source)
    listing = recipe.rules.select_files(recipe, LocalFiles(root))
    images = search.list_images(listing, recipe)
    # Without clips in the folder, its files may be the frames of one.
    if search.may_be_folder and not (images or is_file):
        root = _link_alone(source.resolve(), links)
        listing = recipe.rules.select_files(recipe, LocalFiles(root))
        images = search.list_images(listing, recipe)
    files = listing.files
    paths = list(files.sizes())
    faults = files.faults().items()
    used = {part for entry in images for path in entry for part in volume_files(path)}
    used |= data_files(files, used)
    return _Found(
        root=root,
        images=images,
        others=tuple(path for path in paths if path not in used and not is_document_name(path)),
        rejected=tuple(Rejected(source=path, reason=str(SourceError(*fault))) for path, fault in faults),
    )


def channels_of(paths: Sequence[str], channels: int) -> list[list[str]]:
    """Group the files of each scan: with several channels, names that differ only in _0000, _0001, ... are one scan.

    >>> channels_of(["a_0000.nii", "a_0001.nii", "b.nii"], 2)
    [['a_0000.nii', 'a_0001.nii'], ['b.nii']]
    >>> channels_of(["a_0000.nii", "a_0001.nii"], 1)
    [['a_0000.nii'], ['a_0001.nii']]
    """
    scans: dict[str, list[str]] = {}
    for path in sorted(paths):
        # nnU-Net's names of channels.
        found = _CHANNEL_STEM.fullmatch(stem_of(path)) if channels > 1 else None
        name = path if found is None else f"{path.rpartition('/')[0]}/{found[1]}"
        scans.setdefault(name, []).append(path)
    return list(scans.values())


def rejected_new_files(folder: str | Path) -> tuple[Rejected, ...]:
    """Read the rejected.jsonl of a conversion.

    Args:
        folder: version folder of the converted data set.
    """
    text = load_text(Path(folder) / REJECTED, "utf-8", "surrogateescape")
    return tuple(
        Rejected(
            source=entry["source"],
            reason=str(SourceError(entry["stage"], entry["reason"], entry["detail"])),
        )
        for entry in map(json.loads, text.rstrip("\n").split("\n") if text else ())
    )


def _write_table(file: Path, listed: Iterable[Sequence[str]], task: str) -> None:
    """Write one row per picture or scan, without a label or box."""
    with open_path(file, "x", encoding="utf-8") as stream:
        for paths in listed:
            image, *empty = _COLUMNS[task]
            row = {image: paths[0] if len(paths) == 1 else list(paths), **dict.fromkeys(empty)}
            stream.write(json.dumps(row) + "\n")


def _link_alone(file: Path, folder: Path) -> str:
    """Create a folder with links to one file or folder only, so that the search does not find its siblings."""
    folder.mkdir()
    # A clip may be a folder of frames.
    if file.is_dir():
        os.symlink(file, folder / file.name)
        return str(folder)
    parts = {*volume_files(file.name), *data_files(LocalFiles(file.parent), [file.name])}
    for part in sorted(parts):
        # `volume_files` names every part that a format may have.
        if (file.parent / part).is_file():
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            os.symlink((file.parent / part).resolve(), folder / part)
    return str(folder)
