"""Segmentation data sets of volumes and pictures load as they were written: NumPy, tf.data and on a mesh."""

import subprocess
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader import FlipDepth, FlipLeftRight, FlipUpDown, Loader, RandomCrop, Rotate90
from halofeed.loader.batch import join_id
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from tests.support.batches import same
from tests.support.volume_writer import draw_scans, write_scans

ORIGIN = ["spacing_mm", "affine", "source_affine", "source_shape", "extent", "tile", "tile_origin"]
AUGMENT = [FlipDepth(), FlipLeftRight(), FlipUpDown(), RandomCrop(8, 8, 8, foreground=0.5), Rotate90()]


@pytest.fixture(scope="module")
def scans():
    return draw_scans({"train": 11}, shape=(8, 16, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, scans):
    return write_scans(tmp_path_factory.mktemp("scans") / "1.0.0", scans)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32", "bfloat16"])
@pytest.mark.parametrize("label_dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("encoding", ["raw", "packed"])
def test_volumes_come_as_they_were_written(tmp_path, encoding, dtype, label_dtype, channels):
    scans = draw_scans({"train": 5}, shape=(3, 4, 5), channels=channels, dtype=dtype, label_dtype=label_dtype)
    folder = write_scans(tmp_path / "1.0.0", scans, dtype=dtype, pad_value=(7,), encoding=encoding)
    loader = Loader(folder, batch_size=4, training=False, include=[*ORIGIN, "source", "key"])
    by_id = {scan.id: scan for scan in scans}
    seen = 0
    for batch in loader.batches():
        assert list(batch) == list(loader.spec)
        for name, array in batch.items():
            assert array.shape == loader.spec[name].shape and array.dtype == loader.spec[name].dtype
        expected = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        assert batch["image"].dtype == expected and batch["label"].dtype == label_dtype
        assert batch["labelled"].dtype == bool
        for row in np.flatnonzero(batch["valid"]):
            scan, seen = by_id[int(join_id(batch["id"][row]))], seen + 1
            assert np.array_equal(batch["image"][row].view(scan.image.dtype), scan.image)
            assert np.array_equal(batch["label"][row], scan.label)
            assert batch["labelled"][row] == scan.labelled
            assert np.array_equal(batch["affine"][row], scan.affine)
            assert np.array_equal(batch["extent"][row], scan.extent)
            assert np.array_equal(batch["spacing_mm"][row], scan.spacing_mm)
            assert batch["key"][row] == scan.key
    assert seen == 5
    for row in np.flatnonzero(~batch["valid"]):
        assert (batch["image"][row] == 7).all() and join_id(batch["id"][row]) == -1
        for name in ("label", "labelled", *ORIGIN):
            assert not batch[name][row].any()


PICTURES = [("raw", True, "uint8"), ("raw", True, "float32"), ("png", True, "uint16")]
PICTURES += [("packed", True, "uint8"), ("packed", True, "float32")]
PICTURES += [("png", False, "uint8"), ("jpeg", False, "uint8"), ("jpeg", True, "uint8")]


@pytest.mark.parametrize(("encoding", "pad", "dtype"), PICTURES)
@pytest.mark.parametrize("label_dtype", ["uint8", "uint16"])
def test_pictures_come_as_they_were_written(tmp_path, encoding, pad, dtype, label_dtype):
    scans = draw_scans({"train": 5}, shape=(9, 12), channels=3, dtype=dtype, label_dtype=label_dtype)
    folder = write_scans(tmp_path / "1.0.0", scans, encoding=encoding, pad=pad, pad_value=(0, 0, 0))
    batch = Loader(folder, batch_size=8, training=False, include=["size"]).batch(0)
    assert batch["image"].shape == (8, 9, 12, 3) and batch["label"].shape == (8, 9, 12)
    by_id = {scan.id: scan for scan in scans}
    for row in range(5):
        scan = by_id[int(join_id(batch["id"][row]))]
        assert batch["label"].dtype == label_dtype and np.array_equal(batch["label"][row], scan.label)
        assert batch["labelled"][row] == scan.labelled
        assert batch["size"][row].tolist() == scan.extent[1].tolist()
        if encoding != "jpeg":
            assert np.array_equal(batch["image"][row], scan.image)
    assert not batch["label"][5:].any() and not batch["image"][5:].any() and not batch["labelled"][5:].any()


def test_size_is_of_pictures_and_extent_of_volumes(folder, tmp_path):
    with pytest.raises(UsageError, match=r"include 'size': .*affine, epoch, extent, key"):
        Loader(folder, batch_size=1, include=["size"])
    pictures = write_scans(tmp_path / "1.0.0", draw_scans({"train": 2}, shape=(9, 12)))
    with pytest.raises(UsageError, match=r"include 'extent': .*size"):
        Loader(pictures, batch_size=1, include=["extent"])


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float32", "bfloat16"])
def test_the_tf_data_stream_is_the_batches(tmp_path, dtype):
    import tensorflow as tf

    scans = draw_scans({"train": 5}, shape=(8, 16, 16), dtype=dtype)
    folder = write_scans(tmp_path / "1.0.0", scans, dtype=dtype)
    loader = Loader(folder, batch_size=2, seed=1, augment=AUGMENT, include=ORIGIN)
    spec = loader.dataset(repeat=True).element_spec
    assert spec["image"].dtype == getattr(tf, dtype) and spec["image"].shape == (2, 8, 8, 8, 1)
    assert spec["label"].dtype == tf.uint8 and spec["label"].shape == (2, 8, 8, 8)
    for step, element in zip(range(3, 7), loader.dataset(3, repeat=True).as_numpy_iterator(), strict=False):
        same(element, loader.batch(step))


LABELS_TOO = [[1, 1, 2, 1, 1], [1, 1, 1, 2, 1], [1, 4, 1, 1, 1], [1, 2, 2, 1, 1], [1, 1, 2, 2, 1]]
LABELS_TOO += [[1, 8, 1, 1, 1], [1, 1, 8, 1, 1], [1, 2, 2, 2, 1]]
SPLITS = [(dims, dims[:-1]) for dims in LABELS_TOO] + [([1, 2, 1, 1, 1], None), ([1, 2, 4, 1, 1], None)]


@pytest.mark.parametrize(("image", "label"), SPLITS)
@pytest.mark.parametrize("dtype", ["int16", "bfloat16"])
def test_the_slabs_of_volumes_together_are_the_batch(tmp_path, dtype, image, label):
    scans = draw_scans({"train": 5}, shape=(8, 16, 16), dtype=dtype)
    folder = write_scans(tmp_path / "1.0.0", scans, dtype=dtype)
    loader = Loader(folder, batch_size=8, seed=2, augment=AUGMENT, include=ORIGIN)
    cores = int(np.prod(image))
    partition = Partition(cores_per_replica=cores, dims={"image": image, "label": label})
    for step, placed in zip(range(2), loader.on_mesh(make_mesh(cores), partition), strict=False):
        batch = loader.batch(step)
        found = {name: np.asarray(array) for name, array in placed.items()}
        same(found, batch)
        for name, dims in (("image", image), ("label", label)):
            parts = dims or [1] * (batch[name].ndim)
            expected = np.array(batch[name].shape) // np.array([8 // cores, *parts[1:]])
            for shard in placed[name].addressable_shards:
                assert shard.data.shape == tuple(expected)
                assert np.asarray(shard.data).tobytes() == batch[name][shard.index].tobytes()


def test_a_label_of_another_size_than_its_picture_is_refused(tmp_path):
    right, wrong = draw_scans({"train": 2}, shape=(9, 12), channels=3, dtype="uint8")
    wrong = replace(wrong, label=wrong.label[:, :-1])
    folder = write_scans(tmp_path / "1.0.0", [right, wrong], encoding="png")
    Loader(folder, batch_size=1, where=[right.id]).batch(0)
    with pytest.raises(CorruptFileError, match=r"at byte .*label: expected uint8 \(9, 12, 1\).*\(9, 11, 1\)"):
        Loader(folder, batch_size=2).batch(0)


@pytest.mark.parametrize(("low", "high"), [(0, 9), (-1, 8), (5, 4)])
def test_an_extent_outside_the_volume_is_refused(tmp_path, scans, low, high):
    extent = np.array([[low, 0, 0], [high, 16, 16]])
    folder = write_scans(tmp_path / "1.0.0", [replace(scans[0], extent=extent)])
    Loader(folder, batch_size=1).batch(0)
    with pytest.raises(CorruptFileError, match=r"record at byte 0.*does not fit"):
        Loader(folder, batch_size=1, augment=[RandomCrop(2, 2, 2)]).batch(0)


def test_a_volume_wholly_of_padding_is_cropped_anywhere(tmp_path, scans):
    folder = write_scans(tmp_path / "1.0.0", [replace(scans[0], extent=np.zeros((2, 3), int))])
    batch = Loader(folder, batch_size=3, augment=[RandomCrop(2, 2, 2)], include=["extent"]).batch(0)
    assert batch["valid"].all() and not (batch["extent"][:, 1] - batch["extent"][:, 0]).any()


def test_bfloat16_without_ml_dtypes_is_refused_with_the_cure(tmp_path):
    folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 1}, dtype="bfloat16"), dtype="bfloat16")
    code = "import sys; sys.modules['ml_dtypes'] = None; from halofeed.loader import Loader; "
    code += f"Loader({str(folder)!r}, batch_size=1)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UsageError: image: NumPy has no bfloat16 of its own; install the package ml_dtypes" in run.stderr
