"""Objects that are drawn: a mask for each (DSB 2018), values of label images, and PASCAL's text with PedMasks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halofeed.errors import AnnotationsError
from halofeed.inspection.verify import verify
from halofeed.loader import Loader
from halofeed.prep.convert.drawn_boxes import with_drawn_boxes
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.masks import draw_mask
from halofeed.system.errors import SourceError
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, detected, list_references, make, write_files

SIZE = (16, 24)
A, B = np.s_[3:9, 2:12], np.s_[8:14, 15:21]


def drawing(*areas, values=(255,), dtype=np.uint8):
    """A picture that is 0 but for some areas."""
    pixels = np.zeros(SIZE, dtype)
    for area, value in zip(areas, values * len(areas), strict=False):
        pixels[area] = value
    return pixels


def save(root: Path, name: str, pixels, palette=None) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if palette is not None:
        image = Image.frombytes("P", pixels.shape[::-1], pixels.tobytes())
        image.putpalette(palette)
    image.save(root / name)


def boxes_of(one):
    """The reason of a problem, or (label, corners, area) of each box and the reason of each bad object."""
    if one.problem:
        return one.problem[1]
    boxes = [(box.label, box.xmin, box.ymin, box.xmax, box.ymax, box.area) for box in one.boxes]
    return boxes + [reason for reason, _ in one.bad_objects]


def with_masks(found, root: Path, **options):
    """The references by source, with the boxes that a worker reads from the files of their objects."""
    recipe, read = Recipe(layout="object-masks", height=16, width=16, **options), {}
    for name, one in found.items():
        try:
            read[name] = with_drawn_boxes(one, LocalFiles(root), recipe)
        except SourceError as error:
            read[name] = replace(one, problem=error.args)
    return read


OF_A, OF_B = ("object", 2, 3, 12, 9, 60), ("object", 15, 8, 21, 14, 36)


def test_each_file_of_masks_beside_a_picture_is_an_object(tmp_path):
    draw(tmp_path, *(f"stage1_train/{name}/images/{name}.png" for name in ("00ae", "00bf", "00cc")))
    draw(tmp_path, "stage1_test/00dd/images/00dd.png")
    for place, area in (
        ("00ae/masks/1f", A),
        ("00ae/masks/2e", B),
        ("00bf/masks/3d", A),
        ("00cc/masks/4c", ()),
    ):
        save(tmp_path, f"stage1_train/{place}.png", drawing(*([area] if area else [])))
    assert detected(tmp_path) == "object-masks"
    found = by_source("object-masks", tmp_path)
    listed = found["stage1_train/00ae/images/00ae.png"]
    assert listed.paths == (listed.source, "stage1_train/00ae/masks/1f.png", "stage1_train/00ae/masks/2e.png")
    found = with_masks(found, tmp_path)
    assert {name.split("/")[1]: boxes_of(one) for name, one in found.items()} == {
        "00ae": [OF_A, OF_B],
        "00bf": [OF_A],
        "00cc": ["mask is empty"],
        "00dd": "image has no annotation",
    }
    assert found["stage1_train/00ae/images/00ae.png"].declared_size == SIZE
    found = by_source("object-masks", tmp_path, masks=True, one_class="nucleus")
    found = with_masks(found, tmp_path, masks=True)
    box = found["stage1_train/00ae/images/00ae.png"].boxes[1]
    assert box.label == "nucleus" and np.array_equal(draw_mask(box.mask, SIZE), drawing(B) // 255)


@pytest.mark.parametrize(
    ("image", "masks"),
    [
        ("images/a.jpg", ("masks/a/1.png", "masks/a/2.png")),
        ("train/images/a.jpg", ("train/masks/a/a_1.png", "train/masks/a/a_2.png")),
        ("imgs/a.jpg", ("instances/a/1.png", "instances/a/2.png")),
        ("a/image/x.jpg", ("a/mask/0.png", "a/mask/1.png")),
        ("a/images/x.jpg", ("a/label_masks/0.png", "a/label_masks/1.png")),
    ],
)
def test_masks_of_a_picture_are_in_a_folder_of_its_own(tmp_path, image, masks):
    draw(tmp_path, image)
    for name, area in zip(masks, (A, B), strict=True):
        save(tmp_path, name, drawing(area))
    assert detected(tmp_path) == "object-masks"
    found = with_masks(by_source("object-masks", tmp_path), tmp_path)
    assert {name: boxes_of(one) for name, one in found.items()} == {image: [OF_A, OF_B]}


def test_listing_reads_no_mask_but_the_header_of_the_first(tmp_path, monkeypatch):
    draw(tmp_path, "images/a.jpg")
    for name in ("1", "2", "3"):
        save(tmp_path, f"masks/a/{name}.png", drawing(A))
    read, head = [], LocalFiles.head

    def noting(self, path, size):
        read.append(path)
        return head(self, path, size)

    monkeypatch.setattr(LocalFiles, "head", noting)
    monkeypatch.setattr(LocalFiles, "read", None)
    (one,) = list_references("object-masks", tmp_path)
    assert [box.drawing for box in one.boxes] == [f"masks/a/{name}.png" for name in "123"]
    assert {path for path in read if path.startswith("masks/")} == {"masks/a/1.png"}


@pytest.mark.parametrize("fit", ["", "tiles"])
def test_masks_are_read_by_the_converter_of_the_picture(tmp_path, fit):
    save(tmp_path / "source", "images/a.png", np.dstack([drawing(A, B)] * 3))
    for name, area in (("1", A), ("2", B), ("3", A), ("4", np.s_[:0])):
        save(tmp_path / "source", f"masks/a/{name}.png", drawing(area))
    options = {"fit": fit} if fit else {}
    done = run_convert(
        tmp_path / "source",
        tmp_path / "out",
        layout="object-masks",
        masks=True,
        height=16,
        width=24,
        **options,
    )
    assert verify(done.folder).ok
    (rejected,) = (Path(done.folder) / "rejected.jsonl").read_text().splitlines()
    assert "mask is empty" in rejected and "masks/a/4.png" in rejected
    batch = Loader(done.folder, batch_size=1, training=False, include=["masks"]).batch(0)
    pixels = np.round(batch["boxes"][0, :3] * [16, 24, 16, 24]).astype(int).tolist()
    assert pixels == [[3, 2, 9, 12], [8, 15, 14, 21], [3, 2, 9, 12]]


def test_masks_named_by_classes_are_no_objects(tmp_path):
    for case in ("p1", "p2"):
        draw(tmp_path, f"{case}/images/{case}.png")
        for name in ("liver", "spleen"):
            save(tmp_path, f"{case}/masks/{name}.png", drawing(A))
    with pytest.raises(AnnotationsError, match="expected a mask for each object"):
        list_references("object-masks", tmp_path)


LAST = np.uint8(255)
PALETTE = [0, 0, 0, 9, 9, 9, 9, 9, 9] + [0] * 759
FORMS = {
    "gray": lambda values: (values, None),
    "palette with equal colors": lambda values: (values, PALETTE),
    "16 bits": lambda values: (values.astype(np.uint16) * 700, None),
    "color": lambda values: (np.dstack([values * 90, values * 3, values * 7]), None),
    "color with alpha": lambda values: (np.dstack([values * 90, values, values, (values > 0) * LAST]), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_value_of_a_label_image_is_an_object(tmp_path, form):
    draw(tmp_path, "PNGImages/a.png", "PNGImages/b.png")
    values = drawing(A, B, values=(2, 1))
    save(tmp_path, "PedMasks/a_mask.png", *FORMS[form](values))
    save(tmp_path, "PedMasks/b_mask.png", *FORMS[form](values * 0))
    patterns = {"image_pattern": "PNGImages/{id}.png", "label_pattern": "PedMasks/{id}_mask.png"}
    found = by_source("object-masks", tmp_path, masks=True, **patterns)
    assert {name: boxes_of(one) for name, one in found.items()} == {
        "PNGImages/a.png": [OF_B, OF_A],
        "PNGImages/b.png": [],
    }
    assert np.array_equal(draw_mask(found["PNGImages/a.png"].boxes[1].mask, SIZE), values == 2)


def test_masks_that_cannot_be_read_are_listed_and_the_others_kept(tmp_path):
    draw(tmp_path, "images/a.png", "images/b.png", "other/c.png")
    save(tmp_path, "masks/a/1.png", drawing(A))
    save(tmp_path, "masks/a/2.jpg", drawing(B))
    save(tmp_path, "masks/a/3.png", drawing(B)[:9])
    write_files(tmp_path, {"masks/a/4.png": "no picture"})
    unread = ["not an image format that is read"]
    found = with_masks(by_source("object-masks", tmp_path), tmp_path)
    assert {name: boxes_of(one) for name, one in found.items()} == {
        "images/a.png": [OF_A, "mask is stored with loss", "masks have several sizes", *unread],
        "images/b.png": "image has no annotation",
        "other/c.png": "file is neither image nor label by its name",
    }
    found = with_masks(by_source("object-masks", tmp_path), tmp_path, on_bad_object="reject")
    assert boxes_of(found["images/a.png"]) == "mask is stored with loss"


# PASCAL's text of version 1.00 ------------------------------------------------------------------------------

HEADER = """# {}Annotation Version 1.00
Image filename : "{}"
Image size (X x Y x C) : 24 x 16 x 3
Objects with ground truth : 2 {{ "PASperson" "PASperson" }}
# Top left pixel co-ordinates : ({}, {})
"""
BOX = 'Bounding box for object {0} "PASperson" (Xmin, Ymin) - (Xmax, Ymax) : ({1}, {2}) - ({3}, {4})\n'
MASK = 'Pixel mask for object {0} "PASperson" : "Ped/PedMasks/a_mask.png"\n'


@pytest.mark.parametrize(("origin", "corners"), [((1, 1), (3, 4, 12, 9)), ((0, 0), (2, 3, 11, 8))])
def test_boxes_of_pascal_include_their_last_pixel_and_count_from_the_stated_one(tmp_path, origin, corners):
    text = HEADER.format("Compatible with PASCAL ", "Set/Train/pos/a.png", *origin) + BOX.format(1, *corners)
    write_files(tmp_path, {"Train/annotations/a.txt": text.encode() + b'Database : "Rh\xf4ne"\n'})
    draw(tmp_path, "Train/pos/a.png", "Train/neg/b.png")
    assert detected(tmp_path) == "pascal-text"
    found = by_source("pascal-text", tmp_path)
    assert boxes_of(found["Train/pos/a.png"]) == [("PASperson", 2, 3, 12, 9, None)]
    assert (found["Train/pos/a.png"].declared_size, found["Train/pos/a.png"].split) == (SIZE, "Train")
    assert boxes_of(found["Train/neg/b.png"]) == "image has no annotation"


def test_the_mask_of_an_object_has_its_number_and_masks_are_no_pictures(tmp_path):
    objects = BOX.format(1, 3, 4, 12, 9) + MASK.format(1) + BOX.format(2, 16, 9, 21, 14) + MASK.format(2)
    objects += BOX.format(3, 1, 1, 2, 2) + MASK.format(3) + 'Original label for object 4 "PASperson" : "x"\n'
    write_files(
        tmp_path, {"Annotation/a.txt": HEADER.format("PASCAL ", "Ped/PNGImages/a.png", 1, 1) + objects}
    )
    draw(tmp_path, "PNGImages/a.png")
    save(tmp_path, "PedMasks/a_mask.png", drawing(A, B, values=(1, 2)))
    (one,) = list_references("pascal-text", tmp_path)
    person = [("PASperson", *box) for box in ((2, 3, 12, 9, None), (15, 8, 21, 14, None), (0, 0, 2, 2, None))]
    assert boxes_of(one) == [*person, "object has no box"]
    (one,) = list_references("pascal-text", tmp_path, masks=True)
    assert boxes_of(one) == [
        ("PASperson", *OF_A[1:]),
        ("PASperson", *OF_B[1:]),
        "mask is empty",
        "object has no segmentation",
    ]
    assert np.array_equal(draw_mask(one.boxes[1].mask, SIZE), drawing(B) // 255)


def test_other_text_is_refused_with_what_was_expected(tmp_path):
    make(tmp_path, "a.png", "a.txt")
    with pytest.raises(AnnotationsError, match=r"expected text files of PASCAL Annotation Version 1\.00"):
        list_references("pascal-text", tmp_path)
