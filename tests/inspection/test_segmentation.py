"""Do verify and inspect see what is in label maps and volumes, and what is wrong with them?"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from halofeed.inspection.describe_dataset import describe_dataset, describe_record
from halofeed.inspection.stored_records import count_classes, oblique_degrees, orientation_of
from halofeed.inspection.verify import verify
from halofeed.prep.geometry.scan import Finding
from halofeed.prep.voxels.intensity import IntensityWindow
from halofeed.prep.voxels.phantom import grid_around, stored_grid
from halofeed.schemas.file_layout import index_file
from halofeed.schemas.identity import example_id
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import Manifest
from tests.inspection.test_verify import Alter, put, put_at, rewrite_index
from tests.support.phantom import ORIENTATIONS
from tests.support.set_writer import encode_pixels
from tests.support.volume_report_writer import CLASSES, draw_picture, draw_scan, write_segmentation
from tests.support.volume_writer import DrawnScan

WINDOW = IntensityWindow(low=-160, high=240)


def scans(**more: Any) -> list[DrawnScan]:
    """Four scans, one in a split of its own and without a label, one whose mask is empty."""
    drawn = [draw_scan(f"scan {number}.nii.gz", **more) for number in range(3)]
    empty = dataclasses.replace(drawn[2], label=np.zeros(drawn[2].image.shape[:3], np.uint8))
    return [*drawn[:2], empty, draw_scan("unlabelled", "test", labelled=False, **more)]


def pictures() -> list[DrawnScan]:
    """Four pictures, one in a split of its own and without a label."""
    return [
        draw_picture(f"{number}.png", "test" if number == 3 else "train", labelled=number != 3, seed=number)
        for number in range(4)
    ]


def tiles_of(key: str, count: int, split: str = "train") -> list[DrawnScan]:
    return [draw_scan(key, split, tile=number) for number in range(count)]


def two_channels(drawn: DrawnScan) -> DrawnScan:
    return dataclasses.replace(drawn, image=np.concatenate([drawn.image, drawn.image // 2], axis=3))


@pytest.mark.parametrize(
    ("records", "options"),
    [
        (scans(), {}),
        (scans(window=WINDOW, store="uint8"), {"label_dtype": "uint16"}),
        (scans(store="float32"), {"shards": 5}),
        (scans(store="bfloat16"), {"dtype": "bfloat16"}),
        ([two_channels(drawn) for drawn in scans()], {}),
        ([*tiles_of("a scan", 3), draw_scan("unlabelled", "test", labelled=False)], {}),
        (pictures(), {}),
        (pictures(), {"encoding": "png", "label_dtype": "uint16"}),
        (pictures(), {"encoding": "jpeg"}),
    ],
    ids=["int16", "uint8", "float32", "bfloat16", "channels", "tiles", "raw", "png", "jpeg"],
)
def test_a_sound_data_set_has_no_problems(tmp_path: Path, records: list[DrawnScan], options: Any) -> None:
    folder = write_segmentation(tmp_path, records, **options)
    report = verify(folder)
    assert report.ok, str(report)
    assert report.records == 4
    assert "1 without, for prediction" in describe_dataset(folder)
    for record in ("train:0", "train:2", "test:0"):
        describe_record(folder, record)


def put_label(value: int) -> Alter:
    def alter(drawn: DrawnScan, features: dict[str, Any]) -> dict[str, Any]:
        label = bytearray(features["image/label"])
        label[100:103] = bytes([value] * 3)
        return {**features, "image/label": bytes(label)}

    return alter


def turned(drawn: DrawnScan, features: dict[str, Any]) -> dict[str, Any]:
    """An affine whose width grows to the left."""
    affine = stored_grid(drawn.grid, ((0, 1, 2), (1, 1, -1))).affine
    return {**features, "image/affine": affine.astype(np.float32).reshape(-1)}


def swapped(drawn: DrawnScan, features: dict[str, Any]) -> dict[str, Any]:
    """An affine of which depth runs to anterior and height to superior; spacings to match."""
    affine = drawn.grid.affine[:, [1, 0, 2, 3]]
    spacing = np.array(features["image/spacing_mm"])[[1, 0, 2]]
    return {**features, "image/affine": affine.astype(np.float32).reshape(-1), "image/spacing_mm": spacing}


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (put_label(7), "image/label: 3 of value 7, which is not in the manifest's labels"),
        (put_label(1), "expected 0 throughout, as image/labelled is 0; 3 are not"),
        (put_label(1), "statistics.label_voxels: the records give"),
        (put("image/label", b"\0" * 9), "image/label: expected 22,848 bytes (uint8 [24, 28, 34]), got 9"),
        (put("image/labelled", np.array([0])), "statistics.labelled: the records give 0"),
        (put("image/labelled", np.array([0])), "as image/labelled is 0"),
        (put("image/depth", np.array([23])), "expected [24, 28, 34] of a volume, got [23, 28, 34]"),
        (put_at("image/extent", 3, 25), "image/extent: depth: expected a part of 0 to 24, got 2 to 25"),
        (put_at("image/extent", 1, -1), "image/extent: height: expected a part of 0 to 28, got -1 to 28"),
        (put_at("image/extent", 2, 34), "image/extent: width: expected a part of 0 to 34, got 34 to 34"),
        (put_at("image/extent", 0, 0), "statistics.padding: the records give"),
        (put_at("image/affine", 2, 0), "image/affine: it cannot be inverted"),
        (put_at("image/source/affine", 2, 0), "image/source/affine: it cannot be inverted"),
        (put_at("image/affine", 12, 1), "expected a last row of 0, 0, 0, 1, got [1.0, 0.0, 0.0, 1.0]"),
        (put_at("image/spacing_mm", 0, 6.0001), "image/spacing_mm: depth: 6.0001"),
        (turned, "image/affine: width: expected it to grow to right, it grows to left"),
        (swapped, "image/affine: depth: expected it to grow to superior, it grows to anterior"),
        (put_at("image/source/shape", 0, 0), "source/shape: expected 1 or more along each axis, got [0, "),
        (put("image/tile", np.array([-1])), "image/tile: expected 0 or more, got -1"),
        (put("image/tile", np.array([3])), "statistics.tiles: the records give"),
        (put("image/tile", np.array([3])), "image/source_id: "),
    ],
)
def test_content_that_is_wrong_under_right_checksums_is_found(tmp_path, alter, expected):
    problems = verify(write_segmentation(tmp_path, scans(), alter=alter)).problems
    assert any(expected in str(problem) for problem in problems), [str(problem) for problem in problems[:20]]


def test_tiles_of_a_scan_that_are_parted_are_found(tmp_path: Path) -> None:
    records = [drawn for key in "abcdefgh" for drawn in tiles_of(key, 2)]
    assert verify(write_segmentation(tmp_path / "sound", records, shards=3)).ok
    records[1] = draw_scan("b", tile=5)
    folder = write_segmentation(tmp_path / "moved", records, shards=3)
    assert verify(folder).ok, "tile 5 of b belongs to b"

    def alter(drawn: DrawnScan, features: dict[str, Any]) -> dict[str, Any]:
        if drawn.key == "b" and drawn.tile == 5:
            return {**features, "image/key/source": b"a", "image/source_id": b"%d" % example_id("a", 5)}
        return features

    folder = write_segmentation(tmp_path / "other", records, shards=1, alter=alter)
    assert "expected sources by rising id, and the tiles of each together" in str(verify(folder))
    folder = write_segmentation(tmp_path / "shard", records, shards=9, alter=alter)
    assert "its id belongs into shard" in str(verify(folder))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("store", ["float32", "bfloat16"])
def test_voxels_that_are_no_number_are_found(tmp_path: Path, store: str, value: float) -> None:
    def alter(drawn: DrawnScan, features: dict[str, Any]) -> dict[str, Any]:
        bits = np.array([value], np.float32).tobytes()[-2 if store == "bfloat16" else -4 :]
        return {**features, "image/encoded": bits + features["image/encoded"][len(bits) :]}

    folder = write_segmentation(tmp_path, scans(store=store), dtype=store, alter=alter)
    assert "image/encoded: 1 of 22,848 values are infinite or no number" in str(verify(folder))


def test_statistics_that_do_not_add_up_and_a_map_without_a_background_are_found(tmp_path: Path) -> None:
    folder = write_segmentation(tmp_path, scans())
    shard = next(path.name for path in sorted(folder.glob("scans-train*[0-9]")) if path.stat().st_size)
    right = ShardIndex.from_bytes((folder / index_file(shard)).read_bytes(), shard).statistics
    padding = dataclasses.replace(right.padding, padded_pixels=0)
    wrong: dict[str, Any] = {"label_voxels": {**right.label_voxels, "0": 1}, "tiles": 4, "padding": padding}
    wrong |= {"labels": {**right.labels, "9": 1}, "records": right.records + 1}
    wrong |= {name: getattr(right, name) - 1 for name in ("labelled", "foreground_voxels")}
    for name, value in wrong.items():
        rewrite_index(folder, shard, statistics=dataclasses.replace(right, **{name: value}))
        assert f"statistics.{name}: the records give" in str(verify(folder))
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(dataclasses.replace(manifest, labels={1: "liver"}).to_json())
    assert "labels: expected 0, the background" in str(verify(folder))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (draw_picture("x", seed=1).image, "expected 1 channel of uint8, got 3 of uint8"),
        (np.zeros((24, 31, 1), np.uint8), "decodes to 24 x 31, image/height and image/width say 24 x 32"),
        (np.full((24, 32, 1), 8, np.uint8), "768 of value 8, which is not in the manifest's labels"),
        (np.zeros((24, 32, 1), np.uint16), "expected 1 channel of uint8, got 1 of uint16"),
        (None, "not a png image that can be decoded"),
    ],
)
def test_label_pictures_that_do_not_fit_are_found(tmp_path: Path, label: Any, expected: str) -> None:
    data = b"no picture" if label is None else encode_pixels(label, "png")
    folder = write_segmentation(tmp_path, pictures(), encoding="png", alter=put("image/label", data))
    assert f"image/label: {expected}" in str(verify(folder))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_axes_are_named_by_where_they_grow_in_all_48_orientations(orientation: Any) -> None:
    order, direction = orientation
    grid = stored_grid(grid_around((4, 3, 2), (12, 12, 12)), orientation)
    names = ("superior", "anterior", "right")
    found = orientation_of(grid.affine)
    for (start, end), axis, sign in zip(found, order, direction, strict=True):
        assert (end if sign > 0 else start) == names[axis]
    assert oblique_degrees(grid.affine) < 1e-4
    assert oblique_degrees(stored_grid(grid_around(turn_degrees=12), orientation).affine) > 5


@given(
    arrays(st.sampled_from(["u1", "<u2"]), array_shapes(max_dims=3, max_side=6), elements=st.integers(0, 255))
)
def test_classes_are_counted_as_by_hand(label: Any) -> None:
    values = label.reshape(-1).tolist()
    assert count_classes(label) == {value: values.count(value) for value in sorted(set(values))}


def test_the_description_says_classes_scans_findings_and_what_is_shown(tmp_path: Path) -> None:
    tilt = Finding(name="gantry tilt", treatment="corrected", detail="16 degrees")
    records = [dataclasses.replace(drawn, findings=(tilt,)) for drawn in scans()]
    records[0] = dataclasses.replace(records[0], findings=(), modality="MR")
    text = re.sub(" +", " ", describe_dataset(write_segmentation(tmp_path, records)))
    liver = sum(int((drawn.label == 1).sum()) for drawn in records)
    marked = sum(int((drawn.label > 0).sum()) for drawn in records)
    for expected in (
        f" 1 liver 0 2 {liver:,} {100 * liver / marked:.1f} %",
        " 9 never seen 0 0 0 0 %",
        f"foreground: {100 * marked / (3 * 24 * 28 * 34):.1f} % of the voxels of labeled records",
        "3 of 4 records have a label; 1 without, for prediction: all values of their label are 0",
        "stored: 24 x 28 x 34 x 1 int16 (depth x height x width x channel), each scan at its own spacing, "
        "by crop-or-pad",
        "the recipe has no window, so the 1st to 99th percentile of the labeled voxels",
        "sources' modality: CT (3), MR (1)",
        "sources' spacing in mm: 6.00 x 4.00 x 4.00 (4)",
        "sources' shape: 22 x 26 x 32 (4)",
        "Findings and corrections\n 3 x gantry tilt (corrected)",
        "train: 68,544 stored, 19.9 % of them padding\n",
        "Rejected\n none",
    ):
        assert expected in text, text
    for kind in ("body", "foreground"):
        figures = r"mean -?[\d.]+, standard deviation [\d.]+, percentiles 0.5 and 99.5 at "
        assert re.search(f" {kind}: {figures}", text)
    recipe = {"spacing_mm": [6, 4, 4], "window": "abdomen", "fit": "tiles"}
    tiles = [*tiles_of("one", 2), *tiles_of("two", 2)]
    text = describe_dataset(write_segmentation(tmp_path / "tiles", tiles, recipe=recipe))
    assert "every 6 x 4 x 4 mm, by tiles" in text and "4 tiles of 2 scans" in text
    assert "Black to white is -160 to 240 HU, the recipe's window." in text
    assert "Findings and corrections\n  none" in text


def test_a_record_is_described_with_its_geometry_values_and_classes(tmp_path: Path) -> None:
    drawn = draw_scan("a scan", tile=2)
    text = re.sub(" +", " ", describe_record(write_segmentation(tmp_path, [drawn]), "train:0"))
    marked = int((drawn.label > 0).sum())
    for expected in (
        "image 24 x 28 x 34 x 1 int16, raw, 45.7 kB (depth x height x width x channel)",
        "spacing 6 x 4 x 4 mm",
        "axes depth to superior, height to anterior, width to right\n",
        "affine [ 0.0000 0.0000 4.0000 -66.0000]",
        "source 22 x 26 x 32 every 6 x 4 x 4 mm, as its file lists them",
        "extent depth 2 to 24, height 2 to 28, width 2 to 34; 19.9 % of the voxels are padding",
        "tile 2, from voxel 2 x 0 x 4 of the scan's grid",
        f"values -1024 to 700, mean {drawn.image.mean(dtype=np.float64):.6g}, padding included",
        f"label liver, spleen, bone, bladder; {100 * marked / drawn.label.size:.1f} % of the voxels are foreground",
        *(
            f"\n {value} {name} {(drawn.label == value).sum():,} "
            for value, name in CLASSES.items()
            if (drawn.label == value).any()
        ),
    ):
        assert expected in text, text
    grid = grid_around((6, 4, 4), (144, 112, 136), turn_degrees=12)
    oblique = dataclasses.replace(drawn, affine=grid.affine)
    text = describe_record(write_segmentation(tmp_path / "oblique", [oblique]), "train:0")
    assert re.search(r"width to right; 1\d\.\d degrees oblique", text)
    text = describe_record(write_segmentation(tmp_path / "none", scans()), "test:0")
    assert "label   none: the source has no mask, so all its values are 0" in text
    text = describe_record(write_segmentation(tmp_path / "png", pictures(), encoding="png"), "train:0")
    assert "label   liver, spleen; 34.4 % of the pixels are foreground" in text and "spacing" not in text
