"""Exports of data sets: converted again they give the same records, and other programs read them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO

from halofeed.prep.voxels.masks import encode_mask_png
from halofeed.schemas.keys import BOX_CORNERS
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.annotation_writer import draw as draw_pictures
from tests.support.conversions import halofeed_here, read_all, run_convert
from tests.support.dataset_writer import LABELS, Drawn, draw_examples, write_dataset
from tests.support.small_scans import FLIPPED, SIZE, image, mask, msd_document, write_json
from tests.support.volume_support import save_nifti

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
    assert not done.manifest.rejected
    return {bytes(one["image/encoded"][0]): one for one in read_all(Path(done.folder), splits).values()}


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
    data = write_dataset(tmp_path / "data", drawn, task=TASKS[layout], **how)
    said = export(data, layout, tmp_path / "out")
    assert ("masks" in said) is ("is_crowd" in said) is (layout in ("yolo", "voc"))
    kept = {"coco": {"masks": True, "keep": ("keypoints",)}, "yolo": {"keep": ("keypoints",)}}.get(layout, {})
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
            crowds = features["image/object/is_crowd"].tolist()
            assert crowds == [number % 2 * ("masks" in kept) for number in range(len(names))]
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


def test_segments_of_yolo_give_the_same_masks_again(tmp_path: Path) -> None:
    generator, stored = np.random.default_rng(0), dict[bytes, list[NDArray[np.uint8]]]()

    def scatter(one: Drawn, features: dict[str, Any]) -> dict[str, Any]:
        masks = (generator.random((len(one.classes), *SIDES)) < 0.4).astype(np.uint8)
        masks[:1] = 0
        stored[one.pixels[: H - 1].tobytes()] = list(masks[1:, : H - 1])
        return features | {"image/object/mask": [encode_mask_png(mask) for mask in masks]}

    data = write_dataset(tmp_path / "data", draw("detection"), task="detection", masks=True, alter=scatter)
    said = export(data, "yolo", tmp_path / "out")
    assert "objects without a pixel in their mask" in said and "pixels from the data set's boxes" in said
    for pixels, features in again(tmp_path / "out", "yolo", masks=True).items():
        found = [cv2.imdecode(np.frombuffer(png, np.uint8), -1) for png in features["image/object/mask"]]
        np.testing.assert_array_equal(found, stored[pixels] or np.zeros((0,)))


@pytest.mark.parametrize(("to", "copied"), [("coco", False), ("voc", True), ("yolo", True)])
def test_boxes_go_back_to_the_pixels_of_the_source(tmp_path: Path, to: str, copied: bool) -> None:
    names, source = [f"{folder}/{folder}.jpg" for folder in "abcdefgh"], tmp_path / "in"
    for turn, name in enumerate(names, start=1):
        draw_pictures(source, name, size=(37, 53), orientation=turn)
    rows = (boxed(name, (3 + n, 5, 20.25 + n, 17), width=53, height=37) for n, name in enumerate(names))
    write_annotations(source, "coco", list(rows))
    before = run_convert(source, tmp_path / "data", layout="coco", annotation_grid="stored")
    said = export(before.folder, to, tmp_path / "out", "--grid=source", *[f"--images={source}"] * copied)
    assert ("grid stored" in said) is (to != "yolo") and ("no picture is copied" in said) is not copied
    how = {"annotation_grid": "displayed" if to == "yolo" else "stored"} | (
        {} if copied else {"images": str(source)}
    )
    after = run_convert(tmp_path / "out", tmp_path / "again", layout=to, **how)
    sides = [
        sorted(
            [float(one[key][0]) for key in BOX_CORNERS]
            for one in read_all(Path(done.folder), ["train"]).values()
        )
        for done in (before, after)
    ]
    np.testing.assert_allclose(*sides, atol=1e-6)
    Image.new("L", (53, 36)).save(source / names[0])
    said = export(before.folder, "yolo", tmp_path / "no", "--grid", "source", "--images", source, code=2)
    assert "53x36" in said and "name the folder that was converted" in said


def test_labels_go_back_to_the_voxels_of_the_source(tmp_path: Path) -> None:
    for folder, voxels in (("imagesTr", image()), ("labelsTr", mask())):
        save_nifti(tmp_path / f"in/{folder}/a.nii.gz", voxels, FLIPPED)
    write_json(tmp_path / "in", msd_document("a.nii.gz"))
    done = run_convert(tmp_path / "in", tmp_path / "data", layout="msd", depth=7, height=12, width=9)
    export(done.folder, "nifti", tmp_path / "out", "--grid", "source")
    written, before = (
        nibabel.load(next(tmp_path.glob(f"{at}/*.nii.gz"))) for at in ("out/labels", "in/labelsTr")
    )
    np.testing.assert_array_equal(written.get_fdata(), mask().T)
    np.testing.assert_allclose(written.affine, before.affine, atol=1e-5)


@pytest.mark.long
def test_other_programs_read_the_same_boxes(test_data: Path) -> None:
    command = [sys.executable, "benchmarks/other_readers.py", "--data", test_data]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode and (" equal" in done.stdout or "not installed" in done.stdout), done


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
    assert "nifti" in export(data, "no such", tmp_path / "no", code=2)
    assert "leave it out" in export(data, "coco", tmp_path / "no", "--format", "savedmodel", code=2)
    asked = halofeed_here("export", data, "--out", tmp_path / "no").stderr
    assert "--to coco or --to yolo or --to voc" in asked
    shard = next(data.glob("tiny-train*"))
    shard.write_bytes(shard.read_bytes()[:-30])
    assert "halofeed verify" in export(data, "coco", tmp_path / "no", code=1)
    assert not (tmp_path / "no").exists()
