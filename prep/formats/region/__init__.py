"""Readers of regions of picture files that are too large to be decoded whole."""
