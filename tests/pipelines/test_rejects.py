"""Every input ends as a record or in rejected.jsonl, once and in its own split."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from halofeed.errors import JobError
from tests.support.annotation_writer import boxed, coco_document, draw
from tests.support.conversions import draw_folders, read_all, rejected_entries, run_convert

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def test_every_odd_file_is_converted_or_rejected_with_a_true_reason(test_data, tmp_path):
    root = test_data / "odd/images"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES}
    table = [line.split("\t") for line in (root / "EXPECTED.tsv").read_text().splitlines()]
    by_path = {row[0]: dict(zip(table[0], row, strict=False)) for row in table[1:]}
    done = run_convert(root, tmp_path, layout="folders", shards=3)
    converted = set(read_all(Path(done.folder), list(done.manifest.splits)))
    listed = rejected_entries(done.folder)
    refused = {entry["source"] for entry in listed if entry["source"] in files}
    assert len(listed) == len({entry["source"] for entry in listed})
    assert converted | refused == files and not converted & refused
    assert len(files) > 50 and len(converted) > 20 and len(refused) > 10
    assert Counter(f"{entry['stage']}: {entry['reason']}" for entry in listed) == done.manifest.rejected
    for entry in listed:
        assert entry["stage"] in ("selection", "decode", "read") and entry["reason"] and entry["split"]
        assert "Error" not in entry["reason"] and "\n" not in entry["reason"]
    # What Pillow and TensorFlow both read is converted, but for files with a fault that they pass over.
    fine = {p for p, row in by_path.items() if row["pil"] == "ok" and row["tf_decode(ch=3)"][:3] != "ERR"}
    stern = {entry["source"]: entry["reason"] for entry in listed if entry["source"] in fine}
    assert len(stern) <= 4, stern


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_budget_allows_its_number_and_no_more(tmp_path, workers):
    draw_folders(tmp_path / "src", 12, broken=3)
    options = {"layout": "folders", "shards": 2, "workers": workers}
    done = run_convert(tmp_path / "src", tmp_path / "ok", max_rejected=3, **options)
    assert sum(done.manifest.rejected.values()) == 3
    with pytest.raises(JobError, match=r"--max-rejected (allows )?2") as caught:
        run_convert(tmp_path / "src", tmp_path / "low", max_rejected=2, **options)
    folder = tmp_path / "low/set/1.0.0"
    assert not (folder / "manifest.json").exists()
    listing = folder / "rejected.jsonl"
    assert listing.exists() or ("the last was" in str(caught.value) and ".jpg: " in str(caught.value))
    again = run_convert(tmp_path / "src", tmp_path / "low", max_rejected=3, **options)
    assert not again.was_there and len(rejected_entries(again.folder)) == 3


@pytest.mark.parametrize(("shards", "broken", "budget"), [(1, 6, 4), (4, 6, 4), (1, 50, 40)])
def test_an_early_stop_names_the_rejected_inputs_one_a_line_in_a_short_list(tmp_path, shards, broken, budget):
    draw_folders(tmp_path / "src", broken + 6, broken=broken)
    options = {"layout": "folders", "shards": shards}
    with pytest.raises(JobError, match=rf"more than --max-rejected {budget} ") as caught:
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=budget, **options)
    named = re.findall(r"(?:hat|shirt)/\d{4}\.jpg: decode: not an image", str(caught.value))
    assert len(named) == len(set(named)) >= 5, str(caught.value)
    assert "the last was" in str(caught.value).splitlines()[0] and len(str(caught.value).splitlines()) <= 12


def test_rejects_of_finished_shards_of_all_inputs_and_of_formats_that_are_not_read_are_named(tmp_path):
    draw_folders(tmp_path / "src", 6, broken=2)
    folder = Path(run_convert(tmp_path / "src", tmp_path / "out", layout="folders").folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(JobError, match=r"--max-rejected 0 .*/000\d\.jpg: decode: "):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders", max_rejected=0)
    draw_folders(tmp_path / "bad", 3, broken=3)
    with pytest.raises(JobError, match="nothing was converted: 3 inputs were rejected"):
        run_convert(tmp_path / "bad", tmp_path / "none", layout="folders")
    assert len(rejected_entries(tmp_path / "none/set/1.0.0")) == 3
    draw_folders(tmp_path / "more", 4)
    (tmp_path / "more/hat/picture.jp2").write_bytes(b"0")
    with pytest.raises(JobError, match=r"hat/picture\.jp2: decode: format not supported \(\.jp2"):
        run_convert(tmp_path / "more", tmp_path / "unread", layout="folders", max_rejected=0)


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


def test_a_lost_image_is_listed_in_the_split_in_which_it_would_be(tmp_path):
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
        # The images that come back count for the shares, which moves the limit by a few images.
        assert abs(rejects[name] - (split.records - done.manifest.splits[name].records)) <= 5


def test_images_that_no_annotation_names_are_in_the_split_of_their_folder(tmp_path):
    document = json.dumps(coco_document([boxed("a.png", (2, 2, 8, 8))]))
    for split in ("train", "valid"):
        draw(tmp_path / "src", f"{split}/a.png", f"{split}/extra.png")
        (tmp_path / "src" / split / "_annotations.coco.json").write_text(document)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco")
    found = {(entry["source"], entry["split"]) for entry in rejected_entries(done.folder)}
    assert found == {("train/extra.png", "train"), ("valid/extra.png", "valid")}
