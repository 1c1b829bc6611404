"""Names of the measures in `ShardIndex.measures`: figures of each record in which a review looks for outliers.

Pictures, tiles and clips have the measures of `PICTURE`, and `SOURCE_SIDES` where a record shows all of its source. The
first record of a scan has those of `SCAN`, and two for each class of its label.
"""

from __future__ import annotations

from typing import Final

BRIGHTNESS: Final = "brightness"
"""Mean of all values of all channels, as a fraction of the range of the stored type."""
CONTRAST: Final = "contrast"
"""Standard deviation within a channel, the root mean square of all channels, in the same unit."""
ENTROPY_BITS: Final = "entropy_bits"
"""Entropy of the values of a channel in 256 bins, 0 to 8 bits, the mean of all channels."""
SHARPNESS: Final = "sharpness"
"""Mean squared difference of pixels 1 apart along rows, divided by that of pixels 4 apart.

It depends neither on the brightness nor on the contrast: 1 for white noise, 1/16 for a ramp.
"""
ROUGHNESS: Final = "roughness"
"""Mean squared difference of neighbors along rows, divided by twice the variance within a channel (von Neumann's
ratio): 1 for white noise, near 0 for photographs."""
PICTURE: Final = (BRIGHTNESS, CONTRAST, ENTROPY_BITS, SHARPNESS, ROUGHNESS)
SOURCE_SIDES: Final = ("source_height", "source_width")
"""Pixels of the displayed source."""
LOW_VALUE, MIDDLE_VALUE, HIGH_VALUE = "low_value", "middle_value", "high_value"
"""The 1st, 50th and 99th percentile of the first channel of a scan, in the unit of the source."""
SPACINGS_MM: Final = ("spacing_depth_mm", "spacing_height_mm", "spacing_width_mm")
"""Millimeters between the voxels of the source in canonical order of axes."""
SCAN: Final = (LOW_VALUE, MIDDLE_VALUE, HIGH_VALUE, *SPACINGS_MM)
CLASS_MM3, CLASS_MEAN = "class_mm3/", "class_mean/"
"""Prefixes of a class id: its volume in the source in mm³, and the mean of the source's values there, from every eighth
row. A scan lacks those of classes that its label does not have."""


def of_class(prefix: str, identity: int) -> str:
    """Return the name of a measure of a class.

    >>> of_class(CLASS_MM3, 3)
    'class_mm3/3'
    """
    return f"{prefix}{identity}"
