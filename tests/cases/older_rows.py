"""Commands on the older cases, whose folders hold files, and what must come out."""

from tests.cases.words import PICTURE, TABLE, UNLABELED, VOLUME
from tests.support.case_checks import (
    boxes_are,
    classes_are,
    groups_stay_together,
    image_channels_are,
    image_levels_are,
    image_values_are,
    label_counts_are,
    label_values_are,
    part_of_name,
    picture_classes_are,
    records_are,
    says,
)
from tests.support.case_runs import Case

_TWO = ((10, 8, 40, 30), (50, 20, 90, 60))


def _both(name: str, text: str) -> tuple:
    """The two boxes that most older pictures have."""
    return (boxes_are(name, *((text, *box) for box in _TWO)),)


def _first(name: str, text: str, within: float = 0.51) -> tuple:
    return (boxes_are(name, (text, *_TWO[0]), within=within),)


OLDER: tuple[Case, ...] = (
    Case(
        folder="dicom_one_series_uid_two_patients",
        words="--depth 10 --height 32 --width 32",
        right=(records_are(2),),
        says=("patient",),
        ends=True,
    ),
    Case(
        folder="dicom_unlabeled_96x96", words="--depth 10 --height 32 --width 32", right=(says("88.9%|8/9"),)
    ),
    Case(folder="dicom_named_img", words="--depth 10 --height 32 --width 32", right=(records_are(1),)),
    Case(
        folder="dicom_folders_as_channels",
        source="t.csv",
        words=f"{TABLE} {VOLUME}",
        right=(records_are(1), image_channels_are("t1", 2)),
        says=("channels",),
    ),
    Case(
        folder="nrrd_segments_named_differently",
        source="t.csv",
        words=f"{TABLE} {VOLUME}",
        right=tuple(label_values_are(f"p{i}.nii.gz", {"liver": 143, "spleen": 91}) for i in (1, 2)),
    ),
    Case(
        folder="nrrd_two_layers",
        source="t.csv",
        words=f"{TABLE} {VOLUME} --class-overlap channels",
        right=(label_values_are("img.nii.gz", {"liver": 143, "kidney": 91, "tumor": 24}),),
    ),
    Case(
        folder="nrrd_two_layers",
        source="t.csv",
        words=f"{TABLE} {VOLUME}",
        right=(label_values_are("img.nii.gz", {"liver": 143, "kidney": 91, "tumor": 24}),),
        says=("overlap",),
        known={"--class-overlap": "channels"},
    ),
    Case(
        folder="suv_beside_ct",
        source="t.csv",
        words=f"{TABLE} {VOLUME} --channels 2",
        right=(image_channels_are("CT.nii.gz", 2), image_values_are("CT.nii.gz", 4.5, within=1e-4)),
        says=("SUV.nii.gz",),
    ),
    Case(
        folder="nifti_zero_sform_good_qform",
        source="t.csv",
        words=f"{TABLE} {VOLUME} {UNLABELED}",
        right=(records_are(1),),
    ),
    Case(
        folder="nnunet_v1",
        words=VOLUME,
        right=tuple(label_values_are(f"c_00{i}_0000.nii.gz", {"a": 143, "b": 91}) for i in (1, 2)),
    ),
    Case(
        folder="bids_two_sessions",
        words=f"{VOLUME} --split-shares train=0.5,test=0.5",
        right=(
            records_are(16),
            groups_stay_together(part_of_name(r"sub-(\d+)/")),
            label_counts_are("sub-01_ses-1_T2w.nii.gz", 143, 91),
        ),
    ),
    Case(
        folder="freesurfer_mgz",
        source="t.csv",
        words=f"{TABLE} {VOLUME} {UNLABELED}",
        right=(records_are(1), image_levels_are("o.mgz", 400)),
    ),
    Case(
        folder="yolo",
        words=PICTURE,
        right=(records_are(6, train=3, val=3), boxes_are("train0.jpg", ("a", *_TWO[0]), ("b", *_TWO[1]))),
    ),
    Case(
        folder="yolo_polygons",
        words=PICTURE,
        right=(records_are(3), boxes_are("t0.jpg", ("a", 9.6, 6.4, 38.4, 32))),
    ),
    *(
        Case(folder=name, words=PICTURE, right=_first("a.jpg", "car", 1.01))
        for name in ("labelme", "cvat", "supervisely", "label_studio")
    ),
    *(
        Case(folder=name, words=PICTURE, right=(records_are(3), *_first("t0.jpg", "a")))
        for name in ("via", "createml")
    ),
    Case(folder="hf_imagefolder", words=PICTURE, right=(records_are(3), *_first("0.jpg", "0"))),
    Case(folder="kitti", words=PICTURE, right=_first("000001.png", "Car")),
    Case(folder="wider", words=PICTURE, right=_first("0_P_1.jpg", "face")),
    Case(folder="lvis", words=PICTURE, right=(records_are(4), *_both("000000000010.jpg", "cat"))),
    Case(
        folder="automl_csv", words=PICTURE, right=(records_are(4, train=3, test=1), *_both("p0.jpg", "salad"))
    ),
    Case(
        folder="one_hot_csv",
        words=PICTURE,
        right=(
            picture_classes_are({f"p{i}.jpg": (("dandelion", "daisy", "rose")[i % 3],) for i in range(6)}),
        ),
    ),
    Case(
        folder="kaggle_wheat_csv",
        words=PICTURE,
        right=(records_are(3), *_both("b6ab77fd0.jpg", "wheat"), says("b6ab77fd3")),
    ),
    Case(
        folder="voc_with_fractions",
        words=PICTURE,
        right=(boxes_are("p0.png", ("a", 10.25, 8.5, 40.75, 30.125), ("a", *_TWO[1]), within=0.01),),
    ),
    Case(
        folder="voc_width_height_as_corner",
        words=PICTURE,
        right=(boxes_are("p0.png", ("screw", 59, 9, 89, 39), ("screw", 4, 4, 79, 24)),),
        says=("inverted",),
    ),
    *(
        Case(
            folder="voc_segmentation",
            words=f"{PICTURE} {more}",
            right=(label_values_are("2011_000000.jpg", {"1": 630, "2": 1600, "ignored": 64}),),
            says=("pairs",),
        )
        for more in ("", "--layout pairs", "--layout folders")
    ),
    Case(
        folder="voc_zero_size",
        words=PICTURE,
        right=(
            records_are(6),
            boxes_are("p0.png", ("head", *_TWO[0]), ("head", *_TWO[1])),
            boxes_are("p2.png", ("head", *_TWO[0])),
            says("1 dropped"),
        ),
    ),
    Case(
        folder="vendor_thumbnails",
        words=PICTURE,
        right=(records_are(8), classes_are("cat", "dog"), says("15 other files")),
    ),
    *(
        Case(
            folder=name, words=PICTURE, right=tuple(label_counts_are(f"{i}.jpg", 660, 1600) for i in range(3))
        )
        for name in ("mask_tiff", "mask_r_equals_g_equals_b")
    ),
    Case(folder="mask_gif", words=PICTURE, right=tuple(label_counts_are(f"{i}.jpg", 2260) for i in range(3))),
    Case(
        folder="twelve_bits_in_sixteen",
        words=PICTURE,
        right=(records_are(4), image_values_are("twelve.png", 0, 4095)),
        says=("nearly black", "uint16"),
    ),
)
