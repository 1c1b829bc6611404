"""A loader behaves as Python, Keras, TensorFlow's strategies, torch and notebooks expect."""

import base64
import pickle
import re

import cv2
import jax
import keras
import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop, join_id
from halofeed.prep.voxels.encode import encode_png
from tests.support.conversions import draw_folders, run_convert
from tests.support.volume_writer import draw_scans, write_scans


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    source = tmp_path_factory.mktemp("photos")
    draw_folders(source, 10)
    out = tmp_path_factory.mktemp("out")
    return run_convert(source, out, layout="folders", shards=3, encoding="raw").folder


@pytest.fixture(scope="module")
def objects(draw, write):
    return write(draw(7), masks=True)


def test_a_loop_is_over_its_batches_and_each_is_found_by_its_step(photos):
    loader = Loader(photos, split="train", batch_size=4, num_epochs=1)
    seen = [batch["id"] for batch in loader]
    assert len(seen) == len(loader) == loader.steps == len(loader.by_step())
    for step, ids in enumerate(seen):
        np.testing.assert_array_equal(ids, loader.batch(step)["id"])
        np.testing.assert_array_equal(ids, loader.by_step()[step]["id"])
        np.testing.assert_array_equal(ids, loader[step - len(seen)]["id"])
    with pytest.raises(IndexError):
        loader[len(seen)]
    with pytest.raises(UsageError, match=r"DataLoader\(loader\.records"):
        loader.__getitems__([0, 1])  # as torch's DataLoader fetches items
    assert (pickle.loads(pickle.dumps(loader.records))[-1]["id"] == loader.records[-1:][0]["id"]).all()


def test_a_record_by_its_number_is_as_stored_whatever_the_stream_shows(objects):
    everything = ["masks", "transform", "source"]
    stored = Loader(objects, batch_size=7, training=False, include=everything).batch(0)
    augment = [FlipLeftRight(1.0), RandomCrop(8, 8)]
    loader = Loader(objects, batch_size=2, seed=5, augment=augment, include=everything)
    for number in range(7):
        for record in (loader.records[number], loader.records[np.int64(number)], loader.records[number - 7]):
            assert set(record) == set(stored)
            for name, array in stored.items():
                np.testing.assert_array_equal(record[name], array[number], err_msg=name)
    for number in (7, -8):
        with pytest.raises(IndexError, match=f"record {number}: split 'train' has 7"):
            loader.records[number]


def test_a_record_is_found_by_its_id_and_by_its_sources_key(photos):
    loader = Loader(photos, split="train", batch_size=2, include=["key"])
    for number in range(loader.num_records):
        record = loader.records[number]
        assert loader.find(int(join_id(record["id"]))) == loader.find(str(record["key"])) == number
    with pytest.raises(UsageError, match="'no such file': split 'train' has no such record"):
        loader.find("no such file")


def test_no_framework_cuts_an_id(photos):
    loader = Loader(photos, split="train", batch_size=2, shuffle=False)
    stored, batch = [loader.stored(number).id for number in range(2)], loader.batch(0)
    for given in (batch, jax.device_put(batch), next(iter(loader.dataset()))):
        assert given["id"].dtype == np.uint32 and min(map(abs, stored)) > 2**32
        assert join_id(given["id"]).tolist() == stored


def test_classes_are_named_by_their_labels(photos, tmp_path):
    loader = Loader(photos, split="train", batch_size=2)
    assert loader.class_names == tuple(loader.manifest.labels.values()) and loader.num_classes == 2
    scans = Loader(write_scans(tmp_path, draw_scans({"train": 2}, shape=(8, 8, 8))), batch_size=1)
    for label, name in scans.manifest.labels.items():
        assert scans.class_names[label] == name
    assert scans.num_classes == max(scans.manifest.labels) + 1


def test_pairs_for_keras_are_the_batch_and_a_loader_says_what_keras_takes(photos):
    train = Loader(photos, split="train", batch_size=4)
    image, label = next(iter(train.dataset(as_supervised=True)))
    np.testing.assert_array_equal(image, train.batch(0)["image"])
    np.testing.assert_array_equal(label, train.batch(0)["label"])

    exact = Loader(photos, split="train", batch_size=4, training=False)
    assert (
        len(train.dataset(as_supervised=True, static_shapes=True, repeat=True).element_spec) == 3
    )  # nothing is padded
    padded = exact.dataset(as_supervised=True, static_shapes=True)
    weights = np.concatenate([weight for _, _, weight in padded])
    valid = np.concatenate([batch["valid"] for batch in exact])
    assert weights.dtype == np.float32 and not valid.all()
    np.testing.assert_array_equal(weights, valid)

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Keras takes its \.dataset\(as_supervised=True\)"):
        model.fit(train)


def test_pairs_of_detection_and_segmentation(objects, tmp_path):
    image, target = next(iter(Loader(objects, batch_size=2).dataset(as_supervised=True)))
    assert image.shape[0] == 2
    assert {"boxes", "classes", "num_boxes"} <= set(target) and not {"id", "valid", "image"} & set(target)
    scans = Loader(write_scans(tmp_path, draw_scans({"train": 3}, shape=(8, 8, 8))), batch_size=3)
    batch = scans.batch(0)
    image, label, weight = next(iter(scans.dataset(as_supervised=True)))
    np.testing.assert_array_equal(label, batch["label"])
    np.testing.assert_array_equal(weight, batch["labelled"])


def test_a_notebook_shows_the_arrays_and_the_first_batch(photos):
    loader = Loader(photos, split="train", batch_size=4)
    page = loader._repr_html_()
    assert "<td>image</td><td>(4, 16, 24, 3)</td><td>uint8</td>" in page
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(picture), np.uint8), cv2.IMREAD_COLOR)
    drawn = np.frombuffer(encode_png(loader.picture(side=160), 0), np.uint8)
    expected = cv2.imdecode(drawn, cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(decoded, expected)
