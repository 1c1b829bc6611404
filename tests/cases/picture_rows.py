"""Commands on drawn pictures, and what must come out."""

import json
import re
from pathlib import Path

from tests.cases.words import PAIRS, PICTURE, write_rows
from tests.support.case_checks import (
    boxes_are,
    classes_are,
    groups_stay_together,
    image_values_are,
    label_counts_are,
    label_values_are,
    mask_areas_are,
    no_object_is_a_crowd,
    one_of,
    picture_classes_are,
    records_are,
    says,
    says_not,
)
from tests.support.case_runs import ByHand, Case, Record

_PADDED = "--resize keep-aspect --min-dimension 100 --max-dimension 100 --pad"
_CAT = ("cat", 10, 20, 50, 60)


def _frame_over_ten(record: Record) -> str:
    return str(int(re.sub(r"\D", "", Path(record.name).stem)) // 10)


def _first_line_background(drawn: Path) -> None:
    names = drawn / "classes.txt"
    names.write_text("background\n" + names.read_text())


def _png_in_lists(drawn: Path) -> None:
    for name in ("train.txt", "val.txt"):
        (drawn / name).write_text((drawn / name).read_text().replace(".jpg", ".png"))


def _boxes_around_outlines(drawn: Path) -> None:
    path = drawn / "instances_train.json"
    document = json.loads(path.read_text())
    for one in document["annotations"]:
        one["bbox"] = [10, 20, 40, 40]
    path.write_text(json.dumps(document))


def _labels_called_label(drawn: Path) -> None:
    from pyarrow import parquet

    path = drawn / "train-00000-of-00001.parquet"
    table = parquet.read_table(path)
    features = json.loads(table.schema.metadata[b"huggingface"])
    if "labels" not in table.column_names:
        return
    features["info"]["features"]["label"] = features["info"]["features"].pop("labels")
    renamed = table.rename_columns(["image", "label"])
    parquet.write_table(renamed.replace_schema_metadata({b"huggingface": json.dumps(features)}), path)


def _tags_table(drawn: Path) -> None:
    write_rows(drawn, "t.csv", ("filename", "class"), ("images/a0.png", "cat"), ("images/a1.png", "dog"))


def _species_table(drawn: Path) -> None:
    rows = [(f"train/{('00001_a', '00002_b')[i % 2]}/{i}.png", ("alba", "beta")[i % 2]) for i in range(4)]
    write_rows(drawn, "t.csv", ("filename", "class"), *rows)


_TAGS = (picture_classes_are({"a0.png": ("cat",), "a1.png": ("dog",)}),)
_SPECIES = (
    one_of(
        picture_classes_are({f"{i}.png": (("alba", "beta")[i % 2],) for i in range(4)}),
        picture_classes_are({f"{i}.png": (("00001_a", "00002_b")[i % 2],) for i in range(4)}),
    ),
)
_LISTS = (
    one_of(records_are(5, train=3, val=2), records_are(5, train=3, valid=2)),
    boxes_are("train2.png", ("cat", 12, 20, 52, 60)),
)
_SHRUNK = tuple(
    label_values_are(f"{name}.png", {str(value): 480 for value in values})
    for name, values in {"a": (1,), "b": (1, 2, 17), "c": (2,), "d": (17,), "e": (17, 34)}.items()
)
_VOID = tuple(label_values_are(f"{i}.png", {"aeroplane": 1600, "ignored": 336}) for i in range(3))
_COLORS = tuple(label_values_are(f"i{i}.png", {"Cat": 1600, "Dog": 2400}) for i in range(3))
_DOG_AS_CAT = (boxes_are("a.png", _CAT, ("cat", 60, 20, 90, 60)),)
_SQUARE = (
    boxes_are("a.png", ("k", 40, 40, 60, 60)),
    boxes_are("b.png", ("k", 40, 40, 60, 60)),
    mask_areas_are("a.png", 400),
)
PICTURES: tuple[Case, ...] = (
    Case(
        folder="pictures_all_objects_are_crowds",
        words=_PADDED,
        right=(no_object_is_a_crowd(18),),
        says=("crowd",),
    ),
    Case(
        folder="pictures_camera_traps_partly_boxed",
        words=PICTURE,
        right=(
            records_are(7),
            classes_are("cat"),
            boxes_are("loc0/1.png", _CAT),
            boxes_are("loc0/2.png"),
        ),
        says=("cat|without a box|no box",),
    ),
    Case(
        folder="pictures_cityscapes_layout",
        words=PICTURE,
        right=(
            records_are(4, train=2, val=2),
            label_values_are(
                "aachen_000000_000019_leftImg8bit.png",
                {"road": 5400, "building": 1800, "car": 600, "ignored": 3000},
            ),
        ),
    ),
    Case(
        folder="pictures_class_choice_for_boxes",
        words=f"{PICTURE} --map-classes dog=cat",
        right=_DOG_AS_CAT,
    ),
    Case(
        folder="pictures_class_choice_for_boxes",
        words=f"{PICTURE} --classes dog",
        right=(boxes_are("a.png", ("dog", 60, 20, 90, 60)),),
        says=("left out by class: cat 1",),
    ),
    Case(
        folder="pictures_class_choice_for_boxes",
        words=f"{PICTURE} --task segmentation --map-classes dog=cat",
        follows=False,
        right=_DOG_AS_CAT,
        says=("box|object|detection",),
        ends=True,
    ),
    *(
        Case(
            folder="pictures_coco_outlines_without_bbox",
            words=f"{PICTURE} {more}",
            right=(boxes_are("a.png", _CAT),),
            says=("bbox",),
            never=("not captions",),
            by_hand=(
                ByHand(says="(?s)bbox.*(outline|polygon|pycocotools|compute)", change=_boxes_around_outlines),
            ),
        )
        for more in ("", "--masks")
    ),
    Case(
        folder="pictures_coco_video_id_shares",
        words=f"{PICTURE} --split-shares train=0.7,test=0.3",
        right=(groups_stay_together(_frame_over_ten), records_are(40)),
        says=("video_id",),
    ),
    Case(
        folder="pictures_csv_video_id_shares",
        words=f"{PICTURE} --split-shares train=0.7,test=0.3",
        right=(groups_stay_together(_frame_over_ten), records_are(40)),
        says=("video_id",),
    ),
    Case(folder="pictures_color_map_files_unread", words=PICTURE, right=_COLORS, says=("labelmap.txt",)),
    Case(
        folder="pictures_color_map_files_unread",
        words=f"{PICTURE} {PAIRS} --image-pattern JPEGImages/{{id}}.png"
        " --label-pattern SegmentationClass/{id}.png --label-map {case}/labelmap.txt",
        right=_COLORS,
        says=("labelmap.txt",),
    ),
    Case(
        folder="pictures_csv_classes_by_blanks",
        words=f"{PICTURE} --layout csv",
        right=(
            picture_classes_are(
                {
                    "t0.png": ("scab", "rust"),
                    "t1.png": ("scab",),
                    "t2.png": ("scab", "rust", "mildew"),
                    "t3.png": ("rust",),
                    "t4.png": ("mildew",),
                    "t5.png": ("healthy",),
                }
            ),
        ),
        says=("scab rust",),
    ),
    *(
        Case(
            folder="pictures_cvat_tags_only",
            words=f"{PICTURE} {more}",
            right=_TAGS,
            says=("tag",),
            by_hand=(
                ByHand(says="filename,class", change=_tags_table, words="--source {case}/t.csv --layout csv"),
            ),
        )
        for more in ("", "--task classification")
    ),
    *(
        Case(
            folder="pictures_cvat_yolo11_lists_fix",
            words=f"{PICTURE} {more}",
            right=_LISTS,
            says=("train.txt",),
        )
        for more in ("", "--split-lists train={case}/train.txt,valid={case}/valid.txt")
    ),
    Case(
        folder="pictures_datumaro_json_is_called_coco",
        words=PICTURE,
        right=(records_are(1), boxes_are("a.png", _CAT)),
    ),
    Case(
        folder="pictures_gdal_rgb_minisblack",
        words=f"{PICTURE} --layout csv",
        right=(
            boxes_are("0.tif", _CAT),
            boxes_are("1.tif", _CAT),
            image_values_are("0.tif", 100, 128, 220, 30),
        ),
        says=("gdal_translate|PHOTOMETRIC|tifffile",),
        ends=True,
    ),
    *(
        Case(
            folder="pictures_inaturalist_json",
            words=f"{PICTURE} {more}",
            right=_SPECIES,
            says=("class",),
            by_hand=(
                ByHand(
                    says="filename,class", change=_species_table, words="--source {case}/t.csv --layout csv"
                ),
            ),
        )
        for more in ("", "--task classification", "--layout folders")
    ),
    Case(
        folder="pictures_instance_ids_as_classes",
        words=f"{PICTURE} {PAIRS} --image-pattern PNGImages/{{id}}.png --label-pattern PedMasks/{{id}}_mask.png",
        right=(
            label_counts_are("Ped00000.png", 800),
            label_counts_are("Ped00001.png", 1600),
            label_counts_are("Ped00002.png", 2400),
        ),
        says=("object|instance",),
        known={"--map-classes": "1=person,2=person,3=person"},
    ),
    Case(
        folder="pictures_isic_image_column",
        words=f"{PICTURE} --layout csv",
        right=(picture_classes_are({f"ISIC_{i:07d}.png": (("MEL", "NV", "BCC")[i % 3],) for i in range(4)}),),
        says=("classification",),
    ),
    Case(
        folder="pictures_label_png_shrunk",
        source="plain",
        words=f"{PAIRS} --height 64 --width 64",
        right=_SHRUNK,
    ),
    Case(
        folder="pictures_label_png_shrunk",
        source="shrunk",
        words=f"{PAIRS} --height 64 --width 64",
        right=_SHRUNK,
        says=("palette|gray|bit",),
        ends=True,
    ),
    Case(
        folder="pictures_names_without_background",
        words=f"{PICTURE} --label-map {{case}}/classes.txt",
        right=tuple(label_values_are(f"{i}.png", {"cat": 1600}) for i in range(3)),
        says=("background",),
        by_hand=(ByHand(says="background", change=_first_line_background),),
    ),
    Case(
        folder="pictures_open_images_folder",
        words=PICTURE,
        right=(
            boxes_are("00aa.png", ("Cat", 12, 18, 60, 54)),
            boxes_are("00bb.png", ("Dog", 12, 18, 60, 54)),
        ),
        says=("csv",),
    ),
    Case(
        folder="pictures_parquet_labels_list",
        words=f"{PICTURE} --several-classes keep",
        right=(
            picture_classes_are(
                {"-0.png": ("cat",), "-1.png": ("cat", "dog"), "-2.png": (), "-3.png": ("dog",)}
            ),
        ),
        says=("labels",),
        by_hand=(ByHand(says=r"\blabel\b", change=_labels_called_label),),
    ),
    Case(
        folder="pictures_tiles_of_pictures",
        words="--fit tiles --height 64 --width 64",
        right=(says("tile"),),
        says=("tile", "picture"),
        ends=True,
    ),
    Case(
        folder="pictures_two_point_part",
        words=f"--layout coco --masks {_PADDED}",
        right=(*_SQUARE, says("point|part|line")),
    ),
    Case(
        folder="pictures_visdrone_det",
        words=PICTURE,
        right=tuple(
            boxes_are(f"000000{i}.png", ("car", 10, 20, 50, 60), ("pedestrian", 5, 70, 15, 82))
            for i in range(3)
        ),
        says=("ignored regions",),
    ),
    Case(
        folder="pictures_void_color_cannot_be_ignored",
        words=f"{PICTURE} {PAIRS} --label-colors 800000=aeroplane,e0e0c0=255 --ignore-label 255",
        right=_VOID,
        says=("e0e0c0",),
    ),
    Case(
        folder="pictures_void_color_cannot_be_ignored",
        words=f"{PICTURE} {PAIRS} --label-colors 800000=aeroplane",
        right=_VOID,
        says=("e0e0c0", "ignore"),
    ),
    Case(
        folder="pictures_yolo_list_of_a_subset",
        words=PICTURE,
        right=(records_are(4, train=3, val=1), says_not("label file has no image"), says("no split")),
    ),
    Case(
        folder="pictures_yolo_lists_name_nothing",
        words=PICTURE,
        right=(records_are(6), boxes_are("im0.png", _CAT)),
        says=("train.txt", "images/im0.jpg"),
        by_hand=(ByHand(says="train.txt", change=_png_in_lists),),
        never=("folders-are-classes",),
    ),
    Case(
        folder="pictures_yolo_obb_becomes_upright",
        words=PICTURE,
        right=(
            records_are(12),
            boxes_are("train/0.png", ("car", 40, 40, 80, 50)),
            says("(?i)1[12] .*(oriented|rotated|turned)"),
        ),
        says=("(?i)oriented|rotated|turned",),
    ),
)
