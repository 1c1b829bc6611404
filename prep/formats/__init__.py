"""Readers of image, clip and volume formats, one file per format."""
