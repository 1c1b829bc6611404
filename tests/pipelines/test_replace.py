"""A second command does nothing, or the committed version stands until a new one is whole, whatever happens."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import JobError, UsageError
from halofeed.inspection.verify import verify
from halofeed.loader import Loader
from halofeed.pipelines import replace
from halofeed.pipelines.lease import held
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.schemas.file_layout import index_file, index_file_1
from halofeed.schemas.manifest import Manifest, read_manifest
from halofeed.schemas.tfds import metadata_files
from halofeed.storage.scratch import scratch_folder
from tests.support.conversions import (
    CLASSES,
    all_bytes,
    bytes_of,
    convert_words,
    die_at,
    draw_folders,
    halofeed_here,
    run_convert,
)
from tests.support.level_rows import levels, others

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


def test_too_many_rejects_leave_the_committed_version_and_the_next_run_sweeps_or_ends_the_new_one(
    source, folder, tmp_path
):
    before = all_bytes(folder)
    (source / "hat/broken.jpg").write_bytes(b"no picture")
    words = r"is unchanged; the unfinished new version is in .*/\.1\.0\.0\.replacement"
    with pytest.raises(JobError, match=words):
        run_convert(source, tmp_path / "out", overwrite=True, max_rejected=0, **OPTIONS)
    assert all_bytes(folder) == before and verify(folder).ok and replacement(folder).exists()
    (source / "hat/broken.jpg").unlink()
    aside = shutil.copytree(replacement(folder), tmp_path / "aside")
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there
    assert all_bytes(folder) == before and not replacement(folder).exists()
    aside.rename(replacement(folder))
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)
    assert not replacement(folder).exists()


STEPS = ["-00001-of-00004", "features.json", "manifest.json", "remove"]
FEW, MORE = ["manifest.json", "exchange", "rename"], [*STEPS, "exchange", "rename", "rmdir"]
KILLS = levels(("exchange", FEW), long=[("exchange", MORE), ("file by file", [*STEPS, "take"])])


@pytest.mark.parametrize(("way", "places"), KILLS)
def test_a_kill_at_each_step_leaves_the_old_or_the_new_version(source, drawn, tmp_path, way, places):
    outs = {(place, when): tmp_path / f"{place} {when}" for place in places for when in ("before", "after")}
    for out in outs.values():
        shutil.copytree(drawn / "out", out)
        (out / "set/1.0.0/notes.txt").write_text("mine")
    before = all_bytes(out / "set/1.0.0")
    given = {"height": 20, "shards": 4, "workers": 1}
    die_at(*((*at, way, [*convert_words(source, out, **given), "--overwrite"]) for at, out in outs.items()))
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


def test_a_kill_that_left_only_the_empty_temporary_folder_lets_the_next_run_go_on(source, folder, tmp_path):
    (replacement(folder) / ".incomplete").mkdir(parents=True)
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert all_bytes(folder) == fresh_bytes(source, tmp_path) and not replacement(folder).exists()
    (replacement(folder) / ".incomplete").mkdir(parents=True)
    (replacement(folder) / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="halofeed did not make the folder"):
        run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS | {"shards": 2})


def test_without_an_exchange_the_files_move_one_by_one(source, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(replace, "swap_paths", lambda one, other: False)
    (folder / "notes.txt").write_text("mine")
    (folder / "more").mkdir()
    (folder / "more/notes.txt").write_text("mine too")
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **{**OPTIONS, "shards": 3})
    mine = {"notes.txt": b"mine", "more/notes.txt": b"mine too"}
    assert all_bytes(folder) == fresh_bytes(source, tmp_path, shards=3) | mine
    assert not replacement(folder).exists()


def to_format_1(folder: Path) -> None:
    """Give a data set the files and names of the first format of manifests."""
    now, splits = read_manifest(folder), {}
    for name, split in now.splits.items():
        shards = tuple(dataclasses.replace(shard, index=index_file_1(shard.file)) for shard in split.shards)
        splits[name] = dataclasses.replace(split, shards=shards)
        for new, old in zip(split.shards, shards, strict=True):
            (folder / new.index).rename(folder / old.index)
    then = dataclasses.replace(now, splits=splits, format_version=1)
    for file in metadata_files(now):
        (folder / file).unlink()
    for file, data in metadata_files(then).items():
        (folder / file).write_bytes(data)
    (folder / "manifest.json").write_text(then.to_json())


def test_a_data_set_of_format_1_is_read_and_what_it_lacks_may_be_the_users(source, folder, tmp_path):
    images = Loader(folder, batch_size=24).batch(0)["image"]
    to_format_1(folder)
    assert verify(folder).ok and np.array_equal(Loader(folder, batch_size=24).batch(0)["image"], images)
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there
    change(source)
    for name in ("croissant.json", "label_map.pbtxt"):
        (folder / name).write_text("mine")
        with pytest.raises(UsageError, match=f"{name}: halofeed did not write this file"):
            run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
        assert (folder / name).read_text() == "mine"
        (folder / name).unlink()


@pytest.mark.parametrize("form", [1, 2])
def test_shards_that_stay_the_same_are_taken_over_and_damaged_ones_made_again(source, folder, tmp_path, form):
    if form == 1:
        to_format_1(folder)
    before = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*[0-9]")}
    (source / "hat/0000.jpg").write_bytes((source / "hat/0002.jpg").read_bytes())
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert sum(before[name] != (folder / name).stat().st_ino for name in before) == 1
    fresh = fresh_bytes(source, tmp_path)
    assert all_bytes(folder) == fresh
    shard = folder / "set-train.tfrecord-00001-of-00004"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert all_bytes(folder) == fresh


def test_a_version_folder_that_is_a_link_stays_one_and_the_folder_keeps_its_mode(source, folder, tmp_path):
    folder.chmod(0o750)
    elsewhere = tmp_path / "disk/data"
    elsewhere.parent.mkdir()
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)
    change(source)
    run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    assert folder.is_symlink() and folder.resolve() == elsewhere and folder.stat().st_mode & 0o777 == 0o750
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)
    assert sorted(path.name for path in elsewhere.parent.iterdir()) == ["data"]


@pytest.mark.parametrize("content", levels(b"", b'{"format_version": 1, "', long=[b"\0" * 5000, b"\xff\xfe"]))
def test_an_unreadable_manifest_commits_nothing_and_a_rerun_resumes(source, folder, tmp_path, content):
    before = all_bytes(folder)
    inodes = {path.name: path.stat().st_ino for path in folder.glob("*.tfrecord-*")}
    (folder / "manifest.json").write_bytes(content)
    os.truncate(folder / "features.json", 0)
    os.truncate(folder / "set-train.tfrecord-00002-of-00004", 0)
    done = halofeed_here(*convert_words(source, tmp_path / "out", shards=4, workers=1))
    assert done.returncode == 0 and "is damaged, so the version is not committed" in done.stderr, done.stderr
    assert all_bytes(folder) == before
    kept = [name for name in inodes if (folder / name).stat().st_ino == inodes[name]]
    assert len(kept) == len(inodes) - 1
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there


IRREGULAR = {"pipe": os.mkfifo, "folder": os.mkdir}


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("of", [index_file, str])
def test_what_is_no_file_in_the_place_of_a_shard_or_its_index_is_rebuilt(source, folder, kind, of):
    before = all_bytes(folder)
    name = of("set-train.tfrecord-00000-of-00004")
    (folder / name).unlink()
    IRREGULAR[kind](folder / name)
    done = halofeed_here(*convert_words(source, folder.parents[1], shards=4, workers=1))
    assert done.returncode == 0, done.stderr
    assert all_bytes(folder) == before


def test_an_output_that_cannot_be_is_refused_in_words(source, tmp_path):
    for kind, make in IRREGULAR.items():
        (place := tmp_path / kind / "set/1.0.0/manifest.json").parent.mkdir(parents=True)
        make(place)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    said = dict.fromkeys(IRREGULAR, "manifest.json: expected a regular file")
    for out, words in (said | dict.fromkeys(("circle", "o" * 300), "cannot be made")).items():
        done = halofeed_here(*convert_words(source, tmp_path / out, workers=1))
        assert done.returncode == 2 and words in done.stderr and "Error" not in done.stderr, done.stderr


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_ino)
        for p in [folder, *folder.rglob("*")]
    }


def test_a_budget_below_what_a_committed_version_rejected_is_told_and_changes_nothing(tmp_path):
    draw_folders(tmp_path / "src", 10, broken=3)
    (tmp_path / "src/hat/notes.psd").write_bytes(b"left out on purpose")
    folder = Path(run_convert(tmp_path / "src", tmp_path / "out", **OPTIONS).folder)
    assert sum(Manifest.from_json((folder / "manifest.json").read_bytes(), "").rejected.values()) == 4
    before = state(folder)
    words = r"3 inputs were rejected and --max-rejected allows 2 \(3 x decode: "
    with pytest.raises(JobError, match=words):
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=2, **OPTIONS)
    assert run_convert(tmp_path / "src", tmp_path / "out", max_rejected=3, **OPTIONS).was_there
    assert state(folder) == before
    next(folder.glob("_index*")).unlink()
    before = state(folder)
    with pytest.raises(JobError, match="--max-rejected allows 2"):
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=2, **OPTIONS)
    assert state(folder) == before


def test_the_same_command_does_nothing_and_of_another_recipe_or_label_map_every_difference_is_named(
    source, folder, tmp_path
):
    before = state(folder)
    assert run_convert(source, tmp_path / "out", workers=2, threads=3, max_rejected=0, **OPTIONS).was_there
    with pytest.raises(UsageError) as caught:
        run_convert(source, tmp_path / "out", layout="folders", shards=3, height=20, interpolation="tf2-area")
    lines = str(caught.value).splitlines()
    assert "--overwrite" in lines[0] and "--version" in lines[0] and str(folder) in lines[0]
    assert lines[1:] == [
        "  --height: was 16, now 20",
        "  --interpolation: was 'antialias', now 'tf2-area'",
        "  --shards: was 4, now 3",
    ]
    (tmp_path / "labels.txt").write_text("shirt\nhat\n")
    with pytest.raises(UsageError, match="other sources or labels"):
        run_convert(source, tmp_path / "out", label_map=str(tmp_path / "labels.txt"), **OPTIONS)
    assert state(folder) == before


CHANGES = {
    "add": lambda source: shutil.copy(source / "hat/0000.jpg", source / "hat/new.jpg"),
    "remove": lambda source: (source / "hat/0000.jpg").unlink(),
    "enlarge": lambda source: os.truncate(source / "hat/0000.jpg", 1 << 20),
    "rename": lambda source: (source / "hat/0000.jpg").rename(source / "hat/0001b.jpg"),
    "reclass": lambda source: (source / "hat").rename(source / "cap"),
}


@pytest.mark.parametrize("change", others(CHANGES, ["remove", "enlarge"]))
def test_a_changed_source_is_an_error_until_overwritten(source, folder, tmp_path, change):
    before = state(folder)
    CHANGES[change](source)
    with pytest.raises(UsageError, match="was converted from other sources or labels"):
        run_convert(source, tmp_path / "out", **OPTIONS)
    assert state(folder) == before
    assert not run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS).was_there
    assert all_bytes(folder) == fresh_bytes(source, tmp_path)


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


HOLD = """
import os, sys, time
from halofeed.pipelines.lease import held
from halofeed.storage.scratch import scratch_folder
with held(sys.argv[1]), scratch_folder() as scratch:
    print(scratch, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A process that holds the version's folder as a run does, and its scratch folder."""
    folder = tmp_path / "out/set/1.0.0"
    folder.mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, folder, Path(process.stdout.readline().strip())
        process.kill()
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_second_run_ends_with_1_names_the_first_and_touches_nothing(source, tmp_path, holder):
    process, folder, _ = holder
    OutputFolder(str(folder)).begin()
    (folder / ".incomplete/references").write_text("the first run's")
    before = all_bytes(folder)
    done = halofeed_here(*convert_words(source, tmp_path / "out"))
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    said = f"process {process.pid}" if Path("/proc/locks").exists() else "another process"
    assert said in done.stderr and "is converting into it" in done.stderr
    assert all_bytes(folder) == before


def test_after_a_kill_the_next_run_goes_on_at_once_and_leaves_no_scratch_folder(source, tmp_path, holder):
    process, folder, scratch = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert scratch.is_dir()
    assert run_convert(source, tmp_path / "out", layout="folders").manifest
    assert not list((tmp_path / "tmp").iterdir())
    assert all_bytes(folder) == bytes_of(source, tmp_path / "fresh", layout="folders")


def test_scratch_folders_of_the_living_and_what_others_own_stay(tmp_path, holder):
    _, _, scratch = holder
    begun = tmp_path / "tmp/.halofeed-scratch-begun"
    others = [tmp_path / "tmp" / name for name in ("halofeed-mine", "someone-elses", "beam-pipeline-temp1")]
    for folder in (scratch, begun, *others):
        folder.mkdir(exist_ok=True)
        os.utime(folder, (time.time() - 3600,) * 2)
    young = tmp_path / "tmp/.halofeed-scratch-young"
    young.mkdir()
    with scratch_folder() as ours:
        assert all(folder.is_dir() for folder in (scratch, young, Path(ours), *others))
        assert not begun.exists()
    assert not Path(ours).exists() and scratch.is_dir()


@pytest.mark.parametrize("more", [{}, {"overwrite": True}])
def test_a_committed_version_that_another_run_holds_is_left_alone(source, folder, tmp_path, more):
    before = all_bytes(folder)
    said = f"(process {os.getpid()}|another process) is converting into it"
    with held(str(folder)), pytest.raises(JobError, match=said):
        run_convert(source, tmp_path / "out", **OPTIONS, **more)
    assert all_bytes(folder) == before and os.listdir(folder.parent) == ["1.0.0"]
    assert run_convert(source, tmp_path / "out", **OPTIONS).was_there
