"""Does each layout of volumes lead from its folders to the right records, classes and splits?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from halofeed.inspection.verify import verify
from halofeed.pipelines.convert import Conversion
from halofeed.schemas.errors import JobError, UsageError
from halofeed.schemas.identity import example_id
from tests.support.conversions import run_convert
from tests.support.dicom_mask_writer import frames_of, saved, segmentation
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import (
    AFFINE,
    FLIPPED,
    SHAPE,
    SIZE,
    image,
    mask,
    msd_document,
    nnunet_document,
    reference_to,
    write_json,
)
from tests.support.volume_support import by_name, rejected, save_nifti, stored_volumes, write_table


def check(done: Conversion, expected: dict[str, tuple[str, int | None]], channels: int = 1) -> None:
    """Every record has its split, the voxels of image(seed) and the classes of mask(seed), if there is one."""
    records = by_name(done)
    splits = {name: split for name, (split, _) in expected.items()}
    assert {name: record.split for name, record in records.items()} == splits
    for number, (name, (_, seed)) in enumerate(expected.items()):
        record = records[name]
        for channel in range(channels):
            assert np.array_equal(record.image[..., channel], image(10 * channel + number)), name
        assert record.labelled == (seed is not None)
        assert np.array_equal(record.label, np.zeros(SHAPE) if seed is None else mask(seed)), name
        assert np.allclose(record.grid.affine, AFFINE, atol=1e-5)


def test_csv_takes_files_and_dicom_folders_and_keeps_patients_together(tmp_path):
    rows = []
    for number in range(12):
        if number % 4:
            save_nifti(tmp_path / f"s/{number:02}.nii.gz", image(number), AFFINE)
        else:
            write_volume(tmp_path / f"s/series/{number:02}", image(number), AFFINE)
        name = f"{number:02}.nii.gz" if number % 4 else f"series/{number:02}"
        save_nifti(tmp_path / f"s/{number:02}_mask.nii.gz", mask(number)[::-1, :, ::-1], FLIPPED)
        rows.append((f"scan{number}", name, f"{number:02}_mask.nii.gz", f"patient {number % 5}"))
    write_table(tmp_path / "s", rows, "id,image,label,group")
    options = {"layout": "csv", "task": "segmentation", "split_shares": ("train=0.6", "test=0.4")}
    done = run_convert(tmp_path / "s", tmp_path / "o", **options, **SIZE)
    records = stored_volumes(done)
    by_patient: dict[int, set[str]] = {}
    for record in records:
        number = int(record.key.removeprefix("scan"))
        by_patient.setdefault(number % 5, set()).add(record.split)
        assert np.array_equal(record.image[..., 0], image(number))
        assert np.array_equal(record.label, mask(number))
    assert len(records) == 12 and all(len(splits) == 1 for splits in by_patient.values())
    assert {record.split for record in records} == {"train", "test"}


def test_jsonl_takes_lists_of_channels(tmp_path):
    lines = []
    for number, split in enumerate(("train", "test")):
        for channel in range(2):
            turned = channel and number
            array = image(10 * channel + number)
            path = tmp_path / f"s/{number}-{channel}.nii"
            save_nifti(path, array[::-1, :, ::-1] if turned else array, FLIPPED if turned else AFFINE)
        label = f"{number}-mask.nii" if number == 0 else None
        save_nifti(tmp_path / "s/0-mask.nii", mask(0), AFFINE)
        lines.append({"image": [f"{number}-0.nii", f"{number}-1.nii"], "label": label, "split": split})
    (tmp_path / "s/table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"layout": "jsonl", "task": "segmentation", "channels": 2} | SIZE
    done = run_convert(tmp_path / "s", tmp_path / "o", **options)
    check(done, {"0-0.nii": ("train", 0), "1-0.nii": ("test", None)}, channels=2)
    with pytest.raises(JobError, match="number of channels"):
        run_convert(tmp_path / "s", tmp_path / "one", **options | {"channels": 1})


def write_decathlon(root: Path, *, channels: int = 1) -> None:
    for number in range(3):
        array = np.stack([image(10 * channel + number) for channel in range(channels)], axis=-1)
        folder = "imagesTs" if number == 2 else "imagesTr"
        save_nifti(root / f"{folder}/a_{number}.nii.gz", array if channels > 1 else array[..., 0], AFFINE)
        if number < 2:
            save_nifti(root / f"labelsTr/a_{number}.nii.gz", mask(number), AFFINE)
    named = {"labels": ("oedema", "core"), "channels": [f"M{channel}" for channel in range(channels)]}
    write_json(root, msd_document("a_0.nii.gz", "a_1.nii.gz", test=("a_2.nii.gz",), **named))


@pytest.mark.parametrize("channels", [1, 2])
def test_msd_has_its_classes_channels_and_prediction_cases(tmp_path, channels):
    write_decathlon(tmp_path / "s", channels=channels)
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="msd", channels=channels, **SIZE)
    assert done.manifest.labels == {0: "background", 1: "oedema", 2: "core"} and not done.manifest.rejected
    names = {f"imagesT{'s' if n == 2 else 'r'}/a_{n}.nii.gz": n for n in range(3)}
    check(done, {k: ("test", None) if n == 2 else ("train", n) for k, n in names.items()}, channels)
    if channels == 2:
        words = r"--channels 1: the data set has 2 \(M0, M1\); say --channels 2"
        with pytest.raises(UsageError, match=words):
            run_convert(tmp_path / "s", tmp_path / "p", layout="msd", **SIZE)


def test_nnunet_puts_two_channels_together_in_order(tmp_path):
    for number in range(3):
        for channel in range(2):
            folder = "imagesTs" if number == 2 else "imagesTr"
            array, turned = image(10 * channel + number), channel == 1 and number == 1
            path = tmp_path / f"s/{folder}/case_{number}_{channel:04}.nii.gz"
            save_nifti(path, array[::-1, :, ::-1] if turned else array, FLIPPED if turned else AFFINE)
        if number < 2:
            save_nifti(tmp_path / f"s/labelsTr/case_{number}.nii.gz", mask(number), AFFINE)
    write_json(tmp_path / "s", nnunet_document(2, labels=("oedema", "core"), channels=("T1", "T2")))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="nnunet", channels=2, **SIZE)
    assert done.manifest.labels == {0: "background", 1: "oedema", 2: "core"}
    names = {f"imagesT{'s' if n == 2 else 'r'}/case_{n}_0000.nii.gz": n for n in range(3)}
    check(done, {k: ("test", None) if n == 2 else ("train", n) for k, n in names.items()}, channels=2)


def test_lits_names_and_its_test_volumes(tmp_path):
    for number in range(2):
        save_nifti(tmp_path / f"s/volume-{number}.nii", image(number), AFFINE)
        save_nifti(tmp_path / f"s/segmentation-{number}.nii", mask(number)[::-1, :, ::-1], FLIPPED)
    save_nifti(tmp_path / "s/test-volume-0.nii", image(2), AFFINE)
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="lits", **SIZE)
    assert done.manifest.labels == {0: "background", 1: "liver", 2: "tumour"}
    names = {"volume-0.nii": ("train", 0), "volume-1.nii": ("train", 1), "test-volume-0.nii": ("test", None)}
    check(done, names)


def test_pairs_by_custom_and_by_pattern_with_patients(tmp_path):
    for number in range(2):
        save_nifti(tmp_path / f"a/imagesTr/x{number}.nii", image(number), AFFINE)
        save_nifti(tmp_path / f"a/labelsTr/x{number}.nii.gz", mask(number), AFFINE)
    save_nifti(tmp_path / "a/imagesTs/x2.nii", image(2), AFFINE)
    done = run_convert(tmp_path / "a", tmp_path / "o", layout="pairs", **SIZE)
    names: dict[str, tuple[str, int | None]] = {f"imagesTr/x{n}.nii": ("train", n) for n in range(2)}
    check(done, names | {"imagesTs/x2.nii": ("test", None)})
    for number in range(8):
        scan = f"{number % 3}/{number}"
        save_nifti(tmp_path / f"b/{scan}/ct.nii", image(number), AFFINE)
        save_nifti(tmp_path / f"b/{scan}/seg.nii", mask(number), AFFINE)
    patterns = {"image_pattern": "{group}/{id}/ct.nii", "label_pattern": "{group}/{id}/seg.nii"}
    shares = {"split_shares": ("train=0.5", "test=0.5"), "split_seed": 1}
    done = run_convert(tmp_path / "b", tmp_path / "p", layout="pairs", **patterns, **shares, **SIZE)
    records = stored_volumes(done)
    patients = {(record.name[0], record.split) for record in records}
    assert len(records) == 8 and len(patients) == 3


def test_class_masks_merge_into_one_label_volume(test_data, tmp_path):
    total = test_data / "volumes/totalsegmentator"
    (tmp_path / "s/s0001").mkdir(parents=True)
    shutil.copy(total / "example_ct_sm.nii.gz", tmp_path / "s/s0001/ct.nii.gz")
    shutil.copytree(total / "one_file_per_class", tmp_path / "s/s0001/segmentations")
    options = {"depth": 30, "height": 101, "width": 122, "layout": "class-masks"}
    classes = ("spleen", "liver", "aorta", "kidney_right", "lung_upper_lobe_left")
    done = run_convert(tmp_path / "s", tmp_path / "o", classes=classes, **options)
    assert done.manifest.labels == {0: "background", **dict(enumerate(classes, start=1))}
    (record,) = stored_volumes(done)
    for number, name in enumerate(classes, start=1):
        one = np.asarray(nibabel.load(total / f"one_file_per_class/{name}.nii.gz").dataobj).T > 0
        assert np.array_equal(record.label == number, one), name
    done = run_convert(tmp_path / "s", tmp_path / "few", classes=("liver",), **options)
    assert done.manifest.labels == {0: "background", 1: "liver"}


def test_class_masks_that_overlap_are_refused_or_counted(tmp_path):
    for number in range(2):
        save_nifti(tmp_path / f"s/{number}/ct.nii", image(number), AFFINE)
        for name, part in (("a", mask(number) > 0), ("b", mask(number) == (2 if number else 0))):
            save_nifti(tmp_path / f"s/{number}/segmentations/{name}.nii", part.astype(np.uint8), AFFINE)
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="class-masks", **SIZE)
    assert rejected(done)["1/ct.nii"][:2] == ("annotation", "masks of one scan overlap")
    done = run_convert(tmp_path / "s", tmp_path / "p", layout="class-masks", class_overlap="last", **SIZE)
    assert done.manifest.splits["train"].statistics.findings == {"class masks overlap (corrected)": 1}
    record = by_name(done)["1/ct.nii"]
    assert np.array_equal(record.label, mask(1))


def test_a_folder_of_dicom_series_with_a_seg_a_nifti_mask_and_none(tmp_path):
    for number, name in enumerate("abc"):
        ids = {"series": f"1.2.{number + 1}", "patient": f"P{number}"}
        write_volume(tmp_path / f"s/{name}", image(number), AFFINE, **ids)
    frames = [(v, depth, pixels) for v in (1, 2) for depth, pixels in frames_of(mask(0), v).items()]
    made = segmentation(frames, AFFINE, {1: "liver", 2: "spleen"})
    made.ReferencedSeriesSequence = [reference_to("1.2.1")]
    (tmp_path / "s/a/seg.dcm").write_bytes(saved(made))
    save_nifti(tmp_path / "s/b/mask.nii.gz", mask(1)[::-1, :, ::-1], FLIPPED)
    (tmp_path / "map.json").write_text('{"background": 0, "spleen": 2, "liver": 1}')
    options: dict[str, Any] = {"layout": "dicom", "missing_masks": "prediction", **SIZE}
    done = run_convert(tmp_path / "s", tmp_path / "o", label_map=str(tmp_path / "map.json"), **options)
    check(done, {"a": ("train", 0), "b": ("train", 1), "c": ("train", None)})
    assert done.manifest.splits["train"].statistics.modalities == {"CT": 3}
    done = run_convert(tmp_path / "s", tmp_path / "p", **options)
    reason = "mask names its classes and no label map gives their ids"
    assert rejected(done)["a"][:2] == ("annotation", reason) and "'liver', 'spleen'" in rejected(done)["a"][2]
    (tmp_path / "lost.txt").write_text("liver\nspleen\n")
    done = run_convert(tmp_path / "s", tmp_path / "q", label_map=str(tmp_path / "lost.txt"), **options)
    assert rejected(done)["a"][1] == "class of the mask has the background's id"


def test_brats_like_cases_and_the_folds_of_nnunet_convert(tmp_path):
    (tmp_path / "s").mkdir()
    for number in range(3):
        case = tmp_path / f"s/B{number}/B{number}"
        for channel, name in enumerate(("t1", "t2")):
            save_nifti(Path(f"{case}_{name}.nii.gz"), image(10 * channel + number), AFFINE)
        save_nifti(Path(f"{case}_seg.nii.gz"), mask(number), AFFINE)
    patterns = {"image_pattern": "{id}/{id}_{channel}.nii.gz", "label_pattern": "{id}/{id}_seg.nii.gz"}
    options = {"layout": "pairs", "task": "segmentation", "channels": 2, **patterns, **SIZE}
    done = run_convert(tmp_path / "s", tmp_path / "o", channel_order=("t1", "t2"), **options)
    check(done, {f"B{n}/B{n}_t1.nii.gz": ("train", n) for n in range(3)}, channels=2)
    with pytest.raises(JobError, match=r"found 2, expected 1; say --channels 2"):
        run_convert(tmp_path / "s", tmp_path / "p", **(options | {"channels": 1}))
    for number in range(3):
        save_nifti(tmp_path / f"n/imagesTr/c_{number}_0000.nii.gz", image(number), AFFINE)
        save_nifti(tmp_path / f"n/labelsTr/c_{number}.nii.gz", mask(number), AFFINE)
    write_json(tmp_path / "n", nnunet_document(3))
    folds = [{"train": ["c_0"], "val": ["c_1", "c_2"]}, {"train": ["c_0", "c_2"], "val": ["c_1"]}]
    (tmp_path / "splits_final.json").write_text(json.dumps(folds))
    splits = {"layout": "nnunet", "nnunet_splits": str(tmp_path / "splits_final.json")}
    done = run_convert(tmp_path / "n", tmp_path / "q", nnunet_fold=1, **splits, **SIZE)
    expected = {"c_0": ("train", 0), "c_1": ("val", 1), "c_2": ("train", 2)}
    check(done, {f"imagesTr/{case}_0000.nii.gz": outcome for case, outcome in expected.items()})
    with pytest.raises(UsageError, match=r"splits_final.json: it has 2 folds; say --nnunet-fold 0 to 1"):
        run_convert(tmp_path / "n", tmp_path / "r", **splits, **SIZE)


def test_ids_of_tiles_differ_from_ids_of_tables(tmp_path):
    for number, name in enumerate("ab"):
        save_nifti(tmp_path / f"s/{name}.nii.gz", image(number), AFFINE)
    tiles = {"layout": "csv", "fit": "tiles", "depth": 4, "height": SHAPE[1], "width": SHAPE[2]}
    write_table(tmp_path / "s", [("a", "a.nii.gz", ""), ("a#1", "b.nii.gz", "")], "id,image,label")
    done = run_convert(tmp_path / "s", tmp_path / "o", **tiles)
    assert verify(done.folder).ok and len(stored_volumes(done)) == 2 * -(-SHAPE[0] // 4)
    number = example_id("a", 1)
    write_table(tmp_path / "s", [("a", "a.nii.gz", ""), (number, "b.nii.gz", "")], "id,image,label")
    with pytest.raises(JobError, match=rf"id {number}: '(a|{number})' \(tile [01]\) and '"):
        run_convert(tmp_path / "s", tmp_path / "p", **tiles)
