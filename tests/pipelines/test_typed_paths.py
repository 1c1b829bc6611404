"""Does any file of a data set tell how its source was typed, or where it lay?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.annotation_writer import boxed, coco_document, voc_object, voc_text, write_annotations
from tests.support.conversions import bytes_of, draw_folders, edited, run_convert
from tests.support.dicom_writer import write_volume
from tests.support.volume_support import save_nifti, write_table

VOLUMES: dict[str, Any] = {"depth": 5, "height": 8, "width": 9}
AFFINE = np.diag([2.0, 2.0, 3.0, 1.0])
BOX = (2, 3, 9, 11)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A source: how it is drawn into a folder, which file of it is named, and how it is converted.

    `images` is the folder of the images below the source, where that is named; `tables` are annotations that name
    files by whole paths, which begin with the name of the source's own folder in braces.
    """

    draw: Callable[[Path], object]
    options: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    images: str | None = None


def picture(path: Path, seed: int, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def pictures(root: Path) -> None:
    for number in range(4):
        picture(root / f"pictures/cam{number % 2}/{number}.png", number)
    picture(root / "elsewhere/9.png", 9)


def boxes(root: Path) -> None:
    """A table with boxes on files that are there, are not, lie outside the images' folder, and are ambiguous."""
    pictures(root)
    picture(root / "pictures/cam1/0.png", 5)
    names = ["cam0/0.png", "cam1/1.png", "other/2.png", "cam1/gone.png", "../elsewhere/9.png", "0.png"]
    names += ["pictures/cam1/3.png", "../pictures/cam0/2.png"]
    (root / "tables").mkdir()
    write_annotations(root / "tables", "csv", [boxed(name, BOX, width=30, height=20) for name in names])


def coco(root: Path) -> None:
    pictures(root)
    names = ("cam0/0.png", "cam1/1.png", "cam1/gone.png", "nowhere/2.png")
    (root / "annotations").mkdir()
    rows = [boxed(name, BOX, width=30, height=20) for name in names]
    (root / "annotations/instances_train.json").write_text(json.dumps(coco_document(rows)))


def voc(root: Path) -> None:
    (root / "Annotations").mkdir(parents=True)
    for name in ("0.png", "1.png", "gone.png"):
        if name != "gone.png":
            picture(root / "JPEGImages" / name, int(name[0]))
        (root / "Annotations" / f"{name[:-4]}.xml").write_text(voc_text(name, voc_object(boxed(name, BOX))))


def labels(root: Path) -> None:
    """A segmentation table of pictures whose rows lead upwards, one of them out of the images' folder."""
    pictures(root)
    for number in range(5):
        target = root / f"masks/{number}.png"
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((20, 30), number % 2, np.uint8)).save(target)
    rows = [(f"{n}", f"../pictures/cam{n % 2}/{n}.png", f"../masks/{n}.png") for n in range(4)]
    rows += [("9", "../../outside.png", "../masks/4.png"), ("8", "../pictures/gone.png", "../masks/4.png")]
    picture(root.parent / "outside.png", 7)
    write_table(root / "tables", rows).rename(root / "tables/pairs.csv")


def scans(root: Path) -> None:
    rows = []
    for number in range(3):
        generator = np.random.default_rng(number)
        voxels = generator.integers(-900, 900, (5, 8, 9)).astype(np.int16)
        save_nifti(root / f"ct/{number}.nii.gz", voxels, AFFINE)
        save_nifti(root / f"masks/{number}.nii.gz", (voxels > 0).astype(np.uint8), AFFINE)
        rows.append((f"scan{number}", f"ct/{number}.nii.gz", f"masks/{number}.nii.gz"))
    rows += [("gone", "ct/gone.nii.gz", ""), ("up", "../outside.nii.gz", "")]
    save_nifti(root.parent / "outside.nii.gz", np.zeros((5, 8, 9), np.int16), AFFINE)
    write_table(root, rows)


def series(root: Path) -> None:
    for number in range(2):
        voxels = np.random.default_rng(number).integers(-900, 900, (5, 8, 9)).astype(np.int16)
        write_volume(root / f"p{number}/ct", voxels, AFFINE, series=f"1.2.3.{number}")
    (root / "notes.txt").write_text("not DICOM")


def class_folders(root: Path) -> None:
    draw_folders(root, 8, broken=1)
    (root / "hat/gone.jpg").symlink_to("nowhere.jpg")


SHARES = ("train=0.5", "test=0.5")
CASES = {
    "folders": Case(draw=class_folders, options={"layout": "folders", "split_shares": SHARES, "shards": 2}),
    "boxes": Case(draw=boxes, options={"layout": "csv"}, file="tables/boxes.csv", images="pictures"),
    "boxes below one folder": Case(
        draw=boxes, options={"layout": "csv"}, file="tables/boxes.csv", images="."
    ),
    "coco": Case(draw=coco, options={"layout": "coco"}, images="pictures"),
    "voc": Case(draw=voc, options={"layout": "voc"}),
    "labels": Case(
        draw=labels, options={"layout": "csv", "task": "segmentation"}, file="tables/pairs.csv", images="."
    ),
    "scans": Case(draw=scans, options={"layout": "csv", "task": "segmentation", **VOLUMES}),
    "series": Case(draw=series, options={"layout": "dicom", **VOLUMES}),
}


def ways_to_type(root: Path) -> dict[str, tuple[Path, str]]:
    """By name: where to stand, and what to type there for the same folder."""
    above = root.parent
    (above / "deeper/still").mkdir(parents=True)
    (above / "link").symlink_to(root, target_is_directory=True)
    (above / "deeper/link to link").symlink_to("../link", target_is_directory=True)
    return {
        "absolute": (above, f"{root}"),
        "relative": (above, root.name),
        "with a dot": (above, f"./{root.name}"),
        "with a slash": (above, f"{root.name}/"),
        "with two slashes": (above, f"{above}//{root.name}//"),
        "from elsewhere": (above / "deeper/still", f"../../{root.name}"),
        "there and back": (above, f"{root.name}/../{root.name}"),
        "from inside": (root, "."),
        "a link": (above, "link"),
        "an absolute link": (root, f"{above / 'link'}/"),
        "a link to a link": (above / "deeper", "link to link"),
    }


def joined(folder: str, below: str) -> str:
    return folder if below in ("", ".") else f"{folder.rstrip('/')}/{below}"


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def drawn(name: str, folder: Path) -> tuple[Case, Path]:
    """A case, and where it lies."""
    root = folder / "home" / "set"
    root.mkdir(parents=True)
    CASES[name].draw(root)
    return CASES[name], root


FEW_WAYS = ("from elsewhere", "from inside", "a link to a link")
EVERY = ("folders", "boxes")
"""Which are tried in every way at once; of the others the ways beside the few are exhaustive."""


@pytest.mark.parametrize(
    ("name", "some"),
    [
        *((name, "every way") for name in EVERY),
        *((name, "few ways") for name in CASES if name not in EVERY),
        *(
            pytest.param(name, "the others", marks=pytest.mark.exhaustive)
            for name in CASES
            if name not in EVERY
        ),
    ],
)
def test_one_folder_typed_in_any_way_gives_the_same_bytes_in_every_file(name, some, tmp_path, monkeypatch):
    case, root = drawn(name, tmp_path)
    found = {}
    ways = ways_to_type(root)
    if some != "every way":
        chosen = {way for way in ways if (way in FEW_WAYS) == (some == "few ways")} | {"absolute"}
        ways = {way: typed for way, typed in ways.items() if way in chosen}
    for number, (way, (standing, typed)) in enumerate(ways.items()):
        monkeypatch.chdir(standing)
        images = None if case.images is None else joined(typed, case.images)
        out = os.path.relpath(tmp_path / f"out{number}") if number % 2 else tmp_path / f"out{number}"
        found[way] = bytes_of(joined(typed, case.file), out, images=images, **case.options)
        if number < 2:
            assert run_convert(joined(typed, case.file), out, images=images, **case.options).was_there
    changed = {way: differences(found["absolute"], found[way]) for way in ways}
    assert not any(changed.values()), changed


@pytest.mark.parametrize("name", CASES)
def test_a_copy_that_lies_elsewhere_gives_the_same_bytes_in_every_file(name, tmp_path, monkeypatch):
    case, root = drawn(name, tmp_path)
    moved = tmp_path / "another user" / "data" / "set"
    found = []
    for number, place in enumerate((root, moved)):
        if number:
            moved.parent.parent.mkdir()
            root.parent.rename(moved.parent)
        images = None if case.images is None else joined(str(place), case.images)
        source = joined(str(place), case.file)
        found.append(bytes_of(source, tmp_path / f"{number}", images=images, **case.options))
    assert differences(*found) == []
    for data in found[1].values():
        assert str(tmp_path).encode() not in data


def test_coco_with_whole_paths_gives_what_relative_paths_give(tmp_path):
    root = tmp_path / "set"
    coco(root)
    file = root / "annotations/instances_train.json"
    found = []
    for number in range(2):
        if number:
            with edited(file) as document:
                for entry in document["images"][:3]:
                    entry["file_name"] = f"{root}/pictures/{entry['file_name']}"
        found.append(bytes_of(root, tmp_path / f"{number}", layout="coco", images=str(root / "pictures")))
    assert differences(*found) == []


@pytest.mark.parametrize("task", ["boxes", "classes", "scans"])
def test_a_table_of_whole_paths_gives_what_one_of_relative_paths_gives(task, tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    if task == "scans":
        scans(root)
        write_table(root, [(n, f"ct/{n}.nii.gz", f"masks/{n % 3}.nii.gz") for n in range(4)])
        table = next(root.glob("*.csv"))
        options = {"layout": "csv", "task": "segmentation", **VOLUMES}
    else:
        pictures(root)
        box = "hat,2,3,9,11" if task == "boxes" else "hat"
        head = "filename,class,xmin,ymin,xmax,ymax" if task == "boxes" else "filename,class"
        names = [f"pictures/cam{n % 2}/{n}.png" for n in (0, 1, 2, 7)]
        table = root / "table.csv"
        table.write_text("\n".join([head, *(f"{name},{box}" for name in names)]) + "\n")
        options = {"layout": "csv"}
    found = []
    for number, before in enumerate(("", f"{root}/")):
        text = table.read_text()
        for folder in ("ct/", "masks/", "pictures/"):
            text = text.replace(folder, f"{before}{folder}")
        table.write_text(text)
        found.append(bytes_of(root, tmp_path / f"{number}", **options))
    assert differences(*found) == []


def test_a_label_map_of_another_name_gives_the_same_bytes(tmp_path):
    draw_folders(tmp_path / "set", 6)
    found = []
    for number, name in enumerate(("classes.txt", "elsewhere/names.txt")):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("shirt\nhat\n")
        found.append(
            bytes_of(tmp_path / "set", tmp_path / f"{number}", layout="folders", label_map=str(file))
        )
    assert differences(*found) == []


def test_the_scheme_of_another_data_set_is_kept_and_not_where_that_lies(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    scans(root)
    options = {"layout": "csv", "task": "segmentation", **VOLUMES}
    first = Path(run_convert(root, tmp_path / "first", **options).folder)
    shutil.copytree(first, tmp_path / "copy")
    found = []
    for number, like in enumerate((first, tmp_path / "copy")):
        found.append(bytes_of(root, tmp_path / f"{number}", normalize_like=str(like), **options))
    assert differences(*found) == []
