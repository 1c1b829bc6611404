#!/usr/bin/env bash
# Two exporters write iscrowd 1 for single objects: datumaro for every mask, supervision for a mask with a hole or of two parts.
# datumaro 1.13.12, supervision 0.31.2. One expects iscrowd 1 for groups alone, as COCO defines it.
# Source: both choose run lengths as the form of the mask, and set iscrowd by the form (cocodataset.org, format of data).
# Why here: training leaves crowds out, so that whole sets have no object; --boxes-crowd decides.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check supervision==0.31.2 datumaro==1.13.12 pillow==12.3.0
env/bin/python -I - <<'END'
from importlib.metadata import version
import json
import datumaro
import numpy as np
import supervision
from PIL import Image
from datumaro.components.annotation import Mask

whole = np.zeros((60, 60), bool)
whole[10:30, 10:30] = True
hole = whole.copy()
hole[15:20, 15:20] = False
item = datumaro.DatasetItem("a", media=datumaro.Image.from_numpy(np.zeros((60, 60, 3), np.uint8)), annotations=[Mask(whole, label=0)])
datumaro.Dataset.from_iterable([item], categories=["k"]).export("out", "coco", save_media=True)
with open("out/annotations/instances_default.json") as file:
    flags = {"datumaro, one square": json.load(file)["annotations"][0]["iscrowd"]}
Image.fromarray(np.zeros((60, 60, 3), np.uint8)).save("a.png")
for name, mask in (("supervision, one square", whole), ("supervision, with a hole", hole)):
    found = supervision.Detections(xyxy=supervision.mask_to_xyxy(mask[None]), mask=mask[None], class_id=np.array([0]))
    data = supervision.DetectionDataset(classes=["k"], images=["a.png"], annotations={"a.png": found})
    data.as_coco(annotations_path="a.json")
    with open("a.json") as file:
        flags[name] = json.load(file)["annotations"][0]["iscrowd"]
print("datumaro", version("datumaro"), "supervision", version("supervision"), "iscrowd:", flags)
assert [*flags.values()] == [1, 0, 1]
END
