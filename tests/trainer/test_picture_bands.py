"""Masks of tiles are blended to the mask of the whole picture, in pixels of the source file."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.loader.batch import join_id
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles
from halofeed.prep.geometry.resize import displayed_size, displayed_to_file
from halofeed.storage.temporary_arrays import temporary_array
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.picture_bands import BandBlender, BandLabels, PlacedTile
from halofeed.trainer.predict import PredictionOptions, predict_batches
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.source_grid import picture_labels_in_source, write_tiff
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.trainer.whole_pictures import whole_picture_metrics
from halofeed.trainer.windows import window_weight
from tests.support.conversions import run_convert
from tests.support.training import facts_of

SIDE, CLASSES = 32, 3


def tiles_of(whole, overlap=(8, 8)):
    planned = plan_picture_tiles(whole, (SIDE, SIDE), overlap)
    return {tile.number: PlacedTile(origin=tile.plan.origin, size=tile.plan.resized_size) for tile in planned}


def predicted_of(tiles, generator):
    return {number: generator.random((SIDE, SIDE, CLASSES)).astype(np.float32) for number in tiles}


def slow_blend(tiles, predictions, whole):
    """Weighted mean at each pixel over the tiles that show it; zeros where none does."""
    sums, weights = np.zeros((*whole, CLASSES)), np.zeros((*whole, 1))
    for number, tile in tiles.items():
        for row, column in np.ndindex(tile.size):
            at = tile.origin[0] + row, tile.origin[1] + column
            weight = float(window_weight((SIDE, SIDE))[row, column])
            sums[at] += weight * predictions[number][row, column]
            weights[at] += weight
    return sums / np.maximum(weights, 1e-300)


def blended(tiles, predictions, whole, order):
    blender = BandBlender(tiles, whole, (SIDE, SIDE), CLASSES)
    bands = [band for number in order for band in blender.add(number, predictions[number])]
    assert not blender.missing
    ends = np.cumsum([len(band.probabilities) for band in bands]).tolist()
    assert [band.top for band in bands] == [0, *ends[:-1]] and ends[-1] == whole[0]
    return bands


@pytest.mark.parametrize("whole", [(70, 90), (20, 100), (100, 20), (32, 32)])
@pytest.mark.parametrize("order", ["stored", "any"])
def test_bands_are_the_weighted_means_of_the_tiles_in_any_order(whole, order):
    generator = np.random.default_rng(0)
    tiles = tiles_of(whole)
    predictions = predicted_of(tiles, generator)
    numbers = list(tiles) if order == "stored" else generator.permutation(len(tiles)).tolist()
    bands = blended(tiles, predictions, whole, numbers)
    found = np.concatenate([band.probabilities for band in bands])
    assert np.abs(found - slow_blend(tiles, predictions, whole)).max() < 1e-5
    assert all(band.is_shown.all() for band in bands)


def test_rows_are_given_as_soon_as_they_are_complete():
    tiles = tiles_of((200, 90))
    blender, done, held = BandBlender(tiles, (200, 90), (SIDE, SIDE), CLASSES), 0, []
    for number, tile in tiles.items():
        for band in blender.add(number, np.zeros((SIDE, SIDE), np.uint8)):
            done += len(band.probabilities)
        held.append(tile.origin[0] + SIDE - done)
    assert done == 200 and max(held) <= 2 * SIDE
    with pytest.raises(UsageError, match="twice"):
        next(blender.add(0, np.zeros((SIDE, SIDE), np.uint8)))


def test_pixels_of_dropped_tiles_are_background_and_do_not_count():
    whole = (100, 90)
    tiles = {number: tile for number, tile in tiles_of(whole).items() if number not in (0, 1, 2, 3, 5)}
    predictions = predicted_of(tiles, np.random.default_rng(1))
    bands = blended(tiles, predictions, whole, tiles)
    found = np.concatenate([band.probabilities for band in bands])
    expected = slow_blend(tiles, predictions, whole)
    assert np.abs(found - expected).max() < 1e-5
    assert np.array_equal(np.concatenate([band.is_shown for band in bands]), expected.any(-1))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("scale", [1.0, 0.6, 1.7])
def test_labels_of_bands_are_those_of_the_whole_picture_at_once(orientation, scale):
    generator = np.random.default_rng(2)
    file_size = (75, 110)
    shown = displayed_size(orientation, file_size)
    whole = (round(shown[0] * scale), round(shown[1] * scale))
    tiles = tiles_of(whole)
    bands = blended(tiles, predicted_of(tiles, generator), whole, tiles)
    to_shown = np.diag([*(side / part for side, part in zip(shown, whole, strict=True)), 1.0])
    matrix = np.vstack([displayed_to_file(orientation, file_size).reshape(2, 3), [0, 0, 1]]) @ to_shown
    complete = np.concatenate([band.probabilities for band in bands])
    label = temporary_array(file_size, np.uint8)
    rows = BandLabels(label, whole, matrix[:2].astype(np.float32))
    for band in bands:
        rows.add(band)
    expected = picture_labels_in_source(complete, matrix[:2], file_size)
    # Rows of a band are interpolated from another first row, which rounds differently.
    assert (label == expected).mean() > 0.999 and (scale != 1 or np.array_equal(label, expected))


def write_masks(folder):
    """Pictures and masks of blobs; the masks by name."""
    generator, masks = np.random.default_rng(3), {}
    for name, size in {"a": (150, 210), "b": (40, 50)}.items():
        coarse = generator.integers(0, CLASSES, (size[0] // 15 + 1, size[1] // 15 + 1)).astype(np.uint8)
        masks[name] = np.kron(coarse, np.ones((15, 15), np.uint8))[: size[0], : size[1]]
        for part, pixels in (("images", np.full((*size, 3), 90, np.uint8)), ("labels", masks[name])):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{part}/{name}.png")
    return masks


def test_masks_of_predict_are_the_source_masks_and_metrics_are_those_of_whole_masks(tmp_path, monkeypatch):
    masks = write_masks(tmp_path / "source")
    options = {"fit": "tiles", "height": SIDE, "width": SIDE, "tile_overlap": (8, 8)}
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="pairs", task="segmentation", **options)
    metadata = SplitMetadata(done.folder, "train")
    names = tuple(done.manifest.labels[label] for label in sorted(done.manifest.labels))
    task = Segmentation(labels=names, kind="picture", with_probabilities=True)
    metrics = whole_picture_metrics(task, metadata)
    pairs = []
    loader = Loader(done.folder, batch_size=4, training=False, include=["size"])
    for batch in loader.batches():
        label = batch["label"].copy()
        label[:, :, ::7] = 0
        pairs.append(({"label": label, "probabilities": np.eye(CLASSES, dtype=np.float16)[label]}, batch))
        metrics.update(*pairs[-1])
    truth = [({"label": batch["label"]}, batch) for _, batch in pairs]
    facts = facts_of("segmentation", done.manifest.labels, done.manifest.field("image").shape)
    predict_batches(truth, done.folder, "train", tmp_path / "true", facts=facts)
    monkeypatch.setattr("halofeed.trainer.predict.PNG_PIXELS", 5000)
    document = predict_batches(pairs, done.folder, "train", tmp_path / "found", facts=facts)
    assert {entry["file"].partition(".")[2] for entry in document["masks"]} == {"png", "tif"}
    direct = SegmentationMetrics(names, kind="picture")
    for entry in document["masks"]:
        true = masks[entry["key"].rpartition("/")[2].partition(".")[0]]
        stem = entry["file"].partition(".")[0]
        assert np.array_equal(np.asarray(Image.open(tmp_path / f"true/{stem}.png")), true)
        file = tmp_path / "found" / entry["file"]
        found = tifffile.imread(file) if file.suffix == ".tif" else np.asarray(Image.open(file))
        direct.update({"label": found[None]}, {"label": true[None]})
    expected, result = direct.result(), metrics.result()
    assert result["examples"] == 2 and result["tiles"] == len(metadata) == sum(
        len(b["id"][b["valid"]]) for _, b in pairs
    )
    assert 0.5 < result["dice"] < 0.99 and result["dice"] == pytest.approx(expected["dice"])
    assert result["hausdorff95_pixels"] == pytest.approx(expected["hausdorff95_pixels"])
    assert result["miou"] == expected["miou"] and result["iou_per_class"] == expected["iou_per_class"]
    monkeypatch.setattr("halofeed.trainer.whole_masks.DISTANCE_PIXELS", 5000)
    metrics = whole_picture_metrics(task, metadata)
    for pair in pairs:
        metrics.update(*pair)
    assert metrics.result()["dice"] == result["dice"] and metrics.result()["pictures_without_distances"] == 1


def test_regions_of_tiles_are_blended_before_they_are_painted(tmp_path):
    write_masks(tmp_path / "source")
    options = {"fit": "tiles", "height": SIDE, "width": SIDE, "tile_overlap": (8, 8)}
    done = run_convert(tmp_path / "source", tmp_path / "out", layout="pairs", task="segmentation", **options)
    metadata = SplitMetadata(done.folder, "train")
    names = tuple(done.manifest.labels[label] for label in sorted(done.manifest.labels))
    regions = {"both": list(names[1:]), "last": [names[2]]}
    task = Segmentation(
        labels=names, kind="picture", with_probabilities=True, regions=regions, window_weights="uniform"
    )
    metrics, generator = whole_picture_metrics(task, metadata), np.random.default_rng(5)
    pairs, of_tile = [], {}
    for batch in Loader(done.folder, batch_size=4, training=False, include=["size"]).batches():
        given = generator.random((*batch["label"].shape, 2)).astype(np.float16)
        pairs.append(({"label": batch["label"], "regions": given}, batch))
        metrics.update(*pairs[-1])
        for row in np.flatnonzero(batch["valid"]).tolist():
            record = metadata.of_id(int(join_id(batch["id"][row])))
            of_tile[record.key, int(record.numbers["tile"])] = given[row]
    facts = facts_of("segmentation", done.manifest.labels, done.manifest.field("image").shape)
    chosen = PredictionOptions(masks=task.mask_rule)
    document = predict_batches(pairs, done.folder, "train", tmp_path / "found", facts=facts, options=chosen)
    direct = SegmentationMetrics(names, kind="picture", regions=task.mask_rule.regions)
    truth = write_masks(tmp_path / "source")
    for entry in document["masks"]:
        name = entry["key"].rpartition("/")[2].partition(".")[0]
        sums, counts = np.zeros((*truth[name].shape, 2)), np.zeros((*truth[name].shape, 1))
        for number, tile in metadata.picture_tiles()[entry["key"]].items():
            part = tuple(slice(at, at + size) for at, size in zip(tile.origin, tile.size, strict=True))
            sums[part] += of_tile[entry["key"], number][: tile.size[0], : tile.size[1]]
            counts[part] += 1
        both, last = np.moveaxis(sums / counts, -1, 0)
        expected = np.where(last > 0.5, 2, np.where(both > 0.5, 1, 0))
        found = np.asarray(Image.open(tmp_path / "found" / entry["file"]))
        # A mean of exactly one half rounds differently in float32.
        assert (found == expected).mean() > 0.999
        direct.update({"label": found[None]}, {"label": truth[name][None]})
    result, of_files = metrics.result(), direct.result()
    for figure in ("dice", "miou", "dice_per_region", "hausdorff95_pixels"):
        assert result[figure] == pytest.approx(of_files[figure]), figure


def test_labels_in_tiff_are_tiles_that_deflate_compresses(tmp_path):
    label = np.random.default_rng(4).integers(0, 300, (700, 900)).astype(np.uint16)
    write_tiff(tmp_path / "a.tif", label)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        page = file.pages[0]
        assert (
            page.is_tiled and page.compression == tifffile.COMPRESSION.ADOBE_DEFLATE and not file.is_bigtiff
        )
        assert np.array_equal(page.asarray(), label)
