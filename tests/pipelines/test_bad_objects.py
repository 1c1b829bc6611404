"""Does one object that cannot be used cost that object alone, and is it counted and named?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.inspection.html.report import write_report
from halofeed.inspection.verify import verify
from halofeed.pipelines.summary import summary
from halofeed.schemas.errors import AnnotationsError, JobError
from tests.support.annotation_writer import boxed, draw, voc_object, voc_text
from tests.support.conversions import boxes_in_source, edited, read_all, rejected_entries, run_convert

SOUND = [[2, 3, 10, 3, 10, 9, 2, 9]]


def coco(root: Path, *objects: dict[str, Any], **changes: Any) -> Path:
    draw(root, "1.png")
    plain = {"image_id": 1, "category_id": 3, "bbox": [2, 3, 8, 6], "segmentation": SOUND}
    document = {
        "images": [{"id": 1, "file_name": "1.png"}],
        "annotations": [{**plain, "id": number, **one} for number, one in enumerate(objects, start=1)],
        "categories": [{"id": 3, "name": "hat"}],
    }
    (root / "instances.json").write_text(json.dumps(document | changes))
    return root


BAD_COCO = [
    ({"bbox": [5, 5, -3, 2]}, False, "box is inverted"),
    ({"bbox": [5, 5, float("nan"), 2]}, False, "number is not finite"),
    ({"segmentation": []}, True, "object has no segmentation"),
    ({"segmentation": [1, 2, 3, 4]}, True, "segmentation is neither polygons nor run lengths"),
    ({"segmentation": {"size": [16, 24], "counts": [3, 4]}}, True, "has run lengths that do not add up"),
    ({"segmentation": {"size": [5, 5], "counts": [0, 25]}}, True, "is of another size than the picture"),
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
    assert "1 object was dropped (the rest of the picture is kept)" in text and "inputs were" not in text
    assert verify(done.folder).ok
    report = Path(write_report(done.folder)).read_text()
    assert "Objects dropped" in report and "1 object of these records could not be used" in report
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


@pytest.mark.parametrize(
    ("bad", "masks", "words"),
    [
        ({"bbox": [9, 9, -3, -3]}, False, "20 of 21 objects cannot be used .20 x box is inverted"),
        ({"segmentation": []}, True, "20 x object has no segmentation.*leave --masks out"),
    ],
)
def test_a_file_most_of_whose_objects_are_bad_is_refused_as_a_whole(tmp_path, bad, masks, words):
    source = coco(tmp_path / "src", *[bad] * 20, {})
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout="coco", masks=masks)
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_a_set_most_of_whose_masks_cannot_be_drawn_is_not_committed(tmp_path: Path) -> None:
    wrong = {"segmentation": {"size": [5, 5], "counts": [0, 25]}}
    source = coco(tmp_path / "src", *[wrong] * 20, {})
    words = r"20 of 21 objects could not be used .20 x object: .*another size.*such as 1\.png"
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


def test_a_used_background_category_is_refused(tmp_path: Path) -> None:
    source = coco(tmp_path / "src", {}, categories=[{"id": 3, "name": "_background_"}])
    with pytest.raises(AnnotationsError, match="in detection id 0 is the background"):
        run_convert(source, tmp_path / "out", layout="coco")


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


def test_true_is_no_image_id(tmp_path: Path) -> None:
    done = run_convert(coco(tmp_path / "src", {"image_id": True}, {}), tmp_path / "out", layout="coco")
    assert done.manifest.rejected == {"annotation: annotation of an unknown image": 1}
