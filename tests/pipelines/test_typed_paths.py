"""Does any file of a data set tell how its source was typed, or where it lay?"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.annotation_writer import boxed, write_annotations
from tests.support.conversions import bytes_of, draw_folders, run_convert
from tests.support.layout_sources import LAYOUT_SOURCES
from tests.support.level_rows import levels
from tests.support.volume_support import write_table

BOX = (2, 3, 9, 11)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A source: how it is drawn into a folder, which file of it is named, and how it is converted.

    `images` is the folder of the images below the source, where that is named; `tables` are annotations that name
    files by whole paths, which begin with the name of the source's own folder in braces.
    """

    draw: Callable[[Path], object] = bool
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


BOXED = {"draw": boxes, "options": {"layout": "csv"}, "file": "tables/boxes.csv"}
LABELED = {"layout": "csv", "task": "segmentation"}
CASES = {
    "boxes": Case(**BOXED, images="pictures"),
    "boxes below one folder": Case(**BOXED, images="."),
    "labels": Case(draw=labels, options=LABELED, file="tables/pairs.csv", images="."),
}
NAMES = ("folders", *CASES, "coco", "voc", "scan table", "dicom")


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
    """A case or a source of a layout, of which a file is damaged and another is missing, and where it lies."""
    root = folder / "home" / "set"
    root.mkdir(parents=True)
    if name in CASES:
        CASES[name].draw(root)
        return CASES[name], root
    source = LAYOUT_SOURCES[name](root)
    (root / source.images[1][0]).write_bytes(b"damaged")
    (root / source.images[2][0]).unlink()
    (root / source.images[2][0]).symlink_to("nowhere")
    more = {"split_shares": ("train=0.5", "test=0.5"), "shards": 2} if name == "folders" else {}
    return Case(options=source.options | more), root


FEW_WAYS = ("from elsewhere", "from inside", "a link to a link")
EVERY = ("folders",)
OTHERS = [name for name in NAMES if name not in EVERY]
"""Which are tried in every way at once; of the others the ways beside the few are exhaustive."""


@pytest.mark.parametrize(
    ("name", "some"),
    levels(
        *((name, "every way") for name in EVERY),
        *((name, "few ways") for name in OTHERS),
        long=[("boxes", "the others")],
        exhaustive=[(name, "the others") for name in OTHERS if name != "boxes"],
    ),
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


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("layout", ["csv", "coco", "scan table"])
def test_annotations_with_whole_paths_give_what_relative_paths_give(layout, tmp_path):
    source = LAYOUT_SOURCES[layout](root := tmp_path / "set")
    (root / source.images[2][0]).unlink()
    table, found = root / source.tables[0], []
    for number, before in enumerate(("", f"{root}/")):
        text = table.read_text()
        for folder in ("ct/", "seg/", "pictures/", "images/"):
            text = text.replace(folder, f"{before}{folder}")
        table.write_text(text)
        found.append(bytes_of(root, tmp_path / f"{number}", **source.options))
    assert differences(*found) == []


def test_a_label_map_of_another_name_gives_the_same_bytes(tmp_path):
    draw_folders(tmp_path / "set", 6)
    found = []
    for number, name in enumerate(("classes.txt", "elsewhere/names.txt")):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("shirt\nhat\n")
        options = {"layout": "folders", "label_map": str(file)}
        found.append(bytes_of(tmp_path / "set", tmp_path / f"{number}", **options))
    assert differences(*found) == []


def test_the_scheme_of_another_data_set_is_kept_and_not_where_that_lies(tmp_path):
    options = LAYOUT_SOURCES["scan table"](root := tmp_path / "set").options
    first = Path(run_convert(root, tmp_path / "first", **options).folder)
    shutil.copytree(first, tmp_path / "copy")
    found = []
    for number, like in enumerate((first, tmp_path / "copy")):
        found.append(bytes_of(root, tmp_path / f"{number}", normalize_like=str(like), **options))
    assert differences(*found) == []
