"""`--layout auto` chooses the only layout that fits, or refuses and names the choices."""

import pytest

from halofeed.errors import AnnotationsError
from tests.support.layout_references import detected

FOUND = {
    **{
        name: name for name in ("createml", "cvat", "kitti", "labelme", "supervisely", "via", "wider", "yolo")
    },
    **dict.fromkeys(("automl_csv", "kaggle_wheat_csv", "one_hot_csv"), "csv"),
    **dict.fromkeys(("dicom_named_img", "dicom_unlabeled_96x96"), "dicom"),
    **dict.fromkeys(("mask_tiff", "nrrd_two_layers"), "pairs"),
    **dict.fromkeys(("voc_zero_size", "../detection/cards_voc", "../detection/bccd_voc"), "voc"),
    **dict.fromkeys(("lvis", "../detection/coco_ccby"), "coco"),
    "bids_two_sessions": "bids",
    "hf_imagefolder": "jsonl",
    "label_studio": "label-studio",
    "nnunet_v1": "nnunet",
    "twelve_bits_in_sixteen": "folders",
    "../dicom/totalsegmentator_jpeg2000": "dicom",
}
REFUSED = {
    "../detection": "several layouts: .*Choose --layout voc or --layout coco",
    "mask_gif": "several layouts fit .*Choose --layout folders or --layout pairs",
    "voc_segmentation": "take --layout pairs --image-pattern",
    "freesurfer_mgz": "pairs: no volume, picture or clip has a label by its name",
}


def test_each_format_is_recognized_by_its_files(test_data):
    assert {name: detected(test_data / "cases" / name) for name in FOUND} == FOUND


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_of_no_or_several_layouts_is_refused_with_the_choices(name, test_data):
    with pytest.raises(AnnotationsError, match=f"(?s){REFUSED[name]}"):
        detected(test_data / "cases" / name)
