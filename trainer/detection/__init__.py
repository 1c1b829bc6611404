"""Anchors, box codes and matching of detectors; pure functions."""
