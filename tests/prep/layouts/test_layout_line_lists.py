"""Lists with a picture in each line: Ultralytics NDJSON, SageMaker's manifests, and keras-yolo3's lists."""

import json

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.loader import Loader
from halofeed.prep.annotations.resolve_boxes import scale_to_pixels
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, detected, list_references, write_files

SIZE = (16, 24)
CENTERED = [0.5, 0.5, 0.5, 0.5]
IN_PIXELS = (6, 4, 18, 12)


def boxes_of(one):
    """The reason of a problem, or (label, corners in pixels) of each box and the reason of each bad object."""
    if one.problem:
        return one.problem[1]
    found = [scale_to_pixels(box, SIZE) if one.normalized else box for box in one.boxes]
    return [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in found] + [
        reason for reason, _ in one.bad_objects
    ]


def lines(*documents):
    return "".join(json.dumps(one) + "\n" for one in documents)


def header(**more):
    return {"type": "dataset", "task": "detect", "class_names": {"0": "cat", "1": "dog"}, **more}


def image(name, split="train", **annotations):
    return {
        "type": "image",
        "file": name,
        "width": 24,
        "height": 16,
        "split": split,
        "annotations": annotations,
    }


ROWS = [
    ({"boxes": [[1, *CENTERED]]}, ("dog", *IN_PIXELS)),
    ({"segments": [[0, 0.25, 0.25, 0.5, 0.25, 0.5, 0.75]]}, ("cat", 6, 4, 12, 12)),
    ({"obb": [[0, 0.25, 0.25, 0.75, 0.25, 0.75, 0.75, 0.25, 0.75]]}, ("cat", *IN_PIXELS)),
    ({"boxes": [[7, *CENTERED]]}, "class id is not in names"),
    ({"boxes": [[0, 1, 2]]}, "row is no object"),
    ({"boxes": [[0, 0.5, 0.5, -0.1, 0.5]]}, "box is inverted"),
    ({"boxes": ["no"]}, "row is no object"),
]


@pytest.mark.parametrize("case", range(len(ROWS)))
def test_a_row_of_ndjson_is_a_box_or_a_named_fault(tmp_path, case):
    annotations, expected = ROWS[case]
    write_files(tmp_path, {"set.ndjson": lines(header(), image("a.png", **annotations))})
    draw(tmp_path, "images/train/a.png")
    assert detected(tmp_path) == "yolo-ndjson"
    (one,) = list_references("yolo-ndjson", tmp_path)
    (found,) = boxes_of(one)
    assert found == expected or found == (expected[0], *map(pytest.approx, expected[1:]))


def test_pictures_of_ndjson_are_in_their_splits_with_or_without_objects(tmp_path):
    pictures = [image("a.png", boxes=[[0, *CENTERED]]), image("a.png", "val"), image("sub/b.png", "valid")]
    pictures[1].pop("annotations")
    write_files(
        tmp_path, {"set.ndjson": lines(header(), *pictures, image("gone.png", "test"), {"type": "other"})}
    )
    draw(tmp_path, "images/train/a.png", "images/val/a.png", "images/valid/sub/b.png")
    found = {one.source: one for one in list_references("yolo-ndjson", tmp_path)}
    assert {name: (one.split, boxes_of(one)) for name, one in found.items()} == {
        "gone.png": ("test", "image file not found"),
        "images/train/a.png": ("train", [("cat", *IN_PIXELS)]),
        "images/val/a.png": ("val", []),
        "images/valid/sub/b.png": ("val", []),
    }
    assert "no annotations in its line" in found["images/val/a.png"].notes[0]


def test_keypoints_of_ndjson_follow_kpt_shape(tmp_path):
    pose = [1, *CENTERED, 0.25, 0.5, 2, 0.0, 0.0, 0]
    write_files(
        tmp_path, {"set.ndjson": lines(header(kpt_shape=[2, 3]), image("a.png", pose=[pose, pose[:5]]))}
    )
    draw(tmp_path, "a.png")
    (one,) = list_references("yolo-ndjson", tmp_path, keep=("keypoints",))
    assert boxes_of(one) == [("dog", *IN_PIXELS)] * 2
    points = [(point.x, point.y, point.visibility) for point in one.boxes[0].keypoints]
    assert points == [(0.25, 0.5, 2), (0, 0, 0)]


def test_classes_of_ndjson_without_names_are_called_as_ultralytics_calls_them(tmp_path):
    write_files(tmp_path, {"set.ndjson": lines(image("a.png", boxes=[[2, *CENTERED]]))})
    draw(tmp_path, "a.png")
    (one,) = list_references("yolo-ndjson", tmp_path)
    assert boxes_of(one) == [("class2", *IN_PIXELS)]


def test_classes_of_pictures_in_ndjson(tmp_path):
    pictures = [image("a.png", classification=[1]), image("b.png", "val", classification=[0]), image("c.png")]
    write_files(tmp_path, {"set.ndjson": lines(header(task="classify"), *pictures)})
    draw(tmp_path, "a.png", "b.png", "c.png")
    found = by_source("yolo-ndjson", tmp_path)
    assert [one.label or one.problem[1] for one in found.values()] == ["dog", "cat", "picture has no class"]


def test_a_damaged_line_of_ndjson_is_named(tmp_path):
    write_files(tmp_path, {"set.ndjson": lines(header(), image("a.png")) + "{\n"})
    draw(tmp_path, "a.png")
    with pytest.raises(AnnotationsError, match=r"malformed JSON.*line 3"):
        list_references("yolo-ndjson", tmp_path)
    write_files(tmp_path, {"set.ndjson": lines(header(task="depth"), image("a.png"))})
    with pytest.raises(AnnotationsError, match="task is depth"):
        list_references("yolo-ndjson", tmp_path)


# SageMaker --------------------------------------------------------------------------------------------------


def labeled(name, kind, value, key="job", **meta):
    return {
        "source-ref": f"s3://bucket/some dir/{name}",
        key: value,
        f"{key}-metadata": {"type": f"groundtruth/{kind}", "human-annotated": "yes", **meta},
    }


CLASS_MAP = {"0": "cat", "1": "dog"}


def boxed(*entries):
    return {"image_size": [{"width": 24, "height": 16, "depth": 3}], "annotations": list(entries)}


def side(class_id=1, **more):
    return {"class_id": class_id, "left": 6, "top": 4, "width": 12, "height": 8, **more}


def test_boxes_of_a_manifest_have_the_classes_of_its_map(tmp_path):
    meta = {"class-map": CLASS_MAP, "objects": [{"confidence": 0.1}]}
    manifest = [
        labeled("a.png", "object-detection", boxed(side(), side(0, left=0)), **meta),
        labeled("b.png", "object-detection", boxed(), **meta),
        labeled("c.png", "object-detection", boxed(side(5), side(width=None), 3), **meta),
        {"source-ref": "s3://bucket/d.png"},
        labeled("e.png", "object-detection", boxed(), **{"failure-reason": "ClientError"}),
        {"source": "text"},
    ]
    write_files(tmp_path, {"train.manifest": lines(*manifest)})
    draw(tmp_path, *(f"pictures/{name}.png" for name in "abcde"))
    assert detected(tmp_path) == "sagemaker"
    found = {one.source: one for one in list_references("sagemaker", tmp_path)}
    assert {name: boxes_of(one) for name, one in found.items()} == {
        "pictures/a.png": [("dog", *IN_PIXELS), ("cat", 0, 4, 12, 12)],
        "pictures/b.png": [],
        "pictures/c.png": ["box has no class", "not a number", "box has no class"],
        "pictures/d.png": "image has no annotation",
        "pictures/e.png": "image has no annotation",
        "train.manifest#line 6": "line has no source-ref",
    }
    assert found["pictures/a.png"].declared_size == SIZE and found["pictures/a.png"].split == "train"


@pytest.mark.parametrize(
    ("kind", "value", "meta", "expected"),
    [
        ("image-classification", 1, {"class-name": "dog", "confidence": 0.9}, ("dog",)),
        ("image-classification-multilabel", [0, 1], {"class-map": CLASS_MAP}, ("cat", "dog")),
        ("image-classification-multilabel", [], {"class-map": {}}, ()),
        ("image-classification", 1, {}, ("1",)),
    ],
)
def test_classes_of_pictures_in_a_manifest(tmp_path, kind, value, meta, expected):
    other = labeled("b.png", "image-classification", 0, **{"class-name": "cat"})
    write_files(tmp_path, {"m.jsonl": lines(labeled("a.png", kind, value, **meta), other)})
    draw(tmp_path, "a.png", "b.png")
    assert detected(tmp_path) == "sagemaker"
    found = by_source("sagemaker", tmp_path, several_classes="keep")
    assert found["a.png"].labels == expected


def test_several_labels_and_label_images_of_a_manifest_are_named(tmp_path):
    both = labeled("a.png", "object-detection", boxed()) | labeled(
        "a.png", "object-detection", boxed(), "check"
    )
    # The short form of a color is not known, and no fault of the boxes.
    colors = {"0": {"class-name": "road", "hex-color": "#fff"}}
    image_line = labeled(
        "b.png", "semantic-segmentation", "s3://b/l.png", "x-ref", **{"internal-color-map": colors}
    )
    verified = labeled("c.png", "object-detection", boxed(side()), **{"class-map": CLASS_MAP})
    verified |= labeled("c.png", "label-verification", 1, "verified")
    again = labeled("d.png", "object-detection", boxed(), **{"failure-reason": "ClientError"})
    again |= labeled("d.png", "object-detection", boxed(side()), "again", **{"class-map": CLASS_MAP})
    write_files(tmp_path, {"m.manifest": lines(both, image_line, verified, again)})
    draw(tmp_path, "a.png", "b.png", "c.png", "d.png")
    found = by_source("sagemaker", tmp_path)
    assert [boxes_of(one) for one in found.values()] == [
        "line has several labels",
        "label is a picture in color",
        [("dog", *IN_PIXELS)],
        [("dog", *IN_PIXELS)],
    ]
    assert "--task segmentation" in found["b.png"].problem[2]


def colored(name, label, colors):
    given = {
        str(number): {"class-name": one, "hex-color": color, "confidence": 0.9}
        for number, (one, color) in enumerate(colors.items())
    }
    meta = {"internal-color-map": given, "human-annotated": "yes"}
    return labeled(name, "semantic-segmentation", f"s3://bucket/job/out/{label}", "street-ref", **meta)


COLORS = {"BACKGROUND": "#ffffff", "road": "#2acf59", "car": "#F28333"}


def test_label_images_of_a_manifest_have_the_classes_of_its_colors(tmp_path):
    # A line may count only the classes that its picture shows.
    few = {name: COLORS[name] for name in ("BACKGROUND", "car")}
    written = lines(colored("a b.png", "1_2020-01-01T00_00.png", COLORS), colored("c.png", "2.png", few))
    both = labeled("d.png", "object-detection", boxed(side()), **{"class-map": CLASS_MAP})
    write_files(tmp_path, {"in/m.manifest": written + "\n" + lines(both)})
    values = np.zeros((16, 24), np.uint8)
    values[2:5, 3:9], values[8:, 10:] = 1, 2
    shown = np.array([[255] * 3, [0x2A, 0xCF, 0x59], [0xF2, 0x83, 0x33]], np.uint8)
    for name in ("1_2020-01-01T00_00", "2"):
        (tmp_path / "in/out").mkdir(exist_ok=True)
        pixels = shown[values if name != "2" else values // 2 * 2]
        Image.fromarray(pixels).save(tmp_path / f"in/out/{name}.png")
    draw(tmp_path / "in", "a b.png", "c.png", "d.png", size=(16, 24))
    found = {one.source: one for one in list_references("sagemaker", tmp_path / "in", task="segmentation")}
    assert {name: one.problem and one.problem[0] for name, one in found.items()} == {
        "a b.png": None,
        "c.png": None,
        "d.png": "selection",
    }
    data = run_convert(
        *(tmp_path / "in", tmp_path / "out"),
        layout="sagemaker",
        task="segmentation",
        height=16,
        width=24,
        encoding="png",
    )
    loader = Loader(data.folder, batch_size=2, training=False, include=["key"])
    assert loader.manifest.labels == {0: "BACKGROUND", 1: "car", 2: "road"}
    batch = loader.batch(0)
    by_key = dict(zip(map(str, batch["key"]), batch["label"], strict=True))
    np.testing.assert_array_equal(by_key["a b.png"], np.array([0, 2, 1])[values])
    np.testing.assert_array_equal(by_key["c.png"], values // 2)


@pytest.mark.parametrize(
    ("colors", "words"),
    [
        ({"BACKGROUND": "#ffffff", "road": "green"}, "expected class-name and hex-color"),
        ({"BACKGROUND": "#ffffff", "lane": "#2acf59"}, "color 2acf59 is 'road', and 'lane' in"),
    ],
)
def test_colors_that_are_damaged_or_contradict_each_other_are_named(tmp_path, colors, words):
    write_files(
        tmp_path, {"m.manifest": lines(colored("a.png", "1.png", colors), colored("b.png", "2.png", COLORS))}
    )
    draw(tmp_path, "a.png", "b.png", "out/1.png", "out/2.png")
    with pytest.raises(AnnotationsError, match=words):
        list_references("sagemaker", tmp_path, task="segmentation")


def test_the_json_of_the_built_in_algorithm_describes_one_picture(tmp_path):
    document = {"file": "a.png", **boxed(side()), "categories": [{"class_id": 1, "name": "dog"}]}
    write_files(tmp_path, {"train_annotation/a.json": json.dumps(document)})
    draw(tmp_path, "train/a.png")
    assert detected(tmp_path) == "sagemaker"
    (one,) = list_references("sagemaker", tmp_path)
    assert (one.source, one.split, boxes_of(one)) == ("train/a.png", "train", [("dog", *IN_PIXELS)])


# keras-yolo3 ------------------------------------------------------------------------------------------------

LIST = (
    "/home/me/set/images/a.png 6,4,18,12,1 0,0,5.5,6,0\n"
    "images/b c.png\nimages/d.png 1,2,3\nimages/gone.png 1,2,3,4,0\n"
)


def test_lines_of_a_path_and_boxes_have_the_classes_of_a_list_beside_them(tmp_path):
    write_files(tmp_path, {"train.txt": LIST, "model_data/my_classes.txt": "cat\ndog\n"})
    draw(tmp_path, "images/a.png", "images/b c.png", "images/d.png")
    found = {one.source: one for one in list_references("keras-yolo", tmp_path)}
    assert {name: boxes_of(one) for name, one in found.items()} == {
        "images/a.png": [("dog", *IN_PIXELS), ("cat", 0, 0, 5.5, 6)],
        "images/b c.png": [],
        "images/d.png": "image has no annotation",
        "images/d.png 1,2,3": "line is no picture with boxes",
        "images/gone.png": "image file not found",
    }
    assert {one.split for one in found.values()} == {"train"}


@pytest.mark.parametrize(
    "others", [{}, {"classes.txt": "cat\n"}, {"classes.txt": "cat\ndog", "old_classes.txt": "dog\ncat"}]
)
def test_classes_are_numbers_with_a_note_where_no_list_names_them(tmp_path, others):
    write_files(tmp_path, {"a_train.txt": "a.png 6,4,18,12,1\nb.png 6,4,18,12,0 x\n", **others})
    draw(tmp_path, "a.png", "b.png")
    write_files(tmp_path, {"a_train.txt": "a.png 6,4,18,12,1\nb.png 6,4,18,12,0\n"})
    assert detected(tmp_path) == "keras-yolo"
    found = by_source("keras-yolo", tmp_path)
    assert [boxes_of(one) for one in found.values()] == [[("1", *IN_PIXELS)], [("0", *IN_PIXELS)]]
    assert "classes are numbers" in found["a.png"].notes[0]


def test_lists_of_paths_alone_are_no_lists_of_boxes(tmp_path):
    write_files(tmp_path, {"train.txt": "a.png\nb.png\n"})
    draw(tmp_path, "a.png", "b.png")
    with pytest.raises(AnnotationsError, match="expected a text file of keras-yolo3"):
        list_references("keras-yolo", tmp_path)
