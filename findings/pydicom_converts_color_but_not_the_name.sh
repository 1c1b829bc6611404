#!/usr/bin/env bash
# pixel_array of a YBR_FULL file is RGB, and the data set still says YBR_FULL: whoever converts by PhotometricInterpretation turns red into green.
# pydicom 3.0.2: 254, 0, 0 becomes 75, 255, 27. One expects the array to be what the data set names, as in pydicom 2.
# Source: pydicom 3.0 release notes, pixel_array converts YBR_FULL to RGB; pixel_array_options(raw=True) does not.
# Why here: code written for pydicom 2 runs without an error on ultrasound and endoscopy, with wrong colors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pydicom==3.0.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import convert_color_space
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

meta = FileMetaDataset()
meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", generate_uid()
meta.TransferSyntaxUID = ExplicitVRLittleEndian
made = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
made.Rows = made.Columns = 2
made.SamplesPerPixel, made.PlanarConfiguration, made.PhotometricInterpretation = 3, 0, "YBR_FULL"
made.PixelRepresentation, made.BitsAllocated, made.BitsStored, made.HighBit = 0, 8, 8, 7
made.PixelData = bytes([76, 85, 255] * 4)
made.save_as("a.dcm", enforce_file_format=True)
read = pydicom.dcmread("a.dcm")
array = read.pixel_array
again = convert_color_space(array, read.PhotometricInterpretation, "RGB")
print("pydicom", version("pydicom"), "stored 76, 85, 255; read", array[0, 0], read.PhotometricInterpretation, "; converted by name", again[0, 0])
assert array[0, 0].tolist() == [254, 0, 0] and read.PhotometricInterpretation == "YBR_FULL" and again[0, 0].tolist() == [75, 255, 27]
END
