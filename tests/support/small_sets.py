"""Names of the data sets that the fixture `sets` of tests/loader/store writes."""

KINDS = ("pictures", "crops", "mixed", "jpeg", "png", "volumes", "large volumes", "volume crops")
KINDS += ("packed", "packed crops", "yuv420", "yuv420 crops", "packed volumes", "packed volume crops")
