#!/usr/bin/env bash
# Where sform and qform differ, SimpleITK takes the sform if its code is 1 and the qform if it is 2, 3 or 4; nibabel takes the sform in all cases.
# SimpleITK 2.5.7, nibabel 5.4.2, codes that NIfTI-1 allows. One expects both to take the sform, or ITK not to mind which code above 0 it has.
# Source: NIfTI-1 has no order of preference (nifti1.h, three methods); ITK prefers scanner coordinates in itkNiftiImageIO.
# Why here: an image registered to a template (code 4) and its mask overlap in one reader and not in the other.
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

print("SimpleITK", version("SimpleITK"), "nibabel", version("nibabel"))
for code in (1, 2, 3, 4):
    image = nibabel.Nifti1Image(np.zeros((4, 6, 8), np.int16), np.eye(4))
    for setter, shift, used in ((image.set_sform, 10, code), (image.set_qform, 100, 1)):
        affine = np.eye(4)
        affine[:3, 3] = shift
        setter(affine, used)
    nibabel.save(image, "a.nii")
    by_nibabel = nibabel.load("a.nii").affine[2, 3]
    by_itk = SimpleITK.ReadImage("a.nii").GetOrigin()[2]
    print("sform (10 mm) code", code, "qform (100 mm) code 1: nibabel", by_nibabel, "SimpleITK", by_itk)
    assert by_nibabel == 10 and by_itk == (10 if code == 1 else 100)
END
