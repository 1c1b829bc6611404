#!/usr/bin/env bash
# SAHI's slices write iscrowd 0 for crowds, and an object that fills nine slices is in none of them.
# sahi 0.12.8. One expects that a cut changes the box and the outline only, and that a slice full of an object has it.
# Source: sliced annotations are built without the flag (sahi/utils/coco.py); a slice needs 0.1 of the whole object (min_area_ratio).
# Why here: ignored regions are trained as objects and large objects as background; our tiles keep flags, and list and flag what is hardly visible.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check sahi==0.12.8 shapely==2.2.0 numpy==2.4.6 pillow==13.0.0
env/bin/python -I -W ignore - <<'END'
from importlib.metadata import version
import contextlib
import io
import json
import numpy as np
from PIL import Image
from sahi.slicing import slice_coco

Image.fromarray(np.zeros((2000, 2000, 3), np.uint8)).save("a.png")

def annotation(box, outline, area, crowd=0):
    return {"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "segmentation": outline, "area": area, "iscrowd": crowd}

def outline(left, top, side):
    return [left, top, left + side, top, left + side, top + side, left, top + side]

def cut(one):
    image = {"id": 1, "file_name": "a.png", "width": 2000, "height": 2000}
    with open("a.json", "w") as file:
        json.dump({"images": [image], "annotations": [one], "categories": [{"id": 1, "name": "k"}]}, file)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        return slice_coco("a.json", ".", "cut", slice_height=512, slice_width=512)[0]

flag = cut(annotation([100, 100, 300, 300], [outline(100, 100, 300)], 90000, crowd=1))["annotations"][0]["iscrowd"]
large = cut(annotation([100, 100, 1800, 1800], [outline(100, 100, 1800)], 1800**2))
print("sahi", version("sahi"), "iscrowd of a crowd:", flag)
print("object of 1800 x 1800 pixels:", len(large["annotations"]), "annotations in", len(large["images"]), "slices")
assert (flag, len(large["annotations"]), len(large["images"])) == (0, 0, 25)
END
