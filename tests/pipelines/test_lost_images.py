"""Is an image that a table names and nobody has one reject, whatever the number of its rows, and in its own split?"""

from __future__ import annotations

import json
from collections import Counter

from tests.support.annotation_writer import boxed, coco_document, draw
from tests.support.conversions import rejected_entries, run_convert

HEADER = "filename,class,xmin,ymin,xmax,ymax"


def test_rows_of_a_lost_image_are_one_reject_in_the_split_of_the_table(tmp_path):
    draw(tmp_path / "src", "a.png", "b.png")
    rows = "".join(f"gone.png,hat,{x},2,9,9\n" for x in range(5))
    (tmp_path / "src/train_boxes.csv").write_text(f"{HEADER}\na.png,hat,2,2,8,8\n")
    (tmp_path / "src/val_boxes.csv").write_text(f"{HEADER}\n{rows}b.png,hat,2,2,8,8\nother.png,hat,2,2,8,8\n")
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="csv", max_rejected=2)
    assert done.manifest.rejected == {"annotation: image file not found": 2}
    gone, other = rejected_entries(done.folder)
    assert (gone["source"], gone["split"], other["split"]) == ("gone.png", "val", "val")
    assert gone["detail"].startswith("val_boxes.csv:2 and 4 more rows: 'gone.png'")
    assert other["detail"].startswith("val_boxes.csv:8: 'other.png'")


def test_a_lost_image_goes_to_the_split_that_its_hash_gives(tmp_path):
    draw(tmp_path / "src", *(f"{number}.png" for number in range(20)))
    rows = [f"{number}.png,hat,2,2,8,8\n" * 2 for number in range(40)]
    (tmp_path / "src/t.csv").write_text(f"{HEADER}\n{''.join(rows)}")
    shares = ("train=0.5", "val=0.5")
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="csv", split_shares=shares)
    draw(tmp_path / "src", *(f"{number}.png" for number in range(20, 40)))
    whole = run_convert(tmp_path / "src", tmp_path / "whole", layout="csv", split_shares=shares)
    rejects = Counter(entry["split"] for entry in rejected_entries(done.folder))
    assert rejects.total() == 20
    for name, split in whole.manifest.splits.items():
        assert rejects[name] == split.records - done.manifest.splits[name].records


def test_images_that_no_annotation_names_are_in_the_split_of_their_folder(tmp_path):
    document = json.dumps(coco_document([boxed("a.png", (2, 2, 8, 8))]))
    for split in ("train", "valid"):
        draw(tmp_path / "src", f"{split}/a.png", f"{split}/extra.png")
        (tmp_path / "src" / split / "_annotations.coco.json").write_text(document)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco")
    assert {(entry["source"], entry["split"]) for entry in rejected_entries(done.folder)} == {
        ("train/extra.png", "train"),
        ("valid/extra.png", "valid"),
    }
