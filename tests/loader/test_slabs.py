"""A slab equals that part of the whole batch, and only the slab is read."""

import itertools
import os

import numpy as np
import pytest

from halofeed.loader import (
    ElasticDeformation,
    FlipLeftRight,
    FlipUpDown,
    Loader,
    Mixture,
    MixUp,
    Mosaic,
    RandomCrop,
    RandomRotation,
    Rotate90,
    ScaleJitter,
)
from halofeed.schemas import shard_file
from halofeed.system.checksum import BLOCK_BYTES
from tests.support.clip_mask_writer import convert_masked_clips
from tests.support.level_rows import others
from tests.support.volume_writer import draw_scans, write_scans

AUGMENT = {
    "none": [],
    "flips and crops": [FlipLeftRight(), RandomCrop(16, 24), FlipUpDown()],
    "turns": [RandomCrop(16, 16), Rotate90()],
    "jitter": [ScaleJitter(16, 24, scales=(0.4, 2.0))],
    "scans": [FlipUpDown(), RandomCrop(6, 8, 8, foreground=0.5), Rotate90()],
    "clips": [FlipLeftRight(), RandomCrop(3, 24, 32, foreground=0.5), FlipUpDown()],
    "bent": [ElasticDeformation(1.0, 4.0)],
    "turned": [RandomRotation(20.0), FlipLeftRight()],
    "mosaic": [FlipUpDown(), Mosaic(18, 26), MixUp(), ScaleJitter(16, 24)],
}
CASES = [
    *itertools.product(["raw", "jpeg"], ["none", "flips and crops", "turns", "jitter", "turned", "mosaic"]),
    *itertools.product(["volumes"], ["none", "scans", "bent", "turned"]),
    *itertools.product(["clips"], ["none", "clips"]),
]
PACKED = [
    *itertools.product(["packed"], ["none", "flips and crops", "turns", "jitter", "turned", "mosaic"]),
    *itertools.product(["yuv420"], ["flips and crops", "turns", "jitter", "mosaic"]),
    *itertools.product(["packed volumes"], ["none", "scans", "bent", "turned"]),
]


@pytest.fixture(scope="module")
def folders(draw, write, tmp_path_factory):
    drawn = draw(20)
    return {
        "raw": write(drawn),
        "jpeg": write(drawn, encoding="jpeg", pad=False),
        "clips": convert_masked_clips(tmp_path_factory.mktemp("clips")),
        "volumes": write_scans(tmp_path_factory.mktemp("volumes") / "1.0.0", draw_scans({"train": 9})),
        "packed": write(drawn, encoding="packed"),
        "yuv420": write(drawn, encoding="yuv420"),
        "packed volumes": write_scans(
            tmp_path_factory.mktemp("packed") / "1.0.0", draw_scans({"train": 9}), encoding="packed"
        ),
    }


def assert_slabs_are_parts(loader, steps, rng):
    frame = loader.row_spec["image"].shape[:-1]
    for step in range(steps):
        whole = loader.batch(step)
        cuts = [np.sort(rng.choice(size + 1, 2, replace=False)).tolist() for size in frame]
        part = loader.of_slab(tuple(map(tuple, cuts))).batch(step)
        assert part.keys() == whole.keys()
        for name, array in part.items():
            expected = whole[name]
            if name in loader.on_grid:
                expected = expected[:, *(slice(*cut) for cut in cuts)]
            assert np.array_equal(array, expected), (name, cuts)


@pytest.mark.parametrize(
    ("kind", "augment"),
    [
        *CASES,
        *others(PACKED, [PACKED[1], PACKED[2], PACKED[5], ("yuv420", "turns"), ("packed volumes", "scans")]),
    ],
)
def test_a_slab_is_that_part_of_the_batch(folders, kind, augment):
    options = {"batch_size": 4, "seed": 3, "augment": AUGMENT[augment]}
    has_label = kind in ("volumes", "packed volumes", "clips")
    include = [] if has_label else ["size"]
    loader = Loader(folders[kind], **options, include=include)
    assert tuple(loader.on_grid) == (("image", "label") if has_label else ("image",))
    assert_slabs_are_parts(loader, 5, np.random.default_rng(5))
    whole = tuple((0, size) for size in loader.row_spec["image"].shape[:-1])
    assert loader.of_slab(whole) is loader


def test_a_slab_of_a_mixture_is_that_part_of_its_batch(folders):
    mixture = Mixture(
        {folders["raw"]: 1, folders["jpeg"]: 2, folders["packed"]: 2, folders["yuv420"]: 1},
        batch_size=6,
        seed=1,
    )
    assert_slabs_are_parts(mixture, 8, np.random.default_rng(2))


@pytest.mark.parametrize("verify", ["first", pytest.param("never", marks=pytest.mark.long)])
def test_a_core_of_eight_reads_an_eighth_and_a_block_a_row_at_most(tmp_path, monkeypatch, verify):
    """The slab of 8-way rows: 512 of 4096 rows of 4096 bytes, of the label too."""
    shape = (4, 4096, 512)
    folder = write_scans(tmp_path / "1.0.0", draw_scans({"train": 2}, shape=shape), shards=1)
    monkeypatch.setattr(shard_file, "map_file", lambda descriptor, size: None)
    read = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *arguments: read.append(preadv(*arguments)) or read[-1])
    loader = Loader(folder, batch_size=2, training=False, verify=verify)
    slab = loader.of_slab(((0, 4), (1024, 1536), (0, 512)))
    loader.of_slab(((0, 1), (0, 1), (0, 1))).batch(0)  # opens the shard
    read.clear()
    batch = slab.batch(0)
    put_out = sum(batch[name].nbytes for name in loader.on_grid)
    specs = [loader.spec[name] for name in loader.on_grid]
    assert put_out * 8 == sum(spec.dtype.itemsize * np.prod(spec.shape) for spec in specs)
    # Of the rows one after the other in a plane, and of their blocks where these are checked.
    runs = 2 * 4 * len(loader.on_grid)
    allowed = put_out + 2 * 4096 + (runs * BLOCK_BYTES if verify == "first" else 0)
    assert sum(read) <= allowed, (sum(read), put_out)


def test_a_slab_shares_what_its_loader_has_read(folders, monkeypatch):
    loader = Loader(next(iter(folders.values())), batch_size=4, cache="memory")
    whole = loader.batch(0)
    monkeypatch.setattr(Loader, "__init__", lambda *arguments, **options: pytest.fail("another loader"))
    part = loader.of_slab(((0, 2), *((0, size) for size in whole["image"].shape[2:-1])))
    assert np.array_equal(part.batch(0)["image"], whole["image"][:, :2])
