#!/usr/bin/env bash
# A COCO file that globox writes scores 0.252 in pycocotools when every object is found: its annotation ids begin at 0, and id 0 means 'not matched'.
# globox 2.9.0 (auto_ids=True), pycocotools 2.0.11. One expects 1.0, since COCO does not forbid the id 0.
# Source: COCOeval stores ids of matches in an array of zeros (cvat-ai/cvat pull request 748).
# Why here: the loss is large in small sets and hidden in large ones; ids have to begin at 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check globox==2.9.0 pycocotools==2.0.11 numpy==2.3.5
env/bin/python -I - <<'END'
import contextlib
import io
import json
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def precision(document, found):
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = document
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return round(float(evaluation.stats[0]), 3)


import globox

boxes = [globox.BoundingBox(label="a", xmin=x, ymin=x, xmax=x + 20, ymax=x + 20) for x in (10, 60)]
globox.AnnotationSet([globox.Annotation("a.png", (100, 100), boxes)]).save_coco("a.json", auto_ids=True)
with open("a.json") as file:
    written = json.load(file)
found = [{name: one[name] for name in ("image_id", "category_id", "bbox")} | {"score": 0.9} for one in written["annotations"]]
first = precision(written, found)
for one in written["annotations"]:
    one["id"] += 1
second = precision(written, found)
print("globox", version("globox"), "pycocotools", version("pycocotools"), "AP with ids 0, 1:", first, "; with ids 1, 2:", second)
assert first < 0.3 and second == 1
END
