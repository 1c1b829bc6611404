"""How files become pixels and voxels: one file per format."""
