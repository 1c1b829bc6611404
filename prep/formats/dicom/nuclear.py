"""Slices of Nuclear Medicine images (SPECT), whose header places the first one and says how the others follow.

    slice 1 ── Spacing Between Slices ──> slice 2 ──> ...    along row direction x column direction

A positive spacing runs along the cross product of the directions, a negative one against it.

Source: DICOM PS3.3 C.8.4.8 (multi-frame), C.8.4.9 (image type), C.8.4.11 (detector), C.8.4.15 (reconstruction).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, damaged_file

RECONSTRUCTED = ("RECON TOMO", "RECON GATED TOMO")
NUCLEAR_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("TOMO", "GATED TOMO"), "nuclear medicine projections"),
    **dict.fromkeys(("STATIC", "WHOLE BODY"), "nuclear medicine planar image"),
    **dict.fromkeys(("DYNAMIC", "GATED"), "nuclear medicine planar time series"),
}
"""Kinds of the images that hold no slices, by the third word of the image type."""
NUCLEAR_VECTORS: Mapping[str, int] = {
    "energy window": headers.ENERGY_WINDOW_VECTOR,
    "R-R interval": headers.RR_INTERVAL_VECTOR,
    "time slot": headers.TIME_SLOT_VECTOR,
}
"""What distinguishes the volumes of one image: the elements with a number per frame."""

SlicePlace = tuple[tuple[float, ...], tuple[float, ...], Mapping[str, float]]
"""Position in mm, orientation, and what distinguishes the volume of a slice from others."""


def place_nuclear_slices(elements: Elements, count: int) -> list[SlicePlace] | None:
    """Return the place of each frame of a reconstructed image; None if the header does not place its slices.

    Args:
        elements: the elements of the file.
        count: number of frames.

    Raises:
        SourceError: an element is damaged, or a vector has not one number per frame.
    """
    image_type = headers.text(elements, headers.IMAGE_TYPE).upper().split("\\")
    detectors = headers.items(elements, headers.DETECTOR_INFORMATION)
    if not any(word.strip() in RECONSTRUCTED for word in image_type) or len(detectors) > 1:
        return None
    position, orientation = (
        next((found for one in (*detectors, elements) if (found := headers.numbers(one, tag, length))), None)
        for tag, length in ((headers.POSITION, 3), (headers.ORIENTATION, 6))
    )
    step_mm = headers.finite_number(elements, headers.SPACING_BETWEEN_SLICES)
    numbers = headers.numbers(elements, headers.SLICE_VECTOR, None) or tuple(map(float, range(1, count + 1)))
    if len(numbers) != count:
        raise damaged_file(f"a slice vector of {len(numbers)} numbers for {count} frames")
    if position is None or orientation is None or not step_mm or numbers[0] != 1:
        return None
    normal = np.cross(orientation[:3], orientation[3:])
    several: dict[str, tuple[float, ...]] = {}
    for name, tag in NUCLEAR_VECTORS.items():
        values = headers.numbers(elements, tag, None) or ()
        if len(set(values)) > 1:
            if len(values) != count:
                raise damaged_file(f"a vector of {len(values)} {name} numbers for {count} frames")
            several[name] = values
    return [
        (
            tuple((np.array(position) + (number - 1) * step_mm * normal).tolist()),
            orientation,
            {name: values[at] for name, values in several.items()},
        )
        for at, number in enumerate(numbers)
    ]
