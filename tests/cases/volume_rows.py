"""Commands on drawn volumes, and what must come out."""

import re
from pathlib import Path

from tests.cases.words import TABLE, UNLABELED, VOLUME, write_rows
from tests.support.case_checks import (
    boxes_are,
    classes_are,
    groups_stay_together,
    image_channels_are,
    image_levels_are,
    image_values_are,
    label_counts_are,
    label_values_are,
    notes,
    one_of,
    part_of_name,
    records_are,
    says,
    says_not,
)
from tests.support.case_runs import ByHand, Case

_FULL = "--depth 16 --height 20 --width 24"
"""The shape of the drawn phantoms: padding would be ignored, too."""
_BALLS = (154, 58)
"""Voxels of the two balls of every drawn phantom."""


def _without_first_line(drawn: Path) -> None:
    names = drawn / "classes.txt"
    names.write_text("".join(line for line in names.read_text().splitlines(True) if not line.startswith("#")))


def _table_of_one_drawing(drawn: Path) -> None:
    write_rows(drawn, "t.csv", ("id", "image", "label"), ("a", "L1/st/ct", "L1/st/300-Segmentation/1-1.dcm"))


_PATIENTS = {
    "nih": r"(\d{8})_",
    "lits": r"volume-(\d+)",
    "brats": r"Training_(\d+)_",
    "p001": r"P(\d+)_",
    "lidc": r"IDRI-(\d+)_",
    "folder": r"/(\d+)/",
}
_NAMED = {
    "labelmap.txt": ("liver", "tumor"),
    "labels.txt": ("liver", "tumor"),
    "comment.txt": ("liver", "tumor"),
    "colors.txt": ("liver", "tumor"),
    "lut.txt": ("Left-Cerebral-Exterior", "Left-Cerebral-White-Matter"),
}
_AUTO = {
    "image_label": ("1_image.nii.gz", "2_image.nii.gz"),
    "nnunet_without_json": ("1_0000.nii.gz", "2_0000.nii.gz"),
    "ct_org": ("volume-1.nii.gz", "volume-2.nii.gz"),
    "btcv_pre": ("img0001.nii.gz", "img0002.nii.gz"),
    "segthor": ("Patient_01.nii.gz", "Patient_02.nii.gz"),
    "sliver": ("orig001.nii.gz", "orig002.nii.gz"),
    "monailabel": ("c1.nii.gz", "c2.nii.gz"),
}

VOLUMES: tuple[Case, ...] = (
    Case(
        folder="volumes_advice_pairs_two_patients",
        source="two",
        words=VOLUME,
        right=(
            records_are(2),
            label_counts_are("p0/ct.nii.gz", *_BALLS),
            label_counts_are("p1/ct.nii.gz", *_BALLS),
        ),
        strict=True,
    ),
    Case(
        folder="volumes_advice_pairs_two_patients",
        source="visits",
        words="--height 32 --width 32",
        right=(says_not("label-pattern '?v"),),
        never=("label-pattern '?v",),
        ends=True,
    ),
    Case(
        folder="volumes_advice_pairs_two_patients",
        source="t1t2",
        words=VOLUME,
        right=(says_not("label-pattern '?T"),),
        never=("label-pattern '?T",),
        ends=True,
    ),
    *(
        Case(
            folder="volumes_auto_names",
            source=name,
            words=VOLUME,
            right=(records_are(2), *(label_counts_are(file, *_BALLS) for file in files)),
        )
        for name, files in _AUTO.items()
    ),
    Case(
        folder="volumes_channels_on_other_grids",
        words=f"{VOLUME} --channels 2 --dtype float32"
        " --image-pattern imagesTr/{id}__{channel}.nii.gz --label-pattern labelsTr/{id}.nii.gz",
        right=(
            records_are(2),
            image_channels_are("C1__CT.nii.gz", 2),
            label_counts_are("C1__CT.nii.gz", *_BALLS),
        ),
        says=("different grids", "(?i)resampl"),
    ),
    Case(
        folder="volumes_channels_on_other_grids",
        words=f"{VOLUME} --channels 2 --dtype float32 --channel-grid resample:CT"
        " --image-pattern imagesTr/{id}__{channel}.nii.gz --label-pattern labelsTr/{id}.nii.gz",
        right=(
            records_are(2),
            image_channels_are("C1__CT.nii.gz", 2),
            label_counts_are("C1__CT.nii.gz", *_BALLS),
        ),
    ),
    Case(
        folder="volumes_dicom_changed_uids",
        source="seg_case",
        words=f"{VOLUME} --classes Liver,Tumor --mask-references ignore",
        right=(records_are(1), label_counts_are("ct", *_BALLS)),
        says=("--layout csv|mask-references",),
        by_hand=(
            ByHand(says="--layout csv", words="--source {case}/seg.csv --layout csv --task segmentation"),
        ),
    ),
    Case(
        folder="volumes_dicom_seg_and_rtstruct",
        words=f"{VOLUME} --classes GTV-1",
        right=(one_of(label_values_are("ct", {"GTV-1": 58}), label_values_are("ct", {"GTV-1": 168})),),
        says=("several labels", "--label-pattern.*the SEG", "majority or staple"),
        by_hand=(
            ByHand(
                says="--layout csv",
                change=_table_of_one_drawing,
                words="--source {case}/t.csv --layout csv --task segmentation",
            ),
        ),
    ),
    Case(
        folder="volumes_dicom_seg_and_rtstruct",
        words=f"{VOLUME} --classes GTV* --label-pattern **/300-*/*.dcm",
        right=(label_values_are("ct", {"GTV-1": 58}),),
    ),
    *(
        Case(
            folder="volumes_dicom_single_pictures",
            source=source,
            words=words,
            right=(records_are(count), classes_are(*classes)),
        )
        for source, words, count, classes in (
            ("mg", "--height 40 --width 40", 4, ("benign", "malignant")),
            ("mg", "--height 40 --width 40 --layout folders", 4, ("benign", "malignant")),
            (
                "rsna/boxes.csv",
                "--layout csv --images {case}/rsna/images --box-form corner-size --height 64 --width 64",
                1,
                ("opacity",),
            ),
            ("rsna", "--box-form corner-size --height 64 --width 64", 1, ("opacity",)),
        )
    ),
    *(
        Case(
            folder="volumes_dicom_single_pictures",
            source=source,
            words=words,
            says=("(?i)dicom|image", "(?i)class folder|take --layout"),
            ends=True,
            # Layouts of pictures need labels, and --secondary-captures needs --depth.
            follows=False,
        )
        # No class is written, and a volume was asked for.
        for source, words in (
            ("us", "--height 40 --width 48"),
            ("rsna", "--secondary-captures take --layout dicom --depth 1 --height 64 --width 64"),
        )
    ),
    *(
        Case(
            folder="volumes_label_map_comments",
            words=f"--images {{case}} --layout pairs --height 32 --width 32 --label-map {{case}}/maps/{table}",
            right=tuple(label_values_are(f"{i}.png", dict.fromkeys(names, 64)) for i in range(2)),
            says=(re.escape(table),),
        )
        for table, names in _NAMED.items()
    ),
    *(
        Case(
            folder="volumes_label_negative",
            words=f"{_FULL} {more}",
            right=(label_values_are("c0.nii.gz", {"1": 154, "2": 58, **ignored}),),
            says=("-1", "--ignore-label"),
        )
        for more, ignored in (
            ("", {"ignored": 960}),
            ("--map-classes=-1=background", {}),
            ("--ignore-label -1", {"ignored": 960}),
        )
    ),
    *(
        Case(
            folder="volumes_leak_slices",
            source=name,
            words="--height 32 --width 32 --split-shares train=0.5,test=0.5",
            right=(groups_stay_together(part_of_name(pattern)),),
            says=("--group-pattern|--group-column",),
        )
        for name, pattern in _PATIENTS.items()
    ),
    Case(
        folder="volumes_leak_time_points",
        source="Dataset108_x",
        words=f"{VOLUME} --split-shares train=0.5,test=0.5",
        right=(groups_stay_together(part_of_name(r"GLI-(\d+)-")),),
        says=("--group-pattern|--group-column",),
    ),
    Case(
        folder="volumes_leak_time_points",
        source="table/t.csv",
        words=f"{TABLE} {VOLUME} --split-shares train=0.5,test=0.5",
        right=(groups_stay_together(part_of_name(r"GLI-(\d+)-")),),
        says=("--group-pattern|--group-column",),
    ),
    Case(
        folder="volumes_lgg_two_layouts",
        words="--height 32 --width 32 --channels 1",
        right=(records_are(12), label_counts_are("TCGA_CS_4940_19960909_1.tif", 480)),
        strict=True,
    ),
    Case(
        folder="volumes_nnunet_ignore",
        source="Dataset103_lab",
        words=_FULL,
        right=(
            label_values_are("c0_0000.nii.gz", {"liver": 154, "tumor": 58, "ignored": 960}),
            classes_are("liver", "tumor"),
        ),
        says=("ignore",),
    ),
    Case(
        folder="volumes_nnunet_ignore",
        source="Dataset107_2d",
        words="--height 20 --width 24 --channels 1",
        right=(label_values_are("c0_0000.png", {"tumor": 35, "ignored": 192}), classes_are("tumor")),
        says=("ignore",),
    ),
    Case(
        folder="volumes_nnunet_rgb_one_file",
        words="--height 20 --width 24",
        right=(
            records_are(2),
            label_counts_are("c0_0000.png", 35),
            image_channels_are("c0_0000.png", 3),
            image_values_are("c0_0000.png", 0, 200, 10, 220, 30),
        ),
    ),
    Case(
        folder="volumes_nnunet_tif3d",
        words=VOLUME,
        right=(records_are(2), label_counts_are("c0_0000.tif", *_BALLS)),
    ),
    Case(
        folder="volumes_nnunet_tif3d",
        words="--height 20 --width 24",
        right=(records_are(2), label_counts_are("c0_0000.tif", *_BALLS)),
        says=("(?i)tif", "--depth 16 --height 20 --width 24"),
    ),
    Case(
        folder="volumes_parametric_map",
        source="t.csv",
        words=f"{TABLE} --images {{case}}/maps --dtype float32 {UNLABELED} --depth 6 --height 8 --width 8",
        right=(image_values_are("a", -0.5, -0.117, within=1e-6),),
    ),
    Case(
        folder="volumes_png16_narrow",
        source="deeplesion/boxes.csv",
        words="--layout csv --height 64 --width 64",
        right=(
            image_values_are("000001_01_01_109.png", 31768, 32808, 32918),
            boxes_are("000001_01_01_109.png", ("lesion", 30, 30, 40, 36)),
        ),
        says=("uint16",),
    ),
    Case(
        folder="volumes_png16_narrow",
        source="folders",
        words="--layout folders --height 32 --width 32",
        right=(image_values_are("a/0.png", 20000, 20100, 20200),),
        says=("uint16",),
    ),
    Case(
        folder="volumes_quantized_labels",
        source="t.csv",
        words=f"{TABLE} --depth 10 --height 8 --width 6",
        right=(
            label_counts_are("im.nii.gz", 80, 80),
            classes_are("1", "2"),
            one_of(says("scl_slope|slope|whole|round"), notes("slope|whole|round|floats")),
        ),
    ),
    Case(
        folder="volumes_table_mask_and_label_number",
        source="cases.csv",
        words=f"{TABLE} {VOLUME}",
        right=(records_are(2), label_counts_are("c0.nii.gz", *_BALLS)),
        says=("Mask", "Label"),
    ),
    *(
        Case(
            folder="volumes_window_leaves_nothing",
            source=source,
            words=f"{VOLUME} {window}",
            right=(image_levels_are(name, 3), *right),
            says=("one value|twice|in HU",),
            known={"--window-hu": "-160,240"},
            ends=source != "plain",
            follows=False,
        )
        for source, window, name, right in (
            ("double_offset", "--window abdomen", "c0.nii.gz", (says("intercept|air|Hounsfield"),)),
            ("dicom_double", "--window abdomen", "ct", (says("intercept|air|Hounsfield"),)),
            ("plain", "--window-hu 400,1500", "c0.nii.gz", ()),
        )
    ),
    Case(
        folder="volumes_yolo_classes_comment",
        words="--height 32 --width 32 --resize fixed-shape",
        right=(
            classes_are("nodule", "cyst"),
            boxes_are("0.png", ("nodule", 12.8, 12.8, 19.2, 19.2), ("cyst", 6.4, 6.4, 12.8, 12.8)),
        ),
        says=("classes.txt",),
        by_hand=(ByHand(says="delete the line", change=_without_first_line),),
    ),
)
