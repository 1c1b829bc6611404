"""Cases of shared/data/cases about advice: each is read rightly, or its message suggests words that work."""

import contextlib
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.advice import run, type_suggestions

CASES = Path(os.environ.get("HALOFEED_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "cases"
PLAIN = "--resize none --encoding png"
SCANS = "--depth 16 --height 24 --width 24"
ROWS = {
    "a town in Cityscapes": (
        "pictures_cityscapes_layout",
        PLAIN,
        r"(?s)layout cityscapes, because .*segmentation, 19 classes",
    ),
    "patients": (
        "volumes_advice_pairs_two_patients/two",
        SCANS,
        r"'p\{id\}/ct.nii.gz'.*'p\{id\}/roi.nii.gz'",
    ),
    "visits": ("volumes_advice_pairs_two_patients/visits", PLAIN, r"may be parts of a set"),
    "T1 and T2": ("volumes_advice_pairs_two_patients/t1t2", SCANS, r"none of its 6 files"),
    **{
        name: (f"volumes_auto_names/{name}", SCANS, r"use --layout pairs --image-pattern .* pairs 2 images")
        for name in (
            "image_label",
            "nnunet_without_json",
            "ct_org",
            "btcv_pre",
            "segthor",
            "sliver",
            "monailabel",
        )
    },
    "masks beside pictures": (
        "volumes_lgg_two_layouts",
        "--height 32 --width 32 --channels 1",
        r"layout pairs, because it finds labels for 12 of 12",
    ),
    "lists of CVAT": ("pictures_cvat_yolo11_lists_fix", PLAIN, r"train +3 records[^\n]*\n +val +2 records"),
    "a list of a subset": (
        "pictures_yolo_list_of_a_subset",
        PLAIN,
        r"(?s)\A(?!.*label file has no image).*2 x selection: image is in no split",
    ),
    "lists of nothing": (
        "pictures_yolo_lists_name_nothing",
        PLAIN,
        r"no line of train\.txt and val\.txt is an image: images/im0\.jpg: .*images/im0\.png has that name",
    ),
    "iNaturalist": ("pictures_inaturalist_json", PLAIN, r"classification, 2 classes"),
    "outlines": (
        "pictures_coco_outlines_without_bbox",
        PLAIN,
        r"has no bbox: the box is that of the outline",
    ),
    "Datumaro": ("pictures_datumaro_json_is_called_coco", PLAIN, r"(?s)is Datumaro's.*detection, 1 class"),
    "VisDrone": (
        "pictures_visdrone_det",
        PLAIN,
        r"layout visdrone, because annotations/0000000\.txt is",
    ),
    "Open Images": (
        "pictures_open_images_folder",
        PLAIN,
        r"layout csv, because .*bbox.csv is a table of boxes",
    ),
    "ISIC": ("pictures_isic_image_column", PLAIN, r"layout csv, because"),
    "lists in Parquet": (
        "pictures_parquet_labels_list",
        f"{PLAIN} --several-classes keep",
        r"classification, 2 classes",
    ),
    "tiles": (
        "pictures_tiles_of_pictures",
        "--fit tiles --resize fixed-shape --height 64 --width 64",
        r"detection, 1 class\n +train +4 records",
    ),
    "classes of boxes": (
        "pictures_class_choice_for_boxes",
        f"{PLAIN} --classes dog",
        r"left out by class: cat 1\n",
    ),
}


def drawn(case: str, folder: Path) -> Path:
    """Draw a case by its `make.py`; return the source."""
    name, _, below = case.partition("/")
    make = CASES / name / "make.py"
    if not make.is_file():
        pytest.skip(f"{make} is not here")
    with contextlib.ExitStack() as after:
        arguments, paths, known = sys.argv[:], sys.path[:], sys.modules.pop("draw", None)
        after.callback(sys.modules.update, {"draw": known} if known else {})
        after.callback(sys.modules.pop, "draw", None)
        after.callback(setattr, sys, "path", paths)
        after.callback(setattr, sys, "argv", arguments)
        sys.argv = [str(make), str(folder)]
        sys.path.insert(0, str(CASES))
        runpy.run_path(str(make))
    return folder / below


@pytest.mark.parametrize("name", ROWS)
def test_a_case_comes_out_right_or_its_advice_works(tmp_path, name):
    case, options, expected = ROWS[name]
    words = ["--source", drawn(case, tmp_path / "source"), *options.split()]
    _, message = run(words, tmp_path / "out")
    assert re.search(expected, message), message
    typed = type_suggestions(words, tmp_path)
    assert typed or "use --" not in message.replace("use --folders-are-classes", "")
