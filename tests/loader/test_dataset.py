"""A loader returns what was written, in the documented order, from any thread and any first step."""

import json
import os

import numpy as np
import pytest
import simplejpeg

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.loader.batch import join_id, split_id
from tests.support.batches import same
from tests.support.forks import forks
from tests.support.scripts import run_script

STORAGE = [("raw", True), ("jpeg", True), ("jpeg", False), ("png", True), ("png", False)]


@pytest.fixture(scope="module")
def detection(draw, write):
    return write(draw(11), max_boxes=4)


@pytest.fixture(scope="module")
def classification(draw, write):
    return write(draw(11, task="classification"))


def parse_with_tensorflow(folder, split, frame, encoding, max_boxes):
    """Every record by TensorFlow's own readers, padded here: {key: array [record, ...]}."""
    import tensorflow as tf

    corners = ["ymin", "xmin", "ymax", "xmax"]
    ragged = {
        **{f"image/object/bbox/{corner}": tf.io.VarLenFeature(tf.float32) for corner in corners},
        "image/object/area": tf.io.VarLenFeature(tf.float32),
        "image/object/class/label": tf.io.VarLenFeature(tf.int64),
        "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
    }
    fixed = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/source_id": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "image/transform": tf.io.FixedLenFeature([2, 3], tf.float32),
    }
    files = sorted(str(path) for path in folder.glob(f"*-{split}.tfrecord-*-of-?????"))
    rows = []
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        example = tf.io.parse_single_example(record, {**fixed, **ragged})
        data = example["image/encoded"]
        if encoding == "raw":
            pixels = tf.reshape(tf.io.decode_raw(data, tf.uint8), [*frame, 3]).numpy()
        elif encoding == "jpeg":
            pixels = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
        else:
            pixels = tf.io.decode_png(data).numpy()
        image = np.empty((*frame, 3), np.uint8)
        image[...] = (9, 8, 7)
        image[: pixels.shape[0], : pixels.shape[1]] = pixels
        lists = {key: tf.sparse.to_dense(example[key]).numpy() for key in ragged}
        boxes = np.stack([np.float64(lists[f"image/object/bbox/{corner}"]) for corner in corners], axis=-1)
        boxes *= np.array(pixels.shape[:2] * 2) / np.array(frame * 2)
        row = {"image": image, "id": split_id(int(example["image/source_id"].numpy()))}
        row["num_boxes"] = min(len(boxes), max_boxes)
        padded = {
            "boxes": boxes.astype(np.float32),
            "classes": lists["image/object/class/label"].astype(np.int32),
            "is_crowd": lists["image/object/is_crowd"] > 0,
            "area": lists["image/object/area"],
        }
        for name, values in padded.items():
            row[name] = np.zeros((max_boxes, *values.shape[1:]), values.dtype)
            row[name][: min(len(values), max_boxes)] = values[:max_boxes]
        row["source"] = example["image/filename"].numpy().decode()
        row["transform"] = example["image/transform"].numpy()
        rows.append(row)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize(("encoding", "pad"), STORAGE)
def test_evaluation_gives_what_tensorflow_reads(draw, write, encoding, pad):
    folder = write({"val": draw(11), "train": draw(2)}, encoding=encoding, pad=pad, max_boxes=4)
    expected = parse_with_tensorflow(folder, "val", (24, 32), encoding, 4)
    loader = Loader(folder, split="val", batch_size=4, training=False, include=["source", "transform"])
    batches = list(loader.batches())
    assert len(batches) == len(loader) == 3 and loader.num_records == 11
    for number, batch in enumerate(batches):
        assert batch["valid"].tolist() == [number * 4 + row < 11 for row in range(4)]
        for name, values in expected.items():
            real = values[number * 4 : number * 4 + 4]
            assert np.array_equal(batch[name][: len(real)], real), name
            assert batch[name].dtype == loader.spec[name].dtype


def test_rows_that_are_not_valid_hold_padding(detection):
    batch = Loader(detection, batch_size=4, training=False, include=["source", "size"]).batch(2)
    assert join_id(batch["id"]).tolist()[3] == -1 and batch["num_boxes"][3] == 0 and batch["source"][3] == ""
    assert (batch["image"][3] == (9, 8, 7)).all()
    for name in ("boxes", "classes", "area", "is_crowd", "size"):
        assert not batch[name][3].any()


def test_classification_has_labels(draw, classification):
    examples = {example["id"]: example for example in draw(11, task="classification")}
    batch = Loader(classification, batch_size=11).batch(0)
    assert list(batch) == ["image", "label", "id", "valid"]
    assert batch["label"].dtype == np.int32 and batch["id"].dtype == np.uint32
    for row, identity in enumerate(join_id(batch["id"]).tolist()):
        assert batch["label"][row] == examples[identity]["label"]
        height, width, _ = examples[identity]["pixels"].shape
        assert np.array_equal(batch["image"][row, :height, :width], examples[identity]["pixels"])


@pytest.mark.parametrize(("encoding", "dtype", "channels"), [("raw", "uint16", 3), ("png", "uint16", 1),
                                                              ("png", "uint16", 4), ("raw", "uint8", 1),
                                                              ("png", "uint8", 4), ("jpeg", "uint8", 1)])  # fmt: skip
@pytest.mark.parametrize("augment", [(), (FlipLeftRight(1.0),)])
def test_depth_and_channels_are_kept(draw, write, encoding, dtype, channels, augment):
    examples = draw(5, dtype=dtype, channels=channels)
    batch = Loader(write(examples, encoding=encoding, pad=False) if encoding != "raw" else write(examples),
                   batch_size=5, training=False, augment=augment).batch(0)  # fmt: skip
    assert batch["image"].dtype == dtype and batch["image"].shape == (5, 24, 32, channels)
    for row, example in enumerate(examples):
        height, width, _ = example["pixels"].shape
        expected = example["pixels"][:, ::-1] if augment else example["pixels"]
        found = batch["image"][row, :height, :width].astype(int)
        assert np.abs(found - expected).max() <= (30 if encoding == "jpeg" else 0)


def test_evaluation_takes_equal_steps_on_every_host(detection):
    hosts = [Loader(detection, batch_size=8, training=False, shard_index=i, shard_count=4) for i in range(4)]
    assert {len(host) for host in hosts} == {2}
    valid = np.concatenate([host.batch(1)["valid"] for host in hosts])
    assert valid.tolist() == [True] * 3 + [False] * 5


def test_numbers_of_numpy_are_taken_as_they_are(detection):
    loader = Loader(detection, batch_size=np.int32(4), seed=np.uint64(2**64 - 1))
    same(loader.batch(np.int64(10**12)), Loader(detection, batch_size=4, seed=2**64 - 1).batch(10**12))
    json.dumps(loader.state(np.int64(3)))


def test_batches_that_are_kept_stay_as_they_are(detection):
    loader = Loader(detection, batch_size=4, seed=1)
    kept = [loader.batch(step) for step in range(20)]
    copies = [{name: array.copy() for name, array in batch.items()} for batch in kept]
    views = [batch["image"].reshape(4, -1)[1:, ::2] for batch in kept[:10]]
    seen = [view.copy() for view in views]
    del kept[:10]
    for step in range(20):
        loader.batch(step + 100)
    for batch, copy in zip(kept, copies[10:], strict=True):
        same(batch, copy)
    assert all(np.array_equal(view, copy) for view, copy in zip(views, seen, strict=True))


@forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_goes_on(detection):
    run_script(
        """
import os, signal, sys
from halofeed.loader import Loader, join_id
from halofeed.schemas import shard_file
loader = Loader(sys.argv[1], batch_size=4)
expected = join_id(loader.batch(5)["id"]).tolist()
with loader._shards._lock, shard_file._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        shard_file.close_idle()
        os._exit(0 if join_id(loader.batch(5)["id"]).tolist() == expected else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        detection,
    )


USAGE = [
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": 4.0}, "batch_size: expected a whole number .*got 4.0"),
    ({"seed": "7"}, "seed: expected a whole number"),
    ({"split": "dev"}, "known: empty, train"),
    ({"split": "empty"}, "holds no records; splits with records: train"),
    ({"include": ["sauce"]}, r"sauce.*difficult.*size.*source"),
    ({"include": "source"}, "list"),
    ({"verify": "sometimes"}, "first, always, never"),
    ({"batch_size": 12, "shard_count": 5}, r"use 4 or 6 hosts, or a batch_size of 10 or 15"),
    ({"shard_index": 2, "shard_count": 2}, "shard_index 2"),
    ({"training": False, "num_epochs": 3}, "one epoch"),
    ({"batch_size": 12, "drop_remainder": True}, "no whole batch"),
    ({"augment": [RandomCrop(25, 8)]}, r"RandomCrop\(25, 8\): the images are 24 high and 32 wide"),
    ({"augment": [RandomCrop(8, 8), RandomCrop(9, 8)]}, "8 high and 8 wide"),
    ({"augment": ["flip"]}, r"augment: expected augmentations such as FlipLeftRight\(\), got 'flip'"),
    ({"augment": [FlipLeftRight(), FlipLeftRight]}, r"got .*class.*FlipLeftRight.*; write FlipLeftRight\(\)"),
    ({"augment": FlipLeftRight()}, r"augment: expected a list .* got FlipLeftRight\(probability=0\.5\)"),
    ({"augment": "flip"}, r"augment: expected a list .* got 'flip'"),
    ({"training": False, "drop_remainder": True}, r"drop_remainder: evaluation \(training=False\) gives"),
    ({"cache": "ram"}, r"cache: expected None, 'memory' or 'disk:/a/folder', got 'ram'"),
    ({"cache": "disk:"}, r"cache: expected None, 'memory' or 'disk:/a/folder', got 'disk:'"),
    ({"cache": "disk:/proc/none"}, r"cache='disk:/proc/none': .*; name a folder of a local disk"),
    ({"cache": "memory", "cache_bytes": 5}, r"cache_bytes 5: expected 1 or more, and with cache='disk:"),
    ({"cache": "disk:/tmp/none", "cache_bytes": 5}, r"cache_bytes 5: .* largest shard has .*; allow more"),
    ({"on_corrupt": "ignore"}, r"on_corrupt: expected one of fail, skip, got 'ignore'"),
    ({"path": "tape://bucket/cards/1.0.0"}, r"tape://bucket/cards/1.0.0: .*; expected a local folder, gs:"),
    ({"path": "memory://none/1.0.0", "concurrent_reads": 0}, r"concurrent_reads: expected 1 or more, got 0"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_what_cannot_be_is_refused_with_what_can(draw, write, arguments, message):
    folder = write({"train": draw(11), "empty": []})
    with pytest.raises(UsageError, match=message):
        Loader(**{"path": folder, "batch_size": 4, **arguments})


def test_a_state_of_a_step_that_cannot_be_is_refused(detection):
    for step, epochs in ((-1, None), (-1, 1), (4, 1)):
        loader = Loader(detection, batch_size=4, num_epochs=epochs)
        with pytest.raises(UsageError, match=f"step {step}: expected 0 (and more|to 3)"):
            loader.state(step)
        loader.state(3)


CHANGES = [{"seed": 1}, {"batch_size": 2}, {"shuffle": False}, {"drop_remainder": True}, {"training": False}]


@pytest.mark.parametrize("change", [*CHANGES, {"augment": [FlipLeftRight(0.1)]}])
def test_a_state_of_another_stream_is_refused_with_the_reason(detection, change):
    loader = Loader(detection, **{"batch_size": 4, "augment": [FlipLeftRight()], **change})
    with pytest.raises(UsageError, match=next(iter(change))):
        loader.restore(Loader(detection, batch_size=4, augment=[FlipLeftRight()]).state(1))


def test_a_state_of_other_data_is_refused(draw, write, detection):
    other = Loader(write(draw(11, seed=1)), batch_size=4)
    with pytest.raises(UsageError, match="fingerprint"):
        other.restore(Loader(detection, batch_size=4).state(3))


def test_a_state_with_a_changed_step_is_refused(detection):
    loader = Loader(detection, batch_size=4)
    with pytest.raises(UsageError, match=r"state: its checksum is wrong.* start_step"):
        loader.restore({**loader.state(3), "step": 4})


@pytest.mark.parametrize(
    "state", [None, {}, {"step": 3}, {"step": "3", "state_version": 1}, {"step": -1, "state_version": 1}]
)
def test_what_is_no_state_is_refused(detection, state):
    with pytest.raises(UsageError, match="state"):
        Loader(detection, batch_size=4).restore(state)


def test_a_state_goes_on_with_other_hosts_and_more_epochs(detection):
    state = Loader(detection, batch_size=4, num_epochs=1).state(2)
    assert Loader(detection, batch_size=4, num_epochs=3, shard_index=1, shard_count=2).restore(state) == 2


DECODERS = {
    "accurate": {"fastdct": False, "fastupsample": False},
    "fast": {"fastdct": True, "fastupsample": True},
}


@pytest.fixture(scope="module")
def jpegs(draw, write):
    return write(draw(12), encoding="jpeg")


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("flips", [False, True])
def test_pixels_are_those_of_the_decoders_options(jpegs, decode, flips):
    augment = [FlipLeftRight(1.0)] if flips else []
    loader = Loader(jpegs, batch_size=12, training=False, decode=decode, augment=augment, include=["size"])
    batch = loader.batch(0)
    for number, (height, width) in enumerate(batch["size"].tolist()):
        (file,) = loader.stored(number).features(frozenset(["image/encoded"]))["image/encoded"]
        expected = simplejpeg.decode_jpeg(bytes(file), **DECODERS[decode])[:height, :width]
        assert np.array_equal(loader.records[number]["image"][:height, :width], expected)
        seen = expected[:, ::-1] if flips else expected
        assert np.array_equal(batch["image"][number, :height, :width], seen)


def test_fast_pixels_differ_and_their_stream_is_another(jpegs):
    accurate, fast = (Loader(jpegs, batch_size=4, decode=decode) for decode in DECODERS)
    assert not np.array_equal(accurate.batch(0)["image"], fast.batch(0)["image"])
    assert fast.restore(fast.state(2)) == 2
    for one, other in ((accurate, fast), (fast, accurate)):
        with pytest.raises(UsageError, match="decode"):
            one.restore(other.state(1))
    with pytest.raises(UsageError, match="decode: expected one of accurate, fast, got 'quick'"):
        Loader(jpegs, batch_size=4, decode="quick")
