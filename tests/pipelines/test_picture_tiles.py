"""Data sets of tiles keep every object, divide splits by source, and pass verify."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.errors import UsageError
from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.export_data import export_data
from halofeed.inspection.verify import verify
from halofeed.inspection.verify_tile import tile_problems
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import decode_example
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw twelve pictures of 100 x 150 pixels with 20 boxes each."""
    root = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(12):
        name = f"p{number}.png"
        Image.fromarray(generator.integers(0, 255, (100, 150, 3), dtype=np.uint8)).save(root / name)
        images.append({"id": number, "file_name": name, "height": 100, "width": 150})
        for _ in range(20):
            x, y = int(generator.integers(0, 120)), int(generator.integers(0, 80))
            width, height = (int(side) for side in generator.integers(4, 20, 2))
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                }
            )
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "ship"}]}
    (root / "instances.json").write_text(json.dumps(document))
    return root


def convert(source: Path, out: Path, **options: Any) -> Path:
    tiles = {"fit": "tiles", "height": 48, "width": 48, "tile_overlap": (8, 8)}
    halofeed.convert(source=str(source), out=str(out), name="t", **{**tiles, **options})
    return out / "t" / "1.0.0"


def records_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes(), "manifest.json")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, split in manifest.splits.items():
        for shard in split.shards:
            data, at = (folder / shard.file).read_bytes(), 0
            while at < len(data):
                length = int.from_bytes(data[at : at + 8], "little")
                start = at + HEADER_BYTES
                found.setdefault(name, []).append(
                    dict(decode_example(memoryview(data)[start : start + length]))
                )
                at = start + length + FOOTER_BYTES
    return found


def test_tiles_of_one_picture_are_in_one_split_and_every_object_is_found_in_its_source(source, tmp_path):
    folder = convert(source, tmp_path, split_shares={"train": 0.5, "validation": 0.5})
    records = records_of(folder)
    sources = {
        split: {bytes(record[keys.FILENAME][0]) for record in of_split} for split, of_split in records.items()
    }
    assert len(sources) == 2 and not set.intersection(*sources.values())
    assert len(set.union(*sources.values())) == 12
    boxes: dict[bytes, dict[int, list[float]]] = {}
    for record in (record for of_split in records.values() for record in of_split):
        found = np.stack([record[key] for key in keys.OBJECT_SOURCE_CORNERS], axis=1)
        named = boxes.setdefault(bytes(record[keys.FILENAME][0]), {})
        for index, box in zip(record[keys.OBJECT_INDEX].tolist(), found.tolist(), strict=True):
            assert named.setdefault(index, box) == box
    document = json.loads((source / "instances.json").read_text())
    for image in document["images"]:
        expected = [one["bbox"] for one in document["annotations"] if one["image_id"] == image["id"]]
        found_boxes = boxes[image["file_name"].encode()]
        assert [found_boxes[index] for index in range(20)] == [
            [y, x, min(100, y + height), min(150, x + width)] for x, y, width, height in expected
        ]
    report = verify(folder)
    assert report.ok, report
    assert "144 tiles of 12 pictures" in describe_dataset(folder)


def test_verify_finds_a_tile_at_a_wrong_place(source, tmp_path):
    folder = convert(source, tmp_path)
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes(), "manifest.json")
    record = records_of(folder)["train"][1]
    assert not list(tile_problems(record, manifest))
    for key, value, problem in (
        (keys.TILE_ORIGIN, np.array([90, 140]), "leaves the picture"),
        (keys.TILE_ORIGIN, np.array([1, 2]), "expected [0, "),
        (keys.TILE, np.array([99]), "expected 0 to 11"),
        (keys.TRANSFORM, np.array([1, 0, 9, 0, 1, 9], np.float32), "does not lead from"),
        (keys.OBJECT_INDEX, np.array([3, 3]), "expected rising numbers"),
        (keys.OBJECT_VISIBLE, np.array([0, 2], np.float32), "expected a share above 0 to 1"),
    ):
        assert any(problem in one for one in tile_problems({**record, key: value}, manifest)), problem


def test_empty_tiles_are_dropped_and_counted(source, tmp_path):
    kept = convert(source, tmp_path / "kept")
    dropped = convert(
        source, tmp_path / "dropped", empty_tiles="drop", height=16, width=16, tile_overlap=(0, 0)
    )
    assert len(records_of(kept)["train"]) == 144
    assert all(len(record[keys.OBJECT_INDEX]) for record in records_of(dropped)["train"])
    assert "empty tiles were dropped" in describe_dataset(dropped)
    assert verify(dropped).ok


def test_an_export_on_the_grid_of_the_source_refuses_tiles(source, tmp_path):
    data = convert(source, tmp_path)
    with pytest.raises(UsageError, match=r"tile of a larger picture.*--fit tiles.*--grid stored"):
        export_data(data, "coco", tmp_path / "exported", grid="source")
