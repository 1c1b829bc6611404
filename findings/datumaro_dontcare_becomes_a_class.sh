#!/usr/bin/env bash
# A COCO file that datumaro makes of KITTI's labels scores 0.0 in pycocotools when every object is found: DontCare regions become objects of a class.
# datumaro 1.13.7, pycocotools 2.0.11. One expects 1.0, or 0.5 with one more class. But both annotations also have the id 1, so that the car is lost.
# Source: readme.txt of KITTI's development kit for objects ("'DontCare' regions are used to avoid counting detections as false positives").
# Why here: a region without a class must be ignored for every class; converted with iscrowd 0 it is one more class that nothing can learn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check datumaro==1.13.7 pycocotools==2.0.11
env/bin/python -I - <<'END'
import contextlib
import io
import json
import pathlib
import warnings

warnings.simplefilter("ignore")
import datumaro
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

for name in ("image_2", "label_2"):
    pathlib.Path("kitti/training", name).mkdir(parents=True)
Image.new("RGB", (96, 64)).save("kitti/training/image_2/1.png")
rest = "-1 -1 -1 -1000 -1000 -1000 -10"
rows = [f"Car 0 0 -10 10 10 40 30 {rest}", f"DontCare -1 -1 -10 50 20 90 50 {rest}"]
pathlib.Path("kitti/training/label_2/1.txt").write_text("\n".join(rows) + "\n")
data = datumaro.Dataset.import_from("kitti", "kitti_detection")
data.export("coco", "coco_instances", save_media=False)

(file,) = pathlib.Path("coco/annotations").glob("instances_*.json")
document = json.loads(file.read_text())
names = {one["id"]: one["name"] for one in document["categories"]}
written = sorted((names[one["category_id"]], one["id"], one["iscrowd"]) for one in document["annotations"])
(car,) = (number for number, name in names.items() if name == "Car")
with contextlib.redirect_stdout(io.StringIO()):
    truth = COCO(str(file))
    image = document["images"][0]["id"]
    found = truth.loadRes([{"image_id": image, "category_id": car, "bbox": [10, 10, 30, 20], "score": 1.0}])
    evaluation = COCOeval(truth, found, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
score = round(float(evaluation.stats[0]), 3)
print(f"class, id and iscrowd: {written}; mean precision {score} with every object found")
if written != [("Car", 1, 0), ("DontCare", 1, 0)] or score != 0.0:
    raise SystemExit("the behavior changed")
END
