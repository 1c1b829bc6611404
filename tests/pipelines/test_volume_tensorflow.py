"""Do TensorFlow and TensorFlow Datasets read converted volumes to the same values?"""

import warnings
from pathlib import Path

import numpy as np
import pytest

from halofeed.loader import Loader
from halofeed.pipelines.convert import Conversion
from halofeed.prep.voxels.phantom import draw, grid_around
from tests.support.conversions import run_convert
from tests.support.parser_check import check_parser
from tests.support.volume_support import save_nifti, stored_volumes, write_table

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")

pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

SHAPE = (20, 36, 44)
OPTIONS = {
    "layout": "csv",
    "task": "segmentation",
    **dict(zip(("depth", "height", "width"), SHAPE, strict=True)),
}
STORES = {"int16": {}, "uint8": {"window": "abdomen"}, "float32": {}, "bfloat16": {}}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    root, rows = tmp_path_factory.mktemp("scans"), []
    for number in range(4):
        grid = grid_around(spacing_mm=(6.0, 3.0, 3.0 + number / 4), turn_degrees=3 * number)
        image, mask = draw(grid)
        save_nifti(root / f"{number}.nii", image, grid.affine)
        save_nifti(root / f"{number}-mask.nii.gz", mask, grid.affine)
        label = f"{number}-mask.nii.gz" if number else ""
        rows.append((number, f"{number}.nii", label, "test" if number == 3 else "train"))
    write_table(root, rows, "id,image,label,split")
    return root


def converted(source: Path, out: Path, store: str) -> Conversion:
    return run_convert(source, out, dtype=store, shards=2, **STORES[store], **OPTIONS)


@pytest.fixture(scope="module", params=STORES)
def done(request, source, tmp_path_factory) -> Conversion:
    return converted(source, tmp_path_factory.mktemp("out"), request.param)


@pytest.fixture
def store(done) -> str:
    return done.manifest.recipe["dtype"]


def test_tfds_reads_a_set_of_volumes(done, store):
    ours = {record.key: record for record in stored_volumes(done)}
    builder = tfds.builder_from_directory(done.folder)
    counts = {name: split.num_examples for name, split in builder.info.splits.items()}
    assert counts == {"test": 1, "train": 2, "unlabeled": 1}
    for split in counts:
        for read in tfds.as_numpy(builder.as_dataset(split=split)):
            record = ours.pop(read["image/key/source"].decode())
            image = np.asarray(read["image/encoded"])
            assert image.dtype.name == store
            assert np.array_equal(image.astype(np.float32), record.image.astype(np.float32))
            assert np.array_equal(read["image/label"], record.label)
            assert np.array_equal(read["image/affine"], np.float32(record.grid.affine))
            assert np.array_equal(read["image/spacing_mm"], np.float32(record.spacing_mm))
            assert np.array_equal(np.asarray(read["image/extent"]).reshape(2, 3), record.extent)
    assert not ours


def test_the_printed_parser_gives_the_loaders_values(done):
    check_parser(done.folder)


def test_a_padded_batch_of_a_windowed_set_loads(source, tmp_path):
    done = run_convert(source, tmp_path, window="abdomen", pad_value=(-1024,), **OPTIONS)
    (image,) = (field for field in done.manifest.fields if field.name == "image")
    assert image.fill == (0,), "as stored, not in HU"
    batches = list(Loader(done.folder, split="train", batch_size=4, training=False).batches())
    assert [batch["valid"].tolist() for batch in batches] == [[True, True, False, False]]
