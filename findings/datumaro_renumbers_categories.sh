#!/usr/bin/env bash
# datumaro keeps the ids of images and annotations of a COCO file and renumbers its categories: 3 and 90 become 1 and 2.
# datumaro 1.13.12, import of COCO and export of COCO. One expects all ids to stay, or none.
# Source: datumaro keeps categories as positions and writes position + 1.
# Why here: a model trained on ids of the first file and judged by the second counts every class as another; use names.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check datumaro==1.13.12 pillow==12.3.0
env/bin/python -I - <<'END'
from importlib.metadata import version
import json
import os
import datumaro
from PIL import Image

os.makedirs("in/images/default")
os.makedirs("in/annotations")
Image.new("RGB", (60, 60)).save("in/images/default/a.png")
one = dict(id=5, image_id=7, category_id=90, bbox=[10, 20, 20, 20], area=400, iscrowd=0)
document = dict(images=[dict(id=7, file_name="a.png", width=60, height=60)], annotations=[one], categories=[dict(id=3, name="x"), dict(id=90, name="y")])
with open("in/annotations/instances_default.json", "w") as file:
    json.dump(document, file)
datumaro.Dataset.import_from("in", "coco").export("out", "coco", save_media=True)
with open("out/annotations/instances_default.json") as file:
    written = json.load(file)
ids = written["images"][0]["id"], written["annotations"][0]["id"], [each["id"] for each in written["categories"]]
print("datumaro", version("datumaro"), "ids of image, annotation, categories:", ids)
assert ids == (7, 5, [1, 2]) and written["annotations"][0]["category_id"] == 2
END
