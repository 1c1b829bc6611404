#!/usr/bin/env bash
# pydicom returns the stored integers of a parametric map, also from apply_modality_lut(); highdicom applies the mapping to real world values unasked.
# pydicom 3.0.2 gives 0 to 383, highdicom 0.28.2 gives -0.5 to -0.117 of one file. One expects the modality step to give the unit.
# Source: DICOM PS3.3 C.7.6.16.2.11; the mapping is in a functional group, where no RescaleSlope is.
# Why here: ADC and other maps would be trained on as integers; halofeed reads the mapping itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check highdicom==0.28.2 pydicom==3.0.2 numpy==2.3.5
env/bin/python -I - <<'END'
from importlib.metadata import version
import warnings
import highdicom
import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

warnings.simplefilter("ignore")
study, series, frame, slices = generate_uid(), generate_uid(), generate_uid(), []
for number in range(6):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.4", generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID, one.Modality = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID, "MR"
    one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, frame
    one.PatientID = one.PatientName = one.StudyID = "1"
    one.PatientBirthDate = one.PatientSex = one.AccessionNumber = one.ReferringPhysicianName = one.PositionReferenceIndicator = ""
    one.StudyDate, one.StudyTime, one.SeriesNumber, one.InstanceNumber, one.Manufacturer = "20200101", "120000", 1, number + 1, "M"
    one.ImagePositionPatient, one.ImageOrientationPatient = [0, 0, 2 * number], [1, 0, 0, 0, 1, 0]
    one.PixelSpacing, one.SliceThickness, one.ImageType = [1, 1], 2, ["ORIGINAL", "PRIMARY"]
    one.Rows = one.Columns = 8
    one.SamplesPerPixel, one.PhotometricInterpretation, one.PixelRepresentation = 1, "MONOCHROME2", 0
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelData = 16, 16, 15, bytes(128)
    slices.append(one)
mapping = highdicom.pm.RealWorldValueMapping("adc", "adc", codes.UCUM.NoUnits, [0, 4095], slope=0.001, intercept=-0.5)
made = highdicom.pm.ParametricMap(slices, np.arange(384, dtype=np.uint16).reshape(6, 8, 8), highdicom.UID(), 2, highdicom.UID(), 1, "M", "M", "1", "1", False, [mapping], 0, 6)
made.save_as("map.dcm")
read = pydicom.dcmread("map.dcm")
plain = apply_modality_lut(read.pixel_array, read)
real = highdicom.imread("map.dcm").get_frames()
print("pydicom", version("pydicom"), plain.min(), "to", plain.max(), "; highdicom", version("highdicom"), real.min(), "to", round(real.max(), 3))
assert (plain.min(), plain.max()) == (0, 383) and (round(real.min(), 3), round(real.max(), 3)) == (-0.5, -0.117)
END
