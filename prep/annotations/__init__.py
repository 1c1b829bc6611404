"""Code that the layouts share: tables, boxes and their grids, patterns, pairs of files."""
