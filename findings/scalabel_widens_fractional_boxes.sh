#!/usr/bin/env bash
# Scalabel's conversion to COCO, which BDD100K's toolkit uses, makes each box one pixel wider and higher, also where its corners have fractions.
# scalabel 0.3.1. One expects a width of x2 - x1 for positions such as 10.25 and 40.75; only whole numbers can be pixels that a box includes.
# Source: scalabel/label/transforms.py, box2d_to_bbox: width = x2 - x1 + 1, whatever the numbers are; BDD100K's detection labels are floats.
# Why here: trainers fed by that conversion and by ours differ by a pixel. halofeed adds it only where all corners of a source are whole numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check scalabel==0.3.1 pydantic==1.10.27
cat > convert.py <<'END'
from importlib.metadata import version

from scalabel.label.to_coco import scalabel2coco_detection
from scalabel.label.typing import Box2D, Category, Config, Frame, ImageSize, Label

box = Box2D(x1=10.25, y1=8.5, x2=40.75, y2=30.5)
frame = Frame(name="a.png", labels=[Label(id="1", category="car", box2d=box)])
config = Config(imageSize=ImageSize(width=96, height=64), categories=[Category(name="car")])
(found,) = scalabel2coco_detection([frame], config)["annotations"]
print("scalabel", version("scalabel"), "box2d 10.25 8.5 40.75 30.5 ->", found["bbox"])
assert found["bbox"] == [10.25, 8.5, 31.5, 23.0]
END
env/bin/python -I convert.py
