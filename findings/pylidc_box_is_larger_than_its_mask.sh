#!/usr/bin/env bash
# pylidc's box of a nodule is two or more pixels wider and higher than its mask: bbox() goes around the outline, boolean_mask() inside it.
# pylidc 0.2.3, with the annotations of LIDC-IDRI that it contains. One expects the box of an annotation to be that of its mask.
# Source: Annotation.bbox_matrix takes the points of the contours; boolean_mask(include_contour_points=False) leaves them out.
# Why here: the outline of LIDC-IDRI is outside of the nodule, and a nodule of 4 pixels gets a box of 6. halofeed takes the pixels inside.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pylidc==0.2.3 numpy==1.23.5 sqlalchemy==1.3.24 \
    scipy==1.11.4 setuptools==69.5.1 matplotlib==3.7.5 scikit-image==0.21.0 pydicom==2.4.4
env/bin/python -I -W ignore - <<'END'
from importlib.metadata import version
import numpy as np
import pylidc

wider = []
for annotation in pylidc.query(pylidc.Annotation).limit(20):
    inside = np.argwhere(annotation.boolean_mask())
    box = [side.stop - side.start for side in annotation.bbox()]
    wider.append([a - b for a, b in zip(box[:2], np.ptp(inside, axis=0) + 1)])
print("pylidc", version("pylidc"), "rows and columns of the box beyond the mask:", wider)
assert np.min(wider) >= 2
END
