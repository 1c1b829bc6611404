#!/usr/bin/env bash
# An NRRD file with 'axis mins' 10, 20, 30 and spacings 1, 2, 3 has its first voxel at 10.5, 21, 31.5 in SimpleITK; 'space origin' is taken as it is.
# SimpleITK 2.5.7, pynrrd 1.1.3. One expects the origin that the header names; it is so with 'centers: node'.
# Source: NRRD definition, axis mins and centerings: the least position of a cell is its edge, and unknown centering is taken for cell.
# Why here: two headers of one scan, old and new, differ by half a voxel, too little to see and enough for small lesions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check SimpleITK==2.5.7 pynrrd==1.1.3 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import SimpleITK
import nrrd
import numpy as np

SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)

volume = np.zeros((4, 6, 8), np.int16)
axes = {"spacings": [1, 2, 3], "axis mins": [10, 20, 30]}
nrrd.write("mins.nrrd", volume, axes)
nrrd.write("node.nrrd", volume, axes | {"centerings": ["node"] * 3})
nrrd.write("origin.nrrd", volume, {"space": "left-posterior-superior", "space directions": np.diag([1.0, 2, 3]), "space origin": [10, 20, 30]})
found = {name: SimpleITK.ReadImage(name + ".nrrd").GetOrigin() for name in ("mins", "node", "origin")}
print("SimpleITK", version("SimpleITK"), "pynrrd", version("pynrrd"), found)
assert found == {"mins": (10.5, 21, 31.5), "node": (10, 20, 30), "origin": (10, 20, 30)}
END
