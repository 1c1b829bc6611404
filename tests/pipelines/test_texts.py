"""Text that cannot be written costs its own input alone, and names mean the same whatever the locale."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import AnnotationsError, JobError
from tests.support.conversions import (
    all_bytes,
    convert_words,
    edited,
    halofeed,
    halofeed_here,
    read_all,
    rejected_entries,
    run_convert,
)
from tests.support.layout_sources import COUNT, LAYOUT_SOURCES, draw_masks, draw_pictures, draw_scans
from tests.support.level_rows import levels

REASON = "text holds a lone surrogate"
BAD = "\ud800"
"""Half of a pair of code units; it is no byte of a file's name either."""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def picture_rows() -> list[dict[str, Any]]:
    corners = {"xmin": 2, "ymin": 2, "xmax": 9, "ymax": 9}
    return [
        {"filename": f"{number}.png", "class": "hat", "id": f"id{number}", "group": f"g{number}"} | corners
        for number in range(COUNT)
    ]


@pytest.mark.parametrize("column", ["filename", "class", "id", "group"])
@pytest.mark.parametrize("shares", [(), ("train=0.5", "test=0.5")])
def test_a_row_whose_text_cannot_be_written_is_one_reject(tmp_path, column, shares):
    draw_pictures(tmp_path / "s", *(f"{number}.png" for number in range(COUNT)))
    rows = picture_rows()
    rows[1][column] += BAD
    write_lines(tmp_path / "s/t.jsonl", rows)
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="jsonl", split_shares=shares, split_seed=1)
    assert set(read_all(Path(done.folder), list(done.manifest.splits))) == {"0.png", "2.png", "3.png"}
    found = {entry["source"]: entry for entry in rejected_entries(done.folder)}
    entry = found["1.png\\ud800" if column == "filename" else "1.png"]
    assert (entry["stage"], entry["reason"]) == ("annotation", REASON) and r"\ud800' is no" in entry["detail"]


@pytest.mark.parametrize("column", ["id", "image", "label", "group"])
def test_a_row_of_scans_whose_text_cannot_be_written_is_one_reject(tmp_path, column):
    draw_scans(tmp_path / "s", *(f"{number}.nii" for number in range(COUNT)))
    draw_masks(tmp_path / "s", *(f"{number}_m.nii" for number in range(COUNT)))
    rows = [
        {"id": f"id{number}", "image": f"{number}.nii", "label": f"{number}_m.nii", "group": f"g{number}"}
        for number in range(COUNT)
    ]
    rows[1][column] += BAD
    write_lines(tmp_path / "s/t.jsonl", rows)
    options = {"layout": "jsonl", "task": "segmentation", "depth": 3, "height": 8, "width": 9}
    done = run_convert(tmp_path / "s", tmp_path / "o", **options)
    assert set(read_all(Path(done.folder), ["train"])) == {"0.nii", "2.nii", "3.nii"}
    rejects = [entry for entry in rejected_entries(done.folder) if entry["stage"] == "annotation"]
    assert len(rejects) == 1 and r"\ud800" in rejects[0]["detail"]


def bad_id(document: dict[str, Any]) -> None:
    document["images"][1]["id"] = document["annotations"][1]["image_id"] = f"x{BAD}"


def bad_file_name(document: dict[str, Any]) -> None:
    document["images"][1]["file_name"] = f"1{BAD}.png"


def bad_category(document: dict[str, Any]) -> None:
    document["categories"].append({"id": 2, "name": "coat" + BAD})
    document["annotations"][1]["category_id"] = 2


@pytest.mark.parametrize("change", [bad_id, bad_file_name, bad_category])
def test_a_coco_image_whose_text_cannot_be_written_is_one_reject(tmp_path, change):
    LAYOUT_SOURCES["coco"](tmp_path / "s")
    with edited(tmp_path / "s/instances.json") as document:
        change(document)
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="coco")
    assert set(read_all(Path(done.folder), ["train"])) == {f"images/{number}.png" for number in (0, 2, 3)}
    (entry,) = (one for one in rejected_entries(done.folder) if one["stage"] == "annotation")
    assert entry["reason"] == REASON
    assert set(done.manifest.labels.values()) == {"hat"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": f"hat{BAD}"}, r"class 'hat\\ud800'"),
        ({"keypoints": ["nose\udcff"]}, r"keypoint 'nose\\udcff'"),
    ],
)
def test_where_no_text_can_be_written_the_message_names_the_first(tmp_path, change, says):
    LAYOUT_SOURCES["coco"](tmp_path / "s")
    with edited(tmp_path / "s/instances.json") as document:
        document["categories"][0].update({"keypoints": ["nose"], **change})
        for annotation in document["annotations"]:
            annotation.update(keypoints=[3, 3, 2], num_keypoints=1)
    with pytest.raises(JobError, match=f"{says} is no Unicode text: correct it"):
        run_convert(tmp_path / "s", tmp_path / "o", layout="coco", keep=("keypoints",))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("layout", ["msd", "nnunet"])
def test_a_class_of_dataset_json_that_cannot_be_written_is_an_error_of_the_whole(tmp_path, layout):
    source = LAYOUT_SOURCES[layout](tmp_path / "s")
    file = tmp_path / "s/dataset.json"
    file.write_text(file.read_text().replace("liver", r"liver\ud800"))
    with pytest.raises(AnnotationsError, match=r"id 1 is 'liver\\ud800', which is not UTF-8"):
        run_convert(tmp_path / "s", tmp_path / "o", **source.options)


def test_remarks_that_repeat_such_text_are_written_with_escapes(tmp_path):
    LAYOUT_SOURCES["coco"](tmp_path / "s")
    with edited(tmp_path / "s/instances.json") as document:
        document["annotations"].append({**document["annotations"][0], "id": BAD, "bbox": [1, 1, BAD, 1]})
    (entry,) = rejected_entries(run_convert(tmp_path / "s", tmp_path / "o", layout="coco").folder)
    assert entry["stage"] == "object" and entry["detail"].startswith(r"annotation \ud800 bbox")


def test_an_annotation_can_name_a_file_that_is_not_utf8(tmp_path):
    draw_pictures(tmp_path / "s", "0.png")
    os.rename(tmp_path / "s/0.png", os.fsencode(tmp_path) + b"/s/caf\xe9.png")
    write_lines(tmp_path / "s/t.jsonl", [{"filename": "caf\udce9.png", "class": "hat"}])
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="jsonl")
    assert not done.manifest.rejected and done.manifest.splits["train"].records == 1


def odd_names(root: Path) -> None:
    """Pictures of which names and classes are not ASCII, and one whose name is not UTF-8."""
    names = ("h\u00e4t/a", "h\u00e4t/\u00fc", "coat/\U0001f9e5", "coat/b", "coat/c")
    draw_pictures(root, *(f"{name}.png" for name in names))
    os.rename(root / "coat/b.png", os.fsencode(root) + b"/coat/caf\xe9.png")
    (root / "coat/c.png").write_bytes(b"no picture")
    os.rename(root / "coat/c.png", os.fsencode(root) + b"/coat/\xe9.png")


@pytest.mark.parametrize(
    "environment", levels(C_LOCALE, long=[{"PYTHONIOENCODING": "ascii"}], exhaustive=[{"LC_ALL": "C"}])
)
def test_the_locale_changes_no_byte(tmp_path, monkeypatch, environment):
    odd_names(tmp_path / "s\u00f6")
    monkeypatch.chdir(tmp_path)
    words = convert_words("s\u00f6", "b", workers=1)
    done = halofeed(*words, env={**os.environ, "LC_ALL": "C.UTF-8", **environment}, encoding="utf-8")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    run_convert("s\u00f6", "a", layout="folders")
    assert all_bytes(tmp_path / "b") == all_bytes(tmp_path / "a")
    again = halofeed_here(*words)
    assert again.returncode == 0 and "already converted" in again.stdout, again.stderr


@pytest.mark.long
def test_the_locale_changes_no_byte_of_a_conversion_that_a_program_begins(tmp_path):
    odd_names(tmp_path / "s\u00f6")
    names = ("h\u00e4t/a.png", "\u00fc.png", str(tmp_path / "s\u00f6/coat/caf\udce9.png"))
    write_lines(tmp_path / "s\u00f6/t.jsonl", [{"filename": name, "class": "h\u00e4t"} for name in names])
    program = (
        "import sys; from tests.support.conversions import run_convert\n"
        "for layout in ('folders', 'jsonl'):\n"
        "    run_convert('s\u00f6'.encode().decode(sys.getfilesystemencoding(), 'surrogateescape'),\n"
        "        f'{sys.argv[1]}/{layout}', layout=layout, folders_are_classes=layout == 'folders')\n"
    )
    (tmp_path / "program.py").write_text(program, "utf-8")
    for out, environment in (("a", {"LC_ALL": "C.UTF-8"}), ("b", C_LOCALE)):
        subprocess.run(
            [sys.executable, "program.py", out],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
            check=True,
            timeout=120,
        )
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b")


def test_a_class_is_printed_where_the_terminal_cannot_show_it(tmp_path):
    draw_pictures(tmp_path / "s", "h\u00e4t/a.png", "coat/b.png")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    folder = run_convert(tmp_path / "s", tmp_path / "o", layout="folders").folder
    shown = halofeed("inspect", folder, env=environment)
    assert shown.returncode == 0 and r"h\xe4t" in shown.stdout, shown.stderr
