"""Keys of a record's features in tf.train.Example."""

from __future__ import annotations

SOURCE_ID = "image/source_id"
FILENAME = "image/filename"
KEY_SOURCE = "image/key/source"
KEY_SHA256 = "image/key/sha256"

ENCODED = "image/encoded"
FORMAT = "image/format"
DEPTH = "image/depth"
HEIGHT = "image/height"
WIDTH = "image/width"
UNPADDED_HEIGHT = "image/unpadded/height"
UNPADDED_WIDTH = "image/unpadded/width"
SOURCE_HEIGHT = "image/source/height"
SOURCE_WIDTH = "image/source/width"
SIDES = (HEIGHT, WIDTH)
UNPADDED_SIDES = (UNPADDED_HEIGHT, UNPADDED_WIDTH)
SOURCE_SIDES = (SOURCE_HEIGHT, SOURCE_WIDTH)
TRANSFORM = "image/transform"

SPACING_MM = "image/spacing_mm"
LATERALITY = "image/laterality"
VIEW = "image/view"
BODY_PART = "image/body_part"
WORDS = (LATERALITY, VIEW, BODY_PART)
"""Keys of words about a picture; a record lacks those that its source does not state."""
AFFINE = "image/affine"
SOURCE_AFFINE = "image/source/affine"
SOURCE_SHAPE = "image/source/shape"
EXTENT = "image/extent"
TILE = "image/tile"
TILE_ORIGIN = "image/tile/origin"
TILE_WHOLE = "image/tile/whole"
CRS = "image/source/crs"
GEOTRANSFORM = "image/source/geotransform"
INTENSITY_SCALE = "image/intensity/scale"
INTENSITY_OFFSET = "image/intensity/offset"

FRAMES = "image/frames"
TIMES_S = "image/times_s"

LABEL = "image/label"
LABELLED = "image/labelled"
CLASS_LABEL = "image/class/label"
CLASS_TEXT = "image/class/text"

OF_OBJECTS, OF_IGNORED = "image/object/", "image/ignored/"
"""Prefixes of the keys of objects and of ignored regions."""

BOX_CORNERS = (
    "image/object/bbox/ymin",
    "image/object/bbox/xmin",
    "image/object/bbox/ymax",
    "image/object/bbox/xmax",
)
SOLID_CORNERS = (
    "image/object/bbox/zmin",
    *BOX_CORNERS[:2],
    "image/object/bbox/zmax",
    *BOX_CORNERS[2:],
)
"""Keys of the sides of boxes in volumes, in the order of a row of `boxes`."""
OBJECT_CLASS_LABEL = "image/object/class/label"
OBJECT_CLASS_TEXT = "image/object/class/text"
OBJECT_CLASS_SOURCE_LABEL = "image/object/class/source_label"
OBJECT_AREA = "image/object/area"
OBJECT_IS_CROWD = "image/object/is_crowd"
OBJECT_DIFFICULT = "image/object/difficult"
OBJECT_TRUNCATED = "image/object/truncated"
OBJECT_FLAGS = {
    "is_crowd": OBJECT_IS_CROWD,
    "difficult": OBJECT_DIFFICULT,
    "truncated": OBJECT_TRUNCATED,
}
"""Key of each flag that every box has, by the flag's name."""
OBJECT_INDEX = "image/object/index"
OBJECT_VISIBLE = "image/object/visible"
OBJECT_SOURCE_CORNERS = (
    "image/object/source/bbox/ymin",
    "image/object/source/bbox/xmin",
    "image/object/source/bbox/ymax",
    "image/object/source/bbox/xmax",
)
OBJECT_SOURCE_SOLID_CORNERS = (
    "image/object/source/bbox/zmin",
    *OBJECT_SOURCE_CORNERS[:2],
    "image/object/source/bbox/zmax",
    *OBJECT_SOURCE_CORNERS[2:],
)
OBJECT_SOURCE_AREA = "image/object/source/area"
OBJECT_SOURCE_IS_CROWD = "image/object/source/is_crowd"
IGNORED_CORNERS = (
    "image/ignored/bbox/ymin",
    "image/ignored/bbox/xmin",
    "image/ignored/bbox/ymax",
    "image/ignored/bbox/xmax",
)
"""Keys of the sides of ignored regions, in the units of `BOX_CORNERS`; a record without regions lacks them."""
IGNORED_SOURCE_CORNERS = (
    "image/ignored/source/bbox/ymin",
    "image/ignored/source/bbox/xmin",
    "image/ignored/source/bbox/ymax",
    "image/ignored/source/bbox/xmax",
)
"""Keys of the sides of the complete regions of which a tile shows parts, in pixels of the source file."""
OBJECT_OCCLUDED = "image/object/occluded"
OBJECT_GROUP_OF = "image/object/group_of"
OBJECT_VIEW = "image/object/view"
OBJECT_MASK = "image/object/mask"
OBJECT_CORNERS = "image/object/corners"
"""Prefix of the keys of the four corners of an object."""
CORNER_POINTS = tuple(f"{OBJECT_CORNERS}/{axis}{number}" for number in (1, 2, 3, 4) for axis in "yx")
"""Keys of the sides of the four corners, y and x of each, in the order of the annotation."""
OBJECT_KEYPOINT = "image/object/keypoint"
"""Prefix of the keys of a box's keypoints."""
