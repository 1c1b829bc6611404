"""Changed source files of the same size are noticed: between two commands, and while they are read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import JobError, UsageError
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.references import FileByShard, largest_first, read_file, read_shard
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources import files
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import (
    all_bytes,
    bytes_of,
    draw_folders,
    edited,
    planned,
    run_convert,
    shard_job,
)
from tests.support.dicom_writer import draw_series
from tests.support.volume_support import save_nifti, write_table

FOLDERS = {"layout": "folders", "shards": 2}
SCANS = {"layout": "csv", "task": "segmentation", "depth": 8, "height": 16, "width": 16, "shards": 2}
DICOM = {"layout": "dicom", "depth": 8, "height": 16, "width": 16}


def write_scans(root: Path) -> Path:
    """Two scans with their masks."""
    for name in ("a", "b"):
        save_nifti(root / f"{name}.nii", np.arange(2048, dtype=np.int16).reshape(8, 16, 16))
        save_nifti(root / f"{name}-mask.nii", np.ones((8, 16, 16), np.uint8))
    write_table(root, [(name, f"{name}.nii", f"{name}-mask.nii") for name in ("a", "b")])
    return root


def alter(path: Path) -> None:
    """Change a byte of the voxels in place."""
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte ^ 3]))


def alter_and_set_the_times_back(path: Path) -> None:
    before = path.stat()
    alter(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def put_another_file_there(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    alter(new)
    new.replace(path)


SOURCES = {
    "a mask": (write_scans, SCANS, "b-mask.nii", alter),
    "a mask with its old time": (write_scans, SCANS, "b-mask.nii", alter_and_set_the_times_back),
    "a scan": (write_scans, SCANS, "b.nii", put_another_file_there),
    "a picture": (lambda root: draw_folders(root, 4), FOLDERS, "hat/0000.jpg", alter),
    "a slice": (lambda root: draw_series(root, 1, 4), DICOM, "*/*2.dcm", alter),
}


@pytest.mark.parametrize(("case", "settled_ns"), [*((case, 0) for case in SOURCES), ("a mask", 2 * 10**9)])
def test_another_content_of_the_same_size_is_refused_until_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, settled_ns: int
) -> None:
    monkeypatch.setattr(files, "_SETTLED_NS", settled_ns)
    write, options, name, change = SOURCES[case]
    source = write(tmp_path / "src")
    folder = Path(run_convert(source, tmp_path / "out", **options).folder)
    before = all_bytes(folder)
    assert run_convert(source, tmp_path / "out", **options).was_there
    (path,) = source.glob(name)
    change(path)
    with pytest.raises(UsageError, match=r"other sources or labels: .* has changed.*--overwrite") as caught:
        run_convert(source, tmp_path / "out", **options)
    assert path.name in str(caught.value) or case == "a slice"
    assert all_bytes(folder) == before
    run_convert(source, tmp_path / "out", overwrite=True, **options)
    assert all_bytes(folder) == bytes_of(source, tmp_path / "fresh", **options) != before


def test_files_that_are_as_they_were_are_not_read_again_and_touched_ones_are_compared(tmp_path, monkeypatch):
    source = draw_folders(tmp_path / "src", 4)
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    read: list[str] = []
    for name in ("read", "open"):
        whole = getattr(LocalFiles, name)
        monkeypatch.setattr(
            LocalFiles, name, lambda self, path, whole=whole: (read.append(path), whole(self, path))[1]
        )
    for count in (4, 0):
        run_convert(source, tmp_path / "out", **FOLDERS)
        assert len(read) == count
        read.clear()
    os.utime(source / "hat/0000.jpg")
    for count in (4, 0):
        assert run_convert(source, tmp_path / "out", **FOLDERS).was_there and len(read) == count
        read.clear()
    registry = Path(os.environ["XDG_STATE_HOME"], "halofeed/data-sets")
    (state,) = (one for one in registry.glob("*.json") if str(tmp_path) in one.read_text())
    with edited(state) as document:
        document["stamps"] = document["stamps"][::-1]
    assert run_convert(source, tmp_path / "out", **FOLDERS).was_there and len(read) == 4
    monkeypatch.setattr(files, "_SETTLED_NS", 10**15)  # all of them were changed a moment ago
    for _ in range(2):
        read.clear()
        assert run_convert(source, tmp_path / "out", **FOLDERS).was_there and len(read) == 4


WHILE_READ: dict[str, tuple[Callable[[Path], Path], dict[str, object], str]] = {
    "pictures": (lambda root: draw_folders(root, 4), FOLDERS, "hat/0000.jpg"),
    "masks": (write_scans, SCANS, "b-mask.nii"),
    "slices": (lambda root: draw_series(root, 1, 4), DICOM, "*/*2.dcm"),
}


@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("case", WHILE_READ)
def test_a_file_that_changes_while_it_is_converted_is_read_again_or_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, times: int
) -> None:
    write, options, name = WHILE_READ[case]
    source = write(tmp_path / "src")
    (changing,) = source.glob(name)
    whole, left = LocalFiles.read, [times]

    def read(self: LocalFiles, path: str) -> bytes:
        data = whole(self, path)
        if Path(self.root, path) == changing and left[0]:
            left[0] -= 1
            alter(changing)
        return data

    monkeypatch.setattr(LocalFiles, "read", read)
    monkeypatch.setattr("halofeed.pipelines.inputs._PAUSE_SECONDS", 0.0)
    if times > 1:
        with pytest.raises(JobError, match=f"{changing.name}: was changed while it was converted"):
            run_convert(source, tmp_path / "out", **options)
        assert not (tmp_path / "out/set/1.0.0/manifest.json").exists()
        left[0] = 0
    folder = Path(run_convert(source, tmp_path / "out", **options).folder)
    assert run_convert(source, tmp_path / "out", **options).was_there
    assert all_bytes(folder) == bytes_of(source, tmp_path / "fresh", **options)


def test_references_that_changed_where_they_wait_for_their_shard_end_the_job(tmp_path: Path) -> None:
    source, recipe = draw_folders(tmp_path / "src", 12), Recipe(layout="folders", height=8, width=8, shards=3)
    plan, lines = planned(source, tmp_path / "a", recipe)
    numbered, by_shard = OutputFolder(str(tmp_path / "a")), OutputFolder(str(tmp_path / "b"))
    FileByShard(by_shard, recipe.shards).take_over(numbered, 1, plan.splits)
    job = shard_job(recipe, plan, source, tmp_path, references_folder=str(tmp_path / "b"))

    def read_all_shards() -> list[bytes]:
        return [line for key in job.shard_keys() for line in read_shard(job, key)]

    assert sorted(read_all_shards()) == sorted(lines)
    for file, read in (
        (tmp_path / "a/.incomplete/references-00000.jsonl", lambda: list(read_file(numbered, 0))),
        (tmp_path / "b/.incomplete/references", read_all_shards),
        (tmp_path / "b/.incomplete/references.npy", read_all_shards),
    ):
        whole = file.read_bytes()
        alter(file)
        with pytest.raises(JobError, match=f"{file}: was changed after it was written; run the same"):
            read()
        file.write_bytes(whole)


def test_shards_with_most_references_are_converted_first(tmp_path: Path) -> None:
    source, recipe = draw_folders(tmp_path / "src", 40), Recipe(layout="folders", height=8, width=8, shards=6)
    plan, lines = planned(source, tmp_path / "a", recipe)
    numbered, by_shard = OutputFolder(str(tmp_path / "a")), OutputFolder(str(tmp_path / "b"))
    FileByShard(by_shard, recipe.shards).take_over(numbered, 1, plan.splits)
    job = shard_job(recipe, plan, source, tmp_path, references_folder=str(tmp_path / "b"))
    order = largest_first(job)
    assert sorted(map(job.number_of, order)) == list(range(len(job.shard_keys())))
    sizes = [sum(len(line) + 1 for line in read_shard(job, key)) for key in order]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(len(line) + 1 for line in lines)
    assert len(set(sizes)) > 1
