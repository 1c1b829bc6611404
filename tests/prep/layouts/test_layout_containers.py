"""Pictures inside TFRecords, tar files and Parquet, as TensorFlow, TFDS, WebDataset and pyarrow write and read them."""

# fmt: off
import json
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.containers import CONTAINERS, NAMES, parquet_of, tar_of, tfrecord_of
from halofeed.errors import AnnotationsError, SourceError
from tests.support.conversions import run_convert
from tests.support.layout_references import list_references, write_files

PICTURES = [cv2.imencode(".jpg", np.full((40 + one, 60, 3), 9, np.uint8))[1].tobytes() for one in range(4)]


@pytest.mark.parametrize("layout", CONTAINERS)
def test_members_are_the_pictures_keys_have_no_places_and_changes_are_noticed(tmp_path, layout):
    name, write = CONTAINERS[layout]
    files = write_files(tmp_path, {f"b/c/{name}": write(PICTURES)})
    found = list_references(layout, tmp_path, class_names=dict(enumerate(NAMES)))
    assert [(files.read(one.source), one.label) for one in found] == list(zip(PICTURES, NAMES * 2, strict=True))
    assert [files.size(one.source) for one in found] == [*map(len, PICTURES)]
    assert {files.stamp(one.source) for one in found} == {files.stamp(f"b/c/{name}")}
    assert {one.key.rpartition("/")[0] for one in found} <= {f"b/c/{name}/", f"b/c/{name}//a"}
    shutil.move(tmp_path / "b", tmp_path / "moved" / "b")
    assert list_references(layout, tmp_path / "moved", class_names=dict(enumerate(NAMES))) == found
    with pytest.raises(SourceError, match="changed since it was listed"):
        write_files(tmp_path, {f"b/c/{name}": write(PICTURES[::-1])}).read(found[0].source)


@pytest.mark.parametrize("layout", CONTAINERS)
def test_damaged_cut_and_compressed_containers_name_file_place_and_cure(tmp_path, layout):
    name, write = CONTAINERS[layout]
    data = write(PICTURES)
    flipped = data[:-9] if layout == "jsonl" else data[:99] + bytes([data[99] ^ 1]) + data[100:]
    words = {"tfrecord": "rd: record at byte 0: .*checksum", "webdataset": "tar: .*byte", "jsonl": "et: not readable"}
    for damaged, expected in ((flipped, words[layout]), (data[: len(data) // 3], f"{name}: .*(byte|not readable)")):
        write_files(tmp_path, {name: damaged})
        with pytest.raises(AnnotationsError, match=expected):
            list_references(layout, tmp_path)
    write_files(tmp_path, {name: data})
    if layout != "jsonl":
        subprocess.run(["gzip", tmp_path / name], check=True)
        with pytest.raises(AnnotationsError, match=r"compressed.* with gunzip") as refused:
            list_references(layout, tmp_path)
        subprocess.run(str(refused.value).rpartition("with ")[2].split(), check=True)
    assert len(list_references(layout, tmp_path)) == 4


def test_unusable_samples_of_a_tar_file_are_rejected_by_their_names(tmp_path):
    expected = {
        "b": "no regular file", "%2Fc": "unsafe name", "d/%2E%2E/%2E%2E/e": "unsafe name", "f": "two members",
        "g": "no picture", "h": "several pictures", "i": "no extension", "j": "UTF-8", "k": "malformed JSON",
    }
    bad = dict.fromkeys(("/c.jpg", "d/../../e.jpg", "f.jpg", "f.jpg ", "h.jpg", "h.bmp", "j.jpg", "k.jpg"), PICTURES[1])
    bad |= {"b.jpg": "/etc/passwd", "g.cls": b"1", "i": b"1", "j.cls": b"\xff", "k.json": b"[", "._a.jpg": b"x"}
    good = {"a.jpg": PICTURES[0], "a.cls": b"hat", "l.jpg": PICTURES[1][:60], "l.cls": b"hat"}
    write_files(tmp_path / "in", {"t.tar": tar_of(good | bad)})
    found = {one.key.partition("//")[2]: one for one in list_references("webdataset", tmp_path / "in")}
    assert found.pop("a.jpg").label == found.pop("l.jpg").label == "hat" and found.keys() == expected.keys()
    assert [key for key, words in expected.items() if words not in str(found[key].problem)] == []
    done = run_convert(tmp_path / "in", tmp_path / "out", layout="webdataset", max_rejected=10)
    rejected = Path(done.folder, "rejected.jsonl").read_text().splitlines()
    assert len(rejected) == 10 and any(json.loads(line)["source"].startswith("t.tar//l@") for line in rejected)
    with pytest.raises(AnnotationsError, match=r"converted already.*halofeed report"):
        list_references("tfrecord", Path(done.folder))


@pytest.mark.long
def test_records_of_tensorflow_and_tfds_are_what_their_own_readers_give(tmp_path):
    tf, tfds = pytest.importorskip("tensorflow"), pytest.importorskip("tensorflow_datasets").features
    objects = tfds.Sequence({"bbox": tfds.BBoxFeature(), "label": tfds.ClassLabel(names=NAMES), "is_crowd": np.bool_})
    features = tfds.FeaturesDict({"image": tfds.Image(encoding_format="png"), "objects": objects})
    features.save_config(tmp_path)
    box = {"bbox": tfds.BBox(0.1, 0.2, 0.5, 0.75), "label": 1, "is_crowd": True}
    example = {"image": np.full((40, 60, 3), 7, np.uint8)}
    rows = [features.serialize_example({**example, "objects": [box] * number}) for number in range(4)]
    files = write_files(tmp_path, {"dataset_info.json": '{"name": "set", "splits": [{"name": "odd"}]}'})
    with tf.io.TFRecordWriter(str(tmp_path / "set-odd.tfrecord-00000-of-00001")) as writer:
        [writer.write(row) for row in rows]
    for row, one in zip(rows, list_references("tfrecord", tmp_path), strict=True):
        stored = tf.io.parse_single_example(row, {"image": tf.io.FixedLenFeature([], tf.string)})["image"].numpy()
        assert files.read(one.source) == stored and one.split == "odd"
        expected = features.deserialize_example(row)["objects"]
        assert [NAMES.index(box.label) for box in one.boxes] == expected["label"].numpy().tolist()
        found = np.reshape([[box.ymin, box.xmin, box.ymax, box.xmax] for box in one.boxes], (-1, 4))
        assert np.abs(found - expected["bbox"].numpy()).max(initial=0) < 0.5 / 60


def test_boxes_and_masks_of_the_object_detection_api_and_boxes_of_hugging_face(tmp_path):
    mask = np.pad(np.full((16, 24), 255, np.uint8), ((4, 20), (6, 30)))
    corners = {f"image/object/bbox/{x}{end}": np.array([at]) for x in "xy" for end, at in (("min", 0.1), ("max", 0.5))}
    masked = {"image/object/mask": [cv2.imencode(".png", mask)[1].tobytes()], "image/object/class/label": np.array([2])}
    records = [{"image/encoded": PICTURES[0], **corners, **masked}, {"image/encoded": PICTURES[1]}]
    write_files(tmp_path, {"t.record": tfrecord_of(records), "label_map.pbtxt": 'item { id: 2 name: "ant" }'})
    one, empty = list_references("tfrecord", tmp_path, masks=True)
    assert (one.boxes[0].label, one.boxes[0].ymax, one.normalized, empty.boxes) == ("ant", 0.5, True, ())
    assert one.boxes[0].mask == {"size": [40, 60], "counts": [244, *[16, 24] * 23, 16, 1220]}
    objects = {"bbox": [[6.0, 4.0, 24.0, 16.0]], "category": [1]}
    rows = [{"image": {"bytes": PICTURES[0], "path": None}, "objects": objects}]
    write_files(tmp_path, {"test-00000-of-00001.parquet": parquet_of(rows)})
    (found,) = list_references("jsonl", tmp_path)
    assert (found.split, found.boxes[0].label, found.boxes[0].xmax, found.boxes[0].ymax) == ("test", "ant", 30, 20)
