"""FiftyOne's labels.json and samples.json, and Datumaro's annotations/SUBSET.json."""

import base64
import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.loader import Loader
from halofeed.prep.annotations.resolve_boxes import scale_to_pixels
from halofeed.prep.layouts import LayoutOptions, find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.masks import draw_mask
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, detected, list_references, write_files

SIZE = (16, 24)
BOX = [0.25, 0.25, 0.5, 0.5]
IN_PIXELS = (6, 4, 18, 12)


def boxes_of(one, size=SIZE):
    """The reason of a problem, or (label, corners in pixels) of each box and the reason of each bad object."""
    if one.problem:
        return one.problem[1]
    found = [scale_to_pixels(box, size) if one.normalized else box for box in one.boxes]
    return [(box.label, box.xmin, box.ymin, box.xmax, box.ymax) for box in found] + [
        reason for reason, _ in one.bad_objects
    ]


def classes_listed(layout, root):
    """The classes in the order of the files."""
    files = LocalFiles(root)
    listing = find_layout(layout).list_references(files, files, None, LayoutOptions())
    while True:
        try:
            next(listing)
        except StopIteration as end:
            return list(end.value().values()) if end.value else None


def packed(mask):
    stream = io.BytesIO()
    np.save(stream, np.asarray(mask, bool))
    return base64.b64encode(zlib.compress(stream.getvalue())).decode()


def labels(targets, classes=("cat", "dog", "ox")):
    return json.dumps({"classes": classes, "labels": targets})


def sample(name, size=SIZE, **fields):
    metadata = {"_cls": "ImageMetadata", "height": size[0], "width": size[1]} if size else None
    return {"_id": {"$oid": "6"}, "filepath": f"data/{name}", "tags": [], "metadata": metadata, **fields}


def detections(*entries, **more):
    return {"_cls": "Detections", "detections": [{"_cls": "Detection", **one} for one in entries], **more}


def polylines(*entries):
    return {"_cls": "Polylines", "polylines": [{"_cls": "Polyline", **one} for one in entries]}


def write_samples(root, *samples):
    write_files(root, {"samples.json": json.dumps({"samples": samples}), "metadata.json": '{"version": "1"}'})
    draw(root, *(one["filepath"] for one in samples))


def test_labels_of_pictures_are_boxes_by_their_shares_and_names_by_the_list(tmp_path):
    one = {
        "label": 1,
        "bounding_box": BOX,
        "attributes": {"iscrowd": {"_cls": "NumericAttribute", "value": 1.0}},
    }
    targets = {
        "a": [one, {"label": "cow", "bounding_box": BOX}],
        "sub/b": [],
        "c": None,
        "d": [{**one, "label": 9}],
    }
    write_files(tmp_path, {"labels.json": labels(targets)})
    draw(tmp_path, "data/a.png", "data/sub/b.png", "data/c.png", "data/d.png", "data/e.png")
    assert detected(tmp_path) == "fiftyone"
    found = by_source("fiftyone", tmp_path)
    assert {name: boxes_of(example) for name, example in found.items()} == {
        "data/a.png": [("dog", *IN_PIXELS), ("cow", *IN_PIXELS)],
        "data/sub/b.png": [],
        "data/c.png": "image has no annotation",
        "data/d.png": ["box has no class"],
        "data/e.png": "image has no annotation",
    }
    assert [box.is_crowd for box in found["data/a.png"].boxes] == [True, False]
    assert classes_listed("fiftyone", tmp_path) == ["cat", "dog", "ox"]


@pytest.mark.parametrize(
    ("classes", "target", "expected"),
    [
        (["cat", "dog"], 1, "dog"),
        (["cat", "dog"], "dog", "dog"),
        (["cat", "dog"], {"label": 0, "confidence": 0.5}, "cat"),
        (None, "ox", "ox"),
        (None, 3, "3"),
    ],
)
def test_labels_without_boxes_are_classes_of_pictures(tmp_path, classes, target, expected):
    write_files(tmp_path, {"labels.json": labels({"a": target}, classes)})
    draw(tmp_path, "data/a.png")
    (one,) = list_references("fiftyone", tmp_path)
    assert one.label == expected
    write_files(tmp_path, {"labels.json": labels({"a": [target, "pig"]}, classes)})
    (one,) = list_references("fiftyone", tmp_path, several_classes="keep")
    assert one.labels == (expected, "pig")


def test_samples_have_objects_flags_splits_and_groups(tmp_path):
    first = {
        "label": "cat",
        "bounding_box": BOX,
        "occluded": True,
        "attributes": {"truncated": {"value": "true"}},
    }
    outline = {
        "label": "dog",
        "points": [[[0.25, 0.25], [0.5, 0.25], [0.5, 0.75]]],
        "closed": True,
        "filled": True,
    }
    write_samples(
        tmp_path,
        sample("a.png", tags=["train", "sunny"], ground_truth=detections(first), weather="rain"),
        sample(
            "b.png",
            tags=["val"],
            ground_truth=polylines(outline, {**outline, "closed": False, "filled": False}),
        ),
        sample("c.png", tags=["val"], ground_truth=None),
        sample(
            "d.png", tags=["train", "val"], ground_truth=detections({"label": "cat", "bounding_box": [0.1]})
        ),
    )
    assert detected(tmp_path) == "fiftyone"
    found = by_source("fiftyone", tmp_path, needs_groups=True)
    assert {name[5]: (one.split, boxes_of(one)) for name, one in found.items()} == {
        "a": ("train", [("cat", *IN_PIXELS)]),
        "b": ("val", [("dog", 6, 4, 12, 12), "shape is no box"]),
        "c": ("val", "image has no annotation"),
        "d": ("train", ["object has no box"]),
    }
    (box,) = found["data/a.png"].boxes
    assert (box.occluded, box.truncated, box.difficult) == (True, True, False)
    assert ("weather", "rain") in found["data/a.png"].attributes and found["data/a.png"].declared_size == SIZE


def test_predictions_give_way_to_objects_without_confidences(tmp_path):
    one = {"label": "cat", "bounding_box": BOX}
    sure = {**one, "label": "dog", "confidence": 0.9}
    heat = {"_cls": "Heatmap"}
    write_samples(tmp_path, sample("a.png", guess=detections(sure), truth=detections(one), heat=heat))
    (found,) = list_references("fiftyone", tmp_path)
    assert boxes_of(found) == [("cat", *IN_PIXELS)]
    assert "not read: heat, guess" in found.notes[0]
    write_samples(tmp_path, sample("a.png", guess=detections(sure)))
    (found,) = list_references("fiftyone", tmp_path)
    assert boxes_of(found) == [("dog", *IN_PIXELS)] and "are predictions" in found.notes[0]
    write_samples(tmp_path, sample("a.png", truth=detections(one), more=detections(one)))
    (found,) = list_references("fiftyone", tmp_path)
    assert found.problem[1] == "several fields hold objects" and "select_fields('truth')" in found.problem[2]


def test_a_field_of_classes_is_read_where_there_are_no_objects(tmp_path):
    truth = {"_cls": "Classification", "label": "cat"}
    several = {
        "_cls": "Classifications",
        "classifications": [truth, {"_cls": "Classification", "label": "ox"}],
    }
    write_samples(tmp_path, sample("a.png", truth=truth), sample("b.png", truth=several))
    found = by_source("fiftyone", tmp_path, several_classes="keep")
    assert [one.labels for one in found.values()] == [("cat",), ("cat", "ox")]
    write_samples(
        tmp_path, sample("a.png", truth=truth, boxes=detections({"label": "ox", "bounding_box": BOX}))
    )
    (one, _) = list_references("fiftyone", tmp_path)
    assert boxes_of(one) == [("ox", *IN_PIXELS)] and "not read: truth" in one.notes[0]


@pytest.mark.parametrize("shape", [(8, 12), (7, 12), (4, 6), (16, 24)])
def test_a_mask_covers_its_box(tmp_path, shape):
    mask = np.zeros(shape, bool)
    mask[: shape[0] // 2, shape[1] // 4 :] = True
    one = {
        "label": "cat",
        "bounding_box": BOX,
        "mask": {"$binary": {"base64": packed(mask), "subType": "00"}},
    }
    write_samples(tmp_path, sample("a.png", truth=detections(one, {**one, "mask": packed(mask)})))
    (found,) = list_references("fiftyone", tmp_path, masks=True)
    drawn = draw_mask(found.boxes[0].mask, SIZE)
    rows, columns = np.arange(8) * shape[0] // 8, np.arange(12) * shape[1] // 12
    expected = np.zeros(SIZE, np.uint8)
    # Masks that are as large as the box but for rounding keep their pixels.
    resized = mask if shape in ((8, 12), (7, 12)) else mask[rows][:, columns]
    expected[4 : 4 + len(resized), 6:18] = resized
    assert np.array_equal(drawn, expected) and found.boxes[1].mask == found.boxes[0].mask


@pytest.mark.parametrize(
    ("mask", "size", "reason"),
    [
        (None, SIZE, "object has no segmentation"),
        ("eJw=", SIZE, "mask is no packed array"),
        (packed([[[True]]]), SIZE, "mask is no packed array"),
        (packed([[True]]), None, "size of the picture is missing"),
    ],
)
def test_a_mask_that_cannot_be_drawn_is_a_named_fault(tmp_path, mask, size, reason):
    one = {"label": "cat", "bounding_box": BOX, "mask": mask}
    write_samples(tmp_path, sample("a.png", size, truth=detections(one)))
    (found,) = list_references("fiftyone", tmp_path, masks=True)
    assert boxes_of(found) == [reason]


def keypoints(*entries):
    return {"_cls": "Keypoints", "keypoints": list(entries)}


def points(label, *places, **more):
    return {"label": label, "points": list(places), **more}


NAN = float("nan")


def test_keypoints_belong_to_the_detection_of_their_instance_or_of_their_place(tmp_path):
    first, second = ({"label": "cat", "bounding_box": box} for box in (BOX, [0, 0, 0.5, 0.5]))
    nose, tail = points("cat", [0.25, 0.5], [NAN, NAN]), points("cat", [0.75, 0.5], [0.5, 1])
    skeleton = {"skeletons": {"pose": {"labels": ["nose", "tail"], "edges": []}}}
    for described in (skeleton, {"info": {"default_skeleton": skeleton["skeletons"]["pose"]}}):
        write_samples(tmp_path, sample("a.png", truth=detections(first, second), pose=keypoints(nose, tail)))
        write_files(tmp_path, {"metadata.json": json.dumps(described)})
        (found,) = list_references("fiftyone", tmp_path, keep=("keypoints",))
        one, two = (scale_to_pixels(box, SIZE) for box in found.boxes)
        assert [(p.name, p.x, p.y, p.visibility) for p in one.keypoints] == [
            ("nose", 6, 8, 2),
            ("tail", 0, 0, 0),
        ]
        assert [(p.x, p.y) for p in two.keypoints] == [(18, 8), (12, 16)]
        assert any("in their order" in note for note in found.notes)
    ids = [{"instance": {"_cls": "Instance", "_id": {"$oid": name}}} for name in ("x", "y")]
    shown = detections({**first, **ids[1]}, second, {**second, **ids[0]})
    write_samples(tmp_path, sample("a.png", truth=shown, pose=keypoints({**nose, **ids[0]})))
    (found,) = list_references("fiftyone", tmp_path, keep=("keypoints",))
    assert [[p.visibility for p in box.keypoints] for box in found.boxes] == [[0, 0], [0, 0], [2, 0]]
    assert not any("order" in note for note in found.notes)
    (plain,) = list_references("fiftyone", tmp_path)
    assert not plain.boxes[0].keypoints and any("pose" in note for note in plain.notes)


def test_keypoints_alone_have_the_box_around_them_and_those_of_no_object_are_named(tmp_path):
    write_samples(tmp_path, sample("a.png", pose=keypoints(points("cat", [0.25, 0.25], [0.75, 0.75]))))
    (found,) = list_references("fiftyone", tmp_path, keep=("keypoints",))
    assert boxes_of(found) == [("cat", *IN_PIXELS)]
    assert [p.name for p in found.boxes[0].keypoints] == ["keypoint_1", "keypoint_2"]
    other = keypoints(points("dog", [0.5, 0.5]))
    write_samples(
        tmp_path, sample("a.png", truth=detections({"label": "cat", "bounding_box": BOX}), pose=other)
    )
    (found,) = list_references("fiftyone", tmp_path, keep=("keypoints",))
    assert boxes_of(found) == "keypoints belong to no object" and "fiftyone.Instance" in found.problem[2]
    write_samples(tmp_path, sample("a.png", pose=keypoints(points("cat", [0.25], [0.75, 0.75]))))
    (found,) = list_references("fiftyone", tmp_path, keep=("keypoints",))
    assert boxes_of(found) == ["not a number"]


@pytest.mark.parametrize("path", ["fields/truth/1.png", "/home/me/export/fields/truth/1.png"])
def test_the_file_of_a_mask_is_drawn_as_a_packed_mask_and_is_no_picture(tmp_path, path):
    mask = np.zeros((8, 12), bool)
    mask[:4, 3:] = True
    packed_one = {"label": "cat", "bounding_box": BOX, "mask": packed(mask)}
    in_file = {"label": "cat", "bounding_box": BOX, "mask_path": path}
    missing = {**in_file, "mask_path": "gone.png"}
    write_samples(tmp_path, sample("a.png", truth=detections(packed_one, in_file, missing)))
    (tmp_path / "fields/truth").mkdir(parents=True)
    Image.fromarray(mask.astype(np.uint8) * 255).save(tmp_path / "fields/truth/1.png")
    (found,) = list_references("fiftyone", tmp_path, masks=True)
    assert found.boxes[0].mask == found.boxes[1].mask and len(found.boxes) == 2
    assert [reason for reason, _ in found.bad_objects] == ["file of the mask is missing"]


def segmentation(**more):
    return {"_cls": "Segmentation", "_id": {"$oid": "7"}, **more}


def packed_values(values):
    stream = io.BytesIO()
    np.save(stream, values)
    return {
        "$binary": {"base64": base64.b64encode(zlib.compress(stream.getvalue())).decode(), "subType": "00"}
    }


@pytest.mark.parametrize("form", ["packed", "files", "colors"])
def test_segmentations_are_label_images_with_the_classes_of_mask_targets(tmp_path, form):
    values = np.zeros(SIZE, np.uint8)
    values[2:7, 3:9], values[10:, 4:20] = 1, 2
    palette = np.array([[0, 0, 0], [255, 0, 9], [0, 128, 0]], np.uint8)
    targets = {"1": "cat", "2": "dog"} if form != "colors" else {"#ff0009": "cat", "#008000": "dog"}
    root = tmp_path / "in"
    label = {"mask": packed_values(values)} if form == "packed" else {"mask_path": "fields/truth/a.png"}
    write_samples(root, sample("a.png", truth=segmentation(**label)), sample("b.png", truth=None))
    write_files(root, {"metadata.json": json.dumps({"mask_targets": {"truth": targets}})})
    if form != "packed":
        (root / "fields/truth").mkdir(parents=True)
        Image.fromarray(palette[values] if form == "colors" else values).save(root / "fields/truth/a.png")
    draw(root, "data/a.png", "data/b.png", size=SIZE)
    assert detected(root) == "fiftyone"
    found = {one.source: one for one in list_references("fiftyone", root, task="segmentation")}
    assert {name: one.problem and one.problem[0] for name, one in found.items()} == {
        "data/a.png": None,
        "data/b.png": "selection",
    }
    data = run_convert(
        root,
        tmp_path / "out",
        layout="fiftyone",
        task="segmentation",
        height=SIZE[0],
        width=SIZE[1],
        encoding="png",
    )
    loader = Loader(data.folder, batch_size=1, training=False)
    assert {1: "cat", 2: "dog"}.items() <= loader.manifest.labels.items()
    np.testing.assert_array_equal(loader.batch(0)["label"][0], values)


SEGMENTATIONS = [
    ({"mask": packed_values(np.zeros((*SIZE, 3), np.uint8))}, "segmentation is no picture of classes"),
    ({"mask": packed_values(np.zeros((3, 4), np.uint8))}, "segmentation has another size than its picture"),
    ({"mask": "eJw="}, "mask is no packed array"),
    ({"mask_path": "gone.png"}, "label image is missing"),
]


@pytest.mark.parametrize(("label", "reason"), SEGMENTATIONS)
def test_a_segmentation_that_cannot_be_read_is_a_named_fault(tmp_path, label, reason):
    good = sample("b.png", truth=segmentation(mask=packed_values(np.ones(SIZE, np.int64))))
    if "mask_path" in label:
        good = sample("b.png", truth=segmentation(mask_path="m.png"))
        draw(tmp_path, "m.png", size=SIZE)
    write_samples(tmp_path, sample("a.png", truth=segmentation(**label)), good)
    draw(tmp_path, "data/b.png", size=SIZE)
    found = list_references("fiftyone", tmp_path, task="segmentation")
    assert [one.problem and one.problem[1] for one in found] == [reason, None]


def test_two_fields_or_two_forms_of_segmentations_are_refused_in_words(tmp_path):
    one = segmentation(mask=packed_values(np.ones(SIZE, np.uint8)))
    for pair, words in (
        ([sample("a.png", truth=one, other=one)], "several fields hold segmentations"),
        ([sample("a.png", truth=one), sample("b.png", truth=segmentation(mask_path="m.png"))], "two forms"),
    ):
        write_samples(tmp_path, *pair)
        with pytest.raises(AnnotationsError, match=words):
            list_references("fiftyone", tmp_path, task="segmentation")


# Datumaro ---------------------------------------------------------------------------------------------------


def items(*listed, names=("cat", "dog")):
    categories = {"label": {"labels": [{"name": name, "parent": ""} for name in names]}}
    return json.dumps({"dm_format_version": "1.0", "categories": categories, "items": listed})


def item(name, *annotations, **more):
    return {
        "id": name,
        "annotations": list(annotations),
        "image": {"path": f"{name}.png", "size": [*SIZE]},
        **more,
    }


def shape(kind, label_id=0, **more):
    return {"type": kind, "label_id": label_id, "attributes": {}, "group": 0, **more}


SQUARE, FAR = [2, 3, 12, 3, 12, 9, 2, 9], [14, 10, 20, 10, 20, 14, 14, 14]
SHAPES = [
    (shape("bbox", bbox=[2, 3, 10, 6]), ("cat", 2, 3, 12, 9)),
    (shape("polygon", 1, points=SQUARE), ("dog", 2, 3, 12, 9)),
    (shape("mask", rle={"size": [*SIZE], "counts": [35, 4, 12, 4, 329]}), ("cat", 2, 3, 4, 7)),
    (shape("ellipse", points=[2, 3, 12, 9]), ("cat", 2, 3, 12, 9)),
    (shape("bbox", bbox=[2, 3, 10, 6], attributes={"rotation": 90}), ("cat", 4, 1, 10, 11)),
    (shape("points", points=[1, 2]), "shape is no box"),
    (shape("bbox", 7, bbox=[2, 3, 10, 6]), "box has no class"),
    (shape("bbox", bbox=[2, 3, 10]), "object has no box"),
    (shape("bbox", bbox=[2, 3, -1, 6]), "box is inverted"),
    (shape("mask", rle="no"), "mask is no run lengths"),
]


@pytest.mark.parametrize("case", range(len(SHAPES)))
def test_a_shape_of_datumaro_is_a_box_or_a_named_fault(tmp_path, case):
    written, expected = SHAPES[case]
    write_files(tmp_path, {"annotations/val.json": items(item("a", written))})
    draw(tmp_path, "images/val/a.png")
    (one,) = list_references("datumaro", tmp_path)
    (found,) = boxes_of(one)
    assert found == expected or found == (expected[0], *map(pytest.approx, expected[1:]))
    assert (one.split, one.declared_size) == ("val", SIZE)


def test_shapes_of_one_group_and_class_are_one_object(tmp_path):
    group = [shape("polygon", points=SQUARE, group=4), shape("bbox", bbox=[1, 1, 3, 3], group=4)]
    group += [shape("polygon", points=FAR, group=4), shape("polygon", 1, points=FAR, group=4)]
    bags = [shape("bbox", number, bbox=[1, 1, 3, 3], group=5) for number in (0, 0, 1)]
    attributes = {"occluded": True, "is_crowd": True}
    write_files(
        tmp_path,
        {
            "default.json": items(
                item("a", *group, *bags, shape("bbox", bbox=[2, 3, 10, 6], attributes=attributes))
            )
        },
    )
    draw(tmp_path, "images/a.png")
    (one,) = list_references("datumaro", tmp_path)
    assert boxes_of(one) == [
        ("cat", 2, 3, 20, 14),
        ("dog", 14, 10, 20, 14),
        ("cat", 1, 1, 4, 4),
        ("cat", 1, 1, 4, 4),
        ("dog", 1, 1, 4, 4),
        ("cat", 2, 3, 12, 9),
    ]
    assert one.split == "train" and one.boxes[-1].occluded and one.boxes[-1].is_crowd
    (one,) = list_references("datumaro", tmp_path, masks=True)
    assert one.boxes[0].mask == [SQUARE, FAR]
    mixed = [group[0], shape("mask", rle={"size": [*SIZE], "counts": [35, 4, 345]}, group=4)]
    write_files(tmp_path, {"default.json": items(item("a", *mixed))})
    (one,) = list_references("datumaro", tmp_path, masks=True)
    assert boxes_of(one) == ["object has several masks"]


def pose(*visibilities, group=0, label_id=0, points=(4, 5, 9, 6, 3, 12)):
    return shape("points", label_id, points=list(points), visibility=list(visibilities), group=group)


def test_points_of_a_group_are_the_keypoints_of_its_object_and_others_have_the_box_around_them(tmp_path):
    listed = [
        shape("bbox", bbox=[2, 3, 10, 10], group=1),
        pose(2, 1, 0, group=1),
        pose(2, 0, 2),
        shape("bbox", 1, bbox=[1, 1, 5, 5]),
        pose(2, 2, group=3, label_id=1, points=(1, 2, 3, 4)),
        shape("polygon", 1, points=SQUARE, group=3),
    ]
    document = json.loads(items(item("a", *listed)))
    named = {"label_id": 0, "labels": ["nose", "left ear", "right ear"], "joints": [], "positions": []}
    document["categories"]["points"] = {"items": [named]}
    write_files(tmp_path, {"default.json": json.dumps(document)})
    draw(tmp_path, "images/a.png")
    (one,) = list_references("datumaro", tmp_path, keep=("keypoints",))
    grouped, alone, bare, dog = one.boxes
    found = {point.name: (point.x, point.y, point.visibility) for point in grouped.keypoints}
    nothing = dict.fromkeys(("keypoint_1", "keypoint_2"), (0, 0, 0))
    assert found == {"nose": (4, 5, 2), "left ear": (9, 6, 1), "right ear": (0, 0, 0), **nothing}
    assert (alone.xmin, alone.ymin, alone.xmax, alone.ymax) == (3, 5, 4, 12)
    assert {point.visibility for point in bare.keypoints} == {0} and len(bare.keypoints) == 5
    assert [(p.x, p.y) for p in dog.keypoints if p.visibility] == [(1, 2), (3, 4)] and dog.area == 60
    (one,) = list_references("datumaro", tmp_path)
    assert boxes_of(one) == [
        ("cat", 2, 3, 12, 13),
        ("dog", 1, 1, 6, 6),
        ("dog", 2, 3, 12, 9),
        "shape is no box",
    ]


POSES = [
    (pose(2, 1, 3), "visibility of a keypoint is not 0, 1 or 2"),
    (pose(2, 1), "keypoints are not two numbers and a visibility each"),
    (pose(2, 2, 2, points=("x", 1, 2, 3, 4, 5)), "not a number"),
    (pose(0, 0, 0), "shape is no box"),
    (shape("points", points=[1, 2, 8, 9]), ("cat", 1, 2, 8, 9)),
]


@pytest.mark.parametrize(("written", "expected"), POSES)
def test_points_are_an_object_or_a_named_fault(tmp_path, written, expected):
    write_files(tmp_path, {"default.json": items(item("a", written))})
    draw(tmp_path, "images/a.png")
    (one,) = list_references("datumaro", tmp_path, keep=("keypoints",))
    assert boxes_of(one) == [expected]


def test_frames_of_a_video_are_pictures_of_one_group_and_a_whole_video_is_refused(tmp_path):
    frames = [
        {
            "id": f"clip/{number:06d}",
            "annotations": [shape("bbox", bbox=[number, 1, 4, 5])],
            "video_frame": {"video_path": "sub/clip.mp4", "frame_index": number},
        }
        for number in (3, 4, 7)
    ]
    whole = {"id": "other", "annotations": [], "video": {"path": "other.mp4", "step": 1, "start_frame": 0}}
    write_files(tmp_path, {"annotations/val.json": items(*frames, whole), "videos/val/clip.mp4": b""})
    write_files(tmp_path, {"videos/val/sub/x.txt": "", "videos/train/clip.mp4": b""})
    found = list_references("datumaro", tmp_path)
    (rejected,) = [one for one in found if one.problem]
    assert rejected.problem[1] == "entry is a video" and "video_frames" in rejected.problem[2]
    shown = [one for one in found if not one.problem]
    assert [one.video_frame for one in shown] == [("videos/val/clip.mp4", number) for number in (3, 4, 7)]
    assert {(one.group, one.split) for one in shown} == {("clip.mp4", "val")}
    strided = list_references("datumaro", tmp_path, frame_stride=2)
    assert [one.problem and one.problem[1] for one in strided if one.video_frame] == [
        None,
        "frame is left out",
        None,
    ]


def test_pictures_are_found_by_path_or_id_and_labels_alone_are_classes(tmp_path):
    listed = [
        item("a", shape("label", 1)),
        item("sub/b", shape("label")),
        item("c", shape("label"), image={"path": ""}),
    ]
    write_files(tmp_path, {"annotations/train.json": items(*listed, {"id": "d"}, {"annotations": []})})
    draw(tmp_path, "images/train/a.png", "images/train/sub/b.png", "images/train/c.jpg", "images/train/d.png")
    assert detected(tmp_path) == "datumaro"
    found = {
        one.source: one.problem[1] if one.problem else one.label
        for one in list_references("datumaro", tmp_path)
    }
    assert found == {
        "annotations/train.json": "entry is no picture with annotations",
        "images/train/a.png": "dog",
        "images/train/c.jpg": "cat",
        "images/train/d.png": "entry is no picture with annotations",
        "images/train/sub/b.png": "cat",
    }
    assert classes_listed("datumaro", tmp_path) == ["cat", "dog"]


def test_other_documents_are_refused_with_what_was_expected(tmp_path):
    write_files(tmp_path, {"a.json": '{"items": [], "labels": {}}'})
    draw(tmp_path, "a.png")
    for layout, words in (("fiftyone", "labels.json with classes"), ("datumaro", "JSON of Datumaro")):
        with pytest.raises(AnnotationsError, match=f"expected .*{words}"):
            list_references(layout, tmp_path)
