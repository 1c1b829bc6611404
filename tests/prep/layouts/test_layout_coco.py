"""COCO instances."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.class_names import LabelCoding
from halofeed.prep.annotations.contract import ListedClasses, keep_classes
from halofeed.prep.convert.label_image import decoder_of
from halofeed.prep.layouts import LAYOUTS, LayoutOptions, SourceExample
from halofeed.prep.sources.files import LocalFiles
from tests.support.allocations import traced
from tests.support.layout_references import list_references, make

read = partial(list_references, "coco")
OWN = {"image_id": 7, "category_id": 3, "bbox": [0, 0, 4, 4]}
SHAPELESS = "segmentation is neither polygons nor run lengths"


def document(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.jpg", "height": 5, "width": 6}, {"id": 9, "file_name": "b.jpg"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 0.5], "area": 1.5, "iscrowd": 0}
        ],
        "categories": [{"id": 90, "name": "hat"}, {"id": 3, "name": "coat"}],
    }
    return content | changes


def classes_of(root: Path, **options: Any) -> dict[int, str]:
    """Return the classes that a listing returns at its end."""
    kept: list[ListedClasses] = []
    files = LocalFiles(root)
    listing = LAYOUTS["coco"].list_references(files, files, None, LayoutOptions(**options))
    list(keep_classes(listing, kept.append))
    return dict(kept[0]())


def write(root: Path, content: object, *images: str, name: str = "instances.json") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(content))
    make(root, *images)


def good(root: Path) -> SourceExample:
    """The one image without a problem."""
    (only,) = [one for one in read(root) if one.problem is None]
    return only


def test_coco_subset_has_53_images_576_boxes_10_crowds_and_its_masks(test_data):
    root = test_data / "detection" / "coco_ccby"
    content = json.loads((root / "instances.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    references = read(root, masks=True)
    assert len(references) == 53
    assert sum(len(reference.boxes or ()) for reference in references) == 576
    assert sum(box.is_crowd for reference in references for box in reference.boxes or ()) == 10
    masks = [box.mask for reference in references for box in reference.boxes or ()]
    in_order = {one.key: number for number, one in enumerate(references)}
    written = sorted(content["annotations"], key=lambda one: in_order[one["image_id"]])
    assert masks == [one["segmentation"] for one in written]
    assert all(box.mask is None for reference in read(root) for box in reference.boxes or ())
    assert [*classes_of(root).values()] == [names[identity] for identity in sorted(names)]


def test_panoptic_things_are_boxes_and_all_segments_are_classes_of_pixels(tmp_path):
    categories = [{"id": 9, "name": "cat", "isthing": 1}, {"id": 4, "name": "sky", "isthing": 0}]
    boxed = {"bbox": [0, 0, 2, 1], "area": 2, "iscrowd": 1}
    segments = [{"id": 70_000, "category_id": 9, **boxed}, {"id": 5, "category_id": 4, **boxed}]
    drawn = {"image_id": 7, "file_name": "a.png", "segments_info": segments}
    content = document(annotations=[drawn], categories=categories)
    write(tmp_path, content, "images/a.jpg", "images/b.jpg", name="annotations/panoptic_val.json")
    make(tmp_path, "annotations/panoptic_val/a.png")
    one, without = read(tmp_path, task="segmentation")
    assert (one.mask, one.segments) == ("annotations/panoptic_val/a.png", ((70_000, 2), (5, 1)))
    decode = decoder_of(LabelCoding(), one.segments)
    assert decode(np.array([[0, 0, 0], [112, 17, 1], [5, 0, 0]], np.uint8)).tolist() == [0, 2, 1]
    assert without.problem[1] == "image has no label"
    assert classes_of(tmp_path, task="segmentation") == {1: "sky", 2: "cat"}
    assert [*classes_of(tmp_path).values()] == ["cat"]
    (box,) = read(tmp_path)[0].boxes
    assert (box.label, box.xmax, box.ymax, box.is_crowd) == ("cat", 2, 1, True)
    for other, options in ((content, {"masks": True}), (document(), {"task": "segmentation"})):
        write(tmp_path, other, name="annotations/panoptic_val.json")
        with pytest.raises(AnnotationsError, match="a panoptic file"):
            read(tmp_path, **options)


def test_label_images_are_found_beside_a_panoptic_file_in_the_top_folder(tmp_path):
    segments = [{"id": 5, "category_id": 3, "area": 9, "bbox": [1, 2, 3, 4]}]
    annotations = [{"image_id": 7, "file_name": "a.png", "segments_info": segments}]
    write(
        tmp_path, document(annotations=annotations), "images/a.jpg", "images/b.jpg", name="panoptic_val.json"
    )
    make(tmp_path, "panoptic_val/a.png")
    (found,) = [one for one in read(tmp_path, task="segmentation") if one.source == "images/a.jpg"]
    assert (found.mask, found.problem) == ("panoptic_val/a.png", None)


def test_panoptic_segments_need_no_boxes(tmp_path):
    """COCO's panoptic format has a bbox in each segment, and other tools leave it out."""
    categories = [{"id": 9, "name": "cat", "isthing": 1}]
    drawn = {"image_id": 7, "file_name": "a.png", "segments_info": [{"id": 5, "category_id": 9}]}
    content = document(annotations=[drawn], categories=categories)
    write(tmp_path, content, "images/a.jpg", "images/b.jpg", name="annotations/panoptic_val.json")
    make(tmp_path, "annotations/panoptic_val/a.png")
    one, _ = read(tmp_path, task="segmentation")
    assert (one.problem, one.mask, one.segments) == (None, "annotations/panoptic_val/a.png", ((5, 1),))


def test_keys_of_image_entries_may_name_groups_of_classified_images_too(tmp_path):
    """COCO Camera Traps has the sequence of an image in seq_id; pictures of one sequence are nearly equal."""
    images = [{"id": 7, "file_name": "a.jpg", "seq_id": "s1", "frame_num": 1}]
    content = document(images=images, annotations=[{"id": 1, "image_id": 7, "category_id": 3}])
    write(tmp_path, content, "a.jpg")
    (one,) = read(tmp_path, task="classification", needs_groups=True)
    assert one.label and one.attributes == (("seq_id", "s1"), ("frame_num", "1"))


def test_images_without_annotations_are_negatives_and_those_of_lvis_are_found_by_their_address(tmp_path):
    write(tmp_path, document(), "a.jpg", "b.jpg")
    first, second = read(tmp_path)
    assert (first.key, second.key) == (7, 9)
    assert first.boxes is not None and first.boxes[0].label == "coat" and first.boxes[0].ymax == 2.5
    assert second.boxes == () and second.problem is None and second.declared_size is None
    name = "val2017/000000000007.jpg"
    images = [{"id": 7, "coco_url": f"http://images.cocodataset.org/{name}"}]
    write(tmp_path / "b", document(images=images), name, name="lvis_v1.json")
    (only,) = read(tmp_path / "b")
    assert (only.source, len(only.boxes), only.problem, only.notes) == (name, 1, None, ())


@pytest.mark.parametrize("place", ["", "images/", "val2017/", "images/val2017/", "other/"])
def test_images_are_found_where_coco_users_put_them(tmp_path, place):
    write(tmp_path, document(), f"{place}a.jpg", f"{place}b.jpg", name="annotations/instances_val2017.json")
    write(tmp_path, {"images": []}, name="annotations/captions_val2017.json")
    references = read(tmp_path)
    assert [reference.source for reference in references] == [f"{place}a.jpg", f"{place}b.jpg"]
    assert {reference.split for reference in references} == {"val2017"}


def test_files_whose_ids_start_anew_are_keyed_by_path_and_take_their_folder_as_split(tmp_path):
    for split in ("train", "valid"):
        pictures = (f"{split}/a.jpg", f"{split}/b.jpg")
        write(tmp_path, document(), *pictures, name=f"{split}/_annotations.coco.json")
    references = read(tmp_path)
    sources = ["train/a.jpg", "train/b.jpg", "valid/a.jpg", "valid/b.jpg"]
    assert [reference.source for reference in references] == sources
    assert all(reference.key == reference.source for reference in references)
    assert [reference.split for reference in references] == ["train", "train", "valid", "valid"]
    named = document(annotations=[{"id": 1, **OWN}], categories=[{"id": 3, "name": "cap"}])
    write(tmp_path, named, name="valid/_annotations.coco.json")
    words = r"valid/_annotations\.coco\.json: category 3 is 'cap', and 'coat' in a file before; .*make their"
    with pytest.raises(AnnotationsError, match=words):
        classes_of(tmp_path)


def test_every_image_and_annotation_is_accounted_for(tmp_path):
    annotations = [
        {"id": 1, **OWN, "bbox": [1, 2, -3, 1]},
        *({"id": n, **OWN, "image_id": 8} for n in (2, 3)),
    ]
    write(tmp_path, document(annotations=annotations), "a.jpg", "extra.jpg")
    references = read(tmp_path, on_bad_object="reject")
    problems = {(reference.source, reference.key): reference.problem for reference in references}
    lost = ("instances.json#image_id=8",) * 2
    assert {key: problem and problem[1] for key, problem in problems.items()} == {
        ("a.jpg", 7): "box is inverted",
        ("b.jpg", 9): "image file not found",
        ("extra.jpg", "extra.jpg"): "image has no annotation",
        lost: "annotation of an unknown image",
    }
    assert (problems[lost] or ("", "", ""))[2] == "2 annotations: 2, 3"


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ({"bbox": [0, 0, float("nan"), 1]}, "number is not finite"),
        ({"bbox": [0, 0, "wide", 1]}, "not a number"),
        ({"bbox": [0, 0, 1]}, "bbox is not four numbers"),
        ({"iscrowd": 2}, "flag is neither 0 nor 1"),
        ({"segmentation": [[1, 2, 3]]}, SHAPELESS),
        ({"segmentation": [0, 0, 1, 1]}, SHAPELESS),
        ({"segmentation": []}, "object has no segmentation"),
        ({"area": -1, "segmentation": [[0, 0, 1, 0, 1, 1]]}, "area is negative"),
    ],
)
def test_a_faulty_annotation_rejects_its_image_and_names_itself(tmp_path, annotation, reason):
    write(tmp_path, document(annotations=[{"id": 55, **OWN, **annotation}]), "a.jpg", "b.jpg")
    faulty, good = read(tmp_path, masks=True, on_bad_object="reject")
    assert good.problem is None
    assert faulty.problem is not None and faulty.problem[:2] == ("annotation", reason)
    assert "annotation 55" in faulty.problem[2]


SQUARE, LINE = [40, 40, 60, 40, 60, 60, 40, 60], [10, 10, 20, 20]


@pytest.mark.parametrize(
    ("parts", "kept", "lost"),
    [([SQUARE, LINE], [SQUARE], 1), ([[], SQUARE, [1, 2]], [SQUARE], 2), ([SQUARE], [SQUARE], 0)],
)
def test_a_polygon_of_two_points_is_left_out_and_the_object_stays(tmp_path, parts, kept, lost):
    write(tmp_path, document(annotations=[{"id": 55, **OWN, "segmentation": parts}]), "a.jpg", "b.jpg")
    one, _ = read(tmp_path, masks=True)
    (box,) = one.boxes or ()
    assert (box.mask, box.lost_parts, one.bad_objects) == (kept, lost, ())
    assert any("without an area" in note for note in one.notes) == bool(lost)
    one, _ = read(tmp_path, masks=True, on_bad_object="reject")
    assert (one.problem is None) == (not lost)


@pytest.mark.parametrize("parts", [[LINE], [LINE, [1, 2]], [[]]])
def test_an_object_that_is_only_a_line_has_no_mask_and_is_dropped_and_counted(tmp_path, parts):
    """As in Detectron2; pycocotools takes the four numbers of a line for a box."""
    write(tmp_path, document(annotations=[{"id": 55, **OWN, "segmentation": parts}]), "a.jpg", "b.jpg")
    one, _ = read(tmp_path, masks=True)
    assert one.boxes == () and [reason for reason, _ in one.bad_objects] == [
        "polygon has fewer than 3 points"
    ]


TWICE = {
    "categories": [{"id": number, "name": "hat"} for number in (3, 90)],
    "annotations": [{"id": 1, **OWN, "category_id": number} for number in (3, 90)],
}
WHOLE = [
    ([], ["expected COCO instances", "found list"]),
    ({"images": [], "info": {}}, ["annotations is no list", "found images, info"]),
    (
        document(annotations=[{"image_id": 7, "caption": "a hat"}]),
        ["no annotation has a bbox", "found caption"],
    ),
    (document(images=[{"file_name": "a.jpg"}]), ["each image needs an id", "a.jpg"]),
    (document(**TWICE), ["has an id or a name of another one that is used", "'hat'"]),
    (
        document(annotations=[{"id": 4, **OWN, "category_id": 5}]),
        ["annotation 4", "category_id 5", "defined: 3, 90"],
    ),
]


@pytest.mark.parametrize(("content", "words"), WHOLE)
def test_faults_of_the_whole_file_name_it(tmp_path, content, words):
    write(tmp_path, content, "a.jpg", "b.jpg")
    with pytest.raises(AnnotationsError, match=r"instances\.json") as caught:
        read(tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_one_bad_entry_or_two_of_one_file_cost_that_image_alone_and_one_in_two_splits_is_refused(tmp_path):
    ids = {"a": 7, "b": 8, "c": 8, "d": None}
    images = [*({"id": number, "file_name": f"{name}.jpg"} for name, number in ids.items()), {"id": 9}]
    write(tmp_path, document(images=images), "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    problems = [(one.source, one.problem) for one in read(tmp_path) if one.problem]
    assert {source: problem[1] for source, problem in problems if problem[0] == "annotation"} == {
        **dict.fromkeys(("b.jpg", "c.jpg"), "image id comes twice"),
        **{f"instances.json#images[{n}]": "image entry has no id or no file_name" for n in (3, 4)},
    }
    assert good(tmp_path).source == "a.jpg" and good(tmp_path).boxes
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "./a.jpg"}]
    write(tmp_path / "b", document(images=images, annotations=[]), "a.jpg")
    reasons = [(reference.problem or ("", ""))[1] for reference in read(tmp_path / "b")]
    assert reasons == ["several image entries name one file"] * 2
    (tmp_path / "b" / "instances.json").unlink()
    write(tmp_path / "b", document(), "a.jpg", "b.jpg", name="instances_train.json")
    write(tmp_path / "b", document(), name="instances_val.json")
    with pytest.raises(AnnotationsError, match=r"a\.jpg: lies in two splits, train and val"):
        read(tmp_path / "b")


def test_annotations_of_images_with_one_id_are_not_called_those_of_no_image(tmp_path):
    images = [{"id": 7, "file_name": f"{name}.jpg"} for name in "ab"]
    write(tmp_path, document(images=images, annotations=[{"id": 1, **OWN}]), "a.jpg", "b.jpg")
    problems = [one.problem for one in read(tmp_path) if one.problem and one.problem[0] == "annotation"]
    assert {problem[1] for problem in problems} == {"image id comes twice"}
    assert all("id 7 is a.jpg and b.jpg; give each its own" in problem[2] for problem in problems)


@pytest.mark.parametrize("category", [5, None, "hat", True])
def test_one_object_of_no_category_is_dropped_and_named(tmp_path, category):
    annotations = [{"id": 1, **OWN}, {"id": 2, **OWN, "category_id": category}]
    write(tmp_path, document(annotations=annotations), "a.jpg")
    found = good(tmp_path)
    assert len(found.boxes or ()) == 1
    assert [reason for reason, _ in found.bad_objects] == ["object has no class"]
    assert "annotation 2: category_id" in found.bad_objects[0][1]


@pytest.mark.parametrize("image_id", ["a.jpg", "007", 70, None])
def test_annotations_that_belong_to_no_image_do_not_leave_pictures_without_objects(tmp_path, image_id):
    lost = [{"id": n, **OWN, "image_id": image_id} for n in range(12)]
    for listed in (lost[:1], [*lost, {"id": 20, **OWN}]):
        write(tmp_path, document(annotations=listed), "a.jpg")
        with pytest.raises(AnnotationsError, match=r"instances\.json: 1?\d of .* belong to no image.*image"):
            read(tmp_path)


SIZED = [{"id": 7, "file_name": "a.jpg", "width": 40, "height": 30}]


KINDS = [
    *({"image_id": {"id": 7}}, {"image_id": [7]}, {"image_id": "9" * 5000}),
    *({"bbox": [0, 0, 10**400, 4]}, {"bbox": [0, 0, float("nan"), 4]}),
]
HARMLESS = {
    "an image that is listed twice alike": {"images": SIZED * 2},
    "some images with the annotations of all": {
        "images": SIZED,
        "annotations": [{"id": 20, **OWN}, *({"id": n, **OWN, "image_id": 100 + n} for n in range(15))],
    },
    "a crowd flag that is null": {"annotations": [{"id": 1, **OWN, "iscrowd": None}]},
    **{
        f"an object of values of another kind {n}": {
            "images": SIZED,
            "annotations": [{"id": 9, **OWN, **odd}, {"id": 1, **OWN}],
        }
        for n, odd in enumerate(KINDS)
    },
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_odd_in_a_file_costs_itself_alone(tmp_path, what):
    write(tmp_path, document(**HARMLESS[what]), "a.jpg")
    (box,) = good(tmp_path).boxes or ()
    assert good(tmp_path).source == "a.jpg" and not box.is_crowd


def test_what_is_not_json_is_refused_by_name(tmp_path):
    (tmp_path / "instances.json").write_text("{")
    with pytest.raises(AnnotationsError, match=r"instances\.json: expected COCO instances as JSON"):
        read(tmp_path)
    with pytest.raises(AnnotationsError, match=r"gone\.json in .*: read: file cannot be read"):
        read(tmp_path, "gone.json")


def test_outlines_are_held_only_where_they_are_asked_for(tmp_path):
    polygon = [[float(number) for number in range(200)]]
    objects = [{"id": number, **OWN, "area": 1.5, "segmentation": polygon} for number in range(500)]
    write(tmp_path, document(annotations=objects), "a.jpg", "b.jpg")
    with traced() as plain:
        (boxes, *_) = read(tmp_path)
    with traced() as full:
        (with_masks, *_) = read(tmp_path, masks=True)
    assert len(boxes.boxes or ()) == len(with_masks.boxes or ()) == 500
    assert full.peak - plain.peak > 500 * 200 * 20


def test_a_turned_rectangle_without_a_bbox_is_counted_as_an_oriented_box(tmp_path):
    turned = [20, 0, 40, 20, 20, 40, 0, 20]
    one = {"id": 1, "image_id": 7, "category_id": 3, "segmentation": [turned]}
    write(tmp_path, document(annotations=[one]), "a.jpg", "b.jpg")
    found, _ = read(tmp_path)
    (box,) = found.boxes or ()
    assert (box.turned_share, box.area, box.xmax) == (0.5, 800, 40)
    assert any("oriented boxes (1 of 1 object) became" in note for note in found.notes)
    assert not any("not read" in note for note in found.notes)
    found, _ = read(tmp_path, oriented_boxes="drop")
    assert [reason for reason, _ in found.bad_objects] == ["box is oriented"]
    found, _ = read(tmp_path, masks=True)
    assert found.boxes and found.boxes[0].mask == [turned] and found.boxes[0].turned_share is None
