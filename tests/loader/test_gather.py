"""Records are found by the index, errors name the damaged record, and buffers are recycled."""

import re
import struct

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, ManifestError
from halofeed.loader import Loader
from halofeed.loader.batch import join_id
from halofeed.schemas.file_layout import index_file
from halofeed.schemas.tfrecord import read_records
from tests.support.batches import flip


@pytest.fixture(params=["raw", "packed", "yuv420"])
def folder(draw, write, request):
    return write(draw(7), shards=3, encoding=request.param)


def copies(folder, **options):
    return Loader(folder, batch_size=7, training=False, **options)


def shards_of(folder):
    return sorted(folder.glob("*.tfrecord-*-of-?????"))


@pytest.fixture
def damaged(folder):
    """The data set with one bit of the second shard's second record turned, in its picture; and its id."""
    path = shards_of(folder)[1]
    offset, record = list(read_records(path.read_bytes(), ""))[1]
    flip(path, offset + 12 + len(record) // 2)
    return folder, path, offset


def test_damage_is_named_with_file_offset_id_and_cure_unless_nothing_is_verified(draw, damaged):
    folder, path, offset = damaged
    identity = draw(7)[4]["id"]
    expected = (
        rf"{re.escape(str(path))}: record at byte {offset:,}.*checksum .*is wrong.*id {identity}.*convert"
    )
    for verify in ("first", "always"):
        loader = copies(folder, verify=verify)
        for _ in range(2):
            with pytest.raises(CorruptFileError, match=expected):
                loader.batch(0)
        # The other records can still be read.
        assert Loader(folder, batch_size=1, training=False, verify=verify).batch(0)["valid"].all()
    assert copies(folder, verify="never").batch(0)["valid"].all()


def test_first_looks_once_and_always_every_time(folder):
    path = shards_of(folder)[0]
    first, always = copies(folder, verify="first"), copies(folder, verify="always")
    first.batch(0), always.batch(0)
    offset, record = next(iter(read_records(path.read_bytes(), "")))
    flip(path, offset + 12 + len(record) // 2)
    assert first.batch(0)["valid"].all()
    with pytest.raises(CorruptFileError, match="checksum"):
        always.batch(0)


def test_a_record_whose_length_is_not_the_indexs_is_refused_even_unverified(folder):
    path = shards_of(folder)[0]
    with path.open("r+b") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        file.seek(0)
        file.write(struct.pack("<Q", length + 1))
    with pytest.raises(CorruptFileError, match=r"record at byte 0 \(id .*its length is not"):
        copies(folder, verify="never").batch(0)


@pytest.mark.parametrize("of", [str, index_file])
def test_a_cut_off_file_is_named_with_both_sizes(folder, of):
    path = shards_of(folder)[0]
    path = path.with_name(of(path.name))
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptFileError, match=rf"expected {len(data):,} bytes, found {len(data) - 1:,}"):
        copies(folder)


def test_an_unfinished_conversion_says_how_to_finish_it(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"(?s)not finished.*same `halofeed convert` again"):
        Loader(folder, batch_size=1)


def test_a_list_of_another_length_a_label_beyond_its_dtype_and_a_picture_beyond_its_shape_are_refused(
    draw, write
):
    examples = draw(3)
    examples[1] |= {"boxes": np.array([[0, 0, 2, 2]]), "classes": np.array([1, 2]), "is_crowd": np.array([0])}
    with pytest.raises(CorruptFileError, match=r"record at byte .* 2 values of classes for 1 box"):
        Loader(write(examples), batch_size=3).batch(0)
    examples = draw(1, task="classification")
    examples[0]["label"] = 2**40
    with pytest.raises(CorruptFileError, match="does not fit in int32"):
        Loader(write(examples, shards=1), batch_size=1).batch(0)
    folder = write(draw(2, frame=(40, 32), vary=False), encoding="png", pad=False, frame=(24, 32))
    with pytest.raises(CorruptFileError, match="it is 40 x 32, expected at most 24 x 32"):
        Loader(folder, batch_size=2).batch(0)


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_a_picture_that_cannot_be_decoded_is_named(draw, write, encoding, monkeypatch):
    from halofeed.prep.voxels import encode

    whole = encode.ENCODERS[encoding]
    monkeypatch.setitem(encode.ENCODERS, encoding, lambda pixels, quality: bytes(whole(pixels, quality))[:60])
    folder = write(draw(2), encoding=encoding, pad=False)
    with pytest.raises(CorruptFileError, match=rf"at byte .*the {encoding} image cannot be decoded.*verify"):
        Loader(folder, batch_size=2).batch(0)


def test_empty_shards_are_passed_over(draw, write):
    loader = Loader(write(draw(3), shards=8), batch_size=3, training=False)
    assert join_id(loader.batch(0)["id"]).tolist() == [example["id"] for example in draw(3)]
