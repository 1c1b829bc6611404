"""Plans on shapes: where pixels, boxes and voxels go; no array of them is touched."""
