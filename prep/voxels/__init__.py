"""What is done to arrays of pixels and voxels."""
