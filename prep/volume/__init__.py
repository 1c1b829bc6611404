"""Volumes: where their voxels lie in the patient, and what is done to them on the way to a record."""
