"""Operations on arrays of pixels and voxels."""
