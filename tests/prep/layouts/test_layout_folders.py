"""Class folders: what is a split, a class or no image, and which layout a folder has, also by `--layout auto`."""

import json
import re
from functools import partial

import cv2
import numpy as np
import pytest

from halofeed.errors import AnnotationsError, HalofeedError, SourceError, UsageError
from halofeed.prep.annotations.image_index import ImageIndex, ImageQuery
from halofeed.prep.annotations.suggest_layout import suggest_layout
from halofeed.prep.layouts import LAYOUTS, find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.sources.walk import EMPTY_FOLDER, HIDDEN_FILE
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.layout_references import by_source, detected, list_references, make, write_files

read = partial(by_source, "folders")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("hat/1.jpg coat/2.PNG", {"hat/1.jpg": ("train", "hat"), "coat/2.PNG": ("train", "coat")}),
        ("train/hat/1.jpg val/hat/2.jpg", {"val/hat/2.jpg": ("val", "hat")}),
        ("Train2017/hat/a/b/1.jpg", {"Train2017/hat/a/b/1.jpg": ("Train2017", "hat")}),
        ("fold_0/hat/1.jpg fold_1/hat/2.jpg", {"fold_1/hat/2.jpg": ("fold_1", "hat")}),
        ("hat/1.jpg hat/deep/er/2.jpg", {"hat/deep/er/2.jpg": ("train", "hat")}),
        ("train/1.jpg car/2.jpg", {"train/1.jpg": ("train", "train"), "car/2.jpg": ("train", "car")}),
    ],
)
def test_first_folder_is_a_split_only_where_all_first_folders_are_named_so(tmp_path, paths, expected):
    references = read(make(tmp_path, *paths.split()))
    for source, (split, label) in expected.items():
        assert (references[source].split, references[source].label) == (split, label)


def test_nothing_that_could_be_an_image_is_lost_quietly(tmp_path):
    pictures = "hat/1.jpg hat/2 hat/3.jp2 hat/4.J2K 5.jxl hat/6.psd 0.jpg hat/source-1.jpg"
    files = make(tmp_path, *pictures.split(), "notes.txt", "hat/README.md", "labels.csv", "x.dat")
    problems = {source: reference.problem for source, reference in read(files).items()}
    assert problems == {
        **dict.fromkeys(("hat/1.jpg", "hat/source-1.jpg"), None),
        **dict.fromkeys(("0.jpg", "5.jxl"), ("selection", "image lies in no class folder", "")),
        **dict.fromkeys(("hat/2", "hat/6.psd", "x.dat"), ("selection", "not an image file name", "")),
        "hat/3.jp2": ("decode", "format not supported", ".jp2; convert it to JPEG or PNG first"),
        "hat/4.J2K": ("decode", "format not supported", ".j2k; convert it to JPEG or PNG first"),
    }


def test_unknown_layouts_list_the_known_and_options_decide_what_folders_are(tmp_path):
    with pytest.raises(UsageError, match="folders, csv, jsonl, coco, voc"):
        find_layout("darknet")
    with pytest.raises(UsageError, match="voc serves detection"):
        LAYOUTS["voc"].check(task="classification")
    assert [name for name, layout in LAYOUTS.items() if name != layout.name] == []
    write_files(tmp_path, VOC_FILES | {"labels/a.txt": "0 .5 .5 .1 .1\n", "ImageSets/Main/train.txt": "b\n"})
    with pytest.raises(HalofeedError, match=r"^((?!YOLO).)*$"):
        list_references("voc", tmp_path, image_sets=("test",))
    files = make(tmp_path / "splits", "a/hat/1.jpg", "b/hat/2.jpg")
    assert read(files, split_folders=True)["b/hat/2.jpg"].split == "b"
    assert read(files, split_folders=False)["b/hat/2.jpg"].label == "b"
    files = make(tmp_path / "above", "hat/train/1.jpg", "coat/test/2.jpg")
    for option in ({"folders_are_classes": True}, {"split_folders": False}):
        assert read(files, **option)["coat/test/2.jpg"].label == "coat"
    files = write_files(tmp_path / "coco", {"instances.json": COCO, "images/a.jpg": "", "others/b.jpg": ""})
    assert [one.label for one in read(files, folders_are_classes=True).values()] == ["images", "others"]


FILES = ["train/a.JPG", "train/b.jpg", "test/b.jpg", "test/c.png", "deep/er/d.jpg", "top.jpg"]
FILES += ["twice/e.jpg", "twice/e.JPG"]
NAMES = {
    "top.jpg": "top.jpg",
    "a.jpg train/a.jpg": "train/a.JPG",
    r"./train//b.jpg C:\cards\train\b.jpg": "train/b.jpg",
    "/home/me/photos/c.png": "test/c.png",
    "er/d.jpg elsewhere/d.jpg": "deep/er/d.jpg",
    "twice/e.JPG": "twice/e.JPG",
    "e.jpg": "twice/e.jpg",
    "b.jpg": "file name is ambiguous",
    "train/c.png deep/d.jpg a.png ../../top.png E.jpg": "image file not found",
    "": "image file not found",
}


@pytest.mark.parametrize(("names", "expected"), NAMES.items())
def test_a_name_finds_its_file_never_another_folders(tmp_path, names, expected):
    index = ImageIndex(make(tmp_path, *FILES))
    for name in names.split() or [""]:
        found = index.match({name: ImageQuery(name=name)})[name]
        assert (found.reason if isinstance(found, SourceError) else found.path) == expected


def test_one_class_folders_below_classes_and_alike_names_are_noted(tmp_path):
    references = read(make(tmp_path, "hat/1.jpg", "Hat/2.jpg", "coat/3.jpg"))
    assert {name for name in references if references[name].notes} == {"hat/1.jpg", "Hat/2.jpg"}
    (only,) = read(make(tmp_path / "one", "dog/1.jpg")).values()
    assert only.notes == ("all images have one class, 'dog'",)
    names = "animals/cat/1.jpg animals/dog/2.jpg vehicles/car/3.jpg vehicles/bus/4.jpg"
    deep = make(tmp_path / "deep", *names.split())
    assert read(deep)["vehicles/bus/4.jpg"].notes == (
        "all images of the class 'vehicles' lie in folders below its own: bus, car",
    )


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("JPEGImages/2011_07.jpg SegmentationClass/2011_07.png", "take --layout pairs; or use"),
        (
            "train/rgb/7.jpg train/gt/7.png test/rgb/8.jpg test/gt/8.png",
            "'{split}/rgb/{id}.jpg' --label-pattern '{split}/gt/{id}.png'",
        ),
        ("x/17.jpg x/23.jpg y/17.gray y/23.gray", "'x/{id}.jpg' --label-pattern 'y/{id}.png'"),
        ("x/17.gray x/23.gray y/17.color y/23.color", "'y/{id}.png' --label-pattern 'x/{id}.png'"),
        ("training/image_2/1.png", "training/image_2, so that its name would be the only class"),
        ("image_02/1.png image_03/1.png", "so that its name would be the only class"),
        ("photo_set/1.png notes/1.txt", "notes/1.txt is by its name the annotation of photo_set/1.png"),
    ],
)
def test_folders_that_are_no_classes_are_refused_with_a_way(tmp_path, contents, words):
    noise = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    block = np.kron(np.eye(2, dtype=np.uint8), np.ones((8, 12), np.uint8))
    kinds = {
        "jpg": cv2.imencode(".jpg", noise)[1].tobytes(),
        "gray": cv2.imencode(".png", block)[1].tobytes(),
        "color": cv2.imencode(".png", noise)[1].tobytes(),
    }
    for path in contents.split():
        stem, _, kind = path.partition(".")
        name = f"{stem}.{'png' if kind in ('gray', 'color') else kind}"
        is_label = kind == "png" and "/gt/" in path
        write_files(
            tmp_path, {name: kinds["gray" if is_label else kind] if kind in kinds or is_label else b"x"}
        )
    with pytest.raises(AnnotationsError) as raised:
        read(LocalFiles(tmp_path))
    assert words in str(raised.value) and "--folders-are-classes" in str(raised.value)
    assert any(one.label for one in read(LocalFiles(tmp_path), folders_are_classes=True).values())


@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_folders_that_pair_by_names_are_images_and_labels_whatever_their_contents(tmp_path, kind):
    paths = [
        f"{split}{end}/{number}.{kind}"
        for split in ("train", "val")
        for end in ("", "x")
        for number in (1, 2)
    ]
    write_files(tmp_path, dict.fromkeys(paths, ""))
    patterns = rf"--image-pattern '\{{split}}/\{{id}}.{kind}' --label-pattern '\{{split}}x/\{{id}}.{kind}'"
    words = f"{patterns}.* 4 images with 4"
    with pytest.raises(AnnotationsError, match=words):
        read(LocalFiles(tmp_path), split_folders=False)
    (tmp_path / f"valx/1.{kind}").unlink()
    assert len(read(LocalFiles(tmp_path), split_folders=False)) == 7


PLAIN = [
    dict.fromkeys([f"{animal}/image_000{number}.jpg" for animal in ("dog", "cat") for number in (1, 2)], ""),
    dict.fromkeys(("dog/1.jpg", "dog/2.jpg", "cat/1.png", "cat/2.png"), ""),
    dict.fromkeys(("images/a.jpg", "paintings/a.jpg"), ""),
    dict.fromkeys(("a/2020/1.jpg", "a/3.jpg", "b/1.jpg"), ""),
    {"hat/a.jpg": "", "hat/a.txt": "a note", "coat/b.jpg": "", "labels.txt": "hat\ncoat\n"},
    {"hat/a.jpg": "", "coat/b.jpg": "", "index.csv": "filename,class\nhat/a.jpg,hat\n"},
    {"hat/a.jpg": "", "coat/b.jpg": "", "about.xml": "<about/>", "meta.json": '{"images": 3}'},
    {"masks/a.jpg": "", "hats/b.jpg": ""},
    {"train/hat/1": "no", "train/hat/a.jpg": "", "train/coat/b.jpg": "", "LICENSE": "x"},
]


@pytest.mark.parametrize("content", PLAIN)
def test_class_folders_with_papers_or_names_shared_by_chance_are_classes_without_a_word(tmp_path, content):
    assert suggest_layout(write_files(tmp_path, content)) is None
    pictures = [one for one in list_references("folders", tmp_path) if one.source.endswith(("jpg", "png"))]
    assert all(one.label and not one.notes for one in pictures)
    assert len(pictures) == sum(name.endswith(("jpg", "png")) for name in content)


def test_what_is_hidden_empty_or_left_behind_is_listed_and_no_class(tmp_path):
    names = "dog/1.jpg cat/1.jpg dog/.DS_Store dog/@eaDir/1.jpg/SYNO_THUMB.jpg #recycle/3.jpg dog/._1.jpg"
    files = make(tmp_path, *names.split(), "cow/notes.txt", ".thumbnails/1.jpg")
    (tmp_path / "owl").mkdir()
    labels = {source: one.label for source, one in read(files).items()}
    assert labels == {"dog/1.jpg": "dog", "cat/1.jpg": "cat", "cow/notes.txt": None}
    assert read(files)["cow/notes.txt"].problem == ("selection", "class folder holds no image", "cow")
    assert files.sizes()
    hidden = [path for path, problem in files.faults().items() if problem == HIDDEN_FILE]
    assert sorted(hidden) == ["#recycle", ".thumbnails", "dog/.DS_Store", "dog/._1.jpg", "dog/@eaDir"]
    assert files.faults()["owl"] == EMPTY_FOLDER
    draw(tmp_path, "dog/1.jpg", "cat/1.jpg")
    done = run_convert(tmp_path, tmp_path.parent / "out", layout="folders")
    assert done.manifest.rejected == {
        "selection: hidden, or left behind by a system or a tool": 5,
        "selection: folder holds no files": 1,
        "selection: class folder holds no image": 1,
    }
    (tmp_path / "cat/.later").write_text("x")
    assert run_convert(tmp_path, tmp_path.parent / "out", layout="folders").was_there


VOC = "<?xml version='1.0'?>\n<annotation><object><name>hat</name></object></annotation>"
COCO = json.dumps({"info": {}, "images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []})
MSD = json.dumps({"name": "x", "modality": {"0": "CT"}, "training": []})
NNUNET = json.dumps({"channel_names": {"0": "CT"}, "labels": {}})
DICOM = "\0" * 128 + "DICM"
VOC_FILES = {"Annotations/a.xml": VOC, "JPEGImages/a.jpg": ""}
METADATA = {"train/1.jpg": "x", "train/metadata.jsonl": '{"file_name": "1.jpg", "label": "hat"}\n'}
BOXED = METADATA | {"train/metadata.jsonl": '{"file_name": "1.jpg", "objects": {"bbox": []}}\n'}
DOTA = {"images/a.jpg": "", "labels/a.txt": "1 2 9 2 9 8 1 8 plane 0\n"}
BDD = {"images/a.jpg": "", "a.json": '[{"name": "a.jpg", "labels": [{"box2d": {"x1": 1}}]}]'}
HEADER, PLAIN_CLASSES = "filename,class,xmin,ymin,xmax,ymax\n", {"hat/a.jpg": "", "coat/b.jpg": ""}
HUGGING = "metadata.jsonl is .*Hugging Face: take --layout jsonl"
REFUSED = [  # layouts, files of a folder, and what each says of it
    ("folders", "a/hat/1.jpg b/hat/2.jpg", "a/hat", "b/hat", "--split-folders"),
    ("folders", "LICENSE", "no image file"),
    (
        "folders",
        "train/photos/hat/1.jpg val/photos/coat/2.jpg",
        "photos would be the only class",
        "coat, hat",
    ),
    (
        "folders",
        "photos/train/hat/1.jpg photos/val/hat/2.jpg",
        "split, train, in the folder photos",
        "name the folder",
    ),
    (
        "folders",
        "hat/train/1.jpg coat/test/2.jpg",
        "a split, test, in the folder coat",
        "--folders-are-classes",
    ),
    ("folders", {"train/a.xml": VOC, "train/a.jpg": "", "test/a.jpg": ""}, "--layout voc"),
    ("folders", {"annotations/i.json": COCO, "train2017/a.jpg": ""}, "annotations/i.json is COCO's"),
    ("folders", {"train/images/a.jpg": "", "train/labels/a.txt": "0 0.5 0.5 0.1 0.2"}, "--layout yolo"),
    ("folders", {"dataset.json": MSD, "imagesTr/a.nii.gz": ""}, "--layout msd"),
    ("folders", {"dataset.json": NNUNET, "imagesTr/a_0000.png": "", "labelsTr/a.png": ""}, "--layout nnunet"),
    ("folders", {"series/IM1": DICOM}, "series/IM1 is DICOM: take --layout dicom"),
    ("folders", {"series/1.dcm": DICOM, "shots/a.jpg": ""}, "--layout dicom"),
    ("folders", {"t.csv": HEADER, "x/a.jpg": "", "y/b.jpg": ""}, "--layout csv"),
    ("folders", {"t.csv": "filename,class\n", "all/a.jpg": ""}, "table of classes: take --layout csv"),
    ("folders", {"t.jsonl": '{"filename": "a.jpg", "class": "hat"}\n', "all/a.jpg": ""}, "--layout jsonl"),
    ("folders", "a.jpg b.jpg", "2 images lie directly in it"),
    *(("folders", files, HUGGING) for files in (METADATA, BOXED)),
    ("csv", VOC_FILES, "no .csv .*take --layout voc"),
    ("csv", PLAIN_CLASSES, "no .csv .*for a class each, take --layout folders"),
    ("coco", {"deep/er/i.json": COCO, "a.jpg": ""}, "name the file itself$"),
    ("folders coco voc csv", DOTA, "DOTA.*take --layout dota"),
    ("folders coco voc csv", BDD, "BDD100K.*take --layout bdd100k"),
]


@pytest.mark.parametrize(("layouts", "files", "words"), [(*row[:2], row[2:]) for row in REFUSED])
def test_a_folder_that_is_not_of_the_layout_said_or_reads_in_two_ways_is_refused_with_a_way(
    tmp_path, layouts, files, words
):
    write_files(tmp_path, files if isinstance(files, dict) else dict.fromkeys(files.split(), "x"))
    for layout in layouts.split():
        with pytest.raises(AnnotationsError) as caught:
            list_references(layout, tmp_path)
        assert [word for word in words if not re.search(word, str(caught.value), re.DOTALL)] == []
    if files is METADATA:
        (only,) = by_source("jsonl", tmp_path).values()
        assert (only.source, only.label, only.split) == ("train/1.jpg", "hat", "train")


FOUND = {
    **{
        name: name for name in ("createml", "cvat", "kitti", "labelme", "supervisely", "via", "wider", "yolo")
    },
    **dict.fromkeys(("automl_csv", "kaggle_wheat_csv", "one_hot_csv"), "csv"),
    **dict.fromkeys(("dicom_named_img", "dicom_unlabeled_96x96"), "dicom"),
    **dict.fromkeys(("mask_gif", "mask_tiff", "nrrd_two_layers", "voc_segmentation"), "pairs"),
    **dict.fromkeys(("voc_zero_size", "../detection/cards_voc", "../detection/bccd_voc"), "voc"),
    **dict.fromkeys(("lvis", "../detection/coco_ccby"), "coco"),
    "bids_two_sessions": "bids",
    "hf_imagefolder": "jsonl",
    "label_studio": "label-studio",
    "nnunet_v1": "nnunet",
    "twelve_bits_in_sixteen": "folders",
    "../dicom/totalsegmentator_jpeg2000": "dicom",
}
UNDETECTED = {
    "../detection": "several layouts: .*Choose --layout voc or --layout coco",
    "captions": "jsonl: train/metadata.jsonl: no column class; found file_name, text",
    "freesurfer_mgz": "pairs: no volume, picture or clip has a label by its name",
}


def test_each_format_is_recognized_by_its_files(test_data):
    assert {name: detected(test_data / "cases" / name) for name in FOUND} == FOUND
    for name in (
        "hf_imagefolder",
        "lvis",
        "voc_segmentation",
        "automl_csv",
        "kaggle_wheat_csv",
        "one_hot_csv",
    ):
        with pytest.raises(AnnotationsError, match=f"take --layout {FOUND[name]}"):
            list_references("folders", test_data / "cases" / name)
        (first, *_) = list_references(FOUND[name], test_data / "cases" / name)
        assert first.problem is None and (first.boxes or first.label or first.mask)


@pytest.mark.parametrize("name", UNDETECTED)
def test_a_source_of_no_or_several_layouts_is_refused_with_the_choices(name, test_data, tmp_path):
    write_files(
        tmp_path / "captions/train", {"metadata.jsonl": '{"file_name": "1.jpg", "text": "a"}\n', "1.jpg": ""}
    )
    root = (tmp_path if name == "captions" else test_data / "cases") / name
    with pytest.raises(AnnotationsError, match=f"(?s){UNDETECTED[name]}"):
        detected(root)


DOUBTS = {  # paths, and why `--layout auto` takes no class from their folders
    "image/a.jpg label/b.jpg": "image usually holds all pictures",
    "hat/a.jpg coat/b.jpg docs/c.png": "docs usually holds other pictures of a project",
    "trainA/a.jpg trainB/b.jpg testA/c.jpg": "testA and trainB may be parts of a split",
    "left/a.jpg right/b.jpg": "left, right may show the same objects",
    "left/a.jpg right/b.jpg straight/c.jpg": "",
    "seq_01/a.jpg seq_02/b.jpg": "seq_01, seq_02 may be parts of a set",
    "2021-03-04/a.jpg 2021-03-05/b.jpg": "may be parts of a set",
    " ".join(f"{side}/scene_{n}.jpg" for side in "ab" for n in (117, 243, 311, 402)): (
        "a/scene_117.jpg and b/scene_117.jpg have one name, as have 4 files of their classes: they may show one thing"
    ),
    "000/1.jpg 000/2.jpg 001/3.jpg": "the numbers of the files continue from 000 to 001",
    "0/1.jpg 0/2.jpg 1/1.jpg 1/2.jpg": "",
    "0a/0a00000001.jpg ff/ff00000002.jpg": "begin with those of their folders",
}
LISTS = {  # lists of hat/1.jpg, hat/2.jpg, coat/3.jpg and coat/4.jpg, and what they say more than the folders
    "Anno/list.txt": (
        "4\nYoung Male\n1.jpg -1 1\n2.jpg 1 -1\n3.jpg 1 1\n4.jpg 1 -1\n",
        "list.txt says more of",
    ),
    "boxes.csv": ("image,x,y\nhat/1.jpg,3,4\ncoat/3.jpg,5,9\ncoat/4.jpg,1,8\n", "boxes.csv says more of"),
    "labels.csv": ("name,x,class\n1.jpg,3,1\n2.jpg,9,1\n3.jpg,5,0\n4.jpg,7,0\n", ""),
    "named.txt": ("1.jpg hat 7\n2.jpg hat 8\n", ""),
    "images.txt": ("1 hat/1.jpg\n2 hat/2.jpg\n3 coat/3.jpg\n", ""),
    "split.csv": ("name,split\n1.jpg,train\n2.jpg,test\n", ""),
    "captions.json": ('{"1.jpg": "two hats", "3.jpg": "one coat"}', "captions.json names"),
    "index.json": ('{"1.jpg": "hat", "3.jpg": "coat"}', ""),
}


@pytest.mark.parametrize("case", [*DOUBTS, *LISTS])
def test_a_guess_takes_no_folders_for_classes_that_may_be_none(tmp_path, case):
    content, doubt = LISTS.get(case, ("", DOUBTS.get(case)))
    pictures = "hat/1.jpg hat/2.jpg coat/3.jpg coat/4.jpg" if content else case
    write_files(tmp_path, dict.fromkeys(pictures.split(), "") | ({case: content} if content else {}))
    if not doubt:
        assert detected(tmp_path) == "folders"
        return
    with pytest.raises(AnnotationsError, match=f"{doubt}.*if each folder is a class: --layout folders"):
        detected(tmp_path)
    assert all(one.label for one in list_references("folders", tmp_path) if one.problem is None)
