"""TensorFlow Datasets reads our folder, with the same values and exact lengths."""

import io
import warnings
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, message_factory, text_format
from PIL import Image

import halofeed
from halofeed.schemas import keys
from halofeed.schemas.manifest import read_manifest
from halofeed.schemas.tfds import label_map_text
from tests.support.dataset_writer import Drawn, draw_examples, record_features, write_dataset
from tests.support.encoded_kinds import convert_case, records_of
from tests.support.parser_check import check_parser

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")

# TFDS copies the proto by a field property that newer protobufs deprecate.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")

CASES = [("classification", "raw", "uint8", 3, False), ("classification", "raw", "uint16", 1, False)]
CASES += [("classification", "jpeg", "uint8", 1, True), ("classification", "png", "uint8", 4, True)]
CASES += [("detection", "raw", "uint8", 3, False), ("detection", "png", "uint8", 3, True)]
CASES += [("detection", "jpeg", "uint8", 3, False)]


def expected_value(example: Drawn, key: str, value: Any, encoding: str) -> Any:
    if key == "image/encoded" and encoding == "raw":
        return example.pixels
    if key == "image/encoded" and encoding == "jpeg":
        return tf.io.decode_image(value, example.pixels.shape[2]).numpy()
    if key == "image/encoded":
        return np.asarray(Image.open(io.BytesIO(value))).reshape(example.pixels.shape)
    if key == "image/object/mask":
        return np.array([np.asarray(Image.open(io.BytesIO(item)))[..., None] for item in value])
    if key == "image/transform":
        return np.asarray(value).reshape(2, 3)
    return value[0] if isinstance(value, np.ndarray) and "object" not in key else value


@pytest.mark.parametrize(("task", "encoding", "dtype", "channels", "varied"), CASES)
def test_tfds_reads_the_same_values_and_exact_lengths(tmp_path, task, encoding, dtype, channels, varied):
    counts, masks = {"train": 9, "validation": 3}, task == "detection"
    examples = draw_examples(task, counts, shape=(8, 12, channels), dtype=dtype, varied=varied)
    how = {"task": task, "encoding": encoding, "shards": 4, "masks": masks}
    builder = tfds.builder_from_directory(str(write_dataset(tmp_path / "tiny/1.0.0", examples, **how)))
    assert builder.info.full_name == "tiny/1.0.0"
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == counts
    for split in counts:
        by_key = {example.key: example for example in examples if example.split == split}
        dataset = builder.as_dataset(split=split)
        assert int(dataset.cardinality()) == len(by_key)
        for read in tfds.as_numpy(dataset):
            example = by_key.pop(read["image/key/source"].decode())
            features = record_features(example, task, encoding, masks)
            assert set(read) == set(features)
            for key, value in features.items():
                expected = expected_value(example, key, value, encoding)
                if key == "image/object/mask" and not len(value):
                    assert len(read[key]) == 0
                elif isinstance(expected, list):
                    assert list(read[key]) == expected, key
                else:
                    np.testing.assert_array_equal(read[key], expected, err_msg=key)
        assert not by_key


def test_tfds_gives_packed_images_and_labels_as_the_bytes_of_their_values(tmp_path):
    folder = convert_case("labeled pictures", tmp_path, encoding="packed")
    expected = {bytes(one["image/key/source"][0]): one for one in records_of(folder)}
    builder = tfds.builder_from_directory(str(folder))
    for read in tfds.as_numpy(builder.as_dataset(split="train")):
        features = expected.pop(read["image/key/source"])
        for key in (keys.ENCODED, keys.LABEL):
            assert read[key] == bytes(features[key][0])
    assert not expected


@pytest.mark.parametrize("task", ["classification", "detection"])
def test_names_pairs_and_pictures_are_what_tfds_looks_for(tmp_path, task):
    examples = draw_examples(task, {"train": 3}, shape=(8, 12, 3))
    how: dict[str, Any] = {"task": task, "encoding": "jpeg", "max_boxes": 9, "masks": task == "detection"}
    how["recipe"] = {"license": "CC0", "citation": "@x"}
    folder = write_dataset(tmp_path / "tiny/1.0.0", examples, **how)
    builder = tfds.builder_from_directory(str(folder))
    assert (builder.info.citation, builder.info.redistribution_info.license) == ("@x", "CC0")
    key = keys.CLASS_LABEL if task == "classification" else keys.OBJECT_CLASS_LABEL
    feature, labels = builder.info.features[key], read_manifest(folder).labels
    label = feature if task == "classification" else feature.feature
    assert labels.items() <= dict(enumerate(label.names)).items() and label.num_classes == max(labels) + 1
    for (image, target), read in zip(
        *(tfds.as_numpy(builder.as_dataset(split="train", as_supervised=way)) for way in (True, False)),
        strict=True,
    ):
        np.testing.assert_array_equal(image, read[keys.ENCODED])
        found = target if isinstance(target, dict) else {key: target}
        assert found.keys() == ({key} if task == "classification" else {key, *keys.BOX_CORNERS})
        assert all(np.array_equal(value, read[name]) for name, value in found.items())
    files = tf.data.Dataset.list_files(str(folder / "tiny-train.tfrecord-*"))
    assert sum(1 for _ in tf.data.TFRecordDataset(files)) == 3
    check_parser(folder)


@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_show_examples_draws_raw_and_encoded_pictures_with_their_names(tmp_path, monkeypatch, encoding):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    drawn = draw_examples("classification", {"train": 3}, shape=(8, 12, 3))
    folder = write_dataset(tmp_path / "tiny/1.0.0", drawn, task="classification", encoding=encoding)
    builder, info = tfds.builder_from_directory(str(folder)), halofeed.open(folder).tfds_info()
    names = info.features[keys.CLASS_LABEL].names
    expected = {(f"{names[one.label]} ({one.label})", one.pixels.tobytes()) for one in drawn}
    for supervised in (False, True):
        axes = tfds.show_examples(
            builder.as_dataset(split="train", as_supervised=supervised), info, cols=1
        ).axes
        assert {(one.get_xlabel(), bytes(one.images[0].get_array())) for one in axes} == expected
    pyplot.close("all")


def test_a_label_map_is_read_by_protobuf_whatever_the_names(tmp_path):
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto2")
    item, whole = file.message_type.add(name="Item"), file.message_type.add(name="Map")
    item.field.add(name="name", number=1, label=1, type=12)
    item.field.add(name="id", number=2, label=1, type=5)
    whole.field.add(name="item", number=1, label=3, type=11, type_name=".Item")
    kind = message_factory.GetMessages([file])["Map"]
    labels = {0: "a\"b'\\", 3: "Käfer 猫\n\x00\x7f9", 7: "\udcff7", 2**31 - 1: ""}
    read = text_format.Parse(label_map_text(labels).encode("utf-8", "surrogateescape"), kind())
    assert {one.id: one.name.decode("utf-8", "surrogateescape") for one in read.item} == labels
