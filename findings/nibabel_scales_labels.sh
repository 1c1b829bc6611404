#!/usr/bin/env bash
# nibabel writes get_fdata() of a label volume into its uint8 header with a slope of 2/255: label 1 becomes 0.996, and astype(uint8) makes it 0.
# nibabel 5.4.2. One expects whole numbers from 0 to 2 to be stored as they are, since the header says uint8.
# Source: nibabel.arraywriters picks a slope for every float array and integer header (SlopeArrayWriter).
# Why here: such masks are read as integers after rounding within half a step; astype() alone would lose a class.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check nibabel==5.4.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import nibabel
import numpy as np

labels = np.zeros((4, 4, 4), np.uint8)
labels[1], labels[2] = 1, 2
nibabel.save(nibabel.Nifti1Image(labels, np.eye(4)), "first.nii")
first = nibabel.load("first.nii")
nibabel.save(nibabel.Nifti1Image(first.get_fdata(), first.affine, first.header), "second.nii")
values = np.unique(nibabel.load("second.nii").get_fdata())
print("nibabel", version("nibabel"), "wrote 0, 1, 2; it reads", values, "and as uint8", np.unique(values.astype(np.uint8)))
assert 0.99 < values[1] < 1 and values.astype(np.uint8)[1] == 0
END
