"""Each scan that cannot be converted is listed with its true reason, and the advice of a refusal can be followed."""

import gzip
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import UsageError
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image
from tests.support.volume_support import by_name, findings, rejected, save_nifti, stored_volumes, write_table

TABLE = {"layout": "csv", "task": "segmentation", **SIZE}


def draw() -> np.ndarray:
    return np.asarray(image(), np.float32)


def table_of(root: Path, image: Path, label: Path | None = None) -> Path:
    return write_table(root, [("a", image.name, "" if label is None else label.name)])


def only(done: Any) -> Any:
    (record,) = by_name(done).values()
    return record


def test_voxels_that_are_no_number_are_set_by_the_option(tmp_path: Path) -> None:
    values = draw()
    values[1, 2, 3], values[4, 0, 0] = np.nan, np.inf
    table = table_of(tmp_path / "s", save_nifti(tmp_path / "s/a.nii", values, AFFINE))
    done = run_convert(table, tmp_path / "b", non_finite_value=-1024.0, **TABLE)
    image = only(done).image[..., 0]
    assert image[1, 2, 3] == image[4, 0, 0] == -1024
    assert np.count_nonzero(image != draw()) == 2
    assert findings(done) == {"voxels that are no number (corrected)": 1}
    with pytest.raises(UsageError, match=r"--non-finite-value nan: expected a number"):
        run_convert(table, tmp_path / "c", non_finite_value=float("nan"), **TABLE)


def test_label_voxels_that_are_no_number_are_background_by_choice(tmp_path: Path) -> None:
    label = np.random.default_rng(1).integers(0, 3, SHAPE).astype(np.float32)
    expected = label.copy()
    label[0, :2], expected[0, :2] = np.nan, 0
    image = save_nifti(tmp_path / "s/a.nii", draw(), AFFINE)
    table = table_of(tmp_path / "s", image, save_nifti(tmp_path / "s/m.nii", label, AFFINE))
    done = run_convert(table, tmp_path / "b", non_finite_labels="background", **TABLE)
    assert np.array_equal(only(done).label, expected)
    assert findings(done) == {"mask voxels that are no number (corrected)": 1}


WHOLE = (8, 10, 12)
GIVEN = {"layout": "csv", "task": "segmentation", "depth": 8, "height": 10, "width": 12}
PLACED = np.array([[0, 0, 1.0, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, WHOLE).astype(np.int16)


def changed(path: Path, to: Path, offset: int, value: bytes) -> Path:
    """A copy of a NIfTI file with some bytes of its header replaced."""
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    to.write_bytes(data)
    return to


@pytest.fixture(scope="module")
def bad(tmp_path_factory) -> Path:
    """A table of good scans and one of every kind of bad one."""
    root = tmp_path_factory.mktemp("bad")
    good = save_nifti(root / "good.nii", noise(), PLACED)
    mask = np.zeros(WHOLE, np.uint8)
    save_nifti(root / "empty-mask.nii.gz", mask, PLACED)
    mask[2:5, 3:6, 4:8] = 2
    save_nifti(root / "mask.nii.gz", mask, PLACED)
    save_nifti(root / "unknown-labels.nii.gz", mask * 7, PLACED)
    save_nifti(root / "half-mask.nii.gz", mask[:4], PLACED)
    for name in ("labelled", "with-empty", "with-unknown", "with-half", "no-mask-there", "unlisted"):
        save_nifti(root / f"{name}.nii", noise(1), PLACED)
    packed = gzip.compress(good.read_bytes())
    (root / "cut.nii.gz").write_bytes(packed[: len(packed) * 2 // 3])
    changed(good, root / "magic.nii", 344, b"oops")
    changed(good, root / "nan.nii", 280, struct.pack("<f", float("nan")))
    changed(good, root / "huge.nii", 40, struct.pack("<4h", 3, 32767, 32767, 32767))
    (root / "alone.hdr").write_bytes(changed(good, root / "pair", 344, b"ni1\0").read_bytes()[:348])
    (root / "pair").unlink()
    (root / "text.nii").write_text("this is no volume")
    write_volume(root / "series", noise(2), PLACED)
    (gap,) = (p for p in write_volume(root / "gap", noise(2), PLACED) if p.name.endswith("-4.dcm"))
    gap.unlink()
    unlabelled = ("good.nii", "cut.nii.gz", "magic.nii", "nan.nii", "alone.hdr", "text.nii")
    labels = dict.fromkeys(unlabelled, "") | {
        **dict.fromkeys(("labelled.nii", "nowhere.nii", "huge.nii", "series", "gap"), "mask.nii.gz"),
        "with-empty.nii": "empty-mask.nii.gz",
        "with-unknown.nii": "unknown-labels.nii.gz",
        "with-half.nii": "half-mask.nii.gz",
        "no-mask-there.nii": "nowhere.nii.gz",
    }
    write_table(root, [(f"of {image}", image, label) for image, label in labels.items()])
    (root.parent / "classes.json").write_text('{"background": 0, "spleen": 1, "liver": 2}')
    return root


REASONS = {
    "with-unknown.nii": ("annotation", "mask has unknown labels"),
    "with-half.nii": ("geometry", "mask lies on another grid than its image"),
    "no-mask-there.nii": ("annotation", "label file not found"),
    "nowhere.nii": ("annotation", "image file not found"),
    "cut.nii.gz": ("decode", "gzip data is truncated"),
    "magic.nii": ("decode", "header has a wrong magic"),
    "nan.nii": ("decode", "affine is not finite"),
    "huge.nii": ("decode", "more voxels than allowed"),
    "alone.hdr": ("read", "the .img file with the voxels is missing"),
    "text.nii": ("decode", "not a NIfTI or Analyze file"),
    "gap": ("read", "slices are missing"),
    "unlisted.nii": ("selection", "file is in no row of the table"),
}


def test_each_bad_input_is_rejected_with_its_reason_and_the_rest_converts(bad, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run_convert(bad, tmp_path, label_map=str(bad.parent / "classes.json"), **GIVEN)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = {name: (stage, reason) for name, (stage, reason, _) in rejected(done).items()}
    assert found == REASONS
    records = by_name(done)
    assert sorted(records) == ["good.nii", "labelled.nii", "series", "with-empty.nii"]
    assert {name for name, record in records.items() if record.labelled} == {*records} - {"good.nii"}
    assert not records["with-empty.nii"].label.any()
    assert np.unique(records["series"].label).tolist() == [0, 2]
    assert np.array_equal(records["series"].image[..., 0], noise(2))
    assert all(words in rejected(done)["with-unknown.nii"][2] for words in ("14", "2 liver"))
    assert grown < 300_000, "a header that claims 70 terabytes allocates nothing"  # KiB


def test_a_filled_gap_is_a_finding(bad, tmp_path):
    table = write_table(tmp_path, [("gap", "gap", "")])
    done = run_convert(table, tmp_path / "out", images=str(bad), fill_missing_slices=True, **GIVEN)
    assert done.manifest.splits["train"].statistics.findings == {"slices are missing (corrected)": 1}
    (record,) = stored_volumes(done)
    truth = noise(2).astype(float)
    truth[4] = (truth[3] + truth[5]) / 2
    assert np.array_equal(record.image[..., 0], np.rint(truth))
