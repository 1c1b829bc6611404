#!/usr/bin/env bash
# tifffile.imwrite stores a volume of exactly three slices as one RGB page, and SimpleITK reads that as one 8-bit RGBA picture; five slices are five.
# tifffile 2026.3.3, SimpleITK 2.5.7, uint16 volumes. One expects the number of slices not to change the kind of the file.
# Source: tifffile guesses photometric from the shape if it is not given (imwrite, argument photometric).
# Why here: one scan of a set of TIFF volumes loses its bits and its axis; write photometric="minisblack".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check tifffile==2026.3.3 SimpleITK==2.5.7 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import numpy as np
import SimpleITK
import tifffile

SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
seen = {}
for slices in (3, 5):
    volume = np.arange(slices * 32 * 40, dtype=np.uint16).reshape(slices, 32, 40)
    tifffile.imwrite("a.tif", volume)
    with tifffile.TiffFile("a.tif") as file:
        pages, kind = len(file.pages), file.pages[0].photometric.name
    image = SimpleITK.ReadImage("a.tif")
    seen[slices] = pages, kind, image.GetSize(), image.GetPixelIDTypeAsString()
    print("tifffile", version("tifffile"), "SimpleITK", version("SimpleITK"), slices, "slices:", seen[slices])
assert seen[3] == (1, "RGB", (40, 32), "vector of 8-bit unsigned integer")
assert seen[5] == (5, "MINISBLACK", (40, 32, 5), "16-bit unsigned integer")
END
