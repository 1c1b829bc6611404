"""DICOM: from the headers of many files to scans and masks."""
