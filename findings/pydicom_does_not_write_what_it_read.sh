#!/usr/bin/env bash
# pydicom.dcmread reads a file in JPEG XL, and save_as of the unchanged data set raises ValueError: "is not a valid transfer syntax". The pixels are encapsulated bytes, which need no codec to be copied.
# pydicom 3.0.2. One expects that reading and writing a valid file gives it back, as for every other encapsulated syntax without a decoder.
# Source: DICOM PS3.6 Annex A and Supplement 232 (1.2.840.10008.1.2.4.110 to .112); pydicom/filewriter.py, `_determine_encoding`, asks its own dictionary of UIDs.
# Why here: users anonymize with pydicom before a conversion, and tests of JPEG XL have to write a file under another syntax and replace the UID's bytes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check pydicom==3.0.2
env/bin/python -I - <<'END'
from pathlib import Path

import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import HTJ2KLossless, SecondaryCaptureImageStorage, generate_uid

made = Dataset()
made.SOPClassUID, made.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
made.Rows = made.Columns = 8
made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
made.BitsAllocated = made.BitsStored = 8
made.HighBit, made.PixelRepresentation = 7, 0
# The bytes of a frame are copied and not decoded.
made.PixelData = encapsulate([b"\xff\x0a" + bytes(30)])
made["PixelData"].VR, made["PixelData"].is_undefined_length = "OB", True
made.file_meta = FileMetaDataset()
made.file_meta.TransferSyntaxUID = HTJ2KLossless
made.save_as("a.dcm", enforce_file_format=True)
outcome = {}
for number in (201, 110):
    uid = f"1.2.840.10008.1.2.4.{number}"
    Path("b.dcm").write_bytes(Path("a.dcm").read_bytes().replace(HTJ2KLossless.encode(), uid.encode()))
    read = pydicom.dcmread("b.dcm")
    try:
        read.save_as("c.dcm", enforce_file_format=True)
        outcome[number] = "written"
    except ValueError as error:
        outcome[number] = f"{error}"
    print(uid, outcome[number])
assert outcome[201] == "written" and "not a valid transfer syntax" in outcome[110], outcome
END
