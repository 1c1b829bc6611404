"""Readers of DICOM series, segmentations and structure sets."""
