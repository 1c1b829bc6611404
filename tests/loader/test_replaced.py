"""A loader never gives bytes of another version than the one it was made of."""

import itertools
import os
import re
import shutil

import numpy as np
import pytest

from halofeed.errors import CorruptFileError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.loader.batch import join_id
from halofeed.schemas.file_layout import index_file
from halofeed.schemas.shard_file import close_idle
from halofeed.schemas.tfrecord import read_records
from tests.support.batches import flip
from tests.support.level_rows import others

SHARDS = 300
"""More than any loader keeps open."""
VERIFY = ("first", "always", "never")


def versions(draw, write, count, shards, **options):
    """Folders of two versions of a data set: the same ids and sizes, other pixels; and the pixels of each by id."""
    folders, pixels = [], []
    for seed in (1, 2):
        examples = draw(count, vary=False, task="classification", seed=seed)
        folders.append(write(examples, shards=shards, **options))
        pixels.append({example["id"]: example["pixels"] for example in examples})
    assert pixels[0].keys() == pixels[1].keys()
    assert not any(np.array_equal(pixels[0][key], pixels[1][key]) for key in pixels[0])
    return *folders, *pixels


@pytest.fixture(scope="module")
def many(draw, write):
    return versions(draw, write, SHARDS, SHARDS)


@pytest.fixture
def copies(many, tmp_path):
    """Fresh copies of both, and the pixels of the first."""
    old, new = (shutil.copytree(folder, tmp_path / name) for folder, name in zip(many, "ab", strict=False))
    return old, new, many[2]


def outcomes(loader, pixels):
    """How many batches came, each of the first version's bytes, and the errors in place of the others."""
    came, errors = 0, []
    for step in range(loader.steps_per_epoch):
        try:
            batch = loader.batch(step)
        except CorruptFileError as error:
            errors.append(str(error))
            continue
        came += 1
        for row in np.flatnonzero(batch["valid"]).tolist():
            assert np.array_equal(batch["image"][row], pixels[int(join_id(batch["id"][row]))])
    return came, errors


def replace_files(old, new):
    for path in sorted(new.iterdir()):
        os.replace(path, old / path.name)


def exchange_folders(old, new):
    old.rename(old.with_name("moved"))
    new.rename(old)


def write_in_place(old, new):
    for path in sorted(new.iterdir()):
        with (old / path.name).open("r+b") as stream:
            stream.truncate(0)
            stream.write(path.read_bytes())


CHANGES = {replace_files: "first", exchange_folders: "never", write_in_place: "always"}


@pytest.mark.parametrize(("change", "verify"), others(itertools.product(CHANGES, VERIFY), CHANGES.items()))
def test_a_version_that_takes_the_place_of_the_loaders_is_never_read(copies, change, verify, many):
    old, new, pixels = copies
    loader = Loader(old, batch_size=10, seed=3, verify=verify)
    assert outcomes(loader, pixels) == (30, [])
    change(old, new)
    came, errors = outcomes(loader, pixels)
    assert came + len(errors) == 30 and errors
    for error in errors:
        assert f"{old}/tiny-train.tfrecord-" in error and "was replaced or changed" in error
        assert "make a new Loader" in error and "halofeed convert" in error
    assert outcomes(Loader(old, batch_size=10, verify=verify), many[3]) == (30, [])


@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("read_before", [False, True])
def test_shards_of_equal_size_that_were_exchanged_are_refused(draw, write, verify, read_before):
    folder, _, pixels, _ = versions(draw, write, 12, 3)
    first, second = sorted(folder.glob("*-of-00003"))[:2]
    assert first.stat().st_size == second.stat().st_size
    loader = Loader(folder, batch_size=1, training=False, verify=verify)
    if read_before:
        assert outcomes(loader, pixels) == (12, [])
        loader = Loader(folder, batch_size=1, training=False, verify=verify)
    for source, target in ((first, "x"), (second, first), (folder / "x", second)):
        os.replace(source, folder / target)
    came, errors = outcomes(loader, pixels)
    assert (came, len(errors)) == (4, 8)
    assert all(str(first) in error or str(second) in error for error in errors)
    assert outcomes(Loader(folder, batch_size=1, training=False, verify=verify), pixels)[0] == 4


@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("files", [[str], [index_file], [str, index_file]], ids=["shard", "index", "both"])
@pytest.mark.parametrize("augment", [(), (FlipLeftRight(0.0), RandomCrop(24, 32))], ids=["whole", "drawn"])
def test_a_stale_copy_put_back_over_a_shard_is_refused(draw, write, tmp_path, verify, files, augment):
    old, new, *_ = versions(draw, write, 9, 3)
    name = "tiny-train.tfrecord-00001-of-00003"
    for of in files:
        shutil.copyfile(old / of(name), new / of(name))
    loader = Loader(new, batch_size=9, training=False, verify=verify, augment=augment)
    with pytest.raises(CorruptFileError, match=rf"({name}|_index).*replaced or changed.*halofeed convert"):
        loader.batch(0)


@pytest.mark.parametrize("verify", VERIFY)
def test_a_stale_copy_is_refused_in_a_loader_that_has_read_the_right_one(draw, write, verify):
    old, new, pixels, _ = versions(draw, write, 9, 1)
    loader = Loader(old, batch_size=3, training=False, verify=verify)
    assert outcomes(loader, pixels) == (3, [])
    name = "tiny-train.tfrecord-00000-of-00001"
    with (old / name).open("r+b") as stream:  # the same file, so that the loader has it open
        stream.write((new / name).read_bytes())
    came, errors = outcomes(loader, pixels)
    assert (came, len(errors)) == (0, 3)
    assert all("checksum that it states is not the index's" in error for error in errors)


def test_what_was_verified_of_one_file_does_not_hold_for_the_one_in_its_place(draw, write):
    folder, _, pixels, _ = versions(draw, write, 4, 1)
    path = next(folder.glob("*-of-00001"))
    loader = Loader(folder, batch_size=4, training=False, verify="first")
    assert outcomes(loader, pixels) == (1, [])
    (offset, data), *_ = read_records(path.read_bytes(), "")
    restored = shutil.copyfile(path, path.with_name("restored"))
    flip(restored, offset + 12 + len(data) // 2)
    os.replace(restored, path)
    close_idle()  # as if other shards had been read meanwhile
    assert re.search("checksum .*is wrong", outcomes(loader, pixels)[1][0])
