#!/usr/bin/env bash
# supervision reads four corners from YOLO's oriented labels, keeps them, and writes upright boxes in YOLO and COCO without a word.
# supervision 0.31.2. One expects `as_yolo` to write what `from_yolo(is_obb=True)` has read: nine values a row.
# Source: DetectionDataset.as_yolo and as_coco use Detections.xyxy and masks; the corners are in Detections.data["xyxyxyxy"].
# Why here: a set of oriented boxes that passed through it has lost the orientation, and nothing in its files says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check supervision==0.31.2 pillow==12.3.0
env/bin/python -W ignore -I - <<'END'
from importlib.metadata import version
import json
from pathlib import Path
import numpy as np
import supervision
from PIL import Image

written = "0 0.25 0.20 0.75 0.40 0.70 0.60 0.20 0.40\n"
for part in ("images", "labels"):
    Path("in", part).mkdir(parents=True)
Image.fromarray(np.zeros((100, 200, 3), np.uint8)).save("in/images/a.png")
Path("in/labels/a.txt").write_text(written)
Path("in/data.yaml").write_text("names: [car]\n")
data = supervision.DetectionDataset.from_yolo("in/images", "in/labels", "in/data.yaml", is_obb=True)
(found,) = data.annotations.values()
data.as_yolo(images_directory_path="out/images", annotations_directory_path="out/labels", data_yaml_path="out/data.yaml")
data.as_coco(annotations_path="out/a.json")
row = Path("out/labels/a.txt").read_text().split()
entry = json.loads(Path("out/a.json").read_text())["annotations"][0]
print("supervision", version("supervision"), "read", found.data["xyxyxyxy"].round(2).tolist())
print("YOLO wrote", row, "COCO wrote", entry["bbox"], entry["segmentation"])
assert found.data["xyxyxyxy"].shape == (1, 4, 2)
assert len(row) == 5 and not entry["segmentation"]
END
