"""--dry-run writes nothing and foretells the conversion; --limit converts a sample of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.conversions import draw_folders, halofeed_here, read_all, run_convert
from tests.support.volume_support import save_nifti

SPLITS = ("train=0.7", "test=0.3")


def dry_run(source, out, *options):
    done = halofeed_here("convert", "--dry-run", "--source", source, "--out", out, "--name", "set", *options)
    return done.returncode, done.stdout + done.stderr


def test_a_dry_run_writes_nothing_and_says_what_the_conversion_then_finds(tmp_path):
    draw_folders(tmp_path / "in", 20)
    (tmp_path / "in" / "hat" / "cut.jpg").write_bytes(b"no picture")
    out, preview = tmp_path / "out", tmp_path / "sample.png"
    options = ("--height", 16, "--width", 24, "--encoding", "raw", "--split-shares", ",".join(SPLITS))
    code, said = dry_run(tmp_path / "in", out, *options, "--shards", 30, "--preview", preview)
    assert code == 0 and not out.exists(), said
    shown = dict(re.findall(r"^  (train|test) +(\d+) inputs", said, re.MULTILINE))
    done = run_convert(tmp_path / "in", out, layout="folders", encoding="raw", split_shares=SPLITS)
    written = {name: split.records for name, split in done.manifest.splits.items()}
    assert sum(map(int, shown.values())) == sum(written.values()) + 1
    for words in (
        "layout folders, because it finds labels",
        "2 classes: hat 11, shirt 10",
        "16x24, 3 x uint8; 21 records of 1.15 kB are 24.2 kB; ",
        "at least 39 of 60 shards are empty",
    ):
        assert words in said
    with Image.open(preview) as image:
        assert image.width > 24


@pytest.mark.parametrize(("pictures", "expected"), [(3, "27 records"), (12, "about 108 records")])
def test_a_dry_run_counts_tiles_and_not_their_pictures(tmp_path, pictures, expected):
    for number in range(pictures):
        folder = tmp_path / "in" / ("hat", "shirt")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (120, 120, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    options = ("--fit", "tiles", "--height", 40, "--width", 40, "--encoding")
    code, said = dry_run(tmp_path / "in", tmp_path / "out", *options, "raw")
    assert code == 0 and f"; {expected} of 4.80 kB are " in said, said
    code, said = dry_run(tmp_path / "in", tmp_path / "out", *options, "png")
    size, whole = re.findall(r"records of the sample have ([\d.]+) kB; all: about ([\d.]+) kB", said)[0]
    assert abs(float(whole) / float(size) - 9 * pictures) < 1, said


def test_a_dry_run_of_volumes_proposes_shape_spacing_and_window_that_convert(tmp_path):
    label = np.zeros((28, 24, 20), np.uint8)  # width, height, depth
    label[4:20, 4:20, 4:16] = 1
    for number, thickness in enumerate((2, 2, 3)):
        affine = np.diag([1.0, 1, thickness, 1])
        voxels = (np.indices(label.shape)[0] + np.where(label, 60, -900)).astype(np.int16)
        save_nifti(tmp_path / f"in/images/{number}.nii.gz", voxels, affine)
        save_nifti(tmp_path / f"in/labels/{number}.nii.gz", label, affine)
    code, said = dry_run(tmp_path / "in", tmp_path / "out")
    assert code == 0 and not (tmp_path / "out").exists(), said
    proposed = re.findall(r"proposed +(--.*) \(", said)
    assert proposed[0] == "--depth 32 --height 24 --width 32 --spacing-mm 2,1,1"
    assert re.fullmatch(
        "--window-hu -[0-9]+,79", proposed[1]
    )  # slices are interpolated at the label's border
    assert dry_run(tmp_path / "in", tmp_path / "out", *" ".join(proposed).split())[0] == 0


def test_a_sample_has_no_files_that_were_left_out(tmp_path):
    draw_folders(tmp_path / "in", 6)
    for number in range(40):
        (tmp_path / f"in/hat/._{number}.jpg").write_bytes(b"left by a system")
    options = ("--height", 16, "--width", 24)
    code, said = dry_run(tmp_path / "in", tmp_path / "out", *options)
    assert code == 0 and "6 inputs of layout folders" in said and "6 records of 6 inputs" in said, said
    part = run_convert(tmp_path / "in", tmp_path / "part", layout="folders", limit=5)
    assert sum(split.records for split in part.manifest.splits.values()) == 5


def test_a_limit_converts_a_sample_of_each_split_with_the_classes_and_records_of_all(tmp_path):
    draw_folders(tmp_path / "in", 30)
    options = {"layout": "folders", "split_shares": SPLITS}
    whole = run_convert(tmp_path / "in", tmp_path / "whole", **options)
    part = run_convert(tmp_path / "in", tmp_path / "part", limit=7, shards=2, **options)
    assert part.manifest.labels == whole.manifest.labels
    assert sum(split.records for split in part.manifest.splits.values()) == 7
    for name in ("train", "test"):
        some, every = (read_all(Path(one.folder), [name]) for one in (part, whole))
        assert some and all(every[key]["image/encoded"] == one["image/encoded"] for key, one in some.items())
    again = run_convert(tmp_path / "in", tmp_path / "part", limit=7, shards=2, **options)
    assert again.was_there
