"""Files of a perfect model's predictions equal the source's annotations, for splits and for new files."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import nibabel
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from halofeed.demo import draw_data_set
from halofeed.errors import JobError, UsageError
from halofeed.loader import Loader
from halofeed.loader.batch import join_id, split_id
from halofeed.pipelines.convert import Conversion, convert
from halofeed.pipelines.job import JobOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.voxels.phantom import draw, grid_around, stored, stored_grid
from halofeed.schemas.file_layout import CHECKPOINTS
from halofeed.schemas.partition import Partition
from halofeed.storage.locks import locked_folder
from halofeed.trainer.checkpoint import Checkpoints
from halofeed.trainer.config import TrainConfig
from halofeed.trainer.data import OrderedRecords, evaluation_loader, tiles_in_order
from halofeed.trainer.evaluate import ExampleCollector, Predicted, ScanMetrics
from halofeed.trainer.export import prediction_function
from halofeed.trainer.loaded_run import LoadedRun
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.new_files import list_new_files, rejected_new_files
from halofeed.trainer.optimizers import build_optimizer
from halofeed.trainer.predict import case_names, file_names, predict, predict_batches
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.run_folder import Run, begin_run, open_run
from halofeed.trainer.step import new_state
from halofeed.trainer.task import DataFacts
from halofeed.trainer.tasks.segmentation import Segmentation
from tests.support import clip_mask_writer, clip_writer, small_scans, training
from tests.support.conversions import all_bytes, draw_folders, run_convert
from tests.support.dicom_writer import write_volume
from tests.support.phantom import ORIENTATIONS, dice, write_phantom
from tests.support.training import convert_scans
from tests.support.volume_support import save_nifti

Pairs = Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]


def facts_of(done: Conversion, **changes: Any) -> DataFacts:
    manifest = done.manifest
    known = {
        "kind": manifest.kind.name,
        "labels": manifest.labels,
        "image_shape": manifest.field("image").shape,
    }
    return training.facts_of(manifest.task, **known | changes)


def perfect(done: Conversion, split: str, source: Any = None) -> Pairs:
    """The truth of each batch as a perfect model would predict it."""
    source = source or Loader(done.folder, split=split, batch_size=4, training=False)
    for step in range(source.steps):
        batch = source.batch(step)
        truth = {"id": batch["id"], "valid": batch["valid"]}
        if "boxes" in batch:
            scores = np.full(batch["classes"].shape, 0.9, np.float32)
            predictions = {"boxes": batch["boxes"], "classes": batch["classes"], "scores": scores}
            yield {**predictions, "num_detections": batch["num_boxes"]}, truth
        else:
            yield {"label": batch["label"]}, truth


# Splits -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> tuple[Path, Conversion]:
    root = tmp_path_factory.mktemp("shapes")
    draw_data_set(root / "source", 20)
    options = {"resize": "keep-aspect", "min_dimension": 64, "max_dimension": 96, "pad": True}
    return root / "source", run_convert(root / "source", root / "out", layout="coco", **options)


def test_true_boxes_score_a_perfect_map_against_the_source_annotations(shapes, tmp_path, capsys):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    source, done = shapes
    out = tmp_path / "predictions"
    document = predict_batches(perfect(done, "test"), done.folder, "test", out, facts=facts_of(done))
    assert json.loads((out / "predictions.json").read_text()) == document
    names = {entry["id"]: entry["name"] for entry in json.loads((out / "categories.json").read_text())}
    assert names == done.manifest.labels == {1: "disc", 2: "square", 3: "triangle"}
    truth = COCO(str(source / "annotations/instances_test.json"))
    images = {one["id"]: one["file_name"] for one in json.loads((out / "images.json").read_text())}
    assert images == {key: f"images/{one['file_name']}" for key, one in truth.imgs.items()}
    found = COCOeval(truth, truth.loadRes(str(out / "detections.json")), "bbox")
    found.evaluate()
    found.accumulate()
    found.summarize()
    assert found.stats[0] == pytest.approx(1.0) and document["boxes"] == len(truth.anns)


@pytest.mark.parametrize("size", [(48, 64), (24, 32)])
def test_masks_of_clips_are_a_picture_for_each_frame_as_large_as_the_source(tmp_path, size):
    drawn = clip_mask_writer.write_masked_clips(tmp_path / "source", frames=10)
    options = {"layout": "pairs", "frames": 5, "height": size[0], "width": size[1]}
    done = run_convert(tmp_path / "source", tmp_path / "out", folder_frame_rate=10.0, **options)
    out = tmp_path / "p"
    document = predict_batches(perfect(done, "train"), done.folder, "train", out, facts=facts_of(done))
    assert len(document["masks"]) == 2 * len(drawn)
    for entry in document["masks"]:
        clip = int(entry["folder"].rpartition("/")[2])
        true = drawn[entry["key"].removeprefix("images/").partition(".")[0]][1][5 * clip : 5 * clip + 5]
        np.testing.assert_allclose(entry["times_s"], np.arange(5 * clip, 5 * clip + 5) / 10, atol=1e-6)
        files = sorted((out / entry["folder"]).iterdir())
        assert [file.name for file in files] == [f"{number:04d}.png" for number in range(5)]
        found = np.array([np.asarray(Image.open(file)) for file in files])
        assert found.shape == true.shape
        assert all(dice(found == v, true == v) >= (1.0 if size == (48, 64) else 0.7) for v in (1, 2))


def write_scans(folder: Path, numbers: range) -> list[tuple[str, str, str]]:
    rows = write_phantom(folder, numbers, ending=".nii.gz")
    return [(f"patient/{name}", image, mask) for name, image, mask in rows]


def converted_scans(folder: Path, fit: str) -> tuple[list[tuple[str, str, str]], Conversion]:
    """Three scans whole, or as tiles that overlap."""
    rows = write_scans(folder / "scans", range(3, 48, 20))
    shape = {"depth": 44, "height": 72, "width": 88}
    if fit == "tiles":
        shape = {"depth": 24, "height": 40, "width": 48, "tile_overlap": (4, 8, 8)}
    return rows, convert_scans(folder, rows, folder / "scans", fit=fit, **shape)


@pytest.mark.parametrize("fit", ["crop-or-pad", "tiles"])
@pytest.mark.parametrize("ordered", [True, False])
def test_masks_lie_on_their_scans_and_tiles_are_put_together(tmp_path, fit, ordered):
    rows, done = converted_scans(tmp_path, fit)
    source = None
    if ordered:
        single = Loader(done.folder, batch_size=1, training=False)
        source = OrderedRecords(single, tiles_in_order(SplitMetadata(done.folder, "train")), 4)
    out = tmp_path / "p"
    pairs = perfect(done, "train", source)
    document = predict_batches(pairs, done.folder, "train", out, facts=facts_of(done))
    files = {key: f"{key.replace('/', '_')}.nii.gz" for key, _, _ in rows}
    assert {entry["key"]: entry["file"] for entry in document["masks"]} == files and document["sources"] == 3
    for key, image, mask in rows:
        found = nibabel.load(out / files[key])
        scan = nibabel.load(tmp_path / "scans" / image)
        assert np.abs(found.affine - scan.affine).max() < 1e-4
        assert np.array_equal(found.dataobj, nibabel.load(tmp_path / "scans" / mask).dataobj)


def test_masks_of_nnunets_cases_have_the_names_of_their_labels(tmp_path: Path) -> None:
    for case in ("ph_020", "ph_021"):
        save_nifti(tmp_path / f"s/imagesTr/{case}_0000.nii.gz", small_scans.image(), small_scans.FLIPPED)
        save_nifti(tmp_path / f"s/labelsTr/{case}.nii.gz", small_scans.mask(), small_scans.FLIPPED)
    small_scans.write_json(tmp_path / "s", small_scans.nnunet_document(2))
    done = run_convert(tmp_path / "s", tmp_path / "o", layout="nnunet", **small_scans.SIZE)
    document = predict_batches(
        perfect(done, "train"), done.folder, "train", tmp_path / "p", facts=facts_of(done)
    )
    assert {one["file"] for one in document["masks"]} == {"ph_020.nii.gz", "ph_021.nii.gz"}
    for case in ("ph_020", "ph_021"):
        found, label = (nibabel.load(tmp_path / at / f"{case}.nii.gz") for at in ("p", "s/labelsTr"))
        assert np.array_equal(found.dataobj, label.dataobj) and np.allclose(
            found.affine, label.affine, atol=1e-4
        )


@pytest.mark.parametrize(
    ("keys", "layout", "names"),
    [
        (["a_0000.nii.gz", "sub/b_0000.nii.gz"], "pairs", ["a", "b"]),
        (["a_0000.nii.gz", "sub/a_0000.nii.gz"], "pairs", []),  # two cases of one name keep their folders
        (["imagesTr/a.nii.gz", "imagesTr/b.nii.gz"], "nnunet", ["a", "b"]),  # one channel without a number
        (["a_0001.nii.gz"], "pairs", []),
        (["_0000.nii.gz"], "pairs", []),
        (["A_0000.nii.gz", "a_0000.nii"], "pairs", []),
    ],
)
def test_cases_are_named_only_where_all_sources_are_first_channels(keys, layout, names):
    assert [*case_names(keys, layout, are_scans=True).values()] == names
    assert not case_names(keys, "pairs", are_scans=False)


def by_simple_itk(found_file: Path, true_file: Path, label: int) -> tuple[float, float]:
    """Dice and the 95th percentile of the surface distances of one class in two files of masks."""
    import SimpleITK

    found, true = (
        SimpleITK.ReadImage(str(file), SimpleITK.sitkUInt8) == label for file in (found_file, true_file)
    )
    found.CopyInformation(true)
    overlap = SimpleITK.LabelOverlapMeasuresImageFilter()
    overlap.Execute(true, found)
    surfaces = [SimpleITK.LabelContour(mask) for mask in (found, true)]
    far = []
    for surface, other in (surfaces, surfaces[::-1]):
        maps = SimpleITK.SignedMaurerDistanceMap(other, squaredDistance=False, useImageSpacing=True)
        distances = np.abs(SimpleITK.GetArrayFromImage(maps))
        far.append(np.percentile(distances[SimpleITK.GetArrayFromImage(surface) > 0], 95))
    return overlap.GetDiceCoefficient(), max(far)


@pytest.mark.parametrize("fit", ["crop-or-pad", "tiles"])
def test_dice_and_distances_are_those_of_simple_itk_on_the_written_masks(tmp_path, fit):
    rows, done = converted_scans(tmp_path, fit)
    labels = facts_of(done).names
    task = Segmentation(labels=labels, kind="volume", with_probabilities=True)
    metadata = SplitMetadata(done.folder, "train")
    single = evaluation_loader(done.folder, "train", 1, task)
    source, pairs = OrderedRecords(single, tiles_in_order(metadata), 4), []
    metrics = ScanMetrics(task, metadata)
    for batch in map(source.batch, range(source.steps)):
        label = np.roll(batch["label"], (1, 2), (1, 3))
        pairs.append(({"label": label, "probabilities": np.eye(len(labels), dtype=np.float16)[label]}, batch))
        metrics.update(*pairs[-1])
    document = predict_batches(pairs, done.folder, "train", tmp_path / "p", facts=facts_of(done))
    masks = {f"patient/{Path(image).name[:2]}": tmp_path / "scans" / mask for _, image, mask in rows}
    result = metrics.result()
    assert result["examples"] == 3
    for index, name in enumerate(labels[1:], 1):
        files = [(tmp_path / "p" / entry["file"], masks[entry["key"]]) for entry in document["masks"]]
        dice_, distance = np.mean([by_simple_itk(*pair, index) for pair in files], axis=0)
        assert 0.2 < dice_ < 0.98 and distance > 0
        assert result["dice_per_class"][name] == pytest.approx(dice_, rel=1e-9)
        assert result["hausdorff95_mm_per_class"][name] == pytest.approx(distance, rel=1e-5)


def test_records_come_scan_by_scan_on_a_mesh_too(tmp_path):
    rows = write_scans(tmp_path / "scans", range(2))
    done = convert_scans(tmp_path, rows, tmp_path / "scans", depth=32, height=40, width=48, fit="tiles")
    origins = SplitMetadata(done.folder, "train")
    order = tiles_in_order(origins)
    keys = [origins.of_record(number).key for number in order]
    assert keys == sorted(keys) and len(keys) == 2 * 8 and origins.has_tiles
    records = OrderedRecords(Loader(done.folder, batch_size=1, training=False), order, 6)
    mesh = make_mesh(2, jax.devices()[:2])
    ids: list[int] = []
    partition = Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1, 1]})
    for step, batch in enumerate(records.on_mesh(mesh, partition)):
        host = records.batch(step)
        assert np.array_equal(np.asarray(batch["image"]), host["image"])
        assert np.array_equal(np.asarray(batch["id"]), host["id"])
        ids += join_id(host["id"][host["valid"]]).tolist()
    assert ids == [origins.of_record(number).id for number in order] and step == 2
    with pytest.raises(UsageError, match="batch_size=1"):
        OrderedRecords(Loader(done.folder, batch_size=2, training=False), order, 6)


# A run ----------------------------------------------------------------------------------------------------


def untrained(folder: Path, done: Conversion, config: TrainConfig) -> Run:
    """A run whose checkpoint holds the parameters as they were drawn."""
    scaled = {"mean": (100.0,) * 3, "std": (50.0,) * 3} if config.model == "classifier" else {}
    facts = facts_of(done, **scaled)
    description = {"data": done.folder, "recipe": dict(done.manifest.recipe)}
    begin_run(folder, config, facts, description, overwrite=False, chief=True)
    optimizer, _ = build_optimizer(config)
    mesh = make_mesh(config.cores_per_replica, jax.devices()[:2])
    with Checkpoints(folder / CHECKPOINTS) as checkpoints:
        checkpoints.save(3, new_state(open_run(folder).problem(mesh), optimizer, 0), {}, None, wait=True)
    return open_run(folder)


def test_a_run_predicts_new_pictures_as_its_model_says(tmp_path):
    draw_folders(tmp_path / "source", 10)
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="folders", height=32, width=32)
    run = untrained(tmp_path / "run", done, TrainConfig(batch_size=8, compute_dtype="float32"))
    new, again = convert_new(run.recipe, "classification", tmp_path / "source/hat", tmp_path / "new")
    document = predict(run, again.folder, "train", tmp_path / "p")
    assert document["checkpoint"] == 3 and document["records"] == new.count == 5
    with (tmp_path / "p/classes.csv").open(newline="") as stream:
        rows = {int(row["id"]): row for row in csv.DictReader(stream)}
    batch = Loader(again.folder, batch_size=5, training=False).batch(0)
    problem = run.problem()
    parameters, statistics, _ = run.restore(problem)
    model = prediction_function(problem, parameters, statistics)
    probabilities = jax.device_get(jax.jit(model)(batch["image"]))["probabilities"]
    for identity, expected in zip(join_id(batch["id"]), probabilities, strict=True):
        row = rows[int(identity)]
        assert set(row) == {"id", "key", "source", "class", "probability", "p(hat)", "p(shirt)"}
        assert float(row["p(hat)"]) == pytest.approx(float(expected[0]), abs=1e-5)
        assert row["class"] == ("hat", "shirt")[int(expected.argmax())]
        assert row["probability"] == row[f"p({row['class']})"] and row["key"].endswith(".jpg")


@pytest.mark.long
def test_a_run_predicts_scans_in_windows_on_several_cores(tmp_path):
    rows = write_scans(tmp_path / "scans", range(2, 4))
    sides = {"depth": 16, "height": 32, "width": 32}
    done = convert_scans(tmp_path, rows, tmp_path / "scans", fit="tiles", **sides)
    small, split = {"depth": 2, "width": 4}, {"cores_per_replica": 2, "partition": "image=1,2,1,1,1"}
    config = TrainConfig(model="unet", model_options=small, batch_size=8, **split)
    run = untrained(tmp_path / "run", done, config)
    assert LoadedRun(run, done.folder, "train").evaluate()["examples"] == 2  # scans, not tiles
    new, again = convert_new(run.recipe, "segmentation", tmp_path / "scans", tmp_path / "new")
    assert new.count == 4 and again.manifest.splits["train"].records > 4 * 8
    document = predict(run, again.folder, "train", tmp_path / "p")
    assert len(document["masks"]) == 4
    for entry in document["masks"]:
        found = nibabel.load(tmp_path / "p" / entry["file"])
        scan = nibabel.load(tmp_path / "scans" / entry["source"])
        assert found.shape == scan.shape and np.abs(found.affine - scan.affine).max() < 1e-4
        assert np.asarray(found.dataobj).max() <= max(done.manifest.labels)


# Folders and names --------------------------------------------------------------------------------------


def test_a_folder_is_written_whole_or_not_at_all_and_never_over_something_else(shapes, tmp_path):
    _, done = shapes
    facts, out = facts_of(done), tmp_path / "p"

    def write(pairs: Any, **more: Any) -> None:
        predict_batches(pairs, done.folder, "test", out, facts=facts, **more)

    with pytest.raises(JobError, match="of 4 records were predicted"):
        write(iter([]))
    with pytest.raises(UsageError, match="no record of this split"):
        write(perfect(done, "train"))
    with pytest.raises(JobError, match="twice"):
        write([*perfect(done, "test"), *perfect(done, "test")])
    assert not list(tmp_path.iterdir())
    write(perfect(done, "test"))
    before = (out / "detections.json").read_bytes()
    with pytest.raises(UsageError, match="--overwrite"):
        write(perfect(done, "test"))
    with pytest.raises(JobError):
        write(iter([]), overwrite=True)
    assert (out / "detections.json").read_bytes() == before
    write(perfect(done, "test"), overwrite=True)
    with locked_folder(out, "writes", ""), pytest.raises(JobError, match="is writing predictions into it"):
        write(perfect(done, "test"), overwrite=True)
    (out / "notes.txt").write_text("mine")
    (out / "categories.json").write_text("corrected by hand")
    mine = all_bytes(out)
    with pytest.raises(UsageError, match=r"not delete(.|\n)*categories.json \(changed(.|\n)*notes.txt \(not"):
        write(perfect(done, "test"), overwrite=True)
    assert all_bytes(out) == mine
    (out / "predictions.json").unlink()
    with pytest.raises(UsageError, match="holds no predictions"):
        write(perfect(done, "test"), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_examples_of_a_run_carry_the_names_of_their_files(shapes, tmp_path):
    _, done = shapes
    loader = Loader(done.folder, split="test", batch_size=4, training=False)
    collector = ExampleCollector(loader.num_records)
    for step, (predictions, truth) in enumerate(perfect(done, "test")):
        scores = np.linspace(0, 1, len(truth["valid"]))
        collector.add(Predicted(step=step, predictions=predictions, truth=truth), scores)
    collector.write(tmp_path / "examples", loader, 7, "test")
    names = {record.id: record.source for record in SplitMetadata(done.folder, "test")}
    listed = json.loads((tmp_path / "examples/examples.json").read_text())["examples"]
    assert len(listed) == 4 and all(one["source"] == names[one["id"]] for one in listed)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=160), max_size=5, unique=True))
def test_names_of_files_stay_in_their_folder_and_differ_or_are_refused(keys):
    names = file_names({key: number for number, key in enumerate(keys)}, ".png")
    assert set(names) == set(keys)
    assert len({name.casefold() for name in names.values()}) == len(keys)
    for name in names.values():
        assert Path(name).name == name and not name.startswith(".") and len(name) < 200 and name.isascii()
    with pytest.raises(UsageError, match="would both become"):
        file_names({"a/b": 7, "a_b": 8, "a_b-7": 9}, ".png")


# New files ----------------------------------------------------------------------------------------------


def convert_new(recipe: Any, task: str, source: Path, scratch: Path, **options) -> tuple[Any, Conversion]:
    scratch.mkdir()
    new = list_new_files(recipe, task, source, scratch, **options)
    job = JobOptions(source=new.source, images=new.images, out=str(scratch / "out"), name="new", workers=1)
    return new, convert(job, new.recipe, show_progress=False)


@pytest.mark.parametrize("task", ["detection", "classification", "segmentation"])
def test_new_pictures_have_the_pixels_of_the_data_set_whose_recipe_they_follow(tmp_path, task):
    draw_data_set(tmp_path / "source", 12)
    options = {"resize": "keep-aspect", "min_dimension": 64, "max_dimension": 96, "pad": True, "shards": 2}
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="coco", masks=True, **options)
    pictures = tmp_path / "source/images"
    (pictures / "notes.txt").write_text("about them")
    (pictures / "odd.raw").write_bytes(b"?")
    new, again = convert_new(done.manifest.recipe, task, pictures, tmp_path / "new")
    assert new.count == 12 and new.passed_over == ("odd.raw",)
    (rejected,) = rejected_new_files(again.folder)
    assert rejected.source == "shapes_0001.jpg" and "decode" in rejected.reason
    include = ("transform", "source", "source_height", "source_width")

    def images(folder: str, split: str) -> dict[str, dict[str, Any]]:
        batches = Loader(folder, split=split, batch_size=1, training=False, include=include).batches()
        return {Path(batch["source"][0]).name: batch for batch in batches}

    found = images(again.folder, "train")
    expected = images(done.folder, "train") | images(done.folder, "test")
    assert set(found) == set(expected) and len(found) == 11
    for name, batch in expected.items():
        for key in ("image", "transform", "source_height", "source_width"):
            assert np.array_equal(found[name][key], batch[key])


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_new_clips_have_the_frames_of_the_data_set_whose_recipe_they_follow(tmp_path, task):
    options = {"frames": 5, "frame_stride": 2, "height": 30, "width": 40}
    if task == "classification":
        clips = clip_writer.write_class_folders(tmp_path / "source", each=3)
        done = run_convert(clips, tmp_path / "out", layout="folders", **options)
    else:
        clip_mask_writer.write_masked_clips(tmp_path / "source")
        done = run_convert(tmp_path / "source", tmp_path / "out", layout="pairs", **options)
        clips = tmp_path / "source/images"
    (clips / "odd.raw").write_bytes(b"?")
    video, folder = next(clips.rglob("*.mp4")), next(clips.rglob("0.png")).parent
    (clips / "broken.mp4").write_bytes(video.read_bytes()[:300])

    def images(folder: str) -> dict[tuple[str, int], np.ndarray]:
        loader = Loader(folder, split="train", batch_size=1, training=False, include=("source", "tile"))
        prefix = "images/" if folder == done.folder and task == "segmentation" else ""
        return {
            (batch["source"][0].removeprefix(prefix), int(batch["tile"][0])): batch["image"][0]
            for batch in loader.batches()
        }

    expected = images(done.folder)
    new, again = convert_new(done.manifest.recipe, task, clips, tmp_path / "new")
    (rejected,) = rejected_new_files(again.folder)
    assert new.passed_over == ("odd.raw",) and rejected.source == "broken.mp4"
    found = images(again.folder)
    assert set(found) == set(expected) and all(np.array_equal(found[key], expected[key]) for key in found)
    for source in (video, folder):
        new, again = convert_new(done.manifest.recipe, task, source, tmp_path / f"new_{source.name}")
        assert new.count == 1 and not rejected_new_files(again.folder)
        for (name, number), image in images(again.folder).items():
            assert name == source.name
            assert np.array_equal(image, expected[str(source.relative_to(clips)), number])


def test_a_single_picture_is_taken_alone_and_its_boxes_carry_the_names_of_the_model(shapes, tmp_path):
    source, done = shapes
    picture = source / "images/shapes_0003.jpg"
    new, again = convert_new(done.manifest.recipe, "detection", picture, tmp_path / "new")
    assert new.count == 1 and not rejected_new_files(again.folder)
    (origin,) = SplitMetadata(again.folder, "train")
    with Image.open(picture) as image:
        assert origin.source_size == image.size[::-1]
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 0, 0]]], np.float32)
    predictions = {"boxes": boxes, "classes": np.array([[2, 0]]), "scores": np.array([[0.5, 0]])}
    predictions["num_detections"] = np.array([1])
    truth = {"id": split_id([origin.id]), "valid": np.array([True])}
    out = tmp_path / "p"
    predict_batches([(predictions, truth)], again.folder, "train", out, facts=facts_of(done))
    (entry,) = json.loads((out / "detections.json").read_text())
    assert entry["bbox"] == [0, 0, *origin.source_size[::-1]] and entry["category_id"] == 2


def test_new_scans_larger_than_the_recipes_shape_are_predicted_whole(tmp_path):
    rows = write_scans(tmp_path / "scans", range(5, 6))
    recipe = Recipe(layout="msd", depth=24, height=40, width=48, center="label").to_json()
    scan, mask = tmp_path / "scans" / rows[0][1], nibabel.load(tmp_path / "scans" / rows[0][2])
    new, done = convert_new(recipe, "segmentation", scan, tmp_path / "new")
    assert new.recipe.tile_overlap == (6, 10, 12) and not rejected_new_files(done.folder)
    truth = stored(draw(grid_around())[1], ORIENTATIONS[5])
    grid = stored_grid(grid_around(), ORIENTATIONS[5])

    def labelled() -> Pairs:
        """What the mask says at each voxel of each tile, by its place in the patient."""
        for origin in SplitMetadata(done.folder, "train"):
            tile = origin.tile((24, 40, 48))
            places = tile.grid.to_mm(np.moveaxis(np.indices((24, 40, 48)), 0, -1))
            voxels = np.rint((places - grid.affine[:3, 3]) @ np.linalg.inv(grid.affine[:3, :3]).T).astype(int)
            inside = ((voxels >= 0) & (voxels < truth.shape)).all(axis=-1)
            clipped = np.clip(voxels, 0, np.array(truth.shape) - 1)
            label = np.where(inside, truth[tuple(np.moveaxis(clipped, -1, 0))], 0)
            predictions = {"probabilities": np.eye(5, dtype=np.float16)[label][None], "label": label[None]}
            yield predictions, {"id": split_id([origin.id]), "valid": np.array([True])}

    facts = facts_of(done, labels=dict(enumerate("abcde")))
    predict_batches(labelled(), done.folder, "train", tmp_path / "p", facts=facts)
    found = nibabel.load(tmp_path / "p/05.nii.gz")
    assert np.array_equal(found.dataobj, mask.dataobj) and np.abs(found.affine - mask.affine).max() < 1e-4
    assert dice(np.asarray(found.dataobj) > 0, np.asarray(mask.dataobj) > 0) == 1


def test_a_folder_of_dicom_series_is_taken_as_new_scans(test_data, tmp_path):
    recipe = Recipe(layout="msd", depth=20, height=64, width=64, spacing_mm=(3, 6, 6)).to_json()
    source = test_data / "dicom/torchio_17"
    new, done = convert_new(recipe, "segmentation", source, tmp_path / "new", windows=False)
    assert new.count is None and new.recipe.layout == "dicom" and new.recipe.fit == "crop-or-pad"
    assert done.manifest.splits["train"].records == 1


def test_scans_in_files_and_folders_of_dicom_series_are_predicted_by_one_command(tmp_path: Path) -> None:
    root = tmp_path / "s"
    save_nifti(root / "a.nii.gz", small_scans.image(), small_scans.FLIPPED)
    for series, folder in (("1.2.1", "p1/ct"), ("1.2.2", "p2/study/late")):
        write_volume(root / folder, small_scans.image(1), small_scans.AFFINE, series=series)
    (root / "p2/notes.bin").write_bytes(b"no scan")
    recipe = Recipe(layout="msd", **small_scans.SIZE).to_json()
    new, done = convert_new(recipe, "segmentation", root, tmp_path / "new", windows=False)
    assert new.count == 3 and new.passed_over == ("p2/notes.bin",)
    found = {one.source: one for one in SplitMetadata(done.folder, "train")}
    assert found.keys() == {"a.nii.gz", "p1/ct", "p2/study/late"}
    out = tmp_path / "p"
    predict_batches(perfect(done, "train"), done.folder, "train", out, facts=facts_of(done))
    assert {"a.nii.gz", "p1_ct.nii.gz", "p2_study_late.nii.gz"} <= {path.name for path in out.iterdir()}


def test_stacks_of_tiff_pages_are_new_scans_where_no_other_file_is(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    tifffile.imwrite(tmp_path / "s/c_0000.tif", small_scans.image(), photometric="minisblack")
    (tmp_path / "s/c.json").write_text('{"spacing": [3.0, 2.0, 1.5]}')
    recipe = Recipe(layout="nnunet", **small_scans.SIZE).to_json()
    new, done = convert_new(recipe, "segmentation", tmp_path / "s", tmp_path / "new", windows=False)
    assert new.count == 1 and done.manifest.splits["train"].records == 1


def test_what_cannot_be_listed_of_new_files_is_named(ordinary_folder, ordinary_user, tmp_path):
    (ordinary_folder / "closed").mkdir()
    (ordinary_folder / "a.png").write_bytes(b"")
    (ordinary_folder / "again").symlink_to(".")
    (ordinary_folder / "closed").chmod(0)
    recipe = Recipe(layout="coco").to_json()
    with ordinary_user():
        new = list_new_files(recipe, "detection", ordinary_folder, ordinary_folder)
        (ordinary_folder / "a.png").unlink()
        with pytest.raises(UsageError, match=r"holds no picture(.|\n)*closed: read: folder cannot be listed"):
            list_new_files(recipe, "detection", ordinary_folder, tmp_path)
    assert new.count == 1 and {one.source: one.reason for one in new.rejected} == {
        "again": "selection: link to a folder in which it lies",
        "closed": "read: folder cannot be listed (Permission denied)",
    }
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UsageError, match=r"--source .*pipe\.png: it is a named pipe"):
        list_new_files(recipe, "detection", tmp_path / "pipe.png", tmp_path)
    with pytest.raises(UsageError, match="no such folder or file"):
        list_new_files(recipe, "detection", tmp_path / "nothing", tmp_path)
