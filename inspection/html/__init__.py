"""Data sets and training runs as self-contained pages."""
