"""Pictures of ArrayRecord files are those that TFDS stored, and faults of such files are named."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from halofeed.errors import AnnotationsError, SourceError
from halofeed.schemas.tfexample import encode_example
from tests.support.conversions import run_convert
from tests.support.layout_references import detected, list_references, write_files

records = pytest.importorskip("array_record.python.array_record_module")
NAMES = ("zebra", "ant")
PICTURES = [
    cv2.imencode(".png", np.full((8 + one, 10, 3), 9 * one, np.uint8))[1].tobytes() for one in range(4)
]
FEATURES = {
    "featuresDict": {"features": {"image": {"image": {}}, "label": {"classLabel": {"numClasses": "2"}}}}
}
TRAIN = "cards-train.array_record-00000-of-00001"


def write_set(root: Path, pictures: list[bytes], name: str = TRAIN) -> Path:
    """Write records as TFDS does, with the descriptions beside them; the path of the file."""
    write_files(
        root,
        {
            "features.json": json.dumps(FEATURES),
            "label.labels.txt": "\n".join(NAMES) + "\n",
            "dataset_info.json": json.dumps(
                {"name": "cards", "splits": [{"name": "train"}, {"name": "odd"}]}
            ),
        },
    )
    writer = records.ArrayRecordWriter(str(root / name), "group_size:1")
    for number, picture in enumerate(pictures):
        example = encode_example({"image": picture, "label": np.array([number % 2])})
        writer.write(b"".join(bytes(chunk) for chunk in example.chunks))
    writer.close()
    return root / name


def test_members_are_the_pictures_by_record_and_changes_are_noticed(tmp_path):
    write_set(tmp_path, PICTURES)
    write_set(tmp_path, PICTURES[:1], "cards-odd.array_record-00000-of-00001")
    assert detected(tmp_path) == "tfrecord"
    files = write_files(tmp_path, {})
    found = list_references("tfrecord", tmp_path)
    train = [one for one in found if one.split == "train"]
    assert [(files.read(one.source), one.label) for one in train] == [
        (picture, NAMES[number % 2]) for number, picture in enumerate(PICTURES)
    ]
    assert [files.size(one.source) for one in train] == [*map(len, PICTURES)]
    assert [one.split for one in found if one not in train] == ["odd"]
    # A range of a picture, and the head of it, are those of its bytes.
    assert files.head(train[2].source, 20) == PICTURES[2][:20]
    write_set(tmp_path, PICTURES[::-1])
    with pytest.raises(SourceError, match="changed since it was listed"):
        files.read(train[0].source)
    write_set(tmp_path, PICTURES[:1])
    with pytest.raises(SourceError, match="record 3: 1 records"):
        files.read(train[3].source)


def test_a_set_is_converted_with_the_classes_of_tfds(tmp_path):
    write_set(tmp_path / "in", PICTURES)
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="tfrecord", resize="none", encoding="png")
    assert done.manifest.splits["train"].records == 4
    assert list(done.manifest.labels.values()) == list(NAMES)


def test_damaged_files_missing_libraries_and_stores_are_named(tmp_path, monkeypatch):
    path = write_set(tmp_path, PICTURES)
    data = path.read_bytes()
    for damaged in (data[:1000], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(
            AnnotationsError, match=f"{TRAIN}: not readable as ArrayRecord: .*write the file anew"
        ):
            list_references("tfrecord", tmp_path)
    path.write_bytes(data)
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(
        AnnotationsError, match=rf"{TRAIN}: .*needs array-record: pip.* install .*\[array-record\]"
    ):
        list_references("tfrecord", tmp_path)


@pytest.mark.long
def test_a_set_that_tfds_wrote_is_what_its_own_reader_gives(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    from etils import epath

    class Cards(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc, name-defined]
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = epath.Path(tmp_path)

        def _info(self):
            shape = {"shape": (None, None, 3), "encoding_format": "png"}
            features = {"image": tfds.features.Image(**shape), "label": tfds.features.ClassLabel(names=NAMES)}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, _):
            return {"train": self._generate_examples(5), "odd": self._generate_examples(2)}

        def _generate_examples(self, count):
            for number in range(count):
                yield number, {"image": np.full((8 + number, 10, 3), number, np.uint8), "label": number % 2}

    builder = Cards(data_dir=tmp_path / "sets", file_format="array_record")
    builder.download_and_prepare()
    files = write_files(Path(builder.data_path), {})
    found = list_references("tfrecord", Path(builder.data_path))
    for split in ("train", "odd"):
        expected = list(builder.as_data_source(split))
        ours = [one for one in found if one.split == split]
        assert len(ours) == len(expected)
        for one, record in zip(ours, expected, strict=True):
            pixels = cv2.imdecode(np.frombuffer(files.read(one.source), np.uint8), cv2.IMREAD_COLOR)
            assert np.array_equal(pixels[..., ::-1], record["image"])
            assert one.label == NAMES[record["label"]]
