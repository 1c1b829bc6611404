"""What else of each object can be kept, and does the loader give it on request?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from halofeed.inspection.verify import verify
from halofeed.loader import FlipLeftRight, Loader
from halofeed.schemas.errors import AnnotationsError, UsageError
from tests.support.annotation_writer import boxed, draw, voc_object, voc_text
from tests.support.conversions import read_all, run_convert


def load(folder: str, *names: str) -> dict[str, np.ndarray]:
    for augment in ((), (FlipLeftRight(1.0),)):
        loader = Loader(folder, split="train", batch_size=1, include=names, augment=augment, shuffle=False)
        batch = loader.batch(0)
    return {name: batch[name][0, : batch["num_boxes"][0]] for name in names}


def test_voc_keeps_what_is_occluded_and_the_pose(tmp_path):
    source = draw(tmp_path / "src", "a.png")
    objects = [
        voc_object(boxed("a.png", (30, 2, 38, 8)), "<pose>Left</pose><occluded>1</occluded>"),
        voc_object(boxed("a.png", (2, 2, 8, 8)), "<pose>Rear</pose><occluded>1</occluded>"),
        voc_object(boxed("a.png", (2, 2, 8, 8))),
    ]
    (source / "a.xml").write_text(voc_text("a.png", "".join(objects)))
    done = run_convert(source, tmp_path / "out", layout="voc", keep=("occluded", "view"))
    (record,) = read_all(Path(done.folder), ["train"]).values()
    assert [bytes(view) for view in record["image/object/view"]] == [b"Rear", b""]
    assert load(done.folder, "occluded")["occluded"].tolist() == [True, False]
    assert verify(done.folder).ok
    plain = run_convert(source, tmp_path / "plain", layout="voc")
    (record,) = read_all(Path(plain.folder), ["train"]).values()
    assert not {"image/object/view", "image/object/occluded"} & set(record)


def test_coco_keeps_its_own_category_ids_and_what_cvat_calls_occluded(tmp_path):
    source = draw(tmp_path / "src", "a.png")
    plain = {"image_id": 1, "bbox": [2, 3, 8, 6]}
    objects = [
        {"id": 1, "category_id": 90, "attributes": {"occluded": True}, **plain},
        {"id": 2, "category_id": 17, "attributes": {"occluded": False}, **plain},
    ]
    categories = [{"id": 17, "name": "cat"}, {"id": 90, "name": "toothbrush"}]
    document = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": objects, "categories": categories}
    (source / "instances.json").write_text(json.dumps(document))
    done = run_convert(source, tmp_path / "out", layout="coco", keep=("category_id", "occluded"))
    found = load(done.folder, "source_classes", "occluded")
    assert found["source_classes"].tolist() == [90, 17] and found["occluded"].tolist() == [True, False]
    assert verify(done.folder).ok and done.manifest.field("source_classes").optional


def test_tables_keep_open_images_groups(tmp_path):
    source = draw(tmp_path / "src", "a.png")
    rows = "a.png,hat,2,2,8,8,1,0\na.png,hat,3,2,8,8,0,1\n"
    (source / "t.csv").write_text(f"filename,class,xmin,ymin,xmax,ymax,IsGroupOf,IsOccluded\n{rows}")
    done = run_convert(source, tmp_path / "out", layout="csv", keep=("group_of", "occluded"))
    left = run_convert(source, tmp_path / "left", layout="csv").manifest.splits["train"].statistics.warnings
    assert "columns of t.csv that --keep would keep: group_of, occluded" in left
    found = load(done.folder, "group_of", "occluded")
    assert found["group_of"].tolist() == [True, False] and found["occluded"].tolist() == [False, True]


def test_what_a_source_cannot_say_is_not_kept_as_zeros(tmp_path):
    source = draw(tmp_path / "src", "a.png")
    (source / "t.csv").write_text("filename,class,xmin,ymin,xmax,ymax\na.png,hat,2,2,8,8\n")
    words = r"t\.csv: --keep group_of: no table has such a column; found filename"
    with pytest.raises(AnnotationsError, match=words):
        run_convert(source, tmp_path / "out", layout="csv", keep=("group_of",))
    document = {"images": [], "annotations": [], "categories": [{"id": 17, "name": "cat"}]}
    (source / "instances.json").write_text(json.dumps(document))
    with pytest.raises(AnnotationsError, match=r"instances\.json: --keep occluded: no annotation says it"):
        run_convert(source, tmp_path / "out", layout="coco", keep=("occluded",))
    with pytest.raises(UsageError, match="--keep view: layout csv has occluded, group_of; leave it out"):
        run_convert(source, tmp_path / "out", layout="csv", keep=("view",))
    words = "--keep pose: expected some of category_id, group_of, keypoints, occluded, view"
    with pytest.raises(UsageError, match=words):
        run_convert(source, tmp_path / "out", layout="voc", keep=("pose",))
