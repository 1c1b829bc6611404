"""Exports of data sets: converted again they give the same records, and other programs read them."""

from pathlib import Path
from typing import Any

import cv2
import nibabel
import numpy as np
import pytest
from pycocotools.coco import COCO

from tests.support.conversions import halofeed_here, read_all, run_convert
from tests.support.dataset_writer import LABELS, Drawn, draw_examples, write_dataset
from tests.support.small_scans import SIZE, image, mask, msd_document, write_json

SIDES = H, W = 30, 44  # the last row is padding
TASKS = {"folders": "classification"} | dict.fromkeys(("coco", "yolo", "voc"), "detection")


def export(data: object, to: str, out: Path, *more: object, code: int = 0) -> str:
    done = halofeed_here("export", data, "--to", to, "--out", out, *more)
    assert done.returncode == code, done.stderr
    return done.stderr


def draw(task: str, **more: Any) -> list[Drawn]:
    return draw_examples(task, {"train": 8, "val": 5}, shape=(H, W, 3), **more)


def again(out: Path, layout: str, splits=("train", "val"), **more: Any) -> dict[bytes, dict[str, Any]]:
    """The records of an export that is converted, by their pixels."""
    done = run_convert(out, out.parent / "again", layout=layout, **{"height": H - 1, "width": W} | more)
    assert set(done.manifest.rejected) <= {"selection: hidden, or left behind by a system or a tool"}
    found = read_all(Path(done.folder), splits).values()
    return {bytes(features["image/encoded"][0]): features for features in found}


def keypoints(example: Drawn, features: dict[str, Any]) -> dict[str, Any]:
    """Two keypoints of each box, the second without a label."""
    count = len(example.classes)
    x = ((np.arange(2 * count) + 1) / 99 * ([1, 0] * count)).astype(np.float32)
    parts = {"x": x, "y": x, "visibility": np.array([2, 0] * count), "num": np.ones(count, int)}
    parts |= {"text": [b"nose", b"tail"] * count}
    return features | {f"image/object/keypoint/{name}": value for name, value in parts.items()}


@pytest.mark.parametrize(("layout", "whole"), [*((layout, False) for layout in TASKS), ("voc", True)])
def test_classes_boxes_and_pixels_are_the_same_again(tmp_path: Path, layout: str, whole: bool) -> None:
    drawn, boxed, limits = draw(TASKS[layout]), layout != "folders", [H - 1, W] * 2
    for boxes in (one.boxes for one in drawn if whole and one.boxes is not None):
        boxes[:, :2] = np.rint(boxes[:, :2] * [H - 4, W - 4]) / SIDES
        boxes[:, 2:] = boxes[:, :2] + np.array([2, 3]) / SIDES
    how: dict[str, Any] = {"masks": True, "alter": keypoints} if boxed else {"encoding": "png"}
    said = export(write_dataset(tmp_path / "in", drawn, task=TASKS[layout], **how), layout, tmp_path / "out")
    assert ("masks" in said) is ("is_crowd" in said) is (layout in ("yolo", "voc"))
    kept = {"masks": True, "keep": ("keypoints",)} if layout == "coco" else {}
    found = again(tmp_path / "out", layout, **kept)
    for one in drawn:
        features = found[one.pixels[: H - 1].tobytes()]
        names = features["image/object/class/text" if boxed else "image/class/text"]
        classes = one.classes if boxed else [one.label]
        assert [bytes(name).decode() for name in names] == [LABELS[TASKS[layout]][label] for label in classes]
        if one.boxes is None or not len(one.boxes):
            continue
        corners = [features[f"image/object/bbox/{side}"] for side in ("ymin", "xmin", "ymax", "xmax")]
        expected = np.minimum(one.boxes * [*SIDES, *SIDES], limits) / limits
        np.testing.assert_allclose(np.stack(corners, axis=1), expected, atol=1e-6)
        if kept:
            assert features["image/object/is_crowd"].tolist() == [number % 2 for number in range(len(names))]
            x = keypoints(one, {})["image/object/keypoint/x"]
            np.testing.assert_allclose(features["image/object/keypoint/x"], x, atol=1e-6)
    files = (tmp_path / "out").glob("Annotations/*.xml")
    assert whole is not any("." in path.read_text().replace(".png", "") for path in files) or layout != "voc"


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_pycocotools_reads_masks_and_areas_and_stored_jpeg_files_stay(tmp_path: Path) -> None:
    stored: dict[str, dict[str, Any]] = {}
    how: dict[str, Any] = {"encoding": "jpeg", "masks": True}
    how["alter"] = lambda one, features: stored.setdefault(features["image/source_id"].decode(), features)
    data = write_dataset(tmp_path / "data", draw("detection", varied=True), task="detection", **how)
    export(data, "coco", tmp_path / "out")
    coco = COCO(str(tmp_path / "out/annotations/instances_train.json"))
    assert len(coco.imgs) == 8
    for entry in coco.imgs.values():
        features, objects = stored[str(entry["id"])], coco.imgToAnns[entry["id"]]
        file = tmp_path / "out/images/train" / entry["file_name"]
        assert file.suffix == ".jpg" and file.read_bytes() == features["image/encoded"]
        assert [one["area"] for one in objects] == features["image/object/area"].tolist()
        for one, png in zip(objects, features["image/object/mask"], strict=True):
            assert (coco.annToMask(one) == cv2.imdecode(np.frombuffer(png, np.uint8), -1)).all()


@pytest.mark.parametrize("recipe", [{}, {"window_percentiles": (1, 99)}])
def test_volumes_have_the_same_voxels_and_affine(tmp_path: Path, recipe: dict[str, Any]) -> None:
    affine = np.diag([2.0, 2, 3, 1])
    for number in range(3):
        for folder, voxels in (("images", image(number)), ("labels", mask(number))):
            (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(voxels.T, affine), tmp_path / f"in/{folder}/{number}.nii.gz")
    cases = [{"image": f"images/{number}.nii.gz", "label": f"labels/{number}.nii.gz"} for number in range(3)]
    write_json(tmp_path / "in", msd_document() | {"training": cases[:2], "test": cases[2:]})
    padded = {"splits": ("train", "test"), **{name: side + 4 for name, side in SIZE.items()}, **recipe}
    before, out = again(tmp_path / "in", "msd", **padded), tmp_path / "deep/out"
    export(tmp_path / "again/set/1.0.0", "nifti", out)
    found = again(out, "msd", **padded)
    assert len(found) == 3 and (recipe or found.keys() == before.keys())
    for number in range(3):
        read, label = (nibabel.load(out / of / f"images_{number}.nii.gz") for of in ("images", "labels"))
        np.testing.assert_allclose(read.affine, affine, atol=1e-5)
        np.testing.assert_array_equal(label.get_fdata(), mask(number).T)
        values = read.get_fdata()
        low, high = (values.min(), values.max()) if recipe else (-900, 900)
        error = (high - low) / 509 if recipe else 0  # half a step of 8 bits
        np.testing.assert_allclose(values, np.clip(image(number).T, low, high), atol=error)


def test_hostile_names_stay_inside_the_folder_and_apart(tmp_path: Path, monkeypatch) -> None:
    keys = ("../../up.jpg", "/etc/passwd", "a b.png", "A?b.png", "..", "\n", "x" * 400, "é/ü")
    for layout, task in TASKS.items():
        hostile = {label: f"{label}/../a\n'b\": #\u2028\x01</name>&" for label in LABELS[task]}
        monkeypatch.setitem(LABELS, task, hostile)
        drawn = [Drawn(**vars(one) | {"key": key}) for one, key in zip(draw(task), keys, strict=False)]
        export(write_dataset(tmp_path / "data", drawn, task=task), layout, tmp_path / f"deep/{layout}/out")
        assert len(again(tmp_path / f"deep/{layout}/out", layout, ("train",))) == len(keys)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "deep"}
    assert {path.name for path in (tmp_path / "deep").glob("*/*")} == {"out", "again"}


def test_an_export_replaces_only_an_export_and_refusals_name_what_fits(tmp_path: Path) -> None:
    data, out = write_dataset(tmp_path / "data", draw("detection"), task="detection"), tmp_path / "out"
    export(data, "coco", out)
    assert "pass --overwrite" in export(data, "voc", out, code=2)
    export(data, "voc", out, "--overwrite")
    assert (out / "JPEGImages").is_dir() and not (out / "images").exists()
    (out / "notes.txt").write_text("mine")
    assert "notes.txt" in export(data, "coco", out, "--overwrite", code=2) and (out / "JPEGImages").is_dir()
    assert "holds no exported data" in export(data, "coco", data, "--overwrite", code=2)
    assert "say --to coco" in export(data, "folders", tmp_path / "no", code=2)
    assert "nifti" in export(data, "no such", tmp_path / "no", code=2)
    assert "leave it out" in export(data, "coco", tmp_path / "no", "--format", "savedmodel", code=2)
    asked = halofeed_here("export", data, "--out", tmp_path / "no").stderr
    assert "--to coco or --to yolo or --to voc" in asked
    shard = next(data.glob("tiny-train*"))
    shard.write_bytes(shard.read_bytes()[:-30])
    assert "halofeed verify" in export(data, "coco", tmp_path / "no", code=1)
    assert not (tmp_path / "no").exists()
