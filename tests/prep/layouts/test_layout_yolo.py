"""YOLO's data.yaml, label files and folders."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.loader import Loader
from tests.support.conversions import run_convert
from tests.support.layout_references import list_references, write_files

read = partial(list_references, "yolo")
YAML = "train: images/train\nval: images/val\nnames: [hat, coat]\n"
ROW = "0 0.5 0.5 0.2 0.4\n"
TWO = {"images/train/a.jpg": "", "images/val/b.jpg": "", "labels/train/a.txt": ROW, "labels/val/b.txt": ""}


def test_a_rotated_picture_and_a_plain_one_store_the_fractions_as_written(tmp_path):
    rows = np.array([[0, 0.5, 0.25, 0.5, 0.25], [1, 0.125, 0.75, 0.25, 0.375]])
    for name, orientation in (("plain", 1), ("turned", 6)):
        write_files(tmp_path, {f"s/labels/{name}.txt": "\n".join(" ".join(map(str, row)) for row in rows)})
        (tmp_path / "s/images").mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (64, 32)).save(tmp_path / f"s/images/{name}.jpg", exif=exif)
    write_files(tmp_path, {"s/data.yaml": "names: {0: hat, 1: 'no'}\n"})
    run_convert(tmp_path / "s", tmp_path, layout="yolo", height=32, width=32)
    batch = Loader(tmp_path / "set/1.0.0", split="train", batch_size=2).batch(0)
    _, x, y, width, height = rows.T
    expected = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=1)
    for boxes, labels in zip(batch["boxes"], batch["classes"], strict=True):
        np.testing.assert_allclose(boxes[:2], expected, atol=1e-6)
        assert len(set(labels[:2])) == 2


@pytest.mark.parametrize(
    ("yaml", "images"),
    [
        (YAML, "images/{}/"),
        ("path: .\ntrain: [images/train]\nval: images/val/\nnc: 2\n", "images/{}/"),
        ("path: ../datasets/x\n" + YAML, "images/{}/"),
        ("path: sub\n" + YAML, "sub/images/{}/"),
        ("path: /content/x\n" + YAML, "images/{}/"),
        ("train: ../train/images\nval: ../val/images\ntest: ../test\nnames: ['1', 2]\n", "{}/images/"),
        ("train: /content/set/train/images\nval: C:\\set\\val\\images\nnames: [a, b]\n", "{}/images/"),
        ("train: train.txt\nval: val.txt\nnames: [a, b]\n", "images/{}/"),
        ("nc: 2\nnames: [a, b]\n", "images/{}/"),
        (None, "{}/images/"),
    ],
)
@pytest.mark.parametrize("folder", ["", "deep/"])
def test_paths_of_data_yaml_lead_to_the_same_pictures(tmp_path, yaml, folder, images):
    content = {"config.yaml": "lr: [1", f"{folder}classes.txt": "a\nb\n"}
    content |= {} if yaml is None else {f"{folder}data.yaml": yaml}
    paths = {folder + images.format(split): split for split in ("train", "val")}
    for path, split in paths.items():
        content |= {f"{path}a.jpg": "", f"{path.replace('images', 'labels')}a.txt": ROW}
        content[f"{folder}{split}.txt"] = f"./{path.removeprefix(folder)}a.jpg\n"
    write_files(tmp_path, content)
    found = {one.source: one.split for one in read(tmp_path) if one.problem is None}
    assert found == {f"{path}a.jpg": split for path, split in paths.items()}


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ("\ufeff0.0\t.5 .5 .2 .4\r\n\r\n", [0.4, 0.3, 0.6, 0.7]),
        ("1 0 0 1 0 1 .5", [0, 0, 1, 0.5]),
        ("0 .1 .1 .4 .1 .4 .5 .1 .5", [0.1, 0.1, 0.4, 0.5]),
        ("2 .5 .5 .2 .4", "class id is not in names"),
        ("0 .5 .5 .2 .4 .9", "row is no object"),
        ("0 .5 .5 nan .4", "number is not finite"),
        ("0,.5,.5,.2,.4", "not a number"),
        ("0 .5 .5 -.2 .4", "box is inverted"),
        ("0 320 240 64 48", "box is no share of the picture"),
    ],
)
def test_a_row_is_a_box_a_polygon_or_a_named_fault(tmp_path, row, outcome):
    write_files(tmp_path, TWO | {"data.yaml": YAML, "labels/train/a.txt": row, "labels/train/z.txt": ROW})
    (one,) = (one for one in read(tmp_path) if one.source.endswith("a.jpg"))
    found = [one.problem[1]] if one.problem else [reason for reason, _ in one.bad_objects]
    if isinstance(outcome, str):
        assert (found, one.boxes) == ([outcome], ())
    else:
        (box,) = one.boxes
        assert [box.xmin, box.ymin, box.xmax, box.ymax] == pytest.approx(outcome)
    assert [one.problem[1] for one in read(tmp_path) if one.problem] == ["label file has no image"]


@pytest.mark.parametrize("is_exact", [True, False])
def test_four_corners_in_each_row_are_oriented_boxes_even_if_they_are_no_rectangles(tmp_path, is_exact):
    turned = "0 .5 .1 .7 .3 .5 .5 .3 .3\n" if is_exact else "0 .5 .1 .7 .25 .45 .5 .3 .4\n"
    upright = "1 .1 .1 .4 .1 .4 .5 .1 .5\n"
    write_files(
        tmp_path, TWO | {"data.yaml": YAML, "labels/train/a.txt": turned + upright, "labels/val/b.txt": ""}
    )
    (one,) = (one for one in read(tmp_path) if one.source.endswith("a.jpg"))
    assert [box.turned_share is not None for box in one.boxes] == [True, False]
    assert [note for note in one.notes if "oriented boxes (1 of 2 objects)" in note]
    (one,) = (one for one in read(tmp_path, oriented_boxes="drop") if one.source.endswith("a.jpg"))
    assert [box.label for box in one.boxes] == ["coat"] and one.bad_objects[0][0] == "box is oriented"
    (one,) = (one for one in read(tmp_path, masks=True) if one.source.endswith("a.jpg"))
    assert len(one.boxes) == 2 and not one.notes
    polygon = "0 .5 .1 .7 .25 .45 .5 .3 .4 .2 .2\n"
    write_files(tmp_path, {"labels/val/b.txt": polygon})
    (one,) = (one for one in read(tmp_path) if one.source.endswith("a.jpg"))
    assert (one.boxes[0].turned_share is not None) == is_exact


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data.yaml": YAML + "nc: 3\n"}, "nc is 3, and names has 2"),
        ({"data.yaml": YAML + f"nc: {'9' * 5000}\n"}, "nc: expected a whole number of at most"),
        ({"data.yaml": YAML.replace("names: [hat, coat]", "nc: 0")}, "names: expected a text for each class"),
        ({"data.yaml": YAML.replace("coat", "hat")}, "0 and 1 are both called 'hat'"),
        (
            {"data.yaml": YAML.replace("images/val", "images/train")},
            "in the splits train and val.*--split-shares",
        ),
        ({"data.yaml": YAML, "b.yaml": YAML}, "name one of them: --source .*b.yaml"),
        ({"data.yaml": "a: &a [x]\nnames: *a\n"}, "alias"),
        ({"data.yaml": "names: [a\n"}, "not valid YAML"),
        ({"data.yaml": YAML + "train: x\n"}, "'train' comes twice"),
        ({"data.yaml": "train: x\nval: y\nnames: [a]\n"}, "no image lies at train: x, val: y"),
        ({}, "nothing below it names the classes; write a data.yaml"),
        (
            {"data.yaml": YAML, "labels/train/a.txt": None, "labels/val/b.txt": None},
            "labels/train/a.txt for images/tr",
        ),
    ],
)
def test_a_source_that_can_mean_two_things_is_refused(tmp_path, content, words):
    write_files(tmp_path, {name: text for name, text in (TWO | content).items() if text is not None})
    with pytest.raises(AnnotationsError, match=f"(?s){words}"):
        read(tmp_path)


def test_keypoints_take_their_number_from_kpt_shape(tmp_path):
    pose = "kpt_shape: [2, 3]\n" + YAML
    write_files(
        tmp_path,
        TWO
        | {
            "data.yaml": pose,
            "labels/train/a.txt": "0 .5 .5 .2 .4 .1 .2 2 0 0 0\n0 .5 .5 .2 .4 .1 .2 1.9 0 0 0\n",
        },
    )
    (one, _) = read(tmp_path, keep=("keypoints",))
    (box,), ((reason, _),) = one.boxes, one.bad_objects
    assert reason == "visibility of a keypoint is unknown"
    assert [(one.x, one.y, one.visibility) for one in box.keypoints] == [(0.1, 0.2, 2), (0, 0, 0)]
