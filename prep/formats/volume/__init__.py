"""Readers of volumes in single files: NIfTI and Analyze, NRRD, MetaImage and MGH, and their options."""
