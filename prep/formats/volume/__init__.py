"""How volumes are read: NIfTI and Analyze files, DICOM series, and the masks of both."""
