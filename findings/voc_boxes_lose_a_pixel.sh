#!/usr/bin/env bash
# The VOC box 1, 1, 20, 20 of a whole picture of 20 x 20 pixels: supervision reads 0, 0, 20, 20, globox 1, 1, 20, 20, which is 19 pixels wide.
# supervision 0.31.2, globox 2.9.0. One expects both to agree, since VOC defines pixels from 1 with the last one included.
# Source: PASCAL VOC development kit, annotation of objects; globox takes the numbers as edges.
# Why here: scores of one model under two tools differ most for small objects; halofeed takes 1 off the first corner.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check supervision==0.31.2 globox==2.9.0 pillow==12.3.0
env/bin/python -I - <<'END'
from importlib.metadata import version
import os

import globox
import supervision
from PIL import Image

os.mkdir("images")
os.mkdir("boxes")
Image.new("RGB", (20, 20)).save("images/a.png")
size = "<size><width>20</width><height>20</height><depth>3</depth></size>"
box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>"
with open("boxes/a.xml", "w") as file:
    file.write(f"<annotation><filename>a.png</filename>{size}<object><name>a</name><difficult>0</difficult>{box}</object></annotation>")
one = [(each.xmin, each.ymin, each.xmax, each.ymax) for picture in globox.AnnotationSet.from_pascal_voc("boxes") for each in picture.boxes]
other = [found.xyxy.tolist() for _, _, found in supervision.DetectionDataset.from_pascal_voc("images", "boxes")][0]
print("globox", version("globox"), one, "supervision", version("supervision"), other)
assert one == [(1, 1, 20, 20)] and other == [[0, 0, 20, 20]]
END
