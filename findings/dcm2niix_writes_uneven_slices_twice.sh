#!/usr/bin/env bash
# Slices at 0, 2, 4 and 8 mm become two files: 4 slices that claim 2 mm, and beside them x_Eq_1 with 5 slices, one of them interpolated.
# dcm2niix 1.0.20260724; SimpleITK 2.5.7 reads the same series with 2.667 mm. One expects an error, or one file.
# Source: dcm2niix warns of the distances on standard output, exits with 0 and writes both (nii_dicom_batch, _Eq).
# Why here: *.nii takes both as scans, and masks drawn on one do not fit the other; halofeed refuses such a series.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check dcm2niix==1.0.20260724 SimpleITK==2.5.7 pydicom==3.0.2 nibabel==5.4.2 numpy==2.3.5
env/bin/python -I - <<'END'
import os
import subprocess
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
import dcm2niix
import nibabel
import SimpleITK
import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

os.mkdir("series")
SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
study, series, frame = generate_uid(), generate_uid(), generate_uid()
for number, (place, slope, value) in enumerate(((0, 1, 100), (2, 1, 200), (4, 1, 300), (8, 1, 500))):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID, one.Modality = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID, "CT"
    one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, frame
    one.PatientID = one.PatientName = one.StudyID = "1"
    one.PatientBirthDate = one.PatientSex = one.AccessionNumber = ""
    one.StudyDate = one.SeriesDate = "20200101"
    one.StudyTime = one.SeriesTime = "120000"
    one.SeriesNumber, one.InstanceNumber, one.Manufacturer, one.ProtocolName = 1, number + 1, "M", "p"
    one.ImagePositionPatient, one.ImageOrientationPatient = [0, 0, place], [1, 0, 0, 0, 1, 0]
    one.PixelSpacing, one.SliceThickness, one.ImageType = [1, 1], 2, ["ORIGINAL", "PRIMARY", "AXIAL"]
    one.Rows = one.Columns = 16
    one.SamplesPerPixel, one.PhotometricInterpretation, one.PixelRepresentation = 1, "MONOCHROME2", 0
    one.BitsAllocated, one.BitsStored, one.HighBit = 16, 12, 11
    one.RescaleSlope, one.RescaleIntercept = slope, 0
    one.PixelData = np.full((16, 16), value, np.uint16).tobytes()
    one.save_as(f"series/{number}.dcm", enforce_file_format=True)
reader = SimpleITK.ImageSeriesReader()
reader.SetFileNames(reader.GetGDCMSeriesFileNames("series"))
volume = reader.Execute()

os.mkdir("out")
done = subprocess.run([dcm2niix.bin, "-o", "out", "-f", "x", "series"], capture_output=True, text=True)
found = {}
for name in sorted(os.listdir("out")):
    if name.endswith((".nii", ".nii.gz")):
        made = nibabel.load("out/" + name)
        found[name.split(".")[0]] = float(made.header.get_zooms()[2]), made.get_fdata()[0, 0].tolist()
print("dcm2niix", version("dcm2niix"), "exit", done.returncode, found)
print("SimpleITK", version("SimpleITK"), "spacing", round(volume.GetSpacing()[2], 3))
assert done.returncode == 0 and found == {"x": (2, [100, 200, 300, 500]), "x_Eq_1": (2, [100, 200, 300, 400, 500])}
assert abs(volume.GetSpacing()[2] - 8 / 3) < 1e-6
END
