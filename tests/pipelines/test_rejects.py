"""Does every input end as a record or in rejected.jsonl, and do turned pictures come out upright?"""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from halofeed.demo import draw_data_set
from halofeed.schemas.errors import JobError
from tests.support.annotation_writer import boxed, write_annotations
from tests.support.conversions import boxes_in_source, draw_folders, read_all, rejected_entries, run_convert

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
    counted = Counter(f"{entry['stage']}: {entry['reason']}" for entry in listed)
    assert counted == done.manifest.rejected
    for entry in listed:
        assert entry["stage"] in ("selection", "decode", "read") and entry["reason"] and entry["split"]
        assert "Error" not in entry["reason"] and "\n" not in entry["reason"]
    # What Pillow and TensorFlow both read is converted, but for files with a fault that they pass over.
    fine = {
        p for p, row in by_path.items() if row["pil"] == "ok" and not row["tf_decode(ch=3)"].startswith("ERR")
    }
    stern = {entry["source"]: entry["reason"] for entry in listed if entry["source"] in fine}
    assert len(stern) <= 4, stern


def eight_views(grid: np.ndarray) -> list[np.ndarray]:
    return [
        view
        for base in (grid, grid.swapaxes(0, 1))
        for view in (base, base[::-1], base[:, ::-1], base[::-1, ::-1])
    ]


def stored_turned(
    upright: np.ndarray, marker: np.ndarray, orientation: int
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A PNG that Pillow turns upright, its pixels as stored, and the marker turned with them."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    for stored, mask in zip(eight_views(upright), eight_views(marker), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(stored)).save(buffer, "png", exif=exif)
        if np.array_equal(np.asarray(ImageOps.exif_transpose(Image.open(buffer))), upright):
            return buffer.getvalue(), stored, mask
    raise AssertionError(f"no symmetry fits orientation {orientation}")


def test_eight_orientations_of_one_picture_give_one_record(tmp_path):
    generator = np.random.default_rng(5)
    coarse = generator.integers(0, 256, (6, 9, 3)).astype(np.uint8)
    upright = np.asarray(Image.fromarray(coarse).resize((72, 48), Image.Resampling.NEAREST))
    marker = np.zeros(upright.shape[:2], np.uint8)
    marker[6:17, 40:70] = 1
    rows = []
    (tmp_path / "src").mkdir()
    for orientation in range(1, 9):
        data, stored, mask = stored_turned(upright, marker, orientation)
        name, (height, width) = f"o{orientation}.png", stored.shape[:2]
        (tmp_path / "src" / name).write_bytes(data)
        ys, xs = np.nonzero(mask)
        box = [int(edge) for edge in (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)]
        rows.append(boxed(name, box, height=height, width=width))
    write_annotations(tmp_path / "src", "coco", rows)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco", resize="none", encoding="png")
    records = read_all(Path(done.folder), ["train"])
    assert len(records) == 8
    for (source, features), row in zip(sorted(records.items()), rows, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(features["image/encoded"][0])))
        assert np.array_equal(pixels, upright), source
        corners = np.array([features[f"image/object/bbox/{n}"][0] for n in ("ymin", "xmin", "ymax", "xmax")])
        assert np.allclose(corners * [48, 72, 48, 72], [6, 40, 17, 70], atol=1e-4), source
        assert features["image/object/area"][0] == 11 * 30
        box = [[row[side] for side in ("ymin", "xmin", "ymax", "xmax")]]
        assert np.allclose(boxes_in_source(features), box, atol=1e-3), source
        for side in ("height", "width"):
            assert int(features[f"image/source/{side}"][0]) == row[side]


def test_a_truncated_picture_is_the_only_reject_of_the_drawn_set(tmp_path):
    draw_data_set(tmp_path / "src", 20)
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="coco", max_rejected=1)
    assert [(e["stage"], e["reason"], e["split"]) for e in rejected_entries(done.folder)] == [
        ("decode", "file is truncated", "train")
    ]


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


@pytest.mark.parametrize("shards", [1, 4])
def test_an_early_stop_names_the_rejected_inputs_one_a_line(tmp_path, shards):
    draw_folders(tmp_path / "src", 12, broken=6)
    options = {"layout": "folders", "shards": shards}
    with pytest.raises(JobError, match=r"more than --max-rejected 4 ") as caught:
        run_convert(tmp_path / "src", tmp_path / "out", max_rejected=4, **options)
    named = re.findall(r"(?:hat|shirt)/\d{4}\.jpg: decode: not an image", str(caught.value))
    assert len(named) == len(set(named)) == 5, str(caught.value)
    assert named[-1] and "the last was" in str(caught.value).splitlines()[0]


def test_rejects_of_shards_that_were_finished_before_are_named_too(tmp_path):
    draw_folders(tmp_path / "src", 6, broken=2)
    folder = Path(run_convert(tmp_path / "src", tmp_path / "out", layout="folders").folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(JobError, match=r"--max-rejected 0 .*/000\d\.jpg: decode: "):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders", max_rejected=0)


def test_the_list_of_an_early_stop_is_short(tmp_path):
    draw_folders(tmp_path / "src", 60, broken=50)
    with pytest.raises(JobError) as caught:
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders", max_rejected=40)
    assert 5 <= len(str(caught.value).splitlines()) <= 12


def test_inputs_left_out_on_purpose_are_listed_and_cost_nothing(tmp_path):
    draw_folders(tmp_path / "src", 4)
    (tmp_path / "src/hat/thumbnails.db").write_bytes(b"0")
    done = run_convert(tmp_path / "src", tmp_path / "out", layout="folders", max_rejected=0)
    assert [entry["stage"] for entry in rejected_entries(done.folder)] == ["selection"]


def test_a_picture_of_a_format_that_is_not_read_counts_as_a_failure(tmp_path):
    draw_folders(tmp_path / "src", 4)
    (tmp_path / "src/hat/picture.avif").write_bytes(b"0")
    with pytest.raises(JobError, match=r"hat/picture\.avif: decode: format not supported \(\.avif"):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders", max_rejected=0)


def test_nothing_converted_is_an_error_that_leaves_the_list(tmp_path):
    draw_folders(tmp_path / "src", 3, broken=3)
    with pytest.raises(JobError, match="nothing was converted: all 3 inputs were rejected"):
        run_convert(tmp_path / "src", tmp_path / "out", layout="folders")
    assert len(rejected_entries(tmp_path / "out/set/1.0.0")) == 3
