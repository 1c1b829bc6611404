#!/usr/bin/env bash
# A spacing of 1 um: SimpleITK reads 0.001 from NIfTI and 1 from NRRD with its units, nibabel reads 1 from the same NIfTI file.
# SimpleITK 2.5.7, nibabel 5.4.2, pynrrd 1.1.3. One expects one reader to treat units of two formats the same way.
# Source: NIfTI-1 xyzt_units; NRRD 'space units'; itkNiftiImageIO scales to millimeters, itkNrrdImageIO leaves units out.
# Why here: micro-CT resampled to a spacing in millimeters becomes empty or a thousand times too large.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check SimpleITK==2.5.7 nibabel==5.4.2 pynrrd==1.1.3 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import SimpleITK
import nibabel
import nrrd
import numpy as np

SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)

volume = np.zeros((4, 6, 8), np.int16)
image = nibabel.Nifti1Image(volume, np.eye(4))
image.header.set_xyzt_units("micron")
image.set_qform(np.eye(4), 1)
nibabel.save(image, "a.nii")
nrrd.write("a.nrrd", volume, {"space": "left-posterior-superior", "space directions": np.eye(3), "space origin": [0, 0, 0], "space units": ["um"] * 3})
found = {"nibabel a.nii": float(nibabel.load("a.nii").header.get_zooms()[0])}
found |= {"SimpleITK " + name: round(SimpleITK.ReadImage(name).GetSpacing()[0], 9) for name in ("a.nii", "a.nrrd")}
print("nibabel", version("nibabel"), "SimpleITK", version("SimpleITK"), "pynrrd", version("pynrrd"), found)
assert found == {"nibabel a.nii": 1, "SimpleITK a.nii": 0.001, "SimpleITK a.nrrd": 1}
END
