"""Batches of color planes in every stream: meshes, tf.data, hosts, mixtures, caches, stores, damage and training."""

import itertools
import shutil
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest

from halofeed.errors import CorruptFileError, PartitionError, UsageError
from halofeed.loader import FlipLeftRight, FlipUpDown, Loader, Mixture, Mosaic, RandomCrop
from halofeed.loader.device import Brightness, augment_on_device, to_rgb
from halofeed.loader.planes import with_colors
from halofeed.schemas.index import ShardIndex
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.planes_on_device import PlanesOnDevice, colored_on_device
from tests.support.batches import flip
from tests.support.conversions import run_convert
from tests.support.faulty_server import serving

SIZE = (48, 64)
AUGMENT = [FlipLeftRight(0.5), FlipUpDown(0.5), RandomCrop(32, 48, step=2)]


def draw_pictures(folder: Path, count: int, size=SIZE, label=False) -> Path:
    generator = np.random.default_rng(4)
    for number in range(count):
        small = generator.integers(0, 256, (6, 9, 3)).astype(np.uint8)
        path = folder / f"{'images' if label else 'train'}/{'' if label else 'hat/'}{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), cv2.resize(small, size[::-1]))
        if label:
            path = folder / f"labels/{number:02d}.png"
            path.parent.mkdir(exist_ok=True)
            assert cv2.imwrite(str(path), (np.indices(size).sum(axis=0) // 20 % 3).astype(np.uint8))
    return folder


def convert(source: Path, out: Path, **options) -> Path:
    given = {"encoding": "yuv420", "height": SIZE[0], "width": SIZE[1], "shards": 2, **options}
    return Path(run_convert(source, out, **given).folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("planes")
    return convert(draw_pictures(root / "in", 13, label=True), root / "out", layout="pairs")


def pair(folder, **options):
    """Loaders of planes and of RGB pixels with the same options."""
    given = {"batch_size": 4, "seed": 2, **options}
    return Loader(folder, color="planes", **given), Loader(folder, **given)


def assert_shows(batch, expected):
    """The batch of planes shows the pictures of a batch of RGB pixels, and has its other arrays."""
    shown = with_colors({name: np.asarray(array) for name, array in batch.items()}, "image")
    assert shown.keys() == expected.keys()
    for name, array in expected.items():
        assert (shown[name] == array).all(), name


# Meshes and tf.data ---------------------------------------------------------------------------------------------

SPLITS = ([1, 1, 1, 1], [1, 4, 1, 1], [1, 2, 2, 1], [1, 1, 4, 1])


@pytest.mark.parametrize("dims", SPLITS)
@pytest.mark.parametrize("augment", [[], AUGMENT], ids=["complete", "windows"])
def test_each_core_has_the_chroma_of_its_luma(folder, dims, augment):
    planes, rgb = pair(folder, augment=augment)
    cores = int(np.prod(dims))
    mesh = make_mesh(cores, jax.devices()[: 2 * cores])
    partition = Partition(cores_per_replica=cores, dims={"image": dims, "label": dims[:3]})
    color = jax.jit(to_rgb)
    for step, batch in zip(range(5), planes.on_mesh(mesh, partition), strict=False):
        assert_shows(batch, rgb.batch(step))
        assert batch["chroma"].sharding == batch["luma"].sharding
        image = color(batch["luma"], batch["chroma"])
        assert image.sharding.is_equivalent_to(batch["luma"].sharding, 4)
        assert (np.asarray(image) == rgb.batch(step)["image"]).all()
    # Cores exchange nothing.
    program = color.lower(batch["luma"], batch["chroma"]).compile().as_text()
    assert not [word for word in ("all-gather", "all-to-all", "collective", "all-reduce") if word in program]


def test_a_core_with_an_odd_number_of_rows_is_refused(folder):
    planes, _ = pair(folder, augment=[RandomCrop(36, 48, step=2)])
    partition = Partition(cores_per_replica=4, dims={"image": [1, 4, 1, 1]})
    with pytest.raises(PartitionError, match=r"chroma.* does not divide by 4; resize or pad it to 16 or 20"):
        next(planes.on_mesh(make_mesh(4, jax.devices()[:4]), partition))


@pytest.mark.long
def test_tensorflow_gets_the_planes_and_keras_a_dictionary(folder):
    tf = pytest.importorskip("tensorflow")
    planes, rgb = pair(folder, augment=AUGMENT)
    for step, batch in zip(range(4), planes.dataset(repeat=True), strict=False):
        assert_shows({name: tensor.numpy() for name, tensor in batch.items()}, rgb.batch(step))
    pictures, label, *_ = next(iter(planes.dataset(as_supervised=True)))
    image = tf.function(to_rgb)(pictures["luma"], pictures["chroma"])
    assert (image.numpy() == rgb.batch(0)["image"]).all()
    assert (label.numpy() == rgb.batch(0)["label"]).all()


def test_device_augmentations_name_what_makes_an_image_of_planes(folder):
    batch = pair(folder, include=["epoch"])[0].batch(0)
    with pytest.raises(UsageError, match=r"to_rgb\(batch\['luma'\], batch\['chroma'\]\)"):
        augment_on_device(batch, [Brightness()], seed=1)


def test_a_notebook_shows_the_colors(folder):
    planes, rgb = pair(folder)
    assert (planes.picture(1) == rgb.picture(1)).all()


# Hosts, mixtures, caches, stores --------------------------------------------------------------------------------


def test_hosts_and_resumed_streams_have_the_same_planes(folder):
    planes, rgb = pair(folder, augment=AUGMENT, num_epochs=2)
    whole = list(planes.batches())
    assert len(whole) == 7
    hosts = [pair(folder, augment=AUGMENT, num_epochs=2, shard_index=at, shard_count=2)[0] for at in (0, 1)]
    for step, batch in enumerate(whole):
        assert_shows(batch, rgb.batch(step))  # the last one is padded
        parts = [host.batch(step) for host in hosts]
        for name, array in batch.items():
            assert (np.concatenate([part[name] for part in parts]) == array).all()
    resumed = pair(folder, augment=AUGMENT, num_epochs=2)[0]
    (first, *_) = resumed.batches(resumed.restore(planes.state(5)))
    assert all((first[name] == array).all() for name, array in whole[5].items())
    with pytest.raises(UsageError, match="color: the state has 'planes'"):
        rgb.restore(planes.state(5))


def test_a_mixture_has_planes_too(folder, tmp_path):
    other = tmp_path / "other/1.0.0"
    shutil.copytree(folder, other)
    options = {"batch_size": 6, "seed": 1, "augment": AUGMENT}
    planes, rgb = (Mixture({folder: 1, other: 2}, color=color, **options) for color in ("planes", "rgb"))
    for step in range(3):
        assert_shows(planes.batch(step), rgb.batch(step))


@pytest.mark.parametrize("cache", [None, "memory", "disk"])
@pytest.mark.parametrize("augment", [[], AUGMENT], ids=["complete", "windows"])
def test_planes_come_from_a_server_and_from_each_cache(folder, tmp_path, cache, augment):
    rgb = pair(folder, augment=augment)[1]
    with serving(folder) as server:
        place = f"disk:{tmp_path}" if cache == "disk" else cache
        planes = Loader(server.address, color="planes", batch_size=4, seed=2, augment=augment, cache=place)
        for step in range(8):
            assert_shows(planes.batch(step), rgb.batch(step))


# Damage ---------------------------------------------------------------------------------------------------------


def values_of(folder):
    """(shard, start, stop) of each picture's planes."""
    manifest = read_manifest(folder)
    size = manifest.field("image").stored_bytes
    for shard in manifest.splits["train"].shards:
        starts = ShardIndex.from_bytes((folder / shard.index).read_bytes(), shard.index).raw_starts[
            "image/encoded"
        ]
        yield from ((folder / shard.file, int(start), int(start) + size) for start in starts)


@pytest.mark.parametrize("color", ["planes", "rgb"])
@pytest.mark.parametrize("place", ["luma", "chroma"])
@pytest.mark.parametrize("augment", [[], [FlipLeftRight(1.0)]], ids=["complete", "mirrored"])
def test_a_flipped_bit_of_either_plane_is_found_or_its_record_is_skipped(
    folder, tmp_path, color, place, augment
):
    damaged = tmp_path / "1.0.0"
    shutil.copytree(folder, damaged)
    shard, start, stop = next(itertools.islice(values_of(damaged), 3, None))
    flip(shard, start + 5 if place == "luma" else stop - 5)
    options = {"batch_size": 13, "seed": 2, "color": color, "num_epochs": 1, "augment": augment}
    with pytest.raises(CorruptFileError, match="the checksum of block 0 of image/encoded is wrong"):
        Loader(damaged, **options).batch(0)
    skipping = Loader(damaged, on_corrupt="skip", **options)
    batch = skipping.batch(0)
    assert len(skipping.skipped) == 1 and batch["valid"].all()


# Tiles and padding ----------------------------------------------------------------------------------------------


def test_mirrored_windows_of_padded_pictures_are_refused_and_others_are_right(tmp_path):
    # Pictures of 41 rows in tiles and in frames of 48: a mirrored one would begin at an odd row.
    source = draw_pictures(tmp_path / "in", 3, size=(41, 90))
    padded = {"height": None, "width": None, "resize": "keep-aspect", "pad": True}
    padded |= {"min_dimension": 40, "max_dimension": 92}
    for name, options in (("tiles", {"fit": "tiles"}), ("pad", padded)):
        made = convert(source, tmp_path / name, layout="folders", **options)
        planes, rgb = pair(made)
        for step in range(3):
            assert_shows(planes.batch(step), rgb.batch(step))
        with pytest.raises(UsageError, match="were padded"):
            pair(made, augment=[FlipUpDown(1.0)])


def test_tiles_that_fill_their_frames_are_mirrored(tmp_path):
    source = draw_pictures(tmp_path / "in", 3, size=(96, 128))
    made = convert(source, tmp_path / "out", layout="folders", fit="tiles")
    planes, rgb = pair(made, augment=AUGMENT)
    for step in range(6):
        assert_shows(planes.batch(step), rgb.batch(step))


# Training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("augment", "dims", "uses"),
    [
        (AUGMENT, [1, 2, 1, 1], True),
        ([], [1, 1, 2, 1], True),
        ([Mosaic(40, 40)], [1, 2, 1, 1], False),
        ([RandomCrop(30, 40, step=2)], [1, 2, 1, 1], False),
    ],
    ids=["windows", "complete", "resampled", "odd parts"],
)
def test_training_copies_planes_where_the_pixels_are_the_same(folder, augment, dims, uses):
    options = {"path": folder, "batch_size": 4, "seed": 2, "augment": augment}
    loader, partition = Loader(**options), Partition(cores_per_replica=2, dims={"image": dims})
    source = colored_on_device(loader, options, partition)
    assert isinstance(source, PlanesOnDevice) == uses
    mesh = make_mesh(2, jax.devices()[:4])
    for ours, expected, _ in zip(
        source.on_mesh(mesh, partition, 2), loader.on_mesh(mesh, partition, 2), range(3), strict=False
    ):
        assert ours.keys() == expected.keys()
        for name, array in expected.items():
            assert (np.asarray(ours[name]) == np.asarray(array)).all(), name
            assert ours[name].sharding.is_equivalent_to(array.sharding, array.ndim)
    assert source.restore(loader.state(7)) == loader.restore(source.state(7)) == 7
