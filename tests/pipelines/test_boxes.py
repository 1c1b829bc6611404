"""One object that cannot be used costs that object alone; what boxes count and whose they are is found out or asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import AnnotationsError, JobError
from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.pipelines.summary import summary
from tests.support.annotation_writer import boxed, coco_of_one, draw, voc_object, voc_text, write_annotations
from tests.support.conversions import boxes_in_source, edited, read_all, rejected_entries, run_convert

SOUND = [[2, 3, 10, 3, 10, 9, 2, 9]]


def coco(root: Path, *objects: dict[str, Any], **changes: Any) -> Path:
    draw(root, "1.png")
    plain = {"category_id": 3, "bbox": [2, 3, 8, 6], "segmentation": SOUND}
    given = {"categories": [{"id": 3, "name": "hat"}], **changes}
    document = coco_of_one(*({**plain, **one} for one in objects), name="1.png", **given)
    (root / "instances.json").write_text(json.dumps(document))
    return root


BAD_COCO = [
    ({"bbox": [5, 5, -3, 2]}, False, "box is inverted"),
    ({"segmentation": {"size": [16, 24], "counts": [3, 4]}}, True, "has run lengths that do not add up"),
]


@pytest.mark.parametrize(("bad", "masks", "reason"), BAD_COCO)
def test_one_bad_object_of_coco_is_dropped_counted_and_named(tmp_path, bad, masks, reason):
    source = coco(tmp_path / "src", {}, bad, {"bbox": [1, 1, 4, 4]})
    done = run_convert(source, tmp_path / "out", layout="coco", masks=masks, max_rejected=0)
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert np.allclose(boxes_in_source(record), [[3, 2, 9, 10], [1, 1, 5, 5]], atol=1e-4)
    assert len(record.get("image/object/mask", ())) == (2 if masks else 0)
    (entry,) = rejected_entries(done.folder)
    assert (entry["source"], entry["split"], entry["stage"]) == ("1.png", "train", "object")
    assert reason in entry["reason"] and entry["detail"]
    (said,) = done.manifest.rejected.items()
    assert said == (f"object: {entry['reason']}", 1)
    assert done.manifest.splits["train"].statistics.boxes[f"dropped as {entry['reason']}"] == 1
    text = summary(done)
    assert "1 object dropped (the rest of the picture is kept)" in text and " rejected" not in text
    assert verify(done.folder).ok
    report = Path(write_report(done.folder)).read_text()
    assert "Objects dropped" in report and "1 object of these records had errors" in report
    options = {"layout": "coco", "masks": masks, "max_rejected": 0, "on_bad_object": "reject"}
    with pytest.raises(JobError, match=r"--max-rejected 0 .*1\.png: annotation: "):
        run_convert(source, tmp_path / "no", **options)


@pytest.mark.parametrize("layout", ["voc", "csv"])
def test_bad_objects_of_voc_and_rows_of_a_table_are_dropped_alone(tmp_path: Path, layout: str) -> None:
    source = draw(tmp_path / "src", "a.png")
    objects = "".join(voc_object(boxed("a.png", (x, 2, 9, 8))) for x in (3, 12, "nan"))
    if layout == "voc":
        (source / "a.xml").write_text(voc_text("a.png", f"{objects}<object><name>hat</name></object>"))
    else:
        rows = "".join(f"a.png,hat,{x},2,9,8\n" for x in (3, 12, "nan", ""))
        (source / "boxes.csv").write_text(f"filename,class,xmin,ymin,xmax,ymax\n{rows}")
    done = run_convert(source, tmp_path / "out", layout=layout)
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert len(boxes_in_source(record)) == 1
    entries = sorted(rejected_entries(done.folder), key=lambda entry: entry["detail"])
    assert [entry["reason"] for entry in entries[:2]] == ["box is inverted", "number is not finite"]
    place, first = ("a.xml: object {}", 2) if layout == "voc" else ("boxes.csv:{}", 3)
    for number, entry in enumerate(entries, first):
        assert entry["detail"].startswith(place.format(number)), entry
    assert len(entries) == 3 and (layout == "csv" or entries[2]["reason"] == "object has no box"), entries


def test_a_file_most_of_whose_objects_are_bad_is_refused_as_a_whole(tmp_path):
    source = coco(tmp_path / "src", *[{"bbox": [9, 9, -3, -3]}] * 20, {})
    with pytest.raises(AnnotationsError, match=r"20 of 21 objects cannot be used .20 x box is inverted"):
        run_convert(source, tmp_path / "out", layout="coco")
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_a_set_most_of_whose_masks_cannot_be_drawn_is_not_committed(tmp_path: Path) -> None:
    wrong = {"segmentation": {"size": [5, 5], "counts": [0, 25]}}
    source = coco(tmp_path / "src", *[wrong] * 20, {})
    words = r"(?s)20 of 21 objects could not be used .20 x object: .*another size.*such as 1\.png"
    with pytest.raises(JobError, match=words):
        run_convert(source, tmp_path / "out", layout="coco", masks=True)
    assert not list(tmp_path.rglob("manifest.json"))
    assert run_convert(source, tmp_path / "out", layout="coco").manifest.splits["train"].records == 1


@pytest.mark.parametrize(
    ("categories", "names"),
    [
        ([{"id": 0, "name": "hat", "supercategory": "none"}, {"id": 3, "name": "hat"}], ["hat"]),
        ([{"id": 0, "name": "_background_"}, {"id": 3, "name": "hat"}], ["hat"]),
        ([{"id": 0, "name": "Hats"}, {"id": 3, "name": "hat"}], ["Hats", "hat"]),
        ([{"id": 3, "name": "hat"}, {"id": 3, "name": "hat"}, {"id": 9}, {"name": "x"}], ["hat"]),
        ([{"id": "3", "name": "hat"}], ["hat"]),
        ([{"id": 3.0, "name": "hat"}], ["hat"]),
    ],
    ids=["repeated name", "background", "plain", "repeated and nameless", "text id", "float id"],
)
def test_an_unused_category_of_coco_never_stops_a_conversion(tmp_path, categories, names):
    source = coco(tmp_path / "src", {}, categories=categories)
    done = run_convert(source, tmp_path / "out", layout="coco")
    assert list(done.manifest.labels.values()) == names and min(done.manifest.labels) == 1
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert bytes(record["image/object/class/text"][0]).decode() == "hat"
    used = coco(tmp_path / "used", {}, categories=[{"id": 3, "name": "_background_"}])
    with pytest.raises(AnnotationsError, match="in detection id 0 is the background"):
        run_convert(used, tmp_path / "no", layout="coco")


@pytest.mark.parametrize(
    ("in_images", "in_annotations"), [(1, 1.0), (1.0, 1), ("1", 1), (1, "1"), ("a", "a")]
)
def test_ids_of_images_are_the_same_however_a_tool_writes_them(tmp_path, in_images, in_annotations):
    source = coco(tmp_path / "src", {"image_id": in_annotations})
    with edited(source / "instances.json") as document:
        document["images"][0]["id"] = in_images
    done = run_convert(source, tmp_path / "out", layout="coco", max_rejected=0)
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert len(boxes_in_source(record)) == 1 and not done.manifest.rejected
    assert bytes(record["image/key/source"][0]).decode() == str(in_images).removesuffix(".0")
    done = run_convert(coco(tmp_path / "true", {"image_id": True}, {}), tmp_path / "no", layout="coco")
    assert done.manifest.rejected == {"annotation: annotation of an unknown image": 1}, "True is no id"


LAYOUTS = ["csv", "jsonl", "coco", "voc"]
WIDTH, HEIGHT = 60, 40
Boxes = list[tuple[float, float, float, float]]
PIXELS: Boxes = [(6, 4, 30, 20), (15, 10, 60, 40), (12, 8, 24, 36)]
"""xmin, ymin, xmax, ymax of one box each on three pictures."""
SHARES: Boxes = [(x1 / WIDTH, y1 / HEIGHT, x2 / WIDTH, y2 / HEIGHT) for x1, y1, x2, y2 in PIXELS]


EXCHANGED: Boxes = [(2, 5, 20, 58), (10, 30, 25, 57), (1, 1, 9, 50)]
"""xmin, ymin, xmax, ymax of boxes whose x and y are exchanged."""


def write(root: Path, layout: str, boxes: Boxes, *, declare=True, orientation=1, **keys: Any) -> Path:
    """A picture of 60 x 40 for each box."""
    size = {"width": WIDTH, "height": HEIGHT} if declare else {}
    rows = [boxed(f"{number}.png", box, **size) for number, box in enumerate(boxes, start=1)]
    side = (HEIGHT, WIDTH) if orientation < 5 else (WIDTH, HEIGHT)
    draw(root, *(row["filename"] for row in rows), size=side, orientation=orientation)
    write_annotations(root, layout, rows, **keys)
    return root


def boxes_of(done: Any) -> dict[str, list[list[float]]]:
    """Of each picture its boxes as xmin, ymin, xmax, ymax in source pixels."""
    records = read_all(Path(done.folder), sorted(done.manifest.splits))
    return {
        name: np.round(boxes_in_source(record)[:, [1, 0, 3, 2]], 3).tolist()
        for name, record in records.items()
    }


def expected(boxes: Boxes) -> dict[str, list[list[float]]]:
    return {f"{number}.png": [list(map(float, box))] for number, box in enumerate(boxes, start=1)}


@pytest.mark.parametrize("declare", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_of_shares_gives_the_boxes_that_pixels_give_and_says_so(tmp_path, layout, declare):
    source = write(tmp_path / "src", layout, SHARES, declare=declare)
    done = run_convert(source, tmp_path / "out", layout=layout)
    assert boxes_of(done) == expected(PIXELS)
    assert "3 inputs: boxes taken as shares of the picture's sides" in summary(done)
    said = run_convert(source, tmp_path / "said", layout=layout, box_units="normalized")
    assert boxes_of(said) == expected(PIXELS) and "warning" not in summary(said)
    if layout == "csv" and declare:
        turned = write(tmp_path / "turned", "csv", SHARES, orientation=6)
        assert boxes_of(run_convert(turned, tmp_path / "upright", layout="csv")) == expected(PIXELS)


def test_polygons_and_areas_of_shares_follow_their_boxes(tmp_path: Path) -> None:
    records = []
    for number, boxes in enumerate((PIXELS, SHARES)):
        source = write(tmp_path / f"src{number}", "coco", boxes)
        done = run_convert(source, tmp_path / f"out{number}", layout="coco", masks=True)
        records.append(read_all(Path(done.folder), ["train"]))
    for name, pixels in records[0].items():
        shares = records[1][name]
        assert pixels["image/object/mask"] == shares["image/object/mask"]
        assert np.allclose(pixels["image/object/area"], shares["image/object/area"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_share_among_pixels_is_dropped_by_name_of_the_option(tmp_path: Path, layout: str) -> None:
    source = write(tmp_path / "src", layout, [*PIXELS, (0.25, 0.25, 0.5, 0.75)])
    options = {"layout": layout, **({"box_origin": 0} if layout == "voc" else {})}
    done = run_convert(source, tmp_path / "out", **options)
    assert boxes_of(done) == {**expected(PIXELS), "4.png": []}
    assert done.manifest.rejected == {"object: box lies within the first pixel": 1}
    assert "--box-units" in (Path(done.folder) / "rejected.jsonl").read_text()
    done = run_convert(source, tmp_path / "pixels", box_units="pixels", **options)
    assert boxes_of(done) == expected([*PIXELS, (0.25, 0.25, 0.5, 0.75)])
    done = run_convert(source, tmp_path / "rejected", on_bad_object="reject", **options)
    assert set(boxes_of(done)) == set(expected(PIXELS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixels_under_the_option_for_shares_are_no_boxes(tmp_path: Path, layout: str) -> None:
    source = write(tmp_path / "src", layout, PIXELS * 4)
    with pytest.raises(AnnotationsError, match="box is no share of the picture"):
        run_convert(source, tmp_path / "out", layout=layout, box_units="normalized")
    with pytest.raises(JobError, match="box is no share of the picture"):
        run_convert(source, tmp_path / "out", layout=layout, box_units="normalized", on_bad_object="reject")


def test_voc_that_begins_at_zero_is_read_by_the_option(tmp_path: Path) -> None:
    boxes: Boxes = [*PIXELS, (0, 3, 9, 9)]
    source = write(tmp_path / "src", "voc", boxes)
    done = run_convert(source, tmp_path / "zero", layout="voc", box_origin=0)
    assert boxes_of(done) == expected(boxes) and "warning" not in summary(done)
    done = run_convert(source, tmp_path / "one", layout="voc", box_origin=1)
    assert boxes_of(done)["1.png"] == [[5, 3, 30, 20]]
    assert "1 input: a box begins below 1" in summary(done) and "--box-origin 0" in summary(done)


def test_voc_with_fractions_counts_from_zero_or_has_to_be_told(tmp_path: Path) -> None:
    boxes: Boxes = [*PIXELS, (3.25, 3, 9, 9.5)]
    done = run_convert(write(tmp_path / "src", "voc", boxes), tmp_path / "out", layout="voc")
    assert boxes_of(done) == expected(boxes)
    assert "4 inputs: boxes have fractions, so they count from 0" in summary(done)
    done = run_convert(tmp_path / "src", tmp_path / "one", layout="voc", box_origin=1)
    assert boxes_of(done)["4.png"] == [[2.25, 2, 9, 9.5]]


@pytest.mark.parametrize(("origin", "shift"), [(None, 1), (0, 0)])
def test_voc_takes_a_width_and_a_height_under_the_names_of_a_corner(tmp_path, origin, shift):
    sizes: Boxes = [(x1, y1, x2 - x1, y2 - y1) for x1, y1, x2, y2 in PIXELS]
    source = write(tmp_path / "src", "voc", sizes)
    done = run_convert(source, tmp_path / "out", layout="voc", box_form="corner-size", box_origin=origin)
    moved: Boxes = [(x1 - shift, y1 - shift, x2 - shift, y2 - shift) for x1, y1, x2, y2 in PIXELS]
    assert boxes_of(done) == expected(moved)


def test_a_table_that_counts_pixels_from_one_can_be_told_so(tmp_path: Path) -> None:
    source = write(tmp_path / "src", "csv", PIXELS)
    assert boxes_of(run_convert(source, tmp_path / "out", layout="csv")) == expected(PIXELS)
    done = run_convert(source, tmp_path / "one", layout="csv", box_origin=1)
    assert boxes_of(done)["1.png"] == [[5, 3, 30, 20]]


@pytest.mark.parametrize("declare", [True, False])
@pytest.mark.parametrize("layout", ["csv", "coco", "voc"])
def test_boxes_that_leave_their_pictures_are_refused_and_exchanged_sides_named(tmp_path, layout, declare):
    source = write(tmp_path / "src", layout, EXCHANGED, declare=declare)
    words = r"3 of 3 boxes leave .*1\.png .*with x and y exchanged all fit"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout=layout)
    assert not list(tmp_path.rglob("*.tfrecord*"))
    done = run_convert(source, tmp_path / "insisted", layout=layout, box_units="pixels")
    assert done.manifest.splits["train"].statistics.boxes["clipped"] == 3
    over = [(-2, -1, 30, 41), *[(1, 1, 61, 41)] * 9, *[(2, 2, 90, 90)] * 9]
    done = run_convert(write(tmp_path / "over", "csv", over), tmp_path / "clipped", layout="csv")
    assert done.manifest.splits["train"].statistics.boxes["clipped"] == 19


def test_a_width_under_the_name_of_a_corner_is_refused_although_most_boxes_look_sound(tmp_path: Path) -> None:
    boxes = [(12, 12, 1 + n, 2 + n) for n in range(30)]
    source = write(tmp_path / "src", "csv", boxes)
    with pytest.raises(AnnotationsError, match=r"box is inverted.*add --box-form corner-size if"):
        run_convert(source, tmp_path / "out", layout="csv")
    done = run_convert(source, tmp_path / "cured", layout="csv", box_form="corner-size")
    assert boxes_of(done)["5.png"] == [[12, 12, 17, 18]]


def test_a_small_set_of_which_no_object_can_be_used_is_refused(tmp_path: Path) -> None:
    rows = [f'{n}.png;hat;"1,5";2;"9,5";8' for n in range(1, 4)]
    source = write(tmp_path / "src", "csv", [(1, 2, 9, 8)] * 3)
    (source / "boxes.csv").write_text("\n".join(["filename;class;xmin;ymin;xmax;ymax", *rows]) + "\n")
    words = r"3 of 3 objects cannot be used .*write a point for the comma"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout="csv")


@pytest.mark.parametrize("layout", ["coco", "voc"])
def test_a_turned_box_is_made_upright_or_dropped_and_both_are_counted(tmp_path, layout):
    boxes = [(1, 2, 9, 8), (1, 2, 9, 8)]
    attributes = {"attributes": {"rotation": 30.0}} if layout == "coco" else {"rotation": 30.0}
    source = write(tmp_path / "src", layout, boxes, **attributes)
    done = run_convert(source, tmp_path / "out", layout=layout)
    assert done.manifest.rejected == {} and "2 oriented, made upright" in summary(done)
    assert "oriented boxes (2 of 2 objects) became upright boxes of 1.9 times" in summary(done)
    left_out = run_convert(source, tmp_path / "left_out", layout=layout, oriented_boxes="drop")
    assert left_out.manifest.rejected == {"object: box is oriented": 2}
    assert "--oriented-boxes upright" in Path(left_out.folder, "rejected.jsonl").read_text()
    said = run_convert(source, tmp_path / "said", layout=layout, ignore_columns=("rotation",))
    assert said.manifest.rejected == {} and "oriented" not in summary(said)
    upright = {"attributes": {"rotation": 0.0}} if layout == "coco" else {"rotation": "180"}
    plain = run_convert(write(tmp_path / "up", layout, boxes, **upright), tmp_path / "plain", layout=layout)
    assert plain.manifest.rejected == {} and "oriented" not in summary(plain)


def test_an_object_that_stands_there_twice_is_kept_and_warned_of(tmp_path: Path) -> None:
    source = write(tmp_path / "src", "csv", [(1, 2, 9, 8), (3, 2, 9, 8)], declare=False)
    table = source / "boxes.csv"
    table.write_text(table.read_text() + "1.png,hat,1,2,9,8\n2.png,coat,3,2,9,8\n")
    done = run_convert(source, tmp_path / "out", layout="csv")
    assert "1 input: an object stands there twice, with one class and one box; both are kept" in summary(done)
    assert len(boxes_in_source(read_all(Path(done.folder), ["train"])["1.png"])) == 2


@pytest.mark.parametrize("masks", [True, False])
def test_the_area_of_an_object_is_that_of_its_polygon(tmp_path: Path, masks: bool) -> None:
    """As in COCO, whose evaluation sorts objects by this area; a triangle has half the area of its box."""
    corners = [[10, 10], [50, 10], [50, 50]]
    shapes = [{"label": "hat", "shape_type": "polygon", "points": corners}]
    (tmp_path / "src").mkdir()
    draw(tmp_path / "src", "a.png", size=(72, 96))
    document = {"imagePath": "a.png", "imageHeight": 72, "imageWidth": 96, "shapes": shapes}
    (tmp_path / "src/a.json").write_text(json.dumps(document))
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="labelme", masks=masks, height=72, width=96)
    (example,) = read_all(Path(done.folder), ["train"]).values()
    assert example["image/object/area"].tolist() == [800.0]
