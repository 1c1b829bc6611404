"""Pascal VOC XML."""

from collections import Counter
from functools import partial

import pytest

from halofeed.errors import AnnotationsError
from tests.support.annotation_writer import boxed, draw, voc_object, voc_text
from tests.support.layout_references import list_references, make, outcome, write_files

read = partial(list_references, "voc")


def annotation(file_name: str = "", box: str = "1 1 4 5", extra: str = "", size: str = "10 20") -> str:
    width, height = map(int, size.split())
    return voc_text(file_name, voc_object(boxed(file_name, box.split()), extra), width, height)


def test_cards_xml_and_tables_agree_box_for_box_apart_from_the_origin(test_data):
    root = test_data / "detection" / "cards_voc"
    from_xml, from_table = read(root), list_references("csv", root)
    assert len(from_xml) == len(from_table) == 363
    assert sum(len(reference.boxes or ()) for reference in from_xml) == 670
    assert len({box.label for reference in from_xml for box in reference.boxes or ()}) == 6
    for one, other in zip(from_xml, from_table, strict=True):
        assert one.problem is None
        assert (one.source, one.split, one.declared_size) == (other.source, other.split, other.declared_size)
        for box, written in zip(one.boxes or (), other.boxes or (), strict=True):
            corners = (written.xmin - 1, written.ymin - 1, written.xmax, written.ymax)
            assert (box.xmin, box.ymin, box.xmax, box.ymax, box.label) == (*corners, written.label)
    as_written = [[(box.xmin, box.ymin) for box in one.boxes or ()] for one in read(root, box_origin=0)]
    assert as_written == [[(box.xmin, box.ymin) for box in one.boxes or ()] for one in from_table]


def test_bccd_follows_its_lists_and_keeps_its_two_zero_area_boxes(test_data):
    root = test_data / "detection" / "bccd_voc"
    references = read(root)
    assert Counter(reference.split for reference in references) == {"train": 205, "val": 87, "test": 72}
    assert all(reference.problem is None for reference in references)
    boxes = [(reference.source, box) for reference in references for box in reference.boxes or ()]
    assert len(boxes) == 4888
    flat = [source for source, box in boxes if box.xmin == box.xmax or box.ymin == box.ymax]
    assert flat == ["JPEGImages/BloodImage_00338.jpg", "JPEGImages/BloodImage_00343.jpg"]
    assert sum(box.truncated for _, box in boxes) == 1131


def test_trainval_and_lists_of_one_class_are_followed_only_where_nothing_better_is(tmp_path):
    xml = {f"VOC2012/Annotations/{name}.xml": annotation(f"{name}.jpg") for name in "abc"}
    write_files(tmp_path, {**xml, **{f"VOC2012/JPEGImages/{name}.jpg": "x" for name in "abc"}})
    lists = tmp_path / "VOC2012/ImageSets/Main"
    write_files(lists, {"trainval.txt": "a\nb\n", "hat_trainval.txt": "a 1\nb -1\nc -1\n"})
    assert [reference.split for reference in read(tmp_path)][:2] == ["trainval", "trainval"]
    assert outcome(read(tmp_path))["VOC2012/JPEGImages/c.jpg"] == "in no ImageSets list"
    write_files(lists, {"train.txt": "a  1\n", "val.txt": "\ufeffb\r\nghost\n"})
    references = read(tmp_path)
    assert [reference.split for reference in references[1:3]] == ["train", "val"]
    assert outcome(references)["VOC2012/ImageSets/Main/val.txt#ghost"] == "listed image has no annotation"
    assert len(references) == 4
    assert [one.split for one in read(tmp_path, image_sets=("trainval",))][:2] == ["trainval", "trainval"]
    with pytest.raises(AnnotationsError, match="no list minival in ImageSets/Main; found hat_trainval"):
        read(tmp_path, image_sets=("minival",))


PLACES = [
    *(("a.xml", "a.jpg", "a.jpg"), ("a.xml", "a.JPG", "a.jpg"), ("a.xml", "a.png", "gone.jpg")),
    *(("a.xml", "a.png", ""), ("a.xml", "a.JPEG", r"C:\cards\a.jpg")),
    ("Annotations/a.xml", "JPEGImages/other.jpg", "other.jpg"),
    ("labels/deep/a.xml", "pictures/a.webp", "a.jpg"),
    ("Annotations/a.xml", "JPEGImages/a.png", "a"),
]


@pytest.mark.parametrize(("xml", "image", "file_name"), PLACES)
def test_the_image_is_found_by_its_file_name_or_the_name_of_the_xml(tmp_path, xml, image, file_name):
    write_files(tmp_path, {xml: annotation(file_name), image: "x"})
    (only,) = read(tmp_path)
    assert only.problem is None and only.source == image and only.key == image


def test_the_xml_beside_an_image_wins_and_a_folder_without_xml_or_images_is_refused(tmp_path):
    for split in ("train", "test"):
        write_files(tmp_path / split, {"a.xml": annotation("a.jpg"), "a.jpg": "x"})
    found = [(one.source, one.split, one.problem) for one in read(tmp_path)]
    assert found == [("test/a.jpg", "test", None), ("train/a.jpg", "train", None)]
    (only,) = read(tmp_path / "train", "a.xml")
    assert (only.source, only.split) == ("a.jpg", "train")
    make(tmp_path / "b", "a.jpg")
    write_files(tmp_path / "b", {"only/a.xml": annotation("a.jpg")})
    with pytest.raises(AnnotationsError, match="name the folder that holds the images"):
        read(tmp_path / "b" / "only")


@pytest.mark.parametrize(
    ("box", "origin", "expected"),
    [
        *(("1 1 4 5", 1, (0, 0, 4, 5)), ("1 1 4 5", 0, (1, 1, 4, 5)), ("3 1 3 5", 1, (2.5, 0, 2.5, 5))),
        *(("3 1 3 5", 0, (3, 1, 3, 5)), ("1.5 2.5 4 5", 1, (0.5, 1.5, 4, 5))),
    ],
)
def test_pixels_counted_from_one_become_continuous_coordinates(tmp_path, box, origin, expected):
    flags = "<difficult>1</difficult><occluded>1</occluded>"
    write_files(tmp_path, {"a.xml": annotation("a.jpg", box, flags, "0 0"), "a.jpg": "x"})
    (only,) = read(tmp_path, box_origin=origin)
    assert only.declared_size is None and only.boxes is not None
    (found,) = only.boxes
    assert (found.xmin, found.ymin, found.xmax, found.ymax) == expected
    assert found.difficult and found.occluded and not found.truncated


def test_turned_boxes_of_rolabelimg_are_upright_and_do_not_prove_the_origin(tmp_path):
    turned = (
        "<object><type>robndbox</type><name>cap</name><robndbox><cx>50</cx><cy>40</cy><w>40</w><h>10</h>"
        "<angle>1.5707963</angle></robndbox></object>"
    )
    slanted = turned.replace("1.5707963", "0.7853982")
    content = {f"{n}.xml": annotation(f"{n}.jpg", size="100 100") for n in range(9)}
    content["9.xml"] = annotation("9.jpg", size="100 100").replace(
        "</annotation>", turned + slanted + "</annotation>"
    )
    write_files(tmp_path, content | {f"{n}.jpg": "x" for n in range(10)})
    *_, last = read(tmp_path)
    first, quarter, box = last.boxes
    sides = [(one.xmin + 1, one.ymin + 1, one.xmax, one.ymax) for one in (first, quarter)]
    assert sides == [(1, 1, 4, 5), pytest.approx((45, 20, 55, 60), abs=1e-4)]
    assert box.xmax - box.xmin - 1 == pytest.approx(50 / 2**0.5) and box.turned_share == pytest.approx(0.32)
    assert [note for note in last.notes if "oriented boxes (1 of 12 objects)" in note]


BOMB = '<!DOCTYPE a [<!ENTITY a "h"><!ENTITY b "&a;&a;">]><annotation><filename>&b;</filename></annotation>'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<annotation>", "malformed XML"),
        ("", "malformed XML"),
        ("<page></page>", "not a VOC annotation"),
        (BOMB, "XML has a DTD"),
        (annotation("a.jpg", "4 1 3 5"), "box is inverted"),
        (annotation("a.jpg", "nan 1 3 5"), "number is not finite"),
        (annotation("a.jpg", "left 1 3 5"), "not a number"),
        (annotation("a.jpg", extra="<difficult>very</difficult>"), "flag is neither 0 nor 1"),
        ("<annotation><object><name>hat</name></object></annotation>", "picture has a class without a box"),
        ("<annotation><object><bndbox/></object></annotation>", "box has no class"),
    ],
)
def test_a_faulty_xml_is_one_problem_of_its_image(tmp_path, content, reason):
    write_files(tmp_path, {"a.xml": content, "a.jpg": "x"})
    (only,) = read(tmp_path, on_bad_object="reject")
    assert only.source == "a.jpg" and only.problem is not None
    assert only.problem[:2] == ("annotation", reason)
    assert only.problem[2].startswith("a.xml: ")


def test_every_xml_and_every_image_is_accounted_for(tmp_path):
    means = {"a": "a.jpg", "gone": "gone.jpg", "b": "b.jpg", "copy": "b.jpg"}
    write_files(tmp_path, {f"Annotations/{xml}.xml": annotation(name) for xml, name in means.items()})
    make(tmp_path, *(f"JPEGImages/{name}.jpg" for name in ("a", "b", "extra")), "SegmentationClass/a.png")
    references = read(tmp_path)
    assert outcome(references) == {
        "Annotations/gone.xml": "image file not found",
        "JPEGImages/a.jpg": None,
        "JPEGImages/b.jpg": "several annotations name one image",
        "JPEGImages/extra.jpg": "image has no annotation",
    }
    assert len(references) == 5


def _named_otherwise(root, names, sides, declared):
    """XML files by stem with the <filename> of each; pictures of 16 rows whose columns are `sides`."""
    for name, width in sides.items():
        draw(root, f"{name}.png", size=(16, width))
    for stem, written in names.items():
        text = annotation(f"{written}.png", size=f"{declared[stem]} 16" if stem in declared else "0 0")
        write_files(root, {f"{stem}.xml": text})


SHIFTED = {"1": "2", "2": "3", "3": "4", "4": "1"}
NAMES = [
    ("one size proves all", SHIFTED, {"1": 9}, {"1": 9}, "own"),
    ("one size proves the written names", SHIFTED, {"2": 9}, {"1": 9}, "written"),
    ("one agrees, and the others are not twice", {**SHIFTED, "4": "4"}, {}, {}, "own"),
    ("copies of one file", {"1": "1", "2": "1", "3": "1", "4": "1"}, {}, {}, "own"),
    ("the first of them has no such picture", {**SHIFTED, "4": "7"}, {}, {}, "own"),
    ("one has no picture of its own name", {"1": "2", "2": "1", "x": "3"}, {}, {}, "written"),
]


@pytest.mark.parametrize(("names", "sides", "declared", "meant"), [case[1:] for case in NAMES])
def test_a_file_name_that_is_not_the_xmls_own_is_proven_by_sizes_or_the_other_files(
    tmp_path, names, sides, declared, meant
):
    _named_otherwise(tmp_path, names, dict.fromkeys("1234", 24) | sides, declared)
    for stem in names:
        text = (tmp_path / f"{stem}.xml").read_text().replace("<name>hat", f"<name>{stem}")
        (tmp_path / f"{stem}.xml").write_text(text)
    labels = {one.source: one.boxes[0].label for one in read(tmp_path) if one.boxes}
    expected = {f"{stem if meant == 'own' else written}.png": stem for stem, written in names.items()}
    assert labels == expected


def test_a_file_name_that_is_not_the_xmls_own_is_refused_by_name_of_the_option_where_nothing_proves_it(
    tmp_path,
):
    _named_otherwise(tmp_path, SHIFTED, dict.fromkeys("1234", 24), dict.fromkeys("1234", 24))
    words = r"1\.xml: <filename> is that of 2\.png.*name that of 1\.png, as in 4 of 4.*--voc-images xml-name"
    with pytest.raises(AnnotationsError, match=words):
        read(tmp_path)
    for option in ("filename", "xml-name"):
        assert {one.notes for one in read(tmp_path, voc_images=option)} == {()}
    agreeing = {stem: stem for stem in "abcdefghij"}
    _named_otherwise(tmp_path, agreeing, dict.fromkeys(agreeing, 24), {})
    assert sum("two images" in (reason or "") for reason in outcome(read(tmp_path)).values()) == 4
