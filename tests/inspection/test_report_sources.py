"""Whose pictures does a report show beside the stored ones, and what does it say where it shows none?"""

import dataclasses
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import UsageError
from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.html.report import write_report
from halofeed.pipelines.source_registry import SourceLocations, recall, remember
from halofeed.schemas.manifest import read_manifest
from tests.inspection.test_report import DRAWN_BY_DEFAULT, change, make, report
from tests.support.conversions import draw_folders, run_convert
from tests.support.dataset_writer import Drawn
from tests.support.pages import images

NOT_YOURS = "you did not convert this one at this path"
OPTIONS = {"layout": "folders", "height": 16, "width": 24}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def draw_sources(photos: Path) -> None:
    for example in DRAWN_BY_DEFAULT:
        (photos / example.key).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((56, 96, 3), np.uint8)).save(photos / example.key, "PNG")


def convert_photos(tmp_path: Path) -> Path:
    draw_folders(tmp_path / "photos", 6)
    return Path(run_convert(tmp_path / "photos", tmp_path / "out", **OPTIONS).folder)


def test_no_folder_that_a_foreign_data_set_names_is_opened(tmp_path: Path) -> None:
    draw_sources(tmp_path / "private")
    folder = make(tmp_path)
    change(folder, inputs={"images": str(tmp_path / "private"), "source": str(tmp_path), "count": 18})
    _, page = report(folder)
    assert len(images(page, "samples")) == 12 and NOT_YOURS in page.words("samples")
    assert f"halofeed report {folder} --sources FOLDER" in page.words("samples")
    _, page = report(folder, sources=str(tmp_path / "private"))
    assert len(images(page, "samples")) == 24 and NOT_YOURS not in page.words("samples")


@pytest.mark.parametrize("name", ["../private/{}", "{root}/private/{}", "x/../../private/{}"])
def test_a_record_that_names_a_file_outside_of_the_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    draw_sources(tmp_path / "private")
    (tmp_path / "mine" / "x").mkdir(parents=True)

    def alter(example: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "image/filename": name.format(example.key, root=tmp_path).encode()}

    _, page = report(make(tmp_path, alter=alter), sources=str(tmp_path / "mine"))
    assert len(images(page, "samples")) == 12
    assert page.words("samples").count("names a file outside of the sources") == 12


def test_sources_of_a_conversion_of_ones_own_are_shown_and_found_again_and_those_of_a_copy_are_a_strangers(
    tmp_path,
):
    folder = convert_photos(tmp_path)
    for path in (folder, tmp_path / "link"):
        if path != folder:
            path.symlink_to(folder)
        _, page = report(path, output=tmp_path / "report.html")
        assert len(images(page, "samples")) == 12
        assert f"Converted from {tmp_path / 'photos'} by" in page.words("recipe")
    assert f'source: "{tmp_path / "photos"}"' in describe_dataset(folder)
    assert str(tmp_path).encode() not in (folder / "manifest.json").read_bytes()
    (tmp_path / "photos").rename(tmp_path / "moved")
    _, page = report(folder)
    assert f"The source pictures are no longer at {tmp_path / 'photos'}" in page.words("samples")
    assert f"halofeed report {folder} --sources FOLDER" in page.words("samples")
    assert run_convert(tmp_path / "moved", tmp_path / "out", **OPTIONS).was_there
    _, page = report(folder)
    assert len(images(page, "samples")) == 12
    shutil.copytree(folder, tmp_path / "copy")
    change(folder, software={"halofeed": "9"})
    for stranger in (tmp_path / "copy", folder):
        _, page = report(stranger)
        assert len(images(page, "samples")) == 6 and NOT_YOURS in page.words("samples")


@pytest.mark.parametrize("where", ["/proc/nothing", "file"])
def test_an_unwritable_state_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / where))
    _, page = report(convert_photos(tmp_path))
    assert len(images(page, "samples")) == 6 and NOT_YOURS in page.words("samples")


def test_without_a_home_nothing_is_remembered_and_nothing_fails(tmp_path, monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr(Path, "home", homeless)
    manifest = read_manifest(make(tmp_path))
    assert not remember(str(tmp_path), manifest, SourceLocations(source="/a", images="/b"))
    assert recall(str(tmp_path), manifest) is None


def test_what_is_remembered_is_readable_for_its_owner_alone_and_bounded(tmp_path, state, monkeypatch):
    monkeypatch.setattr("halofeed.pipelines.source_registry.MAX_KEPT", 3)
    manifest, origin = read_manifest(make(tmp_path)), SourceLocations(source="/a/\udcff", images="/b")
    registry = state / "halofeed" / "data-sets"
    for number in range(5):
        assert remember(f"{tmp_path}/{number}", manifest, origin)
        for age, file in enumerate(sorted(registry.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(file, (age, age))
    modes = [path.stat().st_mode & 0o777 for path in (registry, *registry.iterdir())]
    assert modes == [0o700, 0o600, 0o600, 0o600]
    found = [recall(f"{tmp_path}/{number}", manifest) for number in range(5)]
    assert found == [None, None, origin, origin, origin]
    other = dataclasses.replace(manifest, version="1.0.1")
    assert recall(f"{tmp_path}/4", other) is None and recall("gs://bucket/set", manifest) is None
    assert remember("gs://bucket/set/", manifest, origin) and recall("gs://bucket/set", manifest) == origin


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 5000, '{"folder": 1}', "1" * 5000, "\0", "pipe"])
def test_what_stands_in_its_place_is_passed_over(tmp_path: Path, state: Path, content: str) -> None:
    manifest = read_manifest(make(tmp_path))
    assert remember(str(tmp_path), manifest, SourceLocations(source="/a", images="/b"))
    (file,) = (state / "halofeed" / "data-sets").iterdir()
    file.unlink()
    if content == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    assert recall(str(tmp_path), manifest) is None


def test_named_sources_that_are_not_there_have_changed_or_are_damaged_are_said(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    _, page = report(folder, sources=str(tmp_path / "elsewhere"))
    assert page.words("samples").count("file cannot be read (No such file or directory)") == 12
    with pytest.raises(UsageError, match="no such folder"):
        write_report(folder, sources=str(tmp_path / "never"))
    draw_sources(tmp_path / "photos")
    for example in DRAWN_BY_DEFAULT[::2]:
        (tmp_path / "photos" / example.key).write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    _, page = report(folder, sources=str(tmp_path / "photos"), samples=18)
    words = page.words("samples")
    assert words.count("has changed since the conversion") == 9
    assert words.count("the source picture cannot be shown: decode: ") == 9
    assert len(images(page, "samples")) == 27


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_frame_on_the_source_shows_the_place_of_a_tile_and_no_other_sizing_is_proposed(
    tmp_path: Path, scale: float
) -> None:
    folder = tmp_path / "photos/hat"
    folder.mkdir(parents=True)
    Image.new("RGB", (120, 90), (9, 99, 199)).save(folder / "a.png")
    (tmp_path / "photos/shirt").mkdir()
    Image.new("RGB", (100, 30), (99, 9, 199)).save(tmp_path / "photos/shirt/b.png")
    done = run_convert(
        tmp_path / "photos", tmp_path / "out", layout="folders", fit="tiles", height=40, width=40, scale=scale
    )
    source = write_report(done.folder, tmp_path / "page.html").read_text("utf-8")
    expected = set()
    for height, width in ((90, 120), (30, 100)):
        scaled = round(height * scale), round(width * scale)
        tops, lefts = (np.linspace(0, max(0, side - 40), -(-side // 40)).round() for side in scaled)
        for top in tops:
            for left in lefts:
                sides = min(40, scaled[1] - left) / scaled[1], min(40, scaled[0] - top) / scaled[0]
                shares = left / scaled[1], top / scaled[0], *sides
                expected.add(tuple(f"{100 * share:.2f}" for share in shares))
    frame = r"tile-frame\" style=\"left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%"
    assert set(re.findall(frame, source)) == expected
    assert "The white frame is the tile" in source and "aspect kept within" not in source
