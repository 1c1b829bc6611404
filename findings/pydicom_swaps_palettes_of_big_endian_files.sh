#!/usr/bin/env bash
# apply_color_lut reads the palette of a big-endian file with its bytes swapped: the color 0x1234 becomes 0x3412.
# pydicom 3.0.2: the same picture saved in little and in big endian has other colors; pixel_array is right for both.
# Source: DICOM PS3.5 7.3, OW values follow the byte order of the transfer syntax; pydicom, pixels/processing.py, np.frombuffer without an order.
# Why here: ultrasound in Explicit VR Big Endian has palettes of 16 bits, and this function is the usual oracle for them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pydicom==3.0.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import apply_color_lut
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, generate_uid

colors = {}
for name, syntax, order in (("little", ExplicitVRLittleEndian, "<"), ("big", ExplicitVRBigEndian, ">")):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.6.1", generate_uid()
    meta.TransferSyntaxUID = syntax
    made = FileDataset(
        None, {}, file_meta=meta, preamble=b"\0" * 128, is_implicit_VR=False, is_little_endian=order == "<"
    )
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    made.Rows, made.Columns, made.SamplesPerPixel, made.PhotometricInterpretation = 1, 2, 1, "PALETTE COLOR"
    made.PixelRepresentation, made.BitsAllocated, made.BitsStored, made.HighBit = 0, 8, 8, 7
    for color in ("Red", "Green", "Blue"):
        setattr(made, f"{color}PaletteColorLookupTableDescriptor", [2, 0, 16])
        made[f"{color}PaletteColorLookupTableDescriptor"].VR = "US"
        setattr(made, f"{color}PaletteColorLookupTableData", np.array([0, 0x1234], f"{order}u2").tobytes())
    made.PixelData = bytes([0, 1])
    made["PixelData"].VR = "OB"
    made.save_as(f"{name}.dcm", enforce_file_format=True)
    read = pydicom.dcmread(f"{name}.dcm")
    assert read.pixel_array.tolist() == [[0, 1]]
    colors[name] = int(apply_color_lut(read.pixel_array, read)[0, 1, 0])
print("pydicom", version("pydicom"), {name: hex(color) for name, color in colors.items()})
assert colors == {"little": 0x1234, "big": 0x3412}
END
