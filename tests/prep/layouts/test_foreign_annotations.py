"""Annotations of other tools and places: outlines, classes of images, lists of another machine, unknown formats."""

import json
from functools import partial

import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.splits import SplitOptions, assign_splits
from halofeed.prep.annotations.suggest_layout import describe_annotations, suggest_layout
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support.annotation_writer import draw
from tests.support.layout_references import by_source, write_files

coco, yolo = partial(by_source, "coco"), partial(by_source, "yolo")
OBJECT = "0 .5 .5 .2 .4\n"


def document(*annotations: dict[str, object]) -> str:
    images = [{"id": number, "file_name": f"{name}.png"} for number, name in enumerate("ab")]
    categories = [{"id": 1, "name": "hat"}, {"id": 2, "name": "coat"}]
    return json.dumps({"images": images, "annotations": list(annotations), "categories": categories})


@pytest.mark.parametrize(
    ("outline", "corners"),
    [
        ([[2, 3, 10, 3, 10, 9]], (2, 3, 10, 9)),
        ([[2, 3, 10, 3, 10, 9], [1, 4, 2, 4, 2, 5]], (1, 3, 10, 9)),
        ({"size": [40, 60], "counts": [85, 3, 37, 3, 2272]}, (2, 5, 4, 8)),
    ],
)
def test_an_outline_without_a_box_gets_the_box_around_it(tmp_path, outline, corners):
    draw(tmp_path, "a.png", "b.png")
    text = document({"id": 1, "image_id": 0, "category_id": 1, "segmentation": outline})
    write_files(tmp_path, {"instances.json": text})
    (box,) = coco(LocalFiles(tmp_path))["a.png"].boxes
    assert (box.xmin, box.ymin, box.xmax, box.ymax) == pytest.approx(corners, abs=1e-6)


def test_annotations_with_a_category_alone_are_classes_of_images(tmp_path):
    draw(tmp_path, "a.png", "b.png")
    both = [{"id": one, "image_id": one, "category_id": one + 1} for one in (0, 1)]
    write_files(tmp_path, {"train.json": document(*both)})
    listed = coco(LocalFiles(tmp_path))
    assert {source: one.label for source, one in listed.items()} == {"a.png": "hat", "b.png": "coat"}
    with pytest.raises(AnnotationsError, match="take --task classification"):
        coco(LocalFiles(tmp_path), task="detection")


def test_lists_of_darknet_and_of_another_machine_divide_the_images(tmp_path):
    draw(tmp_path, "set/a.png", "set/b.png")
    write_files(
        tmp_path,
        {
            "set/a.txt": OBJECT,
            "set/b.txt": OBJECT,
            "obj.names": "hat\n",
            "obj.data": "train = data/train.txt\nvalid = data/valid.txt\n",
            "train.txt": "/home/me/data/set/a.png\n",
            "valid.txt": "C:\\work\\set\\b.png\n",
        },
    )
    listed = yolo(LocalFiles(tmp_path))
    assert {source: one.split for source, one in listed.items()} == {"set/a.png": "train", "set/b.png": "val"}


def test_a_list_of_which_no_line_is_an_image_is_refused_with_its_first_line(tmp_path):
    draw(tmp_path, "images/a.png")
    yaml = "train: train.txt\nnames: [hat]\n"
    write_files(tmp_path, {"labels/a.txt": OBJECT, "data.yaml": yaml, "train.txt": "images/a.jpg\n"})
    with pytest.raises(
        AnnotationsError, match=r"no line of train\.txt is an image: images/a\.jpg: .*images/a\.png"
    ):
        yolo(LocalFiles(tmp_path))


@pytest.mark.parametrize("entry", ["data/x/a.png", "D:\\sets\\x\\a.png", "/mnt/x/a.png", "x/a.jpg"])
def test_a_line_of_a_split_list_means_the_image_that_shares_most_of_its_end(entry):
    images = [SourceExample(source=name, key=name) for name in ("x/a.png", "y/a.png", "y/b.png")]
    lists = {"train": entry, "test": "/mnt/y/b.png"}
    assigned = {
        one.source: one.split for one in assign_splits(images, SplitOptions(lists=lists)) if not one.problem
    }
    assert assigned == {"x/a.png": "train", "y/b.png": "test"}


UNKNOWN = {
    "sa.json": (
        {"image": {"file_name": "a.png"}, "annotations": [{"bbox": [1, 2, 3, 4]}]},
        "image, annotations",
    ),
    "set.ndjson": ({"kind": "image", "url": "a.png"}, "kind, url"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_json_of_another_tool_is_described_and_not_called_coco(tmp_path, name):
    content, words = UNKNOWN[name]
    draw(tmp_path, "a.png")
    write_files(tmp_path, {name: json.dumps(content)})
    files = LocalFiles(tmp_path)
    assert suggest_layout(files) is None
    assert words in str(describe_annotations(files))


def test_a_volume_that_is_compressed_as_a_whole_is_no_archive(tmp_path):
    write_files(tmp_path, {"a b.nii.bz2": b"BZh"})
    assert "bunzip2 -k 'a b.nii.bz2'" in str(suggest_layout(LocalFiles(tmp_path)))
