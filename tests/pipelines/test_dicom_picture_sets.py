"""Sets of single DICOM pictures: layouts by auto, boxes, frames, patients, and slices that are no pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import (
    BasicTextSRStorage,
    ComputedRadiographyImageStorage,
    CTImageStorage,
    UltrasoundMultiFrameImageStorage,
)

from tests.support.conversions import (
    all_bytes,
    boxes_in_source,
    halofeed_here,
    read_all,
    read_split,
    rejected_entries,
)
from tests.support.dicom_writer import image_dataset, save

HEIGHT, WIDTH = 48, 40
BOX = (10, 6, 30, 26)
"""ymin, xmin, ymax, xmax of the bright square of a picture."""


def picture(path: Path, *, patient: str = "", bright: bool = True, **more: Any) -> None:
    """A radiograph of 12 bits, with a bright square."""
    pixels = np.full((HEIGHT, WIDTH), 700, np.uint16)
    if bright:
        pixels[BOX[0] : BOX[2], BOX[1] : BOX[3]] = 4095
    elements = {"SOPClassUID": ComputedRadiographyImageStorage, **more}
    dataset = image_dataset(
        pixels, position=None, orientation=None, modality="CR", rescale=None, bits_stored=12, patient=patient
    )
    dataset.update(elements)
    save(dataset, path)


def ultrasound(path: Path, frames: int = 3, patient: str = "U1") -> None:
    pixels = (
        np.full((frames, HEIGHT, WIDTH), 10, np.uint8) + np.arange(frames, dtype=np.uint8)[:, None, None] * 50
    )
    more = {"SOPClassUID": UltrasoundMultiFrameImageStorage, "NumberOfFrames": frames}
    save(image_dataset(pixels, position=None, modality="US", rescale=None, patient=patient, more=more), path)


def ct_slice(path: Path, at: int, series: str) -> None:
    pixels = np.full((HEIGHT, WIDTH), 1000 + at, np.int16)
    save(
        image_dataset(pixels, position=(0, 0, 3 * at), series=series, more={"SOPClassUID": CTImageStorage}),
        path,
    )


def in_class_folders(root: Path, name: Callable[[int], str] = lambda at: f"{at}.dcm") -> None:
    for at in range(6):
        picture(root / "ab"[at % 2] / name(at), patient=f"P{at}", bright=at % 2 == 0)


def as_rsna(root: Path) -> None:
    rows = ["patientId,x,y,width,height,Target"]
    for at in range(4):
        picture(root / f"images/p-{at}.dcm", patient=f"p-{at}", bright=at > 1)
        rows.append(f"p-{at},6.0,10.0,20.0,20.0,1" if at > 1 else f"p-{at},,,,,0")
    (root / "labels.csv").write_text("\n".join(rows))


def as_vindr(root: Path) -> None:
    rows = ["image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"]
    for at in range(4):
        picture(root / f"train/{at:032x}.dicom", bright=at > 1)
        rows.append(f"{at:032x}," + ("Nodule,1,R1,6,10,26,30" if at > 1 else "No finding,14,R1,,,,"))
    (root / "train.csv").write_text("\n".join(rows))


def as_coco(root: Path) -> None:
    ids = range(1, 5)
    for at in ids:
        picture(root / f"images/{at}.dcm", bright=at > 2)
    images = [{"id": at, "file_name": f"{at}.dcm", "width": WIDTH, "height": HEIGHT} for at in ids]
    box = {"category_id": 1, "bbox": [6, 10, 20, 20], "area": 400, "iscrowd": 0}
    objects = [{"id": at, "image_id": at, **box} for at in ids if at > 2]
    document = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "Nodule"}]}
    (root / "annotations.json").write_text(json.dumps(document))


def as_yolo(root: Path) -> None:
    (root / "labels").mkdir(parents=True)
    for at in range(4):
        picture(root / f"images/{at}.dcm", bright=at > 1)
        line = f"0 {16 / WIDTH} {20 / HEIGHT} {20 / WIDTH} {20 / HEIGHT}\n"
        (root / f"labels/{at}.txt").write_text(line if at > 1 else "")
    (root / "data.yaml").write_text("train: images\nnames: [Nodule]\n")


def as_voc(root: Path) -> None:
    (root / "Annotations").mkdir(parents=True)
    for at in range(4):
        picture(root / f"JPEGImages/{at}.dcm", bright=at > 1)
        box = "<bndbox><xmin>7</xmin><ymin>11</ymin><xmax>26</xmax><ymax>30</ymax></bndbox>"
        found = f"<object><name>Nodule</name>{box}</object>" if at > 1 else ""
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>1</depth></size>"
        text = f"<annotation><filename>{at}.dcm</filename>{size}{found}</annotation>"
        (root / f"Annotations/{at}.xml").write_text(text)


def converted(source: Path, *words: object) -> tuple[Path, str]:
    """Convert by the command line in this process; return the folder and what was printed."""
    out = source.parent / "out"
    size = ["--height", HEIGHT, "--width", WIDTH]
    run = halofeed_here(
        "convert", "--source", source, "--out", out, "--name", "t", *size, "--workers", 1, *words
    )
    assert run.returncode == 0, run.stderr
    return out / "t/1.0.0", run.stdout + run.stderr


def refused(source: Path, *words: object) -> str:
    out = source.parent / "out"
    run = halofeed_here("convert", "--source", source, "--out", out, "--name", "t", "--workers", 1, *words)
    assert run.returncode != 0
    return run.stderr


@pytest.mark.parametrize("name", ["{}.dcm", "{}.DICOM", "IM-{}", "1.2.840.{}"])
def test_class_folders_of_dicom_pictures_are_recognized_whatever_their_names(tmp_path, name):
    in_class_folders(tmp_path / "s", name.format)
    folder, printed = converted(tmp_path / "s")
    assert "layout folders" in printed
    for record in read_all(folder, ["train"]).values():
        image = np.frombuffer(record["image/encoded"][0], np.uint8).reshape(HEIGHT, WIDTH, 3)
        is_bright = record["image/class/text"] == [b"a"]
        assert image[0, 0].tolist() == [44] * 3 and (image[20, 20, 0] == 255) == is_bright


@pytest.mark.parametrize("draw", [as_rsna, as_vindr, as_coco, as_yolo, as_voc])
def test_boxes_of_each_layout_are_where_they_were_drawn(tmp_path, draw):
    draw(tmp_path / "s")
    folder, _ = converted(tmp_path / "s")
    records = list(read_all(folder, ["train"]).values())
    assert len(records) == 4
    boxes = [boxes_in_source(record) for record in records]
    assert sorted(map(len, boxes)) == [0, 0, 1, 1]
    for record, found in zip(records, boxes, strict=True):
        image = np.frombuffer(record["image/encoded"][0], np.uint8).reshape(HEIGHT, WIDTH, 3)
        assert (image[20, 20, 0] == 255) == bool(len(found))
        if len(found):
            assert np.abs(found[0] - BOX).max() < 1e-3


def test_a_picture_and_its_mask_are_a_pair(tmp_path):
    (tmp_path / "s/masks").mkdir(parents=True)
    for at in range(3):
        picture(tmp_path / f"s/images/{at}.dcm")
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[BOX[0] : BOX[2], BOX[1] : BOX[3]] = 1
        Image.fromarray(mask).save(tmp_path / f"s/masks/{at}.png")
    folder, printed = converted(tmp_path / "s")
    assert "layout pairs" in printed
    for record in read_all(folder, ["train"]).values():
        label = np.frombuffer(record["image/label"][0], np.uint8).reshape(HEIGHT, WIDTH)
        assert np.array_equal(np.argwhere(label)[[0, -1]].ravel(), [BOX[0], BOX[1], BOX[2] - 1, BOX[3] - 1])


def test_each_frame_is_a_record_of_its_class(tmp_path):
    for at in range(2):
        ultrasound(tmp_path / "s" / "ab"[at] / "cine.dcm", patient=f"U{at}")
        picture(tmp_path / "s" / "ab"[at] / "still.dcm", patient=f"U{at}")
    folder, _ = converted(tmp_path / "s")
    by_key = {bytes(record["image/key/source"][0]).decode(): record for record in read_split(folder, "train")}
    cines = {f"{name}/cine.dcm#{number}" for name in "ab" for number in (1, 2, 3)}
    assert set(by_key) == cines | {"a/still.dcm", "b/still.dcm"}
    for number in (1, 2, 3):
        record = by_key[f"b/cine.dcm#{number}"]
        assert record["image/class/text"] == [b"b"] and record["image/filename"] == [b"b/cine.dcm"]
        assert set(record["image/encoded"][0]) == {10 + 50 * (number - 1)}
    assert halofeed_here("verify", folder).returncode == 0


def test_a_box_of_a_file_of_several_frames_is_refused_because_it_names_no_frame(tmp_path):
    ultrasound(tmp_path / "s/a.dcm")
    picture(tmp_path / "s/b.dcm")
    rows = ["filename,class,xmin,ymin,xmax,ymax", "a.dcm,x,1,1,5,5", "b.dcm,x,1,1,5,5"]
    (tmp_path / "s/t.csv").write_text("\n".join(rows))
    folder, _ = converted(tmp_path / "s", "--max-rejected", 1)
    (entry,) = rejected_entries(folder)
    assert entry["source"] == "a.dcm" and "save the annotated frame" in entry["detail"]


def test_no_patient_is_in_two_splits_and_none_is_named_in_the_data_set(tmp_path):
    for at in range(24):
        picture(tmp_path / "s" / "ab"[at % 2] / f"{at}.dcm", patient=f"SECRET{at // 3}")
    folder, _ = converted(tmp_path / "s", "--split-shares", "train=0.5,test=0.5")
    splits: dict[int, set[str]] = {}
    for split in ("train", "test"):
        for record in read_split(folder, split):
            number = int(bytes(record["image/filename"][0]).decode().split("/")[1].removesuffix(".dcm"))
            splits.setdefault(number // 3, set()).add(split)
    assert len(splits) == 8 and all(len(found) == 1 for found in splits.values())
    assert {split for found in splits.values() for split in found} == {"train", "test"}
    assert not any(b"SECRET" in data for data in all_bytes(folder).values())


def test_a_patient_in_two_splits_of_the_source_is_refused(tmp_path):
    for split in ("train", "test"):
        for name in "ab":
            picture(tmp_path / "s" / split / name / "1.dcm", patient=f"P{name}")
    assert "a group is divided" in refused(tmp_path / "s", "--layout", "folders")
    converted(tmp_path / "s", "--layout", "folders", "--group-pattern", "(.+)")


def test_pictures_without_a_patient_are_divided_with_a_warning(tmp_path):
    in_class_folders(tmp_path / "s")
    for file in (tmp_path / "s").rglob("*.dcm"):
        picture(file)
    _, printed = converted(tmp_path / "s", "--split-shares", "train=0.5,test=0.5")
    assert "no DICOM picture has a patient id" in printed


def test_folders_of_one_patient_each_are_no_classes_by_auto(tmp_path):
    for at in range(4):
        picture(tmp_path / f"s/P{at}/x{at * 37}.dcm", patient=f"P{at}")
    assert "each folder holds the DICOM pictures of one patient" in refused(tmp_path / "s")
    converted(tmp_path / "s", "--layout", "folders")


def test_a_folder_of_a_series_stays_a_volume_and_the_user_may_take_its_slices(tmp_path):
    for name in "ab":
        for at in range(4):
            ct_slice(tmp_path / "s" / name / f"{at}.dcm", at, f"1.2.{ord(name)}")
    assert "layout dicom" in refused(tmp_path / "s")
    message = refused(tmp_path / "s", "--layout", "folders")
    assert "--layout dicom with --depth" in message and "--folders-are-classes" in message
    folder, _ = converted(
        tmp_path / "s", "--layout", "folders", "--folders-are-classes", "--window", "40/400"
    )
    assert len(list(read_split(folder, "train"))) == 8


def test_a_table_that_names_each_slice_makes_pictures_of_them(tmp_path):
    rows = ["filename,class"]
    for at in range(6):
        ct_slice(tmp_path / f"s/ct/ID_{at}.dcm", at, "1.2.3")
        rows.append(f"ID_{at},{'bleeding' if at % 2 else 'none'}")
    (tmp_path / "s/labels.csv").write_text("\n".join(rows))
    folder, printed = converted(tmp_path / "s")
    assert "layout csv" in printed and len(list(read_split(folder, "train"))) == 6


def test_objects_beside_pictures_are_listed_with_what_they_are(tmp_path):
    in_class_folders(tmp_path / "s")
    report = image_dataset(np.zeros((2, 2), np.uint8), position=None, modality="SR", rescale=None)
    report.SOPClassUID = BasicTextSRStorage
    del report.PixelData
    save(report, tmp_path / "s/a/report.dcm")
    (tmp_path / "s/b/broken.dcm").write_bytes((tmp_path / "s/a/0.dcm").read_bytes()[:300])
    folder, _ = converted(tmp_path / "s", "--max-rejected", 2)
    reasons = {entry["source"]: entry["reason"] for entry in rejected_entries(folder)}
    assert reasons == {"a/report.dcm": "DICOM file holds no picture", "b/broken.dcm": "file is truncated"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--window", "2"), "no source is a DICOM picture"),
        (("--window", "2", "--fit", "tiles"), "--window has no effect"),
        (("--depth", "4", "--window", "2"), "window '2' is not known"),
    ],
)
def test_a_window_without_dicom_pictures_is_refused(tmp_path, words, message):
    for name in "ab":
        (tmp_path / "s" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20), "red").save(tmp_path / f"s/{name}/1.png")
    layout = "pairs" if "--depth" in words else "folders"
    assert message in refused(tmp_path / "s", "--layout", layout, *words)


def test_single_pictures_with_depth_lead_to_pictures(tmp_path):
    in_class_folders(tmp_path / "s")
    for layout in ("dicom", "pairs"):
        message = refused(tmp_path / "s", "--layout", layout, "--depth", 4, "--height", 8, "--width", 8)
        assert "leave --depth out, and take --layout folders" in message
