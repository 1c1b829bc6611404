"""Data sets of tiles with any number of bands: the loader's batches, and each command that shows or checks them."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from halofeed import Partition
from halofeed import loader as augmentations
from halofeed.errors import UsageError
from halofeed.inspection.batch_png import write_batch
from halofeed.inspection.describe_dataset import describe_dataset
from halofeed.inspection.describe_record import describe_record
from halofeed.inspection.export_data import export_data
from halofeed.inspection.html.report import write_report
from halofeed.inspection.thumbnails import shown_bands
from halofeed.inspection.training_batches import TrainingBatches
from halofeed.inspection.verify import verify
from halofeed.loader import Loader
from halofeed.prep.geometry.picture_tiles import plan_picture_tiles
from halofeed.trainer.mesh import make_mesh
from tests.support.conversions import run_convert
from tests.support.parser_check import check_parser

SETS = [(1, "uint8"), (5, "uint8"), (8, "uint16"), (13, "uint16"), (3, "uint16"), (2, "uint8")]
HEIGHT, WIDTH, TILE, OVERLAP = 100, 150, 64, 8


def pixels_of(bands: int, dtype: str) -> np.ndarray:
    drawn = np.random.default_rng(bands).integers(0, np.iinfo(dtype).max, (HEIGHT, WIDTH, bands))
    return drawn.astype(dtype)


@pytest.fixture(scope="module", params=SETS, ids=lambda one: f"{one[0]}-{one[1]}")
def converted(request, tmp_path_factory) -> tuple[Path, int, str]:
    bands, dtype = request.param
    root = tmp_path_factory.mktemp("bands")
    (root / "source").mkdir()
    pixels = pixels_of(bands, dtype)
    tifffile.imwrite(
        root / "source/a.tif",
        pixels if bands > 1 else pixels[..., 0],
        photometric="minisblack",
        planarconfig="contig" if bands > 1 else None,
        metadata=None,
    )
    rows = ["image,xmin,ymin,xmax,ymax,label", "a.tif,10,10,50,40,ship", "a.tif,90,50,140,95,ship"]
    (root / "source/boxes.csv").write_text("\n".join(rows) + "\n")
    done = run_convert(
        root / "source",
        root / "out",
        layout="csv",
        fit="tiles",
        height=TILE,
        width=TILE,
        tile_overlap=(OVERLAP, OVERLAP),
        channels=bands,
        dtype=dtype,
        encoding="raw",
    )
    return Path(done.folder), bands, dtype


def test_batches_have_the_bands_of_the_file(converted):
    folder, bands, dtype = converted
    tiles = plan_picture_tiles((HEIGHT, WIDTH), (TILE, TILE), (OVERLAP, OVERLAP))
    loader = Loader(folder, batch_size=3, training=False, include=["tile", "tile_origin"])
    whole, seen = pixels_of(bands, dtype), set()
    for step in range(loader.steps_per_epoch):
        batch = loader.batch(step)
        for row in np.flatnonzero(batch["valid"]):
            number = int(batch["tile"][row])
            top, left = tiles.tile(number).plan.origin
            assert batch["tile_origin"][row].tolist() == [top, left]
            np.testing.assert_array_equal(batch["image"][row], whole[top : top + TILE, left : left + TILE])
            seen.add(number)
    assert seen == set(range(len(tiles)))


@pytest.mark.parametrize(
    "name", ["FlipLeftRight", "FlipUpDown", "Rotate90", "RandomCrop", "ScaleJitter", "Mosaic", "MixUp"]
)
def test_augmentations_take_any_number_of_bands(converted, name):
    folder, bands, dtype = converted
    sized = {"RandomCrop": (48, 48), "ScaleJitter": (64, 64), "Mosaic": (64, 64)}
    augmentation = getattr(augmentations, name)(*sized.get(name, ()))
    loader = Loader(folder, batch_size=2, augment=[augmentation])
    batch = loader.batch(0)
    assert batch["image"].shape[-1] == bands and batch["image"].dtype == dtype


def test_every_command_takes_any_number_of_bands(converted, tmp_path):
    folder, bands, _ = converted
    assert verify(folder).ok
    assert "6 tiles of 1 picture" in describe_dataset(folder)
    assert describe_record(folder, "train:0")
    page = Path(write_report(folder, output=tmp_path / "report.html")).read_text()
    assert (f"of {bands}" in page and "shown here with" in page) == (bands not in (1, 3, 4))
    write_batch(folder, tmp_path / "batch.png", TrainingBatches(batch_size=2))
    assert np.asarray(Image.open(tmp_path / "batch.png")).std() > 10


def test_the_printed_program_reads_the_records(converted):
    check_parser(converted[0])


def test_export_takes_what_a_png_holds(converted, tmp_path):
    folder, bands, _ = converted
    if bands in (1, 3, 4):
        export_data(folder, "coco", tmp_path / "out")
    else:
        with pytest.raises(UsageError, match=rf"{bands} channels.*--bands 1,2,3"):
            export_data(folder, "coco", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_tiles_are_placed_on_a_mesh(converted):
    folder, bands, _ = converted
    partition = Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]})
    mesh = make_mesh(2)
    loader = Loader(folder, batch_size=4, shuffle=False, num_epochs=1)
    expected = loader.batch(0)
    (placed, *_) = loader.on_mesh(mesh, partition)
    np.testing.assert_array_equal(np.asarray(placed["image"]), expected["image"])
    assert placed["image"].addressable_shards[0].data.shape == (1, TILE // 2, TILE, bands)


def test_pictures_show_the_first_three_bands_scaled_to_their_values():
    pixels = np.arange(2 * 2 * 5, dtype=np.uint16).reshape(2, 2, 5)
    shown = shown_bands(pixels)
    assert shown.shape == (2, 2, 3) and shown.dtype == np.uint8
    assert (shown.min(), shown.max()) == (0, 255)
    assert shown_bands(pixels[..., :2]).shape == (2, 2, 1)
    assert shown_bands(pixels[..., :3]) is not None
