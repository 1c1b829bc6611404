"""Planted faults in drawn sets, which `halofeed review` finds and names."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from halofeed.inspection.review.box_outliers import BoxKind
from halofeed.inspection.review.drift import DriftKind
from halofeed.inspection.review.mask_faults import MaskKind
from halofeed.inspection.review.picture_outliers import PictureKind
from halofeed.inspection.review.review import review_dataset
from halofeed.inspection.review.scan_outliers import ScanKind
from tests.support.conversions import run_convert

KINDS = {*BoxKind, *DriftKind, *MaskKind, *PictureKind, *ScanKind}
"""Kinds that are found without a model; other searches find copies."""
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planted_faults.py"


def texture(random: np.random.Generator, height: int = 64, width: int = 80) -> Any:
    """Return a smooth picture with detail, as photographs have it."""
    coarse = random.uniform(60, 190, (6, 8, 3)).astype(np.float32)
    fine = random.normal(0, 12, (height, width, 3))
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + cv2.GaussianBlur(fine, (0, 0), 0.8), 0, 255).astype(np.uint8)


def found_in(folder: Path, out: Path, **options: Any) -> dict[str, set[str]]:
    """Convert a folder and return the stems of the suspects of each kind."""
    converted = run_convert(folder, out, layout="folders", **options).folder
    found: dict[str, set[str]] = {}
    for suspect in review_dataset(converted).suspects:
        if suspect.kind not in KINDS:
            continue
        found.setdefault(str(suspect.kind), set()).update(Path(one.source).stem for one in suspect.places)
    return found


def write_pictures(folder: Path, count: int, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), texture(random))
    return folder


def change(path: Path, function: Any) -> None:
    cv2.imwrite(str(path), function(cv2.imread(str(path)).astype(np.float64)).round().astype(np.uint8))


FAULTS: dict[str, Any] = {
    "dark picture": lambda pixels: pixels * 0.05,
    "bright picture": lambda pixels: 255 - (255 - pixels) * 0.05,
    "picture of low contrast": lambda pixels: 120 + (pixels - 120) * 0.05,
    "picture of one color": lambda pixels: pixels * 0 + (9, 90, 200),
    "blurred picture": lambda pixels: cv2.GaussianBlur(pixels, (0, 0), 3),
    "noise-like picture": lambda pixels: np.random.default_rng(1).uniform(0, 255, pixels.shape),
    "odd size": lambda pixels: pixels.repeat(5, 0).repeat(5, 1),
    "odd aspect ratio": lambda pixels: np.tile(pixels[:40], (1, 4, 1)),
}


def test_each_kind_of_odd_picture_is_found_and_nothing_else(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", 120)
    paths = sorted(folder.rglob("*.png"))
    planted = dict(zip(FAULTS, paths[::14], strict=False))
    for kind, path in planted.items():
        change(path, FAULTS[kind])
    found = found_in(folder, tmp_path / "out", height=64, width=80)
    for kind, path in planted.items():
        assert path.stem in found.get(kind, set()), kind
    named = set().union(*found.values())
    assert named == {path.stem for path in planted.values()}


def test_small_sets_and_copies_of_one_picture_raise_nothing(tmp_path: Path) -> None:
    few = write_pictures(tmp_path / "few", 16)
    change(few / "a" / "000.png", lambda pixels: pixels * 0.5)
    assert found_in(few, tmp_path / "out", height=64, width=80) == {}
    same = tmp_path / "same" / "a"
    same.mkdir(parents=True)
    for number in range(30):
        cv2.imwrite(str(same / f"{number}.png"), texture(np.random.default_rng(0)))
    assert found_in(same.parent, tmp_path / "out2", height=64, width=80) == {}


def test_a_split_of_another_brightness_and_size_is_drift(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for seed, split in enumerate(("train", "test")):
        write_pictures(folder / split, 60, seed)
    for path in (folder / "test").rglob("*.png"):
        change(path, lambda pixels: (pixels * 0.7)[:48, :48])
    found = found_in(folder, tmp_path / "out", height=64, width=80)
    assert {"sizes differ between splits", "intensities differ between splits"} <= found.keys()
    assert "sources differ between splits" not in found
    assert "classes differ between splits" not in found


def planted_and_found(*options: str) -> tuple[list[float], list[tuple[str, str]]]:
    """Run the benchmark; return the recall of each kind, and the false alarms and clean files of each set."""
    command = [sys.executable, str(BENCHMARK), *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    recall = re.findall(r"^\w+ +[a-z].* ([01]\.\d\d)$", text, re.M)
    return list(map(float, recall)), re.findall(r"false alarms: (\d+) of (\d+)", text)


def test_one_fault_of_each_kind_is_found_among_masks_and_scans() -> None:
    recall, alarms = planted_and_found("--each", "1", "--clean", "60", "--sets", "masks", "scans")
    assert recall == [1] * 14
    assert alarms == [("0", "60")] * 2


@pytest.mark.long
def test_planted_faults_of_every_kind_are_found_with_few_false_alarms() -> None:
    recall, alarms = planted_and_found("--each", "5", "--clean", "300")
    assert len(recall) == 33
    assert np.mean(recall) >= 0.95 and min(recall) >= 0.6
    assert all(int(found) <= 0.02 * int(clean) for found, clean in alarms)
