"""Converters from one reference to its records, one file for each kind of image."""
