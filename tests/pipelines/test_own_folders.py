"""A conversion replaces and deletes what a conversion wrote, follows no link, and keeps the modes of files."""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pytest

from halofeed.errors import HalofeedError
from halofeed.pipelines import replace
from halofeed.storage.scratch import delete_dead_folders
from tests.support.conversions import all_bytes, draw_folders, run_convert

OPTIONS = {"layout": "folders", "shards": 2}
VERSION = "out/set/1.0.0"
SHARD = "set-train.tfrecord-00000-of-00002"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("drawn")
    draw_folders(root / "src", 8)
    run_convert(root / "src", root / "out", **OPTIONS)
    return root


def converted(drawn: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drawn / "out", tmp_path / "out")) / "set/1.0.0"


@pytest.mark.parametrize(
    "planted", [".manifest.json.incomplete", ".incomplete", "../.1.0.0.replacement", SHARD]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_that_lies_in_the_way_is_never_written_through(drawn, tmp_path, planted, overwrite):
    folder = converted(drawn, tmp_path) if overwrite else tmp_path / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    mine = tmp_path / "mine"
    if planted in (".incomplete", "../.1.0.0.replacement"):
        mine.mkdir()
        (mine / "notes.txt").write_text("mine")
    else:
        mine.write_text("mine")
    (folder / planted).unlink(missing_ok=True)
    (folder / planted).symlink_to(mine)
    is_refused = mine.is_dir() or not overwrite
    refusal = pytest.raises(HalofeedError, match=re.escape(planted.rpartition("/")[2]))
    with refusal if is_refused else contextlib.nullcontext():
        run_convert(drawn / "src", tmp_path / "out", overwrite=overwrite, height=20, **OPTIONS)
    found = {path.name: path.read_text() for path in ([mine] if mine.is_file() else mine.iterdir())}
    assert found in ({"mine": "mine"}, {"notes.txt": "mine"})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({SHARD: "tfds", "features.json": "{}", "dataset_info.json": "{}"}, f"{SHARD}.*move them away"),
        ({"manifest.json": '{"mine": 1}'}, "manifest.json: is no manifest of halofeed.*move it away"),
        ({".incomplete/notes.txt": "mine"}, r"\.incomplete: .*did not make it; move it away"),
    ],
)
def test_files_of_others_are_listed_and_not_replaced(drawn, tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / VERSION / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / VERSION / name).write_text(text)
    for overwrite in (False, True):
        with pytest.raises(HalofeedError, match=said):
            run_convert(drawn / "src", tmp_path / "out", overwrite=overwrite, **OPTIONS)
        assert {name: data.decode() for name, data in all_bytes(tmp_path / VERSION).items()} == files


def test_shards_that_no_manifest_names_and_a_folder_called_as_the_replacement_stay(drawn, tmp_path, capfd):
    folder = converted(drawn, tmp_path)
    extra = folder / "set-mine.tfrecord-00000-of-00001"
    extra.write_text("mine")
    run_convert(drawn / "src", tmp_path / "out", overwrite=True, height=20, **OPTIONS)
    assert extra.read_text() == "mine"
    beside = folder.parent / ".1.0.0.replacement"
    beside.mkdir()
    (beside / "notes.txt").write_text("mine")
    with pytest.raises(HalofeedError, match=r"replacement: .*move it away"):
        run_convert(drawn / "src", tmp_path / "out", overwrite=True, height=24, **OPTIONS)
    assert (beside / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("way", ["exchange", "file by file"])
def test_nobody_else_may_read_a_private_version_while_and_after_it_is_replaced(
    drawn, tmp_path, monkeypatch, way
):
    folder = converted(drawn, tmp_path)
    for path in folder.iterdir():
        path.chmod(0o600)
    keep, seen = replace.copy_modes, []
    monkeypatch.setattr(
        replace, "copy_modes", lambda new, old: (seen.append(os.stat(new).st_mode), keep(new, old))
    )
    if way != "exchange":
        monkeypatch.setattr(replace, "swap_paths", lambda one, other: False)
    run_convert(drawn / "src", tmp_path / "out", overwrite=True, height=20, **{**OPTIONS, "shards": 3})
    assert [stat.S_IMODE(mode) for mode in seen] == [0o700]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755 & ~os.umask(os.umask(0o022))


def test_a_folder_that_is_only_called_as_a_scratch_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("halofeed-scratch-thesis", ".halofeed-scratch-thesis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("years of work")
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    delete_dead_folders()
    assert len(list(tmp_path.glob("*/thesis.tex"))) + len(list(tmp_path.glob(".*/thesis.tex"))) >= 2
