#!/usr/bin/env bash
# The first slice decides the type of a series: slope 1 there makes a volume of uint16, and values of 1.5 and 0.75 of later slices become 1 and 0.
# SimpleITK 2.5.7 (ImageSeriesReader); dicom2nifti 2.6.2 keeps the fractions. One expects floats, as where the first slope is a fraction.
# Source: SimpleITK issue 1636; pull request 1652 documents it and does not change it, a type given to the reader helps.
# Why here: PET has a slope for each slice, and small uptakes become zero in some patients only; halofeed rescales each slice as float.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check SimpleITK==2.5.7 pydicom==3.0.2 numpy==2.3.5 dicom2nifti==2.6.2
env/bin/python -I - <<'END'
import os
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
import dicom2nifti
import nibabel
import SimpleITK
import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

os.mkdir("series")
SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
study, series, frame = generate_uid(), generate_uid(), generate_uid()
for number, (place, slope, value) in enumerate(((0, 1, 3), (2, 0.5, 3), (4, 0.25, 3), (6, 0.1, 3))):
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.128", generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID, one.Modality = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID, "PT"
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

itk = SimpleITK.GetArrayFromImage(volume)
dicom2nifti.dicom_series_to_nifti("series", "made.nii", reorient_nifti=False)
other = nibabel.load("made.nii").get_fdata()
print("SimpleITK", version("SimpleITK"), itk.dtype, itk[:, 0, 0], "; dicom2nifti", version("dicom2nifti"), other[0, 0])
assert itk.dtype == np.uint16 and itk[:, 0, 0].tolist() == [3, 1, 0, 0]
assert np.allclose(other[0, 0], [3, 1.5, 0.75, 0.3])
END
