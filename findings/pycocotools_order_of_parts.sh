#!/usr/bin/env bash
# pycocotools takes the form of all parts of an object from the first one: a part of two points is harmless as the second, and raises as the first.
# pycocotools 2.0.11: four numbers in the first part mean a box. One expects the same mask from both orders.
# Source: pycocotools._mask.frPyObjects tests len(pyobj[0]) == 4 before it takes the list for polygons.
# Why here: a tool that leaves out parts of two points must do so before pycocotools sees them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pycocotools==2.0.11 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import contextlib
from pycocotools.coco import COCO

square, line = [40.0, 40, 60, 40, 60, 60, 40, 60], [10.0, 10, 20, 20]
outcomes = []
for parts in ([square, line], [line, square]):
    coco = COCO()
    one = dict(id=1, image_id=1, category_id=1, segmentation=parts, bbox=[10, 10, 50, 50], area=400, iscrowd=0)
    coco.dataset = dict(images=[dict(id=1, height=100, width=100)], annotations=[one], categories=[dict(id=1, name="k")])
    with contextlib.redirect_stdout(None):
        coco.createIndex()
    try:
        outcomes.append(f"{coco.annToMask(one).sum()} pixels")
    except TypeError as error:
        outcomes.append(f"TypeError: {error}")
print("pycocotools", version("pycocotools"), outcomes)
assert outcomes[0] == "400 pixels" and outcomes[1].startswith("TypeError")
END
