"""What does a second command do where a data set stands already?"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from halofeed.schemas.errors import AnnotationsError, JobError, UsageError
from halofeed.schemas.manifest import Manifest
from tests.support.conversions import CLASSES, all_bytes, bytes_of, draw_folders, run_convert

OPTIONS = {"layout": "folders", "shards": 2}


@pytest.fixture
def source(tmp_path) -> Path:
    return draw_folders(tmp_path / "src", 10)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_ino)
        for p in [folder, *folder.rglob("*")]
    }


def test_the_same_command_does_nothing_and_says_so(source, tmp_path):
    first = run_convert(source, tmp_path / "out", **OPTIONS)
    before = state(Path(first.folder))
    second = run_convert(source, tmp_path / "out", workers=2, threads=3, max_rejected=0, **OPTIONS)
    assert not first.was_there and second.was_there
    assert second.manifest == first.manifest
    assert state(Path(first.folder)) == before


def test_a_budget_below_what_a_committed_version_rejected_is_told_and_changes_nothing(tmp_path):
    draw_folders(tmp_path / "src", 10, broken=3)
    (tmp_path / "src/hat/notes.psd").write_bytes(b"left out on purpose")
    folder = Path(run_convert(tmp_path / "src", tmp_path / "out", **OPTIONS).folder)
    assert sum(Manifest.from_json((folder / "manifest.json").read_bytes(), "").rejected.values()) == 4
    before = state(folder)
    words = r"3 of its inputs were rejected and --max-rejected allows 2 \(3 x decode: "
    with pytest.raises(JobError, match=words):
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=2, **OPTIONS)
    assert run_convert(tmp_path / "src", tmp_path / "out", max_rejected=3, **OPTIONS).was_there
    assert state(folder) == before
    next(folder.glob("*.index")).unlink()
    before = state(folder)
    with pytest.raises(JobError, match="--max-rejected allows 2"):
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=2, **OPTIONS)
    assert state(folder) == before


def test_another_recipe_is_refused_and_every_difference_named(source, tmp_path):
    folder = Path(run_convert(source, tmp_path / "out", **OPTIONS).folder)
    before = state(folder)
    with pytest.raises(UsageError) as caught:
        run_convert(source, tmp_path / "out", layout="folders", shards=3, height=20, interpolation="tf2-area")
    lines = str(caught.value).splitlines()
    assert "--overwrite" in lines[0] and "--version" in lines[0] and str(folder) in lines[0]
    assert lines[1:] == [
        "  --height: was 16, now 20",
        "  --interpolation: was 'antialias', now 'tf2-area'",
        "  --shards: was 2, now 3",
    ]
    assert state(folder) == before


def enlarge(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


CHANGES = {
    "add": lambda source: shutil.copy(source / "hat/0000.jpg", source / "hat/new.jpg"),
    "remove": lambda source: (source / "hat/0000.jpg").unlink(),
    "enlarge": lambda source: enlarge(source / "hat/0000.jpg"),
    "rename": lambda source: (source / "hat/0000.jpg").rename(source / "hat/0001b.jpg"),
    "reclass": lambda source: (source / "hat").rename(source / "cap"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_source_is_an_error_until_overwritten(source, tmp_path, change):
    folder = Path(run_convert(source, tmp_path / "out", **OPTIONS).folder)
    before = state(folder)
    CHANGES[change](source)
    with pytest.raises(UsageError, match="was converted from other sources or labels"):
        run_convert(source, tmp_path / "out", **OPTIONS)
    assert state(folder) == before
    replaced = run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert not replaced.was_there
    assert all_bytes(folder) == bytes_of(source, tmp_path / "fresh", **OPTIONS)


def test_another_label_map_is_an_error(source, tmp_path):
    run_convert(source, tmp_path / "out", **OPTIONS)
    (tmp_path / "labels.txt").write_text("shirt\nhat\n")
    with pytest.raises(UsageError, match="other sources or labels"):
        run_convert(source, tmp_path / "out", label_map=str(tmp_path / "labels.txt"), **OPTIONS)


def test_a_failing_overwrite_leaves_the_old_set_committed(source, tmp_path):
    folder = Path(run_convert(source, tmp_path / "out", **OPTIONS).folder)
    before = all_bytes(folder)
    (tmp_path / "labels.txt").write_text("shirt\n")
    for problem in (
        {"label_map": str(tmp_path / "labels.txt")},
        {"label_map": str(tmp_path / "absent.txt")},
        {"split_shares": ("train=0.8",)},
    ):
        with pytest.raises((UsageError, AnnotationsError)):
            run_convert(source, tmp_path / "out", overwrite=True, **problem, **OPTIONS)
        assert all_bytes(folder) == before


def test_folders_with_awkward_names_work(tmp_path):
    """Beam's local file system takes paths for glob patterns."""
    place = tmp_path / "data[1] a*b what? ünï {x}"
    draw_folders(place / "src", 6)
    folder = Path(run_convert(place / "src", place / "out", layout="folders", shards=3).folder)
    (folder / "manifest.json").unlink()
    run_convert(place / "src", place / "out", layout="folders", shards=3)
    run_convert(place / "src", place / "out", layout="folders", shards=2, overwrite=True)
    draw_folders(tmp_path / "src", 6)
    assert all_bytes(folder) == bytes_of(tmp_path / "src", tmp_path / "plain", layout="folders", shards=2)


def test_a_source_inside_out_is_fine_and_out_inside_the_source_is_refused(tmp_path):
    draw_folders(tmp_path / "data/src", 6)
    assert run_convert(tmp_path / "data/src", tmp_path / "data", **OPTIONS).manifest
    for out in (tmp_path / "data/src", tmp_path / "data/src/converted"):
        before = all_bytes(tmp_path / "data/src")
        with pytest.raises(UsageError, match="lies inside --source"):
            run_convert(tmp_path / "data/src", out, **OPTIONS)
        assert all_bytes(tmp_path / "data/src") == before


def test_a_named_annotation_file_may_lie_beside_the_output(tmp_path, monkeypatch):
    draw_folders(tmp_path, 6)
    rows = [f"{label}/{number:04d}.jpg,{label}" for number, label in enumerate(CLASSES * 3)]
    (tmp_path / "labels.csv").write_text("\n".join(["filename,class", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    for was_there in (False, True):
        done = run_convert("labels.csv", "out", layout="csv")
        assert done.was_there == was_there and done.manifest.splits["train"].records == 6
    assert not done.manifest.rejected


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_shard_or_index_that_went_missing_is_made_again(source, tmp_path, suffix):
    folder = Path(run_convert(source, tmp_path / "out", **OPTIONS).folder)
    before = all_bytes(folder)
    (folder / f"set-train.tfrecord-00001-of-00002{suffix}").unlink()
    assert not run_convert(source, tmp_path / "out", **OPTIONS).was_there
    assert all_bytes(folder) == before
