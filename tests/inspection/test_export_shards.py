"""Exports into shards, and Croissant's metadata: the libraries that these are for read the same pictures."""

import gzip
import io
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml
from PIL import Image

from halofeed.inspection.export_parquet import ParquetExporter
from halofeed.inspection.export_shards import ShardsExporter
from tests.inspection.test_export_data import SIDES, draw, export
from tests.support.conversions import run_convert
from tests.support.dataset_writer import LABELS, Drawn, write_dataset
from tests.support.small_scans import FLIPPED, SIZE, image, mask
from tests.support.volume_support import save_nifti, write_table


def split_of(row, drawn: list[Drawn]) -> str:
    """The split of the drawn example with the pixels of a row; its class or classes and boxes are the same."""
    image = Image.open(io.BytesIO(row["image"])) if isinstance(row["image"], bytes) else row["image"]
    pixels = np.asarray(image)
    (one,) = (one for one in drawn if np.array_equal(one.pixels[:-1], pixels))
    if one.boxes is None:
        assert int(row["label"]) == one.label
    else:
        assert [sorted(LABELS["detection"])[number] for number in row["category"]] == list(one.classes)
        corners = np.minimum(one.boxes * [*SIDES, *SIDES], [SIDES[0] - 1, SIDES[1]] * 2)
        xywh = np.concatenate([corners[:, 1::-1], (corners[:, 2:] - corners[:, :2])[:, ::-1]], axis=1)
        np.testing.assert_allclose(np.array([*row["bbox"]]).reshape(-1, 4), xywh, atol=1e-4)
    return one.split


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_parquet_has_bounded_groups_and_the_schema_of_hugging_face(tmp_path, monkeypatch, task) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(ShardsExporter, "SHARD_BYTES", 9_000)
    monkeypatch.setattr(ParquetExporter, "GROUP_ROWS", 2)
    data, out = write_dataset(tmp_path / "data", drawn := draw(task), task=task), tmp_path / "out"
    assert ("difficult flags" in export(data, "parquet", out)) is (task == "detection")
    assert (out / "data/train-00001-of-00003.parquet").exists()
    for path in (out / "data").iterdir():
        file = parquet.ParquetFile(path)
        assert file.metadata.num_row_groups == -(-file.metadata.num_rows // 2)
        features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        label = features["objects"]["category"]["feature"] if task == "detection" else features["label"]
        assert label == {"names": list(LABELS[task].values()), "_type": "ClassLabel"}
        for row in file.read().to_pylist():
            row |= {"image": row["image"]["bytes"], **row.get("objects", {})}
            assert split_of(row, drawn) == path.name.split("-")[0]
    card = next(yaml.safe_load_all((out / "README.md").read_text()))["dataset_info"]
    assert [split["num_examples"] for split in card["splits"]] == [8, 5]
    next(data.glob("tiny-train*")).write_bytes(b"")
    assert "halofeed verify" in export(data, "parquet", tmp_path / "no", code=1)


@pytest.mark.parametrize("recipe", [{}, {"window_percentiles": (1, 99)}])
def test_parquet_holds_scans_and_labels_as_files_of_hugging_faces_nifti(tmp_path: Path, recipe) -> None:
    """The struct and the metadata of `datasets.Nifti`; the files are those of the target nifti."""
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, labelled in (("a", True), ("b", False)):
        save_nifti(tmp_path / f"in/images/{name}.nii", image(), FLIPPED)
        if labelled:
            save_nifti(tmp_path / f"in/labels/{name}.nii", mask(), FLIPPED)
    options = {**SIZE, "depth": SIZE["depth"] + 2, "missing_masks": "prediction", **recipe}
    done = run_convert(tmp_path / "in", tmp_path / "data", layout="pairs", **options)
    export(done.folder, "parquet", tmp_path / "out")
    export(done.folder, "nifti", tmp_path / "files")
    rows = [row for path in (tmp_path / "out/data").iterdir() for row in parquet.read_table(path).to_pylist()]
    unlabelled, labelled = sorted(rows, key=lambda row: row["mask"] is not None)
    assert unlabelled["mask"] is None and labelled["mask"]["path"] == "images_a.nii.gz"
    for column, folder in (("image", "images"), ("mask", "labels")):
        assert labelled[column]["bytes"] == (tmp_path / f"files/{folder}/images_a.nii.gz").read_bytes()
    read = nibabel.Nifti1Image.from_bytes(gzip.decompress(labelled["mask"]["bytes"]))
    np.testing.assert_array_equal(np.asarray(read.dataobj).T[:, ::-1, ::-1].shape, mask().shape)
    about = parquet.read_schema(next((tmp_path / "out/data").iterdir())).metadata[b"huggingface"]
    features = json.loads(about)["info"]["features"]
    assert features["image"] == features["mask"] == {"_type": "Nifti"}
    card = next(yaml.safe_load_all((tmp_path / "out/README.md").read_text()))["dataset_info"]
    assert [one["dtype"] for one in card["features"]] == ["int64", "nifti", "nifti"]


def test_tiles_of_scans_are_no_files_of_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    save_nifti(tmp_path / "in/images/a.nii", image(), FLIPPED)
    options = {"fit": "tiles", "depth": 4, "height": 4, "width": 4, "missing_masks": "prediction"}
    table = write_table(tmp_path / "in", [("a", "images/a.nii", "")])
    done = run_convert(table, tmp_path / "data", layout="csv", task="segmentation", **options)
    assert "--fit crop-or-pad" in export(done.folder, "parquet", tmp_path / "out", code=2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("task", ["classification", "detection", "segmentation"])
def test_mlcroissant_and_webdataset_read_every_picture(tmp_path, test_data, task) -> None:
    croissant, webdataset = pytest.importorskip("mlcroissant"), pytest.importorskip("webdataset")
    terms, drawn = {"license": "CC0", "citation": "@x"}, []
    if task == "segmentation":
        terms |= {"image_pattern": "JPEGImages/{id}.jpg", "label_pattern": "SegmentationClass/{id}.png"}
        done = run_convert(test_data / "cases/voc_segmentation", tmp_path, layout="pairs", **terms)
    else:
        drawn = [Drawn(**vars(one) | {"key": f"../a.b/{one.key}.c"}) for one in draw(task)]
        terms |= {"resize": "fixed-shape", "pad_value": [0]}
    data = write_dataset(tmp_path / "d", drawn, task=task, recipe=terms) if drawn else Path(done.folder)
    described = croissant.Dataset(str(data / "croissant.json")).metadata
    assert described.file_sets and described.ctx.conforms_to.value.endswith("/1.1")
    for to in ("parquet", "folders")[: 1 + (task == "classification")]:
        export(data, to, tmp_path / to)
        read = croissant.Dataset(str(tmp_path / to / "croissant.json"))
        assert all("datePublished" in one for one in read.metadata.ctx.issues.warnings)
        names = {one["classes/name"].encode(): one["classes/id"] for one in read.records("classes")}
        rows = [{key[8:]: row[key] for key in row} for row in read.records("default")]
        for row in rows if drawn else ():
            row["label"] = names.get(row.get("label"), row.get("label"))
            assert split_of(row, drawn) == row["split"].decode()
        assert len(rows) == (len(drawn) or 4) and (drawn or "mask" in rows[0])
    assert export(data, "webdataset", tmp_path / "tars") == export(data, "webdataset", tmp_path / "again")
    for path in (tmp_path / "tars").glob("*.tar"):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
        for row in webdataset.WebDataset(str(path), shardshuffle=False):
            objects = json.loads(row["json"])["objects"] if "json" in row else {"label": row.get("cls")}
            assert split_of(objects | {"image": row["png"]}, drawn) in path.name if drawn else row["mask.png"]
