"""Masks of several readers who drew several files each: the union of a reader's files, then a vote of the readers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from numpy.typing import NDArray

from halofeed.errors import JobError
from tests.pipelines.test_volume_labels import seg_of
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image
from tests.support.volume_support import by_name, findings, save_nifti

READERS = ("ann", "bob", "eve")


def parts_of(reader: int, count: int) -> list[NDArray[np.uint8]]:
    """Lesions of a reader, in files of their own: readers mostly agree, and neighboring lesions overlap."""
    found = []
    for lesion in range(count):
        part = np.zeros(SHAPE, np.uint8)
        part[1:4, 1 + 2 * lesion : 4 + 2 * lesion, 2 : 5 + (reader + lesion) % 3] = 1
        found.append(part)
    return found


def vote(unions: list[NDArray[Any]], rule: str) -> NDArray[Any]:
    """The vote of ITK's filters; undecided voxels are background."""
    images = [SimpleITK.GetImageFromArray(one.astype(np.uint8)) for one in unions]
    combine = SimpleITK.LabelVoting if rule == "majority" else SimpleITK.MultiLabelSTAPLE
    values = SimpleITK.GetArrayFromImage(combine(images, 200))
    return np.where(values == 200, 0, values)


def convert(source: Path, out: Path, **options: Any) -> Any:
    given = {"layout": "pairs", "image_pattern": "images/{id}.nii.gz", "dtype": "float32"}
    return run_convert(source, out, **{**SIZE, **given, **options})


def label_of(done: Any) -> NDArray[Any]:
    (record,) = by_name(done).values()
    return record.label


def save_readings(source: Path, name: str, counts: tuple[int, ...]) -> list[NDArray[np.uint8]]:
    """Save so many files of each reader, and return the union of each reader."""
    save_nifti(source / "images/a.nii.gz", image(), AFFINE)
    unions = []
    for number, (reader, count) in enumerate(zip(READERS, counts, strict=True)):
        parts = parts_of(number, count)
        for lesion, part in enumerate(parts):
            save_nifti(source / name.format(id="a", reader=reader, lesion=lesion), part, AFFINE)
        unions.append(np.max(parts, axis=0))
    return unions


@pytest.mark.parametrize("rule", ["majority", "staple"])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("labels/{reader}/{id}_{lesion}.nii.gz", "labels/{reader}/{id}_*.nii.gz"),
        ("labels/{id}_l{lesion}_{reader}.nii.gz", "labels/{id}_l*_{reader}.nii.gz"),
    ],
)
def test_files_of_a_reader_are_joined_before_readers_vote(tmp_path, rule, name, pattern):
    unions = save_readings(tmp_path / "s", name, (2, 3, 2))
    done = convert(tmp_path / "s", tmp_path / "o", label_pattern=pattern, several_masks=rule)
    assert np.array_equal(label_of(done), vote(unions, rule))
    assert findings(done) == {"masks combined by vote (corrected)": 1}
    # As seven readings of one lesion each, most lesions would be outvoted.
    plain = {"label_pattern": pattern.replace("{reader}", "*"), "several_masks": "majority"}
    apart = label_of(convert(tmp_path / "s", tmp_path / "p", **plain))
    assert np.count_nonzero(apart) < np.count_nonzero(label_of(done))


def test_files_of_all_readers_are_merged_or_refused_without_a_vote(tmp_path):
    name, pattern = "labels/{reader}/{id}_{lesion}.nii.gz", "labels/{reader}/{id}_*.nii.gz"
    unions = save_readings(tmp_path / "s", name, (2, 1, 1))
    done = convert(tmp_path / "s", tmp_path / "o", label_pattern=pattern, several_masks="merge")
    assert np.array_equal(label_of(done), np.max(unions, axis=0))
    with pytest.raises(JobError, match="several labels for one image"):
        convert(tmp_path / "s", tmp_path / "p", label_pattern=pattern)


def test_one_reader_is_no_vote(tmp_path):
    save_nifti(tmp_path / "s/images/a.nii.gz", image(), AFFINE)
    for lesion, part in enumerate(parts_of(0, 2)):
        save_nifti(tmp_path / f"s/labels/ann/a_{lesion}.nii.gz", part, AFFINE)
    pattern = "labels/{reader}/{id}_*.nii.gz"
    done = convert(tmp_path / "s", tmp_path / "o", label_pattern=pattern, several_masks="staple")
    assert np.array_equal(label_of(done), np.max(parts_of(0, 2), axis=0))
    assert not findings(done)


@pytest.mark.parametrize("rule", ["majority", "staple"])
def test_masks_of_classes_are_voted_by_reader_with_several_files_of_one_class(tmp_path, rule):
    source, unions = tmp_path / "s", []
    save_nifti(source / "images/a.nii.gz", image(), AFFINE)
    for number, reader in enumerate(READERS):
        lesions = parts_of(number, 2)
        organ = np.zeros(SHAPE, np.uint8)
        organ[4:, 2:7, 1 : 5 + number] = 1
        save_nifti(source / f"labels/{reader}/organ/a_0.nii.gz", organ, AFFINE)
        for lesion, part in enumerate(lesions):
            save_nifti(source / f"labels/{reader}/lesion/a_{lesion}.nii.gz", part, AFFINE)
        unions.append(np.where(organ, 2, np.max(lesions, axis=0)))
    options = {"layout": "class-masks", "label_pattern": "labels/{reader}/{class}/{id}_*.nii.gz"}
    done = convert(source, tmp_path / "o", several_masks=rule, **options)
    assert done.manifest.labels == {0: "background", 1: "lesion", 2: "organ"}
    assert np.array_equal(label_of(done), vote(unions, rule))
    merged = convert(source, tmp_path / "m", several_masks="merge", **options)
    assert np.array_equal(label_of(merged), np.max(unions, axis=0))
    with pytest.raises(JobError, match=r"(?s)several masks of one class.*--several-masks merge joins them"):
        convert(source, tmp_path / "p", **options)
    # Without the readers, nothing shows which files of two classes are one reading.
    unknown = {**options, "label_pattern": "labels/*/{class}/{id}_*.nii.gz"}
    with pytest.raises(JobError, match=r"name the reader as \{reader\} in --label-pattern"):
        convert(source, tmp_path / "q", several_masks=rule, **unknown)


def test_segs_of_a_series_are_joined_by_reader(tmp_path):
    source, unions = tmp_path / "s", []
    write_volume(source / "ct", image(), AFFINE, series="1.2.1")
    for number, reader in enumerate(READERS):
        parts = parts_of(number, 2)
        (source / "readers" / reader).mkdir(parents=True)
        for lesion, part in enumerate(parts):
            (source / "readers" / reader / f"{lesion}.dcm").write_bytes(seg_of({"lesion": part > 0}))
        unions.append(np.max(parts, axis=0))
    options = {"layout": "dicom", "image_pattern": None, "label_pattern": "readers/{reader}/*.dcm"}
    done = convert(source, tmp_path / "o", several_masks="majority", classes=("lesion",), **options)
    assert np.array_equal(label_of(done), vote(unions, "majority"))
