"""How are files without annotations converted so that a model can predict them?

By the recipe that its data set was converted with: the same geometry, intensity and encoding. Only what speaks of
annotations, splits and shards is replaced, and a list of the files stands for the annotations.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.prep.annotations.names import UNREAD_EXTENSIONS, is_document_name, is_image_name
from halofeed.prep.annotations.volume_files import files_of, is_volume_name, stem_of, whole_scans
from halofeed.prep.recipe import Recipe
from halofeed.prep.sources import LocalFiles
from halofeed.schemas.errors import UsageError
from halofeed.schemas.layout import REJECTED

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
    """

    recipe: Recipe
    source: str
    images: str | None
    count: int | None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file that could not be converted: which one, and why in words."""

    source: str
    reason: str


def recipe_for_new_files(
    recipe: Mapping[str, Any], task: str, *, windows: bool = True, overlap: float = WINDOW_OVERLAP
) -> Recipe:
    """The recipe of a data set, changed to take files without annotations.

    Scans that the recipe would crop to its shape are cut into windows of that shape that overlap, so that all of a
    scan is predicted.

    Args:
        recipe: the manifest's.
        task: the data set's.
        windows: False crops or pads scans as the recipe says.
        overlap: of windows, as a share of each axis, 0 to less than 1.

    Raises:
        UsageError: the recipe stores pictures in sizes of their own, or the overlap is not a share.

    >>> changed = recipe_for_new_files(Recipe(layout="msd", depth=32, height=64, width=64).to_json(), "segmentation")
    >>> changed.fit, changed.tile_overlap, changed.missing_masks
    ('tiles', (8, 16, 16), 'prediction')
    """
    if not 0 <= overlap < 1:
        raise UsageError(f"overlap {overlap}: expected 0 or more and less than 1")
    before = Recipe.from_json(recipe)
    if before.static_size() is None:
        raise UsageError(
            "the model's data set stores each picture in a size of its own, and other files would have other sizes; "
            "train on a data set of one size (--resize fixed-shape, or --pad) to predict new files"
        )
    changes: dict[str, Any] = {
        "layout": "jsonl",
        "task": "segmentation" if task == "segmentation" else "detection",
        "image_sets": (),
        "masks": False,
        "shards": 1,
        "split_shares": (),
        "group_pattern": None,
        "image_pattern": None,
        "label_pattern": None,
        "classes": (),
        "missing_masks": "prediction",
    }
    if before.depth is not None and before.fit == "crop-or-pad" and windows:
        shape = (before.depth, before.height, before.width)
        changes |= {"fit": "tiles", "tile_overlap": tuple(int(side * overlap) for side in shape)}
    elif before.centre == "label":
        changes["centre"] = "volume"
    return dataclasses.replace(before, **changes)


def list_new_files(
    recipe: Mapping[str, Any],
    task: str,
    source: str | Path,
    scratch: str | Path,
    *,
    windows: bool = True,
    overlap: float = WINDOW_OVERLAP,
) -> NewFiles:
    """Find the pictures or scans of a folder, or take one file, and list them for a conversion.

    Of a data set of volumes, NIfTI and Analyze files are taken; where a folder holds none, its DICOM series. A folder's
    hidden files are left out.

    Args:
        recipe, task, windows, overlap: as `recipe_for_new_files`.
        source: a folder or a file on local disk.
        scratch: an existing empty folder for the list; it must stand until the conversion is done.

    Raises:
        UsageError: there is no such file or folder, or nothing in it that can be predicted.
    """
    changed = recipe_for_new_files(recipe, task, windows=windows, overlap=overlap)
    source, scratch = Path(source), Path(scratch)
    if source.is_file():
        root = _linked(source, scratch / LINKS)
    elif source.is_dir():
        root = str(source)
    else:
        raise UsageError(f"--source {source}: no such file or folder on local disk")
    files = LocalFiles(root)
    paths = list(files.sizes())
    if changed.depth is None:
        listed = [[path] for path in paths if is_image_name(path) or path.lower().endswith(UNREAD_EXTENSIONS)]
        kind = "picture"
    else:
        scans = [path for path in whole_scans(files.sizes()) if is_volume_name(path)]
        listed = channels_of(scans, changed.channels)
        kind = "NIfTI, Analyze or DICOM file"
    used = {part for entry in listed for path in entry for part in files_of(path)}
    others = tuple(path for path in paths if path not in used and not is_document_name(path))
    if listed:
        table = scratch / TABLE
        _write_table(table, listed, changed.task or "")
        return NewFiles(recipe=changed, source=str(table), images=root, count=len(listed), passed_over=others)
    if changed.depth is not None and others:
        series = dataclasses.replace(changed, layout="dicom")
        return NewFiles(recipe=series, source=root, images=None, count=None)
    raise UsageError(f"--source {source}: holds no {kind}; name a file or folder to predict")


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
    lines = (Path(folder) / REJECTED).read_text("utf-8").splitlines()
    found = []
    for entry in map(json.loads, lines):
        detail = f" ({entry['detail']})" if entry["detail"] else ""
        found.append(Rejected(source=entry["source"], reason=f"{entry['stage']}: {entry['reason']}{detail}"))
    return tuple(found)


def _write_table(file: Path, listed: Iterable[Sequence[str]], task: str) -> None:
    """One row a picture or scan: without a label, or without a box."""
    empty = dict.fromkeys(("class", "xmin", "ymin", "xmax", "ymax"))
    with file.open("w", encoding="utf-8") as stream:
        for paths in listed:
            image: Any = paths[0] if len(paths) == 1 else list(paths)
            row = {"image": image, "label": None} if task == "segmentation" else {"filename": image, **empty}
            stream.write(json.dumps(row) + "\n")


def _linked(file: Path, folder: Path) -> str:
    """A folder in which a file stands alone, so that what lies beside it is not looked through."""
    folder.mkdir()
    for part in files_of(file.name):
        if (file.parent / part).is_file():
            os.symlink((file.parent / part).resolve(), folder / part)
    return str(folder)
