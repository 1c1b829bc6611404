"""Boxes in volumes from drawn sets through conversion, loader and inspection."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from halofeed import boxes_to_mm, boxes_to_source
from halofeed.errors import JobError
from halofeed.inspection.verify import verify
from halofeed.loader import (
    FlipDepth,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    PadAndCrop,
    RandomCrop,
    RandomRotation,
    Rotate90,
)
from tests.support.conversions import halofeed_here, read_split, run_convert
from tests.support.scan_box_sets import (
    LPS_OF_RAS,
    draw_lidc,
    draw_luna,
    draw_nndetection,
    turned_affine,
    write_nifti,
    write_table,
)

SHAPE = {"depth": 32, "height": 40, "width": 40}
GEOMETRY = ["affine", "source_affine", "source_boxes", "visible", "index", "source"]


def objects_of(batch, row):
    """Boxes in voxels, and the other lists of a row without padding."""
    count, shape = int(batch["num_boxes"][row]), batch["image"].shape[1:4]
    lists = {name: batch[name][row, :count] for name in ("boxes", "classes", "is_crowd")}
    return {**lists, "voxels": lists["boxes"].astype(np.float64) * np.tile(shape, 2)}


def instance_boxes(image):
    """The boxes of the values of an image that numbers objects, by SciPy."""
    found = ndimage.find_objects(image.astype(np.int32))
    return [[*(s.start for s in box), *(s.stop for s in box)] for box in found if box]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Scans whose values number their objects, which are far apart, with a table of their boxes in voxels."""
    root, rows = tmp_path_factory.mktemp("numbered"), []
    for number in range(3):
        generator, volume = np.random.default_rng(number), np.zeros((24, 40, 36), np.int16)
        for instance in range(1, 7):
            block = np.unravel_index(instance - 1, (2, 2, 2))
            low = [12 * at + int(generator.integers(0, 6)) for at in block]
            high = [a + int(generator.integers(2, 6)) for a in low]
            volume[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = instance
            rows.append((f"scan{number}", "a", *low[::-1], *high[::-1]))
        write_nifti(root / "scans" / f"scan{number}.nii.gz", volume, turned_affine(number))
    write_table(root / "boxes.csv", ("scan", "class", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax"), rows)
    return root


@pytest.fixture(scope="module")
def luna(tmp_path_factory):
    root = tmp_path_factory.mktemp("luna")
    drawn = draw_luna(root / "source")
    return drawn, run_convert(root / "source", root / "out", layout="luna16", **SHAPE)


@pytest.mark.parametrize(
    "options",
    [
        {"fit": "crop-or-pad"},
        {"fit": "crop-or-pad", "depth": 22, "height": 30, "width": 26},
        {"fit": "crop-or-pad", "depth": 22, "height": 30, "width": 26, "center": "label"},
        {"fit": "tiles", "depth": 16, "height": 24, "width": 20, "tile_overlap": (4, 8, 4)},
    ],
    ids=str,
)
def test_boxes_of_records_are_those_of_their_voxels(numbered, tmp_path, options):
    done = run_convert(
        numbered, tmp_path, layout="scan-boxes", encoding="packed", on_loss="warn", **(SHAPE | options)
    )
    records = sum(split.records for split in done.manifest.splits.values())
    batch = Loader(done.folder, split="train", batch_size=records, shuffle=False).batch(0)
    for row in range(records):
        expected = instance_boxes(batch["image"][row, ..., 0])
        found = objects_of(batch, row)["voxels"]
        np.testing.assert_allclose(sorted(found.tolist()), sorted(expected), atol=1e-4)
    assert verify(done.folder).ok


@pytest.mark.parametrize(
    "augment",
    [
        [FlipDepth(1), FlipUpDown(1), FlipLeftRight(1)],
        [FlipDepth(), FlipLeftRight()],
        [Rotate90()],
        [RandomCrop(20, 24, 24, minimum_visible=0.0), FlipDepth(), FlipUpDown()],
        [RandomCrop(20, 24, 24, minimum_visible=0.0), Rotate90(1)],
        [FlipDepth(), PadAndCrop(6, minimum_visible=0.0)],
    ],
    ids=str,
)
def test_boxes_follow_the_augmentations_of_the_voxels(numbered, tmp_path, augment):
    done = run_convert(numbered, tmp_path, layout="scan-boxes", **SHAPE)
    loader = Loader(done.folder, split="train", batch_size=3, augment=augment, include=GEOMETRY[:3])
    for step in range(4):  # the second epoch takes the planned path
        batch = loader.batch(step)
        for row in range(3):
            found = objects_of(batch, row)
            expected = instance_boxes(batch["image"][row, ..., 0])
            np.testing.assert_allclose(sorted(found["voxels"].tolist()), sorted(expected), atol=1e-4)


def test_boxes_without_enough_of_them_in_a_crop_are_dropped_by_their_volume(numbered, tmp_path):
    done = run_convert(numbered, tmp_path, layout="scan-boxes", **SHAPE)
    crops = [RandomCrop(18, 22, 22, minimum_visible=share) for share in (0.0, 0.9)]
    batches = [Loader(done.folder, split="train", batch_size=3, augment=[one]).batch(0) for one in crops]
    np.testing.assert_array_equal(batches[0]["image"], batches[1]["image"])
    some, most = (int(batch["num_boxes"].sum()) for batch in batches)
    assert most < some


def test_a_rotated_box_holds_the_rotated_voxels(numbered, tmp_path):
    done = run_convert(numbered, tmp_path, layout="scan-boxes", **SHAPE)
    rotation = RandomRotation(20, minimum_visible=0.0)
    batch = Loader(done.folder, split="train", batch_size=3, augment=[rotation]).batch(0)
    for row in range(3):
        inside = np.zeros(batch["image"].shape[1:4], bool)
        for box in objects_of(batch, row)["voxels"]:
            low, high = np.floor(box[:3] - 0.5).clip(0).astype(int), np.ceil(box[3:] + 0.5).astype(int)
            inside[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True
        assert not batch["image"][row, ..., 0][~inside].any()


def test_boxes_lead_back_to_the_source_and_to_millimeters(luna):
    drawn, done = luna
    augment = [RandomCrop(24, 32, 32), FlipDepth(), FlipLeftRight(), FlipUpDown()]
    for chosen in ([], augment):
        loader = Loader(done.folder, split="train", batch_size=4, augment=chosen, include=GEOMETRY)
        batch = loader.batch(1)
        checked = 0
        for row in range(4):
            found, shape = objects_of(batch, row), batch["image"].shape[1:4]
            affines = batch["affine"][row], batch["source_affine"][row]
            source = boxes_to_source(found["boxes"], shape, *affines)
            centers, sizes = boxes_to_mm(found["boxes"], shape, affines[0])
            for at in range(len(source)):
                complete = batch["source_boxes"][row, at]
                if not np.allclose(source[at], complete, atol=1e-2):
                    continue  # cut by the crop
                checked += 1
                name = batch["source"][row].rpartition("/")[2].removesuffix(".mhd")
                center, diameter = drawn[name][batch["index"][row, at]]
                np.testing.assert_allclose(centers[at], center, atol=1e-2)
                np.testing.assert_allclose(sizes[at], diameter, atol=1e-2)
        assert checked >= 3


def test_luna16_nodules_enclose_their_voxels(luna):
    drawn, done = luna
    batch = Loader(done.folder, split="train", batch_size=4, include=["spacing_mm"]).batch(0)
    assert sorted(batch["num_boxes"].tolist()) == [0, 2, 2, 2]
    for row in range(4):
        image, boxes = batch["image"][row, ..., 0] > 0, objects_of(batch, row)["voxels"]
        _, count = ndimage.label(image)
        assert count in (len(boxes), len(boxes) - 1)  # two may touch
        inside = np.zeros(image.shape, bool)
        for box in boxes:
            low, high = np.floor(box[:3]).astype(int), np.ceil(box[3:]).astype(int)
            inside[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True
        assert not image[~inside].any()
    rejected = [json.loads(line) for line in Path(done.folder, "rejected.jsonl").read_text().splitlines()]
    assert [(one["stage"], one["reason"]) for one in rejected] == [
        ("selection", "scan of a row is not there")
    ]
    assert len(drawn) == 4


def test_oblique_scans_of_luna16_keep_the_sizes_of_spheres(tmp_path):
    drawn = draw_luna(tmp_path / "source", oblique=True, nodules=1)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="luna16", **SHAPE)
    batch = Loader(done.folder, split="train", batch_size=4, include=["affine", "source"]).batch(0)
    for row in range(4):
        name = batch["source"][row].rpartition("/")[2].removesuffix(".mhd")
        centers, sizes = boxes_to_mm(
            batch["boxes"][row, : batch["num_boxes"][row]], batch["image"].shape[1:4], batch["affine"][row]
        )
        np.testing.assert_allclose(
            centers, [center for center, _ in drawn[name]] or np.zeros((0, 3)), atol=1e-2
        )
        np.testing.assert_allclose(
            sizes, np.array([[size] * 3 for _, size in drawn[name]]).reshape(-1, 3), atol=1e-2
        )


def test_each_subset_of_luna16_is_a_fold(tmp_path):
    draw_luna(tmp_path / "source", scans=4)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="luna16", folds=4, **SHAPE)
    assert sorted((name, split.records) for name, split in done.manifest.splits.items()) == [
        (f"fold{number}", 1) for number in range(4)
    ]


def test_nndetection_objects_are_the_boxes_of_their_label(tmp_path):
    labels = draw_nndetection(tmp_path / "source", channels=2)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="nndetection", channels=2, **SHAPE)
    batch = Loader(done.folder, split="train", batch_size=3, include=["source_boxes", "source"]).batch(0)
    assert dict(done.manifest.labels) == {1: "cyst", 2: "nodule"}
    for row in range(3):
        name = batch["source"][row].rpartition("/")[2].removesuffix("_0000.nii.gz")
        found = batch["source_boxes"][row, : batch["num_boxes"][row]].tolist()
        assert sorted(found) == sorted(instance_boxes(labels[name]))


def test_classes_of_nndetection_can_be_chosen(tmp_path):
    draw_nndetection(tmp_path / "source")
    done = run_convert(
        tmp_path / "source", tmp_path / "out", layout="nndetection", classes=("nodule",), **SHAPE
    )
    assert dict(done.manifest.labels) == {1: "nodule"}
    assert not done.manifest.rejected


def test_lidc_readings_become_one_box_for_each_nodule(tmp_path):
    draw_lidc(tmp_path / "source")
    for readers, ignored in ((1, [False, False, True]), (3, [False, True, True])):
        options = SHAPE | {"min_readers": readers}
        done = run_convert(tmp_path / "source", tmp_path / f"out{readers}", layout="lidc", **options)
        include = ["source_boxes", "source_affine"]
        batch = Loader(done.folder, split="train", batch_size=1, include=include).batch(0)
        assert batch["source_boxes"][0, :3].tolist() == [
            [4, 10, 12, 8, 16, 20],
            [10, 25, 5, 12, 30, 9],
            [13, 33, 30, 14, 34, 31],
        ]
        assert batch["is_crowd"][0, :3].tolist() == ignored
    for box in objects_of(batch, 0)["voxels"][:2].round().astype(int):
        inside = batch["image"][0, box[0] : box[3], box[1] : box[4], box[2] : box[5], 0]
        assert (inside == 1000).all()


@pytest.mark.parametrize(
    ("draw", "layout"), [(draw_luna, "luna16"), (draw_nndetection, "nndetection"), (draw_lidc, "lidc")]
)
def test_the_files_show_their_layout(tmp_path, draw, layout):
    draw(tmp_path / "source")
    shape = [f"--{name}={side}" for name, side in SHAPE.items()]
    words = ["--source", tmp_path / "source", "--out", tmp_path / "out", "--name", "set", "--workers", 1]
    done = halofeed_here("convert", *words, *shape)
    assert done.returncode == 0, done.stderr
    assert f"layout {layout}, because" in done.stderr + done.stdout


def test_objects_that_a_crop_leaves_out_are_counted_and_listed(numbered, tmp_path):
    crop = {"layout": "scan-boxes", "depth": 22, "height": 30, "width": 26}
    with pytest.raises(JobError, match=r"(?s)11 of 18 objects.*static shape.*--fit tiles"):
        run_convert(numbered, tmp_path / "refused", **crop)
    done = run_convert(numbered, tmp_path / "out", on_loss="warn", **crop)
    statistics = done.manifest.splits["train"].statistics
    shown = sum(int(boxes) * count for boxes, count in statistics.boxes_per_image.items())
    assert statistics.boxes["in no record"] == 18 - shown > 0
    assert sum(statistics.box_sizes_mm.values()) == 18
    rejected = [json.loads(line) for line in Path(done.folder, "rejected.jsonl").read_text().splitlines()]
    assert sum(one["reason"] == "object is in no record" for one in rejected) == 18 - shown
    assert any(key.startswith("objects in no record") for key in statistics.findings)


@pytest.mark.parametrize(
    "cure",
    [
        {"fit": "tiles"},
        {"depth": 40, "height": 40, "width": 40},
        {"center": "label"},
        {"on_loss": "warn"},
    ],
    ids=str,
)
def test_what_the_refusal_of_lost_objects_suggests_works(tmp_path, cure):
    volume = (np.arange(24 * 40 * 36).reshape(24, 40, 36) % 999).astype(np.int16)
    write_nifti(tmp_path / "source" / "a.nii.gz", volume, turned_affine(1))
    header = ("scan", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax")
    write_table(tmp_path / "source" / "t.csv", header, [("a", 1, 1, 1, 4, 4, 4)] * 20)
    crop = {"layout": "scan-boxes", "depth": 12, "height": 12, "width": 12}
    with pytest.raises(JobError, match="20 of 20 objects lie"):
        run_convert(tmp_path / "source", tmp_path / "refused", **crop)
    done = run_convert(tmp_path / "source", tmp_path / "out", **(crop | cure))
    assert done.manifest.splits["train"].records


def test_tiles_flag_objects_that_they_show_too_little_of(numbered, tmp_path):
    tiles = {"fit": "tiles", "depth": 16, "height": 24, "width": 20}
    flagged = {}
    for share in (0.0, 0.5, 1.0):
        done = run_convert(numbered, tmp_path / str(share), layout="scan-boxes", min_visible=share, **tiles)
        flagged[share] = 0
        for features in read_split(Path(done.folder), "train"):
            crowd, visible = features["image/object/is_crowd"], features["image/object/visible"]
            np.testing.assert_array_equal(crowd != 0, visible < share - 1e-6)
            flagged[share] += int((np.asarray(crowd) != 0).sum())
    assert flagged[0.0] == 0 < flagged[0.5] < flagged[1.0]


def test_the_exported_table_gives_the_same_boxes(luna, tmp_path):
    drawn, done = luna
    assert halofeed_here("export", done.folder, "--to", "scan-boxes", "--out", tmp_path / "e").returncode == 0
    rows = list(csv.DictReader((tmp_path / "e" / "boxes.csv").read_text().splitlines()))
    for row in rows:
        name = row["filename"].rpartition("/")[2].removesuffix(".mhd")
        if row["class"]:
            place = [float(row[f"{axis}_mm"]) for axis in "xyz"]
            distances = [np.abs(np.array(center) - place).max() for center, _ in drawn[name]]
            assert min(distances) < 1e-3
        else:
            assert drawn[name] == []
    assert len(rows) == 7


def test_inspection_shows_the_boxes_and_the_trainer_refuses_them(luna, tmp_path):
    _, done = luna
    record = halofeed_here("inspect", done.folder, "--record", "train:0")
    assert "Boxes, in voxels of the stored volume" in record.stdout
    assert "center in mm (RAS)" in record.stdout
    assert "longest side of the objects in mm: " in halofeed_here("inspect", done.folder).stdout
    report = halofeed_here("report", done.folder, "--output", tmp_path / "report.html")
    assert report.returncode == 0
    assert "Objects of the scans by their longest side" in (tmp_path / "report.html").read_text()
    assert halofeed_here("show", done.folder, "--output", tmp_path / "show.png").returncode == 0
    refused = halofeed_here("train", done.folder, "--out", tmp_path / "run")
    assert refused.returncode != 0
    assert "boxes in volumes" in refused.stderr
    assert "halofeed.loader" in refused.stderr


def test_verify_finds_boxes_that_are_not_where_their_source_puts_them(luna):
    from halofeed.inspection.scan_objects import object_problems

    _, done = luna
    features = next(one for one in read_split(Path(done.folder), "train") if len(one["image/object/index"]))
    assert not list(object_problems(features))
    moved = {**features, "image/object/bbox/zmax": features["image/object/bbox/zmax"] + np.float32(0.05)}
    assert any("voxels from where" in problem for problem in object_problems(moved))
    hidden = {**features, "image/object/visible": features["image/object/visible"] * 0}
    assert any("image/object/visible" in problem for problem in object_problems(hidden))
    outside = {
        **features,
        "image/object/source/bbox/xmax": features["image/object/source/bbox/xmax"] + np.float32(99),
    }
    assert any("outside of the source" in problem for problem in object_problems(outside))


def test_tables_in_lps_and_voxels_give_the_boxes_of_the_drawing(tmp_path):
    drawn = draw_luna(tmp_path / "source")
    (tmp_path / "source" / "candidates.csv").unlink()
    (tmp_path / "source" / "annotations.csv").unlink()
    for unit, matrix in (("ras", np.eye(4)), ("lps", LPS_OF_RAS)):
        rows = [
            (f"{name}.mhd", *(matrix[:3, :3] @ center), diameter)
            for name, nodules in drawn.items()
            for center, diameter in nodules
        ]
        write_table(tmp_path / "source" / "boxes.csv", ("filename", "x", "y", "z", "diameter"), rows)
        done = run_convert(tmp_path / "source", tmp_path / unit, layout="scan-boxes", **SHAPE)
        include = ["affine", "source"]
        batch = Loader(done.folder, split="train", batch_size=3, include=include).batch(0)
        for row in range(3):
            name = batch["source"][row].rpartition("/")[2].removesuffix(".mhd")
            boxes, shape = batch["boxes"][row, :2], batch["image"].shape[1:4]
            centers, _ = boxes_to_mm(boxes, shape, batch["affine"][row])
            np.testing.assert_allclose(centers, [center for center, _ in drawn[name]], atol=1e-2)
