"""Batches in the forms of other trainers: their units, their order, and every record once per epoch.

The forms of PyTorch run in a process of their own, because PyTorch and TensorFlow abort in one process.
"""

import itertools
import json
import pickle
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import halofeed
from halofeed.loader import FlipLeftRight, FlipUpDown, Loader, RandomCrop, join_id
from halofeed.loader.forms.epoch_batches import EpochBatches
from halofeed.loader.forms.keras_form import BOX_FORMATS, padded_objects, supervised
from halofeed.loader.forms.nnunet_cases import Case, PreprocessedFolder, load_properties
from halofeed.loader.forms.nnunet_form import PatchOptions, copy_patch, patch_start, scaled_label
from halofeed.loader.forms.pixel_boxes import class_numbers, labels_from_one, pixel_objects
from halofeed.loader.forms.record_facts import SourceNames, stored_objects
from halofeed.loader.forms.torchvision_form import source_boxes
from halofeed.loader.forms.ultralytics_form import center_boxes, letterboxes, overlapping_masks
from halofeed.system.errors import CorruptFileError, UsageError
from tests.support.scripts import run_script

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
BOXES = {
    1: [[10, 5, 30, 25], [40, 10, 60, 30]],
    2: [[0, 0, 20, 20]],
    3: [],
    4: [[5, 30, 15, 50]],
    5: [[2, 2, 9, 9]],
}
"""xmin, ymin, xmax, ymax of the objects of each picture, in pixels; the class of an object is its number."""
SIZES = {number: (60, 80) if number % 2 else (80, 60) for number in BOXES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five pictures of 60 x 80 and 80 x 60 as COCO, padded to 80; the second object of the first is a crowd."""
    root = tmp_path_factory.mktemp("forms")
    (root / "images").mkdir()
    generator = np.random.default_rng(0)
    images, annotations = [], []
    for number, boxes in BOXES.items():
        height, width = SIZES[number]
        pixels = generator.integers(0, 256, (height, width, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        for place, (left, top, right, bottom) in enumerate(boxes):
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": 3 + 4 * place, "bbox": box}
                | {"area": box[2] * box[3], "iscrowd": place}
                | {"segmentation": [[left, top, right, top, right, bottom, left, bottom]]}
            )
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (root / "coco.json").write_text(json.dumps(document))
    data = halofeed.convert(
        root / "coco.json",
        root / "data",
        layout="coco",
        images=root / "images",
        name="set",
        resize="keep-aspect",
        min_dimension=80,
        max_dimension=80,
        pad=True,
        pad_value=114,
        masks=True,
        split_shares={"train": 1},
    )
    return str(data.path)


def pixels_of(folder: str, number: int) -> np.ndarray:
    return np.asarray(Image.open(Path(folder).parents[2] / "images" / f"{number}.png"))


def test_sizes_and_transforms_planned_for_a_batch_equal_those_of_each_row(folder):
    # A text is not planned, so that each row is read by itself.
    augmentations = [[], [FlipLeftRight()], [RandomCrop(40, 44), FlipUpDown(), FlipLeftRight()]]
    for augment in augmentations:
        planned, alone = (
            Loader(folder, batch_size=3, seed=5, augment=augment, include=["size", "transform", *texts])
            for texts in ((), ("key",))
        )
        for step in range(8):
            first, second = planned.batch(step), alone.batch(step)
            for name, array in first.items():
                np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_a_loader_with_more_fields_gives_the_same_stream(folder):
    plain = Loader(folder, batch_size=2, seed=3, augment=[FlipLeftRight()])
    more = plain.including("size", "source_height")
    assert plain.can_include("transform") and not plain.can_include("affine")
    assert plain.including("boxes") is plain
    for loader in (more, pickle.loads(pickle.dumps(more))):
        batch = loader.batch(3)
        assert {"size", "source_height"} <= batch.keys()
        for name, array in plain.batch(3).items():
            np.testing.assert_array_equal(array, batch[name])
    with pytest.raises(UsageError, match="wind"):
        plain.including("wind")


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_each_iteration_is_an_epoch_with_every_record_once(folder, batch_size):
    batches = EpochBatches(
        Loader(folder, batch_size=batch_size, seed=1), lambda batch: join_id(batch["id"]).tolist()
    )
    epochs = [list(batches) for _ in range(3)]
    assert all(len(epoch) == len(batches) == -(-5 // batch_size) for epoch in epochs)
    orders = [list(itertools.chain(*epoch)) for epoch in epochs]
    assert all(sorted(order) == [1, 2, 3, 4, 5] for order in orders)
    assert len(set(map(str, orders))) > 1
    # A resume, an early end, and a chosen epoch give the same batches.
    resumed = EpochBatches(batches.loader, batches._form, start_step=len(batches))
    if len(batches) > 1:
        next(iter(resumed))
    assert list(resumed) == epochs[1]
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2] and len(resumed.sampler) == 5


def test_evaluation_begins_again_at_each_iteration(folder):
    batches = EpochBatches(
        Loader(folder, batch_size=2, training=False), lambda batch: join_id(batch["id"]).tolist()
    )
    first = list(batches)
    assert list(batches) == first and [len(batch) for batch in first] == [2, 2, 1]


def test_hosts_need_complete_batches(folder):
    with pytest.raises(UsageError, match="drop_remainder=True"):
        EpochBatches(Loader(folder, batch_size=2, shard_count=2), len)
    kept = Loader(folder, batch_size=2, shard_count=2, drop_remainder=True)
    assert [len(ids) for ids in EpochBatches(kept, lambda batch: batch["id"])] == [1, 1]


def test_boxes_are_in_pixels_without_crowds_and_classes_are_counted_as_asked(folder):
    loader = Loader(folder, batch_size=5, training=False, include=["size", "masks"])
    batch, order = loader.batch(0), loader.batch(0)["id"]
    keys = join_id(order).tolist()
    for crowds, left_out in (("drop", 1), ("keep", 9)):
        objects = pixel_objects(batch, np.arange(8), crowds)
        expected = [box for key in keys for box in BOXES[key][:left_out]]
        np.testing.assert_allclose(objects.boxes, np.array(expected, np.float32), atol=1e-4)
        assert objects.counts == [len(BOXES[key][:left_out]) for key in keys]
        assert [tuple(size) for size in objects.sizes.tolist()] == [SIZES[key] for key in keys]
        np.testing.assert_allclose(objects.areas, [(r - x) * (b - y) for x, y, r, b in expected], rtol=1e-5)
    assert class_numbers({3: "cat", 7: "dog"})[1] == ("cat", "dog")
    assert labels_from_one({3: "cat", 7: "dog"})[0][[3, 7]].tolist() == [3, 7]
    assert labels_from_one({0: "cat", 1: "dog"})[0].tolist() == [1, 2]


def test_boxes_without_an_area_are_left_out():
    boxes = np.array([[[0, 0, 0.5, 0], [0, 0, 0.5, 0.5], [0.2, 0.3, 0.2, 0.8]]], np.float32)
    batch = {"image": np.zeros((1, 8, 8, 3), np.uint8), "boxes": boxes, "num_boxes": np.array([3])}
    batch |= {"classes": np.array([[1, 2, 3]]), "is_crowd": np.zeros((1, 3), bool), "area": np.ones((1, 3))}
    assert pixel_objects({**batch, "size": np.array([[8, 8]])}, np.arange(4), "drop").classes.tolist() == [2]


def test_boxes_of_an_augmented_picture_lead_back_to_the_source(folder):
    augment = [RandomCrop(50, 50, minimum_visible=0.99), FlipLeftRight(), FlipUpDown()]
    loader = Loader(folder, batch_size=5, seed=2, augment=augment, include=["size", "transform"])
    found = 0
    for step in range(8):
        batch = loader.batch(step)
        objects = pixel_objects(batch, np.arange(8), "drop")
        for row, box in zip(objects.row.tolist(), objects.boxes, strict=True):
            back = source_boxes(box, batch["transform"][row])[0]
            nearest = min(np.abs(back - one).max() for one in BOXES[int(join_id(batch["id"][row]))])
            assert nearest < 0.5
            found += 1
    assert found > 4


def test_a_letterbox_leads_back_to_the_upright_source_also_of_turned_and_mirrored_pictures():
    size = {"source_height": np.array([40, 40, 40]), "source_width": np.array([100, 100, 100])}
    straight = [[2, 0, 0], [0, 2, -6]]  # half as large, 3 columns of padding
    turned = [[0, -4, 40], [4, 0, 0]]  # y of the source runs against x of the image
    mirrored = [[1, 0, 0], [0, -1, 100]]
    batch = {
        **size,
        "transform": np.array([straight, turned, mirrored], np.float32),
        "size": np.zeros((3, 2)),
    }
    shapes, found = letterboxes(batch)
    assert shapes == ((40, 100), (100, 40), (40, 100))
    assert found == (((0.5, 0.5), (3.0, 0.0)), ((0.25, 0.25), (0.0, 0.0)), ((1.0, 1.0), (0.0, 0.0)))
    assert letterboxes({"size": np.array([[4, 5]])}) == (((4, 5),), (None,))


def test_smaller_masks_are_over_larger_ones():
    masks = np.zeros((2, 3, 16, 16), np.uint8)
    masks[1, 0, 4:8, 4:8], masks[1, 2] = 1, 1
    boxes = np.array([[[0, 0, 1, 1]] * 3] * 2, np.float32)
    batch = {"image": np.zeros((2, 16, 16, 3), np.uint8), "boxes": boxes, "num_boxes": np.array([0, 3])}
    batch |= {"classes": np.array([[0, 0, 0], [4, 5, 6]]), "is_crowd": np.array([[0, 0, 0], [0, 1, 0]], bool)}
    batch |= {"area": np.ones((2, 3)), "size": np.full((2, 2), 16)}
    objects, numbers, semantic = overlapping_masks(masks, pixel_objects(batch, np.arange(7), "drop"), 2)
    assert objects.classes.tolist() == [6, 4] and objects.counts == [0, 2]
    assert numbers[0].max() == 0 and numbers[1, 1, 1] == 2 and (numbers[1] == 1).sum() == 15
    assert semantic[1, 1, 1] == 4 and semantic[1, 0, 0] == 6


def test_center_boxes_of_no_object_are_empty():
    assert center_boxes(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_names_and_objects_of_records_are_read_without_their_pixels(folder):
    loader = Loader(folder, batch_size=1)
    assert SourceNames(loader).of([4, 1]) == ["4.png", "1.png"]
    by_key = dict(zip((loader.stored(n).id for n in range(5)), stored_objects(loader), strict=True))
    assert by_key[1][0].tolist() == [1, 2] and by_key[3][1].shape == (0, 4)
    np.testing.assert_allclose(by_key[2][1] * 80, [[0, 0, 20, 20]], atol=1e-4)


@pytest.mark.parametrize("name", BOX_FORMATS)
def test_keras_boxes_are_in_the_named_format_with_minus_one_for_no_object(folder, name):
    batch = Loader(folder, batch_size=5, training=False).batch(0)
    found = padded_objects(batch, class_numbers({1: "cat", 2: "dog"})[0], BOX_FORMATS[name])
    row = join_id(batch["id"]).tolist().index(1)
    left, top, right, bottom = BOXES[1][0]
    expected = {
        "xyxy": [left, top, right, bottom],
        "yxyx": [top, left, bottom, right],
        "xywh": [left, top, right - left, bottom - top],
        "rel_xyxy": [left / 80, top / 80, right / 80, bottom / 80],
        "rel_yxyx": [top / 80, left / 80, bottom / 80, right / 80],
    }[name]
    np.testing.assert_allclose(found["boxes"][row, 0], expected, rtol=1e-5)
    assert found["labels"][row, :2].tolist() == [0, -1] and not found["boxes"][row, 1:].any()


def test_keras_targets_have_weights_only_where_labels_may_be_missing():
    batch = {"image": np.zeros((2, 1)), "label": np.array([1, 2]), "valid": np.array([True, False])}
    image, target = supervised(batch, np.arange(1), BOX_FORMATS["xyxy"])
    assert len(image) == 1 and target.tolist() == [1]
    *_, weights = supervised(
        {**batch, "labelled": np.array([False, True])}, np.arange(1), BOX_FORMATS["xyxy"]
    )
    assert weights.tolist() == [0.0]


# nnU-Net --------------------------------------------------------------------------------------------------


def slow_patch(source, start, sides, mirrored, fill):
    """The same patch, voxel by voxel."""
    out = np.full((len(source), *sides), fill, np.float64)
    for place in np.ndindex(*sides):
        at = [
            s + (side - 1 - p if m else p)
            for p, s, side, m in zip(place, start, sides, mirrored, strict=True)
        ]
        if all(0 <= a < size for a, size in zip(at, source.shape[1:], strict=True)):
            out[(slice(None), *place)] = source[(slice(None), *at)]
    return out


@pytest.mark.parametrize("start", [(0, 0, 0), (-2, 3, 4), (5, -4, 2), (-1, -1, -1), (9, 0, 0), (-6, 0, 0)])
@pytest.mark.parametrize("mirrored", [(False,) * 3, (True, False, True), (False, True, True)])
def test_a_patch_is_that_of_the_slow_copy(start, mirrored):
    source = np.random.default_rng(0).normal(size=(2, 6, 7, 8)).astype(np.float32)
    out = np.empty((2, 4, 5, 6), np.float32)
    copy_patch(source, start, mirrored, out, -1)
    np.testing.assert_array_equal(out, slow_patch(source, start, (4, 5, 6), mirrored, np.float32(-1)))


def test_patches_with_foreground_contain_a_voxel_of_each_class_equally_often():
    locations = {1: np.array([[0, 2, 3, 4]]), 2: np.array([[0, 9, 9, 9]] * 50), 3: np.zeros((0, 4), np.int64)}
    case = Case(name="a", data=np.zeros((1, 12, 12, 12)), label=None, locations=locations)
    options = PatchOptions(patch_size=(4, 4, 4))
    generator = np.random.default_rng(1)
    hits = np.zeros(2)
    for _ in range(400):
        start = np.array(patch_start(case, options, generator, with_foreground=True))
        inside = [(start <= at).all() and (np.array(at) < start + 4).all() for at in ((2, 3, 4), (9, 9, 9))]
        assert sum(inside) == 1
        hits += inside
    assert abs(hits[0] - 200) < 50
    starts = np.array([patch_start(case, options, generator, with_foreground=False) for _ in range(400)])
    assert starts.min() == 0 and starts.max() == 8
    beyond = PatchOptions(patch_size=(6, 6, 6), final_patch_size=(4, 4, 4))
    starts = np.array([patch_start(case, beyond, generator, with_foreground=False) for _ in range(400)])
    assert starts.min() == -1 and starts.max() == 7


def test_labels_are_scaled_by_the_nearest_voxel():
    label = np.arange(2 * 6, dtype=np.int16).reshape(1, 1, 2, 6)
    assert scaled_label(label, (1, 0.5)).tolist() == [[[[1, 3, 5], [7, 9, 11]]]]


def test_a_preprocessed_folder_is_read_and_wrong_ones_are_refused(tmp_path):
    data, label = np.ones((1, 3, 4, 5), np.float32), np.zeros((1, 3, 4, 5), np.int8)
    np.savez_compressed(tmp_path / "a.npz", data=data, seg=label)
    (tmp_path / "a.pkl").write_bytes(
        pickle.dumps({"class_locations": {1: np.zeros((2, 4), np.int64)}, "spacing": [1.0]})
    )
    for memory in (0, 10**6):
        case = PreprocessedFolder(tmp_path, None, memory)["a"]
        assert case.shape == (3, 4, 5) and case.locations[1].shape == (2, 4)
    with pytest.raises(UsageError, match=r"no b\.pkl"):
        PreprocessedFolder(tmp_path, ["b"], 0)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps({"class_locations": print}))
    with pytest.raises(CorruptFileError, match=r"c\.pkl.*builtins\.print"):
        load_properties(tmp_path / "c.pkl")
    with pytest.raises(UsageError, match="patch_size"):
        PatchOptions(patch_size=(4,))


# PyTorch --------------------------------------------------------------------------------------------------

TORCH = """
import json, sys
import numpy as np
import torch
import halofeed
from halofeed.loader import FlipLeftRight
data = halofeed.open(sys.argv[1])
plain = dict(batch_size=2, training=False)
found = {"torchvision": {}, "uint8": {}, "ultralytics": {}}
batches = halofeed.torch.detection(data.loader("train", **plain))
found["names"] = batches.class_names
for images, targets in batches:
    for image, target in zip(images, targets):
        assert image.dtype == torch.float32 and target["labels"].dtype == torch.int64
        assert target["masks"].shape == (len(target["boxes"]), *image.shape[1:])
        levels = (image * 255).round().to(torch.uint8).permute(1, 2, 0)
        found["torchvision"][int(target["image_id"])] = [target["boxes"].tolist(), target["labels"].tolist()]
        found["uint8"][int(target["image_id"])] = levels.tolist()
both = (halofeed.torch.detection(data.loader("train", **plain), images=form) for form in ("float32", "uint8"))
for (first, _), (second, _) in zip(*both):
    for one, other in zip(first, second):
        assert torch.equal(one, other.to(torch.float32).mul(1 / 255))
for batch in halofeed.torch.ultralytics(data.loader("train", **plain), task="segment"):
    assert batch["img"].dtype == torch.uint8 and batch["img"].shape[1:] == (3, 80, 80)
    assert batch["masks"].shape == (len(batch["img"]), 20, 20)
    for row, name in enumerate(batch["im_file"]):
        mine = batch["batch_idx"] == row
        boxes = batch["bboxes"][mine].tolist()
        shape = batch["ori_shape"][row]
        found["ultralytics"][int(name[0])] = [boxes, batch["cls"][mine].tolist(), shape, batch["ratio_pad"][row]]
whole = halofeed.torch.ultralytics(data.loader("train", batch_size=2))
assert len(whole.dataset) == 5 and len(whole.dataset.labels[0]["cls"]) in (0, 1, 2)
print(json.dumps(found))
"""


@pytest.mark.long
@needs_torch
def test_torchvision_and_ultralytics_get_the_boxes_and_pixels_of_the_files(folder):
    found = json.loads(run_script(TORCH, folder).splitlines()[-1])
    assert found["names"] == ["background", "cat", "dog"]
    for number, boxes in BOXES.items():
        kept = np.array(boxes[:1], np.float64).reshape(-1, 4)
        got, labels = found["torchvision"][str(number)]
        np.testing.assert_allclose(np.reshape(got, (-1, 4)), kept, atol=1e-4)
        assert labels == [1] * len(kept)
        np.testing.assert_array_equal(found["uint8"][str(number)], pixels_of(folder, number))
        centers, classes, shape, letterbox = found["ultralytics"][str(number)]
        np.testing.assert_allclose(np.reshape(centers, (-1, 4)) * 80, center_boxes(kept), atol=1e-4)
        assert classes == [[0.0]] * len(kept) and tuple(shape) == SIZES[number]
        assert letterbox == [[1.0, 1.0], [0.0, 0.0]]


MONAI = """
import sys
import numpy as np
import torch
import halofeed
from halofeed.loader import FlipDepth, RandomCrop
data = halofeed.open(sys.argv[1])
loader = data.loader("train", batch_size=2, training=False)
for stored, batch in zip(loader.batches(), halofeed.torch.monai(loader, scale_range=(-50, 150))):
    values = ((stored["image"].astype(np.float32) - np.float32(-50)) / np.float32(200)).clip(0, 1)
    rows = len(batch["id"])
    np.testing.assert_array_equal(batch["image"].numpy()[:, 0], values[:rows, ..., 0])
    np.testing.assert_array_equal(batch["label"].numpy()[:, 0], stored["label"][:rows])
    assert batch["affine"].shape == (rows, 4, 4) and batch["affine"].dtype == torch.float64
"""


@pytest.mark.long
@needs_torch
def test_monai_gets_scaled_voxels_with_the_channel_first(tmp_path):
    import nibabel

    rows = ["id,image,label"]
    generator = np.random.default_rng(0)
    for number in range(3):
        for name, high in (("image", 300), ("label", 2)):
            voxels = generator.integers(-100 if name == "image" else 0, high, (6, 5, 4)).astype(np.int16)
            nibabel.Nifti1Image(voxels, np.diag([1.0, 2, 3, 1])).to_filename(tmp_path / f"{name}{number}.nii")
        rows.append(f"{number},image{number}.nii,label{number}.nii")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    data = halofeed.convert(
        tmp_path / "table.csv",
        tmp_path / "data",
        layout="csv",
        name="scans",
        task="segmentation",
        depth=4,
        height=5,
        width=6,
        split_shares={"train": 1},
    )
    run_script(MONAI, str(data.path))


def test_a_wrong_argument_is_refused_before_a_batch_is_made(folder):
    loader = Loader(folder, batch_size=2)
    for call, words in (
        (lambda: halofeed.torch.detection(loader, images="int8"), "images: expected one of float32, uint8"),
        (lambda: halofeed.torch.detection(loader, crowds="none"), "crowds: expected one of drop, keep"),
        (lambda: halofeed.torch.ultralytics(loader, task="pose"), "task: expected one of detect, segment"),
        (lambda: halofeed.torch.monai(loader, scale_range=(3, 3)), "scale_range"),
        (lambda: halofeed.keras_batches(loader, bounding_box_format="xyz"), "bounding_box_format"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
    with pytest.raises(AttributeError, match="detection"):
        halofeed.torch.nothing  # noqa: B018
