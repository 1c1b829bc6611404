"""Boxes of volumes from a batch back to their sources: to voxels of the file, and to millimeters in the patient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halofeed.prep.geometry.volume_boxes import map_boxes


def boxes_to_source(
    boxes: ArrayLike, shape: Sequence[int], affine: ArrayLike, source_affine: ArrayLike
) -> NDArray[np.float64]:
    """Return boxes of one volume of a batch in voxels of its source.

    The result is exact to the rounding of float32, unless the scan was oblique and was resampled: then it is the box
    around the turned one.

    Args:
        boxes: [n, 6], a row of `boxes`: zmin, ymin, xmin, zmax, ymax, xmax, normalized to the volume.
        shape: depth, height and width of the volume as the batch holds it, after crops.
        affine: [4, 4], the row of `affine` (`include=["affine", "source_affine"]`), which follows augmentations.
        source_affine: [4, 4], the row of `source_affine`.

    Returns:
        float64 [n, 6], along the axes of the file, the slowest first, in continuous voxels: the first voxel extends
        from 0 to 1.

    >>> affine = np.diag([2.0, 1, 1, 1])  # every slice of the record is two slices of the source
    >>> affine[0, 3] = 0.5
    >>> boxes_to_source([[0, 0, 0, 0.5, 1, 1]], (4, 8, 8), affine, np.eye(4)).tolist()
    [[0.0, 0.0, 0.0, 4.0, 8.0, 8.0]]
    """
    voxels = np.asarray(boxes, np.float64).reshape(-1, 6) * np.tile(np.asarray(shape, np.float64), 2)
    return map_boxes(np.linalg.solve(np.asarray(source_affine, float), np.asarray(affine, float)), voxels)


def boxes_to_mm(
    boxes: ArrayLike, shape: Sequence[int], affine: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centers and sizes of boxes of one volume of a batch in millimeters.

    Args:
        boxes, shape, affine: as in `boxes_to_source`.

    Returns:
        Centers, float64 [n, 3], to the right, to anterior and to superior (RAS+; DICOM and ITK count the first two the
        other way); sizes, float64 [n, 3], along depth, height and width of the volume.

    >>> centers, sizes = boxes_to_mm([[0, 0, 0, 0.5, 1, 1]], (4, 8, 8), np.diag([2.0, 1, 1, 1]))
    >>> centers.tolist(), sizes.tolist()
    ([[1.0, 3.5, 3.5]], [[4.0, 8.0, 8.0]])
    """
    voxels = np.asarray(boxes, np.float64).reshape(-1, 6) * np.tile(np.asarray(shape, np.float64), 2)
    matrix = np.asarray(affine, np.float64)
    centers = (voxels[:, :3] + voxels[:, 3:]) / 2 - 0.5
    sizes = (voxels[:, 3:] - voxels[:, :3]) * np.linalg.norm(matrix[:3, :3], axis=0)
    return centers @ matrix[:3, :3].T + matrix[:3, 3], sizes
