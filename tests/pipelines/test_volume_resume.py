"""Do volumes give the same bytes however they are converted, and does a killed run finish with them?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from halofeed.prep.voxels.phantom import draw, grid_around
from tests.support.conversions import (
    all_bytes,
    bytes_of,
    convert_words,
    halofeed_here,
    run_convert,
    shard_bytes,
    start,
    wait_until,
)
from tests.support.volume_support import save_nifti, write_table

OPTIONS = {
    "layout": "csv",
    "task": "segmentation",
    "depth": 24,
    "height": 40,
    "width": 40,
    "shards": 4,
    "spacing_mm": (2.0, 2.0, 2.0),
    "window_hu": (-160.0, 240.0),
    "fit": "tiles",
    "tile_overlap": (4, 4, 4),
}
SCANS = 8


def write_scans(root: Path) -> Path:
    rows = []
    for number in range(SCANS):
        grid = grid_around(spacing_mm=(4.0, 2.0, 2.0 + number / 8), tilt_degrees=number)
        image, mask = draw(grid)
        noise = np.random.default_rng(number).integers(-9, 9, image.shape)
        save_nifti(root / f"{number}.nii.gz", (image + noise).astype(np.int16), grid.affine)
        save_nifti(root / f"{number}-mask.nii.gz", mask, grid.affine)
        rows.append((number, f"{number}.nii.gz", f"{number}-mask.nii.gz"))
    write_table(root, rows)
    return root


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_scans(tmp_path_factory.mktemp("scans"))


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory) -> dict[str, bytes]:
    done = run_convert(source, tmp_path_factory.mktemp("out"), workers=1, threads=1, **OPTIONS)
    statistics = done.manifest.splits["train"].statistics
    assert statistics.records > 2 * SCANS and statistics.tiles == statistics.records - SCANS
    return all_bytes(Path(done.folder))


@pytest.mark.parametrize(
    ("workers", "threads"),
    [(2, 2), *(pytest.param(*some, marks=pytest.mark.long) for some in ((1, 2), (2, 1)))],
)
def test_workers_and_threads_change_no_byte(source, expected, tmp_path, workers, threads):
    assert bytes_of(source, tmp_path, workers=workers, threads=threads, **OPTIONS) == expected


@pytest.mark.long
def test_a_killed_run_is_finished_by_the_same_command(source, expected, tmp_path):
    words, folder = convert_words(source, tmp_path, workers=1, **OPTIONS), tmp_path / "set/1.0.0"
    process = start([*words, "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: list(folder.glob("*.index")) or process.poll() is not None, 60, "a shard is finished")
    process.kill()
    process.wait()
    assert not (folder / "manifest.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.index")}
    assert kept
    done = halofeed_here(*words)
    assert done.returncode == 0, done.stderr
    assert all_bytes(folder) == expected
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept, "finished shards are kept"
    again = halofeed_here(*words)
    assert again.returncode == 0 and "already converted" in again.stdout


def test_a_changed_mask_changes_its_shard_alone(tmp_path):
    source = write_scans(tmp_path / "s")
    first = run_convert(source, tmp_path / "out", **OPTIONS)
    before = shard_bytes(Path(first.folder))
    path = source / "3-mask.nii.gz"
    grid = grid_around(spacing_mm=(4.0, 2.0, 2.0 + 3 / 8), tilt_degrees=3)
    _, mask = draw(grid)
    mask[mask == 1] = 2
    save_nifti(path, mask, grid.affine)
    second = run_convert(source, tmp_path / "out", overwrite=True, **OPTIONS)
    after = shard_bytes(Path(second.folder))
    changed = {name.removesuffix(".index") for name in after if after[name] != before[name]}
    assert not second.was_there and len(changed) == 1
