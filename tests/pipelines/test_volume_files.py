"""Each layout of volumes leads to the right records, classes and splits, also in NRRD and MetaImage files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK

from halofeed.errors import AnnotationsError, JobError, UsageError
from halofeed.inspection.verify import verify
from halofeed.pipelines.convert import Conversion, convert
from halofeed.pipelines.job import JobOptions
from halofeed.schemas.identity import example_id
from halofeed.trainer.new_files import list_new_files
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

ENDINGS = (".nrrd", ".nhdr", ".mha", ".mhd")


def save(path: Path, voxels: Any, *, compress: bool = True) -> Path:
    """By SimpleITK, from the top and from the right, so that the affine has to be heeded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored: Any = SimpleITK.GetImageFromArray(np.ascontiguousarray(voxels[::-1, :, ::-1]))
    stored.SetDirection((1, 0, 0, 0, -1, 0, 0, 0, -1))
    stored.SetSpacing((1.5, 2, 3))
    last = AFFINE @ (SHAPE[0] - 1, 0, SHAPE[2] - 1, 1)
    stored.SetOrigin((-last[0], -last[1], last[2]))
    SimpleITK.WriteImage(stored, str(path), compress)
    return path


def check(done: Conversion, expected: Mapping[str, tuple[str, int | None]], channels: int = 1) -> None:
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


def test_every_layout_of_volumes_takes_them(tmp_path: Path) -> None:
    names = [f"{number:02}{ending}" for number, ending in enumerate(ENDINGS)]
    for number, (name, ending) in enumerate(zip(names, ENDINGS, strict=True)):
        for folder in ("pairs/imagesTr", "msd/imagesTr"):
            save(tmp_path / folder / name, image(number))
            save(tmp_path / folder.replace("images", "labels") / name, mask(number), compress=False)
        save(tmp_path / f"lits/volume-{number}{ending}", image(number))
        save(tmp_path / f"lits/segmentation-{number}{ending}", mask(number))
        save(tmp_path / f"classes/s{number}/ct{ending}", image(number))
        for value, organ in enumerate(("liver", "spleen"), 1):
            place = tmp_path / f"classes/s{number}/segmentations/{organ}{ending}"
            save(place, (mask(number) == value).astype(np.uint8))
        for channel in range(2):
            save(tmp_path / f"table/{number}-{channel}{ending}", image(10 * channel + number))
        save(tmp_path / f"table/{number}-mask{ending}", mask(number))
    write_json(tmp_path / "msd", msd_document(*names))
    files = [(f"{n}", f"{n}-0{end}", f"{n}-1{end}", f"{n}-mask{end}") for n, end in enumerate(ENDINGS)]
    write_table(tmp_path / "table", [(key, f"{one};{two}", label) for key, one, two, label in files])
    lines = [{"image": [one, two], "label": label} for _, one, two, label in files]
    (tmp_path / "table/list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected: dict[str, tuple[str, list[str]]] = {
        "pairs": ("pairs", [f"imagesTr/{name}" for name in names]),
        "msd": ("msd", [f"imagesTr/{name}" for name in names]),
        "lits": ("lits", [f"volume-{number}{ending}" for number, ending in enumerate(ENDINGS)]),
        "class-masks": ("classes", [f"s{number}/ct{ending}" for number, ending in enumerate(ENDINGS)]),
        "csv": ("table", [one for _, one, _, _ in files]),
        "jsonl": ("table/list.jsonl", [one for _, one, _, _ in files]),
    }
    for layout, (source, sources) in expected.items():
        channels = 2 if layout in ("csv", "jsonl") else 1
        options = SIZE | {"layout": layout, "task": "segmentation", "channels": channels}
        done = run_convert(tmp_path / source, tmp_path / f"out-{layout}", **options)
        assert rejected(done) == {}
        check(done, {name: ("train", number) for number, name in enumerate(sources)}, channels)


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
def test_nnunet_takes_those_of_one_file(ending: str, tmp_path: Path) -> None:
    for channel in range(2):
        save(tmp_path / f"s/imagesTr/a_000{channel}{ending}", image(10 * channel))
    save(tmp_path / f"s/labelsTr/a{ending}", mask(0))
    write_json(tmp_path / "s", nnunet_document(channels=("CT", "other"), file_ending=ending))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="nnunet", channels=2, **SIZE)
    check(done, {f"imagesTr/a_0000{ending}": ("train", 0)}, channels=2)


def test_a_dicom_series_takes_such_a_label_and_its_voxels_are_no_slice(tmp_path: Path) -> None:
    write_volume(tmp_path / "s/p1", image(0), AFFINE)
    save(tmp_path / "s/p1/seg.mhd", mask(0))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="dicom", **SIZE)
    (record,) = by_name(done).values()
    assert np.array_equal(record.label, mask(0)) and rejected(done) == {}


def test_a_header_whose_voxels_are_elsewhere_is_rejected_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "s/images"
    header = save(folder / "good.mhd", image(0), compress=False).read_text()
    voxels = (folder / "good.raw").read_bytes()
    (tmp_path / "outside.raw").write_bytes(voxels)
    (tmp_path / "s/raw").mkdir()
    (tmp_path / "s/raw/above.raw").write_bytes(voxels)
    named = {
        "above": "../raw/above.raw",
        "absolute": str(tmp_path / "s/images/good.raw"),
        "missing": "missing.raw",
        "outside": "../../outside.raw",
        "several": "slice%03d.raw 1 5 1",
        "windows": "C:\\scans\\good.raw",
    }
    for name, written in named.items():
        (folder / f"{name}.mhd").write_text(header.replace("good.raw", written))
    for name in ("good", *named):
        save(tmp_path / f"s/labels/{name}.nrrd", mask(0))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="pairs", **SIZE)
    assert set(by_name(done)) == {"images/good.mhd", "images/above.mhd"}
    reasons = {Path(name).stem: problem for name, problem in rejected(done).items()}
    assert {name: reason for name, (_, reason, _) in reasons.items()} == {
        "absolute": "data file is named by an absolute path",
        "missing": "data file is missing",
        "outside": "data file lies outside",
        "several": "voxels lie in several files",
        "windows": "data file is named by an absolute path",
    }
    assert "images/missing.raw" in reasons["missing"][2] and ".nrrd or .mha" in reasons["outside"][2]


def test_a_source_is_another_one_when_only_its_data_file_has_changed(tmp_path: Path) -> None:
    save(tmp_path / "s/images/a.mhd", image(0), compress=False)
    save(tmp_path / "s/labels/a.nhdr", mask(0), compress=False)
    options: dict[str, Any] = {"layout": "pairs", **SIZE}
    run_convert(tmp_path / "s", tmp_path / "o", **options)
    run_convert(tmp_path / "s", tmp_path / "o", **options)
    for data in ("images/a.raw", "labels/a.raw"):
        path = tmp_path / "s" / data
        before = path.read_bytes()
        path.write_bytes(before + b"padding")
        with pytest.raises(UsageError, match="--overwrite"):
            run_convert(tmp_path / "s", tmp_path / "o", **options)
        path.write_bytes(before)


def test_new_files_to_predict_may_be_a_folder_of_them_or_one(tmp_path: Path) -> None:
    save_nifti(tmp_path / "s/images/0.nii.gz", image(0), AFFINE)
    save_nifti(tmp_path / "s/labels/0.nii.gz", mask(0), AFFINE)
    names = {f"{number}{ending}": number for number, ending in enumerate(ENDINGS)}
    for name, number in names.items():
        save(tmp_path / "new" / name, image(number))
    (tmp_path / "new/odd.raw").write_bytes(b"?")
    recipe = run_convert(tmp_path / "s", tmp_path / "o", layout="pairs", **SIZE).manifest.recipe
    for source, expected in ((tmp_path / "new", names), (tmp_path / "new/3.mhd", {"3.mhd": 3})):
        scratch = tmp_path / f"scratch-{source.name}"
        scratch.mkdir()
        new = list_new_files(recipe, "segmentation", source, scratch)
        assert new.count == len(expected)
        assert new.passed_over == (("odd.raw",) if source.is_dir() else ())
        job = JobOptions(source=new.source, images=new.images, out=str(scratch / "out"), name="n", workers=1)
        records = by_name(convert(job, new.recipe, show_progress=False))
        assert set(records) == set(expected)
        for name, number in expected.items():
            assert np.array_equal(records[name].image[..., 0], image(number))


def test_msd_has_its_classes_channels_and_prediction_cases(tmp_path):
    for number in range(3):
        array = np.stack([image(number), image(10 + number)], axis=-1)
        save_nifti(tmp_path / f"s/imagesT{'s' if number == 2 else 'r'}/a_{number}.nii.gz", array, AFFINE)
        if number < 2:
            save_nifti(tmp_path / f"s/labelsTr/a_{number}.nii.gz", mask(number), AFFINE)
    named = {"labels": ("oedema", "core"), "channels": ("M0", "M1")}
    write_json(tmp_path / "s", msd_document("a_0.nii.gz", "a_1.nii.gz", test=("a_2.nii.gz",), **named))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="msd", channels=2, **SIZE)
    assert done.manifest.labels == {0: "background", 1: "oedema", 2: "core"} and not done.manifest.rejected
    names = {f"imagesT{'s' if n == 2 else 'r'}/a_{n}.nii.gz": n for n in range(3)}
    check(done, {k: ("test", None) if n == 2 else ("train", n) for k, n in names.items()}, channels=2)


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
    check(done, {"a": ("train", 0), "b": ("train", 1), "c": ("unlabeled", None)})
    assert done.manifest.splits["train"].statistics.modalities == {"CT": 2}
    done = run_convert(tmp_path / "s", tmp_path / "p", **options)
    reason = "mask names its classes and no label map gives their ids"
    assert rejected(done)["a"][:2] == ("annotation", reason) and "'liver', 'spleen'" in rejected(done)["a"][2]
    (tmp_path / "lost.txt").write_text("liver\nspleen\n")
    with pytest.raises(
        AnnotationsError, match=r"lost\.txt: value 0 would be 'liver'.*insert the line 'background' above"
    ):
        run_convert(tmp_path / "s", tmp_path / "r", label_map=str(tmp_path / "lost.txt"), **options)
    (tmp_path / "lost.json").write_text('{"liver": 0, "spleen": 1}')
    done = run_convert(tmp_path / "s", tmp_path / "q", label_map=str(tmp_path / "lost.json"), **options)
    assert rejected(done)["a"][1] == "class of the mask has the background's id"


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
