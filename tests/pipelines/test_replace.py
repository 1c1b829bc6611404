"""A committed version stands until a new one is whole, whatever happens to the run that makes it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halofeed.inspection.verify import verify
from halofeed.pipelines import replace
from halofeed.schemas.errors import JobError
from halofeed.schemas.manifest import read_manifest
from tests.support.conversions import (
    all_bytes,
    convert_words,
    die_at,
    draw_folders,
    halofeed_here,
    run_convert,
    start,
)

OPTIONS = {"layout": "folders", "shards": 4}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A source and what it is converted to, with OPTIONS and 20 pixels high; each test has a copy of its own."""
    root = tmp_path_factory.mktemp("drawn")
    draw_folders(root / "src", 24)
    run_convert(root / "src", root / "out", **OPTIONS)
    run_convert(root / "src", root / "higher", height=20, **OPTIONS)
    return root


@pytest.fixture
def source(drawn, tmp_path) -> Path:
    return Path(shutil.copytree(drawn / "src", tmp_path / "src"))


@pytest.fixture
def folder(drawn, tmp_path) -> Path:
    return Path(shutil.copytree(drawn / "out", tmp_path / "out")) / "set/1.0.0"


def change(source: Path) -> None:
    draw_folders(source, 30)


def fresh_bytes(source: Path, tmp_path: Path, **options: object) -> dict[str, bytes]:
    return all_bytes(Path(run_convert(source, tmp_path / "fresh", **{**OPTIONS, **options}).folder))


def replacement(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.replacement"


def test_too_many_rejects_leave_the_committed_version(source, folder, tmp_path):
    before = all_bytes(folder)
    (source / "hat/broken.jpg").write_bytes(b"no picture")
    words = r"is as it was; what there is of the new version lies in .*/\.1\.0\.0\.replacement"
    with pytest.raises(JobError, match=words):
        run_convert(source, tmp_path / "out", overwrite=True, max_rejected=0, **OPTIONS)
    assert all_bytes(folder) == before and verify(folder).ok
    (source / "hat/broken.jpg").unlink()
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)
    assert not replacement(folder).exists()


def test_a_full_disk_leaves_the_committed_version(source, folder, tmp_path):
    before = all_bytes(folder)
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); "
        "from halofeed.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = convert_words(source, tmp_path / "out", height=64, width=64, shards=1, workers=1)
    done = subprocess.run(
        [sys.executable, "-c", limited, *words, "--overwrite"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "is as it was" in done.stderr and "Traceback" not in done.stderr
    assert all_bytes(folder) == before and verify(folder).ok


STEPS = ["-00001-of-00004", "features.json", "manifest.json"]


@pytest.mark.parametrize(
    ("way", "places"),
    [
        ("exchange", [*STEPS, "exchange", "rename", "remove", "rmdir"]),
        pytest.param("file by file", [*STEPS, "take", "remove"], marks=pytest.mark.long),
    ],
)
def test_a_kill_at_each_step_leaves_the_old_or_the_new_version(source, drawn, tmp_path, way, places):
    outs = {(place, when): tmp_path / f"{place} {when}" for place in places for when in ("before", "after")}
    for out in outs.values():
        shutil.copytree(drawn / "out", out)
        (out / "set/1.0.0/notes.txt").write_text("mine")
    before = all_bytes(out / "set/1.0.0")
    die_at(
        *(
            (*case, way, [*convert_words(source, out, height=20, shards=4, workers=1), "--overwrite"])
            for case, out in outs.items()
        )
    )
    wanted = all_bytes(drawn / "higher/set/1.0.0") | {"notes.txt": b"mine"}
    for case, out in outs.items():
        folder = out / "set/1.0.0"
        if way == "exchange":
            found = all_bytes(folder)
            found["notes.txt"] = b"mine"  # moves after the exchange
            assert found in (before, wanted), case
        run_convert(source, out, overwrite=True, height=20, **OPTIONS)
        assert all_bytes(folder) == wanted, case
        assert not replacement(folder).exists(), case


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, marks=pytest.mark.long), pytest.param(12, marks=pytest.mark.exhaustive)]
)
def test_whenever_an_overwrite_is_killed_one_whole_version_stands(source, tmp_path, rounds):
    draw_folders(source, 60, side=200)

    def words(height: int, workers: int) -> list[str]:
        given = convert_words(source, tmp_path / "out", height=height, width=160, shards=4, workers=workers)
        return [*given, "--overwrite"]

    assert halofeed_here(*words(160, 1)).returncode == 0
    folder = tmp_path / "out/set/1.0.0"
    generator = random.Random(9)
    kills = 0
    for number in range(rounds):
        before = all_bytes(folder)
        height, workers = 161 + number, 1 + number % 2
        process = start(words(height, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shards = generator.randrange(5)
        while len(list(replacement(folder).glob("*.index"))) < shards and process.poll() is None:
            time.sleep(0.002)
        time.sleep(0.1 * generator.random())
        process.kill()
        kills += process.wait() != 0
        assert verify(folder).ok
        if all_bytes(folder) != before:
            assert read_manifest(folder).recipe["height"] == height
            continue
        assert halofeed_here(*words(height, 1)).returncode == 0
        assert verify(folder).ok
        assert read_manifest(folder).recipe["height"] == height
        assert not replacement(folder).exists()
    assert kills


def test_without_an_exchange_the_files_move_one_by_one(source, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(replace, "exchange", lambda one, other: False)
    (folder / "notes.txt").write_text("mine")
    (folder / "more").mkdir()
    (folder / "more/notes.txt").write_text("mine too")
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **{**OPTIONS, "shards": 3})
    mine = {"notes.txt": b"mine", "more/notes.txt": b"mine too"}
    assert all_bytes(folder) == fresh_bytes(source, tmp_path, shards=3) | mine
    assert not replacement(folder).exists()


def test_shards_that_stay_the_same_are_taken_over_and_not_made_again(source, folder, tmp_path):
    before = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")}
    (source / "hat/0000.jpg").write_bytes((source / "hat/0002.jpg").read_bytes())
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    after = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")}
    assert sum(before[name] != after[name] for name in before) == 2  # a shard and its index
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)


def test_a_shard_that_is_damaged_is_made_again_and_the_others_are_kept(source, folder, tmp_path):
    before = all_bytes(folder)
    shard = folder / "set-train.tfrecord-00001-of-00004"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert all_bytes(folder) == before


def test_a_version_folder_that_is_a_link_stays_one(source, folder, tmp_path):
    elsewhere = tmp_path / "disk/data"
    elsewhere.parent.mkdir()
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert folder.is_symlink() and folder.resolve() == elsewhere
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)
    assert sorted(path.name for path in elsewhere.parent.iterdir()) == ["data"]


def test_the_mode_of_the_folder_stays(source, folder, tmp_path):
    folder.chmod(0o750)
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert folder.stat().st_mode & 0o777 == 0o750


def test_a_replacement_that_nobody_finishes_is_swept_by_the_next_plain_run(source, folder, tmp_path):
    before = all_bytes(folder)
    (source / "hat/broken.jpg").write_bytes(b"no picture")
    with pytest.raises(JobError):
        run_convert(source, tmp_path / "out", overwrite=True, max_rejected=0, **OPTIONS)
    (source / "hat/broken.jpg").unlink()
    assert replacement(folder).exists()
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there
    assert all_bytes(folder) == before and not replacement(folder).exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b'{"format_version": 1, "name', b"\xff\xfe\x00"])
def test_a_manifest_that_cannot_be_read_commits_nothing_and_the_same_command_goes_on(
    source, folder, tmp_path, content
):
    before = all_bytes(folder)
    inodes = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")}
    (folder / "manifest.json").write_bytes(content)
    os.truncate(folder / "features.json", 0)
    os.truncate(folder / "set-train.tfrecord-00002-of-00004", 0)
    done = halofeed_here(*convert_words(source, tmp_path / "out", shards=4, workers=1))
    assert done.returncode == 0 and "is damaged and so commits nothing" in done.stderr, done.stderr
    assert all_bytes(folder) == before
    kept = [name for name in inodes if (folder / name).stat().st_ino == inodes[name]]
    assert len(kept) == len(inodes) - 2
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there


IRREGULAR = {"pipe": os.mkfifo, "folder": os.mkdir}


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("suffix", [".index", ""])
def test_what_is_no_file_in_the_place_of_a_shard_or_its_index_is_rebuilt(source, folder, kind, suffix):
    before = all_bytes(folder)
    name = f"set-train.tfrecord-00000-of-00004{suffix}"
    (folder / name).unlink()
    IRREGULAR[kind](folder / name)
    done = halofeed_here(*convert_words(source, folder.parents[1], shards=4, workers=1))
    assert done.returncode == 0, done.stderr
    assert all_bytes(folder) == before


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_manifest_that_is_no_file_is_refused_by_name(source, tmp_path, kind):
    place = tmp_path / "other/set/1.0.0/manifest.json"
    place.parent.mkdir(parents=True)
    IRREGULAR[kind](place)
    done = halofeed_here(*convert_words(source, tmp_path / "other", workers=1))
    assert done.returncode == 2
    assert "manifest.json: expected a regular file" in done.stderr


@pytest.mark.parametrize("kind", ["circle", "long"])
def test_a_folder_that_cannot_be_is_refused_in_words(source, tmp_path, kind):
    out = tmp_path / ("o" * 300 if kind == "long" else "circle")
    if kind == "circle":
        out.symlink_to(out)
    done = halofeed_here(*convert_words(source, out, workers=1))
    assert done.returncode == 2
    assert "cannot be made" in done.stderr and "Error" not in done.stderr
