#!/usr/bin/env bash
# With sform and qform code 0, nibabel puts the center of the volume at 0 and runs x to the left; SimpleITK puts the first voxel at 0 and runs y to the front.
# nibabel 5.4.2, SimpleITK 2.5.7. One expects one position, since both read pixdim alone; the two volumes overlap in a corner only.
# Source: nibabel, get_base_affine (as Analyze); ITK's identity direction is in LPS, so that x and y are turned.
# Why here: arrays converted without a header have these codes; left and right depend on the reader.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check SimpleITK==2.5.7 nibabel==5.4.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import SimpleITK
import nibabel
import numpy as np

SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)

image = nibabel.Nifti1Image(np.zeros((4, 6, 8), np.int16), np.diag([1.0, 2, 3, 1]))
image.set_sform(image.affine, 0)
image.set_qform(image.affine, 0)
nibabel.save(image, "a.nii")
affine, read = nibabel.load("a.nii").affine, SimpleITK.ReadImage("a.nii")
turn = np.array([-1, -1, 1])
steps = turn * np.diag(np.reshape(read.GetDirection(), (3, 3))) * read.GetSpacing()
origin = turn * read.GetOrigin()
print("nibabel", version("nibabel"), "step in RAS", np.diag(affine)[:3], "first voxel", affine[:3, 3])
print("SimpleITK", version("SimpleITK"), "step in RAS", steps, "first voxel", origin)
assert np.diag(affine)[:3].tolist() == [-1, 2, 3] and affine[:3, 3].tolist() == [1.5, -5, -10.5]
assert steps.tolist() == [-1, -2, 3] and not origin.any()
END
